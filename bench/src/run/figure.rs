//! Figures, their goals, and the table that shows both. Pure.

use crate::load::Report;
use crate::stats::{Percentiles, median};
use serde::Serialize;

/// Goals of the server. `docs/benchmarks.md` lists them.
pub(super) mod goal {
    use super::Goal;

    /// Relative to the deliveries of the signed durable relay.
    pub(in crate::run) const DELIVERED_RATIO: Goal = Goal::AtLeast(0.7);
    pub(in crate::run) const PUBLISH_P99_MS: Goal = Goal::AtMost(40.0);
    /// Relative to the publishes of a server that only appends.
    pub(in crate::run) const PUBLISHED_RATIO: Goal = Goal::AtLeast(0.7);
    pub(in crate::run) const E2E_P50_MS: Goal = Goal::AtMost(2.0);
    pub(in crate::run) const E2E_P99_MS: Goal = Goal::AtMost(15.0);
    /// Relative to the deliveries of the best durable peer.
    pub(in crate::run) const PEER_RATIO: Goal = Goal::AtLeast(4.0);
    pub(in crate::run) const IDLE_RSS_MB: Goal = Goal::Below(60.0);
    pub(in crate::run) const IDLE_CPU_PCT: Goal = Goal::Below(1.0);
    pub(in crate::run) const DELAYED_RSS_GROWTH_MB: Goal = Goal::Below(300.0);
    /// Rates with a backlog relative to rates without.
    pub(in crate::run) const BACKLOG_RATIO: Goal = Goal::AtLeast(0.9);
    /// The most expensive backlog relative to the cheapest: CPU per message, divided by that of the tools.
    pub(in crate::run) const COST_SPREAD: Goal = Goal::AtMost(1.2);
    /// From the time that a delayed message is due to its arrival.
    pub(in crate::run) const TIMER_P99_MS: Goal = Goal::AtMost(50.0);
    pub(in crate::run) const RESTART_S: Goal = Goal::Below(5.0);
    /// Messages with keys relative to messages without.
    pub(in crate::run) const KEYED_RATIO: Goal = Goal::AtLeast(0.7);
    pub(in crate::run) const SCHEDULE_DELAY_MS: Goal = Goal::AtMost(2_000.0);
    pub(in crate::run) const FANOUT_P99_MS: Goal = Goal::Below(20.0);
    /// Healthy destinations with bad receivers of every kind at the same server, relative to the same at another
    /// server. The rate, the median and the 99th percentile may get worse by at most a tenth.
    pub(in crate::run) const BESIDE_BAD_RATIO: Goal = Goal::AtMost(1.10);
    /// The same with a tenth of the destinations hanging or dead.
    pub(in crate::run) const BESIDE_DEAD_RATIO: Goal = Goal::AtMost(1.2);
    /// The same with another tenant that floods the server.
    pub(in crate::run) const BESIDE_FLOOD_RATIO: Goal = Goal::AtMost(2.0);
    /// The offered rate relative to the rate that the server can store.
    pub(in crate::run) const OVERLOAD_RATIO: Goal = Goal::AtLeast(10.0);
    /// Rejected publishers get a response, and no connection breaks.
    pub(in crate::run) const OVERLOAD_BROKEN: Goal = Goal::AtMost(0.0);
    pub(in crate::run) const OVERLOAD_P99_MS: Goal = Goal::AtMost(2_000.0);
    /// Bodies that are being read and bodies that are being delivered take up to 268 MB each. The rest is for
    /// connections and the program.
    pub(in crate::run) const OVERLOAD_RSS_MB: Goal = Goal::AtMost(800.0);
    pub(in crate::run) const OVERLOAD_NORMAL_S: Goal = Goal::AtMost(60.0);
    /// Relative to the steps of Restate.
    pub(in crate::run) const WORKFLOW_RESTATE_RATIO: Goal = Goal::AtLeast(1.0);
    /// Relative to the steps of Temporal's development server.
    pub(in crate::run) const WORKFLOW_TEMPORAL_RATIO: Goal = Goal::AtLeast(20.0);
    /// The server's own CPU time for a step of the official TypeScript SDK.
    pub(in crate::run) const SDK_STEP_CPU_US: Goal = Goal::AtMost(200.0);
    pub(in crate::run) const SLEEPING_RSS_GROWTH_MB: Goal = Goal::Below(100.0);
    /// The slowest of many loads.
    pub(in crate::run) const LIST_PAGE_MS: Goal = Goal::Below(100.0);
    pub(in crate::run) const CHARTS_CPU_PCT: Goal = Goal::Below(1.0);
    /// Above this limit figures cannot be compared.
    pub(in crate::run) const FOREIGN_CPU_PCT: f64 = 15.0;
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
    /// The count must be zero (such as lost messages). It is judged even in smoke runs.
    None,
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(limit) => value >= limit,
            Goal::AtMost(limit) => value <= limit,
            Goal::Below(limit) => value < limit,
            Goal::None => value == 0.0,
        }
    }

    fn text(self) -> String {
        match self {
            Goal::AtLeast(limit) => format!("≥ {limit}"),
            Goal::AtMost(limit) => format!("≤ {limit}"),
            Goal::Below(limit) => format!("< {limit}"),
            Goal::None => "0".into(),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) scenario: &'static str,
    pub(super) name: String,
    /// The value of the reference: the relay, the append server, or a peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reference: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server: Option<f64>,
    /// The least and the greatest of the ratios whose median is the server's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spread: Option<(f64, f64)>,
    /// The goal of the server's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) goal: Option<Goal>,
}

impl Figure {
    pub(super) fn both(scenario: &'static str, name: &str, reference: Option<f64>, server: Option<f64>) -> Self {
        Self { scenario, name: name.into(), reference, server, spread: None, goal: None }
    }

    pub(super) fn server(scenario: &'static str, name: &str, server: Option<f64>) -> Self {
        Self::both(scenario, name, None, server)
    }

    /// The median of ratios, and their range.
    pub(super) fn ratios(scenario: &'static str, name: &str, ratios: &[f64]) -> Self {
        let extreme = |pick: fn(f64, f64) -> f64| ratios.iter().copied().reduce(pick);
        let spread = extreme(f64::min).zip(extreme(f64::max));
        Self { spread, ..Self::server(scenario, name, median(ratios.iter().copied())) }
    }

    pub(super) fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Whether something happened that must never happen, however slow or busy the machine is.
    pub(super) fn breaks_promise(&self) -> bool {
        self.goal == Some(Goal::None) && self.server.is_some_and(|value| value != 0.0)
    }

    /// The server's value, with the range if there is one.
    fn text(&self) -> String {
        let value = self.server.map(number).unwrap_or_default();
        match self.spread {
            Some((least, most)) => format!("{value} ({}–{})", number(least), number(most)),
            None => value,
        }
    }

    fn verdict(&self, judged: bool) -> &'static str {
        match (self.goal, self.server) {
            (None, _) => "",
            (Some(goal), _) if !judged && goal != Goal::None => "not judged",
            (Some(_), None) => "no data",
            (Some(goal), Some(value)) if goal.is_met(value) => "pass",
            (Some(_), Some(_)) => "**FAIL**",
        }
    }
}

/// The reports of one scenario, in the order of the rounds.
#[derive(Default)]
pub(super) struct Rounds {
    /// The reports of the reference, which takes turns with the server.
    pub(super) reference: Vec<Report>,
    pub(super) server: Vec<Report>,
}

impl Rounds {
    /// The medians of one value. Rounds without it are left out.
    pub(super) fn figure(&self, scenario: &'static str, name: &str, value: impl Fn(&Report) -> Option<f64>) -> Figure {
        let of = |reports: &[Report]| median(reports.iter().filter_map(&value));
        Figure::both(scenario, name, of(&self.reference), of(&self.server))
    }

    /// For each round, the server's value divided by the reference's right before it: a machine that becomes slower in the
    /// middle of the rounds affects both.
    pub(super) fn ratios(&self, value: impl Fn(&Report) -> Option<f64>) -> Vec<f64> {
        paired_ratios(&self.server, &self.reference, value)
    }

    /// The sums of one count.
    pub(super) fn total(&self, scenario: &'static str, name: &str, count: impl Fn(&Report) -> u64) -> Figure {
        let of = |reports: &[Report]| (!reports.is_empty()).then(|| reports.iter().map(&count).sum::<u64>() as f64);
        Figure::both(scenario, name, of(&self.reference), of(&self.server))
    }
}

/// The name of the relay's or the server's process in the reports of `load`.
pub(super) const TARGET: &str = "target";

pub(super) fn saturation(rounds: &Rounds) -> Vec<Figure> {
    const SCENARIO: &str = "saturation";
    let delivered = rounds.figure(SCENARIO, "delivered/s", delivered_per_s);
    let ratios = rounds.ratios(delivered_per_s);
    vec![
        rounds.figure(SCENARIO, "publish/s", |report| Some(report.publish_per_s)),
        rounds.figure(SCENARIO, "publish p50, ms", |report| report.publish.map(|p| p.p50_ms)),
        rounds
            .figure(SCENARIO, "publish p99, ms", |report| report.publish.map(|p| p.p99_ms))
            .goal(goal::PUBLISH_P99_MS),
        delivered,
        Figure::ratios(SCENARIO, "delivered/s, server ÷ relay", &ratios).goal(goal::DELIVERED_RATIO),
        missing(rounds, SCENARIO),
        rounds.total(SCENARIO, "publish errors", |report| report.errors),
        rounds.total(SCENARIO, "duplicates", |report| report.delivery.as_ref().map_or(0, |d| d.duplicates)),
        rounds.figure(SCENARIO, "CPU per message, µs", cpu_us),
        rounds.figure(SCENARIO, "written to disk per message, bytes", |report| {
            report.delivery.as_ref()?.written_bytes_per_msg.get(TARGET).copied()
        }),
    ]
}

/// Publishes without deliveries, compared with a server that only appends.
pub(super) fn publishes(rounds: &Rounds, scenario: &'static str) -> Vec<Figure> {
    let published = rounds.figure(scenario, "durable publishes/s", |report| Some(report.publish_per_s));
    let ratios = rounds.ratios(|report| Some(report.publish_per_s));
    vec![
        published,
        Figure::ratios(scenario, "durable publishes/s, server ÷ append server", &ratios).goal(goal::PUBLISHED_RATIO),
        rounds.figure(scenario, "publish p50, ms", |report| report.publish.map(|p| p.p50_ms)),
        rounds.figure(scenario, "publish p99, ms", |report| report.publish.map(|p| p.p99_ms)),
        rounds.figure(scenario, "CPU per publish, µs", |report| report.cpu_publish_us_per_msg.get(TARGET).copied()),
        rounds.total(scenario, "publish errors", |report| report.errors),
    ]
}

pub(super) fn fixed_rate(rounds: &Rounds, scenario: &'static str) -> Vec<Figure> {
    let e2e = |report: &Report, pick: fn(Percentiles) -> f64| report.delivery.as_ref()?.e2e.map(pick);
    vec![
        rounds.figure(scenario, "publish to arrival p50, ms", |r| e2e(r, |p| p.p50_ms)).goal(goal::E2E_P50_MS),
        rounds.figure(scenario, "publish to arrival p99, ms", |r| e2e(r, |p| p.p99_ms)).goal(goal::E2E_P99_MS),
        rounds.figure(scenario, "CPU per message, µs", cpu_us),
        missing(rounds, scenario),
        rounds.total(scenario, "publish errors", |report| report.errors),
    ]
}

/// Acknowledged messages that did not arrive.
pub(super) fn missing(rounds: &Rounds, scenario: &'static str) -> Figure {
    let count = |report: &Report| report.delivery.as_ref().map_or(report.acked, |delivery| delivery.missing);
    rounds.total(scenario, "missing", count).goal(Goal::None)
}

pub(super) fn delivered_per_s(report: &Report) -> Option<f64> {
    report.delivery.as_ref().map(|delivery| delivery.delivered_per_s)
}

/// The medians of each percentile from publish to arrival; `None` when nothing arrived.
pub(super) fn latency(reports: &[Report]) -> Option<Percentiles> {
    let of = |pick: fn(Percentiles) -> f64| {
        median(reports.iter().filter_map(|report| report.delivery.as_ref()?.e2e).map(pick))
    };
    Some(Percentiles {
        p50_ms: of(|p| p.p50_ms)?,
        p90_ms: of(|p| p.p90_ms)?,
        p99_ms: of(|p| p.p99_ms)?,
        p999_ms: of(|p| p.p999_ms)?,
        max_ms: of(|p| p.max_ms)?,
    })
}

/// CPU time of the server's process per delivered message.
pub(super) fn cpu_us(report: &Report) -> Option<f64> {
    report.delivery.as_ref()?.cpu_us_per_msg.get(TARGET).copied()
}

/// CPU time of the load generator and the receiver per delivered message.
pub(super) fn tools_cpu_us(report: &Report) -> Option<f64> {
    let spent = &report.delivery.as_ref()?.cpu_us_per_msg;
    Some(spent.iter().filter(|(process, _)| *process != TARGET).map(|(_, us)| us).sum())
}

/// The ratios of one value, round by round.
pub(super) fn paired_ratios(part: &[Report], whole: &[Report], value: impl Fn(&Report) -> Option<f64>) -> Vec<f64> {
    part.iter().zip(whole).filter_map(|(part, whole)| ratio(value(part), value(whole))).collect()
}

pub(super) fn ratio(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    Some(part? / whole.filter(|whole| *whole > 0.0)?)
}

/// The Markdown table.
pub(super) fn table(figures: &[Figure], judged: bool) -> String {
    let mut rows = vec![["scenario", "figure", "reference", "server", "goal", "result"].map(str::to_owned)];
    for figure in figures {
        rows.push([
            figure.scenario.to_owned(),
            figure.name.clone(),
            figure.reference.map(number).unwrap_or_default(),
            figure.text(),
            figure.goal.map(Goal::text).unwrap_or_default(),
            figure.verdict(judged).to_owned(),
        ]);
    }
    let widths: [usize; 6] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            2 | 3 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| match column {
        2 | 3 => format!("{}:", "-".repeat(width + 1)),
        _ => "-".repeat(width + 2),
    });
    let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
    line(&rows[0]) + &rule + &rows[1..].iter().map(line).collect::<String>()
}

/// Three significant digits, or a whole number with thousands separators.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size < 100.0 && value.fract() != 0.0 {
        return if size < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    }
    let digits = format!("{size:.0}");
    let mut grouped = String::from(if value < 0.0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::load::Delivery;
    use std::collections::BTreeMap;

    pub(in crate::run) fn report(delivered_per_s: f64, missing: u64, cpu_us: f64) -> Report {
        let e2e = Percentiles { p50_ms: 2.0, p90_ms: 3.0, p99_ms: 4.0, p999_ms: 5.0, max_ms: 6.0 };
        Report {
            label: String::new(),
            run: 1,
            conns: 64,
            rate: 0.0,
            body_bytes: 1024,
            keys: 1,
            acked: 10,
            errors: 1,
            first_error: None,
            sample: String::new(),
            publish_s: 1.0,
            publish_per_s: 10.0,
            publish: Some(e2e),
            foreign_cpu_pct: 0.0,
            cpu_publish_us_per_msg: BTreeMap::new(),
            usage: BTreeMap::new(),
            delivery: Some(Delivery {
                delivered: 10 - missing,
                missing,
                duplicates: 2,
                overtakers: None,
                injected_failures: 0,
                seconds: 1.0,
                delivered_per_s,
                e2e: Some(e2e),
                cpu_us_per_msg: BTreeMap::from([(TARGET.to_owned(), cpu_us)]),
                written_bytes_per_msg: BTreeMap::new(),
            }),
        }
    }

    fn rounds() -> Rounds {
        Rounds {
            reference: vec![report(2000.0, 0, 20.0), report(3000.0, 0, 10.0), report(1000.0, 0, 30.0)],
            server: vec![report(900.0, 1, 60.0), report(100.0, 2, 70.0), report(800.0, 0, 80.0)],
        }
    }

    #[test]
    fn the_cost_of_the_tools_excludes_the_server() {
        let mut report = report(900.0, 0, 60.0);
        let tools = [("load".to_owned(), 12.0), ("sink".to_owned(), 8.0)];
        report.delivery.as_mut().unwrap().cpu_us_per_msg.extend(tools);
        assert_eq!((cpu_us(&report), tools_cpu_us(&report)), (Some(60.0), Some(20.0)));
    }

    #[test]
    fn saturation_takes_medians_of_rates_and_sums_of_losses() {
        let figures = saturation(&rounds());
        let named = |name: &str| figures.iter().find(|f| f.name == name).map(|f| (f.reference, f.server)).unwrap();
        assert_eq!(named("delivered/s"), (Some(2000.0), Some(800.0)));
        assert_eq!(named("delivered/s, server ÷ relay"), (None, Some(0.45)), "round by round, not median by median");
        assert_eq!(named("missing"), (Some(0.0), Some(3.0)));
        assert_eq!(named("publish errors"), (Some(3.0), Some(3.0)));
        assert_eq!(named("CPU per message, µs"), (Some(20.0), Some(70.0)));
        assert_eq!(named("written to disk per message, bytes"), (None, None));
    }

    #[test]
    fn a_ratio_shows_the_range_of_its_rounds() {
        let Rounds { reference, server } = rounds();
        let figure = Figure::ratios("isolation", "p99", &paired_ratios(&server, &reference, delivered_per_s));
        assert_eq!(figure.text(), "0.45 (0.03–0.80)");
        let none = Figure::ratios("isolation", "p99", &[]);
        assert_eq!((none.server, none.spread, none.text()), (None, None, String::new()));
    }

    #[test]
    fn a_run_without_deliveries_counts_all_messages_as_missing() {
        let mut lost = report(0.0, 0, 0.0);
        lost.delivery = None;
        let rounds = Rounds { reference: Vec::new(), server: vec![lost] };
        let figure = missing(&rounds, "rate");
        assert_eq!((figure.reference, figure.server), (None, Some(10.0)));
    }

    #[test]
    fn goals_are_judged_at_their_edge() {
        let cases = [
            (Goal::AtLeast(0.35), 0.35, true),
            (Goal::AtLeast(0.35), 0.349, false),
            (Goal::AtMost(40.0), 40.0, true),
            (Goal::AtMost(40.0), 40.1, false),
            (Goal::Below(60.0), 59.9, true),
            (Goal::Below(60.0), 60.0, false),
            (Goal::None, 0.0, true),
            (Goal::None, 1.0, false),
        ];
        for (goal, value, met) in cases {
            assert_eq!(goal.is_met(value), met, "{goal:?} {value}");
        }
    }

    #[test]
    fn the_table_aligns_and_judges() {
        let figures = [
            Figure::both("saturation", "delivered/s", Some(23_400.4), Some(9_000.0)),
            Figure::server("idle", "RSS, MB", Some(61.25)).goal(goal::IDLE_RSS_MB),
            Figure::server("rate", "missing", Some(0.0)).goal(Goal::None),
            Figure::server("rate", "p50", None).goal(goal::E2E_P50_MS),
        ];
        let expected = "\
| scenario   | figure      | reference | server | goal | result   |
|------------|-------------|----------:|-------:|------|----------|
| saturation | delivered/s |    23,400 |  9,000 |      |          |
| idle       | RSS, MB     |           |   61.2 | < 60 | **FAIL** |
| rate       | missing     |           |      0 | 0    | pass     |
| rate       | p50         |           |        | ≤ 2  | no data  |
";
        assert_eq!(table(&figures, true), expected);
    }

    #[test]
    fn a_smoke_run_judges_only_losses() {
        let slow = Figure::server("idle", "RSS, MB", Some(9e9)).goal(goal::IDLE_RSS_MB);
        let lossy = Figure::server("rate", "missing", Some(1.0)).goal(Goal::None);
        assert_eq!((slow.verdict(false), lossy.verdict(false)), ("not judged", "**FAIL**"));
        assert_eq!((slow.breaks_promise(), lossy.breaks_promise()), (false, true));
    }

    #[test]
    fn numbers_are_short_but_whole_ones_complete() {
        let cases = [
            (0.0, "0"),
            (0.354, "0.35"),
            (12.34, "12.3"),
            (7.0, "7"),
            (999.6, "1,000"),
            (1_234_567.0, "1,234,567"),
            (-1.5, "-1.50"),
            (-1234.0, "-1,234"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
    }
}
