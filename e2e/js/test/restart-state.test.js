// kill -9 during the use of queues, flow control, groups and callbacks loses none of their state.
// Schedules across kill -9 are in at-the-minute.test.js.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { gate, keepsRate, Receiver } from "../support/receiver.js";
import { Server } from "../support/server.js";
import { eventually } from "../support/wait.js";

let receiver;
before(async () => (receiver = await Receiver.start()));
after(async () => await receiver.stop());

/** Runs a test with its own server, which `restart` kills and starts again on the same port. */
async function withServer(body) {
  const server = await Server.start();
  try {
    await body(server, server.client());
  } finally {
    await server.stop();
  }
}

const idOf = (request) => request.headers["upstash-message-id"];
const bodiesAt = (path) => receiver.at(path).map((request) => request.body);

/** The bodies at a path, each at its first arrival: a crash may repeat a delivery, never its order. */
const firstBodiesAt = (path) => [...new Set(bodiesAt(path))];

async function logged(client, messageId, state) {
  await eventually(`${messageId} ${state}`, async () => (await client.logs({ filter: { messageId, state } })).logs.length > 0);
}

describe("kill -9", { concurrency: 4 }, () => {
  test("a queue whose head waits for its retry keeps its order", async () => {
    await withServer(async (server, client) => {
      const queue = client.queue({ queueName: "ordered" });
      const { opened, open } = gate();
      receiver.script("/ordered", 500, { status: 500, after: opened }, 200);
      const ids = [];
      for (const body of ["1", "2", "3", "4"]) {
        ids.push((await queue.enqueue({ url: receiver.url("/ordered"), body, retries: 5, retryDelay: "4000" })).messageId);
      }
      await logged(client, ids[0], "RETRY");
      await server.restart();
      assert.equal((await queue.get()).lag, 4);
      await receiver.arrivals("/ordered", 2);
      open();
      await server.restart();
      await eventually("all four", () => firstBodiesAt("/ordered").length === 4);
      assert.deepEqual(firstBodiesAt("/ordered"), ["1", "2", "3", "4"]);
      const arrived = bodiesAt("/ordered");
      assert.deepEqual(arrived, [...arrived].sort(), "none overtook another");
      await logged(client, ids[3], "DELIVERED");
      assert.equal((await queue.get()).lag, 0);
    });
  });

  test("a queue keeps its parallelism, its pause and its messages; a message in flight keeps its place", async () => {
    await withServer(async (server, client) => {
      const queue = client.queue({ queueName: "kept" });
      const { opened, open } = gate();
      receiver.script("/kept", { status: 200, after: opened });
      for (const body of ["1", "2", "3"]) await queue.enqueue({ url: receiver.url("/kept"), body });
      await receiver.arrivals("/kept");
      const paused = client.queue({ queueName: "paused" });
      await paused.upsert({ parallelism: 3, paused: true });
      for (const body of ["a", "b"]) await paused.enqueue({ url: receiver.url("/paused"), body });
      const shown = await paused.get();
      await server.restart();
      assert.deepEqual(await paused.get(), shown);
      await receiver.arrivals("/kept", 2);
      assert.deepEqual(bodiesAt("/kept"), ["1", "1"], "what was under way is delivered again, before the others");
      open();
      await eventually("the rest", () => firstBodiesAt("/kept").length === 3);
      assert.deepEqual(bodiesAt("/kept"), ["1", "1", "2", "3"]);
      assert.equal(receiver.at("/paused").length, 0);
      await paused.upsert({ parallelism: 1 });
      await receiver.arrivals("/paused", 2);
      assert.deepEqual(bodiesAt("/paused"), ["a", "b"]);
    });
  });

  test("limits, pins and pauses of flow control keys are kept, with their waiting messages", async () => {
    await withServer(async (server, client) => {
      const publish = async (key, path, limits = { parallelism: 2, rate: 9, period: "1h" }) =>
        await client.publish({ url: receiver.url(path), flowControl: { key, ...limits } });
      await publish("pinned", "/pinned");
      await client.flowControl.pin("pinned", { parallelism: 4, rate: 7, period: 60 });
      await client.flowControl.pause("paused");
      for (let n = 0; n < 3; n += 1) await publish("paused", "/paused-key");
      const { opened, open } = gate();
      receiver.script("/one-by-one", { status: 200, after: opened });
      for (let n = 0; n < 3; n += 1) await publish("one", "/one-by-one", { parallelism: 1 });
      await receiver.arrivals("/one-by-one");
      const read = async () => await Promise.all(["pinned", "paused", "one"].map((key) => client.flowControl.get(key)));
      await eventually("nothing of /pinned under way", async () => (await read())[0].parallelismCount === 0);
      const shown = await read();
      await server.restart();
      const kept = (infos) => infos.map(({ ratePeriodStart, parallelismCount, ...rest }) => rest);
      await receiver.arrivals("/one-by-one", 2);
      assert.deepEqual(kept(await read()), kept(shown));
      await publish("pinned", "/pinned", { parallelism: 99 });
      const pinned = await client.flowControl.get("pinned");
      assert.deepEqual([pinned.parallelismMax, pinned.rateMax, pinned.ratePeriod], [4, 7, 60]);
      assert.equal(receiver.at("/one-by-one").length, 2, "one at a time: the first, and the first again");
      assert.equal(receiver.at("/paused-key").length, 0);
      await client.flowControl.resume("paused");
      await receiver.arrivals("/paused-key", 3);
      open();
      await eventually("all three", () => new Set(receiver.at("/one-by-one").map(idOf)).size === 3);
    });
  });

  test("a rate holds at the receiver, over two kills", async () => {
    await withServer(async (server, client) => {
      const [rate, periodMs, count] = [2, 2_000, 8];
      const since = Date.now();
      const ids = [];
      for (let n = 0; n < count; n += 1) {
        const { messageId } = await client.publish({ url: receiver.url("/rated"), flowControl: { key: "rated", rate, period: 2 } });
        ids.push(messageId);
      }
      for (const end of [rate, 2 * rate]) {
        await receiver.arrivals("/rated", end);
        for (const id of receiver.at("/rated").map(idOf)) await logged(client, id, "DELIVERED");
        await server.restart();
      }
      const requests = await receiver.arrivals("/rated", count);
      assert.deepEqual(new Set(requests.map(idOf)), new Set(ids));
      keepsRate(requests, rate, periodMs, since);
    });
  });

  test("URL groups are kept, with their endpoints and default headers", async () => {
    await withServer(async (server, client) => {
      const endpoints = ["one", "two"].map((name) => ({ name, url: receiver.url(`/group-${name}`) }));
      await client.urlGroups.addEndpoints({ name: "kept", endpoints });
      await server.fetch("/v2/topics/kept", { method: "PATCH", body: '{"headers":{"Upstash-Forward-X-Default":"yes"}}' });
      const shown = await client.urlGroups.list();
      const published = await client.publish({ urlGroup: "kept", body: "before", delay: 1 });
      await server.restart();
      assert.deepEqual(await client.urlGroups.list(), shown);
      await client.publish({ urlGroup: "kept", body: "after" });
      for (const [n, { name }] of endpoints.entries()) {
        const requests = await receiver.arrivals(`/group-${name}`, 2);
        assert.deepEqual(requests.map((request) => request.headers["x-default"]), ["yes", "yes"]);
        const before = requests.find((request) => request.body === "before");
        assert.equal(idOf(before), published[n].messageId);
        assert.ok(requests.some((request) => request.body === "after"));
      }
    });
  });

  test("callbacks and failure callbacks that were due arrive, with the dead letter they name", async () => {
    await withServer(async (server, client) => {
      const gates = [gate(), gate()];
      receiver.script("/source", { status: 500, body: "no" });
      receiver.script("/callback", { status: 200, after: gates[0].opened }, 200);
      receiver.script("/failure", { status: 200, after: gates[1].opened }, 200);
      const { messageId } = await client.publish({ url: receiver.url("/source"), body: "x", retries: 0, callback: receiver.url("/callback"), failureCallback: receiver.url("/failure") });
      const later = await client.publish({ url: receiver.url("/later-source"), delay: 1, callback: receiver.url("/later-callback") });
      const [callback] = await receiver.arrivals("/callback");
      const [failure] = await receiver.arrivals("/failure");
      await server.restart();
      for (const { open } of gates) open();
      const [, callbackAgain] = await receiver.arrivals("/callback", 2);
      const [, failureAgain] = await receiver.arrivals("/failure", 2);
      assert.deepEqual([idOf(callbackAgain), callbackAgain.body], [idOf(callback), callback.body]);
      assert.deepEqual([idOf(failureAgain), failureAgain.body], [idOf(failure), failure.body]);
      const { messages } = await client.dlq.listMessages({ filter: { messageId } });
      assert.equal(JSON.parse(failureAgain.body).dlqId, messages[0].dlqId);
      for (const request of [callback, failure]) await logged(client, idOf(request), "DELIVERED");
      const [delayed] = await receiver.arrivals("/later-callback");
      assert.equal(JSON.parse(delayed.body).sourceMessageId, later.messageId);
      assert.equal(receiver.at("/source").length, 1);
    });
  });

  test("a callback holds its place in the queue across a kill", async () => {
    await withServer(async (server, client) => {
      const queue = client.queue({ queueName: "held" });
      const { opened, open } = gate();
      receiver.script("/held-callback", { status: 200, after: opened });
      for (const body of ["1", "2"]) await queue.enqueue({ url: receiver.url("/held"), body, callback: receiver.url("/held-callback") });
      await receiver.arrivals("/held-callback");
      await server.restart();
      const [callback] = await receiver.arrivals("/held-callback", 2);
      assert.deepEqual(bodiesAt("/held"), ["1"]);
      open();
      await receiver.arrivals("/held", 2);
      assert.deepEqual(bodiesAt("/held"), ["1", "2"]);
      await logged(client, idOf(callback), "DELIVERED");
    });
  });
});
