// Events: waiting, notifying, looking back, timing out; webhooks.

import assert from "node:assert/strict";
import { test } from "node:test";
import { eventually } from "../../../js/support/wait.js";
import { stepsOf, story, times } from "../support/story.js";

const it = story((app) => {
  app.workflow("/wait", async (context) => {
    const { event, timeout = "1h" } = context.requestPayload;
    const { eventData, timeout: timedOut } = await context.waitForEvent("wait", event, { timeout });
    return { eventData, timedOut };
  });

  app.workflow("/wait-twice", async (context) => {
    const { event } = context.requestPayload;
    const first = await context.waitForEvent("first", event, { timeout: "1h" });
    const second = await context.waitForEvent("second", event, { timeout: "1h" });
    return [first.eventData, second.eventData];
  });

  app.workflow("/notify", async (context) => {
    const { notifyResponse, eventId, eventData } = await context.notify("notify", context.requestPayload.event, {
      from: "a run",
    });
    return { ids: notifyResponse.map((response) => response.workflowRunId), eventId, eventData };
  });

  app.workflow("/late", async (context) => {
    await context.sleep("until the event is there", 4);
    const { eventData } = await context.waitForEvent("wait", context.requestPayload.event, { timeout: "1h" });
    return eventData;
  });

  app.workflow("/hook", async (context) => {
    const webhook = await context.createWebhook("create");
    await context.run("tell", () => it.hooks.push(webhook.webhookUrl));
    const seen = [];
    for (const n of [1, 2]) {
      const { timeout, request } = await context.waitForWebhook(`wait ${n}`, webhook, "1h");
      seen.push({
        timeout,
        method: request.method,
        url: request.url,
        body: await request.text(),
        mine: request.headers.get("x-mine"),
      });
    }
    return { webhookUrl: webhook.webhookUrl, seen };
  });

  app.workflow("/hook-in-vain", async (context) => {
    const webhook = await context.createWebhook("create");
    const { timeout, request } = await context.waitForWebhook("wait", webhook, "1s");
    return { timeout, request };
  });
});
it.hooks = [];

/** Waits until `count` runs wait for an event. */
async function waiters(event, count = 1) {
  return await eventually(`${count} waiters of ${event}`, async () => {
    const found = await it.client.getWaiters({ eventId: event });
    return found.length === count ? found : undefined;
  });
}

test("an event delivers its data, whatever its type", async () => {
  const cases = [
    ["text", "text"],
    [{ a: ["é", 1] }, { a: ["é", 1] }],
    [7, 7],
    [undefined, undefined],
  ];
  for (const [index, [sent, received]] of cases.entries()) {
    const event = `event-${index}`;
    const run = await it.trigger("/wait", { body: { event } });
    await waiters(event);
    const [told, ...others] = await it.client.notify({ eventId: event, eventData: sent });
    assert.equal(others.length, 0);
    assert.equal(told.workflowRunId, run);
    assert.match(told.messageId, /^msg_/);
    assert.equal(told.waiter.url, it.app.url("/wait"));
    const { eventData, timedOut } = await it.result(run);
    assert.deepEqual([eventData, timedOut], [received, false]);
    await it.exactly(run, "step", "step");
    assert.deepEqual(await it.client.getWaiters({ eventId: event }), []);
  }
});

test("a waiter, as the API shows it", async () => {
  const run = await it.trigger("/wait", { body: { event: "shown", timeout: "2h" } });
  const [waiter] = await waiters("shown");
  assert.equal(waiter.url, it.app.url("/wait"));
  assert.equal(waiter.timeoutUrl, it.app.url("/wait"));
  assert.deepEqual(waiter.headers["Upstash-Workflow-Runid"], [run]);
  assert.ok(Math.abs(waiter.deadline - (Date.now() / 1000 + 7200)) < 60, "in Unix seconds");
  const pending = (await it.log(run)).steps.at(-1).steps[0];
  assert.equal(pending.state, "STEP_PROGRESS");
  assert.equal(pending.waitEventId, "shown");
  assert.equal(pending.waitTimeoutDuration, "2h");
  assert.equal(pending.waitTimeout, false);
  assert.deepEqual(await it.client.cancel(run), { cancelled: 1 });
  assert.deepEqual(await it.client.getWaiters({ eventId: "shown" }), [], "a run that has ended waits for nothing");
  assert.deepEqual(await it.client.notify({ eventId: "shown", eventData: "too late" }), []);
  await it.exactly(run, "step");
});

test("an event that does not come in time", async () => {
  const run = await it.trigger("/wait", { body: { event: "never", timeout: 1 } });
  assert.deepEqual(await it.result(run), { timedOut: true });
  await it.exactly(run, "step", "step");
  assert.deepEqual(await it.client.notify({ eventId: "never", eventData: "too late" }), []);
  const [, step] = stepsOf(await it.log(run));
  assert.equal(step.waitTimeout, true);
  assert.equal(step.state, "STEP_SUCCESS");
});

test("one event wakes all runs that wait for it, and no others", async () => {
  const runs = [];
  for (let n = 1; n <= 3; n += 1) {
    runs.push(await it.trigger("/wait", { body: { event: "shared" } }));
    await waiters("shared", n);
  }
  const other = await it.trigger("/wait", { body: { event: "other" } });
  await waiters("other");
  const told = await it.client.notify({ eventId: "shared", eventData: "all" });
  assert.deepEqual(
    told.map((response) => response.workflowRunId),
    runs,
    "in the order in which they asked",
  );
  for (const run of runs) {
    assert.deepEqual(await it.result(run), { eventData: "all", timedOut: false });
    await it.exactly(run, "step", "step");
  }
  await it.exactly(other, "step");
});

test("a run notifies another", async () => {
  const run = await it.trigger("/wait", { body: { event: "from a/run" } });
  await waiters("from a/run");
  const notifier = await it.trigger("/notify", { body: { event: "from a/run" } });
  assert.deepEqual(await it.result(notifier), { ids: [run], eventId: "from a/run", eventData: { from: "a run" } });
  assert.deepEqual(await it.result(run), { eventData: { from: "a run" }, timedOut: false });
  await it.exactly(notifier, "step", "step");
  await it.exactly(run, "step", "step");
});

test("look-back: an event that is sent to a run before it waits is available when it does", async () => {
  const run = await it.trigger("/late", { body: { event: "early" } });
  assert.deepEqual(await it.client.notify({ eventId: "early", eventData: "came first", workflowRunId: run }), []);
  assert.equal(await it.result(run), "came first");
  await it.exactly(run, ...times(3, "step"));
});

test("two early events are two waits, in their order", async () => {
  const run = await it.trigger("/wait-twice", { body: { event: "queue" }, delay: "1s" });
  for (const eventData of ["one", "two"]) await it.client.notify({ eventId: "queue", eventData, workflowRunId: run });
  assert.deepEqual(await it.result(run), ["one", "two"]);
  await it.exactly(run, ...times(3, "step"));
});

test("an event without a waiting run is lost; one to an unknown run is rejected", async () => {
  assert.deepEqual(await it.client.notify({ eventId: "nobody", eventData: "x" }), []);
  const run = await it.trigger("/wait", { body: { event: "nobody", timeout: 1 } });
  assert.deepEqual(await it.result(run), { timedOut: true });
  await it.exactly(run, "step", "step");
  await assert.rejects(it.client.notify({ eventId: "e", workflowRunId: "wfr_unknown" }), { status: 404 });
});

test("a notify and a deadline at the same moment: exactly one takes effect", async () => {
  const runs = await Promise.all(
    Array.from({ length: 8 }, (_, n) => it.trigger("/wait", { body: { event: `race-${n}`, timeout: 4 } })),
  );
  await Promise.all(runs.map((_, n) => waiters(`race-${n}`)));
  const told = await Promise.all(
    runs.map(async (run, n) => {
      const { deadline } = (await it.client.getWaiters({ eventId: `race-${n}` }))[0] ?? { deadline: 0 };
      await eventually("the deadline", () => Date.now() >= deadline * 1000);
      return (await it.client.notify({ eventId: `race-${n}`, eventData: "won" })).length;
    }),
  );
  for (const [n, run] of runs.entries()) {
    const { eventData, timedOut } = await it.result(run);
    assert.deepEqual([eventData, timedOut], told[n] ? ["won", false] : [undefined, true]);
    await it.exactly(run, "step", "step");
  }
});

test("webhooks: any method, without a token, early ones too, in their order", async () => {
  const run = await it.trigger("/hook");
  const url = await eventually("the webhook's address", () => it.hooks[0]);
  assert.ok(url.startsWith(`${it.server.url}/v2/workflows/hooks/`));
  const post = await fetch(`${url}?q=1`, { method: "POST", headers: { "x-mine": "1" }, body: '{"paid":true}' });
  assert.ok(post.ok, `${post.status}`);
  assert.ok((await fetch(url, { headers: { "x-mine": "2" } })).ok);
  assert.deepEqual(await it.result(run), {
    webhookUrl: url,
    seen: [
      { timeout: false, method: "POST", url: `${url}?q=1`, body: '{"paid":true}', mine: "1" },
      { timeout: false, method: "GET", url, body: "", mine: "2" },
    ],
  });
  await it.exactly(run, ...times(5, "step"));
  assert.equal((await fetch(url, { method: "POST" })).status, 404, "the run has ended");
});

test("a webhook that is never called", async () => {
  const run = await it.trigger("/hook-in-vain");
  assert.deepEqual(await it.result(run), { timeout: true });
  await it.exactly(run, ...times(3, "step"));
});
