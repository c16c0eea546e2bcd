// The environment of the test files: a server, a receiver, a browser and a visitor.

import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, afterEach, before } from "node:test";
import { Server, run } from "../../js/support/server.js";
import { eventually } from "../../js/support/wait.js";
import { Browser } from "./browser.js";

/**
 * Adds a browser and a visitor to a story that has a server, of messages or of workflows.
 * After every test the browser must have recorded no fault.
 */
export function watched(it) {
  before(async () => {
    it.browser = await Browser.start();
    // The setups of a file start concurrently, not in turn.
    await eventually("the server", () => it.server?.url);
    it.visitor = await it.browser.visitor(it.server.url);
    it.page = it.visitor.page;
  });
  afterEach(() => it.visitor.innocent());
  after(async () => await it.browser?.stop());

  /** The table row with all of these texts. */
  it.row = (...texts) => texts.reduce((rows, hasText) => rows.filter({ hasText }), it.page.getByRole("row"));
  return it;
}

/** A server as in production, with two tenants: their tokens, and read-only ones. */
export class Production {
  server;
  tenants = {};
  #dir;

  static async start(...names) {
    const it = new Production();
    it.#dir = await mkdtemp(path.join(tmpdir(), "posthaste-console-"));
    const file = path.join(it.#dir, "posthaste.toml");
    await writeFile(file, 'egress_allow_cidrs = ["127.0.0.1/32"]\n');
    for (const name of names) {
      const printed = (await run("new-tenant", name, "--write", file)).stdout;
      const [, token] = /QSTASH_TOKEN=(\S+)/.exec(printed);
      const [, readOnly] = /read-only token: (\S+)/.exec(printed);
      it.tenants[name] = { token, readOnly };
    }
    it.server = await Server.startIn("serve", "--config", file);
    return it;
  }

  /** The SDK's client of a tenant. */
  client(name) {
    return this.server.client(0, { token: this.tenants[name].token });
  }

  async stop() {
    await this.server?.stop();
    await rm(this.#dir, { recursive: true, force: true });
  }
}
