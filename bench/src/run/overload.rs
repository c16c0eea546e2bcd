//! Publishing ten times what the server can store, to a slow receiver: the rejections, the latency of accepted
//! publishes, the memory, whether all accepted messages arrive, and how soon the server is back to normal.
//!
//! Publishers and server share this machine, and on its own disk a server can store about as much as they can send.
//! Therefore the server's disk is slow ([`SYNC_MS`]) until the server is back to normal. First, publishers that wait
//! for their responses measure how much it can store. Then publishers that do not wait offer ten times that. The
//! publishers are in [`super::flood`].

use super::figure::{Figure, Goal, goal, number};
use super::flood::{Flood, Totals};
use super::scenario::{Bench, Side};
use super::slow_disk::SlowDisk;
use crate::clock::{now_ns, seconds_between};
use crate::http::get_ok;
use crate::process::{Usage, raise_open_files, rss_mb};
use crate::stats::Percentiles;
use crate::verify::{missing, seen};
use anyhow::{Result, bail};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const SCENARIO: &str = "overload";
/// Duration of the flood.
pub(super) const SECONDS: u32 = 60;
/// Additional duration of each sync.
const SYNC_MS: u32 = 200;
/// Duration of measuring how much can be stored: some fifty syncs.
const CAPACITY_TIME: Duration = Duration::from_secs(10);
/// The same duration in a smoke run.
const SMOKE_CAPACITY_TIME: Duration = Duration::from_secs(2);
/// The offered rate relative to the rate that can be stored. It is a little more than the goal, so that the goal is
/// still reached if some messages cannot be offered.
const OFFERED_RATIO: f64 = 11.0;
/// The receiver's time per message during the flood, so that a backlog grows.
const SLOW_MS: u32 = 200;
/// Longest wait for the arrival of all accepted messages.
const DRAIN: Duration = Duration::from_secs(90);
/// Sequential publishes that show whether the server is back to normal.
const PROBES: usize = 5;
/// A probe is normal if it takes at most this many times as long as before.
const AS_BEFORE: f64 = 3.0;
const REST: Duration = Duration::from_millis(200);

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    raise_open_files();
    let disk = SlowDisk::make(bench.work_path(), SYNC_MS).await?;
    let target = bench.start_by(Side::Server, TempDir::new_in(bench.work_path())?, &disk.words()).await?;
    get_ok(bench.sink(), "/_reset").await?;
    disk.slow_down()?;
    let flood = Arc::new(Flood::new(bench, &target)?);
    let before_ms = flood.probe(PROBES).await?;
    if before_ms < f64::from(SYNC_MS) {
        bail!(
            "a publish took {} ms on a disk that needs {SYNC_MS}: is the server linked statically?",
            number(before_ms)
        );
    }
    get_ok(bench.sink(), &format!("/_config?delay_ms={SLOW_MS}")).await?;
    let stored = flood.capacity(if bench.plan.judged { CAPACITY_TIME } else { SMOKE_CAPACITY_TIME }).await?;
    let capacity_per_s = stored.accepted_per_s();
    eprintln!("overload: {} publishes/s can be stored, {} were refused", number(capacity_per_s), stored.refused);

    let mut rss = Vec::new();
    let time = Duration::from_secs(u64::from(bench.plan.overload_seconds));
    let watch = || rss.push(rss_mb(target.child.pid));
    let totals = flood.offer(capacity_per_s * OFFERED_RATIO, time, watch).await?;
    let end_ns = now_ns();
    let usage = Usage::of_tree(target.child.pid);
    log_course(&totals, &rss);
    get_ok(bench.sink(), "/_config?delay_ms=0").await?;
    let normal_s = normal_after(&flood, before_ms, end_ns).await?;
    disk.recover()?;
    let accepted = [&stored.accepted[..], &totals.accepted].concat();
    let (lost, drained_s) = drain(bench.sink(), flood.run, &accepted, end_ns).await?;
    bench.lost += lost;
    bench.stop(target).await;
    let after = After { rss_peak_mb: usage.rss_peak_mb, rss_end_mb: rss.last().copied(), normal_s, lost, drained_s };
    Ok(figures(capacity_per_s, totals, &after))
}

/// Logs the course of the flood: memory every ten seconds, and the first problem.
fn log_course(totals: &Totals, rss: &[f64]) {
    let memory: Vec<String> = rss.iter().step_by(10).map(|rss| number(*rss)).collect();
    eprintln!(
        "overload: {} offered/s, {} accepted/s, {} not offered; RSS every 10 s, MB: {}",
        number(totals.offered() / totals.seconds),
        number(totals.accepted_per_s()),
        totals.not_offered,
        memory.join(" ")
    );
    if let Some(problem) = &totals.first_problem {
        eprintln!("overload: {} unclear, {} broken, the first: {problem}", totals.unclear, totals.broken);
    }
}

/// The results after the flood.
struct After {
    rss_peak_mb: f64,
    rss_end_mb: Option<f64>,
    normal_s: f64,
    lost: u64,
    drained_s: f64,
}

fn figures(capacity_per_s: f64, mut totals: Totals, after: &After) -> Vec<Figure> {
    let server = |name: &str, value: f64| Figure::server(SCENARIO, name, Some(value));
    let offered_per_s = totals.offered() / totals.seconds.max(1e-9);
    let took = Percentiles::of(&mut totals.latencies_ns);
    vec![
        server("publishes/s, can be stored", capacity_per_s),
        server("publishes/s, offered", offered_per_s),
        server("offered ÷ can be stored", offered_per_s / capacity_per_s).goal(goal::OVERLOAD_RATIO),
        server("not offered, no connection free", totals.not_offered as f64),
        server("publishes/s, accepted", totals.accepted_per_s()),
        server("accepted ÷ can be stored", totals.accepted_per_s() / capacity_per_s),
        server("refused with 503 or 429", totals.refused as f64),
        server("refused without Retry-After or a reason", totals.unclear as f64).goal(Goal::None),
        server("broken connections", totals.broken as f64).goal(goal::OVERLOAD_BROKEN),
        Figure::server(SCENARIO, "accepted publish p50, ms", took.map(|took| took.p50_ms)),
        Figure::server(SCENARIO, "accepted publish p99, ms", took.map(|took| took.p99_ms)).goal(goal::OVERLOAD_P99_MS),
        server("RSS peak, MB", after.rss_peak_mb).goal(goal::OVERLOAD_RSS_MB),
        Figure::server(SCENARIO, "RSS at the end, MB", after.rss_end_mb),
        server("missing", after.lost as f64).goal(Goal::None),
        server("as before after, s", after.normal_s).goal(goal::OVERLOAD_NORMAL_S),
        server("all has arrived after, s", after.drained_s),
    ]
}

/// Seconds until probes are normal again.
async fn normal_after(flood: &Flood, before_ms: f64, end_ns: u64) -> Result<f64> {
    loop {
        let now_ms = flood.probe(PROBES).await?;
        let passed_s = seconds_between(end_ns, now_ns());
        if now_ms <= before_ms * AS_BEFORE || passed_s > DRAIN.as_secs_f64() {
            return Ok(passed_s);
        }
        tokio::time::sleep(REST).await;
    }
}

/// Waits until the sink has all accepted messages. Returns how many are missing, and when the last one arrived.
async fn drain(sink: &str, run: u32, accepted: &[u32], end_ns: u64) -> Result<(u64, f64)> {
    let deadline_ns = now_ns() + DRAIN.as_nanos() as u64;
    loop {
        let lacking = missing(accepted, &seen(sink, run).await?).len() as u64;
        if lacking == 0 || now_ns() > deadline_ns {
            return Ok((lacking, seconds_between(end_ns, now_ns())));
        }
        tokio::time::sleep(REST).await;
    }
}
