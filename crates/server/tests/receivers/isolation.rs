//! What healthy destinations, and other tenants, notice of bad ones. Short and with loose bounds;
//! `posthaste-bench run --only isolation` has the long version and the goals.

use crate::cases::{GZIP_BOMB_BYTES, body_cases, connection_and_header_cases, marker_cases};
use crate::process::{Caller, Process, TOKENS, Witness};
use crate::script::{Receiver, Step};
use crate::world::eventually;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

const MESSAGES: usize = 150;
const EVERY: Duration = Duration::from_millis(15);
/// Few places, so that those who hang could take all of them several times over.
const FEW_PLACES: [&str; 4] = ["--tenant-parallelism", "100", "--destination-parallelism", "20"];
const HANGING: usize = 25;
const BACKLOG: usize = 30;
/// How much slower healthy destinations may get, and what time they have in any case: the machine has other work,
/// while those who wait for somebody who hangs wait for twenty seconds.
const SLOWER: u32 = 5;
const AT_LEAST: Duration = Duration::from_secs(2);
/// What bad answers may cost in all: each is kept up to a megabyte, and there are a few dozen at once.
const RSS_MAX_MB: u64 = 300;
const _: () = assert!(GZIP_BOMB_BYTES as u64 / 1_000_000 > RSS_MAX_MB, "one that is expanded would be noticed");

/// How long messages at fixed times took, each in order of size.
struct Took {
    answered: Vec<Duration>,
    arrived: Vec<Duration>,
}

impl Took {
    /// Publishes to a healthy destination and waits for all.
    async fn measure(server: &Process, token: &'static str, run: &str) -> Took {
        let witness = Witness::start(Duration::ZERO).await;
        let mut caller = Caller::connect(server.address, token).await.expect("it listens");
        let mut ticks = tokio::time::interval(EVERY);
        let (mut published, mut answered) = (Vec::new(), Vec::new());
        for n in 0..MESSAGES {
            ticks.tick().await;
            let (path, at) = (format!("/{run}-{n}"), Instant::now());
            let url = format!("/v2/publish/{}", witness.url(&path));
            let told = caller.post(&url, "", b"healthy").await.expect("an answer");
            assert_eq!(told.status, 200, "{}", told.body);
            answered.push(at.elapsed());
            published.push((path, at));
        }
        eventually("all have arrived", || async { (witness.count() == MESSAGES).then_some(()) }).await;
        let took = |(path, at): &(String, Instant)| witness.arrived(path).expect("it has arrived").duration_since(*at);
        let mut arrived: Vec<Duration> = published.iter().map(took).collect();
        arrived.sort();
        answered.sort();
        Took { answered, arrived }
    }
}

/// Receivers of the catalogue that need no certificate, and many that hang.
async fn bad_receivers() -> Vec<(Receiver, usize)> {
    let mut receivers = Vec::new();
    for (_, script, _) in connection_and_header_cases().into_iter().chain(body_cases()).chain(marker_cases()) {
        receivers.push((Receiver::start(vec![script]).await, 2));
    }
    for _ in 0..HANGING {
        receivers.push((Receiver::start(vec![vec![Step::Read, Step::Hang]]).await, BACKLOG));
    }
    receivers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_destinations_hardly_notice_bad_ones() {
    let _alone = crate::MEASURING.lock().await;
    let server = Process::start(&FEW_PLACES);
    let without = Took::measure(&server, TOKENS[0], "without").await;
    let receivers = bad_receivers().await;
    let mut caller = Caller::connect(server.address, TOKENS[0]).await.expect("it listens");
    for (receiver, messages) in &receivers {
        let headers = json!({ "Upstash-Retries": "1", "Upstash-Retry-Delay": "1000", "Upstash-Timeout": "20s" });
        let items = vec![json!({ "destination": receiver.url("/bad"), "headers": headers }); *messages];
        let items = json!(items).to_string();
        let told = caller.post("/v2/batch", "Content-Type: application/json\r\n", items.as_bytes()).await;
        let told = told.expect("an answer");
        assert_eq!(told.status, 200, "{}", told.body);
    }
    let hanging = || receivers.iter().rev().take(HANGING).map(|(receiver, _)| receiver.received().len()).sum::<usize>();
    eventually("those who hang have what they can get", || async { (hanging() > HANGING).then_some(()) }).await;
    let with = Took::measure(&server, TOKENS[0], "with").await;
    for (name, rank) in [("median", MESSAGES / 2), ("90th percentile", MESSAGES * 9 / 10)] {
        let (before, after) = (without.arrived[rank], with.arrived[rank]);
        eprintln!("bad receivers: {name} {before:?} without, {after:?} with");
        let most = (before * SLOWER).max(AT_LEAST);
        assert!(after <= most, "the {name} went from {before:?} to {after:?}, more than {most:?}");
    }
    let peak_mb = server.rss_peak_mb();
    assert!(peak_mb <= RSS_MAX_MB, "{peak_mb} MB");
}

/// The one that floods waits for itself; how long, says by how much the other one is better off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_does_not_wait_behind_another_one_that_floods_the_server() {
    const CONNECTIONS: usize = 300;
    let _alone = crate::MEASURING.lock().await;
    let server = Process::start(&[]);
    let flooded = Witness::start(Duration::ZERO).await;
    let path = format!("/v2/publish/{}", flooded.url("/flood"));
    let answered = Arc::new(Mutex::new(Vec::new()));
    let mut flood = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut caller = Caller::connect(server.address, TOKENS[1]).await.expect("it listens");
        let (path, answered) = (path.clone(), answered.clone());
        flood.push(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let at = Instant::now();
                let told = caller.post(&path, "", b"flood").await.expect("an answer");
                assert!([200, 503].contains(&told.status), "{} {}", told.status, told.body);
                answered.lock().expect("lock").push(at.elapsed());
            }
        })));
    }
    eventually("the flood has begun", || async { (flooded.count() > 0).then_some(()) }).await;
    let other = Took::measure(&server, TOKENS[0], "other").await;
    assert!(flood.iter().all(|publisher| !publisher.is_finished()), "the flood lasted");
    drop(flood);
    let flooding = answered.lock().expect("lock").clone();
    // In a slow line the last are served first, so a median would tell of the lucky ones.
    let mean = |took: &[Duration]| took.iter().sum::<Duration>() / u32::try_from(took.len()).expect("not so many");
    let (own, others) = (mean(&flooding), mean(&other.answered));
    eprintln!("a flood: {own:?} on average of {} publishes, {others:?} for the other tenant", flooding.len());
    assert!(others * 2 <= own, "the other tenant waits {others:?}, the one that floods {own:?}");
}
