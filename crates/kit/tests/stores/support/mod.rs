//! Shared parts of the suites: a store whose time can pass, and the servers of the stores.

#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod faults;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod process;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod wait;

use posthaste_kit::idempotency::{Begun, IdempotencyStore, Lease, StoreError};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A store, and a way to let time pass for it.
pub(crate) trait World: Sync {
    fn store(&self) -> Arc<dyn IdempotencyStore>;

    /// Lets time pass for all keys.
    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Whether leases have fences.
    fn has_fences(&self) -> bool;
}

/// The lease of a key that was free.
#[track_caller]
pub(crate) fn acquired(begun: Result<Begun, StoreError>) -> Lease {
    match begun {
        Ok(Begun::Acquired(lease)) => lease,
        other => panic!("not acquired: {other:?}"),
    }
}
