//! Drops expired data, a bounded amount at a time.
//!
//! A table is dropped as a whole once it is empty or small. A large table is first emptied from its old end, because
//! dropping it reads every page and would block the writer for seconds. Log lines are dropped before messages: a
//! message that is still live or still has a log line moves to the table of `now`. Runs are dropped one by one with
//! their entries, oldest first. Finished bulk actions are few and are deleted row by row, last of all.

use super::codec::int;
use super::error::Outcome;
use super::schema::Kind;
use super::shared_body::SHARED_ID;
use super::usage::{DATA_BYTES, ENTRY_BYTES, EVENT_BYTES, LETTER_BYTES, MESSAGE_BYTES, NOTE_BYTES};
use super::write::{Delta, Writer};
use crate::bucket::is_over;
use crate::{Retained, Retention};
use posthaste_engine::limits;
use posthaste_faults::crash_point::crash_point;
use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params_from_iter};
use std::collections::{BTreeMap, BTreeSet};

/// Most rows that one round deletes or moves.
const ROWS_MAX: usize = 1_000;
/// Most bytes of bodies that one round deletes or moves; it may exceed this by one row.
const BYTES_MAX: i64 = 4 * 1024 * 1024;

impl Writer {
    /// Runs one round inside a transaction.
    pub(super) fn retain(&mut self, policy: &Retention, now: Timestamp) -> Outcome<(Retained, Delta)> {
        let mut delta = Delta::default();
        let (mut buckets_dropped, mut failed_runs_dropped) = (0, 0);
        if let Some((kind, bucket)) = self.expired(policy, now) {
            let emptied = match kind {
                Kind::Event => {
                    self.empty_by_key(&format!("event_{bucket}"), ["tenant", "at", "n"], Some(EVENT_BYTES))?
                }
                Kind::Message => self.empty_messages(bucket, now)?,
                Kind::DeadLetter => self.empty_dead_letters(bucket, &mut delta)?,
                Kind::Dedup => self.empty_by_key(&format!("dedup_{bucket}"), ["tenant", "key"], None)?,
            };
            if emptied {
                self.buckets.drop_table(&self.connection, kind, bucket)?;
                buckets_dropped = 1;
            }
            crash_point("retention_in_transaction");
        } else if self.has_old_runs(policy, now)? {
            failed_runs_dropped = self.drop_runs(policy, now)?;
            crash_point("retention_in_transaction");
        } else {
            self.drop_bulk_actions(now)?;
        }
        let more =
            self.expired(policy, now).is_some() || self.has_old_runs(policy, now)? || self.has_old_bulk_actions(now)?;
        Ok((Retained { buckets_dropped, failed_runs_dropped, more }, delta))
    }

    /// The next table to drop. Messages come last, because by then it is clear which of them log lines still need.
    fn expired(&self, policy: &Retention, now: Timestamp) -> Option<(Kind, u64)> {
        let kinds = [
            (Kind::Dedup, 0),
            (Kind::Event, policy.history_ms),
            (Kind::DeadLetter, policy.dlq_ms),
            (Kind::Message, policy.history_ms),
        ];
        kinds.into_iter().find_map(|(kind, keep_ms)| {
            let oldest = *self.buckets.of(kind).first()?;
            is_over(oldest, kind.length_ms(), keep_ms, now).then_some((kind, oldest))
        })
    }

    /// Deletes part of a table that is ordered by its key. Returns true if only a small rest remains. It takes two
    /// steps, because SQLite can only seek to a key in the table if its values are given. `bytes` is the SQL expression
    /// for the counted bytes of a row.
    fn empty_by_key<const N: usize>(&self, table: &str, key: [&str; N], bytes: Option<&str>) -> Outcome<bool> {
        let columns = key.join(", ");
        let sql = format!("SELECT {columns} FROM {table} ORDER BY {columns} LIMIT 1 OFFSET {ROWS_MAX}");
        let values = |row: &Row<'_>| (0..N).map(|column| row.get(column)).collect::<Result<Vec<Value>, _>>();
        let end = self.connection.query_row(&sql, [], values).optional()?;
        let places = vec!["?"; N].join(", ");
        let piece = end.as_ref().map(|_| format!("WHERE ({columns}) < ({places})")).unwrap_or_default();
        if let Some(bytes) = bytes {
            let sql = format!("SELECT tenant, sum({bytes}) FROM {table} {piece} GROUP BY tenant");
            self.count_dropped(&sql, params_from_iter(end.iter().flatten()))?;
        }
        let Some(end) = end else { return Ok(true) };
        self.connection.execute(&format!("DELETE FROM {table} {piece}"), params_from_iter(end))?;
        Ok(false)
    }

    fn empty_dead_letters(&self, bucket: u64, delta: &mut Delta) -> Outcome<bool> {
        let table = format!("dlq_{bucket}");
        let piece =
            self.next_piece(&table, "rowid", &format!("{} + coalesce(length(response), 0)", share_of_body(&table)))?;
        self.release_rows(&table, "rowid", LETTER_BYTES, piece.last, &BTreeSet::new())?;
        let deleted = self.connection.execute(&format!("DELETE FROM {table} WHERE rowid <= ?1"), [piece.last])?;
        delta.dead_letters -= int(deleted as u64);
        Ok(piece.is_rest)
    }

    fn empty_messages(&mut self, bucket: u64, now: Timestamp) -> Outcome<bool> {
        let table = format!("message_{bucket}");
        let piece = self.next_piece(&table, "seq", &share_of_body(&table))?;
        let needed = self.needed(bucket, piece.last)?;
        for seq in &needed {
            let target = self.buckets.ensure(&self.connection, Kind::Message, now)?;
            let sql = format!("INSERT INTO message_{target} SELECT * FROM {table} WHERE seq = ?1");
            self.connection.prepare_cached(&sql)?.execute([seq])?;
        }
        self.release_rows(&table, "seq", MESSAGE_BYTES, piece.last, &needed)?;
        self.raise_last_seq(Some(Seq(piece.last.cast_unsigned())))?;
        self.connection.execute(&format!("DELETE FROM {table} WHERE seq <= ?1"), [piece.last])?;
        Ok(piece.is_rest)
    }

    /// Call it before rows up to `last` are deleted. For each row that did not move to another table, subtracts its
    /// bytes and releases its shared body.
    fn release_rows(&self, table: &str, key: &str, bytes: &str, last: i64, moved: &BTreeSet<i64>) -> Outcome<()> {
        let sql = format!("SELECT {key}, tenant, {bytes}, {SHARED_ID} FROM {table} WHERE {key} <= ?1");
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([last])?;
        let mut released = BTreeMap::new();
        while let Some(row) = rows.next()? {
            if moved.contains(&row.get(0)?) {
                continue;
            }
            self.count_bytes(TenantId(row.get(1)?), -row.get::<_, i64>(2)?);
            if let Some(id) = row.get::<_, Option<i64>>(3)? {
                *released.entry(id).or_insert(0) += 1;
            }
        }
        self.release_shared_bodies(&released)
    }

    fn has_old_runs(&self, policy: &Retention, now: Timestamp) -> Outcome<bool> {
        for (sql, end) in old_runs(policy, now) {
            if self.connection.prepare_cached(sql)?.exists([end])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Drops runs within the remaining budget and returns how many of them were in the DLQ.
    fn drop_runs(&self, policy: &Retention, now: Timestamp) -> Outcome<u64> {
        let mut room = Room { rows: ROWS_MAX, bytes: BYTES_MAX };
        let mut failed = 0;
        for (sql, end) in old_runs(policy, now) {
            let mut statement = self.connection.prepare_cached(sql)?;
            while let Some(run) = statement.query_row([end], |row| row.get(0)).optional()? {
                if !self.drop_run(run, &mut room)? {
                    return Ok(failed);
                }
                failed += u64::from(sql == FAILED_RUNS);
            }
        }
        Ok(failed)
    }

    /// Drops the notes of a run within the remaining budget. Returns true when all are gone.
    fn drop_notes(&self, run: i64, room: &mut Room) -> Outcome<bool> {
        let notes = format!(
            "SELECT kind, n, length(data) + length(body), {NOTE_BYTES} FROM run_note WHERE run = ?1 ORDER BY kind, n"
        );
        const DELETE: &str = "DELETE FROM run_note WHERE run = ?1 AND (kind, n) <= (?2, ?3)";
        let mut last = None;
        let mut is_all = true;
        let tenant = self.tenant_of_run(run)?;
        let mut statement = self.connection.prepare_cached(&notes)?;
        let mut rows = statement.query([run])?;
        while let Some(row) = rows.next()? {
            is_all = room.take(row.get(2)?);
            if !is_all {
                break;
            }
            last = Some([run, row.get(0)?, row.get(1)?]);
            self.count_bytes(tenant, -row.get::<_, i64>(3)?);
        }
        drop(rows);
        if let Some(last) = last {
            self.connection.prepare_cached(DELETE)?.execute(last)?;
        }
        Ok(is_all)
    }

    fn tenant_of_run(&self, run: i64) -> Outcome<TenantId> {
        let mut statement = self.connection.prepare_cached("SELECT tenant FROM run WHERE no = ?1")?;
        Ok(statement.query_row([run], |row| row.get(0).map(TenantId))?)
    }

    /// Drops a run within the remaining budget. Its first entry goes first, so that the run no longer exists for
    /// readers. Returns true when it is gone.
    fn drop_run(&self, run: i64, room: &mut Room) -> Outcome<bool> {
        let entries = format!(
            "SELECT idx, length(delivery) + length(gist) + length(terms) + length(body), {ENTRY_BYTES} FROM run_entry
             WHERE run = ?1 ORDER BY idx"
        );
        let tenant = self.tenant_of_run(run)?;
        let mut last = None;
        let mut statement = self.connection.prepare_cached(&entries)?;
        let mut rows = statement.query([run])?;
        while let Some(row) = rows.next()?
            && room.take(row.get(1)?)
        {
            last = Some(row.get::<_, i64>(0)?);
            self.count_bytes(tenant, -row.get::<_, i64>(2)?);
        }
        drop(rows);
        if last.is_some() {
            const DELETE: &str = "DELETE FROM run_entry WHERE run = ?1 AND idx <= ?2";
            self.connection.prepare_cached(DELETE)?.execute([Some(run), last])?;
        }
        if !self.drop_notes(run, room)? {
            return Ok(false);
        }
        let mut size = self.connection.prepare_cached(&format!("SELECT {DATA_BYTES} FROM run WHERE no = ?1"))?;
        let size = size.query_row([run], |row| row.get(0))?;
        if !room.take(size) {
            return Ok(false);
        }
        self.count_bytes(tenant, -size);
        self.connection.prepare_cached("DELETE FROM run WHERE no = ?1")?.execute([run])?;
        Ok(true)
    }

    fn has_old_bulk_actions(&self, now: Timestamp) -> Outcome<bool> {
        Ok(self.connection.prepare(&format!("SELECT 1 FROM {}", old_bulk_actions(now)))?.exists([])?)
    }

    fn drop_bulk_actions(&self, now: Timestamp) -> Outcome<()> {
        let old = old_bulk_actions(now);
        let piece = self.next_piece(&old, "id", "length(data)")?;
        let sql = format!("SELECT tenant, sum({DATA_BYTES}) FROM {old} AND id <= ?1 GROUP BY tenant");
        self.count_dropped(&sql, [piece.last])?;
        if self.connection.execute(&format!("DELETE FROM {old} AND id <= ?1"), [piece.last])? > 0 {
            self.raise_last_seq(Some(Seq(piece.last.cast_unsigned())))?;
        }
        Ok(())
    }

    /// Messages up to `last` that are live or have a log line.
    fn needed(&self, bucket: u64, last: i64) -> Outcome<BTreeSet<i64>> {
        let mut needed = BTreeSet::new();
        let mut add = |table: &str| -> Outcome<()> {
            let lowest = self.connection.query_row(&format!("SELECT min(seq) FROM {table}"), [], |row| row.get(0))?;
            if Option::<i64>::is_none(&lowest) || lowest > Some(last) {
                return Ok(());
            }
            let sql = format!(
                "SELECT seq FROM message_{bucket} AS message WHERE seq <= ?1
                 AND EXISTS (SELECT 1 FROM {table} AS needing WHERE needing.seq = message.seq)"
            );
            let mut statement = self.connection.prepare(&sql)?;
            let mut rows = statement.query([last])?;
            while let Some(row) = rows.next()? {
                needed.insert(row.get(0)?);
            }
            Ok(())
        };
        add("live")?;
        for event_bucket in self.buckets.of(Kind::Event) {
            add(&format!("event_{event_bucket}"))?;
        }
        Ok(needed)
    }

    /// The first rows of a table or a condition, as many as one round may touch.
    fn next_piece(&self, rows: &str, key: &str, bytes: &str) -> Outcome<Piece> {
        let sql = format!("SELECT {key}, {bytes} FROM {rows} ORDER BY {key}");
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        let mut piece = Piece { last: 0, is_rest: true };
        let (mut count, mut sum) = (0, 0);
        while let Some(row) = rows.next()? {
            if count >= ROWS_MAX || sum >= BYTES_MAX {
                piece.is_rest = false;
                break;
            }
            piece.last = row.get(0)?;
            sum += row.get::<_, i64>(1)?;
            count += 1;
        }
        Ok(piece)
    }
}

/// Bytes of a body. A shared body counts in equal parts for its references.
fn share_of_body(table: &str) -> String {
    format!(
        "CASE typeof({table}.body) WHEN 'integer' THEN
            (SELECT octet_length(shared.body) / max(shared.refs, 1) FROM shared_body AS shared WHERE shared.id = {table}.body)
         ELSE octet_length({table}.body) END"
    )
}

/// The finished bulk actions that are no longer visible: table and condition.
fn old_bulk_actions(now: Timestamp) -> String {
    let end = Seq::first_at(now.minus_millis(limits::BULK_ACTION_MS));
    format!("bulk_action WHERE completed = 1 AND id < {}", end.0)
}

/// A run that has been in the DLQ for longer than allowed.
const FAILED_RUNS: &str = "SELECT no FROM run INDEXED BY run_failed
    WHERE dlq_at < ?1 AND ended_at IS NOT NULL ORDER BY dlq_at LIMIT 1";

/// Statements that find the next run to drop, each with its time limit: for runs outside the DLQ and runs in it.
pub(super) fn old_runs(policy: &Retention, now: Timestamp) -> [(&'static str, i64); 2] {
    const ENDED: &str = "SELECT no FROM run INDEXED BY run_ended
        WHERE ended_at < ?1 AND dlq_at IS NULL ORDER BY ended_at LIMIT 1";
    [(ENDED, policy.history_ms), (FAILED_RUNS, policy.dlq_ms)]
        .map(|(sql, keep_ms)| (sql, int(now.minus_millis(keep_ms).0)))
}

/// The remaining budget of one round.
struct Room {
    rows: usize,
    bytes: i64,
}

impl Room {
    /// Takes one row from the budget. Once the budget is used up, it stays so.
    fn take(&mut self, bytes: i64) -> bool {
        let has_room = self.rows > 0 && self.bytes > 0;
        if has_room {
            self.rows -= 1;
            self.bytes -= bytes;
        }
        has_room
    }
}

/// Rows from the old end of a table.
struct Piece {
    /// Key of the last of these rows.
    last: i64,
    /// Whether the table contains no other rows.
    is_rest: bool,
}
