//! One dead letter: what was sent, what came back.

use super::super::view;
use super::super::visitor::{Problem, Visitor, query, segment};
use super::entries::{self, failed_at};
use super::selection::Selection;
use super::{Cause, Causes, ENTRIES, answer, place_and_text};
use axum::extract::Path;
use maud::{Markup, html};
use posthaste_engine::attempt_error::for_people;
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Letter {
    #[serde(flatten)]
    line: entries::Letter,
    #[serde(default)]
    header: BTreeMap<String, Vec<String>>,
    body: Option<String>,
    body_base64: Option<String>,
    max_retries: u32,
    created_at: Timestamp,
    #[serde(rename = "callerIP")]
    caller_ip: String,
    topic_name: Option<String>,
    schedule_id: Option<String>,
    flow_control_key: Option<String>,
    callback: Option<String>,
    failure_callback: Option<String>,
    #[serde(default)]
    response_header: BTreeMap<String, Vec<String>>,
    response_body_base64: Option<String>,
}

pub(super) async fn show(visitor: Visitor, Path(id): Path<String>) -> Result<Markup, Problem> {
    let letter: Letter = visitor.get(&format!("/v2/dlq/{}", segment(&id))).await?;
    let causes: Causes = visitor.get(&format!("/v2/dlq/causes?{}", query(&[("dlqIds", &id)]))).await?;
    let change = format!("/console/dlq/retry?{}", query(&[("what", "one"), ("id", &id), ("next", &visitor.here)]));
    let body = html! {
        div.title {
            h1 { "Dead letter" }
            span.mono.quiet { (letter.line.dlq_id) }
            div.actions {
                (view::button(&visitor, "/console/dlq/retry", "Retry", None, &[("what", "one"), ("id", &id)]))
                a.button href=(change) { "Edit and retry" }
                (delete(&visitor, &id))
            }
        }
        div.columns {
            section.card { h2 { "Failure" } (facts(&visitor, &letter, causes.causes.first())) }
            section.card { h2 { "Message" } (message(&visitor, &letter)) }
            section.card {
                h2 { "Request" }
                p { code { (view::long(&format!("{} {}", letter.line.method, letter.line.url))) } }
                (headers(&letter.header))
                (content(letter.body.as_deref(), letter.body_base64.as_deref()))
            }
            section.card {
                h2 { "Last response" }
                @if let Some(error) = &letter.line.error { p.problem { (for_people(error, letter.line.timeout())) } }
                @else { p { (answer(letter.line.response_status, None)) } }
                (headers(&letter.response_header))
                @if letter.line.response_status != 0 {
                    (content(letter.line.response_body.as_deref(), letter.response_body_base64.as_deref()))
                }
            }
        }
    };
    Ok(view::page(&visitor.frame(&format!("Dead letter {id}")), &body))
}

/// Like other buttons, but it leads to the list: this page is gone then.
fn delete(visitor: &Visitor, id: &str) -> Markup {
    html! {
        form.inline method="post" action="/console/dlq/delete" data-confirm="Delete this dead letter? Deleted dead letters cannot be retried." {
            input type="hidden" name="what" value="one";
            input type="hidden" name="id" value=(id);
            input type="hidden" name="next" value=(ENTRIES);
            button.danger disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Delete" }
        }
    }
}

fn facts(visitor: &Visitor, letter: &Letter, cause: Option<&Cause>) -> Markup {
    html! {
        dl.facts {
            @if let Some(at) = failed_at(&letter.line.dlq_id) {
                dt { "Failed" } dd { (view::time_in_full(at, visitor.now())) }
            }
            dt { "Status" }
            dd { (answer(letter.line.response_status, cause.and_then(|cause| cause.error_class.as_deref()))) }
            @if let Some(cause) = cause {
                dt { "Cause" }
                dd { (place_and_text(cause, &Selection::default().with("cause", &cause.cause))) }
            }
            dt { "Retries allowed" } dd { (letter.max_retries) }
        }
    }
}

fn message(visitor: &Visitor, letter: &Letter) -> Markup {
    let optional = [
        ("Labels", (!letter.line.labels.is_empty()).then(|| letter.line.labels.join(", "))),
        ("Queue", letter.line.queue_name.clone()),
        ("URL group", letter.topic_name.clone()),
        ("Schedule", letter.schedule_id.clone()),
        ("Flow-control key", letter.flow_control_key.clone()),
        ("Callback", letter.callback.clone()),
        ("Failure callback", letter.failure_callback.clone()),
    ];
    html! {
        dl.facts {
            @let id = &letter.line.message_id;
            dt { "Message" } dd { a.mono href={ "/console/messages/" (segment(id)) } { (id) } }
            dt { "Published" } dd { (view::time_in_full(letter.created_at, visitor.now())) }
            dt { "Caller IP" } dd.mono { (letter.caller_ip) }
            @for (name, value) in optional {
                @if let Some(value) = value { dt { (name) } dd { (view::long(&value)) } }
            }
        }
    }
}

fn headers(headers: &BTreeMap<String, Vec<String>>) -> Markup {
    html! {
        @if !headers.is_empty() {
            dl.facts.mono {
                @for (name, values) in headers { @for value in values { dt { (name) } dd { (view::long(value)) } } }
            }
        }
    }
}

fn content(text: Option<&str>, base64: Option<&str>) -> Markup {
    html! {
        @match (text, base64) {
            (Some(text), _) => (view::text("Body", text)),
            (None, Some(base64)) => (view::text("Body (binary, in base64)", base64)),
            (None, None) => p.quiet { "No body" },
        }
    }
}
