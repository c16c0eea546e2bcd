//! One message: what it waits for or how it ended, its story, what is sent, and what can be done.

use super::data::{About, Events, Line, Message};
use super::request::{self, Body};
use super::{PATH, SHOWN_BYTES_MAX, curl, path_of, timeline};
use crate::console::visitor::{Problem, query, segment};
use crate::console::workflows::run_path;
use crate::console::{ROOT, Visitor, view};
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use posthaste_api_types::log::LogState;
use posthaste_api_types::message::{DeduplicatedBy, SourceKind};
use posthaste_api_types::why::{Duplicates, WaitsFor, Why};
use posthaste_engine::limits::DEDUP_WINDOW_MS;
use posthaste_wire::encoding::from_base64;
use posthaste_wire::time::Timestamp;
use serde_json::Value;

/// Last log lines that are shown.
const LINES_MAX: usize = 300;
/// Last attempts whose callbacks are looked for.
const CALLBACKS_OF_MAX: usize = 20;

/// Everything that the page tells.
pub(super) struct Story {
    pub(super) id: String,
    pub(super) about: About,
    pub(super) created_at: Option<Timestamp>,
    pub(super) not_before: Option<Timestamp>,
    /// Oldest first.
    pub(super) lines: Vec<Line>,
    /// There are older ones.
    pub(super) is_cut: bool,
    pub(super) body: Body,
    why: Why,
    /// Messages that tell of its attempts.
    callbacks: Vec<Line>,
    /// The page of the run whose step it is.
    pub(super) run: Option<String>,
}

pub(super) async fn show(visitor: Visitor, Path(id): Path<String>) -> Result<Response, Problem> {
    match story(&visitor, &id).await {
        Ok(story) => {
            let body = page(&visitor, &story);
            Ok(view::page(&visitor.frame(&format!("Message {id}")), &body).into_response())
        }
        Err(problem) if problem.status == StatusCode::NOT_FOUND => Ok(absent(&visitor, &id)),
        Err(problem) => Err(problem),
    }
}

async fn story(visitor: &Visitor, id: &str) -> Result<Story, Problem> {
    let why: Why = visitor.get(&format!("/v2/messages/{}/why", segment(id))).await?;
    let count = LINES_MAX.to_string();
    let wanted = query(&[("messageId", id), ("count", &count), ("trimBody", "0")]);
    let mut events: Events = visitor.get(&format!("/v2/events?{wanted}")).await?;
    let (about, message, body) = match events.events.last() {
        // With one byte more than is shown it is known whether there is more.
        Some(line) => {
            let trim = (SHOWN_BYTES_MAX + 1).to_string();
            let wanted = query(&[("messageId", id), ("count", "1"), ("trimBody", &trim)]);
            let one: Events = visitor.get(&format!("/v2/events?{wanted}")).await?;
            let body = one.events.first().and_then(|line| line.body.as_deref()).and_then(from_base64);
            let message = visitor.get::<Message>(&format!("/v2/messages/{}", segment(id))).await.ok();
            (line.about.clone(), message, body.unwrap_or_default())
        }
        // A step of a run, or so old that its log is gone.
        None => {
            let message: Message = visitor.get(&format!("/v2/messages/{}", segment(id))).await?;
            let mut about = message.about.clone();
            about.timeout = about.timeout.map(|seconds| seconds * 1_000);
            let body = message.body();
            (about, Some(message), body)
        }
    };
    events.events.reverse();
    let created = events.events.iter().find(|line| line.state == LogState::Created);
    let created_at = message.as_ref().map(|message| message.created_at).or(created.map(|line| line.time));
    let not_before =
        message.as_ref().map(|message| message.not_before).or(created.and_then(|line| line.next_delivery_time));
    let callbacks = callbacks(visitor, id, &about, &events.events).await?;
    let run = if events.events.is_empty() { run_of(visitor, id).await? } else { None };
    Ok(Story {
        id: id.to_owned(),
        about,
        created_at: created_at.map(Timestamp),
        not_before: not_before.map(Timestamp),
        lines: events.events,
        is_cut: events.cursor.is_some(),
        body: Body::new(body),
        why,
        callbacks,
        run,
    })
}

/// Where the run is that has this message, if there is one.
async fn run_of(visitor: &Visitor, id: &str) -> Result<Option<String>, Problem> {
    let wanted = query(&[("messageId", id), ("trimBody", "0")]);
    let found: Value = visitor.get(&format!("/v2/workflows/logs?{wanted}")).await?;
    let run = &found["runs"][0];
    Ok(run["workflowRunId"].as_str().map(|id| run_path(id, run["workflowRunCreatedAt"].as_u64())))
}

/// The messages that tell of its attempts: each is made in the moment in which an attempt ends.
async fn callbacks(visitor: &Visitor, id: &str, about: &About, lines: &[Line]) -> Result<Vec<Line>, Problem> {
    if about.callback.is_none() && about.failure_callback.is_none() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let ends = lines.iter().rev().filter(|line| line.duration.is_some()).take(CALLBACKS_OF_MAX);
    for time in ends.map(|line| line.time.to_string()) {
        let moment = [("fromDate", time.as_str()), ("toDate", time.as_str())];
        let which = [("state", "CREATED"), ("sourceMessageId", id), ("trimBody", "0"), ("count", "10")];
        let page: Events = visitor.get(&format!("/v2/events?{}", query(&[&moment[..], &which].concat()))).await?;
        found.extend(page.events);
    }
    found.sort_by_key(|line| line.time);
    // Two attempts may end in one moment.
    found.dedup_by(|one, other| one.message_id == other.message_id);
    Ok(found)
}

fn page(visitor: &Visitor, story: &Story) -> Markup {
    let (why, now) = (&story.why, visitor.now());
    let has_ended = why.ended_at.is_some();
    html! {
        div.title #head {
            h1 { "Message" } (view::message_state(why.state, why.waits_for == WaitsFor::Time))
            code { (story.id) }
            div.actions {
                @if !has_ended { (actions(visitor, story)) }
                @if story.run.is_none() {
                    button type="button" data-copy=(curl::command(story, &visitor.address())) { "Copy as curl" }
                }
            }
        }
        // Only what lives changes.
        div #story data-refresh=[(!has_ended).then_some("2000")] data-also="head caused" {
            p #why.(mood(why.state)) role="status" { (why.sentence) }
            @if let Some(dlq_id) = &why.dlq_id {
                p { "To retry it, with or without changes, open its dead letter: " a href={ (ROOT) "/dlq/" (segment(dlq_id)) } { (dlq_id) } }
            }
            div.columns {
                section.card aria-labelledby="about" { h2 #about { "Details" } (facts(story, now)) }
                section.card aria-labelledby="timeline" { h2 #timeline { "Timeline" } (timeline::show(story, now)) }
            }
        }
        section.card aria-labelledby="request" { h2 #request { "Request" } (request::show(story)) }
        div #caused {
            @if !story.callbacks.is_empty() {
                section.card aria-labelledby="callbacks" { h2 #callbacks { "Callbacks" } (caused(&story.callbacks, now)) }
            }
        }
        // A step is published by its run alone.
        @if story.run.is_none() {
            section.card {
                details.text { summary { "Publish again with curl" } pre tabindex="0" { (curl::command(story, &visitor.address())) } }
                @if story.body.whole().is_none() { p.hint { "Download the body first: the command reads " code { "body.bin" } "." } }
                p.hint { "Set " code { "$QSTASH_TOKEN" } " before you run this command. It leaves out hidden values, the deduplication ID, redaction and the delivery settings of callbacks." }
            }
        }
    }
}

/// How the sentence on top looks.
fn mood(state: Option<LogState>) -> &'static str {
    match state {
        Some(LogState::Failed) => "problem",
        Some(LogState::Delivered) => "flash",
        _ => "note",
    }
}

fn actions(visitor: &Visitor, story: &Story) -> Markup {
    let (path, why) = (path_of(&story.id), &story.why);
    let is_queued = story.about.queue_name.is_some() || why.queue.is_some();
    html! {
        @if why.waits_for == WaitsFor::Time && !is_queued {
            (view::button(visitor, &format!("{path}/retry"), "Send now", None, &[]))
        }
        // A step ends with its run.
        @if !why.cancel_requested && story.run.is_none() {
            (view::button(visitor, &format!("{path}/cancel"), "Cancel", Some("Cancel this message? A running attempt will finish; there will be no retries."), &[]))
        }
    }
}

fn facts(story: &Story, now: Timestamp) -> Markup {
    let (about, why) = (&story.about, &story.why);
    let list = |name: &str, value: &str| format!("{PATH}?{}", query(&[(name, value)]));
    html! {
        dl.facts {
            dt { "Destination" } dd { code { (view::long(&format!("{} {}", about.method, about.url))) } }
            @if let Some(at) = story.created_at { dt { "Published" } dd { (view::time_in_full(at, now)) " from " (about.caller_ip) } }
            @if let Some(at) = story.not_before.filter(|at| story.created_at.is_none_or(|created| *at > created)) {
                dt { "Not before" } dd { (view::time_in_full(at, now)) }
            }
            @if let Some(at) = why.due_at.filter(|_| why.waits_for == WaitsFor::Time) { dt { "Due" } dd { (view::time_in_full(at, now)) } }
            @if let Some(at) = why.ended_at { dt { "Ended" } dd { (view::time_in_full(at, now)) } }
            dt { "Attempts" } dd { (why.attempts.unwrap_or(0)) " of " (why.max_attempts) }
            @if !about.labels.is_empty() {
                dt { "Labels" } dd { @for label in &about.labels { a href=(list("label", label)) { (label) } " " } }
            }
            @if let Some(name) = &about.queue_name { dt { "Queue" } dd { a href=(list("queueName", name)) { (name) } } }
            @if let Some(key) = &about.flow_control_key {
                dt { "Flow control" }
                dd { a href={ (ROOT) "/flow-control/key?" (query(&[("key", key)])) } { (key) } " " (limits(about)) }
            }
            @if let Some(name) = &about.topic_name {
                dt { "URL group" }
                dd { a href={ (ROOT) "/url-groups/" (segment(name)) } { (name) } @if let Some(endpoint) = &about.endpoint_name { " · " (endpoint) } }
            }
            @if let Some(id) = &about.schedule_id { dt { "Schedule" } dd { a href=(list("scheduleId", id)) { (id) } } }
            @if let Some(api) = &about.api { dt { "API" } dd { (api) } }
            @if let Some(expression) = &about.retry_delay_expression { dt { "Retry delay" } dd { code { (expression) } } }
            @if let Some(millis) = about.timeout { dt { "Timeout" } dd { (view::duration(millis)) } }
            @for (name, url) in [("Callback", &about.callback), ("Failure callback", &about.failure_callback)] {
                @if let Some(url) = url { dt { (name) } dd { code { (view::long(url)) } } }
            }
            @if let Some(source) = &about.source_message_id {
                dt { "Source" } dd { a href=(path_of(source)) { (source) } " " span.quiet { (relation(about)) } }
            }
            (deduplication(story, now))
            dt { "Follow-up messages" } dd { a href=(list("sourceMessageId", &story.id)) { "Show" } }
        }
    }
}

fn limits(about: &About) -> String {
    let rate =
        about.rate.map(|rate| format!("{} per {}", view::number(rate.into()), view::period(about.period.unwrap_or(1))));
    let parallelism = about.parallelism.map(|max| format!("{} in parallel", view::number(max.into())));
    [rate, parallelism].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What this message is to its source.
fn relation(about: &About) -> &'static str {
    match about.source_kind {
        Some(SourceKind::Callback) => "this message is its callback",
        Some(SourceKind::FailureCallback) => "this message is its failure callback",
        Some(SourceKind::DlqRetry) => "retried from the DLQ as this message",
        _ => "",
    }
}

fn deduplication(story: &Story, now: Timestamp) -> Markup {
    let about = &story.about;
    let until = story.created_at.map(|created| created.plus_millis(DEDUP_WINDOW_MS));
    html! {
        @if let Some(by) = &about.deduplication {
            dt { "Deduplication" }
            dd {
                @if *by == DeduplicatedBy::Id { "by ID (only its hash is stored)" } @else { "by content" }
                @if let Some(until) = until {
                    @if until > now { "; duplicates return this message for another " (view::duration(until.millis_since(now))) }
                    @else { "; the window ended " (view::time(until, now)) }
                }
            }
        }
        @if let Some(Duplicates { count, first_at, last_at }) = &story.why.duplicates {
            dt { "Duplicates" }
            dd #duplicates {
                @if *count == 1 { "1 duplicate publish returned this message, " (view::time_in_full(*last_at, now)) }
                @else {
                    (view::number(*count)) " duplicate publishes returned this message since " (view::time_in_full(*first_at, now))
                    ", the latest " (view::time(*last_at, now))
                }
                " " span.hint { "The count is kept in RAM and resets when the server restarts." }
            }
        }
    }
}

fn caused(lines: &[Line], now: Timestamp) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th scope="col" { "Message" } th scope="col" { "Kind" } th scope="col" { "Destination" } th scope="col" { "Created" } } }
            tbody { @for line in lines { tr {
                td { a.mono.cut.id href=(path_of(&line.message_id)) title=(line.message_id) { (line.message_id) } }
                td { @if line.about.source_kind == Some(SourceKind::FailureCallback) { "failure callback" } @else { "callback" } }
                td { span.cut title=(line.about.url) { (line.about.url) } }
                td { (view::time(Timestamp(line.time), now)) }
            } } }
        } }
    }
}

fn absent(visitor: &Visitor, id: &str) -> Response {
    let body = html! {
        div.card {
            h1 { "Message not found" }
            p { "Possible reasons why " code { (id) } " was not found:" }
            ul {
                li { "Its log has expired. Logs are kept for 7 days unless configured otherwise." }
                li { "It belongs to another tenant. This page shows " strong { (visitor.tenant_name()) } "." }
                li { "It was a step of a workflow run that has ended. See the " a href={ (ROOT) "/workflows" } { "runs" } "." }
                li { "It failed, and only its dead letter is left. See the " a href={ (ROOT) "/dlq" } { "DLQ" } "." }
            }
            p { a href=(PATH) { "Back to messages" } }
        }
    };
    (StatusCode::NOT_FOUND, view::page(&visitor.frame("Message not found"), &body)).into_response()
}
