// Dead letters: list, filter, page, delete, retry.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refused, states, story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();

/** Publishes messages that fail at once, each after the previous one is a dead letter; returns them, newest first. */
async function bury(count, options = {}, client = it.client) {
  const path = options.path ?? `/${unique("dead")}`;
  const label = options.label ?? unique("dead");
  it.receiver.script(path, { status: options.status ?? 500, body: "no" });
  let letters = [];
  for (let n = 0; n < count; n += 1) {
    await client.publish({ url: it.receiver.url(path), body: `body ${n}`, retries: 0, label, headers: { "X-Kept": "yes" } });
    letters = await eventually(`${n + 1} dead letters ${label}`, async () => {
      const { messages } = await client.dlq.listMessages({ filter: { label } });
      return messages.length === n + 1 ? messages : undefined;
    });
  }
  return letters;
}

test("filters narrow the list: url, label, status, message id, caller, time", async () => {
  const [teapot] = await bury(1, { status: 418 });
  const [gone] = await bury(1, { status: 410 });
  const ids = async (filter) => (await it.client.dlq.listMessages({ filter })).messages.map((letter) => letter.dlqId);
  assert.deepEqual(await ids({ url: teapot.url }), [teapot.dlqId]);
  assert.deepEqual(await ids({ messageId: gone.messageId }), [gone.dlqId]);
  assert.deepEqual(await ids({ responseStatus: 418 }), [teapot.dlqId]);
  assert.deepEqual((await ids({ responseStatus: [418, 410] })).sort(), [teapot.dlqId, gone.dlqId].sort());
  assert.deepEqual((await ids({ label: [teapot.label, gone.label] })).sort(), [teapot.dlqId, gone.dlqId].sort());
  assert.deepEqual(await ids({ label: teapot.label, responseStatus: 410 }), []);
  assert.deepEqual(await ids({ label: teapot.label, callerIp: "127.0.0.1" }), [teapot.dlqId]);
  assert.deepEqual(await ids({ label: teapot.label, callerIp: "192.0.2.1" }), []);
  assert.deepEqual(await ids({ label: teapot.label, fromDate: Date.now() + 60_000 }), []);
  assert.deepEqual(await ids({ label: teapot.label, fromDate: teapot.createdAt, toDate: Date.now() }), [teapot.dlqId]);
  assert.deepEqual(await ids({ urlGroup: "none" }), []);
  assert.deepEqual(await ids({ queueName: "none" }), []);
  const byIds = await it.client.dlq.listMessages({ dlqIds: [gone.dlqId, "1-1"] });
  assert.deepEqual(byIds.messages.map((letter) => letter.dlqId), [gone.dlqId]);
});

test("the list is newest first and comes in pages; the last page has no cursor", async () => {
  const letters = await bury(5);
  const filter = { label: letters[0].label };
  const pages = [];
  let cursor;
  do {
    const page = await it.client.dlq.listMessages({ filter, count: 2, cursor });
    pages.push(page.messages.map((letter) => letter.dlqId));
    cursor = page.cursor;
  } while (cursor !== undefined);
  assert.deepEqual(pages.map((page) => page.length), [2, 2, 1]);
  assert.deepEqual(pages.flat(), letters.map((letter) => letter.dlqId));
  const bodies = letters.map((letter) => letter.body);
  assert.deepEqual(bodies, ["body 4", "body 3", "body 2", "body 1", "body 0"]);
});

test("a dead letter is deleted once", async () => {
  const [letter] = await bury(1);
  assert.deepEqual(await it.client.dlq.delete(letter.dlqId), { deleted: 1 });
  await refused(it.client.dlq.delete(letter.dlqId), 404);
  assert.equal((await it.server.fetch(`/v2/dlq/${letter.dlqId}`)).status, 404);
});

test("many are deleted by id; unknown ones are skipped", async () => {
  const letters = await bury(3);
  const ids = letters.map((letter) => letter.dlqId);
  assert.deepEqual(await it.client.dlq.deleteMany({ dlqIds: [ids[0], "1-1"] }), { deleted: 1 });
  assert.deepEqual(await it.client.dlq.delete(ids), { deleted: 2 });
  assert.equal((await it.client.dlq.listMessages({ filter: { label: letters[0].label } })).messages.length, 0);
});

test("many are deleted by filter, page by page", async () => {
  const letters = await bury(5);
  const filter = { label: letters[0].label };
  let deleted = 0;
  let cursor;
  do {
    const answer = await it.client.dlq.delete({ filter, count: 2, cursor });
    deleted += answer.deleted;
    cursor = answer.cursor;
  } while (cursor !== undefined);
  assert.equal(deleted, 5);
  assert.deepEqual(await it.client.dlq.delete({ filter }), { deleted: 0 });
});

test("all means all of this user", async () => {
  const [mine, theirs] = [it.server.client(1), it.server.client(2)];
  await bury(2, {}, mine);
  const [other] = await bury(1, {}, theirs);
  await refused(mine.dlq.delete(other.dlqId), 404);
  assert.deepEqual(await mine.dlq.delete([other.dlqId]), { deleted: 0 });
  assert.deepEqual(await mine.dlq.delete({ all: true }), { deleted: 2 });
  assert.equal((await theirs.dlq.listMessages()).messages.length, 1);
});

test("a retried dead letter is a new message with the old content, and leaves the DLQ", async () => {
  const path = `/${unique("retry")}`;
  const [letter] = await bury(1, { path });
  it.receiver.script(path, 200);
  const { responses, cursor } = await it.client.dlq.retry(letter.dlqId);
  assert.equal(cursor, undefined);
  assert.equal(responses.length, 1);
  assert.notEqual(responses[0].messageId, letter.messageId);
  const [, again] = await it.receiver.arrivals(path, 2);
  assert.equal(again.headers["upstash-message-id"], responses[0].messageId);
  assert.equal(again.headers["upstash-retried"], "0");
  assert.equal(again.headers["x-kept"], "yes");
  assert.equal(again.body, letter.body);
  assert.equal((await it.client.dlq.listMessages({ filter: { label: letter.label } })).messages.length, 0);
  await refused(it.client.dlq.retry(letter.dlqId), 404);
  const logs = await it.logsUntil(responses[0].messageId, "DELIVERED");
  assert.deepEqual(states(logs), ["CREATED", "ACTIVE", "DELIVERED"]);
  assert.equal(logs[0].label, letter.label);
});

test("a redacted dead letter is retried with its original contents", async () => {
  const path = `/${unique("redacted")}`;
  it.receiver.script(path, 500, 200);
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), body: "secret", retries: 0, redact: { body: true } });
  const letter = await it.deadLetter(messageId);
  assert.match(letter.body, /^REDACTED:/);
  await it.client.dlq.retry(letter.dlqId);
  const requests = await it.receiver.arrivals(path, 2);
  assert.equal(requests[1].body, "secret");
});

test("many are retried by filter and by ids; without a match the response is empty", async () => {
  const path = `/${unique("many")}`;
  const letters = await bury(3, { path });
  it.receiver.script(path, 200);
  assert.deepEqual(await it.client.dlq.retry({ filter: { label: unique("none") } }), { responses: [], cursor: undefined });
  const byFilter = await it.client.dlq.retry({ filter: { label: letters[0].label }, count: 2 });
  assert.equal(byFilter.responses.length, 2);
  const rest = (await it.client.dlq.listMessages({ filter: { label: letters[0].label } })).messages;
  assert.equal(rest.length, 1);
  const byId = await it.client.dlq.retry({ dlqIds: [rest[0].dlqId] });
  assert.equal(byId.responses.length, 1);
  await it.receiver.arrivals(path, 6);
});

test("settings on the retry request replace the stored ones", async () => {
  const path = `/${unique("override")}`;
  const [letter] = await bury(1, { path });
  it.receiver.script(path, 200);
  const response = await it.server.fetch(`/v2/dlq/retry/${letter.dlqId}`, {
    method: "POST",
    headers: { "Upstash-Method": "PUT", "Upstash-Forward-X-New": "1", "Upstash-Retries": "7" },
  });
  assert.equal(response.status, 201);
  const { messageId } = await response.json();
  const [, again] = await it.receiver.arrivals(path, 2);
  assert.equal(again.method, "PUT");
  assert.equal(again.headers["x-new"], "1");
  assert.equal(again.headers["x-kept"], "yes");
  assert.equal((await it.client.messages.get(messageId)).maxRetries, 7);
});

test("a misspelt filter is rejected and changes nothing", async () => {
  const [letter] = await bury(1);
  for (const [method, target] of [
    ["GET", "/v2/dlq?labeel=x"],
    ["DELETE", "/v2/dlq?labeel=x&count=100"],
    ["POST", "/v2/dlq/retry?labeel=x"],
    ["GET", "/v2/dlq?host=example.com"],
    ["DELETE", "/v2/dlq?path=/x"],
    ["DELETE", "/v2/dlq/"],
    ["DELETE", "/v2/dlq?dlqIds="],
  ]) {
    assert.equal((await it.server.fetch(target, { method })).status, 400, `${method} ${target}`);
  }
  assert.deepEqual(await it.client.dlq.delete(letter.dlqId), { deleted: 1 });
});
