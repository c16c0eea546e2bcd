// The limits of a run: a run that needs more fails with the reason.

import assert from "node:assert/strict";
import { test } from "node:test";
import { story, times } from "../support/story.js";

const STEPS = 12;
const BYTES = 100_000;
const args = [
  ...["--workflow-max-steps", `${STEPS}`],
  ...["--workflow-max-bytes", `${BYTES}`],
  ...["--workflow-max-duration", "8s"],
  ...["--workflow-max-depth", "2"],
];
const told = [];

const it = story(
  (app) => {
    const failureFunction = ({ context, failResponse }) => {
      told.push([context.workflowRunId, failResponse]);
    };

    app.workflow(
      "/steps",
      async (context) => {
        for (let n = 1; n <= context.requestPayload; n += 1) await context.run(`step ${n}`, () => n);
        return "done";
      },
      { failureFunction },
    );

    app.workflow(
      "/bytes",
      async (context) => {
        for (let n = 1; n <= 3; n += 1) await context.run(`step ${n}`, () => "x".repeat(BYTES / 2 - 1000));
      },
      { failureFunction },
    );

    app.workflow(
      "/time",
      async (context) => {
        await context.sleep("long enough", 9);
        await context.run("too late", () => {});
      },
      { failureFunction },
    );

    app.workflows("/deep", (createWorkflow) => {
      const self = createWorkflow(async (context) => {
        const depth = await context.run("depth", () => context.requestPayload ?? 0);
        return await context.invoke("deeper", { workflow: self, body: depth + 1 });
      });
      return { self };
    });
  },
  { args },
);

/** Why a run has failed, from its log. */
async function reason(run) {
  await it.reaches(run, "RUN_FAILED");
  const { steps } = await it.failureFunctionReaches(run, "CALLBACK_SUCCESS");
  return steps.at(-1).steps[0].errors.at(-1).error;
}

test("steps: the maximum, and one more", async () => {
  const enough = await it.trigger("/steps", { body: STEPS - 1 });
  assert.equal(await it.result(enough), "done");
  await it.exactly(enough, ...times(STEPS, "step"));

  const tooMany = await it.trigger("/steps", { body: STEPS });
  assert.match(await reason(tooMany), /maxWorkflowSteps exceeded, current limit: 12/);
  await it.altogether(tooMany, { step: STEPS - 1, "step 489": 1, failure: 1 });
  assert.match(told.find(([run]) => run === tooMany)[1], /maxWorkflowSteps/);
});

test("bytes", async () => {
  const run = await it.trigger("/bytes");
  assert.match(await reason(run), /maxWorkflowBytes exceeded, current limit: 100000/);
  await it.altogether(run, { step: 2, "step 489": 1, failure: 1 });
});

test("time", async () => {
  const run = await it.trigger("/time");
  assert.match(await reason(run), /maxWorkflowDuration exceeded, current limit: 8000/);
  await it.altogether(run, { step: 1, "step 489": 1, failure: 1 });
});

test("runs in one another", async () => {
  const run = await it.trigger("/deep/self", { body: 0 });
  // The second one cannot invoke a third, and fails; that is a result for the first.
  assert.deepEqual(await it.result(run), { isFailed: true, isCanceled: false });
  const { runs } = await it.logs({ state: "RUN_FAILED", workflowUrl: it.app.url("/deep/self") });
  assert.equal(runs.length, 1);
  await it.failureFunctionReaches(runs[0].workflowRunId, "CALLBACK_SUCCESS");
  await it.altogether(runs[0].workflowRunId, { step: 1, "step 489": 1, failure: 1 });
});
