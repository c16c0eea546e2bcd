//! `/v2/schedules`: publishes that happen again and again. A publish with `Upstash-Cron` makes one too.

use super::auth::{Reader, Writer};
use super::body::{SmallRequest, Unread, read_small};
use super::error::ApiError;
use super::params::Params;
use super::pieces::Pieces;
use super::publish::{
    ANSWER_BYTES, CRON, Refusal, Sent, checked_spec, expression_checks, refuse_when_disk_is_low, rest_of, store,
};
use super::response::{Answer, answer, room_before_storing, stored};
use super::shape::Shaped;
use super::{cron, shape, storing};
use crate::app::App;
use crate::clock::random;
use crate::core::{Room, messages_of, spec_bytes};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use posthaste_api_types::Done;
use posthaste_api_types::schedule::{self as types, FiredMessage, ScheduleId, ScheduleMessageState, ScheduleRun};
use posthaste_engine::event;
use posthaste_engine::message::MessageSpec;
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget};
use posthaste_engine::shard::Accepted;
use posthaste_store::{ListedSchedule, MessageRecord, Names, Part, Store, StoreError};
use posthaste_wire::destination::is_name;
use posthaste_wire::header;
use posthaste_wire::id::{MessageId, TenantId};
use std::sync::Arc;

/// A bare list, as the SDKs read it; a header says where the next page begins.
pub(super) async fn list(caller: Reader, State(app): State<Arc<App>>, params: Params) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let (trim, page, now) = (params.trim_body()?, params.name_page()?, app.clock.now());
    let make = move |store: &dyn Store| {
        let Names { entries, next } = store.schedules(viewer.tenant, &page)?;
        let mut pieces = Pieces::default();
        let shape = |listed: ListedSchedule| -> Result<Shaped<types::Schedule>, StoreError> {
            let states = last_states(store, &listed.schedule)?;
            let mut shaped = shape::schedule(&listed.schedule, &states, trim, now, &viewer);
            if listed.is_without_body() && page.part == Part::Whole {
                shaped.object.body_omitted = true;
                shaped.object.body_bytes = Some(listed.body_bytes as u64);
            }
            Ok(shaped)
        };
        pieces.list(entries.into_iter().map(shape).collect::<Result<Vec<_>, _>>()?);
        Ok(Ok(Answer { json: pieces.finish(), cursor: next }))
    };
    answer(&app, viewer.tenant, make).await
}

pub(super) async fn get(
    caller: Reader,
    State(app): State<Arc<App>>,
    uri: Uri,
    params: Params,
) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let id = id_of(&uri);
    let trim = params.trim_body()?;
    let now = app.clock.now();
    let make = move |store: &dyn Store| {
        let Some(schedule) = store.schedule(viewer.tenant, &id, Part::Whole)? else { return Ok(Err(absent(&id))) };
        let mut pieces = Pieces::default();
        pieces.object(shape::schedule(&schedule, &last_states(store, &schedule)?, trim, now, &viewer));
        Ok(Ok(pieces.into()))
    };
    answer(&app, viewer.tenant, make).await
}

/// Makes a schedule; or pauses, resumes or runs one, which a path with an id and that word says.
pub(super) async fn post(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let destination = rest_of(parts.uri.path()).to_owned();
    match action_of(&destination) {
        Some((id, Action::Switch { paused })) => return switch(&app, tenant, id, paused).await,
        Some((id, Action::Run)) => return run(&app, tenant, id).await,
        None => {}
    }
    make(&app, Sent::read(&app, tenant, parts, body, &destination).await?).await
}

/// Pauses or resumes a schedule; or gives it another expression, and keeps everything else.
pub(super) async fn patch(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let rest = id_of(request.uri());
    if is_name(&rest) {
        return reschedule(&app, tenant, request, rest).await;
    }
    match action_of(&rest) {
        Some((id, Action::Switch { paused })) => switch(&app, tenant, id, paused).await,
        Some((_, Action::Run)) | None => {
            Err(ApiError::not_found("no such endpoint; PATCH /v2/schedules/{id}, .../pause or .../resume"))
        }
    }
}

async fn reschedule(app: &Arc<App>, tenant: TenantId, request: Request, id: String) -> Result<Response, ApiError> {
    let SmallRequest { parts, body } = read_small(app, tenant, request).await?;
    let mut names = parts.headers.keys().map(HeaderName::as_str);
    if names.any(|name| name.starts_with(header::PREFIX) && name != CRON) || !body.bytes.is_empty() {
        let text =
            "only Upstash-Cron can be changed; to change other settings, create the schedule again with the same id";
        return Err(ApiError::invalid(text));
    }
    let mut given = parts.headers.get_all(CRON).iter();
    let (Some(expression), None) = (given.next(), given.next()) else { return Err(no_cron()) };
    match app.core.reschedule(tenant, id.clone(), cron::read(app, expression.as_bytes())?).await? {
        true => Ok(Json(ScheduleId { schedule_id: id }).into_response()),
        false => Err(absent(&id)),
    }
}

/// Publishes what a firing would publish, once and at once. The schedule itself stays as it is.
async fn run(app: &Arc<App>, tenant: TenantId, id: &str) -> Result<Response, ApiError> {
    refuse_when_disk_is_low(app)?;
    let wanted = id.to_owned();
    let found = app.read(tenant, move |store| match store.schedule(tenant, &wanted, Part::Whole)? {
        Some(schedule) => {
            let group = match &schedule.plan.destination {
                ScheduleTarget::Url(_) => None,
                ScheduleTarget::Group(name) => store.url_group(tenant, name)?,
            };
            Ok(Some(messages_of(&schedule, group.as_ref())))
        }
        None => Ok(None),
    });
    let mut messages = found.await?.ok_or_else(|| absent(id))?.map_err(ApiError::not_found)?;
    for message in &mut messages {
        message.spec.by_hand = true;
    }
    // The messages of a group share the bytes of one body.
    let bytes = messages.first().map_or(0, |message| message.body.len());
    let mut room = Room::default();
    let taken = app.body_budget.take(tenant, bytes, &mut room).await;
    taken.ok_or_else(|| ApiError::overloaded("too many bytes are waiting to be stored; try again later"))?;
    let urls: Vec<String> = messages.iter().map(|message| shape::url_of(&message.spec).into_owned()).collect();
    let bytes = urls.iter().map(|url| url.len() + ANSWER_BYTES).sum();
    let answer_room = room_before_storing(app, tenant, bytes, &mut room.waited).await?;
    let accepted = store(app, tenant, messages, room).await?;
    let made = |(accepted, url): (&Accepted, String)| FiredMessage { message_id: accepted.id.to_string(), url };
    let messages = accepted.iter().zip(urls).map(made).collect();
    let made = ScheduleRun { schedule_id: id.to_owned(), messages };
    Ok(stored(StatusCode::CREATED, made, answer_room).await)
}

pub(super) async fn delete(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    uri: Uri,
    _: Unread,
) -> Result<Json<Done>, ApiError> {
    let id = id_of(&uri);
    match app.core.drop_schedule(tenant, id.clone()).await? {
        true => Ok(Json(Done {})),
        false => Err(absent(&id)),
    }
}

/// Makes a schedule of a publish, or replaces the one of the same id. Its messages are no duplicates of each
/// other and have no fixed time, so what was said about that is of no use and ignored; and the headers of the one
/// request that makes a schedule are none of its messages.
pub(super) async fn make(app: &App, sent: Sent) -> Result<Response, ApiError> {
    let Sent { publisher, places, mut options, body } = sent;
    options.headers = options.content_headers();
    let cron = options.cron.as_ref().ok_or_else(no_cron)?;
    let spec = checked_spec(app, &publisher, &places, &options, &expression_checks()).map_err(Refusal::into_error)?;
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
    let mut room = body.room;
    room.disk = Some(storing::admit(app, publisher.tenant, body.bytes.len() + spec_bytes(&plan.spec))?);
    let state = ScheduleState::default();
    let schedule = Schedule { tenant: publisher.tenant, id: id.clone(), plan, body: body.bytes, state };
    app.core.put_schedule(schedule, room).await?;
    Ok((StatusCode::CREATED, Json(ScheduleId { schedule_id: id })).into_response())
}

async fn switch(app: &App, tenant: TenantId, id: &str, paused: bool) -> Result<Response, ApiError> {
    match app.core.pause_schedule(tenant, id.to_owned(), paused).await? {
        true => Ok(Json(Done {}).into_response()),
        false => Err(absent(id)),
    }
}

/// What a path asks of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Switch { paused: bool },
    Run,
}

/// Which schedule a path is about and what it asks, if it does.
fn action_of(rest: &str) -> Option<(&str, Action)> {
    let (id, action) = rest.strip_suffix('/').unwrap_or(rest).split_once('/')?;
    let action = match action {
        "pause" => Action::Switch { paused: true },
        "resume" => Action::Switch { paused: false },
        "run" => Action::Run,
        _ => return None,
    };
    // `https:/pause` is a destination.
    is_name(id).then_some((id, action))
}

fn no_cron() -> ApiError {
    ApiError::invalid("Upstash-Cron is missing: a schedule needs a cron expression, such as */5 * * * *")
}

/// The id that a path ends with, perhaps before a slash.
fn id_of(uri: &Uri) -> String {
    let rest = rest_of(uri.path());
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
fn last_states(store: &dyn Store, schedule: &Schedule) -> Result<Vec<(MessageId, ScheduleMessageState)>, StoreError> {
    let mut states = Vec::new();
    for id in &schedule.state.last_messages {
        if let Some(record) = store.message(schedule.tenant, *id, Part::Head)? {
            states.push((*id, state_of(&record)));
        }
    }
    Ok(states)
}

fn state_of(record: &MessageRecord) -> ScheduleMessageState {
    match record.final_state {
        None => ScheduleMessageState::InProgress,
        Some(event::State::Delivered) => ScheduleMessageState::Success,
        Some(_) => ScheduleMessageState::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_acts_only_on_what_can_be_an_id() {
        let cases = [
            ("daily/pause", Some(("daily", Action::Switch { paused: true }))),
            ("daily/resume/", Some(("daily", Action::Switch { paused: false }))),
            ("daily/run", Some(("daily", Action::Run))),
            ("daily", None),
            ("daily/", None),
            ("daily/stop", None),
            ("daily/x/pause", None),
            ("/pause", None),
            ("https:/pause", None),
            ("https://example.com/pause", None),
            ("https:/run", None),
            ("https://example.com/run", None),
            ("", None),
        ];
        for (rest, expected) in cases {
            assert_eq!(action_of(rest), expected, "{rest}");
        }
    }
}
