//! `/v2/workflows/runs`: fetch the entries of a run, end one, cancel many.

use super::protocol::created_at;
use super::{NOT_FOUND, checked_name, run_of};
use crate::api::auth::{Reader, Writer};
use crate::api::body::{self, SmallRequest, read_small};
use crate::api::error::ApiError;
use crate::api::params::{Params, decoded};
use crate::api::pieces::Pieces;
use crate::api::publish::{Line, refuse_when_disk_is_low};
use crate::api::response::answer;
use crate::api::storing;
use crate::app::App;
use crate::core::{RunKey, in_time};
use crate::data_dir::DiskPromise;
use crate::tenants::Scope;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use posthaste_api_types::Done;
use posthaste_api_types::message::Cancelled;
use posthaste_engine::limits::{BULK_CANCEL_COUNT_MAX, WORKFLOW_CANCEL_COUNT_DEFAULT};
use posthaste_engine::workflow::run::RunState;
use posthaste_engine::workflow::{Record, Workflow};
use posthaste_store::{RunFilter, Store, UrlFilter};
use posthaste_wire::id::{Seq, TenantId};
use std::sync::Arc;

/// What says which runs a bulk cancel means.
const SELECTORS: [&str; 11] = [
    "workflowRunIds",
    "workflowRunId",
    "workflowUrl",
    "label",
    "host",
    "path",
    "fromDate",
    "toDate",
    "callerIp",
    "callerIP",
    "flowControlKey",
];
/// What else it may be told.
const OTHERS: [&str; 2] = ["workflowUrlExactMatch", "count"];
/// Bytes of a result that is short.
const SHORT_RESULT_BYTES: usize = 16 * 1024;
/// Runs that one transaction cancels.
const PIECE: usize = 100;

/// The entries of a run that goes on, for a client whose delivery came without them. They are the originals, so of a run
/// that hides something only those get them who can also execute it.
pub(in crate::api) async fn get(
    Reader { tenant, scope }: Reader,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let run = key(request.uri(), request.headers())?;
    let make = move |store: &dyn Store| {
        let record = run_of(store, tenant, &run)?.filter(|record| record.workflow.run.state == RunState::Started);
        let Some(record) = record else { return Ok(Err(ApiError::not_found(NOT_FOUND))) };
        if scope == Scope::ReadOnly && hides_something(&record.workflow) {
            return Ok(Err(ApiError::read_only()));
        }
        Ok(Ok(written(record).into()))
    };
    answer(&app, tenant, make).await
}

/// Whether answers about a run, or about one of its steps, hide anything.
fn hides_something(workflow: &Workflow) -> bool {
    let Workflow { run, entries, waits, invokes, .. } = workflow;
    let of_entries = entries.iter().map(|entry| &entry.terms.redact);
    let of_waits = waits.iter().map(|wait| &wait.terms.redact);
    let of_invokes = invokes.iter().map(|invoke| &invoke.terms.redact);
    let mut all = std::iter::once(&run.config.redact).chain(of_entries).chain(of_waits).chain(of_invokes);
    all.any(|redact| !redact.is_none())
}

/// All entries as the endpoint gets them. They may have 100 MB, so they are encoded while they are sent.
fn written(record: Record) -> Pieces {
    let mut pieces = Pieces::default();
    pieces.raw("[");
    for (place, (entry, body)) in record.workflow.entries.iter().zip(record.bodies).enumerate() {
        let [before, after] = entry.encoded_around();
        pieces.raw(if place == 0 { "" } else { "," });
        pieces.raw(&before);
        pieces.base64(body);
        pieces.raw(&after);
    }
    pieces.raw("]");
    pieces
}

/// The function of a run has returned (`cancel=false`), or somebody cancels it.
pub(in crate::api) async fn end(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let run = key(&parts.uri, &parts.headers)?;
    if is_cancel(parts.uri.query())? {
        return match app.core.cancel_run(tenant, run).await? {
            true => Ok(Json(Cancelled { cancelled: 1, action_id: None }).into_response()),
            false => Err(ApiError::not_found(NOT_FOUND)),
        };
    }
    let max = app.config.message_bytes_max;
    let over = || ApiError::message_too_large(max);
    let body = body::read(&app, tenant, &parts.headers, body, max, over).await?;
    let result = result(&body.bytes);
    let _promise = result.as_ref().map(|result| room_for_result(&app, tenant, result.len())).transpose()?;
    app.core.finish_run(tenant, run, result).await?;
    Ok(Json(Done {}).into_response())
}

/// Room for what the function of a run returned. A short result needs room on the disk alone, so that a tenant
/// without room can still finish its runs.
fn room_for_result(app: &App, tenant: TenantId, bytes: usize) -> Result<DiskPromise, ApiError> {
    refuse_when_disk_is_low(app)?;
    match bytes <= SHORT_RESULT_BYTES {
        true => storing::promise(app, tenant, bytes),
        false => storing::admit(app, tenant, bytes),
    }
}

/// Cancels many.
pub(in crate::api) async fn cancel_many(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Cancelled>, ApiError> {
    let SmallRequest { parts, body } = read_small(&app, tenant, request).await?;
    let (filter, count) = cancel_of(&Params::from_query_and_body(parts.uri.query(), &body.bytes)?)?;
    if filter == RunFilter::default() {
        tracing::info!(tenant = tenant.0, count, "cancelling all workflow runs of the tenant");
    }
    let cancelled = cancel_matching(&app, tenant, filter, count).await?;
    Ok(Json(Cancelled { cancelled: cancelled as u64, action_id: None }))
}

/// The run that a path names; an id may hold slashes.
fn key(uri: &Uri, headers: &HeaderMap) -> Result<RunKey, ApiError> {
    let raw = uri.path().splitn(5, '/').nth(4).unwrap_or_default();
    let id = decoded(raw.strip_suffix('/').unwrap_or(raw))?;
    let lines: Vec<Line<'_>> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    Ok(RunKey { id: checked_name("the run id", &id)?, created_at: created_at(&lines) })
}

/// Whether a DELETE cancels: so it does unless it says otherwise.
pub(super) fn is_cancel(query: Option<&str>) -> Result<bool, ApiError> {
    let params = Params::from_query(query);
    if params.has("cancel") { params.boolean("cancel") } else { Ok(true) }
}

/// What the function of a run returned: its text, or nothing.
pub(super) fn result(body: &[u8]) -> Option<String> {
    (!body.is_empty()).then(|| String::from_utf8_lossy(body).into_owned())
}

/// Which runs a bulk cancel means, and how many of them at most.
pub(in crate::api) fn cancel_of(params: &Params) -> Result<(RunFilter, usize), ApiError> {
    params.selected_by(&SELECTORS, &OTHERS)?;
    let ids = params.many_or_whole("workflowRunIds")?;
    if !ids.is_empty() {
        return Ok((RunFilter { ids, ..RunFilter::default() }, usize::MAX));
    }
    let count = match params.number("count", 1)? {
        None => WORKFLOW_CANCEL_COUNT_DEFAULT,
        // More are the next request's: its answer says how many were cancelled.
        Some(count) => usize::try_from(count).unwrap_or(usize::MAX).min(BULK_CANCEL_COUNT_MAX),
    };
    let is_exact = params.boolean("workflowUrlExactMatch")?;
    let urls = params.urls("workflowUrl")?;
    if is_exact && urls.is_empty() {
        return Err(ApiError::invalid("workflowUrlExactMatch: workflowUrl is missing"));
    }
    let urls = urls.into_iter().map(if is_exact { UrlFilter::Exact } else { UrlFilter::Prefix }).collect();
    let filter = RunFilter {
        urls,
        ids: params.many_or_whole("workflowRunId")?,
        hosts: params.many(&["host"])?,
        paths: params.many(&["path"])?,
        labels: params.many(&["label"])?,
        flow_keys: params.many(&["flowControlKey"])?,
        caller_ips: params.many(&["callerIp", "callerIP"])?,
        from: params.date("fromDate")?,
        to: params.date("toDate")?,
        ..RunFilter::default()
    };
    Ok((filter, count))
}

/// Cancels what matches and was created before now, a piece at a time: others go on meanwhile.
async fn cancel_matching(app: &Arc<App>, tenant: TenantId, filter: RunFilter, count: usize) -> Result<usize, ApiError> {
    let until = app.look_up(|store| store.last_seq()).await?;
    let filter = Arc::new(filter);
    let (mut cancelled, mut after) = (0, Seq::MIN);
    while cancelled < count {
        let (wanted, max) = (filter.clone(), PIECE.min(count - cancelled));
        let mut runs = app.read(tenant, move |store| store.match_runs(tenant, &wanted, after, max)).await?;
        runs.retain(|run| *run <= until);
        let Some(last) = runs.last() else { break };
        let is_first = after == Seq::MIN;
        after = *last;
        // The first piece may be refused: then nothing was cancelled.
        cancelled += match is_first {
            true => app.core.cancel_runs(tenant, runs).await?,
            false => {
                in_time(&app.core, |core| {
                    let runs = runs.clone();
                    async move { core.cancel_runs(tenant, runs).await }
                })
                .await?
            }
        } as usize;
    }
    Ok(cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_named_by_the_rest_of_the_path() {
        for (uri, id) in [
            ("/v2/workflows/runs/wfr_1?cancel=false", "wfr_1"),
            ("/v2/workflows/runs/wfr_1/", "wfr_1"),
            ("/v2/workflows/runs/a/b%20c", "a/b c"),
        ] {
            assert_eq!(key(&uri.parse().unwrap(), &HeaderMap::new()).unwrap().id, id, "{uri}");
        }
        assert!(key(&"/v2/workflows/runs/".parse().unwrap(), &HeaderMap::new()).is_err());
    }

    #[test]
    fn a_cancel_never_means_more_than_it_says() {
        let cases = [
            ("workflowRunIds=", "workflowRunIds is empty"),
            ("workflowUrl=", "workflowUrl is empty"),
            ("workflowUrlExactMatch=true", "workflowUrl is missing"),
            ("workflowURL=http://a", "unknown parameter workflowURL"),
            ("count=0", "count must be"),
            ("count=100&foo=1", "unknown parameter foo"),
            ("fromDate=yesterday", "fromDate must be"),
        ];
        for (query, text) in cases {
            let message = cancel_of(&Params::from_query(Some(query))).err().map(ApiError::into_message);
            assert!(message.as_ref().is_some_and(|message| message.contains(text)), "{query}: {message:?}");
        }
        let (filter, count) = cancel_of(&Params::from_query(Some("workflowRunId=wfr_1&label=a&later=1"))).unwrap();
        assert_eq!((filter.ids, filter.labels, count), (vec!["wfr_1".into()], vec!["a".into()], 100));
        let (filter, count) = cancel_of(&Params::from_query(Some("count=1000&workflowUrl=http://a,http://b"))).unwrap();
        let prefixes = ["http://a", "http://b", "http://a,http://b"].map(|start| UrlFilter::Prefix(start.to_owned()));
        assert_eq!((filter.urls, count), (prefixes.to_vec(), BULK_CANCEL_COUNT_MAX));
        let bodies = [
            (&br#"{"workflowRunIds":[]}"#[..], "workflowRunIds is an empty list"),
            (br#"{"workflowRunIds":null}"#, "every filter is null"),
            (b"[]", "not a JSON object"),
        ];
        for (body, text) in bodies {
            let params = Params::from_query_and_body(None, body);
            let message = params.and_then(|params| cancel_of(&params)).err().map(ApiError::into_message);
            assert!(message.as_ref().is_some_and(|message| message.contains(text)), "{message:?}");
        }
    }
}
