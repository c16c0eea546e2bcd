//! The page of one schedule.

use super::super::refusal::Refusal;
use super::super::visitor::{Problem, Visitor, query};
use super::super::{back_to, view};
use super::{PAGE, Schedule, api_of, buttons, form, last, messages_of, next, outcome, page_of, preview};
use axum::extract::{Form, Path, Query};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Messages of the last firing that the page names; of more it says how many.
const MESSAGES_SHOWN: usize = 20;

/// An expression that somebody tries.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Tried {
    expression: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Changed {
    expression: String,
}

pub(super) async fn show(
    visitor: Visitor,
    Path(id): Path<String>,
    Query(Tried { expression }): Query<Tried>,
) -> Result<Response, Problem> {
    render(&visitor, &id, expression.as_deref(), None).await
}

/// Gives it another expression; everything else stays.
pub(super) async fn reschedule(
    visitor: Visitor,
    Path(id): Path<String>,
    Form(Changed { expression }): Form<Changed>,
) -> Result<Response, Problem> {
    let sent = visitor.send(Method::PATCH, &api_of(&id), &[("Upstash-Cron", &expression)], Vec::new()).await;
    match sent {
        Ok(_) => Ok(back_to(&page_of(&id), &format!("Schedule {id} now fires at {}.", expression.trim()))),
        Err(problem) if problem.status == StatusCode::BAD_REQUEST => {
            render(&visitor, &id, Some(&expression), Some(problem)).await
        }
        Err(problem) => Err(problem),
    }
}

async fn render(
    visitor: &Visitor,
    id: &str,
    tried: Option<&str>,
    problem: Option<Problem>,
) -> Result<Response, Problem> {
    let schedule: Schedule = visitor.get(&api_of(id)).await?;
    let now = visitor.now();
    // What it fires next may be late; and what has fired before its clock was put back does not fire again.
    let after = schedule.next_schedule_time.map(|next| next.saturating_sub(1));
    let fires = preview::foresee(visitor, &schedule.cron, after).await?;
    let foreseen = match tried {
        Some(expression) => Some(preview::foresee(visitor, expression, None).await?),
        None => None,
    };
    let body = html! {
        p { a href=(PAGE) { "All schedules" } }
        div.title {
            h1 { "Schedule " code { (schedule.schedule_id) } }
            div.actions {
                (buttons(visitor, &schedule))
                a.button href={ (PAGE) "/make/new?" (query(&[("from", &schedule.schedule_id)])) } { "Copy or replace" }
            }
        }
        @if let Some(error) = &schedule.error { p.problem { "The schedule fired, but no message was published: " (error) } }
        div.columns #schedule data-refresh="5000" {
            section.card { h2 { "Message" } (facts(&schedule)) }
            section.card { h2 { "Status" } (progress(&schedule, now)) }
        }
        section {
            h2 { "Next times" @if schedule.is_paused { span.quiet { " if it is resumed" } } }
            @match &fires {
                Ok(forecast) => (preview::times(forecast, now)),
                Err(text) => p.problem { (text) },
            }
        }
        (times_form(visitor, &schedule, tried, problem.as_ref(), foreseen.as_ref()))
        @if let Some(body) = &schedule.body { section.card { (view::text("Body", body)) } }
        @if let Some(body) = &schedule.body_base64 { section.card { (view::text("Body (binary, in base64)", body)) } }
    };
    Ok(view::answer(visitor, &format!("Schedule {}", schedule.schedule_id), &body, problem.as_ref()))
}

fn times_form(
    visitor: &Visitor,
    schedule: &Schedule,
    tried: Option<&str>,
    problem: Option<&Problem>,
    foreseen: Option<&Result<preview::Forecast, String>>,
) -> Markup {
    let page = page_of(&schedule.schedule_id);
    let refusal = Refusal::new(problem, form::NAMES);
    html! {
        section.card {
            h2 { "Change times" }
            p.hint { "Everything else stays the same. Times that have fired do not fire again." }
            (refusal.alert())
            form.fields method="post" action={ (page) "/times" } data-preview="preview" data-from=(page) {
                (form::expression_field(tried.unwrap_or(&schedule.cron), refusal))
                div.actions {
                    (view::submit(visitor, "Save times"))
                    noscript { button type="submit" formmethod="get" formaction=(page) { "Preview" } }
                }
            }
            (preview::fragment(foreseen, visitor.now()))
        }
    }
}

fn facts(schedule: &Schedule) -> Markup {
    let seconds = |seconds: Option<u64>| seconds.map(|seconds| view::duration(seconds.saturating_mul(1_000)));
    let texts: [(&str, Option<String>); 12] = [
        ("Destination", Some(schedule.destination.clone())),
        ("Method", Some(schedule.method.clone())),
        ("Delay of each message", seconds(schedule.delay)),
        ("Queue", schedule.queue_name.clone()),
        ("Flow control", form::flow(schedule).map(|(key, limits)| format!("{key} ({limits})"))),
        ("Retries", Some(schedule.retries.to_string())),
        ("Retry delay", schedule.retry_delay_expression.clone()),
        ("Timeout", seconds(schedule.timeout)),
        ("Labels", (!schedule.labels.is_empty()).then(|| schedule.labels.join(", "))),
        ("Redact", schedule.redact_fields.clone()),
        ("Callback", schedule.callback.clone()),
        ("Failure callback", schedule.failure_callback.clone()),
    ];
    let headers = [
        ("Headers", &schedule.header),
        ("Callback headers", &schedule.callback_header),
        ("Failure callback headers", &schedule.failure_callback_header),
    ];
    html! {
        dl.facts {
            dt { "Expression" } dd { code { (schedule.cron) } }
            @for (name, text) in texts { @if let Some(text) = text { dt { (name) } dd { code { (view::long(&text)) } } } }
            @for (name, headers) in headers { @if !headers.is_empty() { dt { (name) } dd { (header_list(headers)) } } }
        }
    }
}

fn header_list(headers: &BTreeMap<String, Vec<String>>) -> Markup {
    html! {
        @for (name, values) in headers { @for value in values { div { code { (name) ": " (value) } } } }
    }
}

fn progress(schedule: &Schedule, now: Timestamp) -> Markup {
    let states = &schedule.last_schedule_states;
    html! {
        dl.facts {
            dt { "Next" } dd { (next(schedule, |at| view::time_in_full(at, now))) }
            dt { "Last" } dd { (last(schedule, |at| view::time_in_full(at, now))) }
            @if !states.is_empty() {
                dt { "Latest messages" }
                dd {
                    @for (id, state) in states.iter().take(MESSAGES_SHOWN) {
                        div {
                            a href={ "/console/messages/" (id) } { code { (id) } } " "
                            (outcome(state.as_str().unwrap_or_default(), 1))
                        }
                    }
                    @if states.len() > MESSAGES_SHOWN { "and " (states.len() - MESSAGES_SHOWN) " more" }
                }
            }
            dt { "Created" } dd { (view::time_in_full(Timestamp(schedule.created_at), now)) }
            dt { "Messages" } dd { a href=(messages_of(schedule)) { "Show all messages of this schedule" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn untrusted_content_is_text() {
        let evil = "<script>alert(1)</script>";
        let schedule: Schedule = serde_json::from_value(json!({
            "scheduleId": "a", "cron": "@daily", "destination": evil, "method": "POST", "createdAt": 0, "retries": 3,
            "isPaused": false, "header": { "X": [evil] }, "labels": [evil], "flowControlKey": evil, "period": 1,
            "callback": evil, "failureCallback": evil, "callbackHeader": { "X": [evil] }, "queueName": evil,
            "retryDelayExpression": evil, "error": evil, "lastScheduleStates": { "msg_1": evil },
        }))
        .unwrap();
        let html = facts(&schedule).into_string() + &progress(&schedule, Timestamp(0)).into_string();
        assert!(html.contains("&lt;script&gt;") && !html.contains("<script"), "{html}");
    }
}
