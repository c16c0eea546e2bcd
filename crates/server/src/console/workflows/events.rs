//! Events: who waits for one, and sending one.

use super::data::Waiter;
use super::{EVENTS_PATH, Fields, PATH, counted, cut, run_path, tabs};
use crate::console::form::typed;
use crate::console::visitor::{Problem, query, segment};
use crate::console::{Visitor, back_to, view};
use axum::extract::{Query, RawForm};
use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};
use posthaste_engine::limits::{WAITERS_LISTED_MAX, WORKFLOW_NAME_BYTES_MAX};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    event: String,
}

pub(super) async fn show(visitor: Visitor, Query(Asked { event }): Query<Asked>) -> Result<Markup, Problem> {
    let event = event.trim();
    let waiters: Option<Vec<Waiter>> = match event {
        "" => None,
        event => Some(visitor.get(&format!("/v2/waiters/{}", segment(event))).await?),
    };
    let body = html! {
        div.title { h1 { "Events" } (tabs(EVENTS_PATH)) }
        section.card {
            form.filters method="get" action=(EVENTS_PATH) role="search" {
                label { "Event" input #event name="event" value=(event) required maxlength=(WORKFLOW_NAME_BYTES_MAX) autocomplete="off"; }
                div.actions { button.primary type="submit" { "Find waiting runs" } }
            }
        }
        @match &waiters {
            None => (view::empty("No event selected", &html! {
                p { "Enter an event to see the runs that wait for it. The " a href={ (PATH) "?state=STEP_PROGRESS" } { "list of runs" } " shows what each run waits for." }
            })),
            Some(waiters) => div.stack #waiters data-refresh="5000" { (listed(event, waiters, visitor.now())) },
        }
        (form(&visitor, event))
    };
    Ok(view::page(&visitor.frame("Events"), &body))
}

fn listed(event: &str, waiters: &[Waiter], now: Timestamp) -> Markup {
    if waiters.is_empty() {
        let hint = html! { p { "An event reaches only runs that already wait for it. An event for a single run is stored until that run waits for it." } };
        return view::empty(&format!("No runs wait for {event}"), &hint);
    }
    html! {
        div.scroll {
            table {
                caption.skip { "Runs that wait for " (event) ", longest wait first" }
                thead { tr { th scope="col" { "Run" } th scope="col" { "URL" } th scope="col" { "Times out" } } }
                tbody {
                    @for waiter in waiters {
                        tr {
                            td { @if let Some(run) = waiter.run() { a.mono.cut.id href=(run_path(run, None)) title=(run) { (run) } } }
                            td { (cut(&waiter.url)) }
                            td.tight { (view::time(Timestamp(waiter.deadline.saturating_mul(1_000)), now)) }
                        }
                    }
                }
            }
        }
        p.hint {
            (counted(waiters.len(), "run")) (if waiters.len() == 1 { " waits" } else { " wait" }) " for it"
            @if waiters.len() >= WAITERS_LISTED_MAX { "; the list is limited to " (view::number(WAITERS_LISTED_MAX as u64)) " runs" }
        }
    }
}

fn form(visitor: &Visitor, event: &str) -> Markup {
    html! {
        section.card #notify {
            h2 { "Send an event" }
            form.fields method="post" action={ (PATH) "/notify" } {
                input type="hidden" name="next" value=(visitor.here);
                label { "Event" input name="event" value=(event) required maxlength=(WORKFLOW_NAME_BYTES_MAX) autocomplete="off"; }
                label { "Run (empty for all runs that wait for it)" input name="run" placeholder="wfr_…" maxlength=(WORKFLOW_NAME_BYTES_MAX) autocomplete="off"; }
                label { "Data" textarea name="data" placeholder="{\"approved\": true}" {} }
                div.actions { (view::submit(visitor, "Send event")) }
            }
        }
    }
}

pub(super) async fn notify(visitor: Visitor, form: RawForm) -> Result<Response, Problem> {
    let fields = Fields::read(&form);
    let (event, run) = (fields.one("event").trim(), fields.one("run").trim());
    if event.is_empty() {
        return Err(Problem::refused("Enter the name of the event."));
    }
    let path = match run {
        "" => format!("/v2/notify/{}", segment(event)),
        run => format!("/v2/notify/{}/{}", segment(run), segment(event)),
    };
    let data = typed(fields.one("data")).into_bytes();
    let answer = visitor.send(Method::POST, &path, &[], data).await?;
    let reached = answer.as_array().map_or(0, Vec::len);
    let said = match (reached, run) {
        (0, "") => format!("No runs wait for {event}. Nothing was sent."),
        (0, run) => format!("{run} does not wait for {event} yet. The event is stored until it does."),
        (reached, _) => format!("Sent {event} to {}.", counted(reached, "run")),
    };
    let next = match fields.one("next") {
        "" => format!("{EVENTS_PATH}?{}", query(&[("event", event)])),
        next => next.to_owned(),
    };
    Ok(back_to(&next, &said))
}
