// The Rust library for handlers and the SDK agree: each accepts the signatures of the other, and both reject forgeries.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { Receiver } from "@upstash/qstash";
import { SignJWT, jwtVerify } from "jose";
import * as kit from "../support/kit.js";

const { keys, cases } = await kit.table();

/** A signature as the SDK's own tests create it. */
async function sign({ url, body, key, at, issuer, notBefore, unpadded }) {
  const hash = createHash("sha256").update(body).digest("base64url");
  const token = new SignJWT({ iss: issuer, sub: url, iat: at, nbf: notBefore, exp: Math.max(at, notBefore) + 300, jti: "jwt_of_js", body: unpadded ? hash : `${hash}=` });
  return await token.setProtectedHeader({ alg: "HS256", typ: "JWT" }).sign(new TextEncoder().encode(key));
}

/** Whether the SDK accepts it. */
async function accepts({ isText, received: { url, body } }, signature) {
  if (!isText) return await acceptsBytes(url, body, signature);
  const receiver = new Receiver({ currentSigningKey: keys.current, nextSigningKey: keys.next });
  try {
    return await receiver.verify({ signature, url, body: body.toString() });
  } catch (error) {
    assert.equal(error.name, "SignatureError", error.stack);
    return false;
  }
}

/** The SDK accepts only texts. For other bodies, its steps are applied to the bytes. */
async function acceptsBytes(url, body, signature) {
  const { payload } = await jwtVerify(signature, new TextEncoder().encode(keys.current), { issuer: "Upstash" });
  return payload.sub === url && payload.body.replace(/=+$/, "") === createHash("sha256").update(body).digest("base64url");
}

async function agree(cases, signatures) {
  const arriving = cases.map(({ tamper }, index) => kit.tampered(signatures[index], tamper));
  const reasons = await kit.verify(keys, cases, arriving);
  for (const [index, it] of cases.entries()) {
    assert.equal(reasons[index], it.refused, `the kit about ${it.name}`);
    assert.equal(await accepts(it, arriving[index]), it.refused === null, `the SDK about ${it.name}`);
  }
}

test("both accept and reject the kit's signatures alike", async () => {
  const signable = cases.filter(({ isForTheKit }) => isForTheKit);
  assert.equal(signable.length, cases.length - 3);
  await agree(signable, await kit.sign(signable));
});

test("both accept and reject signatures of the SDK's tests alike", async () => {
  await agree(cases, await Promise.all(cases.map(({ signed }) => sign(signed))));
});
