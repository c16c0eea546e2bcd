//! Work that is done once within a period, even if several callers request it.

use super::{Begun, IdempotencyStore, Lease, StoreError};
use std::fmt;
use std::time::Duration;

/// Default time for which work is reserved.
pub const RESERVE_DEFAULT: Duration = Duration::from_secs(300);

/// Separates the names of work from those of messages.
const PREFIX: &str = "work:";

/// Reserves a piece of work, named `<job>:<resource>` or by a [`BusinessKey`](super::BusinessKey), for `ttl`
/// ([`RESERVE_DEFAULT`]). Until then other callers get [`Reserved::Taken`], even if the work is already done: a second
/// request for the same report within five minutes needs no second report.
///
/// ```
/// use posthaste_kit::idempotency::{MemoryStore, RESERVE_DEFAULT, Reserved, reserve};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// match reserve(&store, "report:org_1", RESERVE_DEFAULT).await? {
///     Reserved::Yours(work) => match make_report("org_1") {
///         Ok(()) => {} // Keep the reservation: the report is fresh for a while.
///         Err(error) => { work.cancel().await?; return Err(error); }
///     },
///     Reserved::Taken { .. } => {} // The report is being made, or was just made.
/// }
/// assert!(matches!(reserve(&store, "report:org_1", RESERVE_DEFAULT).await?, Reserved::Taken { .. }));
/// # Ok(()) }
/// # fn make_report(_: &str) -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
/// ```
pub async fn reserve<'a, S: IdempotencyStore + ?Sized>(
    store: &'a S,
    key: impl AsRef<str>,
    ttl: Duration,
) -> Result<Reserved<'a, S>, StoreError> {
    match store.begin(&format!("{PREFIX}{}", key.as_ref()), ttl).await? {
        Begun::Acquired(lease) => Ok(Reserved::Yours(Reservation { store, lease })),
        Begun::UnderWay { retry_after } => Ok(Reserved::Taken { retry_after: Some(retry_after) }),
        Begun::Done => Ok(Reserved::Taken { retry_after: None }),
    }
}

/// The result of a reservation.
#[derive(Debug)]
pub enum Reserved<'a, S: ?Sized> {
    /// The work is yours to do.
    Yours(Reservation<'a, S>),
    /// The work is in progress, or was already done.
    Taken {
        /// When it can be reserved again, unless it is [confirmed](Reservation::confirm); `None` once it is.
        retry_after: Option<Duration>,
    },
}

/// Work that is yours. If it is dropped, the work stays reserved until the time expires.
pub struct Reservation<'a, S: ?Sized> {
    store: &'a S,
    lease: Lease,
}

impl<S: IdempotencyStore + ?Sized> Reservation<'_, S> {
    /// Releases work that was not done, so that it can be reserved again. False if the reservation had expired.
    pub async fn cancel(self) -> Result<bool, StoreError> {
        self.store.release(&self.lease).await
    }

    /// Marks the work as done, so that it is not repeated for `keep`. False if it was reserved by another caller
    /// meanwhile.
    pub async fn confirm(self, keep: Duration) -> Result<bool, StoreError> {
        self.store.complete(&self.lease, keep).await
    }

    /// Extends the reservation to `ttl` from now. False if it was lost.
    pub async fn extend(&self, ttl: Duration) -> Result<bool, StoreError> {
        self.store.extend(&self.lease, ttl).await
    }

    /// Grows with every holder; see [`Lease::fence`].
    pub fn fence(&self) -> u64 {
        self.lease.fence
    }
}

impl<S: ?Sized> fmt::Debug for Reservation<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("lease", &self.lease).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::{BusinessKey, MemoryStore};

    const KEEP: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn work_is_reserved_once_and_can_be_cancelled() {
        let store = MemoryStore::new();
        let key = BusinessKey::new("billing", "user_7", "invoice_42", "send", "v1").unwrap();
        let Reserved::Yours(work) = reserve(&store, &key, RESERVE_DEFAULT).await.unwrap() else { panic!("free") };
        assert!(work.extend(RESERVE_DEFAULT).await.unwrap());
        assert_eq!(work.fence(), 1);
        let Reserved::Taken { retry_after } = reserve(&store, &key, RESERVE_DEFAULT).await.unwrap() else {
            panic!("reserved twice")
        };
        assert!(retry_after.unwrap() > RESERVE_DEFAULT - Duration::from_secs(60));
        assert!(work.cancel().await.unwrap());
        let Reserved::Yours(work) = reserve(&store, &key, RESERVE_DEFAULT).await.unwrap() else { panic!("given back") };
        assert!(work.confirm(KEEP).await.unwrap());
        let again = reserve(&store, &key, RESERVE_DEFAULT).await.unwrap();
        assert!(matches!(again, Reserved::Taken { retry_after: None }));
    }

    #[tokio::test]
    async fn work_and_messages_have_separate_keys() {
        let store = MemoryStore::new();
        assert!(matches!(store.begin("report:org_1", KEEP).await.unwrap(), Begun::Acquired(_)));
        assert!(matches!(reserve(&store, "report:org_1", KEEP).await.unwrap(), Reserved::Yours(_)));
    }

    #[tokio::test]
    async fn a_store_can_be_a_trait_object() {
        let store: std::sync::Arc<dyn IdempotencyStore> = std::sync::Arc::new(MemoryStore::new());
        assert!(matches!(reserve(&*store, "job:1", KEEP).await.unwrap(), Reserved::Yours(_)));
        assert!(matches!(reserve(&store, "job:1", KEEP).await.unwrap(), Reserved::Taken { .. }));
    }
}
