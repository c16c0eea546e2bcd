// The environment of most test files: one server and one receiver for the whole file, a client, and helpers.

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { Receiver } from "./receiver.js";
import { Server } from "./server.js";
import { eventually } from "./wait.js";

/** Sets up a file. The fields are set when its tests run. */
export function story(...args) {
  const it = {
    server: undefined,
    receiver: undefined,
    client: undefined,

    /** Waits for the dead letter of a message. */
    async deadLetter(messageId, client = it.client) {
      return await eventually(`${messageId} in the DLQ`, async () => {
        const { messages } = await client.dlq.listMessages({ filter: { messageId } });
        return messages[0];
      });
    },

    /** Waits until a message has reached a state, and returns all its log lines, oldest first. */
    async logsUntil(messageId, state, client = it.client) {
      return await eventually(`${messageId} ${state}`, async () => {
        const { logs } = await client.logs({ messageIds: [messageId] });
        return logs.some((log) => log.state === state) ? [...logs].reverse() : undefined;
      });
    },
  };
  before(async () => {
    it.receiver = await Receiver.start();
    it.server = await Server.start(...args);
    it.client = it.server.client();
  });
  after(async () => {
    await it.server?.stop();
    await it.receiver?.stop();
  });
  return it;
}

/** The states of log lines, in order. */
export function states(logs) {
  return logs.map((log) => log.state);
}

/** Asserts that the SDK throws its own error with this status and a message that matches. */
export async function refused(promise, status, pattern) {
  await assert.rejects(promise, (error) => {
    assert.match(error.name, /^Qstash.*Error$/);
    assert.equal(error.status, status, error.message);
    assert.equal(typeof JSON.parse(error.message).error, "string", "the body is the error envelope");
    if (pattern) assert.match(error.message, pattern);
    return true;
  });
}

let counter = 0;
/** A unique name within this file. */
export function unique(prefix) {
  counter += 1;
  return `${prefix}-${process.pid}-${counter}`;
}
