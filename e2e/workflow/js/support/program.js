// The user's program as a separate process, started as users start it.

import { spawn } from "node:child_process";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { eventually } from "../../../js/support/wait.js";
import { Witnessed, callOf } from "./calls.js";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const PROJECT = path.dirname(HERE);
/** Longest build of a program. Generous, for busy machines. */
const BUILD_PATIENCE_MS = 300_000;
/** Longest wait until a program listens. */
const START_PATIENCE_MS = 60_000;
/** The output of programs when they listen. */
const ADDRESS = /(http:\/\/(?:127\.0\.0\.1|localhost):\d+)\s/;

/** Runs a script of this project to its end, and fails with its output unless it succeeds. */
export async function build(script, ...args) {
  const { child, output, ended } = run([script, ...args], { timeout: BUILD_PATIENCE_MS });
  await ended;
  if (child.exitCode !== 0) throw new Error(`${script} ended with ${child.exitCode}:\n${output.join("")}`);
}

function run(words, options = {}) {
  const env = { ...process.env, NEXT_TELEMETRY_DISABLED: "1" };
  const child = spawn(process.execPath, words, { cwd: PROJECT, stdio: ["ignore", "pipe", "pipe"], env, ...options });
  const output = [];
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => output.push(text));
  const ended = new Promise((resolve, reject) => child.once("close", resolve).once("error", reject));
  return { child, output, ended };
}

export class Program extends Witnessed {
  #child;
  #ended;
  #output;
  #address;
  #asked = 0;
  #echoed = 0;

  /** Starts a script of this project with the environment of this process, and waits until it listens. */
  static async start(script, ...args) {
    const program = new Program();
    const words = ["--import", path.join(HERE, "witness.js"), script, ...args];
    const { child, output, ended } = run(words, { stdio: ["ignore", "pipe", "pipe", "ipc"] });
    child.on("message", (message) => program.#read(message));
    program.#child = child;
    program.#ended = ended;
    program.#output = output;
    try {
      program.#address = await program.#until("an address", () => ADDRESS.exec(output.join(""))?.[1], START_PATIENCE_MS);
    } catch (error) {
      child.kill();
      throw error;
    }
    return program;
  }

  /** The address of a path. */
  url(path) {
    return this.#address + path;
  }

  async idle() {
    await this.#catchUp();
    await super.idle();
  }

  /** Ends it after it has reported everything that arrived. */
  async stop() {
    try {
      await this.#catchUp();
    } finally {
      this.#child.kill();
      await this.#ended;
    }
  }

  #read({ id, arrived, status, isOver, echo }) {
    if (echo) this.#echoed = echo;
    else if (arrived) this.calls[id - 1] = callOf(arrived.path, arrived.headers);
    else if (status) this.calls[id - 1].status = status;
    else if (isOver) this.calls[id - 1].isOver = true;
  }

  /** Waits until everything that has arrived by now is recorded. */
  async #catchUp() {
    this.#asked += 1;
    const asked = this.#asked;
    this.#child.send(asked);
    await this.#until("an echo", () => this.#echoed >= asked);
  }

  async #until(what, probe, patienceMs = undefined) {
    const said = () => `${what} of the program, which has printed:\n${this.#output.join("")}`;
    const look = () => {
      if (this.#child.exitCode !== null) throw new Error(`the program ended with ${this.#child.exitCode}: ${said()}`);
      return probe();
    };
    return await eventually(said, look, patienceMs);
  }
}
