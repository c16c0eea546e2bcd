// The kit's example `signatures`, and the deliveries on which it and the SDKs must agree.

import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { REPOSITORY } from "./server.js";

const PROGRAM = path.join(REPOSITORY, "target/debug/examples/signatures");
const URL = "https://app.example.com/jobs";

/** The table of deliveries, with bodies as bytes and times as seconds since 1970. */
export async function table() {
  const { keys, cases } = JSON.parse(await readFile(path.join(REPOSITORY, "e2e/signatures.json"), "utf8"));
  const now = Math.floor(Date.now() / 1000);
  const read = ({ name, signed, received = {}, tamper, refused }) => {
    const { unpadded = false, issuer = "Upstash", not_before: notBefore, seconds_ago: secondsAgo = 0 } = signed;
    const url = signed.url ?? URL;
    const body = bytes(signed);
    const isChanged = received.body !== undefined || received.base64 !== undefined;
    return {
      name,
      // Signatures that the kit's test helper cannot create.
      isForTheKit: !("unpadded" in signed || "issuer" in signed || "not_before" in signed),
      isText: signed.base64 === undefined,
      signed: { url, body, key: keys[signed.key ?? "current"], at: now - secondsAgo, issuer, unpadded, notBefore: notBefore ? now + notBefore : 0 },
      received: { url: received.url ?? url, body: isChanged ? bytes(received) : body },
      tamper,
      refused: refused ?? null,
    };
  };
  return { keys, cases: cases.map(read) };
}

function bytes({ body, times = 1, base64 }) {
  return base64 === undefined ? Buffer.from(body.repeat(times)) : Buffer.from(base64, "base64");
}

/** The token as it arrives. */
export function tampered(token, part) {
  const [header, claims, mac] = token.split(".");
  const other = (text) => text.slice(0, 8) + (text[8] === "A" ? "B" : "A") + text.slice(9);
  switch (part) {
    case undefined:
      return token;
    case "claims":
      return [header, other(claims), mac].join(".");
    case "mac":
      return [header, claims, other(mac)].join(".");
    case "none":
      return [Buffer.from('{"alg":"none","typ":"JWT"}').toString("base64url"), claims, ""].join(".");
    default:
      throw new Error(`there is no way to change ${part}`);
  }
}

/** Signatures of the kit's test helper. */
export async function sign(cases) {
  return await run("sign", cases.map(({ signed: { url, key, body, at } }) => ({ url, key, body: body.toString("base64"), at })));
}

/** Why the kit's receiver rejects each of these; null if it accepts it. */
export async function verify(keys, cases, signatures) {
  const arrived = ({ received: { url, body } }, index) => ({ ...keys, url, body: body.toString("base64"), signature: signatures[index] });
  return await run("verify", cases.map(arrived));
}

async function run(command, input) {
  const child = spawn(PROGRAM, [command], { stdio: ["pipe", "pipe", "inherit"] });
  const output = [];
  child.stdout.on("data", (chunk) => output.push(chunk));
  child.stdin.end(JSON.stringify(input));
  const code = await new Promise((resolve, reject) => child.once("error", reject).once("close", resolve));
  if (code !== 0) throw new Error(`signatures ${command} ended with ${code}`);
  return JSON.parse(Buffer.concat(output).toString());
}
