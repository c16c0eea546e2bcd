// Every page, empty and full, light and dark, narrow and wide: accessible (axe-core), not wider than its window, and pictures
// of it in target/console-screenshots.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Server } from "../../js/support/server.js";
import { eventually } from "../../js/support/wait.js";
import { story } from "../../workflow/js/support/story.js";
import { LOOKS, barriers, isTooWide, picture } from "../support/look.js";
import { PAGES } from "../support/pages.js";
import { watched } from "../support/story.js";

const looks = Object.keys(LOOKS);

/** As long as URLs of real programs. */
const LONG = `/webhooks/${"tenant-0123456789abcdef/".repeat(8)}invoices?signature=${"0123456789abcdef".repeat(12)}`;

/** A label without a line break opportunity. */
const LONG_LABEL = "merchant_settlement_".repeat(12);

const it = watched(
  story((app) => {
    app.workflow("/order", async (context) => {
      await context.run("pay", () => ({ receipt: 7 }));
      await Promise.all([context.run("pack", () => "packed"), context.run("print the label", () => "printed")]);
      await context.waitForEvent("wait for the carrier", "order-7-shipped", { timeout: "2d" });
    });
    app.workflow("/broken", async (context) => {
      await context.run("charge the card", () => {
        throw new Error("card_declined: the bank said no");
      });
    });
  }),
);

/** Fills the server like a week of work. Returns the pages of single objects: name, path after `/console`. */
async function fill() {
  const { qstash, third } = it;
  third.script("/fine", 200);
  third.script("/down", { status: 503, headers: { "content-type": "text/plain" }, body: "upstream connect error 7f3a" });
  third.script(LONG.split("?")[0], { status: 500, body: "x".repeat(3_000) });
  const url = third.url("/fine");
  await qstash.batchJSON(Array.from({ length: 120 }, (_, n) => ({ url, body: { n }, label: `batch-${n % 3}` })));
  const letters = await Promise.all([
    // Deleted at one per second, they last longer than this test.
    qstash.batch(Array.from({ length: 95 }, () => ({ url: third.url("/down"), retries: 0, label: "payments" }))),
    qstash.publish({ url: third.url(LONG), retries: 0, label: LONG_LABEL, body: JSON.stringify({ a: "y".repeat(2_000) }) }),
    qstash.publish({ url: "http://127.0.0.1:9/nobody-listens", retries: 0 }),
  ]);
  const { messageId } = await qstash.publish({ url: third.url("/down"), retries: 5, retryDelay: "3600000", callback: url, flowControl: { key: "stripe-eu", rate: 5, period: "1s" } });
  await qstash.publish({ url, delay: "3d", deduplicationId: "once" });
  await qstash.queue({ queueName: "invoices-eu" }).upsert({ parallelism: 2 });
  await qstash.queue({ queueName: "paused-by-hand" }).upsert({ parallelism: 1, paused: true });
  await qstash.queue({ queueName: "paused-by-hand" }).enqueue({ url });
  await qstash.schedules.create({ destination: url, cron: "CRON_TZ=Europe/Berlin 30 2 * * *", scheduleId: "nightly-report" });
  await qstash.schedules.create({ destination: third.url(LONG), cron: "*/5 * * * *" });
  await qstash.urlGroups.addEndpoints({ name: "mirrors", endpoints: [{ name: "first", url }, { url: third.url(LONG) }] });
  const waiting = await it.trigger("/order", { body: { order: 7 }, label: "orders" });
  const failed = await it.trigger("/broken", { body: { order: 8 }, retries: 0 });
  await it.reaches(failed, "RUN_FAILED");
  await eventually("the run waits", async () => JSON.stringify(await it.log(waiting)).includes("order-7-shipped"));
  const dead = await eventually("dead letters", async () => {
    const { messages } = await qstash.dlq.listMessages({ count: 100 });
    return messages.length >= letters.flat().length ? messages : undefined;
  });
  const long = dead.find((letter) => letter.url.includes("webhooks"));
  return [
    ["message-waits", `/messages/${messageId}`],
    ["message-failed", `/messages/${long.messageId}`],
    ["no-such-message", "/messages/msg_nowhere"],
    ["dlq-entries", "/dlq/entries"],
    ["dead-letter", `/dlq/${long.dlqId}`],
    ["dlq-edit", `/dlq/retry?what=one&id=${long.dlqId}`],
    ["flow-control-key", "/flow-control/key?key=stripe-eu"],
    ["schedule", "/schedules/nightly-report"],
    ["schedule-new", "/schedules/make/new?expression=CRON_TZ%3DEurope%2FBerlin+30+2+*+*+SUN"],
    ["url-group", "/url-groups/mirrors"],
    ["run", `/workflows/runs/${waiting}`],
    ["run-failed", `/workflows/runs/${failed}`],
    ["runs-cancel", "/workflows/cancel?label=orders"],
    ["runs-failed", "/workflows/failed"],
    ["runs-failed-all", "/workflows/failed/all"],
    ["events", "/workflows/events?event=order-7-shipped"],
    ["wrong-filter", "/messages?fromDate=yesterday"],
    ["nowhere", "/nowhere"],
  ];
}

let filled;

/** The pages of the menu. */
const menu = PAGES.map(([path, name]) => [name.toLowerCase().replaceAll(" ", "-"), path]);

/** Dialogs before an action: name, path after `/console`, and how to open it. */
const QUESTIONS = [
  ["cancel", ([[, waits]]) => waits, async (page) => await page.getByRole("button", { name: "Cancel", exact: true }).click()],
  ["cancel-all", () => "/messages", async (page) => await page.getByRole("button", { name: "Cancel all…" }).click()],
  ["delete", () => "/queues", async (page) => await page.getByRole("row").filter({ hasText: "invoices-eu" }).getByRole("button", { name: "Delete" }).click()],
  ["delete-cause", () => "/dlq", async (page) => await page.getByRole("row").getByRole("button", { name: "Delete" }).first().click()],
  ["delete-long-cause", () => "/dlq", async (page) => await page.getByRole("row").filter({ hasText: "webhooks" }).getByRole("button", { name: "Delete" }).click()],
  ["delete-long-label", () => `/dlq?label=${LONG_LABEL}`, async (page) => await page.getByRole("button", { name: "Delete all matching" }).click()],
  ["rotate", () => "/settings", async (page) => {
    await page.getByLabel("All my receivers know the next key").check();
    await page.getByRole("button", { name: "Rotate keys" }).click();
  }],
];

/** Forms that are rejected because of one field: name, path after `/console`, its label and a wrong value, the button. */
const REFUSALS = [
  ["send", () => "/send", "Retries", "many", "Send message"],
  ["queue", () => "/queues", "Name", "no such/name", "Save"],
  ["schedule", () => "/schedules/nightly-report", "Cron expression", "61 * * * *", "Save times"],
  ["url-group", () => "/url-groups/mirrors", "Headers, one per line", "no colon", "Save headers"],
  ["dlq-edit", (pages) => pages.find(([name]) => name === "dlq-edit")[1], "Retries", "many", "Retry"],
];

/** Opens pages in one window, and lists their problems. An action may run on a page first. */
async function look(server, look, pages, prefix = "") {
  // axe-core is not a script of the page, so the policy is disabled here; the other tests have it.
  const visitor = await it.browser.visitor(server.url, { ...LOOKS[look], bypassCSP: true });
  const wrong = [];
  try {
    for (const [name, path, first] of pages) {
      await visitor.page.goto(`/console${path}`);
      await first?.(visitor.page);
      if (await isTooWide(visitor.page)) wrong.push(`${name}: wider than the window`);
      for (const barrier of await barriers(visitor.page)) wrong.push(`${name}: ${barrier}`);
      await picture(visitor.page, `${prefix}${name}-${look}`);
    }
  } finally {
    await visitor.leave();
  }
  assert.deepEqual(wrong, []);
}

for (const name of looks) {
  test(`pages with data, ${name}`, async () => {
    filled ??= await fill();
    await look(it.server, name, [...menu, ...filled]);
  });
}

for (const name of looks) {
  test(`questions, ${name}`, async () => {
    filled ??= await fill();
    const asked = async (page, press) => {
      await press(page);
      await page.getByRole("dialog").getByRole("button", { name: "No", exact: true }).waitFor();
    };
    await look(it.server, name, QUESTIONS.map(([question, path, press]) => [question, path(filled), (page) => asked(page, press)]), "question-");
    // No question was confirmed.
    assert.equal((await it.qstash.queue({ queueName: "invoices-eu" }).get()).parallelism, 2);
  });
}

for (const name of looks) {
  test(`refused forms, ${name}`, async () => {
    filled ??= await fill();
    const refused = async (page, label, value, button) => {
      await page.getByLabel(label, { exact: true }).fill(value);
      await page.locator("form").filter({ has: page.getByLabel(label, { exact: true }) }).getByRole("button", { name: button, exact: true }).click();
      const reason = await page.getByRole("alert").innerText();
      const field = page.locator("[aria-invalid=true]");
      assert.equal(await field.inputValue(), value);
      await page.locator(".refused").filter({ has: field, hasText: reason }).waitFor();
    };
    await look(it.server, name, REFUSALS.map(([form, path, ...typed]) => [form, path(filled), (page) => refused(page, ...typed)]), "refused-");
  });
}

test("bulk actions in progress and stopped", async () => {
  filled ??= await fill();
  const begun = await it.server.fetch("/v2/dlq?async=true&rate=1&label=payments", { method: "DELETE" });
  const { actionId } = await begun.json();
  const isRunning = async (page) => await page.locator("#background progress").waitFor();
  for (const name of looks) await look(it.server, name, [["background", "/dlq", isRunning]]);
  await it.server.fetch(`/v2/bulkActions/${actionId}`, { method: "DELETE" });
  const hasEnded = async (page) => await page.locator("#background").getByText("stopped").waitFor();
  for (const name of looks) await look(it.server, name, [["background-stopped", "/dlq", hasEnded]]);
});

test("pages without data, and the login", async () => {
  const keys = ["--current-signing-key", `sig_${"a".repeat(32)}`, "--next-signing-key", `sig_${"b".repeat(32)}`];
  const [empty, closed] = await Promise.all([Server.start(), Server.startIn("serve", "--token", "t".repeat(40), ...keys)]);
  try {
    for (const name of looks) {
      await look(empty, name, menu, "empty-");
      await look(closed, name, [["login", "/login"]]);
    }
  } finally {
    await empty.stop();
    await closed.stop();
  }
});
