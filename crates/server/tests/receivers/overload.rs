//! Far more publishes than can be stored, to a receiver that is slow. Short and with loose bounds;
//! `posthaste-bench run --only overload` has the long version and the goals.

use crate::process::{Caller, Process, TOKENS, Told, Witness};
use crate::world::eventually;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Open at once, and each publishes again as soon as it is answered.
const CONNECTIONS: usize = 400;
const BODY_BYTES: usize = 16 * 1024;
const FLOOD: Duration = Duration::from_secs(3);
const SLOW: Duration = Duration::from_millis(50);
/// The goal is two seconds, on a machine that does nothing else.
const ACCEPTED_P99_MAX: Duration = Duration::from_secs(10);
/// Bodies that wait have a bound of 134 MB for a tenant, those under way one of 67.
const RSS_MAX_MB: u64 = 500;
/// The goal is a minute.
const NORMAL_AFTER_MAX: Duration = Duration::from_secs(20);
const NORMAL: Duration = Duration::from_millis(500);

/// A refusal says why, and when to come again.
fn assert_refused(told: &Told) {
    assert!([429, 503].contains(&told.status), "{}: {}", told.status, told.body);
    assert!(told.retry_after.is_some_and(|seconds| seconds > 0), "it says when to come again");
    let reason: Value = serde_json::from_str(&told.body).expect("JSON");
    let reason = reason["error"].as_str().expect("a reason");
    assert!(reason.contains("nothing was stored, try again"), "{reason}");
}

#[derive(Default)]
struct Totals {
    accepted: Vec<(String, Duration)>,
    refused: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_server_refuses_with_a_reason_and_loses_nothing() {
    let _alone = crate::MEASURING.lock().await;
    let server = Process::start(&[]);
    let witness = Arc::new(Witness::start(SLOW).await);
    let (next, end) = (Arc::new(AtomicUsize::new(0)), Instant::now() + FLOOD);
    let mut publishers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        publishers.spawn(publish_until(end, server.address, witness.clone(), next.clone()));
    }
    let mut totals = Totals::default();
    while let Some(one) = publishers.join_next().await {
        let mut one = one.expect("a publisher ends well");
        totals.accepted.append(&mut one.accepted);
        totals.refused += one.refused;
    }
    let mut took: Vec<Duration> = totals.accepted.iter().map(|(_, took)| *took).collect();
    took.sort();
    let p99 = *took.get(took.len() * 99 / 100).expect("something was accepted");
    let peak_mb = server.rss_peak_mb();
    eprintln!("{} accepted, p99 {p99:?}, {} refused, {peak_mb} MB", took.len(), totals.refused);
    assert!(p99 <= ACCEPTED_P99_MAX, "the 99th percentile of accepted publishes took {p99:?}");
    assert!(peak_mb <= RSS_MAX_MB, "{peak_mb} MB");
    as_before(&server, &witness).await;
    let missing = || totals.accepted.iter().filter(|(path, _)| witness.arrived(path).is_none()).count();
    eventually("all that was accepted has arrived", || async { (missing() == 0).then_some(()) }).await;
}

async fn publish_until(
    end: Instant,
    server: std::net::SocketAddr,
    witness: Arc<Witness>,
    next: Arc<AtomicUsize>,
) -> Totals {
    let mut totals = Totals::default();
    let mut caller = Caller::connect(server, TOKENS[0]).await.expect("it listens");
    let body = vec![b'x'; BODY_BYTES];
    while Instant::now() < end {
        let path = format!("/{}", next.fetch_add(1, Ordering::SeqCst));
        let at = Instant::now();
        let told = caller.post(&format!("/v2/publish/{}", witness.url(&path)), "", &body).await.expect("an answer");
        match told.status {
            200 => totals.accepted.push((path, at.elapsed())),
            _ => {
                assert_refused(&told);
                totals.refused += 1;
            }
        }
    }
    totals
}

/// A single publish is answered quickly again.
async fn as_before(server: &Process, witness: &Witness) {
    let ended = Instant::now();
    let mut caller = Caller::connect(server.address, TOKENS[0]).await.expect("it listens");
    let path = format!("/v2/publish/{}", witness.url("/after"));
    loop {
        let at = Instant::now();
        let told = caller.post(&path, "", b"after").await.expect("an answer");
        if told.status == 200 && at.elapsed() <= NORMAL {
            return;
        }
        assert!(ended.elapsed() < NORMAL_AFTER_MAX, "not as before: {} after {:?}", told.status, at.elapsed());
    }
}
