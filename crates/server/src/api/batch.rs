//! `POST /v2/batch`: many messages in one request, answered when all of them are stored.
//!
//! A batch is about messages or about runs of workflows, never about both: that is refused with 400.

use super::auth::Writer;
use super::body;
use super::caller::caller_ip;
use super::error::ApiError;
use super::publish::{
    ANSWER_BYTES, Answer, AnsweredPlaces, Line, Places, Publisher, Refusal, expression_checks, parse_options, prepare,
    refuse_when_disk_is_low, status_of, store,
};
use super::queues;
use super::response::{room_before_storing, stored};
use super::storing;
use super::workflow::publish::Asked;
use super::workflow::{self, Wanted};
use crate::app::App;
use crate::blocking::passed_on;
use crate::core::{NewMessage, Room, StartRun, entry_bytes, stored_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use posthaste_engine::limits::{BATCH_BYTES_MAX, BATCH_ITEMS_MAX, URL_BYTES_MAX};
use posthaste_wire::destination::Destination;
use posthaste_wire::encoding::JsonError;
use posthaste_wire::id::TenantId;
use posthaste_wire::publish::hops;
use posthaste_wire::retry_delay::RetryDelayChecks;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One item, as the SDKs send it: Python sends nulls, Go sends lists of header values.
#[derive(Deserialize)]
pub(super) struct Item {
    pub(super) destination: Option<String>,
    #[serde(default)]
    headers: Option<BTreeMap<String, HeaderValues>>,
    #[serde(default)]
    body: Option<ItemBody>,
    #[serde(default)]
    pub(super) queue: Option<String>,
}

impl Item {
    /// Whether it is about a run of a workflow.
    fn concerns_a_run(&self) -> bool {
        workflow::concerns_a_run(self.headers.iter().flat_map(|headers| headers.keys().map(String::as_str)))
    }

    /// What it sends: text.
    pub(super) fn take_body(&mut self) -> Result<Bytes, ApiError> {
        match self.body.take() {
            None => Ok(Bytes::new()),
            Some(ItemBody::Text(text)) => Ok(Bytes::from(text)),
            Some(ItemBody::Json(_)) => Err(ApiError::invalid("body must be a string; write JSON as a string")),
        }
    }

    /// What it sends, text or not.
    pub(super) fn take_any_body(&mut self) -> Bytes {
        self.body.take().map(|body| Bytes::from(body.into_text())).unwrap_or_default()
    }

    /// The headers, each value a line of its own.
    pub(super) fn lines(&self) -> Vec<Line<'_>> {
        let headers = self.headers.iter().flatten();
        headers
            .flat_map(|(name, values)| values.as_slice().iter().map(move |value| (name.as_str(), value.as_bytes())))
            .collect()
    }
}

/// What an item sends. `context.call` of the workflow client passes on whatever its user gave it.
#[derive(Deserialize)]
#[serde(from = "Box<RawValue>")]
pub(super) enum ItemBody {
    /// Sent as it is.
    Text(String),
    /// Sent as the JSON it is; only about runs.
    Json(String),
}

impl From<Box<RawValue>> for ItemBody {
    fn from(raw: Box<RawValue>) -> Self {
        serde_json::from_str(raw.get()).map_or_else(|_| ItemBody::Json(raw.get().to_owned()), ItemBody::Text)
    }
}

impl ItemBody {
    fn into_text(self) -> String {
        match self {
            ItemBody::Text(text) | ItemBody::Json(text) => text,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a header value must be a string or a list of strings")]
enum HeaderValues {
    One(String),
    Many(Vec<String>),
}

impl HeaderValues {
    fn as_slice(&self) -> &[String] {
        match self {
            HeaderValues::One(value) => std::slice::from_ref(value),
            HeaderValues::Many(values) => values,
        }
    }
}

/// The answer to one item.
#[derive(Serialize)]
#[serde(untagged)]
enum ItemAnswer {
    Published(Answer),
    Refused { error: String },
}

/// What became of one item.
enum Fate {
    Accepted(AnsweredPlaces),
    Refused(String),
}

impl Fate {
    /// How long the answer to the item will be, more or less.
    fn answer_bytes(&self) -> usize {
        match self {
            Fate::Accepted(places) => places.answer_bytes(),
            Fate::Refused(error) => error.len() + ANSWER_BYTES,
        }
    }
}

/// A batch about runs that is not longer is taken apart at once: every step of a run is one.
const STEP_BYTES_MAX: usize = 64 * 1024;

pub(super) async fn batch(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    refuse_when_disk_is_low(&app)?;
    let over = || ApiError::too_large(format!("the batch is larger than {BATCH_BYTES_MAX} bytes; split it"));
    let mut body = body::read(&app, tenant, &parts.headers, body, BATCH_BYTES_MAX, over).await?;
    let publisher = Publisher { tenant, caller_ip: caller_ip(&app, &parts) };
    let lines = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let (bytes, preparing, hops) = (body.bytes, app.clone(), hops(lines));
    let is_step = bytes.len() <= STEP_BYTES_MAX && workflow::may_concern_a_run(&bytes);
    let prepare = move |text: &[u8]| prepare_all(&preparing, &publisher, hops, text);
    let prepared = if is_step {
        let prepared = prepare(&bytes)?;
        take_room(&app, tenant, &prepared, &mut body.room).await?;
        prepared
    } else {
        taken_apart(&app, tenant, &mut body.room, bytes, prepare).await?
    };
    let Prepared { messages, fates, runs } = prepared;
    if !runs.is_empty() {
        return Box::pin(workflow::publish::batch(&app, tenant, runs, body.room)).await;
    }
    let refused = fates.iter().filter_map(|fate| if let Fate::Refused(error) = fate { Some(error) } else { None });
    let first_refused = refused.clone().next();
    if messages.is_empty()
        && let Some(error) = first_refused
    {
        return Err(ApiError::invalid(error.as_str()).at(0));
    }
    let any_refused = first_refused.is_some();
    let bytes = fates.iter().map(Fate::answer_bytes).sum();
    let answer_room = room_before_storing(&app, tenant, bytes, &mut body.room.waited).await?;
    let accepted = if messages.is_empty() { Vec::new() } else { store(&app, tenant, messages, body.room).await? };
    let status = if any_refused { StatusCode::OK } else { status_of(&accepted) };
    let mut accepted = accepted.into_iter();
    let answer = |fate| match fate {
        Fate::Refused(error) => Some(ItemAnswer::Refused { error }),
        Fate::Accepted(places) => Answer::new(places, &mut accepted).map(ItemAnswer::Published),
    };
    let answers: Vec<ItemAnswer> = fates.into_iter().filter_map(answer).collect();
    Ok(stored(status, answers, answer_room).await)
}

/// Takes a batch apart when it is the turn of its tenant, and when the tenant has room for as many items: they take more memory
/// than their text, so many large batches at once would take all processors and gigabytes. A large batch takes a while, and
/// groups are read from the store, so this happens on another thread. The turn lasts until there is room for all of it.
pub(super) async fn taken_apart<T: Items + Send + 'static>(
    app: &App,
    tenant: TenantId,
    room: &mut Room,
    text: Bytes,
    take_apart: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let _turn = body::batch_turn(app, tenant, room).await.ok_or_else(body::no_room)?;
    let counted = text.clone();
    let count = off_thread(move || split(&counted).map(|items| items.len())).await?;
    app.body_budget.take_items(tenant, count, room).await.ok_or_else(body::no_room)?;
    let items = off_thread(move || take_apart(&text)).await?;
    // An item for a group is a message for each of its endpoints.
    app.body_budget.take_items(tenant, items.count(), room).await.ok_or_else(body::no_room)?;
    take_room(app, tenant, &items, room).await?;
    Ok(items)
}

async fn off_thread<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let unread = |_| ApiError::overloaded("the batch could not be read; nothing was stored, try again");
    passed_on(tokio::task::spawn_blocking(read).await).map_err(unread)?
}

/// Takes room in memory for the items of a batch, besides that which their text has.
async fn take_room(app: &App, tenant: TenantId, items: &impl Items, room: &mut Room) -> Result<(), ApiError> {
    let more = items.bytes_in_memory().saturating_sub(body::held_bytes(room));
    app.body_budget.take(tenant, more, room).await.ok_or_else(body::no_room)
}

/// What a batch was taken apart into.
pub(super) trait Items {
    /// How many there are.
    fn count(&self) -> usize;
    /// Bytes that they take in memory, more or less.
    fn bytes_in_memory(&self) -> usize;
}

/// Bytes that a message, and a run or a step of one, take in memory besides what they store, more or less.
const MESSAGE_MEMORY_BYTES: usize = 1_024;
const RUN_MEMORY_BYTES: usize = 3_072;

impl Items for Prepared {
    fn count(&self) -> usize {
        self.messages.len() + self.runs.len()
    }

    fn bytes_in_memory(&self) -> usize {
        let of_run = |wanted: &Wanted| match wanted {
            Wanted::Start(run) => run.stored_bytes(),
            Wanted::Append(_, entry) => entry_bytes(entry),
        };
        let runs: usize = self.runs.iter().map(of_run).sum();
        let overhead = self.messages.len() * MESSAGE_MEMORY_BYTES + self.runs.len() * RUN_MEMORY_BYTES;
        stored_bytes(&self.messages) + runs + overhead
    }
}

impl Items for Vec<StartRun> {
    fn count(&self) -> usize {
        self.len()
    }

    fn bytes_in_memory(&self) -> usize {
        self.iter().map(|run| run.stored_bytes() + RUN_MEMORY_BYTES).sum()
    }
}

/// A batch taken apart: the messages to store and what became of each item; or what is to be done with runs.
struct Prepared {
    messages: Vec<NewMessage>,
    fates: Vec<Fate>,
    runs: Vec<Wanted>,
}

/// `hops` deliveries led to this request, and thereby to each of its messages.
fn prepare_all(app: &App, publisher: &Publisher, hops: u32, batch: &[u8]) -> Result<Prepared, ApiError> {
    let items = split(batch)?;
    let (messages, fates) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    let mut prepared = Prepared { messages, fates, runs: Vec::new() };
    let mut bytes = 0;
    let checks = expression_checks();
    for (index, item) in items.into_iter().enumerate() {
        let mut item = read_item(item.get()).map_err(|error| error.at(index))?;
        if item.concerns_a_run() {
            let body = item.take_any_body();
            let destination = item.destination.as_deref();
            let asked = Asked { caller_ip: &publisher.caller_ip, checks: &checks };
            let wanted = workflow::publish::read_item(app, asked, &item.lines(), destination, body);
            prepared.runs.push(wanted.map_err(|error| error.at(index))?);
            continue;
        }
        let fate = match prepare_item(app, publisher, (hops, &checks), item) {
            Ok((messages, places)) => {
                bytes += stored_bytes(&messages);
                storing::check_request(app, bytes)?;
                prepared.messages.extend(messages);
                Fate::Accepted(places)
            }
            Err(Refusal::Destination(error)) => Fate::Refused(error.into_message()),
            Err(Refusal::Malformed(error)) => return Err(error.at(index)),
        };
        prepared.fates.push(fate);
        if prepared.messages.len() > BATCH_ITEMS_MAX {
            let text = format!("the batch creates more than {BATCH_ITEMS_MAX} messages; split it");
            return Err(ApiError::invalid(text));
        }
    }
    if !prepared.runs.is_empty() && !prepared.fates.is_empty() {
        let text = "a batch cannot mix plain messages and workflow requests; split it";
        return Err(ApiError::invalid(text));
    }
    Ok(prepared)
}

/// The items, none of them read yet.
pub(super) fn split(bytes: &[u8]) -> Result<Vec<&RawValue>, ApiError> {
    let items: Vec<&RawValue> = serde_json::from_slice(bytes).map_err(|error| not_an_array(bytes, error))?;
    if items.len() > BATCH_ITEMS_MAX {
        let text = format!("the batch has {} items, at most {BATCH_ITEMS_MAX} are accepted", items.len());
        return Err(ApiError::invalid(text));
    }
    Ok(items)
}

/// The array that a batch should be, in short.
const ARRAY: &str = "send a JSON array: [{\"destination\": \"https://…\", \"headers\": {…}, \"body\": \"…\"}]";

fn not_an_array(bytes: &[u8], error: serde_json::Error) -> ApiError {
    let found = match bytes.trim_ascii_start().first() {
        None => "the body is empty".to_owned(),
        Some(b'{') => "the body is a JSON object".to_owned(),
        Some(b'[') => format!("the body is not valid JSON: {}", JsonError::from(error)),
        Some(_) => "the body is not a JSON array".to_owned(),
    };
    ApiError::invalid(format!("{found}; {ARRAY}"))
}

/// Where an item goes.
pub(super) fn destination(text: &str) -> Result<Destination, ApiError> {
    Destination::parse_whole(text, URL_BYTES_MAX).map_err(|error| ApiError::invalid(format!("destination: {error}")))
}

/// An object: a struct could be read from a list too.
pub(super) fn read_item(text: &str) -> Result<Item, ApiError> {
    let wrong = "not an object with destination, headers and a body";
    if !text.trim_start().starts_with('{') {
        return Err(ApiError::invalid(wrong));
    }
    serde_json::from_str(text).map_err(|error| ApiError::invalid(format!("{wrong}: {}", JsonError::from(error))))
}

fn prepare_item(
    app: &App,
    publisher: &Publisher,
    (hops, checks): (u32, &RetryDelayChecks),
    mut item: Item,
) -> Result<(Vec<NewMessage>, AnsweredPlaces), Refusal> {
    let malformed = |error: ApiError| Refusal::Malformed(error);
    let text = item.destination.take().ok_or_else(|| malformed(ApiError::invalid("destination is missing")))?;
    let queue = item.queue.take().filter(|queue| !queue.is_empty()).map(queues::checked_name).transpose();
    let queue = queue.map_err(malformed)?;
    let destination = destination(&text).map_err(malformed)?;
    let places = match destination {
        Destination::Group(name) => {
            Places::of_group(app.store.as_ref(), app.core.credentials(), publisher.tenant, name)
        }
        other => Places::of_url(app, other),
    };
    let places = places.map_err(malformed)?;
    let mut options = parse_options(app, &item.lines(), &[], &places).map_err(malformed)?;
    options.queue = queue.or(options.queue);
    options.hops = options.hops.max(hops);
    if options.cron.is_some() {
        return Err(malformed(ApiError::invalid("Upstash-Cron: a batch cannot create schedules; use /v2/schedules")));
    }
    let body = item.take_body().map_err(malformed)?;
    let max = app.config.message_bytes_max;
    if body.len() > max {
        return Err(malformed(ApiError::message_too_large(max)));
    }
    let messages = prepare(app, publisher, &places, &options, (checks, &body))?;
    Ok((messages, places.answered()))
}
