// Trivial workflows with the official SDK: `PORT STEPS`; QSTASH_URL and QSTASH_TOKEN set the server. A run counts as ended
// when the server has accepted its end.

import http from "node:http";
import { serve } from "@upstash/workflow";
import { Ledger, readMarker, result } from "./steps.mjs";

const [port, steps] = process.argv.slice(2).map(Number);
const ledger = new Ledger();
const delivered = new Set();
/** Runs whose function has returned, by id, with their start. */
const returned = new Map();

const { handler } = serve(
  async (context) => {
    const marker = readMarker(context.requestPayload.m);
    for (let step = 1; step <= steps; step++) {
      await context.run(`step ${step}`, () => {
        ledger.add("steps", marker.run);
        return result(step);
      });
    }
    returned.set(context.workflowRunId, marker);
    return { ok: true };
  },
  { disableTelemetry: true },
);

/** Passes a delivery to the SDK and counts it. */
async function deliver(incoming, body) {
  const { headers, method, url } = incoming;
  const run = parseInt(url.split("/").at(-1), 16);
  const [id, messageId] = [headers["upstash-workflow-runid"], headers["upstash-message-id"]];
  ledger.add("deliveries", run);
  if (headers["upstash-workflow-is-failure"]) ledger.add("failed", run, `a run failed: ${body}`);
  else if (delivered.has(messageId)) ledger.add("repeated", run);
  delivered.add(messageId);
  const request = new Request(`http://127.0.0.1:${port}${url}`, { method, headers: new Headers(headers), body });
  const answer = await handler(request);
  const text = await answer.text();
  if (!answer.ok) ledger.add("errors", run, `the SDK answered ${answer.status}: ${text}`);
  const marker = returned.get(id);
  if (answer.ok && marker) {
    returned.delete(id);
    ledger.ended(marker);
  }
  return { status: answer.status, headers: Object.fromEntries(answer.headers), text };
}

async function answer(request, response) {
  if (request.url.startsWith("/_tally")) return response.end(ledger.show(request.url));
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const { status, headers, text } = await deliver(request, Buffer.concat(chunks).toString());
  response.writeHead(status, headers).end(text);
}

http
  .createServer((request, response) =>
    answer(request, response).catch((error) => {
      console.error(error);
      response.writeHead(500).end(String(error));
    }),
  )
  .listen(port, "127.0.0.1");
