//! The embedded store: one SQLite file, one writing connection, and several reading ones.
//!
//! Start at [`SqliteStore::open`]. `schema` defines the tables, and `write` performs commits. `read`, `live` and `list`
//! answer the queries. `queue`, `flow`, `schedule`, `bulk_action` and `workflow` with `run_parts` do both for their
//! objects. `pending` applies the changes that a journal has gathered, and `retention` drops old data. The lock on the
//! data directory is taken elsewhere.

mod bulk_action;
mod codec;
mod error;
mod flow;
#[doc(hidden)]
pub mod fuzzing;
mod list;
mod live;
mod migrate_v4;
mod pending;
mod queue;
mod read;
mod retention;
mod run_parts;
mod schedule;
mod schema;
mod shared_body;
mod tally;
mod usage;
mod workflow;
mod write;

pub use error::OpenError;
pub(super) use run_parts::Scope;
pub(super) use workflow::Preconditions;

use super::usage::Usage;
use super::{
    Counts, DeadLetterRecord, Durability, Epoch, EventFilter, EventRecord, FailedRun, Filter, ListedSchedule,
    ListedWait, MessageRecord, NamePage, Names, Page, PageRequest, Part, QUERIES_AT_ONCE_MAX, ReadPool, Retained,
    Retention, RunFilter, ShardId, SigningKeys, Store, StoreError, Tally, UnfinishedAction, VisitDeadLetter, lock,
    lock_reader,
};
use bytes::Bytes;
use error::{Failure, Outcome};
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::flow::Flow;
use posthaste_engine::message::{DedupKey, FlowKey, Live, Message, QueueKey};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_engine::shard::Load;
use posthaste_engine::url_group::{Edit, Refused, UrlGroup};
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::NoteKey;
use posthaste_engine::workflow::{Record, Waiter, Workflow};
use posthaste_faults::crash_point::crash_point;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use read::Snapshot;
use rusqlite::{Connection, OpenFlags, params};
use schema::Buckets;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use workflow::List;
use write::{Delta, Writer};

/// Reading connections; further queries wait. There is one more than lists and pages may use at once, so that a look-up
/// by key always finds one.
const READERS: usize = QUERIES_AT_ONCE_MAX + 1;
/// Prepared statements that each connection keeps: a few per table of the last days.
const STATEMENTS_MAX: usize = 128;

/// Settings of both kinds of connection. Without `mmap`, because an I/O error would then be a signal instead of an
/// error.
const SETUP: &str =
    "PRAGMA busy_timeout = 5000; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF;";
/// Without a journal in front, the commit that makes the WAL 500 pages (8 MiB) long checkpoints it. At a larger size
/// that commit takes longer (commit p99 20 ms at 8 MiB, 24 at 16, 26 at 32; worst 28, 37, 52) and nothing gets faster.
/// Caches are small because the page cache of the system helps.
const SETUP_WRITER: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -16384;
    PRAGMA wal_autocheckpoint = 500; PRAGMA journal_size_limit = 67108864;";
const SETUP_READER: &str = "PRAGMA cache_size = -2048; PRAGMA query_only = ON;";

/// Options of a store file.
#[derive(Clone, Debug, Default)]
pub struct SqliteOptions {
    /// The largest size of the file in pages (16 KiB each in a new file); `None` limits it only by the disk.
    pub pages_max: Option<u32>,
    /// Checkpoint the WAL only in calls of `checkpoint`.
    pub checkpoints_by_hand: bool,
}

/// A store in one file.
pub struct SqliteStore {
    // The writer is dropped last: only the last connection that closes can clean up the WAL, and only the writer may.
    readers: Vec<Mutex<Reader>>,
    owner: Mutex<Reader>,
    next_reader: AtomicUsize,
    writer: Mutex<Writer>,
    totals: Mutex<Totals>,
    usage: Arc<Usage>,
}

struct Reader {
    connection: Connection,
    /// The tables in this version of the schema.
    buckets: Buckets,
    schema_version: i64,
}

#[derive(Clone, Copy, Debug)]
struct Totals {
    counts: Counts,
    last_seq: Seq,
}

impl SqliteStore {
    /// Opens the file. If it is missing, creates it, readable only by its owner.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<SqliteStore, OpenError> {
        let io = |source| OpenError::Io { path: path.to_owned(), source };
        OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(io)?;
        let refused = |source: rusqlite::Error| OpenError::Sqlite { path: path.to_owned(), source: source.into() };
        let failed = |failure: Failure| OpenError::Sqlite { path: path.to_owned(), source: failure.of_read().into() };

        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = connect(path, flags, SETUP).map_err(refused)?;
        crash_point("start_file_made");
        schema::prepare(&connection, path)?;
        crash_point("start_schema_ready");
        connection.execute_batch(SETUP_WRITER).map_err(refused)?;
        if options.checkpoints_by_hand {
            connection.execute_batch("PRAGMA wal_autocheckpoint = 0").map_err(refused)?;
        }
        if let Some(pages) = options.pages_max {
            connection.execute_batch(&format!("PRAGMA max_page_count = {pages}")).map_err(refused)?;
        }
        let writer = Writer::new(connection).map_err(failed)?;
        let totals = {
            let snapshot = Snapshot { connection: &writer.connection, buckets: &writer.buckets };
            let last_seq = snapshot.last_seq().map_err(failed)?;
            Totals { counts: snapshot.counts().map_err(failed)?, last_seq }
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reader = || -> Result<Mutex<Reader>, OpenError> {
            let connection = connect(path, flags, SETUP).map_err(refused)?;
            connection.execute_batch(SETUP_READER).map_err(refused)?;
            Ok(Mutex::new(Reader { connection, buckets: Buckets::default(), schema_version: -1 }))
        };
        Ok(SqliteStore {
            readers: (0..READERS).map(|_| reader()).collect::<Result<_, _>>()?,
            owner: reader()?,
            next_reader: AtomicUsize::new(0),
            usage: writer.usage.clone(),
            writer: Mutex::new(writer),
            totals: Mutex::new(totals),
        })
    }

    /// Closes the file after a checkpoint, so that no WAL remains.
    pub fn close(self) {
        drop(self);
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        lock(&self.writer)
    }

    /// Runs a query on a snapshot of the committed data.
    fn read<T>(&self, query: impl FnOnce(&Snapshot<'_>) -> Outcome<T>) -> Result<T, StoreError> {
        let mut reader = self.reader();
        reader.read(query).map_err(Failure::of_read)
    }

    /// Runs a query of the shard's owner, which must never wait for API queries.
    fn read_as_owner<T>(&self, query: impl FnOnce(&Snapshot<'_>) -> Outcome<T>) -> Result<T, StoreError> {
        lock_reader(&self.owner).read(query).map_err(Failure::of_read)
    }

    fn read_for<T>(&self, pool: ReadPool, query: impl FnOnce(&Snapshot<'_>) -> Outcome<T>) -> Result<T, StoreError> {
        match pool {
            ReadPool::Core => self.read_as_owner(query),
            ReadPool::Queries => self.read(query),
        }
    }

    /// A free reader, or else the next one in turn.
    fn reader(&self) -> MutexGuard<'_, Reader> {
        for reader in &self.readers {
            match reader.try_lock() {
                Ok(reader) => return reader,
                Err(TryLockError::Poisoned(reader)) => return reader.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        lock_reader(&self.readers[self.next_reader.fetch_add(1, Ordering::Relaxed) % self.readers.len()])
    }

    /// Call it only while the writer is locked, so that totals change in the order of the transactions.
    fn add(&self, delta: Delta) {
        let mut totals = lock(&self.totals);
        totals.counts.live = totals.counts.live.saturating_add_signed(delta.live);
        totals.counts.dead_letters = totals.counts.dead_letters.saturating_add_signed(delta.dead_letters);
        totals.last_seq = totals.last_seq.max(delta.last_seq.unwrap_or(Seq::MIN));
    }
}

impl Reader {
    fn read<T>(&mut self, query: impl FnOnce(&Snapshot<'_>) -> Outcome<T>) -> Outcome<T> {
        let transaction = ReadTransaction::begin(&self.connection)?;
        let version = transaction.0.prepare_cached("PRAGMA schema_version")?.query_row([], |row| row.get(0))?;
        if self.schema_version != version {
            self.buckets = Buckets::load(transaction.0)?;
            self.schema_version = version;
        }
        query(&Snapshot { connection: transaction.0, buckets: &self.buckets })
    }
}

/// A read transaction that ends when it is dropped. Its statements are prepared only once, unlike those of rusqlite:
/// the core reads before nearly every commit.
struct ReadTransaction<'a>(&'a Connection);

impl<'a> ReadTransaction<'a> {
    fn begin(connection: &'a Connection) -> Outcome<Self> {
        connection.prepare_cached("BEGIN")?.execute([])?;
        Ok(Self(connection))
    }
}

impl Drop for ReadTransaction<'_> {
    fn drop(&mut self) {
        // There is nothing to commit. If the rollback fails, the next transaction fails too, because one is still open.
        let _ = self.0.prepare_cached("ROLLBACK").and_then(|mut end| end.execute([]));
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // Without `PRAGMA optimize`: statistics of tables that are created and dropped would only change query plans.
        let writer = self.writer();
        if !writer.is_poisoned() {
            crash_point("stop_before_checkpoint");
            // Best effort: data in the WAL is safe there.
            let _ = writer.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
            crash_point("stop_after_checkpoint");
        }
    }
}

impl Store for SqliteStore {
    fn lease(&self, shard: ShardId, _now: Timestamp) -> Result<Epoch, StoreError> {
        const SQL: &str = "INSERT INTO shard(shard, epoch) VALUES (?1, 1)
            ON CONFLICT(shard) DO UPDATE SET epoch = epoch + 1 RETURNING epoch";
        let epoch = self.writer().transaction(Durability::Synced, |writer| {
            Ok(writer.connection.query_row(SQL, [shard.0], |row| row.get::<_, i64>(0))?)
        })?;
        Ok(Epoch(epoch.cast_unsigned()))
    }

    fn commit(&self, shard: ShardId, epoch: Epoch, ops: &[Op], durability: Durability) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let delta = writer.transaction(durability, |writer| writer.apply(shard, epoch, ops))?;
        self.add(delta);
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.writer().flush()
    }

    fn load(&self, shard: ShardId, load: &Load) -> Result<Vec<Live>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.load(shard, load))
    }

    fn load_messages(&self, ids: &[MessageId]) -> Result<Vec<Arc<Message>>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.load_messages(ids))
    }

    fn find_message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<Arc<Message>>, StoreError> {
        self.read(|snapshot| snapshot.message_of(tenant, id, part))
    }

    fn last_seq(&self) -> Result<Seq, StoreError> {
        Ok(lock(&self.totals).last_seq)
    }

    fn find_duplicates(
        &self,
        keys: &[(TenantId, DedupKey)],
        now: Timestamp,
    ) -> Result<Vec<Option<MessageId>>, StoreError> {
        let windows = self.find_windows(keys, now)?;
        Ok(windows.into_iter().map(|window| window.map(|(id, _)| id)).collect())
    }

    fn find_live(&self, tenant: TenantId, ids: &[MessageId]) -> Result<Vec<Live>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.find_live(tenant, ids))
    }

    fn match_live(&self, tenant: TenantId, filter: &Filter, after: Seq, max: usize) -> Result<Vec<Live>, StoreError> {
        self.read(|snapshot| snapshot.match_live(tenant, filter, after, max))
    }

    fn message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<MessageRecord>, StoreError> {
        self.read(|snapshot| snapshot.message(tenant, id, part))
    }

    fn list_events(
        &self,
        tenant: TenantId,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRecord>, StoreError> {
        self.read(|snapshot| snapshot.list_events(tenant, filter, page))
    }

    fn dead_letter(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<DeadLetterRecord>, StoreError> {
        self.read(|snapshot| snapshot.dead_letter(tenant, dlq_id))
    }

    fn find_dead_letters(&self, tenant: TenantId, ids: &[DlqId]) -> Result<Vec<DlqId>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.find_dead_letters(tenant, ids))
    }

    fn list_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Page<DeadLetterRecord>, StoreError> {
        self.read(|snapshot| snapshot.list_dead_letters(tenant, filter, page))
    }

    fn visit_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
        visit: &mut VisitDeadLetter<'_>,
    ) -> Result<(), StoreError> {
        self.read(|snapshot| {
            let page = PageRequest { part: Part::Head, ..page.clone() };
            snapshot.walk_dead_letters(tenant, filter, &page, |letter, message, _| Ok(visit(&letter, &message)))
        })
    }

    fn secret(&self, fresh: &[u8; 32]) -> Result<[u8; 32], StoreError> {
        if let Some(secret) = self.read(|snapshot| snapshot.secret())? {
            return Ok(secret);
        }
        const SQL: &str = "INSERT INTO meta(key, value) VALUES ('secret', ?1)
            ON CONFLICT(key) DO UPDATE SET value = value RETURNING value";
        self.writer().transaction(Durability::Synced, |writer| {
            Ok(writer.connection.query_row(SQL, [&fresh[..]], |row| row.get(0))?)
        })
    }

    fn tenant(&self, name: &str) -> Result<TenantId, StoreError> {
        if let Some(tenant) = self.read(|snapshot| snapshot.tenant(name))? {
            return Ok(tenant);
        }
        const SQL: &str =
            "INSERT INTO tenant(name) VALUES (?1) ON CONFLICT(name) DO UPDATE SET name = name RETURNING no";
        self.writer().transaction(Durability::Synced, |writer| {
            Ok(writer.connection.query_row(SQL, [name], |row| row.get(0).map(TenantId))?)
        })
    }

    fn signing_keys(&self, tenant: TenantId) -> Result<Option<SigningKeys>, StoreError> {
        self.read(|snapshot| snapshot.signing_keys(tenant))
    }

    fn tenants_with_keys(&self) -> Result<Vec<TenantId>, StoreError> {
        self.read(|snapshot| snapshot.tenants_with_keys())
    }

    fn put_signing_keys(&self, tenant: TenantId, keys: &SigningKeys) -> Result<(), StoreError> {
        const SQL: &str = "INSERT OR REPLACE INTO signing_key(tenant, current, next) VALUES (?1, ?2, ?3)";
        self.writer().transaction(Durability::Synced, |writer| {
            let values = params![tenant.0, keys.current.expose(), keys.next.expose()];
            writer.overwriting(|| Ok(writer.connection.execute(SQL, values)?))?;
            Ok(())
        })
    }

    fn url_groups(&self, tenant: TenantId, page: &NamePage) -> Result<Names<UrlGroup>, StoreError> {
        self.read(|snapshot| snapshot.url_groups(tenant, page))
    }

    fn url_group_count(&self, tenant: TenantId) -> Result<usize, StoreError> {
        self.read(|snapshot| snapshot.url_group_count(tenant))
    }

    fn url_group(&self, tenant: TenantId, name: &str) -> Result<Option<UrlGroup>, StoreError> {
        self.read(|snapshot| snapshot.url_group(tenant, name))
    }

    fn edit_url_group(
        &self,
        tenant: TenantId,
        name: &str,
        edit: &Edit,
        now: Timestamp,
    ) -> Result<Result<(), Refused>, StoreError> {
        self.writer().transaction(Durability::Synced, |writer| writer.edit_url_group(tenant, name, edit, now))
    }

    fn queues(&self, tenant: Option<TenantId>) -> Result<Vec<Queue>, StoreError> {
        self.read(|snapshot| snapshot.queues(tenant))
    }

    fn list_queues(&self, tenant: TenantId, page: &NamePage) -> Result<Names<Queue>, StoreError> {
        self.read(|snapshot| snapshot.list_queues(tenant, page))
    }

    fn queue(&self, tenant: TenantId, name: &str) -> Result<Option<Queue>, StoreError> {
        self.read(|snapshot| snapshot.queue(tenant, name))
    }

    fn queue_lags(&self, tenant: TenantId, queues: &[QueueKey]) -> Result<Vec<u64>, StoreError> {
        self.read(|snapshot| snapshot.queue_lags(tenant, queues))
    }

    fn flows(&self) -> Result<Vec<Flow>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.flows())
    }

    fn flow_loads(&self, tenant: TenantId, flows: &[FlowKey], until: Timestamp) -> Result<Vec<u64>, StoreError> {
        self.read(|snapshot| snapshot.flow_loads(tenant, flows, until))
    }

    fn flow_waiting(
        &self,
        tenant: TenantId,
        flows: &[(FlowKey, Vec<MessageId>)],
        until: Timestamp,
    ) -> Result<Vec<u64>, StoreError> {
        self.read(|snapshot| snapshot.flow_waiting(tenant, flows, until))
    }

    fn schedules(&self, tenant: TenantId, page: &NamePage) -> Result<Names<ListedSchedule>, StoreError> {
        self.read(|snapshot| snapshot.schedules(tenant, page))
    }

    fn schedule(&self, tenant: TenantId, id: &str, part: Part) -> Result<Option<Schedule>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.schedule(tenant, id, part))
    }

    fn schedule_states(&self) -> Result<Vec<(TenantId, String, ScheduleState)>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.schedule_states())
    }

    fn bulk_actions(&self, tenant: TenantId, before: Option<Seq>, max: usize) -> Result<Vec<BulkAction>, StoreError> {
        self.read(|snapshot| snapshot.bulk_actions(tenant, before, max))
    }

    fn bulk_action(&self, tenant: TenantId, id: Seq) -> Result<Option<BulkAction>, StoreError> {
        self.read(|snapshot| snapshot.bulk_action(tenant, id))
    }

    fn unfinished_bulk_actions(&self) -> Result<Vec<UnfinishedAction>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.unfinished_bulk_actions())
    }

    fn find_run(
        &self,
        tenant: TenantId,
        id: &str,
        created_at: Option<Timestamp>,
        pool: ReadPool,
    ) -> Result<Option<Seq>, StoreError> {
        let found = self.read_for(pool, |snapshot| snapshot.find_run(tenant, id, created_at))?;
        Ok(found.map(|(_, no)| no))
    }

    fn workflow(&self, tenant: TenantId, run: Seq) -> Result<Option<Workflow>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.workflow(tenant, run))
    }

    fn run_record(&self, tenant: TenantId, run: Seq, pool: ReadPool) -> Result<Option<Record>, StoreError> {
        self.read_for(pool, |snapshot| snapshot.record(tenant, run))
    }

    fn run_entries(
        &self,
        tenant: TenantId,
        run: Seq,
        pool: ReadPool,
    ) -> Result<Option<Vec<(Entry, Bytes)>>, StoreError> {
        self.read_for(pool, |snapshot| snapshot.run_entries(tenant, run))
    }

    fn run_steps(&self, tenant: TenantId, run: Seq, kind: &'static str) -> Result<Vec<(Entry, Bytes)>, StoreError> {
        self.read(|snapshot| snapshot.run_steps(tenant, run, kind))
    }

    fn note_body(&self, run: Seq, key: NoteKey) -> Result<Bytes, StoreError> {
        self.read_as_owner(|snapshot| snapshot.note_body(run, key))
    }

    fn waiters(&self, tenant: TenantId, event: &str, max: usize) -> Result<Vec<Waiter>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.waiters(tenant, event, max))
    }

    fn waits(&self, tenant: TenantId, event: &str, after: Seq, max: usize) -> Result<Vec<ListedWait>, StoreError> {
        self.read(|snapshot| snapshot.waits(tenant, event, after, max))
    }

    fn match_runs(&self, tenant: TenantId, filter: &RunFilter, after: Seq, max: usize) -> Result<Vec<Seq>, StoreError> {
        self.read(|snapshot| snapshot.match_runs(tenant, filter, after, max))
    }

    fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Record>, StoreError> {
        self.read(|snapshot| snapshot.list_runs(List::All, tenant, filter, page, |run| snapshot.shown(run, page)))
    }

    fn list_failed_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &PageRequest,
    ) -> Result<Page<FailedRun>, StoreError> {
        self.read(|snapshot| snapshot.list_runs(List::Failed, tenant, filter, page, |run| snapshot.shown_failed(run)))
    }

    fn find_failed_run(&self, tenant: TenantId, dlq_id: DlqId, pool: ReadPool) -> Result<Option<Seq>, StoreError> {
        self.read_for(pool, |snapshot| snapshot.find_failed_run(tenant, dlq_id))
    }

    fn failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<FailedRun>, StoreError> {
        self.read(|snapshot| snapshot.failed_run(tenant, dlq_id))
    }

    fn retain(&self, policy: &Retention, now: Timestamp) -> Result<Retained, StoreError> {
        let mut writer = self.writer();
        let (retained, delta) = writer.transaction(Durability::Lazy, |writer| writer.retain(policy, now))?;
        self.add(delta);
        Ok(retained)
    }

    fn live_runs(&self) -> Result<u64, StoreError> {
        self.read(|snapshot| snapshot.live_runs())
    }

    fn failed_runs(&self) -> Result<u64, StoreError> {
        self.read(|snapshot| snapshot.failed_runs())
    }

    fn tally(&self, tenant: TenantId, max: u64) -> Result<Tally, StoreError> {
        self.read(|snapshot| snapshot.tally(tenant, max))
    }

    fn stored_bytes(&self, tenant: TenantId) -> u64 {
        self.usage.of(tenant)
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        Ok(lock(&self.totals).counts)
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.writer().probe()
    }
}

fn connect(path: &Path, flags: OpenFlags, setup: &str) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.execute_batch(setup)?;
    Ok(connection)
}
