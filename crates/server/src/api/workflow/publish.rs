//! Publishes and batches that are about runs.
//!
//! A batch is either plain messages, or runs to start, or entries of **one** run: any other mixture is refused with
//! 400, because it could not be one transaction. An invoke comes alone.

use super::protocol::Protocol;
use super::refused_append;
use super::translate::{self, Bounds, Item, Wanted};
use crate::api::batch;
use crate::api::body;
use crate::api::caller::caller_ip;
use crate::api::error::ApiError;
use crate::api::publish::{
    Line, expression_checks, publish_limits, refuse_when_disk_is_low, refused_destination, status_of,
};
use crate::api::storing;
use crate::app::App;
use crate::core::{CoreError, Room, RunKey, RunRefused, StartRun, Started, entry_bytes, fresh_run_id};
use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use posthaste_engine::limits::URL_BYTES_MAX;
use posthaste_engine::shard::Accepted;
use posthaste_engine::workflow::NewEntry;
use posthaste_engine::workflow::run::FailureCall;
use posthaste_wire::destination::{self, Destination};
use posthaste_wire::duration::Units;
use posthaste_wire::id::TenantId;
use posthaste_wire::publish::PublishLimits;
use posthaste_wire::retry_delay::RetryDelayChecks;
use serde_json::{Value, json};

/// `POST /v2/publish/{destination}` with the headers of a run.
pub(in crate::api) async fn publish(
    app: &App,
    tenant: TenantId,
    parts: Parts,
    body: Body,
    destination: &str,
) -> Result<Response, ApiError> {
    refuse_when_disk_is_low(app)?;
    let max = app.config.message_bytes_max;
    let over = || ApiError::message_too_large(max);
    let body = body::read(app, tenant, &parts.headers, body, max, over).await?;
    let query = destination::split_query(parts.uri.query());
    let own_query = query.destination.as_deref();
    let lines: Vec<Line<'_>> = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let read_url = || Destination::parse(destination, own_query, URL_BYTES_MAX).map_err(ApiError::from);
    let caller_ip = caller_ip(app, &parts);
    let wanted =
        read(app, Asked { caller_ip: &caller_ip, checks: &expression_checks() }, &lines, body.bytes, read_url)?;
    let (status, mut answers) = act(app, tenant, vec![wanted], body.room).await?;
    Ok((status, Json(answers.pop())).into_response())
}

/// Items of `POST /v2/batch` that are about runs, as [`read_item`] read them.
pub(in crate::api) async fn batch(
    app: &App,
    tenant: TenantId,
    wanted: Vec<Wanted>,
    room: Room,
) -> Result<Response, ApiError> {
    let (status, answers) = act(app, tenant, wanted, room).await?;
    Ok((status, Json(answers)).into_response())
}

/// The values that all items of a request share.
#[derive(Clone, Copy)]
pub(in crate::api) struct Asked<'a> {
    pub(in crate::api) caller_ip: &'a str,
    pub(in crate::api) checks: &'a RetryDelayChecks,
}

/// One item of a batch.
pub(in crate::api) fn read_item(
    app: &App,
    asked: Asked<'_>,
    lines: &[Line<'_>],
    destination: Option<&str>,
    body: Bytes,
) -> Result<Wanted, ApiError> {
    let max = app.config.message_bytes_max;
    if body.len() > max {
        return Err(ApiError::message_too_large(max));
    }
    read(app, asked, lines, body, || {
        let destination = destination.ok_or_else(|| ApiError::invalid("destination is missing"))?;
        batch::destination(destination)
    })
}

/// Reads a publish and checks where it may go.
fn read(
    app: &App,
    asked: Asked<'_>,
    lines: &[Line<'_>],
    body: Bytes,
    read_url: impl FnOnce() -> Result<Destination, ApiError>,
) -> Result<Wanted, ApiError> {
    let protocol = Protocol::read(lines)?;
    let wanted = || -> Result<Wanted, ApiError> {
        let url = if protocol.has_destination() { checked_url(app, read_url()?)? } else { String::new() };
        let wanted = translate::wanted(&protocol, Item { url: &url, lines, body }, &bounds(app, asked))?;
        let failure = match &wanted {
            Wanted::Start(run) => run.config.failure.as_ref(),
            Wanted::Append(_, entry) => entry.failure.as_ref(),
        };
        check_failure_call(app, failure)?;
        Ok(wanted)
    };
    wanted().map_err(|error| if protocol.is_within_a_run() { error.told_to_a_run() } else { error })
}

/// What the server allows, for who asks now.
pub(super) fn bounds<'a>(app: &App, Asked { caller_ip, checks }: Asked<'a>) -> Bounds<'a> {
    let quotas = &app.config.quotas;
    Bounds {
        limits: PublishLimits { delay_units: Units::Long, ..publish_limits(app) },
        retries_default: quotas.retries_default(),
        depth_max: quotas.workflow_depth,
        now: app.clock.now(),
        caller_ip,
        checks,
        fresh_id: &fresh_run_id,
    }
}

/// A URL that may be called.
pub(super) fn checked_url(app: &App, destination: Destination) -> Result<String, ApiError> {
    let Destination::Url(url) = destination else {
        return Err(ApiError::invalid("a workflow run needs a URL; URL groups and api/llm are not supported"));
    };
    app.config.egress.check_url(&url).map_err(|refusal| refused_destination(app, &refusal))?;
    Ok(url)
}

/// Refuses a failure callback that may not go where it is to go.
pub(super) fn check_failure_call(app: &App, failure: Option<&FailureCall>) -> Result<(), ApiError> {
    let Some(failure) = failure else { return Ok(()) };
    app.config.egress.check_url(&failure.url).map_err(|refusal| {
        let text = refused_destination(app, &refusal).into_message();
        ApiError::invalid(format!("Upstash-Failure-Callback: {text}"))
    })
}

/// Does what is wanted, all or nothing; answers in the order of the items.
async fn act(
    app: &App,
    tenant: TenantId,
    wanted: Vec<Wanted>,
    room: Room,
) -> Result<(StatusCode, Vec<Value>), ApiError> {
    match sorted(wanted)? {
        Sorted::Starts(runs) => {
            let started = start(app, tenant, runs, room).await?;
            let is_new = started.iter().any(|run| !run.deduplicated);
            let status = if is_new { StatusCode::OK } else { StatusCode::ACCEPTED };
            Ok((status, started.iter().map(started_json).collect()))
        }
        Sorted::Appends(run, entries) => {
            let accepted = append(app, tenant, run, entries, room).await?;
            Ok((status_of(&accepted), accepted.iter().map(appended_json).collect()))
        }
    }
}

/// What one transaction can do.
enum Sorted {
    Starts(Vec<StartRun>),
    Appends(RunKey, Vec<NewEntry>),
}

fn sorted(wanted: Vec<Wanted>) -> Result<Sorted, ApiError> {
    let (mut runs, mut entries, mut appended_to) = (Vec::new(), Vec::new(), None);
    for wanted in wanted {
        match wanted {
            Wanted::Start(run) => runs.push(*run),
            Wanted::Append(run, entry) => {
                if appended_to.get_or_insert_with(|| run.clone()) != &run {
                    return Err(ApiError::invalid("a batch can append to one workflow run only; split it"));
                }
                entries.push(*entry);
            }
        }
    }
    let invokes = runs.iter().filter(|run| run.invoked_by.is_some()).count();
    if invokes > 0 && runs.len() + entries.len() > 1 {
        return Err(ApiError::invalid("a batch cannot invoke a workflow run together with anything else"));
    }
    match appended_to {
        Some(_) if !runs.is_empty() => {
            Err(ApiError::invalid("a batch either starts workflow runs or appends to one; split it"))
        }
        Some(run) => Ok(Sorted::Appends(run, entries)),
        None => Ok(Sorted::Starts(runs)),
    }
}

/// Starts runs within the tenant's quota of the day.
pub(super) async fn start(
    app: &App,
    tenant: TenantId,
    mut runs: Vec<StartRun>,
    mut room: Room,
) -> Result<Vec<Started>, ApiError> {
    runs.iter_mut().for_each(|run| app.core.credentials().seal(tenant, run));
    let bytes = runs.iter().map(StartRun::stored_bytes).sum();
    room.disk = Some(storing::admit(app, tenant, bytes)?);
    let count = runs.len();
    let starting = app.core.start_runs(tenant, runs, room);
    let started = within_quota(app, tenant, count, starting, |run: &Started| !run.deduplicated).await?;
    let answers = started.iter().map(|run| Accepted { id: run.message_id, deduplicated: run.deduplicated });
    app.duplicates.add(&answers.collect::<Vec<_>>(), app.clock.now());
    Ok(started)
}

async fn append(
    app: &App,
    tenant: TenantId,
    run: RunKey,
    mut entries: Vec<NewEntry>,
    mut room: Room,
) -> Result<Vec<Accepted>, ApiError> {
    entries.iter_mut().for_each(|entry| app.core.credentials().seal(tenant, entry));
    let bytes = entries.iter().map(entry_bytes).sum();
    room.disk = Some(storing::admit(app, tenant, bytes)?);
    let count = entries.len();
    within_quota(app, tenant, count, app.core.append(tenant, run, entries, room), |it: &Accepted| !it.deduplicated)
        .await
}

/// Entries count as messages do: those that are not new, or were refused, do not.
async fn within_quota<T>(
    app: &App,
    tenant: TenantId,
    count: usize,
    storing: impl Future<Output = Result<Result<Vec<T>, RunRefused>, CoreError>>,
    is_new: impl Fn(&T) -> bool,
) -> Result<Vec<T>, ApiError> {
    let (count, now) = (count as u64, app.clock.now());
    app.allowances.messages.take(tenant, count, now).map_err(ApiError::daily_quota)?;
    let stored = storing.await;
    let new = match &stored {
        Ok(Ok(stored)) => stored.iter().filter(|it| is_new(it)).count() as u64,
        // It may have been stored just before.
        Err(CoreError::Stopped) => count,
        Ok(Err(_)) | Err(CoreError::Overloaded | CoreError::Late | CoreError::Quota(_) | CoreError::DiskLow) => 0,
    };
    app.allowances.messages.give_back(tenant, count.saturating_sub(new), now);
    stored?.map_err(refused_append)
}

fn started_json(run: &Started) -> Value {
    let mut answer = json!({
        "messageId": run.message_id.to_string(),
        "workflowRunId": run.id,
        "workflowCreatedAt": run.created_at.as_millis(),
    });
    if run.deduplicated {
        answer["deduplicated"] = true.into();
    }
    answer
}

fn appended_json(accepted: &Accepted) -> Value {
    match accepted.deduplicated {
        true => json!({ "messageId": accepted.id.to_string(), "deduplicated": true }),
        false => json!({ "messageId": accepted.id.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_engine::workflow::run::RunConfig;
    use posthaste_wire::time::Timestamp;

    fn entry() -> NewEntry {
        NewEntry::step(Bytes::new(), Vec::new(), Timestamp(0))
    }

    fn append(id: &str) -> Wanted {
        Wanted::Append(RunKey { id: id.to_owned(), created_at: None }, Box::new(entry()))
    }

    fn start(id: &str) -> Wanted {
        let (id, url) = (id.to_owned(), "http://a.example/".to_owned());
        let (config, first) = (RunConfig::default(), entry());
        let (dedup, is_by_client, invoked_by) = (None, false, None);
        Wanted::Start(Box::new(StartRun { id, url, config, first, dedup, is_by_client, invoked_by }))
    }

    #[test]
    fn a_batch_starts_runs_or_appends_to_one() {
        assert!(matches!(sorted(vec![start("a"), start("b")]), Ok(Sorted::Starts(runs)) if runs.len() == 2));
        let appends = sorted(vec![append("a"), append("a")]);
        assert!(matches!(appends, Ok(Sorted::Appends(run, entries)) if run.id == "a" && entries.len() == 2));
        let refused =
            [(vec![append("a"), append("b")], "one workflow run only"), (vec![start("a"), append("a")], "either")];
        for (wanted, text) in refused {
            let message = sorted(wanted).err().map(ApiError::into_message).unwrap_or_default();
            assert!(message.contains(text), "{message}");
        }
    }
}
