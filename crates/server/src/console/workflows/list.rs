//! The list of runs, newest first, and how to cancel some of them.

use super::data::{Run, RunPage};
use super::filters::{Filters, RUNS, for_cancel};
use super::waits::waits_for;
use super::{Fields, PATH, counted, cut, run_path, run_state, tabs};
use crate::api::{Countable, Counted};
use crate::console::question::{self, Question};
use crate::console::visitor::{Problem, query};
use crate::console::{Visitor, back_to, view};
use axum::extract::{RawForm, RawQuery};
use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};
use posthaste_engine::limits::BULK_CANCEL_COUNT_MAX;
use posthaste_wire::time::Timestamp;

/// Pages of the API that one page here has: each has ten runs at most, because it has all their steps.
const PAGES: usize = 3;
/// Pages of the API that are read to show which runs a cancel means.
const PAGES_SHOWN: usize = 10;
/// Requests that one click makes to cancel what matches; of more runs it says so, and another click goes on.
const CANCEL_ROUNDS_MAX: usize = 20;

/// Characters of what a run waits for in a list; the rest is cut.
const TEXT_CHARS_MAX: usize = 160;

/// Up to so many pages of runs, without bodies.
async fn runs(visitor: &Visitor, filters: &Filters, more: &[(&str, &str)], pages: usize) -> Result<RunPage, Problem> {
    let mut found = RunPage { runs: Vec::new(), cursor: None };
    for _ in 0..pages {
        let mut asked = vec![("trimBody", "0")];
        asked.extend(more);
        asked.extend(found.cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page: RunPage = visitor.get(&format!("/v2/workflows/logs?{}", filters.for_api(&asked)?)).await?;
        found.runs.extend(page.runs);
        found.cursor = page.cursor;
        if found.cursor.is_none() {
            break;
        }
    }
    Ok(found)
}

pub(super) async fn show(visitor: Visitor, RawQuery(asked): RawQuery) -> Result<Markup, Problem> {
    let filters = Filters::read(&RUNS, &asked.unwrap_or_default());
    let found = runs(&visitor, &filters, &[], PAGES).await;
    let body = html! {
        div.title {
            h1 { "Workflows" }
            (tabs(PATH))
            div.actions {
                a.button href={ (PATH) "/cancel?" (filters.without_page()) } {
                    @if filters.is_empty() { "Cancel all…" } @else { "Cancel all matching…" }
                }
            }
        }
        section.card aria-label="Filters" { (filters.form()) }
        @match &found {
            Ok(found) => (listed(&visitor, &filters, found)),
            // What was asked for makes no sense: the form stays, so that it can be mended.
            Err(problem) => p.problem role="alert" { (problem.text) },
        }
    };
    Ok(view::page(&visitor.frame("Workflows"), &body))
}

fn listed(visitor: &Visitor, filters: &Filters, found: &RunPage) -> Markup {
    let (is_empty, has_more) = (found.runs.is_empty(), found.cursor.is_some());
    html! {
        div.stack #runs data-refresh="5000" data-also="pages" {
            @if is_empty && has_more {
                (view::empty("No matches yet", &html! { p { "Go to the next page to search older runs." } }))
            } @else if is_empty {
                (nothing(filters))
            } @else {
                div.scroll { (table(&found.runs, visitor.now(), true)) }
                form #selection method="post" action={ (PATH) "/cancel" } data-ask={ (PATH) "/question/ticked" } {
                    input type="hidden" name="next" value=(visitor.here);
                    button.danger type="submit" disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Cancel selected runs" }
                }
            }
        }
        div #pages { (view::pager(PATH, &filters.pairs(), found.cursor.as_deref())) }
    }
}

fn nothing(filters: &Filters) -> Markup {
    if !filters.is_empty() {
        let hint = html! { p { "Ended runs are listed until their log expires. " a href=(PATH) { "Show all runs" } } };
        return view::empty("No runs match", &hint);
    }
    let command = "curl -X POST \"$QSTASH_URL/v2/trigger/http://localhost:3000/orders\" -H \"Authorization: Bearer $QSTASH_TOKEN\" -d '{\"id\": 1}'";
    let hint = html! {
        p { "Serve a workflow with " code { "@upstash/workflow" } " or " code { "upstash-workflow" } ", and trigger it:" }
        (view::command(command))
    };
    view::empty("No runs yet", &hint)
}

fn table(runs: &[Run], now: Timestamp, has_boxes: bool) -> Markup {
    html! {
        table {
            caption.skip { "Runs, newest first" }
            thead { tr {
                @if has_boxes { th.tight scope="col" { input type="checkbox" aria-label="Select all" data-select-all="id"; } }
                th scope="col" { "State" } th scope="col" { "Run" } th scope="col" { "URL · labels" }
                th scope="col" { "Started" } th.number scope="col" { "Duration" } th.number scope="col" { "Steps" }
                th scope="col" { "Waiting for · cause" }
            } }
            tbody { @for run in runs { (row(run, now, has_boxes)) } }
        }
    }
}

fn row(run: &Run, now: Timestamp, has_boxes: bool) -> Markup {
    let (all, done) = run.count();
    html! {
        tr {
            @if has_boxes {
                td.tight {
                    @if run.is_running() {
                        input type="checkbox" form="selection" name="id" value=(run.id) aria-label={ "Select " (run.id) };
                    }
                }
            }
            td.tight { (run_state(run.state)) }
            td { a.mono.cut.id href=(run_path(&run.id, Some(run.created_at))) title=(run.id) { (run.id) } }
            td { (cut(&run.url)) @for label in &run.labels { span.cut.hint title=(label) { (label) } } }
            td.tight { (view::time(Timestamp(run.created_at), now)) }
            td.number.tight { (view::duration(run.end(now) - run.created_at)) }
            td.number.tight title={ (done) " of " (all) " known steps completed" } { (done) " / " (all) }
            td.waits { @if let Some(text) = waits_for(run, now).or_else(|| run.cause()) { (shortened(&text)) } }
        }
    }
}

/// A text in a few lines at most.
fn shortened(text: &str) -> Markup {
    let short: String = text.chars().take(TEXT_CHARS_MAX).collect();
    html! { span.lines title=[(short.len() < text.len()).then_some(text)] { (short) @if short.len() < text.len() { "…" } } }
}

/// The question before the selected runs are cancelled.
pub(super) async fn ask_ticked(_visitor: Visitor, RawQuery(query): RawQuery) -> Question {
    let count = Fields::parse(query.unwrap_or_default().as_bytes()).ticked("id").len();
    let ask = |ticked| format!("Cancel {ticked}? Running steps will finish, but their results will be dropped.");
    Question::of(question::ticked(count, "run").map(ask))
}

/// Before many runs are cancelled: how many, and the newest of them.
pub(super) async fn ask(visitor: Visitor, RawQuery(asked): RawQuery) -> Result<Markup, Problem> {
    let filters = Filters::read(&RUNS, &asked.unwrap_or_default());
    let back = format!("{PATH}?{}", filters.without_page());
    let found = match for_cancel(&filters, "1") {
        Ok(wanted) => count_and_list(&visitor, &filters, &wanted).await,
        Err(problem) => Err(problem),
    };
    let body = html! {
        div.title { h1 { "Cancel runs" } }
        @match &found {
            Err(problem) => {
                p.problem role="alert" { (problem.text) }
                p { a href=(back) { "Back to the list" } }
            }
            Ok((counted, found)) => (asked_for(&visitor, &filters, *counted, found, &back)),
        }
    };
    Ok(view::page(&visitor.frame("Cancel runs"), &body))
}

async fn count_and_list(visitor: &Visitor, filters: &Filters, wanted: &str) -> Result<(Counted, RunPage), Problem> {
    let counted = visitor.count(Countable::Runs, wanted).await?;
    Ok((counted, runs(visitor, filters, &[("state", "RUN_STARTED")], PAGES_SHOWN).await?))
}

fn asked_for(visitor: &Visitor, filters: &Filters, counted: Counted, found: &RunPage, back: &str) -> Markup {
    let how_many = question::how_many(counted, "running workflow").ok();
    let (is_none, are_some_hidden) = (counted.count == 0, found.runs.len() < counted.count);
    html! {
        section.card {
            @if !filters.is_empty() { p { "Running workflows with " strong { (filters.in_words()) } } }
            @match how_many {
                Some(how_many) => {
                    // One is not "all 1".
                    @let all = if filters.is_empty() && counted.count > 1 && !counted.has_more { "all " } else { "" };
                    p #hit { strong { "This cancels " (all) (how_many) "." } }
                    p { "Running steps will finish, but their results will be dropped. Failure functions will not be called." }
                }
                None => p #hit { "No running workflows match. There is nothing to cancel." },
            }
            div.actions {
                form.inline method="post" action={ (PATH) "/cancel-matching" } {
                    (filters.hidden())
                    input type="hidden" name="next" value=(back);
                    button.danger type="submit" disabled[!visitor.may_act() || is_none] title=[view::refusal(visitor)] { "Cancel runs" }
                }
                a.button href=(back) { "Keep running" }
            }
        }
        @if are_some_hidden { p.note { "The newest " (view::number(found.runs.len() as u64)) " runs are shown." } }
        @if !found.runs.is_empty() { div.scroll { (table(&found.runs, visitor.now(), false)) } }
    }
}

pub(super) async fn cancel_selected(visitor: Visitor, form: RawForm) -> Result<Response, Problem> {
    let fields = Fields::read(&form);
    // Without an id the API would be asked to cancel everything.
    let ids: Vec<(&str, &str)> = fields.ticked("id").into_iter().map(|id| ("workflowRunIds", id)).collect();
    if ids.is_empty() {
        return Ok(back_to(fields.one("next"), &question::none_ticked("run")));
    }
    let cancelled = cancel(&visitor, &query(&ids)).await?;
    let others = if cancelled == ids.len() { "" } else { " The others had already ended." };
    Ok(back_to(fields.one("next"), &format!("Cancelled {}.{others}", counted(cancelled, "run"))))
}

pub(super) async fn cancel_matching(visitor: Visitor, form: RawForm) -> Result<Response, Problem> {
    let fields = Fields::read(&form);
    let filters = Filters::read(&RUNS, &String::from_utf8_lossy(&form.0));
    let wanted = for_cancel(&filters, &BULK_CANCEL_COUNT_MAX.to_string())?;
    let mut all = 0;
    for round in 1..=CANCEL_ROUNDS_MAX {
        let cancelled = cancel(&visitor, &wanted).await?;
        all += cancelled;
        if cancelled < BULK_CANCEL_COUNT_MAX {
            break;
        }
        if round == CANCEL_ROUNDS_MAX {
            let said = format!("Cancelled {}. More may match; cancel again to continue.", counted(all, "run"));
            return Ok(back_to(fields.one("next"), &said));
        }
    }
    Ok(back_to(fields.one("next"), &format!("Cancelled {}.", counted(all, "run"))))
}

async fn cancel(visitor: &Visitor, wanted: &str) -> Result<usize, Problem> {
    let answer = visitor.send(Method::DELETE, &format!("/v2/workflows/runs?{wanted}"), &[], Vec::new()).await?;
    Ok(answer["cancelled"].as_u64().unwrap_or_default() as usize)
}
