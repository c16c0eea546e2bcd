//! Tables: those that always exist, and those for a period of time, which are dropped as a whole.
//!
//! People may read the file with `sqlite3`. The comments in the statements are stored with the tables.

use super::error::{Failure, OpenError, Outcome};
use super::{migrate_v4, usage};
use crate::bucket::{DLQ_BUCKET_MS, HISTORY_BUCKET_MS, bucket_of};
use posthaste_engine::limits;
use posthaste_wire::id::Seq;
use posthaste_wire::time::Timestamp;
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::path::Path;

/// "PHst": marks the file as ours, where `file` and `sqlite3` look for it.
const APPLICATION_ID: i64 = 0x5048_7374;
/// The format that this release writes.
const VERSION: i64 = 6;

const CREATE: &str = "
CREATE TABLE meta(                  -- facts about the file itself
    key TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO meta VALUES
    ('opens', 0),                   -- how often the file was opened; orders log lines over restarts
    ('flushes', 0),                 -- changed when only a sync is wanted
    ('last_seq', 0);                -- highest seq among those that no message has, or none any more
CREATE TABLE tenant(
    no INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);
CREATE TABLE signing_key(
    tenant INTEGER PRIMARY KEY,
    current TEXT NOT NULL,          -- secret
    next TEXT NOT NULL              -- secret
);
CREATE TABLE url_group(
    tenant INTEGER NOT NULL,
    name TEXT NOT NULL,
    data TEXT NOT NULL,             -- JSON: times, endpoints, default headers
    PRIMARY KEY(tenant, name)
) WITHOUT ROWID;
CREATE TABLE shard(
    shard INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL          -- raised by every new owner; writes of older owners are refused
);
CREATE TABLE live(                  -- what is next for each message that has not ended
    seq INTEGER PRIMARY KEY,        -- position in the order of creation: creation ms << 20 | counter
    tag INTEGER NOT NULL,           -- random half of the message id
    tenant INTEGER NOT NULL,
    origin INTEGER NOT NULL,        -- hash of tenant and destination host
    body_bytes INTEGER NOT NULL,
    due INTEGER NOT NULL,           -- ms: when the next attempt may start
    retried INTEGER NOT NULL,       -- retries done so far
    cancel_requested INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    queue INTEGER,                  -- hash of tenant and queue name; NULL outside of queues
    turn_at INTEGER,                -- ms: when it joined the queue
    turn_seq INTEGER,               -- whose turn it shares: its own, or that of the message it calls back about
    flow INTEGER,                   -- hash of tenant and flow-control key, if it has one
    step INTEGER NOT NULL DEFAULT 0 -- whether it belongs to a run of a workflow
);
";

/// The four columns of `live` that format 1 lacked. A message of format 1 is in no queue and has no flow-control key.
const WIDEN_LIVE: &str = "
DROP INDEX live_due;
DROP INDEX live_origin;
ALTER TABLE live ADD COLUMN queue INTEGER;
ALTER TABLE live ADD COLUMN turn_at INTEGER;
ALTER TABLE live ADD COLUMN turn_seq INTEGER;
ALTER TABLE live ADD COLUMN flow INTEGER;
";

/// The column of `live` that format 4 added. There were no runs before.
const MARK_STEPS: &str = "
ALTER TABLE live ADD COLUMN step INTEGER NOT NULL DEFAULT 0;
";

/// A message in a queue waits for its turn, so it is never looked up by due time.
const LIVE_INDEXES: &str = "
-- An index also orders by seq, behind its own columns.
CREATE INDEX live_due ON live(due) WHERE queue IS NULL;
-- One destination's share, behind a backlog of another.
CREATE INDEX live_origin ON live(origin, due) WHERE queue IS NULL;
CREATE INDEX live_queue ON live(queue, tenant, turn_at, turn_seq) WHERE queue IS NOT NULL;
CREATE INDEX live_flow ON live(flow, tenant, queue, due) WHERE flow IS NOT NULL;
";

/// Finds the callbacks in queues. Earlier releases of format 5 lack this index, and later releases may drop it. It is
/// created when the file is opened, and does not change the format.
const CALLBACK_INDEX: &str = "
CREATE INDEX IF NOT EXISTS live_callback ON live(shard) WHERE turn_seq <> seq;
";

/// The tables that format 2 added.
const ADDED_IN_2: &str = "
CREATE TABLE queue(
    tenant INTEGER NOT NULL,
    name TEXT NOT NULL,
    parallelism INTEGER NOT NULL,   -- how many of its messages may be under way at once
    paused INTEGER NOT NULL,
    created_at INTEGER NOT NULL,    -- ms
    updated_at INTEGER NOT NULL,    -- ms
    deleted INTEGER NOT NULL,       -- hidden; goes when the last of its messages has ended
    PRIMARY KEY(tenant, name)
) WITHOUT ROWID;
CREATE TABLE flow(                  -- flow-control keys
    tenant INTEGER NOT NULL,
    key TEXT NOT NULL,
    data TEXT NOT NULL,             -- JSON: limits and recent starts
    PRIMARY KEY(tenant, key)
) WITHOUT ROWID;
CREATE TABLE schedule(              -- what was asked for; a body may be large
    tenant INTEGER NOT NULL,
    id TEXT NOT NULL,
    plan TEXT NOT NULL,             -- JSON: cron expression, destination, conditions
    body BLOB NOT NULL,
    PRIMARY KEY(tenant, id)
);
CREATE TABLE schedule_state(        -- how far each has come: rewritten by each firing, so without the body
    tenant INTEGER NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL,            -- JSON: next and last time, paused
    PRIMARY KEY(tenant, id)
) WITHOUT ROWID;
CREATE TABLE bulk_action(
    id INTEGER PRIMARY KEY,         -- position in the order of creation, as that of a message
    tenant INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    data TEXT NOT NULL              -- JSON: what to cancel, and how far it has come
);
CREATE INDEX bulk_action_tenant ON bulk_action(tenant);
CREATE INDEX bulk_action_unfinished ON bulk_action(id) WHERE completed = 0;
";

/// The tables that format 3 added. A release that does not read the journal must not open the file.
const ADDED_IN_3: &str = "
INSERT INTO meta VALUES
    ('journal', 0),                 -- last batch of the journal that is in this file
    ('journal_key', random());      -- secret: what the checksums of the journal start with
";

/// The tables that format 4 added.
const ADDED_IN_4: &str = "
CREATE TABLE run(                   -- runs of workflows
    no INTEGER PRIMARY KEY,         -- position of the first entry
    tenant INTEGER NOT NULL,
    id TEXT NOT NULL,               -- its name, which may be used again once it has ended
    created_at INTEGER NOT NULL,    -- ms: differs between runs of one name
    state INTEGER NOT NULL,         -- 0 started, 1 success, 2 failed, 3 canceled
    ended_at INTEGER,               -- ms: NULL while it goes on
    dlq_at INTEGER,                 -- ms: when it failed; NULL unless it is in the DLQ
    dlq_n INTEGER,                  -- seq of the message that failed; NULL unless it is in the DLQ
    data TEXT NOT NULL              -- JSON: all of it, but for entries and notes
);
CREATE INDEX run_id ON run(tenant, id, created_at);
CREATE INDEX run_created ON run(tenant, created_at);
CREATE INDEX run_started ON run(tenant) WHERE state = 0;
CREATE INDEX run_dlq ON run(tenant, dlq_at, dlq_n) WHERE dlq_at IS NOT NULL;
-- Who goes first.
CREATE INDEX run_ended ON run(ended_at) WHERE ended_at IS NOT NULL AND dlq_at IS NULL;
CREATE INDEX run_failed ON run(dlq_at) WHERE ended_at IS NOT NULL AND dlq_at IS NOT NULL;
CREATE TABLE waiter(                -- runs that wait for an event
    tenant INTEGER NOT NULL,
    event TEXT NOT NULL,
    seq INTEGER NOT NULL,           -- the message that stands for the deadline
    tag INTEGER NOT NULL,
    run INTEGER NOT NULL,           -- which run, by its no
    PRIMARY KEY(tenant, event, seq)
) WITHOUT ROWID;
";

/// The tables that format 5 added. Bodies are the last column, so that reading the other columns does not read them.
const ADDED_IN_5: &str = "
CREATE TABLE run_entry(             -- the list of each run
    run INTEGER NOT NULL,           -- which run, by its no
    idx INTEGER NOT NULL,           -- place in the list, from 0
    seq INTEGER NOT NULL,           -- the message that delivers it
    tag INTEGER NOT NULL,
    delivery TEXT NOT NULL,         -- JSON: how its delivery stands
    gist TEXT NOT NULL,             -- JSON: what must be known of the body to decide
    terms TEXT NOT NULL,            -- JSON: what was said with the body
    body BLOB NOT NULL,
    PRIMARY KEY(run, idx)
) WITHOUT ROWID;
CREATE TABLE run_note(              -- what runs keep besides their entries
    run INTEGER NOT NULL,           -- which run, by its no
    kind INTEGER NOT NULL,          -- 0 who waits for its end, 1 event it waits for, 2 run it has invoked, 3 what
                                    -- came of that later, 4 event that came early, 5 its result, 6 the answer that
                                    -- made it fail, 7 what came of telling about that
    n INTEGER NOT NULL,             -- their order within a kind
    data TEXT NOT NULL,             -- JSON: what must be known to decide
    body BLOB NOT NULL,
    PRIMARY KEY(run, kind, n)
) WITHOUT ROWID;
";

/// The table that format 6 added. Since then the `body` of a message or dead letter may be an integer: the id of a
/// shared body.
const ADDED_IN_6: &str = "
CREATE TABLE shared_body(           -- bodies that several messages have, each stored once
    id INTEGER PRIMARY KEY,         -- seq of the first message that had it
    tenant INTEGER NOT NULL,
    refs INTEGER NOT NULL,          -- rows of messages and dead letters that refer to it
    body BLOB NOT NULL
);
CREATE TABLE usage(                 -- how much each tenant has stored
    tenant INTEGER PRIMARY KEY,
    bytes INTEGER NOT NULL
);
";

/// Renames the tables of format 4 that have another form now. `migrate_v4` moves their rows.
const SET_ASIDE_4: &str = "
ALTER TABLE run_entry RENAME TO run_entry_4;
";

/// Creates the tables of a new file, upgrades the tables of an older release, and rejects other files.
pub(super) fn prepare(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let refused = |source: rusqlite::Error| match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => OpenError::NotOurs { path: path.to_owned() },
        _ => OpenError::Sqlite { path: path.to_owned(), source: source.into() },
    };
    let application_id = pragma(connection, "application_id").map_err(refused)?;
    let version = pragma(connection, "user_version").map_err(refused)?;
    let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    let prepared = match (application_id, version) {
        (0, 0) if tables.map_err(refused)? == 0 => create(connection).map_err(refused),
        (APPLICATION_ID, VERSION) => Ok(()),
        (APPLICATION_ID, found @ 1..VERSION) => upgrade(connection, found).map_err(|failure| match failure {
            Failure::Sqlite(source) => refused(source),
            other => OpenError::Sqlite { path: path.to_owned(), source: other.of_read().into() },
        }),
        (APPLICATION_ID, found) if found > VERSION => Err(OpenError::Newer { found, supported: VERSION }),
        _ => Err(OpenError::NotOurs { path: path.to_owned() }),
    };
    prepared.and_then(|()| connection.execute_batch(CALLBACK_INDEX).map_err(refused))
}

/// Pages of 16 KiB: most data is appended, so large pages are full when they are written, and cost half as many calls
/// as pages of 8 KiB. A file keeps the page size of its creation.
fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; BEGIN IMMEDIATE;
         {CREATE} {LIVE_INDEXES} {ADDED_IN_2} {ADDED_IN_3} {ADDED_IN_4} {ADDED_IN_5} {ADDED_IN_6}
         PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
    ))
}

/// All or nothing: if a statement fails, the connection is closed, which undoes the transaction.
fn upgrade(connection: &Connection, found: i64) -> Outcome<()> {
    let steps: &[&str] = match found {
        1 => &[WIDEN_LIVE, MARK_STEPS, LIVE_INDEXES, ADDED_IN_2, ADDED_IN_3, ADDED_IN_4, ADDED_IN_5],
        2 => &[MARK_STEPS, ADDED_IN_3, ADDED_IN_4, ADDED_IN_5],
        3 => &[MARK_STEPS, ADDED_IN_4, ADDED_IN_5],
        4 => &[SET_ASIDE_4, ADDED_IN_5],
        _ => &[],
    };
    connection.execute_batch(&format!("BEGIN IMMEDIATE; {} {ADDED_IN_6}", steps.concat()))?;
    if found == 4 {
        migrate_v4::move_all(connection)?;
    }
    usage::forget(connection)?;
    Ok(connection.execute_batch(&format!("PRAGMA user_version = {VERSION}; COMMIT;"))?)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

/// The contents of a table for a period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Messages, by creation. Rows that are still needed move to a younger table before a drop.
    Message,
    /// Log lines, by the time of the event.
    Event,
    /// Dead letters, by the time of failure.
    DeadLetter,
    /// Duplicate keys, by the end of their window.
    Dedup,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Message, Kind::Event, Kind::DeadLetter, Kind::Dedup];

    /// The length of the period.
    pub(super) fn length_ms(self) -> u64 {
        match self {
            Kind::Message | Kind::Event => HISTORY_BUCKET_MS,
            Kind::DeadLetter => DLQ_BUCKET_MS,
            Kind::Dedup => limits::DEDUP_WINDOW_MS,
        }
    }

    /// The number of the table for this time.
    pub(super) fn bucket_of(self, at: Timestamp) -> u64 {
        bucket_of(at, self.length_ms())
    }

    pub(super) fn prefix(self) -> &'static str {
        match self {
            Kind::Message => "message",
            Kind::Event => "event",
            Kind::DeadLetter => "dlq",
            Kind::Dedup => "dedup",
        }
    }

    /// The statement that creates the table of a bucket.
    fn create_sql(self, bucket: u64) -> String {
        match self {
            Kind::Message => format!(
                "CREATE TABLE message_{bucket}(-- what was published; never changed
    seq INTEGER PRIMARY KEY,
    tag INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    created_at INTEGER NOT NULL,    -- ms
    not_before INTEGER NOT NULL,    -- ms: due time of the first attempt
    url TEXT NOT NULL,
    spec TEXT NOT NULL,             -- JSON: destination and conditions
    body BLOB NOT NULL              -- or an integer: the id of a shared body
)"
            ),
            Kind::Event => format!(
                "CREATE TABLE event_{bucket}(-- log lines
    tenant INTEGER NOT NULL,
    at INTEGER NOT NULL,            -- ms
    n INTEGER NOT NULL,             -- order within the ms
    seq INTEGER NOT NULL,           -- which message
    state INTEGER NOT NULL,         -- 0 created, 1 active, 2 error, 3 retry,
                                    -- 4 delivered, 5 failed, 6 cancel requested, 7 canceled
    detail TEXT,                    -- JSON: what only this kind of line carries
    PRIMARY KEY(tenant, at, n)
) WITHOUT ROWID;
CREATE INDEX event_{bucket}_seq ON event_{bucket}(seq)"
            ),
            Kind::DeadLetter => format!(
                "CREATE TABLE dlq_{bucket}(-- messages that failed, whole
    tenant INTEGER NOT NULL,
    at INTEGER NOT NULL,            -- ms: when it failed
    seq INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    retried INTEGER NOT NULL,
    error TEXT,                     -- of the last attempt, when there was no answer
    response TEXT,                  -- JSON: the last answer
    created_at INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    url TEXT NOT NULL,
    spec TEXT NOT NULL,
    body BLOB NOT NULL,             -- or an integer: the id of a shared body
    PRIMARY KEY(tenant, at, seq)
)"
            ),
            Kind::Dedup => format!(
                "CREATE TABLE dedup_{bucket}(-- keys of recent publishes
    tenant INTEGER NOT NULL,
    key BLOB NOT NULL,              -- hash
    seq INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    expires INTEGER NOT NULL,       -- ms
    PRIMARY KEY(tenant, key)
) WITHOUT ROWID"
            ),
        }
    }
}

/// The existing tables, by kind and number.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets {
    known: [BTreeSet<u64>; 4],
}

impl Buckets {
    /// Reads the names of the tables that the connection sees.
    pub(super) fn load(connection: &Connection) -> Outcome<Buckets> {
        let mut buckets = Buckets::default();
        let mut statement = connection.prepare_cached("SELECT name FROM sqlite_schema WHERE type = 'table'")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let name = row.get_ref(0)?.as_str().unwrap_or_default();
            let Some((prefix, number)) = name.split_once('_') else {
                continue;
            };
            if let (Some(kind), Ok(bucket)) = (Kind::ALL.iter().find(|kind| kind.prefix() == prefix), number.parse()) {
                buckets.known[*kind as usize].insert(bucket);
            }
        }
        Ok(buckets)
    }

    /// The tables of a kind, oldest first.
    pub(super) fn of(&self, kind: Kind) -> &BTreeSet<u64> {
        &self.known[kind as usize]
    }

    /// The table for this time, created if it does not exist.
    pub(super) fn ensure(&mut self, connection: &Connection, kind: Kind, at: Timestamp) -> Outcome<u64> {
        let bucket = kind.bucket_of(at);
        if !self.of(kind).contains(&bucket) {
            connection.execute_batch(&kind.create_sql(bucket))?;
            self.known[kind as usize].insert(bucket);
        }
        Ok(bucket)
    }

    /// Drops a table.
    pub(super) fn drop_table(&mut self, connection: &Connection, kind: Kind, bucket: u64) -> Outcome<()> {
        connection.execute_batch(&format!("DROP TABLE {}_{bucket}", kind.prefix()))?;
        self.known[kind as usize].remove(&bucket);
        Ok(())
    }

    /// The tables that may contain a message: the table of its creation time, and younger tables, where it may have
    /// moved.
    pub(super) fn places_of(&self, seq: Seq) -> impl Iterator<Item = u64> + '_ {
        let messages = self.of(Kind::Message);
        let home = bucket_of(seq.time(), Kind::Message.length_ms());
        messages.get(&home).into_iter().chain(messages.range(home + 1..).rev()).copied()
    }

    /// The tables of a kind that may contain rows between two times, oldest first.
    pub(super) fn between(&self, kind: Kind, first: Timestamp, last: Timestamp) -> Vec<u64> {
        let (first, last) = (bucket_of(first, kind.length_ms()), bucket_of(last, kind.length_ms()));
        if first > last {
            return Vec::new();
        }
        self.of(kind).range(first..=last).copied().collect()
    }
}
