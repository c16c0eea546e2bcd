// The workflows of the programs in this directory: the same functions in every framework.
//
// Each program is a separate process. It reports to the test through the third party that the payload names.

import { createHash } from "node:crypto";

/** Sends a report to the third party; throws unless it responds with 2xx. */
async function tell(third, path, what) {
  const { ok, status } = await fetch(third + path, { method: "POST", body: JSON.stringify(what) });
  if (!ok) throw new Error(`${path} answered ${status}`);
}

/** One step of every kind that needs no other workflow. */
export async function order(context) {
  const { third, event } = context.requestPayload;
  const receipt = await context.run("pay", async () => {
    await tell(third, "/pay", context.workflowRunId);
    return `receipt ${Math.random()}`;
  });
  await context.run("pack", () => tell(third, "/pack", receipt));
  await context.sleep("cool down", 1);
  const { status, body } = await context.call("ship", {
    url: `${third}/ship`,
    method: "POST",
    body: JSON.stringify({ receipt }),
    headers: { "x-mine": "m" },
  });
  const { eventData, timeout } = await context.waitForEvent("arrival", event, { timeout: "1h" });
  return { receipt, status, body, eventData, timeout, url: context.url, tenant: context.headers.get("x-tenant") };
}

/** For failure functions. */
export async function failed({ context, failStatus, failResponse }) {
  await tell(context.requestPayload.third, "/failed", { run: context.workflowRunId, failStatus, failResponse });
  return "told";
}

/** Workflows that are served together, created with the `createWorkflow` of a framework. */
export function family(createWorkflow) {
  const child = createWorkflow(async (context) => {
    const { third, name } = context.requestPayload;
    return await context.run("work", async () => {
      await tell(third, "/work", name);
      return `${name} the second`;
    });
  });

  const parent = createWorkflow(async (context) => {
    const { third } = context.requestPayload;
    const { body, isFailed } = await context.invoke("child", { workflow: child, body: { third, name: "Ann" } });
    const { body: nothing, isFailed: hasFailed } = await context.invoke("broken", {
      workflow: broken,
      body: { third },
      retries: 0,
    });
    return { body, isFailed, nothing, hasFailed };
  });

  const group = createWorkflow(async (context) => {
    const { third, event } = context.requestPayload;
    const [left, right, , called, waited, invoked] = await Promise.all([
      context.run("left", () => tell(third, "/left").then(() => "l")),
      context.run("right", () => tell(third, "/right").then(() => "r")),
      context.sleep("a second", 1),
      context.call("call", { url: `${third}/call`, method: "PUT", body: "hello" }),
      context.waitForEvent("wait", event, { timeout: "1h" }),
      context.invoke("child", { workflow: child, body: { third, name: "Bob" } }),
    ]);
    const last = await context.run("last", () => "last");
    return [left, right, called.status, called.body, waited.eventData, invoked.body, last];
  });

  const notifier = createWorkflow(async (context) => {
    const { event, data } = context.requestPayload;
    const { notifyResponse } = await context.notify("tell", event, data);
    return notifyResponse.length;
  });

  const nap = createWorkflow(async (context) => {
    await context.sleep("long", "1h");
  });

  const quitter = createWorkflow(async (context) => {
    await context.run("look", () => "enough");
    await context.cancel();
  });

  const broken = createWorkflow(
    async (context) => {
      await context.run("fine", () => {});
      await context.run("break", () => {
        throw new Error("broken");
      });
    },
    { failureFunction: failed },
  );

  const large = createWorkflow(async (context) => {
    const { text, times } = context.requestPayload;
    const more = await context.run("repeat", () => text.repeat(times));
    return await context.run("digest", () => createHash("sha256").update(text + more).digest("hex"));
  });

  return { parent, child, group, notifier, nap, quitter, broken, large };
}
