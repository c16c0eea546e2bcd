// The first five minutes without writing code: sending to the built-in receiver, and the settings.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Receiver as Verifier } from "@upstash/qstash";
import { USERS } from "../../js/support/server.js";
import { story } from "../../js/support/story.js";
import { watched } from "../support/story.js";

const it = watched(story());

test("one press of a button sends a message to the built-in receiver, which shows it", async () => {
  const { page, visitor } = it;
  await visitor.open("/send");
  await page.getByRole("textbox", { name: "Body" }).fill('{"hello": "you"}');
  await page.getByLabel("Headers for the receiver").fill("X-Mine: yes");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await visitor.said("The message is stored and on its way.");
  // To be sent once more, perhaps with another word in it.
  assert.equal(await page.getByRole("textbox", { name: "Body" }).inputValue(), '{"hello": "you"}');
  assert.equal(await page.getByLabel("Headers for the receiver").inputValue(), "X-Mine: yes");
  const received = page.locator("#received");
  await received.getByText('{"hello": "you"}').waitFor();
  await received.getByText("signed, current key").waitFor();
  await received.locator("summary").filter({ hasText: "Headers" }).first().click();
  await received.getByText(/x-mine: yes/i).waitFor();
  await page.locator("#sent").getByRole("link").click();
  await page.locator("#why").filter({ hasText: /delivered/i }).waitFor();
});

test("a receiver that fails twice is tried again, as the page foresees", async () => {
  const { page, visitor } = it;
  await visitor.open("/send");
  await page.getByRole("button", { name: "500 twice, then 200" }).click();
  assert.match(await page.getByRole("textbox", { name: "Destination" }).inputValue(), /\/500,500,200$/);
  await page.getByLabel("Retries", { exact: true }).fill("2");
  await page.getByLabel("Wait before a retry, in ms").fill("100 * (1 + retried)");
  await page.locator("#retry-plan").getByText(/Attempts at 0 s, 100 ms, 300 ms/).waitFor();
  await page.getByRole("button", { name: "Send", exact: true }).click();
  const received = page.locator("#received");
  await received.getByText("attempt 3").waitFor();
  const [third, second, first] = await received.getByRole("listitem").allInnerTexts();
  assert.match(first, /attempt 1[^]*500/);
  assert.match(second, /attempt 2[^]*500/);
  assert.match(third, /attempt 3[^]*200/);
  await visitor.confirm(page.getByRole("button", { name: "Forget all" }));
  await page.getByText("Nothing was received yet").waitFor();
});

test("what fails is seen failing, found, explained and sent again, without a reload and without code", async () => {
  const { page, visitor } = it;
  await visitor.open("/send");
  await page.getByRole("button", { name: "500 twice, then 200" }).click();
  // Nobody waits minutes for a first try.
  await page.locator("#retry-plan").getByText(/Attempts at 0 s, 1 s, 2 s, 3 s/).waitFor();
  await page.getByLabel("Retries", { exact: true }).fill("1");
  await page.getByLabel("Wait before a retry, in ms").fill("3600000");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await visitor.said("The message is stored and on its way.");
  await page.getByRole("link", { name: "Messages", exact: true }).click();
  assert.equal(await page.locator("p.flash").count(), 0, "it is said once");
  await page.locator("table a").first().click();
  await page.locator("#head").getByText("retry", { exact: true }).waitFor();
  const id = await page.locator("#head code").innerText();
  await it.server.fetch(`/v2/messages/${id}/retry`, { method: "POST" });
  await page.locator("#why").filter({ hasText: /In the DLQ: 500/i }).waitFor();
  await page.locator("#head").getByText("failed", { exact: true }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0, "there is nothing left to cancel");

  await page.locator("#story").getByRole("link", { name: /^\d+-\d+$/ }).click();
  await page.getByRole("link", { name: "Edit and retry" }).click();
  await page.getByLabel("Retries", { exact: true }).fill("2");
  await page.getByLabel("Delay of retries").fill("100");
  await page.getByRole("button", { name: "Retry", exact: true }).click();
  await page.locator("p.flash").waitFor();
  await visitor.open("/messages");
  await page.locator("table a").first().click();
  await page.locator("#why").filter({ hasText: /delivered on the 3rd attempt/i }).waitFor();
  await page.getByText("which was in the DLQ and was sent again as this one").waitFor();
});

test("what the API refuses is told, and what was typed stays", async () => {
  const { page, visitor } = it;
  await visitor.open("/send");
  await page.getByRole("textbox", { name: "Destination" }).fill("ftp://example.com");
  await page.getByRole("textbox", { name: "Body" }).fill("precious");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await page.getByRole("alert").waitFor();
  assert.equal(await page.getByRole("textbox", { name: "Body" }).inputValue(), "precious");
  assert.equal(await page.getByRole("textbox", { name: "Destination" }).inputValue(), "ftp://example.com");
});

test("keys are shown when they are asked for, and rotated after two questions", async () => {
  const { page, visitor } = it;
  const before = await (await it.server.fetch("/v2/keys")).json();
  await visitor.open("/settings");
  const html = await page.content();
  assert.ok(!html.includes(before.current) && !html.includes(before.next), "keys are not shown unasked");
  await page.getByRole("button", { name: "Show the keys" }).click();
  await page.getByText(before.current).waitFor();

  await page.getByLabel("All my receivers know the next key.").check();
  await page.getByRole("button", { name: "Rotate the keys" }).click();
  const answers = page.getByRole("dialog").getByRole("button");
  assert.deepEqual(await answers.allInnerTexts(), ["No", "Yes, rotate the keys"]);
  await answers.first().click();
  assert.deepEqual(await (await it.server.fetch("/v2/keys")).json(), before, "no means no");
  await visitor.confirm(page.getByRole("button", { name: "Rotate the keys" }));
  await visitor.said("The keys are rotated");
  const { current, next } = await (await it.server.fetch("/v2/keys")).json();
  assert.equal(current, before.next);
  await page.getByText(next).waitFor();
  // A receiver that knew both keys verifies what is signed now.
  const url = it.receiver.url("/signed");
  await it.client.publish({ url, body: "x" });
  const [{ headers, body }] = await it.receiver.arrivals("/signed");
  const verifier = new Verifier({ currentSigningKey: before.current, nextSigningKey: before.next });
  assert.equal(await verifier.verify({ signature: headers["upstash-signature"], body, url }), true);
});

test("settings say what is in effect, and no secret", async () => {
  const { page, visitor } = it;
  await visitor.open("/settings");
  await page.getByText("ready", { exact: true }).waitFor();
  const configuration = page.locator("#configuration");
  await configuration.getByRole("row").filter({ hasText: "data_dir" }).getByText(it.server.dataDir).waitFor();
  assert.ok(!(await page.content()).includes(USERS[0].token));
});
