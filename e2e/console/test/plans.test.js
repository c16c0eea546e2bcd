// What is set up ahead: queues, flow control, schedules and URL groups.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gate } from "../../js/support/receiver.js";
import { story } from "../../js/support/story.js";
import { eventually } from "../../js/support/wait.js";
import { watched } from "../support/story.js";

const it = watched(story());
const { row } = it;

test("a queue is paused and goes on", async () => {
  const { page, visitor } = it;
  const queue = it.client.queue({ queueName: "orders" });
  await queue.upsert({ parallelism: 2 });
  await visitor.open("/queues");
  await row("orders").getByRole("button", { name: "Pause" }).click();
  await visitor.said("The queue orders is paused");
  assert.equal((await queue.get()).paused, true);
  await queue.enqueue({ url: it.receiver.url("/queued"), body: "1" });
  await queue.enqueue({ url: it.receiver.url("/queued"), body: "2" });
  // Without a reload.
  await row("orders").getByRole("link", { name: "2", exact: true }).waitFor();
  assert.equal(it.receiver.at("/queued").length, 0);
  assert.match(await row("orders").innerText(), /paused/);

  await row("orders").getByRole("button", { name: "Resume" }).click();
  await visitor.said("The queue orders goes on.");
  await it.receiver.arrivals("/queued", 2);
  assert.equal((await queue.get()).paused, false);

  await page.getByLabel("Parallelism of orders").fill("5");
  await row("orders").getByRole("button", { name: "Set" }).click();
  await visitor.said("parallelism of 5");
  assert.equal((await queue.get()).parallelism, 5);
});

test("a queue is made and deleted, and its messages are a link away", async () => {
  const { page, visitor } = it;
  await visitor.open("/queues");
  await page.getByLabel("Name", { exact: true }).fill("made.here");
  await page.getByLabel("Parallelism", { exact: true }).fill("3");
  await page.getByLabel("paused from the start").check();
  await page.getByRole("button", { name: "Store" }).click();
  await visitor.said("The queue made.here is stored.");
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
  await visitor.said("1 of its messages were cancelled");
  assert.equal(await row("made.here").count(), 0);
  // What the API refuses, the page tells, and what was typed stays.
  await page.getByLabel("Name", { exact: true }).fill("no such/name");
  await page.getByRole("button", { name: "Store" }).click();
  await page.getByRole("alert").waitFor();
  assert.equal(await page.getByLabel("Name", { exact: true }).inputValue(), "no such/name");
});

test("a flow-control key shows who waits, and is paused, pinned and freed", async () => {
  const { page, visitor } = it;
  const { opened, open } = gate();
  it.receiver.script("/slow", { status: 200, after: opened });
  const flowControl = { key: "stripe-eu", parallelism: 1 };
  for (const body of ["1", "2", "3"]) await it.client.publish({ url: it.receiver.url("/slow"), body, flowControl });
  await it.receiver.arrivals("/slow");
  await visitor.open("/flow-control");
  await row("stripe-eu").filter({ hasText: "1 of 1" }).waitFor();
  await row("stripe-eu").getByRole("button", { name: "Pause" }).click();
  await visitor.said("stripe-eu is paused");
  open();
  await row("stripe-eu").getByRole("link").click();
  await page.getByRole("heading", { level: 1, name: "stripe-eu" }).waitFor();
  await page.locator("#flow-key").filter({ hasText: /Waiting\s*2/ }).waitFor();
  assert.equal(it.receiver.at("/slow").length, 1);
  await page.getByLabel("Parallelism", { exact: true }).fill("2");
  await page.getByRole("button", { name: "Pin", exact: true }).click();
  await visitor.said("The limits of stripe-eu are pinned");
  await page.getByRole("button", { name: "Resume" }).click();
  await it.receiver.arrivals("/slow", 3);
  await page.locator("#flow-key").filter({ hasText: /Waiting\s*0/ }).waitFor();
});

test("a schedule is previewed with its zone while it is typed, made, run now, paused and deleted", async () => {
  const { page, visitor } = it;
  await visitor.open("/schedules");
  await page.getByRole("link", { name: "New schedule" }).click();
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
  await page.getByLabel("Id (made up").fill("new-year");
  await page.getByLabel("Body").fill("cheers\nto all");
  await page.getByRole("button", { name: "Store the schedule" }).click();
  await visitor.said("The schedule new-year is stored.");
  const { cron, body } = await it.client.schedules.get("new-year");
  assert.deepEqual({ cron, body }, { cron: "0 0 1 1 *", body: "cheers\nto all" });

  await visitor.open("/schedules");
  await visitor.confirm(row("new-year").getByRole("button", { name: "Run now" }));
  await visitor.said("new-year was run by hand");
  const [arrived] = await it.receiver.arrivals("/scheduled");
  assert.equal(arrived.body, "cheers\nto all");

  await row("new-year").getByRole("button", { name: "Pause" }).click();
  await visitor.said("new-year is paused");
  assert.equal((await it.client.schedules.get("new-year")).isPaused, true);
  await row("new-year").getByRole("button", { name: "Resume" }).click();
  await visitor.said("new-year fires again");
  await visitor.confirm(row("new-year").getByRole("button", { name: "Delete" }));
  await visitor.said("The schedule new-year is gone.");
  assert.deepEqual(await it.client.schedules.list(), []);
});

test("days on which the clock changes are marked", async () => {
  const { page, visitor } = it;
  await visitor.open("/schedules/make/new");
  // Somewhere in the next ten last Sundays of March is one at which half past two does not exist.
  await page.getByLabel("Cron expression").fill("CRON_TZ=Europe/Berlin 30 2 25-31 3 *");
  await page.locator("#preview").getByText("skipped time").first().waitFor();
  await page.getByLabel("Cron expression").fill("CRON_TZ=Europe/Berlin 30 2 25-31 10 *");
  await page.locator("#preview").getByText("repeated time").first().waitFor();
});

test("a URL group is made, and a message to it is found from its page", async () => {
  const { page, visitor } = it;
  await visitor.open("/url-groups");
  await page.getByLabel("Group", { exact: true }).fill("mirrors");
  await page.getByLabel("URL of the endpoint").fill(it.receiver.url("/one"));
  await page.getByLabel("Its name").fill("first");
  await page.getByRole("button", { name: "Add" }).click();
  await visitor.said("The group mirrors has this endpoint now.");
  await page.getByLabel("URL of the endpoint").fill(it.receiver.url("/two"));
  await page.getByRole("button", { name: "Add" }).click();
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
  await page.getByRole("link", { name: "Publish" }).click();
  await visitor.isAt("/send");
  assert.equal(await page.getByRole("textbox", { name: "Destination" }).inputValue(), "mirrors");
  await visitor.open("/url-groups/mirrors");
  await visitor.confirm(row(it.receiver.url("/one")).getByRole("button", { name: "Remove" }));
  await visitor.said("The endpoint is removed.");
  await visitor.confirm(row(it.receiver.url("/two")).getByRole("button", { name: "Remove" }));
  await visitor.said("the group is gone");
  await eventually("no group", async () => (await it.client.urlGroups.list()).length === 0);
});
