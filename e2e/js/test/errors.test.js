// Errors: the status and the envelope that the SDK turns into its own error.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client } from "@upstash/qstash";
import { refused, story } from "../support/story.js";

const it = story();

test("a wrong token is 401, with the text of the hosted service", async () => {
  for (const token of ["wrong", "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoid3JvbmcifQ=="]) {
    const client = new Client({ baseUrl: it.server.url, token, retry: false });
    for (const call of [
      () => client.publish({ url: it.receiver.url("/unused") }),
      () => client.batch([{ url: it.receiver.url("/unused") }]),
      () => client.messages.get("msg_1"),
      () => client.messages.cancel({ all: true }),
      () => client.dlq.listMessages(),
      () => client.dlq.retry("1-1"),
      () => client.logs(),
    ]) {
      await refused(call(), 401, /unable to authenticate: invalid token/);
    }
  }
  const none = await fetch(`${it.server.url}/v2/events`);
  assert.equal(none.status, 401);
  assert.match((await none.json()).error, /^unable to authenticate: invalid token: the request has no Authorization header;/);
});

test("bad destinations are rejected", async () => {
  const scheme = /invalid destination url: endpoint has invalid scheme, add http:\/\/ or https:\/\//;
  await refused(it.client.publish({ url: "example.com:8080/hook" }), 400, scheme);
  await refused(it.client.publish({ url: "ftp://example.com/" }), 400, scheme);
  await refused(it.client.publish({ url: "ftp://example.com/" }), 400, /; ftp is not supported; received \\"ftp:\/\/example\.com\/\\"/);
  await refused(it.client.batch([{ url: it.receiver.url("/unused") }, { url: "example.com/hook" }]), 400, /item 1: destination: invalid/);
  await refused(it.client.publish({ url: "http://" }), 400, /destination/);
  await refused(it.client.publish({ url: "http://exa mple.com/" }), 400, /destination/);
  await refused(it.client.publish({ url: "http://user@:80/" }), 400, /destination/);
  const empty = await it.server.fetch("/v2/publish/", { method: "POST" });
  assert.equal(empty.status, 400);
  assert.match((await empty.json()).error, /a non-empty destination must be provided/);
  await refused(it.client.publish({ urlGroup: "no-such-group" }), 404, /topic no-such-group not found/);
});

test("a message to the server itself is rejected as a loop", async () => {
  await refused(it.client.publish({ url: `${it.server.url}/v2/publish/${it.receiver.url("/unused")}` }), 400, /destination/);
});

test("bad settings are rejected with the name of the field", async () => {
  const url = it.receiver.url("/unused");
  await refused(it.client.publish({ url, delay: "soon" }), 400, /Upstash-Delay: \\"soon\\" is not a duration; accepted are/);
  await refused(it.client.publish({ url, delay: "500ms" }), 400, /\\"500ms\\" is not a duration: ms is not supported here/);
  await refused(it.client.publish({ url, retryDelay: "2^retried" }), 400, /use pow\(2, retried\)/);
  await refused(it.client.publish({ url, delay: "-5s" }), 400, /delay/i);
  await refused(it.client.publish({ url, delay: "5 s" }), 400, /delay/i);
  await refused(it.client.publish({ url, timeout: "1x" }), 400, /timeout/i);
  await refused(it.client.publish({ url, method: "BREW" }), 400, /method/i);
  for (const [name, value] of [
    ["Upstash-Not-Before", "tomorrow"],
    ["Upstash-Content-Based-Deduplication", "maybe"],
    ["Upstash-Redact-Fields", "everything"],
    ["Upstash-Retries", "1.5"],
  ]) {
    const response = await it.server.fetch(`/v2/publish/${url}`, { method: "POST", headers: { [name]: value } });
    assert.equal(response.status, 400, name);
    assert.match((await response.json()).error, new RegExp(name, "i"));
  }
  assert.equal(it.receiver.at("/unused").length, 0);
});

test("unknown Upstash headers are ignored", async () => {
  await it.client.publish({ url: it.receiver.url("/unknown"), headers: { "Upstash-Something-New": "1" }, body: "x" });
  const [request] = await it.receiver.arrivals("/unknown");
  assert.equal(request.headers["upstash-something-new"], undefined);
});

test("every error response is the JSON envelope", async () => {
  for (const [method, target, status] of [
    ["GET", "/v2/nothing-here", 404],
    ["GET", "/", 404],
    ["GET", "/v2/messages/msg_unknown", 404],
    ["GET", "/v2/dlq/1-1", 404],
    ["PATCH", "/v2/batch", 405],
    ["PUT", "/v2/dlq", 405],
    ["GET", "/v2/events?state=NONSENSE", 400],
    ["GET", "/v2/events?count=0", 400],
    ["GET", "/v2/events?fromDate=yesterday", 400],
    ["GET", "/v2/dlq?cursor=nonsense", 400],
  ]) {
    const response = await it.server.fetch(target, { method });
    assert.equal(response.status, status, `${method} ${target}`);
    assert.match(response.headers.get("content-type"), /^application\/json/);
    assert.equal(typeof (await response.json()).error, "string");
  }
});

test("a body over the limit is rejected and not stored", async () => {
  const body = "x".repeat(10 * 1024 * 1024 + 1);
  await refused(it.client.publish({ url: it.receiver.url("/unused"), body }), 412, /quota maxMessageSize exceeded, current limit: 10485760 \(10 MiB\)/);
});
