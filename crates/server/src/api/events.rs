//! `/v2/events` and `/v2/logs`: what happened to messages, newest first.

use super::auth::{Access, authorize};
use super::error::ApiError;
use super::params::Params;
use super::shape;
use crate::app::App;
use crate::store::{EventFilter, EventRecord, Filter, Order, Page, PageRequest, Store, StoreError};
use axum::Json;
use axum::extract::{Request, State};
use posthaste_engine::limits::{GROUPED_PAGE_DEFAULT, LOG_PAGE_MAX, PAGE_BYTES_MAX, PAGE_SKIPS_MAX};
use posthaste_wire::id::{MessageId, Position, TenantId};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;

pub(super) async fn list(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let query = request.uri().query();
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Read)?;
    let params = Params::from_query(query);
    let filter = params.event_filter()?;
    let trim_body = params.trim_body()?;
    let shaped = |record: &EventRecord| shape::event(&record.event, &record.message, trim_body, app.config.mode);
    match params.one("groupBy")? {
        None => {}
        Some("messageId") => {
            let page = params.page(GROUPED_PAGE_DEFAULT, LOG_PAGE_MAX)?;
            let wanted = filter.clone();
            let page = app.read(move |store| list_grouped(store, tenant, &wanted, &page)).await?;
            let matching = |record: &&EventRecord| filter.matches(&record.event, &record.message);
            let events = page.entries.iter().flat_map(|group| &group.events).filter(matching);
            return Ok(Json(answer(events, Some(&page.entries), page.next, shaped)));
        }
        Some(other) => {
            return Err(ApiError::invalid(format!("groupBy {other} is not supported; accepted is messageId")));
        }
    }
    let page = params.page(LOG_PAGE_MAX, LOG_PAGE_MAX)?;
    let page = app.read(move |store| store.list_events(tenant, &filter, &page)).await?;
    // The MCP server asks for the logs of one message and reads them as a group.
    let one_message = request.uri().path().starts_with("/v2/logs") && params.has("messageId");
    let groups = one_message.then(|| group(&page.entries));
    Ok(Json(answer(page.entries.iter(), groups.as_deref(), page.next, shaped)))
}

/// A message with log lines of it.
struct Group {
    id: MessageId,
    events: Vec<EventRecord>,
}

/// Lines by message, in the order of their first lines.
fn group(lines: &[EventRecord]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for line in lines {
        match groups.iter_mut().find(|group| group.id == line.event.id) {
            Some(group) => group.events.push(line.clone()),
            None => groups.push(Group { id: line.event.id, events: vec![line.clone()] }),
        }
    }
    groups
}

/// Clients of several generations read it: one expects `events`, one `logs`, one `messages`.
fn answer<'a>(
    events: impl Iterator<Item = &'a EventRecord>,
    groups: Option<&[Group]>,
    next: Option<Position>,
    shaped: impl Fn(&EventRecord) -> Value,
) -> Value {
    let events: Vec<Value> = events.map(&shaped).collect();
    let mut answer = json!({ "events": events, "logs": events });
    if let Some(groups) = groups {
        let grouped = |group: &Group| -> Value {
            let events: Vec<Value> = group.events.iter().map(&shaped).collect();
            json!({ "messageId": group.id.to_string(), "events": events })
        };
        answer["messages"] = groups.iter().map(grouped).collect();
    }
    if let Some(next) = next {
        answer["cursor"] = next.to_string().into();
    }
    answer
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
            let events = all_events(store, tenant, line.event.id, request.order)?;
            if !was_on_an_earlier_page(&events, filter, request) {
                bytes += line.message.body.len() * events.len();
                groups.push(Group { id: line.event.id, events });
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
    order: Order,
) -> Result<Vec<EventRecord>, StoreError> {
    let message = Filter { ids: vec![id], ..Filter::default() };
    let filter = EventFilter { message, states: Vec::new() };
    let page = PageRequest::new(None, LOG_PAGE_MAX, order);
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
