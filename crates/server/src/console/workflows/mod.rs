//! Workflows: runs, one run step by step, runs that have failed, and events.
//!
//! `data` is what the API answers; `again` is a piece of forms; `waits` and `spans` say what a run waits for and when its steps were; the others are pages.

mod again;
mod data;
mod events;
mod failed;
mod filters;
mod list;
mod run;
mod spans;
mod steps;
mod waits;

use super::Desk;
use crate::console::form::Fields;
use crate::console::view::counted;
use crate::console::visitor::{query, segment};
use axum::Router;
use axum::routing::{get, post};
use maud::{Markup, html};
use posthaste_api_types::workflow::{RunState, StepState};
use std::sync::Arc;

/// Where the list of runs is.
const PATH: &str = "/console/workflows";
/// Where failed runs are.
const FAILED_PATH: &str = "/console/workflows/failed";
/// Where events are.
const EVENTS_PATH: &str = "/console/workflows/events";

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/workflows", get(list::show))
        .route("/workflows/question/ticked", get(list::ask_ticked))
        .route("/workflows/failed/question/{action}", get(failed::question))
        .route("/workflows/cancel", get(list::ask).post(list::cancel_selected))
        .route("/workflows/cancel-matching", post(list::cancel_matching))
        .route("/workflows/runs/{id}", get(run::show))
        .route("/workflows/runs/{id}/cancel", post(run::cancel))
        .route("/workflows/retry", post(run::retry))
        .route("/workflows/failed", get(failed::show))
        .route("/workflows/failed/all", get(failed::ask))
        .route("/workflows/failed/{action}", post(failed::act))
        .route("/workflows/events", get(events::show))
        .route("/workflows/notify", post(events::notify))
}

/// The page of a run. Ids are given by strangers and may hold anything; one may have several runs.
pub(super) fn run_path(id: &str, created_at: Option<u64>) -> String {
    let which = created_at.map(|at| format!("?{}", query(&[("createdAt", &at.to_string())])));
    format!("{PATH}/runs/{}{}", segment(id), which.unwrap_or_default())
}

/// The pages of this chapter.
fn tabs(here: &str) -> Markup {
    html! {
        nav.tabs aria-label="Workflows" {
            @for (path, name) in [(PATH, "Runs"), (FAILED_PATH, "Failed runs"), (EVENTS_PATH, "Events")] {
                a href=(path) aria-current=[(path == here).then_some("page")] { (name) }
            }
        }
    }
}

/// A text that may be long, on one line.
fn cut(text: &str) -> Markup {
    html! { span.cut title=(text) { (text) } }
}

/// The state of a run.
fn run_state(state: RunState) -> Markup {
    let (kind, word) = match state {
        RunState::Started => ("busy", "running"),
        RunState::Success => ("good", "succeeded"),
        RunState::Failed => ("bad", "failed"),
        RunState::Canceled => ("off", "cancelled"),
    };
    html! { span.state.(kind) { (word) } }
}

/// The state of a step.
fn step_state(state: StepState) -> Markup {
    let word = match state {
        StepState::Progress => "in progress",
        StepState::Success => "succeeded",
        StepState::Retry => "retrying",
        StepState::Failed => "failed",
        StepState::Canceled => "cancelled",
    };
    html! { span.state.(kind_of_state(state)) { (word) } }
}

/// How the state of a step looks.
fn kind_of_state(state: StepState) -> &'static str {
    match state {
        StepState::Progress => "busy",
        StepState::Success => "good",
        StepState::Retry => "warn",
        StepState::Failed => "bad",
        StepState::Canceled => "off",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_run_holds_whatever_its_id_holds() {
        assert_eq!(run_path("wfr_order-7", None), "/console/workflows/runs/wfr_order-7");
        assert_eq!(run_path("a/b?c", Some(7)), "/console/workflows/runs/a%2Fb%3Fc?createdAt=7");
        assert_eq!(run_path("..", None), "/console/workflows/runs/%2E%2E");
    }
}
