//! Schedules: when they fire and what came of it. `one` is the page of one, `form` makes them, `preview` shows the times of
//! an expression.

mod form;
mod one;
mod preview;

use super::form::{Back, Search};
use super::view::{self, ROWS_MAX, column};
use super::visitor::{Problem, segment};
use super::{Desk, Visitor, back_to, messages};
use axum::Router;
use axum::extract::{Form, Path, Query};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: &str = "/console/schedules";

pub(super) fn routes() -> Router<Arc<Desk>> {
    // An id can be any name, so what is no schedule has two segments.
    Router::new()
        .route("/schedules", get(show).post(form::make))
        .route("/schedules/make/new", get(form::show))
        .route("/schedules/{id}", get(one::show))
        .route("/schedules/{id}/times", post(one::reschedule))
        .route("/schedules/{id}/{action}", post(act))
}

/// A schedule as the API shows it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Schedule {
    schedule_id: String,
    cron: String,
    destination: String,
    method: String,
    created_at: u64,
    retries: u64,
    is_paused: bool,
    #[serde(default)]
    header: BTreeMap<String, Vec<String>>,
    body: Option<String>,
    body_base64: Option<String>,
    queue_name: Option<String>,
    delay: Option<u64>,
    timeout: Option<u64>,
    retry_delay_expression: Option<String>,
    #[serde(default)]
    labels: Vec<String>,
    flow_control_key: Option<String>,
    parallelism: Option<u64>,
    rate: Option<u64>,
    period: Option<u64>,
    callback: Option<String>,
    #[serde(default)]
    callback_header: BTreeMap<String, Vec<String>>,
    failure_callback: Option<String>,
    #[serde(default)]
    failure_callback_header: BTreeMap<String, Vec<String>>,
    redact_fields: Option<String>,
    callback_redact_fields: Option<String>,
    failure_callback_redact_fields: Option<String>,
    next_schedule_time: Option<u64>,
    last_schedule_time: Option<u64>,
    #[serde(default)]
    last_schedule_states: Map<String, Value>,
    error: Option<String>,
}

fn page_of(id: &str) -> String {
    format!("{PAGE}/{}", segment(id))
}

fn api_of(id: &str) -> String {
    format!("/v2/schedules/{}", plain(id))
}

/// The API reads an id as it stands in the path; what cannot be one is left encoded, and is not found.
fn plain(id: &str) -> String {
    if posthaste_wire::destination::is_name(id) { id.to_owned() } else { segment(id) }
}

async fn show(visitor: Visitor, Query(Search { search }): Query<Search>) -> Result<Response, Problem> {
    let (schedules, has_more): (Vec<Schedule>, bool) = visitor.list("/v2/schedules?trimBody=0").await?;
    let all = schedules.len();
    let matches =
        |schedule: &Schedule| [&schedule.schedule_id, &schedule.destination].iter().any(|s| s.contains(&search));
    let found: Vec<Schedule> = schedules.into_iter().filter(matches).collect();
    let body = html! {
        div.title {
            h1 { "Schedules" }
            span.quiet { "Publish a message at the times of a cron expression" }
            div.actions { a.button href={ (PAGE) "/make/new" } { "Create schedule" } }
        }
        div #schedule-search { @if all > 0 { (view::search(PAGE, "ID or destination contains", &search)) } }
        section #schedule-list data-refresh="5000" data-also="schedule-search" {
            @if all == 0 { (nothing()) } @else {
                (view::found(PAGE, found.len(), all, "No schedules match", || table(&visitor, &found)))
                (view::more(has_more))
            }
        }
    };
    Ok(view::page(&visitor.frame("Schedules"), &body).into_response())
}

fn table(visitor: &Visitor, schedules: &[Schedule]) -> Markup {
    let now = visitor.now();
    let rows = html! {
        @for schedule in schedules.iter().take(ROWS_MAX) {
            tr {
                th.name scope="row" {
                    a href=(page_of(&schedule.schedule_id)) {
                        code.cut title=(schedule.schedule_id) { (schedule.schedule_id) }
                    }
                }
                td { (expression(&schedule.cron)) }
                td.tight { (next(schedule, |at| view::time(at, now))) }
                td.tight { (last(schedule, |at| view::time(at, now))) }
                td { code.cut title=(schedule.destination) { (schedule.destination) } }
                td.acts { div.actions { (buttons(visitor, schedule)) } }
            }
        }
    };
    view::table(
        &[
            column("Schedule"),
            column("Times"),
            column("Next"),
            column("Last"),
            column("Destination"),
            column("Actions"),
        ],
        &rows,
    )
}

/// The fields, and the zone below them.
fn expression(cron: &str) -> Markup {
    let zoned = ["CRON_TZ=", "TZ="].iter().find_map(|prefix| cron.strip_prefix(prefix)?.split_once([' ', '\t']));
    let (zone, fields) = zoned.map_or((None, cron), |(zone, fields)| (Some(zone), fields.trim_start()));
    html! { code.line { (fields) } @if let Some(zone) = zone { span.line.hint { (zone) } } }
}

/// When it fires next, or why it does not.
fn next(schedule: &Schedule, time: impl Fn(Timestamp) -> Markup) -> Markup {
    html! {
        @if schedule.is_paused { span.state.warn { "paused" } " " }
        @if let Some(next) = schedule.next_schedule_time {
            @if schedule.is_paused { span.line.quiet { "would fire " (time(Timestamp(next))) } }
            @else { (time(Timestamp(next))) }
        } @else { span.state.bad { "never" } }
    }
}

/// What came of its last firing.
fn last(schedule: &Schedule, time: impl Fn(Timestamp) -> Markup) -> Markup {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for state in schedule.last_schedule_states.values().filter_map(Value::as_str) {
        *counts.entry(state).or_default() += 1;
    }
    html! {
        @match schedule.last_schedule_time {
            Some(last) => (time(Timestamp(last))),
            None => span.quiet { "not yet" },
        }
        @for (state, count) in counts { " " (outcome(state, count)) }
        @if let Some(error) = &schedule.error { " " span.state.bad title=(error) { "not published" } }
    }
}

/// The state of a message of a firing, in the words of the API.
fn outcome(state: &str, count: u64) -> Markup {
    let (kind, name) = match state {
        "SUCCESS" => ("good", "delivered"),
        "FAIL" => ("bad", "failed"),
        _ => ("busy", "in progress"),
    };
    html! { span.state.(kind) { @if count > 1 { (count) " " } (name) } }
}

fn messages_of(schedule: &Schedule) -> String {
    messages::listed_by("scheduleId", &schedule.schedule_id)
}

fn buttons(visitor: &Visitor, schedule: &Schedule) -> Markup {
    let id = &schedule.schedule_id;
    let page = page_of(id);
    let run = format!("Run schedule {id} now? This publishes its message once. Its times stay the same.");
    let delete =
        format!("Delete schedule {id}? It will not fire again. Messages that it has published are not affected.");
    html! {
        (view::button(visitor, &format!("{page}/run"), "Run now", Some(&run), &[]))
        (view::pause_button(visitor, &page, schedule.is_paused))
        (view::button(visitor, &format!("{page}/delete"), "Delete", Some(&delete), &[]))
    }
}

fn nothing() -> Markup {
    view::empty(
        "No schedules yet",
        &html! {
            p { a href={ (PAGE) "/make/new" } { "Create one with the form" } ", or with a command:" }
            (view::command("curl -X POST \"$QSTASH_URL/v2/schedules/https://example.com\" \
                -H \"Authorization: Bearer $QSTASH_TOKEN\" -H \"Upstash-Cron: */5 * * * *\" -d tick"))
        },
    )
}

async fn act(
    visitor: Visitor,
    Path((id, action)): Path<(String, String)>,
    Form(Back { next }): Form<Back>,
) -> Result<Response, Problem> {
    let api = api_of(&id);
    let (said, next) = match action.as_str() {
        "pause" => {
            visitor.send(Method::POST, &format!("{api}/pause"), &[], Vec::new()).await?;
            (format!("Schedule {id} paused. Times that pass meanwhile are skipped."), next)
        }
        "resume" => {
            visitor.send(Method::POST, &format!("{api}/resume"), &[], Vec::new()).await?;
            (format!("Schedule {id} resumed. It fires at its next time."), next)
        }
        "run" => {
            let made = visitor.send(Method::POST, &format!("{api}/run"), &[], Vec::new()).await?;
            let ids: Vec<&str> = made["messages"]
                .as_array()
                .map_or(&[][..], Vec::as_slice)
                .iter()
                .filter_map(|message| message["messageId"].as_str())
                .collect();
            (format!("Ran schedule {id} now. Published: {}", ids.join(", ")), next)
        }
        "delete" => {
            visitor.send(Method::DELETE, &api, &[], Vec::new()).await?;
            (format!("Schedule {id} deleted."), PAGE.to_owned())
        }
        _ => return Ok(view::no_page().await),
    };
    Ok(back_to(&next, &said))
}
