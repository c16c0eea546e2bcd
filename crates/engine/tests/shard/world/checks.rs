//! The invariants of the world: caps, turns in queues, limits of keys, and that nothing idles, is stuck or ends twice.

use super::{CAPS, OVERDUE_MS, World};
use posthaste_engine::event::State;
use posthaste_engine::message::{FlowKey, Live, Place, QueueKey, Turn};
use posthaste_wire::id::{Seq, TenantId};
use std::collections::{BTreeSet, HashMap};

impl World {
    /// First come, first served. A queue never exceeds its slots, and starts nothing new while it is paused.
    pub(super) fn check_turn(&mut self, live: &Live, place: Place) {
        let queue = self.queues.values().find(|queue| QueueKey::of(queue.tenant, &queue.name) == place.queue);
        let queue = queue.expect("a queue with messages exists");
        let is_own = place.turn.seq == live.id.seq;
        assert!(!(queue.paused && is_own), "started although its queue is paused");
        if is_own {
            // A message with a slot may be waiting for a retry or a callback, so all messages before it count. A later
            // message does not take the slot back, whatever the clock said.
            let is_first = self.has_slot.insert((live.tenant, place));
            let before = self.live.values().filter(|row| row.tenant == live.tenant).filter_map(|row| row.place);
            let before = before.filter(|other| other.queue == place.queue && other.turn < place.turn);
            // After the clock went back, a delayed message may have its slot before another joins with an earlier time.
            // While the clock lags behind positions, the same is possible for a message whose delay was shorter than
            // the lag.
            let was_delayed = place.turn.at > place.turn.seq.time();
            let clock_lagged = was_delayed && self.messages[&live.id.seq].not_before < place.turn.at;
            let counts = |other: &Place| {
                other.turn.at <= self.now
                    && (is_first || self.has_slot.contains(&(live.tenant, *other)))
                    && !(clock_lagged && live.id.seq < other.turn.seq)
                    && !(was_delayed
                        && self.went_back_at.iter().any(|seq| live.id.seq <= *seq && *seq < other.turn.seq))
            };
            let turns: BTreeSet<Turn> = before.filter(counts).map(|other| other.turn).collect();
            assert!(turns.len() < queue.parallelism as usize, "{live:?} overtook one of {turns:?}");
        }
    }

    /// Never more at once or within a period than the key allows, and nothing while it is paused.
    pub(super) fn check_flow(&mut self, live: &Live, flow: FlowKey) {
        let book = self.flows.get_mut(&(live.tenant, flow)).expect("a key with messages exists");
        let limits = book.flow.as_ref().expect("a key with messages is stored");
        assert!(!limits.paused, "started although its key is paused");
        book.counted.insert(live.id.seq);
        book.starts.push(self.real_ms);
        if let Some(max) = limits.parallelism {
            let extra = book.counted.len().saturating_sub(max as usize);
            assert!(extra == 0, "{} under way, {max} allowed", book.counted.len());
        }
        if let Some(rate) = limits.rate {
            let (now, period_ms) = (self.real_ms, limits.period_ms);
            let within = book.starts.iter().filter(|start| now - **start <= period_ms).count();
            assert!(within <= rate as usize, "{within} starts within {period_ms} ms, {rate} allowed");
        }
    }

    /// A destination takes a second slot of its tenant only while it leaves at least as many as it has.
    pub(super) fn check_share(&self, live: &Live) {
        let of_tenant = || self.in_flight.iter().filter(|other| other.tenant == live.tenant);
        let own = of_tenant().filter(|other| other.origin == live.origin).count();
        let left = CAPS.tenant_in_flight_max as usize - of_tenant().count();
        assert!(own == 0 || own < left, "{own} under way to the destination of {live:?}, {left} places left");
    }

    pub(super) fn check_caps(&self) {
        let count = |same: &dyn Fn(&Live) -> bool| self.in_flight.iter().filter(|live| same(live)).count() as u32;
        assert!(count(&|_| true) <= CAPS.in_flight_max);
        for live in &self.in_flight {
            assert!(count(&|other| other.tenant == live.tenant) <= CAPS.tenant_in_flight_max);
            assert!(count(&|other| other.origin == live.origin) <= CAPS.origin_in_flight_max);
        }
        let bytes = |same: &dyn Fn(&Live) -> bool| -> u64 {
            self.in_flight.iter().filter(|live| same(live)).map(|live| u64::from(live.body_bytes)).sum()
        };
        let is_alone = |tenant| count(&|live| live.tenant == tenant) == 1;
        let tenants = [TenantId(0), TenantId(1)];
        assert!(bytes(&|_| true) <= CAPS.in_flight_bytes_max || tenants.into_iter().any(is_alone));
        for tenant in tenants {
            let own = bytes(&|live| live.tenant == tenant);
            assert!(own <= CAPS.tenant_in_flight_bytes_max || is_alone(tenant));
            assert_eq!(self.shard.tenant_in_flight(tenant), count(&|live| live.tenant == tenant));
        }
        for live in &self.in_flight {
            let same = |other: &Live| other.tenant == live.tenant && other.origin == live.origin;
            assert!(bytes(&same) <= CAPS.origin_in_flight_bytes_max || count(&same) == 1);
        }
        assert_eq!(self.shard.in_flight() as usize, self.in_flight.len());
        // A lane may hold the messages that could start at once, and a queue those in its slots and one more, whatever
        // the rest holds.
        let lanes = 14 * CAPS.origin_in_flight_max as usize;
        let queued: usize = self.live.values().filter(|row| row.place.is_some()).count();
        assert!(self.shard.held() <= CAPS.held_max + lanes + queued.min(40) + self.in_flight.len());
    }

    /// Nothing idles: if a tenant has nothing in flight, all its messages that could start have started. It is checked
    /// only in clear cases: the message is overdue, and no rate prevents it. Once the clock went back, a message whose
    /// delay was over may be delayed again, and later messages in its queue wait for it even if slots are free. A
    /// message that is published then may also precede a delayed message that has a slot.
    pub(crate) fn check_no_idling(&self) {
        if self.in_flight.len() as u32 >= CAPS.in_flight_max {
            return;
        }
        let queue_lets = |row: &Live, place: Place| match self.went_back_at.is_empty() {
            true => self.queue_lets(row, place),
            false => self.queue_lets(row, place) && (place.turn.seq != row.id.seq || self.is_first(row, place)),
        };
        let idle = |row: &&Live| self.in_flight.iter().all(|live| live.tenant != row.tenant);
        for row in self.live.values().filter(idle).filter(|row| self.is_overdue(row)) {
            let may_start = self.key_lets(row) && row.place.is_none_or(|place| queue_lets(row, place));
            assert!(!may_start, "{row:?} could start; next wake {:?} at {:?}", self.shard.next_wake(), self.now);
        }
    }

    /// Whether it is due by the clock, or was due before the clock went back. In a queue, a retry that was due cannot
    /// be distinguished from one that was scheduled later.
    fn is_overdue(&self, row: &Live) -> bool {
        let since = self.was_due.get(&row.id.seq).and_then(|(_, since)| *since).filter(|_| self.was_due(row));
        let is_told = row.place.is_none() || row.retried == 0;
        let is_known = is_told && since.is_some_and(|since| since + OVERDUE_MS <= self.real_ms);
        row.due.plus_millis(OVERDUE_MS) <= self.now || is_known
    }

    fn key_lets(&self, row: &Live) -> bool {
        let book = row.flow.and_then(|flow| self.flows.get(&(row.tenant, flow)));
        book.and_then(|book| book.flow.as_ref()).is_none_or(|flow| !flow.paused && flow.rate.is_none())
    }

    /// Whether it is among the first of its queue. Callbacks are sent whatever the state of their queue is.
    pub(crate) fn queue_lets(&self, row: &Live, place: Place) -> bool {
        if place.turn.seq != row.id.seq {
            return true;
        }
        let queue = self.queues.values().find(|queue| QueueKey::of(queue.tenant, &queue.name) == place.queue);
        queue.is_some_and(|queue| !queue.paused && self.turns_before(row, place) < queue.parallelism as usize)
    }

    /// Whether no message of its queue precedes it or could have taken a slot before it came.
    fn is_first(&self, row: &Live, place: Place) -> bool {
        let was_delayed = |place: Place| place.turn.at > place.turn.seq.time();
        let mut others = self.live.values().filter(|other| other.tenant == row.tenant).filter_map(|other| other.place);
        let is_other = |other: Place| other.queue == place.queue && other.turn != place.turn;
        let may_be_before = |other: Place| other.turn < place.turn || was_delayed(other) || was_delayed(place);
        !others.any(|other| is_other(other) && may_be_before(other))
    }

    fn turns_before(&self, row: &Live, place: Place) -> usize {
        let rows = self.live.values().filter(|other| other.tenant == row.tenant).filter_map(|other| other.place);
        let before = rows.filter(|other| other.queue == place.queue && other.turn < place.turn);
        before.map(|other| other.turn).collect::<BTreeSet<Turn>>().len()
    }

    pub(crate) fn check_history(&self) {
        let mut ends: HashMap<Seq, Vec<State>> = HashMap::new();
        for event in &self.events {
            if event.state.is_final() {
                ends.entry(event.id.seq).or_default().push(event.state);
            }
        }
        assert_eq!(self.callbacks, self.callbacks_expected, "every attempt has its callbacks");
        assert_eq!(ends.len(), self.published + self.callbacks, "every message ends");
        for (seq, states) in ends {
            assert_eq!(states.len(), 1, "a message ends once: {states:?}");
            assert_eq!(states[0] == State::Failed, self.buried.contains(&seq), "failed messages are in the DLQ");
        }
        let mut last: HashMap<Seq, State> = HashMap::new();
        for event in &self.events {
            let before = last.insert(event.id.seq, event.state);
            assert!(may_follow(before, event.state), "{:?}: {:?} after {before:?}", event.id, event.state);
        }
        assert!(self.queues.values().all(|queue| !queue.deleted), "deleted queues are gone");
    }
}

/// The sequences of the contract. A crash may leave an attempt without an end.
fn may_follow(before: Option<State>, state: State) -> bool {
    use State::{Active, CancelRequested, Canceled, Created, Delivered, Error, Failed, Retry};
    match state {
        Created => before.is_none(),
        Active => matches!(before, Some(Created | Retry | Active)),
        Delivered => before == Some(Active),
        Error => matches!(before, Some(Active | CancelRequested)),
        Retry | Failed => before == Some(Error),
        CancelRequested => matches!(before, Some(Created | Active | Retry)),
        Canceled => matches!(before, Some(CancelRequested | Error)),
    }
}
