//! The story of a message: what happened, and each attempt with what its time was spent on.

use super::data::{Headers, Line};
use super::one::Story;
use crate::console::view;
use maud::{Markup, html};
use posthaste_api_types::log::{Connection, LogState};
use posthaste_engine::attempt_error::{Timeout, for_people};
use posthaste_wire::signature::LIFETIME_SECONDS;
use posthaste_wire::time::Timestamp;

/// Something that happened.
enum Happening<'a> {
    /// A line that stands for itself.
    Line(&'a Line),
    /// An attempt: how many there were before it, its start, and its end if there was one.
    Attempt(usize, &'a Line, Option<&'a Line>),
}

/// Puts starts and ends of attempts together. After a crash an attempt may have no end.
fn happenings(lines: &[Line]) -> Vec<Happening<'_>> {
    let mut found: Vec<Happening<'_>> = Vec::new();
    let mut attempts = 0;
    for line in lines {
        let ends = line.duration.is_some();
        match (line.state, found.iter_mut().rev().find(|happening| is_open(happening))) {
            (LogState::Active, _) => {
                found.push(Happening::Attempt(attempts, line, None));
                attempts += 1;
            }
            (_, Some(Happening::Attempt(_, _, end))) if ends => {
                *end = Some(line);
                // What was cancelled meanwhile ends with its attempt.
                if line.state == LogState::Canceled {
                    found.push(Happening::Line(line));
                }
            }
            _ => found.push(Happening::Line(line)),
        }
    }
    found
}

fn is_open(happening: &Happening<'_>) -> bool {
    matches!(happening, Happening::Attempt(_, _, None))
}

pub(super) fn show(story: &Story, now: Timestamp) -> Markup {
    if story.lines.is_empty() {
        return html! {
            @match &story.run {
                Some(run) => p { "This message is a step of a workflow. See " a href=(run) { "its run" } "." },
                None => p.quiet { "The log of this message has expired." },
            }
        };
    }
    html! {
        @if story.is_cut { p.hint { "Older log lines are not shown." } }
        ol.timeline {
            @for happening in happenings(&story.lines) {
                @match happening {
                    Happening::Line(line) => (one_line(line, now)),
                    Happening::Attempt(nth, start, end) => (attempt(story, nth, start, end, now)),
                }
            }
        }
    }
}

fn one_line(line: &Line, now: Timestamp) -> Markup {
    html! {
        li {
            div.when { (view::time(Timestamp(line.time), now)) }
            div {
                (view::log_state(line.state)) " "
                @match (line.state, line.next_delivery_time) {
                    (LogState::Created, Some(due)) => { "First attempt " (due_at(Timestamp(due), now)) },
                    (LogState::Retry, Some(due)) => { "Next attempt " (due_at(Timestamp(due), now)) },
                    (LogState::Failed, _) => { (why_failed(line)) },
                    (LogState::CancelRequested, _) => { "A running attempt will finish" },
                    (LogState::Canceled, _) => { "No more attempts" },
                    _ => { @if let Some(error) = &line.error { (for_people(error, Timeout::of(line.about.timeout))) } },
                }
            }
        }
    }
}

fn due_at(due: Timestamp, now: Timestamp) -> Markup {
    html! { @if due > now { "due " } @else { "was due " } (view::time(due, now)) }
}

/// Why a message is in the DLQ: a receiver can reject further retries.
fn why_failed(line: &Line) -> &'static str {
    match line.attempt.is_some_and(|attempt| attempt <= u64::from(line.about.max_retries)) {
        true => "Retries rejected by the receiver, moved to DLQ",
        false => "Out of retries, moved to DLQ",
    }
}

fn attempt(story: &Story, nth: usize, start: &Line, end: Option<&Line>, now: Timestamp) -> Markup {
    html! {
        li.attempt data-key=(start.time) {
            div.when { (view::time(Timestamp(start.time), now)) }
            div {
                h3 { "Attempt " (nth + 1) @if let Some(millis) = end.and_then(|line| line.duration) { span.quiet { " · " (view::duration(millis)) } } }
                @match end {
                    None => p { (view::log_state(LogState::Active)) " No response yet, or the server restarted during this attempt" },
                    Some(line) => (outcome(line)),
                }
                (claims(story, start))
            }
        }
    }
}

fn outcome(line: &Line) -> Markup {
    let is_good = line.response_status.is_some_and(|status| (200..300).contains(&status));
    html! {
        p {
            @if let Some(status) = line.response_status { span.state.(if is_good { "good" } else { "bad" }) { (status) } }
            @if let Some(error) = &line.error { span.state.bad { "no answer" } " " (for_people(error, Timeout::of(line.about.timeout))) }
        }
        @if let Some(connection) = &line.connection { (phases(connection, line.duration.unwrap_or(0))) }
        @else if is_good { p.hint { "Sent on a connection that was already open" } }
        @if !line.response_headers.is_empty() { (headers("Response headers", &line.response_headers)) }
        @if let Some(body) = &line.response_body { (view::text("Response body", body)) }
    }
}

/// Names and values, folded.
pub(super) fn headers(title: &str, headers: &Headers) -> Markup {
    html! {
        details.text {
            summary { (title) span.quiet { " · " (headers.len()) } }
            dl.facts { @for (name, values) in headers { dt { (name) } dd { @for value in values { div.mono { (value) } } } } }
        }
    }
}

/// A part of an attempt.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    name: &'static str,
    class: &'static str,
    micros: u64,
    /// Where it begins, and how long it is, in thousandths of the whole.
    from: u64,
    length: u64,
}

/// The parts of an attempt in their order, and the rest, which is reading the answer, or waiting in vain.
fn parts(connection: &Connection, duration_ms: u64) -> Vec<Part> {
    let measured = [
        ("DNS", "dns", connection.dns_micros),
        ("connect", "connect", connection.connect_micros),
        ("TLS", "tls", connection.tls_micros),
        ("first byte", "first", connection.first_byte_micros),
    ];
    let sum: u64 = measured.iter().filter_map(|(_, _, micros)| *micros).sum();
    // Durations are cut to milliseconds: less than one is no rest.
    let rest = duration_ms.saturating_mul(1_000).checked_sub(sum).filter(|rest| *rest > 1_000);
    let whole = (sum + rest.unwrap_or(0)).max(1);
    let all = measured.into_iter().chain([("rest", "rest", rest)]);
    let mut before = 0;
    let mut found = Vec::new();
    for (name, class, micros) in all {
        let Some(micros) = micros else { continue };
        let (from, until) = (before * 1_000 / whole, (before + micros) * 1_000 / whole);
        found.push(Part { name, class, micros, from, length: until - from });
        before += micros;
    }
    found
}

fn phases(connection: &Connection, duration_ms: u64) -> Markup {
    let parts = parts(connection, duration_ms);
    html! {
        svg.phases viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" {
            @for part in &parts {
                rect class=(part.class) x=(part.from) y="0" width=(part.length.max(2)) height="10" {}
            }
        }
        ul.phases {
            @for part in &parts { li.(part.class) { (part.name) " " (micros(part.micros)) } }
            @if connection.reused { li { "connection reused" } }
            @if let Some(address) = &connection.address { li { "to " code { (address) } } }
        }
    }
}

/// `12 µs`, `1.2 ms`, `3.4 s`.
fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..100_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        _ => view::duration(micros / 1_000),
    }
}

/// What the signature of an attempt says, from what it is made of. The signature itself is nowhere.
fn claims(story: &Story, start: &Line) -> Markup {
    let issued = start.time / 1_000;
    html! {
        details.text {
            summary { "Signature claims" }
            dl.facts {
                dt { "iss" } dd { code { "Upstash" } }
                dt { "sub" } dd { code { (story.about.url) } }
                dt { "iat" } dd { code { (issued) } " " span.quiet { (view::utc(Timestamp(issued * 1_000))) } }
                dt { "nbf" } dd { code { "0" } }
                dt { "exp" } dd { code { (issued + LIFETIME_SECONDS) } }
                dt { "body" } dd { @match story.body.hash() {
                    Some(hash) => { code { (hash) } " " span.quiet { "SHA-256 of the body, base64url" } },
                    None if story.body.is_hidden() => { span.quiet { "SHA-256 of the hidden body" } },
                    None => { span.quiet { "SHA-256 of the body, which is too large for this page" } },
                } }
                dt { "jti" } dd { span.quiet { "random, not stored" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::messages::data::About;

    fn connection(dns: Option<u64>, first: Option<u64>) -> Connection {
        Connection { dns_micros: dns, connect_micros: Some(1_000), first_byte_micros: first, ..Connection::default() }
    }

    #[test]
    fn parts_fill_the_bar() {
        let found = parts(&connection(Some(2_000), Some(5_000)), 10);
        let bars: Vec<_> = found.iter().map(|part| (part.name, part.from, part.length)).collect();
        assert_eq!(bars, [("DNS", 0, 200), ("connect", 200, 100), ("first byte", 300, 500), ("rest", 800, 200)]);
        let found = parts(&connection(None, None), 10_001);
        assert_eq!(found.last().map(|part| (part.name, part.micros)), Some(("rest", 10_000_000)));
        let found = parts(&connection(None, Some(1_700)), 2);
        assert_eq!(found.len(), 2, "what is less than a millisecond is no rest");
        assert!(parts(&Connection::default(), 0).is_empty());
    }

    fn line(state: LogState, duration: Option<u64>) -> Line {
        let text = serde_json::json!({ "time": 1, "state": state, "messageId": "m", "duration": duration });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_failure_is_out_of_retries_or_rejected_by_the_receiver() {
        let failed = |attempt: Option<u64>, max_retries: u32| {
            let line = Line { attempt, ..line(LogState::Failed, None) };
            why_failed(&Line { about: About { max_retries, ..About::default() }, ..line })
        };
        let out_of_retries = "Out of retries, moved to DLQ";
        assert_eq!([failed(Some(4), 3), failed(Some(1), 0), failed(None, 3)], [out_of_retries; 3]);
        assert_eq!(failed(Some(3), 3), "Retries rejected by the receiver, moved to DLQ");
    }

    #[test]
    fn starts_and_ends_of_attempts_belong_together() {
        let lines = [
            line(LogState::Created, None),
            line(LogState::Active, None),
            // A crash.
            line(LogState::Active, None),
            line(LogState::Error, Some(3)),
            line(LogState::Retry, None),
            line(LogState::Active, None),
            line(LogState::CancelRequested, None),
            line(LogState::Canceled, Some(4)),
        ];
        let found: Vec<String> = happenings(&lines)
            .iter()
            .map(|happening| match happening {
                Happening::Line(line) => format!("{:?}", line.state),
                Happening::Attempt(nth, _, end) => {
                    format!("{nth}:{}", end.map_or("-".to_owned(), |line| format!("{:?}", line.state)))
                }
            })
            .collect();
        assert_eq!(found, ["Created", "0:-", "1:Error", "Retry", "2:Canceled", "CancelRequested", "Canceled"]);
    }

    #[test]
    fn short_times_have_short_units() {
        let found = [12, 1_250, 99_999, 340_000, 3_400_000].map(micros);
        assert_eq!(found, ["12 µs", "1.2 ms", "99.9 ms", "340 ms", "3.4 s"]);
    }
}
