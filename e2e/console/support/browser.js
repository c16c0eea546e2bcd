// A real Chromium, watched: whatever a page does that a page of the console must not do is written down.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

/** Where Debian and others put it; `CHROMIUM` names another. */
const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** How long a page may take for anything. Generous, for busy machines. */
const PATIENCE_MS = 60_000;

/** A name of somebody else that leads to this machine, as those of attackers can. */
export const REBOUND = "rebound.example";

/** Nothing but this machine is reached: other names have no address. */
const NAMES = `MAP ${REBOUND} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1`;

export class Browser {
  #chromium;

  static async start() {
    const executablePath = process.env.CHROMIUM ?? PLACES.find((place) => existsSync(place));
    assert.ok(executablePath, "Chromium is not installed");
    const browser = new Browser();
    browser.#chromium = await chromium.launch({ executablePath, args: [`--host-resolver-rules=${NAMES}`] });
    return browser;
  }

  /** A visitor with cookies of their own. `options` are those of a context of Playwright. */
  async visitor(url, options = {}) {
    const context = await this.#chromium.newContext({ baseURL: url, ...options });
    context.setDefaultTimeout(PATIENCE_MS);
    return await Visitor.watch(context, new URL(url).origin);
  }

  async stop() {
    await this.#chromium?.close();
  }
}

/** Somebody in front of the browser, and what has gone wrong for them. */
export class Visitor {
  page;
  context;
  /** Violations of the policy, uncaught errors, errors in the console, dialogs and requests to others. */
  faults = [];
  #origin;

  static async watch(context, origin) {
    const visitor = new Visitor();
    visitor.context = context;
    visitor.#origin = origin;
    const fault = (text) => visitor.faults.push(text);
    // Reported by the page itself, even if it is closed right after.
    await context.exposeBinding("reportViolation", (_, text) => fault(`policy: ${text}`));
    await context.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => {
        window.reportViolation(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
      });
    });
    context.on("weberror", (error) => fault(`uncaught: ${error.error()}`));
    context.on("console", (message) => {
      // A browser also says so when a page is refused; tests of refusals look at its status.
      const isStatus = /the server responded with a status of 4/.test(message.text());
      if (message.type() === "error" && !isStatus) fault(`console: ${message.text()}`);
    });
    context.on("dialog", async (dialog) => {
      fault(`dialog: ${dialog.message()}`);
      await dialog.dismiss();
    });
    context.on("request", (request) => {
      if (new URL(request.url()).origin !== origin) fault(`request: ${request.url()}`);
    });
    visitor.page = await context.newPage();
    return visitor;
  }

  /** Opens a page of the console: the path behind `/console`. */
  async open(path, status = 200) {
    const response = await this.page.goto(`/console${path}`);
    assert.equal(response.status(), status, `the status of ${path}`);
    return response;
  }

  /** Waits until the visitor is at a page: the path behind `/console`, whatever of it is encoded. */
  async isAt(path) {
    await this.page.waitForURL((url) => decodeURIComponent(url.pathname) === `/console${path}`);
  }

  /** Logs in, from wherever the visitor is led to without. */
  async logIn(token) {
    await this.page.getByLabel("Token").fill(token);
    await this.page.getByRole("button", { name: "Log in" }).click();
  }

  /** Presses a button and says yes to the question that it asks. */
  async confirm(button) {
    await button.click();
    await this.page.getByRole("dialog").getByRole("button", { name: /^Yes, / }).click();
  }

  /** Waits for the message of the console about what it has done. */
  async said(text) {
    await this.page.getByRole("status").filter({ hasText: text }).first().waitFor();
  }

  /** The text that a person reads. */
  async text() {
    return await this.page.locator("main").innerText();
  }

  /** A request by hand, with the visitor's cookies; redirects are not followed. */
  async fetch(path, { origin = this.#origin, form = undefined } = {}) {
    const pairs = (await this.context.cookies()).map(({ name, value }) => `${name}=${value}`);
    const headers = { cookie: pairs.join("; "), ...(form && origin ? { origin } : {}) };
    const method = form ? "POST" : "GET";
    const body = form ? new URLSearchParams(form) : undefined;
    return await fetch(`${this.#origin}/console${path}`, { method, headers, body, redirect: "manual" });
  }

  /** A form by hand, past the buttons. */
  async post(path, form = {}, origin = this.#origin) {
    return await this.fetch(path, { form, origin });
  }

  /** Fails if anything has gone wrong since the last time. */
  innocent(where = "") {
    assert.deepEqual(this.faults.splice(0), [], `what the browser complained about ${where}`);
  }

  async leave() {
    await this.context.close();
  }
}
