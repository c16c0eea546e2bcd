// Waiting for conditions. Tests never sleep: they say what they wait for and how long it may take.

/** How long anything may take before a test fails. Generous, for busy machines. */
export const PATIENCE_MS = 60_000;

const POLL_MS = 15;

/**
 * Calls `probe` until it gives something truthy, and returns that.
 * Fails with `what`, a text or a function that makes one, when the time is over.
 */
export async function eventually(what, probe, patienceMs = PATIENCE_MS) {
  const deadline = Date.now() + patienceMs;
  for (;;) {
    const found = await probe();
    if (found) return found;
    if (Date.now() > deadline) {
      throw new Error(`waited ${patienceMs} ms in vain for: ${typeof what === "function" ? what() : what}`);
    }
    await pause(POLL_MS);
  }
}

/** Only for the inside of polling loops, for receivers that have to be slow, and for pictures of what takes time. */
export function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
