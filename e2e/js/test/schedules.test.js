// Schedules: their settings. Their firing at the full minute is in at-the-minute.test.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refused, story, unique } from "../support/story.js";

const it = story();

const NEVER = "1 1 31 1 1";

test("a schedule with every setting is shown completely", async () => {
  const before = Date.now();
  const scheduleId = unique("whole");
  const created = await it.client.schedules.create({
    scheduleId,
    destination: "https://example.com",
    cron: NEVER,
    body: '{"n":1}',
    headers: { "X-Mine": "1", "Content-Type": "text/plain", "Upstash-Callback-Forward-X-Back": "2", "Upstash-Failure-Callback-Forward-X-Back": "4", "Upstash-Failure-Callback-Retries": "7" },
    method: "PUT",
    delay: 10,
    retries: 5,
    retryDelay: "7000 * retried",
    timeout: "1m",
    callback: "https://example.com/callback",
    failureCallback: "https://example.com/failure",
    queueName: "scheduled",
    flowControl: { key: "scheduled", parallelism: 2, rate: 3, period: "1h30m3s" },
    label: ["first", "second"],
  });
  assert.deepEqual(created, { scheduleId });
  const schedule = await it.client.schedules.get(scheduleId);
  const { createdAt, nextScheduleTime, ...rest } = schedule;
  assert.ok(createdAt >= before && createdAt <= Date.now());
  assert.ok(nextScheduleTime > createdAt && nextScheduleTime % 60_000 === 0);
  assert.deepEqual(rest, {
    scheduleId,
    destination: "https://example.com",
    cron: NEVER,
    method: "PUT",
    body: '{"n":1}',
    header: { "Content-Type": ["text/plain"], "X-Mine": ["1"] },
    retries: 5,
    retryDelayExpression: "7000 * retried",
    delay: 10,
    timeout: 60,
    callback: "https://example.com/callback",
    failureCallback: "https://example.com/failure",
    callbackHeader: { "X-Back": ["2"] },
    failureCallbackHeader: { "X-Back": ["4"] },
    isPaused: false,
    callerIP: "127.0.0.1",
    queueName: "scheduled",
    flowControlKey: "scheduled",
    parallelism: 2,
    rate: 3,
    ratePerSecond: 3,
    period: 5_403,
    label: "first",
    labels: ["first", "second"],
  });
  assert.deepEqual((await it.client.schedules.list()).filter((listed) => listed.scheduleId === scheduleId), [schedule]);
  await it.client.schedules.delete(scheduleId);
  await refused(it.client.schedules.get(scheduleId), 404);
  assert.deepEqual((await it.client.schedules.list()).filter((listed) => listed.scheduleId === scheduleId), []);
});

test("a schedule with only a time has the defaults, and an id from the server", async () => {
  const { scheduleId } = await it.client.schedules.create({ destination: "https://example.com", cron: "*/10 * * * * " });
  assert.match(scheduleId, /^scd_\w{20,}$/);
  const { createdAt, nextScheduleTime, ...rest } = await it.client.schedules.get(scheduleId);
  assert.ok(nextScheduleTime - createdAt <= 600_000 && nextScheduleTime % 600_000 === 0);
  assert.deepEqual(rest, {
    scheduleId,
    destination: "https://example.com",
    cron: "*/10 * * * *",
    method: "POST",
    header: { "Content-Type": ["application/json"] },
    retries: 3,
    isPaused: false,
    callerIP: "127.0.0.1",
  });
});

test("the schedule keeps headers of the client, but not telemetry", async () => {
  const client = it.server.client(0, { headers: { "X-Global": "all", "X-Both": "global" }, enableTelemetry: true });
  const { scheduleId } = await client.schedules.create({ destination: "https://example.com", cron: NEVER, headers: { "x-both": "own" } });
  assert.deepEqual((await client.schedules.get(scheduleId)).header, {
    "Content-Type": ["application/json"],
    "X-Both": ["own"],
    "X-Global": ["all"],
  });
});

test("the same id again replaces everything", async () => {
  const scheduleId = unique("again");
  const common = { scheduleId, destination: "https://example.com" };
  await it.client.schedules.create({ ...common, cron: NEVER, body: "old", headers: { "X-Old": "1" }, label: "old", retries: 9, callback: "https://example.com/old" });
  await it.client.schedules.pause({ schedule: scheduleId });
  await it.client.schedules.create({ ...common, cron: "*/2 * * * *", method: "PATCH" });
  const { cron, method, body, header, label, retries, callback, isPaused } = await it.client.schedules.get(scheduleId);
  assert.deepEqual(
    { cron, method, body, header, label, retries, callback, isPaused },
    { cron: "*/2 * * * *", method: "PATCH", body: undefined, header: { "Content-Type": ["application/json"] }, label: undefined, retries: 3, callback: undefined, isPaused: false },
  );
  assert.equal((await it.client.schedules.list()).filter((listed) => listed.scheduleId === scheduleId).length, 1);
});

test("pause and resume, twice each", async () => {
  const { scheduleId } = await it.client.schedules.create({ destination: "https://example.com", cron: NEVER });
  for (const [call, expected] of [["pause", true], ["pause", true], ["resume", false], ["resume", false]]) {
    await it.client.schedules[call]({ schedule: scheduleId });
    assert.equal((await it.client.schedules.get(scheduleId)).isPaused, expected);
  }
  for (const call of ["pause", "resume"]) await refused(it.client.schedules[call]({ schedule: unique("none") }), 404);
  await refused(it.client.schedules.delete(unique("none")), 404);
});

test("a URL group is a destination by its name", async () => {
  const name = unique("group");
  await it.client.urlGroups.addEndpoints({ name, endpoints: [{ url: "https://example.com/a" }] });
  const { scheduleId } = await it.client.schedules.create({ destination: name, cron: NEVER });
  assert.equal((await it.client.schedules.get(scheduleId)).destination, name);
});

test("destinations keep their path and query, whatever they end with", async () => {
  for (const destination of ["https://example.com/a//b/?x=1&y=%20#", "https://example.com/pause", "https://example.com/x/resume?y"]) {
    const { scheduleId } = await it.client.schedules.create({ destination, cron: NEVER });
    assert.equal((await it.client.schedules.get(scheduleId)).destination, destination.replace("#", ""));
  }
});

test("time zones and names of days are kept as they were given", async () => {
  for (const cron of ["CRON_TZ=Europe/Berlin 0 4 * * *", "TZ=America/New_York 30 9 * * MON-FRI", "@daily", "@every 1h", "0 0 1,15 JAN-MAR ?"]) {
    const { scheduleId } = await it.client.schedules.create({ destination: "https://example.com", cron });
    const schedule = await it.client.schedules.get(scheduleId);
    assert.equal(schedule.cron, cron);
    assert.ok(schedule.nextScheduleTime > Date.now());
  }
  const at = async (cron) => {
    const { scheduleId } = await it.client.schedules.create({ destination: "https://example.com", cron });
    return new Date((await it.client.schedules.get(scheduleId)).nextScheduleTime);
  };
  assert.equal((await at("30 4 * * *")).getUTCHours(), 4);
  assert.equal((await at("CRON_TZ=Asia/Tokyo 30 4 * * *")).getUTCHours(), 19);
});

test("binary bodies and redacted ones", async () => {
  const binary = await it.client.schedules.create({ destination: "https://example.com", cron: NEVER, body: new Blob([new Uint8Array([0, 255, 254])]) });
  const { body, bodyBase64 } = await it.client.schedules.get(binary.scheduleId);
  assert.deepEqual([body, bodyBase64], [undefined, "AP/+"]);
  const secret = { destination: "https://example.com", cron: NEVER, body: "secret", headers: { "X-Secret": "secret", "X-Open": "open" } };
  const redacted = await it.client.schedules.create({ ...secret, redact: { body: true, header: ["X-Secret"] } });
  const shown = await it.client.schedules.get(redacted.scheduleId);
  assert.match(shown.body, /^REDACTED:[0-9a-f]{64}$/);
  assert.match(shown.header["X-Secret"][0], /^REDACTED:[0-9a-f]{64}$/);
  assert.deepEqual(shown.header["X-Open"], ["open"]);
  assert.ok(!JSON.stringify(await it.client.schedules.list()).includes('"secret"'));
});

test("wrong settings are rejected by name", async () => {
  const create = (options) => it.client.schedules.create({ destination: "https://example.com", cron: NEVER, ...options });
  for (const cron of ["* * * *", "61 * * * *", "* * * * * *", "nonsense", "CRON_TZ=Nowhere/Land * * * * *", ""]) {
    await refused(create({ cron }), 400, /cron/i);
  }
  await refused(create({ scheduleId: "with space" }), 400, /schedule/i);
  await refused(create({ queueName: "with space" }), 400, /queue/i);
  await refused(create({ destination: "example.com:80/x" }), 400, /scheme/);
  await refused(create({ destination: unique("no-such-group") }), 404, /topic .* not found/);
  await refused(create({ delay: "soon" }), 400, /delay/i);
  await refused(create({ retryDelay: "later(" }), 400, /retry-delay/i);
  const without = await it.server.fetch("/v2/schedules/https://example.com", { method: "POST" });
  assert.equal(without.status, 400);
  assert.match((await without.json()).error, /cron/i);
});

test("ids may begin with - and _", async () => {
  for (const scheduleId of ["-dash", "_under", "a.b"]) {
    await it.client.schedules.create({ scheduleId, destination: "https://example.com", cron: NEVER });
    assert.equal((await it.client.schedules.get(scheduleId)).scheduleId, scheduleId);
  }
});

test("one user's schedules are not another's", async () => {
  const scheduleId = unique("private");
  await it.client.schedules.create({ scheduleId, destination: "https://example.com", cron: NEVER });
  const other = it.server.client(1);
  await refused(other.schedules.get(scheduleId), 404);
  await refused(other.schedules.delete(scheduleId), 404);
  assert.deepEqual(await other.schedules.list(), []);
});
