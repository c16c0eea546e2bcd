//! A large backlog of messages that are due in a week: its cost in memory, the duration of a restart with it, whether
//! all of it survives the restart, the accuracy of timers, and whether new messages are as fast and as cheap as without
//! it.
//!
//! One server is filled in steps, and each step measures the cost of new messages. With the whole backlog, it then
//! takes turns with an empty server.

use super::figure::{Figure, Goal, Rounds, cpu_us, delivered_per_s, goal, missing, number, ratio, tools_cpu_us};
use super::fill::{Backlog, Filled, count_gone};
use super::machine::free_bytes;
use super::scenario::{Bench, RATE_PER_S, Side, Target};
use super::work::Work;
use crate::http::get_ok;
use crate::load::Report;
use crate::process::Usage;
use crate::stats::{Percentiles, median};
use anyhow::{Result, bail};
use std::path::Path;

const SCENARIO: &str = "delayed";
/// The backlogs at which the cost is measured on the way to the whole one.
const STEPS: [u32; 3] = [1_000, 100_000, 1_000_000];
/// The largest backlog whose restart has a goal.
const RESTART_JUDGED_MAX: u32 = 1_000_000;
/// Disk space that a stored message may need, in addition to its body, for the check of free space.
const OVERHEAD_BYTES: u64 = 2_000;
const TIMER_DELAY_MS: f64 = 3_000.0;

/// The results of a server in its turns, with the whole backlog or without any.
#[derive(Default)]
struct Turns {
    delivered: Rounds,
    published: Rounds,
}

/// The results for the backlog.
#[derive(Default)]
struct Found {
    figures: Vec<Figure>,
    costs: Vec<Cost>,
    reports: Rounds,
    early: u64,
    samples: Vec<String>,
}

/// The cost of a message on top of this many stored ones.
struct Cost {
    stored: u32,
    /// CPU of the server.
    us: f64,
    /// The same, divided by the CPU that the load generator and the receiver need for a message. They do not depend on
    /// the backlog, so this value does not change if the machine becomes slower or faster.
    in_tools: f64,
}

impl Cost {
    fn of(stored: u32, reports: &[Report]) -> Option<Cost> {
        let in_tools = |report: &Report| ratio(cpu_us(report), tools_cpu_us(report));
        let us = median(reports.iter().filter_map(cpu_us))?;
        Some(Cost { stored, us, in_tools: median(reports.iter().filter_map(in_tools))? })
    }
}

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let stored = bench.plan.stored;
    check_space(bench)?;
    let mut target = bench.start(Side::Server).await?;
    tokio::time::sleep(bench.plan.settle).await;
    let before = Usage::of_tree(target.child.pid);
    let mut backlog = Backlog::new(bench);
    let mut found = Found::default();
    for step in steps(stored) {
        let filled = backlog.fill(&target, step).await?;
        bench.noise.add(&format!("delayed, filling to {step}"), Side::Server, filled.foreign_cpu_pct);
        tokio::time::sleep(bench.plan.settle).await;
        found.early += early(bench, &backlog).await?;
        if step == stored {
            found.figures.extend(memory_figures(&filled, before, Usage::of_tree(target.child.pid), step));
        }
        if step == stored || step == RESTART_JUDGED_MAX {
            target = restart(bench, target, step, &mut found).await?;
        }
        found.samples.extend(filled.samples);
        if step < stored {
            let reports = rounds_on(bench, &mut target, step).await?;
            found.costs.extend(Cost::of(step, &reports.server));
            found.reports.server.extend(reports.server);
        }
    }
    let gone = count_gone(&target, &found.samples).await?;
    bench.lost += gone;
    let timers = timers(bench, &mut target).await?;
    let (without, with) = turns(bench, &mut target).await?;
    found.early += early(bench, &backlog).await?;
    bench.stop(target).await;
    found.costs.extend(Cost::of(stored, &with.delivered.server));
    bench.plots.cost = found.costs.iter().map(|cost| (cost.stored, cost.us)).collect();

    let looked_up = format!("gone after restart, of {} looked up", found.samples.len());
    let mut figures = found.figures;
    figures.push(Figure::server(SCENARIO, &looked_up, Some(gone as f64)).goal(Goal::None));
    figures.push(Figure::server(SCENARIO, "delivered too early", Some(found.early as f64)).goal(Goal::None));
    figures.extend(timer_figures(&timers));
    figures.extend(rate_figures(&without, &with));
    figures.extend(cost_figures(&found.costs));
    let mut all = found.reports;
    all.server.extend([timers].into_iter().chain(without.delivered.server).chain(with.delivered.server));
    figures.push(missing(&all, SCENARIO));
    Ok(figures)
}

/// The backlogs at which something is measured, ending with the whole one.
fn steps(stored: u32) -> Vec<u32> {
    STEPS.into_iter().filter(|step| *step < stored).chain([stored]).collect()
}

fn check_space(bench: &Bench) -> Result<()> {
    let needed = u64::from(bench.plan.stored) * (u64::from(bench.plan.delayed_body_bytes) + OVERHEAD_BYTES);
    let free = free_bytes(bench.work_path())?;
    if free < needed {
        let gb = |bytes: u64| number(bytes as f64 / 1e9);
        bail!(
            "{} stored messages may need {} GB, but {} has {} GB left: free some, or ask for fewer with --stored",
            number(f64::from(bench.plan.stored)),
            gb(needed),
            bench.work_path().display(),
            gb(free)
        );
    }
    Ok(())
}

/// Stops the server and starts it again on its data.
async fn restart(bench: &mut Bench, target: Target, stored: u32, found: &mut Found) -> Result<Target> {
    let (dir, stop_s) = bench.stop(target).await;
    let disk_mb = disk_bytes(dir.path()) as f64 / 1e6;
    let target = bench.start_in(Side::Server, dir).await?;
    let ready_s = target.child.ready_s;
    let count = number(f64::from(stored));
    eprintln!("delayed: ready {} s after the restart with {count}", number(ready_s));
    tokio::time::sleep(bench.plan.settle).await;
    let rss_mb = Usage::of_tree(target.child.pid).rss_mb;
    let server = |name: &str, value| Figure::server(SCENARIO, &format!("{name} with {count} stored"), value);
    let ready = server("restart until ready, s,", Some(ready_s));
    found.figures.extend([
        server("data directory, MB,", Some(disk_mb)),
        server("stop after SIGTERM, s,", stop_s),
        if stored <= RESTART_JUDGED_MAX { ready.goal(goal::RESTART_S) } else { ready },
        server("RSS after restart, MB,", Some(rss_mb)),
    ]);
    Ok(target)
}

/// Saturation rounds on top of this many stored messages.
async fn rounds_on(bench: &mut Bench, target: &mut Target, stored: u32) -> Result<Rounds> {
    let mut rounds = Rounds::default();
    let work = Work::timed(bench.sink(), f64::from(bench.plan.seconds), 0);
    for round in 1..=bench.plan.rounds {
        let label = format!("delayed, {} stored, {round}/{}", number(f64::from(stored)), bench.plan.rounds);
        rounds.server.push(bench.measure(target, &label, &work).await?);
    }
    Ok(rounds)
}

/// An empty server and the full one in turn: first with messages that are delivered, then with messages that are only
/// stored.
async fn turns(bench: &mut Bench, full: &mut Target) -> Result<(Turns, Turns)> {
    let seconds = f64::from(bench.plan.seconds);
    let (deliver, publish) = (Work::timed(bench.sink(), seconds, 0), Work::stored(bench.sink(), seconds));
    let (mut without, mut with) = (Turns::default(), Turns::default());
    for round in 1..=bench.plan.rounds {
        let label = |turn: &str| format!("delayed, {turn} {round}/{}", bench.plan.rounds);
        let (fresh, backed) = (label("without backlog"), label("with backlog"));
        let mut empty = bench.start(Side::Server).await?;
        without.delivered.server.push(bench.measure(&mut empty, &fresh, &deliver).await?);
        with.delivered.server.push(bench.measure(full, &backed, &deliver).await?);
        without.published.server.push(bench.measure(&mut empty, &format!("{fresh}, publish"), &publish).await?);
        with.published.server.push(bench.measure(full, &format!("{backed}, publish"), &publish).await?);
        bench.stop(empty).await;
    }
    Ok((without, with))
}

/// Messages that become due during the run, at a moderate rate.
async fn timers(bench: &mut Bench, target: &mut Target) -> Result<Report> {
    let headers = vec![format!("Upstash-Delay: {}s", TIMER_DELAY_MS / 1e3)];
    let work = Work { headers, ..Work::timed(bench.sink(), f64::from(bench.plan.seconds), RATE_PER_S) };
    bench.measure(target, "delayed, timers", &work).await
}

/// How many messages of the backlog have arrived at the sink since its last reset.
async fn early(bench: &Bench, backlog: &Backlog) -> Result<u64> {
    let count = get_ok(bench.sink(), &format!("/_count?run={}", backlog.run)).await?;
    Ok(String::from_utf8(count)?.parse()?)
}

fn memory_figures(filled: &Filled, before: Usage, after: Usage, stored: u32) -> Vec<Figure> {
    let server = |name: &str, value: f64| Figure::server(SCENARIO, name, Some(value));
    let count = number(f64::from(stored));
    vec![
        server(&format!("messages/s while storing up to {count}"), f64::from(filled.messages) / filled.seconds),
        server("CPU per stored message, µs", filled.cpu_us_per_message),
        server("RSS before, MB", before.rss_mb),
        server("RSS after, MB", after.rss_mb),
        server("RSS growth, MB", after.rss_mb - before.rss_mb).goal(goal::DELAYED_RSS_GROWTH_MB),
        server("RSS peak while storing, MB", after.rss_peak_mb),
    ]
}

fn timer_figures(report: &Report) -> Vec<Figure> {
    let late = |pick: fn(Percentiles) -> f64| Some(pick(report.delivery.as_ref()?.e2e?) - TIMER_DELAY_MS);
    vec![
        Figure::server(SCENARIO, "due to arrival p50, ms", late(|e2e| e2e.p50_ms)),
        Figure::server(SCENARIO, "due to arrival p99, ms", late(|e2e| e2e.p99_ms)).goal(goal::TIMER_P99_MS),
    ]
}

fn rate_figures(without: &Turns, with: &Turns) -> Vec<Figure> {
    let of = |rounds: &Rounds, value: fn(&Report) -> Option<f64>| median(rounds.server.iter().filter_map(value));
    let published = |report: &Report| Some(report.publish_per_s);
    let pairs = [
        ("delivered/s", of(&without.delivered, delivered_per_s), of(&with.delivered, delivered_per_s)),
        ("durable publishes/s", of(&without.published, published), of(&with.published, published)),
    ];
    let figures = pairs.map(|(name, fresh, backed)| {
        let server = |what: &str, value| Figure::server(SCENARIO, &format!("{name}{what}"), value);
        [
            server(" without backlog", fresh),
            server(" with backlog", backed),
            server(", with ÷ without", ratio(backed, fresh)).goal(goal::BACKLOG_RATIO),
        ]
    });
    figures.concat()
}

fn cost_figures(costs: &[Cost]) -> Vec<Figure> {
    let name = |stored: u32| format!("CPU per message with {} stored, µs", number(f64::from(stored)));
    let mut figures: Vec<Figure> =
        costs.iter().map(|cost| Figure::server(SCENARIO, &name(cost.stored), Some(cost.us))).collect();
    let spread = |of: fn(&Cost) -> f64| {
        let extreme = |pick: fn(f64, f64) -> f64| costs.iter().map(of).reduce(pick);
        ratio(extreme(f64::max), extreme(f64::min))
    };
    let server = |name: &str, value| Figure::server(SCENARIO, name, value);
    figures.push(server("CPU per message, dearest ÷ cheapest", spread(|cost| cost.us)));
    let in_tools = spread(|cost| cost.in_tools);
    figures.push(server("CPU per message ÷ the tools', dearest ÷ cheapest", in_tools).goal(goal::COST_SPREAD));
    figures
}

fn disk_bytes(path: &Path) -> u64 {
    let Ok(meta) = path.symlink_metadata() else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| disk_bytes(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_backlog_is_the_last_step() {
        assert_eq!(steps(500), [500]);
        assert_eq!(steps(20_000), [1_000, 20_000]);
        assert_eq!(steps(1_000_000), [1_000, 100_000, 1_000_000]);
        assert_eq!(steps(10_000_000), [1_000, 100_000, 1_000_000, 10_000_000]);
    }

    #[test]
    fn the_spread_of_costs_is_relative_to_the_cost_of_the_tools() {
        let cost = |stored, us, tools: f64| Cost { stored, us, in_tools: us / tools };
        let figures = cost_figures(&[cost(1_000, 50.0, 20.0), cost(100_000, 40.0, 20.0), cost(1_000_000, 60.0, 25.0)]);
        let [.., spread, judged] = &figures[..] else { panic!("{} figures", figures.len()) };
        assert_eq!((figures.len(), spread.server, spread.goal), (5, Some(1.5), None));
        assert_eq!((judged.server, judged.goal), (Some(1.25), Some(goal::COST_SPREAD)));
        assert_eq!(cost_figures(&[]).last().unwrap().server, None);
    }
}
