//! What every story needs: a server, a receiver, a client, and a check of signatures.

pub(crate) mod events;
pub(crate) mod http;
pub(crate) mod jwt;
pub(crate) mod receiver;
pub(crate) mod runs;
pub(crate) mod server;

pub(crate) use events::EventStream;
pub(crate) use http::{Answer, Request};
pub(crate) use receiver::{Delivery, Receiver, Reply};
pub(crate) use server::{Backend, Setup, TestServer};

/// Header lines of a request.
pub(crate) type Lines<'a> = &'a [(&'a str, &'a str)];

use std::future::Future;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const POLL_EVERY: Duration = Duration::from_millis(3);

/// Asks until there is an answer.
///
/// # Panics
/// If there is none in time.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Waits for something that happens once.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}
