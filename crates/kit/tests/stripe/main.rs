//! The example `stripe`, with the real server, a real PostgreSQL and the service as a process that is killed. A paid
//! invoice results in one row and one mail, counted in the database and at the mail provider.
//!
//! Start at `crashes.rs`. `duplicates.rs` repeats all messages and kills the other systems. The service has no test
//! code: it is held at network hops (`hop.rs`) and inside the database (`statement.rs`), and then it is killed.
//! `pages.rs` compares `docs/handlers.md` with the example.

#![expect(clippy::unwrap_used, reason = "also helpers of tests end a test that cannot go on")]

mod crashes;
mod duplicates;
#[path = "../../examples/stripe/main.rs"]
#[expect(dead_code, reason = "the test has a main function of its own")]
mod example;
mod hop;
mod pages;
#[path = "../publish/server.rs"]
mod server;
mod statement;
#[path = "../stores/support/mod.rs"]
#[expect(dead_code, reason = "other suites need more of it")]
mod support;
mod worker;
mod world;

use std::time::Duration;

/// Longest duration of a step before a test fails.
const PATIENCE: Duration = support::wait::DEADLINE;

/// Waits for a future that must complete.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} did not happen in time"))
}
