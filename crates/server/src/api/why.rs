//! `/v2/messages/{id}/why`: what a message waits for now, or what became of it, in a sentence and as facts.

use super::auth::Reader;
use super::duplicates::Count;
use super::error::ApiError;
use super::path::PathId;
use super::response::{from_core, turn};
use super::shape::{log_state, url_of};
use crate::app::App;
use axum::Json;
use axum::extract::State;
use posthaste_api_types::log::LogState;
use posthaste_api_types::why::{DestinationFacts, Duplicates, FlowFacts, QueueFacts, WaitsFor, Why};
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
use std::sync::Arc;

/// Pages of log lines that are read to tell what became of a message; attempts before them are not counted.
const LINE_PAGES_MAX: usize = 16;
/// Last log lines that are read of a message that has not ended.
const LAST_LINES: usize = 8;

pub(super) async fn get(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    id: PathId<MessageId>,
) -> Result<Json<Why>, ApiError> {
    let absent = |id: &str| ApiError::not_found(format!("message {id} not found, or its log lines have expired"));
    let (text, id) = (id.text(), id.or_absent(absent)?);
    let record = app.read(tenant, move |store| known(store, tenant, id)).await?;
    let record = record.ok_or_else(|| absent(text))?;
    let mut report = describe(&app, tenant, record).await?.ok_or_else(|| absent(text))?;
    if let Some(Count { count, first, last }) = app.duplicates.of(id) {
        report.duplicates = Some(Duplicates { count, first_at: first, last_at: last });
    }
    Ok(Json(report))
}

/// Describes the state of a message; `None` if it was deleted meanwhile.
async fn describe(app: &Arc<App>, tenant: TenantId, record: Known) -> Result<Option<Why>, ApiError> {
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

/// What is said of every message.
fn begun(known: &Known, sentence: String, state: Option<LogState>, waits_for: WaitsFor) -> Why {
    Why {
        message_id: known.message.id.to_string(),
        sentence,
        state,
        waits_for,
        attempts: None,
        max_attempts: u64::from(known.message.spec.retries) + 1,
        due_at: None,
        ended_at: None,
        estimate_ms: None,
        position: None,
        position_more_than: None,
        cancel_requested: false,
        last_status: None,
        last_error: None,
        dlq_id: None,
        queue: None,
        flow_control: None,
        destination: None,
        duplicates: None,
    }
}

fn of_ended(known: &Known, now: Timestamp) -> Why {
    let origin = origin(&known.message);
    let subject = subject(&known.message, &origin);
    let Some(ending) = why::ending(&known.events) else {
        let text = "ended; its log lines have expired".to_owned();
        let last = known.events.last().map(|event| log_state(event.state));
        return begun(known, text, last, WaitsFor::Nothing);
    };
    let sentence = why::ended_sentence(&ending, &subject, known.in_dlq, now);
    let mut report = begun(known, sentence, Some(log_state(ending.state)), WaitsFor::Nothing);
    let Ending { at, attempts, last, dlq_id, .. } = ending;
    report.ended_at = Some(at);
    report.attempts = Some(attempts.into());
    put_answer(&mut report, last.as_ref());
    report.dlq_id = dlq_id.filter(|_| known.in_dlq);
    report
}

fn put_answer(report: &mut Why, answer: Option<&Answer>) {
    match answer {
        Some(Answer::Status(status)) => report.last_status = Some(*status),
        Some(Answer::Error(error)) => report.last_error = Some(error.clone()),
        None => {}
    }
}

fn of_live(known: &Known, waiting: &WaitReason, now: Timestamp) -> Why {
    let origin = origin(&known.message);
    let last_of = |state: Stage| known.events.iter().rev().find(|event| event.state == state);
    let answer = last_of(Stage::Error).and_then(|event| match (&event.detail.response, &event.detail.error) {
        (Some(response), _) => Some(Answer::Status(response.status)),
        (None, error) => error.clone().map(Answer::Error),
    });
    let since = last_of(Stage::Active).map(|event| event.at);
    let sentence = why::waiting_sentence(waiting, &subject(&known.message, &origin), answer.as_ref(), since, now);
    let state = log_state(known.events.last().map_or(Stage::Created, |event| event.state));
    let mut report = begun(known, sentence, Some(state), waits_for(&waiting.obstacle));
    report.attempts = Some(waiting.retried.into());
    report.due_at = Some(waiting.due);
    put_answer(&mut report, answer.as_ref());
    report.cancel_requested = waiting.cancel_requested;
    put_obstacle(&mut report, waiting, now);
    report
}

/// An obstacle, as responses name it.
fn waits_for(obstacle: &Obstacle) -> WaitsFor {
    match obstacle {
        Obstacle::Time => WaitsFor::Time,
        Obstacle::Queue(_) => WaitsFor::Queue,
        Obstacle::Flow(_) => WaitsFor::FlowControl,
        Obstacle::Destination(_) => WaitsFor::Destination,
        Obstacle::Room(_) => WaitsFor::Room,
        Obstacle::Attempt => WaitsFor::Attempt,
        Obstacle::Stopping | Obstacle::Nothing => WaitsFor::Nothing,
    }
}

fn put_obstacle(report: &mut Why, waiting: &WaitReason, now: Timestamp) {
    match &waiting.obstacle {
        Obstacle::Time => report.estimate_ms = Some(waiting.due.millis_since(now)),
        Obstacle::Queue(InQueue { name, paused, changed_at, parallelism, taken, position }) => {
            report.queue = Some(QueueFacts {
                name: name.clone(),
                paused: *paused,
                parallelism: *parallelism,
                under_way: *taken as u64,
                updated_at: *changed_at,
            });
            put_position(report, *position);
        }
        Obstacle::Flow(InFlow { key, paused, parallelism, in_flight, rate, period_ms, position, opens_at }) => {
            report.flow_control = Some(FlowFacts {
                key: key.clone(),
                paused: *paused,
                parallelism: *parallelism,
                under_way: u64::from(*in_flight),
                rate: *rate,
                period_ms: *period_ms,
            });
            put_position(report, Some(*position));
            report.estimate_ms = opens_at.map(|opens_at| opens_at.millis_since(now));
        }
        Obstacle::Destination(destination) => {
            report.destination =
                Some(DestinationFacts { under_way: destination.in_flight as u64, max: destination.max as u64 });
            put_position(report, Some(destination.position));
        }
        Obstacle::Room(_) | Obstacle::Attempt | Obstacle::Stopping | Obstacle::Nothing => {}
    }
}

fn put_position(report: &mut Why, position: Option<Position>) {
    match position {
        Some(Position::Nth(nth)) => report.position = Some(nth as u64),
        Some(Position::Beyond(count)) => report.position_more_than = Some(count as u64),
        None => {}
    }
}
