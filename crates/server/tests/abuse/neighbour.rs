//! The second tenant: publishes and reads at a low steady rate, from an address of its own, on a thread of its own.
//!
//! Every request has a fresh connection and starts at its time, whether or not the ones before it were answered. A
//! server that stands still for seconds thus delays many requests, not one.

use crate::client::{NEIGHBOUR, Reply, exchange_within, request};
use crate::server::NEIGHBOUR_TOKEN;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A request without a response after this long has failed.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often the thread looks whether it still runs.
const TICK: Duration = Duration::from_millis(10);
/// Ticks further apart than this are a stall: not the server, but this thread did not run.
const STALL: Duration = Duration::from_millis(60);

/// One request of the neighbour.
#[derive(Clone, Debug)]
struct Probe {
    begun: Instant,
    ended: Instant,
    /// Why it failed, if it did.
    failure: Option<String>,
}

/// All that the neighbour saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    publishes: Vec<Probe>,
    reads: Vec<Probe>,
    /// When this thread did not run.
    stalls: Vec<(Instant, Instant)>,
}

impl Seen {
    pub(crate) fn publish_p99(&self) -> Duration {
        p99(self.publishes.iter().map(|probe| self.latency(probe)).collect())
    }

    pub(crate) fn read_p99(&self) -> Duration {
        p99(self.reads.iter().map(|probe| self.latency(probe)).collect())
    }

    pub(crate) fn count(&self) -> usize {
        self.publishes.len() + self.reads.len()
    }

    /// Why requests failed.
    pub(crate) fn failures(&self) -> Vec<&str> {
        let probes = self.publishes.iter().chain(&self.reads);
        probes.filter_map(|probe| probe.failure.as_deref()).collect()
    }

    /// How long a request took, without the time in which this thread did not run.
    fn latency(&self, probe: &Probe) -> Duration {
        let overlap = |(from, until): &(Instant, Instant)| {
            (*until).min(probe.ended).saturating_duration_since((*from).max(probe.begun))
        };
        let still: Duration = self.stalls.iter().map(overlap).sum();
        (probe.ended - probe.begun).saturating_sub(still)
    }
}

/// The value that 99 of 100 do not exceed.
fn p99(mut latencies: Vec<Duration>) -> Duration {
    latencies.sort();
    let index = (latencies.len() * 99).div_ceil(100).saturating_sub(1);
    latencies.get(index).copied().unwrap_or_default()
}

/// A neighbour at work.
pub(crate) struct Neighbour {
    stop: CancellationToken,
    seen: mpsc::Receiver<Seen>,
}

impl Neighbour {
    /// Publishes and reads this many times per second, each.
    pub(crate) fn start(server: SocketAddr, per_second: u32) -> Neighbour {
        let stop = CancellationToken::new();
        let (sender, seen) = mpsc::channel();
        let stopping = stop.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            // Whoever started it may have given up.
            drop(sender.send(runtime.block_on(probe(server, per_second, stopping))));
        });
        Neighbour { stop, seen }
    }

    /// Waits for the requests that are open, and returns all.
    pub(crate) async fn end(self) -> Seen {
        self.stop.cancel();
        let seen = tokio::task::spawn_blocking(move || self.seen.recv());
        seen.await.expect("it only waits").expect("the neighbour reports")
    }
}

async fn probe(server: SocketAddr, per_second: u32, stop: CancellationToken) -> Seen {
    let publish = request(
        "POST",
        "/v2/publish/http://127.0.0.1:8099/never",
        Some(NEIGHBOUR_TOKEN),
        "Upstash-Delay: 1h\r\nConnection: close\r\n",
        &[b'n'; 200],
    );
    let read = request("GET", "/v2/logs?count=10", Some(NEIGHBOUR_TOKEN), "Connection: close\r\n", b"");
    let probes = || Arc::new(Mutex::new(Vec::new()));
    let requests = [publish, read].map(|request| (Arc::new(request), probes()));
    let tracker = TaskTracker::new();
    let stalls = Arc::new(Mutex::new(Vec::new()));
    let watching = tokio::spawn(note_stalls(stalls.clone()));
    let mut ticks = interval(Duration::from_secs(1) / per_second / 2);
    let mut turn = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => break,
        }
        let (request, probes) = requests[turn % 2].clone();
        turn += 1;
        tracker.spawn(async move {
            let begun = Instant::now();
            let failure = failure(exchange_within(PATIENCE, NEIGHBOUR, server, &request).await);
            let probe = Probe { begun, ended: Instant::now(), failure };
            probes.lock().expect("nobody panicked").push(probe);
        });
    }
    tracker.close();
    tracker.wait().await;
    watching.abort();
    let [publishes, reads] = requests.map(|(_, probes)| std::mem::take(&mut *probes.lock().expect("nobody panicked")));
    let stalls = std::mem::take(&mut *stalls.lock().expect("nobody panicked"));
    Seen { publishes, reads, stalls }
}

fn failure(reply: io::Result<Reply>) -> Option<String> {
    match reply {
        Ok(reply) if reply.is_success() => None,
        Ok(reply) => Some(format!("status {}", reply.status)),
        Err(error) => Some(error.kind().to_string()),
    }
}

async fn note_stalls(stalls: Arc<Mutex<Vec<(Instant, Instant)>>>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        ticks.tick().await;
        let now = Instant::now();
        if now - last > STALL {
            stalls.lock().expect("nobody panicked").push((last, now));
        }
        last = now;
    }
}

#[test]
fn the_time_in_which_the_machine_stood_still_does_not_count() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let probe = |from: u64, until: u64| Probe { begun: at(from), ended: at(until), failure: None };
    let mut publishes: Vec<Probe> = (0..99).map(|_| probe(0, 10)).collect();
    publishes.extend([probe(100, 900), probe(0, 1_500)]);
    let reads = vec![probe(0, 5)];
    let seen = Seen { publishes, reads, stalls: vec![(at(500), at(800))] };
    assert_eq!(seen.publish_p99(), Duration::from_millis(500));
    assert_eq!(seen.read_p99(), Duration::from_millis(5));
}
