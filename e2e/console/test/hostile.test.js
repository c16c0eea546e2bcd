// Every payload of vectors/xss.json in every field that accepts it: nothing runs, nothing is loaded from
// elsewhere, and the text shows as it is.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { eventually } from "../../js/support/wait.js";
import { story } from "../../workflow/js/support/story.js";
import { FIELDS, PAYLOADS, SHORT, chunks, hostileReceiver, shown, together } from "../support/hostile.js";
import { PAGES } from "../support/pages.js";
import { watched } from "../support/story.js";

/** Pages that are open at once. */
const TABS = 3;
/** Payloads in one part of a URL; all together would be too long. */
const PER_ADDRESS = 10;

// The SDK prints the error of a step, which here could harm a terminal.
console.error = () => {};

const it = watched(
  story((app) => {
    app.workflow(
      "/hostile",
      async (context) => {
        await Promise.all(SHORT.map((payload) => context.run(payload, () => payload)));
        await Promise.all(SHORT.map((payload) => context.waitForEvent(payload, payload, { timeout: "1h" })));
      },
      { retries: 0 },
    );
    app.workflow("/broken", async (context) => {
      await context.run("break", () => {
        throw new Error(context.requestPayload);
      });
    });
  }),
);

let receiver;
/** The stored messages: one for each payload, which is in every field that accepts it. */
const letters = [];

before(async () => {
  receiver = await hostileReceiver();
});
after(async () => await receiver?.stop());

async function batch(user, ...items) {
  const filled = items.map((item) => ({ ...item, headers: { "Upstash-Retries": "0", ...item.headers } }));
  const options = { user, method: "POST", body: JSON.stringify(filled) };
  return await it.server.fetch("/v2/batch", { ...options, headers: { "content-type": "application/json" } });
}

/** The message of a payload. Another user tries each field first, so that the lists contain only these messages. */
async function hostileMessage(index) {
  const payload = PAYLOADS[index];
  const accepted = [];
  for (const [name, field] of Object.entries(FIELDS)) {
    const item = { destination: "https://example.invalid/", ...field(payload, receiver.url(`/${index}`)) };
    const delayed = { ...item, headers: { "Upstash-Delay": "1d", ...item.headers } };
    if ((await batch(1, delayed)).ok) accepted.push(name);
  }
  const items = accepted.map((name) => FIELDS[name](payload, receiver.url(`/${index}`)));
  const [{ messageId }] = await (await batch(0, together([{ destination: receiver.url(`/${index}`) }, ...items]))).json();
  return { accepted, messageId };
}

/** Opens a page, and checks that it is ours, that no script ran, and that it shows these texts. */
async function look(page, path, texts, status = 200) {
  const response = await page.goto(`/console${path}`);
  if (status) assert.equal(response.status(), status, path);
  await inspect(page, path, texts);
}

async function inspect(page, where, texts) {
  const { text, ran, links, typed } = await page.evaluate(() => {
    // The content of fields counts as shown, but is not escaped there.
    const copy = document.querySelector("main").cloneNode(true);
    for (const field of copy.querySelectorAll("textarea, option")) field.remove();
    const targets = ["href", "src", "action", "formaction"];
    return {
      text: copy.textContent,
      typed: [...document.querySelectorAll("input, textarea")].map((field) => field.value).join("\n"),
      ran: window.__xss,
      links: [...document.querySelectorAll(targets.map((name) => `[${name}]`).join())]
        .flatMap((element) => targets.map((name) => element.getAttribute(name)))
        .filter((target) => target && !/^(\/(console|openapi|metrics|health|ready)|#)/.test(target)),
    };
  });
  assert.equal(ran, undefined, `something has run on ${where}`);
  assert.deepEqual(links, [], `links that strangers wrote on ${where}`);
  assert.doesNotMatch(text, /[\u0000-\u0008\u001b\u200b\u202e]/, `${where} has characters that nobody sees`);
  const whole = `${text}\n${shown(typed)}`;
  for (const wanted of texts) {
    // The first line break of a text area or of preformatted text is not shown.
    if (!whole.includes(shown(wanted).replace(/^\n/, ""))) assert.fail(`${where} does not show ${JSON.stringify(wanted.slice(0, 80))}`);
  }
}

/** Opens a list and its next pages: each of these texts is on one of them. */
async function lookThrough(page, path, texts) {
  await look(page, path, []);
  let whole = "";
  for (;;) {
    whole += await page.locator("main").textContent();
    const next = page.getByRole("link", { name: "Next page" });
    if (!(await next.count())) break;
    await next.click();
    await page.waitForLoadState();
    await inspect(page, path, []);
  }
  for (const text of texts) assert.ok(whole.includes(shown(text)), `${path} does not show ${JSON.stringify(text.slice(0, 80))}`);
}

/** Runs an action for each element of a list, in several pages at once. */
async function inTabs(list, act) {
  const rest = [...list];
  const pages = await Promise.all(Array.from({ length: TABS }, () => it.visitor.context.newPage()));
  await Promise.all(
    pages.map(async (page) => {
      while (rest.length) await act(page, rest.shift());
      await page.close();
    }),
  );
}

test("messages whose every field is hostile are stored, and fail", async () => {
  const { page } = it;
  await it.visitor.open("/tail");
  const made = await Promise.all(PAYLOADS.map((_, index) => hostileMessage(index)));
  const count = (field) => made.filter(({ accepted }) => accepted.includes(field)).length;
  const taken = Object.fromEntries(Object.keys(FIELDS).map((field) => [field, count(field)]));
  // If the API accepts fewer payloads some day, this test must be changed.
  assert.equal(taken.body, PAYLOADS.length);
  for (const field of ["header", "label", "flow-control key", "deduplication id"]) assert.ok(taken[field] > 20, JSON.stringify(taken));

  for (const { messageId } of made) {
    const letter = await eventually(`${messageId} in the DLQ`, async () => {
      const { messages } = await (await it.server.fetch(`/v2/dlq?messageId=${messageId}`)).json();
      return messages[0];
    });
    letters.push(await (await it.server.fetch(`/v2/dlq/${letter.dlqId}`)).json());
  }
  for (const [index, letter] of letters.entries()) assert.equal(letter.body, PAYLOADS[index]);
  // The tail was open in the meantime and got its rows from the stream. It shows a limited number.
  await page.getByRole("row").nth(20).waitFor();
  await inspect(page, "/tail", []);
});

test("pages of messages and of dead letters show untrusted content as text", async () => {
  const texts = (letter) => {
    const { url, callback, label, flowControlKey, header } = letter;
    return [url, callback, label, flowControlKey, ...(header?.["X-Hostile"] ?? [])].filter(Boolean);
  };
  await inTabs(letters, async (page, letter) => {
    const answers = [letter.responseBody, ...(letter.responseHeader?.["X-Answer"] ?? [])].filter(Boolean);
    await look(page, `/messages/${letter.messageId}`, [letter.body, ...texts(letter), ...answers]);
    await look(page, `/dlq/${letter.dlqId}`, [letter.body, ...texts(letter), ...answers]);
    const file = await it.visitor.fetch(`/messages/${letter.messageId}/body`);
    assert.match(file.headers.get("content-disposition"), /^attachment; filename="[\w.-]+"$/);
    assert.equal(file.headers.get("content-type"), "application/octet-stream");
  });
});

test("lists show untrusted content as text", async () => {
  const { page } = it;
  const all = (pick) => letters.map(pick).filter(Boolean);
  await lookThrough(page, "/messages", all(({ label }) => label));
  await lookThrough(page, "/dlq/entries", all(({ url }) => url));
  await look(page, "/dlq", []);
  await look(page, "/tail", []);
  await look(page, "", []);
  await look(page, "/flow-control", all(({ flowControlKey }) => flowControlKey));
});

test("questions and messages about hostile names are text, and actions reach the right key", async () => {
  const { page, visitor } = it;
  const keys = letters.map(({ flowControlKey }) => flowControlKey).filter((key) => /[<"]/.test(key));
  for (const key of keys.slice(0, 5)) {
    await look(page, `/flow-control/key?key=${encodeURIComponent(key)}`, [key]);
    await page.getByRole("button", { name: "Reset rate" }).click();
    assert.ok((await page.getByRole("dialog").textContent()).length > 0);
    await page.getByRole("dialog").getByRole("button", { name: "No", exact: true }).click();
    await page.getByRole("button", { name: "Pause" }).click();
    await visitor.said(`Key ${key} paused`);
    const { isPaused } = await (await it.server.fetch(`/v2/flowControl/${encodeURIComponent(key)}`)).json();
    assert.equal(isPaused, true);
    await inspect(page, "the page after a pause", [key]);
  }
});

test("schedules and URL groups show untrusted content as text", async () => {
  const { page } = it;
  const raw = (text) => Buffer.from(text).toString("latin1");
  const asHeader = SHORT.filter((payload) => !/[\x00-\x1f\x7f]/.test(payload));
  const headers = Object.fromEntries(asHeader.map((payload, index) => [`Upstash-Forward-X-${index}`, raw(payload)]));
  const options = { method: "POST", headers: { "Upstash-Cron": "0 0 1 1 *", "Upstash-Schedule-Id": "hostile", ...headers } };
  const whole = PAYLOADS.filter((payload) => !payload.includes("\0")).join("\n");
  const made = await it.server.fetch(`/v2/schedules/${receiver.url("/0")}`, { ...options, body: whole });
  assert.equal(made.status, 201);
  const { header, destination } = await it.qstash.schedules.get("hostile");
  await look(page, "/schedules/hostile", [whole, ...Object.values(header).flat()]);
  await look(page, "/schedules/make/new?from=hostile", [destination]);
  await look(page, "/schedules", [destination]);

  const names = [];
  for (const [index, name] of PAYLOADS.entries()) {
    const body = JSON.stringify({ endpoints: [{ name, url: `${receiver.url(`/${index}`)}?q=${name}` }] });
    const answer = await it.server.fetch("/v2/topics/hostile/endpoints", { method: "POST", body });
    if (answer.ok) names.push(name);
    // Names of groups and queues have few characters, so most of these are rejected, as the forms below show.
    await it.server.fetch(`/v2/topics/${encodeURIComponent(name.slice(0, 300))}/endpoints`, { method: "POST", body });
    await it.server.fetch("/v2/queues", { method: "POST", body: JSON.stringify({ queueName: name, parallelism: 1 }) });
  }
  const { endpoints } = await it.qstash.urlGroups.get("hostile");
  const texts = endpoints.flatMap(({ name, url }) => [name, url].filter(Boolean));
  assert.ok(names.length > 10, `${names.length} names of endpoints`);
  await look(page, "/url-groups/hostile", texts);
  await look(page, "/url-groups", []);
  await look(page, "/queues", []);
});

test("runs show untrusted content as text", async () => {
  const { page } = it;
  // The SDK itself rejects such ids.
  const headers = { "Upstash-Workflow-RunId": SHORT[2] };
  const options = { method: "POST", headers, body: JSON.stringify(PAYLOADS) };
  const triggered = await it.server.fetch(`/v2/trigger/${it.app.url("/hostile")}`, options);
  const { workflowRunId: run } = await triggered.json();
  assert.equal(run, SHORT[2]);
  const broken = await Promise.all(
    SHORT.map((body) => it.trigger("/broken", { body: JSON.stringify(body), retries: 0 })),
  );
  for (const id of broken) await it.reaches(id, "RUN_FAILED");
  await eventually("the run waits for all events", async () => {
    const { steps } = await it.log(run);
    return steps.flatMap((group) => group.steps).filter(({ waitEventId }) => waitEventId).length === SHORT.length;
  });
  await look(page, `/workflows/runs/${encodeURIComponent(run)}`, SHORT);
  await look(page, `/workflows/runs/${broken[1]}`, [SHORT[1]]);
  await lookThrough(page, "/workflows", [run]);
  await look(page, "/workflows/failed", SHORT.filter((payload) => payload.length < 100 && !/[\s\\"\x00-\x1f]/.test(payload)));
  await inTabs(chunks(SHORT, PER_ADDRESS), async (tab, some) => {
    await look(tab, `/workflows/events?event=${encodeURIComponent(some.join(" "))}`, [some[0].trim()], 0);
  });
});

test("parts of the URL are text", async () => {
  const { page } = it;
  const addresses = [];
  const parts = chunks(SHORT, PER_ADDRESS).map((some) => some.join(" | "));
  for (const [path] of [...PAGES, ["/workflows/failed"], ["/dlq/entries"], ["/schedules/make/new"]]) {
    await look(page, path, []);
    const names = await page.locator("main form :is(input, select, textarea)[name]").evaluateAll((fields) => fields.map(({ name }) => name));
    for (const part of parts) {
      const query = new URLSearchParams([...new Set(names)].slice(0, 8).map((name) => [name, part]));
      addresses.push([`${path}?${query}`, part]);
    }
  }
  const ids = ["/messages/", "/dlq/", "/schedules/", "/url-groups/", "/workflows/runs/", "/flow-control/key?key=", "/nowhere/"];
  for (const path of ids) for (const part of parts) addresses.push([path + encodeURIComponent(part)]);
  await inTabs(addresses, async (tab, [path]) => {
    const response = await tab.goto(`/console${path}`);
    assert.ok(response.status() < 500, `${path} answered ${response.status()}`);
    await inspect(tab, path, []);
  });
});

test("rejected input is text", async () => {
  const { page, visitor } = it;
  const typed = [
    ["/queues", "Name", "Save"],
    ["/url-groups", "Group", "Add endpoint"],
    ["/send", "Destination", "Send message"],
  ];
  for (const part of chunks(SHORT, PER_ADDRESS).map((some) => some.join(" ").replaceAll("\0", "").slice(0, 250))) {
    for (const [path, label, button] of typed) {
      await visitor.open(path);
      // A user can disable the validation of the page.
      await page.locator("form").evaluateAll((forms) => forms.forEach((form) => (form.noValidate = true)));
      await page.getByRole("textbox", { name: label, exact: true }).fill(part);
      await page.getByRole("button", { name: button, exact: true }).click();
      await page.getByRole("alert").waitFor();
      await inspect(page, `${path} after a refusal`, []);
    }
  }
});
