// The record of every request that reaches a user's program.
//
// It is the witness of the tests: how often a step was called is what arrived there, not what the server says.

import { eventually } from "../../../js/support/wait.js";

/** A request that a program has got: what it is for the workflow, and how it was answered. */
export function callOf(path, headers) {
  return {
    path,
    run: headers["upstash-workflow-runid"],
    kind: kindOf(headers),
    retried: Number(headers["upstash-retried"]),
    messageId: headers["upstash-message-id"],
    headers,
    at: Date.now(),
    /** What was answered; nothing if the sender was gone. */
    status: undefined,
    isOver: false,
  };
}

function kindOf(headers) {
  if (headers["upstash-workflow-callback"]) return "callback";
  if (headers["upstash-workflow-is-failure"]) return "failure";
  return headers["upstash-workflow-sdk-version"] ? "step" : "raw";
}

/** What an app and a program of its own process have in common. */
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

  /** Waits until every request that has arrived is answered or has lost its sender. */
  async idle() {
    const open = () => this.calls.filter((call) => !call.isOver);
    await eventually(
      () => `${open().length} requests to be answered`,
      () => open().length === 0,
    );
  }
}
