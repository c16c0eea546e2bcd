// An SDK of early 2025: it says some things in other ways, and has to keep working.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, Receiver as Verifier } from "qstash-old";
import { USERS } from "../support/server.js";
import { states, story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();

function oldClient() {
  return new Client({ baseUrl: it.server.url, token: USERS[0].token, retry: false });
}

test("publish, look, verify", async () => {
  const client = oldClient();
  const path = `/${unique("old")}`;
  const url = it.receiver.url(path);
  const { messageId } = await client.publishJSON({ url, body: { old: true }, headers: { "X-Old": "1" } });
  const [request] = await it.receiver.arrivals(path);
  assert.equal(request.headers["x-old"], "1");
  const verifier = new Verifier({ currentSigningKey: USERS[0].current, nextSigningKey: USERS[0].next });
  assert.equal(await verifier.verify({ signature: request.headers["upstash-signature"], body: request.body, url }), true);
  await assert.rejects(verifier.verify({ signature: request.headers["upstash-signature"], body: "forged", url }));
  assert.equal((await client.messages.get(messageId)).url, url);
  await eventually("DELIVERED", async () => {
    const { events } = await client.events({ filter: { messageId, state: "DELIVERED" } });
    return events.length === 1;
  });
});

test("ids to cancel and to delete stand in a JSON body", async () => {
  const client = oldClient();
  const later = async () => (await client.publish({ url: it.receiver.url("/later"), delay: 3600 })).messageId;
  const ids = [await later(), await later(), await later()];
  await client.messages.delete(ids[0]);
  assert.equal(await client.messages.deleteMany([ids[0], ids[1]]), 1);
  const { events } = await client.events({ filter: { messageId: ids[1] } });
  assert.deepEqual(states(events), ["CANCELED", "CANCEL_REQUESTED", "CREATED"]);
  assert.equal(await client.messages.deleteAll(), 1);
});

test("the DLQ: list with its double group filter, delete one, delete many", async () => {
  const client = oldClient();
  const path = `/${unique("dead")}`;
  it.receiver.script(path, 500);
  for (let n = 0; n < 3; n += 1) await client.publish({ url: it.receiver.url(path), retries: 0 });
  const letters = await eventually("3 dead letters", async () => {
    const { messages } = await client.dlq.listMessages({ filter: { url: it.receiver.url(path) } });
    return messages.length === 3 ? messages : undefined;
  });
  assert.equal((await client.dlq.listMessages({ filter: { urlGroup: "none" } })).messages.length, 0);
  await client.dlq.delete(letters[0].dlqId);
  assert.deepEqual(await client.dlq.deleteMany({ dlqIds: letters.map((letter) => letter.dlqId) }), { deleted: 2 });
});

test("batch", async () => {
  const client = oldClient();
  const path = `/${unique("batch")}`;
  const answers = await client.batchJSON([1, 2].map((n) => ({ url: it.receiver.url(path), body: { n } })));
  assert.equal(answers.length, 2);
  await it.receiver.arrivals(path, 2);
});
