// Signatures: the SDK's Receiver verifies real deliveries, before and after a key rotation.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Receiver as Verifier } from "@upstash/qstash";
import { USERS } from "../support/server.js";
import { story, unique } from "../support/story.js";

const it = story();

async function deliver(options, user = 0) {
  const path = `/${unique("signed")}`;
  const url = it.receiver.url(`${path}${options.query ?? ""}`);
  await it.server.client(user).publish({ url, body: options.body, method: options.method });
  const [request] = await it.receiver.arrivals(path);
  return { signature: request.headers["upstash-signature"], body: request.body, url, messageId: request.headers["upstash-message-id"] };
}

function verifier({ current, next }) {
  return new Verifier({ currentSigningKey: current, nextSigningKey: next });
}

test("real deliveries are accepted: text, JSON, empty, with a query", async () => {
  for (const options of [{ body: "text" }, { body: '{"a":1}' }, { body: undefined }, { body: "x", query: "?a=1&b=%20" }, { body: "grüße ☃" }, { body: "got", method: "GET" }]) {
    assert.equal(await verifier(USERS[0]).verify(await deliver(options)), true);
  }
});

test("a changed body, another URL and another key are rejected", async () => {
  const delivery = await deliver({ body: "genuine" });
  await assert.rejects(verifier(USERS[0]).verify({ ...delivery, body: "forged" }), /body/i);
  await assert.rejects(verifier(USERS[0]).verify({ ...delivery, url: `${delivery.url}x` }), /subject|sub/i);
  await assert.rejects(verifier(USERS[1]).verify(delivery), /signature/i);
  const [head, claims, mac] = delivery.signature.split(".");
  await assert.rejects(verifier(USERS[0]).verify({ ...delivery, signature: `${head}.${claims}.${mac.slice(0, -4)}AAAA` }), /signature/i);
});

test("the claims are those of the contract, and the id of the message", async () => {
  const before = Math.floor(Date.now() / 1000);
  const { signature, url, messageId } = await deliver({ body: "" });
  const [head, claims] = signature.split(".").slice(0, 2).map((part) => JSON.parse(Buffer.from(part, "base64url")));
  assert.deepEqual(head, { alg: "HS256", typ: "JWT" });
  const { iat, exp, jti, ...rest } = claims;
  assert.deepEqual(rest, { iss: "Upstash", sub: url, nbf: 0, body: "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=", messageId });
  assert.match(messageId, /^msg_/);
  assert.ok(iat >= before && iat <= Math.floor(Date.now() / 1000));
  assert.equal(exp, iat + 300);
  assert.match(jti, /^jwt_\w{20,}$/);
});

test("every user has separate keys", async () => {
  for (const [index, user] of USERS.entries()) {
    const keys = await (await it.server.fetch("/v2/keys", { user: index })).json();
    assert.deepEqual(keys, { current: user.current, next: user.next });
    assert.equal(await verifier(user).verify(await deliver({ body: "mine" }, index)), true);
  }
});

test("after a rotation receivers with the old pair still accept", async () => {
  const user = 3;
  const old = { current: USERS[user].current, next: USERS[user].next };
  const rotate = async () => await (await it.server.fetch("/v2/keys/rotate", { method: "POST", user })).json();
  const first = await rotate();
  assert.equal(first.current, old.next);
  assert.match(first.next, /^sig_\w{20,}$/);
  assert.notEqual(first.next, old.next);
  const delivery = await deliver({ body: "rotated" }, user);
  assert.equal(await verifier(old).verify(delivery), true, "the next key of the old pair signs now");
  assert.equal(await verifier(first).verify(delivery), true);
  assert.equal((await rotate()).current, first.next, "each rotation moves on");
});

test("development keys are the published ones again after a restart, as the SDK's development mode expects", async () => {
  await it.server.fetch("/v2/keys/rotate", { method: "POST" });
  await it.server.kill();
  await it.server.start();
  const keys = await (await it.server.fetch("/v2/keys")).json();
  assert.deepEqual(keys, { current: USERS[0].current, next: USERS[0].next });
  assert.equal(await verifier(USERS[0]).verify(await deliver({ body: "again" })), true);
});
