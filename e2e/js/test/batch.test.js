// Batches: many messages in one request.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refused, story, unique } from "../support/story.js";

const it = story();

test("batchJSON responds in order, and each item has its own settings", async () => {
  const path = unique("/json");
  const answers = await it.client.batchJSON([
    { url: it.receiver.url(`${path}-1`), body: { n: 1 }, headers: { "X-Item": "one" } },
    { url: it.receiver.url(`${path}-2?q=2`), body: { n: 2 }, method: "PUT", label: "second" },
    { url: it.receiver.url(`${path}-3`), body: { n: 3 }, delay: 3600 },
  ]);
  assert.equal(answers.length, 3);
  const [one] = await it.receiver.arrivals(`${path}-1`);
  const [two] = await it.receiver.arrivals(`${path}-2`);
  assert.equal(one.headers["upstash-message-id"], answers[0].messageId);
  assert.equal(one.headers["x-item"], "one");
  assert.equal(one.headers["content-type"], "application/json");
  assert.equal(one.body, '{"n":1}');
  assert.equal(two.headers["upstash-message-id"], answers[1].messageId);
  assert.equal(two.method, "PUT");
  assert.equal(two.url, `${path}-2?q=2`);
  const delayed = await it.client.messages.get(answers[2].messageId);
  assert.equal(delayed.notBefore - delayed.createdAt, 3_600_000);
  assert.equal((await it.client.messages.get(answers[1].messageId)).label, "second");
  await it.client.messages.cancel(answers[2].messageId);
});

test("batch accepts text, and items without a body", async () => {
  const path = unique("/text");
  await it.client.batch([{ url: it.receiver.url(`${path}-1`), body: "plain ☃" }, { url: it.receiver.url(`${path}-2`) }]);
  assert.equal((await it.receiver.arrivals(`${path}-1`))[0].body, "plain ☃");
  assert.equal((await it.receiver.arrivals(`${path}-2`))[0].raw.length, 0);
});

test("a hundred items are a hundred messages", async () => {
  const path = unique("/hundred");
  const items = Array.from({ length: 100 }, (_, n) => ({ url: it.receiver.url(path), body: { n } }));
  const answers = await it.client.batchJSON(items);
  const requests = await it.receiver.arrivals(path, 100);
  const byId = new Map(requests.map((request) => [request.headers["upstash-message-id"], JSON.parse(request.body).n]));
  answers.forEach((answer, n) => assert.equal(byId.get(answer.messageId), n));
});

test("duplicates inside a batch are one message", async () => {
  const path = unique("/duplicates");
  const item = { url: it.receiver.url(path), body: "x", deduplicationId: unique("id") };
  const answers = await it.client.batch([item, item]);
  assert.equal(answers[0].messageId, answers[1].messageId);
  assert.deepEqual(answers.map((answer) => answer.deduplicated), [undefined, true]);
});

test("one wrong item rejects the whole batch, and nothing is sent", async () => {
  const path = unique("/all-or-none");
  const good = { url: it.receiver.url(path), body: "x" };
  await refused(it.client.batch([good, { ...good, delay: "soon" }]), 400, /delay/i);
  await refused(it.client.batch([good, { ...good, url: "no-scheme.example.com:80/x" }]), 400, /scheme/);
  // A later message to the same destination proves that nothing else was pending.
  const last = await it.client.publish({ ...good, body: "last" });
  await it.logsUntil(last.messageId, "DELIVERED");
  assert.deepEqual(it.receiver.at(path).map((request) => request.body), ["last"]);
});

test("lists of header values and nulls are accepted, as other SDKs send them", async () => {
  const path = unique("/shapes");
  const response = await it.server.fetch("/v2/batch", {
    method: "POST",
    headers: { "Content-Type": "application/json", "Upstash-Forward-Outer": "no" },
    body: JSON.stringify([
      { destination: it.receiver.url(path), headers: { "Upstash-Forward-X-Many": ["1", "2"], "upstash-method": "PUT" }, body: "x", queue: null },
      { destination: it.receiver.url(path), headers: null, body: null, queue: "" },
    ]),
  });
  assert.equal(response.status, 200);
  assert.equal((await response.json()).length, 2);
  const requests = await it.receiver.arrivals(path, 2);
  const put = requests.find((request) => request.method === "PUT");
  assert.equal(put.headers["x-many"], "1, 2");
  assert.equal(put.headers.outer, undefined, "headers of the batch request are not the items'");
});

test("invalid batches are rejected", async () => {
  for (const body of ["", "{}", "[1]", '[{"body":"x"}]', "["]) {
    const response = await it.server.fetch("/v2/batch", { method: "POST", body });
    assert.equal(response.status, 400, body);
    assert.equal(typeof (await response.json()).error, "string");
  }
});
