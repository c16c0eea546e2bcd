//! A large backlog of messages that are due in a week: what it costs in memory, how long a restart takes
//! with it, whether it is all still there, and whether new messages are as fast as without it.

use super::figure::{Figure, Goal, Rounds, TARGET, delivered_per_s, goal, missing, number, ratio};
use super::scenario::{AUTHORIZATION, Bench, Side, Target};
use super::work::Work;
use crate::account::Account;
use crate::clock::{now_ns, seconds_between};
use crate::http::{Connection, get, get_ok, split_url};
use crate::load::excerpt;
use crate::marker::{Marker, noise};
use crate::process::{NamedPid, Usage};
use crate::stats::median;
use crate::template::fill_payload;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;

const SCENARIO: &str = "delayed";
const BATCH_ITEMS: u32 = 500;
const CONNECTIONS: usize = 4;
const FILL_TIMEOUT: Duration = Duration::from_secs(3600);
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// How many messages are looked up after the restart.
const SAMPLES: usize = 200;

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let empty = bench.start(Side::Server).await?;
    let (empty, without) = rounds_on(bench, empty, "delayed, without backlog").await?;
    bench.stop(empty).await;

    let target = bench.start(Side::Server).await?;
    tokio::time::sleep(bench.plan.settle).await;
    let before = Usage::of_tree(target.child.pid);
    let fill = Arc::new(Fill::new(bench, &target));
    let filled = fill.clone().run(target.child.pid).await?;
    bench.noise.add("delayed, fill", Side::Server, filled.foreign_cpu_pct);
    tokio::time::sleep(bench.plan.settle).await;
    let after = Usage::of_tree(target.child.pid);

    let (dir, stop_s) = bench.stop(target).await;
    let disk_mb = disk_bytes(dir.path()) as f64 / 1e6;
    let target = bench.start_in(Side::Server, dir).await?;
    let ready_s = target.child.ready_s;
    eprintln!("delayed: ready {} s after the restart", number(ready_s));
    tokio::time::sleep(bench.plan.settle).await;
    let restarted = Usage::of_tree(target.child.pid);
    let gone = count_gone(&target, &filled.samples).await?;
    let early: u64 = String::from_utf8(get_ok(bench.sink(), &format!("/_count?run={}", fill.run)).await?)?.parse()?;
    bench.lost += gone;

    let (target, with) = rounds_on(bench, target, "delayed, with backlog").await?;
    bench.stop(target).await;

    let rate = |rounds: &Rounds| median(rounds.server.iter().filter_map(delivered_per_s));
    let server = |name: &str, value: f64| Figure::server(SCENARIO, name, Some(value));
    let count = number(f64::from(fill.count));
    Ok(vec![
        server(&format!("messages/s while storing {count}"), f64::from(fill.count) / filled.seconds),
        server("CPU per stored message, µs", filled.cpu_us_per_message),
        server("data directory, MB", disk_mb),
        server("RSS before, MB", before.rss_mb),
        server("RSS after, MB", after.rss_mb),
        server("RSS growth, MB", after.rss_mb - before.rss_mb).goal(goal::DELAYED_RSS_GROWTH_MB),
        server("RSS peak while storing, MB", after.rss_peak_mb),
        Figure::server(SCENARIO, "stop after SIGTERM, s", stop_s),
        server("restart until ready, s", ready_s).goal(goal::RESTART_S),
        server("RSS after restart, MB", restarted.rss_mb),
        server(&format!("gone after restart, of {} looked up", filled.samples.len()), gone as f64).goal(Goal::None),
        server("delivered too early", early as f64).goal(Goal::None),
        Figure::server(SCENARIO, "delivered/s without backlog", rate(&without)),
        Figure::server(SCENARIO, "delivered/s with backlog", rate(&with)),
        Figure::server(SCENARIO, "delivered/s, with ÷ without", ratio(rate(&with), rate(&without))),
        missing(&with, SCENARIO),
    ])
}

/// Saturation rounds, all on the same server.
async fn rounds_on(bench: &mut Bench, mut target: Target, name: &str) -> Result<(Target, Rounds)> {
    let mut rounds = Rounds::default();
    let work = Work::timed(bench.sink(), f64::from(bench.plan.seconds), 0);
    for round in 1..=bench.plan.rounds {
        let label = format!("{name} {round}/{}", bench.plan.rounds);
        rounds.server.push(bench.measure(&mut target, &label, &work).await?);
    }
    Ok((target, rounds))
}

/// How many of `ids` the server no longer knows.
async fn count_gone(target: &Target, ids: &[String]) -> Result<u64> {
    let mut gone = 0;
    for id in ids {
        let path = format!("/v2/messages/{id}");
        match get(&target.child.base, &path, &[AUTHORIZATION], Duration::from_secs(10)).await? {
            (200, _) => {}
            (404, _) => gone += 1,
            (status, body) => bail!("GET {path} was answered {status}: {}", excerpt(&body)),
        }
    }
    Ok(gone)
}

fn disk_bytes(path: &Path) -> u64 {
    let Ok(meta) = path.symlink_metadata() else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| disk_bytes(&entry.path())).sum()
}

/// The filling of the store, shared by its connections.
struct Fill {
    run: u32,
    count: u32,
    body_bytes: usize,
    /// `address:port` of the server.
    host: String,
    destination: String,
    noise: Vec<u8>,
    next: AtomicU32,
}

struct Filled {
    seconds: f64,
    cpu_us_per_message: f64,
    foreign_cpu_pct: f64,
    /// Ids of messages from all over the backlog.
    samples: Vec<String>,
}

#[derive(Deserialize)]
struct Accepted {
    #[serde(rename = "messageId")]
    message_id: String,
}

impl Fill {
    fn new(bench: &Bench, target: &Target) -> Self {
        let body_bytes = bench.plan.delayed_body_bytes as usize;
        let (host, _) = split_url(&target.child.base).expect("the child's address is one of ours");
        Self {
            run: (now_ns() / 1_000_000) as u32,
            count: bench.plan.delayed_count,
            body_bytes,
            host: host.to_owned(),
            destination: format!("{}/x", bench.sink()),
            noise: noise(256 * 1024 + body_bytes),
            next: AtomicU32::new(0),
        }
    }

    async fn run(self: Arc<Self>, server_pid: u32) -> Result<Filled> {
        let account = Account::of_processes(vec![
            NamedPid { name: TARGET.into(), pid: server_pid },
            NamedPid { name: "fill".into(), pid: std::process::id() },
        ]);
        let start_ns = now_ns();
        let mut connections = JoinSet::new();
        for _ in 0..CONNECTIONS {
            connections.spawn(self.clone().connection());
        }
        let mut samples = Vec::new();
        let all = async {
            while let Some(ids) = connections.join_next().await {
                samples.extend(ids.context("a connection ended early")??);
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(FILL_TIMEOUT, all).await.with_context(|| format!("not filled in {FILL_TIMEOUT:?}"))??;
        let seconds = seconds_between(start_ns, now_ns());
        let spent = account.read();
        let step = samples.len().div_ceil(SAMPLES).max(1);
        Ok(Filled {
            seconds,
            cpu_us_per_message: spent.cpu_s_of(TARGET) * 1e6 / f64::from(self.count),
            foreign_cpu_pct: spent.foreign_cpu_pct,
            samples: samples.into_iter().step_by(step).collect(),
        })
    }

    /// Sends batches until none is left; returns one id per batch.
    async fn connection(self: Arc<Self>) -> Result<Vec<String>> {
        let mut connection = Connection::open(&self.host).await?;
        let mut samples = Vec::new();
        loop {
            let first = self.next.fetch_add(BATCH_ITEMS, Relaxed);
            if first >= self.count {
                return Ok(samples);
            }
            let items = BATCH_ITEMS.min(self.count - first);
            let request = self.request(first, items);
            let answer = tokio::time::timeout(BATCH_TIMEOUT, connection.call(&request)).await;
            let (status, body) = answer.with_context(|| format!("no answer to a batch in {BATCH_TIMEOUT:?}"))??;
            if !(200..300).contains(&status) {
                bail!("a batch was answered {status}: {}", excerpt(&body));
            }
            let mut accepted: Vec<Accepted> = serde_json::from_slice(&body)
                .with_context(|| format!("unexpected answer to a batch: {}", excerpt(&body)))?;
            if accepted.len() != items as usize {
                bail!("a batch of {items} was answered with {} ids", accepted.len());
            }
            samples.push(accepted.swap_remove(first as usize / BATCH_ITEMS as usize % accepted.len()).message_id);
            self.tell_progress(first, items);
        }
    }

    fn tell_progress(&self, first: u32, items: u32) {
        let tenth = |done: u32| u64::from(done) * 10 / u64::from(self.count);
        if tenth(first + items) > tenth(first) {
            eprintln!("delayed: {}% stored", tenth(first + items) * 10);
        }
    }

    /// The request that publishes messages `first` and following.
    fn request(&self, first: u32, items: u32) -> Vec<u8> {
        let head = format!(
            r#"{{"destination":"{}","headers":{{"Upstash-Delay":"7d","Content-Type":"text/plain"}},"body":""#,
            self.destination
        );
        let mut body = Vec::with_capacity(items as usize * (head.len() + self.body_bytes + 3) + 2);
        for sequence in first..first + items {
            body.push(if sequence == first { b'[' } else { b',' });
            body.extend_from_slice(head.as_bytes());
            let at = body.len();
            body.resize(at + self.body_bytes, 0);
            fill_payload(&mut body[at..], Marker { run: self.run, sequence, sent_ns: now_ns() }, &self.noise);
            body.extend_from_slice(br#""}"#);
        }
        body.push(b']');
        let mut request = format!(
            "POST /v2/batch HTTP/1.1\r\nHost: {}\r\n{AUTHORIZATION}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        )
        .into_bytes();
        request.append(&mut body);
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_request_is_valid_json_of_marked_bodies() {
        let fill = Fill {
            run: 7,
            count: 10,
            body_bytes: 256,
            host: "127.0.0.1:1".into(),
            destination: "http://127.0.0.1:2/x".into(),
            noise: noise(1024),
            next: AtomicU32::new(0),
        };
        let request = String::from_utf8(fill.request(5, 3)).unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let items: Vec<serde_json::Value> = serde_json::from_str(body).unwrap();
        assert_eq!(items.len(), 3);
        for (item, sequence) in items.iter().zip(5..) {
            assert_eq!(item["destination"], "http://127.0.0.1:2/x");
            assert_eq!(item["headers"]["Upstash-Delay"], "7d");
            let text = item["body"].as_str().unwrap();
            assert_eq!(text.len(), 256);
            assert_eq!(Marker::find(text.as_bytes()).map(|m| (m.run, m.sequence)), Some((7, sequence)));
        }
    }
}
