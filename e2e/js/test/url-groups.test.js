// URL groups: one publish, one message for each endpoint.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refused, story, unique } from "../support/story.js";

const it = story();

const endpointsOf = (path, names) => names.map((name) => ({ name, url: it.receiver.url(`${path}-${name}`) }));

test("endpoints are added, changed, listed and removed", async () => {
  const [name, path] = [unique("group"), unique("/group")];
  await it.client.urlGroups.addEndpoints({ name, endpoints: endpointsOf(path, ["one", "two"]) });
  const group = await it.client.urlGroups.get(name);
  assert.equal(group.name, name);
  assert.deepEqual(group.endpoints, endpointsOf(path, ["one", "two"]));
  assert.ok((await it.client.urlGroups.list()).some((listed) => listed.name === name));
  await it.client.urlGroups.removeEndpoints({ name, endpoints: [{ name: "one" }] });
  assert.deepEqual((await it.client.urlGroups.get(name)).endpoints, endpointsOf(path, ["two"]));
  await it.client.urlGroups.delete(name);
  await refused(it.client.urlGroups.get(name), 404);
});

test("a publish reaches every endpoint under its own id", async () => {
  const [name, path] = [unique("group"), unique("/fan-out")];
  await it.client.urlGroups.addEndpoints({ name, endpoints: endpointsOf(path, ["one", "two"]) });
  const answers = await it.client.publishJSON({ urlGroup: name, body: { n: 1 } });
  assert.deepEqual(
    answers.map((answer) => answer.url),
    endpointsOf(path, ["one", "two"]).map((endpoint) => endpoint.url),
  );
  for (const [n, endpoint] of ["one", "two"].entries()) {
    const [request] = await it.receiver.arrivals(`${path}-${endpoint}`);
    assert.equal(request.headers["upstash-message-id"], answers[n].messageId);
    assert.equal(request.headers["upstash-topic-name"], name);
    assert.equal(request.body, '{"n":1}');
  }
  const message = await it.client.messages.get(answers[0].messageId);
  assert.equal(message.topicName ?? message.urlGroup, name);
  assert.equal(message.endpointName, "one");
});

test("a batch mixes a URL and a group", async () => {
  const [name, path] = [unique("group"), unique("/mixed")];
  await it.client.urlGroups.addEndpoints({ name, endpoints: endpointsOf(path, ["one", "two"]) });
  const answers = await it.client.batchJSON([
    { url: it.receiver.url(`${path}-url`), body: 1 },
    { urlGroup: name, body: 2 },
  ]);
  assert.ok(answers[0].messageId);
  assert.equal(answers[1].length, 2);
  for (const end of ["url", "one", "two"]) await it.receiver.arrivals(`${path}-${end}`);
});

test("an unknown group is rejected by name", async () => {
  await refused(it.client.publishJSON({ urlGroup: "nobody", body: 1 }), 404, /topic nobody not found/);
});
