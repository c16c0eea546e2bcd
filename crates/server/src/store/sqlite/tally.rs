//! How much there is of what people look after. Counts read indexes, or the first rows, and stop where they were told to.

use super::codec::int;
use super::error::Outcome;
use super::read::Snapshot;
use super::schema::Kind;
use crate::store::Tally;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

const FAILED_RUNS: &str = "SELECT count(*) FROM
    (SELECT 1 FROM run INDEXED BY run_dlq WHERE tenant = ?1 AND dlq_at IS NOT NULL LIMIT ?2)";
const OLDEST_FAILED_RUN: &str = "SELECT dlq_at FROM run INDEXED BY run_dlq
    WHERE tenant = ?1 AND dlq_at IS NOT NULL ORDER BY dlq_at LIMIT 1";
const LIVE_RUNS: &str = "SELECT count(*) FROM
    (SELECT 1 FROM run INDEXED BY run_started WHERE tenant = ?1 AND state = 0 LIMIT ?2)";
/// There is no index by tenant, so that rows of others are looked at too.
const LIVE_MESSAGES: &str = "SELECT count(*) FILTER (WHERE tenant = ?1 AND step = 0), count(*) FROM
    (SELECT tenant, step FROM live ORDER BY seq LIMIT ?2)";

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

    /// How many messages of a tenant are among the first `max` of all that have not ended, and whether there may be more.
    fn live_messages(&self, tenant: TenantId, max: u64) -> Outcome<(u64, bool)> {
        let mut statement = self.connection.prepare_cached(LIVE_MESSAGES)?;
        let counts = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()));
        let (own, all) = statement.query_row(params![tenant.0, int(max)], counts)?;
        Ok((own, all >= max))
    }
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
    use crate::store::sqlite::schema::{self, Buckets};
    use rusqlite::Connection;
    use std::path::Path;

    #[test]
    fn every_query_reads_an_index_alone() {
        let connection = Connection::open_in_memory().unwrap();
        schema::prepare(&connection, Path::new("in memory")).unwrap();
        let bucket = Buckets::default().ensure(&connection, Kind::DeadLetter, Timestamp(0)).unwrap();
        let dead_letters =
            format!("SEARCH dlq_{bucket} USING COVERING INDEX sqlite_autoindex_dlq_{bucket}_1 (tenant=?)");
        for (sql, expected) in [
            (FAILED_RUNS.to_owned(), "SEARCH run USING COVERING INDEX run_dlq (tenant=? AND dlq_at>?)"),
            (OLDEST_FAILED_RUN.to_owned(), "SEARCH run USING COVERING INDEX run_dlq (tenant=? AND dlq_at>?)"),
            (LIVE_RUNS.to_owned(), "SEARCH run USING COVERING INDEX run_started (tenant=?)"),
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
}
