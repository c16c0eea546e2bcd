// Official clients that are not run here: the Go SDK, the Terraform provider (both generations), the MCP server,
// and the first releases of the JavaScript SDK. Requests are written as these clients write them.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { USERS } from "../support/server.js";
import { story, unique } from "../support/story.js";
import { eventually } from "../support/wait.js";

const it = story();
const NEVER = "1 1 31 1 1";

/** A request as these clients send it; `body` is sent as JSON unless it is a text. No header is added. */
async function call(method, target, { headers = {}, body, user = 0 } = {}) {
  const text = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  const bytes = text === undefined ? undefined : Buffer.from(text);
  const response = await it.server.fetch(target, { method, headers, body: bytes, user });
  const answer = await response.text();
  assert.ok(response.ok, `${method} ${target}: ${response.status} ${answer}`);
  return answer === "" ? undefined : JSON.parse(answer);
}

async function refusal(method, target, options) {
  const response = await it.server.fetch(target, { method, ...options });
  return [response.status, (await response.json()).error];
}

const json = { "Content-Type": "application/json" };

describe("the Go SDK", () => {
  const user = 1;

  test("schedules, with a capital S for some calls", async () => {
    const { scheduleId } = await call("POST", "/v2/Schedules/https://example.com/a?b=1", { user, headers: { "Upstash-Cron": NEVER, "Upstash-Forward-Test-Header": "test-value" }, body: "text" });
    const schedule = await call("GET", `/v2/Schedules/${scheduleId}`, { user });
    assert.deepEqual([schedule.scheduleId, schedule.cron, schedule.destination, schedule.body], [scheduleId, NEVER, "https://example.com/a?b=1", "text"]);
    assert.deepEqual(schedule.header, { "Test-Header": ["test-value"] }, "no content type was given, none is invented");
    const second = await call("POST", "/v2/schedules/https://example.com", { user, headers: { ...json, "Upstash-Cron": NEVER }, body: { ex_key: "ex_value" } });
    assert.equal((await call("GET", "/v2/schedules", { user })).length, 2);
    await call("PATCH", `/v2/schedules/${scheduleId}/pause`, { user });
    assert.equal((await call("GET", `/v2/Schedules/${scheduleId}`, { user })).isPaused, true);
    await call("PATCH", `/v2/schedules/${scheduleId}/resume`, { user });
    assert.equal((await call("GET", `/v2/Schedules/${scheduleId}`, { user })).isPaused, false);
    for (const id of [scheduleId, second.scheduleId]) await call("DELETE", `/v2/schedules/${id}`, { user });
    assert.deepEqual(await call("GET", "/v2/schedules", { user }), []);
  });

  test("queues", async () => {
    const name = "test-queue";
    for (const [parallelism, paused] of [[1, false], [2, true]]) {
      await call("POST", "/v2/queues/", { user, headers: json, body: { queueName: name, parallelism, paused } });
      const queue = await call("GET", `/v2/queues/${name}`, { user });
      assert.deepEqual([queue.name, queue.parallelism, queue.paused], [name, parallelism, paused]);
    }
    await call("POST", `/v2/queues/${name}/pause`, { user });
    await call("POST", `/v2/queues/${name}/resume`, { user });
    assert.deepEqual((await call("GET", "/v2/queues", { user })).map((queue) => [queue.name, queue.paused]), [[name, false]]);
    await call("DELETE", `/v2/queues/${name}`, { user });
    assert.deepEqual(await call("GET", "/v2/queues", { user }), []);
  });

  test("a batch with lists of header values and empty queues", async () => {
    const path = unique("/go-batch");
    const name = unique("go-group");
    const endpoints = ["a", "b"].map((end) => ({ url: it.receiver.url(`${path}-${end}`) }));
    await call("POST", `/v2/topics/${name}/endpoints`, { user, headers: json, body: { endpoints } });
    const answers = await call("POST", "/v2/batch", {
      user,
      headers: json,
      body: [
        { destination: it.receiver.url(path), headers: { "Upstash-Method": ["PUT"], "Upstash-Forward-Test-Header": ["test-value"], "Upstash-Retries": ["0"] }, body: "x", queue: "" },
        { destination: it.receiver.url(`${path}-queued`), headers: { "Content-Type": ["application/json"] }, body: "{}", queue: "test-queue" },
        { destination: name, headers: {}, body: "", queue: "test-queue" },
      ],
    });
    assert.deepEqual(answers.map((answer) => (Array.isArray(answer) ? answer.length : typeof answer.messageId)), ["string", "string", 2]);
    const [request] = await it.receiver.arrivals(path);
    assert.deepEqual([request.method, request.headers["test-header"], request.body], ["PUT", "test-value", "x"]);
    for (const end of ["queued", "a", "b"]) await it.receiver.arrivals(`${path}-${end}`);
  });

  test("DELETE with a JSON body returns only numbers", async () => {
    const later = async () => (await call("POST", `/v2/publish/${it.receiver.url("/later")}`, { user, headers: { "Upstash-Delay": "1h" } })).messageId;
    const ids = [await later(), await later(), await later()];
    assert.deepEqual(await call("DELETE", "/v2/messages", { user, headers: json, body: { messageIds: ids.slice(0, 2) } }), { cancelled: 2 });
    assert.deepEqual(await call("DELETE", "/v2/messages", { user, headers: json }), { cancelled: 1 });

    const path = unique("/go-dead");
    it.receiver.script(path, { status: 404, body: "404 Not Found" });
    for (let n = 0; n < 2; n += 1) await call("POST", `/v2/publish/${it.receiver.url(path)}`, { user, headers: { "Upstash-Retries": "0" } });
    const letters = await eventually("two dead letters", async () => {
      const { messages } = await call("GET", "/v2/dlq?count=10", { user });
      return messages.length === 2 ? messages : undefined;
    });
    const ids404 = letters.map((letter) => letter.dlqId);
    assert.equal((await call("GET", `/v2/dlq/${ids404[0]}`, { user })).responseBody, "404 Not Found");
    await call("DELETE", `/v2/dlq/${ids404[0]}`, { user });
    assert.equal((await refusal("DELETE", `/v2/dlq/${ids404[0]}`, { user }))[0], 404);
    assert.deepEqual(await call("DELETE", "/v2/dlq", { user, headers: json, body: { dlqIds: ids404 } }), { deleted: 1 });
  });

  test("URL groups: deleting an absent one, removing by URL, and errors", async () => {
    const name = unique("go-group");
    await call("DELETE", `/v2/topics/${name}`, { user });
    const endpoints = [{ url: "https://example.com", name: "First endpoint" }, { url: "https://example.net", name: "Second endpoint" }];
    await call("POST", `/v2/topics/${name}/endpoints`, { user, headers: json, body: { endpoints } });
    assert.deepEqual((await call("GET", `/v2/topics/${name}`, { user })).endpoints, endpoints);
    await call("DELETE", `/v2/topics/${name}/endpoints`, { user, headers: json, body: { endpoints: [{ url: "https://example.net" }] } });
    assert.deepEqual((await call("GET", `/v2/topics/${name}`, { user })).endpoints, [endpoints[0]]);
    const unknown = await refusal("POST", "/v2/publish/non_existing_url_group", { user, body: "test-body" });
    assert.match(unknown[1], /topic non_existing_url_group not found/);
    const empty = await refusal("POST", "/v2/publish/", { user, body: "test-body" });
    assert.match(empty[1], /a non-empty destination must be provided/);
  });

  test("a hundred failures are four hundred events on one page", async () => {
    const path = unique("/go-events");
    it.receiver.script(path, 404);
    const item = { destination: it.receiver.url(path), headers: { "Upstash-Retries": ["0"] }, body: "", queue: "" };
    await call("POST", "/v2/batch", { user, headers: json, body: Array(100).fill(item) });
    const url = encodeURIComponent(it.receiver.url(path));
    await eventually("400 events", async () => {
      const { events } = await call("GET", `/v2/events?url=${url}`, { user });
      assert.ok(events.length <= 400);
      return events.length === 400;
    });
  });

  test("keys, and a rotation at its own path", async () => {
    const rotated = await call("POST", "/v2/rotate", { user: 3 });
    assert.deepEqual(await call("GET", "/v2/keys", { user: 3 }), rotated);
  });
});

describe("the Terraform provider", () => {
  test("v2: schedules, with empty texts for missing settings", async () => {
    const headers = { "Content-Type": "application/json; charset=UTF-8", "Upstash-Method": "", "Upstash-Delay": "0", "Upstash-Retries": "3", "Upstash-Callback": "", "Upstash-Cron": NEVER, Accept: "application/json", "Upstash-Forward-X-My": "own" };
    const { scheduleId } = await call("POST", "/v2/schedules/https://example.com", { headers, body: { key: "value" } });
    const schedule = await call("GET", `/v2/schedules/${scheduleId}`);
    assert.deepEqual([schedule.method, schedule.retries, schedule.callback], ["POST", 3, undefined]);
    assert.deepEqual(schedule.header, { "Content-Type": ["application/json; charset=UTF-8"], "X-My": ["own"] });
    await call("DELETE", `/v2/schedules/${scheduleId}`);
  });

  test("v2: URL groups are read, extended and cut by body", async () => {
    const name = unique("tf");
    const endpoints = [{ url: "https://example.com/a", name: "a" }, { url: "https://example.com/b", name: "b" }];
    await call("POST", `/v2/topics/${name}/endpoints`, { body: { endpoints: [endpoints[0]] } });
    await call("POST", `/v2/topics/${name}/endpoints`, { body: { endpoints: [endpoints[1]] } });
    assert.deepEqual((await call("GET", `/v2/topics/${name}`)).endpoints, endpoints);
    await call("DELETE", `/v2/topics/${name}/endpoints`, { body: { endpoints: [endpoints[0]] } });
    assert.deepEqual((await call("GET", `/v2/topics/${name}`)).endpoints, [endpoints[1]]);
    await call("DELETE", `/v2/topics/${name}`);
    assert.equal((await refusal("GET", `/v2/topics/${name}`))[0], 404);
  });

  test("v1: a schedule is a publish with a time", async () => {
    const headers = { "Upstash-Cron": NEVER, "Upstash-Retries": "5", "Content-Type": "application/json", "Upstash-Deduplication-Id": "", "Upstash-Content-Based-Deduplication": "false", "Upstash-NotBefore": "0", "Upstash-Delay": "", "Upstash-Callback": "" };
    const { scheduleId } = await call("POST", `/v1/publish/${it.receiver.url("/terraform")}`, { headers, body: { key: "value" } });
    const schedule = await call("GET", `/v1/schedules/${scheduleId}`);
    assert.deepEqual([schedule.scheduleId, schedule.cron, schedule.retries], [scheduleId, NEVER, 5]);
    assert.ok((await call("GET", "/v1/schedules")).some((listed) => listed.scheduleId === scheduleId));
    await call("DELETE", `/v1/schedules/${scheduleId}`);
    assert.equal((await refusal("GET", `/v1/schedules/${scheduleId}`))[0], 404);
    assert.equal(it.receiver.at("/terraform").length, 0);
  });
});

describe("the MCP server", () => {
  test("a publish with a queue's name is an enqueue", async () => {
    const [path, queueName, key] = [unique("/mcp"), unique("mcp"), unique("mcp")];
    await call("POST", "/v2/queues", { body: { queueName, paused: true } });
    const headers = { "Upstash-Method": "PUT", "Upstash-Retries": "2", "Upstash-Timeout": "30s", "Upstash-Queue-Name": queueName, "Upstash-Flow-Control-Key": key, "Upstash-Flow-Control-Value": "parallelism=1,rate=5,period=1m" };
    const { messageId } = await call("POST", `/v2/publish/${it.receiver.url(path)}`, { headers: { ...headers, ...json }, body: {} });
    const message = await call("GET", `/v2/messages/${messageId}`);
    assert.deepEqual([message.queueName, message.flowControlKey, message.parallelism, message.rate, message.period], [queueName, key, 1, 5, 60]);
    assert.equal((await call("GET", `/v2/queues/${queueName}`)).lag, 1);
    await call("POST", `/v2/queues/${queueName}/resume`);
    const [request] = await it.receiver.arrivals(path);
    assert.deepEqual([request.method, request.body], ["PUT", "{}"]);
  });

  test("logs in groups and of one message, without bodies", async () => {
    const [path, name] = [unique("/mcp-logs"), unique("mcp-logs")];
    await call("POST", `/v2/topics/${name}/endpoints`, { body: { endpoints: [{ url: it.receiver.url(path) }] } });
    const [{ messageId }] = await call("POST", `/v2/publish/${name}`, { body: "body" });
    await it.logsUntil(messageId, "DELIVERED");
    const listed = await call("GET", `/v2/logs?trimBody=0&groupBy=messageId&topicName=${name}&count=10`);
    assert.deepEqual(listed.messages.map((message) => message.messageId), [messageId]);
    assert.deepEqual(listed.messages[0].events.map((event) => event.state).sort(), ["ACTIVE", "CREATED", "DELIVERED"]);
    assert.ok(listed.messages[0].events.every((event) => event.body === undefined));
    assert.equal(listed.cursor, undefined);
    const one = await call("GET", `/v2/logs?messageId=${messageId}`);
    assert.equal(one.messages[0].messageId, messageId);
    assert.equal(one.messages[0].events.length, 3);
    for (const state of ["CANCELLED", "CANCEL_REQUESTED", "IN_PROGRESS"]) {
      await call("GET", `/v2/logs?trimBody=0&groupBy=messageId&state=${state}&topicName=${name}`);
    }
  });

  test("the DLQ without bodies, and one letter with its body", async () => {
    const path = unique("/mcp-dead");
    it.receiver.script(path, 500);
    const { messageId } = await call("POST", `/v2/publish/${it.receiver.url(path)}`, { headers: { "Upstash-Retries": "0" }, body: "body" });
    const letter = await it.deadLetter(messageId);
    const { messages } = await call("GET", `/v2/dlq?trimBody=0&messageId=${messageId}&responseStatus=500&callerIp=127.0.0.1&count=10`);
    assert.deepEqual(messages.map((message) => [message.dlqId, message.body]), [[letter.dlqId, undefined]]);
    assert.equal((await call("GET", `/v2/dlq/${letter.dlqId}`)).body, "body");
  });

  test("schedules are paused and resumed with POST", async () => {
    const { scheduleId } = await call("POST", "/v2/schedules/https://example.com", { headers: { "Upstash-Cron": NEVER, "Upstash-Method": "PUT", "Upstash-Queue-Name": "mcp", "Upstash-Delay": "10s" }, body: {} });
    await call("POST", `/v2/schedules/${scheduleId}/pause`, { headers: json, body: {} });
    assert.equal((await call("GET", `/v2/schedules/${scheduleId}`)).isPaused, true);
    await call("POST", `/v2/schedules/${scheduleId}/resume`, { headers: json });
    const updated = await call("POST", "/v2/schedules/https://example.com/b", { headers: { "Upstash-Cron": "@daily", "Upstash-Schedule-Id": scheduleId } });
    assert.deepEqual(updated, { scheduleId });
    const schedule = await call("GET", `/v2/schedules/${scheduleId}`);
    assert.deepEqual([schedule.isPaused, schedule.destination, schedule.queueName], [false, "https://example.com/b", undefined]);
    await call("DELETE", `/v2/schedules/${scheduleId}`);
  });
});

describe("the first JavaScript SDKs and old tutorials", () => {
  test("a v1 publish, also with a time, and to a group", async () => {
    const [path, name] = [unique("/v1"), unique("v1")];
    const { messageId } = await call("POST", `/v1/publish/${it.receiver.url(path)}`, { body: "x" });
    assert.equal((await call("GET", `/v1/messages/${messageId}`)).messageId, messageId);
    await it.receiver.arrivals(path);
    await call("POST", `/v2/topics/${name}`, { body: { endpoints: ["a", "b"].map((end) => ({ url: it.receiver.url(`${path}-${end}`) })) } });
    const toGroup = await call("POST", `/v1/publish/${name}`, { body: "x" });
    assert.equal(typeof toGroup.messageId, "string", "one object, not a list");
    for (const end of ["a", "b"]) await it.receiver.arrivals(`${path}-${end}`);
    assert.ok((await call("GET", "/v1/topics")).some((group) => group.name === name));
    const delayed = await call("POST", `/v1/publish/${it.receiver.url(path)}`, { headers: { "Upstash-Delay": "1h" } });
    await call("DELETE", `/v1/messages/${delayed.messageId}`);
    for (const target of ["/v1/events", "/v1/logs"]) assert.ok((await call("GET", target)).events.length > 0);
    assert.deepEqual(Object.keys(await call("GET", "/v1/keys")).sort(), ["current", "next"]);
  });

  test("settings and the token in the query, as senders of webhooks use them", async () => {
    const path = unique("/webhook");
    const response = await fetch(`${it.server.url}/v2/publish/${it.receiver.url(path)}?qstash_token=${encodeURIComponent(USERS[0].token)}&mine=1&upstash-method=PUT&upstash-forward-x-hook=yes&upstash-retries=1`, { method: "POST", body: "event" });
    assert.equal(response.status, 200);
    const [request] = await it.receiver.arrivals(path);
    assert.deepEqual([request.method, request.url, request.headers["x-hook"]], ["PUT", `${path}?mine=1`, "yes"]);
  });

  test("default headers of a URL group", async () => {
    const [path, name] = [unique("/defaults"), unique("defaults")];
    await call("POST", `/v2/topics/${name}/endpoints`, { body: { endpoints: [{ url: it.receiver.url(path) }] } });
    await call("PATCH", `/v2/topics/${name}`, { body: { headers: { "Upstash-Header-Forward": ["true"], "Upstash-Retries": "7", "Upstash-Method": "PUT" } } });
    const [{ messageId }] = await call("POST", `/v2/publish/${name}`, { headers: { "X-Github-Event": "push", "Upstash-Method": "PATCH" }, body: "x" });
    const [request] = await it.receiver.arrivals(path);
    assert.deepEqual([request.method, request.headers["x-github-event"], request.headers.authorization], ["PATCH", "push", undefined]);
    assert.equal((await call("GET", `/v2/messages/${messageId}`)).maxRetries, 7);
  });

  test("the DLQ at its first path, and groups changed at their own", async () => {
    const [path, name] = [unique("/first-dead"), unique("first")];
    it.receiver.script(path, 500);
    const { messageId } = await call("POST", `/v2/publish/${it.receiver.url(path)}`, { headers: { "Upstash-Retries": "0" } });
    const letter = await it.deadLetter(messageId);
    assert.ok((await call("GET", "/v2/dlq/messages")).messages.some((listed) => listed.dlqId === letter.dlqId));
    await call("DELETE", `/v2/dlq/messages/${letter.dlqId}`);
    await call("POST", `/v2/topics/${name}`, { body: { endpoints: [{ url: "https://example.com/a" }, { url: "https://example.com/b" }] } });
    await call("DELETE", `/v2/topics/${name}`, { body: { endpoints: [{ url: "https://example.com/a" }] } });
    assert.deepEqual((await call("GET", `/v2/topics/${name}`)).endpoints, [{ url: "https://example.com/b" }]);
  });
});

test("a bulk cancel in the background is a visible action", async () => {
  const label = unique("bulk");
  const item = { destination: it.receiver.url("/later"), headers: { "Upstash-Delay": "1h", "Upstash-Label": label } };
  await call("POST", "/v2/batch", { body: Array(50).fill(item) });
  const { actionId } = await call("DELETE", `/v2/messages?label=${label}&async=true`);
  const action = await eventually("the end of the action", async () => {
    const found = await call("GET", `/v2/bulkActions/${actionId}`);
    return found.state === "FINISHED" ? found : undefined;
  });
  assert.deepEqual([action.actionId, action.kind, action.total, action.processed], [actionId, "cancel", 50, 50]);
  assert.deepEqual(action.filter.label, [label]);
  const { bulkActions } = await call("GET", "/v2/bulkActions?state=FINISHED");
  assert.ok(bulkActions.some((listed) => listed.actionId === actionId));
  assert.deepEqual(await call("DELETE", `/v2/messages?label=${label}`), { cancelled: 0 });
});
