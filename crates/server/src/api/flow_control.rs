//! `/v2/flowControl`: the keys that messages share limits by, and `/v2/globalParallelism`.
//!
//! A key may hold slashes, so it is everything between the resource and what is to be done with it.

use super::auth::{Reader, Writer};
use super::body::Unread;
use super::error::ApiError;
use super::params::{Params, decoded};
use super::pieces::Pieces;
use super::publish::rest_of;
use super::response::{Answer, begin, finish, from_core, turn};
use crate::app::App;
use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use posthaste_api_types::Done;
use posthaste_api_types::flow_control::{FlowControlKey, GlobalParallelism};
use posthaste_engine::flow::{FlowEdit, FlowInfo, FlowPage};
use posthaste_engine::limits::KEY_BYTES_MAX;
use posthaste_engine::message::FlowKey;
use posthaste_store::{NamePage, Store, StoreError};
use posthaste_wire::flow_control::FlowControl;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// The keys of the tenant, or those that hold the text of `search`, as a bare list; a header says where the next page begins.
pub(super) async fn list(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<Response, ApiError> {
    let search = params.one("search")?.unwrap_or_default().to_owned();
    let NamePage { after, count, .. } = params.name_page()?;
    // The core looks at every key and what it tells is long, so both wait for the turn and the room.
    let beginning = begin(&app, tenant).await?;
    // One more than asked for says whether there is a next page.
    let mut flows = from_core(app.core.flows(tenant, FlowPage { search, after, max: count + 1 })).await?;
    let has_more = flows.len() > count;
    flows.truncate(count);
    let cursor = flows.last().filter(|_| has_more).map(|last| last.flow.key.clone());
    let now = app.clock.now();
    let make = move |store: &dyn Store| {
        let waiting = waiting(store, tenant, &mut flows, now)?;
        let mut pieces = Pieces::default();
        pieces.values(flows.iter().zip(waiting).map(|(info, waiting)| shape(info, waiting)));
        Ok(Ok(Answer { json: pieces.finish(), cursor }))
    };
    finish(&app, beginning, make).await
}

pub(super) async fn get(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<FlowControlKey>, ApiError> {
    let rest = rest_of(uri.path());
    let key = checked_key(rest.strip_suffix('/').unwrap_or(rest))?;
    let turn = turn(&app, tenant).await?;
    let mut known = from_core(app.core.flow(tenant, key.clone())).await?.ok_or_else(|| absent(&key))?;
    let now = app.clock.now();
    let make = move |store: &dyn Store| {
        let waiting = waiting(store, tenant, std::slice::from_mut(&mut known), now)?;
        Ok(shape(&known, waiting.first().copied().unwrap_or(0)))
    };
    Ok(Json(app.read_with(turn, make).await?))
}

/// `POST /v2/flowControl/{key}/{edit}`.
pub(super) async fn edit(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    uri: Uri,
    _: Unread,
) -> Result<Json<Done>, ApiError> {
    let rest = rest_of(uri.path());
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (key, name) = rest.rsplit_once('/').unwrap_or(("", rest));
    let params = Params::from_query(uri.query());
    let edit = flow_edit(name, &params)?;
    let key = checked_key(key)?;
    match app.core.edit_flow(tenant, key.clone(), edit).await? {
        true => Ok(Json(Done {})),
        false => Err(absent(&key)),
    }
}

pub(super) async fn global(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
) -> Result<Json<GlobalParallelism>, ApiError> {
    let _turn = turn(&app, tenant).await?;
    let parallelism = from_core(app.core.parallelism(tenant)).await?;
    Ok(Json(GlobalParallelism { parallelism_max: parallelism.max.into(), parallelism_count: parallelism.count.into() }))
}

/// What the last part of the path and the query ask for.
fn flow_edit(name: &str, params: &Params) -> Result<FlowEdit, ApiError> {
    let edit = match name.to_ascii_lowercase().as_str() {
        "pin" => return pin(params),
        "unpin" => {
            params.only(&["parallelism", "rate"])?;
            return Ok(FlowEdit::Unpin { parallelism: params.boolean("parallelism")?, rate: params.boolean("rate")? });
        }
        "pause" => FlowEdit::Pause,
        "resume" => FlowEdit::Resume,
        "resetrate" => FlowEdit::ResetRate,
        "reset" => FlowEdit::Reset,
        _ => {
            return Err(ApiError::not_found(
                "no such endpoint; the actions of a flow-control key are pause, resume, pin, unpin, resetRate and reset",
            ));
        }
    };
    params.only(&[])?;
    Ok(edit)
}

/// The limits to pin are those of a message, each a parameter of its own.
fn pin(params: &Params) -> Result<FlowEdit, ApiError> {
    params.only(&["parallelism", "rate", "period"])?;
    if params.has("period") && !params.has("rate") {
        return Err(ApiError::invalid("pin: period requires rate"));
    }
    let parts: Vec<String> = params.pairs().map(|(name, value)| format!("{name}={value}")).collect();
    if parts.is_empty() {
        return Err(ApiError::invalid("pin: parallelism or rate is required"));
    }
    let limits = FlowControl::parse(&parts.join(",")).map_err(|error| ApiError::invalid(format!("pin: {error}")))?;
    Ok(FlowEdit::Pin { parallelism: limits.parallelism, rate: limits.rate.map(|rate| (rate, limits.period_ms)) })
}

fn checked_key(raw: &str) -> Result<String, ApiError> {
    let key = decoded(raw)?;
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(ApiError::invalid(format!("a flow-control key must have 1 to {KEY_BYTES_MAX} bytes")));
    }
    Ok(key)
}

fn absent(key: &str) -> ApiError {
    ApiError::not_found(format!("flow-control key {key} not found"))
}

/// How many messages of each key wait: those that are due and were not under way when the core was asked. The store takes off
/// what is under way in the same look in which it counts, so a message that ends meanwhile is not taken off.
fn waiting(
    store: &dyn Store,
    tenant: TenantId,
    flows: &mut [FlowInfo],
    now: Timestamp,
) -> Result<Vec<u64>, StoreError> {
    let key = |info: &mut FlowInfo| (FlowKey::of(tenant, &info.flow.key), std::mem::take(&mut info.under_way));
    let keys: Vec<_> = flows.iter_mut().map(key).collect();
    store.flow_waiting(tenant, &keys, now)
}

/// A.7: a flow-control key. A limit that is not set is 0.
fn shape(info: &FlowInfo, waiting: u64) -> FlowControlKey {
    let flow = &info.flow;
    FlowControlKey {
        flow_control_key: flow.key.clone(),
        wait_list_size: waiting,
        parallelism_max: flow.parallelism.unwrap_or(0),
        parallelism_count: info.in_flight.into(),
        rate_max: flow.rate.unwrap_or(0),
        rate_count: info.rate_count.into(),
        rate_period: flow.period_ms.div_ceil(1_000),
        rate_period_start: info.period_start.as_seconds(),
        is_paused: flow.paused,
        is_pinned_parallelism: flow.pinned_parallelism,
        is_pinned_rate: flow.pinned_rate,
    }
}
