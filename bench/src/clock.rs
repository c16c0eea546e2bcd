//! The clock of all measurements: `CLOCK_MONOTONIC`, which processes of one machine share. And the wall clock, which
//! schedules use.

use rustix::time::{ClockId, Timespec};

pub(crate) const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64
}

/// Nanoseconds since 1970, for events at a time of day.
pub(crate) fn wall_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64
}

/// Blocks the thread until the given point. Tokio's timer is too coarse for pacing: 1 ms.
pub(crate) fn sleep_until_ns(due_ns: u64) {
    let due = Timespec { tv_sec: (due_ns / NS_PER_S) as i64, tv_nsec: (due_ns % NS_PER_S) as _ };
    while now_ns() < due_ns {
        // After an interruption the loop continues; the deadline is absolute.
        let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &due);
    }
}

/// Seconds between two points; 0 if they are in the wrong order.
pub(crate) fn seconds_between(start_ns: u64, end_ns: u64) -> f64 {
    end_ns.saturating_sub(start_ns) as f64 / NS_PER_S as f64
}
