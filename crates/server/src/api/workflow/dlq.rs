//! `/v2/workflows/dlq`: look at failed runs, drop them, begin them again, tell of them again.

use super::selection;
use super::shape::{self, View};
use crate::api::auth::{Reader, Writer};
use crate::api::body::{SmallRequest, Unread, read_small};
use crate::api::dlq::parse_overrides;
use crate::api::error::ApiError;
use crate::api::params::Params;
use crate::api::path::PathId;
use crate::api::pieces::Pieces;
use crate::api::publish::{flow_spec, refuse_when_disk_is_low, refused_destination};
use crate::api::response::answer;
use crate::api::viewer::Viewer;
use crate::app::App;
use crate::core::{Again, BegunAgain, CoreError, FailureCallEdit, FailureCallRefused, RunKey, Started};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use posthaste_api_types::Done;
use posthaste_api_types::message::Deleted;
use posthaste_api_types::workflow::{BegunRun, BegunRuns};
use posthaste_engine::limits::{DLQ_PAGE_MAX, PAGE_BYTES_MAX, RETRIES_DEFAULT, RUNS_AGAIN_MAX};
use posthaste_engine::workflow::Overrides;
use posthaste_engine::workflow::run::FailureCall;
use posthaste_store::{FailedRun, Page, ReadPool, Store, StoreError};
use posthaste_wire::destination::{is_name, split_query};
use posthaste_wire::id::{DlqId, Position, TenantId};
use posthaste_wire::publish::CallbackOptions;
use std::sync::Arc;

/// What says which failed runs are deleted, resumed or restarted.
const SELECTORS: [&str; 16] = [
    "dlqIds",
    "fromDate",
    "toDate",
    "url",
    "workflowUrl",
    "workflowRunId",
    "workflowCreatedAt",
    "label",
    "host",
    "path",
    "responseStatus",
    "callerIp",
    "callerIP",
    "flowControlKey",
    "failureFunctionState",
    "failureCallbackState",
];
/// What else these may be told.
const OTHERS: [&str; 3] = ["cursor", "count", "source"];

/// What tells an endpoint that a delivery is about the failure of a run.
const FAILURE_HEADERS: [&str; 2] = ["Upstash-Workflow-Is-Failure", "Upstash-Workflow-Failure-Callback"];

pub(in crate::api) async fn list(caller: Reader, State(app): State<Arc<App>>, uri: Uri) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    list_for(&app, viewer, &Params::from_query(uri.query())).await
}

/// One page of failed runs, also for those who ask the DLQ of messages.
pub(in crate::api) async fn list_for(app: &App, viewer: Viewer, params: &Params) -> Result<Response, ApiError> {
    let view = View { trim_body: params.trim_body()?, now: app.clock.now(), viewer };
    let (named, filter) = (named(params)?, selection::of_dlq(params)?);
    let page = params.page(DLQ_PAGE_MAX, DLQ_PAGE_MAX)?;
    let make = move |store: &dyn Store| {
        let Page { entries, next } = match named {
            Some(Named { ids, .. }) => match load(store, viewer.tenant, &ids)? {
                Some(entries) => Page { entries, next: None },
                None => return Ok(Err(too_large())),
            },
            None => store.list_failed_runs(viewer.tenant, &filter, &page)?,
        };
        let mut pieces = Pieces::default();
        pieces.raw("{\"messages\":");
        pieces.list(entries.iter().filter_map(|run| shape::failed_run(run, view)));
        if let Some(next) = next {
            pieces.raw(&format!(",\"cursor\":\"{next}\""));
        }
        pieces.raw("}");
        Ok(Ok(pieces.into()))
    };
    answer(app, viewer.tenant, make).await
}

fn too_large() -> ApiError {
    let text = "dlqIds: these failed runs have more than";
    ApiError::invalid(format!("{text} {PAGE_BYTES_MAX} bytes; request fewer at once"))
}

pub(in crate::api) async fn get(
    caller: Reader,
    State(app): State<Arc<App>>,
    id: PathId<DlqId>,
) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let dlq_id = id.or_absent(absent)?;
    let view = View { trim_body: None, now: app.clock.now(), viewer };
    let make = move |store: &dyn Store| {
        let failed = store.failed_run(viewer.tenant, dlq_id)?;
        let Some(shaped) = failed.and_then(|run| shape::failed_run(&run, view)) else {
            return Ok(Err(absent(id.text())));
        };
        let mut pieces = Pieces::default();
        pieces.object(shaped);
        Ok(Ok(pieces.into()))
    };
    answer(&app, viewer.tenant, make).await
}

pub(in crate::api) async fn delete(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    id: PathId<DlqId>,
    _: Unread,
) -> Result<Json<Deleted>, ApiError> {
    let dlq_id = id.or_absent(absent)?;
    match app.core.drop_failed_runs(tenant, vec![dlq_id]).await? {
        0 => Err(absent(id.text())),
        deleted => Ok(Json(Deleted { deleted: deleted as u64, cursor: None })),
    }
}

pub(in crate::api) async fn delete_many(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Deleted>, ApiError> {
    let (params, ..) = read_selection(&app, tenant, request).await?;
    let (ids, next) = match named(&params)? {
        Some(Named { ids, .. }) => (ids, None),
        None => ids_of(page(&app, tenant, &params, DLQ_PAGE_MAX).await?),
    };
    let deleted = app.core.drop_failed_runs(tenant, ids).await?;
    Ok(Json(Deleted { deleted: deleted as u64, cursor: next.map(|next| next.to_string()) }))
}

pub(in crate::api) async fn resume(
    caller: Writer,
    State(app): State<Arc<App>>,
    id: PathId<DlqId>,
    request: Request,
) -> Result<Json<BegunRun>, ApiError> {
    begin_one(&app, caller, &id, request, Again::Resume).await
}

pub(in crate::api) async fn restart(
    caller: Writer,
    State(app): State<Arc<App>>,
    id: PathId<DlqId>,
    request: Request,
) -> Result<Json<BegunRun>, ApiError> {
    begin_one(&app, caller, &id, request, Again::Restart).await
}

pub(in crate::api) async fn resume_many(
    caller: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<BegunRuns>, ApiError> {
    begin_many(&app, caller, request, Again::Resume).await
}

pub(in crate::api) async fn restart_many(
    caller: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<BegunRuns>, ApiError> {
    begin_many(&app, caller, request, Again::Restart).await
}

/// Tells of a failure once more.
pub(in crate::api) async fn retry_callback(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    id: PathId<DlqId>,
    _: Unread,
) -> Result<Json<BegunRun>, ApiError> {
    let run = edit_callback(&app, tenant, &id, FailureCallEdit::Retry).await?;
    Ok(Json(BegunRun { workflow_run_id: run.id, workflow_created_at: run.created_at }))
}

/// Stops telling of a failure. The documented status is 302, although it leads nowhere.
pub(in crate::api) async fn cancel_callback(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    id: PathId<DlqId>,
    _: Unread,
) -> Result<(StatusCode, Json<Done>), ApiError> {
    edit_callback(&app, tenant, &id, FailureCallEdit::Cancel).await?;
    Ok((StatusCode::FOUND, Json(Done {})))
}

async fn edit_callback(
    app: &App,
    tenant: TenantId,
    id: &PathId<DlqId>,
    edit: FailureCallEdit,
) -> Result<RunKey, ApiError> {
    let dlq_id = id.or_absent(absent)?;
    match app.core.edit_failure_call(tenant, dlq_id, edit).await? {
        Ok(run) => Ok(run),
        Err(FailureCallRefused::Unknown) => Err(absent(id.text())),
        Err(refused @ FailureCallRefused::State) => Err(ApiError::invalid(refused.to_string())),
    }
}

async fn begin_one(
    app: &Arc<App>,
    Writer { tenant }: Writer,
    id: &PathId<DlqId>,
    request: Request,
    again: Again,
) -> Result<Json<BegunRun>, ApiError> {
    refuse_when_disk_is_low(app)?;
    let overrides = overrides(app, request.headers(), request.uri())?;
    drop(request);
    let dlq_id = id.or_absent(absent)?;
    let begun = app.core.begin_again(tenant, vec![dlq_id], again, overrides).await?;
    match (begun.begun.into_iter().flatten().next(), begun.stopped) {
        (Some(run), _) => Ok(Json(begun_run(&run))),
        (None, Some(no_room)) => Err(CoreError::from(no_room).into()),
        (None, None) => Err(missing(app, tenant, dlq_id).await?),
    }
}

async fn begin_many(
    app: &Arc<App>,
    Writer { tenant }: Writer,
    request: Request,
    again: Again,
) -> Result<Json<BegunRuns>, ApiError> {
    let (params, headers, uri) = read_selection(app, tenant, request).await?;
    refuse_when_disk_is_low(app)?;
    let overrides = overrides(app, &headers, &uri)?;
    let (ids, next) = match named(&params)? {
        Some(Named { unknown: Some(text), .. }) => return Err(absent(&text)),
        Some(Named { ids, .. }) if ids.len() > RUNS_AGAIN_MAX => {
            let text = format!(
                "dlqIds has {} ids; at most {RUNS_AGAIN_MAX} runs can be resumed or restarted at once",
                ids.len()
            );
            return Err(ApiError::invalid(text));
        }
        Some(Named { ids, .. }) => (all_present(app, tenant, ids).await?, None),
        None => ids_of(page(app, tenant, &params, RUNS_AGAIN_MAX).await?),
    };
    let asked = ids.len();
    let BegunAgain { begun, stopped } = app.core.begin_again(tenant, ids, again, overrides).await?;
    let workflow_runs: Vec<BegunRun> = begun.iter().flatten().map(begun_run).collect();
    match stopped {
        None => {
            let cursor = next.map(|next| next.to_string());
            Ok(Json(BegunRuns { workflow_runs, cursor, error: None }))
        }
        Some(no_room) if workflow_runs.is_empty() => Err(CoreError::from(no_room).into()),
        // Without a cursor: those behind it are not the next ones.
        Some(no_room) => {
            let rest = asked - begun.len();
            let error =
                format!("{no_room}; {} of {asked} runs were started, {rest} stay in the DLQ", workflow_runs.len());
            Ok(Json(BegunRuns { workflow_runs, cursor: None, error: Some(error) }))
        }
    }
}

fn begun_run(run: &Started) -> BegunRun {
    BegunRun { workflow_run_id: run.id.clone(), workflow_created_at: Some(run.created_at) }
}

/// The same ids, if each names a failed run: otherwise nothing begins.
async fn all_present(app: &Arc<App>, tenant: TenantId, ids: Vec<DlqId>) -> Result<Vec<DlqId>, ApiError> {
    let asked = ids.clone();
    let look = move |store: &dyn Store| {
        for id in asked {
            if store.find_failed_run(tenant, id, ReadPool::Queries)?.is_none() {
                return Ok(Some(id));
            }
        }
        Ok(None)
    };
    match app.read(tenant, look).await? {
        Some(id) => Err(missing(app, tenant, id).await?),
        None => Ok(ids),
    }
}

/// Why nothing begins again: there is no such failed run, and it may be a message that has failed.
async fn missing(app: &Arc<App>, tenant: TenantId, id: DlqId) -> Result<ApiError, ApiError> {
    let messages = app.look_up(move |store| store.find_dead_letters(tenant, &[id])).await?;
    Ok(match messages.is_empty() {
        true => absent(&id.to_string()),
        false => ApiError::invalid(format!("{id} is a message, not a workflow run; retry it with /v2/dlq/retry")),
    })
}

fn absent(id: &str) -> ApiError {
    ApiError::not_found(format!("failed run {id} not found"))
}

/// On which failed runs an action is asked for, and with what.
async fn read_selection(
    app: &Arc<App>,
    tenant: TenantId,
    request: Request,
) -> Result<(Params, HeaderMap, Uri), ApiError> {
    let SmallRequest { parts, body } = read_small(app, tenant, request).await?;
    let params = Params::from_query_and_body(parts.uri.query(), &body.bytes)?;
    params.selected_by(&SELECTORS, &OTHERS)?;
    Ok((params, parts.headers, parts.uri))
}

/// One page of what the filters select.
async fn page(app: &Arc<App>, tenant: TenantId, params: &Params, max: usize) -> Result<Page<FailedRun>, ApiError> {
    let filter = selection::of_dlq(params)?;
    let request = params.page(max, max)?;
    Ok(app.read(tenant, move |store| store.list_failed_runs(tenant, &filter, &request)).await?)
}

fn ids_of(page: Page<FailedRun>) -> (Vec<DlqId>, Option<Position>) {
    let ids = page.entries.iter().filter_map(|failed| Some(failed.run.failure.as_ref()?.dlq_id));
    (ids.collect(), page.next)
}

/// Failed runs that were asked for by id.
struct Named {
    /// Each once.
    ids: Vec<DlqId>,
    /// Something that cannot be the id of one.
    unknown: Option<String>,
}

/// The failed runs that `dlqIds` names, if it does. They win over all filters.
fn named(params: &Params) -> Result<Option<Named>, ApiError> {
    let Some(asked) = params.dlq_ids()? else { return Ok(None) };
    let mut named = Named { ids: Vec::new(), unknown: None };
    for id in asked {
        match id {
            Ok(id) if named.ids.contains(&id) => {}
            Ok(id) => named.ids.push(id),
            Err(text) => named.unknown = Some(text),
        }
    }
    Ok(Some(named))
}

/// Those of these failed runs that there are; `None` if they are too large for one answer.
fn load(store: &dyn Store, tenant: TenantId, ids: &[DlqId]) -> Result<Option<Vec<FailedRun>>, StoreError> {
    let (mut runs, mut bytes) = (Vec::new(), 0);
    for id in ids {
        let Some(run) = store.failed_run(tenant, *id)? else { continue };
        bytes += run.bytes();
        if bytes > PAGE_BYTES_MAX && !runs.is_empty() {
            return Ok(None);
        }
        runs.push(run);
    }
    Ok(Some(runs))
}

/// What is chosen anew for the runs that begin again.
fn overrides(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<Overrides, ApiError> {
    let options = parse_overrides(app, headers, &split_query(uri.query()))?;
    options.check_retry_delay(options.retries.unwrap_or(RETRIES_DEFAULT))?;
    let labels = options.labels.iter().flatten().map(|label| ("Upstash-Label", label));
    let key = options.flow_control_key.iter().map(|key| ("Upstash-Flow-Control-Key", key));
    if let Some((header, text)) = labels.chain(key).find(|(_, text)| !is_name(text)) {
        let text = format!("{header}: {text} can contain only letters, digits, hyphens, underscores and periods");
        return Err(ApiError::invalid(text));
    }
    if let Some(call) = &options.failure_callback {
        let refused =
            |refusal| format!("Upstash-Failure-Callback: {}", refused_destination(app, &refusal).into_message());
        app.config.egress.check_url(&call.url).map_err(|refusal| ApiError::invalid(refused(refusal)))?;
    }
    let now = app.clock.now();
    let delay_ms = options.not_before.map(|time| time.millis_since(now)).or(options.delay_ms).unwrap_or(0);
    Ok(Overrides {
        flow: flow_spec(&options),
        failure: options.failure_callback.as_ref().map(failure_call),
        retries: options.retries,
        retry_delay: options.retry_delay,
        labels: options.labels,
        delay_ms,
    })
}

/// Who hears of a failure: an endpoint that can tell such a delivery from others.
fn failure_call(callback: &CallbackOptions) -> FailureCall {
    let options = &callback.options;
    let mut headers = options.headers.clone();
    for name in FAILURE_HEADERS {
        if !headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
            headers.push((name.to_owned(), "true".to_owned()));
        }
    }
    FailureCall {
        url: callback.url.clone(),
        headers,
        retries: options.retries,
        retry_delay: options.retry_delay.clone(),
        flow: flow_spec(options),
        redact: options.redact.clone().unwrap_or_default(),
    }
}
