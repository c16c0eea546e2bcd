//! Counts of a tenant's objects that need attention. The counts use indexes, or rows that indexes find, and stop at a
//! maximum.

use super::codec::int;
use super::error::Outcome;
use super::read::Snapshot;
use super::schema::Kind;
use crate::Tally;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

const FAILED_RUNS: &str = "SELECT count(*) FROM
    (SELECT 1 FROM run INDEXED BY run_dlq WHERE tenant = ?1 AND dlq_at IS NOT NULL LIMIT ?2)";
const OLDEST_FAILED_RUN: &str = "SELECT dlq_at FROM run INDEXED BY run_dlq
    WHERE tenant = ?1 AND dlq_at IS NOT NULL ORDER BY dlq_at LIMIT 1";
const LIVE_RUNS: &str = "SELECT count(*) FROM
    (SELECT 1 FROM run INDEXED BY run_started WHERE tenant = ?1 AND state = 0 LIMIT ?2)";
/// There is no index by tenant, so this also visits rows of other tenants.
const LIVE_MESSAGES: &str = "SELECT count(*) FILTER (WHERE tenant = ?1 AND step = 0), count(*) FROM
    (SELECT tenant, step FROM live ORDER BY seq LIMIT ?2)";
/// If there are too many messages to visit, this many destinations and queues of all tenants are visited to find those
/// of one tenant. If there are more, the result says that some were not visited.
const LANES_MAX: usize = 5_000;
/// The first lane (destination or queue) after another one, and its tenant. The hashes of destinations and queues
/// include the tenant.
const NEXT_DESTINATION: &str = "SELECT origin, tenant FROM live INDEXED BY live_origin
    WHERE queue IS NULL AND origin > ?1 ORDER BY origin LIMIT 1";
const NEXT_QUEUE: &str = "SELECT queue, tenant FROM live INDEXED BY live_queue
    WHERE queue IS NOT NULL AND queue > ?1 ORDER BY queue LIMIT 1";
/// The number of messages of a tenant in such a lane, and the number of its rows.
const OF_DESTINATION: &str = "SELECT count(*) FILTER (WHERE tenant = ?1 AND step = 0), count(*) FROM
    (SELECT tenant, step FROM live INDEXED BY live_origin WHERE queue IS NULL AND origin = ?3 LIMIT ?2)";
const OF_QUEUE: &str = "SELECT count(*) FILTER (WHERE tenant = ?1 AND step = 0), count(*) FROM
    (SELECT tenant, step FROM live INDEXED BY live_queue WHERE queue = ?3 LIMIT ?2)";

impl Snapshot<'_> {
    pub(super) fn tally(&self, tenant: TenantId, max: u64) -> Outcome<Tally> {
        let count = |sql: &str, max: u64| -> Outcome<u64> {
            let mut statement = self.connection.prepare_cached(sql)?;
            Ok(statement.query_row(params![tenant.0, int(max)], |row| row.get::<_, i64>(0))?.cast_unsigned())
        };
        let oldest = |sql: &str| -> Outcome<Option<Timestamp>> {
            let mut statement = self.connection.prepare_cached(sql)?;
            let found = statement.query_row([tenant.0], |row| row.get::<_, i64>(0)).optional()?;
            Ok(found.map(|at| Timestamp(at.cast_unsigned())))
        };
        let (live_messages, more_live_messages) = self.live_messages(tenant, max)?;
        let mut tally = Tally {
            failed_runs: count(FAILED_RUNS, max)?,
            oldest_failed_run: oldest(OLDEST_FAILED_RUN)?,
            live_runs: count(LIVE_RUNS, max)?,
            live_messages,
            more_live_messages,
            ..Tally::default()
        };
        for bucket in self.buckets.of(Kind::DeadLetter) {
            tally.dead_letters += count(&dead_letters_sql(*bucket), max - tally.dead_letters)?;
            if tally.oldest_dead_letter.is_none() {
                tally.oldest_dead_letter = oldest(&oldest_dead_letter_sql(*bucket))?;
            }
        }
        Ok(tally)
    }

    /// How many live messages a tenant has, and whether there may be more. Visits all messages if they are few.
    /// Otherwise visits the lanes, and then the tenant's own rows up to `max`.
    fn live_messages(&self, tenant: TenantId, max: u64) -> Outcome<(u64, bool)> {
        let mut statement = self.connection.prepare_cached(LIVE_MESSAGES)?;
        let (own, all) = statement.query_row(params![tenant.0, int(max)], counts)?;
        if all < max || own == max {
            return Ok((own, all == max));
        }
        let (mut messages, mut room) = (0, max);
        let mut has_more = false;
        for (next, of_line) in [(NEXT_DESTINATION, OF_DESTINATION), (NEXT_QUEUE, OF_QUEUE)] {
            let (lines, more) = self.lanes_of(tenant, next, LANES_MAX)?;
            has_more |= more;
            let mut statement = self.connection.prepare_cached(of_line)?;
            for line in lines {
                let (counted, rows) = statement.query_row(params![tenant.0, int(room), line], counts)?;
                messages += counted;
                room -= rows;
            }
        }
        Ok((messages.max(own), has_more || room == 0))
    }

    /// The lanes of a tenant among the first `max` of all lanes, and whether there are more. Each lane is found by an
    /// index seek from the previous one, no matter how long that one is.
    fn lanes_of(&self, tenant: TenantId, next: &str, max: usize) -> Outcome<(Vec<i64>, bool)> {
        let mut statement = self.connection.prepare_cached(next)?;
        let (mut lines, mut last) = (Vec::new(), i64::MIN);
        for _ in 0..max {
            let found = statement.query_row([last], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, u32>(1)?)));
            let Some((line, owner)) = found.optional()? else { return Ok((lines, false)) };
            if owner == tenant.0 {
                lines.push(line);
            }
            last = line;
        }
        Ok((lines, statement.exists([last])?))
    }
}

/// Two numbers of a row.
fn counts(row: &Row<'_>) -> rusqlite::Result<(u64, u64)> {
    Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
}

fn dead_letters_sql(bucket: u64) -> String {
    format!("SELECT count(*) FROM (SELECT 1 FROM dlq_{bucket} WHERE tenant = ?1 LIMIT ?2)")
}

fn oldest_dead_letter_sql(bucket: u64) -> String {
    format!("SELECT at FROM dlq_{bucket} WHERE tenant = ?1 ORDER BY at LIMIT 1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::{self, Buckets};
    use rusqlite::Connection;
    use std::path::Path;

    #[test]
    fn every_query_but_one_looks_for_rows_in_an_index() {
        let connection = Connection::open_in_memory().unwrap();
        schema::prepare(&connection, Path::new("in memory")).unwrap();
        let bucket = Buckets::default().ensure(&connection, Kind::DeadLetter, Timestamp(0)).unwrap();
        let dead_letters =
            format!("SEARCH dlq_{bucket} USING COVERING INDEX sqlite_autoindex_dlq_{bucket}_1 (tenant=?)");
        for (sql, expected) in [
            (FAILED_RUNS.to_owned(), "SEARCH run USING COVERING INDEX run_dlq (tenant=? AND dlq_at>?)"),
            (OLDEST_FAILED_RUN.to_owned(), "SEARCH run USING COVERING INDEX run_dlq (tenant=? AND dlq_at>?)"),
            (LIVE_RUNS.to_owned(), "SEARCH run USING COVERING INDEX run_started (tenant=?)"),
            (NEXT_DESTINATION.to_owned(), "SEARCH live USING INDEX live_origin (origin>?)"),
            (NEXT_QUEUE.to_owned(), "SEARCH live USING COVERING INDEX live_queue (queue>?)"),
            (OF_DESTINATION.to_owned(), "SEARCH live USING INDEX live_origin (origin=?)"),
            (OF_QUEUE.to_owned(), "SEARCH live USING INDEX live_queue (queue=?)"),
            (dead_letters_sql(bucket), dead_letters.as_str()),
            (oldest_dead_letter_sql(bucket), dead_letters.as_str()),
        ] {
            let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let unbound = vec![rusqlite::types::Null; statement.parameter_count()];
            let steps =
                statement.query_map(rusqlite::params_from_iter(unbound), |row| row.get::<_, String>(3)).unwrap();
            let steps: Vec<String> = steps.map(Result::unwrap).filter(|step| step.contains("USING")).collect();
            assert_eq!(steps, [expected], "{sql}");
        }
    }

    #[test]
    fn the_number_of_visited_lanes_is_bounded() {
        let connection = Connection::open_in_memory().unwrap();
        schema::prepare(&connection, Path::new("in memory")).unwrap();
        // Two tenants have three destinations each, one with a negative hash, and two messages per destination.
        let row = "INSERT INTO live(seq, tag, tenant, origin, body_bytes, due, retried, cancel_requested, shard)
            VALUES (?1, 0, ?2, ?3, 0, 0, 0, 0, 0)";
        for seq in 0..12_i64 {
            connection.execute(row, params![seq, seq % 2, seq / 2 % 3 * 2 + seq % 2 - 1]).unwrap();
        }
        let buckets = Buckets::default();
        let snapshot = Snapshot { connection: &connection, buckets: &buckets };
        let lines = |tenant, max| snapshot.lanes_of(TenantId(tenant), NEXT_DESTINATION, max).unwrap();
        assert_eq!((lines(0, 10), lines(1, 10)), ((vec![-1, 1, 3], false), (vec![0, 2, 4], false)));
        assert_eq!((lines(1, 6), lines(1, 5)), ((vec![0, 2, 4], false), (vec![0, 2], true)));
        assert_eq!(snapshot.live_messages(TenantId(1), 13).unwrap(), (6, false), "all rows");
        for (max, expected) in [(12, (6, false)), (7, (6, false)), (6, (6, true)), (3, (3, true))] {
            assert_eq!(snapshot.live_messages(TenantId(1), max).unwrap(), expected, "own rows up to {max}");
        }
        assert_eq!(snapshot.live_messages(TenantId(2), 5).unwrap(), (0, false), "it has none");
        for seq in 12..12 + LANES_MAX as i64 {
            connection.execute(row, params![seq, 3, seq]).unwrap();
        }
        connection.execute(row, params![-1, 4, i64::MAX - 1]).unwrap();
        connection.execute(row, params![i64::MAX, 5, i64::MAX]).unwrap();
        let [old, new] = [4, 5].map(|tenant| snapshot.live_messages(TenantId(tenant), 5).unwrap());
        assert_eq!((old, new), ((1, true), (0, true)), "behind all lines that are looked at");
    }
}
