//! Deaths in the middle of a bulk action: it goes on, does nothing twice, and no more than it was told.

use crate::client::Client;
use crate::points::{armed, was_killed};
use crate::process::{Launch, Process};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// More than one piece.
const LETTERS: usize = 1_500;
/// Where a bulk action dies.
const POINTS: [&str; 2] = ["bulk_piece_done", "bulk_progress_stored"];
/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1/";
/// How often and how long something is waited for.
const POLL_EVERY: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

/// All dead letters: dlqId and label.
async fn dead_letters(client: &Client, server: SocketAddr) -> Vec<(String, String)> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.get(server, &format!("/v2/dlq?trimBody=0&cursor={cursor}")).await.json();
        let text = |letter: &Value, name: &str| letter[name].as_str().unwrap_or_default().to_owned();
        let letters = page["messages"].as_array().expect("a list").iter();
        found.extend(letters.map(|letter| (text(letter, "dlqId"), text(letter, "label"))));
        match page["cursor"].as_str() {
            None => return found,
            Some(next) => next.clone_into(&mut cursor),
        }
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(POLL_EVERY).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what}: not within {PATIENCE:?}");
}

/// Publishes messages with a label each, and with this header.
async fn publish(client: &Client, server: SocketAddr, header: &str, value: &str) {
    let item =
        |n: usize| json!({ "destination": NOWHERE, "headers": { header: value, "Upstash-Label": format!("n{n}") } });
    let body = Bytes::from((0..LETTERS).map(item).collect::<Value>().to_string());
    let json = [("content-type", "application/json".to_owned())];
    let answer = client.send(Method::POST, server, "/v2/batch", &json, body).await.expect("an answer");
    assert_eq!(answer.status, 200);
}

/// Publishes messages that become dead letters.
async fn fail(client: &Client, server: SocketAddr) {
    publish(client, server, "Upstash-Retries", "0").await;
    until("all have failed", async || dead_letters(client, server).await.len() == LETTERS).await;
}

/// Begins a bulk action that kills the server, perhaps before its answer is out.
async fn die(client: &Client, (server, address): (&mut Process, SocketAddr), method: Method, target: &str) {
    let begun = client.send(method, address, target, &[], Bytes::new()).await;
    let status = server.wait_for(PATIENCE).await;
    assert!(status.is_some_and(was_killed), "{target} passed no such point:\n{}", server.last_words());
    drop(begun);
}

/// What the only bulk action has done once it is finished.
async fn processed(client: &Client, server: SocketAddr) -> usize {
    let mut action = Value::Null;
    until("it is finished", async || {
        action = client.get(server, "/v2/bulkActions").await.json()["bulkActions"][0].take();
        action["state"] == "FINISHED"
    })
    .await;
    action["processed"].as_u64().expect("a count") as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_died_goes_on_and_sends_nothing_twice() {
    for point in POINTS {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let launch = Launch::on(dir.path());
        let client = Client::new();
        let mut server = armed(&launch, point, 1).spawn();
        let address = server.address();
        fail(&client, address).await;
        let first: BTreeSet<String> = dead_letters(&client, address).await.into_iter().map(|(id, _)| id).collect();

        die(&client, (&mut server, address), Method::POST, "/v2/dlq/retry?async=true").await;
        let server = launch.spawn();
        let address = server.address();
        assert_eq!(processed(&client, address).await, LETTERS, "{point}");
        // Sent again they fail again: each must be there once, as a new dead letter.
        until("all have failed again", async || {
            let letters = dead_letters(&client, address).await;
            letters.len() == LETTERS && letters.iter().all(|(id, _)| !first.contains(id))
        })
        .await;
        let labels: BTreeSet<String> =
            dead_letters(&client, address).await.into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels.len(), LETTERS, "{point}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_on_dead_letters_does_no_more_than_its_count() {
    const COUNT: usize = 1_200;
    for (method, path) in [(Method::POST, "/v2/dlq/retry"), (Method::DELETE, "/v2/dlq")] {
        for point in POINTS {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let launch = Launch::on(dir.path());
            let client = Client::new();
            let mut server = armed(&launch, point, 1).spawn();
            let address = server.address();
            fail(&client, address).await;
            let first: BTreeSet<String> = dead_letters(&client, address).await.into_iter().map(|(id, _)| id).collect();
            die(&client, (&mut server, address), method.clone(), &format!("{path}?async=true&count={COUNT}")).await;

            let server = launch.spawn();
            let address = server.address();
            assert_eq!(processed(&client, address).await, COUNT, "{path} {point}");
            let letters = dead_letters(&client, address).await;
            let left = letters.iter().filter(|(id, _)| first.contains(id)).count();
            assert_eq!(left, LETTERS - COUNT, "{path} {point}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_died_ends_no_more_than_its_count() {
    const COUNT: usize = 500;
    for point in POINTS {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let launch = Launch::on(dir.path());
        let client = Client::new();
        let mut server = armed(&launch, point, 1).spawn();
        let address = server.address();
        publish(&client, address, "Upstash-Delay", "1h").await;
        die(&client, (&mut server, address), Method::DELETE, &format!("/v2/messages?async=true&count={COUNT}")).await;

        let server = launch.spawn();
        let address = server.address();
        assert_eq!(processed(&client, address).await, COUNT, "{point}");
        let rest = client.send(Method::DELETE, address, "/v2/messages", &[], Bytes::new()).await.expect("an answer");
        assert_eq!(rest.json()["cancelled"], LETTERS - COUNT, "{point}");
    }
}
