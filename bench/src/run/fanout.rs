//! A publish to a URL group of the largest size: its response time, and whether every endpoint gets every message once.

use super::figure::{Figure, Goal, TARGET, goal};
use super::scenario::{AUTHORIZATION, Bench, Side};
use super::work::Work;
use crate::account::Account;
use crate::clock::{now_ns, seconds_between};
use crate::http::{get_ok, post};
use crate::load::excerpt;
use crate::process::NamedPid;
use crate::sink::{Arrival, Stats, read_arrivals};
use anyhow::{Result, bail};
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

const SCENARIO: &str = "fanout";
/// The maximum size of a group.
const ENDPOINTS: u32 = 100;
/// Far below the server's delivery rate, so that publishes do not wait for one another.
const PUBLISHES_PER_S: u32 = 20;
const CONNECTIONS: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let mut target = bench.start(Side::Server).await?;
    let endpoints: Vec<_> = (0..ENDPOINTS).map(|place| json!({"url": format!("{}/x/{place}", bench.sink())})).collect();
    let group = json!({ "endpoints": endpoints }).to_string();
    match post(&target.child.base, "/v2/topics/bench/endpoints", &[AUTHORIZATION], group.as_bytes()).await? {
        (200, _) => {}
        (status, body) => bail!("making the group was answered {status}: {}", excerpt(&body)),
    }
    let account = Account::of_processes(vec![
        NamedPid { name: TARGET.into(), pid: target.child.pid },
        NamedPid { name: "run".into(), pid: std::process::id() },
    ]);
    let publishes = bench.plan.publishes;
    let work = Work {
        path: "/v2/publish/bench".into(),
        connections: CONNECTIONS,
        rate: PUBLISHES_PER_S,
        arrives: false,
        ..Work::counted(bench.sink(), publishes)
    };
    let report = bench.load(&mut target, SCENARIO, &work).await?;
    bench.noise.add(SCENARIO, Side::Server, report.foreign_cpu_pct);
    let wanted = report.acked * u64::from(ENDPOINTS);
    wait_for(bench.sink(), report.run, wanted).await?;
    let cpu_us = account.read().cpu_s_of(TARGET) * 1e6 / wanted as f64;
    let Delivered { missing, repeated } = count(&read_arrivals(bench.sink(), report.run).await?, report.acked);
    bench.lost += missing;
    bench.stop(target).await;

    let ms = |pick: fn(crate::stats::Percentiles) -> f64| report.publish.map(pick);
    let figures = vec![
        Figure::server(SCENARIO, "publishes to 100 endpoints", Some(report.acked as f64)),
        Figure::server(SCENARIO, "publish p50, ms", ms(|publish| publish.p50_ms)),
        Figure::server(SCENARIO, "publish p99, ms", ms(|publish| publish.p99_ms)).goal(goal::FANOUT_P99_MS),
        Figure::server(SCENARIO, "publish max, ms", ms(|publish| publish.max_ms)),
        Figure::server(SCENARIO, "CPU per delivery, µs", Some(cpu_us)),
        Figure::server(SCENARIO, "missing", Some(missing as f64)).goal(Goal::None),
        Figure::server(SCENARIO, "duplicates", Some(repeated as f64)),
        Figure::server(SCENARIO, "publish errors", Some(report.errors as f64)),
    ];
    bench.runs.push(report);
    Ok(figures)
}

/// Waits until the sink has this many deliveries. Gives up after [`PATIENCE`].
async fn wait_for(sink: &str, run: u32, wanted: u64) -> Result<()> {
    let start_ns = now_ns();
    loop {
        let stats: Stats = serde_json::from_slice(&get_ok(sink, &format!("/_stats?run={run}")).await?)?;
        if stats.total >= wanted || seconds_between(start_ns, now_ns()) > PATIENCE.as_secs_f64() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Delivered {
    /// Pairs of message and endpoint without a delivery.
    missing: u64,
    repeated: u64,
}

/// Counts the deliveries of every pair of message and endpoint.
fn count(arrivals: &[Arrival], messages: u64) -> Delivered {
    let mut pairs: HashMap<(u32, u32), u64> = HashMap::new();
    for arrival in arrivals.iter().filter(|arrival| arrival.place < ENDPOINTS) {
        *pairs.entry((arrival.sequence, arrival.place)).or_default() += 1;
    }
    let missing = (messages * u64::from(ENDPOINTS)).saturating_sub(pairs.len() as u64);
    Delivered { missing, repeated: pairs.values().map(|count| count - 1).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_to_one_endpoint_does_not_stand_for_another() {
        let all = (0..2).flat_map(|sequence| (0..ENDPOINTS).map(move |place| Arrival { sequence, place, at_ns: 0 }));
        let mut arrivals: Vec<Arrival> = all.collect();
        assert_eq!(count(&arrivals, 2), Delivered { missing: 0, repeated: 0 });
        arrivals[7].place = 8;
        assert_eq!(count(&arrivals, 2), Delivered { missing: 1, repeated: 1 });
    }
}
