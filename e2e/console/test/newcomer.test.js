// The first five minutes without writing code: sending to the built-in receiver, and the settings.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Receiver as Verifier } from "@upstash/qstash";
import { USERS } from "../../js/support/server.js";
import { story } from "../../js/support/story.js";
import { watched } from "../support/story.js";

const it = watched(story());

test("one button sends a message to the test receiver, which shows it", async () => {
  const { page, visitor } = it;
  await visitor.open("/send");
  await page.getByRole("textbox", { name: "Body" }).fill('{"hello": "you"}');
  await page.getByLabel("Headers for the receiver, one per line").fill("X-Mine: yes");
  await page.getByRole("button", { name: "Send message", exact: true }).click();
  await visitor.said("Message published.");
  // The user can send it again, perhaps edited.
  assert.equal(await page.getByRole("textbox", { name: "Body" }).inputValue(), '{"hello": "you"}');
  assert.equal(await page.getByLabel("Headers for the receiver, one per line").inputValue(), "X-Mine: yes");
  const received = page.locator("#received");
  await received.getByText('{"hello": "you"}').waitFor();
  await received.getByText("valid signature, current key").waitFor();
  await received.locator("summary").filter({ hasText: "Headers" }).first().click();
  await received.getByText(/x-mine: yes/i).waitFor();
  await page.locator("#sent").getByRole("link").click();
  await page.locator("#why").filter({ hasText: /delivered/i }).waitFor();
});

test("a receiver that fails twice is retried as previewed", async () => {
  const { page, visitor } = it;
  await visitor.open("/send");
  await page.getByRole("button", { name: "500 twice, then 200" }).click();
  assert.match(await page.getByRole("textbox", { name: "Destination" }).inputValue(), /\/500,500,200$/);
  await page.getByLabel("Retries", { exact: true }).fill("2");
  await page.getByLabel("Retry delay (ms)").fill("100 * (1 + retried)");
  await page.locator("#retry-plan").getByText(/Attempts at 0 s, 100 ms, 300 ms/).waitFor();
  await page.getByRole("button", { name: "Send message", exact: true }).click();
  const received = page.locator("#received");
  await received.getByText("attempt 3").waitFor();
  const [third, second, first] = await received.getByRole("listitem").allInnerTexts();
  assert.match(first, /attempt 1[^]*500/);
  assert.match(second, /attempt 2[^]*500/);
  assert.match(third, /attempt 3[^]*200/);
  await visitor.confirm(page.getByRole("button", { name: "Clear list" }));
  await page.getByText("No deliveries yet").waitFor();
});

test("a failure is seen, found, explained and retried, without a reload and without code", async () => {
  const { page, visitor } = it;
  await visitor.open("/send");
  await page.getByRole("button", { name: "500 twice, then 200" }).click();
  // The retries of a first try take seconds, not minutes.
  await page.locator("#retry-plan").getByText(/Attempts at 0 s, 1 s, 2 s, 3 s/).waitFor();
  await page.getByLabel("Retries", { exact: true }).fill("1");
  await page.getByLabel("Retry delay (ms)").fill("3600000");
  await page.getByRole("button", { name: "Send message", exact: true }).click();
  await visitor.said("Message published.");
  await page.getByRole("link", { name: "Messages", exact: true }).click();
  assert.equal(await page.locator("p.flash").count(), 0, "it is said once");
  await page.locator("table a").first().click();
  await page.locator("#head").getByText("retrying", { exact: true }).waitFor();
  const id = await page.locator("#head code").innerText();
  await it.server.fetch(`/v2/messages/${id}/retry`, { method: "POST" });
  await page.locator("#why").filter({ hasText: /In the DLQ: 500/i }).waitFor();
  await page.locator("#head").getByText("failed", { exact: true }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0, "there is nothing left to cancel");

  await page.locator("#story").getByRole("link", { name: /^\d+-\d+$/ }).click();
  await page.getByRole("link", { name: "Edit and retry" }).click();
  await page.getByLabel("Retries", { exact: true }).fill("2");
  await page.getByLabel("Retry delay (ms)").fill("100");
  await page.getByRole("button", { name: "Retry", exact: true }).click();
  await page.locator("p.flash").waitFor();
  await visitor.open("/messages");
  await page.locator("table a").first().click();
  await page.locator("#why").filter({ hasText: /delivered on the 3rd attempt/i }).waitFor();
  await page.getByText("retried from the DLQ as this message").waitFor();
});

test("a rejected form keeps its input, and the field is marked", async () => {
  const { page, visitor } = it;
  await visitor.open("/send");
  await page.getByRole("textbox", { name: "Destination" }).fill("ftp://example.com");
  await page.getByRole("textbox", { name: "Body" }).fill("precious");
  await page.getByRole("button", { name: "Send message", exact: true }).click();
  const reason = await page.getByRole("alert").innerText();
  const field = page.getByRole("textbox", { name: "Destination" });
  assert.equal(await field.getAttribute("aria-invalid"), "true");
  assert.equal(await page.locator(`#${await field.getAttribute("aria-describedby")}`).innerText(), reason);
  assert.equal(await page.locator("[aria-invalid]").count(), 1, "no other field is marked");
  assert.equal(await page.getByRole("textbox", { name: "Body" }).inputValue(), "precious");
  assert.equal(await page.getByRole("textbox", { name: "Destination" }).inputValue(), "ftp://example.com");
});

test("keys are shown on request, and rotated after two confirmations", async () => {
  const { page, visitor } = it;
  const before = await (await it.server.fetch("/v2/keys")).json();
  await visitor.open("/settings");
  const html = await page.content();
  assert.ok(!html.includes(before.current) && !html.includes(before.next), "keys are hidden at first");
  await page.getByRole("button", { name: "Show keys" }).click();
  await page.getByText(before.current).waitFor();

  await page.getByLabel("All my receivers know the next key").check();
  await page.getByRole("button", { name: "Rotate keys" }).click();
  const answers = page.getByRole("dialog").getByRole("button");
  assert.deepEqual(await answers.allInnerTexts(), ["No", "Yes, rotate keys"]);
  await answers.first().click();
  assert.deepEqual(await (await it.server.fetch("/v2/keys")).json(), before, "no means no");
  await visitor.confirm(page.getByRole("button", { name: "Rotate keys" }));
  await visitor.said("Keys rotated.");
  const { current, next } = await (await it.server.fetch("/v2/keys")).json();
  assert.equal(current, before.next);
  await page.getByText(next).waitFor();
  // A receiver that knows both keys verifies deliveries with the new key.
  const url = it.receiver.url("/signed");
  await it.client.publish({ url, body: "x" });
  const [{ headers, body }] = await it.receiver.arrivals("/signed");
  const verifier = new Verifier({ currentSigningKey: before.current, nextSigningKey: before.next });
  assert.equal(await verifier.verify({ signature: headers["upstash-signature"], body, url }), true);
});

test("settings show the configuration in effect and no secret", async () => {
  const { page, visitor } = it;
  await visitor.open("/settings");
  await page.getByText("ready", { exact: true }).waitFor();
  const configuration = page.locator("#configuration");
  await configuration.getByRole("row").filter({ hasText: "data_dir" }).getByText(it.server.dataDir).waitFor();
  assert.ok(!(await page.content()).includes(USERS[0].token));
});
