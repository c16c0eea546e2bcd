//! `/v2/schedules`: publishes that happen again and again. A publish with `Upstash-Cron` makes one too.

use super::auth::{Access, authorize};
use super::error::ApiError;
use super::publish::{Refusal, Sent, checked_spec, rest_of};
use super::shape;
use crate::app::App;
use crate::clock::random;
use crate::store::{MessageRecord, Store, StoreError};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use posthaste_engine::event;
use posthaste_engine::message::MessageSpec;
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget};
use posthaste_wire::destination::is_name;
use posthaste_wire::id::{MessageId, TenantId};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn list(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Read)?;
    let now = app.clock.now();
    let shaped = app.read(move |store| {
        let shape = |schedule: Schedule| Ok(shape::schedule(&schedule, &last_states(store, &schedule)?, now));
        store.schedules(tenant)?.into_iter().map(shape).collect::<Result<Vec<Value>, StoreError>>()
    });
    Ok(Json(shaped.await?.into()))
}

pub(super) async fn get(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Read)?;
    let id = id_of(&request);
    let (wanted, now) = (id.clone(), app.clock.now());
    let shaped = app.read(move |store| match store.schedule(tenant, &wanted)? {
        Some(schedule) => Ok(Some(shape::schedule(&schedule, &last_states(store, &schedule)?, now))),
        None => Ok(None),
    });
    Ok(Json(shaped.await?.ok_or_else(|| absent(&id))?))
}

/// Makes a schedule; or pauses or resumes one, which a path with an id and that word says.
pub(super) async fn post(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let tenant = authorize(&app, &parts.headers, &parts.uri, Access::Write)?;
    let destination = rest_of(parts.uri.path()).to_owned();
    if let Some((id, paused)) = switch_of(&destination) {
        return switch(&app, tenant, id, paused).await;
    }
    make(&app, Sent::read(&app, tenant, parts, body, &destination).await?).await
}

pub(super) async fn patch(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Write)?;
    let rest = rest_of(request.uri().path()).to_owned();
    match switch_of(&rest) {
        Some((id, paused)) => switch(&app, tenant, id, paused).await,
        None => Err(ApiError::not_found("no such endpoint; PATCH /v2/schedules/{id}/pause or .../resume")),
    }
}

pub(super) async fn delete(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Write)?;
    let id = id_of(&request);
    match app.core.drop_schedule(tenant, id.clone()).await? {
        true => Ok(Json(json!({}))),
        false => Err(absent(&id)),
    }
}

/// Makes a schedule of a publish, or replaces the one of the same id. Its messages are no duplicates of each
/// other and have no fixed time, so what was said about that is of no use and ignored; and the headers of the one
/// request that makes a schedule are none of its messages.
pub(super) async fn make(app: &App, sent: Sent) -> Result<Response, ApiError> {
    let Sent { publisher, places, mut options, body } = sent;
    options.headers = options.content_headers();
    let cron = options.cron.as_ref().ok_or_else(|| {
        ApiError::invalid("Upstash-Cron is missing: a schedule needs a cron expression, such as */5 * * * *")
    })?;
    let spec = checked_spec(app, &publisher, &places, &options).map_err(Refusal::into_error)?;
    let destination = places.target();
    let url = match &destination {
        ScheduleTarget::Url(url) => url.clone(),
        ScheduleTarget::Group(_) => String::new(),
    };
    let id = options.schedule_id.clone().unwrap_or_else(new_id);
    let plan = SchedulePlan {
        created_at: app.clock.now(),
        cron: cron.text().to_owned(),
        destination,
        delay_ms: options.delay_ms,
        // A schedule is a beginning of its own, whatever led to it.
        spec: MessageSpec { url, hops: 0, ..spec },
    };
    let state = ScheduleState::default();
    let schedule = Schedule { tenant: publisher.tenant, id: id.clone(), plan, body: body.bytes, state };
    app.core.put_schedule(schedule, body.room).await?;
    Ok((StatusCode::CREATED, Json(json!({ "scheduleId": id }))).into_response())
}

async fn switch(app: &App, tenant: TenantId, id: &str, paused: bool) -> Result<Response, ApiError> {
    match app.core.pause_schedule(tenant, id.to_owned(), paused).await? {
        true => Ok(Json(json!({})).into_response()),
        false => Err(absent(id)),
    }
}

/// Which schedule a path pauses (`true`) or resumes, if it does.
fn switch_of(rest: &str) -> Option<(&str, bool)> {
    let (id, action) = rest.strip_suffix('/').unwrap_or(rest).split_once('/')?;
    let paused = match action {
        "pause" => true,
        "resume" => false,
        _ => return None,
    };
    // `https:/pause` is a destination.
    is_name(id).then_some((id, paused))
}

/// The id that a path ends with, perhaps before a slash.
fn id_of(request: &Request) -> String {
    let rest = rest_of(request.uri().path());
    rest.strip_suffix('/').unwrap_or(rest).to_owned()
}

fn new_id() -> String {
    format!("scd_{}", bs58::encode(random::<20>()).into_string())
}

fn absent(id: &str) -> ApiError {
    ApiError::not_found(format!("schedule {id} not found"))
}

/// What became of the messages of the last firing, in the words of the protocol. Those whose history is over
/// are left out.
fn last_states(store: &dyn Store, schedule: &Schedule) -> Result<Vec<(MessageId, &'static str)>, StoreError> {
    let mut states = Vec::new();
    for id in &schedule.state.last_messages {
        if let Some(record) = store.message(schedule.tenant, *id)? {
            states.push((*id, state_name(&record)));
        }
    }
    Ok(states)
}

fn state_name(record: &MessageRecord) -> &'static str {
    match record.final_state {
        None => "IN_PROGRESS",
        Some(event::State::Delivered) => "SUCCESS",
        Some(_) => "FAIL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_pauses_only_what_can_be_an_id() {
        let cases = [
            ("daily/pause", Some(("daily", true))),
            ("daily/resume/", Some(("daily", false))),
            ("daily", None),
            ("daily/", None),
            ("daily/stop", None),
            ("daily/x/pause", None),
            ("/pause", None),
            ("https:/pause", None),
            ("https://example.com/pause", None),
            ("", None),
        ];
        for (rest, expected) in cases {
            assert_eq!(switch_of(rest), expected, "{rest}");
        }
    }
}
