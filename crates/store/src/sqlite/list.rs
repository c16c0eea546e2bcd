//! Pages of log lines and dead letters. A page walks table by table from the requested end.
//!
//! SQL narrows by tenant, position and id; the filter decides on the decoded rows. A page ends early when it has
//! skipped too many rows. Bodies are read for matches only.

use super::codec::{self, BODY_COLUMN, HEAD_COLUMNS, LETTER_COLUMNS, MESSAGE_COLUMNS, int};
use super::error::{Failure, Outcome};
use super::read::{Snapshot, only_ids};
use super::schema::Kind;
use super::shared_body::LastShared;
use crate::page::{Bounds, PageBuilder};
use crate::{DeadLetterRecord, EventFilter, EventRecord, Filter, Order, Page, PageRequest, Part, weight};
use bytes::Bytes;
use posthaste_engine::event::{DeadLetter, Event};
use posthaste_engine::message::Message;
use posthaste_wire::id::{Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use rusqlite::{Row, Statement, params};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Messages that a scan caches, so that a message with several lines is decoded once.
const SCAN_CACHE_MAX: usize = 4_096;

impl Snapshot<'_> {
    pub(super) fn list_events(
        &self,
        tenant: TenantId,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Outcome<Page<EventRecord>> {
        let bounds = Bounds::new(filter.message.dates(), page);
        let (part, seen, last) = (page.part, HashMap::new(), None);
        let mut scan = EventScan { snapshot: self, tenant, filter, bounds, part, seen, last };
        let mut builder = PageBuilder::new(page);
        for bucket in self.buckets_of_page(Kind::Event, &filter.message, bounds, page.order) {
            let ids = &filter.message.ids;
            let one = if let [one] = ids[..] { Some(int(one.seq.0)) } else { None };
            let only = if one.is_some() { "AND seq = ?6".to_owned() } else { only_ids(ids) };
            // Without the hint, SQLite finds named messages by their index and sorts the few matching lines.
            let index = if ids.is_empty() { String::new() } else { format!("INDEXED BY event_{bucket}_seq") };
            let sql = format!(
                "SELECT at, n, seq, state, detail FROM event_{bucket} {index}
                 WHERE tenant = ?1 AND (at, n) >= (?2, ?3) AND (at, n) < (?4, ?5) {} {}",
                only,
                order_by("n", page.order)
            );
            let ended = if ids.len() <= 1 {
                scan.run(&mut *self.connection.prepare_cached(&sql)?, one, &mut builder)?
            } else {
                scan.run(&mut self.connection.prepare(&sql)?, None, &mut builder)?
            };
            if ended.is_break() {
                break;
            }
        }
        Ok(builder.finish())
    }

    pub(super) fn list_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
    ) -> Outcome<Page<DeadLetterRecord>> {
        let (mut builder, mut last) = (PageBuilder::new(page), None);
        self.walk_dead_letters(tenant, filter, page, |letter, head, row| {
            if !filter.matches_dead_letter(&letter, &head) {
                return Ok(builder.skip(letter.dlq_id));
            }
            let body = if page.part == Part::Whole { self.body(row, BODY_COLUMN, &mut last)? } else { Bytes::new() };
            let message = Arc::new(Message { body, ..head });
            let (position, bytes) = (letter.dlq_id, weight::of_dead_letter(&letter, &message));
            Ok(builder.offer(position, bytes, DeadLetterRecord { letter, message }))
        })?;
        Ok(builder.finish())
    }

    /// Passes dead letters of the requested time and ids to `visit` until it breaks, with messages without bodies.
    pub(super) fn walk_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
        mut visit: impl FnMut(DeadLetter, Message, &Row<'_>) -> Outcome<ControlFlow<()>>,
    ) -> Outcome<()> {
        let bounds = Bounds::new(filter.dates(), page);
        let Bounds { first, end } = bounds;
        let columns = columns_of(page.part);
        for bucket in self.buckets_of_page(Kind::DeadLetter, filter, bounds, page.order) {
            let sql = format!(
                "SELECT {columns}, {LETTER_COLUMNS} FROM dlq_{bucket}
                 WHERE tenant = ?1 AND (at, seq) >= (?2, ?3) AND (at, seq) < (?4, ?5) {} {}",
                only_ids(&filter.ids),
                order_by("seq", page.order)
            );
            let mut statement = self.connection.prepare(&sql)?;
            let mut rows =
                statement.query(params![tenant.0, int(first.at.0), int(first.n), int(end.at.0), int(end.n)])?;
            while let Some(row) = rows.next()? {
                if visit(codec::dead_letter(row)?, codec::message_head(row)?, row)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The tables that a page may read, in its order.
    fn buckets_of_page(&self, kind: Kind, filter: &Filter, bounds: Bounds, order: Order) -> Vec<u64> {
        if filter.nothing || bounds.is_empty() {
            return Vec::new();
        }
        let mut buckets = self.buckets.between(kind, bounds.first.at, bounds.end.at);
        if order == Order::LatestFirst {
            buckets.reverse();
        }
        buckets
    }
}

/// One scan of log lines.
struct EventScan<'a> {
    snapshot: &'a Snapshot<'a>,
    tenant: TenantId,
    filter: &'a EventFilter,
    bounds: Bounds,
    part: Part,
    /// Messages seen so far; `None` for those that do not match.
    seen: HashMap<Seq, Option<Arc<Message>>>,
    last: LastShared,
}

impl EventScan<'_> {
    fn run(
        &mut self,
        statement: &mut Statement<'_>,
        one: Option<i64>,
        builder: &mut PageBuilder<EventRecord>,
    ) -> Outcome<ControlFlow<()>> {
        let Bounds { first, end } = self.bounds;
        let (tenant, first_at, first_n) = (self.tenant.0, int(first.at.0), int(first.n));
        let (end_at, end_n) = (int(end.at.0), int(end.n));
        let mut rows = match one {
            None => statement.query(params![tenant, first_at, first_n, end_at, end_n])?,
            Some(seq) => statement.query(params![tenant, first_at, first_n, end_at, end_n, seq])?,
        };
        while let Some(row) = rows.next()? {
            let number = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
            let position = Position { at: Timestamp(number(0)?), n: number(1)? };
            let state = codec::state(row.get(3)?)?;
            let is_wanted = self.filter.states.is_empty() || self.filter.states.contains(&state);
            let message = if is_wanted { self.matching(Seq(number(2)?))? } else { None };
            let Some(message) = message else {
                match builder.skip(position) {
                    ControlFlow::Continue(()) => continue,
                    broken => return Ok(broken),
                }
            };
            let detail = row.get_ref(4)?.as_str_or_null().map_err(|error| Failure::corrupt("log line", error))?;
            let event =
                Event { tenant: self.tenant, id: message.id, at: position.at, state, detail: codec::detail(detail)? };
            let bytes = weight::of_event(&event, &message);
            if builder.offer(position, bytes, EventRecord { position, event, message }).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The message of a line, if it matches. Bodies of other messages are never read.
    fn matching(&mut self, seq: Seq) -> Outcome<Option<Arc<Message>>> {
        if let Some(known) = self.seen.get(&seq) {
            return Ok(known.clone());
        }
        let (filter, part, snapshot, last) = (&self.filter.message, self.part, self.snapshot, &mut self.last);
        let found = snapshot.find_row(seq, &columns_of(part), |row| {
            let head = codec::message_head(row)?;
            if !filter.matches(&head) {
                return Ok(None);
            }
            let body = if part == Part::Whole { snapshot.body(row, BODY_COLUMN, last)? } else { Bytes::new() };
            Ok(Some(Arc::new(Message { body, ..head })))
        })?;
        let message = found.ok_or_else(|| Failure::corrupt("log line", format!("message {} is missing", seq.0)))?;
        if self.seen.len() >= SCAN_CACHE_MAX {
            self.seen.clear();
        }
        self.seen.insert(seq, message.clone());
        Ok(message)
    }
}

/// The columns to read: all of them, but without a body that was not requested.
fn columns_of(part: Part) -> Cow<'static, str> {
    match part {
        Part::Head => format!("{HEAD_COLUMNS}, NULL").into(),
        Part::Whole => MESSAGE_COLUMNS.into(),
    }
}

fn order_by(second: &str, order: Order) -> String {
    match order {
        Order::LatestFirst => format!("ORDER BY at DESC, {second} DESC"),
        Order::EarliestFirst => format!("ORDER BY at, {second}"),
    }
}
