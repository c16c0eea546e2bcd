// kill -9 between every acceptance and every delivery of a run: it ends as if nothing had happened.
//
// Each result of a step is new, so a step that was executed again after its result had been accepted would be visible.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { WorkflowNonRetryableError } from "@upstash/workflow";
import { eventually } from "../../../js/support/wait.js";
import { stepsOf, story } from "../support/story.js";

/** Longest duration of a run whose server is killed at every step. */
const DRILL_PATIENCE_MS = 90_000;
/** A delivery after a start, on a busy machine. The server looks at the clock every five seconds anyway. */
const SOON_MS = 4_000;

/** Executions of steps, by name: their results. */
let given = {};
/** The results that the function saw for each step, in all its replays. */
let seen = {};
let serial = 0;
/** Fulfilled when the last server that was killed is up again. */
let lastKill = Promise.resolve();

async function step(context, name) {
  const value = await context.run(name, () => {
    serial += 1;
    (given[name] ??= []).push(`${name} ${serial}`);
    return `${name} ${serial}`;
  });
  (seen[name] ??= new Set()).add(value);
  return value;
}

const it = story((app) => {
  app.workflow("/five", async (context) => {
    const values = [];
    for (let n = 1; n <= 5; n += 1) values.push(await step(context, `step ${n}`));
    return values;
  });

  app.workflow("/parallel", async (context) => {
    const before = await step(context, "before");
    const group = await Promise.all(["left", "middle", "right"].map((name) => step(context, name)));
    const after = await step(context, "after");
    return [before, ...group, after];
  });

  app.workflow("/fails", async (context) => {
    await context.run("fail", () => {
      throw new WorkflowNonRetryableError("for good");
    });
  });

  app.workflow("/kinds", async (context) => {
    const before = await step(context, "before");
    await context.sleep("nap", 1);
    const { body } = await context.call("call", { url: it.third.url("/called"), method: "POST", body: before });
    const { eventData } = await context.waitForEvent("event", "drill", { timeout: "1h" });
    const after = await step(context, "after");
    return [before, body, eventData, after];
  });
});

afterEach(async () => {
  await lastKill;
  it.app.onArrival = async () => true;
  it.app.onAnswer = async () => {};
  it.app.onAnswered = async () => {};
  it.app.onOver = () => {};
});

/**
 * Kills the server at a moment, once for each entry that is delivered, with a new start on the same data and port.
 *
 * The endpoint accepts one delivery at a time, and drops requests of a dead server, so a step that is executed twice was
 * delivered twice.
 */
function drill(moment) {
  const kills = { count: 0 };
  const known = new Set();
  const kill = (at, call) => {
    if (at !== moment || known.has(call.messageId)) return false;
    known.add(call.messageId);
    kills.count += 1;
    lastKill = lastKill.then(async () => {
      await it.server.restart();
      kills.firstBackAt ??= Date.now();
    });
    return true;
  };
  let lastTurn = Promise.resolve();
  const ends = new Map();
  it.app.onArrival = async (call) => {
    const turn = lastTurn;
    lastTurn = new Promise((resolve) => ends.set(call, resolve));
    if (call.isOver) ends.get(call)();
    await turn;
    await lastKill;
    if (call.isOver) return false;
    if (!kill(ARRIVED, call)) return true;
    await lastKill;
    return false;
  };
  it.app.onAnswer = async (call) => {
    if (kill(ACCEPTED, call)) await lastKill;
  };
  it.app.onAnswered = async (call) => kill(ANSWERED, call);
  it.app.onOver = (call) => ends.get(call)?.();
  return kills;
}

const ARRIVED = "when a delivery has arrived and nothing has been done";
const ACCEPTED = "when the result of a step was accepted and its delivery has no answer";
const ANSWERED = "when a delivery was answered";

const RUNS = {
  "/five": { names: ["step 1", "step 2", "step 3", "step 4", "step 5"], entries: 6, spare: 0 },
  // The first call, before, three plans, three results, after. Of the results only the last leads on; two may be spared.
  "/parallel": { names: ["before", "left", "middle", "right", "after"], entries: 9, spare: 2 },
};

for (const [path, { names, entries, spare }] of Object.entries(RUNS)) {
  for (const moment of [ARRIVED, ACCEPTED, ANSWERED]) {
    test(`${path}: kill -9 ${moment}`, async () => {
      given = {};
      seen = {};
      const kills = drill(moment);
      const run = await triggered(path);
      const { workflowRunResponse } = await ended(run);
      const result = JSON.parse(workflowRunResponse);
      await it.app.idle();
      await lastKill;

      assert.ok(
        kills.count <= entries && kills.count >= entries - spare,
        `killed ${kills.count} times, once for each entry`,
      );
      for (const [index, name] of names.entries()) {
        assert.deepEqual([...seen[name]], [result[index]], `${name}: the same value in every replay`);
        assert.deepEqual(given[name], [result[index]], `${name}: executed once`);
      }
      const steps = stepsOf(await ended(run)).filter((item) => item.stepType === "Run");
      assert.deepEqual(
        steps.map((item) => [item.stepName, JSON.parse(item.out)]).sort(),
        names.map((name, n) => [name, result[n]]).sort(),
      );
      const bodies = new Map();
      for (const call of it.app.callsOf(run)) {
        const known = bodies.get(call.messageId) ?? call.body;
        assert.ok(known.equals(call.body), "a delivery that is repeated is the same, byte for byte");
        bodies.set(call.messageId, call.body);
      }
    });
  }
}

/** Triggers a run, once: a connection to a server that was killed may be noticed only now. */
async function triggered(path) {
  serial += 1;
  const workflowRunId = `drill-${serial}`;
  return await eventually("a trigger", async () => await unlessDown(() => it.trigger(path, { workflowRunId })));
}

/** Waits until a run has succeeded; returns its log. */
async function ended(run) {
  const probe = async () => {
    const log = await unlessDown(() => it.log(run));
    return log?.workflowState === "RUN_SUCCESS" ? log : undefined;
  };
  return await eventually(`${run} to end`, probe, DRILL_PATIENCE_MS);
}

/** The response of a request, or undefined if the server is down. */
async function unlessDown(request) {
  try {
    return await request();
  } catch (error) {
    if (error.message === "fetch failed" || error.message === "terminated") return undefined;
    throw error;
  }
}

test("sleeps, calls and waits survive a kill", async () => {
  given = {};
  seen = {};
  it.third.script("/called", { status: 200, body: "answer" });
  const run = await triggered("/kinds");
  await it.calls(run, (calls) => calls.filter((call) => call.isOver).length === 2);
  const waiters = async () => (await unlessDown(() => it.client.getWaiters({ eventId: "drill" })))?.length;
  await it.server.restart();
  await eventually("the run to wait", async () => (await waiters()) === 1);
  await it.server.restart();
  const counted = await eventually("an answer", async () => await waiters());
  assert.equal(counted, 1);
  assert.equal((await it.client.notify({ eventId: "drill", eventData: "came" })).length, 1);
  const [before, body, eventData, after] = JSON.parse((await ended(run)).workflowRunResponse);
  assert.deepEqual([body, eventData], ["answer", "came"]);
  assert.deepEqual([given.before, given.after], [[before], [after]]);
  assert.equal(it.third.at("/called").length, 1);
  await it.exactly(run, "step", "step", "step", "callback", "step", "step", "step");
});

test("deliveries in flight are repeated as soon as the server is back", async () => {
  const kills = drill(ARRIVED);
  const run = await triggered("/five");
  const [, second] = await it.calls(run, (calls) => calls.length >= 2);
  await lastKill;
  const late = second.at - kills.firstBackAt;
  assert.ok(late < SOON_MS, `${late} ms after it was back`);
  await ended(run);
});

test("finished runs stay finished after a kill: logs, results, the DLQ", async () => {
  const failed = await triggered("/fails");
  await eventually(
    "the run to fail",
    async () => (await unlessDown(() => it.log(failed)))?.failureFunction?.state === "CALLBACK_SUCCESS",
  );
  const all = async () => [await it.logs(), await it.client.dlq.list()];
  const before = await all();
  await it.server.restart();
  assert.deepEqual(await eventually("an answer", async () => await unlessDown(all)), before);
  assert.ok(before[0].runs.length > 1 && before[1].messages.length === 1);
});
