//! The first page: is anything late, stuck or silent?

mod chart;
mod verdict;

use super::visitor::{Problem, segment};
use super::{Desk, Visitor, view};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use chart::{Line, chart};
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use std::sync::Arc;
use verdict::{Verdict, sum};

/// Seconds over which rates are an average; the one that is not over does not count.
const RATE_SECONDS: usize = 10;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new().route("/", get(show))
}

/// What `/v2/stats` answers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    time: u64,
    version: String,
    uptime: u64,
    storage: Storage,
    messages: Messages,
    dlq: Counted,
    runs: Runs,
    schedules: Schedules,
    latency: Option<Latency>,
    seconds: Seconds,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Storage {
    bytes: Option<u64>,
    free_bytes: Option<u64>,
    disk_low: bool,
    takes_writes: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Messages {
    live: u64,
    live_has_more: bool,
    in_flight: u64,
    waiting: u64,
    waiting_has_more: bool,
    oldest_due: Option<u64>,
    paused_queues: u64,
    paused_flow_control_keys: u64,
    partial: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Counted {
    size: u64,
    has_more: bool,
    oldest: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Runs {
    live: u64,
    has_more: bool,
    dlq: Counted,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Schedules {
    count: u64,
    next: Vec<NextSchedule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NextSchedule {
    schedule_id: String,
    time: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct Latency {
    p50: u32,
    p99: u32,
}

/// One figure for each of the last seconds, the newest last.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seconds {
    published: Vec<u32>,
    delivered: Vec<u32>,
    failed: Vec<u32>,
    dead_lettered: Vec<u32>,
    p50: Vec<u32>,
    p99: Vec<u32>,
}

impl Stats {
    /// How long ago the message was due that waits longest.
    fn oldest_age(&self) -> Option<u64> {
        self.messages.oldest_due.map(|due| self.time.saturating_sub(due))
    }
}

async fn show(visitor: Visitor) -> Result<Markup, Problem> {
    let (stats, verdict) = match visitor.get::<Stats>("/v2/stats").await {
        Ok(stats) => (Some(stats.clone()), verdict::of(&stats)),
        Err(problem) if problem.status == StatusCode::SERVICE_UNAVAILABLE => (None, verdict::unanswered(&problem.text)),
        Err(problem) => return Err(problem),
    };
    let body = html! {
        div.title { h1 { "Overview" } span.quiet { "Is anything late, stuck or failing?" } }
        (sentence(&verdict))
        div #now.stack data-refresh="2000" data-also="verdict verdict-detail" {
            @if let Some(stats) = &stats {
                (figures(stats))
                div.columns { (rates(&stats.seconds)) (latencies(&stats.seconds)) }
                div.columns { (schedules(stats)) (server(stats)) }
            }
        }
    };
    Ok(view::page(&visitor.frame("Overview"), &body))
}

fn sentence(verdict: &Verdict) -> Markup {
    html! {
        p.verdict {
            strong #verdict.(verdict.level.class()) aria-live="polite" data-verdict { (verdict.headline) }
            span #verdict-detail { ": " (verdict.detail) "." }
        }
    }
}

fn figures(stats: &Stats) -> Markup {
    let now = Timestamp(stats.time);
    let seconds = &stats.seconds;
    let messages = &stats.messages;
    let (failed, dead) = (sum(&seconds.failed), sum(&seconds.dead_lettered));
    let latency = |pick: fn(&Latency) -> u32| match &stats.latency {
        Some(latency) => view::duration(u64::from(pick(latency))),
        None => "–".to_owned(),
    };
    html! {
        div.cards.four {
            (figure("Published", &rate(&seconds.published), "", &in_five(&seconds.published), None))
            (figure("Delivered", &rate(&seconds.delivered), "", &in_five(&seconds.delivered), Some("/console/messages?state=DELIVERED")))
            (figure("Failed attempts", &rate(&seconds.failed), if failed > 0 { "warn" } else { "" }, &in_five(&seconds.failed), Some("/console/messages?state=ERROR")))
            (figure("Delivery latency", &latency(|latency| latency.p50), "", &html! { "p99 " (latency(|latency| latency.p99)) " · 5 min" }, None))
            (figure("Backlog", &backlog(messages), "", &html! {
                (view::number(messages.in_flight)) " in flight · "
                (view::number(messages.waiting)) @if messages.waiting_has_more { "+" } " due"
                @if let Some(due) = messages.oldest_due { ", oldest " (view::time(Timestamp(due), now)) }
            }, Some("/console/messages")))
            (figure("In the DLQ", &at_least(&stats.dlq), if dead > 0 { "bad" } else { "" }, &html! {
                @match stats.dlq.oldest {
                    Some(oldest) => { "oldest " (view::time(Timestamp(oldest), now)) " · " (view::number(dead)) " in 5 min" }
                    None => "no dead letters"
                }
            }, Some("/console/dlq")))
            (figure("Workflow runs", &plus(stats.runs.live, stats.runs.has_more), "", &html! {
                (at_least(&stats.runs.dlq)) " failed"
                @if let Some(oldest) = stats.runs.dlq.oldest { ", oldest " (view::time(Timestamp(oldest), now)) }
            }, Some("/console/workflows")))
            (figure("Storage", &stats.storage.bytes.map_or("–".to_owned(), bytes), if stats.storage.disk_low { "bad" } else { "" }, &html! {
                @match stats.storage.free_bytes { Some(free) => { (bytes(free)) " free" } None => "free space unknown" }
            }, None))
        }
    }
}

fn figure(name: &str, value: &str, class: &str, note: &Markup, link: Option<&str>) -> Markup {
    html! {
        div.card.figure.(class) {
            span.quiet { @if let Some(link) = link { a href=(link) { (name) } } @else { (name) } }
            strong { (value) }
            span.hint { (note) }
        }
    }
}

/// Per second, of the last seconds that are over.
fn rate(figures: &[u32]) -> String {
    let end = figures.len().saturating_sub(1);
    let counted = &figures[end.saturating_sub(RATE_SECONDS)..end];
    let tenths = sum(counted) * 10 / counted.len().max(1) as u64;
    match tenths {
        0 if sum(counted) > 0 => "< 0.1/s".to_owned(),
        0..100 => format!("{}.{}/s", tenths / 10, tenths % 10),
        _ => format!("{}/s", view::number(tenths / 10)),
    }
}

fn in_five(figures: &[u32]) -> Markup {
    html! { (view::number(sum(figures))) " in 5 min" }
}

fn plus(number: u64, has_more: bool) -> String {
    format!("{}{}", view::number(number), if has_more { "+" } else { "" })
}

/// Of so many messages that none of this tenant's was met, "at least none" would be read as none.
fn backlog(messages: &Messages) -> String {
    match messages.live {
        0 if messages.live_has_more => "unknown".to_owned(),
        live => plus(live, messages.live_has_more),
    }
}

fn at_least(counted: &Counted) -> String {
    plus(counted.size, counted.has_more)
}

/// `12 MB`, in steps of a thousand.
fn bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let step = bytes.max(1).ilog(1_000);
    let unit = 1_000_u64.pow(step);
    match step {
        0 => format!("{bytes} B"),
        _ if bytes / unit < 10 => format!("{}.{} {}", bytes / unit, bytes % unit * 10 / unit, units[step as usize]),
        _ => format!("{} {}", bytes / unit, units[step as usize]),
    }
}

fn rates(seconds: &Seconds) -> Markup {
    // The second that is not over would look like a slump.
    let over = |figures: &[u32]| figures.iter().rev().skip(1).rev().map(|figure| Some(*figure)).chain([None]).collect();
    let line = |class, name, figures: &[u32]| Line { class, name, values: over(figures) };
    let lines = [
        // Where lines lie on each other, the last is seen.
        line("bad", "failed attempts", &seconds.failed),
        line("busy", "published", &seconds.published),
        line("good", "delivered", &seconds.delivered),
    ];
    html! { div.card { (chart("rates", "Per second", &lines, |value| format!("{}/s", view::number(u64::from(value))))) } }
}

fn latencies(seconds: &Seconds) -> Markup {
    let line = |class, name, figures: &[u32]| {
        let delivered = |(figure, count): (&u32, &u32)| (*count > 0).then_some(*figure);
        Line { class, name, values: figures.iter().zip(&seconds.delivered).map(delivered).collect() }
    };
    let lines = [line("warn", "p99", &seconds.p99), line("good", "p50", &seconds.p50)];
    html! { div.card { (chart("latencies", "Delivery latency", &lines, |value| view::duration(u64::from(value)))) } }
}

fn schedules(stats: &Stats) -> Markup {
    let now = Timestamp(stats.time);
    html! {
        section.card aria-labelledby="next-schedules" {
            div.title { h2 #next-schedules { "Next schedules" } @if stats.schedules.count > 0 { a href="/console/schedules" { "Show all " (view::number(stats.schedules.count)) } } }
            @if stats.schedules.next.is_empty() {
                p.quiet {
                    @if stats.schedules.count == 0 { "No schedules yet. " a href="/console/schedules/make/new" { "Create one" } }
                    @else { "All schedules are paused" }
                }
            } @else {
                div.scroll {
                    table {
                        thead { tr { th scope="col" { "Schedule" } th scope="col" { "Next run" } } }
                        tbody {
                            @for next in &stats.schedules.next {
                                tr {
                                    td { a.cut.mono href={ "/console/schedules/" (segment(&next.schedule_id)) } title=(next.schedule_id) { (next.schedule_id) } }
                                    td.tight { (view::time(Timestamp(next.time), now)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn server(stats: &Stats) -> Markup {
    let storage = &stats.storage;
    html! {
        section.card aria-labelledby="server" {
            h2 #server { "Server" }
            dl.facts {
                dt { "Version" } dd { (stats.version) }
                dt { "Uptime" } dd { (view::duration(stats.uptime)) }
                dt { "Writes" } dd { @if storage.takes_writes { span.state.good { "accepted" } } @else { span.state.bad { "rejected" } } }
                dt { "Disk" } dd {
                    @if storage.disk_low { span.state.bad { "nearly full" } }
                    @else if let Some(free) = storage.free_bytes { (bytes(free)) " free" }
                    @else { "free space unknown" }
                }
                dt { "As of" } dd { (view::time_in_full(Timestamp(stats.time), Timestamp(stats.time))) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_leaves_out_the_current_second() {
        let figures = |last: &[u32]| [vec![0; 290], last.to_vec()].concat();
        for (last, expected) in [
            (vec![0; 10], "0.0/s"),
            (vec![0, 0, 0, 0, 0, 0, 0, 0, 5, 99], "0.5/s"),
            (vec![100; 10], "90/s"),
            (vec![20_000; 10], "18\u{202f}000/s"),
        ] {
            assert_eq!(rate(&figures(&last)), expected, "{last:?}");
        }
        assert_eq!(rate(&[]), "0.0/s");
    }

    #[test]
    fn a_backlog_that_could_not_be_counted_is_unknown() {
        for (live, live_has_more, expected) in
            [(0, false, "0"), (7, false, "7"), (7, true, "7+"), (10_000, true, "10\u{202f}000+"), (0, true, "unknown")]
        {
            let messages = Messages { live, live_has_more, ..Messages::default() };
            assert_eq!(backlog(&messages), expected);
        }
    }

    #[test]
    fn sizes_are_short() {
        let shown = [0, 999, 1_000, 1_550_000, 12_345_678, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "1.5 MB", "12 MB", "18 EB"]);
    }
}
