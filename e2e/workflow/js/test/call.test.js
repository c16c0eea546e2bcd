// context.call: the server sends the request, and every outcome is a result.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Receiver as Verifier } from "@upstash/qstash";
import { gate } from "../../../js/support/receiver.js";
import { USERS } from "../../../js/support/server.js";
import { masked, stepsOf, story } from "../support/story.js";

const it = story((app) => {
  app.workflow("/call", async (context) => {
    const { status, body, header } = await context.call("ask", context.requestPayload);
    return { status, body, header };
  });

  app.workflow("/two", async (context) => {
    const first = await context.call("first", { url: context.requestPayload.url, method: "POST", body: '{"n":1}' });
    const second = await context.call("second", {
      url: context.requestPayload.url,
      method: "POST",
      body: JSON.stringify(first.body),
    });
    return second.body;
  });

  app.workflow("/sibling", async (context) => {
    const payload = await context.run("payload", () => context.requestPayload);
    return `sibling of ${payload.name}`;
  });

  app.workflow("/calls-a-workflow", async (context) => {
    const { status, body } = await context.call("start", {
      url: context.requestPayload.url,
      method: "POST",
      body: '{"name":"ann"}',
    });
    return { status, id: body.workflowRunId };
  });
});

const CALL = ["step", "callback", "step"];

/** Runs one call to its end. */
async function call(options) {
  const run = await it.trigger("/call", { body: options });
  const result = await it.result(run);
  await it.exactly(run, ...CALL);
  return { run, ...result };
}

test("every method, with headers and a body, reaches the third party once, unchanged and signed", async () => {
  for (const method of ["GET", "POST", "PUT", "PATCH", "DELETE"]) {
    const path = `/method-${method}`;
    it.third.script(path, {
      status: 200,
      headers: { "content-type": "application/json", "x-reply": "r" },
      body: '{"ok":1}',
    });
    const body = method === "GET" ? undefined : `for ${method}, žluť`;
    const {
      status,
      body: answer,
      header,
    } = await call({ url: it.third.url(path), method, body, headers: { "x-mine": "é1" } });
    assert.equal(status, 200);
    assert.deepEqual(answer, { ok: 1 });
    assert.deepEqual(header["X-Reply"], ["r"]);
    assert.deepEqual(header["Content-Type"], ["application/json"]);
    const [request, ...others] = it.third.at(path);
    assert.equal(others.length, 0, "called once");
    assert.equal(request.method, method);
    assert.equal(request.body, body ?? "");
    assert.equal(Buffer.from(request.headers["x-mine"], "latin1").toString(), "é1");
    const verifier = new Verifier({ currentSigningKey: USERS[0].current, nextSigningKey: USERS[0].next });
    assert.ok(
      await verifier.verify({
        signature: request.headers["upstash-signature"],
        body: request.body,
        url: it.third.url(path),
      }),
    );
    for (const name of Object.keys(request.headers)) {
      assert.ok(!name.startsWith("upstash-workflow-"), `${name} is nothing for a third party`);
    }
  }
});

test("a 4xx and a 5xx are results, at once and once", async () => {
  for (const status of [300, 400, 404, 500, 503]) {
    const path = `/status-${status}`;
    it.third.script(path, { status, body: `no ${status}` });
    const result = await call({ url: it.third.url(path) });
    assert.deepEqual([result.status, result.body], [status, `no ${status}`]);
    assert.equal(it.third.at(path).length, 1);
  }
});

test("the server retries; the result is the last response", async () => {
  it.third.script("/flaky", 500, 502, { status: 201, body: "third time" });
  const flaky = await call({ url: it.third.url("/flaky"), retries: 5, retryDelay: "10" });
  assert.deepEqual([flaky.status, flaky.body], [201, "third time"]);
  assert.deepEqual(
    it.third.at("/flaky").map((request) => request.headers["upstash-retried"]),
    ["0", "1", "2"],
  );

  it.third.script("/broken", 500, 501, 502, 200);
  const broken = await call({ url: it.third.url("/broken"), retries: 2, retryDelay: "10" });
  assert.equal(broken.status, 502);
  assert.equal(it.third.at("/broken").length, 3);
});

test("a response timeout is a 504, a failed connection a 503", async () => {
  const { opened, open } = gate();
  it.third.script("/slow", { status: 200, after: opened });
  const slow = await call({ url: it.third.url("/slow"), timeout: 1 });
  open();
  assert.equal(slow.status, 504);
  assert.equal(it.third.at("/slow").length, 1);
  const nobody = await call({ url: "http://127.0.0.1:9/nobody" });
  assert.equal(nobody.status, 503);
});

test("bodies of responses: empty, text, Unicode", async () => {
  it.third.script("/empty", 204);
  assert.equal((await call({ url: it.third.url("/empty") })).body, "");
  it.third.script("/unicode", { status: 200, headers: { "content-type": "text/plain" }, body: "žluťoučký 🐎" });
  assert.equal((await call({ url: it.third.url("/unicode") })).body, "žluťoučký 🐎");
});

test("two calls in a row", async () => {
  const json = (body) => ({ status: 200, headers: { "content-type": "application/json" }, body });
  it.third.script("/pair", json('{"n":2}'), json('{"n":3}'));
  const run = await it.trigger("/two", { body: { url: it.third.url("/pair") } });
  assert.deepEqual(await it.result(run), { n: 3 });
  assert.deepEqual(
    it.third.at("/pair").map((request) => request.body),
    ['{"n":1}', '{"n":2}'],
  );
  await it.exactly(run, "step", "callback", "step", "callback", "step");
});

test("a workflow can be called like any URL: it starts a separate run", async () => {
  const run = await it.trigger("/calls-a-workflow", { body: { url: it.app.url("/sibling") } });
  const { status, id } = await it.result(run);
  assert.equal(status, 200);
  assert.equal(await it.result(id), "sibling of ann");
  await it.exactly(run, ...CALL);
  await it.exactly(id, "step", "step");
  assert.equal(it.app.callsAt("/sibling").filter((call) => call.kind === "raw").length, 1);
});

test("the log of a call: in flight, and with its response", async () => {
  const { opened, open } = gate();
  it.third.script("/logged", { status: 418, headers: { "content-type": "text/plain" }, body: "teapot", after: opened });
  const run = await it.trigger("/call", {
    body: { url: it.third.url("/logged"), method: "PUT", body: '{"tea":true}' },
  });
  await it.third.arrivals("/logged");
  await it.app.idle();
  const [, pending] = stepsOf(await it.log(run));
  assert.equal(pending.state, "STEP_PROGRESS");
  assert.equal(pending.callUrl, it.third.url("/logged"));
  assert.equal(pending.callMethod, "PUT");
  open();
  await it.result(run);
  const [, done] = stepsOf(masked(await it.log(run)));
  const { stepId, stepName, stepType, state, callUrl, callMethod, callBody, callResponseStatus, callResponseBody } =
    done;
  assert.deepEqual(
    { stepId, stepName, stepType, state, callUrl, callMethod, callBody, callResponseStatus, callResponseBody },
    {
      stepId: 1,
      stepName: "ask",
      stepType: "Call",
      state: "STEP_SUCCESS",
      callUrl: it.third.url("/logged"),
      callMethod: "PUT",
      callBody: '{"tea":true}',
      callResponseStatus: 418,
      callResponseBody: "teapot",
    },
  );
  await it.exactly(run, ...CALL);
});
