// Steps in parallel: every branch runs once, and the run continues once.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate } from "../../../js/support/receiver.js";
import { eventually } from "../../../js/support/wait.js";
import { stepsOf, story } from "../support/story.js";

const effects = {};
const held = gate();

function effect(name) {
  effects[name] = (effects[name] ?? 0) + 1;
  return name;
}

const it = story((app) => {
  app.workflow("/runs", async (context) => {
    const before = await context.run("before", () => effect("before"));
    const group = await Promise.all([1, 2, 3, 4].map((n) => context.run(`branch ${n}`, () => effect(`branch ${n}`))));
    const after = await context.run("after", () => effect("after"));
    return [before, ...group, after];
  });

  app.workflow("/two-groups", async (context) => {
    const first = await Promise.all(["a", "b"].map((name) => context.run(name, () => effect(`first ${name}`))));
    const second = await Promise.all(["c", "d", "e"].map((name) => context.run(name, () => effect(`second ${name}`))));
    return [...first, ...second];
  });

  app.workflows("/mixed", (createWorkflow) => {
    const child = createWorkflow(
      async (context) => await context.run("work", () => effect(`child ${context.requestPayload}`)),
    );
    const parent = createWorkflow(async (context) => {
      const [ran, , called, event, invoked] = await Promise.all([
        context.run("run", () => effect("mixed run")),
        context.sleep("sleep", 1),
        context.call("call", { url: context.requestPayload.url, method: "POST", body: "hello" }),
        context.waitForEvent("wait", context.requestPayload.event, { timeout: "1h" }),
        context.invoke("invoke", { workflow: child, body: "one" }),
      ]);
      return { ran, status: called.status, body: called.body, event: event.eventData, invoked: invoked.body };
    });
    return { parent, child };
  });

  app.workflow("/held", async (context) => {
    return await Promise.all([
      context.run("quick", () => effect("quick")),
      context.run("held", async () => {
        await held.opened;
        return effect("held");
      }),
    ]);
  });

  app.workflow("/one-fails", async (context) => {
    await Promise.all([
      context.run("good", () => effect("good")),
      context.run("bad", () => {
        throw new Error("bad branch");
      }),
    ]);
  });

  app.workflow("/recovers", async (context) => {
    return await Promise.all([
      context.run("steady", () => effect("steady")),
      context.run("shaky", () => {
        effect("shaky");
        if (context.retried < 2) throw new Error("not yet");
        return "at last";
      }),
    ]);
  });
});

test("four branches: a plan and a result each, and the following steps run once", async () => {
  const run = await it.trigger("/runs");
  const names = ["before", "branch 1", "branch 2", "branch 3", "branch 4", "after"];
  assert.deepEqual(await it.result(run), names);
  await it.altogether(run, { step: 1 + 1 + 8 + 1 });
  assert.deepEqual(
    names.map((name) => effects[name]),
    [1, 1, 1, 1, 1, 1],
  );
  const log = await it.log(run);
  assert.deepEqual(
    log.steps.map((group) => group.type),
    ["sequential", "sequential", "parallel", "sequential"],
  );
  const branches = log.steps[2].steps;
  assert.deepEqual(branches.map((step) => step.stepId).sort(), [2, 3, 4, 5]);
  for (const step of branches) {
    assert.deepEqual([step.concurrent, step.state, step.stepType], [4, "STEP_SUCCESS", "Run"]);
    assert.equal(JSON.parse(step.out), step.stepName);
  }
});

test("two groups, one after the other", async () => {
  const run = await it.trigger("/two-groups");
  assert.deepEqual(await it.result(run), ["first a", "first b", "second c", "second d", "second e"]);
  await it.altogether(run, { step: 1 + 4 + 6 });
});

test("branches of every kind", async () => {
  it.third.script("/mixed", { status: 202, body: "welcome" });
  const run = await it.trigger("/mixed/parent", { body: { url: it.third.url("/mixed"), event: "mixed" } });
  await eventually("the branch to wait", async () => (await it.client.getWaiters({ eventId: "mixed" })).length === 1);
  await it.client.notify({ eventId: "mixed", eventData: { n: 1 } });
  assert.deepEqual(await it.result(run), {
    ran: "mixed run",
    status: 202,
    body: "welcome",
    event: { n: 1 },
    invoked: "child one",
  });
  await it.altogether(run, { step: 1 + 5 + 5, callback: 1 });
  assert.deepEqual([effects["mixed run"], effects["child one"]], [1, 1]);
  assert.equal(it.third.at("/mixed").length, 1);
  const types = stepsOf(await it.log(run)).map((step) => step.stepType);
  assert.deepEqual(types.sort(), ["Call", "Initial", "Invoke", "Run", "SleepFor", "Wait"]);
});

test("the log of a group in progress", async () => {
  const run = await it.trigger("/held");
  await it.calls(run, (calls) => calls.filter((call) => call.status === 200).length === 3);
  const [, group] = (await it.log(run)).steps;
  const states = Object.fromEntries(group.steps.map((step) => [step.stepName, step.state]));
  assert.deepEqual(states, { quick: "STEP_SUCCESS", held: "STEP_PROGRESS" });
  held.open();
  assert.deepEqual(await it.result(run), ["quick", "held"]);
  await it.altogether(run, { step: 5 });
  assert.deepEqual([effects.quick, effects.held], [1, 1]);
});

test("a branch that fails for good fails the run", async () => {
  const run = await it.trigger("/one-fails", { retries: 0 });
  const log = await it.reaches(run, "RUN_FAILED");
  const bad = stepsOf(log).find((step) => step.stepName === "bad");
  assert.equal(bad.state, "STEP_FAILED");
  assert.match(bad.errors[0].body, /bad branch/);
  await it.failureFunctionReaches(run, "CALLBACK_SUCCESS");
  await it.app.idle();
  assert.equal(it.app.callsOf(run).filter((call) => call.status === 500).length, 1);
  assert.equal(it.app.callsOf(run).filter((call) => call.kind === "failure").length, 1);
});

test("a branch that is retried does not disturb the others", async () => {
  const run = await it.trigger("/recovers", { retries: 3, retryDelay: "10" });
  assert.deepEqual(await it.result(run), ["steady", "at last"]);
  await it.altogether(run, { step: 5, "step 500": 2 });
  assert.deepEqual([effects.steady, effects.shaky], [1, 3]);
});
