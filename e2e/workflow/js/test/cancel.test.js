// Cancelled runs, from inside and from outside.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate } from "../../../js/support/receiver.js";
import { eventually } from "../../../js/support/wait.js";
import { masked, story } from "../support/story.js";

const held = gate();
let failures = 0;

const it = story((app) => {
  const failureFunction = () => {
    failures += 1;
  };

  app.workflow(
    "/quits",
    async (context) => {
      const enough = await context.run("look", () => true);
      if (enough) await context.cancel();
      await context.run("never", () => {});
    },
    { failureFunction },
  );

  for (const path of ["/nap", "/nap-too", "/other"]) {
    app.workflow(
      path,
      async (context) => {
        await context.sleep("long", "1h");
      },
      { failureFunction },
    );
  }

  app.workflow(
    "/busy",
    async (context) => {
      await context.run("held", async () => await held.opened);
      await context.run("never", () => {});
    },
    { failureFunction },
  );
});

/** A run that has started to sleep for a long time. */
async function sleeping(path = "/nap", options = {}) {
  const run = await it.trigger(path, options);
  await asleep(run);
  return run;
}

async function asleep(run) {
  await it.calls(run, (calls) => calls.length === 1 && calls[0].status === 200);
}

test("a run cancels itself", async () => {
  const run = await it.trigger("/quits");
  const log = await it.reaches(run, "RUN_CANCELED");
  assert.equal(log.workflowRunResponse, undefined);
  await it.exactly(run, "step", "step");
});

test("by id: nothing more is sent, and a second time there is nothing to cancel", async () => {
  const run = await sleeping();
  assert.deepEqual(await it.client.cancel(run), { cancelled: 1 });
  assert.deepEqual(await it.client.cancel(run), { cancelled: 0 });
  const item = {
    messageId: "messageId",
    callType: "step",
    concurrent: 1,
    retries: 3,
    retryDelay: "retryDelay",
    createdAt: "time",
    headers: "headers",
  };
  assert.deepEqual(masked(await it.log(run)), {
    workflowRunId: run,
    workflowUrl: it.app.url("/nap"),
    workflowState: "RUN_CANCELED",
    workflowRunCreatedAt: "time",
    workflowRunCompletedAt: "time",
    workflowRunCallerIp: "127.0.0.1",
    steps: [
      {
        type: "sequential",
        steps: [{ ...item, stepName: "init", stepType: "Initial", out: "", state: "STEP_SUCCESS" }],
      },
      {
        type: "sequential",
        steps: [{ ...item, stepId: 1, stepName: "long", stepType: "SleepFor", sleepFor: "1h", state: "STEP_CANCELED" }],
      },
    ],
  });
  await it.exactly(run, "step");
});

test("by several ids; those that are unknown are skipped", async () => {
  const runs = [await sleeping(), await sleeping()];
  assert.deepEqual(await it.client.cancel([...runs, "wfr_unknown"]), { cancelled: 2 });
  for (const run of runs) {
    assert.equal((await it.log(run)).workflowState, "RUN_CANCELED");
    await it.exactly(run, "step");
  }
  assert.deepEqual(await it.client.cancel([]), { cancelled: 0 });
});

test("by the start of a URL, by a whole URL, by label, by all", async () => {
  const nap = await sleeping("/nap");
  const tooLabelled = await sleeping("/nap-too", { label: "red" });
  const other = await sleeping("/other", { label: "red" });
  const last = await sleeping("/other");
  const states = async () =>
    await Promise.all([nap, tooLabelled, other, last].map(async (run) => (await it.log(run)).workflowState));

  assert.deepEqual(await it.client.cancel({ urlStartingWith: it.app.url("/nap//") }), { cancelled: 0 });
  assert.deepEqual(await it.client.cancel({ filter: { workflowUrl: it.app.url("/na") } }), { cancelled: 0 });
  assert.deepEqual(await it.client.cancel({ filter: { workflowUrl: it.app.url("/nap") } }), { cancelled: 1 });
  assert.deepEqual(await states(), ["RUN_CANCELED", "RUN_STARTED", "RUN_STARTED", "RUN_STARTED"]);
  assert.deepEqual(await it.client.cancel({ filter: { workflowUrlStartingWith: it.app.url("/na") } }), {
    cancelled: 1,
  });
  assert.deepEqual(await states(), ["RUN_CANCELED", "RUN_CANCELED", "RUN_STARTED", "RUN_STARTED"]);
  assert.deepEqual(await it.client.cancel({ filter: { label: "red" } }), { cancelled: 1 });
  assert.deepEqual(await states(), ["RUN_CANCELED", "RUN_CANCELED", "RUN_CANCELED", "RUN_STARTED"]);
  assert.deepEqual(await it.client.cancel({ all: true }), { cancelled: 1 });
  assert.equal((await states())[3], "RUN_CANCELED");
  assert.deepEqual(await it.client.cancel({ all: true }), { cancelled: 0 });
  for (const run of [nap, tooLabelled, other, last]) await it.exactly(run, "step");
});

test("`count` limits the number", async () => {
  const runs = [await sleeping("/other"), await sleeping("/other"), await sleeping("/other")];
  assert.deepEqual(await it.client.cancel({ filter: { workflowUrl: it.app.url("/other") }, count: 2 }), {
    cancelled: 2,
  });
  assert.deepEqual(await it.client.cancel({ filter: { workflowUrl: it.app.url("/other") } }), { cancelled: 1 });
  for (const run of runs) await it.exactly(run, "step");
});

test("while a step is being executed: its result is too late, and there is no failure callback", async () => {
  const run = await it.trigger("/busy", { retries: 0 });
  await it.calls(run, (calls) => calls.length === 1);
  assert.deepEqual(await it.client.cancel(run), { cancelled: 1 });
  held.open();
  await it.calls(run, (calls) => calls[0].isOver);
  assert.equal((await it.log(run)).workflowState, "RUN_CANCELED");
  await it.exactly(run, "step");
});

test("before its first delivery", async () => {
  const run = await it.trigger("/nap", { delay: "1h" });
  assert.equal((await it.log(run)).workflowState, "RUN_STARTED");
  assert.deepEqual(await it.client.cancel(run), { cancelled: 1 });
  assert.equal((await it.log(run)).workflowState, "RUN_CANCELED");
  await it.exactly(run);
});

test("no cancel has called a failure function, and none is in the DLQ", async () => {
  assert.equal(failures, 0);
  assert.deepEqual((await it.client.dlq.list()).messages, []);
  await eventually("no run to be left", async () => (await it.logs({ state: "RUN_STARTED" })).runs.length === 0);
});
