// Queues: order, parallelism, pause, and waiting messages.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate } from "../support/receiver.js";
import { refused, states, story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();

/** Enqueues bodies one after the other, and returns the ids. */
async function enqueue(queue, path, bodies, options = {}) {
  const ids = [];
  for (const body of bodies) {
    const { messageId } = await queue.enqueue({ url: it.receiver.url(path), body, ...options });
    ids.push(messageId);
  }
  return ids;
}

const bodiesAt = (path) => it.receiver.at(path).map((request) => request.body);

test("a queue is created, changed, listed and deleted", async () => {
  const queueName = unique("queue");
  const queue = it.client.queue({ queueName });
  const before = Date.now();
  await queue.upsert({ parallelism: 1 });
  const made = await queue.get();
  const { createdAt, updatedAt, ...rest } = made;
  assert.deepEqual(rest, { name: queueName, parallelism: 1, paused: false, lag: 0 });
  assert.ok(createdAt >= before && createdAt <= Date.now() && updatedAt === createdAt);

  await queue.upsert({ parallelism: 2, paused: true });
  const changed = await queue.get();
  assert.deepEqual({ ...changed, updatedAt: undefined }, { ...made, parallelism: 2, paused: true, updatedAt: undefined });
  assert.ok(changed.updatedAt >= updatedAt);
  assert.deepEqual((await queue.list()).filter((listed) => listed.name === queueName), [changed]);

  await queue.delete();
  assert.deepEqual((await queue.list()).filter((listed) => listed.name === queueName), []);
  await refused(queue.get(), 404);
  await queue.delete();
});

test("an upsert without settings is parallelism 1, not paused", async () => {
  const queue = it.client.queue({ queueName: unique("plain") });
  await queue.upsert({ parallelism: 3, paused: true });
  await queue.upsert({});
  const { parallelism, paused } = await queue.get();
  assert.deepEqual({ parallelism, paused }, { parallelism: 1, paused: false });
});

test("names may begin with - and _; others are rejected", async () => {
  for (const queueName of ["-dash", "_under", "a.b-c_D9"]) {
    await it.client.queue({ queueName }).upsert({ parallelism: 1 });
    assert.equal((await it.client.queue({ queueName }).get()).name, queueName);
  }
  for (const queueName of ["with space", "ümlaut"]) {
    await refused(it.client.queue({ queueName }).upsert({ parallelism: 1 }), 400, /name/i);
  }
  await refused(it.client.queue({ queueName: unique("none") }).upsert({ parallelism: 0 }), 400, /parallelism/);
  await refused(it.client.queue({ queueName: unique("less") }).upsert({ parallelism: -1 }), 400, /parallelism/);
  await refused(it.client.queue({ queueName: "bad!" }).enqueue({ url: it.receiver.url("/unused") }), 400, /name/i);
});

test("the first enqueue creates the queue; messages, logs and filters name it", async () => {
  const [queueName, path] = [unique("auto"), unique("/auto")];
  const queue = it.client.queue({ queueName });
  const { messageId } = await queue.enqueueJSON({ url: it.receiver.url(path), body: { n: 1 }, headers: { "X-Q": "1" }, label: "queued" });
  const [request] = await it.receiver.arrivals(path);
  assert.equal(request.headers["upstash-message-id"], messageId);
  assert.equal(request.headers["content-type"], "application/json");
  assert.equal(request.headers["x-q"], "1");
  assert.equal(request.body, '{"n":1}');
  assert.equal((await queue.get()).parallelism, 1);
  const message = await it.client.messages.get(messageId);
  assert.equal(message.queueName, queueName);
  assert.equal(message.label, "queued");
  const logs = await it.logsUntil(messageId, "DELIVERED");
  assert.deepEqual(states(logs), ["CREATED", "ACTIVE", "DELIVERED"]);
  assert.deepEqual((await it.client.logs({ filter: { queueName } })).logs, [...logs].reverse());
  assert.ok(logs.every((log) => log.queueName === queueName));
});

test("the next message waits for the retries of the one before it", async () => {
  const [queueName, path] = [unique("fifo"), unique("/fifo")];
  const queue = it.client.queue({ queueName });
  it.receiver.script(path, 500, 503, 200);
  const ids = await enqueue(queue, path, ["1", "2", "3"], { retries: 3, retryDelay: "50" });
  await it.receiver.arrivals(path, 5);
  assert.deepEqual(bodiesAt(path), ["1", "1", "1", "2", "3"]);
  const logs = await Promise.all(ids.map((id) => it.logsUntil(id, "DELIVERED")));
  for (const n of [1, 2]) {
    const started = logs[n].find((log) => log.state === "ACTIVE");
    assert.ok(started.time >= logs[n - 1].at(-1).time, "started after its predecessor had ended");
  }
  await eventually("an empty queue", async () => (await queue.get()).lag === 0);
});

test("a message that fails for good frees the queue, and the DLQ names the queue", async () => {
  const [queueName, path] = [unique("fails"), unique("/fails")];
  const queue = it.client.queue({ queueName });
  it.receiver.script(path, 500, 500, 200);
  const [dead] = await enqueue(queue, path, ["dead", "alive"], { retries: 1, retryDelay: "20" });
  await it.receiver.arrivals(path, 3);
  assert.deepEqual(bodiesAt(path), ["dead", "dead", "alive"]);
  const letter = await it.deadLetter(dead);
  assert.equal(letter.queueName, queueName);
  const { messages } = await it.client.dlq.listMessages({ filter: { queueName } });
  assert.deepEqual(messages, [letter]);
  it.receiver.script(path, 200);
  const { responses } = await it.client.dlq.retry({ filter: { queueName } });
  await it.receiver.arrivals(path, 4);
  assert.equal((await it.client.messages.get(responses[0].messageId)).queueName, queueName, "retried in its queue");
});

test("parallelism: several at once, started in order; lag counts waiting and in-flight messages", async () => {
  const [queueName, path] = [unique("wide"), unique("/wide")];
  const queue = it.client.queue({ queueName });
  await queue.upsert({ parallelism: 2 });
  const gates = [gate(), gate(), gate(), gate()];
  it.receiver.script(path, ...gates.map(({ opened }) => ({ status: 200, after: opened })));
  await enqueue(queue, path, ["1", "2", "3", "4"]);
  await it.receiver.arrivals(path, 2);
  assert.equal((await queue.get()).lag, 4);
  assert.deepEqual(bodiesAt(path).sort(), ["1", "2"]);
  gates[0].open();
  await it.receiver.arrivals(path, 3);
  assert.equal(bodiesAt(path)[2], "3");
  assert.equal((await queue.get()).lag, 3);
  for (const { open } of gates) open();
  await it.receiver.arrivals(path, 4);
  await eventually("an empty queue", async () => (await queue.get()).lag === 0);
  assert.equal((await queue.get()).parallelism, 2);
});

test("a higher parallelism takes effect at once", async () => {
  const [queueName, path] = [unique("wider"), unique("/wider")];
  const queue = it.client.queue({ queueName });
  const { opened, open } = gate();
  it.receiver.script(path, { status: 200, after: opened });
  await enqueue(queue, path, ["1", "2", "3"]);
  await it.receiver.arrivals(path);
  await queue.upsert({ parallelism: 3 });
  await it.receiver.arrivals(path, 3);
  open();
});

test("a paused queue accepts messages and sends none; a resumed one continues in order", async () => {
  const [queueName, path] = [unique("paused"), unique("/paused")];
  const queue = it.client.queue({ queueName });
  await queue.upsert({ parallelism: 1 });
  await queue.pause();
  await queue.pause();
  assert.equal((await queue.get()).paused, true);
  const ids = await enqueue(queue, path, ["1", "2", "3"]);
  assert.equal((await queue.get()).lag, 3);
  // A message outside the queue passes it, which proves that deliveries continue.
  const { messageId } = await it.client.publish({ url: it.receiver.url(`${path}-by`) });
  await it.logsUntil(messageId, "DELIVERED");
  assert.equal(it.receiver.at(path).length, 0);
  for (const id of ids) assert.deepEqual(states(await it.logsUntil(id, "CREATED")), ["CREATED"]);
  await queue.resume();
  assert.equal((await queue.get()).paused, false);
  await it.receiver.arrivals(path, 3);
  assert.deepEqual(bodiesAt(path), ["1", "2", "3"]);
  await queue.resume();
});

test("a cancelled message is skipped, and cancelling by queue affects only that queue", async () => {
  const [queueName, path] = [unique("cancel"), unique("/cancel")];
  const queue = it.client.queue({ queueName });
  await queue.upsert({ paused: true });
  const [first] = await enqueue(queue, path, ["1", "2"]);
  assert.deepEqual(await it.client.messages.cancel(first), { cancelled: 1 });
  await queue.resume();
  await it.receiver.arrivals(path);
  assert.deepEqual(bodiesAt(path), ["2"]);
  await eventually("an empty queue", async () => (await queue.get()).lag === 0);

  await queue.pause();
  await enqueue(queue, path, ["3", "4"]);
  const outside = await it.client.publish({ url: it.receiver.url(path), delay: 3600 });
  assert.deepEqual(await it.client.messages.cancel({ filter: { queueName } }), { cancelled: 2 });
  assert.equal((await queue.get()).lag, 0);
  assert.deepEqual(await it.client.messages.cancel(outside.messageId), { cancelled: 1 });
});

test("cancelling the head of a queue between two attempts releases the next message", async () => {
  const [queueName, path] = [unique("head"), unique("/head")];
  const queue = it.client.queue({ queueName });
  it.receiver.script(path, 500, 200);
  const [first] = await enqueue(queue, path, ["1", "2"], { retries: 5, retryDelay: "3600000" });
  await it.logsUntil(first, "RETRY");
  await it.client.messages.cancel(first);
  await it.receiver.arrivals(path, 2);
  assert.deepEqual(bodiesAt(path), ["1", "2"]);
});

test("a deleted queue cancels its waiting messages; a later one of that name starts empty", async () => {
  const [queueName, path] = [unique("deleted"), unique("/deleted")];
  const queue = it.client.queue({ queueName });
  await queue.upsert({ parallelism: 5, paused: true });
  const [waiting] = await enqueue(queue, path, ["never"]);
  await queue.delete();
  assert.equal((await it.logsUntil(waiting, "CANCELED")).at(-1).state, "CANCELED");
  await enqueue(queue, path, ["fresh"]);
  await it.receiver.arrivals(path);
  assert.deepEqual(bodiesAt(path), ["fresh"]);
  const { parallelism, paused } = await queue.get();
  assert.deepEqual({ parallelism, paused }, { parallelism: 1, paused: false });
});

test("a URL group is enqueued endpoint by endpoint", async () => {
  const [queueName, name, path] = [unique("group"), unique("group"), unique("/group")];
  const queue = it.client.queue({ queueName });
  const endpoints = ["one", "two"].map((end) => ({ name: end, url: it.receiver.url(`${path}-${end}`) }));
  await it.client.urlGroups.addEndpoints({ name, endpoints });
  const { opened, open } = gate();
  it.receiver.script(`${path}-one`, { status: 200, after: opened });
  const answers = await queue.enqueueJSON({ urlGroup: name, body: { n: 1 } });
  assert.deepEqual(answers.map((answer) => answer.url), endpoints.map((endpoint) => endpoint.url));
  await it.receiver.arrivals(`${path}-one`);
  assert.equal((await queue.get()).lag, 2);
  open();
  const [second] = await it.receiver.arrivals(`${path}-two`);
  assert.equal(second.headers["upstash-message-id"], answers[1].messageId);
  assert.equal(second.headers["upstash-topic-name"], name);
  const message = await it.client.messages.get(answers[0].messageId);
  assert.deepEqual([message.queueName, message.topicName, message.endpointName], [queueName, name, "one"]);
});

test("a batch mixes URLs, groups and queues, and keeps the order inside a queue", async () => {
  const [queueName, name, path] = [unique("batch"), unique("group"), unique("/batch")];
  const endpoints = ["one", "two"].map((end) => ({ url: it.receiver.url(`${path}-${end}`) }));
  await it.client.urlGroups.addEndpoints({ name, endpoints });
  it.receiver.script(`${path}-queued`, 500, 200);
  const queued = (n) => ({ url: it.receiver.url(`${path}-queued`), queueName, body: { n }, retries: 1, retryDelay: "30" });
  const answers = await it.client.batchJSON([
    queued(1),
    { url: it.receiver.url(`${path}-url`), body: {} },
    queued(2),
    { urlGroup: name, body: {} },
    { urlGroup: name, queueName, body: {} },
    queued(3),
  ]);
  assert.deepEqual(answers.map((answer) => (Array.isArray(answer) ? answer.length : 1)), [1, 1, 1, 2, 2, 1]);
  await it.receiver.arrivals(`${path}-queued`, 4);
  assert.deepEqual(bodiesAt(`${path}-queued`), ['{"n":1}', '{"n":1}', '{"n":2}', '{"n":3}']);
  await it.receiver.arrivals(`${path}-url`);
  for (const end of ["one", "two"]) await it.receiver.arrivals(`${path}-${end}`, 2);
  const inQueue = [answers[0], answers[2], ...answers[4], answers[5]];
  for (const { messageId } of inQueue) assert.equal((await it.client.messages.get(messageId)).queueName, queueName);
  for (const { messageId } of [answers[1], ...answers[3]]) {
    assert.equal((await it.client.messages.get(messageId)).queueName, undefined);
  }
});

test("the place in the queue is held until the callback is done", async () => {
  const [queueName, path] = [unique("held"), unique("/held")];
  const queue = it.client.queue({ queueName });
  const { opened, open } = gate();
  it.receiver.script(`${path}-callback`, { status: 200, after: opened });
  const [, second] = await enqueue(queue, path, ["1", "2"], { callback: it.receiver.url(`${path}-callback`) });
  const [callback] = await it.receiver.arrivals(`${path}-callback`);
  assert.deepEqual(bodiesAt(path), ["1"]);
  open();
  const done = (await it.logsUntil(callback.headers["upstash-message-id"], "DELIVERED")).at(-1);
  const started = (await it.logsUntil(second, "ACTIVE")).find((log) => log.state === "ACTIVE");
  assert.ok(started.time >= done.time, `started ${started.time}, callback done ${done.time}`);
});

test("a delayed message joins the queue when it is due", async () => {
  const [queueName, path] = [unique("later"), unique("/later")];
  const queue = it.client.queue({ queueName });
  await queue.enqueue({ url: it.receiver.url(path), body: "later", delay: 1 });
  await queue.enqueue({ url: it.receiver.url(path), body: "now" });
  await it.receiver.arrivals(path, 2);
  assert.deepEqual(bodiesAt(path), ["now", "later"]);
});

test("duplicates are not enqueued again", async () => {
  const [queueName, path] = [unique("dedup"), unique("/dedup")];
  const queue = it.client.queue({ queueName });
  const item = { url: it.receiver.url(path), body: "x", deduplicationId: unique("id") };
  const first = await queue.enqueue(item);
  assert.deepEqual(await queue.enqueue(item), { messageId: first.messageId, deduplicated: true });
  await it.logsUntil(first.messageId, "DELIVERED");
  assert.equal(it.receiver.at(path).length, 1);
});

test("one user's queues are not another's", async () => {
  const queueName = unique("private");
  await it.client.queue({ queueName }).upsert({ paused: true });
  const other = it.server.client(1);
  await refused(other.queue({ queueName }).get(), 404);
  assert.deepEqual(await other.queue().list(), []);
  await refused(other.queue({ queueName }).pause(), 404);
});
