// Runs of workflows: their steps, failed and resumed runs, cancels and events.

import assert from "node:assert/strict";
import { test } from "node:test";
import { story } from "../../workflow/js/support/story.js";
import { watched } from "../support/story.js";

/** Whether the failing step fails. */
let isBroken = true;

const it = watched(
  story((app) => {
    app.workflow("/order", async (context) => {
      const receipt = await context.run("pay", () => ({ receipt: `for ${context.requestPayload.order}` }));
      const [left] = await Promise.all([context.run("pack", () => "packed"), context.run("label it", () => "labelled")]);
      const { eventData } = await context.waitForEvent("await shipping", "shipped", { timeout: "1h" });
      return { receipt, left, eventData };
    });
    app.workflow(
      "/shaky",
      async (context) => {
        const first = await context.run("steady", () => "done once");
        const second = await context.run("shaky", () => {
          if (isBroken) throw new Error("the warehouse is closed");
          return "done at last";
        });
        return `${first}, ${second}`;
      },
      { failureFunction: async () => "reported" },
    );
    app.workflow("/nap", async (context) => {
      await context.sleep("a long nap", "1h");
      return "rested";
    });
  }),
);
const { row } = it;

test("a run shows its steps and its wait, and continues after an event", async () => {
  const { page, visitor } = it;
  const run = await it.trigger("/order", { body: { order: 7 }, label: "orders" });
  await visitor.open("/workflows");
  await row(run).filter({ hasText: "shipped" }).waitFor();
  await page.getByRole("link", { name: run }).click();
  await page.getByRole("heading", { level: 1, name: run }).waitFor();
  assert.match(await page.locator("#waits").innerText(), /^Waiting for event shipped/);
  const steps = page.locator(".waterfall");
  for (const name of ["pay", "pack", "label it", "await shipping", "2 in parallel"]) await steps.getByText(name, { exact: true }).waitFor();
  await steps.getByText("pay", { exact: true }).click();
  await steps.getByText('{"receipt":"for 7"}').waitFor();

  await page.getByLabel("Event").fill("shipped");
  await page.getByLabel("Data").fill('{"parcel": 12}');
  await page.getByRole("button", { name: "Send event" }).click();
  await visitor.said("Sent shipped to 1 run.");
  assert.deepEqual((await it.result(run)).eventData, { parcel: 12 });
  // Without a reload.
  await page.locator("#run").getByText("Output").last().waitFor();
  assert.equal(await page.locator("#waits").count(), 0);
});

test("a failed run shows the cause, and resumes from the step that failed", async () => {
  const { page, visitor } = it;
  const run = await it.trigger("/shaky", { body: {}, retries: 0 });
  await it.reaches(run, "RUN_FAILED");
  await it.failureFunctionReaches(run, "CALLBACK_SUCCESS");
  await visitor.open("/workflows/failed");
  assert.match(await row(run).innerText(), /the warehouse is closed[^]*succeeded/);
  await row(run).getByRole("link", { name: run }).click();
  assert.match(await page.locator("#cause").innerText(), /the warehouse is closed/);
  isBroken = false;
  await page.getByRole("button", { name: "Resume" }).first().click();
  await visitor.said("Resumed. This is the new run.");
  await page.locator("#run").getByText("done once, done at last").waitFor();
  await visitor.open("/workflows/failed");
  assert.equal(await row(run).count(), 0);
});

test("a failed run is restarted with other settings", async () => {
  const { page, visitor } = it;
  isBroken = true;
  const run = await it.trigger("/shaky", { body: {}, retries: 0 });
  await it.reaches(run, "RUN_FAILED");
  await visitor.open(`/workflows/runs/${run}`);
  await page.getByText("Resume or restart with other settings").click();
  const retries = page.getByLabel("Retries per step");
  await retries.fill("often");
  await page.getByRole("button", { name: "Resume with these settings" }).click();
  assert.match(await page.getByRole("alert").innerText(), /Upstash-Retries/i);
  assert.equal(await retries.inputValue(), "often");
  await retries.fill("7");
  await page.getByLabel("Labels").fill("second-try");
  isBroken = false;
  await page.getByRole("button", { name: "Restart with these settings" }).click();
  await visitor.said("Restarted. This is the new run.");
  await page.locator("#run").getByText("done once, done at last").waitFor();
  await page.getByRole("link", { name: "second-try" }).waitFor();
});

test("a run is cancelled; another is woken", async () => {
  const { page, visitor } = it;
  const [cancelled, woken] = [await it.trigger("/nap", { body: 1 }), await it.trigger("/nap", { body: 2 })];
  for (const run of [cancelled, woken]) await it.calls(run, (calls) => calls.length === 1 && calls[0].isOver);
  await visitor.open(`/workflows/runs/${cancelled}`);
  await visitor.confirm(page.getByRole("button", { name: "Cancel", exact: true }));
  await visitor.said(`Cancelled ${cancelled}.`);
  await it.reaches(cancelled, "RUN_CANCELED");
  await visitor.open("/workflows");
  await row(cancelled, "cancelled").waitFor();

  await visitor.open(`/workflows/runs/${woken}`);
  await page.locator("summary").filter({ hasText: "a long nap" }).click();
  await page.getByRole("button", { name: "Wake up now" }).click();
  assert.equal(await it.result(woken), "rested");
});

test("many runs are cancelled by a filter, after a page that lists them", async () => {
  const { page, visitor } = it;
  const label = "many";
  const runs = await Promise.all([1, 2, 3].map((body) => it.trigger("/nap", { body, label })));
  const other = await it.trigger("/nap", { body: 4 });
  await visitor.open(`/workflows?label=${label}`);
  await row(runs[2]).waitFor();
  assert.equal(await row(other).count(), 0);
  await page.getByRole("link", { name: "Cancel all matching…" }).click();
  await page.getByText("This cancels 3 running workflows.").waitFor();
  await page.getByRole("button", { name: "Cancel runs" }).click();
  await visitor.said("Cancelled 3 runs.");
  for (const run of runs) await it.reaches(run, "RUN_CANCELED");
  assert.equal((await it.log(other)).workflowState, "RUN_STARTED");
});
