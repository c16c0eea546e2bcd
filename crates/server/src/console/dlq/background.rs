//! Retries and deletes of dead letters that go on in the background.

use super::super::view;
use super::super::visitor::{Problem, Visitor};
use super::PATH;
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use std::collections::BTreeMap;

/// How often progress is looked at again.
const REFRESH_MS: &str = "1500";
/// How long something finished is shown.
const FINISHED_MS: u64 = 10 * 60_000;
/// Most that are shown.
const SHOWN_MAX: usize = 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    bulk_actions: Vec<Action>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Action {
    action_id: String,
    kind: String,
    total: u64,
    processed: u64,
    #[serde(default)]
    refused: u64,
    problem: Option<String>,
    rate: Option<u32>,
    filter: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    changes: Vec<String>,
    created_at: Timestamp,
    completed_at: Option<Timestamp>,
    #[serde(default)]
    stopped: bool,
}

/// Only the panel: what the panel of other pages is made of again and again.
pub(super) async fn show(visitor: Visitor) -> Result<Markup, Problem> {
    let body = html! {
        div.title { h1 { "In the background" } div.actions { a.button href=(PATH) { "DLQ" } } }
        (panel(&visitor).await?)
    };
    Ok(view::page(&visitor.frame("In the background"), &body))
}

pub(super) async fn panel(visitor: &Visitor) -> Result<Markup, Problem> {
    let page: Page = visitor.get("/v2/bulkActions?count=100").await?;
    let now = visitor.now();
    let is_shown = |action: &&Action| {
        let is_recent = action.completed_at.is_none_or(|at| now.millis_since(at) < FINISHED_MS);
        action.kind != "cancel" && is_recent
    };
    let mut shown: Vec<&Action> = page.bulk_actions.iter().filter(is_shown).take(SHOWN_MAX).collect();
    shown.sort_by_key(|action| action.completed_at.is_some());
    Ok(html! {
        div #background aria-live="polite" data-refresh=(REFRESH_MS) data-from="/console/dlq/background" {
            @if !shown.is_empty() {
                section.card.background aria-label="In the background" {
                    @for action in shown { (one(visitor, action)) }
                }
            }
        }
    })
}

fn one(visitor: &Visitor, action: &Action) -> Markup {
    let verb = if action.kind == "dlqRetry" { "Retry" } else { "Delete" };
    let (state, kind) = match (action.completed_at, action.stopped) {
        (None, _) => ("under way", "busy"),
        (Some(_), true) => ("stopped", "off"),
        (Some(_), false) => ("finished", "good"),
    };
    let filter: Vec<String> =
        action.filter.iter().map(|(name, values)| format!("{name} {}", values.join(", "))).collect();
    let name = format!("{verb} of {} dead letters", view::number(action.total));
    html! {
        div {
            div.title {
                strong { (name) }
                span.state.(kind) { (state) }
                span.hint {
                    (view::number(action.processed)) " of " (view::number(action.total)) " done"
                    @if let Some(rate) = action.rate { " · at most " (rate) " per second" }
                    @if action.refused > 0 { " · " (view::number(action.refused)) " could not be sent and stay" }
                    " · begun " (view::time(action.created_at, visitor.now()))
                }
                @if action.completed_at.is_none() { (stop(visitor, action)) }
            }
            @if action.completed_at.is_none() {
                progress aria-label=(name) max=(action.total.max(1)) value=(progress(action)) {}
            }
            @for said in [filter.join("; "), action.changes.join(", ")].iter().filter(|said| !said.is_empty()) {
                span.cut.hint title=(said) { (said) }
            }
            @if let Some(problem) = &action.problem { p.problem { (problem) } }
        }
    }
}

fn stop(visitor: &Visitor, action: &Action) -> Markup {
    html! {
        div.actions {
            form.inline method="post" action="/console/dlq/stop" {
                input type="hidden" name="id" value=(action.action_id);
                input type="hidden" name="next" value=(PATH);
                button disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Stop" }
            }
        }
    }
}

/// How much was looked at.
fn progress(action: &Action) -> u64 {
    action.processed.saturating_add(action.refused).min(action.total)
}
