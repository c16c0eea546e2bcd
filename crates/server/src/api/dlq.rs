//! `/v2/dlq`: look at dead letters, delete them, publish them again.

use super::auth::{Reader, Writer};
use super::body::{self, SmallRequest, Unread, read_small};
use super::bulk_actions::begin_on_dead_letters;
use super::error::ApiError;
use super::params::Params;
use super::path::PathId;
use super::pieces::Pieces;
use super::publish::{
    callback_spec, check_callbacks, dedup_by, expression_checks, first_due, flow_spec, origin_of, publish_limits,
    published, refuse_when_disk_is_low, refused_destination,
};
use super::response::answer;
use super::{shape, storing, workflow};
use crate::app::App;
use crate::core::{NewMessage, Replay, Room, stored_bytes};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use posthaste_api_types::message::{Deleted, Published, Retried};
use posthaste_engine::bulk_action::Task;
use posthaste_engine::dedup;
use posthaste_engine::limits::{DLQ_PAGE_MAX, PAGE_BYTES_MAX};
use posthaste_engine::message::{Cause, CauseKind, MessageSpec};
use posthaste_engine::shard::Accepted;
use posthaste_store::{DeadLetterRecord, Filter, Order, Page, PageRequest, Part, Store, StoreError};
use posthaste_wire::destination::{QueryParts, split_query};
use posthaste_wire::encoding::{header_bytes, header_text};
use posthaste_wire::header::{self, CONTENT_TYPE};
use posthaste_wire::id::{DlqId, Position, TenantId};
use posthaste_wire::publish::{self as options, Dedup, PublishOptions};
use posthaste_wire::retry_delay::RetryDelayChecks;
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

/// What the DLQ endpoints may be told. `api` is accepted for old SDKs and means nothing.
pub(super) const DLQ_PARAMS: [&str; 21] = [
    "cursor",
    "count",
    "order",
    "trimBody",
    "dlqIds",
    "messageId",
    "messageIds",
    "url",
    "topicName",
    "urlGroup",
    "scheduleId",
    "queueName",
    "label",
    "flowControlKey",
    "responseStatus",
    "callerIp",
    "callerIP",
    "fromDate",
    "toDate",
    "cause",
    "api",
];
/// What a request may be told besides that changes many of them.
const BULK_PARAMS: [&str; 2] = ["async", "rate"];

/// What Upstash's MCP server adds to the query of a list, for itself. A read that ignores it does no harm.
const IGNORED_IN_LISTS: [&str; 2] = ["region", "local_mode_port"];

pub(super) async fn list(caller: Reader, State(app): State<Arc<App>>, params: Params) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let params = params.without(&IGNORED_IN_LISTS);
    if params.one("source")? == Some("workflow") {
        return workflow::dlq::list_for(&app, viewer, &params).await;
    }
    params.only(&DLQ_PARAMS)?;
    let (trim_body, filter, ids) = (params.trim_body()?, params.filter()?, params.dlq_ids()?);
    let page = params.page(DLQ_PAGE_MAX, DLQ_PAGE_MAX)?;
    let make = move |store: &dyn Store| {
        let Page { entries, next } = match ids {
            None => store.list_dead_letters(viewer.tenant, &filter, &page)?,
            Some(ids) => match load(store, viewer.tenant, named(store, viewer.tenant, &filter, ids)?.ids)? {
                Some(entries) => Page { entries, next: None },
                None => return Ok(Err(too_large())),
            },
        };
        let mut pieces = Pieces::default();
        pieces.raw("{\"messages\":");
        pieces.list(entries.iter().map(|record| shape::dead_letter(record, trim_body, &viewer)));
        if let Some(next) = next {
            pieces.raw(&format!(",\"cursor\":\"{next}\""));
        }
        pieces.raw("}");
        Ok(Ok(pieces.into()))
    };
    answer(&app, viewer.tenant, make).await
}

pub(super) async fn get(caller: Reader, State(app): State<Arc<App>>, id: PathId<DlqId>) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let dlq_id = id.or_absent(absent)?;
    let make = move |store: &dyn Store| match store.dead_letter(viewer.tenant, dlq_id)? {
        Some(record) => {
            let mut pieces = Pieces::default();
            pieces.object(shape::dead_letter(&record, None, &viewer));
            Ok(Ok(pieces.into()))
        }
        None => Ok(Err(absent(id.text()))),
    };
    answer(&app, viewer.tenant, make).await
}

pub(super) async fn delete(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    id: PathId<DlqId>,
    _: Unread,
) -> Result<Json<Deleted>, ApiError> {
    let dlq_id = id.or_absent(absent)?;
    match app.core.delete_dead_letters(tenant, vec![dlq_id]).await? {
        0 => Err(absent(id.text())),
        deleted => Ok(Json(Deleted { deleted: deleted as u64, cursor: None })),
    }
}

pub(super) async fn delete_many(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (params, _) = read_bulk(&app, tenant, request).await?;
    if is_async(&params)? {
        return begin_on_dead_letters(&app, tenant, &params, |range| Task::DlqDelete { range }).await;
    }
    let (ids, next) = match find_named(&app, tenant, &params).await? {
        Some(named) => (named.ids, None),
        None => {
            let page = page(&app, tenant, &params, Part::Head).await?;
            (page.entries.iter().map(|record| record.letter.dlq_id).collect(), page.next)
        }
    };
    let deleted = app.core.delete_dead_letters(tenant, ids).await? as u64;
    let cursor = next.map(|next| next.to_string());
    Ok(Json(Deleted { deleted, cursor }).into_response())
}

pub(super) async fn retry(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    id: PathId<DlqId>,
    request: Request,
) -> Result<(StatusCode, Json<Published>), ApiError> {
    let query = split_query(request.uri().query());
    refuse_when_disk_is_low(&app)?;
    let overrides = parse_overrides(&app, request.headers(), &query)?;
    let dlq_id = id.or_absent(absent)?;
    let terms = (&overrides, &expression_checks());
    let accepted = replay_one(&app, tenant, dlq_id, terms).await?.ok_or_else(|| absent(id.text()))?;
    Ok((StatusCode::CREATED, Json(published(accepted))))
}

pub(super) async fn retry_many(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let query = split_query(request.uri().query());
    let (params, headers) = read_bulk(&app, tenant, request).await?;
    refuse_when_disk_is_low(&app)?;
    let overrides = parse_overrides(&app, &headers, &query)?;
    if is_async(&params)? {
        let changes = stored_form(&headers, &query, &overrides);
        return begin_on_dead_letters(&app, tenant, &params, |range| Task::DlqRetry { range, changes }).await;
    }
    let checks = expression_checks();
    let terms = (&overrides, &checks);
    let (accepted, next) = match find_named(&app, tenant, &params).await? {
        Some(Named { missing, .. }) if !missing.is_empty() => return Err(absent(&missing[0])),
        Some(Named { ids, .. }) => {
            // One by one, so that their bodies are never all in RAM.
            let mut accepted = Vec::with_capacity(ids.len());
            for id in ids {
                accepted.push(replay_one(&app, tenant, id, terms).await?);
            }
            (accepted, None)
        }
        None => {
            let Page { entries, next } = page(&app, tenant, &params, Part::Whole).await?;
            let replays = replays(&app, tenant, &entries, terms)?;
            (replay_all(&app, tenant, replays).await?, next)
        }
    };
    let responses = accepted.into_iter().flatten().map(published).collect();
    let cursor = next.map(|next| next.to_string()).unwrap_or_default();
    Ok((StatusCode::CREATED, Json(Retried { responses, cursor })).into_response())
}

async fn replay_one(
    app: &Arc<App>,
    tenant: TenantId,
    dlq_id: DlqId,
    terms: (&PublishOptions, &RetryDelayChecks),
) -> Result<Option<Accepted>, ApiError> {
    let Some(record) = app.read(tenant, move |store| store.dead_letter(tenant, dlq_id)).await? else { return Ok(None) };
    let replays = replays(app, tenant, &[record], terms)?;
    Ok(replay_all(app, tenant, replays).await?.into_iter().flatten().next())
}

fn replays(
    app: &App,
    tenant: TenantId,
    records: &[DeadLetterRecord],
    terms: (&PublishOptions, &RetryDelayChecks),
) -> Result<Vec<Replay>, ApiError> {
    records.iter().map(|record| replay(app, tenant, record, terms)).collect()
}

async fn replay_all(app: &App, tenant: TenantId, replays: Vec<Replay>) -> Result<Vec<Option<Accepted>>, ApiError> {
    let bytes = stored_bytes(replays.iter().map(|replay| &replay.message));
    let mut room = Room { disk: Some(storing::admit(app, tenant, bytes)?), ..Room::default() };
    app.body_budget.take(tenant, bytes, &mut room).await.ok_or_else(body::no_room)?;
    let accepted = app.core.replay(tenant, replays, room).await?;
    let there: Vec<Accepted> = accepted.iter().copied().flatten().collect();
    app.duplicates.add(&there, app.clock.now());
    Ok(accepted)
}

fn absent(id: &str) -> ApiError {
    ApiError::not_found(format!("dead letter {id} not found"))
}

/// On what a bulk action is asked for, and with which headers.
async fn read_bulk(app: &Arc<App>, tenant: TenantId, request: Request) -> Result<(Params, HeaderMap), ApiError> {
    let SmallRequest { parts, body } = read_small(app, tenant, request).await?;
    let params = Params::from_query_and_body(parts.uri.query(), &body.bytes)?;
    params.only(&[&DLQ_PARAMS[..], &BULK_PARAMS].concat())?;
    Ok((params, parts.headers))
}

/// Whether to answer before it is done. Only then it can have a pace.
fn is_async(params: &Params) -> Result<bool, ApiError> {
    let is_async = params.boolean("async")?;
    match !is_async && params.has("rate") {
        true => Err(ApiError::invalid("rate requires async=true")),
        false => Ok(is_async),
    }
}

/// One page of what the filters select.
async fn page(app: &App, tenant: TenantId, params: &Params, part: Part) -> Result<Page<DeadLetterRecord>, ApiError> {
    let filter = params.filter()?;
    let request = PageRequest { part, ..params.page(DLQ_PAGE_MAX, DLQ_PAGE_MAX)? };
    Ok(app.read(tenant, move |store| store.list_dead_letters(tenant, &filter, &request)).await?)
}

/// Dead letters that were asked for by id.
struct Named {
    /// Those that exist and match the other filters.
    ids: Vec<DlqId>,
    /// Those that do not exist.
    missing: Vec<String>,
}

/// The dead letters that `dlqIds` names, if it does.
async fn find_named(app: &App, tenant: TenantId, params: &Params) -> Result<Option<Named>, ApiError> {
    let filter = params.filter()?;
    let Some(ids) = params.dlq_ids()? else { return Ok(None) };
    Ok(Some(app.read(tenant, move |store| named(store, tenant, &filter, ids)).await?))
}

/// Those of these dead letters that there are, without reading their bodies.
fn named(
    store: &dyn Store,
    tenant: TenantId,
    filter: &Filter,
    ids: Vec<Result<DlqId, String>>,
) -> Result<Named, StoreError> {
    let mut named = Named { ids: Vec::new(), missing: Vec::new() };
    for id in ids {
        let id = match id {
            Ok(id) => id,
            Err(text) => {
                named.missing.push(text);
                continue;
            }
        };
        let mut matches = None;
        // The one behind the position before it.
        let before = Position { at: id.at, n: id.n.saturating_sub(1) };
        let page = PageRequest::new(Some(before).filter(|before| *before < id), 1, Order::EarliestFirst);
        let at = Filter { from: Some(id.at), to: Some(id.at), ..Filter::default() };
        store.visit_dead_letters(tenant, &at, &page, &mut |letter, message| {
            if letter.dlq_id == id {
                matches = Some(filter.matches_dead_letter(letter, message));
            }
            ControlFlow::Break(())
        })?;
        match matches {
            Some(true) => named.ids.push(id),
            Some(false) => {}
            None => named.missing.push(id.to_string()),
        }
    }
    Ok(named)
}

/// The dead letters themselves, if they fit into a response.
fn load(store: &dyn Store, tenant: TenantId, ids: Vec<DlqId>) -> Result<Option<Vec<DeadLetterRecord>>, StoreError> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for id in ids {
        let Some(record) = store.dead_letter(tenant, id)? else { continue };
        bytes += record.message.body.len() + record.letter.body_bytes();
        if bytes > PAGE_BYTES_MAX && !entries.is_empty() {
            return Ok(None);
        }
        entries.push(record);
    }
    Ok(Some(entries))
}

fn too_large() -> ApiError {
    ApiError::invalid(format!(
        "dlqIds: these dead letters have more than {PAGE_BYTES_MAX} bytes; request fewer at once"
    ))
}

/// What the caller wants other than it was. The retry request's own Content-Type says nothing about
/// the message.
pub(super) fn parse_overrides(app: &App, headers: &HeaderMap, query: &QueryParts) -> Result<PublishOptions, ApiError> {
    let lines = headers.iter().filter(|(name, _)| name.as_str() != CONTENT_TYPE);
    let lines: Vec<(&str, &[u8])> = lines.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let lines = options::merge_query(lines.iter().copied(), &query.config);
    let overrides = options::parse(lines, &publish_limits(app), app.clock.now())?;
    match overrides.cron {
        Some(_) => Err(ApiError::invalid("Upstash-Cron: a dead letter cannot become a schedule; use /v2/schedules")),
        None => Ok(overrides),
    }
}

/// What a retry in the background keeps of its request: the settings, and the headers to send on by their own names. The
/// token is not among them.
fn stored_form(headers: &HeaderMap, query: &QueryParts, overrides: &PublishOptions) -> Vec<(String, String)> {
    let lines: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let is_kept = |name: &str| {
        let name = name.to_ascii_lowercase();
        let is_setting = name.starts_with(header::PREFIX) || name.eq_ignore_ascii_case(header::HOPS);
        let is_said_elsewhere = [header::FORWARD_PREFIX, header::TELEMETRY_PREFIX, header::HEADER_FORWARD];
        is_setting && !is_said_elsewhere.iter().any(|start| name.starts_with(start))
    };
    let settings = options::merge_query(lines.iter().copied(), &query.config).filter(|(name, _)| is_kept(name));
    let settings = settings.map(|(name, value)| (header::canonical(name), header_text(value).into_owned()));
    let forwarded = overrides.headers.iter();
    let forwarded =
        forwarded.map(|(name, value)| (header::canonical(&format!("{}{name}", header::FORWARD_PREFIX)), value.clone()));
    settings.chain(forwarded).collect()
}

/// What [`stored_form`] gave, as of now; the text says why it is refused.
pub(crate) fn stored_changes(
    app: &App,
    tenant: TenantId,
    lines: &[(String, String)],
) -> Result<PublishOptions, String> {
    let mut lines = lines.to_vec();
    app.core.credentials().open_all(tenant, &mut lines).map_err(|unreadable| unreadable.to_string())?;
    let lines: Vec<(&str, Cow<'_, [u8]>)> =
        lines.iter().map(|(name, value)| (name.as_str(), header_bytes(value))).collect();
    let lines = lines.iter().map(|(name, value)| (*name, value.as_ref()));
    options::parse(lines, &publish_limits(app), app.clock.now())
        .map_err(|rejection| ApiError::from(rejection).into_message())
}

/// The message to publish instead of a dead letter; the text says why there is none.
pub(crate) fn replay_of(
    app: &App,
    tenant: TenantId,
    record: &DeadLetterRecord,
    changes: &PublishOptions,
    checks: &RetryDelayChecks,
) -> Result<Replay, String> {
    replay(app, tenant, record, (changes, checks)).map_err(ApiError::into_message)
}

/// The message to publish instead of a dead letter: as it was, but for what is overridden.
fn replay(
    app: &App,
    tenant: TenantId,
    record: &DeadLetterRecord,
    (overrides, checks): (&PublishOptions, &RetryDelayChecks),
) -> Result<Replay, ApiError> {
    let mut spec = record.message.spec.clone();
    if let Some(method) = overrides.method {
        spec.method = method.to_owned();
    }
    spec.retries = overrides.retries.unwrap_or(spec.retries);
    if overrides.retry_delay.is_some() {
        spec.retry_delay.clone_from(&overrides.retry_delay);
    }
    overrides.check_retry_delay_by(checks, spec.retries)?;
    spec.timeout_ms = overrides.timeout_ms.or(spec.timeout_ms);
    if let Some(labels) = &overrides.labels {
        spec.labels.clone_from(labels);
    }
    if let Some(redact) = &overrides.redact {
        spec.redact.clone_from(redact);
    }
    spec.headers.retain(|(name, _)| !overrides.headers.iter().any(|(other, _)| other == name));
    spec.headers.extend(overrides.headers.iter().cloned());
    override_route(&mut spec, overrides);
    app.core.credentials().open_all(tenant, &mut spec)?;
    if spec.api.is_none() {
        app.config.egress.check_url(&spec.url).map_err(|refusal| refused_destination(app, &refusal))?;
    }
    check_callbacks(app, &spec)?;
    spec.cause = Some(Cause { id: record.message.id, kind: CauseKind::DlqRetry });
    spec.dedup = dedup_by(overrides);
    let body = record.message.body.clone();
    let dedup = overrides.dedup.as_ref().map(|dedup| match dedup {
        Dedup::Id(id) => dedup::key_of_id(id),
        Dedup::Content => dedup::key_of_content(&spec.url, &spec.headers, &body),
    });
    app.core.credentials().seal(tenant, &mut spec);
    let message = NewMessage {
        tenant,
        origin: origin_of(app, tenant, &spec.url),
        spec,
        body,
        first_due: first_due(overrides),
        dedup,
    };
    Ok(Replay { dlq_id: record.letter.dlq_id, message })
}

/// Overrides the queue, the flow control and the callbacks, each as a whole. The deliveries that led to the
/// message still did.
fn override_route(spec: &mut MessageSpec, overrides: &PublishOptions) {
    let PublishOptions { queue, callback, failure_callback, .. } = overrides;
    spec.hops = spec.hops.max(overrides.hops);
    if queue.is_some() {
        spec.queue.clone_from(queue);
    }
    if let Some(flow) = flow_spec(overrides) {
        spec.flow = Some(flow);
    }
    for (slot, callback) in [(&mut spec.callback, callback), (&mut spec.failure_callback, failure_callback)] {
        if let Some(callback) = callback {
            *slot = Some(Box::new(callback_spec(callback)));
        }
    }
}
