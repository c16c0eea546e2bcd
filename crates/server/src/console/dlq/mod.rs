//! DLQ: what has failed for good, by cause; `entries` are the dead letters one by one, `entry` is one of them. What
//! buttons do is in `act`, what a retry changes in `change`, what selects dead letters in `selection`.

mod act;
mod change;
mod entries;
mod entry;
pub(super) mod fuzzing;
mod selection;

use super::background::{self, Of};
use super::visitor::Problem;
use super::{Desk, Visitor, view};
use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::routing::{get, post};
use maud::{Markup, html};
use posthaste_engine::attempt_error::{Timeout, for_people};
use posthaste_wire::time::Timestamp;
use selection::Selection;
use serde::Deserialize;
use std::sync::Arc;

/// Where these pages are.
const PATH: &str = "/console/dlq";
const ENTRIES: &str = "/console/dlq/entries";
/// How often the causes are looked at again.
const REFRESH_MS: &str = "15000";

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/dlq", get(show))
        .route("/dlq/entries", get(entries::show))
        .route("/dlq/background", get(async |visitor, next| background::show(visitor, Of::DeadLetters, next).await))
        .route("/dlq/retry", get(change::show).post(act::retry))
        .route("/dlq/delete", post(act::delete))
        .route("/dlq/question/{action}", get(act::ask))
        .route("/dlq/stop", post(background::stop))
        .route("/dlq/{id}", get(entry::show))
}

/// What the API says about causes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Causes {
    causes: Vec<Cause>,
    left_out: u64,
    looked: u64,
    more: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cause {
    cause: String,
    destination: String,
    response_status: u16,
    error_class: Option<String>,
    text: String,
    count: u64,
    first_seen: Timestamp,
    last_seen: Timestamp,
    sample: Sample,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sample {
    dlq_id: String,
    text: String,
}

async fn show(visitor: Visitor, RawQuery(query): RawQuery) -> Result<Markup, Problem> {
    let selection = Selection::from_query(query.as_deref());
    let found = match visitor.get::<Causes>(&format!("/v2/dlq/causes?{}", selection.of_api())).await {
        Err(problem) if problem.status != StatusCode::BAD_REQUEST => return Err(problem),
        found => found,
    };
    let body = html! {
        div.title {
            h1 { "DLQ" }
            span.quiet { "Messages that failed permanently, by cause" }
            div.actions {
                a.button href="/console/workflows?state=RUN_FAILED" { "Failed workflow runs" }
            }
        }
        (background::panel(&visitor, Of::DeadLetters, &visitor.here).await?)
        (selection.form(PATH))
        // Buttons, rows and the word that there are none are one piece: whichever comes, the others go.
        div.stack #causes data-refresh=(REFRESH_MS) {
            @match &found {
                Err(problem) => p.problem role="alert" { (problem.text) },
                Ok(causes) if causes.causes.is_empty() => (nothing(&selection, causes.more)),
                Ok(causes) => (groups(&visitor, &selection, causes)),
            }
        }
    };
    Ok(view::page(&visitor.frame("DLQ"), &body))
}

/// One form for all groups, so that they share the pace.
fn groups(visitor: &Visitor, selection: &Selection, causes: &Causes) -> Markup {
    let total: u64 = causes.causes.iter().map(|cause| cause.count).sum();
    let is_all = !causes.more && causes.left_out == 0;
    let number = view::at_least(total, is_all);
    // Each group has its own button with this name.
    let cause = selection.cause().map(|cause| ("cause", cause));
    let (name, value) = cause.unzip();
    let matching = if selection.is_empty() { "" } else { " matching" };
    html! {
        form.selection #groups method="post" action="/console/dlq/retry" {
            (selection.hidden(&["cause"]))
            input type="hidden" name="next" value=(visitor.here);
            input type="hidden" name="what" value="all";
            div.actions {
                // The first button is the one that Enter presses: it must do no harm.
                button formmethod="get" formaction=(ENTRIES) name=[name] value=[value] { "Show all (" (number) ")" }
                (act::pace(""))
                (act::button(visitor, &act::Button {
                    action: "/console/dlq/retry", name: &format!("Retry all{matching}"), field: cause,
                    is_danger: false,
                }))
                (act::button(visitor, &act::Button {
                    action: "/console/dlq/delete", name: &format!("Delete all{matching}"), field: cause,
                    is_danger: true,
                }))
            }
            @if causes.more {
                p.note {
                    "These are the causes of the newest " (view::number(causes.looked)) " dead letters. "
                    "Narrow the time range to see older ones."
                }
            }
            @if causes.left_out > 0 {
                p.note { "The most frequent causes are shown. " (view::number(causes.left_out)) " less frequent causes are not." }
            }
            div.scroll tabindex="0" role="region" aria-label="Causes" {
                table {
                    thead { tr {
                        th.number scope="col" { "Count" }
                        th scope="col" { "Status" }
                        th scope="col" { "Destination and cause" }
                        th.tight scope="col" { "Last seen" }
                        th.tight scope="col" { "First seen" }
                        th scope="col" { span.unseen { "Actions" } }
                    } }
                    tbody { @for cause in &causes.causes { (row(visitor, selection, cause)) } }
                }
            }
        }
    }
}

fn row(visitor: &Visitor, selection: &Selection, cause: &Cause) -> Markup {
    let now = visitor.now();
    let number = view::number(cause.count);
    let of_cause = selection.with("cause", &cause.cause);
    html! {
        tr {
            td.number { strong { (number) } }
            td.tight { (answer(cause.response_status, cause.error_class.as_deref())) }
            td {
                (place_and_text(cause, &of_cause))
                @if cause.sample.text != cause.text && !cause.sample.text.is_empty() {
                    span.cut.hint title=(cause.sample.text) { "example: " (cause.sample.text) }
                }
            }
            td.tight { (view::time(cause.last_seen, now)) }
            td.tight { (view::time(cause.first_seen, now)) }
            td {
                div.actions {
                    (act::button(visitor, &act::Button {
                        action: "/console/dlq/retry", name: "Retry", field: Some(("cause", &cause.cause)),
                        is_danger: false,
                    }))
                    a.button href=(of_cause.with("what", "all").link("/console/dlq/retry")) { "Edit and retry" }
                    (act::button(visitor, &act::Button {
                        action: "/console/dlq/delete", name: "Delete", field: Some(("cause", &cause.cause)),
                        is_danger: true,
                    }))
                    a.button href=(format!("{PATH}/{}", super::visitor::segment(&cause.sample.dlq_id))) { "Open example" }
                }
            }
        }
    }
}

/// A cause in two lines: the destination, which leads to all its dead letters, and what was said.
fn place_and_text(cause: &Cause, of_cause: &Selection) -> Markup {
    let text = for_people(&cause.text, Timeout::Unknown);
    html! {
        a.cut.mono href=(of_cause.link(ENTRIES)) title=(cause.destination) { (cause.destination) }
        @if cause.text.is_empty() { span.quiet { "empty response" } } @else { span.cut title=(text) { (text) } }
    }
}

/// The status of an answer, or what kept it from coming.
fn answer(status: u16, error_class: Option<&str>) -> Markup {
    html! {
        @match (status, error_class) {
            (0, class) => span.state.warn { (class.unwrap_or("no response")) },
            (status, _) => span.state.bad { (status) },
        }
    }
}

fn nothing(selection: &Selection, is_cut: bool) -> Markup {
    if is_cut {
        return view::empty(
            "No matches among the newest dead letters",
            &html! { p { "Narrow the time range, or search the " a href=(selection.link(ENTRIES)) { "list of dead letters" } "." } },
        );
    }
    if !selection.is_empty() {
        return view::empty("No dead letters match", &html! { p { a href=(PATH) { "Show all dead letters" } } });
    }
    let command = "curl -X POST \"$QSTASH_URL/v2/publish/http://127.0.0.1:9/\" \
                   -H \"Authorization: Bearer $QSTASH_TOKEN\" -H \"Upstash-Retries: 0\" -d hello";
    view::empty(
        "The DLQ is empty",
        &html! {
            p {
                "A message moves to the DLQ when its last retry fails, or when its receiver rejects further retries. "
                "To see one, publish to a port that nothing listens on:"
            }
            (view::command(command))
        },
    )
}
