// Failed runs: show, resume, restart and delete them.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { masked, stepsOf, story } from "../support/story.js";

let works = false;
let effects = [];
beforeEach(() => {
  works = false;
  effects = [];
});

const it = story((app) => {
  app.workflow("/order", async (context) => {
    const paid = await context.run("pay", () => {
      effects.push("pay");
      return `receipt ${Math.random()}`;
    });
    await context.run("ship", () => {
      effects.push("ship");
      if (!works) throw new Error("no parcels left");
    });
    const thanked = await context.run("thank", () => {
      effects.push("thank");
      return { paid, tenant: context.headers.get("x-tenant") };
    });
    return thanked;
  });

  app.workflow("/pair", async (context) => {
    return await Promise.all([
      context.run("steady", () => {
        effects.push("steady");
        return "steady";
      }),
      context.run("shaky", () => {
        effects.push("shaky");
        if (!works) throw new Error("shaky");
        return "shaky";
      }),
    ]);
  });
});

/** The log of a failed run. */
async function failed(path = "/order", options = {}) {
  const run = await it.trigger(path, { retries: 0, headers: { "x-tenant": "t1" }, body: { order: 7 }, ...options });
  const log = await it.reaches(run, "RUN_FAILED");
  await it.failureFunctionReaches(run, "CALLBACK_SUCCESS");
  return log;
}

async function listed(filter) {
  const { messages } = await it.client.dlq.list({ filter });
  return messages;
}

test("a complete dead letter", async () => {
  const { workflowRunId, dlqId } = await failed("/order", { label: "whole" });
  const [letter, ...others] = await listed({ workflowRunId });
  assert.equal(others.length, 0);
  assert.equal(letter.dlqId, dlqId);
  assert.deepEqual(letter.header["X-Tenant"], ["t1"]);
  const { responseBody, header, responseHeader, failureCallbackHeader, failureCallbackInfo, ...rest } = masked(letter);
  assert.equal(JSON.parse(responseBody).message, "no parcels left");
  assert.equal(failureCallbackInfo.state, "CALLBACK_SUCCESS");
  for (const lists of [letter.header, letter.responseHeader]) {
    for (const values of Object.values(lists)) assert.ok(Array.isArray(values));
  }
  const { notBefore, ...known } = rest;
  assert.equal(typeof notBefore, "number");
  assert.deepEqual(known, {
    dlqId: "dlqId",
    messageId: "messageId",
    url: it.app.url("/order"),
    method: "POST",
    body: '{"order":7}',
    maxRetries: 0,
    createdAt: "time",
    callerIP: "127.0.0.1",
    workflowRunId,
    workflowCreatedAt: "time",
    workflowUrl: it.app.url("/order"),
    responseStatus: 500,
    failureCallback: it.app.url("/order"),
    failureFunctionState: "CALLBACK_SUCCESS",
    label: "whole",
    labels: ["whole"],
  });
  const plain = await it.qstash.dlq.listMessages();
  assert.deepEqual(plain.messages, [], "runs are not among the messages");
  await it.client.dlq.delete(dlqId);
});

test("resume: finished steps stay finished, and their results are used", async () => {
  const { workflowRunId, dlqId } = await failed();
  const receipt = JSON.parse(stepsOf(await it.log(workflowRunId))[1].out);
  works = true;
  const { workflowRunId: resumed, workflowCreatedAt } = await it.client.dlq.resume({ dlqId });
  assert.notEqual(resumed, workflowRunId);
  assert.match(resumed, /^wfr_/);
  assert.equal(typeof workflowCreatedAt, "number");
  assert.deepEqual(await it.result(resumed), { paid: receipt, tenant: "t1" });
  assert.deepEqual(effects, ["pay", "ship", "ship", "thank"]);
  // The delivery that had failed, and one for each step from there.
  await it.exactly(resumed, "step", "step", "step");
  await it.exactly(workflowRunId, "step", "step 500", "failure");
  assert.equal((await it.log(workflowRunId)).workflowState, "RUN_FAILED", "the old run stays as it was");
  assert.deepEqual(await listed({ workflowRunId }), [], "and left the DLQ");
  await assert.rejects(it.client.dlq.resume({ dlqId }), { status: 404 });
});

test("restart: everything again, with the same payload", async () => {
  const { workflowRunId, dlqId } = await failed();
  works = true;
  const { workflowRunId: restarted } = await it.client.dlq.restart({ dlqId });
  assert.equal((await it.result(restarted)).tenant, "t1");
  assert.deepEqual(effects, ["pay", "ship", "pay", "ship", "thank"]);
  await it.exactly(restarted, "step", "step", "step", "step");
  assert.equal(stepsOf(await it.log(restarted))[0].out, '{"order":7}');
  assert.deepEqual(await listed({ workflowRunId }), []);
});

test("a resumed run that fails again is in the DLQ again, with the settings it was given", async () => {
  const { dlqId } = await failed();
  const { workflowRunId: resumed } = await it.client.dlq.resume({
    dlqId,
    retries: 0,
    flowControl: { key: "again", parallelism: 1 },
  });
  const log = await it.reaches(resumed, "RUN_FAILED");
  assert.equal(log.flowControlKey, "again");
  assert.notEqual(log.dlqId, dlqId);
  const [letter] = await listed({ workflowRunId: resumed });
  assert.equal(letter.dlqId, log.dlqId);
  assert.equal(letter.flowControlKey, "again");
  works = true;
  const { workflowRunId: second } = await it.client.dlq.resume({ dlqId: letter.dlqId });
  assert.equal((await it.result(second)).tenant, "t1");
  assert.deepEqual(effects, ["pay", "ship", "ship", "ship", "thank"]);
});

test("a failed branch is resumed without its siblings", async () => {
  const run = await it.trigger("/pair", { retries: 0 });
  await it.calls(run, (calls) => calls.filter((call) => call.isOver && call.status === 500).length === 1);
  const { dlqId } = await it.reaches(run, "RUN_FAILED");
  works = true;
  const { workflowRunId: resumed } = await it.client.dlq.resume({ dlqId });
  assert.deepEqual(await it.result(resumed), ["steady", "shaky"]);
  assert.equal(effects.filter((effect) => effect === "shaky").length, 2);
});

test("several at once, by ids and by filter", async () => {
  const runs = [
    await failed(),
    await failed(),
    await failed("/order", { label: "green" }),
    await failed("/order", { label: "green" }),
  ];
  works = true;
  const byIds = await it.client.dlq.resume({ dlqId: runs.slice(0, 2).map((run) => run.dlqId) });
  assert.equal(byIds.length, 2);
  const byFilter = await it.client.dlq.restart({ filter: { label: "green" } });
  assert.equal(byFilter.workflowRuns.length, 2);
  for (const { workflowRunId } of [...byIds, ...byFilter.workflowRuns]) {
    assert.equal((await it.result(workflowRunId)).tenant, "t1");
  }
  assert.deepEqual(await listed({}), []);
});

test("filters, pages and deletion", async () => {
  const letters = [];
  for (const label of ["one", "two", "three"]) letters.push((await failed("/order", { label })).dlqId);
  const newestFirst = [...letters].reverse();
  assert.deepEqual(
    (await listed({ label: "two" })).map((letter) => letter.dlqId),
    [letters[1]],
  );
  assert.deepEqual((await listed({ responseStatus: 500 })).length, 3);
  assert.deepEqual(await listed({ responseStatus: 404 }), []);
  assert.deepEqual((await listed({ workflowUrl: it.app.url("/order") })).length, 3);
  const first = await it.client.dlq.list({ count: 2 });
  assert.deepEqual(
    first.messages.map((letter) => letter.dlqId),
    newestFirst.slice(0, 2),
  );
  const second = await it.client.dlq.list({ count: 2, cursor: first.cursor });
  assert.deepEqual(
    second.messages.map((letter) => letter.dlqId),
    newestFirst.slice(2),
  );
  assert.equal(second.cursor, undefined);

  assert.equal((await it.client.dlq.delete(letters[0])).deleted, 1);
  assert.equal((await it.client.dlq.delete({ filter: { label: "two" } })).deleted, 1);
  assert.equal((await it.client.dlq.delete({ all: true })).deleted, 1);
  assert.deepEqual(await listed({}), []);
});
