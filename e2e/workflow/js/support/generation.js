// Requirements on a program of any age; each old version of the SDK runs all of them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { eventually } from "../../../js/support/wait.js";
import { stepsOf, story, times } from "./story.js";

/** Runs the tests of a version with its Express adapter and its client. */
export function generation({ sdk, Client }) {
  const told = [];
  const effects = [];

  const it = story(
    (app) => {
      app.workflow("/order", async (context) => {
        const { url, event } = context.requestPayload;
        const paid = await context.run("pay", () => {
          effects.push(context.workflowRunId);
          return { paid: true };
        });
        await context.sleep("pause", 1);
        const shipped = await context.call("ship", {
          url,
          method: "POST",
          body: JSON.stringify(paid),
          headers: { "x-mine": "1" },
        });
        const { eventData, timeout } = await context.waitForEvent("approval", event, { timeout: "1h" });
        const [left, right] = await Promise.all([context.run("left", () => "l"), context.run("right", () => "r")]);
        return {
          paid,
          status: shipped.status,
          body: shipped.body,
          eventData,
          timeout,
          both: left + right,
          tenant: context.headers.get("x-tenant"),
        };
      });

      app.workflows("/family", (createWorkflow) => {
        const child = createWorkflow(
          async (context) => await context.run("work", () => `child of ${context.requestPayload}`),
        );
        const parent = createWorkflow(async (context) => {
          const { body, isFailed, isCanceled } = await context.invoke("child", { workflow: child, body: "parent" });
          return { body, isFailed, isCanceled };
        });
        return { parent, child };
      });

      app.workflow(
        "/boom",
        async (context) => {
          // Old clients send the failure callback with each step, and not with the trigger. With a call they send it for the
          // callback that brings its result, and here no earlier step has sent it.
          await context.call("ask", { url: context.requestPayload.url, method: "GET" });
          await context.run("boom", () => {
            throw new Error("boom");
          });
        },
        {
          retries: 0,
          failureFunction: ({ context, failStatus, failResponse }) => {
            told.push({ run: context.workflowRunId, payload: context.requestPayload, failStatus, failResponse });
          },
        },
      );

      app.workflow("/nap", async (context) => {
        await context.sleep("long", "1h");
      });

      app.workflow("/ends-itself", async (context) => {
        await context.run("first", () => {});
        await context.cancel();
      });
    },
    { sdk, client: Client },
  );

  test("a step, a sleep, a call, an event and a group", async () => {
    it.third.script("/ship", { status: 201, headers: { "content-type": "application/json" }, body: '{"parcel":1}' });
    const body = { url: it.third.url("/ship"), event: "approved" };
    const run = await it.trigger("/order", { body, headers: { "x-tenant": "t1" }, workflowRunId: "old-order" });
    assert.equal(run, "wfr_old-order");
    await eventually("the run to wait", async () => (await it.client.getWaiters({ eventId: "approved" })).length === 1);
    await it.client.notify({ eventId: "approved", eventData: { by: "ann" } });
    assert.deepEqual(await it.result(run), {
      paid: { paid: true },
      status: 201,
      body: { parcel: 1 },
      eventData: { by: "ann" },
      timeout: false,
      both: "lr",
      tenant: "t1",
    });
    assert.deepEqual(effects, [run]);
    assert.equal(it.third.at("/ship").length, 1);
    assert.equal(it.third.at("/ship")[0].headers["x-mine"], "1");
    // The first call, pay, pause, ship, approval, and two for each branch.
    await it.altogether(run, { step: 9, callback: 1 });
    assert.deepEqual(
      stepsOf(await it.log(run)).map((step) => step.stepType),
      ["Initial", "Run", "SleepFor", "Call", "Wait", "Run", "Run"],
    );
  });

  test("a run invokes another", async () => {
    const run = await it.trigger("/family/parent");
    assert.deepEqual(await it.result(run), { body: "child of parent", isFailed: false, isCanceled: false });
    await it.exactly(run, ...times(2, "step"));
    const [, { invokedWorkflowRunId }] = stepsOf(await it.log(run));
    await it.exactly(invokedWorkflowRunId, ...times(2, "step"));
  });

  test("a failure function is called once", async () => {
    it.third.script("/ask", { status: 200, body: "yes" });
    const payload = { url: it.third.url("/ask") };
    const run = await it.trigger("/boom", { retries: 0, body: payload });
    await it.reaches(run, "RUN_FAILED");
    await it.calls(run, (calls) => calls.some((call) => call.kind === "failure" && call.isOver));
    await it.exactly(run, "step", "callback", "step 500", "failure");
    assert.equal(it.third.at("/ask").length, 1);
    assert.deepEqual(told, [{ run, payload, failStatus: 500, failResponse: "boom" }]);
  });

  test("runs are cancelled, from inside and from outside", async () => {
    const naps = [await it.trigger("/nap"), await it.trigger("/nap")];
    for (const run of naps) await it.calls(run, (calls) => calls[0]?.isOver);
    assert.deepEqual(await it.client.cancel({ ids: naps[0] }), { cancelled: 1 });
    assert.deepEqual(await it.client.cancel({ urlStartingWith: it.app.url("/na") }), { cancelled: 1 });
    for (const run of naps) {
      await it.reaches(run, "RUN_CANCELED");
      await it.exactly(run, "step");
    }
    const run = await it.trigger("/ends-itself");
    await it.reaches(run, "RUN_CANCELED");
    await it.exactly(run, "step", "step");
    const last = await it.trigger("/nap");
    await it.calls(last, (calls) => calls[0]?.isOver);
    assert.deepEqual(await it.client.cancel({ all: true }), { cancelled: 1 });
    await it.exactly(last, "step");
  });

  test("its client reads the logs", async () => {
    const { runs } = await it.client.logs({ workflowRunId: "wfr_old-order" });
    assert.deepEqual(
      runs.map((run) => run.workflowState),
      ["RUN_SUCCESS"],
    );
  });
}
