//! A panic fails one request or one attempt; a panic of the core or of the journal ends the process with a reason, and
//! the next start has everything that was acknowledged.

use crate::client::{Client, Response};
use crate::history::History;
use crate::process::{Launch, Process};
use crate::witness::{Witness, body_of};
use bytes::Bytes;
use hyper::Method;
use posthaste_faults::crash_point::PANIC_AT;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use tokio::time::{interval, timeout};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Publishes until a planted panic has to come.
const PUBLISHES_MAX: usize = 2_000;
const SIGABRT: i32 = 6;
const NEVER: &str = "/v2/publish/http://127.0.0.1:1/never";

/// A server that panics at this passing of this place.
fn server(dir: &tempfile::TempDir, place: &str) -> Process {
    Launch::on(&dir.path().join("data")).with(PANIC_AT, place).with("RUST_BACKTRACE", "0").spawn()
}

async fn publish(client: &Client, server: SocketAddr) -> Option<Response> {
    client.send(Method::POST, server, NEVER, &[("upstash-delay", "1h".to_owned())], Bytes::from_static(b"secret")).await
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        let mut ticks = interval(Duration::from_millis(20));
        loop {
            ticks.tick().await;
            if let Some(found) = look().await {
                return found;
            }
        }
    };
    timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("{what}"))
}

/// One line says which thread panicked, one of these, and where.
async fn assert_logged(server: &Process, threads: &[&str]) {
    let panics = |output: &str| {
        let lines = output.lines().filter(|line| line.contains("a thread panicked"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = until("the panic is logged", async || Some(panics(&server.output())).filter(|lines| !lines.is_empty()));
    let lines = lines.await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    let is_one = |thread: &&str| lines[0].contains(&format!("thread=\"{thread}\""));
    assert!(threads.iter().any(is_one) && lines[0].contains("crash_point.rs"), "{}", lines[0]);
}

#[tokio::test]
async fn a_panic_in_a_request_fails_that_request_alone() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut server = server(&dir, "request:2");
    let (client, address) = (Client::new(), server.address());
    assert_eq!(publish(&client, address).await.expect("a response").status, 200);
    let failed = publish(&client, address).await.expect("a response");
    assert_eq!(failed.status, 500);
    assert!(
        failed.json()["error"].as_str().is_some_and(|error| error.starts_with("internal error")),
        "{:?}",
        failed.body
    );
    for _ in 0..3 {
        assert_eq!(publish(&client, address).await.expect("a response").status, 200);
    }
    assert_logged(&server, &["api"]).await;
    let output = server.output();
    assert!(!output.contains("planted") && !output.contains("secret"), "a message may hold data: {output}");
    server.kill();
}

#[tokio::test]
async fn a_panic_in_a_query_fails_its_request_alone() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    // The worker of bulk actions makes one query at the start, so a later one is a request's.
    let mut server = server(&dir, "query:6");
    let (client, address) = (Client::new(), server.address());
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(client.get(address, "/v2/logs").await.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 500]);
    assert_eq!(publish(&client, address).await.expect("a response").status, 200);
    assert_logged(&server, &["api"]).await;
    server.kill();
}

#[tokio::test]
async fn a_message_whose_attempt_panics_is_retried() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut server = server(&dir, "attempt:1");
    let (client, address, witness) = (Client::new(), server.address(), Witness::start().await);
    let headers = [("upstash-retries", "1".to_owned()), ("upstash-retry-delay", "10".to_owned())];
    for key in ["first", "second"] {
        let target = format!("/v2/publish/http://{}/plain/{key}", witness.address);
        let body = Bytes::from(body_of(key).into_bytes());
        let response = client.send(Method::POST, address, &target, &headers, body).await.expect("a response");
        assert_eq!(response.status, 200, "{:?}", response.body);
    }
    until("both messages arrive", async || {
        let mut history = History::default();
        witness.tell(&mut history);
        let arrived = |key: &str| history.arrivals.iter().any(|arrival| arrival.key == key);
        (arrived("first") && arrived("second")).then_some(())
    })
    .await;
    until("nothing stays in flight", async || (client.pending(address).await == 0).then_some(())).await;
    assert_logged(&server, &["delivery"]).await;
    let logs = client.get(address, "/v2/logs?state=ERROR").await;
    assert!(String::from_utf8_lossy(&logs.body).contains("the server failed during this attempt"), "{:?}", logs.body);
    server.kill();
}

#[tokio::test]
async fn bulk_actions_go_on_after_a_panic() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut server = server(&dir, "bulk_progress_stored:1");
    let (client, address) = (Client::new(), server.address());
    // The worker panics after the first action, and has to do the second.
    for _ in 0..2 {
        for _ in 0..5 {
            assert_eq!(publish(&client, address).await.expect("a response").status, 200);
        }
        let all = client.send(Method::DELETE, address, "/v2/messages?async=true", &[], Bytes::new()).await;
        assert_eq!(all.expect("a response").status / 100, 2);
        until("the bulk action ends", async || (client.pending(address).await == 0).then_some(())).await;
        assert_logged(&server, &["api"]).await;
    }
    server.kill();
}

/// Publishes until the server is gone; returns the ids that were acknowledged.
async fn publish_until_it_ends(address: SocketAddr) -> Vec<String> {
    let client = Client::new();
    let mut acknowledged = Vec::new();
    for _ in 0..PUBLISHES_MAX {
        match publish(&client, address).await {
            Some(response) if response.status == 200 => {
                acknowledged.push(response.json()["messageId"].as_str().expect("an id").to_owned());
            }
            Some(response) if response.status == 503 => {}
            Some(response) => panic!("{} {:?}", response.status, response.body),
            None => return acknowledged,
        }
    }
    panic!("the server goes on after {} messages", acknowledged.len());
}

#[tokio::test]
async fn a_panic_of_the_core_or_the_journal_ends_the_process_and_loses_nothing() {
    // The core brings the journal into the database as well as its thread does.
    let cases = [("before_commit:4", ["core", "core"]), ("journal_before_apply:1", ["journal", "core"])];
    for (place, threads) in cases {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut server = server(&dir, place);
        let acknowledged = publish_until_it_ends(server.address()).await;
        let status = server.wait_for(PATIENCE).await.unwrap_or_else(|| panic!("{place}: the process goes on"));
        assert!(!status.success(), "{place}: {status}");
        assert_logged(&server, &threads).await;
        let output = server.output();
        let reason = output.lines().any(|line| line.starts_with("posthaste: ") && line.contains("panicked"));
        let in_order = reason && status.code() == Some(1);
        // A panic with the store half changed: nobody may touch it again, not even to end in order.
        let at_once = output.contains("ending the process") && status.signal() == Some(SIGABRT);
        assert!(in_order || at_once, "{place}: {status}: {output}");

        let mut server = Launch::on(&dir.path().join("data")).spawn();
        let (client, address) = (Client::new(), server.address());
        assert!(!acknowledged.is_empty(), "{place}: nothing was acknowledged");
        for id in &acknowledged {
            assert_eq!(client.get(address, &format!("/v2/messages/{id}")).await.status, 200, "{place}: {id} is lost");
        }
        server.kill();
    }
}
