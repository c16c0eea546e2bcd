// Deliveries: the overview, messages, the live tail, and dead letters that one click delivers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { story, unique } from "../../js/support/story.js";
import { eventually } from "../../js/support/wait.js";
import { watched } from "../support/story.js";

const it = watched(story());
const { row } = it;

/** A path of the receiver with these responses; the last one repeats. Without responses, 200. */
function path(name, ...answers) {
  if (answers.length) it.receiver.script(`/${name}`, ...answers);
  return `/${name}`;
}

/** A message that has failed for good, without a retry. */
async function fail(path, options = {}) {
  const { messageId } = await it.client.publish({ url: it.receiver.url(path), retries: 0, ...options });
  return await it.deadLetter(messageId);
}

test("a receiver fails: the DLQ shows the reason, and one click delivers", async () => {
  const { page, visitor } = it;
  const broken = path("broken", { status: 500, body: "the database is down" }, 200);
  const { messageId, dlqId } = await fail(broken, { body: "order 7", label: "orders" });

  await visitor.open("/dlq");
  const group = row(broken);
  assert.match(await group.innerText(), /^1\s+500\s[^]*the database is down/);
  await group.getByRole("link", { name: "Open example" }).click();
  await visitor.isAt(`/dlq/${dlqId}`);
  const letter = await visitor.text();
  for (const text of ["the database is down", "order 7", "orders", it.receiver.url(broken)]) assert.ok(letter.includes(text), text);

  // Why, from the message's own page, and back.
  await page.getByRole("link", { name: messageId }).click();
  await visitor.isAt(`/messages/${messageId}`);
  assert.match(await page.locator("#why").innerText(), /In the DLQ: 500/);
  assert.match(await page.locator(".timeline").innerText(), /Attempt 1[^]*500[^]*the database is down/);
  await page.getByRole("link", { name: dlqId }).click();
  await visitor.isAt(`/dlq/${dlqId}`);

  await page.getByRole("button", { name: "Retry", exact: true }).click();
  await visitor.said("Retried as");
  const [, delivered] = await it.receiver.arrivals(broken, 2);
  assert.equal(delivered.body, "order 7");
  // The page of the new message follows it to its end.
  await page.locator("#why").filter({ hasText: /delivered/i }).waitFor();
  await visitor.isAt(`/messages/${delivered.headers["upstash-message-id"]}`);
  await page.getByRole("link", { name: messageId }).waitFor();
  await visitor.open("/dlq");
  assert.equal(await row(broken).count(), 0);
});

test("a cause is one row, whatever numbers are in its texts, and is retried as a whole", async () => {
  const { page, visitor } = it;
  const answers = [1, 2, 3].map((number) => ({ status: 502, body: `upstream ${number}000${number} gave up` }));
  const flaky = path("flaky", ...answers, 200);
  for (const body of ["a", "b", "c"]) await fail(flaky, { body });
  await visitor.open("/dlq");
  assert.equal(await row(flaky).count(), 1);
  assert.match(await row(flaky).innerText(), /^3\s+502/);
  await visitor.confirm(row(flaky).getByRole("button", { name: "Retry", exact: true }));
  await visitor.said("Retrying 3 dead letters in the background.");
  const arrived = await it.receiver.arrivals(flaky, 6);
  assert.deepEqual(arrived.slice(3).map(({ body }) => body).sort(), ["a", "b", "c"]);
  await page.locator("#background").filter({ hasText: "3 of 3 done" }).waitFor();
});

test("the page of causes refreshes when the DLQ empties and fills", async () => {
  const { page, visitor } = it;
  const brief = path("brief", { status: 500, body: "for a moment" });
  await fail(brief);
  const { messages } = await it.client.dlq.listMessages({ count: 100 });
  await it.client.dlq.deleteMany({ dlqIds: messages.map(({ dlqId }) => dlqId) });
  // Fifteen seconds are too long for a test.
  await page.clock.install();
  await visitor.open("/dlq");
  await page.locator("#causes").getByText("The DLQ is empty").waitFor();
  const { dlqId } = await fail(brief);
  await page.clock.fastForward(16_000);
  await row(brief).waitFor();
  await page.getByRole("button", { name: "Retry all" }).waitFor();
  await page.getByLabel("At most").fill("7");
  await page.getByLabel("At most").blur();
  await it.client.dlq.delete(dlqId);
  await page.clock.fastForward(16_000);
  await page.locator("#causes").getByText("The DLQ is empty").waitFor();
  assert.equal(await page.getByRole("button", { name: "Delete all" }).count(), 0);
});

test("a header is changed before a dead letter is retried; another dead letter is deleted", async () => {
  const { page, visitor } = it;
  const locked = path("locked", { status: 401, body: "who are you" }, 200);
  const { dlqId } = await fail(locked, { headers: { "x-key": "old" }, body: "keep me" });
  await visitor.open(`/dlq/${dlqId}`);
  await page.getByRole("link", { name: "Edit and retry" }).click();
  const lines = page.getByLabel("Headers, one per line");
  await lines.fill((await lines.inputValue()).replace("X-Key: old", "X-Key: new"));
  await page.getByRole("button", { name: "Retry", exact: true }).click();
  await visitor.said("Retried as");
  const [first, second] = await it.receiver.arrivals(locked, 2);
  assert.deepEqual([first, second].map(({ headers, body }) => [headers["x-key"], body]), [["old", "keep me"], ["new", "keep me"]]);

  const gone = path("gone", 410);
  const { dlqId: deleted } = await fail(gone);
  await visitor.open("/dlq/entries");
  await page.getByLabel(`Select ${deleted}`).check();
  await visitor.confirm(page.getByRole("button", { name: "Delete selected" }));
  await visitor.said("Deleted 1 dead letter.");
  assert.equal(await row(gone).count(), 0);
  const { messages } = await it.client.dlq.listMessages({ filter: { url: it.receiver.url(gone) } });
  assert.deepEqual(messages, []);
});

test("live logs show a publish as it happens, and wait while they are paused", async () => {
  const { page, visitor } = it;
  await visitor.open("/tail");
  await page.getByRole("status").filter({ hasText: "Live" }).waitFor();
  const first = path("tail");
  await it.client.publish({ url: it.receiver.url(first), body: "x" });
  await row(first, "created").waitFor();
  await row(first, "delivered").waitFor();

  await page.getByRole("button", { name: "Pause" }).click();
  const second = path("paused");
  await it.client.publish({ url: it.receiver.url(second), body: "x" });
  await page.getByRole("status").filter({ hasText: /Paused\. New lines: \d+/ }).waitFor();
  assert.equal(await row(second).count(), 0);
  await page.getByRole("button", { name: "Resume" }).click();
  await row(second, "delivered").waitFor();

  // Only matching lines.
  await page.getByText("Filters", { exact: true }).click();
  await page.getByLabel("Label").fill("red");
  await page.getByRole("button", { name: "Apply" }).click();
  await page.waitForURL("**/console/tail?*label=red*");
  await page.getByRole("status").filter({ hasText: "Live" }).waitFor();
  await it.client.publish({ url: it.receiver.url(first), label: "blue" });
  await it.client.publish({ url: it.receiver.url(second), label: "red" });
  await row(second, "delivered").waitFor();
  assert.equal(await row(first).count(), 0);
});

test("a delayed message is found by its label, and cancelled", async () => {
  const { page, visitor } = it;
  const label = unique("later");
  const url = it.receiver.url(path("never"));
  const { messageId } = await it.client.publish({ url, delay: "1d", label });
  const { messageId: other } = await it.client.publish({ url, delay: "1d" });
  await visitor.open("/messages");
  await row(other).waitFor();
  await page.getByLabel("Label", { exact: true }).fill(label);
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await page.waitForURL(`**/console/messages?*label=${label}*`);
  assert.equal(await row(other).count(), 0);
  await visitor.confirm(row(messageId).getByRole("button", { name: "Cancel" }));
  await visitor.said(messageId);
  await row(messageId, "cancelled").waitFor();
  const states = (await it.client.logs({ messageIds: [messageId] })).logs.map(({ state }) => state);
  assert.ok(states.includes("CANCELED"), states);
  assert.equal(new URL(page.url()).searchParams.get("label"), label, "the filter is kept");
});

test("a message explains why it waits, and can be sent now", async () => {
  const { page, visitor } = it;
  const soon = path("soon");
  const { messageId } = await it.client.publish({ url: it.receiver.url(soon), delay: "2h", body: '{"a": 1}' });
  await visitor.open(`/messages/${messageId}`);
  assert.match(await page.locator("#why").innerText(), /2 h|120 min|1 h|119 min/);
  assert.ok((await visitor.text()).includes('{"a": 1}'));
  await page.getByRole("button", { name: "Send now" }).click();
  await it.receiver.arrivals(soon);
  await page.locator("#why").filter({ hasText: /delivered/i }).waitFor();
  // The command to copy publishes the same message.
  const command = await page.getByRole("button", { name: "Copy as curl" }).getAttribute("data-copy");
  for (const part of ["curl", it.receiver.url(soon), '{"a": 1}', "$QSTASH_TOKEN"]) assert.ok(command.includes(part), command);
});

test("callbacks and retries are on the page of a message", async () => {
  const { page, visitor } = it;
  const flaky = path("twice", 503, 200);
  const callback = path("callback");
  const { messageId } = await it.client.publish({
    url: it.receiver.url(flaky),
    callback: it.receiver.url(callback),
    retries: 1,
    retryDelay: "1",
  });
  const reports = await it.receiver.arrivals(callback, 2);
  await visitor.open(`/messages/${messageId}`);
  assert.match(await page.locator(".timeline").innerText(), /Attempt 1[^]*503[^]*Attempt 2[^]*200/);
  await page.getByRole("link", { name: reports[1].headers["upstash-message-id"] }).click();
  await page.locator("#why").filter({ hasText: /delivered/i }).waitFor();
  await page.getByRole("link", { name: messageId }).waitFor();
});

test("several messages are cancelled at once", async () => {
  const { page, visitor } = it;
  const label = unique("many");
  const url = it.receiver.url(path("never"));
  const published = await it.client.batchJSON(["a", "b", "c"].map((body) => ({ url, body, delay: "1d", label })));
  await visitor.open(`/messages?label=${label}`);
  await page.getByLabel(`Select ${published[0].messageId}`).check();
  await visitor.confirm(page.getByRole("button", { name: "Cancel selected messages" }));
  await visitor.said("Cancelled 1 message");
  await row(published[0].messageId, "cancelled").waitFor();
  await row(published[1].messageId, "scheduled").waitFor();
  await visitor.confirm(page.getByRole("button", { name: "Cancel all matching…" }));
  await visitor.said("Cancelling 2 messages");
  await eventually("all are cancelled", async () => {
    const { logs } = await it.client.logs({ filter: { label, state: "CANCELED" } });
    return logs.length === 3;
  });
});

test("the overview shows failures at once, and counts them", async () => {
  const { page, visitor } = it;
  await visitor.open("");
  await page.locator("#verdict").waitFor();
  const figure = (name) => page.locator(".figure").filter({ hasText: name }).locator("strong");
  const before = Number(await figure("In the DLQ").innerText());
  await Promise.all(Array.from({ length: 30 }, () => fail("/down", { url: "http://127.0.0.1:9/" })));
  // Without a reload.
  await figure("In the DLQ").filter({ hasText: `${before + 30}` }).waitFor();
  await page.locator("#verdict:not(.good)").waitFor();
  await page.getByRole("img", { name: /failed attempts up to [1-9]/ }).waitFor();
});
