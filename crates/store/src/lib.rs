//! Durable storage: every write of the system is one [`Store::commit`]. This crate makes no decisions about messages,
//! has no network and no async runtime, and reads no wall clock: `now` is an argument.
//!
//! Calls block, so they are made by the core thread and by `spawn_blocking`. Start with [`Store`], the trait. The
//! backends are [`sqlite`] (the embedded database), [`journal`] (the default: a journal in front of it) and [`memory`]
//! (the reference model for tests). One conformance suite in `tests/store` runs on all of them and specifies the trait.
//!
//! Modules:
//!
//! - `journal`: the default backend: committed batches in files, in front of SQLite
//! - `sqlite`: the embedded database: schema, upgrades, writes, queries, retention
//! - `memory`: the reference model
//! - `page`, `filter`, `run_filter`, `names`: lists and their filters
//! - `run`: entries of runs
//! - `bucket`: history by time
//! - `weight`, `usage`: bytes of a row in RAM, and stored bytes per tenant

pub mod journal;
pub mod memory;
pub mod sqlite;

mod bucket;
mod filter;
mod names;
mod page;
mod run;
mod run_filter;
mod usage;
pub mod weight;

pub use filter::{EventFilter, Filter, Order};
pub use names::{ListedSchedule, NamePage, Names};
pub use run_filter::{RunFilter, UrlFilter};
pub use usage::DiskOutlook;
pub use usage::json_row_bytes;

use bytes::Bytes;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{DeadLetter, Event, Op, Response, State};
use posthaste_engine::flow::Flow;
use posthaste_engine::limits;
use posthaste_engine::message::{DedupKey, FlowKey, Live, Message, QueueKey};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_engine::shard::Load;
use posthaste_engine::url_group::{Edit, Refused, UrlGroup};
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::NoteKey;
use posthaste_engine::workflow::run::{Run, Wait};
use posthaste_engine::workflow::{Record, Waiter, Workflow};
use posthaste_faults::panics::end_process;
use posthaste_wire::id::{DlqId, MessageId, Position, Seq, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Durable storage for one or more shards. Every method is one transaction; `now` is an argument.
pub trait Store: Send + Sync {
    /// Takes ownership of a shard for this process. Commits with an older epoch are rejected from then on.
    fn lease(&self, shard: ShardId, now: Timestamp) -> Result<Epoch, StoreError>;

    /// Writes a batch of ops in order, all or nothing. With [`Durability::Synced`] it returns only when the batch would
    /// survive a power cut. A lazy batch survives a crash of the process and becomes durable with the next synced one.
    fn commit(&self, shard: ShardId, epoch: Epoch, ops: &[Op], durability: Durability) -> Result<(), StoreError>;

    /// Makes all earlier commits survive a power cut.
    fn flush(&self) -> Result<(), StoreError>;

    /// The live rows for the engine, in the order that [`Source`] defines, at most `load.max`. All rows of an origin
    /// are in its lane, including those with a flow-control key.
    ///
    /// [`Source`]: posthaste_engine::shard::Source
    fn load(&self, shard: ShardId, load: &Load) -> Result<Vec<Live>, StoreError>;

    /// The messages with these ids, in the same order. A missing message means that the store is corrupt.
    fn load_messages(&self, ids: &[MessageId]) -> Result<Vec<Arc<Message>>, StoreError>;

    /// One message for display; `None` if the tenant does not have it or no longer has it.
    fn find_message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<Arc<Message>>, StoreError>;

    /// The highest position that was given to a message, an entry of a run or a bulk action. Ids therefore never repeat
    /// across restarts.
    fn last_seq(&self) -> Result<Seq, StoreError>;

    /// The messages of these duplicate keys, in the same order. A window does not count if it has ended, or if it was
    /// started by a clock so far ahead that it would swallow publishes for days.
    fn find_duplicates(
        &self,
        keys: &[(TenantId, DedupKey)],
        now: Timestamp,
    ) -> Result<Vec<Option<MessageId>>, StoreError>;

    /// The live rows of these messages. Absent rows are skipped.
    fn find_live(&self, tenant: TenantId, ids: &[MessageId]) -> Result<Vec<Live>, StoreError>;

    /// Matching live messages with a position after `after`, oldest first, at most `max`. Dates apply to the creation
    /// time. If the filter names a queue or a flow-control key, both the message and its live row must name it.
    fn match_live(&self, tenant: TenantId, filter: &Filter, after: Seq, max: usize) -> Result<Vec<Live>, StoreError>;

    /// A message, or its head, with its live row or its end, as long as its history is kept.
    fn message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<MessageRecord>, StoreError>;

    /// One page of log lines. Dates apply to the event time.
    fn list_events(
        &self,
        tenant: TenantId,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRecord>, StoreError>;

    /// One dead letter.
    fn dead_letter(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<DeadLetterRecord>, StoreError>;

    /// The existing ids among these dead letters, in the same order.
    fn find_dead_letters(&self, tenant: TenantId, ids: &[DlqId]) -> Result<Vec<DlqId>, StoreError>;

    /// One page of dead letters. Dates apply to the time of failure.
    fn list_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Page<DeadLetterRecord>, StoreError>;

    /// Passes dead letters without the bodies of their messages to `visit` until it breaks. `page` defines the order
    /// and the cursor; its count is ignored. Dates apply to the time of failure. The visitor must apply the rest of the
    /// filter.
    fn visit_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
        visit: &mut VisitDeadLetter<'_>,
    ) -> Result<(), StoreError>;

    /// The secret of this store, which never leaves it. The first call stores `fresh`; all calls return the stored
    /// secret.
    fn secret(&self, fresh: &[u8; 32]) -> Result<[u8; 32], StoreError>;

    /// The number of a tenant name in this store, assigned at first use.
    fn tenant(&self, name: &str) -> Result<TenantId, StoreError>;

    /// The tenant's signing keys, if any were stored.
    fn signing_keys(&self, tenant: TenantId) -> Result<Option<SigningKeys>, StoreError>;

    /// All tenants that have stored signing keys, including those that are no longer configured.
    fn tenants_with_keys(&self) -> Result<Vec<TenantId>, StoreError>;

    /// Replaces the tenant's signing keys, durably.
    fn put_signing_keys(&self, tenant: TenantId, keys: &SigningKeys) -> Result<(), StoreError>;

    /// One page of the tenant's URL groups, by name.
    fn url_groups(&self, tenant: TenantId, page: &NamePage) -> Result<Names<UrlGroup>, StoreError>;

    /// How many URL groups the tenant has.
    fn url_group_count(&self, tenant: TenantId) -> Result<usize, StoreError>;

    /// One URL group.
    fn url_group(&self, tenant: TenantId, name: &str) -> Result<Option<UrlGroup>, StoreError>;

    /// Changes a URL group with [`UrlGroup::edited`], durably.
    fn edit_url_group(
        &self,
        tenant: TenantId,
        name: &str,
        edit: &Edit,
        now: Timestamp,
    ) -> Result<Result<(), Refused>, StoreError>;

    /// The queues of a tenant by name, or those of all tenants, tenant by tenant.
    fn queues(&self, tenant: Option<TenantId>) -> Result<Vec<Queue>, StoreError>;

    /// One page of a tenant's queues by name, without deleted ones.
    fn list_queues(&self, tenant: TenantId, page: &NamePage) -> Result<Names<Queue>, StoreError>;

    /// One queue.
    fn queue(&self, tenant: TenantId, name: &str) -> Result<Option<Queue>, StoreError>;

    /// How many messages each of these queues has, not counting callbacks that hold a slot.
    fn queue_lags(&self, tenant: TenantId, queues: &[QueueKey]) -> Result<Vec<u64>, StoreError>;

    /// All flow-control keys of all tenants.
    fn flows(&self) -> Result<Vec<Flow>, StoreError>;

    /// How many live messages of each of these keys are due at `until` or earlier.
    fn flow_loads(&self, tenant: TenantId, flows: &[FlowKey], until: Timestamp) -> Result<Vec<u64>, StoreError>;

    /// Like [`Store::flow_loads`], but without the messages listed with each key, which are in flight. It uses one
    /// snapshot: a message that has ended in the meantime is neither counted nor subtracted.
    fn flow_waiting(
        &self,
        tenant: TenantId,
        flows: &[(FlowKey, Vec<MessageId>)],
        until: Timestamp,
    ) -> Result<Vec<u64>, StoreError>;

    /// One page of the schedules of a tenant, by id. A body that does not fit into the rest of `limits::PAGE_BYTES_MAX`
    /// is not read, but its schedule is still on the page.
    fn schedules(&self, tenant: TenantId, page: &NamePage) -> Result<Names<ListedSchedule>, StoreError>;

    /// One schedule.
    fn schedule(&self, tenant: TenantId, id: &str, part: Part) -> Result<Option<Schedule>, StoreError>;

    /// The state of each schedule of all tenants.
    fn schedule_states(&self) -> Result<Vec<(TenantId, String, ScheduleState)>, StoreError>;

    /// The bulk actions of a tenant that started before `before`, newest first, at most `max`.
    fn bulk_actions(&self, tenant: TenantId, before: Option<Seq>, max: usize) -> Result<Vec<BulkAction>, StoreError>;

    /// One bulk action.
    fn bulk_action(&self, tenant: TenantId, id: Seq) -> Result<Option<BulkAction>, StoreError>;

    /// The unfinished bulk actions of all tenants.
    fn unfinished_bulk_actions(&self) -> Result<Vec<UnfinishedAction>, StoreError>;

    /// The newest run of this name, or the one with this time of creation. A live run is always the newest.
    fn find_run(
        &self,
        tenant: TenantId,
        id: &str,
        created_at: Option<Timestamp>,
        pool: ReadPool,
    ) -> Result<Option<Seq>, StoreError>;

    /// A run with all its entries, for the engine's decisions; `None` if its first entry is missing.
    fn workflow(&self, tenant: TenantId, run: Seq) -> Result<Option<Workflow>, StoreError>;

    /// Like [`Store::workflow`], but with all notes.
    fn run_record(&self, tenant: TenantId, run: Seq, pool: ReadPool) -> Result<Option<Record>, StoreError>;

    /// The entries of a run with their bytes; `None` if the run does not exist.
    fn run_entries(
        &self,
        tenant: TenantId,
        run: Seq,
        pool: ReadPool,
    ) -> Result<Option<Vec<(Entry, Bytes)>>, StoreError>;

    /// The entries of a run that are steps of this kind, with their bytes; empty if the run does not exist. If the run
    /// is being dropped, some entries may remain.
    fn run_steps(&self, tenant: TenantId, run: Seq, kind: &'static str) -> Result<Vec<(Entry, Bytes)>, StoreError>;

    /// The body of a note of a run, for the shard's owner. A missing note means that the store is corrupt.
    fn note_body(&self, run: Seq, key: NoteKey) -> Result<Bytes, StoreError>;

    /// The runs that wait for an event, in the order in which they started to wait.
    fn waiters(&self, tenant: TenantId, event: &str, max: usize) -> Result<Vec<Waiter>, StoreError>;

    /// The waits for an event in the order in which they started, after the one with the timer `after`. Returns at most
    /// `max`, and fewer if they exceed `limits::PAGE_BYTES_MAX` bytes.
    fn waits(&self, tenant: TenantId, event: &str, after: Seq, max: usize) -> Result<Vec<ListedWait>, StoreError>;

    /// Matching live runs with a position after `after`, oldest first, at most `max`.
    fn match_runs(&self, tenant: TenantId, filter: &RunFilter, after: Seq, max: usize) -> Result<Vec<Seq>, StoreError>;

    /// One page of runs, by creation. The position of a run consists of its time of creation and `no`, which never
    /// change, so pages show every run once even while others are created. Dates apply to that time. The bodies of a
    /// run are left out if they were not requested or exceed `limits::RUN_SHOWN_BYTES_MAX` bytes.
    fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Record>, StoreError>;

    /// One page of the runs in the DLQ, by their DLQ ids. Dates apply to the time of failure.
    fn list_failed_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &PageRequest,
    ) -> Result<Page<FailedRun>, StoreError>;

    /// The run with this DLQ id.
    fn find_failed_run(&self, tenant: TenantId, dlq_id: DlqId, pool: ReadPool) -> Result<Option<Seq>, StoreError>;

    /// The run with this DLQ id, as the DLQ shows it.
    fn failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<FailedRun>, StoreError>;

    /// Drops whole buckets of history and dead letters that are older than the policy allows, after moving the rows
    /// that are still needed. An ended run is dropped with its entries at its own time: as history, or as a dead letter
    /// while it is in the DLQ. Finished bulk actions are dropped after `limits::BULK_ACTION_MS`. Each call does a
    /// bounded amount of work and returns whether more remains.
    fn retain(&self, policy: &Retention, now: Timestamp) -> Result<Retained, StoreError>;

    /// The number of live runs of all tenants. Walks an index of all of them, so call it only at start-up.
    fn live_runs(&self) -> Result<u64, StoreError>;

    /// The number of failed runs in the DLQ, of all tenants. Walks an index of all of them, so call it only at
    /// start-up.
    fn failed_runs(&self) -> Result<u64, StoreError>;

    /// Counts a tenant's objects that need attention, each up to `max`. The cost does not grow with other tenants'
    /// data. If other tenants have messages for very many destinations or queues, the result says that there may be
    /// more.
    fn tally(&self, tenant: TenantId, max: u64) -> Result<Tally, StoreError>;

    /// The amount of stored data. Cheap enough for every scrape of the metrics.
    fn counts(&self) -> Result<Counts, StoreError>;

    /// How the free space of the disk will change, readable at any time. Returns a separate object, because the store
    /// itself must be dropped together with its last owner.
    fn disk_outlook(&self) -> Arc<DiskOutlook> {
        Arc::default()
    }

    /// The stored bytes of a tenant: bodies, settings and log lines of messages, dead letters, schedules, runs, URL
    /// groups and bulk actions. Cheap enough for every publish.
    fn stored_bytes(&self, tenant: TenantId) -> u64;

    /// Returns an error if a background write has failed. The caller must stop.
    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Proves that a write would be accepted, without storing anything.
    fn probe(&self) -> Result<(), StoreError>;
}

/// Which read connections to use. The core has its own, so it never waits for API queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPool {
    /// The connection of the core thread.
    Core,
    /// The connections that API queries share.
    Queries,
}

/// A part of the keys and messages, owned by one process at a time. The embedded store has one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// Counts the owners of a shard. Writes by an earlier owner are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// When [`Store::commit`] may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Written, but a power cut may undo it. Use it for work that would simply be repeated.
    Lazy,
    /// On disk.
    Synced,
}

/// A stored message with its live row or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRecord {
    /// The message.
    pub message: Arc<Message>,
    /// Its live row; `None` once it has ended.
    pub live: Option<Live>,
    /// When it ended; `None` while it is live.
    pub ended_at: Option<Timestamp>,
    /// Its last state, once it has ended.
    pub final_state: Option<State>,
}

/// A log line with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The position of the line in the log, and its cursor.
    pub position: Position,
    /// The event.
    pub event: Event,
    /// The message of the event.
    pub message: Arc<Message>,
}

/// Which part of a message to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything except the body, which may be large; it is replaced by an empty one.
    Head,
    /// The whole message.
    Whole,
}

impl Part {
    /// The requested part of a message that is in memory.
    fn of(self, message: Arc<Message>) -> Arc<Message> {
        match self {
            Part::Head => Arc::new(Message { body: Bytes::new(), ..Message::clone(&message) }),
            Part::Whole => message,
        }
    }
}

/// A dead letter with the message that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterRecord {
    /// The failure and the last response.
    pub letter: DeadLetter,
    /// The message as published.
    pub message: Arc<Message>,
}

/// Receives a dead letter and its message without the body, and returns whether to continue.
pub type VisitDeadLetter<'a> = dyn FnMut(&DeadLetter, &Message) -> ControlFlow<()> + 'a;

/// A run's wait for an event, with the displayed details of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedWait {
    /// The URL of the run's endpoint.
    pub url: String,
    /// The fields that API responses about the run must hide.
    pub redact: RedactFields,
    /// The wait.
    pub wait: Wait,
}

impl ListedWait {
    /// Keeps the first waits that fit on a page, but always at least one.
    fn fit(waits: &mut Vec<ListedWait>) {
        let mut bytes = 0;
        let fits = |listed: &&ListedWait| {
            bytes += weight::of_wait(&listed.wait);
            bytes <= limits::PAGE_BYTES_MAX
        };
        let count = waits.iter().take_while(fits).count();
        waits.truncate(count.max(1));
    }
}

/// A run in the DLQ, with its displayed details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRun {
    /// The run.
    pub run: Run,
    /// Its first entry.
    pub first: Entry,
    /// The bytes of the first entry: the payload of the trigger.
    pub payload: Bytes,
    /// The entry whose delivery failed.
    pub failed: Entry,
    /// The last response of that entry, or the error in its place.
    pub answer: Option<Arc<Response>>,
    /// The last response of the failure callback.
    pub told: Option<Arc<Response>>,
}

/// Selects a page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Continue after this position, which the previous page returned.
    pub cursor: Option<Position>,
    /// At most this many entries. A page may be shorter: it also ends at `limits::PAGE_BYTES_MAX`, and after
    /// `skips_max` entries that did not match.
    pub count: usize,
    /// The order of the list.
    pub order: Order,
    /// How many entries that do not match a page may skip.
    pub skips_max: usize,
    /// Whether to include bodies: those of messages, or of runs.
    pub part: Part,
}

impl PageRequest {
    /// A page that may skip as many entries as any page.
    pub fn new(cursor: Option<Position>, count: usize, order: Order) -> PageRequest {
        PageRequest { cursor, count, order, skips_max: limits::PAGE_SKIPS_MAX, part: Part::Whole }
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries, in the requested order.
    pub entries: Vec<T>,
    /// Where the next page starts; `None` if this is the last one.
    pub next: Option<Position>,
}

/// A tenant's two signing keys. Their debug output does not show them.
pub use posthaste_wire::signature::SigningKeys;

/// How long history and dead letters are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Ended messages and log lines.
    pub history_ms: u64,
    /// Dead letters.
    pub dlq_ms: u64,
}

/// An unfinished bulk action without its filter, which may be long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfinishedAction {
    /// Its tenant.
    pub tenant: TenantId,
    /// Its id.
    pub id: Seq,
    /// Most messages per second.
    pub rate: Option<u32>,
}

impl From<&BulkAction> for UnfinishedAction {
    fn from(action: &BulkAction) -> UnfinishedAction {
        let BulkAction { tenant, id, rate, .. } = *action;
        UnfinishedAction { tenant, id, rate }
    }
}

/// The result of one round of [`Store::retain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Dropped buckets.
    pub buckets_dropped: u32,
    /// Failed runs that left the DLQ.
    pub failed_runs_dropped: u64,
    /// More work is due: call again soon.
    pub more: bool,
}

/// The amount of stored data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that have not ended.
    pub live: u64,
    /// Dead letters.
    pub dead_letters: u64,
}

/// Counts of a tenant's objects that need attention. A count stops at the requested maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Dead letters.
    pub dead_letters: u64,
    /// When the oldest of them failed.
    pub oldest_dead_letter: Option<Timestamp>,
    /// Runs of workflows that are in the DLQ.
    pub failed_runs: u64,
    /// When the oldest of them failed.
    pub oldest_failed_run: Option<Timestamp>,
    /// Live workflow runs.
    pub live_runs: u64,
    /// Live messages, without steps of runs.
    pub live_messages: u64,
    /// Whether there may be more live messages, because there were too many messages and steps to count.
    pub more_live_messages: bool,
}

/// Why a call to the store failed. The variants differ in how the caller must react.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process owns the shard now: stop at once.
    #[error("the shard has a newer owner")]
    Fenced,
    /// The batch may or may not have been written: stop and recover.
    #[error("the store failed while writing")]
    Unknown(#[source] BoxError),
    /// Nothing was changed. The same call may work later.
    #[error("the store is unavailable")]
    Unavailable(#[source] BoxError),
    /// Written bytes can no longer be decoded: stop and alert a human.
    #[error("stored {what} is invalid")]
    Corrupt {
        /// The object that was being read.
        what: &'static str,
        /// The decoding error.
        #[source]
        source: BoxError,
    },
}

/// Any error, kept as a cause.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Queries for lists and pages that may run at once. There is one more reading connection, so that a look-up by key
/// always finds one.
pub const QUERIES_AT_ONCE_MAX: usize = 3;

/// The error for a message that must exist but does not.
fn absent(what: &'static str, id: MessageId) -> StoreError {
    StoreError::Corrupt { what, source: format!("{id} is missing").into() }
}

/// Locks a part of the stored state. If a thread panicked while it held the lock, the state may be half changed: for
/// example, a batch may have left the journal but not reached the database. Continuing would be unsafe, so the process
/// ends.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|_| end_process("a panic may have left the store half changed"))
}

/// Locks a connection that only reads. A panic rolls its transaction back, so the connection is still usable.
fn lock_reader<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far ahead a clock may have been before it was set back. Duplicate windows that end later than that are ignored.
const DEDUP_CLOCK_TOLERANCE_MS: u64 = 3_600_000;

/// Whether a duplicate window that ends at `expires` counts: it has not ended, and it was not started by a clock so far
/// ahead that it would swallow publishes for days.
fn duplicate_window_counts(expires: Timestamp, now: Timestamp) -> bool {
    now < expires && expires <= latest_duplicate_window(now)
}

fn latest_duplicate_window(now: Timestamp) -> Timestamp {
    now.plus_millis(limits::DEDUP_WINDOW_MS + DEDUP_CLOCK_TOLERANCE_MS)
}
