// The SDK's development mode (QSTASH_DEV=true): it must find this server and fetch nothing.

import assert from "node:assert/strict";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { runProgram, Server, USERS } from "../support/server.js";

const PROGRAM = fileURLToPath(new URL("../support/dev-mode-program.js", import.meta.url));

async function freePort() {
  const listener = net.createServer();
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const { port } = listener.address();
  await new Promise((resolve) => listener.close(resolve));
  return port;
}

/** Runs the program with its own home directory; returns its exit and the files that it left. */
async function runAtHome(variables) {
  const home = await mkdtemp(path.join(tmpdir(), "posthaste-home-"));
  try {
    const ended = await runProgram(process.execPath, [PROGRAM], { HOME: home, QSTASH_DEV: "true", ...variables });
    return { ...ended, files: await readdir(home, { recursive: true }) };
  } finally {
    await rm(home, { recursive: true });
  }
}

test("a program with QSTASH_DEV and QSTASH_DEV_PORT uses this server, whatever else is configured", async () => {
  const port = await freePort();
  const server = await Server.startOnDevPort(port);
  try {
    assert.equal(server.url, `http://127.0.0.1:${port}`);
    const ignored = { QSTASH_TOKEN: "another", QSTASH_URL: "https://qstash.invalid", QSTASH_CURRENT_SIGNING_KEY: "sig_x", QSTASH_NEXT_SIGNING_KEY: "sig_y" };
    const { code, stdout, stderr, files } = await runAtHome({ ...ignored, QSTASH_DEV_PORT: `${port}` });
    assert.equal(code, 0, stdout + stderr);
    assert.deepEqual(JSON.parse(stdout.trim().split("\n").at(-1)), { body: '{"dev":true}', verified: true, sameId: true });
    assert.deepEqual(files, [], "nothing was downloaded");
    const { logs } = await server.client().logs({ filter: { state: "CREATED" } });
    assert.equal(logs.length, 1);
  } finally {
    await server.stop();
  }
});

test("a page whose origin is listed may call a server in dev mode, and no other", async () => {
  const origin = "https://console.upstash.com";
  const server = await Server.start("--allowed-origins", origin);
  try {
    const preflight = await fetch(`${server.url}/v2/publish/https://example.com`, {
      method: "OPTIONS",
      headers: { origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization,upstash-delay" },
    });
    assert.ok(preflight.ok, `${preflight.status}`);
    assert.equal(preflight.headers.get("access-control-allow-origin"), origin);
    assert.match(preflight.headers.get("access-control-allow-headers").toLowerCase(), /\*|authorization/);
    const answer = await fetch(`${server.url}/v2/queues`, { headers: { origin, authorization: `Bearer ${USERS[0].token}` } });
    assert.equal(answer.status, 200);
    assert.equal(answer.headers.get("access-control-allow-origin"), origin);
    const foreign = { origin: "https://other.example", authorization: `Bearer ${USERS[0].token}` };
    assert.equal((await fetch(`${server.url}/v2/queues`, { headers: foreign })).status, 403);
  } finally {
    await server.stop();
  }
});
