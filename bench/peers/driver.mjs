// Shared by the drivers: the message that the sink recognizes, and a POST to the sink.

import http from "node:http";

const BODY_BYTES = 1024;
const SOCKETS = 64;
const agent = new http.Agent({ keepAlive: true, maxSockets: SOCKETS });
const noise = Array.from({ length: BODY_BYTES }, (_, i) => String.fromCharCode(97 + ((i * 7919) % 26))).join("");

/** The monotonic clock, which the sink uses too. */
export const nowNs = () => process.hrtime.bigint();

const hex = (value, digits) => value.toString(16).padStart(digits, "0");

/** The body of one message, as the load generator creates it: `HQB`, run, sequence number, due time, noise. */
export function payload(run, sequence, dueNs) {
  const marker = `HQB${hex(run, 8)}${hex(sequence, 8)}${hex(dueNs, 16)}`;
  const envelope = '{"m":""}'.length;
  return { m: marker + noise.slice(0, BODY_BYTES - envelope - marker.length) };
}

/** Delivers one message; throws unless the answer is 2xx. */
export function deliver(url, message) {
  const body = JSON.stringify(message);
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method: "POST", agent, headers }, (response) => {
      response.resume();
      response.on("end", () =>
        response.statusCode < 300 ? resolve() : reject(new Error(`the receiver answered ${response.statusCode}`)),
      );
    });
    request.on("error", reject);
    request.end(body);
  });
}

/** The distribution of latencies in milliseconds, which get sorted; `null` when there are none. */
export function percentiles(latenciesMs) {
  if (latenciesMs.length === 0) return null;
  latenciesMs.sort((a, b) => a - b);
  const at = (share) => latenciesMs[Math.round((latenciesMs.length - 1) * share)];
  return { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), p999_ms: at(0.999), max_ms: at(1) };
}

/** Says on a port of its own that this process is ready. */
export function tellReady(port) {
  http.createServer((_, response) => response.end()).listen(port, "127.0.0.1");
}

/**
 * Publishes for some seconds: closed loop with so many in flight, or open loop when there is a rate (message i is due
 * at start + i/rate). `publish(message, sequence)` resolves when the system has acknowledged. Prints one line of JSON.
 */
export async function publishAll({ run, seconds, rate, inFlight }, publish) {
  const startNs = nowNs();
  const endNs = startNs + BigInt(Math.round(seconds * 1e9));
  const intervalNs = rate > 0 ? 1e9 / rate : 0;
  const acked = [];
  const latenciesMs = [];
  let [next, errors, firstError, lastAckNs] = [0, 0, null, startNs];
  const worker = async () => {
    for (;;) {
      const sequence = next++;
      const dueNs = intervalNs > 0 ? startNs + BigInt(Math.round(sequence * intervalNs)) : nowNs();
      if (dueNs >= endNs) return;
      const waitMs = Number(dueNs - nowNs()) / 1e6;
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
      try {
        await publish(payload(run, sequence, dueNs), sequence);
        lastAckNs = nowNs();
        acked.push(sequence);
        latenciesMs.push(Number(lastAckNs - dueNs) / 1e6);
      } catch (error) {
        errors += 1;
        firstError ??= String(error);
      }
    }
  };
  await Promise.all(Array.from({ length: inFlight }, worker));
  const [startText, lastText] = [startNs.toString(), lastAckNs.toString()];
  const result = { acked, errors, first_error: firstError, publish: percentiles(latenciesMs) };
  console.log(JSON.stringify({ ...result, start_ns: startText, last_ack_ns: lastText }));
}
