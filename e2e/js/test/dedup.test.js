// Deduplication: by an id of the publisher, and by content.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refused, story, unique } from "../support/story.js";

const it = story();

test("the second publish with the same id returns the first message, which is delivered once", async () => {
  const path = `/${unique("by-id")}`;
  const request = { url: it.receiver.url(path), body: "one", deduplicationId: unique("order") };
  const first = await it.client.publish(request);
  const second = await it.client.publish({ ...request, body: "another body" });
  assert.equal(first.deduplicated, undefined);
  assert.deepEqual(second, { messageId: first.messageId, deduplicated: true });
  await it.logsUntil(first.messageId, "DELIVERED");
  const third = await it.client.publish(request);
  assert.deepEqual(third, { messageId: first.messageId, deduplicated: true }, "also after the delivery");
  assert.equal(it.receiver.at(path).length, 1);
  const raw = await it.server.fetch(`/v2/publish/${request.url}`, {
    method: "POST",
    headers: { "Upstash-Deduplication-Id": request.deduplicationId },
  });
  assert.equal(raw.status, 202);
});

test("of concurrent publishes with one id exactly one creates a message", async () => {
  const path = `/${unique("race")}`;
  const request = { url: it.receiver.url(path), body: "x", deduplicationId: unique("race") };
  const answers = await Promise.all(Array.from({ length: 20 }, () => it.client.publish(request)));
  assert.equal(new Set(answers.map((answer) => answer.messageId)).size, 1);
  assert.equal(answers.filter((answer) => !answer.deduplicated).length, 1);
  await it.logsUntil(answers[0].messageId, "DELIVERED");
  assert.equal(it.receiver.at(path).length, 1);
});

test("content-based: same destination, body and forwarded headers are a duplicate, anything else is not", async () => {
  const path = `/${unique("by-content")}`;
  const request = { url: it.receiver.url(path), body: "same", contentBasedDeduplication: true, headers: { "X-Kind": "a" } };
  const first = await it.client.publish(request);
  assert.equal((await it.client.publish({ ...request, retries: 1, delay: 1 })).messageId, first.messageId);
  for (const other of [
    { ...request, body: "other" },
    { ...request, headers: { "X-Kind": "b" } },
    { ...request, headers: { "X-Kind": "a", "Content-Type": "text/plain" } },
    { ...request, url: it.receiver.url(`${path}?x=1`) },
  ]) {
    const answer = await it.client.publish(other);
    assert.equal(answer.deduplicated, undefined);
    assert.notEqual(answer.messageId, first.messageId);
  }
  await it.receiver.arrivals(path, 5);
});

test("without a deduplication setting the same message is delivered as often as published", async () => {
  const path = `/${unique("plain")}`;
  const first = await it.client.publish({ url: it.receiver.url(path), body: "x" });
  const second = await it.client.publish({ url: it.receiver.url(path), body: "x", contentBasedDeduplication: false });
  assert.notEqual(first.messageId, second.messageId);
  await it.receiver.arrivals(path, 2);
});

test("ids belong to their user", async () => {
  const path = `/${unique("tenants")}`;
  const request = { url: it.receiver.url(path), body: "x", deduplicationId: unique("shared") };
  await it.client.publish(request);
  assert.equal((await it.server.client(1).publish(request)).deduplicated, undefined);
  await it.receiver.arrivals(path, 2);
});

test("an id may contain a colon, unlike in the hosted service", async () => {
  const request = { url: it.receiver.url(`/${unique("colon")}`), deduplicationId: `${unique("job")}:resource` };
  const first = await it.client.publish(request);
  assert.deepEqual(await it.client.publish(request), { messageId: first.messageId, deduplicated: true });
});

test("an id that is too long is rejected", async () => {
  await refused(it.client.publish({ url: it.receiver.url("/unused"), deduplicationId: "x".repeat(5_000) }), 400, /deduplication/i);
});
