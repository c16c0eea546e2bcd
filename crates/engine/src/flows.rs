//! The current state of every flow-control key: how many deliveries are in flight, and when they started.
//!
//! A rate is exact: at most `rate` deliveries start within any `period`. Starts are remembered one by one or, for rates
//! over [`EXACT_STARTS_MAX`], in steps of a thousandth of the period, each counted at the end of its step. After a
//! crash a key knows its starts only if its period is [`STORED_PERIOD_MS_MIN`] or longer. A shorter period starts as if
//! it were used up.

mod outlook;

use crate::flow::{Flow, FlowEdit, FlowInfo, FlowPage};
use crate::limits::{FLOW_IDLE_MS, FLOW_PERIOD_MS_DEFAULT};
use crate::message::{FlowKey, FlowSpec};
use crate::planted::{self, Bug};
use crate::shard::of_tenant;
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// A key with its tenant, so that a hash collision does not mix up tenants.
pub(crate) type FlowId = (TenantId, FlowKey);

/// Up to this rate every start is remembered separately.
const EXACT_STARTS_MAX: u32 = 1_024;
/// Number of steps of a period in which starts are remembered for higher rates.
const PERIOD_STEPS: u64 = 1_024;
/// For periods of this length every start is stored, because waiting for a whole period after a crash would take too
/// long.
const STORED_PERIOD_MS_MIN: u64 = 60_000;

/// The stored time of a start is the time of its decision. The start happens after the commit, at most about this much
/// later, and certainly before a crash.
const COMMIT_MS_MAX: u64 = 5_000;

/// All keys.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    keys: BTreeMap<FlowId, Key>,
    per_tenant: HashMap<TenantId, usize>,
    /// Keys whose stored form is out of date.
    changed: Vec<FlowId>,
    /// Starts that are decided but not yet committed.
    decided: HashMap<FlowId, u32>,
}

#[derive(Debug)]
struct Key {
    flow: Flow,
    in_flight: u32,
    /// Messages in flight of any generation.
    under_way: BTreeSet<MessageId>,
    /// Incremented by a reset; earlier starts are no longer counted.
    generation: u32,
    starts: Starts,
    /// When it began to count.
    since: Timestamp,
    last_used: Timestamp,
    changed: bool,
}

/// Why a key lets nothing start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// Until a delivery in flight ends, or the key is resumed.
    ForNow,
    /// Until this time, if nothing else changes.
    Until(Timestamp),
}

impl Flows {
    /// Restores a key from the store after a restart.
    pub(crate) fn restore(&mut self, flow: Flow, now: Timestamp) {
        let id = (flow.tenant, FlowKey::of(flow.tenant, &flow.key));
        let mut key = Key::new(flow, now);
        match key.flow.rate {
            Some(_) if key.is_stored() => {
                let starts = std::mem::take(&mut key.flow.starts).into_iter();
                let latest = starts.map(|(decided, count)| (happened_by(decided, now), count));
                key.starts = Starts::from_stored(latest.collect());
            }
            Some(_) if planted::has(Bug::RateForgottenAtRestart) => {}
            Some(rate) => key.starts = Starts::from_stored(vec![(now, rate)]),
            None => {}
        }
        if self.keys.insert(id, key).is_none() {
            *self.per_tenant.entry(id.0).or_default() += 1;
        }
    }

    /// The number of keys of a tenant.
    pub(crate) fn count(&self, tenant: TenantId) -> usize {
        self.per_tenant.get(&tenant).copied().unwrap_or(0)
    }

    pub(crate) fn contains(&self, id: FlowId) -> bool {
        self.keys.contains_key(&id)
    }

    /// Whether the key is paused.
    pub(crate) fn is_paused(&self, id: FlowId) -> bool {
        self.keys.get(&id).is_some_and(|key| key.flow.paused)
    }

    /// The number of paused keys of a tenant among the first `looks`.
    pub(crate) fn paused(&self, tenant: TenantId, looks: usize) -> u32 {
        of_tenant(&self.keys, tenant, FlowKey(0)).take(looks).filter(|(_, key)| key.flow.paused).count() as u32
    }

    /// Applies the limits of a message. They replace those of the key unless they are pinned.
    pub(crate) fn update(&mut self, id: FlowId, spec: &FlowSpec, now: Timestamp) {
        let key = self.entry(id, &spec.key, now);
        key.last_used = now;
        if spec.parallelism.is_none() && spec.rate.is_none() {
            return;
        }
        let before = (key.flow.parallelism, key.flow.rate, key.flow.period_ms);
        if !key.flow.pinned_parallelism {
            key.flow.parallelism = spec.parallelism;
        }
        if !key.flow.pinned_rate {
            key.flow.rate = spec.rate;
            key.flow.period_ms = spec.period_ms;
        }
        if before != (key.flow.parallelism, key.flow.rate, key.flow.period_ms) {
            self.mark(id);
        }
    }

    /// Applies an operator's change. Returns false if the key is unknown and the change does not create it.
    pub(crate) fn edit(&mut self, id: FlowId, name: &str, edit: FlowEdit, now: Timestamp) -> bool {
        let makes_it = matches!(edit, FlowEdit::Pin { .. } | FlowEdit::Pause);
        if !makes_it && !self.contains(id) {
            return false;
        }
        let key = self.entry(id, name, now);
        key.last_used = now;
        match edit {
            FlowEdit::Pin { parallelism, rate } => {
                if parallelism.is_some() {
                    key.flow.parallelism = parallelism;
                    key.flow.pinned_parallelism = true;
                }
                if let Some((rate, period_ms)) = rate {
                    (key.flow.rate, key.flow.period_ms) = (Some(rate), period_ms);
                    key.flow.pinned_rate = true;
                    key.reset_rate(now);
                }
            }
            FlowEdit::Unpin { parallelism, rate } => {
                key.flow.pinned_parallelism &= !parallelism;
                key.flow.pinned_rate &= !rate;
            }
            FlowEdit::Pause => key.flow.paused = true,
            FlowEdit::Resume => key.flow.paused = false,
            FlowEdit::ResetRate => key.reset_rate(now),
            FlowEdit::Reset => {
                key.reset_rate(now);
                key.in_flight = 0;
                key.generation += 1;
            }
        }
        self.mark(id);
        true
    }

    /// Whether a delivery of this key may start now.
    pub(crate) fn admits(&mut self, id: FlowId, now: Timestamp) -> Result<(), Blocked> {
        // A key is forgotten only when it has no messages; without it there is no limit.
        let Some(key) = self.keys.get_mut(&id) else { return Ok(()) };
        if key.flow.paused
            || key
                .flow
                .parallelism
                .is_some_and(|max| key.in_flight >= max + u32::from(planted::has(Bug::ParallelismOneTooMany)))
        {
            return Err(Blocked::ForNow);
        }
        let Some(rate) = key.flow.rate else { return Ok(()) };
        let rate = rate + u32::from(planted::has(Bug::RateOneTooMany));
        key.starts.forget(now, key.flow.period_ms, key.step_ms());
        match key.starts.opens_at(rate, key.flow.period_ms) {
            Some(time) if time > now => Err(Blocked::Until(time)),
            _ => Ok(()),
        }
    }

    /// Counts the start of a delivery. The result must be passed to [`Flows::finish`].
    pub(crate) fn start(&mut self, id: FlowId, now: Timestamp) -> u32 {
        let Some(key) = self.keys.get_mut(&id) else { return 0 };
        key.in_flight += 1;
        key.last_used = now;
        let generation = key.generation;
        if key.flow.rate.is_some() {
            let step_ms = key.step_ms();
            key.starts.push(now, step_ms);
            *self.decided.entry(id).or_default() += 1;
            if key.is_stored() {
                self.mark(id);
            }
        }
        generation
    }

    /// Records that the decided starts were committed and happen now: their period begins now.
    pub(crate) fn committed(&mut self, now: Timestamp) {
        for (id, count) in self.decided.drain() {
            if let Some(key) = self.keys.get_mut(&id) {
                let step_ms = key.step_ms();
                key.starts.put_off(count, now, step_ms);
            }
        }
    }

    /// Records that a delivery of this message is in flight, or has ended.
    pub(crate) fn note_under_way(&mut self, id: FlowId, message: MessageId, is_under_way: bool) {
        if let Some(key) = self.keys.get_mut(&id) {
            match is_under_way {
                true => key.under_way.insert(message),
                false => key.under_way.remove(&message),
            };
        }
    }

    /// Counts the end of a delivery.
    pub(crate) fn finish(&mut self, id: FlowId, generation: u32, now: Timestamp) {
        let Some(key) = self.keys.get_mut(&id) else { return };
        key.last_used = now;
        if key.generation == generation {
            key.in_flight = key.in_flight.saturating_sub(1);
        }
    }

    /// The keys whose stored form has changed, in their current form.
    pub(crate) fn take_changed(&mut self) -> Vec<Flow> {
        let mut flows = Vec::new();
        for id in std::mem::take(&mut self.changed) {
            flows.extend(self.keys.get_mut(&id).map(Key::stored));
        }
        flows
    }

    /// One key as the API shows it.
    pub(crate) fn info(&mut self, id: FlowId, now: Timestamp) -> Option<FlowInfo> {
        self.keys.get_mut(&id).map(|key| key.info(now))
    }

    /// All keys of a tenant, by name.
    pub(crate) fn infos(&mut self, tenant: TenantId, page: &FlowPage, now: Timestamp) -> Vec<FlowInfo> {
        let is_meant = |key: &str| key.contains(&page.search) && page.after.as_deref().is_none_or(|after| key > after);
        let own = of_tenant(&self.keys, tenant, FlowKey(0)).map(|(id, key)| (key.flow.key.as_str(), *id));
        let mut meant: Vec<(&str, FlowId)> = own.filter(|(key, _)| is_meant(key)).collect();
        // Finds the first keys without sorting all.
        if page.max < meant.len() {
            meant.select_nth_unstable(page.max);
            meant.truncate(page.max);
        }
        meant.sort_unstable();
        let ids: Vec<FlowId> = meant.into_iter().map(|(_, id)| id).collect();
        ids.into_iter().filter_map(|id| Some(self.keys.get_mut(&id)?.info(now))).collect()
    }

    /// Keys that were not used for a long time, at most `max`. They may still have messages that are not due.
    pub(crate) fn idle(&self, now: Timestamp, max: usize) -> Vec<FlowId> {
        let is_idle = |key: &Key| {
            let fixed = key.flow.paused || key.flow.pinned_parallelism || key.flow.pinned_rate;
            let idle_ms = FLOW_IDLE_MS.max(key.flow.period_ms);
            !fixed && key.in_flight == 0 && now.millis_since(key.last_used) >= idle_ms
        };
        let mut idle: Vec<FlowId> = self.keys.iter().filter(|(_, key)| is_idle(key)).map(|(id, _)| *id).collect();
        // Sorted, so that a repeated run gives the same order.
        idle.sort_unstable();
        idle.truncate(max);
        idle
    }

    /// Forgets a key and returns its name.
    pub(crate) fn forget(&mut self, id: FlowId) -> Option<String> {
        let key = self.keys.remove(&id)?;
        if let Some(count) = self.per_tenant.get_mut(&id.0) {
            *count -= 1;
        }
        Some(key.flow.key)
    }

    /// Marks a key as used, so that it is not examined again for a while.
    pub(crate) fn touch(&mut self, id: FlowId, now: Timestamp) {
        if let Some(key) = self.keys.get_mut(&id) {
            key.last_used = now;
        }
    }

    fn entry(&mut self, id: FlowId, name: &str, now: Timestamp) -> &mut Key {
        self.keys.entry(id).or_insert_with(|| {
            *self.per_tenant.entry(id.0).or_default() += 1;
            self.changed.push(id);
            let flow = Flow {
                tenant: id.0,
                key: name.to_owned(),
                parallelism: None,
                rate: None,
                period_ms: FLOW_PERIOD_MS_DEFAULT,
                pinned_parallelism: false,
                pinned_rate: false,
                paused: false,
                starts: Vec::new(),
            };
            Key { changed: true, ..Key::new(flow, now) }
        })
    }

    fn mark(&mut self, id: FlowId) {
        if let Some(key) = self.keys.get_mut(&id)
            && !key.changed
        {
            key.changed = true;
            self.changed.push(id);
        }
    }
}

impl Key {
    fn new(flow: Flow, now: Timestamp) -> Key {
        let starts = Starts::default();
        Key {
            flow,
            in_flight: 0,
            under_way: BTreeSet::new(),
            generation: 0,
            starts,
            since: now,
            last_used: now,
            changed: false,
        }
    }

    fn is_stored(&self) -> bool {
        self.flow.rate.is_some() && self.flow.period_ms >= STORED_PERIOD_MS_MIN
    }

    fn step_ms(&self) -> u64 {
        if self.flow.rate.is_some_and(|rate| rate > EXACT_STARTS_MAX) {
            self.flow.period_ms.div_ceil(PERIOD_STEPS)
        } else {
            1
        }
    }

    fn reset_rate(&mut self, now: Timestamp) {
        self.starts = Starts::default();
        self.since = now;
    }

    fn stored(&mut self) -> Flow {
        self.changed = false;
        let starts = if self.is_stored() { self.starts.list.iter().copied().collect() } else { Vec::new() };
        Flow { starts, ..self.flow.clone() }
    }

    fn info(&mut self, now: Timestamp) -> FlowInfo {
        self.starts.forget(now, self.flow.period_ms, self.step_ms());
        let first = self.starts.list.front().map(|(time, _)| *time);
        FlowInfo {
            flow: self.flow.clone(),
            in_flight: self.in_flight,
            under_way: self.under_way.iter().copied().collect(),
            rate_count: self.starts.count,
            period_start: first.unwrap_or(self.since),
        }
    }
}

/// When deliveries started within the last period.
#[derive(Debug, Default)]
struct Starts {
    /// Time and number, oldest first.
    list: VecDeque<(Timestamp, u32)>,
    /// Sum of the numbers.
    count: u32,
}

impl Starts {
    fn from_stored(list: Vec<(Timestamp, u32)>) -> Starts {
        Starts { count: list.iter().map(|(_, count)| count).sum(), list: list.into() }
    }

    fn push(&mut self, now: Timestamp, step_ms: u64) {
        let time = end_of_step(now, step_ms);
        self.count += 1;
        match self.list.back_mut() {
            Some((last, count)) if *last >= time => *count += 1,
            _ => self.list.push_back((time, 1)),
        }
    }

    /// Moves the last starts to a later time, when they actually happened.
    fn put_off(&mut self, mut starts: u32, now: Timestamp, step_ms: u64) {
        let mut moved = 0;
        while let Some((_, count)) = self.list.back_mut().filter(|(time, _)| starts > 0 && *time < now) {
            let taken = starts.min(*count);
            (starts, moved) = (starts - taken, moved + taken);
            *count -= taken;
            if *count == 0 {
                self.list.pop_back();
            }
        }
        self.count -= moved;
        for _ in 0..moved {
            self.push(now, step_ms);
        }
    }

    /// Drops starts that no period ending now, or later, can contain.
    fn forget(&mut self, now: Timestamp, period_ms: u64, step_ms: u64) {
        let latest = end_of_step(now, step_ms);
        // The clock went back: starts that seem to lie in the future happened by now.
        for (time, _) in self.list.iter_mut().rev().take_while(|(time, _)| *time > latest) {
            *time = latest;
        }
        while let Some((time, count)) = self.list.front().copied().filter(|(time, _)| is_over(*time, period_ms, now)) {
            debug_assert!(time <= now);
            self.list.pop_front();
            self.count -= count;
        }
    }

    /// When the next start is within the rate; `None` means now.
    fn opens_at(&self, rate: u32, period_ms: u64) -> Option<Timestamp> {
        let mut excess = (self.count + 1).checked_sub(rate).filter(|excess| *excess > 0)?;
        for (time, count) in &self.list {
            if *count >= excess {
                return Some(time.plus_millis(period_ms + 1));
            }
            excess -= count;
        }
        None
    }
}

/// The latest time at which a start that was decided before a crash can have happened.
fn happened_by(decided: Timestamp, now: Timestamp) -> Timestamp {
    let commit_ms = if planted::has(Bug::RateCountsFromDecision) { 0 } else { COMMIT_MS_MAX };
    decided.plus_millis(commit_ms).min(decided.max(now))
}

/// Times are cut to milliseconds, so the distance of two starts must exceed the period by one.
fn is_over(time: Timestamp, period_ms: u64, now: Timestamp) -> bool {
    now > time.plus_millis(period_ms)
}

fn end_of_step(now: Timestamp, step_ms: u64) -> Timestamp {
    Timestamp(now.0.div_ceil(step_ms) * step_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: Timestamp = Timestamp(1_780_315_200_000);
    const ID: FlowId = (TenantId(1), FlowKey(7));

    fn spec(parallelism: Option<u32>, rate: Option<u32>, period_ms: u64) -> FlowSpec {
        FlowSpec { key: "k".into(), parallelism, rate, period_ms }
    }

    /// Starts as many deliveries as allowed, and returns their number.
    fn start_all(flows: &mut Flows, now: Timestamp, max: u32) -> u32 {
        (0..max).take_while(|_| flows.admits(ID, now).map(|()| flows.start(ID, now)).is_ok()).count() as u32
    }

    #[test]
    fn the_last_message_decides_unless_its_part_is_pinned() {
        let mut flows = Flows::default();
        flows.update(ID, &spec(Some(2), Some(10), 5_000), T);
        flows.edit(ID, "k", FlowEdit::Pin { parallelism: Some(3), rate: None }, T);
        flows.update(ID, &spec(Some(9), None, 1_000), T);
        let flow = flows.info(ID, T).unwrap().flow;
        assert_eq!((flow.parallelism, flow.rate, flow.period_ms), (Some(3), None, 1_000));
        flows.edit(ID, "k", FlowEdit::Unpin { parallelism: true, rate: false }, T);
        assert_eq!(flows.info(ID, T).unwrap().flow.parallelism, Some(3), "stays until a message brings another");
        flows.update(ID, &spec(Some(9), None, 1_000), T);
        assert_eq!(flows.info(ID, T).unwrap().flow.parallelism, Some(9));
        flows.update(ID, &spec(None, None, 1_000), T);
        assert_eq!(flows.info(ID, T).unwrap().flow.parallelism, Some(9), "a key without limits changes nothing");
        flows.edit(ID, "k", FlowEdit::Pin { parallelism: None, rate: Some((7, 2_000)) }, T);
        flows.update(ID, &spec(None, Some(8), 1_000), T);
        assert_eq!(flows.info(ID, T).unwrap().flow.rate, Some(7));
        flows.edit(ID, "k", FlowEdit::Unpin { parallelism: false, rate: true }, T);
        flows.update(ID, &spec(None, Some(8), 1_000), T);
        assert_eq!(flows.info(ID, T).unwrap().flow.rate, Some(8));
    }

    #[test]
    fn parallelism_counts_what_is_under_way() {
        let mut flows = Flows::default();
        flows.update(ID, &spec(Some(2), None, 1_000), T);
        assert_eq!(start_all(&mut flows, T, 9), 2);
        assert_eq!(flows.admits(ID, T), Err(Blocked::ForNow));
        flows.finish(ID, 0, T);
        assert_eq!(start_all(&mut flows, T, 9), 1);
        flows.edit(ID, "k", FlowEdit::Reset, T);
        assert_eq!(start_all(&mut flows, T, 9), 2, "what is under way no longer counts");
        flows.finish(ID, 0, T);
        assert_eq!(flows.admits(ID, T), Err(Blocked::ForNow), "nor does its end");
    }

    #[test]
    fn a_pause_blocks_and_the_window_goes_by() {
        let mut flows = Flows::default();
        flows.update(ID, &spec(None, Some(1), 1_000), T);
        assert_eq!(start_all(&mut flows, T, 9), 1);
        flows.edit(ID, "k", FlowEdit::Pause, T);
        let later = T.plus_millis(2_000);
        assert_eq!(flows.admits(ID, later), Err(Blocked::ForNow));
        flows.edit(ID, "k", FlowEdit::Resume, later);
        assert_eq!(flows.admits(ID, later), Ok(()));
    }

    #[test]
    fn a_reset_of_the_rate_releases() {
        let mut flows = Flows::default();
        flows.update(ID, &spec(None, Some(3), 60_000), T);
        assert_eq!(start_all(&mut flows, T, 9), 3);
        assert_eq!(flows.info(ID, T).unwrap().rate_count, 3);
        assert_eq!(flows.admits(ID, T), Err(Blocked::Until(T.plus_millis(60_001))));
        flows.edit(ID, "k", FlowEdit::ResetRate, T);
        assert_eq!(flows.info(ID, T).unwrap().rate_count, 0);
        assert_eq!(start_all(&mut flows, T, 9), 3);
    }

    #[test]
    fn a_restart_forgets_no_start() {
        for period_ms in [1_000, 60_000, 86_400_000] {
            let mut flows = Flows::default();
            flows.update(ID, &spec(None, Some(5), period_ms), T);
            assert_eq!(start_all(&mut flows, T, 2), 2);
            let stored = flows.take_changed().pop().unwrap();
            let mut restarted = Flows::default();
            restarted.restore(stored, T.plus_millis(10));
            let id = (TenantId(1), FlowKey::of(TenantId(1), "k"));
            let admitted = (0..9).take_while(|_| {
                restarted.admits(id, T.plus_millis(20)).map(|()| restarted.start(id, T.plus_millis(20))).is_ok()
            });
            let expected = if period_ms < STORED_PERIOD_MS_MIN { 0 } else { 3 };
            assert_eq!(admitted.count(), expected, "{period_ms}");
        }
    }

    #[test]
    fn after_a_crash_a_start_counts_from_when_it_may_have_happened() {
        let id = (TenantId(1), FlowKey::of(TenantId(1), "k"));
        for (restarted_after_ms, opens_after_ms) in [(10, 60_011), (4_000, 64_001), (30_000, 65_001)] {
            let mut flows = Flows::default();
            flows.update(ID, &spec(None, Some(1), 60_000), T);
            assert_eq!(start_all(&mut flows, T, 9), 1);
            let mut restarted = Flows::default();
            restarted.restore(flows.take_changed().pop().unwrap(), T.plus_millis(restarted_after_ms));
            let expected = Err(Blocked::Until(T.plus_millis(opens_after_ms)));
            assert_eq!(restarted.admits(id, T.plus_millis(restarted_after_ms)), expected, "{restarted_after_ms}");
        }
    }

    #[test]
    fn a_period_begins_when_the_start_happens() {
        let mut flows = Flows::default();
        flows.update(ID, &spec(None, Some(5), 1_000), T);
        assert_eq!(start_all(&mut flows, T, 2), 2);
        flows.committed(T);
        let (decided, happened) = (T.plus_millis(10), T.plus_millis(60));
        assert_eq!(start_all(&mut flows, decided, 9), 3);
        flows.committed(happened);
        assert_eq!(flows.info(ID, happened).unwrap().rate_count, 5);
        assert_eq!(flows.admits(ID, happened), Err(Blocked::Until(T.plus_millis(1_001))));
        let later = T.plus_millis(1_001);
        assert_eq!(start_all(&mut flows, later, 9), 2, "those of the first batch are over");
        assert_eq!(flows.admits(ID, later), Err(Blocked::Until(happened.plus_millis(1_001))));
    }

    #[test]
    fn unused_keys_are_forgotten_but_not_fixed_ones() {
        let mut flows = Flows::default();
        flows.update(ID, &spec(Some(1), None, 1_000), T);
        let later = T.plus_millis(FLOW_IDLE_MS);
        assert_eq!(flows.idle(T.plus_millis(FLOW_IDLE_MS - 1), 9), []);
        assert_eq!(flows.idle(later, 9), [ID]);
        flows.edit(ID, "k", FlowEdit::Pause, T);
        assert_eq!(flows.idle(later, 9), []);
        assert_eq!((flows.count(ID.0), flows.forget(ID), flows.count(ID.0)), (1, Some("k".into()), 0));
    }

    proptest! {
        /// Whatever jumps the clock makes and whenever deliveries start, no period contains more starts than the rate
        /// allows.
        #[test]
        fn no_stretch_of_a_period_has_more_starts_than_the_rate(
            rate in prop_oneof![1u32..20, 1_020u32..1_030, 5_000u32..5_010],
            period_ms in prop_oneof![1_000u64..3_000, 60_000u64..70_000],
            moves in proptest::collection::vec((0u64..4_000, 1u32..3_000), 1..40),
        ) {
            let mut flows = Flows::default();
            flows.update(ID, &spec(None, Some(rate), period_ms), T);
            let (mut now, mut starts) = (T, Vec::new());
            for (wait, wanted) in moves {
                now = now.plus_millis(wait);
                let started = start_all(&mut flows, now, wanted);
                starts.push((now, started));
                if started < wanted {
                    let Err(Blocked::Until(opens)) = flows.admits(ID, now) else { panic!("must be blocked by the rate") };
                    prop_assert!(opens > now && opens.millis_since(now) <= period_ms + period_ms / 1_000 + 2);
                    now = opens;
                    prop_assert!(flows.admits(ID, now).is_ok());
                }
            }
            for (index, (first, _)) in starts.iter().enumerate() {
                let within = starts[index..].iter().take_while(|(time, _)| time.millis_since(*first) <= period_ms);
                let sum: u32 = within.map(|(_, count)| count).sum();
                prop_assert!(sum <= rate, "{sum} starts within {period_ms} ms, {rate} allowed");
            }
        }

        /// A clock that goes back blocks a key for at most one period.
        #[test]
        fn a_clock_that_goes_back_blocks_for_one_period_at_most(back in 1u64..1_000_000_000) {
            let mut flows = Flows::default();
            flows.update(ID, &spec(None, Some(2), 5_000), T);
            prop_assert_eq!(start_all(&mut flows, T, 9), 2);
            let now = T.minus_millis(back);
            prop_assert_eq!(flows.admits(ID, now), Err(Blocked::Until(now.plus_millis(5_001))));
        }
    }
}
