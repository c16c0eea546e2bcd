//! The state machine that owns all timing, order and limits of one shard.
//!
//! The driver calls one method per event and passes the time. The method appends to [`Output`] what the store must
//! commit and what must be done afterwards. **No effect may be carried out before the ops next to it are committed.**
//! Apart from that, the driver makes no decisions.
//!
//! RAM holds messages that are due within [`HORIZON_MS`], wait for a free slot, or are in flight. The others stay in
//! the store and are requested with [`Shard::wants_load`]. Two invariants make that safe: every live message up to
//! `loaded` is held, or its lane is `spilled` at or before it; and holding less is always allowed, because a load skips
//! messages that are already held.

mod clock;
mod load;
mod operate;
mod steps;
mod waiting;
mod why;

use crate::callback::{self, CallbackReport};
use crate::ending;
use crate::event::{Event, EventDetail, Op, State};
use crate::flow::Flow;
use crate::lanes::{self, Lanes};
pub use crate::lanes::{Lane, LaneKey, Settings};
use crate::limits::{HOPS_MAX, HORIZON_MS};
use crate::message::{DedupKey, DueKey, FlowKey, Live, Message, Origin, Place, QueueKey, Turn};
use crate::outcome::{AttemptError, ErrorClass, Outcome};
use crate::planted::{self, Bug};
use crate::queue::Queue;
use crate::queues::{Joined, QueueId, Queues};
use crate::retry::{self, Next};
use clock::Clock;
pub use load::{Load, Source};
pub use operate::DeliverNowOutcome;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
pub use steps::{Step, StepEnd};
pub use waiting::BacklogCounts;
pub(crate) use waiting::of_tenant;

/// The result of a step: ops to commit as one transaction, then effects to carry out.
#[derive(Debug, Default)]
pub struct Output {
    /// The changes that the store must write, all or nothing.
    pub ops: Vec<Op>,
    /// The actions after the ops are committed.
    pub effects: Vec<Effect>,
    /// Whether a caller waits for a promise: the ops must be on disk, not only written.
    pub synced: bool,
}

impl Output {
    pub(crate) fn log(&mut self, tenant: TenantId, id: MessageId, at: Timestamp, state: State, detail: EventDetail) {
        self.ops.push(Op::Log(Event { tenant, id, at, state, detail }));
    }
}

/// An action outside the shard.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make one attempt and report it with [`Shard::ended`].
    Start {
        /// The message, and the number of its retries.
        live: Live,
        /// The message, if it was just published; otherwise the store has it.
        message: Option<Arc<Message>>,
    },
}

/// A publish, with the store's data about its key.
#[derive(Debug)]
pub struct Publish {
    /// The message, with its id.
    pub message: Arc<Message>,
    /// Its destination, as a hash.
    pub origin: Origin,
    /// Its duplicate key, and the message that the store has for it.
    pub dedup: Option<(DedupKey, Option<MessageId>)>,
    /// The dead letter that this message replaces, which exists. It stays if this is a duplicate.
    pub replaces: Option<DlqId>,
}

/// Whether there is room for more than the outcome of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    #[default]
    Free,
    /// The tenant's storage quota is used up, or the disk is nearly full. Outcomes are stored without the response and
    /// without the source message, and retries wait longer.
    Full,
}

/// Inputs for the end of an attempt: a random number, and ids for the callbacks that it may cause.
#[derive(Clone, Copy, Debug)]
pub struct Chance {
    /// Spreads the default back-off.
    pub random: u64,
    /// For the callback.
    pub callback: MessageId,
    /// For the failure callback; created after the other.
    pub failure_callback: MessageId,
    /// Whether there is room for the response.
    pub storage: Storage,
}

/// The end of an attempt for its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptEnd {
    /// Retries before this attempt.
    pub retried: u32,
    /// The next step of the message; `None` if it was cancelled in the meantime.
    pub next: Option<Next>,
}

/// The result of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The new message, or the one it duplicates.
    pub id: MessageId,
    /// Whether nothing was stored, because a message with the same key exists.
    pub deduplicated: bool,
}

/// A live message in RAM.
#[derive(Debug)]
struct Held {
    live: Live,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not due yet: in `timers`.
    Timed,
    /// Due, waiting for a free slot: in its lane.
    Ready,
    /// An attempt is in flight. The number is the generation of its flow-control key.
    InFlight(u32),
    /// Waiting for its turn in a queue.
    Queued,
    /// Has its turn, and waits for its queue to be resumed.
    Paused,
}

/// The state machine; see the module's documentation.
#[derive(Debug)]
pub struct Shard {
    settings: Settings,
    held: HashMap<Seq, Held>,
    timers: BTreeSet<DueKey>,
    /// Timers of messages that have their turn in a queue. They are never left to the store.
    queue_timers: BTreeSet<DueKey>,
    queues: Queues,
    lanes: Lanes,
    /// Every live message up to here is held or spilled.
    loaded: DueKey,
    clock: Clock,
    /// A window load before this time would only be cut short again.
    load_not_before: Timestamp,
    /// Keys of publishes that are decided but not yet committed.
    fresh_keys: HashMap<(TenantId, DedupKey), MessageId>,
    draining: bool,
    /// Whether the last load was for a queue.
    queue_was_loaded: bool,
    /// Callbacks of queues after this position may be only in the store. They are loaded first.
    callbacks_after: Option<Seq>,
}

/// How long a full shard waits before it requests more of the window.
const FULL_PAUSE_MS: u64 = 1_000;

impl Shard {
    /// A shard that holds nothing yet. All live messages are in the store and will be requested.
    pub fn new(settings: Settings) -> Self {
        Shard {
            lanes: Lanes::new(settings),
            settings,
            held: HashMap::new(),
            timers: BTreeSet::new(),
            queue_timers: BTreeSet::new(),
            queues: Queues::new(settings),
            loaded: DueKey::MIN,
            clock: Clock::default(),
            load_not_before: Timestamp(0),
            fresh_keys: HashMap::new(),
            draining: false,
            queue_was_loaded: false,
            callbacks_after: None,
        }
    }

    /// Restores queues and flow-control keys from the store, before any other call.
    pub fn restore(&mut self, queues: Vec<Queue>, flows: Vec<Flow>, now: Timestamp) {
        self.callbacks_after = (!queues.is_empty()).then_some(Seq::MIN);
        for queue in queues {
            self.queues.restore(queue);
        }
        for flow in flows {
            self.lanes.flows.restore(flow, now);
        }
    }

    /// Publishes a message, unless its key makes it a duplicate.
    pub fn publish(&mut self, publish: Publish, now: Timestamp, out: &mut Output) -> Accepted {
        let Publish { message, origin, dedup, replaces } = publish;
        let (tenant, id) = (message.tenant, message.id);
        out.synced = true;
        if let Some((key, stored)) = dedup {
            if let Some(original) = self.original(tenant, key, stored) {
                return Accepted { id: original, deduplicated: true };
            }
            self.remember(tenant, key, id, message.created_at, out);
        }
        if let Some(dlq_id) = replaces.filter(|_| !planted::has(Bug::ReplayKeepsDeadLetter)) {
            out.ops.push(Op::DeleteDeadLetter { tenant, dlq_id });
        }
        let place = message.spec.queue.as_deref().map(|name| self.place_in(name, &message, now, out));
        self.insert(&message, origin, place, now, out);
        self.dispatch(std::slice::from_ref(&message), now, out);
        Accepted { id, deduplicated: false }
    }

    /// The message of a key: the store's, or one of this batch.
    pub fn original(&self, tenant: TenantId, key: DedupKey, stored: Option<MessageId>) -> Option<MessageId> {
        let fresh = self.fresh_keys.get(&(tenant, key)).copied().filter(|_| !planted::has(Bug::DedupBlindInBatch));
        stored.or(fresh)
    }

    /// Assigns a key to this message from now on. [`Shard::publish`] does so itself; code that starts a run with a key
    /// must call this.
    pub fn remember(&mut self, tenant: TenantId, key: DedupKey, id: MessageId, now: Timestamp, out: &mut Output) {
        self.fresh_keys.insert((tenant, key), id);
        let expires = now.plus_millis(self.settings.dedup_window_ms);
        if !planted::has(Bug::DedupNotRemembered) {
            out.ops.push(Op::PutDedupKey { tenant, key, id, expires });
        }
    }

    /// Ends an attempt. Returns the consequence for the message.
    pub fn ended(
        &mut self,
        message: &Message,
        mut outcome: Outcome,
        chance: Chance,
        now: Timestamp,
        out: &mut Output,
    ) -> AttemptEnd {
        let held = self.held.remove(&message.id.seq).expect("an attempt ends only if it was started and not ended");
        let Held { live, stage: Stage::InFlight(generation) } = held else {
            panic!("{:?} was not in flight", message.id)
        };
        self.lanes.finish(&live, generation, now);
        let next = if live.cancel_requested && !planted::has(Bug::CancelForgottenOnRetry) {
            None
        } else {
            let next = retry::next(&message.spec, live.retried, &outcome, now, chance.random);
            Some(next.with_floor(message.body.len(), chance.storage, now))
        };
        let is_full = chance.storage == Storage::Full;
        if is_full {
            outcome = outcome.without_response();
        }
        let dlq_id = (next == Some(Next::DeadLetter)).then(|| ending::dlq_id(&live, now));
        let report =
            CallbackReport { source: message, retried: live.retried, outcome: &outcome, dlq_id: None, is_full };
        let mut callbacks = Vec::new();
        if let (Some(spec), Some(_)) = (&message.spec.callback, next) {
            callbacks.push(Arc::new(callback::message(spec, report, chance.callback, now)));
        }
        let is_told = dlq_id.filter(|_| !planted::has(Bug::FailureCallbackLost));
        if let (Some(spec), Some(_)) = (&message.spec.failure_callback, is_told) {
            callbacks.push(Arc::new(callback::message(
                spec,
                CallbackReport { dlq_id, ..report },
                chance.failure_callback,
                now,
            )));
        }
        match next {
            None => ending::cancelled(&live, outcome, now, out),
            Some(Next::Done) => ending::delivered(&live, outcome, now, out),
            Some(Next::DeadLetter) => ending::failed(&live, outcome, now, out),
            Some(Next::RetryAt(due)) => {
                ending::retried(&live, outcome, due, now, out);
                let retried = if planted::has(Bug::RetryCountReset) { 0 } else { live.retried + 1 };
                let live = Live { due, retried, ..live };
                out.ops.push(Op::Update(live));
                self.arrive(live, now);
            }
        }
        for callback in &callbacks {
            self.insert(callback, origin_of(callback), live.place, now, out);
        }
        if !matches!(next, Some(Next::RetryAt(_))) {
            self.leave_queue(&live, now, out);
        }
        self.dispatch(&callbacks, now, out);
        AttemptEnd { retried: live.retried, next }
    }

    /// Cancels these live messages, and returns those that were not cancelled before.
    ///
    /// `rows` must be what the store has now, with nothing uncommitted. An attempt in flight may finish, but is not
    /// retried.
    pub fn cancel(&mut self, rows: &[Live], now: Timestamp, out: &mut Output) -> Vec<MessageId> {
        let mut cancelled = Vec::new();
        for row in rows {
            // A run that loses a step would never end, so runs are cancelled as a whole.
            if row.cancel_requested || row.is_step {
                continue;
            }
            cancelled.push(row.id);
            out.synced = true;
            out.log(row.tenant, row.id, now, State::CancelRequested, EventDetail::default());
            let in_flight = |held: &&mut Held| matches!(held.stage, Stage::InFlight(_));
            if let Some(held) = self.held.get_mut(&row.id.seq).filter(in_flight) {
                held.live.cancel_requested = true;
                out.ops.push(Op::Update(held.live));
                continue;
            }
            self.forget(row.id.seq, now);
            ending::cancelled_waiting(row, now, out);
            if !planted::has(Bug::CancelLeavesTurn) {
                self.leave_queue(row, now, out);
            }
        }
        self.dispatch(&[], now, out);
        cancelled
    }

    /// Drops a message without an attempt in flight from RAM.
    fn forget(&mut self, seq: Seq, now: Timestamp) {
        if let Some(Held { live, stage }) = self.held.remove(&seq) {
            self.timers.remove(&live.due_key());
            self.queue_timers.remove(&live.due_key());
            if stage == Stage::Ready {
                self.lanes.withdraw(&live, now);
            }
        }
    }

    /// Deletes these dead letters, which exist.
    pub fn delete_dead_letters(&mut self, tenant: TenantId, ids: &[DlqId], out: &mut Output) {
        out.synced |= !ids.is_empty();
        out.ops.extend(ids.iter().map(|&dlq_id| Op::DeleteDeadLetter { tenant, dlq_id }));
    }

    /// Call it when time has passed.
    pub fn wake(&mut self, now: Timestamp, out: &mut Output) {
        self.see(now);
        self.fall_due(now, now);
        self.lanes.wake(now);
        self.dispatch(&[], now, out);
    }

    /// Starts nothing from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Call it when all ops so far are committed: the store has them, and the effects are carried out.
    pub fn committed(&mut self, now: Timestamp) {
        self.fresh_keys.clear();
        self.lanes.flows.committed(now);
    }

    /// When [`Shard::wake`] or a load is needed next.
    pub fn next_wake(&self) -> Timestamp {
        if self.draining {
            return Timestamp::MAX;
        }
        let window = self.loaded.due.minus_millis(HORIZON_MS / 2).max(self.load_not_before);
        let timers = [self.timers.first(), self.queue_timers.first()].map(|first| first.map(|first| first.due));
        let gates = [self.queues.next_wake(), self.lanes.next_wake().filter(|_| !planted::has(Bug::RateNotWoken))];
        timers.into_iter().chain(gates).flatten().fold(window, Timestamp::min)
    }

    /// Attempts in flight.
    pub fn in_flight(&self) -> u32 {
        self.lanes.in_flight()
    }

    /// Messages in RAM.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The place of a new message at the end of a queue, which is created if it does not exist.
    fn place_in(&mut self, name: &str, message: &Message, now: Timestamp, out: &mut Output) -> Place {
        let queue = QueueKey::of(message.tenant, name);
        let id = (message.tenant, queue);
        if self.queues.get(id).is_none() {
            out.ops.push(Op::PutQueue(self.queues.put(id, name, 1, false, now)));
        }
        Place { queue, turn: Turn::new(message.id.seq, message.created_at, message.not_before) }
    }

    /// Stores a new message, published or caused, and lets it wait for its resources.
    fn insert(
        &mut self,
        message: &Arc<Message>,
        origin: Origin,
        place: Option<Place>,
        now: Timestamp,
        out: &mut Output,
    ) {
        let (tenant, id) = (message.tenant, message.id);
        self.see(now);
        self.clock.created(id.seq);
        let flow = self.flow_of(message, now);
        let live = Live {
            id,
            tenant,
            origin,
            body_bytes: u32::try_from(message.body.len()).unwrap_or(u32::MAX),
            due: message.not_before,
            retried: 0,
            cancel_requested: false,
            place,
            flow,
            is_step: false,
        };
        out.ops.push(Op::Insert { message: message.clone(), live });
        let next_due = (live.due > message.created_at).then_some(live.due);
        out.log(tenant, id, now, State::Created, EventDetail { next_due, ..EventDetail::default() });
        if message.spec.hops > HOPS_MAX {
            let text = format!("loop: more than {HOPS_MAX} deliveries led to this message");
            let error = AttemptError { class: ErrorClass::Blocked, message: text };
            ending::failed(&live, Outcome { result: Err(error), duration_ms: 0, phases: None }, now, out);
            return;
        }
        match place {
            None => self.arrive(live, now),
            Some(place) => {
                self.join(live, now);
                self.advance((tenant, place.queue), now, out);
            }
        }
    }

    /// The flow-control key of a new message, which may change its limits.
    fn flow_of(&mut self, message: &Message, now: Timestamp) -> Option<FlowKey> {
        let spec = message.spec.flow.as_ref()?;
        let key = FlowKey::of(message.tenant, &spec.key);
        self.lanes.flows.update((message.tenant, key), spec, now);
        self.lanes.reopen(message.tenant, key, now);
        Some(key)
    }

    /// Adds a message of a queue: it shares a slot, waits for its turn, or is left to the store. A callback that was
    /// sent early takes its place in the line, and is already held.
    fn join(&mut self, live: Live, now: Timestamp) -> Joined {
        self.see(now);
        let Some(place) = live.place else { return Joined::Stored };
        let joined = self.queues.join(&live, place, self.is_full(), self.clock.time_of(&live, now));
        match joined {
            _ if self.held.contains_key(&live.id.seq) => {}
            Joined::Slot => self.arrive(live, now),
            Joined::Waiting => drop(self.held.insert(live.id.seq, Held { live, stage: Stage::Queued })),
            Joined::Stored => {}
        }
        joined
    }

    /// Gives free slots of a queue to the next messages.
    fn advance(&mut self, id: QueueId, now: Timestamp, out: &mut Output) {
        loop {
            let members = self.queues.appoint(id);
            if members.is_empty() {
                break;
            }
            for seq in members {
                let Held { live, stage } = self.held.get(&seq).expect("who waits for a turn in RAM is held");
                let (live, is_early) = (*live, *stage != Stage::Queued);
                if is_early {
                    continue;
                }
                let is_own = live.place.is_some_and(|place| place.turn.seq == seq);
                if is_own && live.retried == 0 {
                    // It waited because it was due. If the clock went back since then, the queue would otherwise stand
                    // still for that time.
                    self.make_ready(live, None, now);
                } else {
                    self.arrive(live, now);
                }
            }
        }
        if let Some(name) = self.queues.forget_if_over(id) {
            out.ops.push(Op::DropQueue { tenant: id.0, name });
        }
    }

    /// Removes a message that has ended from its queue, which may free its slot.
    fn leave_queue(&mut self, live: &Live, now: Timestamp, out: &mut Output) {
        if let Some(place) = live.place {
            let id = (live.tenant, place.queue);
            if self.queues.leave(live, place) {
                self.pause_or_resume(id, now);
            }
            self.advance(id, now, out);
        }
    }

    /// Applies a change of a queue: messages that have their turn must wait, or may continue.
    fn pause_or_resume(&mut self, id: QueueId, now: Timestamp) {
        for seq in self.queues.members(id) {
            let Some(held) = self.held.get_mut(&seq) else { continue };
            let (live, holds_back) = (held.live, self.queues.holds_back(&held.live));
            match held.stage {
                Stage::Ready if holds_back => {
                    held.stage = Stage::Paused;
                    self.lanes.withdraw(&live, now);
                }
                Stage::Paused if !holds_back => self.make_ready(live, None, now),
                _ => {}
            }
        }
    }

    fn is_full(&self) -> bool {
        self.held.len() >= self.settings.held_max
    }

    /// Adds a live message, which has its turn if it is in a queue: holds it, or leaves it to a later load.
    fn arrive(&mut self, live: Live, now: Timestamp) {
        self.arrive_at(live, None, now);
    }

    /// Like [`Self::arrive`], for a message that a lane requested, and that waits there.
    fn arrive_at(&mut self, live: Live, lane: Option<LaneKey>, now: Timestamp) {
        self.see(now);
        let time = self.clock.time_of(&live, now);
        if live.place.is_some() {
            if live.is_due(time) {
                self.make_ready(live, lane, now);
            } else {
                self.held.insert(live.id.seq, Held { live, stage: Stage::Timed });
                self.queue_timers.insert(live.due_key());
            }
            return;
        }
        let is_loaded = live.due_key() <= self.loaded;
        // Of the loaded messages, a lane leaves only due ones to the store.
        let was_due = lane.is_some() && is_loaded;
        if was_due || (live.due <= time && (is_loaded || lane.is_some())) {
            self.make_ready(live, lane, now);
        } else if !is_loaded {
            // The load that gets there includes it.
        } else if !self.is_full() || self.evict_behind(live.due_key(), now) {
            self.held.insert(live.id.seq, Held { live, stage: Stage::Timed });
            self.timers.insert(live.due_key());
        } else {
            self.leave_to_load(live.due_key(), now);
        }
    }

    /// Drops the timer with the latest due time if it is after `key` and not due. A later load brings it back.
    fn evict_behind(&mut self, key: DueKey, now: Timestamp) -> bool {
        let last = self.timers.last().copied().filter(|last| *last > key && last.due > now);
        let Some(last) = last else { return false };
        self.timers.remove(&last);
        self.held.remove(&last.seq);
        if !planted::has(Bug::EvictionForgotten) {
            self.leave_to_load(last, now);
        }
        true
    }

    /// Records that the message with this key is not held, so that a later load brings it.
    fn leave_to_load(&mut self, key: DueKey, now: Timestamp) {
        self.loaded = before(key).min(self.loaded);
        self.load_not_before = now.plus_millis(FULL_PAUSE_MS);
    }

    /// Moves a due message into its lane, or back to the store if the lane is full. Due messages take precedence over
    /// others: a full shard drops its latest timer.
    fn make_ready(&mut self, live: Live, lane: Option<LaneKey>, now: Timestamp) {
        if self.is_full() {
            self.evict_behind(live.due_key(), now);
        }
        if self.queues.holds_back(&live) {
            self.held.insert(live.id.seq, Held { live, stage: Stage::Paused });
        } else if self.lanes.push(&live, lane, self.held.len(), now) {
            self.held.insert(live.id.seq, Held { live, stage: Stage::Ready });
        } else {
            self.held.remove(&live.id.seq);
        }
    }

    /// Starts all messages that may start. `fresh` were just created and need not be read.
    fn dispatch(&mut self, fresh: &[Arc<Message>], now: Timestamp, out: &mut Output) {
        while !self.draining {
            let held = &self.held;
            let is_ready = |seq: Seq| held.get(&seq).filter(|held| held.stage == Stage::Ready).map(|held| held.live);
            match self.lanes.next(is_ready, held.len(), now) {
                None => break,
                Some(lanes::Next::Spilled(live)) => drop(self.held.remove(&live.id.seq)),
                Some(lanes::Next::Start(live, generation)) => {
                    if let Some(held) = self.held.get_mut(&live.id.seq) {
                        held.stage = Stage::InFlight(generation);
                    }
                    if !live.is_step {
                        let detail = EventDetail { retried: live.retried, ..EventDetail::default() };
                        out.log(live.tenant, live.id, now, State::Active, detail);
                    }
                    let message = fresh.iter().find(|message| message.id == live.id).cloned();
                    out.effects.push(Effect::Start { live, message });
                }
            }
        }
        let flows = self.lanes.flows.take_changed();
        // A start that a power cut undoes could be one too many within its period.
        out.synced |= !flows.is_empty();
        out.ops.extend(flows.into_iter().map(Op::PutFlow));
    }
}

/// The destination of a callback, as a hash.
fn origin_of(message: &Message) -> Origin {
    Origin::of_url(message.tenant, &message.spec.url)
}

/// Takes the first timer that is due.
fn pop_due(timers: &mut BTreeSet<DueKey>, now: Timestamp) -> Option<Seq> {
    let first = timers.first().copied().filter(|first| first.due <= now)?;
    timers.remove(&first);
    Some(first.seq)
}

/// The key right before this one.
fn before(key: DueKey) -> DueKey {
    match key.seq.0.checked_sub(1) {
        Some(seq) => DueKey { due: key.due, seq: Seq(seq) },
        None => DueKey { due: key.due.minus_millis(1), seq: Seq::MAX },
    }
}
