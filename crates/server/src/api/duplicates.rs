//! Which messages other publishes were duplicates of, counted in RAM: nothing is written for a publish that stores nothing.

use posthaste_engine::shard::Accepted;
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Messages whose duplicates are counted, twice: of so many that are met and so many before, those met the longest ago are
/// forgotten together.
const DUPLICATES_COUNTED_MAX: usize = 5_000;

/// How often a message was the answer to another publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) count: u64,
    /// Since the start, or since others have made this one forgotten.
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// The counts of all tenants: ids are nobody else's.
#[derive(Default)]
pub(crate) struct Duplicates {
    counts: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<MessageId, Count>,
    old: HashMap<MessageId, Count>,
}

impl Duplicates {
    /// What a publish was answered with.
    pub(crate) fn add(&self, accepted: &[Accepted], now: Timestamp) {
        if accepted.iter().any(|accepted| accepted.deduplicated) {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            accepted.iter().filter(|accepted| accepted.deduplicated).for_each(|accepted| counts.add(accepted.id, now));
        }
    }

    /// How many duplicates a message had, if there were any.
    pub(super) fn of(&self, id: MessageId) -> Option<Count> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.young.get(&id).or_else(|| counts.old.get(&id)).copied()
    }
}

impl Generations {
    fn add(&mut self, id: MessageId, now: Timestamp) {
        let before = self.young.get(&id).copied().or_else(|| self.old.remove(&id));
        let count = before.map_or(Count { count: 1, first: now, last: now }, |before| Count {
            count: before.count + 1,
            last: before.last.max(now),
            ..before
        });
        if self.young.len() >= DUPLICATES_COUNTED_MAX && !self.young.contains_key(&id) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_wire::id::Seq;

    fn answer(seq: usize, deduplicated: bool) -> Accepted {
        Accepted { id: MessageId { seq: Seq(seq as u64), tag: 0 }, deduplicated }
    }

    #[test]
    fn duplicates_are_counted_and_what_is_new_is_not() {
        let duplicates = Duplicates::default();
        duplicates.add(&[answer(1, true), answer(2, false)], Timestamp(10));
        duplicates.add(&[answer(1, true), answer(1, true)], Timestamp(20));
        let count = Count { count: 3, first: Timestamp(10), last: Timestamp(20) };
        assert_eq!(duplicates.of(answer(1, true).id), Some(count));
        assert_eq!(duplicates.of(answer(2, true).id), None);
    }

    #[test]
    fn those_that_are_met_again_do_not_lift_the_bound() {
        let duplicates = Duplicates::default();
        for round in 0..4 {
            for seq in 0..(round + 2) * DUPLICATES_COUNTED_MAX {
                duplicates.add(&[answer(seq, true)], Timestamp(1));
                let counts = duplicates.counts.lock().unwrap();
                assert!(counts.young.len() <= DUPLICATES_COUNTED_MAX && counts.old.len() <= DUPLICATES_COUNTED_MAX);
            }
            for seq in (0..(round + 2) * DUPLICATES_COUNTED_MAX).rev() {
                duplicates.add(&[answer(seq, true)], Timestamp(1));
                let counts = duplicates.counts.lock().unwrap();
                assert!(counts.young.len() <= DUPLICATES_COUNTED_MAX && counts.old.len() <= DUPLICATES_COUNTED_MAX);
            }
        }
    }

    #[test]
    fn no_more_are_counted_than_the_bound_and_those_in_use_stay() {
        let duplicates = Duplicates::default();
        for seq in 1..=4 * DUPLICATES_COUNTED_MAX {
            duplicates.add(&[answer(seq, true)], Timestamp(seq as u64));
            duplicates.add(&[answer(0, true)], Timestamp(seq as u64));
        }
        let counts = duplicates.counts.lock().unwrap();
        assert!(counts.young.len() <= DUPLICATES_COUNTED_MAX && counts.old.len() <= DUPLICATES_COUNTED_MAX);
        drop(counts);
        let all = 4 * DUPLICATES_COUNTED_MAX as u64;
        assert_eq!(
            duplicates.of(answer(0, true).id),
            Some(Count { count: all, first: Timestamp(1), last: Timestamp(all) })
        );
        assert_eq!(duplicates.of(answer(1, true).id), None, "it was met the longest ago");
        assert!(duplicates.of(answer(4 * DUPLICATES_COUNTED_MAX, true).id).is_some());
    }
}
