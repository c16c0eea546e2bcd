// Shutdowns and kills of the server: acknowledged data is kept.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client, Receiver as Verifier } from "@upstash/qstash";
import { gate, Receiver } from "../support/receiver.js";
import { run, Server } from "../support/server.js";
import { states } from "../support/story.js";
import { eventually } from "../support/wait.js";

let receiver;
before(async () => (receiver = await Receiver.start()));
after(async () => await receiver.stop());

/** Runs a test with its own server. */
async function withServer(args, body) {
  const server = await Server.start(...args);
  try {
    await body(server);
  } finally {
    await server.stop();
  }
}

async function statesOf(client, messageId) {
  const { logs } = await client.logs({ messageIds: [messageId] });
  return states([...logs].reverse());
}

test("kill -9: every acknowledged message arrives after the restart, delayed or not", async () => {
  await withServer([], async (server) => {
    const client = server.client();
    const { opened, open } = gate();
    receiver.script("/killed-slow", { status: 200, after: opened }, 200);
    const slow = await client.publish({ url: receiver.url("/killed-slow"), body: "under way" });
    await receiver.arrivals("/killed-slow");
    const publishes = [];
    for (let n = 0; n < 60; n += 1) {
      const delay = [undefined, 1, 2][n % 3];
      publishes.push(client.publish({ url: receiver.url("/killed"), body: `${n}`, delay }));
    }
    const published = await Promise.all(publishes);

    assert.equal((await server.kill()).signal, "SIGKILL");
    open();
    await server.start();

    await eventually("all 60 bodies", () => new Set(receiver.at("/killed").map((request) => request.body)).size === 60);
    const ids = new Set(published.map((answer) => answer.messageId));
    for (const request of receiver.at("/killed")) {
      assert.ok(ids.has(request.headers["upstash-message-id"]), "a second delivery has the first one's id");
    }
    const [, again] = await receiver.arrivals("/killed-slow", 2);
    assert.equal(again.headers["upstash-message-id"], slow.messageId, "what was under way is delivered again");
    assert.equal(again.body, "under way");
    await eventually("the slow one DELIVERED", async () => (await statesOf(server.client(), slow.messageId)).at(-1) === "DELIVERED");
  });
});

test("kill -9: dead letters, logs, cancellations and dedup ids are still there", async () => {
  await withServer([], async (server) => {
    let client = server.client();
    receiver.script("/kept-dead", { status: 500, body: "no" });
    const dead = await client.publish({ url: receiver.url("/kept-dead"), body: "dead", retries: 0 });
    const [letter] = await eventually("the dead letter", async () => {
      const { messages } = await client.dlq.listMessages();
      return messages.length ? messages : undefined;
    });
    const cancelled = await client.publish({ url: receiver.url("/kept-cancelled"), delay: 1 });
    await client.messages.cancel(cancelled.messageId);
    const once = { url: receiver.url("/kept-once"), deduplicationId: "once" };
    const first = await client.publish(once);
    await receiver.arrivals("/kept-once");
    const later = await client.publish({ url: receiver.url("/kept-later"), delay: 3600, label: "later", body: "later" });
    const message = await client.messages.get(later.messageId);

    await server.kill();
    await server.start();
    client = server.client();

    assert.deepEqual((await client.dlq.listMessages()).messages, [letter]);
    assert.deepEqual(await statesOf(client, dead.messageId), ["CREATED", "ACTIVE", "ERROR", "FAILED"]);
    assert.deepEqual(await statesOf(client, cancelled.messageId), ["CREATED", "CANCEL_REQUESTED", "CANCELED"]);
    assert.deepEqual(await client.publish(once), { messageId: first.messageId, deduplicated: true });
    assert.deepEqual(await client.messages.get(later.messageId), message);
    assert.deepEqual(await client.messages.cancel({ filter: { label: "later" } }), { cancelled: 1 });
    receiver.script("/kept-dead", 200);
    await client.dlq.retry(letter.dlqId);
    const revived = await receiver.arrivals("/kept-dead", 2);
    assert.equal(revived[1].body, "dead");
    assert.equal(receiver.at("/kept-cancelled").length, 0);
  });
});

test("kill -9: keys that were rotated in serve mode stay rotated", async () => {
  const token = "x".repeat(40);
  const configured = { current: `sig_${"a".repeat(32)}`, next: `sig_${"b".repeat(32)}` };
  const server = await Server.startIn(
    "serve",
    ...["--token", token, "--current-signing-key", configured.current, "--next-signing-key", configured.next],
    ...["--egress-allow-cidrs", "127.0.0.1/32"],
  );
  const headers = { authorization: `Bearer ${token}` };
  const rotate = async () => await (await server.fetch("/v2/keys/rotate", { method: "POST", headers })).json();
  try {
    const first = await rotate();
    assert.equal(first.current, configured.next);
    await server.kill();
    await server.start();
    assert.deepEqual(await (await server.fetch("/v2/keys", { headers })).json(), first);
    const second = await rotate();
    assert.equal(second.current, first.next);

    const url = receiver.url("/rotated-twice");
    await new Client({ baseUrl: server.url, token, retry: false }).publish({ url, body: "x" });
    const [request] = await receiver.arrivals("/rotated-twice");
    const verify = async ({ current, next }) => {
      const verifier = new Verifier({ currentSigningKey: current, nextSigningKey: next });
      return await verifier.verify({ signature: request.headers["upstash-signature"], body: "x", url });
    };
    assert.equal(await verify(second), true);
    assert.equal(await verify(first), true);
    await assert.rejects(verify(configured), "the first pair is out of use after two rotations");
  } finally {
    await server.stop();
  }
});

test("SIGTERM: a delivery in flight may finish, and is not repeated", async () => {
  await withServer([], async (server) => {
    const client = server.client();
    const { opened, open } = gate();
    receiver.script("/grace", { status: 200, after: opened });
    const { messageId } = await client.publish({ url: receiver.url("/grace") });
    await receiver.arrivals("/grace");
    const ended = server.terminate();
    await eventually("no new connections", async () => await client.messages.get(messageId).then(() => false, () => true));
    open();
    assert.deepEqual(await ended, { code: 0, signal: null });
    await server.start();
    assert.deepEqual(await statesOf(server.client(), messageId), ["CREATED", "ACTIVE", "DELIVERED"]);
    assert.equal(receiver.at("/grace").length, 1);
  });
});

test("SIGTERM: deliveries that exceed the grace time are repeated after the restart", async () => {
  await withServer(["--shutdown-grace", "1s"], async (server) => {
    const { opened, open } = gate();
    receiver.script("/no-grace", { status: 200, after: opened }, 200);
    const { messageId } = await server.client().publish({ url: receiver.url("/no-grace"), body: "patience" });
    await receiver.arrivals("/no-grace");
    assert.deepEqual(await server.terminate(), { code: 0, signal: null });
    open();
    await server.start();
    const [, again] = await receiver.arrivals("/no-grace", 2);
    assert.equal(again.headers["upstash-message-id"], messageId);
    assert.equal(again.headers["upstash-retried"], "0", "an abandoned attempt costs no retry");
    await eventually("DELIVERED", async () => (await statesOf(server.client(), messageId)).at(-1) === "DELIVERED");
  });
});

test("a second server on the same data directory fails to start, and the first continues", async () => {
  await withServer([], async (server) => {
    const second = await run("dev", "--listen", "127.0.0.1:0", "--data-dir", server.dataDir);
    assert.equal(second.code, 1);
    assert.match(second.stderr, /the data directory .* is in use by another posthaste process \(pid \d+\)/);
    await server.client().publish({ url: receiver.url("/first") });
    await receiver.arrivals("/first");
  });
});

test("a port that is in use is reported", async () => {
  await withServer([], async (server) => {
    const { host } = new URL(server.url);
    const second = await run("dev", "--listen", host, "--data-dir", `${server.dataDir}/other`);
    assert.equal(second.code, 1);
    assert.match(second.stderr, /cannot listen on .*in use/);
  });
});
