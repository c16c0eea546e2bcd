// Lists that refresh: the last row disappears and the first one appears without a reload, and the text in between is
// that of an empty list.

import assert from "node:assert/strict";
import { test } from "node:test";
import { story } from "../../workflow/js/support/story.js";
import { watched } from "../support/story.js";

const it = watched(
  story((app) => {
    app.workflow("/waits", async (context) => {
      await context.waitForEvent("for the carrier", "shipped", { timeout: "1h" });
    });
  }),
);
const { row } = it;

/** Opens a page with a row, removes the row, and expects the text of the empty list in the same place, without a fault. */
async function empties(path, list, shown, go, said) {
  const { page, visitor } = it;
  await page.clock.install();
  await visitor.open(path);
  await row(shown).waitFor();
  await go();
  await passes(() => page.locator(list).getByText(said).waitFor({ timeout: LOOK_MS }));
  assert.equal(await row(shown).count(), 0);
  assert.equal(await page.locator("#age").innerText(), "", "nothing is old");
  assert.equal(await page.locator(".stale").count(), 0);
}

/** Longest duration of a refresh. */
const LOOK_MS = 5_000;

/** Advances the page's clock until a condition holds. */
async function passes(isSo) {
  for (let n = 0; ; n += 1) {
    await it.page.clock.fastForward(11_000);
    try {
      return await isSo();
    } catch (error) {
      if (n === 10) throw error;
    }
  }
}

test("queues", async () => {
  const queue = it.qstash.queue({ queueName: "brief" });
  await queue.upsert({ parallelism: 1 });
  await empties("/queues", "#queue-list", "brief", () => queue.delete(), "No queues yet");
  assert.equal(await it.page.getByRole("search").count(), 0, "there is nothing to search");
  assert.match(await it.page.locator("#queue-count").innerText(), /^0 queues/);
  await queue.upsert({ parallelism: 1 });
  await passes(() => row("brief").waitFor({ timeout: LOOK_MS }));
  await it.page.getByRole("search").waitFor();
});

test("schedules", async () => {
  const { scheduleId } = await it.qstash.schedules.create({ destination: it.third.url("/"), cron: "0 0 1 1 *" });
  await empties("/schedules", "#schedule-list", scheduleId, () => it.qstash.schedules.delete(scheduleId), "No schedules yet");
});

test("flow-control keys, from the first one on", async () => {
  const { page, visitor } = it;
  await page.clock.install();
  await visitor.open("/flow-control");
  await page.locator("#flow-list").getByText("No flow-control keys").waitFor();
  await it.server.fetch("/v2/flowControl/first/pause", { method: "POST" });
  await passes(() => row("first").filter({ hasText: "paused" }).waitFor({ timeout: LOOK_MS }));
  await page.getByLabel("Key contains").waitFor();
});

test("runs that wait for an event", async () => {
  const run = await it.trigger("/waits", { body: {} });
  await it.calls(run, (calls) => calls.length > 0 && calls.every(({ isOver }) => isOver));
  const notify = () => it.client.notify({ eventId: "shipped" });
  await empties("/workflows/events?event=shipped", "#waiters", run, notify, "No runs wait for shipped");
  const other = await it.trigger("/waits", { body: {} });
  const cancel = () => it.client.cancel({ ids: other });
  await empties("/workflows?state=RUN_STARTED", "#runs", other, cancel, "No runs match");
  assert.equal(await it.page.getByRole("button", { name: "Cancel selected runs" }).count(), 0);
});
