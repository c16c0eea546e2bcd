//! Idempotency: two layers that make an effect happen once although the queue delivers at least once.
//!
//! **Deliveries.** A *store* ([`IdempotencyStore`]) remembers which messages are in progress and which are done. It
//! fails closed: if it is down, slow or returns invalid data, the handler does not run, and the queue delivers again
//! later.
//!
//! **Effects.** Two deliveries can still do the same work: the same order was published twice, or a process was paused
//! for longer than its lock. [`reserve()`] and [`BusinessKey`] name the work itself. The `table` commits the mark
//! *together with the effect*, and its fence rejects a process that lost the key.
//!
//! | store | prevents concurrent work | survives its own crash or failover | use it for |
//! |---|---|---|---|
//! | [`memory`] | in one process | no | tests |
//! | `redis` | while Redis loses nothing | **no**: a lock can be granted twice | cheap effects, or with the table |
//! | `postgres` | while the clock does not jump | yes | effects that live elsewhere |
//! | `table` | yes, by the fence | yes, with the effect itself | effects in the same PostgreSQL |
//!
//! A lock alone is never safe: a process that was paused does not know that its lock has expired. Only a check of the
//! late write is safe: a unique key, or the [fence](Lease::fence), in the database that holds the effect.

pub mod key;
pub mod memory;
pub mod model;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
mod reserve;
#[cfg(feature = "postgres")]
pub mod table;

pub use key::BusinessKey;
pub use memory::MemoryStore;
pub use reserve::{RESERVE_DEFAULT, Reservation, Reserved, reserve};

use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A future that a store returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Maximum size of a key, in bytes. A longer key is replaced by its hash, so that every store accepts it.
pub const KEY_BYTES_MAX: usize = 512;

/// Maximum time to hold or remember a key; a longer time is reduced to it.
pub const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Default time for which a delivery holds its key.
pub const LOCK_DEFAULT: Duration = Duration::from_secs(240);

/// Default time for which a finished message is remembered: 3 days. If the response to a delivery is lost, the next
/// attempt comes up to one day later, and its response may be lost as well.
pub const KEEP_DEFAULT: Duration = Duration::from_secs(3 * 86_400);

/// Remembers which keys are in progress and which are done. Each method is one atomic step.
///
/// The states of a key and their transitions:
///
/// ```text
///   free ──begin──► in progress (token, until T) ──complete──► done (until T') ──► free
///     ▲                │      │ ▲
///     │                │      └─┘ extend
///     └────release─────┴── T passes: the next begin gets it
/// ```
///
/// Only the holder of the token can extend, complete or release; the methods return false if it was lost. There is one
/// exception: a holder whose lock has expired can still complete while the key is *free*, because its effect has
/// happened. [`model::State`] has the rules.
///
/// After an error the outcome is **not known**: the step may have taken effect. A key whose `begin` failed may be
/// held until its lock expires. `complete` can be repeated.
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Takes the key for `lock`, unless it is held or done.
    fn begin<'a>(&'a self, key: &'a str, lock: Duration) -> StoreFuture<'a, Begun>;

    /// Keeps the key for another `lock` from now; false if it was lost.
    fn extend<'a>(&'a self, lease: &'a Lease, lock: Duration) -> StoreFuture<'a, bool>;

    /// Marks the key as done for `keep`; false if another holder has it or has completed it. Then nothing is marked.
    fn complete<'a>(&'a self, lease: &'a Lease, keep: Duration) -> StoreFuture<'a, bool>;

    /// Releases the key, so that the next delivery can begin; false if it was lost.
    fn release<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, bool>;
}

impl<S: IdempotencyStore + ?Sized> IdempotencyStore for Arc<S> {
    fn begin<'a>(&'a self, key: &'a str, lock: Duration) -> StoreFuture<'a, Begun> {
        (**self).begin(key, lock)
    }

    fn extend<'a>(&'a self, lease: &'a Lease, lock: Duration) -> StoreFuture<'a, bool> {
        (**self).extend(lease, lock)
    }

    fn complete<'a>(&'a self, lease: &'a Lease, keep: Duration) -> StoreFuture<'a, bool> {
        (**self).complete(lease, keep)
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, bool> {
        (**self).release(lease)
    }
}

/// The result of an attempt to take a key.
#[derive(Debug)]
pub enum Begun {
    /// The key is yours until the lock expires.
    Acquired(Lease),
    /// Another holder has it.
    UnderWay {
        /// When their lock expires, unless they extend it.
        retry_after: Duration,
    },
    /// The work was already done.
    Done,
}

/// A key that is held.
#[derive(Clone, PartialEq, Eq)]
pub struct Lease {
    /// The key.
    pub key: String,
    /// Identifies the holder.
    pub token: [u8; 16],
    /// Grows with every holder of a key, if the store can guarantee it, and is zero otherwise. Write it next to the
    /// effect, and reject writes with a smaller one.
    pub fence: u64,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("key", &self.key).field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// The store failed or did not respond in time, so the work must not continue. A retry later may succeed.
#[derive(Debug, thiserror::Error)]
#[error("the idempotency store {}", .kind.as_str())]
pub struct StoreError {
    kind: Kind,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unavailable,
    TimedOut,
    Rubbish,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Unavailable => "is not available",
            Kind::TimedOut => "did not respond in time",
            Kind::Rubbish => "returned an invalid response",
        }
    }
}

impl StoreError {
    /// The store cannot be reached, or rejected the request.
    pub fn unavailable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
        StoreError { kind: Kind::Unavailable, source: Some(source.into()) }
    }

    /// The store took too long.
    pub fn timed_out() -> StoreError {
        StoreError { kind: Kind::TimedOut, source: None }
    }

    /// The store returned an invalid response.
    pub fn malformed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
        StoreError { kind: Kind::Rubbish, source: Some(source.into()) }
    }

    /// Whether the store could not be reached, or rejected the request.
    pub fn is_unavailable(&self) -> bool {
        self.kind == Kind::Unavailable
    }

    /// Whether the store took too long.
    pub fn is_timed_out(&self) -> bool {
        self.kind == Kind::TimedOut
    }

    /// Whether the response was invalid: another program writes to the keys, or the server is not a supported store.
    pub fn is_malformed(&self) -> bool {
        self.kind == Kind::Rubbish
    }
}

/// Marks a key that stands for a longer one.
const HASHED_PREFIX: &str = "sha256:";

/// The key as stores keep it: itself, or its hash if it is longer than [`KEY_BYTES_MAX`] or contains a zero byte, which
/// PostgreSQL cannot store. A key that looks like a hash is hashed too, so that two keys never collide.
pub(crate) fn storable(key: &str) -> Cow<'_, str> {
    let is_plain = key.len() <= KEY_BYTES_MAX && !key.contains('\0') && !key.starts_with(HASHED_PREFIX);
    if is_plain { Cow::Borrowed(key) } else { Cow::Owned(format!("{HASHED_PREFIX}{}", hex(&Sha256::digest(key)))) }
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// A duration in whole milliseconds: at least one, at most [`TTL_MAX`].
pub(crate) fn millis(time: Duration) -> u64 {
    let millis = time.min(TTL_MAX).as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// The result of the store if it comes within this time; otherwise an error.
pub(crate) async fn within<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(limit, step).await.unwrap_or_else(|_| Err(StoreError::timed_out()))
}

/// A new random token.
pub(crate) fn token() -> Result<[u8; 16], StoreError> {
    let mut token = [0; 16];
    getrandom::fill(&mut token).map_err(|error| StoreError::unavailable(error.to_string()))?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_odd_keys_are_hashed_without_collisions() {
        assert_eq!(storable("msg_1"), "msg_1");
        let at_limit = "k".repeat(KEY_BYTES_MAX);
        assert_eq!(storable(&at_limit), at_limit);
        let long = "k".repeat(KEY_BYTES_MAX + 1);
        let hashed = storable(&long).into_owned();
        assert_eq!((hashed.len(), &hashed[..7]), (71, "sha256:"));
        assert_ne!(storable(&hashed), hashed, "somebody may choose a key that looks like a hash");
        assert_ne!(storable("a\0b"), storable("a\0c"));
        assert_eq!(storable("abc\0"), "sha256:dc1114cd074914bd872cc1f9a23ec910ea2203bc79779ab2e17da25782a624fc");
    }

    #[test]
    fn times_are_rounded_up_and_cut() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
        assert_eq!(millis(LOCK_DEFAULT), 240_000);
        assert_eq!(millis(Duration::MAX), millis(TTL_MAX));
    }

    #[test]
    fn errors_say_what_is_wrong_and_leases_hide_their_token() {
        let error = StoreError::unavailable("connection refused");
        assert!(error.is_unavailable() && !error.is_timed_out() && !error.is_malformed());
        assert_eq!(error.to_string(), "the idempotency store is not available");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "connection refused");
        let lease = Lease { key: "k".into(), token: [0xAB; 16], fence: 7 };
        assert_eq!(format!("{lease:?}"), "Lease { key: \"k\", fence: 7, .. }");
    }
}
