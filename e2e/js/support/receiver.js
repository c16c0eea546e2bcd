// The receiver: an HTTP server that records its requests and responds by a script per path.
//
// It is the witness of the tests: a message counts as delivered if it arrived here, not if the server says so.

import assert from "node:assert/strict";
import http from "node:http";
import { eventually, pause } from "./wait.js";

/** Delay of every response. `LATE_MS=50` finds tests that confuse an arrival with its outcome. */
const LATE_MS = Number(process.env.LATE_MS ?? 0);

/** Largest rounding difference of millisecond clocks. */
const ROUNDING_MS = 10;

export class Receiver {
  /** Every request that has arrived in full, in order of arrival. */
  requests = [];
  #scripts = new Map();
  #server;

  static async start() {
    const receiver = new Receiver();
    receiver.#server = http.createServer((request, response) => receiver.#handle(request, response));
    await new Promise((resolve) => receiver.#server.listen(0, "127.0.0.1", resolve));
    return receiver;
  }

  /** The address of a path, such as `/hook?x=1`. */
  url(path) {
    return `http://127.0.0.1:${this.#server.address().port}${path}`;
  }

  /**
   * Sets the responses of a path: one per request, and the last one repeats.
   * A response is a status or `{ status, headers, body, after }`; `after` is a promise to wait for first.
   * Paths without a script respond with 200.
   */
  script(path, ...answers) {
    this.#scripts.set(path, answers);
  }

  /** The requests to a path (without its query). */
  at(path) {
    return this.requests.filter((request) => request.path === path);
  }

  /** Waits until at least `count` requests have arrived at a path, and returns them. */
  async arrivals(path, count = 1, patienceMs = undefined) {
    const probe = () => {
      const arrived = this.at(path);
      return arrived.length >= count ? arrived : undefined;
    };
    return await eventually(() => `${count} requests at ${path}, saw ${this.at(path).length}`, probe, patienceMs);
  }

  async stop() {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #handle(request, response) {
    const chunks = [];
    try {
      for await (const chunk of request) chunks.push(chunk);
    } catch {
      return; // The sender disconnected; nothing arrived.
    }
    const raw = Buffer.concat(chunks);
    const path = request.url.split("?")[0];
    this.requests.push({
      method: request.method,
      url: request.url,
      path,
      headers: request.headers,
      rawHeaders: request.rawHeaders,
      raw,
      body: raw.toString("utf8"),
      at: Date.now(),
    });
    const script = this.#scripts.get(path) ?? [200];
    const next = script.length > 1 ? script.shift() : script[0];
    const answer = typeof next === "number" ? { status: next } : next;
    if (answer.after) await answer.after;
    if (LATE_MS) await pause(LATE_MS);
    if (response.destroyed) return;
    response.writeHead(answer.status, answer.headers ?? {});
    response.end(answer.body ?? "");
  }
}

/** A promise and the function that fulfils it, for responses that wait for the test. */
export function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { opened, open };
}

/**
 * Asserts, by the receiver's clock, that none of them is earlier than the rate allows if the first one was not sent before
 * `since`. A busy machine sees requests late, and never early.
 */
export function keepsRate(requests, rate, periodMs, since) {
  const times = requests.map((request) => request.at - since);
  for (const [n, at] of times.entries()) {
    assert.ok(at >= Math.floor(n / rate) * periodMs - ROUNDING_MS, `arrival ${n} is too early: ${times}`);
  }
}
