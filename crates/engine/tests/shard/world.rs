//! A model of the world around a shard: it plays the store, the receivers and the clock.
//!
//! After every step it checks the caps, the order of queues and the limits of flow-control keys by its own
//! books; after healing it checks that every message has ended exactly once and that nothing is stuck.

use crate::makings::{flow_name, outcome, queue_name, spec};
use bytes::Bytes;
use posthaste_engine::event::{Event, Op, State};
use posthaste_engine::flow::{Flow, FlowEdit};
use posthaste_engine::message::{DedupKey, FlowKey, Live, Message, Origin, Place};
use posthaste_engine::message::{QueueKey, Turn};
use posthaste_engine::queue::Queue;
use posthaste_engine::shard::{Chance, Effect, Lane, Load, Output, Publish, Settings, Shard, Source};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

pub(crate) const CAPS: Settings = Settings {
    in_flight_max: 6,
    tenant_in_flight_max: 4,
    origin_in_flight_max: 2,
    in_flight_bytes_max: 100,
    tenant_in_flight_bytes_max: 70,
    origin_in_flight_bytes_max: 60,
    held_max: 12,
    lane_held_max: 4,
    queue_held_max: 3,
    load_page: 5,
    dedup_window_ms: 600_000,
};

/// A full shard may take this long to ask for what is due.
const OVERDUE_MS: u64 = 3_000;

/// A publish, plain unless told otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct New {
    pub tenant: u32,
    pub origin: u64,
    pub delay_ms: u64,
    pub key: Option<u8>,
    pub retries: u32,
    pub bytes: usize,
    pub queue: Option<u8>,
    pub flow: Option<NewFlow>,
    pub callback: bool,
    pub failure_callback: bool,
    pub hops: u32,
}

/// A flow-control key and its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFlow {
    pub key: u8,
    pub parallelism: Option<u32>,
    pub rate: Option<u32>,
    pub period_ms: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Publish(New),
    End { which: usize, how: How },
    Cancel { which: usize },
    Hasten { which: usize },
    PutQueue { tenant: u32, queue: u8, parallelism: u32, paused: bool },
    DeleteQueue { tenant: u32, queue: u8 },
    EditFlow { tenant: u32, key: u8, edit: FlowEdit },
    Wait { millis: u64 },
    ClockBack { millis: u64 },
    Crash,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Ok,
    Fail,
    FailWithRetryAfter(u32),
    Refuse,
    NoAnswer,
}

/// What the model knows of a flow-control key.
#[derive(Debug, Default)]
pub(crate) struct FlowBook {
    /// The limits as last stored.
    pub flow: Option<Flow>,
    /// When deliveries started under the present rate, by a clock that never goes back.
    starts: Vec<u64>,
    /// Deliveries under way that still count.
    pub counted: HashSet<Seq>,
}

/// The world around a shard.
pub(crate) struct World {
    pub shard: Shard,
    pub now: Timestamp,
    /// Time that really passed, whatever the clock says.
    real_ms: u64,
    /// The latest time so far: what was due then may start although the clock went back.
    pub latest: Timestamp,
    last_seq: Seq,
    /// The last message before each time the clock went back.
    pub went_back_at: Vec<Seq>,
    pub has_crashed: bool,
    pub messages: HashMap<Seq, Arc<Message>>,
    pub live: BTreeMap<Seq, Live>,
    keys: HashMap<(TenantId, DedupKey), (MessageId, Timestamp)>,
    pub queues: BTreeMap<(TenantId, String), Queue>,
    pub flows: HashMap<(TenantId, FlowKey), FlowBook>,
    /// Who has started in a queue since the last restart.
    has_slot: HashSet<(TenantId, Place)>,
    pub events: Vec<Event>,
    buried: BTreeSet<Seq>,
    pub in_flight: Vec<Live>,
    pub published: usize,
    callbacks_expected: usize,
    pub callbacks: usize,
}

impl World {
    pub(crate) fn new() -> World {
        let mut world = World {
            shard: Shard::new(CAPS),
            now: Timestamp(1_000_000_000),
            real_ms: 0,
            latest: Timestamp(1_000_000_000),
            last_seq: Seq::MIN,
            went_back_at: Vec::new(),
            has_crashed: false,
            messages: HashMap::new(),
            live: BTreeMap::new(),
            keys: HashMap::new(),
            queues: BTreeMap::new(),
            flows: HashMap::new(),
            has_slot: HashSet::new(),
            events: Vec::new(),
            buried: BTreeSet::new(),
            in_flight: Vec::new(),
            published: 0,
            callbacks_expected: 0,
            callbacks: 0,
        };
        world.settle(Output::default());
        world
    }

    pub(crate) fn act(&mut self, action: &Action) {
        self.latest = self.latest.max(self.now);
        let mut out = Output::default();
        match action {
            Action::Publish(new) => self.publish(new, &mut out),
            Action::End { which, how } => self.end(*which, *how, &mut out),
            Action::Cancel { which } => {
                let row = self.live.values().nth(which % self.live.len().max(1)).copied();
                let rows: Vec<Live> = row.into_iter().collect();
                self.shard.cancel(&rows, self.now, &mut out);
            }
            Action::Hasten { which } => self.hasten(*which, &mut out),
            Action::PutQueue { tenant, queue, parallelism, paused } => {
                let (tenant, name) = (TenantId(*tenant), queue_name(*queue));
                self.shard.put_queue(tenant, &name, *parallelism, *paused, self.now, &mut out);
            }
            Action::DeleteQueue { tenant, queue } => {
                let (tenant, name) = (TenantId(*tenant), queue_name(*queue));
                let key = QueueKey::of(tenant, &name);
                let is_own = |row: &&Live| row.tenant == tenant && row.place.is_some_and(|place| place.queue == key);
                let rows: Vec<Live> = self.live.values().filter(is_own).copied().collect();
                self.shard.cancel(&rows, self.now, &mut out);
                self.commit(std::mem::take(&mut out));
                self.shard.delete_queue(tenant, &name, self.now, &mut out);
            }
            Action::EditFlow { tenant, key, edit } => {
                let (tenant, name) = (TenantId(*tenant), flow_name(*key));
                let book = self.flows.entry((tenant, FlowKey::of(tenant, &name))).or_default();
                let resets = match edit {
                    FlowEdit::ResetRate | FlowEdit::Reset => true,
                    FlowEdit::Pin { rate, .. } => rate.is_some(),
                    _ => false,
                };
                if resets {
                    book.starts.clear();
                }
                if *edit == FlowEdit::Reset {
                    book.counted.clear();
                }
                self.shard.edit_flow(tenant, &name, *edit, self.now, &mut out);
            }
            Action::Wait { millis } => self.wait(*millis),
            Action::ClockBack { millis } => {
                self.now = self.now.minus_millis(*millis);
                self.went_back_at.push(self.last_seq);
            }
            Action::Crash => {
                self.has_crashed = true;
                self.crash();
            }
        }
        self.settle(out);
    }

    fn wait(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
        self.real_ms += millis;
    }

    fn crash(&mut self) {
        self.shard = Shard::new(CAPS);
        let flows = self.flows.values().filter_map(|book| book.flow.clone()).collect();
        self.shard.restore(self.queues.values().cloned().collect(), flows, self.now);
        self.in_flight.clear();
        self.has_slot.clear();
        for book in self.flows.values_mut() {
            book.counted.clear();
        }
    }

    pub(crate) fn publish(&mut self, new: &New, out: &mut Output) {
        self.last_seq = Seq::next(self.last_seq, self.now);
        let tenant = TenantId(new.tenant);
        let message = Arc::new(Message {
            id: MessageId { seq: self.last_seq, tag: 7 },
            tenant,
            created_at: self.now,
            not_before: self.now.plus_millis(new.delay_ms),
            spec: spec(new),
            body: Bytes::from(vec![0; new.bytes]),
        });
        let key = new.key.map(|byte| DedupKey([byte; 32]));
        let stored = key.and_then(|key| self.keys.get(&(tenant, key))).filter(|(_, expires)| self.now < *expires);
        let dedup = key.map(|key| (key, stored.map(|(id, _)| *id)));
        let origin = Origin(u64::from(tenant.0) * 10 + new.origin);
        let publish = Publish { message: message.clone(), origin, dedup, replaces: None };
        let accepted = self.shard.publish(publish, self.now, out);
        if !accepted.deduplicated {
            assert_eq!(accepted.id, message.id);
            self.published += 1;
        }
    }

    pub(crate) fn end(&mut self, which: usize, how: How, out: &mut Output) {
        if self.in_flight.is_empty() {
            return;
        }
        let live = self.in_flight.swap_remove(which % self.in_flight.len());
        let message = self.messages[&live.id.seq].clone();
        if let Some(book) = live.flow.and_then(|flow| self.flows.get_mut(&(live.tenant, flow))) {
            book.counted.remove(&live.id.seq);
        }
        let row = self.live[&live.id.seq];
        let outcome = outcome(how);
        let fails = !row.cancel_requested && !matches!(how, How::Ok);
        let is_last = matches!(how, How::Refuse) || row.retried == message.spec.retries;
        self.callbacks_expected += usize::from(message.spec.callback.is_some() && !row.cancel_requested);
        self.callbacks_expected += usize::from(message.spec.failure_callback.is_some() && fails && is_last);
        let chance = self.chance();
        self.shard.ended(&message, outcome, chance, self.now, out);
    }

    fn chance(&mut self) -> Chance {
        let mut id = || {
            self.last_seq = Seq::next(self.last_seq, self.now);
            MessageId { seq: self.last_seq, tag: 8 }
        };
        Chance { random: 3, callback: id(), failure_callback: id() }
    }

    /// Commits, carries out the effects, and lets the shard do everything that is due now.
    pub(crate) fn settle(&mut self, out: Output) {
        self.commit(out);
        for _ in 0..1_000 {
            let mut out = Output::default();
            self.shard.wake(self.now, &mut out);
            self.commit(std::mem::take(&mut out));
            let load = self.shard.wants_load(self.now);
            if let Some(load) = load {
                let rows = self.rows(&load);
                self.shard.loaded(&load, &rows, self.now, &mut out);
            }
            self.commit(out);
            if load.is_none() {
                return;
            }
        }
        panic!("the shard asks for loads without end");
    }

    fn rows(&self, load: &Load) -> Vec<Live> {
        let mut rows: Vec<Live> = match load.source {
            Source::Due { lane, after, until } => {
                let in_lane = |row: &Live| match lane {
                    None => true,
                    Some((tenant, Lane::Origin(origin))) => row.tenant == tenant && row.origin == origin,
                    Some((tenant, Lane::Flow(flow))) => row.tenant == tenant && row.flow == Some(flow),
                };
                let outside = self.live.values().filter(|row| row.place.is_none() && in_lane(row));
                let mut rows: Vec<Live> =
                    outside.filter(|row| row.due_key() > after && row.due <= until).copied().collect();
                rows.sort_by_key(Live::due_key);
                rows
            }
            Source::Queue { tenant, queue, after } => {
                let key = |row: &Live| row.place.map(|place| (place.turn, row.id.seq));
                let own = self.live.values().filter(|row| {
                    row.tenant == tenant
                        && row.place.is_some_and(|place| place.queue == queue)
                        && key(row) > Some(after)
                });
                let mut rows: Vec<Live> = own.copied().collect();
                rows.sort_by_key(key);
                rows
            }
        };
        rows.truncate(load.max);
        rows
    }

    pub(crate) fn commit(&mut self, out: Output) {
        for op in out.ops {
            self.apply(op);
        }
        self.shard.committed(self.now);
        for Effect::Start { live, message } in out.effects {
            let row = *self.live.get(&live.id.seq).expect("only live messages start");
            assert!(row.due <= self.now.max(self.latest), "started before it was due");
            assert!(!row.cancel_requested, "started after its cancel was promised");
            assert_eq!(row.retried, live.retried);
            assert!(message.is_none_or(|message| message.id == live.id));
            assert!(self.in_flight.iter().all(|other| other.id != live.id), "two attempts at once");
            if let Some(place) = live.place {
                self.check_turn(&live, place);
            }
            if let Some(flow) = live.flow {
                self.check_flow(&live, flow);
            }
            self.check_share(&live);
            self.in_flight.push(live);
        }
        self.check_caps();
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Insert { message, live } => {
                self.callbacks += usize::from(message.id.tag == 8);
                self.messages.insert(message.id.seq, message);
                assert!(self.live.insert(live.id.seq, live).is_none());
            }
            Op::Remember { tenant, key, id, expires } => {
                self.keys.insert((tenant, key), (id, expires));
            }
            Op::Log(event) => self.events.push(event),
            Op::Update(live) => assert!(self.live.insert(live.id.seq, live).is_some()),
            Op::Remove { id } => self.remove(id),
            Op::Bury(letter) => {
                self.remove(letter.id);
                assert!(self.buried.insert(letter.id.seq));
            }
            Op::PutQueue(queue) => drop(self.queues.insert((queue.tenant, queue.name.clone()), queue)),
            Op::DropQueue { tenant, name } => {
                let key = QueueKey::of(tenant, &name);
                let is_own = |row: &Live| row.tenant == tenant && row.place.is_some_and(|place| place.queue == key);
                assert!(!self.live.values().any(is_own), "a queue goes only when it is empty");
                assert!(self.queues.remove(&(tenant, name)).is_some());
            }
            Op::PutFlow(flow) => {
                let book = self.flows.entry((flow.tenant, FlowKey::of(flow.tenant, &flow.key))).or_default();
                let rate = |flow: &Flow| (flow.rate, flow.period_ms);
                if book.flow.as_ref().map(rate) != Some(rate(&flow)) {
                    book.starts.clear();
                }
                book.flow = Some(flow);
            }
            other => panic!("nobody asked for {other:?} here"),
        }
    }

    fn remove(&mut self, id: MessageId) {
        assert!(self.live.remove(&id.seq).is_some(), "only live messages end");
    }

    /// First come, first served; never more slots than the queue has; nothing new while it is paused.
    fn check_turn(&mut self, live: &Live, place: Place) {
        let queue = self.queues.values().find(|queue| QueueKey::of(queue.tenant, &queue.name) == place.queue);
        let queue = queue.expect("a queue with messages exists");
        let is_own = place.turn.seq == live.id.seq;
        assert!(!(queue.paused && is_own), "started although its queue is paused");
        if is_own {
            // Whoever has a slot may be waiting for a retry or for a callback, so all those before it count; but
            // who comes later does not take it back, whatever the clock said.
            let is_first = self.has_slot.insert((live.tenant, place));
            let before = self.live.values().filter(|row| row.tenant == live.tenant).filter_map(|row| row.place);
            let before = before.filter(|other| other.queue == place.queue && other.turn < place.turn);
            // After a clock went back, a delayed message may have its slot before another joins with an earlier time;
            // while the clock lags behind positions, so may one that was delayed by less than the lag.
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

    /// Never more at once, nor within a period, than the key allows; nothing while it is paused.
    fn check_flow(&mut self, live: &Live, flow: FlowKey) {
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

    /// A destination takes a second place of its tenant only while it leaves as many as it has.
    fn check_share(&self, live: &Live) {
        let of_tenant = || self.in_flight.iter().filter(|other| other.tenant == live.tenant);
        let own = of_tenant().filter(|other| other.origin == live.origin).count();
        let left = CAPS.tenant_in_flight_max as usize - of_tenant().count();
        assert!(own == 0 || own < left, "{own} under way to the destination of {live:?}, {left} places left");
    }

    fn check_caps(&self) {
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
        // A lane may hold what could start at once, and a queue those in its slots and one more, whatever the
        // rest holds.
        let lanes = 14 * CAPS.origin_in_flight_max as usize;
        let queued: usize = self.live.values().filter(|row| row.place.is_some()).count();
        assert!(self.shard.held() <= CAPS.held_max + lanes + queued.min(40) + self.in_flight.len());
    }

    /// Receivers answer, pauses end, time passes, nothing crashes: everything must come to its end.
    pub(crate) fn heal(&mut self) {
        let paused: Vec<Queue> = self.queues.values().filter(|queue| queue.paused).cloned().collect();
        for queue in paused {
            let mut out = Output::default();
            self.shard.put_queue(queue.tenant, &queue.name, queue.parallelism, false, self.now, &mut out);
            self.settle(out);
        }
        let flows: Vec<Flow> = self.flows.values().filter_map(|book| book.flow.clone()).collect();
        for flow in flows {
            let mut out = Output::default();
            self.shard.edit_flow(flow.tenant, &flow.key, FlowEdit::Resume, self.now, &mut out);
            self.settle(out);
        }
        for round in 0..5_000 {
            if self.live.is_empty() {
                return;
            }
            if self.in_flight.is_empty() {
                // A minute at a time; but when the clock went back, some are due far ahead.
                let soon = self.shard.next_wake().min(self.now.plus_millis(60_000));
                let ahead = self.live.values().map(|row| row.due).filter(|due| *due > self.now).min();
                let next = if round % 16 == 15 { ahead.unwrap_or(soon) } else { soon };
                self.wait(next.millis_since(self.now).max(1));
                self.settle(Output::default());
            }
            while !self.in_flight.is_empty() {
                let mut out = Output::default();
                self.end(0, How::Ok, &mut out);
                self.settle(out);
            }
        }
        panic!("{} messages are stuck: {:?}", self.live.len(), self.live.values().next());
    }

    /// Nothing idles: when a tenant has nothing under way, whoever of it could start has started. Judged only where
    /// that is plain: the message is overdue, and no rate is in its way. Once the clock went back, somebody whose delay
    /// was over may be delayed again, and who is behind it in a queue waits for it, whatever slots are free; and who
    /// is published then may stand before somebody who was delayed and has a slot.
    pub(crate) fn check_no_idling(&self) {
        if self.in_flight.len() as u32 >= CAPS.in_flight_max {
            return;
        }
        let queue_lets = |row: &Live, place: Place| match self.went_back_at.is_empty() {
            true => self.queue_lets(row, place),
            false => self.queue_lets(row, place) && self.is_first(row, place),
        };
        let idle = |row: &&Live| self.in_flight.iter().all(|live| live.tenant != row.tenant);
        for row in self.live.values().filter(idle).filter(|row| row.due.plus_millis(OVERDUE_MS) <= self.now) {
            let may_start = self.key_lets(row) && row.place.is_none_or(|place| queue_lets(row, place));
            assert!(!may_start, "{row:?} could start; next wake {:?} at {:?}", self.shard.next_wake(), self.now);
        }
    }

    fn key_lets(&self, row: &Live) -> bool {
        let book = row.flow.and_then(|flow| self.flows.get(&(row.tenant, flow)));
        book.and_then(|book| book.flow.as_ref()).is_none_or(|flow| !flow.paused && flow.rate.is_none())
    }

    /// Whether it is among the first of its queue.
    pub(crate) fn queue_lets(&self, row: &Live, place: Place) -> bool {
        let queue = self.queues.values().find(|queue| QueueKey::of(queue.tenant, &queue.name) == place.queue);
        queue.is_some_and(|queue| !queue.paused && self.turns_before(row, place) < queue.parallelism as usize)
    }

    /// Whether nobody of its queue is before it, nor could have taken a slot before it came.
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

/// The sequences of the contract; a crash may leave an attempt without an end.
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
