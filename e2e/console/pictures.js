// Creates the pictures of README.md and docs/console.md: npm --prefix e2e/console run pictures
//
// ./test does not run this file, because it takes two minutes and writes into docs/images. Other tests cover the pages.

import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { eventually, pause } from "../js/support/wait.js";
import { story } from "../workflow/js/support/story.js";
import { watched } from "./support/story.js";

const IMAGES = fileURLToPath(new URL("../../docs/images/", import.meta.url));

/** Duration of the traffic on the overview. */
const TRAFFIC_MS = 80_000;

const it = watched(
  story((app) => {
    const takes = (ms, result) => async () => {
      await pause(ms);
      return result;
    };
    app.workflow("/order", async (context) => {
      await context.run("charge the card", takes(650, { receipt: 7 }));
      await Promise.all([context.run("pack", takes(850, "packed")), context.run("print the label", takes(350, "printed"))]);
      await context.run("book the carrier", takes(420, { carrier: "dhl" }));
      await context.sleep("let the parcel settle", 2);
      await context.waitForEvent("wait for the carrier", "order-7-shipped", { timeout: "2d" });
    });
  }),
);

/** Takes a picture of a page: the whole page, or this height. */
async function picture(name, page, { height, colorScheme = "light" } = {}) {
  const visitor = await it.browser.visitor(it.server.url, { viewport: { width: 1440, height: height ?? 700 }, colorScheme });
  try {
    await visitor.open(page);
    await visitor.page.screenshot({ path: path.join(IMAGES, `${name}.png`), fullPage: height === undefined, animations: "disabled" });
    visitor.innocent();
  } finally {
    await visitor.leave();
  }
}

test("the overview", async () => {
  const { qstash, third } = it;
  third.script("/fine", 200);
  third.script("/down", { status: 503, body: "maintenance" });
  for (const [scheduleId, cron] of [["exchange-rates", "*/5 * * * *"], ["nightly-report", "30 2 * * *"], ["weekly-digest", "0 8 * * SUN"]]) {
    await qstash.schedules.create({ destination: third.url("/fine"), cron, scheduleId });
  }
  const begun = Date.now();
  for (let n = 0; Date.now() - begun < TRAFFIC_MS; n += 1) {
    const count = Math.round(5 + 3 * Math.sin(n / 18) + 2 * Math.random());
    const items = Array.from({ length: count }, (_, index) => ({ url: third.url("/fine"), body: { n, index } }));
    if (n % 100 === 50) items.push({ url: third.url("/down"), body: { n }, retries: 0 });
    await Promise.all([qstash.batchJSON(items), pause(125)]);
  }
  await picture("console-now", "");
  // The other pictures start without dead letters.
  const { messages } = await qstash.dlq.listMessages({ count: 100 });
  await qstash.dlq.deleteMany({ dlqIds: messages.map(({ dlqId }) => dlqId) });
});

test("a message that failed, the DLQ by cause, and a run", async () => {
  const { qstash, third } = it;
  const causes = [
    ["/webhooks/payments", 503, "upstream connect error, request 7f3a21", 34],
    ["/invoices", 422, "unknown customer 88123", 12],
    ["/ledger", 500, "deadlock detected, transaction 4711", 7],
    ["/mail/welcome", 429, "too many requests", 3],
  ];
  for (const [to, status, error] of causes) {
    third.script(to, { status, headers: { "content-type": "application/json" }, body: JSON.stringify({ error }) });
  }
  third.script("/alerts", 200);
  const { messageId } = await qstash.publishJSON({
    url: third.url("/webhooks/payments"), body: { order: 7 }, label: "payments", retries: 2, retryDelay: "1500 * (1 + retried)",
    failureCallback: third.url("/alerts"), flowControl: { key: "payments-eu", rate: 50, period: "1s", parallelism: 10 },
  });
  const letters = causes.flatMap(([to, , , count]) => Array.from({ length: count }, (_, n) => ({ url: third.url(to), body: { n }, retries: 0 })));
  await qstash.batchJSON([...letters, { url: "http://127.0.0.1:9/nobody-listens", body: {}, retries: 0 }]);
  const run = await it.trigger("/order", { body: { order: 7 }, label: "orders" });
  await eventually("dead letters", async () => (await qstash.dlq.listMessages({ count: 100 })).messages.length === letters.length + 2);
  await eventually("the run waits", async () => JSON.stringify(await it.log(run)).includes("order-7-shipped"));
  // Long enough that the wait of the run is visible next to its steps.
  await pause(4_000);
  await picture("console-dlq", "/dlq");
  await picture("console-message", `/messages/${messageId}`, { height: 1100 });
  await picture("console-run", `/workflows/runs/${run}`, { height: 1100, colorScheme: "dark" });
});
