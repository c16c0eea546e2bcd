// A real Chromium that records everything a page of the console must not do.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

/** Where Debian and others install it; `CHROMIUM` names another path. */
const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Longest wait for a page. Generous, for busy machines. */
const PATIENCE_MS = 60_000;

/** A foreign name that resolves to this machine, as an attacker's name can. */
export const REBOUND = "rebound.example";

/** Only this machine is reachable: other names have no address. */
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

  /** A visitor with separate cookies. `options` are those of a Playwright context. */
  async visitor(url, options = {}) {
    const context = await this.#chromium.newContext({ baseURL: url, ...options });
    context.setDefaultTimeout(PATIENCE_MS);
    return await Visitor.watch(context, new URL(url).origin);
  }

  async stop() {
    await this.#chromium?.close();
  }
}

/** A user of the browser, and the faults that occurred. */
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
    // The page itself reports it, even if it is closed right afterwards.
    await context.exposeBinding("reportViolation", (_, text) => fault(`policy: ${text}`));
    await context.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => {
        window.reportViolation(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
      });
    });
    context.on("weberror", (error) => fault(`uncaught: ${error.error()}`));
    context.on("console", (message) => {
      // The browser also logs the status of rejected pages; tests of rejections check the status themselves.
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

  /** Opens a page of the console: the path after `/console`. */
  async open(path, status = 200) {
    const response = await this.page.goto(`/console${path}`);
    assert.equal(response.status(), status, `the status of ${path}`);
    return response;
  }

  /** Waits until the visitor is on a page: the path after `/console`, encoded or not. */
  async isAt(path) {
    await this.page.waitForURL((url) => decodeURIComponent(url.pathname) === `/console${path}`);
  }

  /** Logs in on the login page that the visitor was redirected to. */
  async logIn(token) {
    await this.page.getByLabel("Token").fill(token);
    await this.page.getByRole("button", { name: "Log in" }).click();
  }

  /** Presses a button and confirms its question. */
  async confirm(button) {
    await button.click();
    await this.page.getByRole("dialog").getByRole("button", { name: /^Yes, / }).click();
  }

  /** Waits for the console's message about a completed action. */
  async said(text) {
    await this.page.getByRole("status").filter({ hasText: text }).first().waitFor();
  }

  /** The visible text. */
  async text() {
    return await this.page.locator("main").innerText();
  }

  /** Sends a request with the visitor's cookies, without following redirects. */
  async fetch(path, { origin = this.#origin, form = undefined } = {}) {
    const pairs = (await this.context.cookies()).map(({ name, value }) => `${name}=${value}`);
    const headers = { cookie: pairs.join("; "), ...(form && origin ? { origin } : {}) };
    const method = form ? "POST" : "GET";
    const body = form ? new URLSearchParams(form) : undefined;
    return await fetch(`${this.#origin}/console${path}`, { method, headers, body, redirect: "manual" });
  }

  /** Submits a form directly, without its button. */
  async post(path, form = {}, origin = this.#origin) {
    return await this.fetch(path, { form, origin });
  }

  /** Fails if a fault occurred since the last call. */
  innocent(where = "") {
    assert.deepEqual(this.faults.splice(0), [], `what the browser complained about ${where}`);
  }

  async leave() {
    await this.context.close();
  }
}
