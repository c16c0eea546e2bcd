// context.invoke: runs that start runs and wait for them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate } from "../../../js/support/receiver.js";
import { eventually } from "../../../js/support/wait.js";
import { stepsOf, story } from "../support/story.js";

const parentMayFail = gate();

const it = story((app) => {
  app.workflows("/family", (createWorkflow) => {
    const grandchild = createWorkflow(async (context) => {
      const name = await context.run("name", () => context.requestPayload.name);
      return { name: `${name} the third`, tenant: context.headers.get("x-tenant") };
    });
    const child = createWorkflow(async (context) => {
      const { body, isFailed, isCanceled } = await context.invoke("grandchild", {
        workflow: grandchild,
        body: { name: context.requestPayload.name },
        headers: { "x-tenant": "inherited by hand" },
      });
      return { of: "child", body, isFailed, isCanceled };
    });
    const parent = createWorkflow(async (context) => {
      const before = await context.run("before", () => "before");
      const answer = await context.invoke("child", { workflow: child, body: { name: "Ann" }, label: "a-child" });
      const after = await context.run("after", () => "after");
      return { before, answer, after };
    });
    const failing = createWorkflow(async (context) => {
      await context.run("boom", () => {
        throw new Error("boom");
      });
    });
    const sleeper = createWorkflow(async (context) => {
      await context.sleep("long", "1h");
    });
    const silent = createWorkflow(async (context) => {
      const payload = await context.run("payload", () => context.requestPayload);
      if (payload !== undefined && payload !== "") throw new Error(`not empty: ${JSON.stringify(payload)}`);
    });
    const invokesFailing = createWorkflow(
      async (context) => await context.invoke("failing", { workflow: failing, retries: 0 }),
    );
    const invokesSleeper = createWorkflow(
      async (context) =>
        await context.invoke("sleeper", { workflow: sleeper, workflowRunId: `slept-by-${context.workflowRunId}` }),
    );
    const invokesSilent = createWorkflow(async (context) => await context.invoke("silent", { workflow: silent }));
    const waiter = createWorkflow(async (context) => {
      const { eventData } = await context.waitForEvent("wait", `go-${context.workflowRunId}`, { timeout: "1h" });
      return eventData;
    });
    // One branch fails while the other waits for its child.
    const orphaning = createWorkflow(async (context) => {
      await Promise.all([
        context.invoke("orphan", { workflow: waiter, workflowRunId: `orphan-of-${context.workflowRunId}` }),
        context.run("fail", async () => {
          await parentMayFail.opened;
          throw new Error("the parent fails");
        }),
      ]);
    });
    return {
      parent,
      child,
      grandchild,
      failing,
      sleeper,
      silent,
      waiter,
      orphaning,
      "invokes-failing": invokesFailing,
      "invokes-sleeper": invokesSleeper,
      "invokes-silent": invokesSilent,
    };
  });
});

test("three generations: each run is called as often as it has steps", async () => {
  const run = await it.trigger("/family/parent");
  assert.deepEqual(await it.result(run), {
    before: "before",
    answer: {
      body: {
        of: "child",
        body: { name: "Ann the third", tenant: "inherited by hand" },
        isFailed: false,
        isCanceled: false,
      },
      isFailed: false,
      isCanceled: false,
    },
    after: "after",
  });
  await it.exactly(run, "step", "step", "step", "step");
  const [, , invoked] = stepsOf(await it.log(run));
  assert.equal(invoked.stepType, "Invoke");
  assert.equal(invoked.state, "STEP_SUCCESS");
  assert.equal(invoked.invokedWorkflowUrl, it.app.url("/family/child"));
  const child = await it.log(invoked.invokedWorkflowRunId);
  assert.equal(child.workflowRunCreatedAt, invoked.invokedWorkflowCreatedAt);
  assert.equal(child.label, "a-child");
  assert.equal(child.invoker.workflowRunId, run);
  assert.equal(child.invoker.workflowUrl, it.app.url("/family/parent"));
  await it.exactly(child.workflowRunId, "step", "step");
  const grandchild = await it.log(stepsOf(child)[1].invokedWorkflowRunId);
  assert.equal(grandchild.invoker.workflowRunId, child.workflowRunId);
  await it.exactly(grandchild.workflowRunId, "step", "step");
});

test("a child that fails is a result", async () => {
  const run = await it.trigger("/family/invokes-failing");
  assert.deepEqual(await it.result(run), { isFailed: true, isCanceled: false });
  await it.exactly(run, "step", "step");
  const [, { invokedWorkflowRunId: child }] = stepsOf(await it.log(run));
  assert.equal((await it.log(child)).workflowState, "RUN_FAILED");
  await it.failureFunctionReaches(child, "CALLBACK_SUCCESS");
  await it.exactly(child, "step 500", "failure");
});

test("a child that is cancelled is a result", async () => {
  const run = await it.trigger("/family/invokes-sleeper", { workflowRunId: "parent-1" });
  const child = `wfr_slept-by-${run}`;
  await it.calls(child, (calls) => calls.length === 1 && calls[0].status === 200);
  assert.equal((await it.log(run)).steps.at(-1).steps[0].state, "STEP_PROGRESS");
  assert.deepEqual(await it.client.cancel(child), { cancelled: 1 });
  assert.deepEqual(await it.result(run), { isFailed: false, isCanceled: true });
  await it.exactly(run, "step", "step");
  await it.exactly(child, "step");
});

test("a child without payload and without result", async () => {
  const run = await it.trigger("/family/invokes-silent");
  assert.deepEqual(await it.result(run), { isFailed: false, isCanceled: false });
  await it.exactly(run, "step", "step");
});

test("a child continues when its parent has failed, and the parent's log shows how it ended", async () => {
  const run = await it.trigger("/family/orphaning", { retries: 0 });
  const child = `wfr_orphan-of-${run}`;
  await eventually(
    "the child to wait",
    async () => (await it.client.getWaiters({ eventId: `go-${child}` })).length === 1,
  );
  parentMayFail.open();
  await it.reaches(run, "RUN_FAILED");
  await it.client.notify({ eventId: `go-${child}`, eventData: "alone" });
  assert.equal(await it.result(child), "alone");
  const invoked = await eventually("the child's end in the parent's log", async () =>
    stepsOf(await it.log(run)).find((step) => step.stepName === "orphan" && step.state === "STEP_SUCCESS"),
  );
  assert.deepEqual(JSON.parse(invoked.out), { body: '"alone"', isFailed: false, isCanceled: false });
  await it.altogether(run, { step: 2, "step 500": 1, failure: 1 });
  await it.exactly(child, "step", "step");
});
