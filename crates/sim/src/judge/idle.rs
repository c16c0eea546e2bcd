//! Nothing idles: whoever could start has started.
//!
//! Judged only where that is plain: nothing fails any more, the owner's clock is right and has been for a while,
//! nothing is under way, and nobody has done anything for a while. Whatever clocks did before is no excuse.

use super::Judge;
use super::limits::was_delayed;
use crate::env::CLOCK_CHECK_MS;
use crate::store::Store;
use posthaste_engine::message::{Live, Place};
use posthaste_wire::time::Timestamp;

/// A full shard may take this long to ask for what is due.
pub(crate) const OVERDUE_MS: u64 = 3_000;
/// How long a clock has been right when its owner must have seen that, and has had time to ask for what is due.
const SETTLED_MS: u64 = CLOCK_CHECK_MS + OVERDUE_MS;
/// A key may count a start as this much later than it was, after a crash.
const KEY_SLACK_MS: u64 = 6_000;

impl Judge {
    /// The owner is about to look at its clock; nothing but that has happened since `idle_since_ms`.
    pub(crate) fn check_idling(&mut self, idle_since_ms: u64, now_ms: u64, now: Timestamp, store: &Store) {
        let is_settled = self.clock_set_ms() + SETTLED_MS <= now_ms;
        let is_right = self.offsets.last().is_none_or(|(_, offset_ms)| *offset_ms == 0);
        let is_busy = self.open.iter().any(|open| open.epoch == self.epoch);
        if !is_settled || !is_right || is_busy || now_ms < idle_since_ms + OVERDUE_MS {
            return;
        }
        self.counts.idle_looks += 1;
        self.counts.idle_looks_after_jumps += u64::from(self.offsets.iter().any(|(_, offset_ms)| *offset_ms != 0));
        // Who joined a queue at once is due by every clock.
        let is_overdue = |row: &&Live| row.due.plus_millis(OVERDUE_MS) <= now || row.is_due(Timestamp(0));
        let could_start =
            |row: &&Live| self.key_lets(row, idle_since_ms, now_ms, now, store) && self.queue_lets(row, store);
        let idle = store.live.values().filter(is_overdue).find(could_start).copied();
        if let Some(row) = idle {
            self.blame("every unblocked message has started", Some(row.id), now_ms, || {
                format!("nothing is in its way at {now}: {row:?}")
            });
        }
    }

    /// Whether the key of a message surely lets it go.
    fn key_lets(&self, row: &Live, idle_since_ms: u64, now_ms: u64, now: Timestamp, store: &Store) -> bool {
        let Some(key) = row.flow.map(|flow| (row.tenant, flow)) else { return true };
        let Some(flow) = store.flows.get(&key) else { return true };
        let quiet_ms = flow.period_ms + KEY_SLACK_MS;
        let last_start_ms = self.flow_books.get(&key).and_then(|book| book.last_start_ms).unwrap_or(0);
        // A start that seems to lie ahead, because a clock was put back, counts from when the key is looked at: when
        // that is noticed, or when somebody of it is due, and in a queue has its turn.
        let has_turn_ms = if row.place.is_some() { now_ms - idle_since_ms } else { u64::MAX };
        let is_lasting = !self.clock_went_back || now.millis_since(row.due).min(has_turn_ms) >= quiet_ms;
        let since_ms = last_start_ms.max(self.granted_at_ms).max(self.clock_set_ms() + CLOCK_CHECK_MS);
        !flow.paused && (flow.rate.is_none() || (is_lasting && since_ms + quiet_ms <= now_ms))
    }

    /// When the clock of the present owner was last set, or another one became owner.
    fn clock_set_ms(&self) -> u64 {
        self.offsets.last().map_or(0, |(at_ms, _)| *at_ms)
    }

    /// Whether it is the first of its queue, if it is in one: a full shard may fill one slot only. Once a clock went
    /// back, who is published may stand before somebody who was delayed and has a slot. Callbacks are sent whatever their
    /// queue does.
    fn queue_lets(&self, row: &Live, store: &Store) -> bool {
        let Some(place) = row.place.filter(|place| place.turn.seq == row.id.seq) else { return true };
        let queue = store.queues.get(&(row.tenant, place.queue));
        let may_be_before = |other: Place| {
            let may_have_slot = self.clock_went_back && (was_delayed(other) || was_delayed(place));
            other.turn < place.turn || may_have_slot
        };
        let mut others = store.live.values().filter(|other| other.tenant == row.tenant).filter_map(|other| other.place);
        let is_other = |other: Place| other.queue == place.queue && other.turn != place.turn;
        queue.is_some_and(|queue| !queue.paused) && !others.any(|other| is_other(other) && may_be_before(other))
    }
}
