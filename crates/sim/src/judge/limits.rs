//! The order of queues and the limits of flow-control keys, by the judge's own books.
//!
//! A start was decided at some time of the batch that it is in, so the widest limits of that batch count.

use super::Judge;
use crate::node::CommitRequest;
use crate::store::Store;
use posthaste_engine::flow::Flow;
use posthaste_engine::message::{Live, Place, Turn};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeSet;

/// What the judge knows of a key.
#[derive(Debug, Default)]
pub(super) struct FlowBook {
    /// When attempts started since the present rate holds, and how far off the clock was.
    starts: Vec<(u64, i64)>,
    /// The last start, under whatever rate.
    pub last_start_ms: Option<u64>,
    /// The rate has changed in the last batch, whose starts may belong to either.
    forgets: bool,
    /// And what is under way no longer counts.
    lets_go: bool,
}

impl Judge {
    /// First come, first served; never more slots than the queue has; nothing new while it is paused.
    pub(super) fn check_turn(&mut self, live: &Live, clock: Timestamp, now_ms: u64, store: &Store) {
        let Some(place) = live.place.filter(|place| place.turn.seq == live.id.seq) else { return };
        let key = (live.tenant, place.queue);
        let mut in_force = self.recent_queues.get(&key).cloned().unwrap_or_default();
        in_force.extend(store.queues.get(&key).cloned());
        let parallelism = in_force.iter().map(|queue| queue.parallelism).max().unwrap_or(0);
        if !in_force.iter().any(|queue| !queue.paused) {
            self.blame("a paused queue starts nothing", Some(live.id), now_ms, || format!("{in_force:?}"));
        }
        // Whoever has a slot may be waiting for a retry or for a callback, so all those before it count; but who
        // comes later does not take it back.
        let is_first = self.has_slot.insert((live.tenant, place));
        if self.clock_went_back && was_delayed(place) {
            return;
        }
        let rows = store.live.values().filter(|row| row.tenant == live.tenant).filter_map(|row| row.place);
        let before = rows.filter(|other| other.queue == place.queue && other.turn < place.turn);
        let counts = |other: &Place| {
            let has_joined = if was_delayed(*other) { !self.clock_went_back && other.turn.at <= clock } else { true };
            has_joined && (is_first || self.has_slot.contains(&(live.tenant, *other)))
        };
        let turns: BTreeSet<Turn> = before.filter(counts).map(|other| other.turn).collect();
        if turns.len() >= parallelism as usize {
            self.blame("a queue starts no message before its turn", Some(live.id), now_ms, || {
                format!("{turns:?} are before it, and the queue has {parallelism} slots")
            });
        }
    }

    /// Never more at once, nor within a period, than the key allows; nothing while it is paused.
    pub(super) fn check_flow(&mut self, live: &Live, epoch: u64, now_ms: u64, store: &Store) {
        let Some(flow) = live.flow else { return };
        let key = (live.tenant, flow);
        let mut in_force: Vec<Flow> = self.recent_flows.get(&key).cloned().unwrap_or_default();
        in_force.extend(store.flows.get(&key).cloned());
        if !in_force.iter().any(|flow| !flow.paused) {
            self.blame("a paused key starts nothing", Some(live.id), now_ms, || format!("{in_force:?}"));
        }
        let is_own = |open: &super::Open| {
            open.epoch == epoch
                && open.counts_for_key
                && open.live.tenant == live.tenant
                && open.live.flow == Some(flow)
        };
        let under_way = self.open.iter().filter(|open| is_own(open)).count();
        let widest = in_force.iter().map(|flow| flow.parallelism.unwrap_or(u32::MAX)).max().unwrap_or(u32::MAX);
        let lets_go = self.flow_books.get(&key).is_some_and(|book| book.lets_go);
        if under_way >= widest as usize && !lets_go {
            self.blame("deliveries of a key in flight do not exceed its parallelism", Some(live.id), now_ms, || {
                format!("{under_way} are already in flight, {widest} are allowed")
            });
        }
        self.check_rate(live, &in_force, now_ms);
    }

    /// A start that a key has counted has sent nothing.
    pub(crate) fn not_sent(&mut self, live: &Live, now_ms: u64) {
        self.counts.steps_not_sent += 1;
        if let Some(flow) = live.flow {
            self.flow_books.entry((live.tenant, flow)).or_default().last_start_ms = Some(now_ms);
        }
    }

    /// In no stretch of time as long as the period do more than the rate start. Whoever set a clock ahead made the
    /// period shorter by as much; setting it back gains nothing.
    fn check_rate(&mut self, live: &Live, in_force: &[Flow], now_ms: u64) {
        let Some(flow) = live.flow else { return };
        let offset_ms = self.offsets.last().map_or(0, |(_, offset_ms)| *offset_ms);
        let book = self.flow_books.entry((live.tenant, flow)).or_default();
        book.starts.push((now_ms, offset_ms));
        book.last_start_ms = Some(now_ms);
        let Some(limits) = in_force.last().filter(|_| !book.forgets) else { return };
        let Some(rate) = limits.rate else { return };
        let Some(first) = book.starts.len().checked_sub(rate as usize + 1) else { return };
        let (first_ms, first_offset) = book.starts[first];
        let gained_ms = self.gained_ms(first_ms, first_offset);
        let seemed_ms = (now_ms - first_ms).saturating_add(gained_ms);
        if seemed_ms <= limits.period_ms {
            let period_ms = limits.period_ms;
            self.blame("no stretch of a period has more starts than its rate", Some(live.id), now_ms, || {
                format!("{} starts within {} ms; {rate} within {period_ms} ms are allowed", rate + 1, now_ms - first_ms)
            });
        }
    }

    /// How much the clock of owners was set ahead since then, at most: what it was set back before does not make up
    /// for it, since whatever then lay ahead was taken to happen at that moment.
    fn gained_ms(&self, since_ms: u64, offset_ms: i64) -> u64 {
        let (mut lowest, mut gained) = (offset_ms, 0);
        for (at_ms, offset_ms) in &self.offsets {
            if *at_ms >= since_ms {
                lowest = lowest.min(*offset_ms);
                gained = gained.max(offset_ms.saturating_sub(lowest));
            }
        }
        gained.unsigned_abs()
    }

    /// Keys whose rate has changed, or was reset, begin anew with the next batch.
    pub(super) fn forget_starts(&mut self) {
        for (key, book) in self.flow_books.iter_mut().filter(|(_, book)| book.forgets) {
            book.forgets = false;
            book.starts.clear();
            let is_own = |open: &&mut super::Open| (open.live.tenant, open.live.flow) == (key.0, Some(key.1));
            if std::mem::take(&mut book.lets_go) {
                self.open.iter_mut().filter(is_own).for_each(|open| open.counts_for_key = false);
            }
        }
    }

    /// Which keys will begin anew.
    pub(super) fn note_resets(&mut self, commit: &CommitRequest) {
        let rate = |flow: &Flow| (flow.rate, flow.period_ms);
        let has_changed = |flows: &[Flow]| flows.iter().any(|flow| rate(flow) != rate(&flows[0]));
        for (key, _) in self.recent_flows.iter().filter(|(_, flows)| has_changed(flows)) {
            self.flow_books.entry(*key).or_default().forgets = true;
        }
        for (tenant, flow, lets_go) in &commit.notes.resets {
            let book = self.flow_books.entry((*tenant, *flow)).or_default();
            book.forgets = true;
            book.lets_go |= lets_go;
        }
    }
}

pub(super) fn was_delayed(place: Place) -> bool {
    place.turn.at > place.turn.seq.time()
}
