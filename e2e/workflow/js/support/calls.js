// The record of every request that reaches a user's program.
//
// It is the witness of the tests: a step counts as called if a request arrived there, not if the server says so.

import { eventually } from "../../../js/support/wait.js";

/** A request to a program: its kind in the workflow, and its response. */
export function callOf(path, headers) {
  return {
    path,
    run: headers["upstash-workflow-runid"],
    kind: kindOf(headers),
    retried: Number(headers["upstash-retried"]),
    messageId: headers["upstash-message-id"],
    headers,
    at: Date.now(),
    /** The response; undefined if the sender had disconnected. */
    status: undefined,
    isOver: false,
  };
}

function kindOf(headers) {
  if (headers["upstash-workflow-callback"]) return "callback";
  if (headers["upstash-workflow-is-failure"]) return "failure";
  return headers["upstash-workflow-sdk-version"] ? "step" : "raw";
}

/** The common part of an app and of a program in a separate process. */
export class Witnessed {
  /** Every request, in order of arrival. */
  calls = [];

  /** The requests that carried the id of this run, in order of arrival. */
  callsOf(run) {
    return this.calls.filter((call) => call.run === run);
  }

  /** The requests at a path. */
  callsAt(path) {
    return this.calls.filter((call) => call.path === path);
  }

  /** Waits until every request that has arrived has a response or has lost its sender. */
  async idle() {
    const open = () => this.calls.filter((call) => !call.isOver);
    await eventually(
      () => `${open().length} requests to be answered`,
      () => open().length === 0,
    );
  }
}
