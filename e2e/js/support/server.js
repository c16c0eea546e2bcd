// The real binary as a child process.

import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { Client } from "@upstash/qstash";
import { PATIENCE_MS } from "./wait.js";

/** The root of the repository. */
export const REPOSITORY = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../..");

/** The tested binary: `POSTHASTE_BIN`, or the debug build. */
export const BINARY = process.env.POSTHASTE_BIN ?? path.join(REPOSITORY, "target/debug/posthaste");

/** The published development credentials: every server in dev mode knows these four users. */
export const USERS = [
  {
    token: "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=",
    current: "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r",
    next: "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs",
  },
  {
    token: "eyJVc2VySUQiOiJ0ZXN0VXNlcjEiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
    current: "sig_7GVPjvuwsfqF65iC8fSrs1dfYruM",
    next: "sig_5NoELc3EFnZn4DVS5bDs2Nk4b7Ua",
  },
  {
    token: "eyJVc2VySUQiOiJ0ZXN0VXNlcjIiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
    current: "sig_6jWGaWRxHsw4vMSPJprXadyvrybF",
    next: "sig_7qHbvhmahe5GwfePDiS5Lg3pi6Qx",
  },
  {
    token: "eyJVc2VySUQiOiJ0ZXN0VXNlcjMiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
    current: "sig_5T8FcSsynBjn9mMLBsXhpacRovJf",
    next: "sig_7GFR4YaDshFcqsxWRZpRB161jguD",
  },
];

export class Server {
  /** Its URL. The port changes with every start, but not with `restart`. */
  url;
  #dataDir;
  #mode;
  #args;
  #listen = ["--listen", "127.0.0.1:0"];
  #variables = {};
  #child;
  #output = "";
  #exited;

  /** Starts a server in dev mode on a fresh data directory. */
  static async start(...args) {
    return await Server.startIn("dev", ...args);
  }

  /** Starts a server in `dev` or `serve` mode on a fresh data directory. */
  static async startIn(mode, ...args) {
    const server = new Server();
    server.#dataDir = await mkdtemp(path.join(tmpdir(), "posthaste-e2e-"));
    server.#mode = mode;
    server.#args = args;
    await server.start();
    return server;
  }

  /** Starts a server in dev mode where the SDK's own development mode looks for one. */
  static async startOnDevPort(port) {
    const server = new Server();
    server.#dataDir = await mkdtemp(path.join(tmpdir(), "posthaste-e2e-"));
    server.#mode = "dev";
    server.#args = [];
    server.#listen = [];
    server.#variables = { QSTASH_DEV_PORT: `${port}` };
    await server.start();
    return server;
  }

  /** kill -9, and a new start on the same data directory and the same port: clients continue unchanged. */
  async restart() {
    await this.kill();
    const anyPort = this.#listen;
    this.#listen = ["--listen", new URL(this.url).host];
    await this.start();
    this.#listen = anyPort;
  }

  /** Starts it again on the same data directory, after `kill` or `terminate`. */
  async start() {
    const args = [this.#mode, ...this.#listen, "--data-dir", this.#dataDir, ...this.#args];
    const env = { ...environment(), ...this.#variables };
    this.#output = "";
    this.#child = spawn(BINARY, args, { env, stdio: ["ignore", "pipe", "pipe"] });
    this.#exited = new Promise((resolve) => this.#child.once("exit", (code, signal) => resolve({ code, signal })));
    this.url = await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`the server did not start:\n${this.#output}`)), PATIENCE_MS);
      const read = (chunk) => {
        this.#output += chunk;
        // Dev mode prints it, serve mode logs it.
        const address = /is running at http:\/\/(\S+)/.exec(this.#output) ?? /"address":"([^"]+)"/.exec(this.#output);
        if (!address) return;
        clearTimeout(timer);
        resolve(`http://${address[1]}`);
      };
      this.#child.stdout.on("data", read);
      this.#child.stderr.on("data", read);
      this.#child.once("error", reject);
      this.#child.once("exit", (code) => reject(new Error(`the server ended with ${code}:\n${this.#output}`)));
    });
  }

  /** Everything it has printed since its last start. */
  get output() {
    return this.#output;
  }

  get dataDir() {
    return this.#dataDir;
  }

  /** kill -9: no chance to clean up. */
  async kill() {
    this.#child.kill("SIGKILL");
    return await this.#exited;
  }

  /** SIGTERM, as a service manager does. Resolves when it has ended. */
  async terminate() {
    this.#child.kill("SIGTERM");
    return await this.#exited;
  }

  /** Ends it and removes its data. */
  async stop() {
    await this.kill();
    await rm(this.#dataDir, { recursive: true, force: true });
  }

  /** A client of the SDK for one of the four development users. */
  client(user = 0, options = {}) {
    return new Client({ baseUrl: this.url, token: USERS[user].token, retry: false, ...options });
  }

  /** A request without the SDK, for requests that the SDK cannot send. */
  async fetch(target, { headers = {}, user = 0, ...options } = {}) {
    const authorization = `Bearer ${USERS[user].token}`;
    return await fetch(this.url + target, { ...options, headers: { authorization, ...headers } });
  }
}

/** Runs the binary to its end, for commands that terminate. */
export async function run(...args) {
  return await runProgram(BINARY, args);
}

/** Runs any program to its end; `variables` are added to its environment. */
export async function runProgram(program, args, variables = {}) {
  const child = spawn(program, args, { env: { ...environment(), ...variables }, stdio: ["ignore", "pipe", "pipe"] });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (chunk) => (stdout += chunk));
  child.stderr.on("data", (chunk) => (stderr += chunk));
  const timer = setTimeout(() => child.kill("SIGKILL"), PATIENCE_MS);
  const [code, signal] = await new Promise((resolve) => child.once("close", (...ended) => resolve(ended)));
  clearTimeout(timer);
  return { code, signal, stdout, stderr };
}

/** Settings of the machine must not leak into the tested programs. */
function environment() {
  const kept = Object.entries(process.env).filter(([name]) => !/^(POSTHASTE|QSTASH)_/.test(name));
  return Object.fromEntries(kept);
}
