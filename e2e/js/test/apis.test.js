// Language models and e-mail: providers of the SDK, `api/llm`, and chat().
//
// The hosts of OpenAI, Anthropic, Helicone and Resend are fixed in the SDK. Nothing leaves the machine here:
// such messages are published for later, read back, and cancelled.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { anthropic, custom, openai, resend, upstash } from "@upstash/qstash";
import { Receiver } from "../support/receiver.js";
import { Server } from "../support/server.js";
import { refused, story, unique } from "../support/story.js";

const it = story();
const question = { model: "some-model", messages: [{ role: "user", content: "hello?" }] };
const answer = { id: "1", object: "chat.completion", choices: [{ index: 0, message: { role: "assistant", content: "hello!" } }] };

/** The stored message, which is not sent. */
async function kept(request) {
  const { messageId } = await it.client.publishJSON({ ...request, delay: "1h" });
  const message = await it.client.messages.get(messageId);
  await it.client.messages.cancel(messageId);
  return message;
}

test("a model with its own URL gets the question, and the callback gets the response", async () => {
  const path = unique("/custom");
  it.receiver.script(`${path}/v1/chat/completions`, { status: 200, body: JSON.stringify(answer) });
  const provider = custom({ baseUrl: it.receiver.url(`${path}/v1/chat/completions`), token: "model-token" });
  const callback = it.receiver.url(`${path}/callback`);
  await it.client.publishJSON({ api: { name: "llm", provider }, body: question, callback });
  const [request] = await it.receiver.arrivals(`${path}/v1/chat/completions`);
  assert.equal(request.method, "POST");
  assert.equal(request.headers.authorization, "Bearer model-token");
  assert.equal(request.headers["content-type"], "application/json");
  assert.deepEqual(JSON.parse(request.body), question);
  const [called] = await it.receiver.arrivals(`${path}/callback`);
  assert.deepEqual(JSON.parse(Buffer.from(JSON.parse(called.body).body, "base64")), answer);
});

test("queues and batches accept such messages too", async () => {
  const path = unique("/queued");
  const provider = () => custom({ baseUrl: it.receiver.url(path), token: "model-token" });
  const request = () => ({ api: { name: "llm", provider: provider() }, body: question, callback: it.receiver.url(`${path}/callback`) });
  await it.client.queue({ queueName: unique("llm") }).enqueueJSON(request());
  await it.client.batchJSON([request()]);
  const requests = await it.receiver.arrivals(`${path}/v1/chat/completions`, 2);
  assert.deepEqual(requests.map((arrived) => arrived.headers.authorization), ["Bearer model-token", "Bearer model-token"]);
  await it.receiver.arrivals(`${path}/callback`, 2);
});

test("OpenAI, Anthropic and Helicone", async () => {
  const callback = it.receiver.url("/unused");
  const openAi = await kept({ api: { name: "llm", provider: openai({ token: "secret", organization: "org" }) }, body: question, callback });
  assert.equal(openAi.url, "https://api.openai.com/v1/chat/completions");
  assert.deepEqual(openAi.header, { Authorization: ["Bearer secret"], "Content-Type": ["application/json"], "Openai-Organization": ["org"] });
  assert.equal(openAi.callback, callback);

  const claude = await kept({ api: { name: "llm", provider: anthropic({ token: "secret" }) }, body: question, callback });
  assert.equal(claude.url, "https://api.anthropic.com/v1/messages");
  assert.deepEqual(claude.header, { "Anthropic-Version": ["2023-06-01"], "Content-Type": ["application/json"], "X-Api-Key": ["secret"] });

  const analytics = { name: "helicone", token: "watched" };
  const watched = await kept({ api: { name: "llm", provider: openai({ token: "secret" }), analytics }, body: question, callback });
  assert.equal(watched.url, "https://gateway.helicone.ai/v1/chat/completions");
  assert.deepEqual(watched.header["Helicone-Auth"], ["Bearer watched"]);
  assert.deepEqual(watched.header["Helicone-Target-Url"], ["https://api.openai.com"]);
});

test("e-mail", async () => {
  const mail = { from: "a@example.com", to: ["b@example.com"], subject: "s", html: "<p>h</p>" };
  const one = await kept({ api: { name: "email", provider: resend({ token: "secret" }) }, body: mail });
  assert.equal(one.url, "https://api.resend.com/emails");
  assert.equal(one.method, "POST");
  assert.deepEqual(one.header, { Authorization: ["Bearer secret"], "Content-Type": ["application/json"] });
  assert.deepEqual(JSON.parse(one.body), mail);
  const many = await kept({ api: { name: "email", provider: resend({ token: "secret", batch: true }) }, body: [mail, mail] });
  assert.equal(many.url, "https://api.resend.com/emails/batch");
});

test("without a model of the operator, api/llm and chat() are rejected with the reason", async () => {
  const callback = it.receiver.url("/unused");
  await refused(it.client.publishJSON({ api: { name: "llm", provider: upstash() }, body: question, callback }), 400, /api\/llm/);
  await refused(it.client.chat().create({ provider: upstash(), ...question }), 404, /language model/);
});

/** A server whose operator has named a model: the receiver. */
let [model, server] = [];
before(async () => {
  model = await Receiver.start();
  server = await Server.start("--llm-url", model.url("/v1"), "--llm-token", "operators-token");
});
after(async () => {
  await server?.stop();
  await model?.stop();
});

test("api/llm goes to the operator's model, with the operator's token", async () => {
  model.script("/v1/chat/completions", { status: 200, body: JSON.stringify(answer) });
  const client = server.client();
  const callback = model.url("/callback");
  const { messageId } = await client.publishJSON({ api: { name: "llm", provider: upstash() }, body: question, callback });
  const request = (await model.arrivals("/v1/chat/completions")).at(-1);
  assert.equal(request.headers.authorization, "Bearer operators-token");
  assert.equal(request.headers["content-type"], "application/json");
  assert.deepEqual(JSON.parse(request.body), question);
  const [called] = await model.arrivals("/callback");
  const payload = JSON.parse(called.body);
  assert.equal(payload.sourceMessageId, messageId);
  assert.deepEqual(JSON.parse(Buffer.from(payload.body, "base64")), answer);
  const shown = await client.messages.get(messageId);
  assert.equal(shown.api, "llm");
  assert.ok(!JSON.stringify([shown, payload, (await client.logs()).logs]).includes("operators-token"));
});

test("chat() calls the operator's model and waits for its response", async () => {
  model.script("/v1/chat/completions", { status: 200, headers: { "Content-Type": "application/json" }, body: JSON.stringify(answer) });
  const chat = server.client().chat();
  assert.deepEqual(await chat.create({ provider: upstash(), ...question }), answer);
  assert.deepEqual(await chat.prompt({ provider: upstash(), model: "some-model", system: "be brief", user: "hello?" }), answer);
  const request = model.at("/v1/chat/completions").at(-1);
  assert.equal(request.headers.authorization, "Bearer operators-token");
  assert.deepEqual(JSON.parse(request.body).messages, [
    { role: "system", content: "be brief" },
    { role: "user", content: "hello?" },
  ]);
});

test("chat() streams", async () => {
  const chunks = ["hel", "lo", "!"].map((content) => ({ object: "chat.completion.chunk", choices: [{ index: 0, delta: { content } }] }));
  const body = [...chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`), "data: [DONE]\n\n"].join("");
  model.script("/v1/chat/completions", { status: 200, headers: { "Content-Type": "text/event-stream" }, body });
  const stream = await server.client().chat().create({ provider: upstash(), ...question, stream: true });
  const streamed = [];
  for await (const chunk of stream) streamed.push(chunk);
  assert.deepEqual(streamed, chunks);
  assert.equal(JSON.parse(model.at("/v1/chat/completions").at(-1).body).stream, true);
});

test("rejections of the model are passed on, with its limits", async () => {
  model.script("/v1/chat/completions", { status: 429, headers: { "x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": "0" }, body: '{"error":"slow down"}' });
  await assert.rejects(server.client().chat().create({ provider: upstash(), ...question }), (error) => {
    assert.equal(error.name, "QstashChatRatelimitError");
    assert.match(error.message, /"limit-requests":"10"/);
    return true;
  });
  await refused(new (await import("@upstash/qstash")).Client({ baseUrl: server.url, token: "wrong", retry: false }).chat().create({ provider: upstash(), ...question }), 401);
});
