//! The publisher and the service client, against the real server as a child process and against scripted receivers.
//!
//! `POSTHASTE_BIN` names the server. Without it, the tests use the one that `cargo build -p posthaste` creates.

#![expect(clippy::unwrap_used, reason = "also helpers of tests end a test that cannot go on")]

mod fallback;
mod messages;
mod receiver;
mod resources;
mod server;
mod service;
mod spool;
mod tls;

use posthaste_kit::publish::QueueClient;
use receiver::Receiver;
use server::Server;
use std::time::Duration;

/// Longest duration of a step before a test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a future that must complete.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} did not happen in time"))
}

/// Polls until there is a result, for state of the server that has no notification.
async fn eventually<T, A: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> A) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(what, asking).await
}

/// A server, a client for it, and a receiver.
struct World {
    server: Server,
    client: QueueClient,
    receiver: Receiver,
}

impl World {
    async fn start() -> World {
        let server = Server::start();
        let client = QueueClient::new(server.url(), server::TOKEN).unwrap();
        World { server, client, receiver: Receiver::start().await }
    }
}
