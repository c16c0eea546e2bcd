// Untrusted texts with markup and scripts, and the fields that contain them.

import { readFileSync } from "node:fs";
import http from "node:http";

const VECTORS = JSON.parse(readFileSync(new URL("../../../vectors/xss.json", import.meta.url), "utf8"));

/** Every payload as a text. */
export const PAYLOADS = VECTORS.payloads.map(({ payload }) =>
  typeof payload === "string" ? payload : payload.repeat.repeat(payload.times),
);

/** Those that fit into an address. */
export const SHORT = PAYLOADS.filter((payload) => payload.length < 1_000);

/** Fields of a message, each as a batch item with a payload in that field. */
export const FIELDS = {
  body: (payload) => ({ body: payload }),
  header: (payload) => ({ headers: { "Upstash-Forward-X-Hostile": payload } }),
  "destination URL": (payload, url) => ({ destination: `${url}?q=${payload}` }),
  "callback URL": (payload, url) => ({ headers: { "Upstash-Callback": `${url}?q=${payload}` } }),
  label: (payload) => ({ headers: { "Upstash-Label": payload } }),
  "flow-control key": (payload) => ({
    headers: { "Upstash-Flow-Control-Key": payload, "Upstash-Flow-Control-Value": "parallelism=1000" },
  }),
  "deduplication id": (payload) => ({ headers: { "Upstash-Deduplication-Id": payload } }),
  queue: (payload) => ({ queue: payload }),
};

/** Merges items with one field each into one item with all fields. */
export function together(items) {
  return items.reduce((all, item) => ({ ...all, ...item, headers: { ...all.headers, ...item.headers } }), {});
}

/** A receiver with hostile responses: `/3` responds with the fourth payload in its body, headers and status text. */
export async function hostileReceiver() {
  const server = http.createServer((request, response) => {
    const payload = PAYLOADS[Number(new URL(request.url, "http://x").pathname.slice(1))] ?? "";
    request.resume();
    request.on("end", () => {
      const raw = Buffer.from(payload).toString("latin1");
      const isHeader = raw.length < 1_000 && !/[\x00-\x08\x0a-\x1f\x7f]/.test(raw);
      if (isHeader) response.setHeader("x-answer", raw);
      response.writeHead(500, isHeader ? raw : undefined);
      response.end(payload);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = (path) => `http://127.0.0.1:${server.address().port}${path}`;
  const stop = async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  return { url, stop };
}

/** Invisible characters, which pages show by their numbers. */
const UNSEEN = /[\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f\u200b\u2028-\u202e]/g;

/** A text as a page shows it: HTML parsers normalize line ends and drop NUL. */
export function shown(text) {
  const number = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return text.replaceAll("\r\n", "\n").replaceAll("\r", "\n").replaceAll("\0", "").replace(UNSEEN, number);
}

/** Splits a list into lists of at most this length. */
export function chunks(list, size) {
  return Array.from({ length: Math.ceil(list.length / size) }, (_, index) => list.slice(index * size, (index + 1) * size));
}
