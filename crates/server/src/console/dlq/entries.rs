//! Dead letters one by one, to be looked at, ticked, retried and deleted.

use super::super::background::{self, Of};
use super::super::form::Fields;
use super::super::view;
use super::super::visitor::{Problem, Visitor, query, segment};
use super::selection::Selection;
use super::{ENTRIES as HERE, PATH, act, answer, nothing};
use axum::extract::RawQuery;
use axum::http::StatusCode;
use maud::{Markup, html};
use posthaste_engine::attempt_error::{Timeout, for_people};
use posthaste_wire::id::DlqId;
use posthaste_wire::time::Timestamp;
use serde::Deserialize;

/// Characters of an answer in a line of the list.
const SAID_CHARS_MAX: usize = 300;
/// Where its buttons lead.
const RETRY: &str = "/console/dlq/retry";
const DELETE: &str = "/console/dlq/delete";
/// Entries on a page.
const COUNT: &str = "100";
/// Entries on a page when that many have answers which are too long together.
const COUNT_LONG: &str = "4";

#[derive(Deserialize)]
struct Page {
    messages: Vec<Letter>,
    cursor: Option<String>,
}

impl Page {
    fn is_all(&self) -> bool {
        self.cursor.is_none()
    }
}

/// A dead letter as a line of the list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Letter {
    pub(super) dlq_id: String,
    pub(super) message_id: String,
    pub(super) url: String,
    pub(super) method: String,
    pub(super) response_status: u16,
    pub(super) error: Option<String>,
    pub(super) response_body: Option<String>,
    #[serde(default)]
    pub(super) labels: Vec<String>,
    pub(super) queue_name: Option<String>,
    /// In seconds.
    timeout: Option<u64>,
}

impl Letter {
    /// How long its attempts might take.
    pub(super) fn timeout(&self) -> Timeout {
        Timeout::of(self.timeout.map(|seconds| seconds.saturating_mul(1_000)))
    }
}

pub(super) async fn show(visitor: Visitor, RawQuery(raw): RawQuery) -> Result<Markup, Problem> {
    let selection = Selection::from_query(raw.as_deref());
    let fields = Fields::parse(raw.as_deref().unwrap_or_default().as_bytes());
    let cursor = fields.one("cursor");
    let found = match page(&visitor, &selection, cursor).await {
        Err(problem) if problem.status != StatusCode::BAD_REQUEST => return Err(problem),
        found => found,
    };
    let body = html! {
        div.title {
            h1 { "Dead letters" }
            @if let Some(cause) = selection.cause() { span.quiet.mono { (cause) } }
            div.actions { a.button href=(selection.link(PATH)) { "Group by cause" } }
        }
        (background::panel(&visitor, Of::DeadLetters, &visitor.here).await?)
        (selection.form(HERE))
        @match &found {
            Err(problem) => p.problem role="alert" { (problem.text) },
            Ok(page) if page.is_all() && cursor.is_empty() && page.messages.is_empty() => (nothing(&selection, false)),
            Ok(page) => {
                (list(&visitor, &selection, page))
                @let mut pairs = selection.pairs();
                @let () = pairs.push(("cursor", cursor));
                (view::pager(HERE, &pairs, page.cursor.as_deref()))
            }
        }
    };
    Ok(view::page(&visitor.frame("Dead letters"), &body))
}

/// One page, which is shorter if the answers of receivers are too long for one page.
async fn page(visitor: &Visitor, selection: &Selection, cursor: &str) -> Result<Page, Problem> {
    let of_count = |count| {
        let terms = query(&[("trimBody", "0"), ("count", count), ("cursor", cursor)]);
        format!("/v2/dlq?{terms}&{}", selection.of_api())
    };
    match visitor.get(&of_count(COUNT)).await {
        Err(problem) if problem.status == StatusCode::BAD_GATEWAY => visitor.get(&of_count(COUNT_LONG)).await,
        found => found,
    }
}

fn list(visitor: &Visitor, selection: &Selection, page: &Page) -> Markup {
    let button = |what, action, name: &str| {
        let is_danger = action == DELETE;
        act::button(visitor, &act::Button { action, name, field: Some(("what", what)), is_danger })
    };
    let matching = if selection.is_empty() { "" } else { " matching" };
    html! {
        form.selection #entries method="post" action="/console/dlq/retry" {
            (selection.hidden(&[]))
            input type="hidden" name="next" value=(selection.link(HERE));
            div.actions {
                // The first button is the one that Enter presses: it must do no harm.
                button formmethod="get" name="what" value="ticked" { "Edit and retry selected" }
                (button("ticked", RETRY, "Retry selected"))
                (button("ticked", DELETE, "Delete selected"))
                (act::pace(""))
                button formmethod="get" name="what" value="all" { "Edit and retry all" (matching) }
                (button("all", RETRY, &format!("Retry all{matching}")))
                (button("all", DELETE, &format!("Delete all{matching}")))
            }
            div.scroll tabindex="0" role="region" aria-label="Dead letters" {
                table {
                    thead { tr {
                        th.tight scope="col" {
                            input type="checkbox" data-select-all="dlqIds" aria-label="Select all on this page";
                        }
                        th.tight scope="col" { "Failed" }
                        th scope="col" { "Status" }
                        th scope="col" { "Destination" }
                        th scope="col" { "Response" }
                        th scope="col" { "Label, queue" }
                        th scope="col" { "Message" }
                    } }
                    tbody { @for letter in &page.messages { (row(visitor, letter)) } }
                }
            }
            @if page.messages.is_empty() { p.note { "No matches on this page. Later pages may have some." } }
        }
    }
}

fn row(visitor: &Visitor, letter: &Letter) -> Markup {
    let error = letter.error.as_deref().map(|error| for_people(error, letter.timeout()));
    let said = error.as_deref().or(letter.response_body.as_deref()).unwrap_or_default();
    let said: String = said.chars().take(SAID_CHARS_MAX).collect();
    let message = format!("/console/messages/{}", segment(&letter.message_id));
    html! {
        tr {
            td.tight {
                input type="checkbox" name="dlqIds" value=(letter.dlq_id) aria-label={ "Select " (letter.dlq_id) };
            }
            td.tight {
                a href=(format!("{PATH}/{}", segment(&letter.dlq_id))) {
                    @if let Some(at) = failed_at(&letter.dlq_id) { (view::time(at, visitor.now())) }
                    @else { (letter.dlq_id) }
                }
            }
            td.tight { (answer(letter.response_status, None)) }
            td { span.cut.mono title=(letter.url) { (letter.method) " " (letter.url) } }
            td { span.cut title=(said) { (said) } }
            td { @for mark in letter.labels.iter().chain(&letter.queue_name) { span.cut.short title=(mark) { (mark) } } }
            td { a.cut.mono.id href=(message) title=(letter.message_id) { (letter.message_id) } }
        }
    }
}

/// When a dead letter failed: its id says so.
pub(super) fn failed_at(dlq_id: &str) -> Option<Timestamp> {
    dlq_id.parse::<DlqId>().ok().map(|id| id.at)
}
