//! Is anything late, stuck or silent? One sentence.

use super::Stats;
use crate::console::view::{duration, number};

/// A message is late when it was due this long ago and is not under way: short waits for a slot are usual.
const LATE_MS: u64 = 10_000;
/// From here on lateness is no hiccup.
const VERY_LATE_MS: u64 = 60_000;
/// The seconds that "lately" means.
const LATELY_SECONDS: usize = 60;

/// How bad it is; also the name of the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Good,
    Warn,
    Bad,
}

impl Level {
    pub(super) fn class(self) -> &'static str {
        match self {
            Level::Good => "good",
            Level::Warn => "warn",
            Level::Bad => "bad",
        }
    }
}

/// The answer: what is the matter, and the figures that say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) level: Level,
    /// Changes only when the matter does.
    pub(super) headline: String,
    pub(super) detail: String,
}

fn verdict(level: Level, headline: impl Into<String>, detail: impl Into<String>) -> Verdict {
    Verdict { level, headline: headline.into(), detail: detail.into() }
}

/// The server did not say how it stands.
pub(super) fn unanswered(why: &str) -> Verdict {
    verdict(Level::Bad, "The server is not responding", why)
}

/// What the figures mean, the worst first.
pub(super) fn of(stats: &Stats) -> Verdict {
    let found = unable(stats).or_else(|| stuck(stats)).or_else(|| late(stats)).or_else(|| failing(stats));
    let mut found = found.unwrap_or_else(|| well(stats));
    found.detail += &paused(stats);
    if stats.messages.partial {
        found.detail += "; based on a sample of the destinations, queues and keys";
    }
    found
}

fn unable(stats: &Stats) -> Option<Verdict> {
    if !stats.storage.takes_writes {
        return Some(verdict(Level::Bad, "Writes are rejected", "the server cannot store messages"));
    }
    let full = "no new messages are accepted until space is freed";
    stats.storage.disk_low.then(|| verdict(Level::Bad, "The disk is nearly full", full))
}

/// Nothing comes to an end although it should.
fn stuck(stats: &Stats) -> Option<Verdict> {
    let seconds = &stats.seconds;
    let has_moved = sum(&seconds.delivered) > 0 || sum(&seconds.failed) > 0;
    let since = match stats.uptime / 1_000 {
        uptime if uptime < seconds.delivered.len() as u64 => {
            format!("since the server started {} ago", duration(stats.uptime))
        }
        _ => format!("for {}", duration(seconds.delivered.len() as u64 * 1_000)),
    };
    let messages = &stats.messages;
    if sum(&seconds.delivered) == 0
        && let Some(age) = stats.oldest_age().filter(|age| *age >= VERY_LATE_MS)
    {
        let detail = format!("none {since}; {}, the oldest for {}", waiting(stats), duration(age));
        return Some(verdict(Level::Bad, "No deliveries", detail));
    }
    let is_stuck = !has_moved && messages.in_flight > 0 && stats.uptime >= 1_000 * seconds.delivered.len() as u64;
    is_stuck.then(|| {
        let detail = format!("none {since}; {} in flight", count(messages.in_flight, "attempt is", "attempts are"));
        verdict(Level::Warn, "No attempts are finishing", detail)
    })
}

fn late(stats: &Stats) -> Option<Verdict> {
    let age = stats.oldest_age().filter(|age| *age >= LATE_MS)?;
    let level = if age >= VERY_LATE_MS { Level::Bad } else { Level::Warn };
    let at_least = if stats.messages.waiting_has_more { "More than " } else { "" };
    let headline = format!("{at_least}{} late", count(stats.messages.waiting, "message is", "messages are"));
    Some(verdict(level, headline, format!("the oldest was due {} ago", duration(age))))
}

fn failing(stats: &Stats) -> Option<Verdict> {
    let seconds = &stats.seconds;
    let (delivered, failed) = (lately(&seconds.delivered), lately(&seconds.failed));
    let figures = format!("{} of {} in the last minute", number(failed), number(delivered + failed));
    if failed > 0 && delivered == 0 {
        return Some(verdict(Level::Bad, "Every attempt fails", figures));
    }
    if failed > delivered {
        return Some(verdict(Level::Warn, "Most attempts fail", figures));
    }
    let dead = sum(&seconds.dead_lettered);
    (dead > 0).then(|| {
        let detail = format!("{} in the last 5 minutes", number(dead));
        verdict(Level::Warn, "Messages moved to the DLQ", detail)
    })
}

fn well(stats: &Stats) -> Verdict {
    let seconds = &stats.seconds;
    let lists = [&seconds.published, &seconds.delivered, &seconds.failed];
    if lists.iter().all(|list| sum(list) == 0) {
        let rest = match stats.messages.live {
            0 if stats.messages.live_has_more => "; the number of scheduled messages is unknown".to_owned(),
            0 => String::new(),
            live => {
                let at_least = if stats.messages.live_has_more { "at least " } else { "" };
                format!("; {at_least}{} scheduled for later", count(live, "message is", "messages are"))
            }
        };
        let detail = format!("no messages published or delivered in the last 5 minutes{rest}");
        return verdict(Level::Good, "All quiet", detail);
    }
    let speed = stats.latency.as_ref().map_or(String::new(), |latency| {
        format!(", half of them within {} of being due", duration(u64::from(latency.p50).max(1)))
    });
    let delivered = match (lately(&seconds.delivered), sum(&seconds.delivered)) {
        (0, 0) => return verdict(Level::Good, "All is well", "nothing is late"),
        (0, longer) => format!("{} delivered in the last 5 minutes", number(longer)),
        (delivered, _) => format!("{} delivered in the last minute", number(delivered)),
    };
    verdict(Level::Good, "All is well", delivered + &speed)
}

/// What somebody has stopped on purpose.
fn paused(stats: &Stats) -> String {
    let queues = (stats.messages.paused_queues, "queue is", "queues are");
    let keys = (stats.messages.paused_flow_control_keys, "flow-control key is", "flow-control keys are");
    let said = [queues, keys].into_iter().filter(|(number, ..)| *number > 0);
    said.map(|(number, one, many)| format!("; {} paused", count(number, one, many))).collect()
}

fn waiting(stats: &Stats) -> String {
    let at_least = if stats.messages.waiting_has_more { "more than " } else { "" };
    format!("{at_least}{}", count(stats.messages.waiting, "message is waiting", "messages are waiting"))
}

fn count(number_of: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(number_of), if number_of == 1 { one } else { many })
}

pub(super) fn sum(figures: &[u32]) -> u64 {
    figures.iter().map(|figure| u64::from(*figure)).sum()
}

fn lately(figures: &[u32]) -> u64 {
    sum(&figures[figures.len().saturating_sub(LATELY_SECONDS)..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::now::{Latency, Messages, Seconds, Storage};

    const NOW: u64 = 1_780_315_200_000;

    /// A server that has run for an hour, and in which nothing happens.
    fn quiet() -> Stats {
        let zeros = || vec![0; 300];
        let (published, delivered, failed) = (zeros(), zeros(), zeros());
        let (dead_lettered, p50, p99) = (zeros(), zeros(), zeros());
        Stats {
            time: NOW,
            uptime: 3_600_000,
            storage: Storage { takes_writes: true, ..Storage::default() },
            seconds: Seconds { published, delivered, failed, dead_lettered, p50, p99 },
            ..Stats::default()
        }
    }

    fn busy(delivered: u32, failed: u32) -> Stats {
        let mut stats = Stats { latency: Some(Latency { p50: 12, p99: 80 }), ..quiet() };
        (stats.seconds.delivered[290], stats.seconds.failed[290]) = (delivered, failed);
        stats
    }

    fn late(count: u64, age_ms: u64, stats: Stats) -> Stats {
        let messages = Messages { waiting: count, oldest_due: Some(NOW - age_ms), live: 20, ..Messages::default() };
        Stats { messages, ..stats }
    }

    fn with(mut stats: Stats, change: fn(&mut Stats)) -> Stats {
        change(&mut stats);
        stats
    }

    fn assert_said<const N: usize>(cases: [(Stats, Level, &str); N]) {
        for (stats, level, expected) in cases {
            assert_eq!(said(&stats), (level, expected.to_owned()));
        }
    }

    fn said(stats: &Stats) -> (Level, String) {
        let Verdict { level, headline, detail } = of(stats);
        (level, format!("{headline}: {detail}"))
    }

    #[test]
    fn a_healthy_server_is_called_well_or_quiet() {
        use Level::Good;
        let cases = [
            (quiet(), Good, "All quiet: no messages published or delivered in the last 5 minutes"),
            (
                with(quiet(), |stats| stats.messages.live = 1),
                Good,
                "All quiet: no messages published or delivered in the last 5 minutes; 1 message is scheduled for later",
            ),
            (
                with(quiet(), |stats| (stats.messages.live, stats.messages.live_has_more) = (10_000, true)),
                Good,
                "All quiet: no messages published or delivered in the last 5 minutes; at least 10\u{202f}000 messages are \
                 scheduled for later",
            ),
            (
                with(quiet(), |stats| stats.messages.live_has_more = true),
                Good,
                "All quiet: no messages published or delivered in the last 5 minutes; the number of scheduled messages is \
                 unknown",
            ),
            (
                with(quiet(), |stats| stats.messages.partial = true),
                Good,
                "All quiet: no messages published or delivered in the last 5 minutes; based on a sample of the \
                 destinations, queues and keys",
            ),
            (
                busy(1_234, 0),
                Good,
                "All is well: 1\u{202f}234 delivered in the last minute, half of them within 12 ms of being due",
            ),
            (
                with(busy(0, 0), |stats| stats.seconds.delivered[3] = 7),
                Good,
                "All is well: 7 delivered in the last 5 minutes, half of them within 12 ms of being due",
            ),
            (with(quiet(), |stats| stats.seconds.published[3] = 7), Good, "All is well: nothing is late"),
            (
                late(3, LATE_MS - 1, busy(5, 0)),
                Good,
                "All is well: 5 delivered in the last minute, half of them within 12 ms of being due",
            ),
        ];
        assert_said(cases);
    }

    #[test]
    fn the_worst_problem_is_the_headline() {
        use Level::{Bad, Good, Warn};
        let cases = [
            (late(3, LATE_MS, busy(5, 0)), Warn, "3 messages are late: the oldest was due 10 s ago"),
            (late(1, 240_000, busy(5, 0)), Bad, "1 message is late: the oldest was due 4 min ago"),
            (
                with(late(64, 240_000, busy(5, 0)), |stats| stats.messages.waiting_has_more = true),
                Bad,
                "More than 64 messages are late: the oldest was due 4 min ago",
            ),
            (
                late(12, 240_000, quiet()),
                Bad,
                "No deliveries: none for 5 min; 12 messages are waiting, the oldest for 4 min",
            ),
            (
                with(late(12, 240_000, quiet()), |stats| stats.uptime = 90_000),
                Bad,
                "No deliveries: none since the server started 90 s ago; 12 messages are waiting, the oldest for 4 min",
            ),
            (late(12, 30_000, quiet()), Warn, "12 messages are late: the oldest was due 30 s ago"),
            (
                with(quiet(), |stats| stats.messages.in_flight = 2),
                Warn,
                "No attempts are finishing: none for 5 min; 2 attempts are in flight",
            ),
            (
                with(quiet(), |stats| (stats.messages.in_flight, stats.uptime) = (2, 10_000)),
                Good,
                "All quiet: no messages published or delivered in the last 5 minutes",
            ),
            (busy(0, 9), Bad, "Every attempt fails: 9 of 9 in the last minute"),
            (busy(3, 9), Warn, "Most attempts fail: 9 of 12 in the last minute"),
            (busy(9, 9), Good, "All is well: 9 delivered in the last minute, half of them within 12 ms of being due"),
            (
                with(busy(9, 1), |stats| stats.seconds.dead_lettered[0] = 1),
                Warn,
                "Messages moved to the DLQ: 1 in the last 5 minutes",
            ),
            (
                with(busy(9, 1), |stats| stats.storage.disk_low = true),
                Bad,
                "The disk is nearly full: no new messages are accepted until space is freed",
            ),
            (
                with(late(3, 240_000, quiet()), |stats| stats.storage.takes_writes = false),
                Bad,
                "Writes are rejected: the server cannot store messages",
            ),
            (
                with(busy(9, 0), |stats| {
                    (stats.messages.paused_queues, stats.messages.paused_flow_control_keys) = (1, 2);
                }),
                Good,
                "All is well: 9 delivered in the last minute, half of them within 12 ms of being due; 1 queue is paused; \
                 2 flow-control keys are paused",
            ),
        ];
        assert_said(cases);
    }
}
