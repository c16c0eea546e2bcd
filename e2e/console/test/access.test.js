// Access with full, read-only and no tokens, and the policy for browsers: on a server as in production, and on one for development.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Server } from "../../js/support/server.js";
import { Browser, REBOUND } from "../support/browser.js";
import { PAGES } from "../support/pages.js";
import { Production } from "../support/story.js";

const SESSION = "__Host-posthaste";
/** A message of acme to an unreachable destination, which waits forever. */
const LATER = { url: "https://example.com/acme-only", delay: "1d", label: "acme-label" };

/** Buttons in forms with actions that only show something. */
const HARMLESS = ":not([type=button], [formmethod=get], [name=do]:not([value=send]))";

let production;
let development;
let browser;
let messageId;

before(async () => {
  [production, development, browser] = await Promise.all([
    Production.start("acme", "other"),
    Server.start(),
    Browser.start(),
  ]);
  const client = production.client("acme");
  ({ messageId } = await client.publish({ ...LATER, body: "acme-body" }));
  await client.queue({ queueName: "acme-queue" }).upsert({ parallelism: 1 });
  await client.urlGroups.addEndpoints({ name: "acme-group", endpoints: [{ url: "https://example.com/acme-only" }] });
  await client.schedules.create({ destination: LATER.url, cron: "0 0 1 1 *", scheduleId: "acme-schedule" });
});

after(async () => {
  await browser?.stop();
  await production?.stop();
  await development?.stop();
});

/** Runs a test with a visitor that is logged in with a token, or not logged in. */
async function as(token, story) {
  const visitor = await browser.visitor(production.server.url);
  try {
    if (token) {
      await visitor.open("");
      await visitor.logIn(token);
      await visitor.page.getByRole("button", { name: "Log out" }).waitFor();
    }
    await story(visitor);
    visitor.innocent();
  } finally {
    await visitor.leave();
  }
}

test("pages need a token, and a wrong token opens nothing", () =>
  as(undefined, async (visitor) => {
    for (const [path] of PAGES) {
      await visitor.open(path);
      await visitor.isAt("/login");
    }
    await visitor.logIn("wrong".repeat(8));
    await visitor.page.getByRole("alert").getByText("This token is not valid.").waitFor();
    await visitor.open("/queues");
    await visitor.isAt("/login");
    assert.deepEqual(await visitor.context.cookies(), [], "a wrong token is given no cookie");
  }));

test("a token opens the page that was asked for, until the visitor logs out", () =>
  as(undefined, async (visitor) => {
    await visitor.open("/queues?order=lag");
    await visitor.logIn(production.tenants.acme.token);
    await visitor.page.waitForURL("**/console/queues?order=lag");
    assert.ok((await visitor.page.locator("header").innerText()).includes("acme"));

    const cookie = (await visitor.context.cookies()).find(({ name }) => name === SESSION);
    const { path, httpOnly, secure, sameSite, domain } = cookie;
    const wanted = { path: "/", httpOnly: true, secure: true, sameSite: "Strict", domain: "127.0.0.1" };
    assert.deepEqual({ path, httpOnly, secure, sameSite, domain }, wanted);
    assert.ok(!cookie.value.includes(production.tenants.acme.token), "the cookie is not the token");

    await visitor.page.getByRole("button", { name: "Log out" }).click();
    await visitor.isAt("/login");
    // A copy of the cookie is invalid too.
    await visitor.context.addCookies([cookie]);
    await visitor.open("/queues");
    await visitor.isAt("/login");
  }));

test("a live page without responses shows how old it is and what to do", () =>
  as(production.tenants.acme.token, async (visitor) => {
    const { page, context } = visitor;
    const [verdict, age] = [page.locator("#verdict"), page.locator("#age")];
    await visitor.open("");
    await verdict.filter({ hasText: "All is well" }).waitFor();
    assert.equal(await age.innerText(), "");

    await context.setOffline(true);
    await age.filter({ hasText: /^Not updated since \d\d:\d\d:\d\d UTC: the server is not responding/ }).waitFor();
    await page.locator("#now.stale").waitFor();
    assert.deepEqual([await verdict.innerText(), await verdict.getAttribute("class")], ["Current state unknown", "warn"]);
    assert.ok(!(await visitor.text()).includes("All is well"));
    await context.setOffline(false);
    await verdict.filter({ hasText: "All is well" }).waitFor();
    await page.locator("#age:empty").waitFor({ state: "attached" });
    assert.equal(await page.locator(".stale").count(), 0);
    const isOffline = (fault) => fault.includes("ERR_INTERNET_DISCONNECTED");
    visitor.faults = visitor.faults.filter((fault) => !isOffline(fault));

    // In another window.
    assert.equal((await visitor.post("/logout")).status, 303);
    await age.filter({ hasText: "the session has ended" }).waitFor();
    await verdict.filter({ hasText: "Current state unknown" }).waitFor();
    await age.getByRole("link", { name: "Log in" }).click();
    await visitor.isAt("/login");
    await visitor.logIn(production.tenants.acme.token);
    await verdict.filter({ hasText: "All is well" }).waitFor();

    // Every page that reloads, not only the first. The login leads back to it.
    await visitor.open("/queues");
    await visitor.post("/logout");
    await page.locator("#queue-list.stale").waitFor();
    await age.getByRole("link", { name: "Log in" }).click();
    await visitor.logIn(production.tenants.acme.token);
    await visitor.isAt("/queues");
  }));

test("the login leads to pages of the console only", () =>
  as(undefined, async (visitor) => {
    await visitor.page.goto("/console/login?next=https://attacker.example/console");
    await visitor.logIn(production.tenants.acme.token);
    await visitor.isAt("");
  }));

test("a read-only token sees everything and changes nothing", () =>
  as(production.tenants.acme.readOnly, async (visitor) => {
    for (const [path, heading] of [...PAGES, [`/messages/${messageId}`, "Message"]]) {
      await visitor.open(path);
      await visitor.page.getByRole("heading", { level: 1, name: heading }).waitFor();
      const acting = visitor.page.locator(`main form[method=post] button${HARMLESS}, main button[form]${HARMLESS}`);
      for (const button of await acting.all()) {
        const name = `${path}: ${await button.innerText()}`;
        assert.ok(await button.isDisabled(), name);
        assert.match((await button.getAttribute("title")) ?? "", /read-only/, name);
      }
    }
    await visitor.open("/queues");
    await visitor.page.getByText("acme-queue").first().waitFor();
    // Directly, without the buttons.
    const refused = await visitor.post("/queues/acme-queue/pause");
    assert.equal(refused.status, 403);
    assert.match(await refused.text(), /read-only/);
    assert.equal((await production.client("acme").queue({ queueName: "acme-queue" }).get()).paused, false);
  }));

test("a page of another site can do nothing, even with a session", () =>
  as(production.tenants.acme.token, async (visitor) => {
    for (const origin of ["https://attacker.example", "null", `${production.server.url}0`, ""]) {
      const refused = await visitor.post("/queues/acme-queue/pause", {}, origin);
      assert.equal(refused.status, 403, origin);
      assert.match(refused.headers.get("content-security-policy"), /default-src 'none'/);
    }
    const queue = production.client("acme").queue({ queueName: "acme-queue" });
    assert.equal((await queue.get()).paused, false);
    assert.equal((await visitor.post("/queues/acme-queue/pause")).status, 303);
    assert.equal((await queue.get()).paused, true);
    await queue.resume();
  }));

test("a form of another site is sent without the cookie and rejected", async () => {
  const other = await browser.visitor(production.server.url);
  try {
    await other.open("");
    await other.logIn(production.tenants.acme.token);
    await other.page.getByRole("button", { name: "Log out" }).waitFor();
    const sent = other.page.waitForRequest((request) => request.method() === "POST");
    const answered = other.page.waitForResponse((response) => response.request().method() === "POST");
    await other.context.route(`http://${REBOUND}/`, (route) =>
      route.fulfill({
        contentType: "text/html",
        body: `<form method=post action="${production.server.url}/console/queues/acme-queue/delete"><button>Win</button></form>`,
      }),
    );
    await other.page.goto(`http://${REBOUND}/`);
    await other.page.getByRole("button", { name: "Win" }).click();
    assert.equal((await (await sent).allHeaders()).cookie, undefined);
    assert.equal((await answered).status(), 403);
    assert.ok(await production.client("acme").queue({ queueName: "acme-queue" }).get());
  } finally {
    await other.leave();
  }
});

test("a tenant sees no data of another", () =>
  as(production.tenants.other.token, async (visitor) => {
    for (const [path, heading] of PAGES) {
      await visitor.open(path);
      await visitor.page.getByRole("heading", { level: 1, name: heading }).waitFor();
      const html = await visitor.page.content();
      assert.ok(!/acme/.test(html) && !html.includes(messageId), `${path} shows something of another tenant`);
    }
    await visitor.open(`/messages/${messageId}`, 404);
    assert.ok(!/acme/.test(await visitor.page.content()));
    for (const path of [`/messages/${messageId}/cancel`, "/queues/acme-queue/delete", "/schedules/acme-schedule/delete"]) {
      const answer = await visitor.post(path);
      assert.doesNotMatch(answer.headers.get("location") ?? "", /login/);
    }
    const acme = production.client("acme");
    assert.equal((await acme.messages.get(messageId)).messageId, messageId);
    assert.equal((await acme.schedules.get("acme-schedule")).scheduleId, "acme-schedule");
    assert.ok(await acme.queue({ queueName: "acme-queue" }).get());
  }));

test("every page, and every rejection, has a strict browser policy", () =>
  as(production.tenants.acme.token, async (visitor) => {
    const wanted = [...PAGES.map(([path]) => path), "/login", "/nowhere", `/messages/${messageId}`];
    for (const path of wanted) {
      const response = await visitor.fetch(path);
      assert.equal(response.status, path === "/nowhere" ? 404 : 200, path);
      const policy = response.headers.get("content-security-policy");
      for (const part of [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
      ]) {
        assert.ok(policy.split("; ").includes(part), `${path}: ${policy}`);
      }
      assert.ok(!/unsafe|\*|https?:|data:/.test(policy), policy);
      assert.equal(response.headers.get("x-content-type-options"), "nosniff");
      assert.equal(response.headers.get("cache-control"), "no-store", path);
      assert.doesNotMatch(await response.text(), /<style|\sstyle=|\son[a-z]+=|javascript:|<script(?! src="\/console\/assets\/)/i, path);
    }
  }));

test("a development console is open on this machine, and only under its own names", async () => {
  const visitor = await browser.visitor(development.url);
  try {
    for (const [path, heading] of PAGES) {
      await visitor.open(path);
      await visitor.page.getByRole("heading", { level: 1, name: heading }).waitFor();
    }
    visitor.innocent();
    const port = new URL(development.url).port;
    const answer = await visitor.page.goto(`http://${REBOUND}:${port}/console`);
    assert.equal(answer.status(), 403);
    assert.match(await answer.text(), /loopback/);
  } finally {
    await visitor.leave();
  }
});

test("a visitor of a development server chooses among its tenants", async () => {
  const visitor = await browser.visitor(development.url);
  try {
    await development.client(1).queue({ queueName: "of-another-user" }).upsert({ parallelism: 1 });
    await visitor.open("/queues");
    assert.ok(!(await visitor.text()).includes("of-another-user"));
    await visitor.page.getByLabel("Tenant").selectOption("testUser1");
    await visitor.isAt("");
    await visitor.open("/queues");
    await visitor.page.getByText("of-another-user").first().waitFor();
    visitor.innocent();
  } finally {
    await visitor.leave();
  }
});
