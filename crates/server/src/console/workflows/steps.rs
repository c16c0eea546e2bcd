//! The steps of a run as rows with bars: when each was, and all that is known of it.

use super::data::{Group, Run, Step, StepError};
use super::run::TEXT_BYTES_MAX;
use super::spans::{Span, WIDTH, of_group, place, spans};
use super::{EVENTS_PATH, kind_of_state, run_path, step_state};
use crate::console::visitor::{query, segment};
use crate::console::{Visitor, view};
use maud::{Markup, html};
use posthaste_api_types::workflow::StepState;
use posthaste_wire::time::Timestamp;
use serde_json::Value;

/// Steps that one page shows; of more, it leads to the others.
pub(super) const STEPS_MAX: usize = 300;
/// The narrowest bar that is still seen, of [`WIDTH`].
const BAR_MIN: u64 = 4;
/// Into how many parts the axis is divided.
const PARTS: u64 = 4;

/// Whether little of the time of a run is that of steps which are done.
pub(super) fn is_mostly_waiting(run: &Run, now: Timestamp) -> bool {
    let last = done_at(run, &spans(run, now));
    last > run.created_at && place(last, (run.created_at, run.end(now))) < WIDTH / 2
}

/// When the last step that is done ended.
fn done_at(run: &Run, spans: &[Vec<Span>]) -> u64 {
    let steps = run.steps.iter().flat_map(|group| &group.steps).zip(spans.iter().flatten());
    let done = steps.filter(|(step, _)| step.state == StepState::Success);
    done.map(|(_, span)| span.end).max().unwrap_or(run.created_at)
}

/// The steps from this one on, with an axis above them, which may end with what is done.
pub(super) fn waterfall(visitor: &Visitor, run: &Run, from: usize, is_zoomed: bool) -> Markup {
    let now = visitor.now();
    let spans = spans(run, now);
    let last = if is_zoomed { done_at(run, &spans).max(run.created_at + 1) } else { run.end(now) };
    let chart = Chart { visitor, bounds: (run.created_at, last), now, dlq_id: run.dlq_id.as_deref() };
    let mut left_out = from;
    let mut left = STEPS_MAX;
    let mut rows = Vec::new();
    for (group, spans) in run.steps.iter().zip(&spans) {
        let first = left_out.min(group.steps.len());
        left_out -= first;
        let last = group.steps.len().min(first.saturating_add(left));
        left -= last - first;
        if first < last {
            rows.push(chart.group(group, &group.steps[first..last], spans, &spans[first..last]));
        }
    }
    html! {
        div.waterfall {
            div.axis aria-hidden="true" {
                span {}
                span.marks { @for part in 0..=PARTS { span { (chart.mark(part)) } } }
                span {}
            }
            @for row in rows { (row) }
        }
    }
}

/// How many steps there are, what comes next counted as well.
pub(super) fn shown_count(run: &Run) -> usize {
    run.steps.iter().map(|group| group.steps.len()).sum()
}

struct Chart<'a> {
    visitor: &'a Visitor,
    /// When the axis begins and ends.
    bounds: (u64, u64),
    now: Timestamp,
    /// The run has failed, and can be resumed.
    dlq_id: Option<&'a str>,
}

impl Chart<'_> {
    /// How long after the start a part of the axis begins.
    fn mark(&self, part: u64) -> String {
        let length = self.bounds.1 - self.bounds.0;
        view::duration(u64::try_from(u128::from(length) * u128::from(part) / u128::from(PARTS)).unwrap_or(length))
    }

    fn group(&self, group: &Group, steps: &[Step], all: &[Span], spans: &[Span]) -> Markup {
        let rows = html! { @for (step, span) in steps.iter().zip(spans) { (self.step(step, span, &group.kind)) } };
        if group.kind != "parallel" {
            return rows;
        }
        let (start, end) = of_group(all).unwrap_or(self.bounds);
        html! {
            div.branches role="group" aria-label="Parallel steps" {
                div.step-row.group-row {
                    span.what { strong { (group.steps.len()) " in parallel" } }
                    (self.bar("group", start, end, None, &[]))
                    span.took { (view::duration(end - start)) }
                }
                (rows)
            }
        }
    }

    fn step(&self, step: &Step, span: &Span, kind: &str) -> Markup {
        let class = kind_of_state(step.state);
        // What has gone wrong, or waits, is what one looks for.
        let is_open = matches!(class, "bad" | "warn");
        let key = format!("{} {}", step.step_id.unwrap_or_default(), title(step, kind));
        html! {
            details.step data-key=(key) open[is_open] {
                summary.step-row {
                    span.what {
                        strong.cut title=(title(step, kind)) { (title(step, kind)) }
                        span.quiet { (kind_of(step, kind)) } " " (step_state(step.state))
                        @if step.errors.len() > 1 || step.execution.as_ref().is_some_and(|execution| execution.attempts > 1) {
                            span.quiet { " " (attempts(step)) " attempts" }
                        }
                    }
                    (self.bar(class, span.start, span.end, span.attempt, &span.failures))
                    span.took { (view::duration(span.end - span.start)) }
                }
                div.step-body { (self.body(step, span, kind)) }
            }
        }
    }

    fn bar(&self, class: &str, start: u64, end: u64, attempt: Option<(u64, u64)>, failures: &[u64]) -> Markup {
        let at = |time: u64| place(time, self.bounds);
        let rect = |start: u64, end: u64| {
            let width = (at(end) - at(start)).max(BAR_MIN);
            (at(start).min(WIDTH - width), width)
        };
        let since = |time: u64| view::duration(time.saturating_sub(self.bounds.0));
        let (x, width) = rect(start, end);
        html! {
            svg.bar viewBox={ "0 0 " (WIDTH) " 12" } preserveAspectRatio="none" role="img"
                aria-label={ "from " (since(start)) " to " (since(end)) " after the start" } {
                @for part in 0..=PARTS {
                    line.mark x1=(part * WIDTH / PARTS) x2=(part * WIDTH / PARTS) y1="0" y2="12" {}
                }
                rect.(class) x=(x) y="1" width=(width) height="10" rx="1" {}
                @if let Some((start, end)) = attempt {
                    @let (x, width) = rect(start, end.max(start));
                    rect.attempt.(class) x=(x) y="1" width=(width) height="10" {}
                }
                @for time in failures { rect.failure x=(at(*time).min(WIDTH - BAR_MIN)) y="0" width=(BAR_MIN) height="12" {} }
            }
        }
    }

    fn body(&self, step: &Step, span: &Span, kind: &str) -> Markup {
        html! {
            @if let (Some(dlq_id), StepState::Failed) = (self.dlq_id, step.state) {
                div.actions {
                    (view::button(self.visitor, "/console/workflows/failed/resume", "Retry this step", None, &[("dlqId", dlq_id)]))
                    span.hint { "A new run keeps the completed steps and continues from here." }
                }
            }
            @if step.can_go_now(self.now) {
                @if let Some(id) = &step.message_id {
                    div.actions {
                        (view::button(self.visitor, "/console/workflows/retry", now_name(step), None, &[("messageId", id)]))
                    }
                }
            }
            (self.facts(step, span, kind))
            (texts(step))
            (failures(&step.errors, self.now))
        }
    }

    fn facts(&self, step: &Step, span: &Span, kind: &str) -> Markup {
        let time = |millis: u64| view::time_in_full(Timestamp(millis), self.now);
        let ended = matches!(step.state, StepState::Success | StepState::Failed | StepState::Canceled);
        html! {
            dl.facts {
                dt { "Started" } dd { (time(span.start)) }
                @if ended && !step.is_trigger() { dt { "Ended" } dd { (time(span.end)) } }
                @if let Some(execution) = &step.execution {
                    dt { "Attempts" }
                    dd {
                        (attempts(step)) @if let Some(ms) = execution.duration { ", the last one took " (view::duration(ms)) }
                        span.quiet {
                            " · retries allowed: " (step.retries)
                            @if let Some(delay) = &step.retry_delay { ", retry delay " code { (delay) } " ms" }
                        }
                    }
                }
                @if let Some(due) = step.next_delivery_time {
                    dt { (if step.state == StepState::Retry { "Next attempt" } else { "Due" }) } dd { (time(due)) }
                }
                @if let Some(length) = &step.sleep_for { dt { "Sleeps for" } dd { (length) @if length.parse::<f64>().is_ok() { " s" } } }
                @if let Some(until) = &step.sleep_until { dt { "Sleeps until" } dd { (until) span.quiet { " (Unix seconds)" } } }
                @if let Some(event) = &step.wait_event_id { (self.wait(step, event)) }
                @if let Some(url) = &step.call_url {
                    dt { "Call" } dd { code { (step.call_method.as_deref().unwrap_or("GET")) " " (url) } }
                }
                @if let Some(status) = &step.call_response_status { dt { "Response" } dd { "status " (status) } }
                @if let Some(id) = &step.invoked_id {
                    dt { "Invoked run" } dd { a.mono href=(run_path(id, step.invoked_created_at)) { (id) } }
                    @if let Some(url) = &step.invoked_url { dt { "Invoked URL" } dd { code { (url) } } }
                }
                @if let Some(id) = &step.message_id {
                    dt { (if kind == "next" { "Delivery" } else { "Message" }) }
                    dd {
                        code { (id) }
                        // What it waits for is known for as long as it waits.
                        @if step.next_delivery_time.is_some() || (kind == "next" && !ended) {
                            " " a href={ "/console/messages/" (segment(id)) } { "Show why it waits" }
                        }
                    }
                }
            }
        }
    }

    fn wait(&self, step: &Step, event: &str) -> Markup {
        html! {
            dt { "Event" }
            dd { a href={ (EVENTS_PATH) "?" (query(&[("event", event)])) } { (event) } @if step.wait_timeout { " (timed out)" } }
            @if let Some(deadline) = step.wait_timeout_deadline {
                dt { "Deadline" }
                dd {
                    (view::time_in_full(Timestamp(deadline), self.now))
                    @if let Some(length) = &step.wait_timeout_duration { span.quiet { " · timeout " (length) } }
                }
            }
        }
    }
}

fn title<'a>(step: &'a Step, kind: &str) -> &'a str {
    match step.name() {
        _ if step.is_trigger() => "Trigger",
        Some(name) => name,
        None if kind == "next" => "Next step",
        None => "(unnamed)",
    }
}

/// What a step does, in a word.
fn kind_of<'a>(step: &'a Step, kind: &str) -> &'a str {
    match step.step_type.as_deref().unwrap_or_default() {
        "Initial" => "payload",
        "SleepFor" | "SleepUntil" => "sleep",
        "Wait" => "wait for an event",
        "WaitForWebhook" => "wait for a webhook",
        "CreateWebhook" => "webhook",
        "Notify" => "notify",
        "Call" => "call",
        "Invoke" => "invoke",
        "Run" => "run",
        "" if kind == "next" => "next step",
        other => other,
    }
}

fn now_name(step: &Step) -> &'static str {
    match step.state {
        StepState::Retry => "Retry now",
        _ if step.is_sleep() => "Wake up now",
        _ => "Start now",
    }
}

fn attempts(step: &Step) -> u64 {
    step.execution.as_ref().map_or(0, |execution| execution.attempts).max(step.errors.len() as u64)
}

/// What went in and what came out.
fn texts(step: &Step) -> Markup {
    let out = if step.is_trigger() { "Payload" } else { "Output" };
    let texts = [
        ("Call body", &step.call_body),
        ("Response body", &step.call_response_body),
        ("Invocation body", &step.invoked_body),
        (out, &step.out),
    ];
    let headers = [
        ("Headers", &step.headers),
        ("Call headers", &step.call_headers),
        ("Response headers", &step.call_response_headers),
        ("Invocation headers", &step.invoked_headers),
    ];
    html! {
        @for (title, text) in texts {
            @if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) { (shown(title, text)) }
        }
        @for (title, headers) in headers { (header_lines(title, headers)) }
    }
}

/// A text of a run, which the API has cut when it was long.
pub(super) fn shown(title: &str, text: &str) -> Markup {
    html! {
        (view::text(title, text))
        // Cut between characters.
        @if text.len() + 4 > TEXT_BYTES_MAX { p.hint { "Only the beginning is shown. Use the API to read all of it." } }
    }
}

fn header_lines(title: &str, headers: &Value) -> Markup {
    let Some(headers) = headers.as_object().filter(|headers| !headers.is_empty()) else { return html! {} };
    let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    html! {
        details.text {
            summary { (title) span.quiet { " · " (headers.len()) } }
            pre tabindex="0" {
                @for (name, values) in headers {
                    @match values {
                        Value::Array(values) => { @for one in values { (name) ": " (value(one)) "\n" } }
                        other => { (name) ": " (value(other)) "\n" }
                    }
                }
            }
        }
    }
}

/// Attempts that failed.
pub(super) fn failures(errors: &[StepError], now: Timestamp) -> Markup {
    html! {
        @if !errors.is_empty() {
            h3 { "Failed attempts" }
            ol.failures {
                @for error in errors {
                    li {
                        strong { (error.in_words()) } " " (view::time(Timestamp(error.time), now))
                        @if !error.body.is_empty() { (shown("Response", &error.body)) }
                        (header_lines("Response headers", &error.headers))
                    }
                }
            }
        }
    }
}
