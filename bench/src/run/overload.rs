//! Publishing far beyond what the server can store, to a receiver that is slow: what is refused and how, what an
//! accepted publish takes, how much memory that costs, whether all that was accepted arrives, and how soon the
//! server is itself again.

use super::figure::{Figure, Goal, goal};
use super::scenario::{AUTHORIZATION, Bench, Side, Target};
use crate::clock::{now_ns, seconds_between};
use crate::http::{Connection, get_ok, split_url};
use crate::marker::{Marker, noise};
use crate::process::{Usage, raise_open_files};
use crate::stats::Percentiles;
use crate::template::Template;
use crate::verify::{missing, seen};
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;

const SCENARIO: &str = "overload";
/// Requests that are open all the time. The server stores about a tenth of what so many could send it.
const CONNECTIONS: u32 = 4_000;
/// The same in a smoke run.
const SMOKE_CONNECTIONS: u32 = 400;
/// Large, so that the disk is the limit and not the machine's network.
const BODY_BYTES: usize = 32 * 1024;
/// The receiver's time per message while the flood lasts, so that a backlog grows.
const SLOW_MS: u32 = 200;
/// How long everything that was accepted may take to arrive.
const DRAIN: Duration = Duration::from_secs(180);
/// Publishes one after the other that tell whether all is as before.
const PROBES: usize = 20;
/// A probe is as before when it takes no longer than this many times as long.
const AS_BEFORE: f64 = 3.0;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const REST: Duration = Duration::from_millis(200);

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    raise_open_files();
    let target = bench.start(Side::Server).await?;
    get_ok(bench.sink(), "/_reset").await?;
    let flood = Arc::new(Flood::new(bench, &target)?);
    let before_ms = flood.probe().await?;
    get_ok(bench.sink(), &format!("/_config?delay_ms={SLOW_MS}")).await?;
    let start_ns = now_ns();
    let connections = if bench.plan.judged { CONNECTIONS } else { SMOKE_CONNECTIONS };
    let totals = flood.clone().run(connections, Duration::from_secs(u64::from(bench.plan.seconds))).await?;
    let seconds = seconds_between(start_ns, now_ns());
    let usage = Usage::of_tree(target.child.pid);
    let end_ns = now_ns();
    get_ok(bench.sink(), "/_config?delay_ms=0").await?;
    let normal_s = flood.normal_after(before_ms, end_ns).await?;
    let (lost, drained_s) = flood.drain(bench.sink(), &totals.accepted, end_ns).await?;
    bench.lost += lost;
    bench.stop(target).await;
    Ok(figures(totals, seconds, &usage, normal_s, lost, drained_s))
}

fn figures(mut totals: Totals, seconds: f64, usage: &Usage, normal_s: f64, lost: u64, drained_s: f64) -> Vec<Figure> {
    let server = |name: &str, value: f64| Figure::server(SCENARIO, name, Some(value));
    let accepted = totals.accepted.len() as f64;
    let offered = accepted + (totals.refused + totals.unclear + totals.broken) as f64;
    let took = Percentiles::of(&mut totals.latencies_ns);
    vec![
        server("publishes/s, all", offered / seconds),
        server("publishes/s, accepted", accepted / seconds),
        server("refused with 503 or 429", totals.refused as f64),
        server("refused without Retry-After or a reason", totals.unclear as f64).goal(Goal::None),
        server("broken connections", totals.broken as f64),
        Figure::server(SCENARIO, "accepted publish p50, ms", took.map(|took| took.p50_ms)),
        Figure::server(SCENARIO, "accepted publish p99, ms", took.map(|took| took.p99_ms)).goal(goal::OVERLOAD_P99_MS),
        server("RSS peak, MB", usage.rss_peak_mb).goal(goal::OVERLOAD_RSS_MB),
        server("missing", lost as f64).goal(Goal::None),
        server("as before after, s", normal_s).goal(goal::OVERLOAD_NORMAL_S),
        server("all has arrived after, s", drained_s),
    ]
}

/// What the connections share.
struct Flood {
    run: u32,
    template: Template,
    noise: Vec<u8>,
    next: AtomicU32,
}

#[derive(Default)]
struct Totals {
    accepted: Vec<u32>,
    latencies_ns: Vec<u64>,
    /// With `Retry-After` and a text.
    refused: u64,
    /// Refused in any other way.
    unclear: u64,
    broken: u64,
}

impl Flood {
    fn new(bench: &Bench, target: &Target) -> Result<Self> {
        let url = format!("{}/v2/publish/{}/x", target.child.base, bench.sink());
        split_url(&url)?;
        let template = Template::new("POST", &url, &[AUTHORIZATION.to_owned()], "{{payload}}", BODY_BYTES)?;
        let noise = noise(256 * 1024 + BODY_BYTES * 2);
        Ok(Self { run: (now_ns() / 1_000_000) as u32, template, noise, next: AtomicU32::new(0) })
    }

    async fn run(self: Arc<Self>, connections: u32, time: Duration) -> Result<Totals> {
        let end_ns = now_ns() + time.as_nanos() as u64;
        let mut publishers = JoinSet::new();
        for _ in 0..connections {
            publishers.spawn(self.clone().connection(end_ns));
        }
        let mut totals = Totals::default();
        while let Some(one) = publishers.join_next().await {
            let mut one = one.context("a connection ended early")?;
            totals.accepted.append(&mut one.accepted);
            totals.latencies_ns.append(&mut one.latencies_ns);
            totals.refused += one.refused;
            totals.unclear += one.unclear;
            totals.broken += one.broken;
        }
        if totals.accepted.is_empty() {
            bail!("nothing was accepted: {} refused, {} broken", totals.refused, totals.broken);
        }
        Ok(totals)
    }

    /// Publishes again whenever it is answered, whatever the answer.
    async fn connection(self: Arc<Self>, end_ns: u64) -> Totals {
        let mut totals = Totals::default();
        let mut template = self.template.clone();
        let mut connection = None;
        while now_ns() < end_ns {
            let mut open = match connection.take() {
                Some(open) => open,
                None => match Connection::open(&template.host).await {
                    Ok(open) => open,
                    Err(_) => {
                        totals.broken += 1;
                        tokio::time::sleep(REST).await;
                        continue;
                    }
                },
            };
            let sequence = self.next.fetch_add(1, Relaxed);
            let start_ns = now_ns();
            let request = template.fill(Marker { run: self.run, sequence, sent_ns: start_ns }, &self.noise);
            match tokio::time::timeout(ANSWER_TIMEOUT, open.call(request)).await {
                Ok(Ok((200..300, _))) => {
                    totals.accepted.push(sequence);
                    totals.latencies_ns.push(now_ns() - start_ns);
                    connection = Some(open);
                }
                Ok(Ok((status, body))) => {
                    let is_clear = [429, 503].contains(&status) && open.retry_after.is_some() && has_reason(&body);
                    *(if is_clear { &mut totals.refused } else { &mut totals.unclear }) += 1;
                    connection = Some(open);
                }
                Ok(Err(_)) | Err(_) => totals.broken += 1,
            }
        }
        totals
    }

    /// How long each of a few publishes in a row took; the slowest counts.
    async fn probe(&self) -> Result<f64> {
        let mut template = self.template.clone();
        let mut connection = Connection::open(&template.host).await?;
        let mut slowest_ms: f64 = 0.0;
        for _ in 0..PROBES {
            let sequence = self.next.fetch_add(1, Relaxed);
            let start_ns = now_ns();
            // Probes have a run of their own: they are not waited for.
            let marker = Marker { run: self.run.wrapping_add(1), sequence, sent_ns: start_ns };
            let (status, _) = connection.call(template.fill(marker, &self.noise)).await?;
            let took_ms = if status < 300 { (now_ns() - start_ns) as f64 / 1e6 } else { f64::INFINITY };
            slowest_ms = slowest_ms.max(took_ms);
        }
        Ok(slowest_ms)
    }

    /// Seconds until probes take as long as before.
    async fn normal_after(&self, before_ms: f64, end_ns: u64) -> Result<f64> {
        loop {
            let now_ms = self.probe().await?;
            let passed_s = seconds_between(end_ns, now_ns());
            if now_ms <= before_ms * AS_BEFORE || passed_s > DRAIN.as_secs_f64() {
                return Ok(passed_s);
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// Waits until the sink has all that was accepted; says how many it lacks, and when it had the last.
    async fn drain(&self, sink: &str, accepted: &[u32], end_ns: u64) -> Result<(u64, f64)> {
        loop {
            let lacking = missing(accepted, &seen(sink, self.run).await?).len() as u64;
            let passed_s = seconds_between(end_ns, now_ns());
            if lacking == 0 || passed_s > DRAIN.as_secs_f64() {
                return Ok((lacking, passed_s));
            }
            tokio::time::sleep(REST).await;
        }
    }
}

/// `{"error": "…"}` with a text.
fn has_reason(body: &[u8]) -> bool {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    json.is_some_and(|json| json["error"].as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_needs_a_reason() {
        assert!(has_reason(br#"{"error":"too many"}"#));
        for body in [&b""[..], b"{}", br#"{"error":""}"#, br#"{"error":1}"#, b"too many"] {
            assert!(!has_reason(body));
        }
    }
}
