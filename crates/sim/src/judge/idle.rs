//! Nothing idles: whoever could start has started.
//!
//! Judged only where that is plain: nothing fails any more, clocks were right all the time, nothing is under way, and
//! nobody has done anything for a while.

use super::Judge;
use crate::store::Store;
use posthaste_engine::message::{Live, Turn};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeSet;

/// A full shard may take this long to ask for what is due.
const OVERDUE_MS: u64 = 3_000;
/// A key may count a start as this much later than it was, after a crash.
const KEY_SLACK_MS: u64 = 6_000;

impl Judge {
    /// The owner is about to look at its clock; nothing but that has happened since `idle_since_ms`.
    pub(crate) fn check_idling(&mut self, idle_since_ms: u64, now_ms: u64, now: Timestamp, store: &Store) {
        let clocks_were_right = self.offsets.iter().all(|(_, offset_ms)| *offset_ms == 0);
        let is_busy = self.open.iter().any(|open| open.epoch == self.epoch);
        if !clocks_were_right || is_busy || now_ms < idle_since_ms + OVERDUE_MS {
            return;
        }
        let is_overdue = |row: &&Live| row.due.plus_millis(OVERDUE_MS) <= now;
        let could_start = |row: &&Live| self.key_lets(row, now_ms, store) && queue_lets(row, store);
        let idle = store.live.values().filter(is_overdue).find(could_start).copied();
        if let Some(row) = idle {
            self.blame("whoever could start has started", Some(row.id), now_ms, || {
                format!("it is due since {}, and nothing is in its way at {now}", row.due)
            });
        }
    }

    /// Whether the key of a message surely lets it go.
    fn key_lets(&self, row: &Live, now_ms: u64, store: &Store) -> bool {
        let Some(key) = row.flow.map(|flow| (row.tenant, flow)) else { return true };
        let Some(flow) = store.flows.get(&key) else { return true };
        let quiet_ms = flow.period_ms + KEY_SLACK_MS;
        let last_start_ms = self.flow_books.get(&key).and_then(|book| book.last_start_ms).unwrap_or(0);
        let is_quiet = last_start_ms.max(self.granted_at_ms) + quiet_ms <= now_ms;
        !flow.paused && (flow.rate.is_none() || is_quiet)
    }
}

/// Whether it is the first of its queue, if it is in one: a full shard may fill one slot only.
fn queue_lets(row: &Live, store: &Store) -> bool {
    let Some(place) = row.place else { return true };
    let queue = store.queues.get(&(row.tenant, place.queue));
    let rows = store.live.values().filter(|other| other.tenant == row.tenant).filter_map(|other| other.place);
    let before = rows.filter(|other| other.queue == place.queue && other.turn < place.turn);
    let turns: BTreeSet<Turn> = before.map(|other| other.turn).collect();
    queue.is_some_and(|queue| !queue.paused && turns.is_empty())
}
