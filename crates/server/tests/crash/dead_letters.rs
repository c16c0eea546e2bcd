//! Deaths in the middle of a bulk action: it goes on, does nothing twice, and no more than it was told.

use crate::bulk::until;
use crate::client::Client;
use crate::points::{armed, was_killed};
use crate::process::{Launch, Process};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;

/// More than one piece.
const LETTERS: usize = 1_500;
/// Where a bulk action dies.
const POINTS: [&str; 2] = ["bulk_piece_done", "bulk_progress_stored"];
/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1/";
/// How long the death of a server is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that dies in its first bulk action, and the one after it.
struct World {
    _dir: TempDir,
    launch: Launch,
    client: Client,
    server: Process,
    address: SocketAddr,
}

impl World {
    fn armed(point: &str) -> World {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let launch = Launch::on(dir.path());
        let server = armed(&launch, point, 1).spawn();
        let address = server.address();
        World { _dir: dir, launch, client: Client::new(), server, address }
    }

    /// Begins a bulk action that kills the server, perhaps before its answer is out; and starts the next one.
    async fn die(&mut self, method: Method, target: &str) {
        let begun = self.client.send(method, self.address, target, &[], Bytes::new()).await;
        let status = self.server.wait_for(PATIENCE).await;
        assert!(status.is_some_and(was_killed), "{target} passed no such point:\n{}", self.server.last_words());
        drop(begun);
        self.server = self.launch.spawn();
        self.address = self.server.address();
    }

    /// All dead letters: dlqId and label.
    async fn dead_letters(&self) -> Vec<(String, String)> {
        let letters = self.client.pages(self.address, "/v2/dlq?trimBody=0", "messages").await;
        let text = |letter: &Value, name: &str| letter[name].as_str().unwrap_or_default().to_owned();
        letters.iter().map(|letter| (text(letter, "dlqId"), text(letter, "label"))).collect()
    }

    /// Publishes messages with a label each, and with this header.
    async fn publish(&self, header: &str, value: &str) {
        let item = |n: usize| json!({ "destination": NOWHERE, "headers": { header: value, "Upstash-Label": format!("n{n}") } });
        let body = Bytes::from((0..LETTERS).map(item).collect::<Value>().to_string());
        let json = [("content-type", "application/json".to_owned())];
        let answer = self.client.send(Method::POST, self.address, "/v2/batch", &json, body).await.expect("an answer");
        assert_eq!(answer.status, 200);
    }

    /// Publishes messages that become dead letters; says which.
    async fn fail(&self) -> BTreeSet<String> {
        self.publish("Upstash-Retries", "0").await;
        until("all have failed", || async { self.dead_letters().await.len() == LETTERS }).await;
        self.dead_letters().await.into_iter().map(|(id, _)| id).collect()
    }

    /// What the only bulk action has done once it is finished.
    async fn processed(&self) -> usize {
        let action =
            || async { self.client.get(self.address, "/v2/bulkActions").await.json()["bulkActions"][0].take() };
        until("it is finished", || async { action().await["state"] == "FINISHED" }).await;
        action().await["processed"].as_u64().expect("a count") as usize
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_died_goes_on_and_sends_nothing_twice() {
    for point in POINTS {
        let mut world = World::armed(point);
        let first = world.fail().await;
        world.die(Method::POST, "/v2/dlq/retry?async=true").await;
        assert_eq!(world.processed().await, LETTERS, "{point}");
        // Sent again they fail again: each must be there once, as a new dead letter.
        until("all have failed again", || async {
            let letters = world.dead_letters().await;
            letters.len() == LETTERS && letters.iter().all(|(id, _)| !first.contains(id))
        })
        .await;
        let labels: BTreeSet<String> = world.dead_letters().await.into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels.len(), LETTERS, "{point}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_on_dead_letters_does_no_more_than_its_count() {
    const COUNT: usize = 1_200;
    for (method, path) in [(Method::POST, "/v2/dlq/retry"), (Method::DELETE, "/v2/dlq")] {
        for point in POINTS {
            let mut world = World::armed(point);
            let first = world.fail().await;
            world.die(method.clone(), &format!("{path}?async=true&count={COUNT}")).await;
            assert_eq!(world.processed().await, COUNT, "{path} {point}");
            let left = world.dead_letters().await.iter().filter(|(id, _)| first.contains(id)).count();
            assert_eq!(left, LETTERS - COUNT, "{path} {point}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_died_ends_no_more_than_its_count() {
    const COUNT: usize = 500;
    for point in POINTS {
        let mut world = World::armed(point);
        world.publish("Upstash-Delay", "1h").await;
        world.die(Method::DELETE, &format!("/v2/messages?async=true&count={COUNT}")).await;
        assert_eq!(world.processed().await, COUNT, "{point}");
        let rest = world.client.send(Method::DELETE, world.address, "/v2/messages", &[], Bytes::new()).await;
        assert_eq!(rest.expect("an answer").json()["cancelled"], LETTERS - COUNT, "{point}");
    }
}
