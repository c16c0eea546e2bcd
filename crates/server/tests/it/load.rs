//! Many at once: nothing is lost, nothing is sent twice, and nobody takes another's place.

use crate::support::server::{TOKEN_B, message_id};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually, within};
use posthaste_delivery::resolve::{Lookup, Resolve};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// More than the engine keeps in RAM for one destination.
const MANY: usize = 2_500;

async fn publish_many(server: &TestServer, url: &str) -> Vec<String> {
    let items = vec![json!({ "destination": url }); MANY];
    let answers = server.post("/v2/batch").json(&json!(items)).expect(200).await.json();
    let id = |answer: &Value| answer["messageId"].as_str().expect("an id").to_owned();
    answers.as_array().expect("a list").iter().map(id).collect()
}

#[tokio::test]
async fn a_backlog_larger_than_memory_is_delivered_whole_and_once() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    receiver.script("/", [held]);
    let ids: HashSet<String> = publish_many(&server, &receiver.url("/")).await.into_iter().collect();
    assert_eq!(ids.len(), MANY);
    receiver.take(200).await;
    gate.open();
    eventually("all have ended", || async { (server.counts().live == 0).then_some(()) }).await;
    assert_eq!(receiver.count(), MANY);
    let mut arrived: HashSet<String> = HashSet::new();
    receiver.rewind();
    for delivery in receiver.take(MANY).await {
        let id = delivery.header("upstash-message-id").expect("an id").to_owned();
        assert!(arrived.insert(id), "sent twice");
    }
    assert_eq!(arrived, ids);
    server.finish().await;
}

#[tokio::test]
async fn a_backlog_larger_than_memory_can_be_cancelled() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(500).held();
    receiver.script("/", [held]);
    publish_many(&server, &receiver.url("/")).await;
    receiver.take(200).await;
    assert_eq!(server.delete("/v2/messages").expect(202).await.json(), json!({ "cancelled": MANY }));
    assert_eq!(server.counts().live, 200, "what is under way ends by itself");
    gate.open();
    server.finish().await;
    assert_eq!(receiver.count(), 200);
}

#[tokio::test]
async fn a_backlog_larger_than_memory_survives_a_restart() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let items = vec![json!({ "destination": receiver.url("/"), "headers": { "Upstash-Delay": "1m" } }); MANY];
    server.post("/v2/batch").json(&json!(items)).expect(200).await;
    let server = server.restart_after(60_000).await;
    eventually("all have ended", || async { (server.counts().live == 0).then_some(()) }).await;
    assert_eq!(receiver.count(), MANY);
    server.finish().await;
}

#[tokio::test]
async fn a_tenant_that_uses_all_its_places_leaves_those_of_others() {
    let mut setup = Setup::dev();
    setup.settings.tenant_parallelism = Some(3);
    let server = TestServer::with(setup).await;
    let (slow, other) = (Receiver::start().await, Receiver::start().await);
    let (held, gate) = Reply::status(200).held();
    slow.script("/", [held]);
    for _ in 0..6 {
        server.publish_with(&slow.url("/"), &[], "").await;
    }
    slow.take(3).await;
    // Nor is the tenant itself let in by another door.
    server.publish_with(&other.url("/own"), &[], "").await;
    let of_b = server.publish(&other.url("/b")).token(TOKEN_B).expect(200).await;
    assert_eq!(other.next().await.header("upstash-message-id"), Some(message_id(&of_b).as_str()));
    server.settle().await;
    assert_eq!((slow.count(), other.count()), (3, 1));
    gate.open();
    slow.take(3).await;
    assert_eq!(other.next().await.target, "/own");
    server.finish().await;
}

#[tokio::test]
async fn every_publish_that_was_acknowledged_during_a_stop_is_delivered() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let stopping = Arc::new(AtomicBool::new(false));
    let mut publishers = JoinSet::new();
    for _ in 0..8 {
        let request = server.publish(&receiver.url("/")).body("x");
        let stopping = stopping.clone();
        publishers.spawn(async move {
            let mut acknowledged = Vec::new();
            // A server that is gone answers nothing; then this publisher ends.
            while let Ok(answer) = request.clone().try_send().await {
                match answer.status {
                    200 => acknowledged.push(message_id(&answer)),
                    503 => assert!(stopping.load(Ordering::SeqCst), "{}", answer.text()),
                    other => panic!("{other}: {}", answer.text()),
                }
            }
            acknowledged
        });
    }
    receiver.take(100).await;
    stopping.store(true, Ordering::SeqCst);
    let server = server.restart().await;
    let acknowledged: HashSet<String> = publishers.join_all().await.into_iter().flatten().collect();
    eventually("all have ended", || async { (server.counts().live == 0).then_some(()) }).await;
    receiver.rewind();
    let arrived = receiver.take(receiver.count()).await;
    let arrived: HashSet<&str> = arrived.iter().filter_map(|delivery| delivery.header("upstash-message-id")).collect();
    let lost: Vec<&String> = acknowledged.iter().filter(|id| !arrived.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "{} of {} were lost", lost.len(), acknowledged.len());
    assert!(acknowledged.len() >= 100);
    server.finish().await;
}

#[tokio::test]
async fn however_cancels_and_deliveries_race_every_message_ends_once() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/flaky", [Reply::status(500), Reply::status(200), Reply::Close, Reply::status(503)]);
        let item = |path: &str| json!({ "destination": receiver.url(path), "headers": { "Upstash-Retries": "1", "Upstash-Retry-Delay": "0" } });
        let mut ids = Vec::new();
        let mut cancelled = 0;
        for _ in 0..10 {
            let items: Vec<Value> = (0..20).map(|n| item(["/ok", "/flaky"][n % 2])).collect();
            let answers = server.post("/v2/batch").json(&json!(items)).expect(200).await.json();
            let id = |answer: &Value| answer["messageId"].as_str().expect("an id").to_owned();
            ids.extend(answers.as_array().expect("a list").iter().map(id));
            let answer = server.delete("/v2/messages?count=5").expect(202).await.json();
            cancelled += answer["cancelled"].as_u64().expect("a number");
        }
        eventually("all have ended", || async { (server.counts().live == 0).then_some(()) }).await;
        let mut ends = [0; 3];
        for id in &ids {
            ends[end_of(&server.states_of(id).await)] += 1;
        }
        assert_eq!(ends.iter().sum::<u64>(), 200);
        assert_eq!(ends[CANCELED], cancelled, "every cancel that was counted took effect");
        assert_eq!(ends[FAILED], server.counts().dead_letters);
        server.finish().await;
    }
}

const DELIVERED: usize = 0;
const FAILED: usize = 1;
const CANCELED: usize = 2;

/// How a story ends; it must be one that contract 5.2 can tell.
fn end_of(states: &[String]) -> usize {
    let mut rest: Vec<&str> = states.iter().map(String::as_str).collect();
    let told = rest.clone();
    let end = match rest.pop() {
        Some("DELIVERED") => DELIVERED,
        Some("FAILED") => FAILED,
        Some("CANCELED") => CANCELED,
        other => panic!("{other:?} is no end: {told:?}"),
    };
    let asked = rest.iter().filter(|state| **state == "CANCEL_REQUESTED").count();
    assert_eq!(asked, usize::from(end == CANCELED), "{told:?}");
    rest.retain(|state| *state != "CANCEL_REQUESTED");
    assert_eq!(rest.first(), Some(&"CREATED"), "{told:?}");
    let attempts = rest[1..].join(" ").replace("ACTIVE ERROR RETRY", "").trim().to_owned();
    let last: &[&str] = match end {
        DELIVERED => &["ACTIVE"],
        FAILED => &["ACTIVE ERROR"],
        _ => &["", "ACTIVE", "ACTIVE ERROR"],
    };
    assert!(last.contains(&attempts.as_str()), "{told:?}");
    end
}

#[tokio::test]
async fn bulk_actions_on_dead_letters_that_race_share_them_out() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let items = vec![json!({ "destination": receiver.url("/"), "headers": { "Upstash-Retries": "0" } }); 60];
    server.post("/v2/batch").json(&json!(items)).expect(200).await;
    eventually("all have failed", || async { (server.counts().dead_letters == 60).then_some(()) }).await;
    receiver.script("/", [Reply::status(200)]);
    let mut running = JoinSet::new();
    for n in 0..4 {
        let request = if n % 2 == 0 { server.post("/v2/dlq/retry") } else { server.delete("/v2/dlq") };
        running.spawn(request.send());
    }
    let (mut retried, mut deleted) = (0, 0);
    for answer in running.join_all().await {
        match answer.status {
            201 => retried += answer.json()["responses"].as_array().expect("a list").len(),
            200 => deleted += answer.json()["deleted"].as_u64().expect("a number") as usize,
            other => panic!("{other}: {}", answer.text()),
        }
    }
    assert_eq!(retried + deleted, 60);
    assert_eq!(server.counts().dead_letters, 0);
    server.finish().await;
    assert_eq!(receiver.count(), 60 + retried);
}

#[tokio::test]
async fn slow_uploads_of_one_tenant_do_not_stop_the_publishes_of_another() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut uploads = Vec::new();
    for _ in 0..3 {
        let request = server.post("/v2/batch").token(TOKEN_B).header("Transfer-Encoding", "chunked");
        let mut stream = tokio::net::TcpStream::connect(server.address).await.expect("it listens");
        stream.write_all(&request.bytes()).await.expect("it reads");
        uploads.push(stream);
    }
    // The server has read the heads before this: it answers requests in the order of their arrival.
    server.get("/v2/keys").expect(200).await;
    let started = Instant::now();
    server.publish(&receiver.url("/")).body("small").expect(200).await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "a small publish took {took:?}");
    receiver.next().await;
    drop(uploads);
    server.finish().await;
}

/// A resolver that keeps the thread on which it is asked until it is released.
struct ThreadKeeper {
    asked: UnboundedSender<()>,
    released: Mutex<mpsc::Receiver<()>>,
    nobody_came: Arc<AtomicBool>,
}

impl Resolve for ThreadKeeper {
    fn resolve(&self, _host: &str) -> Lookup {
        self.asked.send(()).expect("the test waits for it");
        let released = self.released.lock().expect("no thread has panicked").recv_timeout(Duration::from_secs(20));
        self.nobody_came.fetch_or(released == Err(mpsc::RecvTimeoutError::Timeout), Ordering::Relaxed);
        Box::pin(async { Ok(Vec::new()) })
    }
}

#[tokio::test]
async fn deliveries_that_keep_all_their_threads_leave_requests_theirs() {
    let (asked, mut is_asked) = unbounded_channel();
    let (release, released) = mpsc::channel();
    let nobody_came = Arc::new(AtomicBool::new(false));
    let keeper = ThreadKeeper { asked, released: Mutex::new(released), nobody_came: nobody_came.clone() };
    let server = TestServer::with(Setup { resolver: Arc::new(keeper), ..Setup::dev() }).await;
    let mut ids = Vec::new();
    for _ in 0..thread::available_parallelism().expect("it can be told").get() {
        ids.push(server.publish_with("https://receiver.example/", &[("Upstash-Retries", "0")], "").await);
        within("another thread is kept", is_asked.recv()).await;
    }
    let last = server.publish_with("https://receiver.example/", &[("Upstash-Retries", "0")], "").await;
    assert_eq!(server.message(&last).await["messageId"], last);
    drop(release);
    for id in ids.iter().chain([&last]) {
        server.dead_letter_of(id).await;
    }
    assert!(!nobody_came.load(Ordering::Relaxed), "nothing was answered while the threads were kept");
    server.finish().await;
}
