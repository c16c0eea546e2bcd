// Shared by the workflow applications: a trivial step, and a tally of each measurement, which `/_tally?run=R` shows in
// the format of the native endpoint.

import { nowNs, percentiles } from "./driver.mjs";

/** The result of a step. */
export const result = (step) => ({ step, sum: step / 2, ok: true });

/** The measurement and the start of a run, from the marker that it was started with. */
export function readMarker(text) {
  const found = /HQB([0-9a-f]{8})[0-9a-f]{8}([0-9a-f]{16})/.exec(text);
  if (!found) throw new Error(`no marker in ${text}`);
  return { run: parseInt(found[1], 16), startNs: BigInt(`0x${found[2]}`) };
}

/** Counts by measurement; `add("steps", run)` counts one. */
export class Ledger {
  #measurements = new Map();

  #of(run) {
    const empty = () => ({ counts: {}, tookMs: [], firstNs: null, lastNs: null, problem: null });
    if (!this.#measurements.has(run)) this.#measurements.set(run, empty());
    return this.#measurements.get(run);
  }

  add(what, run, problem = null) {
    const found = this.#of(run);
    found.counts[what] = (found.counts[what] ?? 0) + 1;
    found.problem ??= problem;
  }

  ended({ run, startNs }) {
    const [found, now] = [this.#of(run), nowNs()];
    this.add("ended", run);
    found.tookMs.push(Number(now - startNs) / 1e6);
    if (found.firstNs === null || startNs < found.firstNs) found.firstNs = startNs;
    found.lastNs = now;
  }

  /** The answer to a request for `/_tally?run=R`. */
  show(url) {
    const run = Number(new URL(url, "http://x").searchParams.get("run"));
    const { counts, tookMs, firstNs, lastNs, problem } = this.#of(run);
    const seconds = lastNs === null ? 0 : Number(lastNs - firstNs) / 1e9;
    return JSON.stringify({ ...counts, seconds, took: percentiles([...tookMs]), first_problem: problem });
  }
}
