//! One run: what it waits for, its steps in time, and what can be done about it.

use super::data::{FailureFunction, Run, RunPage, Usage};
use super::steps::{self, STEPS_MAX, shown};
use super::waits::{events, waits_for};
use super::{FAILED_PATH, Fields, PATH, run_path, run_state, tabs};
use crate::console::visitor::{Problem, query, segment};
use crate::console::{ROOT, Visitor, back_to, view};
use axum::extract::{Path, Query, RawForm};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;

/// Bytes of each text of a run that are shown; the rest is cut.
pub(super) const TEXT_BYTES_MAX: usize = 16 * 1024;
/// Steps up to which a page is fetched again often.
const STEPS_OFTEN: usize = 50;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Which {
    /// Which of the runs that have had this id; the newest unless it is said.
    created_at: Option<String>,
    /// The first step that is shown.
    #[serde(default)]
    from: usize,
    /// Anything: the axis ends with what is done, because what goes on may take days.
    zoom: Option<String>,
}

pub(super) async fn show(
    visitor: Visitor,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Result<Markup, Problem> {
    let created_at = which.created_at.as_deref().unwrap_or_default();
    let (run, is_whole) = find(&visitor, &id, created_at).await?;
    let title = format!("Run {}", run.id);
    let interval = if steps::shown_count(&run) > STEPS_OFTEN { "10000" } else { "2000" };
    let body = html! {
        div #run.stack data-refresh=[run.is_running().then_some(interval)] {
            (head(&visitor, &run))
            @if !is_whole { p.note { "This run is too large to show its payloads and results. Use the API to read them." } }
            (story(&visitor, &run, &which))
        }
        @if run.is_running() { (notify(&visitor, &run)) }
    };
    Ok(view::page(&visitor.frame(&title), &body))
}

/// The run, and whether it comes with its texts.
async fn find(visitor: &Visitor, id: &str, created_at: &str) -> Result<(Run, bool), Problem> {
    let trim = TEXT_BYTES_MAX.to_string();
    let asked = |trim: &str| {
        let pairs = [("workflowRunId", id), ("workflowCreatedAt", created_at), ("usage", "true"), ("trimBody", trim)];
        format!("/v2/workflows/logs?{}", query(&pairs))
    };
    let (page, is_whole): (RunPage, bool) = match visitor.get(&asked(&trim)).await {
        // More than a page may be made of.
        Err(Problem { status: StatusCode::BAD_GATEWAY, .. }) => (visitor.get(&asked("0")).await?, false),
        answer => (answer?, true),
    };
    let absent = || Problem {
        status: StatusCode::NOT_FOUND,
        text: format!("Run {id} not found. Ended runs are kept as long as logs."),
    };
    let run = page.runs.into_iter().find(|run| run.id == id).ok_or_else(absent)?;
    Ok((run, is_whole))
}

fn head(visitor: &Visitor, run: &Run) -> Markup {
    let stop = "Cancel this run? Running steps will finish, but their results will be dropped. The failure function will not be called.";
    html! {
        div.title {
            h1 { "Run " code { (run.id) } }
            (run_state(run.state))
            (tabs(""))
            div.actions {
                button type="button" data-copy=(run.id) { "Copy ID" }
                @if run.is_running() {
                    (view::button(visitor, &format!("{PATH}/runs/{}/cancel", segment(&run.id)), "Cancel", Some(stop),
                        &[("createdAt", &run.created_at.to_string())]))
                }
                @if let Some(dlq_id) = &run.dlq_id { (super::failed::actions(visitor, dlq_id)) }
            }
        }
    }
}

fn story(visitor: &Visitor, run: &Run, which: &Which) -> Markup {
    let now = visitor.now();
    html! {
        @if let Some(waits) = waits_for(run, now) {
            p.note #waits aria-live="polite" { "Waiting for " (waits) "." }
        }
        @if let Some(cause) = run.cause().filter(|_| !run.is_running()) {
            p.problem #cause { "Failed: " (cause) }
        }
        @if let Some(dlq_id) = &run.dlq_id { (super::failed::with_other_settings(visitor, dlq_id)) }
        section.card { h2 { "Details" } (facts(run, now)) }
        section.card {
            h2 { "Steps" }
            (zoom(visitor, run, which))
            (steps::waterfall(visitor, run, which.from, which.zoom.is_some()))
            (pages(run, which.from))
        }
        @if let Some(response) = &run.response { section.card { h2 { "Result" } (shown("Output", response)) } }
        @if let Some(call) = &run.failure_function { (failure(visitor, run, call)) }
    }
}

/// The way to another axis, where that shows more.
fn zoom(visitor: &Visitor, run: &Run, which: &Which) -> Markup {
    let path = run_path(&run.id, Some(run.created_at));
    html! {
        @if which.zoom.is_some() {
            p.hint { a href=(path) { "Show the whole run" } }
        } @else if steps::is_mostly_waiting(run, visitor.now()) {
            p.hint { a href={ (path) "&zoom=done" } { "Zoom to the completed steps" } }
        }
    }
}

/// The way to steps that are not shown.
fn pages(run: &Run, from: usize) -> Markup {
    let count = steps::shown_count(run);
    let path = run_path(&run.id, Some(run.created_at));
    let last = from.saturating_add(STEPS_MAX).min(count);
    html! {
        @if count > STEPS_MAX {
            nav.pager aria-label="More steps" {
                span { "Steps " (from + 1) " to " (last) " of " (count) }
                @if from > 0 { a href={ (path) "&from=" (from.saturating_sub(STEPS_MAX)) } { "Earlier steps" } }
                @if last < count { a href={ (path) "&from=" (last) } { "Later steps" } }
            }
        }
    }
}

fn facts(run: &Run, now: Timestamp) -> Markup {
    let (all, done) = run.count();
    html! {
        div.columns {
            dl.facts {
                dt { "URL" } dd { code { (view::long(&run.url)) } }
                @if !run.labels.is_empty() {
                    dt { "Labels" }
                    dd { @for label in &run.labels { a href={ (PATH) "?" (query(&[("label", label)])) } { (label) } " " } }
                }
                dt { "Triggered by" }
                dd {
                    @if let Some(invoker) = &run.invoker {
                        "run " a.mono href=(run_path(&invoker.id, invoker.created_at)) { (invoker.id) }
                    } @else { (run.caller_ip.as_deref().unwrap_or("an unknown address")) }
                }
                @if let Some(key) = &run.flow_control_key {
                    dt { "Flow control" }
                    dd {
                        a href={ (ROOT) "/flow-control/key?" (query(&[("key", key)])) } { (key) } " · "
                        a href={ (PATH) "?" (query(&[("flowControlKey", key)])) } { "runs with this key" }
                    }
                }
                @if let Some(dlq_id) = &run.dlq_id {
                    dt { "DLQ" }
                    dd { a href={ (FAILED_PATH) "?" (query(&[("workflowRunId", &run.id)])) } { code { (dlq_id) } } }
                }
                dt { "Same ID" } dd { a href={ (PATH) "?" (query(&[("workflowRunId", &run.id)])) } { "Show all runs with this ID" } }
            }
            dl.facts {
                dt { "Started" } dd { (view::time_in_full(Timestamp(run.created_at), now)) }
                @if let Some(ended) = run.completed_at { dt { "Ended" } dd { (view::time_in_full(Timestamp(ended), now)) } }
                dt { "Duration" } dd { (view::duration(run.end(now) - run.created_at)) }
                dt { "Steps" } dd { @if all == 0 { "none yet" } @else { (done) " of " (all) " known steps completed" } }
                @if let Some(usage) = &run.usage { (budgets(run, usage, now)) }
            }
        }
    }
}

/// What it has used of what it may use.
fn budgets(run: &Run, usage: &Usage, now: Timestamp) -> Markup {
    let budgets = [
        ("Entries", usage.entries, usage.max_entries, view::number as fn(u64) -> String),
        ("Bytes", usage.bytes, usage.max_bytes, bytes),
        ("Time", run.end(now) - run.created_at, usage.max_duration, view::duration),
    ];
    html! {
        dt { "Limits" }
        dd.budgets {
            @for (name, used, max, shown) in budgets {
                label { (name) " " (shown(used)) " of " (shown(max)) meter min="0" max=(max) high=(max / 10 * 8) value=(used.min(max)) {} }
            }
        }
    }
}

/// `1.5 MiB`.
fn bytes(bytes: u64) -> String {
    match bytes {
        ..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{}.{} KiB", bytes / 1_024, bytes % 1_024 * 10 / 1_024),
        _ => format!("{}.{} MiB", bytes / 1_048_576, bytes % 1_048_576 * 10 / 1_048_576),
    }
}

/// How telling of its failure stands.
fn failure(visitor: &Visitor, run: &Run, call: &FailureFunction) -> Markup {
    let now = visitor.now();
    html! {
        section.card #failure {
            h2 { "Failure callback " (callback_state(&call.state)) }
            div.actions {
                @if call.next_delivery_time.is_some_and(|due| due > now.as_millis()) {
                    (view::button(visitor, &format!("{PATH}/retry"), "Retry now", None, &[("messageId", &call.message_id)]))
                }
                @if let Some(dlq_id) = &run.dlq_id { (super::failed::callback_actions(visitor, dlq_id, &call.state)) }
            }
            dl.facts {
                dt { "Run failed with" } dd { "status " (call.fail_status) }
                @if let Some(status) = call.response_status { dt { "Response" } dd { "status " (status) } }
                @if let Some(due) = call.next_delivery_time { dt { "Next attempt" } dd { (view::time_in_full(Timestamp(due), now)) } }
            }
            @if !call.fail_response.is_empty() { (shown("Payload: last response of the workflow", &call.fail_response)) }
            @if let Some(body) = call.response_body.as_deref().filter(|body| !body.is_empty()) { (shown("Response body", body)) }
            (steps::failures(&call.errors, now))
        }
    }
}

/// A state of a failure callback.
pub(super) fn callback_state(state: &str) -> Markup {
    let (kind, name) = match state {
        "CALLBACK_SUCCESS" => ("good", "succeeded"),
        "CALLBACK_FAIL" => ("bad", "failed"),
        "CALLBACK_CANCELED" => ("off", "cancelled"),
        _ => ("busy", "in progress"),
    };
    html! { span.state.(kind) { (name) } }
}

/// A form that sends the run an event.
fn notify(visitor: &Visitor, run: &Run) -> Markup {
    let events = events(run);
    html! {
        section.card #notify {
            h2 { "Send an event" }
            form.fields method="post" action={ (PATH) "/notify" } {
                input type="hidden" name="run" value=(run.id);
                input type="hidden" name="next" value=(visitor.here);
                label { "Event" input name="event" required list="events" value=(events.first().copied().unwrap_or_default()) maxlength="1024" autocomplete="off"; }
                datalist #events { @for event in &events { option value=(event) {} } }
                label { "Data" textarea name="data" placeholder="{\"approved\": true}" {} }
                div.actions { button.primary type="submit" disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Send event" } }
                p.hint {
                    @if events.is_empty() { "This run does not wait for an event now. The event is stored until it does." }
                    @else { "An event that the run does not wait for yet is stored until it does." }
                }
            }
        }
    }
}

pub(super) async fn cancel(visitor: Visitor, Path(id): Path<String>, form: RawForm) -> Result<Response, Problem> {
    let fields = Fields::read(&form);
    let headers = [("Upstash-Workflow-CreatedAt", fields.one("createdAt"))];
    let headers = if headers[0].1.is_empty() { &[][..] } else { &headers[..] };
    visitor.send(Method::DELETE, &format!("/v2/workflows/runs/{}", segment(&id)), headers, Vec::new()).await?;
    Ok(back_to(fields.one("next"), &format!("Cancelled {id}.")))
}

/// Ends the wait of a step.
pub(super) async fn retry(visitor: Visitor, form: RawForm) -> Result<Response, Problem> {
    let fields = Fields::read(&form);
    let id = fields.one("messageId");
    visitor.send(Method::POST, &format!("/v2/messages/{}/retry", segment(id)), &[], Vec::new()).await?;
    Ok(back_to(fields.one("next"), "Starting now."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_unit_that_fits() {
        for (count, expected) in
            [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (1_048_575, "1023.9 KiB"), (104_857_600, "100.0 MiB")]
        {
            assert_eq!(bytes(count), expected);
        }
    }
}
