//! The stored bytes of each tenant. Every write and delete counts them in its transaction, so that a start need not
//! walk the tables.

use super::error::Outcome;
use super::schema::{Buckets, Kind};
use super::write::Writer;
use crate::usage::{ROW_BYTES, UsageChange};
use posthaste_wire::id::TenantId;
use rusqlite::{Connection, OptionalExtension, params};

/// Bytes of a row of messages. A shared body counts once, in its own table.
pub(super) const MESSAGE_BYTES: &str =
    "100 + octet_length(spec) + CASE typeof(body) WHEN 'blob' THEN octet_length(body) ELSE 0 END";
/// Bytes of a dead letter.
pub(super) const LETTER_BYTES: &str = "100 + octet_length(spec) + coalesce(octet_length(response), 0)
    + CASE typeof(body) WHEN 'blob' THEN octet_length(body) ELSE 0 END";
/// Bytes of a log line.
pub(super) const EVENT_BYTES: &str = "100 + coalesce(octet_length(detail), 0)";
/// Bytes of a shared body.
pub(super) const SHARED_BYTES: &str = "100 + octet_length(body)";
/// Bytes of a schedule.
pub(super) const SCHEDULE_BYTES: &str = "100 + octet_length(plan) + octet_length(body)";
/// Bytes of a URL group, a bulk action, or a run without its entries and notes.
pub(super) const DATA_BYTES: &str = "100 + octet_length(data)";
/// Bytes of an entry of a run.
pub(super) const ENTRY_BYTES: &str = "100 + octet_length(terms) + octet_length(body)";
/// Bytes of a note of a run.
pub(super) const NOTE_BYTES: &str = "100 + octet_length(data) + octet_length(body)";
const _: () = assert!(ROW_BYTES == 100);

/// Bytes of a row with these texts and bodies.
pub(super) fn row_bytes(parts: &[usize]) -> i64 {
    let bytes = parts.iter().map(|bytes| *bytes as u64).sum::<u64>() + ROW_BYTES;
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Writer {
    /// Counts a row of JSON that is about to be written, or dropped (zero bytes). `before` selects the previous bytes.
    pub(super) fn count_replaced(
        &self,
        tenant: TenantId,
        before: &str,
        key: impl rusqlite::Params,
        bytes: i64,
    ) -> Outcome<()> {
        let mut statement = self.connection.prepare_cached(before)?;
        let before: Option<i64> = statement.query_row(key, |row| row.get(0)).optional()?;
        self.count_bytes(tenant, bytes - before.unwrap_or(0));
        Ok(())
    }

    /// Counts bytes that this transaction stores for a tenant, or drops.
    pub(super) fn count_bytes(&self, tenant: TenantId, bytes: i64) {
        *self.usage_change.borrow_mut().entry(tenant).or_default() += bytes;
    }

    /// Like [`Self::count_bytes`], with a statement that selects tenants and bytes to subtract.
    pub(super) fn count_dropped(&self, sql: &str, values: impl rusqlite::Params) -> Outcome<()> {
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query(values)?;
        while let Some(row) = rows.next()? {
            self.count_bytes(TenantId(row.get(0)?), -row.get::<_, i64>(1)?);
        }
        Ok(())
    }

    /// Writes the counted changes. It is the last action of a transaction.
    pub(super) fn write_usage(&self) -> Outcome<()> {
        const SQL: &str = "INSERT INTO usage(tenant, bytes) VALUES (?1, ?2)
            ON CONFLICT(tenant) DO UPDATE SET bytes = bytes + excluded.bytes";
        for (tenant, bytes) in self.usage_change.borrow().iter().filter(|(_, bytes)| **bytes != 0) {
            self.connection.prepare_cached(SQL)?.execute([i64::from(tenant.0), *bytes])?;
        }
        Ok(())
    }
}

/// The stored bytes of each tenant, as recorded in the file.
pub(super) fn load(connection: &Connection) -> Outcome<UsageChange> {
    sums(connection, "SELECT tenant, bytes FROM usage")
}

fn sums(connection: &Connection, sql: &str) -> Outcome<UsageChange> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut found = UsageChange::new();
    while let Some(row) = rows.next()? {
        found.insert(TenantId(row.get(0)?), row.get(1)?);
    }
    Ok(found)
}

/// The stored bytes of each tenant, counted by a walk over all tables. It is for tests, and for files of a release that
/// counted differently.
pub(super) fn recount(connection: &Connection) -> Outcome<UsageChange> {
    let buckets = Buckets::load(connection)?;
    let mut tables = vec![
        ("shared_body".to_owned(), SHARED_BYTES),
        ("schedule".to_owned(), SCHEDULE_BYTES),
        ("url_group".to_owned(), DATA_BYTES),
        ("bulk_action".to_owned(), DATA_BYTES),
        ("run".to_owned(), DATA_BYTES),
        ("run_entry AS part JOIN run ON run.no = part.run".to_owned(), ENTRY_BYTES),
        ("run_note AS part JOIN run ON run.no = part.run".to_owned(), RUN_NOTE_BYTES),
    ];
    for (kind, bytes) in [(Kind::Message, MESSAGE_BYTES), (Kind::Event, EVENT_BYTES), (Kind::DeadLetter, LETTER_BYTES)]
    {
        tables.extend(buckets.of(kind).iter().map(|bucket| (format!("{}_{bucket}", kind.prefix()), bytes)));
    }
    let mut total = UsageChange::new();
    for (table, bytes) in tables {
        let sql = format!("SELECT tenant, sum({bytes}) FROM {table} GROUP BY tenant");
        for (tenant, bytes) in sums(connection, &sql)? {
            *total.entry(tenant).or_default() += bytes;
        }
    }
    Ok(total)
}

/// [`NOTE_BYTES`] in a join with the run, which also has a column `data`.
const RUN_NOTE_BYTES: &str = "100 + octet_length(part.data) + octet_length(part.body)";

/// The key in `meta` for the opening of the file at which the sums were last right. A change of the counting rules
/// needs another name.
const COUNTED: &str = "counted_2";

/// Marks the sums as missing or wrong. They are recounted when the file is opened.
pub(super) fn forget(connection: &Connection) -> Outcome<()> {
    connection.execute("DELETE FROM meta WHERE key = ?1", [COUNTED])?;
    Ok(())
}

/// Recounts everything if the previous opening was by a release with other counting rules, or if there are no sums.
pub(super) fn update(connection: &Connection, opens: i64) -> Outcome<()> {
    const READ: &str = "SELECT value FROM meta WHERE key = ?1";
    const WRITE: &str = "INSERT OR REPLACE INTO meta(key, value) VALUES (?1, ?2)";
    let counted: Option<i64> = connection.query_row(READ, [COUNTED], |row| row.get(0)).optional()?;
    if counted != Some(opens - 1) {
        write_recount(connection)?;
    }
    connection.execute(WRITE, params![COUNTED, opens])?;
    Ok(())
}

/// Recounts everything and stores the sums.
fn write_recount(connection: &Connection) -> Outcome<()> {
    connection.execute("DELETE FROM usage", [])?;
    for (tenant, bytes) in recount(connection)? {
        connection.execute("INSERT INTO usage(tenant, bytes) VALUES (?1, ?2)", [i64::from(tenant.0), bytes])?;
    }
    Ok(())
}
