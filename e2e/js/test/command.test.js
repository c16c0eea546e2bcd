// The command line: help, rejections, and a server in serve mode with its own tenants.

import assert from "node:assert/strict";
import { readFile, stat, writeFile, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { Client, Receiver as Verifier } from "@upstash/qstash";
import { Receiver } from "../support/receiver.js";
import { run, Server, USERS } from "../support/server.js";
import { refused } from "../support/story.js";
import { eventually } from "../support/wait.js";

test("--help names every command, and a wrong word is rejected", async () => {
  const help = await run("--help");
  assert.equal(help.code, 0);
  assert.match(help.stdout, /^Durable, signed, retried, deduplicated HTTP message delivery/);
  for (const command of ["dev", "serve", "new-tenant", "new-token", "help"]) {
    assert.match(help.stdout, new RegExp(`^  ${command} +\\S`, "m"));
  }
  assert.match((await run("--version")).stdout, /^posthaste \d+\.\d+\.\d+ \((debug|release|dist)\)\s*$/);
  assert.equal((await run("frobnicate")).code, 2);
  assert.equal((await run("dev", "--no-such-flag")).code, 2);
});

test("dev --help explains every flag, its variable, and hides secrets", async () => {
  const { stdout } = await run("dev", "--help");
  for (const flag of ["config", "print-config", "listen", "data-dir", "public-url", "token", "egress-allow-cidrs", "log-retention", "dlq-retention", "shutdown-grace", "log-format", "log"]) {
    assert.match(stdout, new RegExp(`^ +--${flag}\\b`, "m"), flag);
  }
  assert.match(stdout, /\[env: POSTHASTE_LISTEN=\]/);
  assert.match(stdout, /\[default: 127\.0\.0\.1:8080\]/);
  const tooWide = stdout.split("\n").filter((line) => line.length > 120);
  assert.deepEqual(tooWide, []);
});

test("dev listens on loopback only", async () => {
  const { code, stderr } = await run("dev", "--listen", "0.0.0.0:0");
  assert.equal(code, 1);
  assert.match(stderr, /not a loopback address/);
});

test("serve refuses to run without tenants, and with the published development credentials", async () => {
  const nobody = await run("serve", "--listen", "127.0.0.1:0");
  assert.equal(nobody.code, 1);
  assert.match(nobody.stderr, /posthaste new-tenant/);
  const keys = ["--current-signing-key", "sig_" + "a".repeat(32), "--next-signing-key", "sig_" + "b".repeat(32)];
  const published = await run("serve", "--listen", "127.0.0.1:0", "--token", USERS[0].token, ...keys);
  assert.equal(published.code, 1);
  assert.match(published.stderr, /published development token or key/);
  const token = ["--token", "x".repeat(40)];
  const publishedKey = await run("serve", ...token, "--current-signing-key", USERS[1].current, "--next-signing-key", keys[3]);
  assert.equal(publishedKey.code, 1);
  assert.match(publishedKey.stderr, /published development token or key/);
  const short = await run("serve", "--token", "short", ...keys);
  assert.equal(short.code, 1);
  assert.match(short.stderr, /shorter than/);
});

test("--print-config shows the effective settings, and no secret", async () => {
  const { code, stdout } = await run("dev", "--listen", "127.0.0.1:9", "--print-config");
  assert.equal(code, 0);
  assert.match(stdout, /^listen = "127\.0\.0\.1:9"$/m);
  assert.ok(!stdout.includes(USERS[0].token) && !stdout.includes(USERS[0].current));
});

/** The variables of an .env block. */
const variablesOf = (block) => Object.fromEntries([...block.matchAll(/^(QSTASH_\w+)=(\S+)$/gm)].map(([, name, value]) => [name, value]));

test("new-tenant separates the variables of programs from the settings of the server", async () => {
  const dir = await mkdtemp(path.join(tmpdir(), "posthaste-tenant-"));
  try {
    const [env, toml] = (await run("new-tenant", "acme")).stdout.split("\n\n");
    const names = ["QSTASH_URL", "QSTASH_TOKEN", "QSTASH_CURRENT_SIGNING_KEY", "QSTASH_NEXT_SIGNING_KEY"];
    assert.deepEqual(Object.keys(variablesOf(env)), names);
    assert.match(toml, /^\[\[tenants\]\]\nname = "acme"\n/m);
    const apart = await run("new-tenant", "acme", "--env");
    assert.deepEqual(Object.keys(variablesOf(apart.stdout)), names);
    assert.ok(!apart.stdout.includes("[[tenants]]") && apart.stderr.includes("[[tenants]]"));
    const file = path.join(dir, "posthaste.toml");
    assert.equal((await run("new-tenant", "a", "--write", file)).code, 0);
    assert.equal((await stat(file)).mode & 0o777, 0o600);
    const again = await run("new-tenant", "a", "--write", file);
    assert.equal(again.code, 1);
    assert.match(again.stderr, /already has a tenant named "a"/);
    assert.equal((await readFile(file, "utf8")).match(/\[\[tenants\]\]/g).length, 1);
  } finally {
    await rm(dir, { recursive: true });
  }
});

test("serve runs with the tenant that new-tenant has written, and its programs with the variables", async () => {
  const dir = await mkdtemp(path.join(tmpdir(), "posthaste-config-"));
  const file = path.join(dir, "posthaste.toml");
  await writeFile(file, 'egress_allow_cidrs = ["127.0.0.1/32"]\n');
  const printed = (await run("new-tenant", "acme", "--write", file)).stdout;
  const { QSTASH_TOKEN: token, QSTASH_CURRENT_SIGNING_KEY: current, QSTASH_NEXT_SIGNING_KEY: next } = variablesOf(printed);
  const [, readOnly] = /read-only token: (\S+)/.exec(printed);
  const receiver = await Receiver.start();
  const server = await Server.startIn("serve", "--config", file);
  try {
    const url = receiver.url("/tenant");
    const client = new Client({ baseUrl: server.url, token, retry: false });
    const { messageId } = await client.publish({ url, body: "mine" });
    const [request] = await receiver.arrivals("/tenant");
    const verifier = new Verifier({ currentSigningKey: current, nextSigningKey: next });
    assert.equal(await verifier.verify({ signature: request.headers["upstash-signature"], body: "mine", url }), true);

    const reader = new Client({ baseUrl: server.url, token: readOnly, retry: false });
    assert.equal((await reader.messages.get(messageId)).messageId, messageId);
    await refused(reader.publish({ url }), 403, /read-only/);
    await refused(reader.messages.cancel({ all: true }), 403, /read-only/);
    const keys = await fetch(`${server.url}/v2/keys`, { headers: { authorization: `Bearer ${readOnly}` } });
    assert.equal(keys.status, 403);

    await refused(server.client().logs(), 401);
    await refused(client.publish({ url: "http://169.254.169.254/latest/meta-data" }), 400, /destination/);
    await refused(client.publish({ url: "http://10.0.0.1/" }), 400, /destination/);
    for (const secret of [token, readOnly, current, next]) assert.ok(!server.output.includes(secret), "no secret in the log");
  } finally {
    await server.stop();
    await receiver.stop();
    await rm(dir, { recursive: true });
  }
});

test("serve sends nothing to private addresses unless they are allowed", async () => {
  const keys = ["--current-signing-key", "sig_" + "a".repeat(32), "--next-signing-key", "sig_" + "b".repeat(32)];
  const token = "x".repeat(40);
  const receiver = await Receiver.start();
  const server = await Server.startIn("serve", "--token", token, ...keys);
  try {
    const client = new Client({ baseUrl: server.url, token, retry: false });
    await refused(client.publish({ url: receiver.url("/private") }), 400, /destination/);
    // A name is looked up when the message is delivered, and is refused then.
    const named = receiver.url("/private").replace("127.0.0.1", "localhost");
    const outcome = await client.publish({ url: named, retries: 0 }).then((answer) => answer.messageId, (error) => error.status);
    if (outcome !== 400) {
      await eventually("FAILED", async () => {
        const { logs } = await client.logs({ messageIds: [outcome] });
        return logs.some((log) => log.state === "FAILED");
      });
    }
    assert.equal(receiver.requests.length, 0);
  } finally {
    await server.stop();
    await receiver.stop();
  }
});
