// Full minutes: the only times at which schedules fire.

/** How long the next minute may take to come, with what follows from it. */
export const MINUTE_PATIENCE_MS = 90_000;

export const MINUTE_MS = 60_000;

/** The full minute that a time lies in. */
export function minuteOf(ms) {
  return Math.floor(ms / MINUTE_MS) * MINUTE_MS;
}
