//! The clock as the shard sees it. It may go back, and messages that were due before are still due.

use super::{FULL_PAUSE_MS, Shard, pop_due};
use crate::limits::STEPS_BACK_MAX;
use crate::message::{DueKey, Live};
use posthaste_wire::id::Seq;
use posthaste_wire::time::Timestamp;

/// The clock; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Clock {
    seen: Timestamp,
    latest: Timestamp,
    /// The jumps that the clock has not caught up with, each from an earlier time than the previous one.
    steps_back: Vec<StepBack>,
}

/// The clock went back.
#[derive(Clone, Copy, Debug)]
struct StepBack {
    /// Messages due up to here had been read. A moment in which the clock was far ahead makes no others due.
    from: Timestamp,
    /// The first message after the jump.
    first_since: Seq,
}

impl Clock {
    /// Notes the time `now`, and that messages due up to `read` were read. If the clock just went back, returns from
    /// when.
    pub(super) fn see(&mut self, now: Timestamp, read: DueKey) -> Option<Timestamp> {
        let seen = std::mem::replace(&mut self.seen, now);
        self.latest = self.latest.max(now);
        self.steps_back.retain(|step| step.from > now);
        if now >= seen {
            return None;
        }
        // The last millisecond may be incomplete.
        let from = seen.min(if read.seq == Seq::MAX { read.due } else { read.due.minus_millis(1) });
        self.steps_back.retain(|step| step.from > from);
        self.steps_back.truncate(STEPS_BACK_MAX - 1);
        self.steps_back.push(StepBack { from, first_since: Seq::MAX });
        Some(seen.min(read.due))
    }

    /// Notes a new message, after [`Clock::see`].
    pub(super) fn created(&mut self, seq: Seq) {
        for step in &mut self.steps_back {
            step.first_since = step.first_since.min(seq);
        }
    }

    /// The latest time seen. Everything that was due once lies before it, whatever the clock says now.
    pub(super) fn latest(&self) -> Timestamp {
        self.latest
    }

    /// The time that applies to a message: `now`, or the time from which the clock went back if the message was created
    /// before. It does not apply to retries, because the row of a retry does not show whether it was scheduled before
    /// or after.
    pub(super) fn time_of(&self, live: &Live, now: Timestamp) -> Timestamp {
        let was_there = |step: &&StepBack| live.retried == 0 && live.id.seq < step.first_since;
        self.steps_back.iter().find(was_there).map_or(now, |step| step.from.max(now))
    }
}

impl Shard {
    /// Notes the time. Must be called before all queries about due messages.
    pub(super) fn see(&mut self, now: Timestamp) {
        if let Some(from) = self.clock.see(now, self.loaded) {
            self.load_not_before = self.load_not_before.min(now.plus_millis(FULL_PAUSE_MS));
            self.fall_due(from, now);
        }
    }

    /// Handles all timers up to `until`.
    pub(super) fn fall_due(&mut self, until: Timestamp, now: Timestamp) {
        // All timers first, so that none of them is evicted for another.
        let pop = || pop_due(&mut self.timers, until).or_else(|| pop_due(&mut self.queue_timers, until));
        let due: Vec<Seq> = std::iter::from_fn(pop).collect();
        for seq in due {
            let live = self.held.get(&seq).expect("what is timed is held").live;
            self.make_ready(live, None, now);
        }
        self.queues.wake(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_steps_back_are_remembered_than_the_bound_and_the_farthest_stays() {
        let mut clock = Clock::default();
        let read = DueKey { due: Timestamp(u64::MAX), seq: Seq::MAX };
        for step in 0..3 * STEPS_BACK_MAX as u64 {
            clock.see(Timestamp(1_000_000 - 1_000 * step), read);
            clock.see(Timestamp(999_500 - 1_000 * step), read);
            clock.created(Seq(step));
        }
        assert_eq!(clock.steps_back.len(), STEPS_BACK_MAX);
        assert_eq!(clock.steps_back[0].from, Timestamp(1_000_000));
        clock.see(Timestamp(2_000_000), read);
        assert!(clock.steps_back.is_empty(), "the clock has come back from all");
    }
}
