// Failing runs: retries, immediate failures, and failure callbacks.

import assert from "node:assert/strict";
import { test } from "node:test";
import { WorkflowNonRetryableError, WorkflowRetryAfterError } from "@upstash/workflow";
import { eventually } from "../../../js/support/wait.js";
import { masked, stepsOf, story } from "../support/story.js";

const told = [];
let failureFunctionWorks = false;

const it = story((app) => {
  const failureFunction = ({ context, failStatus, failResponse, failHeaders }) => {
    told.push({
      run: context.workflowRunId,
      payload: context.requestPayload,
      tenant: context.headers.get("x-tenant"),
      failStatus,
      failResponse,
      hasHeaders: typeof failHeaders === "object",
    });
    return "cleaned";
  };

  app.workflow(
    "/boom",
    async (context) => {
      await context.run("fine", () => "fine");
      await context.run("boom", () => {
        throw new Error("boom");
      });
    },
    { failureFunction },
  );

  app.workflow("/boom-alone", async (context) => {
    await context.run("boom", () => {
      throw new Error("alone");
    });
  });

  app.workflow(
    "/third-time",
    async (context) => {
      const seen = await context.run("shaky", () => {
        if (context.retried < 2) throw new Error("not yet");
        return context.retried;
      });
      const after = await context.run("steady", () => context.retried);
      return [seen, after];
    },
    { failureFunction },
  );

  app.workflow(
    "/refuses",
    async (context) => {
      await context.run("refuse", () => {
        throw new WorkflowNonRetryableError("never");
      });
    },
    { failureFunction },
  );

  app.workflow(
    "/later",
    async (context) => {
      return await context.run("busy", () => {
        if (context.retried === 0) throw new WorkflowRetryAfterError("busy", 2);
        return "free";
      });
    },
    { failureFunction },
  );

  app.workflow(
    "/guarded",
    async (context) => {
      if (context.headers.get("authorization") !== "Bearer right") return;
      return await context.run("inside", () => "inside");
    },
    { failureFunction },
  );

  app.workflow(
    "/over-quota",
    async (context) => {
      await context.call("too many", { url: it.third.url("/quota"), retries: 1_000_000 });
    },
    { failureFunction },
  );

  app.workflow(
    "/failing-failure",
    async (context) => {
      await context.run("boom", () => {
        throw new Error("boom");
      });
    },
    {
      failureFunction: () => {
        if (!failureFunctionWorks) throw new Error("the failure function fails too");
        return "second time";
      },
    },
  );

  app.route("/no-workflow", (_, response) => response.status(200).send("just a page"));
});

function toldOf(run) {
  return told.filter((call) => call.run === run);
}

test("a step that fails for good: its retries, one call of the failure function, and the complete log", async () => {
  const run = await it.trigger("/boom", {
    body: { order: 7 },
    headers: { "x-tenant": "t1" },
    retries: 2,
    retryDelay: "10",
  });
  await it.calls(run, (calls) => calls.some((call) => call.kind === "failure" && call.isOver));
  await it.exactly(run, "step", "step 500", "step 500", "step 500", "failure");
  assert.deepEqual(
    it.app.callsOf(run).map((call) => call.retried),
    [0, 0, 1, 2, 0],
  );
  assert.deepEqual(toldOf(run), [
    { run, payload: { order: 7 }, tenant: "t1", failStatus: 500, failResponse: "boom", hasHeaders: true },
  ]);
  const log = await it.failureFunctionReaches(run, "CALLBACK_SUCCESS");
  const item = {
    callType: "step",
    concurrent: 1,
    retries: 2,
    retryDelay: "retryDelay",
    messageId: "messageId",
    createdAt: "time",
    headers: "headers",
  };
  const success = { ...item, state: "STEP_SUCCESS" };
  const { failureFunction, ...rest } = masked(log);
  const next = rest.steps.pop();
  assert.deepEqual(rest, {
    workflowRunId: run,
    workflowUrl: it.app.url("/boom"),
    workflowState: "RUN_FAILED",
    workflowRunCreatedAt: "time",
    workflowRunCompletedAt: "time",
    workflowRunCallerIp: "127.0.0.1",
    dlqId: "dlqId",
    steps: [
      { type: "sequential", steps: [{ ...success, stepName: "init", stepType: "Initial", out: '{"order":7}' }] },
      { type: "sequential", steps: [{ ...success, stepId: 1, stepName: "fine", stepType: "Run", out: '"fine"' }] },
    ],
  });
  assert.equal(next.type, "next");
  const [{ errors, ...failed }] = next.steps;
  assert.deepEqual(failed, {
    messageId: "messageId",
    stepName: "boom",
    state: "STEP_FAILED",
    retries: 2,
    retryDelay: "retryDelay",
  });
  assert.equal(errors.length, 3);
  for (const { error, status, headers, time, body } of errors) {
    assert.deepEqual([error, status, headers, time], ["500 Internal Server Error", 500, "headers", "time"]);
    assert.equal(JSON.parse(body).message, "boom");
  }
  const { failResponse, responseBody, ...call } = failureFunction;
  assert.deepEqual(call, {
    messageId: "messageId",
    url: it.app.url("/boom"),
    state: "CALLBACK_SUCCESS",
    failStatus: 500,
    failHeaders: "headers",
    dlqId: "dlqId",
    responseStatus: 200,
    responseHeaders: "headers",
    maxRetries: 2,
  });
  assert.equal(JSON.parse(failResponse).message, "boom");
  assert.deepEqual(JSON.parse(responseBody), { result: "cleaned" });
});

test("a step that succeeds the third time: the counter restarts with each step", async () => {
  const run = await it.trigger("/third-time", { retries: 5, retryDelay: "10" });
  assert.deepEqual(await it.result(run), [2, 0]);
  await it.exactly(run, "step 500", "step 500", "step", "step", "step");
  assert.deepEqual(toldOf(run), []);
});

test("the log while it is retried", async () => {
  const run = await it.trigger("/boom-alone", { retries: 1, retryDelay: "3600000" });
  const log = await eventually("the step to be retried", async () => {
    const seen = await it.log(run);
    return seen?.steps.at(-1).steps[0].state === "STEP_RETRY" ? seen : undefined;
  });
  assert.equal(log.workflowState, "RUN_STARTED");
  assert.deepEqual(
    log.steps.map((group) => group.type),
    ["sequential", "next"],
  );
  const [next] = log.steps[1].steps;
  assert.equal(next.errors.length, 1);
  assert.ok(next.nextDeliveryTime - Date.now() > 3_500_000, "in an hour");
  await it.exactly(run, "step 500");
  await it.client.cancel(run);
});

test("failureUrl: another URL is called", async () => {
  const run = await it.trigger("/boom", { retries: 0, failureUrl: it.third.url("/told"), body: "payload" });
  const [request] = await it.third.arrivals("/told");
  const body = JSON.parse(request.body);
  assert.equal(body.status, 500);
  assert.equal(body.workflowRunId, run);
  assert.equal(JSON.parse(Buffer.from(body.body, "base64")).message, "boom");
  assert.equal(Buffer.from(body.sourceBody, "base64").toString(), "payload");
  const { dlqId } = await it.reaches(run, "RUN_FAILED");
  assert.equal(body.dlqId, dlqId);
  await it.exactly(run, "step", "step 500");
  assert.deepEqual(toldOf(run), []);
  assert.equal(it.third.at("/told").length, 1);
});

test("no failure function: the endpoint is called once, and reports it", async () => {
  const run = await it.trigger("/boom-alone", { retries: 0 });
  const [, failure] = await it.calls(run, (calls) => calls.length === 2 && calls[1].isOver);
  assert.equal(JSON.parse(failure.answer).finishCondition, "failure-callback-undefined");
  await it.exactly(run, "step 500", "failure");
});

test("a non-retryable error ends the run at once", async () => {
  const run = await it.trigger("/refuses", { retries: 5 });
  await it.reaches(run, "RUN_FAILED");
  await it.calls(run, (calls) => calls.length === 2 && calls[1].isOver);
  await it.exactly(run, "step 489", "failure");
  assert.deepEqual(
    toldOf(run).map((call) => [call.failStatus, call.failResponse]),
    [[489, "never"]],
  );
});

test("WorkflowRetryAfterError sets the time of the retry", async () => {
  const run = await it.trigger("/later");
  assert.equal(await it.result(run), "free");
  await it.exactly(run, "step 429", "step", "step");
  const [first, second] = it.app.callsOf(run);
  assert.ok(second.at - first.at >= 2000, `after ${second.at - first.at} ms`);
});

test("a function that returns before its first step is not authorised: a failure, retried", async () => {
  const wrong = await it.trigger("/guarded", {
    headers: { authorization: "Bearer wrong" },
    retries: 1,
    retryDelay: "10",
  });
  const log = await it.reaches(wrong, "RUN_FAILED");
  assert.equal(stepsOf(log)[1].errors[0].error, "400 Bad Request");
  // The failure function is not authorised either, and that is retried, too.
  await it.calls(wrong, (calls) => calls.length === 4 && calls[3].isOver);
  await it.exactly(wrong, "step 400", "step 400", "failure 500", "failure 500");
  assert.deepEqual(toldOf(wrong), []);
  const right = await it.trigger("/guarded", { headers: { authorization: "Bearer right" } });
  assert.equal(await it.result(right), "inside");
  await it.exactly(right, "step", "step");
});

test("a quota that a step exceeds fails the run at once, and is named", async () => {
  const run = await it.trigger("/over-quota", { retries: 5 });
  await it.reaches(run, "RUN_FAILED");
  await it.calls(run, (calls) => calls.length === 2 && calls[1].isOver);
  await it.exactly(run, "step 489", "failure");
  assert.equal(it.third.at("/quota").length, 0);
  assert.match(toldOf(run)[0].failResponse, /retries/i);
});

test("a URL without a workflow fails the run at once, with its response", async () => {
  const run = await it.trigger("/no-workflow", { retries: 3, failureUrl: it.third.url("/no-workflow-told") });
  const log = await it.reaches(run, "RUN_FAILED");
  assert.deepEqual(
    log.steps.map((group) => group.type),
    ["sequential", "next"],
  );
  const [next] = log.steps[1].steps;
  assert.match(next.errors[0].error, /^detected a non-workflow destination for trigger\/invoke/);
  assert.equal(next.errors[0].body, "just a page");
  await it.third.arrivals("/no-workflow-told");
  await it.exactly(run, "step");
});

test("a failure function that fails can be called again", async () => {
  const run = await it.trigger("/failing-failure", { retries: 0 });
  await it.calls(run, (calls) => calls.length === 2 && calls[1].isOver);
  await it.exactlySoFar(run, "step 500", "failure 500");
  const failed = await it.failureFunctionReaches(run, "CALLBACK_FAIL");
  assert.equal(failed.failureFunction.responseStatus, 500);
  failureFunctionWorks = true;
  const answer = await it.client.dlq.retryFailureFunction({ dlqId: failed.dlqId });
  assert.equal(answer.workflowRunId, run);
  const { failureFunction } = await it.failureFunctionReaches(run, "CALLBACK_SUCCESS");
  assert.deepEqual(JSON.parse(failureFunction.responseBody), { result: "second time" });
  await it.exactly(run, "step 500", "failure 500", "failure");
  await assert.rejects(it.client.dlq.retryFailureFunction({ dlqId: failed.dlqId }), { status: 400 });
});
