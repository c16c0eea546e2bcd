//! Many schedules that fire in the same minute: the delay of their messages, and whether each fires once.

use super::figure::{Figure, Goal, TARGET, goal, number};
use super::scenario::{Bench, Side, Target};
use super::work::Work;
use crate::account::Account;
use crate::clock::{NS_PER_S, now_ns, seconds_between, wall_ns};
use crate::http::get_ok;
use crate::process::NamedPid;
use crate::sink::{Arrival, Stats, read_arrivals};
use crate::stats::Percentiles;
use anyhow::{Result, bail};
use std::collections::HashMap;
use std::time::Duration;

const SCENARIO: &str = "schedules";
const MINUTE_NS: u64 = 60 * NS_PER_S;
/// Quiet time before a minute, without any other work.
const QUIET_NS: u64 = 2 * NS_PER_S;
/// How long after a minute to wait for its messages; well within the minute.
const PATIENCE_NS: u64 = 30 * NS_PER_S;

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let count = bench.plan.schedules;
    let mut target = bench.start(Side::Server).await?;
    let work = Work {
        path: format!("/v2/schedules/{}/x", bench.sink()),
        headers: vec!["Upstash-Cron: * * * * *".into(), "Upstash-Schedule-Id: bench-{{key}}".into()],
        keys: count,
        arrives: false,
        ..Work::counted(bench.sink(), count)
    };
    let made = bench.load(&mut target, "schedules, making", &work).await?;
    if made.acked != u64::from(count) {
        bail!("{} of {count} schedules were made: {:?}", made.acked, made.first_error);
    }
    eprintln!("schedules: {} made/s; now minutes go by", number(made.publish_per_s));
    let mut fired = Fired::default();
    // The difference between the clock of measurements and the wall clock.
    let offset_ns = wall_ns().saturating_sub(now_ns());
    let mut minute_ns = next_minute(wall_ns() + QUIET_NS);
    for nth in 1..=bench.plan.minutes {
        let burst = observe(bench, &mut target, made.run, minute_ns - offset_ns, u64::from(count)).await?;
        bench.noise.add(&format!("schedules, minute {nth}"), Side::Server, burst.foreign_cpu_pct);
        fired.add(&burst.arrivals, minute_ns - offset_ns, count);
        fired.cpu_s += burst.cpu_s;
        minute_ns += MINUTE_NS;
    }
    bench.lost += fired.missed;
    bench.stop(target).await;
    let figures = figures(made.publish_per_s, &mut fired);
    bench.runs.push(made);
    Ok(figures)
}

fn figures(made_per_s: f64, fired: &mut Fired) -> Vec<Figure> {
    let delay = Percentiles::of(&mut fired.delays_ns);
    let cpu_us = (fired.once > 0).then(|| fired.cpu_s * 1e6 / fired.once as f64);
    let server = |name: &str, value: Option<f64>| Figure::server(SCENARIO, name, value);
    vec![
        server("schedules made/s", Some(made_per_s)),
        server("fired once in their minute", Some(fired.once as f64)),
        server("minute to arrival p50, ms", delay.map(|delay| delay.p50_ms)),
        server("minute to arrival p99, ms", delay.map(|delay| delay.p99_ms)),
        server("minute to arrival max, ms", delay.map(|delay| delay.max_ms)).goal(goal::SCHEDULE_DELAY_MS),
        server("CPU per fire, µs", cpu_us),
        server("not fired", Some(fired.missed as f64)).goal(Goal::None),
        server("fired more than once", Some(fired.repeated as f64)).goal(Goal::None),
        server("fired too early", Some(fired.early as f64)).goal(Goal::None),
    ]
}

/// The messages of one minute.
struct Burst {
    /// All arrivals so far.
    arrivals: Vec<Arrival>,
    cpu_s: f64,
    foreign_cpu_pct: f64,
}

/// Waits for a minute, and until `count` more messages have arrived than before it.
async fn observe(bench: &Bench, target: &mut Target, run: u32, minute_ns: u64, count: u64) -> Result<Burst> {
    sleep_until(minute_ns - QUIET_NS).await;
    let before = total(bench.sink(), run).await?;
    sleep_until(minute_ns - QUIET_NS / 4).await;
    let account = Account::of_processes(vec![
        NamedPid { name: TARGET.into(), pid: target.child.pid },
        NamedPid { name: "sink".into(), pid: bench.sink_pid() },
        NamedPid { name: "run".into(), pid: std::process::id() },
    ]);
    sleep_until(minute_ns).await;
    while total(bench.sink(), run).await? < before + count && now_ns() < minute_ns + PATIENCE_NS {
        target.child.check_alive()?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("schedules: a minute took {} s", number(seconds_between(minute_ns, now_ns())));
    // Outcomes still have to be stored, and duplicates may still arrive.
    sleep_until(now_ns() + QUIET_NS / 2).await;
    let spent = account.read();
    let arrivals = read_arrivals(bench.sink(), run).await?;
    Ok(Burst { arrivals, cpu_s: spent.cpu_s_of(TARGET), foreign_cpu_pct: spent.foreign_cpu_pct })
}

async fn total(sink: &str, run: u32) -> Result<u64> {
    let stats: Stats = serde_json::from_slice(&get_ok(sink, &format!("/_stats?run={run}")).await?)?;
    Ok(stats.total)
}

async fn sleep_until(due_ns: u64) {
    tokio::time::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns()))).await;
}

fn next_minute(after_ns: u64) -> u64 {
    (after_ns / MINUTE_NS + 1) * MINUTE_NS
}

#[derive(Debug, Default, PartialEq)]
struct Fired {
    delays_ns: Vec<u64>,
    once: u64,
    missed: u64,
    /// Messages after the first one of a schedule and minute.
    repeated: u64,
    /// Messages that arrived shortly before their minute.
    early: u64,
    cpu_s: f64,
}

impl Fired {
    /// Adds the arrivals from `minute_ns` on, the latest minute so far.
    fn add(&mut self, arrivals: &[Arrival], minute_ns: u64, schedules: u32) {
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for arrival in arrivals.iter().filter(|arrival| arrival.at_ns >= minute_ns) {
            self.delays_ns.push(arrival.at_ns - minute_ns);
            *counts.entry(arrival.sequence).or_default() += 1;
        }
        self.once += counts.values().filter(|count| **count == 1).count() as u64;
        self.missed += u64::from(schedules).saturating_sub(counts.len() as u64);
        self.repeated += counts.values().map(|count| count - 1).sum::<u64>();
        let is_early = |arrival: &&Arrival| arrival.at_ns < minute_ns && arrival.at_ns + QUIET_NS > minute_ns;
        self.early += arrivals.iter().filter(is_early).count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_minute_is_never_now() {
        assert_eq!(next_minute(0), MINUTE_NS);
        assert_eq!(next_minute(MINUTE_NS - 1), MINUTE_NS);
        assert_eq!(next_minute(MINUTE_NS), 2 * MINUTE_NS);
    }

    #[test]
    fn missing_repeated_and_early_messages_are_distinguished() {
        let minute_ns = 10 * MINUTE_NS;
        let at = |sequence, at_ns| Arrival { sequence, place: 0, at_ns };
        let arrivals = [
            at(0, minute_ns - 50 * NS_PER_S),
            at(0, minute_ns - 1),
            at(1, minute_ns),
            at(2, minute_ns + 5),
            at(2, minute_ns + 6),
        ];
        let mut fired = Fired::default();
        fired.add(&arrivals, minute_ns, 4);
        assert_eq!((fired.once, fired.missed, fired.repeated, fired.early), (1, 2, 1, 1));
        assert_eq!(fired.delays_ns, [0, 5, 6]);
    }
}
