// An SDK of early 2025. It sends some requests in other forms, and must keep working.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, Receiver as Verifier } from "qstash-old";
import { USERS } from "../support/server.js";
import { states, story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();

function oldClient() {
  return new Client({ baseUrl: it.server.url, token: USERS[0].token, retry: false });
}

test("publish, get, verify", async () => {
  const client = oldClient();
  const path = `/${unique("old")}`;
  const url = it.receiver.url(path);
  const { messageId } = await client.publishJSON({ url, body: { old: true }, headers: { "X-Old": "1" } });
  const [request] = await it.receiver.arrivals(path);
  assert.equal(request.headers["x-old"], "1");
  const verifier = new Verifier({ currentSigningKey: USERS[0].current, nextSigningKey: USERS[0].next });
  assert.equal(await verifier.verify({ signature: request.headers["upstash-signature"], body: request.body, url }), true);
  await assert.rejects(verifier.verify({ signature: request.headers["upstash-signature"], body: "forged", url }));
  assert.equal((await client.messages.get(messageId)).url, url);
  await eventually("DELIVERED", async () => {
    const { events } = await client.events({ filter: { messageId, state: "DELIVERED" } });
    return events.length === 1;
  });
});

test("ids to cancel and to delete are in a JSON body", async () => {
  const client = oldClient();
  const later = async () => (await client.publish({ url: it.receiver.url("/later"), delay: 3600 })).messageId;
  const ids = [await later(), await later(), await later()];
  await client.messages.delete(ids[0]);
  assert.equal(await client.messages.deleteMany([ids[0], ids[1]]), 1);
  const { events } = await client.events({ filter: { messageId: ids[1] } });
  assert.deepEqual(states(events), ["CANCELED", "CANCEL_REQUESTED", "CREATED"]);
  assert.equal(await client.messages.deleteAll(), 1);
});

test("the DLQ: list with its double group filter, delete one, delete many", async () => {
  const client = oldClient();
  const path = `/${unique("dead")}`;
  it.receiver.script(path, 500);
  for (let n = 0; n < 3; n += 1) await client.publish({ url: it.receiver.url(path), retries: 0 });
  const letters = await eventually("3 dead letters", async () => {
    const { messages } = await client.dlq.listMessages({ filter: { url: it.receiver.url(path) } });
    return messages.length === 3 ? messages : undefined;
  });
  assert.equal((await client.dlq.listMessages({ filter: { urlGroup: "none" } })).messages.length, 0);
  await client.dlq.delete(letters[0].dlqId);
  assert.deepEqual(await client.dlq.deleteMany({ dlqIds: letters.map((letter) => letter.dlqId) }), { deleted: 2 });
});

test("batch", async () => {
  const client = oldClient();
  const path = `/${unique("batch")}`;
  const answers = await client.batchJSON([1, 2].map((n) => ({ url: it.receiver.url(path), body: { n } })));
  assert.equal(answers.length, 2);
  await it.receiver.arrivals(path, 2);
});

test("queues: create, enqueue, pause, resume, delete; a batch into a queue", async () => {
  const client = oldClient();
  const [queueName, path] = [unique("old-queue"), `/${unique("queued")}`];
  const queue = client.queue({ queueName });
  await queue.upsert({ parallelism: 2, paused: true });
  const url = it.receiver.url(path);
  await queue.enqueueJSON({ url, body: { n: 1 } });
  await queue.enqueue({ url, body: "2" });
  await client.batchJSON([{ url, queueName, body: { n: 3 } }]);
  const { parallelism, lag, paused } = await queue.get();
  assert.deepEqual({ parallelism, lag, paused }, { parallelism: 2, lag: 3, paused: true });
  await queue.resume();
  await it.receiver.arrivals(path, 3);
  await queue.pause();
  assert.ok((await queue.list()).some((listed) => listed.name === queueName && listed.paused));
  await queue.delete();
  assert.ok(!(await queue.list()).some((listed) => listed.name === queueName));
});

test("schedules: create, get, list, pause, resume, delete", async () => {
  const client = oldClient();
  const { scheduleId } = await client.schedules.create({
    destination: "https://example.com",
    cron: "1 1 31 1 1",
    body: "body",
    headers: { "X-Old": "1" },
    queueName: "old",
    delay: 10,
    retries: 2,
    callback: "https://example.com/callback",
    flowControl: { key: "old", parallelism: 2, ratePerSecond: 3 },
  });
  const schedule = await client.schedules.get(scheduleId);
  assert.deepEqual(schedule.header, { "Content-Type": ["application/json"], "X-Old": ["1"] });
  assert.deepEqual(
    [schedule.queueName, schedule.delay, schedule.retries, schedule.callback, schedule.flowControlKey, schedule.parallelism, schedule.isPaused],
    ["old", 10, 2, "https://example.com/callback", "old", 2, false],
  );
  await client.schedules.pause({ schedule: scheduleId });
  assert.ok((await client.schedules.list()).some((listed) => listed.scheduleId === scheduleId && listed.isPaused));
  await client.schedules.resume({ schedule: scheduleId });
  await client.schedules.delete(scheduleId);
  assert.ok(!(await client.schedules.list()).some((listed) => listed.scheduleId === scheduleId));
});

test("URL groups under their old name", async () => {
  const client = oldClient();
  const [name, path] = [unique("old-topic"), `/${unique("topic")}`];
  const endpoints = ["one", "two"].map((end) => ({ name: end, url: it.receiver.url(`${path}-${end}`) }));
  await client.topics.addEndpoints({ name, endpoints });
  assert.deepEqual((await client.topics.get(name)).endpoints, endpoints);
  const answers = await client.publish({ topic: name, body: "x" });
  assert.equal(answers.length, 2);
  for (const end of ["one", "two"]) await it.receiver.arrivals(`${path}-${end}`);
  await client.topics.removeEndpoints({ name, endpoints: [{ name: "one" }] });
  assert.equal((await client.topics.list()).find((listed) => listed.name === name).endpoints.length, 1);
  await client.topics.delete(name);
});

test("flow control, callbacks and failure callbacks", async () => {
  const client = oldClient();
  const [key, path] = [unique("old-key"), `/${unique("called")}`];
  it.receiver.script(path, 500, 200);
  const { messageId } = await client.publish({
    url: it.receiver.url(path),
    retries: 0,
    flowControl: { key, parallelism: 1, ratePerSecond: 5 },
    callback: it.receiver.url(`${path}-callback`),
    failureCallback: it.receiver.url(`${path}-failure`),
  });
  const [called] = await it.receiver.arrivals(`${path}-callback`);
  assert.equal(JSON.parse(called.body).sourceMessageId, messageId);
  const [failed] = await it.receiver.arrivals(`${path}-failure`);
  const { messages } = await client.dlq.listMessages({ filter: { messageId } });
  assert.equal(JSON.parse(failed.body).dlqId, messages[0].dlqId);
  const { flowControlKey, parallelism, ratePerSecond } = messages[0];
  assert.deepEqual([flowControlKey, parallelism, ratePerSecond], [key, 1, 5]);
  const { rateMax, ratePeriod } = await it.client.flowControl.get(key);
  assert.deepEqual([rateMax, ratePeriod], [5, 1]);
});
