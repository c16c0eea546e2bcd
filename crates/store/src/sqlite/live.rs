//! Queries about live rows: rows for the engine, rows that match a filter, and counts per key.
//!
//! SQL narrows by tenant, time, id, queue and key; [`Filter`] decides on the decoded rows. Statements name their index,
//! so that they fail instead of getting slow if the index does not fit. The tests below compare the query plans.

use super::codec::{self, LIVE_COLUMNS, bits, int};
use super::error::Outcome;
use super::read::{Snapshot, absent, only_ids};
use crate::{Filter, ShardId};
use posthaste_engine::message::{DueKey, FlowKey, Live, QueueKey, Turn};
use posthaste_engine::shard::{Lane, LaneKey, Load, Source};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use rusqlite::{Params, params};

/// Most rows of queues or keys that one query sorts. If there are more, the query walks all live rows in the order of
/// creation, and the next page continues where this one ended.
const SORTED_MAX: u64 = 10_000;

const COUNT_TURNS: &str = "SELECT count(*) FROM live INDEXED BY live_queue
    WHERE queue = ?1 AND tenant = ?2 AND turn_seq = seq";
/// Two counts, because the index orders by due time only within a queue or outside of all queues.
const COUNT_DUE: &str = "SELECT
    (SELECT count(*) FROM live INDEXED BY live_flow
        WHERE flow = ?1 AND tenant = ?2 AND queue IS NULL AND due <= ?3) +
    (SELECT count(*) FROM live INDEXED BY live_flow
        WHERE flow = ?1 AND tenant = ?2 AND queue IS NOT NULL AND due <= ?3)";

impl Snapshot<'_> {
    pub(super) fn load(&self, shard: ShardId, load: &Load) -> Outcome<Vec<Live>> {
        match load.source {
            Source::Due { lane, after, until } => self.load_due(shard, lane, after, until, load.max),
            Source::Queue { tenant, queue, after } => self.load_queue(shard, tenant, queue, after, load.max),
            Source::Callbacks { after } => self.load_callbacks(shard, after, load.max),
        }
    }

    /// Two walks, because SQLite can only seek past (due, seq) in the index if `due` is fixed: first the rows that are
    /// due in the same millisecond, possibly a million, then the rows that are due later.
    fn load_due(
        &self,
        shard: ShardId,
        lane: Option<LaneKey>,
        after: DueKey,
        until: Timestamp,
        max: usize,
    ) -> Outcome<Vec<Live>> {
        let mut found = Vec::new();
        if after.due > until {
            return Ok(found);
        }
        let walks = [(DUE_AT_ONCE, int(after.seq.0)), (DUE_LATER, int(until.0))];
        for (range, last) in walks {
            let sql = due_sql(lane.map(|(_, lane)| lane), range);
            let (first, limit) = (int(after.due.0), int((max - found.len()) as u64));
            match lane {
                None => self.collect_live(&sql, params![first, last, shard.0, limit], &mut found)?,
                Some((tenant, lane)) => {
                    let hash = match lane {
                        Lane::Origin(origin) => origin.0,
                        Lane::Flow(flow) => flow.0,
                    };
                    let values = params![first, last, shard.0, limit, tenant.0, bits(hash)];
                    self.collect_live(&sql, values, &mut found)?;
                }
            }
        }
        Ok(found)
    }

    /// Two walks, for the same reason: first the rows that share the turn, then the rows with a later turn.
    fn load_queue(
        &self,
        shard: ShardId,
        tenant: TenantId,
        queue: QueueKey,
        (turn, seq): (Turn, Seq),
        max: usize,
    ) -> Outcome<Vec<Live>> {
        let mut found = Vec::new();
        let (hash, at, whose) = (bits(queue.0), int(turn.at.0), int(turn.seq.0));
        let limit = |found: &[Live]| int((max - found.len()) as u64);
        let values = params![hash, tenant.0, at, whose, shard.0, limit(&found), int(seq.0)];
        self.collect_live(&turn_sql(SAME_TURN), values, &mut found)?;
        let values = params![hash, tenant.0, at, whose, shard.0, limit(&found)];
        self.collect_live(&turn_sql(LATER_TURNS), values, &mut found)?;
        Ok(found)
    }

    fn load_callbacks(&self, shard: ShardId, after: Seq, max: usize) -> Outcome<Vec<Live>> {
        let mut found = Vec::new();
        self.collect_live(&callbacks_sql(), params![shard.0, int(after.0), int(max as u64)], &mut found)?;
        Ok(found)
    }

    fn collect_live(&self, sql: &str, values: impl Params, found: &mut Vec<Live>) -> Outcome<()> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(values)?;
        while let Some(row) = rows.next()? {
            found.push(codec::live(row)?);
        }
        Ok(())
    }

    pub(super) fn find_live(&self, tenant: TenantId, ids: &[MessageId]) -> Outcome<Vec<Live>> {
        let sql = format!("SELECT {LIVE_COLUMNS} FROM live WHERE seq = ?1 AND tag = ?2 AND tenant = ?3");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut found = Vec::new();
        for id in ids {
            let mut rows = statement.query(params![int(id.seq.0), bits(id.tag), tenant.0])?;
            if let Some(row) = rows.next()? {
                found.push(codec::live(row)?);
            }
        }
        Ok(found)
    }

    pub(super) fn match_live(&self, tenant: TenantId, filter: &Filter, after: Seq, max: usize) -> Outcome<Vec<Live>> {
        if filter.nothing {
            return Ok(Vec::new());
        }
        // A position is never earlier than its creation time, so `from` limits it too.
        let first = filter.from.map_or(Seq::MIN, Seq::first_at).max(Seq(after.0.saturating_add(1)));
        let sql = match_sql(self.index_for(tenant, filter)?, tenant, filter);
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query(params![int(first.0), tenant.0])?;
        let mut found = Vec::new();
        while found.len() < max
            && let Some(row) = rows.next()?
        {
            let live = codec::live(row)?;
            if filter.is_empty() || self.message_matches(live.id, filter)? {
                found.push(live);
            }
        }
        Ok(found)
    }

    /// The index that finds the rows of the named queues or keys, unless there are too many to sort.
    fn index_for(&self, tenant: TenantId, filter: &Filter) -> Outcome<Option<Index>> {
        if !filter.ids.is_empty() {
            return Ok(None);
        }
        for index in [Index::Queue, Index::Flow] {
            let condition = index.condition(tenant, filter);
            if condition.is_empty() {
                continue;
            }
            let sql = count_sql(index, &condition);
            let count: i64 = self.connection.query_row(&sql, params![tenant.0], |row| row.get(0))?;
            if count.cast_unsigned() <= SORTED_MAX {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn message_matches(&self, id: MessageId, filter: &Filter) -> Outcome<bool> {
        let head = self.find_message(id.seq, codec::message_head)?.ok_or_else(|| absent("message", id))?;
        Ok(filter.matches(&head) && filter.matches_time(head.created_at))
    }

    pub(super) fn queue_lags(&self, tenant: TenantId, queues: &[QueueKey]) -> Outcome<Vec<u64>> {
        let mut statement = self.connection.prepare_cached(COUNT_TURNS)?;
        let mut count = |queue: &QueueKey| {
            let count: i64 = statement.query_row(params![bits(queue.0), tenant.0], |row| row.get(0))?;
            Ok(count.cast_unsigned())
        };
        queues.iter().map(&mut count).collect()
    }

    pub(super) fn flow_loads(&self, tenant: TenantId, flows: &[FlowKey], until: Timestamp) -> Outcome<Vec<u64>> {
        let mut statement = self.connection.prepare_cached(COUNT_DUE)?;
        let mut count = |flow: &FlowKey| {
            let values = params![bits(flow.0), tenant.0, int(until.0)];
            let count: i64 = statement.query_row(values, |row| row.get(0))?;
            Ok(count.cast_unsigned())
        };
        flows.iter().map(&mut count).collect()
    }
}

impl Snapshot<'_> {
    pub(super) fn flow_waiting(
        &self,
        tenant: TenantId,
        flows: &[(FlowKey, Vec<MessageId>)],
        until: Timestamp,
    ) -> Outcome<Vec<u64>> {
        let keys: Vec<FlowKey> = flows.iter().map(|(flow, _)| *flow).collect();
        let mut waiting = self.flow_loads(tenant, &keys, until)?;
        for ((flow, under_way), waiting) in flows.iter().zip(&mut waiting) {
            let rows = self.find_live(tenant, under_way)?;
            let counted = rows.iter().filter(|row| row.flow == Some(*flow) && row.due <= until).count();
            *waiting = waiting.saturating_sub(counted as u64);
        }
        Ok(waiting)
    }
}

const DUE_AT_ONCE: &str = "due = ?1 AND seq > ?2";
const DUE_LATER: &str = "due > ?1 AND due <= ?2";

/// The condition of the index contains `queue IS NULL`. SQLite uses the index only if the statement repeats it.
fn due_sql(lane: Option<Lane>, range: &str) -> String {
    let (index, condition) = match lane {
        None => ("live_due", ""),
        Some(Lane::Origin(_)) => ("live_origin", "AND tenant = ?5 AND origin = ?6"),
        Some(Lane::Flow(_)) => ("live_flow", "AND tenant = ?5 AND flow = ?6"),
    };
    format!(
        "SELECT {LIVE_COLUMNS} FROM live INDEXED BY {index}
         WHERE {range} AND queue IS NULL AND shard = ?3 {condition} ORDER BY due, seq LIMIT ?4"
    )
}

const SAME_TURN: &str = "turn_at = ?3 AND turn_seq = ?4 AND seq > ?7";
const LATER_TURNS: &str = "(turn_at, turn_seq) > (?3, ?4)";

fn turn_sql(range: &str) -> String {
    format!(
        "SELECT {LIVE_COLUMNS} FROM live INDEXED BY live_queue
         WHERE queue = ?1 AND tenant = ?2 AND {range} AND shard = ?5 ORDER BY turn_at, turn_seq, seq LIMIT ?6"
    )
}

/// The condition of the index contains `turn_seq <> seq`.
fn callbacks_sql() -> String {
    format!(
        "SELECT {LIVE_COLUMNS} FROM live INDEXED BY live_callback
         WHERE shard = ?1 AND seq > ?2 AND turn_seq <> seq ORDER BY seq LIMIT ?3"
    )
}

/// An index that may find the rows of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    Queue,
    Flow,
}

impl Index {
    fn name(self) -> &'static str {
        match self {
            Index::Queue => "live_queue",
            Index::Flow => "live_flow",
        }
    }

    /// A condition on its first column; empty if the filter does not restrict it. It contains only numbers, so nothing
    /// needs escaping.
    fn condition(self, tenant: TenantId, filter: &Filter) -> String {
        let (column, hashes): (_, Vec<u64>) = match self {
            Index::Queue => ("queue", filter.queues.iter().map(|name| QueueKey::of(tenant, name).0).collect()),
            Index::Flow => ("flow", filter.flow_keys.iter().map(|key| FlowKey::of(tenant, key).0).collect()),
        };
        if hashes.is_empty() {
            return String::new();
        }
        let numbers: Vec<String> = hashes.into_iter().map(|hash| bits(hash).to_string()).collect();
        format!("AND {column} IN ({})", numbers.join(", "))
    }
}

fn match_sql(index: Option<Index>, tenant: TenantId, filter: &Filter) -> String {
    let hint = index.map_or_else(|| "NOT INDEXED".to_owned(), |index| format!("INDEXED BY {}", index.name()));
    format!(
        "SELECT {LIVE_COLUMNS} FROM live {hint} WHERE seq >= ?1 AND tenant = ?2 {} {} {} ORDER BY seq",
        only_ids(&filter.ids),
        Index::Queue.condition(tenant, filter),
        Index::Flow.condition(tenant, filter),
    )
}

/// Stops counting once it is clear that there are too many rows.
fn count_sql(index: Index, condition: &str) -> String {
    format!(
        "SELECT count(*) FROM (SELECT 1 FROM live INDEXED BY {} WHERE tenant = ?1 {condition} LIMIT {SORTED_MAX} + 1)",
        index.name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::{self, Buckets};
    use posthaste_engine::message::Origin;
    use rusqlite::Connection;
    use std::path::Path;

    const SORTING: &str = "USE TEMP B-TREE FOR ORDER BY";

    /// The query plan: which part of `live` SQLite reads, and whether it sorts.
    fn plan(connection: &Connection, sql: &str) -> Vec<String> {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let unbound = vec![rusqlite::types::Null; statement.parameter_count()];
        let steps = statement.query_map(rusqlite::params_from_iter(unbound), |row| row.get::<_, String>(3)).unwrap();
        let steps = steps.map(Result::unwrap).filter(|step| step.contains("live") || step.contains("TEMP"));
        steps.map(|step| step.trim_start_matches("SEARCH live USING ").to_owned()).collect()
    }

    fn empty() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        schema::prepare(&connection, Path::new("in memory")).unwrap();
        connection
    }

    #[test]
    fn rows_are_sorted_only_while_they_are_few() {
        let (connection, one) = (empty(), TenantId(1));
        let snapshot = Snapshot { connection: &connection, buckets: &Buckets::default() };
        let insert = format!(
            "WITH RECURSIVE place(seq) AS (SELECT ?1 UNION ALL SELECT seq + 1 FROM place WHERE seq < ?2)
             INSERT INTO live SELECT seq, 0, 1, 0, 0, 0, 0, 0, 0, {}, 0, seq, {}, 0 FROM place",
            bits(QueueKey::of(one, "long").0),
            bits(FlowKey::of(one, "short").0)
        );
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let index = |queues: &[&str], flow_keys: &[&str], ids: &[MessageId]| {
            let filter =
                Filter { queues: names(queues), flow_keys: names(flow_keys), ids: ids.to_vec(), ..Filter::default() };
            snapshot.index_for(one, &filter).unwrap()
        };
        connection.execute(&insert, [1, int(SORTED_MAX)]).unwrap();
        connection.execute("UPDATE live SET flow = NULL WHERE seq > 9", []).unwrap();
        assert_eq!(index(&["long"], &[], &[]), Some(Index::Queue));
        let last = int(SORTED_MAX + 1);
        connection.execute(&insert, [last, last]).unwrap();
        assert_eq!(index(&["long"], &[], &[]), None);
        assert_eq!(index(&["none", "long"], &[], &[]), None);
        assert_eq!(index(&["none"], &[], &[]), Some(Index::Queue));
        assert_eq!(index(&["long"], &["short"], &[]), Some(Index::Flow), "the shorter way");
        assert_eq!(index(&["none"], &[], &[MessageId { seq: Seq(1), tag: 0 }]), None, "ids are found by themselves");
        assert_eq!(index(&[], &[], &[]), None);
    }

    #[test]
    fn every_query_seeks_its_place_in_an_index() {
        let connection = empty();
        let (origin, flow) = (Some(Lane::Origin(Origin(1))), Some(Lane::Flow(FlowKey(1))));
        let queues = Filter { queues: vec!["a".into(), "b".into()], ..Filter::default() };
        let flows = Filter { flow_keys: vec!["a".into()], ..Filter::default() };
        let ids = Filter { ids: vec![MessageId { seq: Seq(1), tag: 1 }], ..queues.clone() };
        let one = TenantId(1);
        let count = |index: Index, filter| count_sql(index, &index.condition(one, filter));
        let cases: Vec<(String, &[&str])> = vec![
            (due_sql(None, DUE_AT_ONCE), &["INDEX live_due (due=? AND rowid>?)"]),
            (due_sql(None, DUE_LATER), &["INDEX live_due (due>? AND due<?)"]),
            (due_sql(origin, DUE_AT_ONCE), &["INDEX live_origin (origin=? AND due=? AND rowid>?)"]),
            (due_sql(origin, DUE_LATER), &["INDEX live_origin (origin=? AND due>? AND due<?)"]),
            (due_sql(flow, DUE_AT_ONCE), &["INDEX live_flow (flow=? AND tenant=? AND queue=? AND due=? AND rowid>?)"]),
            (due_sql(flow, DUE_LATER), &["INDEX live_flow (flow=? AND tenant=? AND queue=? AND due>? AND due<?)"]),
            (
                turn_sql(SAME_TURN),
                &["INDEX live_queue (queue=? AND tenant=? AND turn_at=? AND turn_seq=? AND rowid>?)"],
            ),
            (turn_sql(LATER_TURNS), &["INDEX live_queue (queue=? AND tenant=? AND (turn_at,turn_seq)>(?,?))"]),
            (callbacks_sql(), &["INDEX live_callback (shard=? AND rowid>?)"]),
            (COUNT_TURNS.to_owned(), &["COVERING INDEX live_queue (queue=? AND tenant=?)"]),
            (
                COUNT_DUE.to_owned(),
                &[
                    "COVERING INDEX live_flow (flow=? AND tenant=? AND queue=? AND due<?)",
                    "COVERING INDEX live_flow (flow=? AND tenant=? AND queue>?)",
                ],
            ),
            (count(Index::Queue, &queues), &["COVERING INDEX live_queue (queue=? AND tenant=?)"]),
            (count(Index::Flow, &flows), &["COVERING INDEX live_flow (flow=? AND tenant=?)"]),
            (match_sql(Some(Index::Queue), one, &queues), &["INDEX live_queue (queue=? AND tenant=?)", SORTING]),
            (match_sql(Some(Index::Flow), one, &flows), &["INDEX live_flow (flow=? AND tenant=?)", SORTING]),
            (match_sql(None, one, &queues), &["INTEGER PRIMARY KEY (rowid>?)"]),
            (match_sql(None, one, &ids), &["INTEGER PRIMARY KEY (rowid=?)"]),
        ];
        for (sql, expected) in cases {
            assert_eq!(plan(&connection, &sql), expected, "{sql}");
        }
    }
}
