//! Live logs: log lines as they come.

use super::visitor::{Problem, query};
use super::{Desk, Visitor, view};
use crate::clock::Clock;
use crate::sse::{self, READER_PATIENCE};
use axum::Router;
use axum::extract::Query;
use axum::http::Method;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::BodyExt;
use maud::{Markup, html};
use posthaste_api_types::log::{LogLine, LogState, Missed};
use posthaste_engine::attempt_error::{Timeout, for_people};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Lines that the page begins with.
const FIRST_LINES: &str = "50";
/// Lines per second that a page gets; nobody reads more. The rest is left out, and counted.
const LINES_PER_SECOND: &str = "50";
/// Columns of the table.
const COLUMNS: u32 = 8;
/// How long a browser waits before it asks again for a stream that was refused.
const RETRY_MS: u32 = 10_000;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new().route("/tail", get(show)).route("/tail/stream", get(stream))
}

/// Which lines: names as the API has them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct Filters {
    state: String,
    message_id: String,
    url: String,
    host: String,
    label: String,
    queue_name: String,
    flow_control_key: String,
    schedule_id: String,
    topic_name: String,
    path: String,
    caller_ip: String,
    source_message_id: String,
}

impl Filters {
    fn pairs(&self) -> Vec<(&'static str, &str)> {
        vec![
            ("state", self.state.trim()),
            ("messageId", self.message_id.trim()),
            ("url", self.url.trim()),
            ("host", self.host.trim()),
            ("label", self.label.trim()),
            ("queueName", self.queue_name.trim()),
            ("flowControlKey", self.flow_control_key.trim()),
            ("scheduleId", self.schedule_id.trim()),
            ("topicName", self.topic_name.trim()),
            ("path", self.path.trim()),
            ("callerIp", self.caller_ip.trim()),
            ("sourceMessageId", self.source_message_id.trim()),
        ]
    }

    fn is_empty(&self) -> bool {
        self.pairs().iter().all(|(_, value)| value.is_empty())
    }

    /// The same with more, as a query.
    fn with(&self, more: &[(&str, &str)]) -> String {
        query(&[&self.pairs()[..], more].concat())
    }
}

/// Why there is no response.
fn error_of(line: &LogLine) -> Option<Cow<'_, str>> {
    Some(for_people(line.error.as_deref()?, Timeout::of(line.terms.timeout)))
}

#[derive(Deserialize)]
struct Page {
    events: Vec<LogLine>,
}

async fn show(visitor: Visitor, Query(filters): Query<Filters>) -> Result<Markup, Problem> {
    let first = [("count", FIRST_LINES), ("trimBody", "0")];
    let (lines, problem) = match visitor.get::<Page>(&format!("/v2/events?{}", filters.with(&first))).await {
        Ok(page) => (page.events, None),
        Err(problem) if problem.status.is_client_error() => (Vec::new(), Some(problem.text)),
        Err(problem) => return Err(problem),
    };
    let stream = problem.is_none().then(|| format!("/console/tail/stream?{}", filters.with(&[])));
    let body = html! {
        div.title {
            h1 { "Live logs" }
            span #tail-status.quiet role="status" {
                noscript { "Live updates need JavaScript. Reload the page to see new lines." }
            }
            div.actions { button type="button" data-pause="lines" aria-pressed="false" { "Pause" } }
        }
        (form(&filters))
        @if let Some(text) = &problem { p.problem role="alert" { (text) } }
        div.scroll {
            table {
                caption.quiet { "Log lines, newest first" }
                thead { tr {
                    th.tight scope="col" { "Time (UTC)" }
                    th.tight scope="col" { "State" }
                    th scope="col" { "Message" }
                    th scope="col" { "Destination" }
                    th scope="col" { "Label, queue" }
                    th scope="col" { "Key" }
                    th.number scope="col" { "Attempt" }
                    th scope="col" { "Details" }
                } }
                tbody #lines data-tail=[stream] data-status="tail-status" data-rows="500" {
                    @for line in &lines { (row(line, visitor.now())) }
                    @if lines.is_empty() && problem.is_none() { (none(&filters)) }
                }
            }
        }
    };
    Ok(view::page(&visitor.frame("Live logs"), &body))
}

fn form(filters: &Filters) -> Markup {
    let states =
        ["CREATED", "ACTIVE", "ERROR", "RETRY", "DELIVERED", "FAILED", "CANCEL_REQUESTED", "CANCELED", "IN_PROGRESS"];
    let texts = [
        ("messageId", "Message ID", &filters.message_id),
        ("url", "URL", &filters.url),
        ("host", "Host", &filters.host),
        ("label", "Label", &filters.label),
        ("queueName", "Queue", &filters.queue_name),
        ("flowControlKey", "Flow-control key", &filters.flow_control_key),
        ("scheduleId", "Schedule ID", &filters.schedule_id),
        ("topicName", "URL group", &filters.topic_name),
        ("path", "Path", &filters.path),
        ("callerIp", "Caller IP", &filters.caller_ip),
        ("sourceMessageId", "Source message", &filters.source_message_id),
    ];
    html! {
        details.card open[!filters.is_empty()] {
            summary { "Filters" }
            form.filters method="get" action="/console/tail" aria-label="Filters" {
            label { "State"
                select name="state" {
                    option value="" { "any" }
                    @for state in states {
                        option value=(state) selected[state == filters.state] { (view::state_word(state)) }
                    }
                }
            }
            @for (name, title, value) in texts {
                label { (title) input type="text" name=(name) value=(value) autocomplete="off" spellcheck="false"; }
            }
            div.actions {
                button.primary type="submit" { "Apply" }
                @if !filters.is_empty() { a.button href="/console/tail" { "Clear" } }
            }
        }
        }
    }
}

/// In the place of lines; the script takes it away when there is one.
fn none(filters: &Filters) -> Markup {
    html! {
        tr.none {
            td colspan=(COLUMNS) {
                @if filters.is_empty() {
                    (view::empty("No log lines yet", &html! {
                        p { "Send a message. Its log lines appear here." }
                        p { a.button href="/console/send" { "Send a message" } }
                    }))
                } @else {
                    (view::empty("No log lines match", &html! { p { "New matching lines appear here." } }))
                }
            }
        }
    }
}

/// A line; with its day if that is not today.
fn row(line: &LogLine, now: Timestamp) -> Markup {
    let (at, today) = (view::utc(line.time), view::utc(now));
    let (day, clock) = at.trim_end_matches('Z').split_once('T').unwrap_or((&at, ""));
    let target = format!("/console/messages/{}", super::visitor::segment(&line.message_id));
    let queue = line.terms.queue_name.as_ref().map(|queue| format!("queue {queue}"));
    let marks: Vec<String> = line.terms.label.iter().cloned().chain(queue).collect();
    let marks = marks.join(", ");
    html! {
        tr {
            td.tight { time datetime=(at) title=(at) { @if !today.starts_with(day) { span.day { (day) " " } } (clock) } }
            td.tight { (view::log_state(line.state)) }
            td { a.mono.cut.id href=(target) title=(line.message_id) { (line.message_id) } }
            td {
                span.cut title=(line.source.url) { @if line.terms.method != "POST" { span.quiet { (line.terms.method) } " " } (line.source.url) }
            }
            td { span.cut.short title=(marks) { (marks) } }
            td { @if let Some(key) = &line.terms.flow_control_key { span.cut.short title=(key) { (key) } } }
            td.number {
                @if let Some(attempt) = line.attempt { (attempt) span.quiet { " / " (line.source.max_retries.saturating_add(1)) } }
            }
            td { span.cut.happened title=[error_of(line)] { (happened(line)) } }
        }
    }
}

/// What the line says besides its state.
fn happened(line: &LogLine) -> Markup {
    let at = line.time;
    html! {
        @if let Some(status) = line.response_status.filter(|status| *status > 0) { "returned " (status) }
        @if let Some(millis) = line.duration { " in " (view::duration(millis)) }
        @if let Some(error) = error_of(line) { " " (error) }
        @else if line.state == LogState::Failed { "moved to DLQ" }
        @if let Some(next) = line.next_delivery_time {
            @if line.state == LogState::Created { "first attempt " } @else { "next attempt " }
            (view::time(next, at))
        }
    }
}

fn missed(count: u64) -> Markup {
    html! {
        tr.missed {
            td colspan=(COLUMNS) {
                (view::number(count)) @if count == 1 { " line was" } @else { " lines were" }
                " skipped here, because there were too many to show. Use filters to see fewer lines."
            }
        }
    }
}

/// The API's stream as rows.
async fn stream(visitor: Visitor, Query(filters): Query<Filters>) -> Result<Response, Problem> {
    let more = [("trimBody", "0"), ("maxPerSecond", LINES_PER_SECOND)];
    let target = format!("/v2/events/stream?{}", filters.with(&more));
    let answer = visitor.desk.api.serve(visitor.request(Method::GET, &target, &[], Vec::new())?).await;
    let (sender, receiver) = mpsc::channel(1);
    if answer.status().is_success() {
        let clock = visitor.desk.app.clock.clone();
        tokio::spawn(async move { pass_on(answer, &clock, &sender, READER_PATIENCE).await });
    } else {
        let bytes = answer.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let said: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = said["error"].as_str().unwrap_or("the API rejected the stream");
        let event = format!("retry: {RETRY_MS}\n{}", sse::event("problem", text));
        // The receiver is in our hand.
        let _ = sender.send(Bytes::from(event)).await;
    }
    Ok(sse::response(receiver))
}

/// Until either end is gone. A browser that has stopped to read is: if it comes back, it asks again.
async fn pass_on(answer: Response, clock: &Clock, out: &mpsc::Sender<Bytes>, patience: Duration) {
    let mut body = answer.into_body();
    let mut reader = sse::Reader::default();
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = out.closed() => return,
        };
        let Some(Ok(frame)) = frame else { return };
        let events = reader.read(frame.data_ref().map_or(&[], |bytes| &bytes[..]));
        let text = rows(&events, clock.now()).unwrap_or_else(|| sse::HEARTBEAT.to_owned());
        if sse::hand_over(out, text, patience).await.is_err() {
            return;
        }
    }
}

/// Events of the API as an event of ours: its rows, the newest first.
fn rows(events: &[sse::Event], now: Timestamp) -> Option<String> {
    let row = |event: &sse::Event| match event.name.as_str() {
        "line" => serde_json::from_str::<LogLine>(&event.data).ok().map(|line| row(&line, now)),
        "missed" => serde_json::from_str::<Missed>(&event.data).ok().map(|data| missed(data.count)),
        _ => None,
    };
    let rows: String = events.iter().rev().filter_map(row).map(Markup::into_string).collect();
    (!rows.is_empty()).then(|| sse::event("row", &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_escaped_and_newest_first() {
        let line = |state: &str, url: &str| sse::Event {
            name: "line".into(),
            data: serde_json::json!({
                "time": 1_794_830_400_123_u64, "state": state, "messageId": "msg_\"<", "url": url,
                "method": "POST", "maxRetries": 3, "callerIP": "",
            })
            .to_string(),
        };
        let now = Timestamp(1_794_830_401_000);
        let gone = sse::Event { name: "missed".into(), data: "{\"count\":1200}".into() };
        let text = rows(&[line("CREATED", "https://a/<script>\nx"), line("ACTIVE", "b"), gone], now).unwrap();
        let places = ["1\u{202f}200 lines were skipped", ">in flight<", ">created<"].map(|part| text.find(part));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {text}");
        assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{text}");
        assert!(text.contains("href=\"/console/messages/msg_%22%3C\""), "{text}");
        let read = sse::Reader::default().read(text.as_bytes());
        assert_eq!(read.len(), 1, "a line feed in a stranger's text ends no event");
        assert!(read[0].data.contains(">12:00:00.123<"), "the day is today: {text}");
        let later = rows(&[line("ACTIVE", "b")], now.plus_millis(86_400_000)).unwrap();
        assert!(later.contains("2026-11-16 </span>12:00:00.123"), "{later}");
        assert_eq!(rows(&[sse::Event { name: "other".into(), data: String::new() }], now), None);
    }

    #[tokio::test]
    async fn a_browser_that_has_stopped_to_read_ends_its_stream() {
        let (lines, of_the_api) = mpsc::channel(2);
        for _ in 0..2 {
            lines.send(Bytes::from(sse::HEARTBEAT)).await.unwrap();
        }
        let (sender, mut browser) = mpsc::channel(1);
        let (clock, patience) = (Clock::manual(Timestamp(0)), Duration::from_millis(20));
        let passing = pass_on(sse::response(of_the_api), &clock, &sender, patience);
        tokio::time::timeout(Duration::from_secs(10), passing).await.expect("it does not wait for ever");
        assert!(lines.is_closed(), "the API's stream has ended too");
        drop(sender);
        assert_eq!(browser.recv().await.as_deref(), Some(sse::HEARTBEAT.as_bytes()));
        assert_eq!(browser.recv().await, None, "so that it asks again");
    }
}
