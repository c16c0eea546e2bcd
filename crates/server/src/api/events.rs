//! `/v2/events` and `/v2/logs`: what happened to messages, newest first.

use super::auth::Reader;
use super::error::ApiError;
use super::params::Params;
use super::pieces::{Finished, Pieces};
use super::response::answer;
use super::shape;
use crate::app::App;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use posthaste_engine::limits::{GROUPED_PAGE_DEFAULT, LOG_PAGE_MAX, PAGE_BYTES_MAX, PAGE_SKIPS_MAX};
use posthaste_store::{EventFilter, EventRecord, Filter, Order, Page, PageRequest, Store, StoreError, weight};
use posthaste_wire::id::{MessageId, Position, TenantId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub(super) async fn list(caller: Reader, State(app): State<Arc<App>>, uri: Uri) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let params = Params::from_query(uri.query());
    let (filter, trim_body, mode) = (params.event_filter()?, params.trim_body()?, app.config.mode);
    // The MCP server asks for the logs of one message and reads them as a group.
    let one_message = uri.path().starts_with("/v2/logs") && params.has("messageId");
    let (is_grouped, page) = match params.one("groupBy")? {
        None => (false, params.page(LOG_PAGE_MAX, LOG_PAGE_MAX)?),
        Some("messageId") => (true, params.page(GROUPED_PAGE_DEFAULT, LOG_PAGE_MAX)?),
        Some(other) => {
            return Err(ApiError::invalid(format!("groupBy {other} is not supported; accepted is messageId")));
        }
    };
    let make = move |store: &dyn Store| {
        let shaped = |record: &EventRecord| {
            let mut line = Pieces::default();
            line.object(shape::event(&record.event, &record.message, trim_body, mode, &viewer));
            Line { id: record.event.id, is_meant: filter.matches(&record.event, &record.message), json: line.finish() }
        };
        let (lines, next, has_groups): (Vec<Line>, _, _) = match is_grouped {
            true => {
                let page = list_grouped(store, viewer.tenant, &filter, &page)?;
                let lines = page.entries.iter().flatten().map(shaped).collect();
                (lines, page.next, true)
            }
            false => {
                let page = store.list_events(viewer.tenant, &filter, &page)?;
                (page.entries.iter().map(shaped).collect(), page.next, one_message)
            }
        };
        Ok(Ok(written(&lines, has_groups, next).into()))
    };
    answer(&app, viewer.tenant, make).await
}

/// The log lines of one message.
type Group = Vec<EventRecord>;

/// A log line as it is written.
struct Line {
    id: MessageId,
    /// The filter matches it, and not only another line of its message.
    is_meant: bool,
    json: Finished,
}

/// Lines by message, in the order of their first lines.
fn by_message(lines: &[Line]) -> Vec<(MessageId, Vec<&Line>)> {
    let mut groups: Vec<(MessageId, Vec<&Line>)> = Vec::new();
    let mut places = HashMap::new();
    for line in lines {
        let place = *places.entry(line.id).or_insert_with(|| {
            groups.push((line.id, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(line);
    }
    groups
}

/// Clients of several generations read it: one expects `events`, one `logs`, one `messages`.
fn written(lines: &[Line], has_groups: bool, next: Option<Position>) -> Pieces {
    let mut pieces = Pieces::default();
    pieces.holds(lines.iter().map(|line| line.json.held()).sum());
    for name in ["{\"events\":", ",\"logs\":"] {
        pieces.raw(name);
        put_lines(&mut pieces, lines.iter().filter(|line| line.is_meant));
    }
    if has_groups {
        pieces.raw(",\"messages\":[");
        for (place, (id, lines)) in by_message(lines).into_iter().enumerate() {
            pieces.raw(if place == 0 { "" } else { "," });
            pieces.raw(&format!("{{\"messageId\":\"{id}\",\"events\":"));
            put_lines(&mut pieces, lines.into_iter());
            pieces.raw("}");
        }
        pieces.raw("]");
    }
    if let Some(next) = next {
        pieces.raw(&format!(",\"cursor\":\"{next}\""));
    }
    pieces.raw("}");
    pieces
}

fn put_lines<'a>(pieces: &mut Pieces, lines: impl Iterator<Item = &'a Line>) {
    pieces.raw("[");
    for (place, line) in lines.enumerate() {
        pieces.raw(if place == 0 { "" } else { "," });
        pieces.again(&line.json);
    }
    pieces.raw("]");
}

/// Lines that one grouped page may read, more or less; its cursor goes on.
const GROUPED_LINES_MAX: usize = 10 * LOG_PAGE_MAX;
/// Lines that a message has, more or less: so many are read at first for each that is asked for.
const LINES_PER_MESSAGE: usize = 4;

/// Walks the log and gives each message where its first matching line stands, so that no message is on
/// two pages. A page may be shorter than asked for: it also ends at [`PAGE_BYTES_MAX`], at
/// [`GROUPED_LINES_MAX`], and where the walk passed over as many lines as the caller wants at most.
fn list_grouped(
    store: &dyn Store,
    tenant: TenantId,
    filter: &EventFilter,
    request: &PageRequest,
) -> Result<Page<Group>, StoreError> {
    let mut groups = Vec::new();
    let mut seen = HashSet::new();
    let mut cursor = request.cursor;
    let mut bytes = 0;
    let mut read = 0;
    let mut count = LINES_PER_MESSAGE * request.count + 1;
    while read < GROUPED_LINES_MAX {
        count = count.min(LOG_PAGE_MAX);
        let page = PageRequest { cursor, count, ..request.clone() };
        let lines = store.list_events(tenant, filter, &page)?;
        let has_passed_over = lines.entries.len() < count && request.skips_max < PAGE_SKIPS_MAX;
        read += count;
        count *= 2;
        for line in lines.entries {
            if !seen.insert(line.event.id) {
                continue;
            }
            if groups.len() == request.count || (bytes > PAGE_BYTES_MAX && !groups.is_empty()) {
                return Ok(Page { entries: groups, next: cursor });
            }
            let events = all_events(store, tenant, line.event.id, request)?;
            if !was_on_an_earlier_page(&events, filter, request) {
                bytes += events.iter().map(|line| weight::of_event(&line.event, &line.message)).sum::<usize>();
                groups.push(events);
            }
            cursor = Some(line.position);
        }
        match lines.next {
            Some(next) if has_passed_over => return Ok(Page { entries: groups, next: Some(next) }),
            Some(next) => cursor = Some(next),
            None => return Ok(Page { entries: groups, next: None }),
        }
    }
    Ok(Page { entries: groups, next: cursor })
}

fn all_events(
    store: &dyn Store,
    tenant: TenantId,
    id: MessageId,
    request: &PageRequest,
) -> Result<Vec<EventRecord>, StoreError> {
    let message = Filter { ids: vec![id], ..Filter::default() };
    let filter = EventFilter { message, states: Vec::new() };
    let page = PageRequest { part: request.part, ..PageRequest::new(None, LOG_PAGE_MAX, request.order) };
    Ok(store.list_events(tenant, &filter, &page)?.entries)
}

/// Whether a matching line of the message stands before the page's start.
fn was_on_an_earlier_page(events: &[EventRecord], filter: &EventFilter, request: &PageRequest) -> bool {
    let Some(start) = request.cursor else { return false };
    let is_before = |position: Position| match request.order {
        Order::LatestFirst => position >= start,
        Order::EarliestFirst => position <= start,
    };
    events.iter().any(|record| {
        is_before(record.position)
            && (filter.states.is_empty() || filter.states.contains(&record.event.state))
            && filter.message.matches_time(record.event.at)
    })
}
