// Flow control: rates and parallelism per key, and operator actions on a key.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { gate, keepsRate } from "../support/receiver.js";
import { refused, states, story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();

async function publish(path, flowControl, count = 1, options = {}) {
  const ids = [];
  for (let n = 0; n < count; n += 1) {
    const { messageId } = await it.client.publish({ url: it.receiver.url(path), body: `${n}`, flowControl, ...options });
    ids.push(messageId);
  }
  return ids;
}

test("a key exists as soon as a publish with it has returned", async () => {
  const key = unique("key");
  const before = Math.floor(Date.now() / 1000);
  await publish("/there", { key, parallelism: 5, rate: 10, period: "1m" });
  const { parallelismCount, ratePeriodStart, ...rest } = await it.client.flowControl.get(key);
  assert.deepEqual(rest, {
    flowControlKey: key,
    waitListSize: 0,
    parallelismMax: 5,
    rateMax: 10,
    rateCount: 1,
    ratePeriod: 60,
    isPaused: false,
    isPinnedParallelism: false,
    isPinnedRate: false,
  });
  assert.ok(parallelismCount === 0 || parallelismCount === 1);
  assert.ok(ratePeriodStart >= before && ratePeriodStart <= Math.ceil(Date.now() / 1000), `${ratePeriodStart}`);
});

test("messages show their limits; periods have every form", async () => {
  const key = unique("shown");
  for (const [given, shown] of [
    [{ parallelism: 3 }, { parallelism: 3, period: 1 }],
    [{ rate: 7 }, { rate: 7, period: 1 }],
    [{ ratePerSecond: 7 }, { rate: 7, period: 1 }],
    [{ rate: 1, period: 2 }, { rate: 1, period: 2 }],
    [{ rate: 1, period: "1d" }, { rate: 1, period: 86_400 }],
    [{ rate: 1, period: "1h30m3s" }, { rate: 1, period: 5_403 }],
    [{ rate: 1, parallelism: 2, period: "7d" }, { rate: 1, parallelism: 2, period: 604_800 }],
  ]) {
    const [messageId] = await publish("/unused", { key, ...given }, 1, { delay: "1h" });
    const { flowControlKey, parallelism, rate, period, ratePerSecond } = await it.client.messages.get(messageId);
    const expected = { flowControlKey: key, parallelism: undefined, rate: undefined, ...shown };
    assert.deepEqual({ flowControlKey, parallelism, rate, period }, expected, JSON.stringify(given));
    assert.equal(ratePerSecond, rate, "the old name");
    const [log] = (await it.client.logs({ messageIds: [messageId] })).logs;
    assert.deepEqual([log.flowControlKey, log.parallelism, log.rate, log.period], [key, shown.parallelism, shown.rate, shown.period]);
  }
  assert.deepEqual(await it.client.messages.cancel({ filter: { flowControlKey: key } }), { cancelled: 7 });
});

test("invalid limits are rejected", async () => {
  const key = unique("refused");
  for (const flowControl of [{ parallelism: -1 }, { rate: -1 }, { rate: 1, period: "8d" }, { rate: 1, period: "soon" }, { period: "1s" }]) {
    await refused(publish("/unused", { key, ...flowControl }), 400, /flow.control/i);
  }
  await refused(it.client.flowControl.get(key), 404);
  await refused(it.client.flowControl.get(unique("unknown")), 404);
});

test("parallelism: one at a time, in order; the others wait", async () => {
  const [key, path] = [unique("one"), unique("/one")];
  const gates = [gate(), gate(), gate()];
  it.receiver.script(path, ...gates.map(({ opened }) => ({ status: 200, after: opened })));
  const ids = await publish(path, { key, parallelism: 1 }, 3);
  await it.receiver.arrivals(path);
  const info = await it.client.flowControl.get(key);
  assert.deepEqual([info.parallelismMax, info.parallelismCount, info.waitListSize], [1, 1, 2]);
  assert.deepEqual(states((await it.client.logs({ messageIds: [ids[1]] })).logs), ["CREATED"]);
  for (const [n, { open }] of gates.entries()) {
    assert.equal(it.receiver.at(path).length, n + 1);
    open();
    if (n < 2) await it.receiver.arrivals(path, n + 2);
  }
  assert.deepEqual(it.receiver.at(path).map((request) => request.body), ["0", "1", "2"]);
  await eventually("nothing under way", async () => (await it.client.flowControl.get(key)).parallelismCount === 0);
});

test("destinations, groups and batches share a key, which is independent of other keys", async () => {
  const [key, path, name] = [unique("shared"), unique("/shared"), unique("group")];
  await it.client.urlGroups.addEndpoints({ name, endpoints: ["a", "b"].map((end) => ({ url: it.receiver.url(`${path}-${end}`) })) });
  await it.client.flowControl.pause(key);
  const flowControl = { key, parallelism: 1 };
  await it.client.publish({ url: it.receiver.url(path), flowControl });
  await it.client.publish({ urlGroup: name, flowControl });
  await it.client.batch([{ url: it.receiver.url(`${path}-c`), flowControl }]);
  assert.equal((await it.client.flowControl.get(key)).waitListSize, 4);
  const other = await it.client.publish({ url: it.receiver.url(`${path}-d`), flowControl: { ...flowControl, key: unique("other") } });
  await it.logsUntil(other.messageId, "DELIVERED");
  for (const end of ["", "-a", "-b", "-c"]) assert.equal(it.receiver.at(path + end).length, 0);
  await it.client.flowControl.resume(key);
  for (const end of ["", "-a", "-b", "-c"]) await it.receiver.arrivals(path + end);
});

test("a paused key accepts messages and sends none; a resumed one continues", async () => {
  const [key, path] = [unique("paused"), unique("/paused")];
  await it.client.flowControl.pause(key);
  const ids = await publish(path, { key, parallelism: 2 }, 2);
  const info = await it.client.flowControl.get(key);
  assert.deepEqual([info.isPaused, info.waitListSize, info.parallelismCount], [true, 2, 0]);
  await it.client.flowControl.resume(key);
  assert.equal((await it.client.flowControl.get(key)).isPaused, false);
  for (const id of ids) assert.deepEqual(states(await it.logsUntil(id, "DELIVERED")), ["CREATED", "ACTIVE", "DELIVERED"]);
  assert.equal((await it.client.flowControl.get(key)).waitListSize, 0);
});

test("messages do not change pinned limits; unpinned ones stay until a message changes them", async () => {
  const key = unique("pinned");
  const limits = async () => {
    const info = await it.client.flowControl.get(key);
    return [info.parallelismMax, info.rateMax, info.ratePeriod, info.isPinnedParallelism, info.isPinnedRate];
  };
  await publish("/pinned", { key, parallelism: 5, rate: 10, period: 30 });
  await it.client.flowControl.pin(key, { parallelism: 3, rate: 20, period: 60 });
  assert.deepEqual(await limits(), [3, 20, 60, true, true]);
  await publish("/pinned", { key, parallelism: 8, rate: 9, period: 10 });
  assert.deepEqual(await limits(), [3, 20, 60, true, true]);
  await it.client.flowControl.unpin(key, { parallelism: true });
  assert.deepEqual(await limits(), [3, 20, 60, false, true]);
  await publish("/pinned", { key, parallelism: 8, rate: 9, period: 10 });
  assert.deepEqual(await limits(), [8, 20, 60, false, true]);
  await it.client.flowControl.unpin(key, { rate: true });
  assert.deepEqual(await limits(), [8, 20, 60, false, false]);
  await publish("/pinned", { key, parallelism: 1, rate: 2, period: 3 });
  assert.deepEqual(await limits(), [1, 2, 3, false, false]);
  await refused(it.client.flowControl.pin(key, { parallelism: -1 }), 400);
});

test("pinning creates a key, and pins the named part", async () => {
  const key = unique("made");
  await it.client.flowControl.pin(key, { rate: 4 });
  const info = await it.client.flowControl.get(key);
  assert.deepEqual([info.rateMax, info.ratePeriod, info.isPinnedRate, info.isPinnedParallelism], [4, 1, true, false]);
});

test("a higher pinned parallelism releases waiting messages", async () => {
  const [key, path] = [unique("release"), unique("/release")];
  const { opened, open } = gate();
  it.receiver.script(path, { status: 200, after: opened });
  await publish(path, { key, parallelism: 1 }, 3);
  await it.receiver.arrivals(path);
  await it.client.flowControl.pin(key, { parallelism: 3 });
  await it.receiver.arrivals(path, 3);
  open();
});

test("resetRate ends the window and releases waiting messages", async () => {
  const [key, path] = [unique("reset"), unique("/reset")];
  const { opened, open } = gate();
  it.receiver.script(path, { status: 200, after: opened });
  await publish(path, { key, rate: 1, period: "1h" }, 2);
  await it.receiver.arrivals(path);
  const before = await it.client.flowControl.get(key);
  assert.deepEqual([before.rateCount, before.waitListSize], [1, 1]);
  open();
  await it.client.flowControl.resetRate(key);
  await it.receiver.arrivals(path, 2);
  const idle = unique("idle");
  await publish(path, { key: idle, rate: 5, period: "1h" });
  assert.equal((await it.client.flowControl.get(idle)).rateCount, 1, "the slot is taken before the publish returns");
  await it.client.flowControl.resetRate(idle);
  assert.equal((await it.client.flowControl.get(idle)).rateCount, 0);
});

test("reset and the list, which only the HTTP API has", async () => {
  const [prefix, path] = [unique("list"), unique("/list")];
  const keys = ["b", "a", "c/with slash"].map((end) => `${prefix}-${end}`);
  for (const key of keys) await publish(path, { key, rate: 1, period: "1h" });
  const listed = await (await it.server.fetch(`/v2/flowControl?search=${prefix}`)).json();
  assert.deepEqual(listed.map((info) => info.flowControlKey).sort(), [...keys].sort());
  assert.deepEqual(Object.keys(listed[0]).length, 11);
  const slashed = `/v2/flowControl/${encodeURIComponent(keys[2])}`;
  assert.equal((await (await it.server.fetch(slashed)).json()).flowControlKey, keys[2]);
  assert.equal((await it.server.fetch(`${slashed}/reset`, { method: "POST" })).status, 200);
  assert.equal((await (await it.server.fetch(slashed)).json()).rateCount, 0);
  const all = await (await it.server.fetch("/v2/flowControl/")).json();
  assert.ok(all.length >= listed.length);
});

test("the global parallelism counts deliveries in flight", async () => {
  const client = it.server.client(1);
  const path = unique("/global");
  const { opened, open } = gate();
  it.receiver.script(path, { status: 200, after: opened });
  assert.deepEqual(await client.flowControl.getGlobalParallelism(), { parallelismMax: 1000, parallelismCount: 0 });
  for (let n = 0; n < 3; n += 1) await client.publish({ url: it.receiver.url(path) });
  await it.receiver.arrivals(path, 3);
  assert.equal((await client.flowControl.getGlobalParallelism()).parallelismCount, 3);
  open();
  await eventually("none under way", async () => (await client.flowControl.getGlobalParallelism()).parallelismCount === 0);
});

test("logs, dead letters and retries carry the key, and filter by it", async () => {
  const [key, path] = [unique("filter"), unique("/filter")];
  it.receiver.script(path, 500, 200);
  const [messageId] = await publish(path, { key, parallelism: 2, rate: 3, period: 4 }, 1, { retries: 0 });
  const letter = await it.deadLetter(messageId);
  assert.deepEqual([letter.flowControlKey, letter.parallelism, letter.rate, letter.period], [key, 2, 3, 4]);
  assert.deepEqual((await it.client.dlq.listMessages({ filter: { flowControlKey: key } })).messages, [letter]);
  const { logs } = await it.client.logs({ filter: { flowControlKey: [key, "another"], state: "FAILED" } });
  assert.deepEqual(logs.map((log) => log.messageId), [messageId]);
  const { responses } = await it.client.dlq.retry({ filter: { flowControlKey: key } });
  assert.equal((await it.client.messages.get(responses[0].messageId)).flowControlKey, key);
  await it.receiver.arrivals(path, 2);
});

test("a message may need both its turn in a queue and the capacity of its key", async () => {
  const [key, path, queueName] = [unique("both"), unique("/both"), unique("both")];
  const queue = it.client.queue({ queueName });
  await it.client.flowControl.pause(key);
  const limited = await queue.enqueue({ url: it.receiver.url(path), body: "limited", flowControl: { key, parallelism: 1 } });
  await queue.enqueue({ url: it.receiver.url(path), body: "behind it" });
  const message = await it.client.messages.get(limited.messageId);
  assert.deepEqual([message.queueName, message.flowControlKey], [queueName, key]);
  assert.equal((await queue.get()).lag, 2);
  await it.client.flowControl.resume(key);
  await it.receiver.arrivals(path, 2);
  assert.deepEqual(it.receiver.at(path).map((request) => request.body), ["limited", "behind it"]);
});

test("one user's keys are not another's", async () => {
  const key = unique("private");
  await publish("/private", { key, parallelism: 1 });
  await refused(it.server.client(1).flowControl.get(key), 404);
});

describe("rates, by the receiver's clock", { concurrency: true }, () => {
  test("the rate per period holds, although all messages were published at once", async () => {
    const [key, path] = [unique("rate"), unique("/rate")];
    const since = Date.now();
    await Promise.all(Array.from({ length: 7 }, () => publish(path, { key, rate: 2, period: 1 })));
    const requests = await it.receiver.arrivals(path, 7);
    keepsRate(requests, 2, 1_000, since);
    const apart = requests.slice(2).map((request, n) => request.at - requests[n].at);
    assert.ok(Math.min(...apart) < 3_000, `no slower than the rate asks for, at least once: ${apart}`);
  });

  test("retries count toward the rate too", async () => {
    const [key, path] = [unique("retries"), unique("/retries")];
    it.receiver.script(path, 500);
    const since = Date.now();
    await publish(path, { key, rate: 1, period: 1 }, 2, { retries: 1, retryDelay: "10" });
    keepsRate(await it.receiver.arrivals(path, 4), 1, 1_000, since);
  });

  test("a pinned rate applies to messages without their own", async () => {
    const [key, path] = [unique("pin-rate"), unique("/pin-rate")];
    await it.client.flowControl.pin(key, { rate: 1, period: 1 });
    const since = Date.now();
    await publish(path, { key, parallelism: 10 }, 4);
    keepsRate(await it.receiver.arrivals(path, 4), 1, 1_000, since);
  });

  test("different periods do not disturb each other", async () => {
    const [slow, fast] = [unique("/slow"), unique("/fast")];
    const since = Date.now();
    await publish(slow, { key: unique("slow"), rate: 1, period: 2 }, 2);
    await publish(fast, { key: unique("fast"), rate: 100, period: 1 }, 20);
    await it.receiver.arrivals(fast, 20);
    keepsRate(await it.receiver.arrivals(slow, 2), 1, 2_000, since);
  });
});
