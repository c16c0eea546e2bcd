//! Work that is done once for a while, whoever asks for it.

use super::{Begun, IdempotencyStore, Lease, StoreError};
use std::fmt;
use std::time::Duration;

/// For how long work is reserved, unless the caller says otherwise.
pub const RESERVE_DEFAULT: Duration = Duration::from_secs(300);

/// Keeps the names of work and those of messages apart.
const PREFIX: &str = "work:";

/// Reserves a piece of work, named `<job>:<resource>` or by a [`BusinessKey`](super::BusinessKey), for `ttl`
/// ([`RESERVE_DEFAULT`]). Until then everybody else is told that it is taken, also when it has been done long before:
/// a second request for the same report within five minutes needs no second report.
///
/// ```
/// use posthaste_kit::idempotency::{MemoryStore, RESERVE_DEFAULT, Reserved, reserve};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// match reserve(&store, "report:org_1", RESERVE_DEFAULT).await? {
///     Reserved::Yours(work) => match make_report("org_1") {
///         Ok(()) => {} // Keep it: nobody needs another one for a while.
///         Err(error) => { work.cancel().await?; return Err(error); }
///     },
///     Reserved::Taken { .. } => {} // Somebody makes it, or has just made it.
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

/// Whether work was reserved.
#[derive(Debug)]
pub enum Reserved<'a, S: ?Sized> {
    /// It is yours to do.
    Yours(Reservation<'a, S>),
    /// Somebody does it, or has done it.
    Taken {
        /// When it may be reserved again, if nobody [confirms](Reservation::confirm) it; `None` once somebody has.
        retry_after: Option<Duration>,
    },
}

/// Work that is yours. Dropping it keeps it reserved until its time is over.
pub struct Reservation<'a, S: ?Sized> {
    store: &'a S,
    lease: Lease,
}

impl<S: IdempotencyStore + ?Sized> Reservation<'_, S> {
    /// The work was not done: the next may try at once. False if the reservation was over already.
    pub async fn cancel(self) -> Result<bool, StoreError> {
        self.store.release(&self.lease).await
    }

    /// The work is done, and nobody needs it again for `keep`. False if somebody else has reserved it meanwhile.
    pub async fn confirm(self, keep: Duration) -> Result<bool, StoreError> {
        self.store.complete(&self.lease, keep).await
    }

    /// Keeps it for another `ttl` from now, because the work takes longer. False if it was lost.
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
    async fn work_is_reserved_once_and_can_be_given_back() {
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
    async fn work_and_messages_have_keys_of_their_own() {
        let store = MemoryStore::new();
        assert!(matches!(store.begin("report:org_1", KEEP).await.unwrap(), Begun::Acquired(_)));
        assert!(matches!(reserve(&store, "report:org_1", KEEP).await.unwrap(), Reserved::Yours(_)));
    }

    #[tokio::test]
    async fn a_store_behind_a_pointer_will_do() {
        let store: std::sync::Arc<dyn IdempotencyStore> = std::sync::Arc::new(MemoryStore::new());
        assert!(matches!(reserve(&*store, "job:1", KEEP).await.unwrap(), Reserved::Yours(_)));
        assert!(matches!(reserve(&store, "job:1", KEEP).await.unwrap(), Reserved::Taken { .. }));
    }
}
