//! `/v2/messages/{id}/why`: what a message waits for now, or what became of it, in a sentence and as facts.

use super::auth::Reader;
use super::duplicates::Count;
use super::error::ApiError;
use super::path::PathId;
use super::response::{from_core, turn};
use super::shape::{Object, put, url_of};
use crate::app::App;
use axum::Json;
use axum::extract::State;
use posthaste_engine::attempt_error::Timeout;
use posthaste_engine::event::{Event, State as Stage};
use posthaste_engine::limits::LOG_PAGE_MAX;
use posthaste_engine::message::{Live, Message};
use posthaste_engine::why::{self, Answer, Ending, InFlow, InQueue, Obstacle, Position, Room, Subject, WaitReason};
use posthaste_engine::workflow::Part;
use posthaste_store::{EventFilter, Filter, MessageRecord, Order, PageRequest, Store, StoreError};
use posthaste_wire::destination;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// Pages of log lines that are read to tell what became of a message; attempts before them are not counted.
const LINE_PAGES_MAX: usize = 16;
/// Last log lines that are read of a message that has not ended.
const LAST_LINES: usize = 8;

pub(super) async fn get(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    id: PathId<MessageId>,
) -> Result<Json<Value>, ApiError> {
    let absent = |id: &str| ApiError::not_found(format!("message {id} not found, or its log lines have expired"));
    let (text, id) = (id.text(), id.or_absent(absent)?);
    let record = app.read(tenant, move |store| known(store, tenant, id)).await?;
    let record = record.ok_or_else(|| absent(text))?;
    let mut told = told(&app, tenant, record).await?.ok_or_else(|| absent(text))?;
    if let Some(Count { count, first, last }) = app.duplicates.of(id) {
        told["duplicates"] = json!({ "count": count, "firstAt": first.as_millis(), "lastAt": last.as_millis() });
    }
    Ok(Json(told))
}

/// What is told of a message; `None` if it has gone meanwhile.
async fn told(app: &Arc<App>, tenant: TenantId, record: Known) -> Result<Option<Value>, ApiError> {
    let Some(live) = record.live else { return Ok(Some(of_ended(&record, app.clock.now()))) };
    let waiting = {
        let _turn = turn(app, tenant).await?;
        from_core(app.core.why(live)).await?
    };
    if matches!(waiting.obstacle, Obstacle::Nothing | Obstacle::Room(Room::Memory)) {
        // It may have ended since it was read.
        let id = record.message.id;
        let Some(again) = app.read(tenant, move |store| known(store, tenant, id)).await? else { return Ok(None) };
        if again.live.is_none() {
            return Ok(Some(of_ended(&again, app.clock.now())));
        }
    }
    Ok(Some(of_live(&record, &waiting, app.clock.now())))
}

/// What the store has of a message.
struct Known {
    message: Arc<Message>,
    live: Option<Live>,
    /// All of an ended message, the last ones of a live one; oldest first.
    events: Vec<Event>,
    /// Its dead letter is there.
    in_dlq: bool,
}

fn known(store: &dyn Store, tenant: TenantId, id: MessageId) -> Result<Option<Known>, StoreError> {
    let Some(MessageRecord { message, live, .. }) = store.message(tenant, id, posthaste_store::Part::Head)? else {
        return Ok(None);
    };
    let events = lines(store, tenant, id, live.is_some())?;
    let dlq_id = events.last().and_then(|event| event.detail.dlq_id.as_deref()?.parse::<DlqId>().ok());
    let in_dlq = match dlq_id {
        Some(dlq_id) => !store.find_dead_letters(tenant, &[dlq_id])?.is_empty(),
        None => false,
    };
    Ok(Some(Known { message, live, events, in_dlq }))
}

fn lines(store: &dyn Store, tenant: TenantId, id: MessageId, is_live: bool) -> Result<Vec<Event>, StoreError> {
    let message = Filter { ids: vec![id], ..Filter::default() };
    let filter = EventFilter { message, states: Vec::new() };
    let count = if is_live { LAST_LINES } else { LOG_PAGE_MAX };
    let (mut events, mut cursor) = (Vec::new(), None);
    for _ in 0..LINE_PAGES_MAX {
        let page = store.list_events(tenant, &filter, &PageRequest::new(cursor, count, Order::LatestFirst))?;
        events.extend(page.entries.into_iter().map(|record| record.event));
        cursor = page.next.filter(|_| !is_live);
        if cursor.is_none() {
            break;
        }
    }
    events.reverse();
    Ok(events)
}

fn subject<'a>(message: &Message, destination: &'a str) -> Subject<'a> {
    let is_deadline = message.spec.workflow.is_some_and(|step| step.part == Part::Deadline);
    let timeout = Timeout::of(message.spec.timeout_ms);
    Subject { destination, created_at: message.created_at, retries: message.spec.retries, timeout, is_deadline }
}

/// Where a message goes, without the secrets that a path may hold.
fn origin(message: &Message) -> String {
    let url = url_of(&message.spec);
    destination::origin(&url).unwrap_or_else(|| url.into_owned())
}

fn begun(known: &Known, sentence: String, state: &str, waits_for: &str) -> Object {
    let mut object = Object::new();
    put(&mut object, "messageId", known.message.id.to_string());
    put(&mut object, "sentence", sentence);
    put(&mut object, "state", state);
    put(&mut object, "waitsFor", waits_for);
    put(&mut object, "maxAttempts", u64::from(known.message.spec.retries) + 1);
    object
}

fn of_ended(known: &Known, now: Timestamp) -> Value {
    let origin = origin(&known.message);
    let subject = subject(&known.message, &origin);
    let Some(ending) = why::ending(&known.events) else {
        let text = "ended; its log lines have expired".to_owned();
        return begun(known, text, known.events.last().map_or("", |event| event.state.name()), "nothing").into();
    };
    let sentence = why::ended_sentence(&ending, &subject, known.in_dlq, now);
    let mut object = begun(known, sentence, ending.state.name(), "nothing");
    let Ending { at, attempts, last, dlq_id, .. } = ending;
    put(&mut object, "endedAt", at.as_millis());
    put(&mut object, "attempts", attempts);
    put_answer(&mut object, last.as_ref());
    if let Some(dlq_id) = dlq_id.filter(|_| known.in_dlq) {
        put(&mut object, "dlqId", dlq_id);
    }
    object.into()
}

fn put_answer(object: &mut Object, answer: Option<&Answer>) {
    match answer {
        Some(Answer::Status(status)) => put(object, "lastStatus", *status),
        Some(Answer::Error(error)) => put(object, "lastError", error.as_str()),
        None => {}
    }
}

fn of_live(known: &Known, waiting: &WaitReason, now: Timestamp) -> Value {
    let origin = origin(&known.message);
    let last_of = |state: Stage| known.events.iter().rev().find(|event| event.state == state);
    let answer = last_of(Stage::Error).and_then(|event| match (&event.detail.response, &event.detail.error) {
        (Some(response), _) => Some(Answer::Status(response.status)),
        (None, error) => error.clone().map(Answer::Error),
    });
    let since = last_of(Stage::Active).map(|event| event.at);
    let sentence = why::waiting_sentence(waiting, &subject(&known.message, &origin), answer.as_ref(), since, now);
    let state = known.events.last().map_or(Stage::Created.name(), |event| event.state.name());
    let mut object = begun(known, sentence, state, waits_for(&waiting.obstacle));
    put(&mut object, "attempts", waiting.retried);
    put(&mut object, "dueAt", waiting.due.as_millis());
    put_answer(&mut object, answer.as_ref());
    if waiting.cancel_requested {
        put(&mut object, "cancelRequested", true);
    }
    put_obstacle(&mut object, waiting, now);
    object.into()
}

/// The name of an obstacle on the wire.
fn waits_for(obstacle: &Obstacle) -> &'static str {
    match obstacle {
        Obstacle::Time => "time",
        Obstacle::Queue(_) => "queue",
        Obstacle::Flow(_) => "flowControl",
        Obstacle::Destination(_) => "destination",
        Obstacle::Room(_) => "room",
        Obstacle::Attempt => "attempt",
        Obstacle::Stopping | Obstacle::Nothing => "nothing",
    }
}

fn put_obstacle(object: &mut Object, waiting: &WaitReason, now: Timestamp) {
    match &waiting.obstacle {
        Obstacle::Time => put_estimate(object, waiting.due, now),
        Obstacle::Queue(InQueue { name, paused, changed_at, parallelism, taken, position }) => {
            let (changed_at, taken) = (changed_at.as_millis(), *taken as u64);
            let facts = json!({
                "name": name, "paused": paused, "parallelism": parallelism, "underWay": taken, "updatedAt": changed_at,
            });
            put(object, "queue", facts);
            put_position(object, *position);
        }
        Obstacle::Flow(InFlow { key, paused, parallelism, in_flight, rate, period_ms, position, opens_at }) => {
            let facts = json!({
                "key": key, "paused": paused, "parallelism": parallelism, "underWay": in_flight, "rate": rate,
                "periodMs": period_ms,
            });
            put(object, "flowControl", facts);
            put_position(object, Some(*position));
            if let Some(opens_at) = opens_at {
                put_estimate(object, *opens_at, now);
            }
        }
        Obstacle::Destination(destination) => {
            put(object, "destination", json!({ "underWay": destination.in_flight, "max": destination.max }));
            put_position(object, Some(destination.position));
        }
        Obstacle::Room(_) | Obstacle::Attempt | Obstacle::Stopping | Obstacle::Nothing => {}
    }
}

fn put_position(object: &mut Object, position: Option<Position>) {
    match position {
        Some(Position::Nth(nth)) => put(object, "position", nth as u64),
        Some(Position::Beyond(count)) => put(object, "positionMoreThan", count as u64),
        None => {}
    }
}

fn put_estimate(object: &mut Object, at: Timestamp, now: Timestamp) {
    put(object, "estimateMs", at.millis_since(now));
}
