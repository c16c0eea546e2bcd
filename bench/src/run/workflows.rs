//! Durable workflows: runs of a few trivial steps, each of which costs the server one delivery and one publish, and
//! runs that sleep.
//!
//! The application is `workflow-endpoint`, which costs little and checks everything. With peers, the same runs also use
//! the official TypeScript SDK, Restate and Temporal's development server. The systems take turns.

use super::figure::{Figure, Goal, TARGET, goal, number, ratio};
use super::scenario::{Bench, Side};
use super::workflow_apps::{App, System, run_on_temporal};
use super::workflow_runs::{Patience, Start, count_asleep, count_succeeded, wait_for};
use crate::account::Account;
use crate::clock::{now_ns, seconds_between};
use crate::process::{NamedPid, Usage};
use crate::stats::{Percentiles, median};
use crate::workflow::Tally;
use crate::workflow::protocol::Script;
use anyhow::{Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const SCENARIO: &str = "workflows";
/// Steps of a run.
pub(super) const STEPS: u32 = 5;
/// Runs before a measurement, as a warm-up: one tenth of those in it.
const WARM_UP_SHARE: u32 = 10;
/// Wait after the last run ended, because outcomes still have to be stored and duplicates may still arrive.
const QUIET: Duration = Duration::from_millis(500);
/// How long runs are started on Temporal, which would need minutes for all of them.
pub(super) const TEMPORAL_SECONDS: u32 = 15;
/// Most runs that are awake at once on their way to sleep. More would measure a backlog of deliveries.
const AWAKE_MAX: u32 = 2_000;
/// Sleeping runs that are looked up.
const SAMPLES: u32 = 200;

/// The result of one measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) label: String,
    pub(super) system: System,
    pub(super) runs: u32,
    pub(super) steps_per_s: f64,
    /// According to the application.
    pub(super) tally: Tally,
    /// By process.
    pub(super) cpu_us_per_step: BTreeMap<String, f64>,
    pub(super) foreign_cpu_pct: f64,
    /// Successful runs according to the server; `None` if it was not asked.
    pub(super) succeeded: Option<u64>,
}

impl Report {
    /// Creates a report from the application's tally and the CPU usage.
    pub(super) fn new(label: &str, system: System, runs: u32, tally: Tally, spent: &crate::account::Spent) -> Self {
        Self {
            label: label.to_owned(),
            system,
            runs,
            steps_per_s: tally.steps as f64 / tally.seconds.max(1e-9),
            cpu_us_per_step: spent.cpu_us_per(tally.steps),
            foreign_cpu_pct: spent.foreign_cpu_pct,
            tally,
            succeeded: None,
        }
    }

    fn cpu_us(&self) -> Option<f64> {
        self.cpu_us_per_step.get(TARGET).copied()
    }
}

pub(super) async fn measure(bench: &mut Bench, peers_dir: &Path) -> Result<Vec<Figure>> {
    let dir = std::path::absolute(peers_dir)?;
    let mut systems = vec![System::Server];
    if bench.plan.with_peers {
        match super::peers::install(&dir).await {
            // References first, as in the other scenarios.
            Ok(()) => systems = vec![System::Restate, System::Server, System::Sdk],
            Err(error) => leave_out(bench, "every other system", &error),
        }
    }
    let mut reports = Vec::new();
    if systems.len() > 1 {
        match run_on_temporal(bench, &dir).await {
            Ok(report) => {
                bench.noise.add(&report.label, Side::Peer, report.foreign_cpu_pct);
                reports.push(report);
            }
            Err(error) => leave_out(bench, System::Temporal.name(), &error),
        }
    }
    rounds(bench, systems, &dir, &mut reports).await?;
    let mut figures = figures(&reports);
    figures.extend(sleeping(bench, &dir).await?);
    bench.workflows.append(&mut reports);
    Ok(figures)
}

fn leave_out(bench: &mut Bench, name: &str, error: &anyhow::Error) {
    let warning = format!("workflows: {name} was left out: {error:#}");
    eprintln!("{warning}");
    bench.warnings.push(warning);
}

/// The systems in turn, each started afresh for its turn. A round that other programs disturbed is repeated, up to as
/// many times as there are rounds.
async fn rounds(bench: &mut Bench, mut systems: Vec<System>, dir: &Path, reports: &mut Vec<Report>) -> Result<()> {
    let (mut round, mut again) = (1, bench.plan.rounds);
    while round <= bench.plan.rounds {
        let mut found = Vec::new();
        for system in systems.clone() {
            let label = format!("workflows {round}/{}, {}", bench.plan.rounds, system.name());
            match turn(bench, system, dir, &label).await {
                Ok(report) => found.push(report),
                Err(error) if system == System::Server => return Err(error),
                Err(error) => {
                    leave_out(bench, system.name(), &error);
                    systems.retain(|other| *other != system);
                }
            }
        }
        let is_noisy = found.iter().any(|report| report.foreign_cpu_pct > goal::FOREIGN_CPU_PCT);
        if is_noisy && again > 0 && bench.plan.judged {
            again -= 1;
            eprintln!("workflows {round}/{}: disturbed by others, once more", bench.plan.rounds);
            continue;
        }
        for report in found {
            bench.noise.add(&report.label, report.system.side(), report.foreign_cpu_pct);
            reports.push(report);
        }
        round += 1;
    }
    Ok(())
}

/// One measurement on a fresh start, after a warm-up.
async fn turn(bench: &mut Bench, system: System, dir: &Path, label: &str) -> Result<Report> {
    let mut app = App::start(bench, system, dir).await?;
    let runs = bench.plan.workflow_runs;
    let script = Script::Steps(STEPS);
    let is_over = |tally: &Tally, runs: u32| tally.ended + tally.failed >= u64::from(runs);

    let warm_up = Start::new(&app, script, runs.div_ceil(WARM_UP_SHARE))?;
    warm_up.start(0..warm_up.runs).await?;
    wait_for(&mut app, &warm_up, |tally| is_over(tally, warm_up.runs)).await?;
    tokio::time::sleep(QUIET).await;

    let start = Start::new(&app, script, runs)?;
    let account = Account::of_processes(app.processes());
    start.start(0..runs).await?;
    wait_for(&mut app, &start, |tally| is_over(tally, runs)).await?;
    tokio::time::sleep(QUIET).await;
    let spent = account.read();
    let tally = app.tally(start.measurement).await?;
    if tally.ended == 0 {
        bail!("{label}: no run ended: {tally:?}");
    }
    bench.warnings.extend(tally.first_problem.iter().map(|problem| format!("{label}: {problem}")));
    let mut report = Report::new(label, system, runs, tally, &spent);
    if system.side() == Side::Server {
        report.succeeded = Some(count_succeeded(&start, system == System::Server).await?);
    }
    eprintln!(
        "{label}: {} steps/s, {} of {runs} runs ended, foreign CPU {}%",
        number(report.steps_per_s),
        report.tally.ended,
        number(report.foreign_cpu_pct)
    );
    app.stop(bench).await;
    Ok(report)
}

/// The memory cost of sleeping runs.
async fn sleeping(bench: &mut Bench, dir: &Path) -> Result<Vec<Figure>> {
    let runs = bench.plan.sleeping_runs;
    let mut app = App::start(bench, System::Server, dir).await?;
    tokio::time::sleep(bench.plan.settle).await;
    let before = Usage::of_tree(app.target.child.pid);
    let account = Account::of_processes(app.processes());
    let (start, start_ns) = (Start::new(&app, Script::Sleep, runs)?, now_ns());
    let (mut started, mut patience) = (0, Patience::Rewarded);
    while started < runs && patience == Patience::Rewarded {
        let until = runs.min(started + AWAKE_MAX / 2);
        start.start(started..until).await?;
        let asleep = u64::from(until.saturating_sub(AWAKE_MAX / 2));
        patience = wait_for(&mut app, &start, |tally| tally.steps + tally.failed >= asleep).await?;
        if started / 10_000 < until / 10_000 {
            eprintln!("workflows: {} of {} sleep", number(asleep as f64), number(f64::from(runs)));
        }
        started = until;
    }
    if patience == Patience::Rewarded {
        patience = wait_for(&mut app, &start, |tally| tally.steps + tally.failed >= u64::from(runs)).await?;
    }
    let seconds = seconds_between(start_ns, now_ns());
    let spent = account.read();
    bench.noise.add("workflows, falling asleep", Side::Server, spent.foreign_cpu_pct);
    tokio::time::sleep(bench.plan.settle).await;
    let after = Usage::of_tree(app.target.child.pid);
    let tally = app.tally(start.measurement).await?;
    if patience == Patience::Lost {
        bench.warnings.push(format!("workflows: only {} of {runs} runs fell asleep", tally.steps));
    }
    bench.warnings.extend(tally.first_problem.iter().map(|problem| format!("workflows, sleeping runs: {problem}")));
    let asleep = count_asleep(&start, SAMPLES.min(runs)).await?;
    app.stop(bench).await;

    let cpu_us = spent.cpu_s_of(TARGET) * 1e6 / f64::from(runs);
    let server = |name: String, value: f64| Figure::server(SCENARIO, &name, Some(value));
    let count = number(f64::from(runs));
    let not_asleep = u64::from(runs).saturating_sub(tally.steps) + tally.wrong + tally.repeated;
    Ok(vec![
        server(format!("{count} sleeping runs: fall asleep/s"), f64::from(runs) / seconds.max(1e-9)),
        server(format!("{count} sleeping runs: CPU per run, µs"), cpu_us),
        server(format!("{count} sleeping runs: RSS growth, MB"), after.rss_mb - before.rss_mb)
            .goal(goal::SLEEPING_RSS_GROWTH_MB),
        server(format!("{count} sleeping runs: not asleep"), not_asleep as f64).goal(Goal::None),
        server(
            format!("{count} sleeping runs: gone, of {} looked up", SAMPLES.min(runs)),
            f64::from(SAMPLES.min(runs) - asleep),
        )
        .goal(Goal::None),
    ])
}

fn figures(reports: &[Report]) -> Vec<Figure> {
    let of = |system: System| reports.iter().filter(move |report| report.system == system);
    let median_of = |system: System, value: &dyn Fn(&Report) -> Option<f64>| median(of(system).filter_map(value));
    let both = |name: &str, value: &dyn Fn(&Report) -> Option<f64>| {
        Figure::both(SCENARIO, name, median_of(System::Restate, value), median_of(System::Server, value))
    };
    let rate = |report: &Report| Some(report.steps_per_s);
    let took = |report: &Report, pick: fn(Percentiles) -> f64| report.tally.took.map(pick);
    let pairs = of(System::Server).zip(of(System::Restate));
    let beside_restate = median(pairs.filter_map(|(ours, theirs)| ratio(rate(ours), rate(theirs))));
    let server_rate = median_of(System::Server, &rate);
    let mut figures = vec![
        both("steps/s", &rate),
        both("time per run p50, ms", &|report| took(report, |p| p.p50_ms)),
        both("time per run p99, ms", &|report| took(report, |p| p.p99_ms)),
        both("CPU per step, µs", &Report::cpu_us),
    ];
    if of(System::Restate).next().is_some() {
        let figure = Figure::server(SCENARIO, "steps/s, server ÷ Restate", beside_restate);
        figures.push(figure.goal(goal::WORKFLOW_RESTATE_RATIO));
    }
    if let Some(temporal) = median_of(System::Temporal, &rate) {
        let named = format!("steps/s, Temporal's development server, {TEMPORAL_SECONDS} s");
        figures.push(Figure::both(SCENARIO, &named, Some(temporal), server_rate));
        let figure = Figure::server(SCENARIO, "steps/s, server ÷ Temporal", ratio(server_rate, Some(temporal)));
        figures.push(figure.goal(goal::WORKFLOW_TEMPORAL_RATIO));
    }
    figures.extend(checks(of(System::Server), "").into_iter().map(|figure| figure.goal(Goal::None)));
    if of(System::Sdk).next().is_some() {
        let sdk = |name: &str, value: &dyn Fn(&Report) -> Option<f64>| {
            Figure::server(SCENARIO, &format!("TypeScript SDK: {name}"), median_of(System::Sdk, value))
        };
        figures.push(sdk("steps/s", &rate));
        figures.push(sdk("CPU per step, µs", &Report::cpu_us).goal(goal::SDK_STEP_CPU_US));
        figures.extend(checks(of(System::Sdk), "TypeScript SDK: ").into_iter().map(|figure| figure.goal(Goal::None)));
    }
    figures
}

/// Counts that must be zero: sums over all rounds.
fn checks<'a>(reports: impl Iterator<Item = &'a Report>, whose: &str) -> Vec<Figure> {
    let (mut failed, mut missing, mut repeated, mut wrong) = (0, 0, 0, 0);
    for Report { runs, tally, succeeded, .. } in reports {
        let expected = u64::from(*runs) * u64::from(Script::Steps(STEPS).deliveries());
        failed += u64::from(*runs) - succeeded.unwrap_or(0).min(u64::from(*runs));
        missing += expected.saturating_sub(tally.deliveries);
        repeated += tally.repeated.max(tally.deliveries.saturating_sub(expected));
        wrong += tally.wrong + tally.errors;
    }
    let server = |name: &str, value: u64| Figure::server(SCENARIO, &format!("{whose}{name}"), Some(value as f64));
    vec![
        server("runs without success", failed),
        server("deliveries missing", missing),
        server("deliveries too many", repeated),
        server("wrong deliveries and failed publishes", wrong),
    ]
}

/// The processes of a measurement by name. The server is measured, and the others do not count as foreign.
pub(super) fn processes(target: u32, helpers: impl IntoIterator<Item = u32>) -> Vec<NamedPid> {
    let named = |name: String, pid| NamedPid { name, pid };
    let mut all = vec![named(TARGET.into(), target), named("run".into(), std::process::id())];
    all.extend(helpers.into_iter().enumerate().map(|(index, pid)| named(format!("helper{index}"), pid)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(system: System, steps_per_s: f64) -> Report {
        let tally = Tally { deliveries: 60, steps: 50, ended: 10, seconds: 1.0, ..Tally::default() };
        let succeeded = (system.side() == Side::Server).then_some(10);
        let cpu_us_per_step = BTreeMap::from([(TARGET.to_owned(), 100.0)]);
        let label = String::new();
        Report { label, system, runs: 10, steps_per_s, tally, cpu_us_per_step, foreign_cpu_pct: 0.0, succeeded }
    }

    fn named<'a>(figures: &'a [Figure], name: &str) -> &'a Figure {
        figures.iter().find(|figure| figure.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn restate_is_compared_round_by_round_and_temporal_once() {
        let mut reports = vec![report(System::Temporal, 40.0)];
        for (restate, server) in [(1_000.0, 2_000.0), (4_000.0, 4_000.0), (2_000.0, 3_000.0)] {
            reports.extend([
                report(System::Restate, restate),
                report(System::Server, server),
                report(System::Sdk, 1.0),
            ]);
        }
        let figures = figures(&reports);
        let steps = named(&figures, "steps/s");
        assert_eq!((steps.reference, steps.server), (Some(2_000.0), Some(3_000.0)));
        assert_eq!(named(&figures, "steps/s, server ÷ Restate").server, Some(1.5));
        assert_eq!(named(&figures, "steps/s, server ÷ Temporal").server, Some(75.0));
        assert_eq!(named(&figures, "TypeScript SDK: CPU per step, µs").goal, Some(goal::SDK_STEP_CPU_US));
        assert!(!figures.iter().any(Figure::breaks_promise));
    }

    #[test]
    fn without_peers_only_the_server_is_shown() {
        let figures = figures(&[report(System::Server, 3_000.0)]);
        assert!(figures.iter().all(|figure| !figure.name.contains("Restate") && !figure.name.contains("SDK")));
        assert_eq!(named(&figures, "steps/s").reference, None);
    }

    #[test]
    fn every_kind_of_wrong_run_breaks_the_promise() {
        type Change = fn(&mut Report);
        let changes: [(&str, Change); 6] = [
            ("runs without success", |report| report.succeeded = Some(9)),
            ("deliveries missing", |report| report.tally.deliveries = 59),
            ("deliveries too many", |report| report.tally.deliveries = 61),
            ("deliveries too many", |report| report.tally.repeated = 1),
            ("wrong deliveries and failed publishes", |report| report.tally.wrong = 1),
            ("wrong deliveries and failed publishes", |report| report.tally.errors = 1),
        ];
        for (name, change) in changes {
            for (system, whose) in [(System::Server, ""), (System::Sdk, "TypeScript SDK: ")] {
                let mut changed = report(system, 1.0);
                change(&mut changed);
                let figures = figures(&[changed]);
                let figure = named(&figures, &format!("{whose}{name}"));
                assert!(figure.server == Some(1.0) && figure.breaks_promise(), "{whose}{name}");
            }
        }
    }
}
