//! Each signature of a queue is accepted once: a recorded delivery cannot be sent again, even while its signature is
//! valid.
//!
//! A queue signs every attempt separately. A signature that arrives twice is therefore a replay, or the same attempt
//! sent twice because a connection broke (a queue or a proxy may do that). Neither may run the handler, because the
//! next attempt has its own signature. The response is safe for both cases and never loses a message:
//!
//! | the first use of the signature | the id of the message is signed | it is not |
//! |---|---|---|
//! | its work is done | 204: the sender may have missed the response | 409 |
//! | still running, failed, or died | 409, which a queue retries | 409 |
//!
//! Without a signed id, a second use could claim any message, so it gets no confirmation.
//!
//! The signature is looked up before the message is locked. A replay therefore touches no lock, and cannot delay
//! genuine deliveries.

use crate::idempotency::{Begun, IdempotencyStore, Lease, StoreError, within};
use std::time::Duration;

/// A signature that may be used once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SingleUse {
    key: String,
    /// How long it stays valid for any clock.
    left: Duration,
    is_id_signed: bool,
}

/// The outcome of an attempt to use a signature.
#[derive(Debug)]
pub(crate) enum Used {
    /// The first use.
    First(Lease),
    /// The work of the first use is done.
    Done,
    /// Used before.
    Before,
}

impl SingleUse {
    pub(crate) fn new(nonce: &str, left: Duration, is_id_signed: bool) -> SingleUse {
        SingleUse { key: format!("signature:{nonce}"), left, is_id_signed }
    }

    /// Uses the signature. It stays used, whatever the outcome of the work is.
    pub(crate) async fn begin(&self, store: &dyn IdempotencyStore, limit: Duration) -> Result<Used, StoreError> {
        Ok(match within(limit, store.begin(&self.key, self.left)).await? {
            Begun::Acquired(lease) => Used::First(lease),
            Begun::Done => Used::Done,
            Begun::UnderWay { .. } => Used::Before,
        })
    }

    /// Records that the work is done, so that the same attempt is confirmed if it arrives again. If the store fails,
    /// nothing is lost: the next attempt has another signature and finds that the message is done.
    pub(crate) async fn complete(&self, store: &dyn IdempotencyStore, lease: &Lease, limit: Duration) {
        if !self.is_id_signed {
            return;
        }
        if let Err(error) = within(limit, store.complete(lease, self.left)).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "cannot mark a used signature as done");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::idempotency::MemoryStore;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::UNIX_EPOCH;

    const LIMIT: Duration = Duration::from_secs(1);
    const LEFT: Duration = Duration::from_secs(300);

    async fn first(store: &MemoryStore, single: &SingleUse) -> Lease {
        match single.begin(store, LIMIT).await.unwrap() {
            Used::First(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_signature_is_used_once_and_confirmed_only_if_it_names_its_message() {
        for (is_id_signed, nonce) in [(true, "signed"), (false, "unsigned")] {
            let (store, single) = (MemoryStore::new(), SingleUse::new(nonce, LEFT, is_id_signed));
            let lease = first(&store, &single).await;
            assert!(matches!(single.begin(&store, LIMIT).await.unwrap(), Used::Before));
            single.complete(&store, &lease, LIMIT).await;
            let again = single.begin(&store, LIMIT).await.unwrap();
            assert_eq!(matches!(again, Used::Done), is_id_signed, "{again:?}");
            assert!(!matches!(again, Used::First(_)));
        }
    }

    #[tokio::test]
    async fn a_signature_is_remembered_for_as_long_as_it_is_valid() {
        let seconds = Arc::new(AtomicU64::new(1_000));
        let shown = Arc::clone(&seconds);
        let clock = Clock::from_fn(move || UNIX_EPOCH + Duration::from_secs(shown.load(Ordering::SeqCst)));
        let (store, single) = (MemoryStore::with_clock(clock), SingleUse::new("jwt_1", LEFT, true));
        first(&store, &single).await;
        seconds.fetch_add(LEFT.as_secs() - 1, Ordering::SeqCst);
        assert!(matches!(single.begin(&store, LIMIT).await.unwrap(), Used::Before));
        seconds.fetch_add(1, Ordering::SeqCst);
        first(&store, &single).await;
    }
}
