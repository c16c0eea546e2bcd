// Schedules that really fire. All tests here wait for the same full minute, so they run concurrently, and in
// the file that is started first.

import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { Receiver as Verifier } from "@upstash/qstash";
import { MINUTE_MS, MINUTE_PATIENCE_MS, minuteOf } from "../support/minute.js";
import { gate } from "../support/receiver.js";
import { Server, USERS } from "../support/server.js";
import { refused, story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();
const EVERY_MINUTE = "* * * * *";

/** A schedule that is set up just before the minute might fire during the setup. */
const HEADSTART_MS = 15_000;
before(async () => {
  await eventually("some time before the next minute", () => minuteOf(Date.now() + HEADSTART_MS) === minuteOf(Date.now()));
});

/** Waits for the first message of a schedule. */
async function fired(path, count = 1) {
  return await it.receiver.arrivals(path, count, MINUTE_PATIENCE_MS);
}

/** Waits until a schedule of another path has fired: schedules that have not fired by then will not. */
async function minuteHasPassed(client) {
  const path = unique("/marker");
  await client.schedules.create({ destination: it.receiver.url(path), cron: EVERY_MINUTE });
  const [request] = await fired(path);
  await client.publish({ url: it.receiver.url(`${path}-after`) });
  await it.receiver.arrivals(`${path}-after`);
  return request.at;
}

const idsAt = (path) => [...new Set(it.receiver.at(path).map((request) => request.headers["upstash-message-id"]))];

describe("at the full minute", { concurrency: true }, () => {
  test("a schedule sends its message with all its settings, and records it", async () => {
    const path = unique("/whole");
    const url = it.receiver.url(`${path}?q=1`);
    const callback = it.receiver.url(`${path}-callback`);
    it.receiver.script(path, { status: 500, body: "not yet" }, { status: 200, body: "done" });
    const created = Date.now();
    const { scheduleId } = await it.client.schedules.create({
      destination: url,
      cron: EVERY_MINUTE,
      body: '{"n":1}',
      method: "PUT",
      headers: { "X-Mine": "1", "Upstash-Callback-Forward-X-Back": "2" },
      retries: 2,
      retryDelay: "50",
      timeout: 30,
      callback,
      label: ["one", "two"],
    });
    assert.equal((await it.client.schedules.get(scheduleId)).lastScheduleTime, undefined);
    const [first, second] = await fired(path, 2);
    const minute = minuteOf(first.at);
    assert.ok(minute > created, "not before the next full minute");
    assert.ok(first.at - minute < 30_000, `late by ${first.at - minute} ms`);
    assert.deepEqual(
      [first.method, first.url, first.body, first.headers["x-mine"], first.headers["content-type"]],
      ["PUT", `${path}?q=1`, '{"n":1}', "1", "application/json"],
    );
    assert.equal(first.headers["upstash-schedule-id"], scheduleId);
    assert.equal(first.headers["upstash-caller-ip"], "127.0.0.1");
    assert.equal(second.headers["upstash-retried"], "1");
    const verifier = new Verifier({ currentSigningKey: USERS[0].current, nextSigningKey: USERS[0].next });
    assert.equal(await verifier.verify({ signature: first.headers["upstash-signature"], body: first.body, url }), true);

    const messageId = first.headers["upstash-message-id"];
    const callbacks = await fired(`${path}-callback`, 2);
    for (const called of callbacks) {
      const payload = JSON.parse(called.body);
      assert.deepEqual([payload.scheduleId, payload.sourceMessageId, payload.maxRetries], [scheduleId, messageId, 2]);
      assert.equal(called.headers["x-back"], "2");
    }
    const logs = await it.logsUntil(messageId, "DELIVERED");
    for (const log of logs) assert.deepEqual([log.scheduleId, log.label, log.labels], [scheduleId, "one", ["one", "two"]]);
    const filtered = (await it.client.logs({ filter: { scheduleId, state: "DELIVERED" } })).logs;
    assert.deepEqual(filtered.map((log) => log.messageId), [messageId]);
    assert.equal((await it.client.messages.get(messageId)).scheduleId, scheduleId);

    const schedule = await it.client.schedules.get(scheduleId);
    assert.equal(schedule.lastScheduleTime, minute);
    assert.equal(schedule.nextScheduleTime, minute + MINUTE_MS);
    assert.deepEqual(schedule.lastScheduleStates, { [messageId]: "SUCCESS" });
    await it.client.schedules.delete(scheduleId);
    await refused(it.client.schedules.get(scheduleId), 404);
    assert.deepEqual(idsAt(path), [messageId]);
  });

  test("the message of a failing schedule is a dead letter, and the schedule shows it", async () => {
    const path = unique("/dead");
    it.receiver.script(path, 500);
    const failureCallback = it.receiver.url(`${path}-failure`);
    const { scheduleId } = await it.client.schedules.create({ destination: it.receiver.url(path), cron: EVERY_MINUTE, retries: 0, failureCallback });
    const [request] = await fired(path);
    const messageId = request.headers["upstash-message-id"];
    const letter = await it.deadLetter(messageId);
    assert.equal(letter.scheduleId, scheduleId);
    assert.deepEqual((await it.client.dlq.listMessages({ filter: { scheduleId } })).messages, [letter]);
    assert.deepEqual((await it.client.schedules.get(scheduleId)).lastScheduleStates, { [messageId]: "FAIL" });
    const [called] = await fired(`${path}-failure`);
    assert.deepEqual([JSON.parse(called.body).scheduleId, JSON.parse(called.body).dlqId], [scheduleId, letter.dlqId]);
  });

  test("a schedule can feed a queue, and leaves the queue as it is", async () => {
    const [path, queueName] = [unique("/queued"), unique("scheduled")];
    const queue = it.client.queue({ queueName });
    await queue.upsert({ parallelism: 7, paused: true });
    await it.client.schedules.create({ destination: it.receiver.url(path), cron: EVERY_MINUTE, queueName, body: "scheduled" });
    const fresh = unique("fresh");
    await it.client.schedules.create({ destination: it.receiver.url(`${path}-fresh`), cron: EVERY_MINUTE, queueName: fresh });
    await eventually("the message in the paused queue", async () => (await queue.get()).lag === 1, MINUTE_PATIENCE_MS);
    assert.equal((await queue.get()).parallelism, 7);
    await queue.resume();
    const [request] = await fired(path);
    assert.equal(request.body, "scheduled");
    assert.equal((await it.client.messages.get(request.headers["upstash-message-id"])).queueName, queueName);
    await fired(`${path}-fresh`);
    assert.equal((await it.client.queue({ queueName: fresh }).get()).parallelism, 1);
  });

  test("a schedule can go to a URL group: each endpoint that the group has by then", async () => {
    const [path, name] = [unique("/group"), unique("group")];
    const endpoint = (end) => ({ name: end, url: it.receiver.url(`${path}-${end}`) });
    await it.client.urlGroups.addEndpoints({ name, endpoints: [endpoint("one")] });
    const { scheduleId } = await it.client.schedules.create({ destination: name, cron: EVERY_MINUTE, body: "all" });
    await it.client.urlGroups.addEndpoints({ name, endpoints: [endpoint("two")] });
    for (const end of ["one", "two"]) {
      const [request] = await fired(`${path}-${end}`);
      assert.deepEqual([request.body, request.headers["upstash-topic-name"], request.headers["upstash-schedule-id"]], ["all", name, scheduleId]);
    }
    const states = await eventually("both to succeed", async () => {
      const { lastScheduleStates } = await it.client.schedules.get(scheduleId);
      return Object.values(lastScheduleStates).every((state) => state === "SUCCESS") ? lastScheduleStates : undefined;
    });
    assert.deepEqual(Object.keys(states).sort(), [...idsAt(`${path}-one`), ...idsAt(`${path}-two`)].sort());
  });

  test("flow control, delay and redaction apply to the messages", async () => {
    const [path, key] = [unique("/flow"), unique("scheduled")];
    await it.client.schedules.create({ destination: it.receiver.url(path), cron: EVERY_MINUTE, body: "secret", delay: 2, flowControl: { key, parallelism: 1, rate: 5, period: "1m" }, redact: { body: true } });
    const [request] = await fired(path);
    assert.ok(request.at - minuteOf(request.at) >= 1_950, "delayed");
    assert.equal(request.body, "secret");
    const message = await it.client.messages.get(request.headers["upstash-message-id"]);
    assert.deepEqual([message.flowControlKey, message.parallelism, message.rate, message.period], [key, 1, 5, 60]);
    assert.match(message.body, /^REDACTED:/);
    assert.equal((await it.client.flowControl.get(key)).rateCount, 1);
  });

  test("paused, deleted and overwritten schedules do not fire; resumed ones do", async () => {
    const path = unique("/not");
    const create = async (end, options = {}) =>
      (await it.client.schedules.create({ destination: it.receiver.url(`${path}-${end}`), cron: EVERY_MINUTE, ...options })).scheduleId;
    const paused = await create("paused");
    await it.client.schedules.pause({ schedule: paused });
    await it.client.schedules.delete(await create("deleted"));
    const scheduleId = unique("overwritten");
    await create("old", { scheduleId, body: "old" });
    await create("new", { scheduleId, body: "new" });
    const resumed = await create("resumed");
    await it.client.schedules.pause({ schedule: resumed });
    await it.client.schedules.resume({ schedule: resumed });
    const at = await minuteHasPassed(it.client);
    await fired(`${path}-resumed`);
    assert.deepEqual((await fired(`${path}-new`)).map((request) => request.body), ["new"]);
    for (const end of ["paused", "deleted", "old"]) assert.equal(it.receiver.at(`${path}-${end}`).length, 0, end);
    const { lastScheduleTime, nextScheduleTime } = await it.client.schedules.get(paused);
    assert.equal(lastScheduleTime, undefined);
    assert.ok(nextScheduleTime > at, "a paused schedule's next time moves on");
  });

  test("a schedule without its group shows why it cannot fire", async () => {
    const name = unique("gone");
    await it.client.urlGroups.addEndpoints({ name, endpoints: [{ url: it.receiver.url("/gone") }] });
    const { scheduleId } = await it.client.schedules.create({ destination: name, cron: EVERY_MINUTE });
    await it.client.urlGroups.delete(name);
    const probe = async () => (await it.client.schedules.get(scheduleId)).error;
    assert.match(await eventually("an error", probe, MINUTE_PATIENCE_MS), new RegExp(name));
  });

  test("kill -9 before the minute and in the middle of it: one message for one minute", async () => {
    const server = await Server.start();
    try {
      const path = unique("/killed");
      const client = server.client();
      const { opened, open } = gate();
      it.receiver.script(path, { status: 200, after: opened });
      const { scheduleId } = await client.schedules.create({ destination: it.receiver.url(path), cron: EVERY_MINUTE, body: "tick" });
      await client.schedules.create({ scheduleId: "paused", destination: it.receiver.url(`${path}-paused`), cron: EVERY_MINUTE });
      await client.schedules.pause({ schedule: "paused" });
      const before = await client.schedules.list();
      await server.restart();
      assert.deepEqual(await client.schedules.list(), before);

      const [first] = await fired(path);
      await server.restart();
      open();
      const messageId = first.headers["upstash-message-id"];
      await eventually("the interrupted message to be delivered", async () => {
        const { logs } = await client.logs({ filter: { state: "DELIVERED", messageId } });
        return logs.length === 1;
      });
      const minute = minuteOf(first.at);
      const { lastScheduleTime, lastScheduleStates, nextScheduleTime } = await client.schedules.get(scheduleId);
      assert.deepEqual({ lastScheduleTime, lastScheduleStates }, { lastScheduleTime: minute, lastScheduleStates: { [messageId]: "SUCCESS" } });
      const thisMinute = new Set(it.receiver.at(path).filter((request) => minuteOf(request.at) < nextScheduleTime).map((request) => request.headers["upstash-message-id"]));
      assert.deepEqual([...thisMinute], [messageId], "no second message for the same minute");
      const created = (await client.logs({ filter: { state: "CREATED", scheduleId } })).logs;
      assert.deepEqual(created.map((log) => log.messageId), [messageId]);
      assert.equal(it.receiver.at(`${path}-paused`).length, 0);
    } finally {
      await server.stop();
    }
  });

  test("a minute that passed while the server was down is caught up with once", async () => {
    const server = await Server.start();
    try {
      const path = unique("/missed");
      const client = server.client();
      const { scheduleId } = await client.schedules.create({ destination: it.receiver.url(path), cron: EVERY_MINUTE });
      const { nextScheduleTime: missed } = await client.schedules.get(scheduleId);
      await server.kill();
      await eventually("the missed minute", () => Date.now() > missed + 500, MINUTE_PATIENCE_MS);
      await server.start();
      const [request] = await fired(path);
      assert.ok(request.at < missed + MINUTE_MS);
      const again = server.client();
      assert.equal((await again.schedules.get(scheduleId)).lastScheduleTime, missed);
      await server.restart();
      await server.client().publish({ url: it.receiver.url(`${path}-after`) });
      await it.receiver.arrivals(`${path}-after`);
      const created = (await server.client().logs({ filter: { state: "CREATED", scheduleId } })).logs;
      assert.deepEqual(created.map((log) => log.messageId), [request.headers["upstash-message-id"]]);
    } finally {
      await server.stop();
    }
  });
});
