//! Whether the wall clock can be trusted to say that something is old enough to be dropped.
//!
//! A clock that jumps ahead (a wrong battery clock, a resumed machine) and is put right later must not
//! take history and dead letters with it.

use posthaste_wire::time::Timestamp;
use std::time::Duration;

/// Nothing is dropped this soon after the start: a wrong clock is usually put right by then.
const START_PATIENCE: Duration = Duration::from_secs(600);
/// A clock may run ahead of the process by this much between two looks.
const TOLERANCE_MS: u64 = 3_600_000;
/// After a jump ahead nothing is dropped for this long.
const DISTRUST: Duration = Duration::from_secs(86_400);

/// Compares the wall clock with how long the process has run.
#[derive(Debug, Default)]
pub(super) struct ClockWatch {
    last: Option<(Timestamp, Duration)>,
    distrusted_until: Duration,
}

impl ClockWatch {
    /// Looks at both clocks. True: what the wall clock calls old is old.
    pub(super) fn trusts(&mut self, wall: Timestamp, uptime: Duration) -> bool {
        if let Some((last_wall, last_uptime)) = self.last {
            let ran = u64::try_from(uptime.saturating_sub(last_uptime).as_millis()).unwrap_or(u64::MAX);
            if wall.millis_since(last_wall) > ran.saturating_add(TOLERANCE_MS) {
                tracing::warn!(
                    from = %last_wall,
                    to = %wall,
                    "the clock jumped ahead; keeping expired data for a day in case the clock is corrected"
                );
                self.distrusted_until = uptime + DISTRUST;
            }
        }
        self.last = Some((wall, uptime));
        uptime >= START_PATIENCE && uptime >= self.distrusted_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    #[test]
    fn a_jump_ahead_is_not_trusted_for_a_day() {
        let mut watch = ClockWatch::default();
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        assert!(!watch.trusts(Timestamp(0), hours(0)), "right after the start");
        assert!(watch.trusts(Timestamp(HOUR), hours(1)));
        assert!(!watch.trusts(Timestamp(900 * HOUR), hours(2)), "after a jump");
        assert!(!watch.trusts(Timestamp(3 * HOUR), hours(3)), "put right");
        assert!(!watch.trusts(Timestamp(25 * HOUR), hours(25)));
        assert!(watch.trusts(Timestamp(26 * HOUR), hours(26)), "a day later");
    }

    #[test]
    fn small_steps_and_steps_back_are_normal() {
        let mut watch = ClockWatch::default();
        let start = Timestamp(100 * HOUR);
        assert!(watch.trusts(start, START_PATIENCE));
        assert!(watch.trusts(start.plus_millis(HOUR), START_PATIENCE + Duration::from_secs(60)));
        assert!(watch.trusts(start.minus_millis(50 * HOUR), START_PATIENCE + Duration::from_secs(120)));
    }
}
