// Callbacks and failure callbacks: when they arrive, what they contain, and that they are messages themselves.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Receiver as Verifier } from "@upstash/qstash";
import { USERS } from "../support/server.js";
import { refused, states, story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();

const base64 = (text) => Buffer.from(text).toString("base64");

/** The content of a callback. Its signature is verified first, as receivers do. */
async function payloadOf(request) {
  const verifier = new Verifier({ currentSigningKey: USERS[0].current, nextSigningKey: USERS[0].next });
  const url = it.receiver.url(request.url);
  const signature = request.headers["upstash-signature"];
  assert.equal(await verifier.verify({ signature, body: request.body, url }), true);
  return JSON.parse(request.body);
}

function places(name) {
  const path = unique(`/${name}`);
  return {
    path,
    url: it.receiver.url(path),
    callback: it.receiver.url(`${path}-callback?q=1`),
    failureCallback: it.receiver.url(`${path}-failure`),
  };
}

test("a callback contains everything about a delivery", async () => {
  const { path, url, callback } = places("whole");
  it.receiver.script(path, { status: 201, headers: { "X-Answer": "yes", "Content-Type": "text/plain" }, body: "grüße" });
  const { messageId } = await it.client.publish({ url, body: "question", callback, method: "PUT", headers: { "X-Asked": "1", "Content-Type": "text/plain" }, retries: 2, label: "asked" });
  const [request] = await it.receiver.arrivals(`${path}-callback`);
  assert.equal(request.method, "POST");
  assert.equal(request.url, `${path}-callback?q=1`);
  assert.equal(request.headers["content-type"], "application/json");
  assert.equal(request.headers["user-agent"], "Upstash-QStash");
  assert.equal(request.headers["upstash-retried"], "0");
  assert.match(request.headers["upstash-message-id"], /^msg_/);
  assert.notEqual(request.headers["upstash-message-id"], messageId);
  const { header, notBefore, createdAt, ...rest } = await payloadOf(request);
  assert.deepEqual(header["X-Answer"], ["yes"]);
  assert.deepEqual(header["Content-Type"], ["text/plain"]);
  assert.ok(Math.abs(createdAt - Date.now()) < 60_000 && notBefore === createdAt);
  const known = ["label", "labels"];
  for (const name of known) delete rest[name];
  assert.deepEqual(rest, {
    status: 201,
    body: base64("grüße"),
    retried: 0,
    maxRetries: 2,
    sourceMessageId: messageId,
    url,
    method: "PUT",
    sourceHeader: { "Content-Type": ["text/plain"], "X-Asked": ["1"] },
    sourceBody: base64("question"),
    callerIP: "127.0.0.1",
  });
  const logs = await it.logsUntil(request.headers["upstash-message-id"], "DELIVERED");
  assert.deepEqual(states(logs), ["CREATED", "ACTIVE", "DELIVERED"]);
  assert.equal(logs[0].url, callback);
  assert.equal((await it.client.messages.get(messageId)).callback, callback);
});

test("a callback comes after every attempt", async () => {
  const { path, url, callback } = places("every");
  it.receiver.script(path, { status: 500, body: "not yet" }, { status: 200, body: "done" });
  await it.client.publish({ url, callback, retries: 3, retryDelay: "30" });
  const requests = await it.receiver.arrivals(`${path}-callback`, 2);
  const payloads = await Promise.all(requests.map(payloadOf));
  payloads.sort((one, other) => one.retried - other.retried);
  assert.deepEqual(
    payloads.map(({ status, retried, maxRetries, body }) => [status, retried, maxRetries, body]),
    [[500, 0, 3, base64("not yet")], [200, 1, 3, base64("done")]],
  );
});

test("a failure callback comes once, when all retries have failed, and names the dead letter", async () => {
  const { path, url, failureCallback } = places("failed");
  it.receiver.script(path, { status: 503, body: "no" });
  const { messageId } = await it.client.publishJSON({ url, body: { n: 1 }, failureCallback, retries: 1, retryDelay: "30" });
  const [request] = await it.receiver.arrivals(`${path}-failure`);
  const { dlqId, status, retried, maxRetries, body, sourceMessageId, sourceBody } = await payloadOf(request);
  assert.deepEqual(
    { status, retried, maxRetries, body, sourceMessageId, sourceBody },
    { status: 503, retried: 1, maxRetries: 1, body: base64("no"), sourceMessageId: messageId, sourceBody: base64('{"n":1}') },
  );
  const letter = await it.deadLetter(messageId);
  assert.equal(letter.dlqId, dlqId);
  assert.equal(letter.failureCallback, failureCallback);
  assert.equal(it.receiver.at(path).length, 2);
  await it.logsUntil(request.headers["upstash-message-id"], "DELIVERED");
  assert.equal(it.receiver.at(`${path}-failure`).length, 1);
});

test("both may be set; success brings no failure callback", async () => {
  const failing = places("both");
  it.receiver.script(failing.path, 500);
  await it.client.publish({ ...failing, retries: 0 });
  const [callback] = await it.receiver.arrivals(`${failing.path}-callback`);
  const [failure] = await it.receiver.arrivals(`${failing.path}-failure`);
  assert.equal((await payloadOf(callback)).dlqId, undefined);
  assert.ok((await payloadOf(failure)).dlqId);

  const fine = places("fine");
  await it.client.publish(fine);
  const [request] = await it.receiver.arrivals(`${fine.path}-callback`);
  await it.logsUntil(request.headers["upstash-message-id"], "DELIVERED");
  assert.equal(it.receiver.at(`${fine.path}-failure`).length, 0);
});

test("a missing response is status 0", async () => {
  const { path, callback, failureCallback } = places("nobody");
  await it.client.publish({ url: "http://127.0.0.1:1/", callback, failureCallback, retries: 0 });
  for (const end of ["callback", "failure"]) {
    const [request] = await it.receiver.arrivals(`${path}-${end}`);
    const { status, body } = await payloadOf(request);
    assert.equal(status, 0);
    assert.equal(typeof body, "string");
  }
});

test("binary, empty and large responses arrive as base64", async () => {
  for (const body of [Buffer.from([0, 255, 254, 10]), Buffer.alloc(0), Buffer.alloc(300_000, "x")]) {
    const { path, url, callback } = places("bytes");
    it.receiver.script(path, { status: 200, body });
    await it.client.publish({ url, callback });
    const [request] = await it.receiver.arrivals(`${path}-callback`);
    assert.equal((await payloadOf(request)).body, body.toString("base64"));
  }
});

test("headers configure the callback as they configure a message", async () => {
  const { path, url, callback, failureCallback } = places("configured");
  it.receiver.script(path, 500);
  it.receiver.script(`${path}-callback`, 500, 200);
  const headers = {
    "Upstash-Callback-Method": "PUT",
    "Upstash-Callback-Retries": "1",
    "Upstash-Callback-Retry-Delay": "20",
    "Upstash-Callback-Timeout": "30s",
    "Upstash-Callback-Forward-X-Mine": "callback",
    "Upstash-Callback-Something-Unknown": "ignored",
    "Upstash-Failure-Callback-Method": "PATCH",
    "Upstash-Failure-Callback-Forward-X-Mine": "failure",
    "Upstash-Failure-Callback-Forward-Authorization": "Bearer failure",
  };
  const { messageId } = await it.client.publish({ url, callback, failureCallback, retries: 0, headers });
  const [first, second] = await it.receiver.arrivals(`${path}-callback`, 2);
  assert.deepEqual([first.method, first.headers["x-mine"], first.headers["upstash-retried"]], ["PUT", "callback", "0"]);
  assert.equal(second.headers["upstash-retried"], "1");
  assert.equal(second.headers["upstash-message-id"], first.headers["upstash-message-id"]);
  const [failure] = await it.receiver.arrivals(`${path}-failure`);
  assert.deepEqual([failure.method, failure.headers["x-mine"], failure.headers.authorization], ["PATCH", "failure", "Bearer failure"]);
  const letter = await it.deadLetter(messageId);
  assert.deepEqual(letter.callbackHeader?.["X-Mine"], ["callback"]);
  assert.deepEqual(letter.failureCallbackHeader?.["X-Mine"], ["failure"]);
  const shown = await it.client.messages.get(first.headers["upstash-message-id"]);
  assert.deepEqual([shown.maxRetries, shown.method], [1, "PUT"]);
});

test("a callback has the retries of its message, and fails into the DLQ", async () => {
  const { path, url, callback } = places("fails");
  it.receiver.script(`${path}-callback`, 500);
  await it.client.publish({ url, callback, retries: 1, headers: { "Upstash-Callback-Retry-Delay": "20" } });
  const [first] = await it.receiver.arrivals(`${path}-callback`, 2);
  const letter = await it.deadLetter(first.headers["upstash-message-id"]);
  assert.equal(letter.url, callback);
  assert.equal(letter.maxRetries, 1);
  it.receiver.script(`${path}-callback`, 200);
  await it.client.dlq.retry(letter.dlqId);
  const [, , third] = await it.receiver.arrivals(`${path}-callback`, 3);
  assert.equal(third.body, first.body);
});

test("every endpoint of a group has its own callback", async () => {
  const { path, callback } = places("group");
  const name = unique("group");
  const endpoints = ["one", "two"].map((end) => ({ name: end, url: it.receiver.url(`${path}-${end}`) }));
  await it.client.urlGroups.addEndpoints({ name, endpoints });
  const answers = await it.client.publish({ urlGroup: name, callback });
  const requests = await it.receiver.arrivals(`${path}-callback`, 2);
  const payloads = await Promise.all(requests.map(payloadOf));
  payloads.sort((one, other) => (one.endpointName < other.endpointName ? -1 : 1));
  assert.deepEqual(
    payloads.map(({ topicName, endpointName, url, sourceMessageId }) => ({ topicName, endpointName, url, sourceMessageId })),
    endpoints.map((endpoint, n) => ({ topicName: name, endpointName: endpoint.name, url: endpoint.url, sourceMessageId: answers[n].messageId })),
  );
});

test("items of a batch and queued messages have callbacks too", async () => {
  const { path, url, callback } = places("batch");
  const answers = await it.client.batch([{ url, callback }, { url, callback, queueName: unique("queue") }]);
  const requests = await it.receiver.arrivals(`${path}-callback`, 2);
  const sources = (await Promise.all(requests.map(payloadOf))).map((payload) => payload.sourceMessageId);
  assert.deepEqual(sources.sort(), answers.map((answer) => answer.messageId).sort());
});

test("a delayed callback comes later", async () => {
  const { path, url, callback } = places("delayed");
  await it.client.publish({ url, callback, headers: { "Upstash-Callback-Delay": "1s" } });
  const [request] = await it.receiver.arrivals(path);
  const [called] = await it.receiver.arrivals(`${path}-callback`);
  assert.ok(called.at - request.at >= 950, `${called.at - request.at} ms`);
});

test("a retried dead letter calls back again", async () => {
  const { path, url, failureCallback } = places("again");
  it.receiver.script(path, 500);
  const { messageId } = await it.client.publish({ url, failureCallback, retries: 0 });
  const letter = await it.deadLetter(messageId);
  await it.receiver.arrivals(`${path}-failure`);
  const { responses } = await it.client.dlq.retry(letter.dlqId);
  const [, again] = await it.receiver.arrivals(`${path}-failure`, 2);
  assert.equal((await payloadOf(again)).sourceMessageId, responses[0].messageId);
});

test("cancelled messages have no callbacks", async () => {
  const { path, url, callback, failureCallback } = places("cancelled");
  const { messageId } = await it.client.publish({ url, callback, failureCallback, delay: 3600 });
  await it.client.messages.cancel(messageId);
  await it.logsUntil(messageId, "CANCELED");
  const marker = await it.client.publish({ url });
  await it.logsUntil(marker.messageId, "DELIVERED");
  assert.deepEqual([it.receiver.at(`${path}-callback`).length, it.receiver.at(`${path}-failure`).length], [0, 0]);
});

test("callbacks to invalid destinations are rejected", async () => {
  const url = it.receiver.url("/unused");
  await refused(it.client.publish({ url, callback: "example.com/x" }), 400, /callback/i);
  await refused(it.client.publish({ url, failureCallback: "ftp://example.com" }), 400, /failure-callback/i);
  await refused(it.client.publish({ url, callback: url, headers: { "Upstash-Callback-Retries": "many" } }), 400, /callback-retries/i);
});

test("logs show where callbacks go", async () => {
  const { url, callback, failureCallback } = places("logs");
  const { messageId } = await it.client.publish({ url, callback, failureCallback, headers: { "Upstash-Callback-Forward-X-A": "1" } });
  for (const log of await it.logsUntil(messageId, "DELIVERED")) {
    assert.deepEqual([log.callback, log.failureCallback], [callback, failureCallback]);
    assert.deepEqual(log.callbackHeaders?.["X-A"], ["1"]);
  }
  await eventually("its callback", () => it.receiver.requests.some((request) => it.receiver.url(request.url) === callback));
});
