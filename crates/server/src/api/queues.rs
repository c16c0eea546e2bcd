//! `/v2/queues`: FIFO queues, their settings and their lag. Messages enter them in `publish`.

use super::auth::{Reader, Writer};
use super::body::{SmallRequest, Unread, read_small};
use super::error::ApiError;
use super::messages::cancel_matching;
use super::params::Params;
use super::pieces::Pieces;
use super::response::{Answer, answer};
use crate::app::App;
use crate::core::{QueueSettings, in_time};
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use posthaste_api_types::Done;
use posthaste_api_types::message::Cancelled;
use posthaste_api_types::queue as types;
use posthaste_engine::limits::KEY_BYTES_MAX;
use posthaste_engine::message::QueueKey;
use posthaste_engine::queue::Queue;
use posthaste_store::{Filter, Names, Store, StoreError};
use posthaste_wire::destination::is_name;
use posthaste_wire::encoding::JsonError;
use posthaste_wire::id::TenantId;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A queue as it is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wanted {
    queue_name: String,
    #[serde(default)]
    parallelism: Option<u64>,
    #[serde(default)]
    paused: Option<bool>,
}

/// A bare list, as the SDKs read it; a header says where the next page begins.
pub(super) async fn list(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<Response, ApiError> {
    let page = params.name_page()?;
    let make = move |store: &dyn Store| {
        let Names { entries, next } = store.list_queues(tenant, &page)?;
        let queues: Vec<types::Queue> = with_lags(store, tenant, entries)?.iter().map(shape).collect();
        Ok(Ok(Answer { json: Pieces::of(&queues).finish(), cursor: next }))
    };
    answer(&app, tenant, make).await
}

pub(super) async fn get(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<types::Queue>, ApiError> {
    let name = checked_name(name)?;
    let wanted = name.clone();
    let find = move |store: &dyn Store| with_lags(store, tenant, store.queue(tenant, &wanted)?.into_iter().collect());
    let found = app.read(tenant, find).await?;
    Ok(Json(shape(found.first().ok_or_else(|| absent(&name))?)))
}

/// Makes a queue, or changes its settings.
pub(super) async fn put(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Done>, ApiError> {
    let SmallRequest { body, .. } = read_small(&app, tenant, request).await?;
    // As an object first: a struct could be read from a list too.
    let object = serde_json::from_slice::<Map<String, Value>>(&body.bytes);
    let wanted = object.and_then(|object| serde_json::from_value::<Wanted>(object.into())).map_err(|error| {
        let error = JsonError::from(error);
        ApiError::invalid(format!("the body is not a JSON object with queueName, parallelism and paused: {error}"))
    })?;
    let name = checked_name(wanted.queue_name)?;
    let parallelism = checked_parallelism(&app, wanted.parallelism.unwrap_or(1))?;
    let settings = QueueSettings { parallelism, paused: wanted.paused.unwrap_or(false) };
    app.core.put_queue(tenant, name, settings).await?;
    Ok(Json(Done {}))
}

/// Cancels the messages of a queue and forgets it. What is under way ends, and is not tried again.
pub(super) async fn delete(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    _: Unread,
) -> Result<Json<Cancelled>, ApiError> {
    let name = checked_name(name)?;
    let filter = Filter { queues: vec![name.clone()], ..Filter::default() };
    let cancelled = cancel_matching(&app, tenant, filter, usize::MAX).await?;
    in_time(&app.core, |core| {
        let name = name.clone();
        async move { core.drop_queue(tenant, name).await }
    })
    .await?;
    Ok(Json(Cancelled { cancelled: cancelled as u64, action_id: None }))
}

pub(super) async fn pause(
    caller: Writer,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    _: Unread,
) -> Result<Json<Done>, ApiError> {
    set_paused(&app, caller, name, true).await
}

pub(super) async fn resume(
    caller: Writer,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    _: Unread,
) -> Result<Json<Done>, ApiError> {
    set_paused(&app, caller, name, false).await
}

async fn set_paused(app: &App, caller: Writer, name: String, paused: bool) -> Result<Json<Done>, ApiError> {
    let name = checked_name(name)?;
    match app.core.pause_queue(caller.tenant, name.clone(), paused).await? {
        true => Ok(Json(Done {})),
        false => Err(absent(&name)),
    }
}

/// A name that a queue may have.
pub(super) fn checked_name(name: String) -> Result<String, ApiError> {
    if name.len() <= KEY_BYTES_MAX && is_name(&name) {
        return Ok(name);
    }
    Err(ApiError::invalid(format!(
        "the name of a queue must have 1 to {KEY_BYTES_MAX} letters, digits, `-`, `_` and `.`"
    )))
}

fn checked_parallelism(app: &App, wanted: u64) -> Result<u32, ApiError> {
    let max = app.config.quotas.queue_parallelism;
    match u32::try_from(wanted) {
        Ok(0) => Err(ApiError::invalid("parallelism must be at least 1")),
        Ok(parallelism) if parallelism <= max => Ok(parallelism),
        _ => Err(ApiError::quota(format!("quota maxParallelism exceeded, current limit: {max}"))),
    }
}

fn absent(name: &str) -> ApiError {
    ApiError::not_found(format!("queue {name} not found"))
}

/// Queues that were not deleted, each with the number of its messages that have not ended.
fn with_lags(store: &dyn Store, tenant: TenantId, mut queues: Vec<Queue>) -> Result<Vec<(Queue, u64)>, StoreError> {
    queues.retain(|queue| !queue.deleted);
    let keys: Vec<QueueKey> = queues.iter().map(|queue| QueueKey::of(tenant, &queue.name)).collect();
    let lags = store.queue_lags(tenant, &keys)?;
    Ok(queues.into_iter().zip(lags).collect())
}

/// A.4: a queue.
fn shape((queue, lag): &(Queue, u64)) -> types::Queue {
    types::Queue {
        name: queue.name.clone(),
        parallelism: queue.parallelism,
        paused: queue.paused,
        lag: *lag,
        created_at: queue.created_at,
        updated_at: queue.updated_at,
    }
}
