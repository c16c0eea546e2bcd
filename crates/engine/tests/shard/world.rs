//! A model of the world around a shard: it simulates the store, the receivers and the clock.
//!
//! After every step it checks the caps, the order of queues and the limits of flow-control keys with its own records.
//! After healing it checks that every message has ended exactly once and that nothing is stuck (`checks`).

mod checks;

use crate::makings::{flow_name, outcome, queue_name, spec};
use bytes::Bytes;
use posthaste_engine::event::{Event, Op};
use posthaste_engine::flow::{Flow, FlowEdit};
use posthaste_engine::message::{DedupKey, FlowKey, Live, Message, Origin, Place, QueueKey};
use posthaste_engine::queue::Queue;
use posthaste_engine::shard::{Chance, Effect, Lane, Load, Output, Publish, Settings, Shard, Source, Storage};
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

/// A full shard may take this long to request due messages.
const OVERDUE_MS: u64 = 3_000;

/// A publish, plain by default.
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
    End {
        which: usize,
        how: How,
    },
    Cancel {
        which: usize,
    },
    DeliverNow {
        which: usize,
    },
    PutQueue {
        tenant: u32,
        queue: u8,
        parallelism: u32,
        paused: bool,
    },
    DeleteQueue {
        tenant: u32,
        queue: u8,
    },
    EditFlow {
        tenant: u32,
        key: u8,
        edit: FlowEdit,
    },
    Wait {
        millis: u64,
    },
    ClockBack {
        millis: u64,
    },
    /// A publish that is not a duplicate, at a time from which the clock goes back before the next rows are read.
    Stumble {
        new: New,
        millis: u64,
    },
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

/// The model's record of a flow-control key.
#[derive(Debug, Default)]
pub(crate) struct FlowBook {
    /// The limits as last stored.
    pub flow: Option<Flow>,
    /// When deliveries started under the current rate, by a clock that never goes back.
    starts: Vec<u64>,
    /// Deliveries in flight that still count.
    pub counted: HashSet<Seq>,
}

/// The world around a shard.
pub(crate) struct World {
    pub shard: Shard,
    pub now: Timestamp,
    /// Time that really passed, whatever the clock says.
    real_ms: u64,
    /// The latest time so far.
    pub latest: Timestamp,
    /// Messages that have been due, with that time and, if it was after the last restart, since when by the clock that
    /// never goes back. They may start although the clock went back.
    was_due: HashMap<Seq, (Timestamp, Option<u64>)>,
    last_seq: Seq,
    /// The last message before each time the clock went back.
    pub went_back_at: Vec<Seq>,
    /// When the shard last held as much as allowed, by the clock that never goes back.
    full_at: Option<u64>,
    pub messages: HashMap<Seq, Arc<Message>>,
    pub live: BTreeMap<Seq, Live>,
    keys: HashMap<(TenantId, DedupKey), (MessageId, Timestamp)>,
    pub queues: BTreeMap<(TenantId, String), Queue>,
    pub flows: HashMap<(TenantId, FlowKey), FlowBook>,
    /// Messages that have started in a queue since the last restart.
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
            was_due: HashMap::new(),
            last_seq: Seq::MIN,
            went_back_at: Vec::new(),
            full_at: None,
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
            Action::DeliverNow { which } => self.deliver_now(*which, &mut out),
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
            Action::ClockBack { millis } => self.step_back(*millis),
            Action::Stumble { new, millis } => self.stumble(new, *millis),
            Action::Crash => self.crash(),
        }
        self.settle(out);
    }

    fn wait(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
        self.real_ms += millis;
    }

    fn stumble(&mut self, new: &New, millis: u64) {
        let mut out = Output::default();
        self.shard.wake(self.now, &mut out);
        self.commit(std::mem::take(&mut out));
        self.wait(millis);
        self.latest = self.latest.max(self.now);
        self.publish(new, &mut out);
        self.commit(out);
        self.step_back(millis);
        self.load();
    }

    fn step_back(&mut self, millis: u64) {
        self.now = self.now.minus_millis(millis);
        self.went_back_at.push(self.last_seq);
        // A full shard pauses by its own clock.
        self.full_at = self.full_at.map(|_| self.real_ms);
    }

    fn crash(&mut self) {
        self.shard = Shard::new(CAPS);
        let flows = self.flows.values().filter_map(|book| book.flow.clone()).collect();
        self.shard.restore(self.queues.values().cloned().collect(), flows, self.now);
        self.in_flight.clear();
        self.has_slot.clear();
        for (_, since) in self.was_due.values_mut() {
            *since = None;
        }
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
        Chance { random: 3, callback: id(), failure_callback: id(), storage: Storage::Free }
    }

    /// Commits, carries out the effects, and lets the shard do everything that is due now.
    pub(crate) fn settle(&mut self, out: Output) {
        self.commit(out);
        for _ in 0..1_000 {
            let mut out = Output::default();
            self.note_full();
            self.shard.wake(self.now, &mut out);
            self.commit(out);
            if self.load().is_none() {
                return;
            }
        }
        panic!("the shard asks for loads without end");
    }

    /// Gives the shard the next rows that it requests.
    pub(crate) fn load(&mut self) -> Option<Load> {
        self.note_full();
        let load = self.shard.wants_load(self.now)?;
        let (mut out, rows) = (Output::default(), self.rows(&load));
        self.shard.loaded(&load, &rows, self.now, &mut out);
        self.commit(out);
        Some(load)
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
            Source::Callbacks { after } => {
                let is_callback = |row: &&Live| row.place.is_some_and(|place| place.turn.seq != row.id.seq);
                self.live.values().filter(is_callback).filter(|row| row.id.seq > after).copied().collect()
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
        self.note_due();
        self.note_full();
        for Effect::Start { live, message } in out.effects {
            let row = *self.live.get(&live.id.seq).expect("only live messages start");
            assert!(self.was_due(&row), "started before it was due: {row:?} at {:?}", self.now);
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

    /// Also called before time passes: messages that become due together may leave the shard with less than it held.
    fn note_full(&mut self) {
        // A load may fill the shard and leave it with less, because due messages make room for themselves and may not
        // fit then.
        if self.shard.held() + CAPS.load_page > CAPS.held_max {
            self.full_at = Some(self.real_ms);
        }
    }

    fn note_due(&mut self) {
        for row in self.live.values().filter(|row| row.due <= self.now) {
            let noted = self.was_due.entry(row.id.seq).or_insert((row.due, None));
            let since = noted.1.filter(|_| noted.0 == row.due);
            *noted = (row.due, since.or(Some(self.real_ms)));
        }
    }

    /// Whether the shard held as much as allowed within this time.
    pub(crate) fn was_full_within(&self, millis: u64) -> bool {
        self.full_at.is_some_and(|full_at| self.real_ms - full_at <= millis)
    }

    /// Whether a message is due, or was due before the clock went back.
    fn was_due(&self, row: &Live) -> bool {
        self.was_due.get(&row.id.seq).is_some_and(|(due, _)| *due == row.due)
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Insert { message, live } => {
                self.callbacks += usize::from(message.id.tag == 8);
                self.messages.insert(message.id.seq, message);
                assert!(self.live.insert(live.id.seq, live).is_none());
            }
            Op::PutDedupKey { tenant, key, id, expires } => {
                self.keys.insert((tenant, key), (id, expires));
            }
            Op::Log(event) => self.events.push(event),
            Op::Update(live) => assert!(self.live.insert(live.id.seq, live).is_some()),
            Op::Remove { id } => self.remove(id),
            Op::InsertDeadLetter(letter) => {
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

    /// Receivers respond, pauses end, time passes, nothing crashes: everything must end.
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
                // A minute at a time. If the clock went back, some messages are due far ahead.
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
}
