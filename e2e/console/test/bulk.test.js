// Bulk actions: a dialog counts what a button will change, "no" changes nothing, and "yes" changes exactly
// that. Every list has more entries than a page holds, and further ones that no filter here matches. The changes are
// verified with the API, not with the console.

import assert from "node:assert/strict";
import { test } from "node:test";
import { unique } from "../../js/support/story.js";
import { eventually } from "../../js/support/wait.js";
import { story } from "../../workflow/js/support/story.js";
import { watched } from "../support/story.js";

const it = watched(story());

/** Entries of a page of each list, and more than that. */
const MESSAGES = { page: 50, many: 57 };
const DEAD_LETTERS = { page: 100, many: 104 };
const RUNS = { page: 30, many: 34 };
const FAILED_RUNS = { page: 50, many: 53 };
/** Entries with another label. */
const FEW = 3;

const times = (count, make) => Array.from({ length: count }, (_, n) => make(n));
const sorted = (list) => [...list].sort();

/** Everything in a list of the API, over all its pages. */
async function listed(path, query = {}) {
  const found = [];
  let cursor;
  do {
    const answer = await it.server.fetch(`${path}?${new URLSearchParams({ ...query, ...(cursor ? { cursor } : {}) })}`);
    assert.equal(answer.status, 200);
    const page = await answer.json();
    found.push(...(page.messages ?? page.runs ?? page.logs));
    cursor = page.cursor;
  } while (cursor);
  return found;
}

/** Ids of the messages with these labels that were cancelled. */
async function cancelled(...labels) {
  const logs = await listed("/v2/logs", { state: "CANCELED", label: labels.join(","), count: 1_000 });
  return sorted(logs.map(({ messageId }) => messageId));
}

/** Ids of the dead letters with these labels. */
async function dead(...labels) {
  return sorted((await listed("/v2/dlq", { label: labels.join(",") })).map(({ dlqId }) => dlqId));
}

/** Ids of the runs with these labels in a state. */
async function runsIn(state, ...labels) {
  return sorted((await listed("/v2/workflows/logs", { state, label: labels.join(","), trimBody: 0 })).map(({ workflowRunId }) => workflowRunId));
}

/** Ids of the failed runs with these labels. */
async function failed(...labels) {
  return sorted((await listed("/v2/workflows/dlq", { label: labels.join(",") })).map(({ workflowRunId }) => workflowRunId));
}

/** Publishes messages with a label and returns their ids. */
async function publish(count, label, options) {
  const published = await it.qstash.batch(times(count, (n) => ({ label, body: `${n}`, ...options })));
  return sorted(published.map(({ messageId }) => messageId));
}

/** Messages that are due tomorrow. */
async function pending(count, label) {
  return await publish(count, label, { url: it.third.url("/tomorrow"), delay: "1d" });
}

/** Creates dead letters and returns their ids. */
async function deadLetters(count, label) {
  it.third.script("/down", { status: 500, body: "down" });
  await publish(count, label, { url: it.third.url("/down"), retries: 0 });
  return await eventually(`${count} dead letters`, async () => {
    const found = await dead(label);
    return found.length === count ? found : undefined;
  });
}

/** Starts runs of a workflow and returns their ids. */
async function trigger(count, label, options = {}) {
  const begun = await it.client.trigger(times(count, (n) => ({ url: it.third.url("/workflow"), body: { n }, label, ...options })));
  return sorted(begun.map(({ workflowRunId }) => workflowRunId));
}

/** Runs that start tomorrow. */
async function sleeping(count, label) {
  return await trigger(count, label, { delay: "1d" });
}

/** Failed runs whose failure callback has failed too. */
async function failing(count, label) {
  it.third.script("/workflow", 500);
  const runs = await trigger(count, label, { retries: 0 });
  await eventually(`${count} failed runs`, async () => {
    const found = await listed("/v2/workflows/dlq", { label, failureFunctionState: "CALLBACK_FAIL" });
    return found.length === count;
  });
  return runs;
}

const button = (name) => it.page.getByRole("button", { name, exact: true });
const found = (pressed) => (typeof pressed === "string" ? button(pressed) : pressed);
const dialog = () => it.page.getByRole("dialog");
const boxes = () => it.page.getByRole("checkbox", { name: /^Select (?!all)/ });
/** Ids of some entries from the middle of the page. */
const shown = async (count) => {
  const names = await boxes().evaluateAll((found) => found.map((box) => box.ariaLabel.replace("Select ", "")));
  return names.slice(5, 5 + count);
};
const tick = async (...ids) => {
  for (const id of ids) await it.page.getByLabel(`Select ${id}`).check();
};

/** Opens a list that has more than one page of entries. */
async function openFull(path, { page }) {
  await it.visitor.open(path);
  assert.equal(await boxes().count(), page, "a page is full");
  assert.equal(await it.page.getByRole("link", { name: "Next page" }).count(), 1, "there are more");
}

/** Presses a button, given by name or as an element, and expects a dialog with this text. */
async function asks(pressed, how) {
  await found(pressed).click();
  await dialog().getByRole("button", { name: /^Yes, / }).waitFor();
  const question = await dialog().innerText();
  assert.match(question, how);
}

/** Returns to the list without confirming. */
async function no() {
  await dialog().getByRole("button", { name: "No", exact: true }).click();
  await dialog().waitFor({ state: "detached" });
}

async function yes() {
  await dialog().getByRole("button", { name: /^Yes, / }).click();
}

/** Presses a button for selected entries while none is selected: the dialog has this message and only one button. */
async function refusesNothing(pressed, said) {
  await found(pressed).click();
  await dialog().getByText(said, { exact: true }).waitFor();
  assert.deepEqual(await dialog().getByRole("button").allInnerTexts(), ["OK"]);
  await dialog().getByRole("button", { name: "OK" }).click();
  await dialog().waitFor({ state: "detached" });
}

/** The same in a browser without scripts, where the next page has the message. */
async function refusesNothingWithoutScripts(path, form, name, said) {
  const visitor = await it.browser.visitor(it.server.url, { javaScriptEnabled: false });
  try {
    await visitor.open(path);
    await visitor.page.locator(form).getByRole("button", { name, exact: true }).click();
    await visitor.said(said);
    await visitor.page.waitForURL(`**/console${path}`);
    visitor.innocent();
  } finally {
    await visitor.leave();
  }
}

test("all messages: the question counts them all, and a filter those that match", async () => {
  const [label, other] = [unique("many"), unique("few")];
  const [many, few] = [await pending(MESSAGES.many, label), await pending(FEW, other)];
  await openFull("/messages", MESSAGES);
  await asks("Cancel all…", new RegExp(`\\b${many.length + few.length} messages\\b`));
  await no();
  await openFull(`/messages?label=${label}`, MESSAGES);
  await asks("Cancel all matching…", new RegExp(`${label}.*\\b${many.length} messages\\b`));
  await no();
  assert.deepEqual(await cancelled(label, other), []);

  await asks("Cancel all matching…", new RegExp(`\\b${many.length} messages\\b`));
  await yes();
  await it.visitor.said(`Cancelling ${many.length} messages`);
  await eventually("all are cancelled", async () => (await cancelled(label)).length === many.length);
  assert.deepEqual(await cancelled(label, other), many, "those and no others");
  // No messages are left.
  await refusesNothing("Cancel all matching…", "No messages match. Nothing was changed.");
});

test("selected messages: exactly those are changed", async () => {
  const label = unique("ticked");
  const many = await pending(MESSAGES.many, label);
  const path = `/messages?label=${label}`;
  await openFull(path, MESSAGES);
  await refusesNothing("Cancel selected messages", "No messages are selected. Nothing was changed.");
  await refusesNothingWithoutScripts(path, "#selection", "Cancel selected messages", "No messages are selected. Nothing was changed.");
  // "Select all" selects only the boxes of the page.
  await it.page.getByLabel("Select all").check();
  await asks("Cancel selected messages", new RegExp(`\\b${MESSAGES.page} selected messages\\b`));
  await no();
  await it.page.getByLabel("Select all").uncheck();
  assert.deepEqual(await cancelled(label), []);

  const two = sorted(await shown(2));
  await tick(...two);
  await asks("Cancel selected messages", /\b2 selected messages\b/);
  await yes();
  await it.visitor.said("Cancelled 2 messages");
  assert.deepEqual(await cancelled(label), two);
  assert.ok(two.every((id) => many.includes(id)));
});

test("all dead letters: the question counts them all, and a filter those that match", async () => {
  const [label, other] = [unique("many"), unique("few")];
  const [many, few] = [await deadLetters(DEAD_LETTERS.many, label), await deadLetters(FEW, other)];
  await openFull("/dlq/entries", DEAD_LETTERS);
  for (const name of ["Retry all", "Delete all"]) {
    await asks(name, new RegExp(`\\b${many.length + few.length} dead letters\\b`));
    await no();
  }
  await openFull(`/dlq/entries?label=${label}`, DEAD_LETTERS);
  await asks("Delete all matching", new RegExp(`\\b${many.length} dead letters with label ${label}`));
  await no();
  assert.deepEqual(await dead(label, other), sorted([...many, ...few]));

  // The page of causes shows the same dialog.
  await it.visitor.open(`/dlq?label=${other}`);
  await asks("Retry all matching", new RegExp(`\\b${few.length} dead letters with label ${other}`));
  await yes();
  await it.visitor.said(`Retrying ${few.length} dead letters in the background.`);
  await it.third.arrivals("/down", many.length + 2 * few.length);
  await it.visitor.open(`/dlq?label=${label}`);
  await asks("Delete all matching", new RegExp(`\\b${many.length} dead letters with label ${label}`));
  await yes();
  await it.visitor.said(`Deleting ${many.length} dead letters in the background.`);
  await eventually("all are deleted", async () => (await dead(label)).length === 0);
  // Those that were retried have failed again.
  const again = await eventually("they fail again", async () => {
    const found = await dead(other);
    return found.length === few.length && found.every((id) => !few.includes(id)) ? found : undefined;
  });
  await it.qstash.dlq.deleteMany({ dlqIds: again });
});

test("selected dead letters: exactly those are changed", async () => {
  const label = unique("ticked");
  const many = await deadLetters(DEAD_LETTERS.many, label);
  const path = `/dlq/entries?label=${label}`;
  await openFull(path, DEAD_LETTERS);
  const nothing = "No dead letters are selected. Nothing was changed.";
  for (const name of ["Retry selected", "Delete selected"]) {
    await refusesNothing(name, nothing);
    await refusesNothingWithoutScripts(path, "#entries", name, nothing);
  }
  // A page instead of a dialog, with the message.
  await button("Edit and retry selected").click();
  await it.visitor.said(nothing);
  assert.deepEqual(await dead(label), many);

  const [first, second, third] = await shown(3);
  it.third.script("/down", 200);
  const before = it.third.at("/down").length;
  await tick(first, second);
  await asks("Retry selected", /\b2 selected dead letters\b/);
  await no();
  await asks("Retry selected", /\b2 selected dead letters\b/);
  await yes();
  await it.visitor.said("Retried 2 dead letters.");
  await tick(third);
  await asks("Delete selected", /\b1 selected dead letter\b/);
  await yes();
  await it.visitor.said("Deleted 1 dead letter.");
  await it.third.arrivals("/down", before + 2);
  const rest = many.filter((id) => ![first, second, third].includes(id));
  assert.deepEqual(await dead(label), rest);
});

test("all runs: the page counts them all, and a filter those that match", async () => {
  const { page, visitor } = it;
  const [label, other] = [unique("many"), unique("few")];
  const [many, few] = [await sleeping(RUNS.many, label), await sleeping(FEW, other)];
  await openFull("/workflows", RUNS);
  await page.getByRole("link", { name: "Cancel all…" }).click();
  await visitor.isAt("/workflows/cancel");
  await page.getByText(`This cancels all ${many.length + few.length} running workflows.`).waitFor();
  await page.getByRole("link", { name: "Keep running" }).click();
  await visitor.isAt("/workflows");

  await openFull(`/workflows?label=${label}`, RUNS);
  await page.getByRole("link", { name: "Cancel all matching…" }).click();
  await page.getByText(`This cancels ${many.length} running workflows.`).waitFor();
  await page.getByRole("link", { name: "Keep running" }).click();
  await page.waitForURL(`**/console/workflows?label=${label}`);
  assert.deepEqual(await runsIn("RUN_CANCELED", label, other), []);

  await page.getByRole("link", { name: "Cancel all matching…" }).click();
  await page.getByText(`This cancels ${many.length} running workflows.`).waitFor();
  await button("Cancel runs").click();
  await visitor.said(`Cancelled ${many.length} runs.`);
  await page.waitForURL(`**/console/workflows?label=${label}`);
  assert.deepEqual(await runsIn("RUN_CANCELED", label, other), many);
  assert.deepEqual(await runsIn("RUN_STARTED", label, other), few);
  // There is nothing left to cancel.
  await page.getByRole("link", { name: "Cancel all matching…" }).click();
  await page.getByText("No running workflows match. There is nothing to cancel.").waitFor();
  assert.ok(await button("Cancel runs").isDisabled());
});

test("selected runs: exactly those are changed, even if the list is refreshed in between", async () => {
  const { page } = it;
  const label = unique("ticked");
  const many = await sleeping(RUNS.many, label);
  const path = `/workflows?label=${label}`;
  await page.clock.install();
  await openFull(path, RUNS);
  await refusesNothing("Cancel selected runs", "No runs are selected. Nothing was changed.");
  await refusesNothingWithoutScripts(path, "#selection", "Cancel selected runs", "No runs are selected. Nothing was changed.");
  await it.page.getByLabel("Select all").check();
  await asks("Cancel selected runs", new RegExp(`\\b${RUNS.page} selected runs\\b`));
  await no();
  await it.page.getByLabel("Select all").uncheck();
  assert.deepEqual(await runsIn("RUN_CANCELED", label), []);

  const two = sorted(await shown(2));
  await tick(...two);
  const [newest] = await sleeping(1, label);
  // The focus is outside of the list, so it is refreshed.
  await page.getByRole("heading", { level: 1 }).click();
  await page.evaluate(() => document.activeElement.blur());
  await eventually("the new run is listed", async () => {
    await page.clock.fastForward(6_000);
    return (await it.row(newest).count()) > 0;
  });
  assert.deepEqual(sorted(await boxes().and(page.locator(":checked")).evaluateAll((found) => found.map(({ value }) => value))), two);
  await asks("Cancel selected runs", /\b2 selected runs\b/);
  await yes();
  await it.visitor.said("Cancelled 2 runs.");
  assert.deepEqual(await runsIn("RUN_CANCELED", label), two);
  assert.equal((await runsIn("RUN_STARTED", label)).length, many.length - 1);
});

test("all failed runs: the page and the question count them all, and a filter those that match", async () => {
  const { page, visitor } = it;
  const [label, other] = [unique("many"), unique("few")];
  const [many, few] = [await failing(FAILED_RUNS.many, label), await failing(FEW, other)];
  await openFull("/workflows/failed", FAILED_RUNS);
  await page.getByRole("link", { name: "Act on all…" }).click();
  await page.getByText(`${many.length + few.length} failed runs match.`).waitFor();
  for (const name of ["Resume", "Restart", "Retry failure callback", "Delete"]) {
    await asks(name, new RegExp(`\\b${many.length + few.length} failed runs\\b`));
    await no();
  }
  await page.getByRole("link", { name: "Back to the list" }).click();
  await visitor.isAt("/workflows/failed");

  await openFull(`/workflows/failed?label=${label}`, FAILED_RUNS);
  await page.getByRole("link", { name: "Act on all matching…" }).click();
  await page.getByText(`${many.length} failed runs match.`).waitFor();
  await asks("Delete", new RegExp(`\\b${many.length} failed runs\\b`));
  await no();
  assert.deepEqual(await failed(label, other), sorted([...many, ...few]));
  await asks("Delete", new RegExp(`\\b${many.length} failed runs\\b`));
  await yes();
  await visitor.said(`Deleted ${many.length} failed runs.`);
  assert.deepEqual(await failed(label, other), few);
});

test("selected failed runs: exactly those are changed", async () => {
  const { page, visitor } = it;
  const label = unique("ticked");
  const many = await failing(FAILED_RUNS.many, label);
  const path = `/workflows/failed?label=${label}`;
  await openFull(path, FAILED_RUNS);
  // Rows have buttons of the same names.
  const inForm = (name) => page.locator("#selection").getByRole("button", { name, exact: true });
  const nothing = "No failed runs are selected. Nothing was changed.";
  for (const name of ["Resume", "Restart", "Retry failure callback", "Delete"]) await refusesNothing(inForm(name), nothing);
  await refusesNothingWithoutScripts(path, "#selection", "Delete", nothing);
  assert.deepEqual(await failed(label), many);

  const chosen = await shown(3);
  await tick(chosen[0], chosen[1]);
  await asks(inForm("Restart"), /\b2 selected failed runs\b/);
  await no();
  await asks(inForm("Restart"), /\b2 selected failed runs\b/);
  await yes();
  await visitor.said("Restarted 2 failed runs.");
  await tick(chosen[2]);
  await asks(inForm("Delete"), /\b1 selected failed run\b/);
  await yes();
  await visitor.said("Deleted 1 failed run.");
  // Restarted runs fail again, as new runs.
  const rest = many.filter((run) => !chosen.includes(run));
  const now = await eventually("both fail again", async () => {
    const runs = await failed(label);
    return runs.length === rest.length + 2 ? runs : undefined;
  });
  assert.deepEqual(now.filter((run) => many.includes(run)), rest);
});
