//! The store of the simulation: applies ops in place, grants leases by its own clock, and forgets what was
//! committed lazily when the power is cut.

mod facts;
mod runs;

use bytes::Bytes;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{Event, Op, State};
use posthaste_engine::flow::Flow;
use posthaste_engine::lease::Lease;
use posthaste_engine::limits::DEDUP_WINDOW_MS;
use posthaste_engine::message::{DedupKey, FlowKey, Live, Message, QueueKey};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::shard::{Lane, LaneKey, Load, Source};
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::{Note, NoteKey};
use posthaste_engine::workflow::run::Run;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a commit failed, as far as its owner can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitError {
    /// There is a newer owner.
    Fenced,
    /// It may or may not be written.
    Unknown,
    /// Nothing was written.
    Unavailable,
}

/// How far ahead a clock may have been that was put back, so that its duplicate windows count all the same.
const DEDUP_CLOCK_TOLERANCE_MS: u64 = 3_600_000;

/// Whether a duplicate window that ends at `expires` counts at `now`: the rule of every store.
pub(crate) fn window_counts(expires: Timestamp, now: Timestamp) -> bool {
    now < expires && expires <= now.plus_millis(DEDUP_WINDOW_MS + DEDUP_CLOCK_TOLERANCE_MS)
}

/// Something of a tenant that has a name.
pub(crate) type Named = (TenantId, String);
/// A firing: whose, which schedule, of which generation, for which time.
pub(crate) type Fired = (TenantId, String, u64, Timestamp);

/// Everything that is stored.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub lease: Option<Lease>,
    pub is_full: bool,
    pub messages: BTreeMap<Seq, Arc<Message>>,
    pub live: BTreeMap<Seq, Live>,
    /// The last log line of each message.
    pub states: BTreeMap<MessageId, State>,
    pub dedup: BTreeMap<(TenantId, DedupKey), Vec<(MessageId, Timestamp)>>,
    pub dead_letters: BTreeMap<(TenantId, DlqId), Arc<Message>>,
    pub queues: BTreeMap<(TenantId, QueueKey), Queue>,
    pub flows: BTreeMap<(TenantId, FlowKey), Flow>,
    pub schedules: BTreeMap<Named, Schedule>,
    /// How often a schedule of this name was dropped.
    pub dropped: BTreeMap<Named, u64>,
    pub fired: BTreeMap<Fired, Timestamp>,
    pub bulk_actions: BTreeMap<Seq, BulkAction>,
    pub runs: BTreeMap<Seq, Arc<Run>>,
    pub entries: BTreeMap<(Seq, u32), Entry>,
    /// The bytes of each entry.
    pub bodies: BTreeMap<(Seq, u32), Bytes>,
    pub notes: BTreeMap<(Seq, NoteKey), Note>,
    /// Who waits for which event: whose, its name, the message of the deadline, and the run.
    pub waiters: BTreeMap<(TenantId, String, MessageId), Seq>,
    pub last_seq: Seq0,
    /// How to take back what is not on disk yet, in the order in which it was written.
    undo: Vec<Undo>,
}

/// A position that begins before every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seq0(pub Seq);

impl Default for Seq0 {
    fn default() -> Seq0 {
        Seq0(Seq::MIN)
    }
}

/// What was there before an op changed it.
#[derive(Debug)]
enum Undo {
    Message(Seq, Seq0),
    Live(Seq, Option<Live>),
    State(MessageId, Option<State>),
    Dedup((TenantId, DedupKey)),
    DeadLetter((TenantId, DlqId), Option<Arc<Message>>),
    Queue((TenantId, QueueKey), Option<Queue>),
    Flow((TenantId, FlowKey), Option<Flow>),
    Schedule(Named, Option<Box<Schedule>>),
    Dropped(Named),
    Fired(Fired),
    Bulk(Seq, Option<Box<BulkAction>>, Seq0),
    Run(Seq, Option<Arc<Run>>),
    Entry((Seq, u32), Option<Box<Entry>>),
    Body((Seq, u32), Option<Bytes>),
    Note((Seq, NoteKey), Option<Note>),
    Waiter((TenantId, String, MessageId), Option<Seq>),
}

impl Store {
    pub(crate) fn epoch(&self) -> u64 {
        self.lease.map_or(0, |lease| lease.epoch)
    }

    /// Everything written so far survives a power cut.
    pub(crate) fn sync(&mut self) {
        self.undo.clear();
    }

    /// What was not on disk is gone.
    pub(crate) fn power_cut(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Message(seq, last_seq) => {
                    self.messages.remove(&seq);
                    self.last_seq = last_seq;
                }
                Undo::Live(key, before) => restore(&mut self.live, key, before),
                Undo::State(key, before) => restore(&mut self.states, key, before),
                Undo::Dedup(key) => drop(self.dedup.get_mut(&key).and_then(Vec::pop)),
                Undo::DeadLetter(key, before) => restore(&mut self.dead_letters, key, before),
                Undo::Queue(key, before) => restore(&mut self.queues, key, before),
                Undo::Flow(key, before) => restore(&mut self.flows, key, before),
                Undo::Schedule(key, before) => restore(&mut self.schedules, key, before.map(|before| *before)),
                Undo::Dropped(key) => *self.dropped.entry(key).or_default() -= 1,
                Undo::Fired(key) => drop(self.fired.remove(&key)),
                Undo::Bulk(id, before, last_seq) => {
                    restore(&mut self.bulk_actions, id, before.map(|before| *before));
                    self.last_seq = last_seq;
                }
                Undo::Run(key, before) => restore(&mut self.runs, key, before),
                Undo::Entry(key, before) => restore(&mut self.entries, key, before.map(|before| *before)),
                Undo::Body(key, before) => restore(&mut self.bodies, key, before),
                Undo::Note(key, before) => restore(&mut self.notes, key, before),
                Undo::Waiter(key, before) => restore(&mut self.waiters, key, before),
            }
        }
    }

    /// Whether a power cut would take this message with it.
    pub(crate) fn is_on_disk(&self, id: MessageId) -> bool {
        let is_it = |undo: &Undo| matches!(undo, Undo::Message(seq, _) if *seq == id.seq);
        self.message(id).is_some() && !self.undo.iter().any(is_it)
    }

    /// Whether a power cut would take the last state of this message with it.
    pub(crate) fn is_state_on_disk(&self, id: MessageId) -> bool {
        !self.undo.iter().any(|undo| matches!(undo, Undo::State(other, _) if *other == id))
    }

    /// Whether a power cut would leave this bulk action as it is.
    pub(crate) fn is_bulk_on_disk(&self, id: Seq) -> bool {
        !self.undo.iter().any(|undo| matches!(undo, Undo::Bulk(other, ..) if *other == id))
    }

    /// Whether a power cut would leave the row of this message as it is.
    pub(crate) fn is_row_on_disk(&self, id: MessageId) -> bool {
        !self.undo.iter().any(|undo| matches!(undo, Undo::Live(seq, _) if *seq == id.seq))
    }

    /// Whether a power cut would leave this schedule as it is.
    pub(crate) fn is_schedule_on_disk(&self, key: &Named) -> bool {
        !self.undo.iter().any(|undo| matches!(undo, Undo::Schedule(other, _) if other == key))
    }

    pub(crate) fn message(&self, id: MessageId) -> Option<&Arc<Message>> {
        self.messages.get(&id.seq).filter(|message| message.id == id)
    }

    pub(crate) fn live_row(&self, id: MessageId) -> Option<Live> {
        self.live.get(&id.seq).copied().filter(|live| live.id == id)
    }

    /// Does what an op says; or says why it makes no sense.
    pub(crate) fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Insert { message, live } => {
                let id = message.id;
                if self.messages.insert(id.seq, message.clone()).is_some() {
                    return Err(format!("{id} takes a position that is taken"));
                }
                self.undo.push(Undo::Message(id.seq, self.last_seq));
                self.last_seq = Seq0(self.last_seq.0.max(id.seq));
                self.put_live(id.seq, Some(*live));
            }
            Op::PutDedupKey { tenant, key, id, expires } => {
                self.dedup.entry((*tenant, *key)).or_default().push((*id, *expires));
                self.undo.push(Undo::Dedup((*tenant, *key)));
            }
            Op::Log(Event { id, state, .. }) => {
                let before = self.states.insert(*id, *state);
                self.undo.push(Undo::State(*id, before));
            }
            Op::Update(live) => {
                self.live_row(live.id).ok_or_else(|| format!("{} has no live row to update", live.id))?;
                self.put_live(live.id.seq, Some(*live));
            }
            Op::Remove { id } => {
                self.live_row(*id).ok_or_else(|| format!("{id} has no live row to remove"))?;
                self.put_live(id.seq, None);
            }
            Op::InsertDeadLetter(letter) => {
                self.live_row(letter.id).ok_or_else(|| format!("{} has no live row to bury", letter.id))?;
                self.put_live(letter.id.seq, None);
                let message = self.message(letter.id).ok_or_else(|| format!("{} is missing", letter.id))?.clone();
                if self.put_dead_letter((letter.tenant, letter.dlq_id), Some(message)).is_some() {
                    return Err(format!("the dead letter {} is taken", letter.dlq_id));
                }
            }
            Op::DeleteDeadLetter { tenant, dlq_id } => {
                if self.put_dead_letter((*tenant, *dlq_id), None).is_none() {
                    return Err(format!("the dead letter {dlq_id} is missing"));
                }
            }
            Op::PutQueue(queue) => {
                self.put_queue((queue.tenant, QueueKey::of(queue.tenant, &queue.name)), Some(queue.clone()));
            }
            Op::DropQueue { tenant, name } => self.drop_queue(*tenant, name)?,
            Op::PutFlow(flow) => self.put_flow((flow.tenant, FlowKey::of(flow.tenant, &flow.key)), Some(flow.clone())),
            Op::DropFlow { tenant, key } => self.drop_flow(*tenant, key)?,
            Op::PutSchedule(schedule) => {
                self.put_schedule((schedule.tenant, schedule.id.clone()), Some(schedule.as_ref().clone()));
            }
            Op::SetSchedule { tenant, id, state } => {
                let key = (*tenant, id.clone());
                let before = self.schedules.get(&key).ok_or_else(|| format!("schedule {id} is missing"))?;
                let after = Schedule { state: state.clone(), ..before.clone() };
                self.put_schedule(key, Some(after));
            }
            Op::DropSchedule { tenant, id } => {
                let key = (*tenant, id.clone());
                self.schedules.get(&key).ok_or_else(|| format!("schedule {id} is missing"))?;
                *self.dropped.entry(key.clone()).or_default() += 1;
                self.undo.push(Undo::Dropped(key.clone()));
                self.put_schedule(key, None);
            }
            Op::PutBulkAction(action) => {
                let before = self.bulk_actions.insert(action.id, action.clone());
                self.undo.push(Undo::Bulk(action.id, before.map(Box::new), self.last_seq));
                self.last_seq = Seq0(self.last_seq.0.max(action.id));
            }
            Op::Workflow(change) => self.apply_to_run(change)?,
        }
        Ok(())
    }

    /// A schedule has fired for this time; says when it did so before.
    pub(crate) fn note_firing(&mut self, fired: Fired, now: Timestamp) -> Option<Timestamp> {
        self.undo.push(Undo::Fired(fired.clone()));
        self.fired.insert(fired, now)
    }

    fn put_live(&mut self, seq: Seq, live: Option<Live>) {
        let before = put(&mut self.live, seq, live);
        self.undo.push(Undo::Live(seq, before));
    }

    fn put_dead_letter(&mut self, key: (TenantId, DlqId), letter: Option<Arc<Message>>) -> Option<Arc<Message>> {
        let before = put(&mut self.dead_letters, key, letter);
        self.undo.push(Undo::DeadLetter(key, before.clone()));
        before
    }

    fn put_queue(&mut self, key: (TenantId, QueueKey), queue: Option<Queue>) {
        let before = put(&mut self.queues, key, queue);
        self.undo.push(Undo::Queue(key, before));
    }

    fn drop_queue(&mut self, tenant: TenantId, name: &str) -> Result<(), String> {
        let key = (tenant, QueueKey::of(tenant, name));
        let is_own = |row: &Live| row.tenant == tenant && row.place.is_some_and(|place| place.queue == key.1);
        if self.live.values().any(is_own) {
            return Err(format!("queue {name} goes although it has messages"));
        }
        self.put_queue(key, None);
        Ok(())
    }

    fn put_flow(&mut self, key: (TenantId, FlowKey), flow: Option<Flow>) {
        let before = put(&mut self.flows, key, flow);
        self.undo.push(Undo::Flow(key, before));
    }

    fn drop_flow(&mut self, tenant: TenantId, name: &str) -> Result<(), String> {
        let key = (tenant, FlowKey::of(tenant, name));
        if self.live.values().any(|row| row.tenant == tenant && row.flow == Some(key.1)) {
            return Err(format!("key {name} is forgotten although it has messages"));
        }
        self.put_flow(key, None);
        Ok(())
    }

    fn put_schedule(&mut self, key: Named, schedule: Option<Schedule>) {
        let before = put(&mut self.schedules, key.clone(), schedule);
        self.undo.push(Undo::Schedule(key, before.map(Box::new)));
    }

    /// The live rows that the engine asks for.
    pub(crate) fn load(&self, load: &Load) -> Vec<Live> {
        let mut rows: Vec<Live>;
        match load.source {
            Source::Due { lane, after, until } => {
                let is_meant =
                    |row: &&Live| row.place.is_none() && row.due <= until && row.due_key() > after && is_in(row, lane);
                rows = self.live.values().filter(is_meant).copied().collect();
                rows.sort_unstable_by_key(Live::due_key);
            }
            Source::Queue { tenant, queue, after } => {
                let key = |row: &Live| {
                    row.place
                        .filter(|place| place.queue == queue && row.tenant == tenant)
                        .map(|place| (place.turn, row.id.seq))
                };
                rows = self.live.values().filter(|row| key(row).is_some_and(|key| key > after)).copied().collect();
                rows.sort_unstable_by_key(key);
            }
            Source::Callbacks { after } => {
                let is_callback = |row: &Live| row.place.is_some_and(|place| place.turn.seq != row.id.seq);
                let is_meant = |row: &&Live| is_callback(row) && row.id.seq > after;
                rows = self.live.values().filter(is_meant).copied().collect();
                rows.sort_unstable_by_key(|row| row.id.seq);
            }
        }
        rows.truncate(load.max);
        rows
    }

    pub(crate) fn find_duplicate(&self, tenant: TenantId, key: DedupKey, now: Timestamp) -> Option<MessageId> {
        let windows = self.dedup.get(&(tenant, key))?.iter();
        let counting = windows.filter(|(_, expires)| window_counts(*expires, now));
        counting.max_by_key(|(_, expires)| *expires).map(|(id, _)| *id)
    }
}

fn is_in(row: &Live, lane: Option<LaneKey>) -> bool {
    match lane {
        None => true,
        Some((tenant, Lane::Origin(origin))) => row.tenant == tenant && row.origin == origin,
        Some((tenant, Lane::Flow(flow))) => row.tenant == tenant && row.flow == Some(flow),
    }
}

fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

fn restore<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, before: Option<V>) {
    drop(put(map, key, before));
}
