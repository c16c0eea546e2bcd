//! The state machine that owns all timing, order and limits of one shard.
//!
//! The driver calls one method per thing that happened, passing the time; the method appends to
//! [`Output`] what the store must commit and what is to be done afterwards. **No effect may be carried
//! out before the ops beside it are committed**; apart from that the driver decides nothing.
//!
//! RAM holds what is due within [`HORIZON_MS`], what waits for a free slot and what is under way; the
//! rest stays in the store and is asked for by [`Shard::wants_load`]. Two invariants make that safe:
//! every live message up to `loaded` is held, or its lane is `spilled` at or before it; and holding
//! less is always allowed, because a load skips what is held already.

use crate::event::{DeadLetter, Event, EventDetail, Op, Response, State};
pub use crate::lanes::Settings;
use crate::lanes::{LaneKey, Lanes};
use crate::limits::{HORIZON_MS, LOG_RESPONSE_BYTES_MAX};
use crate::message::{DedupKey, DueKey, Live, Message, Origin};
use crate::outcome::{Outcome, Verdict};
use crate::retry::{self, Next};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a step wants: ops to commit as one transaction, then effects to carry out.
#[derive(Debug, Default)]
pub struct Output {
    /// What the store must write, all or nothing.
    pub ops: Vec<Op>,
    /// What to do once the ops are committed.
    pub effects: Vec<Effect>,
    /// Somebody waits for a promise: the ops must be on disk, not only written.
    pub synced: bool,
}

impl Output {
    fn log(&mut self, tenant: TenantId, id: MessageId, at: Timestamp, state: State, detail: EventDetail) {
        self.ops.push(Op::Log(Event { tenant, id, at, state, detail }));
    }
}

/// Something to be done in the world.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make one attempt and report it with [`Shard::ended`].
    Start {
        /// Which message, and how often it was retried.
        live: Live,
        /// The message, when it has just been published; otherwise the store has it.
        message: Option<Arc<Message>>,
    },
}

/// A publish, with what the store knows about its key.
#[derive(Debug)]
pub struct Publish {
    /// The message, with its id already made.
    pub message: Arc<Message>,
    /// Where it goes, as a hash.
    pub origin: Origin,
    /// Its duplicate key, and the message that the store already has for it.
    pub dedup: Option<(DedupKey, Option<MessageId>)>,
    /// The dead letter that this message replaces, known to exist. It stays if this is a duplicate.
    pub replaces: Option<DlqId>,
}

/// What a publish came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The new message, or the one it duplicates.
    pub id: MessageId,
    /// Nothing was stored: a message with the same key exists.
    pub deduplicated: bool,
}

/// What [`Shard::wants_load`] asks of the store; the answer goes to [`Shard::loaded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Only messages of this tenant to this origin, or all.
    pub lane: Option<LaneKey>,
    /// Rows behind this key.
    pub after: DueKey,
    /// Rows due at this time or before.
    pub until: Timestamp,
    /// At most so many.
    pub max: usize,
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
    /// An attempt is under way.
    InFlight,
}

/// See the module's text.
#[derive(Debug)]
pub struct Shard {
    settings: Settings,
    held: HashMap<Seq, Held>,
    timers: BTreeSet<DueKey>,
    lanes: Lanes,
    /// Every live message up to here is held or spilled.
    loaded: DueKey,
    /// The latest time seen. Clocks go back; what was due then may lie ahead now.
    latest: Timestamp,
    /// A window load before this time would only be cut short again.
    load_not_before: Timestamp,
    /// Keys of publishes that are decided but not yet committed.
    fresh_keys: HashMap<(TenantId, DedupKey), MessageId>,
    draining: bool,
}

/// How long a full shard waits before it asks for more of the window.
const FULL_PAUSE_MS: u64 = 1_000;

impl Shard {
    /// A shard that holds nothing yet: everything live is in the store and will be asked for.
    pub fn new(settings: Settings) -> Self {
        Shard {
            lanes: Lanes::new(settings),
            settings,
            held: HashMap::new(),
            timers: BTreeSet::new(),
            loaded: DueKey::MIN,
            latest: Timestamp(0),
            load_not_before: Timestamp(0),
            fresh_keys: HashMap::new(),
            draining: false,
        }
    }

    /// A message is published, unless its key makes it a duplicate.
    pub fn publish(&mut self, publish: Publish, now: Timestamp, out: &mut Output) -> Accepted {
        let Publish { message, origin, dedup, replaces } = publish;
        let (tenant, id) = (message.tenant, message.id);
        out.synced = true;
        if let Some((key, stored)) = dedup {
            if let Some(original) = stored.or_else(|| self.fresh_keys.get(&(tenant, key)).copied()) {
                return Accepted { id: original, deduplicated: true };
            }
            self.fresh_keys.insert((tenant, key), id);
            let expires = message.created_at.plus_millis(self.settings.dedup_window_ms);
            out.ops.push(Op::Remember { tenant, key, id, expires });
        }
        if let Some(dlq_id) = replaces {
            out.ops.push(Op::Exhume { tenant, dlq_id });
        }
        let live = Live {
            id,
            tenant,
            origin,
            body_bytes: u32::try_from(message.body.len()).unwrap_or(u32::MAX),
            due: message.not_before,
            retried: 0,
            cancel_requested: false,
        };
        out.ops.push(Op::Insert { message: message.clone(), live });
        let next_due = (live.due > message.created_at).then_some(live.due);
        out.log(tenant, id, now, State::Created, EventDetail { next_due, ..EventDetail::default() });
        self.arrive(live, now);
        self.dispatch(Some(&message), now, out);
        Accepted { id, deduplicated: false }
    }

    /// An attempt has ended. `random` spreads the default back-off.
    pub fn ended(&mut self, message: &Message, outcome: Outcome, random: u64, now: Timestamp, out: &mut Output) {
        let held = self.held.remove(&message.id.seq).expect("an attempt ends only if it was started and not ended");
        assert_eq!(held.stage, Stage::InFlight, "{:?} was not under way", message.id);
        let live = held.live;
        self.lanes.finish(&live);
        match retry::next(&message.spec, live.retried, &outcome, now, random) {
            _ if live.cancel_requested => self.end_cancelled(&live, outcome, now, out),
            Next::Done => {
                out.log(live.tenant, live.id, now, State::Delivered, delivered_detail(outcome));
                out.ops.push(Op::Remove { id: live.id });
            }
            Next::RetryAt(due) => {
                let (_, detail) = failed_detail(outcome);
                out.log(live.tenant, live.id, now, State::Error, detail);
                let next_due = Some(due);
                out.log(live.tenant, live.id, now, State::Retry, EventDetail { next_due, ..EventDetail::default() });
                let live = Live { due, retried: live.retried + 1, ..live };
                out.ops.push(Op::Update(live));
                self.arrive(live, now);
            }
            Next::DeadLetter => bury(&live, outcome, now, out),
        }
        self.dispatch(None, now, out);
    }

    /// These live messages are cancelled; says how many were not cancelled already.
    ///
    /// `rows` must be what the store has now, with nothing uncommitted. What is under way is let
    /// finish, but not retried.
    pub fn cancel(&mut self, rows: &[Live], now: Timestamp, out: &mut Output) -> u32 {
        let mut cancelled = 0;
        for row in rows {
            if row.cancel_requested {
                continue;
            }
            cancelled += 1;
            out.synced = true;
            out.log(row.tenant, row.id, now, State::CancelRequested, EventDetail::default());
            if let Some(held) = self.held.get_mut(&row.id.seq).filter(|held| held.stage == Stage::InFlight) {
                held.live.cancel_requested = true;
                out.ops.push(Op::Update(held.live));
                continue;
            }
            if let Some(held) = self.held.remove(&row.id.seq) {
                self.timers.remove(&held.live.due_key());
            }
            end_waiting(row, now, out);
        }
        self.dispatch(None, now, out);
        cancelled
    }

    /// These dead letters, known to exist, are deleted.
    pub fn delete_dead_letters(&mut self, tenant: TenantId, ids: &[DlqId], out: &mut Output) {
        out.synced |= !ids.is_empty();
        out.ops.extend(ids.iter().map(|&dlq_id| Op::Exhume { tenant, dlq_id }));
    }

    /// The rows that [`Shard::wants_load`] asked for. Fewer than `max` means that there are no more.
    pub fn loaded(&mut self, load: &Load, rows: &[Live], now: Timestamp, out: &mut Output) {
        let complete = rows.len() < load.max;
        let last = rows.last().map(Live::due_key).filter(|_| !complete);
        match load.lane {
            None => self.loaded = last.unwrap_or(DueKey { due: load.until, seq: Seq::MAX }),
            Some(lane) => self.lanes.begin_refill(lane),
        }
        for row in rows {
            if self.held.contains_key(&row.id.seq) {
                continue;
            }
            if row.cancel_requested {
                // The process ended before the attempt did; the cancel was promised.
                end_waiting(row, now, out);
            } else {
                self.arrive(*row, now);
            }
        }
        if let Some(lane) = load.lane {
            self.lanes.end_refill(lane, last.map(after));
        }
        self.dispatch(None, now, out);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Timestamp, out: &mut Output) {
        self.latest = self.latest.max(now);
        while let Some(first) = self.timers.first().copied().filter(|first| first.due <= now) {
            self.timers.remove(&first);
            let held = self.held.get(&first.seq).expect("what is timed is held");
            let live = held.live;
            self.make_ready(live, now);
        }
        self.dispatch(None, now, out);
    }

    /// From now on nothing is started.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// All ops so far are committed: what they say can be found in the store.
    pub fn committed(&mut self) {
        self.fresh_keys.clear();
    }

    /// When [`Shard::wake`] or a load is needed next.
    pub fn next_wake(&self) -> Timestamp {
        if self.draining {
            return Timestamp::MAX;
        }
        let window = self.loaded.due.minus_millis(HORIZON_MS / 2).max(self.load_not_before);
        self.timers.first().map_or(window, |first| first.due.min(window))
    }

    /// What the driver should read from the store and hand to [`Shard::loaded`], if anything.
    pub fn wants_load(&self, now: Timestamp) -> Option<Load> {
        if self.draining {
            return None;
        }
        if now >= self.load_not_before && self.loaded.due <= now.plus_millis(HORIZON_MS / 2) {
            let until = now.plus_millis(HORIZON_MS);
            return Some(Load { lane: None, after: self.loaded, until, max: self.settings.load_page });
        }
        let (lane, from) = self.lanes.wants_refill(self.held.len())?;
        // What was spilled was due once; after the clock went back it may not be due now.
        let until = self.latest.max(now);
        Some(Load { lane: Some(lane), after: before(from), until, max: self.lanes.refill() })
    }

    /// Attempts under way.
    pub fn in_flight(&self) -> u32 {
        self.lanes.in_flight()
    }

    /// Messages in RAM.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// A live message is now known: hold it, or leave it to a later load.
    fn arrive(&mut self, live: Live, now: Timestamp) {
        self.latest = self.latest.max(now);
        if live.due_key() > self.loaded {
            return;
        }
        if live.due <= now {
            self.make_ready(live, now);
        } else if self.held.len() < self.settings.held_max || self.evict_behind(live.due_key(), now) {
            self.held.insert(live.id.seq, Held { live, stage: Stage::Timed });
            self.timers.insert(live.due_key());
        } else {
            self.leave_to_load(live.due_key(), now);
        }
    }

    /// Forgets the timer with the latest due time if it is behind `key`. It is asked for again later.
    fn evict_behind(&mut self, key: DueKey, now: Timestamp) -> bool {
        let Some(last) = self.timers.last().copied().filter(|last| *last > key) else { return false };
        self.timers.remove(&last);
        self.held.remove(&last.seq);
        self.leave_to_load(last, now);
        true
    }

    /// The message with this key is not held: a later load must bring it.
    fn leave_to_load(&mut self, key: DueKey, now: Timestamp) {
        self.loaded = before(key).min(self.loaded);
        self.load_not_before = now.plus_millis(FULL_PAUSE_MS);
    }

    /// A held or new message is due: into its lane, or back to the store when the lane is full. What is
    /// due goes before what is not: a full shard forgets its latest timer.
    fn make_ready(&mut self, live: Live, now: Timestamp) {
        if self.held.len() >= self.settings.held_max {
            self.evict_behind(live.due_key(), now);
        }
        if self.lanes.push(&live, self.held.len()) {
            self.held.insert(live.id.seq, Held { live, stage: Stage::Ready });
        } else {
            self.held.remove(&live.id.seq);
        }
    }

    /// Starts whatever may start. `fresh` has just been published and need not be read again.
    fn dispatch(&mut self, fresh: Option<&Arc<Message>>, now: Timestamp, out: &mut Output) {
        if self.draining {
            return;
        }
        let held = &self.held;
        let is_ready = |seq: Seq| held.get(&seq).filter(|held| held.stage == Stage::Ready).map(|held| held.live);
        let mut started = Vec::new();
        while let Some(live) = self.lanes.start(is_ready) {
            started.push(live);
        }
        for live in started {
            if let Some(held) = self.held.get_mut(&live.id.seq) {
                held.stage = Stage::InFlight;
            }
            out.log(live.tenant, live.id, now, State::Active, EventDetail::default());
            let message = fresh.filter(|message| message.id == live.id).cloned();
            out.effects.push(Effect::Start { live, message });
        }
    }

    fn end_cancelled(&mut self, live: &Live, outcome: Outcome, now: Timestamp, out: &mut Output) {
        let detail = if outcome.verdict() == Verdict::Success {
            delivered_detail(outcome)
        } else {
            let (_, detail) = failed_detail(outcome);
            out.log(live.tenant, live.id, now, State::Error, detail);
            EventDetail::default()
        };
        out.log(live.tenant, live.id, now, State::Canceled, detail);
        out.ops.push(Op::Remove { id: live.id });
    }
}

/// The key right before this one.
fn before(key: DueKey) -> DueKey {
    match key.seq.0.checked_sub(1) {
        Some(seq) => DueKey { due: key.due, seq: Seq(seq) },
        None => DueKey { due: key.due.minus_millis(1), seq: Seq::MAX },
    }
}

/// The key right behind this one.
fn after(key: DueKey) -> DueKey {
    DueKey { due: key.due, seq: Seq(key.seq.0 + 1) }
}

fn end_waiting(live: &Live, now: Timestamp, out: &mut Output) {
    out.log(live.tenant, live.id, now, State::Canceled, EventDetail::default());
    out.ops.push(Op::Remove { id: live.id });
}

fn bury(live: &Live, outcome: Outcome, now: Timestamp, out: &mut Output) {
    let dlq_id = DlqId { at: now, n: live.id.seq.0 };
    let (response, detail) = failed_detail(outcome);
    let error = detail.error.clone();
    let last = EventDetail { dlq_id: Some(dlq_id.to_string()), error: error.clone(), ..EventDetail::default() };
    out.log(live.tenant, live.id, now, State::Error, detail);
    out.log(live.tenant, live.id, now, State::Failed, last);
    let (tenant, id, retried) = (live.tenant, live.id, live.retried);
    out.ops.push(Op::Bury(DeadLetter { dlq_id, tenant, id, retried, error, response }));
}

/// A success is logged by its status and duration alone.
fn delivered_detail(outcome: Outcome) -> EventDetail {
    let status = outcome.result.map_or(0, |response| response.status);
    let response = Some(Arc::new(Response { status, ..Response::default() }));
    EventDetail { response, duration_ms: Some(outcome.duration_ms), ..EventDetail::default() }
}

/// The whole answer, and what a log line keeps of it.
fn failed_detail(outcome: Outcome) -> (Option<Arc<Response>>, EventDetail) {
    let duration_ms = Some(outcome.duration_ms);
    match outcome.result {
        Err(error) => (None, EventDetail { error: Some(error.message), duration_ms, ..EventDetail::default() }),
        Ok(response) => {
            let response = Arc::new(response);
            let kept = if response.body.len() <= LOG_RESPONSE_BYTES_MAX {
                response.clone()
            } else {
                let body = response.body[..LOG_RESPONSE_BYTES_MAX].to_vec();
                Arc::new(Response { status: response.status, headers: response.headers.clone(), body, truncated: true })
            };
            (Some(response), EventDetail { response: Some(kept), duration_ms, ..EventDetail::default() })
        }
    }
}
