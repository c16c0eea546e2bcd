// Cancelling: one, many, by filter, all.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refused, states, story, unique } from "../support/story.js";
import { gate } from "../support/receiver.js";

const it = story();

/** Publishes a message that is due in an hour. */
async function later(options = {}, client = it.client) {
  const { messageId } = await client.publish({ url: it.receiver.url("/later"), delay: 3600, ...options });
  return messageId;
}

test("a cancelled message is never delivered, and its log shows it", async () => {
  const path = `/${unique("one")}`;
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), delay: 3 });
  assert.deepEqual(await it.client.messages.cancel(messageId), { cancelled: 1 });
  const logs = await it.logsUntil(messageId, "CANCELED");
  assert.deepEqual(states(logs), ["CREATED", "CANCEL_REQUESTED", "CANCELED"]);
  // The arrival of a message that is due later proves that the cancelled one would have arrived by now.
  const after = await it.client.publish({ url: it.receiver.url(`${path}-after`), delay: 4 });
  await it.logsUntil(after.messageId, "DELIVERED");
  assert.equal(it.receiver.at(path).length, 0);
  assert.equal((await it.client.dlq.listMessages({ filter: { messageId } })).messages.length, 0);
});

test("ended and unknown messages cannot be cancelled", async () => {
  const path = `/${unique("ended")}`;
  const { messageId } = await it.client.publish({ url: it.receiver.url(path) });
  await it.logsUntil(messageId, "DELIVERED");
  await refused(it.client.messages.cancel(messageId), 404);
  await refused(it.client.messages.cancel("msg_unknown"), 404);
  await refused(it.client.messages.get("msg_unknown"), 404);
  const cancelled = await later();
  await it.client.messages.cancel(cancelled);
  await refused(it.client.messages.cancel(cancelled), 404);
});

test("many are cancelled by id; unknown and ended ones are skipped and not counted", async () => {
  const ids = [await later(), await later(), await later()];
  assert.deepEqual(await it.client.messages.cancel([ids[0], ids[1], "msg_unknown"]), { cancelled: 2 });
  assert.deepEqual(await it.client.messages.cancel(ids), { cancelled: 1 });
  assert.equal(await it.client.messages.deleteMany(ids), 0);
});

test("by filter: OR inside one, AND between several", async () => {
  const [red, blue, both] = [unique("red"), unique("blue"), unique("both")];
  const url = it.receiver.url("/filtered");
  const reds = [await later({ label: red }), await later({ label: [both, red] })];
  const blues = [await later({ label: blue }), await later({ label: blue, url })];
  assert.deepEqual(await it.client.messages.cancel({ filter: { label: blue, url } }), { cancelled: 1 });
  assert.deepEqual(await it.client.messages.cancel({ filter: { label: unique("none") } }), { cancelled: 0 });
  assert.deepEqual(await it.client.messages.cancel({ filter: { label: [red, blue] } }), { cancelled: 3 });
  for (const id of [...reds, ...blues]) {
    assert.equal(states(await it.logsUntil(id, "CANCELED")).filter((state) => state === "CANCELED").length, 1);
  }
});

test("by host, path, caller and time", async () => {
  const label = unique("place");
  const path = `/${unique("place")}`;
  await later({ label, url: it.receiver.url(`${path}?q=1`) });
  const host = new URL(it.receiver.url("/")).host;
  const none = { cancelled: 0 };
  assert.deepEqual(await it.client.messages.cancel({ filter: { label, path: "/elsewhere" } }), none);
  assert.deepEqual(await it.client.messages.cancel({ filter: { label, host: "example.com" } }), none);
  assert.deepEqual(await it.client.messages.cancel({ filter: { label, callerIp: "192.0.2.1" } }), none);
  assert.deepEqual(await it.client.messages.cancel({ filter: { label, toDate: Date.now() - 60_000 } }), none);
  assert.deepEqual(
    await it.client.messages.cancel({
      filter: { label, path, host, callerIp: "127.0.0.1", fromDate: new Date(Date.now() - 60_000), toDate: new Date() },
    }),
    { cancelled: 1 },
  );
});

test("count limits a bulk cancel", async () => {
  const label = unique("count");
  for (let n = 0; n < 3; n += 1) await later({ label });
  assert.deepEqual(await it.client.messages.cancel({ filter: { label }, count: 1 }), { cancelled: 1 });
  assert.deepEqual(await it.client.messages.cancel({ filter: { label }, count: 500 }), { cancelled: 2 });
});

test("all means all of this user, and of no other", async () => {
  const [mine, theirs] = [it.server.client(1), it.server.client(2)];
  for (let n = 0; n < 3; n += 1) await later({}, mine);
  const other = await later({}, theirs);
  await refused(mine.messages.get(other), 404);
  await refused(mine.messages.cancel(other), 404);
  assert.deepEqual(await mine.messages.cancel({ all: true }), { cancelled: 3 });
  assert.deepEqual(await mine.messages.cancel({ all: true }), { cancelled: 0 });
  assert.deepEqual(await theirs.messages.cancel(other), { cancelled: 1 });
});

test("a delivery in flight finishes, but is not retried", async () => {
  const path = `/${unique("in-flight")}`;
  const { opened, open } = gate();
  it.receiver.script(path, { status: 500, after: opened });
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), retries: 5, retryDelay: "10" });
  await it.receiver.arrivals(path);
  assert.deepEqual(await it.client.messages.cancel(messageId), { cancelled: 1 });
  open();
  const logs = await it.logsUntil(messageId, "CANCELED");
  assert.deepEqual(states(logs).slice(0, 3), ["CREATED", "ACTIVE", "CANCEL_REQUESTED"]);
  assert.equal(states(logs).at(-1), "CANCELED");
  assert.equal(it.receiver.at(path).length, 1);
  assert.equal((await it.client.dlq.listMessages({ filter: { messageId } })).messages.length, 0);
});

test("a message that waits for its retry can be cancelled", async () => {
  const path = `/${unique("waiting")}`;
  it.receiver.script(path, 500);
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), retries: 3, retryDelay: "3600000" });
  await it.logsUntil(messageId, "RETRY");
  assert.deepEqual(await it.client.messages.cancel(messageId), { cancelled: 1 });
  assert.deepEqual(states(await it.logsUntil(messageId, "CANCELED")).slice(-2), ["CANCEL_REQUESTED", "CANCELED"]);
});

test("a misspelt filter and a forgotten id cancel nothing", async () => {
  const kept = await later();
  for (const target of ["/v2/messages?labeel=x", "/v2/messages/", "/v2/messages?messageIds=", "/v2/messages?count=0"]) {
    const response = await it.server.fetch(target, { method: "DELETE" });
    assert.equal(response.status, 400, target);
    assert.equal(typeof (await response.json()).error, "string");
  }
  const response = await it.server.fetch("/v2/messages", { method: "DELETE", body: '{"messageIds":[]}' });
  assert.equal(response.status, 400);
  assert.deepEqual(await it.client.messages.cancel(kept), { cancelled: 1 });
});
