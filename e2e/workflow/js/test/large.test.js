// Megabytes: if a delivery would be large, the SDK fetches the run's steps itself.

import assert from "node:assert/strict";
import { test } from "node:test";
import { story } from "../support/story.js";

const MEGABYTE = 1024 * 1024;
/** The SDK decodes megabytes slowly, and twice for each call. */
const LARGE_PATIENCE_MS = 60_000;
/** From here on a delivery has no body. */
const LAZY = 3 * MEGABYTE;

/** Text of this many characters in which any mistake is visible: numbered, with some of two bytes. */
function text(characters) {
  if (!made.has(characters)) {
    const lines = Array.from({ length: characters / 8 }, (_, n) => `${n} žluť\n`);
    made.set(characters, lines.join("").slice(0, characters));
  }
  return made.get(characters);
}
const made = new Map();

const it = story((app) => {
  app.workflow("/payload", async (context) => {
    const length = await context.run("length", () => context.requestPayload.length);
    return { length, same: context.requestPayload === text(3 * MEGABYTE) };
  });

  app.workflow("/results", async (context) => {
    const first = await context.run("first", () => text(MEGABYTE));
    const second = await context.run("second", () => text(1.5 * MEGABYTE));
    const third = await context.run("third", () => "small");
    return { first: first === text(MEGABYTE), second: second === text(1.5 * MEGABYTE), third };
  });

  app.workflow("/parallel", async (context) => {
    const parts = await Promise.all([1, 2, 3].map((n) => context.run(`part ${n}`, () => text(MEGABYTE + 8 * n))));
    return parts.map((part, index) => part === text(MEGABYTE + 8 * (index + 1)));
  });

  app.workflow("/call", async (context) => {
    const { status, body } = await context.call("large", {
      url: context.requestPayload,
      method: "POST",
      body: text(MEGABYTE),
    });
    return { status, length: body.length };
  });

  app.workflow(
    "/fails",
    async (context) => {
      await context.run("large", () => text(MEGABYTE));
      await context.run("boom", () => {
        throw new Error("boom");
      });
    },
    { failureFunction: ({ context }) => `payload of ${context.requestPayload.length}` },
  );

  app.workflow("/returns", async (context) => {
    await context.run("only", () => {});
    return text(MEGABYTE);
  });
});

function bodies(run) {
  return it.app.callsOf(run).map((call) => call.body.length);
}

test("a payload of 3 MB", async () => {
  const run = await it.trigger("/payload", { body: text(3 * MEGABYTE) });
  const { length, same } = await it.result(run, LARGE_PATIENCE_MS);
  assert.ok(same, `${length} characters`);
  await it.exactly(run, "step", "step");
  assert.deepEqual(bodies(run), [0, 0]);
  for (const call of it.app.callsOf(run)) assert.equal(call.headers["content-length"], "0");
});

test("results of megabytes: deliveries lose their bodies when they get too large, and not before", async () => {
  const run = await it.trigger("/results");
  assert.deepEqual(await it.result(run, LARGE_PATIENCE_MS), { first: true, second: true, third: "small" });
  await it.exactly(run, "step", "step", "step", "step");
  const [init, first, second, third] = bodies(run);
  assert.ok(init > 0 && init < 1000);
  assert.ok(first > LAZY / 2 && first <= LAZY, `${first}`);
  assert.deepEqual([second, third], [0, 0]);
});

test("branches of megabytes", async () => {
  const run = await it.trigger("/parallel");
  assert.deepEqual(await it.result(run, LARGE_PATIENCE_MS), [true, true, true]);
  await it.altogether(run, { step: 7 });
});

test("a call with a response of five megabytes; the callback has a body", async () => {
  const answer = "x".repeat(5 * MEGABYTE);
  it.third.script("/large", { status: 200, body: answer });
  const run = await it.trigger("/call", { body: it.third.url("/large") });
  assert.deepEqual(await it.result(run, LARGE_PATIENCE_MS), { status: 200, length: answer.length });
  assert.equal(it.third.at("/large")[0].body, text(MEGABYTE));
  await it.exactly(run, "step", "callback", "step");
  assert.ok(bodies(run)[1] > answer.length);
});

test("a failure function gets the full data", async () => {
  const run = await it.trigger("/fails", { body: text(3 * MEGABYTE), retries: 0 });
  const { failureFunction } = await it.failureFunctionReaches(run, "CALLBACK_SUCCESS", LARGE_PATIENCE_MS);
  assert.deepEqual(JSON.parse(failureFunction.responseBody), { result: `payload of ${text(3 * MEGABYTE).length}` });
  await it.exactly(run, "step", "step 500", "failure");
});

test("a result of the whole run", async () => {
  const run = await it.trigger("/returns");
  assert.equal(await it.result(run, LARGE_PATIENCE_MS), text(MEGABYTE));
  await it.exactly(run, "step", "step");
});
