//! Durable storage: every write of the system is one [`Store::commit`]. It decides nothing about messages, has no network
//! and no async runtime, and reads no wall clock: `now` is passed in.
//!
//! Calls block; the core thread and `spawn_blocking` make them. Start with [`Store`], the trait. Backends: [`sqlite`] (the
//! embedded database), [`journal`] (the default: a journal in front of it) and [`memory`] (the reference model that tests
//! compare with). One conformance suite in `tests/store` runs on all of them and is the specification of the trait.

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

/// Durable storage for one or more shards. Every verb is one transaction; `now` is passed in.
pub trait Store: Send + Sync {
    /// Takes a shard for this process. Commits with an older epoch are refused from then on.
    fn lease(&self, shard: ShardId, now: Timestamp) -> Result<Epoch, StoreError>;

    /// Writes a batch of ops, all or nothing, in order. With [`Durability::Synced`] it returns only
    /// when the batch would survive a power cut; a lazy batch survives a crash of the process and
    /// becomes durable with the next synced one.
    fn commit(&self, shard: ShardId, epoch: Epoch, ops: &[Op], durability: Durability) -> Result<(), StoreError>;

    /// Makes everything committed so far survive a power cut.
    fn flush(&self) -> Result<(), StoreError>;

    /// The live rows that the engine asks for, in the order that [`Source`] says, at most `load.max`. All rows
    /// of an origin are in its lane, also those with a flow-control key.
    ///
    /// [`Source`]: posthaste_engine::shard::Source
    fn load(&self, shard: ShardId, load: &Load) -> Result<Vec<Live>, StoreError>;

    /// The messages themselves, in the order asked. A missing one means that the store is corrupt.
    fn load_messages(&self, ids: &[MessageId]) -> Result<Vec<Arc<Message>>, StoreError>;

    /// One of them for those who show it: `None` if the tenant does not have it, or no longer.
    fn find_message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<Arc<Message>>, StoreError>;

    /// The highest position handed out so far, to a message, an entry of a run or a bulk action, so that ids never
    /// repeat over restarts.
    fn last_seq(&self) -> Result<Seq, StoreError>;

    /// The messages that these keys stand for, in the order asked, unless their windows have
    /// ended, or were started by a clock so far ahead that they would swallow publishes for days.
    fn find_duplicates(
        &self,
        keys: &[(TenantId, DedupKey)],
        now: Timestamp,
    ) -> Result<Vec<Option<MessageId>>, StoreError>;

    /// The live rows of these messages; absent ones are skipped.
    fn find_live(&self, tenant: TenantId, ids: &[MessageId]) -> Result<Vec<Live>, StoreError>;

    /// Live messages created behind `after` that match, oldest first, at most `max`. Dates compare with the
    /// creation time. The live row of a message that names a queue or a flow-control key must name it too.
    fn match_live(&self, tenant: TenantId, filter: &Filter, after: Seq, max: usize) -> Result<Vec<Live>, StoreError>;

    /// A message, or its head, with what is known of its end, as long as its history is kept.
    fn message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<MessageRecord>, StoreError>;

    /// One page of log lines. Dates compare with the event time.
    fn list_events(
        &self,
        tenant: TenantId,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRecord>, StoreError>;

    /// One dead letter.
    fn dead_letter(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<DeadLetterRecord>, StoreError>;

    /// Which of these dead letters exist, in the order asked.
    fn find_dead_letters(&self, tenant: TenantId, ids: &[DlqId]) -> Result<Vec<DlqId>, StoreError>;

    /// One page of dead letters. Dates compare with the time of failure.
    fn list_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Page<DeadLetterRecord>, StoreError>;

    /// Shows dead letters without the bodies of their messages until `visit` breaks, in the order and behind the cursor
    /// of `page`, whose count means nothing here. Dates compare with the time of failure; whether the rest of the filter
    /// matches is for the visitor to ask.
    fn visit_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
        visit: &mut VisitDeadLetter<'_>,
    ) -> Result<(), StoreError>;

    /// The secret of this store, which never leaves it: `fresh` at the first call, and the same for ever.
    fn secret(&self, fresh: &[u8; 32]) -> Result<[u8; 32], StoreError>;

    /// The number that stands for a tenant name in this store, made at first use.
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

    /// Changes a URL group as [`UrlGroup::edited`] says, durably.
    fn edit_url_group(
        &self,
        tenant: TenantId,
        name: &str,
        edit: &Edit,
        now: Timestamp,
    ) -> Result<Result<(), Refused>, StoreError>;

    /// The queues of a tenant by name, or those of all, tenant by tenant.
    fn queues(&self, tenant: Option<TenantId>) -> Result<Vec<Queue>, StoreError>;

    /// One page of a tenant's queues by name, without those that were deleted.
    fn list_queues(&self, tenant: TenantId, page: &NamePage) -> Result<Names<Queue>, StoreError>;

    /// One queue.
    fn queue(&self, tenant: TenantId, name: &str) -> Result<Option<Queue>, StoreError>;

    /// How many messages each of these queues has, callbacks that hold a slot not counted.
    fn queue_lags(&self, tenant: TenantId, queues: &[QueueKey]) -> Result<Vec<u64>, StoreError>;

    /// All flow-control keys of all tenants.
    fn flows(&self) -> Result<Vec<Flow>, StoreError>;

    /// How many live messages each of these keys has that are due at `until` or before.
    fn flow_loads(&self, tenant: TenantId, flows: &[FlowKey], until: Timestamp) -> Result<Vec<u64>, StoreError>;

    /// The same without the messages that are named beside each key: those that are under way. One look: a message that has
    /// ended meanwhile is neither counted nor taken off.
    fn flow_waiting(
        &self,
        tenant: TenantId,
        flows: &[(FlowKey, Vec<MessageId>)],
        until: Timestamp,
    ) -> Result<Vec<u64>, StoreError>;

    /// One page of the schedules of a tenant, by id. A body that does not fit into what is left of
    /// `limits::PAGE_BYTES_MAX` is not read; its schedule is on the page all the same.
    fn schedules(&self, tenant: TenantId, page: &NamePage) -> Result<Names<ListedSchedule>, StoreError>;

    /// One schedule.
    fn schedule(&self, tenant: TenantId, id: &str, part: Part) -> Result<Option<Schedule>, StoreError>;

    /// How far each schedule of each tenant has come.
    fn schedule_states(&self) -> Result<Vec<(TenantId, String, ScheduleState)>, StoreError>;

    /// The bulk actions of a tenant begun before `before`, newest first, at most `max`.
    fn bulk_actions(&self, tenant: TenantId, before: Option<Seq>, max: usize) -> Result<Vec<BulkAction>, StoreError>;

    /// One bulk action.
    fn bulk_action(&self, tenant: TenantId, id: Seq) -> Result<Option<BulkAction>, StoreError>;

    /// The bulk actions of all tenants that are not finished.
    fn unfinished_bulk_actions(&self) -> Result<Vec<UnfinishedAction>, StoreError>;

    /// The newest run of this name, or the one that was created at this time. One that goes on is the newest.
    fn find_run(
        &self,
        tenant: TenantId,
        id: &str,
        created_at: Option<Timestamp>,
        pool: ReadPool,
    ) -> Result<Option<Seq>, StoreError>;

    /// A run with all its entries, for its owner to decide. One without its first entry is not there.
    fn workflow(&self, tenant: TenantId, run: Seq) -> Result<Option<Workflow>, StoreError>;

    /// The same with everything that it keeps.
    fn run_record(&self, tenant: TenantId, run: Seq, pool: ReadPool) -> Result<Option<Record>, StoreError>;

    /// The entries of a run with their bytes; `None` if it is not there.
    fn run_entries(
        &self,
        tenant: TenantId,
        run: Seq,
        pool: ReadPool,
    ) -> Result<Option<Vec<(Entry, Bytes)>>, StoreError>;

    /// The entries of a run that are steps of this kind, with their bytes; none if it is not there. Of one that is being
    /// dropped, some may be left.
    fn run_steps(&self, tenant: TenantId, run: Seq, kind: &'static str) -> Result<Vec<(Entry, Bytes)>, StoreError>;

    /// The body of a note of a run, for its owner. A missing one means that the store is corrupt.
    fn note_body(&self, run: Seq, key: NoteKey) -> Result<Bytes, StoreError>;

    /// The runs that wait for an event, in the order of asking.
    fn waiters(&self, tenant: TenantId, event: &str, max: usize) -> Result<Vec<Waiter>, StoreError>;

    /// The waits for an event in the order of asking, behind the one with the timer `after`; at most `max`, and fewer where
    /// they have more than `limits::PAGE_BYTES_MAX` bytes.
    fn waits(&self, tenant: TenantId, event: &str, after: Seq, max: usize) -> Result<Vec<ListedWait>, StoreError>;

    /// Runs that go on, created behind `after`, and match, oldest first, at most `max`.
    fn match_runs(&self, tenant: TenantId, filter: &RunFilter, after: Seq, max: usize) -> Result<Vec<Seq>, StoreError>;

    /// One page of runs, by creation: each has the position of its time of creation and `no`, which never change, so
    /// that pages show every run once, whatever is created meanwhile. Dates compare with that time. A run has no bodies
    /// if they are not asked for, or have more bytes than `limits::RUN_SHOWN_BYTES_MAX`.
    fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Record>, StoreError>;

    /// One page of the runs that are in the DLQ, by their DLQ ids. Dates compare with the time of failure.
    fn list_failed_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &PageRequest,
    ) -> Result<Page<FailedRun>, StoreError>;

    /// The run with this place in the DLQ.
    fn find_failed_run(&self, tenant: TenantId, dlq_id: DlqId, pool: ReadPool) -> Result<Option<Seq>, StoreError>;

    /// The same, as the DLQ shows it.
    fn failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<FailedRun>, StoreError>;

    /// Drops whole buckets of history and dead letters that are older than the policy allows, and
    /// moves what is still needed out of them first. A run that has ended goes with its entries, each by its own time:
    /// like history or, while it is in the DLQ, like a dead letter. Finished bulk actions go after
    /// `limits::BULK_ACTION_MS`. Does a bounded piece of work and says whether there is more.
    fn retain(&self, policy: &Retention, now: Timestamp) -> Result<Retained, StoreError>;

    /// How many runs go on, of all tenants. Walks an index of them all: for the start of a process.
    fn live_runs(&self) -> Result<u64, StoreError>;

    /// How many failed runs are in the DLQ, of all tenants. Walks an index of them all: for the start of a process.
    fn failed_runs(&self) -> Result<u64, StoreError>;

    /// How much a tenant has of what people look after, each counted up to `max`. The cost does not grow with what others
    /// have; where others have messages for very many destinations or queues, it is told that there may be more.
    fn tally(&self, tenant: TenantId, max: u64) -> Result<Tally, StoreError>;

    /// How much is stored; cheap enough for every scrape of the metrics.
    fn counts(&self) -> Result<Counts, StoreError>;

    /// How the room on the disk will change, as it is known at any time. Not the store itself, which must be gone when its last
    /// owner is.
    fn disk_outlook(&self) -> Arc<DiskOutlook> {
        Arc::default()
    }

    /// How many bytes a tenant has stored: bodies, settings and log lines of messages, dead letters, schedules and runs, URL
    /// groups and bulk actions. Cheap enough for every publish.
    fn stored_bytes(&self, tenant: TenantId) -> u64;

    /// An error if writing has failed behind the back of its callers: stop.
    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Proves that a write would be accepted, without leaving anything behind.
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

/// A part of the keys and messages that one process owns at a time. The embedded store has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// Counts the owners of a shard; a write by an earlier owner is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// When [`Store::commit`] may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Written, but a power cut may undo it: fine for what would only be done again.
    Lazy,
    /// On disk.
    Synced,
}

/// A stored message and, when it has ended, when that was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRecord {
    /// The message.
    pub message: Arc<Message>,
    /// Its live row; `None` once it has ended.
    pub live: Option<Live>,
    /// When it ended; `None` while it lives.
    pub ended_at: Option<Timestamp>,
    /// Its last state, once it has ended.
    pub final_state: Option<State>,
}

/// A log line with the message it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Where the line stands in the log; also its cursor.
    pub position: Position,
    /// What happened.
    pub event: Event,
    /// The message it happened to.
    pub message: Arc<Message>,
}

/// How much of a message is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the body, which may be large: an empty one is in its place.
    Head,
    /// All of it.
    Whole,
}

impl Part {
    /// This part of a message that is in memory.
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
    /// Why, and the last answer.
    pub letter: DeadLetter,
    /// The message, as published.
    pub message: Arc<Message>,
}

/// Looks at a dead letter and its message without the body, and says whether to go on.
pub type VisitDeadLetter<'a> = dyn FnMut(&DeadLetter, &Message) -> ControlFlow<()> + 'a;

/// A run's wait for an event, with what is told of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedWait {
    /// Where the run's steps are executed.
    pub url: String,
    /// What answers about the run must hide.
    pub redact: RedactFields,
    /// The wait.
    pub wait: Wait,
}

impl ListedWait {
    /// Keeps the first waits that a page has room for, but always one.
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

/// A run in the DLQ, with what is shown of it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRun {
    /// The run.
    pub run: Run,
    /// Its first entry.
    pub first: Entry,
    /// The bytes of that: what the run was triggered with.
    pub payload: Bytes,
    /// The entry whose delivery failed.
    pub failed: Entry,
    /// What was answered then, or what stands for an answer.
    pub answer: Option<Arc<Response>>,
    /// What the call about the failure was answered with last.
    pub told: Option<Arc<Response>>,
}

/// Which page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Continue behind this position, as given by the page before.
    pub cursor: Option<Position>,
    /// At most so many entries. A page may be shorter: it also ends at `limits::PAGE_BYTES_MAX`, and after
    /// `skips_max` entries that did not match.
    pub count: usize,
    /// Which end first.
    pub order: Order,
    /// How many entries that do not match are passed over.
    pub skips_max: usize,
    /// Whether bodies are wanted: those of messages, or of runs.
    pub part: Part,
}

impl PageRequest {
    /// A page that passes over as much as any page may.
    pub fn new(cursor: Option<Position>, count: usize, order: Order) -> PageRequest {
        PageRequest { cursor, count, order, skips_max: limits::PAGE_SKIPS_MAX, part: Part::Whole }
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries, in the order asked for.
    pub entries: Vec<T>,
    /// Where the next page starts; `None` when there is nothing more.
    pub next: Option<Position>,
}

/// A tenant's two signing keys. Printing one is impossible by accident.
pub use posthaste_wire::signature::SigningKeys;

/// How long history and dead letters are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Messages that have ended, and log lines.
    pub history_ms: u64,
    /// Dead letters.
    pub dlq_ms: u64,
}

/// A bulk action that is not finished, without what it is about: a filter may be long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfinishedAction {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: Seq,
    /// How many per second at most.
    pub rate: Option<u32>,
}

impl From<&BulkAction> for UnfinishedAction {
    fn from(action: &BulkAction) -> UnfinishedAction {
        let BulkAction { tenant, id, rate, .. } = *action;
        UnfinishedAction { tenant, id, rate }
    }
}

/// What one round of [`Store::retain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Buckets dropped.
    pub buckets_dropped: u32,
    /// Failed runs that left the DLQ.
    pub failed_runs_dropped: u64,
    /// More is due; call again soon.
    pub more: bool,
}

/// How much is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that have not ended.
    pub live: u64,
    /// Dead letters.
    pub dead_letters: u64,
}

/// How much a tenant has of what people look after. A count stops at the asked maximum.
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
    /// Runs of workflows that go on.
    pub live_runs: u64,
    /// Messages that have not ended, steps of runs not counted.
    pub live_messages: u64,
    /// Not all messages and steps were looked at, because they are many: there may be more.
    pub more_live_messages: bool,
}

/// Why the store could not do what was asked, by what the caller must do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process owns the shard now: stop at once.
    #[error("the shard has a newer owner")]
    Fenced,
    /// The batch may or may not have been written: stop and recover.
    #[error("the store failed while writing")]
    Unknown(#[source] BoxError),
    /// Nothing was changed; the same call may work later.
    #[error("the store is unavailable")]
    Unavailable(#[source] BoxError),
    /// Bytes that were written no longer decode: stop and tell a human.
    #[error("stored {what} is invalid")]
    Corrupt {
        /// What was being read.
        what: &'static str,
        /// How it failed.
        #[source]
        source: BoxError,
    },
}

/// Any error, kept as a cause.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Lists and pages that are read at once. Reading connections are one more, so that a look-up by key finds one.
pub const QUERIES_AT_ONCE_MAX: usize = 3;

/// A message that must be there and is not.
fn absent(what: &'static str, id: MessageId) -> StoreError {
    StoreError::Corrupt { what, source: format!("{id} is missing").into() }
}

/// Locks a part of what is stored. A thread that panicked with it may have left it half changed, such as a batch that was
/// taken out of the journal and did not reach the database: nothing may be built on that, so the process ends.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|_| end_process("a panic may have left the store half changed"))
}

/// Locks a connection that only reads: its transaction was rolled back by the panic.
fn lock_reader<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a clock that was put back may have been ahead without making duplicates of everything it saw.
const DEDUP_CLOCK_TOLERANCE_MS: u64 = 3_600_000;

/// Whether a duplicate window that ends at `expires` counts: it has not ended, and it was not started by a
/// clock so far ahead that it would swallow publishes for days.
fn duplicate_window_counts(expires: Timestamp, now: Timestamp) -> bool {
    now < expires && expires <= latest_duplicate_window(now)
}

fn latest_duplicate_window(now: Timestamp) -> Timestamp {
    now.plus_millis(limits::DEDUP_WINDOW_MS + DEDUP_CLOCK_TOLERANCE_MS)
}
