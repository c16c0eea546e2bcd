//! `/v2/events` and `/v2/logs`: what happened to messages, newest first.

use super::auth::{Access, authorize};
use super::error::ApiError;
use super::params::Params;
use super::shape;
use crate::app::App;
use crate::store::{EventFilter, EventRecord, Filter, Order, Page, PageRequest, Store, StoreError};
use axum::Json;
use axum::extract::{Request, State};
use posthaste_engine::limits::{GROUPED_PAGE_DEFAULT, LOG_PAGE_MAX};
use posthaste_wire::destination::split_query;
use posthaste_wire::id::{MessageId, Position, TenantId};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;

pub(super) async fn list(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let query = request.uri().query();
    let tenant = authorize(&app, request.headers(), split_query(query).token.as_deref(), Access::Read)?;
    let params = Params::from_query(query);
    let filter = params.event_filter()?;
    let trim_body = params.trim_body()?;
    let grouped = match params.one("groupBy")? {
        // The MCP server asks for one message without saying that it wants it grouped.
        None => request.uri().path().starts_with("/v2/logs") && params.has("messageId"),
        Some("messageId") => true,
        Some(other) => return Err(ApiError::invalid(format!("groupBy {other} is not supported; accepted is messageId"))),
    };
    if grouped {
        let page = params.page(GROUPED_PAGE_DEFAULT, LOG_PAGE_MAX)?;
        let page = app.read(move |store| list_grouped(store, tenant, &filter, &page)).await?;
        return Ok(Json(grouped_answer(&page, trim_body)));
    }
    let page = params.page(LOG_PAGE_MAX, LOG_PAGE_MAX)?;
    let page = app.read(move |store| store.list_events(tenant, &filter, &page)).await?;
    let events: Vec<Value> = page.entries.iter().map(|record| shape::event(record, trim_body)).collect();
    // Clients of both generations read it: one expects `events`, the other `logs`.
    let mut answer = json!({ "events": events, "logs": events });
    if let Some(next) = page.next {
        answer["cursor"] = next.to_string().into();
    }
    Ok(Json(answer))
}

/// A message with all its log lines.
struct Group {
    id: MessageId,
    events: Vec<EventRecord>,
}

fn grouped_answer(page: &Page<Group>, trim_body: Option<usize>) -> Value {
    let shaped = |group: &Group| -> Vec<Value> {
        group.events.iter().map(|record| shape::event(record, trim_body)).collect()
    };
    let messages: Vec<Value> = page
        .entries
        .iter()
        .map(|group| json!({ "messageId": group.id.to_string(), "events": shaped(group) }))
        .collect();
    let events: Vec<Value> = page.entries.iter().flat_map(shaped).collect();
    let mut answer = json!({ "messages": messages, "events": events, "logs": events });
    if let Some(next) = page.next {
        answer["cursor"] = next.to_string().into();
    }
    answer
}

/// Walks the log and gives each message where its first matching line stands, so that no message is on
/// two pages.
fn list_grouped(
    store: &dyn Store,
    tenant: TenantId,
    filter: &EventFilter,
    request: &PageRequest,
) -> Result<Page<Group>, StoreError> {
    let mut groups = Vec::new();
    let mut seen = HashSet::new();
    let mut cursor = request.cursor;
    loop {
        let page = PageRequest { cursor, count: LOG_PAGE_MAX, order: request.order };
        let lines = store.list_events(tenant, filter, &page)?;
        for line in lines.entries {
            if seen.contains(&line.event.id) {
                continue;
            }
            if groups.len() == request.count {
                return Ok(Page { entries: groups, next: cursor });
            }
            seen.insert(line.event.id);
            let events = all_events(store, tenant, line.event.id, request.order)?;
            if !was_on_an_earlier_page(&events, filter, request) {
                groups.push(Group { id: line.event.id, events });
            }
            cursor = Some(line.position);
        }
        match lines.next {
            Some(next) => cursor = Some(next),
            None => return Ok(Page { entries: groups, next: None }),
        }
    }
}

fn all_events(
    store: &dyn Store,
    tenant: TenantId,
    id: MessageId,
    order: Order,
) -> Result<Vec<EventRecord>, StoreError> {
    let message = Filter { ids: vec![id], ..Filter::default() };
    let filter = EventFilter { message, states: Vec::new() };
    let page = PageRequest { cursor: None, count: LOG_PAGE_MAX, order };
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
