//! Holds the lock of a message while its handler runs, and releases or completes it afterwards.
//!
//! Every step of the store has a time limit, and a missing response counts as a failure. If [`begin`] fails, the
//! handler does not run. [`hold`] retries until the lock must have expired, and then the handler is dropped.

use super::outcome::Outcome;
use crate::clock::monotonic;
use crate::idempotency::{Begun, IdempotencyStore, Lease, within};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Minimum duration of a lock: there must be time for heartbeats.
pub const LOCK_MIN: Duration = Duration::from_secs(1);
/// The lock is extended after this fraction of it has passed, so that two heartbeats may fail.
const HEARTBEATS_PER_LOCK: u32 = 3;
/// Maximum delay before a step of a store that did not respond is repeated.
const RETRY_EVERY_MAX: Duration = Duration::from_secs(1);

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Duration of the lock without a heartbeat.
    pub(super) lock: Duration,
    /// How long a handled message is remembered.
    pub(super) keep: Duration,
    /// Time limit for a response of the store.
    pub(super) store: Duration,
    /// Time limit of the handler.
    pub(super) run: Duration,
}

/// The lock of a message, and when it expires unless it is extended.
pub(super) struct Held {
    pub(super) lease: Lease,
    until: Instant,
}

/// Takes the lock. If the handler must not run, returns the outcome.
pub(super) async fn begin(store: &dyn IdempotencyStore, key: &str, times: Times) -> Result<Held, Outcome> {
    // The lock began between the request and the response of the store.
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

/// Repeats the step until the store responds. Returns the new expiry, or `None` if the lock was lost.
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

/// Ends the lock: marks the message as done after a success, and releases it for the next attempt after a failure.
///
/// After a success the work is done even if the store fails now, so the queue gets a success. Any other response would
/// make it deliver completed work again.
pub(super) async fn settle(store: &dyn IdempotencyStore, held: &Held, outcome: &Outcome, times: Times) {
    let settled = match outcome {
        // Another holder has the lock.
        Outcome::LockLost => return,
        Outcome::Succeeded => match within(times.store, store.complete(&held.lease, times.keep)).await {
            // Work that is not marked as done may be repeated, so a second try is worth it.
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
