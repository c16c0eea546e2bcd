// Sequential steps: their results are kept exactly, and each is called once.

import assert from "node:assert/strict";
import { test } from "node:test";
import { masked, story, times } from "../support/story.js";

const VALUES = [
  null,
  0,
  -1.5,
  true,
  "",
  'text with "quotes", \\ and\nlines',
  "žluťoučký kůň 🐎 \u2028",
  [1, [2, [3]]],
  { a: { b: [null, { c: "d" }] }, "key with / and é": 1 },
];

const effects = [];

const it = story((app) => {
  app.workflow("/values", async (context) => {
    const seen = [];
    for (const [index, value] of VALUES.entries()) {
      seen.push(await context.run(`value ${index}`, () => value));
    }
    seen.push((await context.run("nothing", async () => {})) === undefined ? "undefined" : "something");
    return seen;
  });

  app.workflow("/five", async (context) => {
    let total = context.requestPayload.start;
    for (let n = 1; n <= 5; n += 1) {
      total = await context.run(`add ${n}`, () => {
        effects.push(`${context.workflowRunId} ${n}`);
        return total + n;
      });
    }
    return total;
  });

  app.workflow("/naps", async (context) => {
    const started = await context.run("start", () => Date.now());
    await context.sleep("one second", 1);
    const woken = await context.run("woken", () => Date.now());
    await context.sleep("as text", "1s");
    const until = await context.run("until", () => Math.ceil(Date.now() / 1000) + 1);
    await context.sleepUntil("a time", until);
    const end = await context.run("end", () => Date.now());
    await context.sleepUntil("the past", new Date(0));
    return { started, woken, until, end };
  });

  app.workflow("/context", async (context) => {
    const first = await context.run("first", () => "1");
    const last = await context.run("last", () => ({
      tenant: context.headers.get("x-tenant"),
      authorization: context.headers.get("authorization"),
      label: context.label,
      url: context.url,
      id: context.workflowRunId,
      payload: context.requestPayload,
      retried: context.retried,
    }));
    return { first, ...last };
  });

  app.workflow("/silent", async (context) => {
    await context.run("only", () => {});
  });
});

test("every JSON value is returned unchanged", async () => {
  const run = await it.trigger("/values");
  assert.deepEqual(await it.result(run), [...VALUES, "undefined"]);
  await it.exactly(run, ...times(VALUES.length + 2, "step"));
});

test("five steps are six calls, one effect each, and a list that grows by one", async () => {
  const run = await it.trigger("/five", { body: { start: 100 } });
  assert.equal(await it.result(run), 115);
  await it.exactly(run, ...times(6, "step"));
  assert.deepEqual(
    effects,
    [1, 2, 3, 4, 5].map((n) => `${run} ${n}`),
  );
  const lists = it.app.callsOf(run).map((call) => JSON.parse(call.body));
  assert.deepEqual(
    lists.map((list) => list.length),
    [1, 2, 3, 4, 5, 6],
  );
  for (const [index, call] of it.app.callsOf(run).entries()) {
    assert.equal(lists[index].at(-1).messageId, call.messageId, "the last entry is the one that is delivered");
    assert.equal(call.retried, 0);
    if (index > 0) assert.deepEqual(lists[index].slice(0, -1), lists[index - 1], "what was said once stays as it was");
  }
  assert.equal(Buffer.from(lists[0][0].body, "base64").toString(), '{"start":100}', "the payload, byte for byte");
});

test("a run sleeps for the requested time, without any call in between", async () => {
  const run = await it.trigger("/naps");
  const { started, woken, until, end } = await it.result(run);
  assert.ok(woken - started >= 1000, `slept ${woken - started} ms`);
  assert.ok(end >= until * 1000, `woke ${until * 1000 - end} ms early`);
  // Four steps and four sleeps, and the first call.
  await it.exactly(run, ...times(9, "step"));
});

test("headers, label, payload and ids are available in the last step too", async () => {
  const run = await it.trigger("/context", {
    workflowRunId: "context-run",
    body: "plain text",
    headers: { "x-tenant": "t1", authorization: "Bearer mine" },
    label: "blue",
  });
  assert.equal(run, "wfr_context-run");
  assert.deepEqual(await it.result(run), {
    first: "1",
    tenant: "t1",
    authorization: "Bearer mine",
    label: "blue",
    url: it.app.url("/context"),
    id: run,
    payload: "plain text",
    retried: 0,
  });
  await it.exactly(run, ...times(3, "step"));
});

test("the complete log of a run that has succeeded", async () => {
  const run = await it.trigger("/silent", {
    body: { n: 1 },
    headers: { "x-tenant": "t2" },
    label: "logged",
    retries: 1,
  });
  await it.reaches(run, "RUN_SUCCESS");
  const [group] = (await it.log(run)).steps;
  assert.deepEqual(group.steps[0].headers["X-Tenant"], ["t2"]);
  assert.deepEqual(group.steps[0].headers["Content-Type"], ["application/json"]);
  assert.deepEqual(group.steps[0].headers["Upstash-Workflow-Sdk-Version"], ["1"]);
  const common = { callType: "step", concurrent: 1, retries: 1, retryDelay: "retryDelay", state: "STEP_SUCCESS" };
  const item = { ...common, messageId: "messageId", createdAt: "time", headers: "headers" };
  assert.deepEqual(masked(await it.log(run)), {
    workflowRunId: run,
    workflowUrl: it.app.url("/silent"),
    workflowState: "RUN_SUCCESS",
    workflowRunCreatedAt: "time",
    workflowRunCompletedAt: "time",
    workflowRunCallerIp: "127.0.0.1",
    label: "logged",
    labels: ["logged"],
    steps: [
      { type: "sequential", steps: [{ ...item, stepName: "init", stepType: "Initial", out: '{"n":1}' }] },
      { type: "sequential", steps: [{ ...item, stepId: 1, stepName: "only", stepType: "Run" }] },
    ],
  });
  await it.exactly(run, "step", "step");
});
