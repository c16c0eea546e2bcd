// Logs: order, filters, pages.

import assert from "node:assert/strict";
import { test } from "node:test";
import { states, story, unique } from "../support/story.js";

const it = story();

/** Delivers messages one after the other and returns their ids. */
async function deliver(count, options = {}) {
  const ids = [];
  for (let n = 0; n < count; n += 1) {
    const { messageId } = await it.client.publish({ url: it.receiver.url("/log"), body: "x", ...options });
    await it.logsUntil(messageId, "DELIVERED");
    ids.push(messageId);
  }
  return ids;
}

test("lines come newest first, and cover the message's whole life", async () => {
  const url = it.receiver.url("/whole?x=1");
  const [messageId] = await deliver(1, { url, body: "grüße", headers: { "Content-Type": "text/plain", "X-A": "1" }, label: ["l1", "l2"], retries: 2, retryDelay: "1000 * retried", timeout: 30 });
  const { logs, events, cursor } = await it.client.logs({ filter: { messageId } });
  assert.deepEqual(events, logs, "the old name gives the same");
  assert.equal(cursor, undefined);
  assert.deepEqual(states(logs), ["DELIVERED", "ACTIVE", "CREATED"]);
  for (const [index, log] of logs.entries()) {
    assert.equal(log.messageId, messageId);
    assert.equal(log.url, url);
    assert.equal(Buffer.from(log.body, "base64").toString(), "grüße");
    assert.deepEqual(log.header, { "Content-Type": ["text/plain"], "X-A": ["1"] });
    assert.equal(log.label, "l1");
    assert.deepEqual(log.labels, ["l1", "l2"]);
    assert.equal(log.method, "POST");
    assert.equal(log.maxRetries, 2);
    assert.equal(log.timeout, 30_000);
    assert.equal(log.retryDelayExpression, "1000 * retried");
    assert.equal(log.callerIP, "127.0.0.1");
    assert.ok(index === 0 || log.time <= logs[index - 1].time, "time does not run backwards");
  }
});

test("filters: state, ids, url, label, host, path, time", async () => {
  const label = unique("filter");
  const path = `/${unique("filter")}`;
  const [first] = await deliver(1, { label, url: it.receiver.url(path) });
  const [second] = await deliver(1, { label, url: it.receiver.url(`${path}-other`) });
  const ids = async (request) => (await it.client.logs(request)).logs.map((log) => log.messageId);
  assert.deepEqual(await ids({ filter: { label, state: "DELIVERED" } }), [second, first]);
  assert.deepEqual(await ids({ filter: { messageId: first, state: "DELIVERED" } }), [first]);
  assert.equal((await ids({ messageIds: [first, second] })).length, 6);
  assert.deepEqual(await ids({ filter: { state: "CREATED", url: it.receiver.url(path) } }), [first]);
  assert.deepEqual(await ids({ filter: { state: "CREATED", label, path } }), [first]);
  assert.deepEqual(await ids({ filter: { state: "CREATED", label, path: [path, `${path}-other`] } }), [second, first]);
  assert.deepEqual(await ids({ filter: { state: "CREATED", label, host: new URL(it.server.url).hostname } }), [second, first]);
  assert.deepEqual(await ids({ filter: { label, host: "example.com" } }), []);
  assert.deepEqual(await ids({ filter: { label, fromDate: Date.now() + 60_000 } }), []);
  assert.deepEqual(await ids({ filter: { label, toDate: new Date(Date.now() - 60_000) } }), []);
  assert.deepEqual(await ids({ filter: { label, urlGroup: "none" } }), []);
  assert.equal((await ids({ filter: { label, state: "IN_PROGRESS" } })).length, 2, "the ACTIVE lines");
});

test("pages neither lose nor repeat a line; the last one has no cursor", async () => {
  const label = unique("pages");
  await deliver(4, { label });
  const whole = (await it.client.logs({ filter: { label } })).logs;
  assert.equal(whole.length, 12);
  const pages = [];
  let cursor;
  do {
    const page = await it.client.logs({ filter: { label }, count: 5, cursor });
    pages.push(page.logs);
    cursor = page.cursor;
  } while (cursor !== undefined);
  assert.deepEqual(pages.map((page) => page.length), [5, 5, 2]);
  assert.deepEqual(pages.flat(), whole);
});

test("a page that ends exactly at the end has no cursor", async () => {
  const label = unique("exact");
  await deliver(2, { label });
  const page = await it.client.logs({ filter: { label }, count: 6 });
  assert.equal(page.logs.length, 6);
  assert.equal(page.cursor, undefined);
});

test("the loop of the SDK's documentation, which starts with the time as cursor, works", async () => {
  const [messageId] = await deliver(1);
  const seen = [];
  let cursor = Date.now() + 1_000;
  while (cursor) {
    const page = await it.client.logs({ cursor });
    seen.push(...page.logs);
    cursor = page.cursor;
  }
  assert.ok(seen.some((log) => log.messageId === messageId));
});

test("earliest first, trimmed bodies and groups, as other clients ask", async () => {
  const label = unique("raw");
  const [first, second] = await deliver(2, { label, body: "0123456789" });
  const read = async (query) => await (await it.server.fetch(query)).json();
  const upward = await read(`/v2/events?label=${label}&order=earliestFirst`);
  assert.deepEqual(states(upward.events), ["CREATED", "ACTIVE", "DELIVERED", "CREATED", "ACTIVE", "DELIVERED"]);
  assert.equal(upward.events[0].messageId, first);
  const trimmed = await read(`/v2/events?label=${label}&trimBody=4&count=1`);
  assert.equal(Buffer.from(trimmed.events[0].body, "base64").toString(), "0123");
  const without = await read(`/v2/events?label=${label}&trimBody=0&count=1`);
  assert.equal(without.events[0].body, undefined);
  const grouped = await read(`/v2/logs?label=${label}&groupBy=messageId`);
  assert.deepEqual(grouped.messages.map((message) => message.messageId), [second, first]);
  assert.equal(grouped.messages[0].events.length, 3);
  const logs = await read(`/v2/logs?label=${label}`);
  assert.deepEqual(logs.logs, logs.events);
});

test("one user's lines are not another's", async () => {
  const label = unique("private");
  const [messageId] = await deliver(1, { label });
  assert.deepEqual((await it.server.client(1).logs({ filter: { label } })).logs, []);
  assert.deepEqual((await it.server.client(1).logs({ messageIds: [messageId] })).logs, []);
});
