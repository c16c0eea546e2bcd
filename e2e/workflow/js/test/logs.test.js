// The list of runs: filters, pages, and the form with one line per event.

import assert from "node:assert/strict";
import { test } from "node:test";
import { story } from "../support/story.js";

let works = false;
const runs = {};

const it = story((app) => {
  for (const path of ["/one", "/two"]) {
    app.workflow(path, async (context) => {
      await context.run("step", () => {
        if (context.requestPayload === "fail" && !works) throw new Error("asked to");
      });
      if (context.requestPayload === "sleep") await context.sleep("long", "1h");
      return context.requestPayload;
    });
  }
});

test("runs of every kind", async () => {
  runs.good = await it.trigger("/one", { body: "good", label: "a" });
  await it.reaches(runs.good, "RUN_SUCCESS");
  runs.bad = await it.trigger("/one", {
    body: "fail",
    retries: 0,
    label: "b",
    flowControl: { key: "logs", parallelism: 5 },
  });
  await it.reaches(runs.bad, "RUN_FAILED");
  runs.asleep = await it.trigger("/two", { body: "sleep", label: ["a", "c"] });
  await it.calls(runs.asleep, (calls) => calls.filter((call) => call.isOver).length === 2);
  runs.gone = await it.trigger("/two", { body: "sleep" });
  await it.calls(runs.gone, (calls) => calls.filter((call) => call.isOver).length === 2);
  await it.client.cancel(runs.gone);
});

async function found(filter, options = {}) {
  const page = await it.client.logs({ filter, ...options });
  const names = Object.fromEntries(Object.entries(runs).map(([name, id]) => [id, name]));
  return page.runs.map((run) => names[run.workflowRunId]);
}

test("filters", async () => {
  assert.deepEqual(await found({}), ["gone", "asleep", "bad", "good"], "the newest first");
  assert.deepEqual(await found({ state: "RUN_SUCCESS" }), ["good"]);
  assert.deepEqual(await found({ state: "RUN_FAILED" }), ["bad"]);
  assert.deepEqual(await found({ state: "RUN_STARTED" }), ["asleep"]);
  assert.deepEqual(await found({ state: "RUN_CANCELED" }), ["gone"]);
  assert.deepEqual(await found({ label: "a" }), ["asleep", "good"]);
  assert.deepEqual(await found({ workflowUrl: it.app.url("/one") }), ["bad", "good"]);
  assert.deepEqual(await found({ workflowUrl: it.app.url("/on") }), [], "a whole URL, not its start");
  assert.deepEqual(await found({ workflowRunId: runs.bad }), ["bad"]);
  assert.deepEqual(await found({ workflowRunId: "wfr_unknown" }), []);
  assert.deepEqual(await found({ flowControlKey: "logs" }), ["bad"]);
  const {
    runs: [bad],
  } = await it.client.logs({ workflowRunId: runs.bad });
  assert.deepEqual(await found({ fromDate: bad.workflowRunCreatedAt, toDate: bad.workflowRunCreatedAt }), ["bad"]);
  assert.deepEqual(await found({ workflowRunId: runs.bad, workflowCreatedAt: bad.workflowRunCreatedAt }), ["bad"]);
});

test("pages", async () => {
  const first = await it.client.logs({ count: 3 });
  assert.equal(first.runs.length, 3);
  assert.equal(typeof first.cursor, "string");
  const second = await it.client.logs({ count: 3, cursor: first.cursor });
  assert.deepEqual(
    second.runs.map((run) => run.workflowRunId),
    [runs.good],
  );
  assert.equal("cursor" in second, false, "that was the last one");
});

test("the states of steps, in each state of the run", async () => {
  const steps = async (run) =>
    (await it.log(run)).steps.map((group) => [group.type, group.steps[0].stepName, group.steps[0].state]);
  assert.deepEqual(await steps(runs.good), [
    ["sequential", "init", "STEP_SUCCESS"],
    ["sequential", "step", "STEP_SUCCESS"],
  ]);
  assert.deepEqual(await steps(runs.bad), [
    ["sequential", "init", "STEP_SUCCESS"],
    ["next", "step", "STEP_FAILED"],
  ]);
  assert.deepEqual(await steps(runs.asleep), [
    ["sequential", "init", "STEP_SUCCESS"],
    ["sequential", "step", "STEP_SUCCESS"],
    ["sequential", "long", "STEP_PROGRESS"],
  ]);
  assert.deepEqual((await steps(runs.gone)).at(-1), ["sequential", "long", "STEP_CANCELED"]);
});

test("as events: a line for each event", async () => {
  const answer = await it.server.fetch(`/v2/workflows/events?workflowRunId=${runs.good}`);
  assert.equal(answer.status, 200);
  const { events } = await answer.json();
  const states = events.map((event) => event.state);
  assert.ok(states.includes("RUN_STARTED"), `${states}`);
  assert.ok(states.includes("RUN_SUCCESS"), `${states}`);
  for (const event of events) {
    assert.equal(event.workflowRunId, runs.good);
    assert.equal(event.workflowUrl, it.app.url("/one"));
    assert.equal(typeof event.time, "number");
  }
  const success = events.find((event) => event.state === "RUN_SUCCESS");
  assert.equal(success.workflowRunResponse, '"good"');
});

test("the same by the address that other clients use", async () => {
  const answer = await it.server.fetch(`/v2/workflows/logs?workflowRunId=${runs.good}`);
  const page = await answer.json();
  assert.deepEqual(page, await it.logs({ workflowRunId: runs.good }));
});
