//! The writing connection: transactions, durability and the ops of a commit. Named objects (queues, schedules and so
//! on) are written in their own files.
//!
//! After a failure that leaves the contents of the disk unknown, the writer rejects all further work. Only a restart,
//! which reads what SQLite recovered, resolves it.

use super::codec::{bits, int, state_number, to_json};
use super::error::{Failure, Outcome};
use super::read::Snapshot;
use super::schema::{Buckets, Kind};
use super::shared_body::SHARED_ID;
use super::usage::{self, DATA_BYTES, LETTER_BYTES, row_bytes};
use crate::usage::{Usage, UsageChange};
use crate::{Durability, Epoch, ShardId, StoreError};
use posthaste_engine::event::{DeadLetter, Event, Op};
use posthaste_engine::limits::GROUP_ENDPOINTS_MAX;
use posthaste_engine::message::{DedupKey, Live, Message};
use posthaste_engine::url_group::{Edit, Refused, UrlGroup};
use posthaste_engine::workflow::Change;
use posthaste_faults::crash_point::{ANSWER_BEFORE_SYNC, crash_point, is_planted};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Statement, ToSql, params};
use std::cell::RefCell;
use std::sync::Arc;

/// How many low bits of a log line's number count lines. The other bits count how often the file was opened.
const LINE_COUNTER_BITS: u32 = 40;

/// Rows that one statement writes. Resetting a statement for its next use costs as much as writing a small row.
const ROWS_AT_ONCE: usize = 64;

/// Bodies of this size or larger are written one per statement.
const LARGE_BODY_BYTES: usize = 64 * 1024;

const MESSAGE_COLUMNS: &str = "seq, tag, tenant, created_at, not_before, url, spec, body";
const EVENT_COLUMNS: &str = "tenant, at, n, seq, state, detail";
const LIVE_COLUMNS: &str =
    "seq, tag, tenant, origin, body_bytes, due, retried, cancel_requested, shard, queue, turn_at, turn_seq, flow,
     step";
/// Binds its values in the same order as an insert of [`LIVE_COLUMNS`].
const UPDATE_LIVE: &str = "UPDATE live SET tenant = ?3, origin = ?4, body_bytes = ?5, due = ?6, retried = ?7,
    cancel_requested = ?8, queue = ?10, turn_at = ?11, turn_seq = ?12, flow = ?13, step = ?14
    WHERE seq = ?1 AND tag = ?2 AND shard = ?9";
const DELETE_LIVE: &str = "DELETE FROM live WHERE seq = ?1 AND tag = ?2 AND shard = ?3";

/// SQLite syncs only transactions that change a page, and writing an equal value changes none. Each synced transaction
/// that must make lazy ones durable contains this statement.
const TOUCH: &str = "UPDATE meta SET value = value + 1 WHERE key = 'flushes'";

/// How a transaction changes the totals that are kept in RAM.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delta {
    pub live: i64,
    pub dead_letters: i64,
    pub last_seq: Option<Seq>,
}

/// The writing connection and its state between transactions.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) buckets: Buckets,
    next_line: u64,
    durability: Durability,
    /// Whether a lazy commit is not yet on disk.
    lazy_outstanding: bool,
    poisoned: bool,
    /// The stored bytes of each tenant, according to the commits.
    pub(super) usage: Arc<Usage>,
    /// The changes of the current transaction.
    pub(super) usage_change: RefCell<UsageChange>,
}

impl Writer {
    /// Takes a prepared connection and counts this opening of the file.
    pub(super) fn new(connection: Connection) -> Outcome<Writer> {
        const SQL: &str = "UPDATE meta SET value = value + 1 WHERE key = 'opens' RETURNING value";
        // Commits explicitly, so that a failure is reported. An implicit commit after `query_row` fails silently.
        let transaction = connection.unchecked_transaction()?;
        let opens: i64 = transaction.query_row(SQL, [], |row| row.get(0))?;
        usage::update(&transaction, opens)?;
        transaction.commit()?;
        Ok(Writer {
            buckets: Buckets::load(&connection)?,
            usage: Arc::new(Usage::new(usage::load(&connection)?)),
            usage_change: RefCell::default(),
            connection,
            next_line: opens.cast_unsigned() << LINE_COUNTER_BITS,
            durability: Durability::Synced,
            lazy_outstanding: false,
            poisoned: false,
        })
    }

    /// Whether an earlier failure has ended all writing.
    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Runs `work` as one transaction, all or nothing.
    pub(super) fn transaction<T>(
        &mut self,
        durability: Durability,
        work: impl FnOnce(&mut Writer) -> Outcome<T>,
    ) -> Result<T, StoreError> {
        if self.poisoned {
            return Err(StoreError::Unknown("the store has stopped writing after an earlier failure".into()));
        }
        self.set_durability(durability).map_err(Failure::of_read)?;
        self.run("BEGIN IMMEDIATE").map_err(Failure::of_read)?;
        let touch = durability == Durability::Synced && self.lazy_outstanding;
        let touched = if touch { self.run(TOUCH) } else { Ok(()) };
        let worked = touched.and_then(|()| work(self)).and_then(|value| self.write_usage().map(|()| value));
        let change = self.usage_change.take();
        let failure = match worked {
            Ok(value) => match self.commit() {
                Ok(()) => {
                    self.lazy_outstanding = durability == Durability::Lazy;
                    self.usage.add(&change);
                    return Ok(value);
                }
                Err(error) => error.of_commit(),
            },
            Err(error) => error.of_write(),
        };
        self.poisoned = matches!(failure, StoreError::Unknown(_));
        // Some errors have already rolled back; then there is nothing to roll back.
        if !self.connection.is_autocommit() && self.run("ROLLBACK").is_err() {
            self.poisoned = true;
        }
        match Buckets::load(&self.connection) {
            Ok(buckets) => self.buckets = buckets,
            Err(_) => self.poisoned = true,
        }
        Err(failure)
    }

    /// Syncs lazy commits. A checkpoint would not do, because it syncs nothing while readers block it.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        if self.lazy_outstanding || self.poisoned {
            self.transaction(Durability::Synced, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Changes a page, so that the transaction causes a sync.
    pub(super) fn touch(&self) -> Outcome<()> {
        self.run(TOUCH)
    }

    /// Tries a write and rolls it back. Nothing is synced.
    pub(super) fn probe(&mut self) -> Result<(), StoreError> {
        if self.poisoned {
            return Err(StoreError::Unknown("the store has stopped writing after an earlier failure".into()));
        }
        self.run("BEGIN IMMEDIATE").map_err(Failure::of_read)?;
        let written = self.run(TOUCH);
        let undone = self.run("ROLLBACK");
        written.and(undone).map_err(Failure::of_read)
    }

    /// A lazy commit appends to the WAL without a sync. A synced commit syncs the whole WAL file, including earlier
    /// lazy commits; a checkpoint syncs the WAL first, too. The setting belongs to the connection and can only change
    /// between transactions.
    fn set_durability(&mut self, durability: Durability) -> Outcome<()> {
        if is_planted(ANSWER_BEFORE_SYNC) {
            return Ok(self.connection.execute_batch("PRAGMA synchronous = OFF")?);
        }
        if self.durability != durability {
            self.connection.execute_batch(match durability {
                Durability::Lazy => "PRAGMA synchronous = NORMAL",
                Durability::Synced => "PRAGMA synchronous = FULL",
            })?;
            self.durability = durability;
        }
        Ok(())
    }

    fn commit(&self) -> Outcome<()> {
        crash_point("sqlite_before_commit");
        self.run("COMMIT")?;
        crash_point("sqlite_after_commit");
        Ok(())
    }

    fn run(&self, sql: &str) -> Outcome<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Runs `work` so that SQLite overwrites what it replaces or deletes: an earlier text with a secret must not remain in free
    /// space of the file. Too slow for all writes, so only rare ones that have secrets use it.
    pub(super) fn overwriting<T>(&self, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        self.connection.execute_batch("PRAGMA secure_delete = ON")?;
        let worked = work();
        let ended = self.connection.execute_batch("PRAGMA secure_delete = OFF");
        let value = worked?;
        ended?;
        Ok(value)
    }

    /// Writes a batch of ops inside a transaction.
    pub(super) fn apply(&mut self, shard: ShardId, epoch: Epoch, ops: &[Op]) -> Outcome<Delta> {
        self.check_epoch(shard, epoch)?;
        let (mut delta, mut highest_entry) = (Delta::default(), None);
        // All inserts together, so that messages with the same body are adjacent.
        let inserted = ops.iter().filter_map(|op| match op {
            Op::Insert { message, .. } => Some(message.as_ref()),
            _ => None,
        });
        self.insert_all(&inserted.collect::<Vec<_>>())?;
        for op in ops {
            match op {
                Op::Insert { message, live } => {
                    self.insert_live(&[(shard, *live)])?;
                    delta.live += 1;
                    delta.last_seq = delta.last_seq.max(Some(message.id.seq));
                }
                Op::PutDedupKey { tenant, key, id, expires } => self.put_dedup_key(*tenant, key, *id, *expires)?,
                Op::Log(event) => self.log_all(std::slice::from_ref(event))?,
                Op::Update(live) => self.update_live(shard, live)?,
                Op::Remove { id } => {
                    self.remove_live(shard, *id)?;
                    delta.live -= 1;
                }
                Op::InsertDeadLetter(letter) => {
                    self.remove_live(shard, letter.id)?;
                    self.insert_dead_letter(letter)?;
                    delta.live -= 1;
                    delta.dead_letters += 1;
                }
                Op::DeleteDeadLetter { tenant, dlq_id } => {
                    self.exhume(*tenant, *dlq_id)?;
                    delta.dead_letters -= 1;
                }
                Op::PutQueue(queue) => self.put_queue(queue)?,
                Op::DropQueue { tenant, name } => self.drop_queue(*tenant, name)?,
                Op::PutFlow(flow) => self.put_flow(flow)?,
                Op::DropFlow { tenant, key } => self.drop_flow(*tenant, key)?,
                Op::PutSchedule(schedule) => self.put_schedule(schedule)?,
                Op::SetSchedule { tenant, id, state } => self.set_schedule(*tenant, id, state)?,
                Op::DropSchedule { tenant, id } => self.drop_schedule(*tenant, id)?,
                Op::PutBulkAction(action) => {
                    self.put_bulk_action(action)?;
                    delta.last_seq = delta.last_seq.max(Some(action.id));
                }
                Op::Workflow(change) => {
                    self.change_run(change)?;
                    if let Change::Entry { entry, .. } = change {
                        highest_entry = highest_entry.max(Some(entry.id.seq));
                    }
                }
            }
        }
        // The position of an entry may belong to no message.
        if highest_entry > delta.last_seq {
            self.raise_last_seq(highest_entry)?;
            delta.last_seq = highest_entry;
        }
        Ok(delta)
    }

    /// Records a position that is not stored in a row of a message or a bulk action, or that will soon be dropped.
    pub(super) fn raise_last_seq(&self, seq: Option<Seq>) -> Outcome<()> {
        const SQL: &str = "UPDATE meta SET value = max(value, ?1) WHERE key = 'last_seq'";
        self.connection.prepare_cached(SQL)?.execute([int(seq.unwrap_or(Seq::MIN).0)])?;
        Ok(())
    }

    fn check_epoch(&self, shard: ShardId, epoch: Epoch) -> Outcome<()> {
        let mut statement = self.connection.prepare_cached("SELECT epoch FROM shard WHERE shard = ?1")?;
        let current: Option<i64> = statement.query_row([shard.0], |row| row.get(0)).optional()?;
        if current == Some(int(epoch.0)) { Ok(()) } else { Err(Failure::Fenced) }
    }

    /// Writes messages, preferably in the order of their positions.
    pub(super) fn insert_all(&mut self, messages: &[&Message]) -> Outcome<()> {
        let bucket_of = |message: &Message| Kind::Message.bucket_of(message.id.seq.time());
        for messages in messages.chunk_by(|a, b| bucket_of(a) == bucket_of(b)) {
            let bucket = self.buckets.ensure(&self.connection, Kind::Message, messages[0].id.seq.time())?;
            let table = format!("message_{bucket}");
            let rows: Vec<(&Message, Option<i64>)> =
                messages.iter().copied().zip(self.share_bodies(messages)?).collect();
            // SQLite copies bound values until the statement has run, so large bodies are written one at a time.
            let is_large = |(message, shared): &(&Message, Option<i64>)| {
                shared.is_none() && message.body.len() >= LARGE_BODY_BYTES
            };
            for rows in rows.chunk_by(|a, b| !is_large(a) && !is_large(b)) {
                self.insert_rows(&table, MESSAGE_COLUMNS, rows, |row, (message, shared)| {
                    let spec = to_json("message", &message.spec)?;
                    let own_bytes = if shared.is_some() { 0 } else { message.body.len() };
                    self.count_bytes(message.tenant, row_bytes(&[spec.len(), own_bytes]));
                    row.put(int(message.id.seq.0))?;
                    row.put(bits(message.id.tag))?;
                    row.put(message.tenant.0)?;
                    row.put(int(message.created_at.0))?;
                    row.put(int(message.not_before.0))?;
                    row.put(message.spec.url.as_str())?;
                    row.put(spec)?;
                    match shared {
                        Some(id) => row.put(*id),
                        None => row.put(&message.body[..]),
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Inserts live rows, preferably in the order of their positions.
    pub(super) fn insert_live(&self, rows: &[(ShardId, Live)]) -> Outcome<()> {
        self.insert_rows("live", LIVE_COLUMNS, rows, |row, (shard, live)| row.put_live(*shard, live))
    }

    pub(super) fn update_live(&self, shard: ShardId, live: &Live) -> Outcome<()> {
        let mut statement = self.connection.prepare_cached(UPDATE_LIVE)?;
        Row { statement: &mut statement, bound: 0 }.put_live(shard, live)?;
        match statement.raw_execute()? {
            1 => Ok(()),
            _ => Err(absent(live.id)),
        }
    }

    /// Inserts rows in order, [`ROWS_AT_ONCE`] per statement. A failure undoes the whole transaction anyway, so SQLite
    /// need not copy each page that a statement changes.
    fn insert_rows<T>(
        &self,
        table: &str,
        columns: &str,
        rows: &[T],
        mut put: impl FnMut(&mut Row<'_, '_>, &T) -> Outcome<()>,
    ) -> Outcome<()> {
        let values = format!("({})", vec!["?"; columns.split(',').count()].join(", "));
        let sql = |count| {
            format!("INSERT OR ROLLBACK INTO {table}({columns}) VALUES {}", vec![values.as_str(); count].join(", "))
        };
        let many = rows.chunks_exact(ROWS_AT_ONCE);
        let single = many.remainder().chunks(1);
        for (count, chunks) in [(ROWS_AT_ONCE, many.collect::<Vec<_>>()), (1, single.collect())] {
            if chunks.is_empty() {
                continue;
            }
            let mut statement = self.connection.prepare_cached(&sql(count))?;
            for chunk in chunks {
                let mut row = Row { statement: &mut statement, bound: 0 };
                for value in chunk {
                    put(&mut row, value)?;
                }
                statement.raw_execute()?;
            }
        }
        Ok(())
    }

    pub(super) fn remove_live(&self, shard: ShardId, id: MessageId) -> Outcome<()> {
        let mut statement = self.connection.prepare_cached(DELETE_LIVE)?;
        match statement.execute(params![int(id.seq.0), bits(id.tag), shard.0])? {
            1 => Ok(()),
            _ => Err(absent(id)),
        }
    }

    /// Writes log lines in order.
    pub(super) fn log_all(&mut self, events: &[Event]) -> Outcome<()> {
        for events in events.chunk_by(|a, b| Kind::Event.bucket_of(a.at) == Kind::Event.bucket_of(b.at)) {
            let bucket = self.buckets.ensure(&self.connection, Kind::Event, events[0].at)?;
            let mut line = self.next_line;
            self.insert_rows(&format!("event_{bucket}"), EVENT_COLUMNS, events, |row, event| {
                row.put(event.tenant.0)?;
                row.put(int(event.at.0))?;
                row.put(int(line))?;
                row.put(int(event.id.seq.0))?;
                row.put(state_number(event.state))?;
                let detail = if event.detail.is_empty() { None } else { Some(to_json("log line", &event.detail)?) };
                self.count_bytes(event.tenant, row_bytes(&[detail.as_ref().map_or(0, String::len)]));
                row.put(detail)?;
                line += 1;
                Ok(())
            })?;
            self.next_line = line;
        }
        Ok(())
    }

    /// If a key has two windows, the one that ends later counts.
    pub(super) fn put_dedup_key(
        &mut self,
        tenant: TenantId,
        key: &DedupKey,
        id: MessageId,
        expires: Timestamp,
    ) -> Outcome<()> {
        let bucket = self.buckets.ensure(&self.connection, Kind::Dedup, expires)?;
        let sql = format!(
            "INSERT INTO dedup_{bucket}(tenant, key, seq, tag, expires) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT(tenant, key) DO UPDATE SET seq = excluded.seq, tag = excluded.tag, expires = excluded.expires
             WHERE excluded.expires >= expires"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        statement.execute(params![tenant.0, &key.0[..], int(id.seq.0), bits(id.tag), int(expires.0)])?;
        Ok(())
    }

    /// Copies the message, so that the dead letter outlives the history.
    pub(super) fn insert_dead_letter(&mut self, letter: &DeadLetter) -> Outcome<()> {
        let bucket = self.buckets.ensure(&self.connection, Kind::DeadLetter, letter.dlq_id.at)?;
        let response = letter.response.as_ref().map(|response| to_json("response", response)).transpose()?;
        for place in self.buckets.places_of(letter.id.seq) {
            let sql = format!(
                "INSERT INTO dlq_{bucket}(tenant, at, seq, tag, retried, error, response,
                                          created_at, not_before, url, spec, body)
                 SELECT ?1, ?2, seq, tag, ?5, ?6, ?7, created_at, not_before, url, spec, body
                 FROM message_{place} WHERE seq = ?3 AND tag = ?4
                 RETURNING {SHARED_ID}, {LETTER_BYTES}"
            );
            let values = params![
                letter.tenant.0,
                int(letter.dlq_id.at.0),
                int(letter.id.seq.0),
                bits(letter.id.tag),
                letter.retried,
                letter.error,
                response,
            ];
            let copied = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, i64>(1)?));
            let copied = self.connection.prepare_cached(&sql)?.query_row(values, copied).optional()?;
            if let Some((shared, bytes)) = copied {
                self.count_bytes(letter.tenant, bytes);
                return shared.map_or(Ok(()), |id| self.keep_shared_body(id));
            }
        }
        Err(Failure::corrupt("message", format!("{} is missing", letter.id)))
    }

    /// Loads, changes and saves the group in the caller's transaction.
    pub(super) fn edit_url_group(
        &self,
        tenant: TenantId,
        name: &str,
        edit: &Edit,
        now: Timestamp,
    ) -> Outcome<Result<(), Refused>> {
        let snapshot = Snapshot { connection: &self.connection, buckets: &self.buckets };
        let before = snapshot.url_group(tenant, name)?;
        let after = match UrlGroup::edited(before, name, edit, GROUP_ENDPOINTS_MAX, now) {
            Err(refused) => return Ok(Err(refused)),
            Ok(after) => after.map(|group| to_json("URL group", &group)).transpose()?,
        };
        let replaced = format!("SELECT {DATA_BYTES} FROM url_group WHERE tenant = ?1 AND name = ?2");
        let bytes = after.as_ref().map_or(0, |data| row_bytes(&[data.len()]));
        self.count_replaced(tenant, &replaced, params![tenant.0, name], bytes)?;
        // Its default headers may have credentials.
        self.overwriting(|| {
            Ok(match after {
                Some(data) => self.connection.execute(
                    "INSERT OR REPLACE INTO url_group(tenant, name, data) VALUES (?1, ?2, ?3)",
                    params![tenant.0, name, data],
                )?,
                None => self
                    .connection
                    .execute("DELETE FROM url_group WHERE tenant = ?1 AND name = ?2", params![tenant.0, name])?,
            })
        })?;
        Ok(Ok(()))
    }

    fn exhume(&self, tenant: TenantId, dlq_id: DlqId) -> Outcome<()> {
        for bucket in self.buckets.between(Kind::DeadLetter, dlq_id.at, dlq_id.at) {
            let sql = format!(
                "DELETE FROM dlq_{bucket} WHERE tenant = ?1 AND at = ?2 AND seq = ?3 RETURNING {SHARED_ID}, {LETTER_BYTES}"
            );
            let values = params![tenant.0, int(dlq_id.at.0), int(dlq_id.n)];
            let deleted = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, i64>(1)?));
            let deleted = self.connection.prepare_cached(&sql)?.query_row(values, deleted).optional()?;
            if let Some((shared, bytes)) = deleted {
                self.count_bytes(tenant, -bytes);
                return self.release_shared_bodies(&shared.into_iter().map(|id| (id, 1)).collect());
            }
        }
        Err(Failure::corrupt("dead letter", format!("{dlq_id} is missing")))
    }
}

/// Binds the parameters of a statement, one row after the other.
struct Row<'a, 'c> {
    statement: &'a mut Statement<'c>,
    bound: usize,
}

impl Row<'_, '_> {
    fn put(&mut self, value: impl ToSql) -> Outcome<()> {
        self.bound += 1;
        Ok(self.statement.raw_bind_parameter(self.bound, value)?)
    }

    /// Binds the values in the order of [`LIVE_COLUMNS`].
    fn put_live(&mut self, shard: ShardId, live: &Live) -> Outcome<()> {
        self.put(int(live.id.seq.0))?;
        self.put(bits(live.id.tag))?;
        self.put(live.tenant.0)?;
        self.put(bits(live.origin.0))?;
        self.put(live.body_bytes)?;
        self.put(int(live.due.0))?;
        self.put(live.retried)?;
        self.put(live.cancel_requested)?;
        self.put(shard.0)?;
        self.put(live.place.map(|place| bits(place.queue.0)))?;
        self.put(live.place.map(|place| int(place.turn.at.0)))?;
        self.put(live.place.map(|place| int(place.turn.seq.0)))?;
        self.put(live.flow.map(|flow| bits(flow.0)))?;
        self.put(live.is_step)
    }
}

pub(super) fn absent(id: MessageId) -> Failure {
    Failure::corrupt("live message", format!("{id} is missing"))
}
