//! Workflow runs: finding and listing them, and the waiters of events. The parts of one run are in `run_parts`. Old
//! runs are dropped with the rest of the history; see `retention`.
//!
//! SQL narrows by tenant, position and name; [`RunFilter`] decides on the decoded rows. Statements name their index, so
//! that they fail instead of getting slow if the index does not fit. The tests below compare the query plans.

use super::codec::{self, bits, int, to_json};
use super::error::{Failure, Outcome};
use super::read::{Snapshot, only_ids};
use super::usage::{DATA_BYTES, row_bytes};
use super::write::{Writer, absent};
use crate::page::{Bounds, PageBuilder};
use crate::run::dlq_place_of;
use crate::{Order, Page, PageRequest, RunFilter, ShardId};
use posthaste_engine::workflow::entry::Delivery;
use posthaste_engine::workflow::run::{Run, RunState};
use posthaste_engine::workflow::{Change, Waiter};
use posthaste_wire::id::{DlqId, MessageId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params, params_from_iter};
use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Most names that SQL searches. If a filter has more, it alone decides.
const NAMES_MAX: usize = 1_000;

/// Conditions of a batch that only the database can check. All must be met.
#[derive(Debug, Default)]
pub(crate) struct Preconditions {
    /// Runs that get notes. If one does not exist, the journal cannot take the batch, because pending changes do not
    /// record whether a note was written before or after its run.
    pub noted: HashSet<Seq>,
    /// These messages are live.
    pub live: Vec<(ShardId, MessageId)>,
    /// If a run with this number exists, it is this one.
    pub runs: Vec<Arc<Run>>,
    /// These entries exist.
    pub entries: Vec<(Seq, u32)>,
    /// These waiters exist.
    pub waiters: Vec<Waiter>,
}

impl Preconditions {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { noted, live, runs, entries, waiters } = self;
        noted.is_empty() && live.is_empty() && runs.is_empty() && entries.is_empty() && waiters.is_empty()
    }
}

impl Snapshot<'_> {
    /// Whether the run itself exists, even if parts of it are missing.
    pub(super) fn has_run(&self, no: Seq) -> Outcome<bool> {
        Ok(self.connection.prepare_cached("SELECT 1 FROM run WHERE no = ?1")?.exists([int(no.0)])?)
    }

    pub(super) fn find_run(
        &self,
        tenant: TenantId,
        id: &str,
        created_at: Option<Timestamp>,
    ) -> Outcome<Option<(Timestamp, Seq)>> {
        let position = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let found = match created_at {
            None => self.connection.prepare_cached(NEWEST)?.query_row(params![tenant.0, id], position),
            Some(at) => self.connection.prepare_cached(INSTANCE)?.query_row(params![tenant.0, id, int(at.0)], position),
        };
        let found = found.optional()?;
        Ok(found.map(|(at, no)| (Timestamp(at.cast_unsigned()), Seq(no.cast_unsigned()))))
    }

    pub(super) fn waiters(&self, tenant: TenantId, event: &str, max: usize) -> Outcome<Vec<Waiter>> {
        const SQL: &str = "SELECT seq, tag, run FROM waiter WHERE tenant = ?1 AND event = ?2 ORDER BY seq LIMIT ?3";
        let mut statement = self.connection.prepare_cached(SQL)?;
        let mut rows = statement.query(params![tenant.0, event, int(max as u64)])?;
        let mut waiters = Vec::new();
        while let Some(row) = rows.next()? {
            let run = Seq(row.get::<_, i64>(2)?.cast_unsigned());
            waiters.push(Waiter { tenant, event: event.to_owned(), run, timer: codec::id(row, 0)? });
        }
        Ok(waiters)
    }

    pub(super) fn match_runs(&self, tenant: TenantId, filter: &RunFilter, after: Seq, max: usize) -> Outcome<Vec<Seq>> {
        let names = names(filter);
        let mut values = vec![Value::from(i64::from(tenant.0)), Value::from(int(after.0))];
        values.extend(names.iter().map(|name| Value::from((*name).to_owned())));
        let mut statement = self.connection.prepare(&match_sql(names.len()))?;
        let mut rows = statement.query(params_from_iter(values))?;
        let mut found = Vec::new();
        while found.len() < max
            && !filter.nothing
            && let Some(row) = rows.next()?
        {
            let run: Run = codec::json("run", row, 0)?;
            let is_meant = filter.matches(&run) && filter.matches_time(run.created_at);
            if is_meant && self.has_message(&run, filter)? && self.has_entry(run.no, 0)? {
                found.push(run.no);
            }
        }
        Ok(found)
    }

    /// A page of runs. `shown` turns each into an entry and its bytes.
    pub(super) fn list_runs<T>(
        &self,
        list: List,
        tenant: TenantId,
        filter: &RunFilter,
        page: &PageRequest,
        shown: impl Fn(Run) -> Outcome<Option<(usize, T)>>,
    ) -> Outcome<Page<T>> {
        let mut builder = PageBuilder::new(page);
        let bounds = Bounds::new(filter.dates(), page);
        if filter.nothing || bounds.is_empty() {
            return Ok(builder.finish());
        }
        let names = names(filter);
        let limits =
            [bounds.first.at.0, bounds.first.n, bounds.end.at.0, bounds.end.n].map(|limit| Value::from(int(limit)));
        let mut values = vec![Value::from(i64::from(tenant.0))];
        values.extend(limits);
        values.extend(names.iter().map(|name| Value::from((*name).to_owned())));
        let mut statement = self.connection.prepare(&list_sql(list, names.len(), page.order))?;
        let mut rows = statement.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let number = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
            let position = Position { at: Timestamp(number(0)?), n: number(1)? };
            let meant = self.matching(row, filter, position.at)?;
            let taken = match meant.map(&shown).transpose()?.flatten() {
                Some((bytes, shown)) => builder.offer(position, bytes, shown),
                None => builder.skip(position),
            };
            if let ControlFlow::Break(()) = taken {
                break;
            }
        }
        Ok(builder.finish())
    }

    /// The run in a row of [`list_sql`], if it matches; dates apply to `at`. Entries of other runs are never read.
    fn matching(&self, row: &Row<'_>, filter: &RunFilter, at: Timestamp) -> Outcome<Option<Run>> {
        let state = row.get::<_, i64>(2)?;
        if !filter.states.is_empty() && !filter.states.iter().any(|wanted| state_number(*wanted) == state) {
            return Ok(None);
        }
        let run: Run = codec::json("run", row, 3)?;
        if !filter.matches(&run) || !filter.matches_time(at) || !self.has_message(&run, filter)? {
            return Ok(None);
        }
        Ok(Some(run))
    }

    pub(super) fn live_runs(&self) -> Outcome<u64> {
        Ok(self.connection.query_row(LIVE, [], |row| row.get::<_, i64>(0))?.cast_unsigned())
    }

    pub(super) fn failed_runs(&self) -> Outcome<u64> {
        Ok(self.connection.query_row(IN_DLQ, [], |row| row.get::<_, i64>(0))?.cast_unsigned())
    }

    pub(super) fn find_failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Outcome<Option<Seq>> {
        let mut statement = self.connection.prepare_cached(FAILED)?;
        let values = params![tenant.0, int(dlq_id.at.0), int(dlq_id.n)];
        let no = statement.query_row(values, |row| row.get::<_, i64>(0)).optional()?;
        Ok(no.map(|no| Seq(no.cast_unsigned())))
    }

    /// Returns false if a run that gets notes does not exist, and an error if any other condition is not met.
    pub(super) fn check(&self, preconditions: &Preconditions) -> Outcome<bool> {
        for no in &preconditions.noted {
            if !self.has_run(*no)? {
                return Ok(false);
            }
        }
        for (shard, id) in &preconditions.live {
            let mut statement =
                self.connection.prepare_cached("SELECT 1 FROM live WHERE seq = ?1 AND tag = ?2 AND shard = ?3")?;
            if !statement.exists(params![int(id.seq.0), bits(id.tag), shard.0])? {
                return Err(absent(*id));
            }
        }
        for run in &preconditions.runs {
            let mut statement =
                self.connection.prepare_cached("SELECT tenant, id, created_at FROM run WHERE no = ?1")?;
            let mut rows = statement.query([int(run.no.0)])?;
            if let Some(row) = rows.next()? {
                let is_same = row.get::<_, u32>(0)? == run.tenant.0
                    && row.get_ref(1)?.as_str().is_ok_and(|id| id == run.id)
                    && codec::time(row, 2)? == run.created_at;
                if !is_same {
                    return Err(taken("run"));
                }
            }
        }
        for (run, index) in &preconditions.entries {
            if !self.has_entry(*run, *index)? {
                return Err(absent_entry(*run, *index));
            }
        }
        for waiter in &preconditions.waiters {
            let sql = format!("SELECT 1 FROM waiter WHERE {THIS_WAITER}");
            let values = params![
                waiter.tenant.0,
                waiter.event,
                int(waiter.timer.seq.0),
                bits(waiter.timer.tag),
                int(waiter.run.0)
            ];
            if !self.connection.prepare_cached(&sql)?.exists(values)? {
                return Err(absent_waiter(waiter));
            }
        }
        Ok(true)
    }

    fn has_entry(&self, run: Seq, index: u32) -> Outcome<bool> {
        let mut statement = self.connection.prepare_cached("SELECT 1 FROM run_entry WHERE run = ?1 AND idx = ?2")?;
        Ok(statement.exists(params![int(run.0), index])?)
    }

    /// Whether the run has one of the requested messages.
    fn has_message(&self, run: &Run, filter: &RunFilter) -> Outcome<bool> {
        if filter.messages.is_empty() {
            return Ok(true);
        }
        let (waits, invokes) = self.asked_for(run.no)?;
        if filter.matches_messages_of(run, &waits, &invokes) {
            return Ok(true);
        }
        let sql = format!("SELECT seq, tag FROM run_entry WHERE run = ?1 {}", only_ids(&filter.messages));
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([int(run.no.0)])?;
        while let Some(row) = rows.next()? {
            if filter.messages.contains(&codec::id(row, 0)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Writer {
    /// Writes a change of a run.
    pub(super) fn change_run(&self, change: &Change) -> Outcome<()> {
        match change {
            Change::Run(run) => self.put_run(run),
            Change::Entry { run, entry, body } => self.put_entry(*run, entry, body),
            Change::Delivery { run, index, delivery } => self.set_delivery(*run, *index, delivery),
            Change::Note { run, note } => self.put_note(*run, note),
            Change::NoNote { run, key } => self.drop_note(*run, *key),
            Change::Waiter(waiter) => self.put_waiter(waiter),
            Change::NoWaiter(waiter) => self.drop_waiter(waiter),
        }
    }

    /// The name of a run and its time of creation never change, so only the indexes of its state are updated.
    pub(super) fn put_run(&self, run: &Run) -> Outcome<()> {
        const SQL: &str = "INSERT INTO run(no, tenant, id, created_at, state, ended_at, dlq_at, dlq_n, data)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
            ON CONFLICT(no) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at,
                dlq_at = excluded.dlq_at, dlq_n = excluded.dlq_n, data = excluded.data
            WHERE tenant = excluded.tenant AND id = excluded.id AND created_at = excluded.created_at";
        let (place, data) = (dlq_place_of(run), to_json("run", run)?);
        let replaced = format!("SELECT {DATA_BYTES} FROM run WHERE no = ?1");
        self.count_replaced(run.tenant, &replaced, [int(run.no.0)], row_bytes(&[data.len()]))?;
        let written = self.connection.prepare_cached(SQL)?.execute(params![
            int(run.no.0),
            run.tenant.0,
            run.id,
            int(run.created_at.0),
            state_number(run.state),
            run.ended_at.map(|at| int(at.0)),
            place.map(|place| int(place.at.0)),
            place.map(|place| int(place.n)),
            data,
        ])?;
        if written == 1 { Ok(()) } else { Err(taken("run")) }
    }

    pub(super) fn set_delivery(&self, run: Seq, index: u32, delivery: &Delivery) -> Outcome<()> {
        const SQL: &str = "UPDATE run_entry SET delivery = ?3 WHERE run = ?1 AND idx = ?2";
        let delivery = to_json("entry", delivery)?;
        match self.connection.prepare_cached(SQL)?.execute(params![int(run.0), index, delivery])? {
            1 => Ok(()),
            _ => Err(absent_entry(run, index)),
        }
    }

    pub(super) fn put_waiter(&self, waiter: &Waiter) -> Outcome<()> {
        const SQL: &str = "INSERT INTO waiter(tenant, event, seq, tag, run) VALUES (?1, ?2, ?3, ?4, ?5)";
        let MessageId { seq, tag } = waiter.timer;
        let values = params![waiter.tenant.0, waiter.event, int(seq.0), bits(tag), int(waiter.run.0)];
        self.connection.prepare_cached(SQL)?.execute(values)?;
        Ok(())
    }

    pub(super) fn drop_waiter(&self, waiter: &Waiter) -> Outcome<()> {
        let MessageId { seq, tag } = waiter.timer;
        let values = params![waiter.tenant.0, waiter.event, int(seq.0), bits(tag), int(waiter.run.0)];
        let sql = format!("DELETE FROM waiter WHERE {THIS_WAITER}");
        match self.connection.prepare_cached(&sql)?.execute(values)? {
            1 => Ok(()),
            _ => Err(absent_waiter(waiter)),
        }
    }
}

/// A list of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// All of them, by creation.
    All,
    /// Runs in the DLQ, by their position there.
    Failed,
}

impl List {
    /// The columns of the position, the index with that order, and the condition of the index, if it has one.
    fn order(self) -> ([&'static str; 2], &'static str, &'static str) {
        match self {
            List::All => (["created_at", "no"], "run_created", ""),
            List::Failed => (["dlq_at", "dlq_n"], "run_dlq", "AND dlq_at IS NOT NULL"),
        }
    }
}

const NEWEST: &str = "SELECT created_at, no FROM run INDEXED BY run_id WHERE tenant = ?1 AND id = ?2
    ORDER BY created_at DESC, no DESC LIMIT 1";
const INSTANCE: &str = "SELECT created_at, no FROM run INDEXED BY run_id
    WHERE tenant = ?1 AND id = ?2 AND created_at = ?3 ORDER BY no DESC LIMIT 1";
const LIVE: &str = "SELECT count(*) FROM run INDEXED BY run_started WHERE state = 0";
const IN_DLQ: &str = "SELECT count(*) FROM run INDEXED BY run_dlq WHERE dlq_at IS NOT NULL";
const FAILED: &str = "SELECT no FROM run INDEXED BY run_dlq
    WHERE tenant = ?1 AND dlq_at = ?2 AND dlq_n = ?3 ORDER BY no LIMIT 1";
const THIS_WAITER: &str = "tenant = ?1 AND event = ?2 AND seq = ?3 AND tag = ?4 AND run = ?5";

/// Named runs are found by name and sorted, because few runs share a name.
fn list_sql(list: List, names: usize, order: Order) -> String {
    let ([at, n], index, condition) = list.order();
    let index = if names > 0 { "run_id" } else { index };
    let descending = if order == Order::LatestFirst { "DESC" } else { "" };
    format!(
        "SELECT {at}, {n}, state, data FROM run INDEXED BY {index}
         WHERE tenant = ?1 AND ({at}, {n}) >= (?2, ?3) AND ({at}, {n}) < (?4, ?5) {condition} {}
         ORDER BY {at} {descending}, {n} {descending}",
        only_names(names)
    )
}

/// Finds live runs.
fn match_sql(names: usize) -> String {
    let index = if names > 0 { "run_id" } else { "run_started" };
    let names = only_names(names);
    format!("SELECT data FROM run INDEXED BY {index} WHERE tenant = ?1 AND state = 0 AND no > ?2 {names} ORDER BY no")
}

/// A condition on the name, whose values are bound after all others; empty if there are no names.
fn only_names(count: usize) -> String {
    if count == 0 { String::new() } else { format!("AND id IN ({})", vec!["?"; count].join(", ")) }
}

/// The names of which a run must have one; empty if the filter names none, or too many for SQL.
fn names(filter: &RunFilter) -> Vec<&str> {
    let of_instances = filter.instances.iter().map(|(id, _)| id.as_str());
    let names: BTreeSet<&str> = match &filter.ids[..] {
        [] => of_instances.collect(),
        ids => ids.iter().map(String::as_str).collect(),
    };
    if names.len() > NAMES_MAX { Vec::new() } else { names.into_iter().collect() }
}

/// The number of a state.
fn state_number(state: RunState) -> i64 {
    match state {
        RunState::Started => 0,
        RunState::Success => 1,
        RunState::Failed => 2,
        RunState::Canceled => 3,
    }
}

fn taken(what: &'static str) -> Failure {
    Failure::corrupt(what, "its position is taken")
}

fn absent_entry(run: Seq, index: u32) -> Failure {
    Failure::corrupt("entry", format!("entry {index} of run {} is missing", run.0))
}

fn absent_waiter(waiter: &Waiter) -> Failure {
    Failure::corrupt("waiter", format!("{} does not wait for {:?}", waiter.timer, waiter.event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Retention;
    use crate::sqlite::retention::old_runs;
    use crate::sqlite::schema;
    use rusqlite::Connection;
    use std::path::Path;

    const SORTING: &str = "USE TEMP B-TREE FOR ORDER BY";

    /// The query plan: which part of `run` SQLite reads, and whether it sorts.
    fn plan(connection: &Connection, sql: &str) -> Vec<String> {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let unbound = vec![rusqlite::types::Null; statement.parameter_count()];
        let steps = statement.query_map(params_from_iter(unbound), |row| row.get::<_, String>(3)).unwrap();
        let steps = steps.map(Result::unwrap);
        steps.map(|step| step.trim_start_matches("SEARCH run USING ").to_owned()).collect()
    }

    #[test]
    fn every_query_seeks_its_place_in_an_index() {
        let connection = Connection::open_in_memory().unwrap();
        schema::prepare(&connection, Path::new("in memory")).unwrap();
        let by_position = ["INDEX run_created (tenant=? AND created_at>? AND created_at<?)"];
        let by_place = ["INDEX run_dlq (tenant=? AND (dlq_at,dlq_n)>(?,?) AND (dlq_at,dlq_n)<(?,?))"];
        let by_name = ["INDEX run_id (tenant=? AND id=?)", SORTING];
        let [(ended, _), (failed, _)] = old_runs(&Retention { history_ms: 0, dlq_ms: 0 }, Timestamp(5));
        let cases: Vec<(String, &[&str])> = vec![
            (NEWEST.to_owned(), &["COVERING INDEX run_id (tenant=? AND id=?)"]),
            (INSTANCE.to_owned(), &["COVERING INDEX run_id (tenant=? AND id=? AND created_at=?)"]),
            (LIVE.to_owned(), &["SCAN run USING COVERING INDEX run_started"]),
            (FAILED.to_owned(), &["COVERING INDEX run_dlq (tenant=? AND dlq_at=? AND dlq_n=?)"]),
            (list_sql(List::All, 0, Order::LatestFirst), &by_position),
            (list_sql(List::All, 0, Order::EarliestFirst), &by_position),
            (
                list_sql(List::All, 2, Order::LatestFirst),
                &["INDEX run_id (tenant=? AND id=? AND created_at>? AND created_at<?)", SORTING],
            ),
            (list_sql(List::Failed, 0, Order::LatestFirst), &by_place),
            (list_sql(List::Failed, 2, Order::LatestFirst), &by_name),
            (match_sql(0), &["INDEX run_started (tenant=? AND rowid>?)"]),
            (match_sql(2), &by_name),
            (ended.to_owned(), &["INDEX run_ended (ended_at<?)"]),
            (failed.to_owned(), &["INDEX run_failed (dlq_at<?)"]),
        ];
        for (sql, expected) in cases {
            assert_eq!(plan(&connection, &sql), expected, "{sql}");
        }
    }
}
