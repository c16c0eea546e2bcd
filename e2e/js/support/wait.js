// Waiting for conditions. Tests never sleep: they name a condition and a deadline.

/** Longest wait before a test fails. Generous, for busy machines. */
export const PATIENCE_MS = 60_000;

const POLL_MS = 15;

/**
 * Calls `probe` until it returns a truthy value, and returns that.
 * Fails with `what`, a text or a function that returns one, when the time is over.
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

/** Only for polling loops, for slow receivers, and for pictures. */
export function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
