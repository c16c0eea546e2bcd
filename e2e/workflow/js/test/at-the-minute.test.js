// Schedules fire at full minutes only: a schedule to a workflow's URL starts a run at each.

import assert from "node:assert/strict";
import { test } from "node:test";
import { MINUTE_PATIENCE_MS } from "../../../js/support/minute.js";
import { eventually } from "../../../js/support/wait.js";
import { story } from "../support/story.js";

const it = story((app) => {
  app.workflow("/scheduled", async (context) => await context.run("echo", () => context.requestPayload));
});

test("a schedule starts a run", async () => {
  const { scheduleId } = await it.qstash.schedules.create({
    destination: it.app.url("/scheduled"),
    cron: "* * * * *",
    headers: { "content-type": "application/json" },
    body: '{"by":"schedule"}',
  });
  const raw = () => it.app.callsAt("/scheduled").find((call) => call.kind === "raw" && call.isOver);
  const call = await eventually("the schedule to fire", raw, MINUTE_PATIENCE_MS);
  await it.qstash.schedules.delete(scheduleId);
  assert.equal(call.status, 200);
  const { workflowRunId } = JSON.parse(call.answer);
  assert.deepEqual(await it.result(workflowRunId), { by: "schedule" });
  await it.exactly(workflowRunId, "step", "step");
});
