//! Runs the handler of an event once. A panic is a failure. A handler that runs longer than its lock is stopped,
//! because another one may have begun.

use crate::clock::monotonic;
use crate::failure::{Failure, HandlerResult, Panicked, caught};
use crate::idempotency::{Begun, IdempotencyStore, Lease, StoreError, within};
use crate::replay::{SingleUse, Used};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Time limit for a response of the store. Without a response the handler does not run.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The work to do once. It gets the fence of its lease.
pub(crate) type Work = Box<dyn FnOnce(u64) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>> + Send>;

/// The outcome of the work.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    DoneBefore,
    /// The signature was already used.
    Replayed,
    UnderWay {
        retry_after: Duration,
    },
    Failed(Failure),
    Panicked,
    TimedOut,
    StoreFailed(StoreError),
}

/// How long a key is locked during the work, and how long it is remembered afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) lock: Duration,
    pub(crate) keep: Duration,
}

/// An event as the store knows it.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) event: String,
    /// The signature, if it may be used only once.
    pub(crate) single_use: Option<SingleUse>,
}

/// Does the work, unless the store has the event already. Without a store it always does the work.
pub(crate) async fn once(store: Option<&dyn IdempotencyStore>, key: &Key, times: Times, work: Work) -> Outcome {
    let Some(store) = store else { return done(monotonic() + times.lock, work, 0).await };
    let Some(single_use) = &key.single_use else { return locked(store, &key.event, times, work).await };
    let used = match single_use.begin(store, STORE_TIMEOUT).await {
        Ok(Used::First(used)) => used,
        Ok(Used::Done) => return Outcome::DoneBefore,
        Ok(Used::Before) => return Outcome::Replayed,
        Err(error) => return Outcome::StoreFailed(error),
    };
    let outcome = locked(store, &key.event, times, work).await;
    if matches!(outcome, Outcome::Done | Outcome::DoneBefore) {
        single_use.complete(store, &used, STORE_TIMEOUT).await;
    }
    outcome
}

/// Does the work under the lock of the event.
async fn locked(store: &dyn IdempotencyStore, key: &str, times: Times, work: Work) -> Outcome {
    // Measured from before the step of the store, so that the work ends before the lock expires.
    let ends_at = monotonic() + times.lock;
    let lease = match within(STORE_TIMEOUT, store.begin(key, times.lock)).await {
        Ok(Begun::Acquired(lease)) => lease,
        Ok(Begun::UnderWay { retry_after }) => return Outcome::UnderWay { retry_after },
        Ok(Begun::Done) => return Outcome::DoneBefore,
        Err(error) => return Outcome::StoreFailed(error),
    };
    let outcome = done(ends_at, work, lease.fence).await;
    settle(store, &lease, &outcome, times.keep).await;
    outcome
}

async fn done(ends_at: Instant, work: Work, fence: u64) -> Outcome {
    // Called inside the future, so that a panic before its first await is caught too.
    match timeout_at(ends_at, caught(async move { work(fence).await })).await {
        Ok(Ok(Ok(()))) => Outcome::Done,
        Ok(Ok(Err(failure))) => Outcome::Failed(failure),
        Ok(Err(Panicked)) => Outcome::Panicked,
        Err(_) => Outcome::TimedOut,
    }
}

/// Reports the result to the store. If that fails, the lock expires on its own, and the completed work stays done.
async fn settle(store: &dyn IdempotencyStore, lease: &Lease, outcome: &Outcome, keep: Duration) {
    let is_done = matches!(outcome, Outcome::Done);
    let step = if is_done { store.complete(lease, keep) } else { store.release(lease) };
    let told = within(STORE_TIMEOUT, step).await;
    match told {
        Ok(true) => {}
        Ok(false) => tracing::warn!(is_done, "the key of the event was lost while its handler ran"),
        Err(error) => tracing::warn!(is_done, %error, "the result of the event's handler could not be stored"),
    }
}
