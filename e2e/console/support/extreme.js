// Data at the limits of length, width and amount, which pages must display without breaking.

import { eventually } from "../../js/support/wait.js";

/** The longest names that the server accepts, without a line break opportunity. */
const NAME = "n".repeat(240);
const LABEL = "Quarterly-reconciliation-of-merchant-settlements.".repeat(5).slice(0, 250);
const URL_TEXT = `${"a-very-long-segment-of-a-path-without-a-dot/".repeat(20)}?signature=${"0123456789abcdef".repeat(70)}`;
const ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Auckland", "UTC"];

/** The steps of the longest run. */
const STEPS = 100;

/** Workflows of the app: one with many steps, one that invokes others, one that fails after some. */
export function extremeWorkflows(app) {
  app.workflow("/many", async (context) => {
    for (let n = 1; n <= STEPS - 8; n += 1) await context.run(n % 9 ? `charge card ${n}` : `step ${n} ${NAME}`, () => ({ n }));
    await Promise.all(Array.from({ length: 8 }, (_, n) => context.run(`branch ${n} ${n % 2 ? NAME : ""}`, () => NAME)));
    await context.waitForEvent(`wait for ${NAME}`, NAME, { timeout: "30d" });
  });
  app.workflow("/fails", async (context) => {
    await context.run("reserve", () => "ok");
    await context.run(NAME, () => {
      throw new Error(`card_declined_${NAME}: ${"the bank said no ".repeat(20)}`);
    });
  });
  app.workflows("/nested", (make) => {
    const inner = make(async (context) => {
      await context.sleep("rest", "1d");
    });
    const outer = make(async (context) => {
      await context.invoke(`invoke ${NAME}`, { workflow: inner, body: { text: NAME } });
    });
    return { inner, outer };
  });
}

/** Fills a server; `scale` 1 is enough for tests. Returns the pages of single objects: name, path after `/console`. */
export async function extreme(it, scale = 1) {
  const { qstash, third } = it;
  const long = third.url(`/${URL_TEXT}`);
  const many = (count, make) => Promise.all(Array.from({ length: Math.round(count * scale) }, (_, n) => make(n)));
  const batches = async (count, make) => {
    const items = Array.from({ length: Math.round(count * scale) }, (_, n) => make(n));
    for (let from = 0; from < items.length; from += 250) await qstash.batch(items.slice(from, from + 250));
  };
  // Dead letters with thirty causes.
  for (let n = 0; n < 30; n += 1) {
    third.script(`/down/${n}`, { status: [500, 502, 404, 489][n % 4], body: n % 5 ? `no such account: merchant ${"x".repeat(n)}` : NAME });
  }
  third.script(`/${URL_TEXT.split("?")[0]}`, { status: 503, headers: { "x-long": NAME }, body: "x".repeat(3_000) });
  await batches(60, (n) => ({ url: n % 10 ? third.url(`/down/${n % 30}`) : long, retries: 0, label: n % 3 ? "payments" : LABEL, body: `{"n":${n}}` }));
  // Messages in every state.
  const key = `key-${NAME}`;
  await batches(200, (n) => ({ url: third.url("/fine"), body: `${n}`, label: ["billing", "mail", LABEL][n % 3] }));
  await batches(30, (n) => ({ url: n % 2 ? long : third.url("/later"), delay: 86_400 * (1 + (n % 300)), label: LABEL, body: `${n}` }));
  await qstash.publish({ url: third.url("/fine"), body: `${"z".repeat(1_000_000)}` });
  const fails = { url: long, retries: 5, retryDelay: "3600000", label: LABEL, callback: long, body: "x".repeat(2_000) };
  const { messageId } = await qstash.publish({ ...fails, flowControl: { key, rate: 1_000_000, period: "7d", parallelism: 1_000_000 } });
  // Named objects.
  await many(10, (n) => qstash.queue({ queueName: n % 4 ? `invoices-${n}` : `${n}-${NAME}` }).upsert({ parallelism: 1 + (n % 9), paused: n % 3 === 0 }));
  await qstash.queue({ queueName: `0-${NAME}` }).enqueue({ url: long, body: "waits" });
  await batches(10, (n) => ({
    url: third.url("/fine"), body: "k", delay: 3_600, flowControl: { key: n % 4 ? `stripe-${n}` : `${n}-${NAME}`, rate: 1 + n, period: "1m" },
  }));
  await many(10, (n) => qstash.schedules.create({
    destination: n % 4 ? third.url("/fine") : long, cron: `CRON_TZ=${ZONES[n % ZONES.length]} ${n % 60} ${n % 24} * * *`,
    scheduleId: n % 4 ? `nightly-report-${n}` : `${n}-${NAME}`, label: LABEL,
  }));
  const endpoints = Array.from({ length: 100 }, (_, n) => ({ name: n % 4 ? `mirror-${n}` : `${n}-${NAME}`, url: n % 4 ? third.url(`/fine/${n}`) : `${long}${n}` }));
  await qstash.urlGroups.addEndpoints({ name: `g-${NAME}`, endpoints });
  await many(4, (n) => qstash.urlGroups.addEndpoints({ name: `group-${n}`, endpoints: endpoints.slice(0, 3) }));
  // Runs.
  const run = await it.trigger("/many", { body: { text: NAME }, label: LABEL });
  const failed = await it.trigger("/fails", { body: { order: 8 }, retries: 0, label: LABEL });
  const outer = await it.trigger("/nested/outer", { body: { order: 9 } });
  await many(5, (n) => it.trigger("/fails", { body: { n }, retries: 0 }));
  await it.reaches(failed, "RUN_FAILED", 120_000);
  await eventually("the run waits", async () => JSON.stringify(await it.log(run)).includes(`wait for ${NAME}`), 120_000);
  const letters = await eventually("dead letters", async () => {
    const { messages } = await qstash.dlq.listMessages({ count: 100 });
    return messages.length >= Math.min(100, 60 * scale) && messages.some(({ url }) => url === long) ? messages : undefined;
  }, 120_000);
  const letter = letters.find(({ url }) => url === long);
  const encoded = encodeURIComponent;
  return [
    ["message-waits", `/messages/${messageId}`],
    ["message-failed", `/messages/${letter.messageId}`],
    ["dlq-entries", "/dlq/entries"],
    ["dead-letter", `/dlq/${letter.dlqId}`],
    ["dlq-edit", `/dlq/retry?what=one&id=${letter.dlqId}`],
    ["flow-control-key", `/flow-control/key?key=${encoded(key)}`],
    ["schedule", `/schedules/0-${NAME}`],
    ["schedule-new", `/schedules/make/new?expression=${encoded("CRON_TZ=Europe/Berlin 30 2 * * SUN")}`],
    ["url-group", `/url-groups/g-${NAME}`],
    ["run", `/workflows/runs/${run}`],
    ["run-failed", `/workflows/runs/${failed}`],
    ["run-nested", `/workflows/runs/${outer}`],
    ["runs-failed", "/workflows/failed"],
    ["events", `/workflows/events?event=${encoded(NAME)}`],
    ["wrong-filter", `/messages?fromDate=yesterday&label=${encoded(LABEL)}`],
    ["no-such-message", `/messages/msg_${NAME}`],
    ["no-such-schedule", `/schedules/none-${NAME}`],
    ["no-such-dead-letter", `/dlq/none-${NAME}`],
    ["no-such-run", `/workflows/runs/wfr_none-${NAME}`],
    ["no-such-group", `/url-groups/none-${NAME}`],
    ["no-such-key", `/flow-control/key?key=none-${NAME}`],
    ["nowhere", "/nowhere"],
  ];
}
