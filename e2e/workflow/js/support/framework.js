// Requirements on a program in any framework; see apps/workflows.js.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { eventually } from "../../../js/support/wait.js";
import { stepsOf, times } from "./story.js";

const MEGABYTE = 1024 * 1024;
/** The SDK decodes megabytes slowly. */
const LARGE_PATIENCE_MS = 60_000;
/** From here on a delivery has no body: earlier than by default, because megabytes take long (large.test.js has more). */
const LAZY = 1.5 * MEGABYTE;

/** The flags of the server in these tests. */
export const args = [`--workflow-lazy-bytes=${LAZY}`];

/**
 * Runs the tests of a framework, whose program has its workflows below the path `base`. `fetches` says whether the
 * SDK finds out there that a delivery has no body.
 */
export function framework(it, name, { base = "", fetches = true } = {}) {
  /** The third party of one test: its URL, and the bodies sent to a path, as texts. */
  function third(story) {
    const root = `/${name}/${story}`.replaceAll(" ", "-");
    return {
      url: it.third.url(root),
      script: (path, ...answers) => it.third.script(root + path, ...answers),
      at: (path) => it.third.at(root + path).map((request) => request.body),
      requests: (path) => it.third.at(root + path),
    };
  }

  async function notified(event, data) {
    await eventually(`somebody to wait for ${event}`, async () => {
      return (await it.client.getWaiters({ eventId: event })).length === 1;
    });
    const run = await it.trigger(`${base}/family/notifier`, { body: { event, data } });
    assert.equal(await it.result(run), 1);
    await it.exactly(run, "step", "step");
  }

  test(`${name}: a step, a sleep, a call and an event`, async () => {
    const other = third("order");
    other.script("/ship", { status: 201, headers: { "content-type": "application/json" }, body: '{"parcel":"č. 1"}' });
    const event = `${name} order`;
    const run = await it.trigger(`${base}/order`, { body: { third: other.url, event }, headers: { "x-tenant": "t1" } });
    await notified(event, { by: "Ann" });
    const { receipt, ...rest } = await it.result(run);
    assert.deepEqual(rest, {
      status: 201,
      body: { parcel: "č. 1" },
      eventData: { by: "Ann" },
      timeout: false,
      url: it.app.url(`${base}/order`),
      tenant: "t1",
    });
    assert.deepEqual(other.at("/pay"), [JSON.stringify(run)]);
    assert.deepEqual(other.at("/pack"), [JSON.stringify(receipt)]);
    const [shipped] = other.requests("/ship");
    assert.equal(shipped.headers["x-mine"], "m");
    assert.deepEqual(other.at("/ship"), [JSON.stringify({ receipt })]);
    await it.exactly(run, ...times(4, "step"), "callback", "step", "step");
  });

  test(`${name}: runs invoke others, and one of them fails`, async () => {
    const other = third("invoke");
    const run = await it.trigger(`${base}/family/parent`, { body: { third: other.url } });
    assert.deepEqual(await it.result(run), { body: "Ann the second", isFailed: false, hasFailed: true });
    await it.exactly(run, ...times(3, "step"));
    const [, child, broken] = stepsOf(await it.log(run)).map((step) => step.invokedWorkflowRunId);
    await it.exactly(child, "step", "step");
    assert.deepEqual(other.at("/work"), ['"Ann"']);
    await it.failureFunctionReaches(broken, "CALLBACK_SUCCESS");
    await it.exactly(broken, "step", "step 500", "failure");
  });

  test(`${name}: a group of every kind of step`, async () => {
    const other = third("group");
    other.script("/call", { status: 202, body: "welcome" });
    const event = `${name} group`;
    const run = await it.trigger(`${base}/family/group`, { body: { third: other.url, event } });
    await notified(event, 1);
    assert.deepEqual(await it.result(run), ["l", "r", 202, "welcome", 1, "Bob the second", "last"]);
    for (const path of ["/left", "/right", "/call", "/work"]) assert.equal(other.at(path).length, 1, path);
    // The first call, a plan and a result for each branch, and the last step.
    await it.altogether(run, { step: 1 + 6 + 6 + 1, callback: 1 });
  });

  test(`${name}: a failure function is called once`, async () => {
    const other = third("failure");
    const options = { retries: 1, retryDelay: "10", body: { third: other.url } };
    const run = await it.trigger(`${base}/family/broken`, options);
    const { failureFunction } = await it.failureFunctionReaches(run, "CALLBACK_SUCCESS");
    assert.deepEqual(JSON.parse(failureFunction.responseBody), { result: "told" });
    assert.deepEqual(other.at("/failed"), [JSON.stringify({ run, failStatus: 500, failResponse: "broken" })]);
    await it.exactly(run, "step", "step 500", "step 500", "failure");
  });

  test(`${name}: a failed run is resumed, and finished steps stay finished`, async () => {
    const other = third("resume");
    other.script("/pack", 503);
    const event = `${name} resume`;
    const run = await it.trigger(`${base}/order`, { retries: 0, body: { third: other.url, event } });
    const { dlqId } = await it.failureFunctionReaches(run, "CALLBACK_SUCCESS");
    await it.exactly(run, "step", "step 500", "failure");
    other.script("/pack", 200);
    const { workflowRunId: resumed } = await it.client.dlq.resume({ dlqId });
    await notified(event, "at last");
    const { receipt, eventData } = await it.result(resumed);
    assert.equal(eventData, "at last");
    assert.deepEqual(other.at("/pay"), [JSON.stringify(run)]);
    assert.deepEqual(other.at("/pack"), times(2, JSON.stringify(receipt)));
    assert.equal(other.at("/failed").length, 1);
    // As many as a whole run has, without the first.
    await it.exactly(resumed, ...times(3, "step"), "callback", "step", "step");
  });

  test(`${name}: runs are cancelled, from outside and from inside`, async () => {
    const nap = await it.trigger(`${base}/family/nap`);
    await it.calls(nap, (calls) => calls[0]?.isOver);
    assert.deepEqual(await it.client.cancel(nap), { cancelled: 1 });
    await it.reaches(nap, "RUN_CANCELED");
    await it.exactly(nap, "step");
    const quitter = await it.trigger(`${base}/family/quitter`);
    await it.reaches(quitter, "RUN_CANCELED");
    await it.exactly(quitter, "step", "step");
  });

  test(`${name}: more than a megabyte`, async () => {
    const text = numbered(MEGABYTE / 16);
    const run = await it.trigger(`${base}/family/large`, { body: { text, times: 0 } });
    assert.equal(await it.result(run, LARGE_PATIENCE_MS), digest(text));
    await it.exactly(run, ...times(3, "step"));
    for (const bytes of lengths(run)) assert.ok(bytes > MEGABYTE && bytes < LAZY, `${bytes}`);
  });

  if (!fetches) return;
  test(`${name}: larger data is fetched`, async () => {
    const text = numbered(MEGABYTE / 16);
    const run = await it.trigger(`${base}/family/large`, { body: { text, times: 1 } });
    assert.equal(await it.result(run, LARGE_PATIENCE_MS), digest(text + text));
    await it.exactly(run, ...times(3, "step"));
    assert.deepEqual(lengths(run).slice(1), [0, 0]);
  });

  function lengths(run) {
    return it.app.callsOf(run).map((call) => Number(call.headers["content-length"]));
  }
}

/** This many different lines, with characters of one and of two bytes. */
function numbered(lines) {
  return Array.from({ length: lines }, (_, n) => `${n} žluť\n`).join("");
}

function digest(text) {
  return createHash("sha256").update(text).digest("hex");
}
