// Triggers: ids, many at once, delays, flow control, REST, messages and queues to a workflow's URL.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate } from "../../../js/support/receiver.js";
import { eventually } from "../../../js/support/wait.js";
import { stepsOf, story } from "../support/story.js";

const held = gate();

const it = story((app) => {
  app.workflow("/echo", async (context) => {
    return await context.run("echo", () => ({
      payload: context.requestPayload,
      tenant: context.headers.get("x-tenant"),
    }));
  });

  app.workflow("/waits", async (context) => {
    const { eventData } = await context.waitForEvent("wait", `go-${context.workflowRunId}`, { timeout: "1h" });
    return eventData;
  });

  app.workflow("/limited", async (context) => {
    await context.run("held", async () => await held.opened);
    await context.run("after", () => {});
  });
});

/** Waits for the run that a message made the app start. */
async function selfTriggered(path, skip = 0) {
  const call = await eventually(
    `a message at ${path}`,
    () => it.app.callsAt(path).filter((one) => one.kind === "raw" && one.isOver)[skip],
  );
  assert.equal(call.status, 200, call.answer);
  return JSON.parse(call.answer).workflowRunId;
}

test("an id is taken while its run is live, and free afterwards", async () => {
  const run = await it.trigger("/waits", { workflowRunId: "taken" });
  assert.equal(await it.trigger("/waits", { workflowRunId: "taken", body: "ignored" }), run);
  await eventually("the run to wait", async () => (await it.client.getWaiters({ eventId: `go-${run}` })).length === 1);
  await it.exactlySoFar(run, "step");
  await it.client.notify({ eventId: `go-${run}`, eventData: "first" });
  assert.equal(await it.result(run), "first");
  const { workflowRunCreatedAt: first } = await it.log(run);

  assert.equal(await it.trigger("/waits", { workflowRunId: "taken" }), run);
  await eventually(
    "the second run to wait",
    async () => (await it.client.getWaiters({ eventId: `go-${run}` })).length === 1,
  );
  await it.client.notify({ eventId: `go-${run}`, eventData: "second" });
  assert.equal(await it.result(run), "second");
  const { runs } = await it.logs({ workflowRunId: run });
  assert.deepEqual(
    runs.map((one) => one.workflowRunResponse),
    ['"second"', '"first"'],
    "both are kept, the newest first",
  );
  assert.equal(runs[1].workflowRunCreatedAt, first);
  assert.ok(runs[0].workflowRunCreatedAt > first);
  await it.exactly(run, "step", "step", "step", "step");
});

test("many at once", async () => {
  const url = it.app.url("/echo");
  const triggered = await it.client.trigger([
    { url, body: "one", workflowRunId: "many-1" },
    { url, body: { n: 2 }, headers: { "x-tenant": "t2" }, label: "second" },
    { url },
  ]);
  const results = await Promise.all(
    triggered.map(async ({ workflowRunId }) => (await it.result(workflowRunId)).payload),
  );
  assert.deepEqual(results, ["one", { n: 2 }, undefined]);
  assert.equal(triggered[0].workflowRunId, "wfr_many-1");
  assert.equal((await it.log(triggered[1].workflowRunId)).label, "second");
  for (const { workflowRunId } of triggered) await it.exactly(workflowRunId, "step", "step");
});

test("with a delay: the run exists at once, its first delivery comes when it is due", async () => {
  const begun = Date.now();
  const run = await it.trigger("/echo", { delay: "1s", body: "later" });
  const log = await it.log(run);
  assert.equal(log.workflowState, "RUN_STARTED");
  const at = Math.ceil(Date.now() / 1000) + 1;
  const until = await it.trigger("/echo", { notBefore: at, body: "then" });
  await it.result(run);
  assert.ok(it.app.callsOf(run)[0].at - begun >= 1000);
  await it.result(until);
  assert.ok(it.app.callsOf(until)[0].at >= at * 1000);
  await it.exactly(run, "step", "step");
  await it.exactly(until, "step", "step");
});

test("flow control applies to every delivery of the runs that share a key", async () => {
  const options = { flowControl: { key: "one-at-a-time", parallelism: 1 } };
  const runs = [];
  for (let n = 0; n < 3; n += 1) runs.push(await it.trigger("/limited", options));
  await eventually("one to be under way and two to wait", async () => {
    const { waitListSize, waitlistSize } = await it.qstash.flowControl.get("one-at-a-time");
    return (waitlistSize ?? waitListSize) === 2;
  });
  await eventually("the first call", () => it.app.callsAt("/limited").length === 1);
  let open = 0;
  let most = 0;
  it.app.onArrival = async (call) => {
    if (call.path === "/limited") most = Math.max(most, (open += 1));
    return true;
  };
  it.app.onAnswer = async (call) => {
    if (call.path === "/limited") open -= 1;
  };
  open = 1;
  held.open();
  for (const run of runs) {
    await it.result(run);
    await it.exactly(run, "step", "step", "step");
    assert.equal((await it.log(run)).flowControlKey, "one-at-a-time");
  }
  assert.equal(most, 1);
});

test("REST: the server does what the client would do", async () => {
  const url = it.app.url("/echo");
  const answer = await it.server.fetch(`/v2/trigger/${url}`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "upstash-forward-x-tenant": "rest",
      "upstash-label": "by-rest",
      "upstash-retries": "1",
    },
    body: '{"by":"rest"}',
  });
  assert.equal(answer.status, 200);
  const { workflowRunId, workflowCreatedAt, ...others } = await answer.json();
  assert.equal(typeof workflowCreatedAt, "number");
  assert.deepEqual(others, {});
  assert.deepEqual(await it.result(workflowRunId), { payload: { by: "rest" }, tenant: "rest" });
  const log = await it.log(workflowRunId);
  assert.equal(log.workflowRunCreatedAt, workflowCreatedAt);
  assert.deepEqual([log.label, stepsOf(log)[0].retries], ["by-rest", 1]);
  await it.exactly(workflowRunId, "step", "step");

  const many = await it.server.fetch("/v2/batch/trigger", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify([
      { destination: url, body: '"a"' },
      { destination: url, body: '"b"', headers: { "Upstash-Workflow-RunId": "wfr_mine" } },
    ]),
  });
  assert.equal(many.status, 201);
  const runs = await many.json();
  assert.equal(runs[1].workflowRunId, "wfr_mine");
  assert.deepEqual(await Promise.all(runs.map(async (run) => (await it.result(run.workflowRunId)).payload)), [
    "a",
    "b",
  ]);
});

test("REST with an unknown SDK: one more call, in which the endpoint triggers itself", async () => {
  const answer = await it.server.fetch(`/v2/trigger/${it.app.url("/echo")}`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "upstash-workflow-unknown-sdk": "true",
      "upstash-forward-x-tenant": "two phases",
    },
    body: '{"phase":1}',
  });
  assert.equal(answer.status, 200);
  const { workflowRunId } = await answer.json();
  assert.deepEqual(await it.result(workflowRunId), { payload: { phase: 1 }, tenant: "two phases" });
  await it.exactly(workflowRunId, "step", "step", "step");
  assert.deepEqual(
    stepsOf(await it.log(workflowRunId)).map((step) => step.stepName),
    ["init", "echo"],
  );
});

test("a message to a workflow's URL starts a run, by a queue too", async () => {
  const url = it.app.url("/echo");
  const before = it.app.callsAt("/echo").filter((call) => call.kind === "raw").length;
  await it.qstash.publishJSON({ url, body: { by: "publish" }, headers: { "x-tenant": "published" } });
  const published = await selfTriggered("/echo", before);
  assert.deepEqual(await it.result(published), { payload: { by: "publish" }, tenant: "published" });
  await it.exactly(published, "step", "step");

  await it.qstash.queue({ queueName: "runs" }).enqueueJSON({ url, body: { by: "queue" } });
  const queued = await selfTriggered("/echo", before + 1);
  assert.deepEqual((await it.result(queued)).payload, { by: "queue" });
  await it.exactly(queued, "step", "step");
});

test("only the server can start a run if keys are set", async () => {
  const answer = await fetch(it.app.url("/echo"), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: "{}",
  });
  assert.equal(answer.status, 500);
  const forged = await fetch(it.app.url("/echo"), {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "upstash-signature": "a.b.c",
      "upstash-workflow-runid": "wfr_forged",
      "upstash-workflow-sdk-version": "1",
    },
    body: "[]",
  });
  assert.equal(forged.status, 500);
});

test("steps for an absent run are rejected", async () => {
  const step = { stepId: 1, stepName: "forged", stepType: "Run", out: "1", concurrent: 1 };
  const headers = {
    "upstash-workflow-init": "false",
    "upstash-workflow-runid": "wfr_nobody",
    "upstash-workflow-url": it.app.url("/echo"),
    "upstash-workflow-sdk-version": "1",
    "content-type": "application/json",
  };
  const answer = await it.server.fetch("/v2/batch", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify([{ destination: it.app.url("/echo"), body: JSON.stringify(step), headers }]),
  });
  assert.equal(answer.status, 400);
  assert.match((await answer.json()).error, /can not append to a a cancelled workflow/);
});

test("labels and keys that cannot be filtered by are rejected, by the server too", async () => {
  for (const headers of [
    { "upstash-label": "no spaces" },
    { "upstash-flow-control-key": "no/slash", "upstash-flow-control-value": "parallelism=1" },
  ]) {
    const answer = await it.server.fetch(`/v2/trigger/${it.app.url("/echo")}`, { method: "POST", headers });
    assert.equal(answer.status, 400, JSON.stringify(headers));
    assert.equal(typeof (await answer.json()).error, "string");
  }
});

test("redacted data reaches the workflow and not the log", async () => {
  const run = await it.trigger("/echo", {
    body: { pin: "1234" },
    headers: { "x-tenant": "secret" },
    redact: { body: true, header: ["x-tenant"] },
  });
  const [init] = stepsOf(await it.reaches(run, "RUN_SUCCESS"));
  assert.match(init.out, /^REDACTED:[0-9a-f]{64}$/);
  assert.match(init.headers["X-Tenant"][0], /^REDACTED:/);
  const [first] = it.app.callsOf(run);
  assert.equal(first.headers["x-tenant"], "secret");
  assert.equal(Buffer.from(JSON.parse(first.body)[0].body, "base64").toString(), '{"pin":"1234"}');
  await it.exactly(run, "step", "step");
});

test("another tenant has no access to it", async () => {
  const run = await it.trigger("/waits", { workflowRunId: "private" });
  await eventually("the run to wait", async () => (await it.client.getWaiters({ eventId: `go-${run}` })).length === 1);
  const others = async (path, options) => await it.server.fetch(path, { user: 1, ...options });
  assert.deepEqual((await (await others("/v2/workflows/events?groupBy=workflowRunId")).json()).runs, []);
  assert.equal((await others(`/v2/workflows/runs/${run}`)).status, 404);
  assert.deepEqual(await (await others(`/v2/waiters/go-${run}`)).json(), []);
  assert.deepEqual(await (await others(`/v2/notify/go-${run}`, { method: "POST", body: "x" })).json(), []);
  assert.equal((await others(`/v2/workflows/runs/${run}?cancel=true`, { method: "DELETE" })).status, 404);
  assert.ok(
    (await others(`/v2/workflows/runs/${run}?cancel=false`, { method: "DELETE" })).ok,
    "finishing is idempotent",
  );
  assert.equal((await it.log(run)).workflowState, "RUN_STARTED");
  await it.client.notify({ eventId: `go-${run}`, eventData: "mine" });
  assert.equal(await it.result(run), "mine");
  await it.exactly(run, "step", "step");
});
