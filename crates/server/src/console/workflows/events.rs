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
                div.actions { button.primary type="submit" { "Who waits for it?" } }
            }
        }
        @match &waiters {
            None => (view::empty("Which event?", &html! {
                p { "Name one to see the runs that wait for it. The " a href={ (PATH) "?state=STEP_PROGRESS" } { "list of runs" } " says what each waits for." }
            })),
            Some(waiters) => div.stack #waiters data-refresh="5000" { (listed(event, waiters, visitor.now())) },
        }
        (form(&visitor, event))
    };
    Ok(view::page(&visitor.frame("Events"), &body))
}

fn listed(event: &str, waiters: &[Waiter], now: Timestamp) -> Markup {
    if waiters.is_empty() {
        let hint = html! { p { "An event reaches who waits for it at that moment. One for a single run is kept until that run waits for it." } };
        return view::empty(&format!("Nobody waits for {event}"), &hint);
    }
    html! {
        div.scroll {
            table {
                caption.skip { "Runs that wait for " (event) ", in the order of asking" }
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
            @if waiters.len() >= WAITERS_LISTED_MAX { "; there may be more, only so many are listed" }
        }
    }
}

fn form(visitor: &Visitor, event: &str) -> Markup {
    html! {
        section.card #notify {
            h2 { "Notify" }
            form.fields method="post" action={ (PATH) "/notify" } {
                input type="hidden" name="next" value=(visitor.here);
                label { "Event" input name="event" value=(event) required maxlength=(WORKFLOW_NAME_BYTES_MAX) autocomplete="off"; }
                label { "Run (empty: all that wait for it now)" input name="run" placeholder="wfr_…" maxlength=(WORKFLOW_NAME_BYTES_MAX) autocomplete="off"; }
                label { "Data" textarea name="data" placeholder="{\"approved\": true}" {} }
                div.actions { (view::submit(visitor, "Notify")) }
            }
        }
    }
}

pub(super) async fn notify(visitor: Visitor, form: RawForm) -> Result<Response, Problem> {
    let fields = Fields::read(&form);
    let (event, run) = (fields.one("event").trim(), fields.one("run").trim());
    if event.is_empty() {
        return Err(Problem::refused("The event has no name."));
    }
    let path = match run {
        "" => format!("/v2/notify/{}", segment(event)),
        run => format!("/v2/notify/{}/{}", segment(run), segment(event)),
    };
    let data = typed(fields.one("data")).into_bytes();
    let answer = visitor.send(Method::POST, &path, &[], data).await?;
    let reached = answer.as_array().map_or(0, Vec::len);
    let said = match (reached, run) {
        (0, "") => format!("Nobody waits for {event}, so nothing happened."),
        (0, run) => format!("{run} does not wait for {event} yet; it is kept until it does."),
        (reached, _) => format!("{event} has reached {}.", counted(reached, "run")),
    };
    let next = match fields.one("next") {
        "" => format!("{EVENTS_PATH}?{}", query(&[("event", event)])),
        next => next.to_owned(),
    };
    Ok(back_to(&next, &said))
}
