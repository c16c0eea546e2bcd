//! `POST /v2/trigger/{url}` and `POST /v2/batch/trigger`: runs started by programs that have no client of the protocol.

use super::publish::{Asked, bounds, check_failure_call, checked_url, start};
use super::translate::{self, Item};
use crate::api::auth::Writer;
use crate::api::batch;
use crate::api::body;
use crate::api::caller::caller_ip;
use crate::api::error::ApiError;
use crate::api::publish::{Line, expression_checks, refuse_when_disk_is_low, rest_of};
use crate::app::App;
use crate::core::{StartRun, Started};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use bytes::Bytes;
use posthaste_api_types::workflow::StartedRun;
use posthaste_engine::limits::{BATCH_BYTES_MAX, URL_BYTES_MAX};
use posthaste_wire::destination::{self, Destination};
use posthaste_wire::publish::merge_query;
use std::sync::Arc;

pub(in crate::api) async fn one(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Option<StartedRun>>, ApiError> {
    let (parts, body) = request.into_parts();
    refuse_when_disk_is_low(&app)?;
    let query = destination::split_query(parts.uri.query());
    let url = Destination::parse(rest_of(parts.uri.path()), query.destination.as_deref(), URL_BYTES_MAX)?;
    let max = app.config.message_bytes_max;
    let over = || ApiError::message_too_large(max);
    let body = body::read(&app, tenant, &parts.headers, body, max, over).await?;
    let lines: Vec<Line<'_>> = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let lines: Vec<Line<'_>> = merge_query(lines.iter().copied(), &query.config).collect();
    let caller_ip = caller_ip(&app, &parts);
    let run = triggered(&app, Asked { caller_ip: &caller_ip, checks: &expression_checks() }, url, &lines, body.bytes)?;
    let mut started = start(&app, tenant, vec![run], body.room).await?;
    Ok(Json(started.pop().as_ref().map(started_run)))
}

pub(in crate::api) async fn many(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<(StatusCode, Json<Vec<StartedRun>>), ApiError> {
    let (parts, body) = request.into_parts();
    refuse_when_disk_is_low(&app)?;
    let over = || ApiError::too_large(format!("the batch is larger than {BATCH_BYTES_MAX} bytes; split it"));
    let body = body::read(&app, tenant, &parts.headers, body, BATCH_BYTES_MAX, over).await?;
    let (reading, caller_ip, bytes, mut room) = (app.clone(), caller_ip(&app, &parts), body.bytes, body.room);
    let read = move |text: &[u8]| {
        let items = batch::split(text)?.into_iter().enumerate();
        let asked = Asked { caller_ip: &caller_ip, checks: &expression_checks() };
        let run = |(index, item): (usize, &serde_json::value::RawValue)| {
            read_item(&reading, asked, item.get()).map_err(|error| error.at(index))
        };
        items.map(run).collect::<Result<Vec<StartRun>, ApiError>>()
    };
    let runs = batch::taken_apart(&app, tenant, &mut room, bytes, read).await?;
    let started = start(&app, tenant, runs, room).await?;
    Ok((StatusCode::CREATED, Json(started.iter().map(started_run).collect())))
}

fn read_item(app: &App, asked: Asked<'_>, text: &str) -> Result<StartRun, ApiError> {
    let mut item = batch::read_item(text)?;
    let destination = item.destination.take().ok_or_else(|| ApiError::invalid("destination is missing"))?;
    let url = batch::destination(&destination)?;
    let body = item.take_any_body();
    let max = app.config.message_bytes_max;
    if body.len() > max {
        return Err(ApiError::message_too_large(max));
    }
    triggered(app, asked, url, &item.lines(), body)
}

fn triggered(
    app: &App,
    asked: Asked<'_>,
    url: Destination,
    lines: &[Line<'_>],
    body: Bytes,
) -> Result<StartRun, ApiError> {
    let url = checked_url(app, url)?;
    let run = translate::triggered(Item { url: &url, lines, body }, &bounds(app, asked))?;
    check_failure_call(app, run.config.failure.as_ref())?;
    Ok(run)
}

fn started_run(run: &Started) -> StartedRun {
    StartedRun { workflow_run_id: run.id.clone(), workflow_created_at: run.created_at, deduplicated: run.deduplicated }
}
