//! What goes on in the background: cancels of messages, retries and deletes of dead letters. A panel on the pages that begin
//! them, which shows how far they are and stops them.

use super::form::{Back, Fields};
use super::visitor::{Problem, Visitor, query, segment};
use super::{back_to, view};
use axum::body::Bytes;
use axum::extract::Query;
use axum::http::Method;
use axum::response::Response;
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

/// On whose pages a panel is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Messages,
    DeadLetters,
}

impl Of {
    fn page(self) -> &'static str {
        match self {
            Of::Messages => "/console/messages",
            Of::DeadLetters => "/console/dlq",
        }
    }

    /// Whether a kind of the API is begun on these pages.
    fn has(self, kind: &str) -> bool {
        (kind == "cancel") == (self == Of::Messages)
    }
}

/// Only the panel: what the panels of other pages are made of again and again. `next` is where its buttons lead.
pub(super) async fn show(visitor: Visitor, of: Of, Query(Back { next }): Query<Back>) -> Result<Markup, Problem> {
    let next = if next.is_empty() { of.page() } else { &next };
    let body = html! {
        div.title { h1 { "Bulk actions" } div.actions { a.button href=(of.page()) { "Back" } } }
        (panel(&visitor, of, next).await?)
    };
    Ok(view::page(&visitor.frame("Bulk actions"), &body))
}

/// Always there, if only empty: otherwise the script would not find that the last one has ended.
pub(super) async fn panel(visitor: &Visitor, of: Of, next: &str) -> Result<Markup, Problem> {
    let page: Page = visitor.get("/v2/bulkActions?count=100").await?;
    let now = visitor.now();
    let is_shown = |action: &&Action| {
        let is_recent = action.completed_at.is_none_or(|at| now.millis_since(at) < FINISHED_MS);
        of.has(&action.kind) && is_recent
    };
    let mut shown: Vec<&Action> = page.bulk_actions.iter().filter(is_shown).collect();
    shown.sort_by_key(|action| action.completed_at.is_some());
    shown.truncate(SHOWN_MAX);
    let from = format!("{}/background?{}", of.page(), query(&[("next", next)]));
    Ok(html! {
        div #background aria-live="polite" data-refresh=(REFRESH_MS) data-from=(from) {
            @if !shown.is_empty() {
                section.card.background aria-label="Bulk actions" {
                    @for action in shown { (one(visitor, of, action, next)) }
                }
            }
        }
    })
}

/// Ends what a panel shows, where it is.
pub(super) async fn stop(visitor: Visitor, body: Bytes) -> Result<Response, Problem> {
    let fields = Fields::parse(&body);
    let path = format!("/v2/bulkActions/{}", segment(fields.one("id")));
    let action = visitor.send(Method::DELETE, &path, &[], Vec::new()).await?;
    Ok(back_to(fields.one("next"), &format!("Stopped after {} of {}.", action["processed"], action["total"])))
}

fn one(visitor: &Visitor, of: Of, action: &Action, next: &str) -> Markup {
    let (verb, thing) = match action.kind.as_str() {
        "cancel" => ("Cancel", "message"),
        "dlqRetry" => ("Retry", "dead letter"),
        _ => ("Delete", "dead letter"),
    };
    let (state, kind) = match (action.completed_at, action.stopped) {
        (None, _) => ("in progress", "busy"),
        (Some(_), true) => ("stopped", "off"),
        (Some(_), false) => ("finished", "good"),
    };
    let filter: Vec<String> =
        action.filter.iter().map(|(name, values)| format!("{name} {}", values.join(", "))).collect();
    let name = format!("{verb} {}", view::counted(action.total as usize, thing));
    html! {
        div {
            div.title {
                strong { (name) }
                span.state.(kind) { (state) }
                span.hint {
                    (view::number(action.processed)) " of " (view::number(action.total)) " done"
                    @if let Some(rate) = action.rate { " · up to " (rate) " per second" }
                    @if action.refused > 0 { " · " (view::number(action.refused)) " rejected and kept" }
                    " · started " (view::time(action.created_at, visitor.now()))
                }
                @if action.completed_at.is_none() { (stop_button(visitor, of, action, next)) }
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

fn stop_button(visitor: &Visitor, of: Of, action: &Action, next: &str) -> Markup {
    html! {
        div.actions {
            form.inline method="post" action={ (of.page()) "/stop" } {
                input type="hidden" name="id" value=(action.action_id);
                input type="hidden" name="next" value=(next);
                button disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Stop" }
            }
        }
    }
}

/// How much was looked at.
fn progress(action: &Action) -> u64 {
    action.processed.saturating_add(action.refused).min(action.total)
}
