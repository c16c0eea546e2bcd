// Failing receivers: retries, their timing, and how a message ends.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refused, states, story, unique } from "../support/story.js";
import { gate } from "../support/receiver.js";

const it = story();

test("a failing receiver is retried until it succeeds", async () => {
  const path = `/${unique("eventually")}`;
  it.receiver.script(path, { status: 500, body: "broken" }, { status: 503 }, 200);
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), body: "again", retries: 3, retryDelay: "50" });
  const requests = await it.receiver.arrivals(path, 3);
  assert.deepEqual(requests.map((request) => request.headers["upstash-retried"]), ["0", "1", "2"]);
  assert.deepEqual(new Set(requests.map((request) => request.headers["upstash-message-id"])), new Set([messageId]));
  assert.deepEqual(new Set(requests.map((request) => request.body)), new Set(["again"]));
  const signatures = new Set(requests.map((request) => request.headers["upstash-signature"]));
  assert.equal(signatures.size, 3, "each attempt is signed afresh");

  const logs = await it.logsUntil(messageId, "DELIVERED");
  assert.deepEqual(states(logs), ["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"]);
  const [firstError, secondError] = logs.filter((log) => log.state === "ERROR");
  assert.equal(firstError.responseStatus, 500);
  assert.equal(firstError.responseBody, "broken");
  assert.equal(secondError.responseStatus, 503);
  const retry = logs.find((log) => log.state === "RETRY");
  assert.ok(retry.nextDeliveryTime >= firstError.time + 50, "the next try is announced");
  assert.equal((await it.client.dlq.listMessages({ filter: { messageId } })).messages.length, 0);
});

test("the retry delay is an expression over the number of retries", async () => {
  const path = `/${unique("expression")}`;
  it.receiver.script(path, 500, 500, 500, 200);
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), retries: 3, retryDelay: "100 + 200 * retried" });
  const logs = await it.logsUntil(messageId, "DELIVERED");
  const waits = logs.flatMap((log, index) => (log.state === "RETRY" ? [log.nextDeliveryTime - logs[index - 1].time] : []));
  assert.deepEqual(waits, [100, 300, 500]);
  const times = it.receiver.at(path).map((request) => request.at);
  assert.ok(times[1] - times[0] >= 99 && times[2] - times[1] >= 299 && times[3] - times[2] >= 499, `gaps of ${times}`);
});

test("Retry-After of the receiver takes precedence over the expression", async () => {
  const path = `/${unique("retry-after")}`;
  it.receiver.script(path, { status: 429, headers: { "Retry-After": "1" } }, 200);
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), retries: 1, retryDelay: "20000" });
  const logs = await it.logsUntil(messageId, "DELIVERED");
  const error = logs.find((log) => log.state === "ERROR");
  const retry = logs.find((log) => log.state === "RETRY");
  assert.equal(retry.nextDeliveryTime - error.time, 1_000);
});

test("without an expression the first retry comes after about twelve seconds", async () => {
  const path = `/${unique("default-delay")}`;
  it.receiver.script(path, 500);
  const { messageId } = await it.client.publish({ url: it.receiver.url(path) });
  const logs = await it.logsUntil(messageId, "RETRY");
  const wait = logs.at(-1).nextDeliveryTime - logs.find((log) => log.state === "ERROR").time;
  assert.ok(wait >= 12_182 && wait <= 13_500, `the retry is ${wait} ms away`);
  assert.equal((await it.client.messages.get(messageId)).maxRetries, 3);
  await it.client.messages.cancel(messageId);
});

test("a message whose retries are used up is a dead letter", async () => {
  const path = `/${unique("exhausted")}`;
  const url = it.receiver.url(path);
  it.receiver.script(path, { status: 404, headers: { "X-Why": "gone" }, body: "404 Not Found" });
  const { messageId } = await it.client.publish({ url, body: "lost", retries: 2, retryDelay: "20", label: "exhausted" });
  const letter = await it.deadLetter(messageId);
  assert.equal(it.receiver.at(path).length, 3, "one attempt and two retries");
  assert.equal(letter.responseStatus, 404);
  assert.equal(letter.responseBody, "404 Not Found");
  assert.deepEqual(letter.responseHeader["X-Why"], ["gone"]);
  assert.equal(letter.url, url);
  assert.equal(letter.body, "lost");
  assert.equal(letter.maxRetries, 2);
  assert.equal(letter.label, "exhausted");
  assert.ok(letter.dlqId);
  const logs = await it.logsUntil(messageId, "FAILED");
  assert.deepEqual(states(logs), ["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "FAILED"]);
});

test("no retries means one attempt and four log lines", async () => {
  const path = `/${unique("no-retries")}`;
  it.receiver.script(path, 500);
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), retries: 0 });
  const logs = await it.logsUntil(messageId, "FAILED");
  assert.deepEqual(states(logs), ["CREATED", "ACTIVE", "ERROR", "FAILED"]);
  assert.equal(it.receiver.at(path).length, 1);
});

test("489 with the header is final; 489 without it is a failure like any other", async () => {
  const final = `/${unique("final")}`;
  it.receiver.script(final, { status: 489, headers: { "Upstash-NonRetryable-Error": "true" }, body: "never" });
  const refusedForGood = await it.client.publish({ url: it.receiver.url(final), retries: 5, retryDelay: "10" });
  const letter = await it.deadLetter(refusedForGood.messageId);
  assert.equal(letter.responseStatus, 489);
  assert.equal(it.receiver.at(final).length, 1);
  assert.deepEqual(states(await it.logsUntil(refusedForGood.messageId, "FAILED")), ["CREATED", "ACTIVE", "ERROR", "FAILED"]);

  const plain = `/${unique("plain-489")}`;
  it.receiver.script(plain, 489, 200);
  await it.client.publish({ url: it.receiver.url(plain), retries: 1, retryDelay: "10" });
  await it.receiver.arrivals(plain, 2);
});

test("redirects are not followed", async () => {
  const path = `/${unique("redirect")}`;
  it.receiver.script(path, { status: 302, headers: { Location: it.receiver.url("/redirected") } });
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), retries: 0 });
  assert.equal((await it.deadLetter(messageId)).responseStatus, 302);
  assert.equal(it.receiver.at("/redirected").length, 0);
});

test("a receiver that does not respond in time has failed", async () => {
  const path = `/${unique("timeout")}`;
  const { opened, open } = gate();
  it.receiver.script(path, { status: 200, after: opened });
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), retries: 0, timeout: 1 });
  const letter = await it.deadLetter(messageId);
  open();
  assert.equal(letter.responseStatus, 0);
  const logs = await it.logsUntil(messageId, "FAILED");
  assert.match(logs.find((log) => log.state === "ERROR").error, /deadline exceeded|timed? ?out/i);
});

test("an unreachable receiver has failed, and the log shows why", async () => {
  const { messageId } = await it.client.publish({ url: "http://127.0.0.1:1/nobody", retries: 0 });
  assert.equal((await it.deadLetter(messageId)).responseStatus, 0);
  const logs = await it.logsUntil(messageId, "FAILED");
  assert.match(logs.find((log) => log.state === "ERROR").error, /refused/i);
});

test("wrong retry settings are rejected with the name of the field", async () => {
  const url = it.receiver.url("/unused");
  await refused(it.client.publish({ url, retryDelay: "1000 * bogus" }), 400, /retry-delay|retryDelay/i);
  await refused(it.client.publish({ url, retryDelay: "pow(1" }), 400, /retry-delay|retryDelay/i);
  await refused(it.client.publish({ url, headers: { "Upstash-Retries": "-1" } }), 400, /retries/i);
  await refused(it.client.publish({ url, headers: { "Upstash-Retries": "many" } }), 400, /retries/i);
  assert.equal(it.receiver.at("/unused").length, 0);
});
