// Queues, flow control, schedules and URL groups.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate } from "../../js/support/receiver.js";
import { story } from "../../js/support/story.js";
import { eventually } from "../../js/support/wait.js";
import { watched } from "../support/story.js";

const it = watched(story());
const { row } = it;

test("a queue is paused and resumed", async () => {
  const { page, visitor } = it;
  const queue = it.client.queue({ queueName: "orders" });
  await queue.upsert({ parallelism: 2 });
  await visitor.open("/queues");
  await row("orders").getByRole("button", { name: "Pause" }).click();
  await visitor.said("Queue orders paused");
  assert.equal((await queue.get()).paused, true);
  await queue.enqueue({ url: it.receiver.url("/queued"), body: "1" });
  await queue.enqueue({ url: it.receiver.url("/queued"), body: "2" });
  // Without a reload.
  await row("orders").getByRole("link", { name: "2", exact: true }).waitFor();
  assert.equal(it.receiver.at("/queued").length, 0);
  assert.match(await row("orders").innerText(), /paused/);

  await row("orders").getByRole("button", { name: "Resume" }).click();
  await visitor.said("Queue orders resumed.");
  await it.receiver.arrivals("/queued", 2);
  assert.equal((await queue.get()).paused, false);

  await page.getByLabel("Parallelism of orders").fill("5");
  await row("orders").getByRole("button", { name: "Save" }).click();
  await visitor.said("Queue orders now has parallelism 5.");
  assert.equal((await queue.get()).parallelism, 5);
});

test("a queue is created and deleted, and links to its messages", async () => {
  const { page, visitor } = it;
  await visitor.open("/queues");
  await page.getByLabel("Name", { exact: true }).fill("made.here");
  await page.getByLabel("Parallelism", { exact: true }).fill("3");
  await page.getByLabel("Paused").check();
  await page.locator("form.fields").getByRole("button", { name: "Save" }).click();
  await visitor.said("Queue made.here saved.");
  const queue = it.client.queue({ queueName: "made.here" });
  const { parallelism, paused } = await queue.get();
  assert.deepEqual({ parallelism, paused }, { parallelism: 3, paused: true });
  const { messageId } = await queue.enqueue({ url: it.receiver.url("/made") });
  const { messageId: other } = await it.client.publish({ url: it.receiver.url("/made"), delay: "1d" });
  await row("made.here").getByRole("link", { name: "1", exact: true }).click();
  await visitor.isAt("/messages");
  await row(messageId).waitFor();
  assert.equal(await row(other).count(), 0);

  await visitor.open("/queues");
  await visitor.confirm(row("made.here").getByRole("button", { name: "Delete" }));
  await visitor.said("Queue made.here deleted, 1 message cancelled.");
  assert.equal(await row("made.here").count(), 0);
  // A rejected form keeps its input.
  await page.getByLabel("Name", { exact: true }).fill("no such/name");
  await page.locator("form.fields").getByRole("button", { name: "Save" }).click();
  await page.getByRole("alert").waitFor();
  assert.equal(await page.getByLabel("Name", { exact: true }).inputValue(), "no such/name");
});

test("a flow-control key shows waiting messages, and is paused, pinned and resumed", async () => {
  const { page, visitor } = it;
  const { opened, open } = gate();
  it.receiver.script("/slow", { status: 200, after: opened });
  const flowControl = { key: "stripe-eu", parallelism: 1 };
  for (const body of ["1", "2", "3"]) await it.client.publish({ url: it.receiver.url("/slow"), body, flowControl });
  await it.receiver.arrivals("/slow");
  await visitor.open("/flow-control");
  await row("stripe-eu").filter({ hasText: "1 of 1" }).waitFor();
  await row("stripe-eu").getByRole("button", { name: "Pause" }).click();
  await visitor.said("Key stripe-eu paused.");
  open();
  await row("stripe-eu").getByRole("link").click();
  await page.getByRole("heading", { level: 1, name: "stripe-eu" }).waitFor();
  await page.locator("#flow-key").filter({ hasText: /Waiting\s*2/ }).waitFor();
  assert.equal(it.receiver.at("/slow").length, 1);
  await page.getByLabel("Parallelism", { exact: true }).fill("2");
  await page.getByRole("button", { name: "Pin limits", exact: true }).click();
  await visitor.said("Limits of key stripe-eu pinned.");
  await page.getByRole("button", { name: "Resume" }).click();
  await it.receiver.arrivals("/slow", 3);
  await page.locator("#flow-key").filter({ hasText: /Waiting\s*0/ }).waitFor();
});

test("a schedule is previewed with its zone while typing, created, run now, paused and deleted", async () => {
  const { page, visitor } = it;
  await visitor.open("/schedules");
  await page.getByRole("link", { name: "Create schedule" }).click();
  await page.getByLabel("Cron expression").fill("CRON_TZ=Europe/Berlin 30 2 * * SUN");
  const preview = page.locator("#preview");
  await preview.getByRole("row").nth(10).waitFor();
  await preview.getByRole("columnheader", { name: "Europe/Berlin" }).waitFor();
  await preview.getByText(/Sun \d{4}-\d\d-\d\d 02:30 \+0[12]:00/).first().waitFor();
  await page.getByLabel("Cron expression").fill("61 * * * *");
  await preview.locator(".problem").waitFor();
  await page.getByLabel("Cron expression").fill("0 0 1 1 *");
  await preview.getByText(/-01-01 00:00/).first().waitFor();

  await page.getByLabel("Destination").fill(it.receiver.url("/scheduled"));
  await page.getByLabel("ID (optional)").fill("new-year");
  await page.getByLabel("Body").fill("cheers\nto all");
  await page.getByRole("button", { name: "Save schedule" }).click();
  await visitor.said("Schedule new-year saved.");
  const { cron, body } = await it.client.schedules.get("new-year");
  assert.deepEqual({ cron, body }, { cron: "0 0 1 1 *", body: "cheers\nto all" });

  await visitor.open("/schedules");
  await visitor.confirm(row("new-year").getByRole("button", { name: "Run now" }));
  await visitor.said("Ran schedule new-year now.");
  const [arrived] = await it.receiver.arrivals("/scheduled");
  assert.equal(arrived.body, "cheers\nto all");

  await row("new-year").getByRole("button", { name: "Pause" }).click();
  await visitor.said("Schedule new-year paused.");
  assert.equal((await it.client.schedules.get("new-year")).isPaused, true);
  await row("new-year").getByRole("button", { name: "Resume" }).click();
  await visitor.said("Schedule new-year resumed.");
  await visitor.confirm(row("new-year").getByRole("button", { name: "Delete" }));
  await visitor.said("Schedule new-year deleted.");
  assert.deepEqual(await it.client.schedules.list(), []);
});

test("days on which the clock changes are marked", async () => {
  const { page, visitor } = it;
  await visitor.open("/schedules/make/new");
  // One of the next ten fire times falls on a last Sunday of March, when 02:30 does not exist.
  await page.getByLabel("Cron expression").fill("CRON_TZ=Europe/Berlin 30 2 25-31 3 *");
  await page.locator("#preview").getByText("skipped time").first().waitFor();
  await page.getByLabel("Cron expression").fill("CRON_TZ=Europe/Berlin 30 2 25-31 10 *");
  await page.locator("#preview").getByText("repeated time").first().waitFor();
});

test("a URL group is created, and links to its messages", async () => {
  const { page, visitor } = it;
  await visitor.open("/url-groups");
  await page.getByLabel("Group", { exact: true }).fill("mirrors");
  await page.getByLabel("Endpoint URL").fill(it.receiver.url("/one"));
  await page.getByLabel("Endpoint name").fill("first");
  await page.getByRole("button", { name: "Add endpoint" }).click();
  await visitor.said("Endpoint added to group mirrors.");
  await page.getByLabel("Endpoint URL").fill(it.receiver.url("/two"));
  await page.getByRole("button", { name: "Add endpoint" }).click();
  await row(it.receiver.url("/two")).waitFor();
  const published = await it.client.publish({ urlGroup: "mirrors", body: "to both" });
  assert.equal(published.length, 2);
  await Promise.all(["/one", "/two"].map((path) => it.receiver.arrivals(path)));

  const { messageId: other } = await it.client.publish({ url: it.receiver.url("/three") });
  await page.getByRole("link", { name: "Messages to this group" }).click();
  await visitor.isAt("/messages");
  for (const { messageId } of published) await row(messageId).waitFor();
  assert.equal(await row(other).count(), 0);

  await visitor.open("/url-groups/mirrors");
  await page.getByRole("link", { name: "Send a message" }).click();
  await visitor.isAt("/send");
  assert.equal(await page.getByRole("textbox", { name: "Destination" }).inputValue(), "mirrors");
  await visitor.open("/url-groups/mirrors");
  await visitor.confirm(row(it.receiver.url("/one")).getByRole("button", { name: "Remove" }));
  await visitor.said("Endpoint removed.");
  await visitor.confirm(row(it.receiver.url("/two")).getByRole("button", { name: "Remove" }));
  await visitor.said("so the group was deleted");
  await eventually("no group", async () => (await it.client.urlGroups.list()).length === 0);
});
