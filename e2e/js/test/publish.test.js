// Publishing, and the requests that the receiver gets.

import assert from "node:assert/strict";
import { test } from "node:test";
import { story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();

test("publishJSON delivers the JSON with its content type and our headers", async () => {
  const { messageId } = await it.client.publishJSON({
    url: it.receiver.url("/json"),
    body: { hello: "world", n: 1 },
  });
  assert.match(messageId, /^msg_[A-Za-z0-9_-]+$/);
  const [request] = await it.receiver.arrivals("/json");
  assert.equal(request.method, "POST");
  assert.equal(request.body, '{"hello":"world","n":1}');
  assert.equal(request.headers["content-type"], "application/json");
  assert.equal(request.headers["user-agent"], "Upstash-QStash");
  assert.equal(request.headers["upstash-message-id"], messageId);
  assert.equal(request.headers["upstash-retried"], "0");
  assert.equal(request.headers["upstash-region"], "EU-CENTRAL-1");
  assert.equal(request.headers["upstash-caller-ip"], "127.0.0.1");
  assert.match(request.headers["upstash-signature"], /^eyJ[\w-]+\.[\w-]+\.[\w-]+$/);
  assert.equal(request.headers.authorization, undefined, "the API token stays with the server");
  const surplus = Object.keys(request.headers).filter((name) => /telemetry|retries|method|forward/.test(name));
  assert.deepEqual(surplus, [], "telemetry and settings are not passed on");
});

test("publish delivers text and binary data byte for byte", async () => {
  await it.client.publish({ url: it.receiver.url("/text"), body: "grüße, 世界 \u0000\r\n" });
  const [text] = await it.receiver.arrivals("/text");
  assert.equal(text.body, "grüße, 世界 \u0000\r\n");

  const bytes = Uint8Array.from({ length: 256 }, (_, index) => index);
  const { messageId } = await it.client.publish({ url: it.receiver.url("/bytes"), body: bytes });
  const [binary] = await it.receiver.arrivals("/bytes");
  assert.deepEqual([...binary.raw], [...bytes]);
  const message = await it.client.messages.get(messageId);
  assert.equal(message.body, undefined);
  assert.equal(message.bodyBase64, Buffer.from(bytes).toString("base64"));
});

test("a body of a megabyte arrives completely", async () => {
  const body = "0123456789abcdef".repeat(65_536);
  await it.client.publish({ url: it.receiver.url("/large"), body });
  const [request] = await it.receiver.arrivals("/large");
  assert.equal(request.raw.length, 1_048_576);
  assert.ok(request.body === body, "the bytes are the same");
});

test("an empty body is no body", async () => {
  await it.client.publish({ url: it.receiver.url("/empty") });
  const [request] = await it.receiver.arrivals("/empty");
  assert.equal(request.raw.length, 0);
});

test("headers are forwarded, without the prefix and with their values untouched", async () => {
  const { messageId } = await it.client.publish({
    url: it.receiver.url("/headers"),
    body: "x",
    headers: { "Content-Type": "text/plain; charset=utf-8", "My-Header": "a, b ;c", "Upstash-Forward-Authorization": "Bearer mine" },
  });
  const [request] = await it.receiver.arrivals("/headers");
  assert.equal(request.headers["content-type"], "text/plain; charset=utf-8");
  assert.equal(request.headers["my-header"], "a, b ;c");
  assert.equal(request.headers.authorization, "Bearer mine");
  const message = await it.client.messages.get(messageId);
  assert.deepEqual(message.header, {
    Authorization: ["Bearer mine"],
    "Content-Type": ["text/plain; charset=utf-8"],
    "My-Header": ["a, b ;c"],
  });
});

test("every method is delivered as requested, also GET with a body", async () => {
  for (const method of ["GET", "POST", "PUT", "PATCH", "DELETE"]) {
    const path = `/method-${method}`;
    await it.client.publish({ url: it.receiver.url(path), method, body: `as ${method}` });
    const [request] = await it.receiver.arrivals(path);
    assert.equal(request.method, method);
    assert.equal(request.body, `as ${method}`);
  }
});

test("path and query of the destination arrive exactly as written", async () => {
  const target = "/a%20b//c;d=1/%E4%B8%96?q=1&q=2&empty=&plus=a+b&enc=%26%3D&arr[]=x";
  await it.client.publish({ url: it.receiver.url(target), body: "x" });
  const [request] = await it.receiver.arrivals("/a%20b//c;d=1/%E4%B8%96");
  assert.equal(request.url, target);
});

test("settings in the query are settings, the rest belongs to the destination", async () => {
  const target = encodeURI(it.receiver.url("/query"));
  const response = await it.server.fetch(`/v2/publish/${target}?a=1&upstash-forward-x-from-query=yes&upstash-retries=0&b=2`, {
    method: "POST",
    body: "x",
  });
  assert.equal(response.status, 200);
  const [request] = await it.receiver.arrivals("/query");
  assert.equal(request.url, "/query?a=1&b=2");
  assert.equal(request.headers["x-from-query"], "yes");
});

test("the token may be in the query, and is not forwarded", async () => {
  const token = "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=";
  const target = it.receiver.url("/query-token");
  const response = await fetch(`${it.server.url}/v2/publish/${target}?x=1&qstash_token=${encodeURIComponent(token)}`, {
    method: "POST",
    body: "x",
  });
  assert.equal(response.status, 200);
  const [request] = await it.receiver.arrivals("/query-token");
  assert.equal(request.url, "/query-token?x=1");
});

test("a delayed message is delivered at its time", async () => {
  const published = Date.now();
  const { messageId } = await it.client.publish({ url: it.receiver.url("/delay"), body: "later", delay: 1 });
  const message = await it.client.messages.get(messageId);
  const delay = message.notBefore - message.createdAt;
  assert.equal(delay, 1_000);
  const [request] = await it.receiver.arrivals("/delay");
  assert.ok(request.at >= published + 1_000, `arrived after ${request.at - published} ms`);
});

test("delays in words are understood", async () => {
  for (const [delay, milliseconds] of [["10s", 10_000], ["2m", 120_000], ["1h30m3s", 5_403_000], ["1d", 86_400_000], [90, 90_000]]) {
    const { messageId } = await it.client.publish({ url: it.receiver.url("/never"), delay });
    const message = await it.client.messages.get(messageId);
    assert.equal(message.notBefore - message.createdAt, milliseconds, `delay ${delay}`);
    await it.client.messages.cancel(messageId);
  }
  assert.equal(it.receiver.at("/never").length, 0);
});

test("notBefore is an absolute time in seconds, and takes precedence over delay", async () => {
  const due = Math.floor(Date.now() / 1000) + 2;
  const { messageId } = await it.client.publish({ url: it.receiver.url("/not-before"), body: "x", notBefore: due, delay: "1d" });
  const message = await it.client.messages.get(messageId);
  assert.equal(message.notBefore, due * 1_000);
  const [request] = await it.receiver.arrivals("/not-before");
  assert.ok(request.at >= due * 1_000, "not before its time");
});

test("labels are kept and shown, one and several", async () => {
  const one = await it.client.publish({ url: it.receiver.url("/label"), label: "single" });
  const many = await it.client.publish({ url: it.receiver.url("/label"), label: ["first", "second"] });
  assert.deepEqual(pick(await it.client.messages.get(one.messageId), "label", "labels"), { label: "single", labels: ["single"] });
  assert.deepEqual(pick(await it.client.messages.get(many.messageId), "label", "labels"), { label: "first", labels: ["first", "second"] });
});

test("redacted fields are hidden in API responses, not in deliveries", async () => {
  const path = `/${unique("redact")}`;
  const { messageId } = await it.client.publish({
    url: it.receiver.url(path),
    body: "secret body",
    headers: { "X-Secret": "secret header", "X-Open": "open" },
    redact: { body: true, header: ["X-Secret"] },
  });
  const [request] = await it.receiver.arrivals(path);
  assert.equal(request.body, "secret body");
  assert.equal(request.headers["x-secret"], "secret header");
  const message = await it.client.messages.get(messageId);
  assert.match(message.body, /^REDACTED:[0-9a-f]{64}$/);
  assert.match(message.header["X-Secret"][0], /^REDACTED:[0-9a-f]{64}$/);
  assert.deepEqual(message.header["X-Open"], ["open"]);
  const logs = await it.logsUntil(messageId, "DELIVERED");
  for (const log of logs) {
    assert.match(Buffer.from(log.body, "base64").toString(), /^REDACTED:[0-9a-f]{64}$/);
    assert.ok(!JSON.stringify(log).includes("secret"), "no secret in the log");
  }
});

test("messages.get shows all fields of the contract", async () => {
  const before = Date.now();
  const url = it.receiver.url("/get?x=1");
  const { messageId } = await it.client.publishJSON({
    url,
    body: { a: 1 },
    method: "PUT",
    retries: 7,
    retryDelay: "1000 * retried",
    timeout: "30s",
    delay: 60,
    label: "get",
  });
  const message = await it.client.messages.get(messageId);
  assert.ok(message.createdAt >= before && message.createdAt <= Date.now());
  const { createdAt, notBefore, urlGroup, ratePerSecond, ...rest } = message;
  assert.deepEqual(rest, {
    messageId,
    url,
    method: "PUT",
    header: { "Content-Type": ["application/json"] },
    body: '{"a":1}',
    maxRetries: 7,
    retryDelayExpression: "1000 * retried",
    timeout: 30,
    callerIP: "127.0.0.1",
    label: "get",
    labels: ["get"],
  });
  assert.equal(notBefore, createdAt + 60_000);
  await it.client.messages.cancel(messageId);
});

test("a delivered message can be read for a while", async () => {
  const path = `/${unique("grace")}`;
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), body: "x" });
  await it.logsUntil(messageId, "DELIVERED");
  assert.equal((await it.client.messages.get(messageId)).messageId, messageId);
});

test("the SDK's own development mode finds the server", async () => {
  const { Client } = await import("@upstash/qstash");
  process.env.QSTASH_DEV_PORT = new URL(it.server.url).port;
  const client = new Client({ devMode: true });
  await client.publishJSON({ url: it.receiver.url("/dev-mode"), body: { dev: true } });
  const [request] = await it.receiver.arrivals("/dev-mode");
  assert.equal(request.body, '{"dev":true}');
});

test("a hundred publishes at once are a hundred deliveries", async () => {
  const published = await Promise.all(
    Array.from({ length: 100 }, (_, index) => it.client.publish({ url: it.receiver.url("/hundred"), body: `${index}` })),
  );
  assert.equal(new Set(published.map((answer) => answer.messageId)).size, 100);
  await it.receiver.arrivals("/hundred", 100);
  await eventually("100 log lines DELIVERED", async () => {
    const { logs } = await it.client.logs({ filter: { state: "DELIVERED", url: it.receiver.url("/hundred") } });
    return logs.length === 100;
  });
  const bodies = new Set(it.receiver.at("/hundred").map((request) => request.body));
  assert.equal(bodies.size, 100);
  assert.equal(it.receiver.at("/hundred").length, 100, "each once");
});

function pick(object, ...names) {
  return Object.fromEntries(names.map((name) => [name, object[name]]));
}
