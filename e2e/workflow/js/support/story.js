// The environment of the test files: a server, an app with its workflows, a third party, clients, and helpers.
//
// Signatures are verified everywhere: both signing keys are set, as in a user's environment.

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { Client as QStash } from "@upstash/qstash";
import { Client } from "@upstash/workflow";
import { Receiver } from "../../../js/support/receiver.js";
import { Server, USERS } from "../../../js/support/server.js";
import { eventually } from "../../../js/support/wait.js";
import { App } from "./app.js";

/**
 * Sets up a file. `routes` gets the app and the story once the server runs; the fields are set from then on.
 * `program` starts a program that already has its routes, instead of an app in this process.
 * At the end of the file all counts are asserted again, to detect late calls.
 */
export function story(routes, { args = [], sdk = undefined, client = Client, program = undefined } = {}) {
  const counts = [];
  const it = {
    server: undefined,
    app: undefined,
    /** The third party that steps call. */
    third: undefined,
    /** The SDK's clients: of workflows, and of messages. */
    client: undefined,
    qstash: undefined,

    /** Triggers a workflow of the app; returns the id of the run. */
    async trigger(path, options = {}) {
      const { workflowRunId } = await it.client.trigger({ url: it.app.url(path), ...options });
      return workflowRunId;
    },

    /** The newest run with this id, from the logs. */
    async log(run) {
      const { runs } = await it.logs({ workflowRunId: run });
      return runs[0];
    },

    /** A page of runs; requested without the client, because old ones send other filters. */
    async logs(filter = {}) {
      const query = new URLSearchParams({ groupBy: "workflowRunId", ...filter });
      const answer = await it.server.fetch(`/v2/workflows/events?${query}`);
      assert.equal(answer.status, 200);
      return await answer.json();
    },

    /** Waits until a run is in a state, and returns its log. */
    async reaches(run, state, patienceMs = undefined) {
      let last;
      const probe = async () => {
        // Without bodies: some are megabytes.
        [last] = (await it.logs({ workflowRunId: run, trimBody: 100 })).runs;
        return last?.workflowState === state ? await it.log(run) : undefined;
      };
      return await eventually(() => `${run} ${state}, it is ${JSON.stringify(last)}`, probe, patienceMs);
    },

    /** Waits until a run has succeeded, and returns its result. */
    async result(run, patienceMs = undefined) {
      const log = await it.reaches(run, "RUN_SUCCESS", patienceMs);
      return log.workflowRunResponse === undefined ? undefined : JSON.parse(log.workflowRunResponse);
    },

    /** Waits until the calls of a run satisfy a condition. */
    async calls(run, condition) {
      const seen = () => it.app.callsOf(run);
      return await eventually(
        () => `calls of ${run}, saw ${JSON.stringify(seen().map(described))}`,
        () => (condition(seen()) ? seen() : undefined),
      );
    },

    /** Waits until the failure callback of a run is in a state, and returns the run's log. */
    async failureFunctionReaches(run, state, patienceMs = undefined) {
      const probe = async () => {
        const [log] = (await it.logs({ workflowRunId: run, trimBody: 100 })).runs;
        return log?.failureFunction?.state === state ? await it.log(run) : undefined;
      };
      return await eventually(`the failure function of ${run} ${state}`, probe, patienceMs);
    },

    /**
     * Asserts which calls a run has caused so far, in order: a kind each (`step`, `callback`, `failure`), with the
     * status of the response if that is not 200.
     */
    async exactlySoFar(run, ...expected) {
      await it.app.idle();
      assert.deepEqual(it.app.callsOf(run).map(described), expected);
    },

    /** The same, asserted again at the end of the file. */
    async exactly(run, ...expected) {
      await it.exactlySoFar(run, ...expected);
      counts.push(() => assert.deepEqual(it.app.callsOf(run).map(described), expected, `late calls of ${run}`));
    },

    /** The same in any order, as numbers: for steps in parallel. */
    async altogether(run, expected) {
      await it.app.idle();
      const count = () => counted(it.app.callsOf(run).map(described));
      assert.deepEqual(count(), expected);
      counts.push(() => assert.deepEqual(count(), expected, `late calls of ${run}`));
    },
  };
  before(async () => {
    it.server = await Server.start(...args);
    const [{ token, current, next }] = USERS;
    process.env.QSTASH_URL = it.server.url;
    process.env.QSTASH_TOKEN = token;
    process.env.QSTASH_CURRENT_SIGNING_KEY = current;
    process.env.QSTASH_NEXT_SIGNING_KEY = next;
    it.third = await Receiver.start();
    it.app = program ? await program() : await App.start(sdk);
    it.client = new client({ baseUrl: it.server.url, token, retry: false });
    it.qstash = new QStash({ baseUrl: it.server.url, token, retry: false });
    routes?.(it.app, it);
  });
  after(async () => {
    await it.server?.stop();
    await it.third?.stop();
    await it.app?.stop();
    for (const count of counts) count();
  });
  return it;
}

function described(call) {
  return call.status === 200 ? call.kind : `${call.kind} ${call.status}`;
}

function counted(names) {
  const counts = {};
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1;
  return counts;
}

/** `n` times the same: `...times(3, "step")`. */
export function times(n, kind) {
  return Array.from({ length: n }, () => kind);
}

const MASKS = {
  messageId: /^msg_/,
  dlqId: /./,
  retryDelay: /./,
  stack: /./,
};
const TIMES = new Set([
  "createdAt",
  "workflowRunCreatedAt",
  "workflowRunCompletedAt",
  "workflowCreatedAt",
  "invokedWorkflowCreatedAt",
  "nextDeliveryTime",
  "waitTimeoutDeadline",
  "time",
]);

/** A log with ids and times replaced by names, so that the rest can be compared completely. */
export function masked(value, name = "") {
  if (Array.isArray(value)) return value.map((item) => masked(item));
  if (TIMES.has(name)) {
    assert.equal(typeof value, "number", name);
    return "time";
  }
  if (MASKS[name] && typeof value === "string") {
    assert.match(value, MASKS[name], name);
    return name;
  }
  if (name === "headers" || name.endsWith("Headers")) {
    for (const values of Object.values(value)) assert.ok(Array.isArray(values), `${name} are lists`);
    return "headers";
  }
  if (value === null || typeof value !== "object") return value;
  const { execution, ...rest } = value;
  if (execution !== undefined) {
    // The hosted service does not have this field, so it is left out of comparisons.
    for (const number of Object.values(execution)) assert.equal(typeof number, "number", "execution");
    assert.ok(execution.attempts > 0, "attempts");
  }
  return Object.fromEntries(Object.entries(rest).map(([key, item]) => [key, masked(item, key)]));
}

/** The step items of a run, in order, without their groups. */
export function stepsOf(log) {
  return log.steps.flatMap((group) => group.steps);
}
