//! Holding the lock of a message while its handler runs, and letting go of it as the outcome asks.
//!
//! Every question to the store has a time limit, and no answer counts as a bad one: [`begin`] then fails, so the
//! handler does not run; [`hold`] keeps asking until the lock must have ended, and then the handler is dropped.

use super::outcome::Outcome;
use crate::clock::monotonic;
use crate::idempotency::{Begun, IdempotencyStore, Lease, within};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Minimum duration of a lock: there must be time for heartbeats.
pub const LOCK_MIN: Duration = Duration::from_secs(1);
/// The lock is extended when this part of it has passed, so that two heartbeats may fail.
const HEARTBEATS_PER_LOCK: u32 = 3;
/// How long to wait before asking a store again that did not answer, at most.
const RETRY_EVERY_MAX: Duration = Duration::from_secs(1);

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// How long the lock lasts without a heartbeat.
    pub(super) lock: Duration,
    /// How long it is remembered that the message was handled.
    pub(super) keep: Duration,
    /// How long the store may take to answer.
    pub(super) store: Duration,
    /// How long the handler may run.
    pub(super) run: Duration,
}

/// The lock of a message, and when it ends unless it is extended.
pub(super) struct Held {
    pub(super) lease: Lease,
    until: Instant,
}

/// Takes the lock, or says why the handler must not run.
pub(super) async fn begin(store: &dyn IdempotencyStore, key: &str, times: Times) -> Result<Held, Outcome> {
    // The lock began at the latest when the store answered, and at the earliest when it was asked.
    let until = monotonic() + times.lock;
    match within(times.store, store.begin(key, times.lock)).await {
        Ok(Begun::Acquired(lease)) => Ok(Held { lease, until }),
        Ok(Begun::UnderWay { retry_after }) => Err(Outcome::UnderWay { retry_after }),
        Ok(Begun::Done) => Err(Outcome::Duplicate),
        Err(error) => Err(Outcome::StoreFailed(error)),
    }
}

/// Extends the lock for as long as it is polled. Returns when the lock is lost.
pub(super) async fn hold(store: &dyn IdempotencyStore, held: &Held, times: Times) {
    let mut until = held.until;
    loop {
        sleep(times.lock / HEARTBEATS_PER_LOCK).await;
        match timeout_at(until, extended(store, &held.lease, times)).await {
            Ok(Some(renewed)) => until = renewed,
            Ok(None) | Err(_) => return,
        }
    }
}

/// Asks until the store answers: until when the lock is ours, or `None` if it is not.
async fn extended(store: &dyn IdempotencyStore, lease: &Lease, times: Times) -> Option<Instant> {
    loop {
        let until = monotonic() + times.lock;
        match within(times.store, store.extend(lease, times.lock)).await {
            Ok(true) => return Some(until),
            Ok(false) => return None,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot extend the lock; retrying");
                sleep(RETRY_EVERY_MAX.min(times.lock / HEARTBEATS_PER_LOCK)).await;
            }
        }
    }
}

/// Lets go of the lock: done for good after a success, free for the next attempt after a failure.
///
/// The work of a success is done whatever the store says now, so the queue hears of a success. Saying anything else
/// would make it deliver again what was done already.
pub(super) async fn settle(store: &dyn IdempotencyStore, held: &Held, outcome: &Outcome, times: Times) {
    let settled = match outcome {
        // It is somebody else's.
        Outcome::LockLost => return,
        Outcome::Succeeded => match within(times.store, store.complete(&held.lease, times.keep)).await {
            // What is not marked as done may be done again: that is worth a second try.
            Err(_) => within(times.store, store.complete(&held.lease, times.keep)).await,
            settled => settled,
        },
        _ => within(times.store, store.release(&held.lease)).await,
    };
    match settled {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            outcome = outcome.name(),
            "the lock expired before the handler finished; another delivery may have run at the same time"
        ),
        Err(error) => tracing::warn!(
            error = &error as &dyn std::error::Error,
            outcome = outcome.name(),
            "the outcome of the message could not be stored; its lock will expire"
        ),
    }
}
