// Full minutes: the only times at which schedules fire.

/** Longest wait for the next minute and its consequences. */
export const MINUTE_PATIENCE_MS = 90_000;

export const MINUTE_MS = 60_000;

/** The full minute that contains a time. */
export function minuteOf(ms) {
  return Math.floor(ms / MINUTE_MS) * MINUTE_MS;
}
