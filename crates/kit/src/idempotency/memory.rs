//! A store in the memory of this process: for tests, and for services of a single process whose effects may be repeated
//! after a restart.

use super::model::{State, Taken};
use super::{Begun, IdempotencyStore, Lease, StoreError, StoreFuture, storable, token};
use crate::clock::Clock;
use posthaste_wire::time::Timestamp;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// Maximum number of keys in the store. At the limit no new key can begin until some have expired.
pub const KEYS_MAX: usize = 1 << 20;

/// Below this number of keys, expired keys are not searched for.
const SWEEP_MIN: usize = 1_024;

/// An idempotency store in memory.
///
/// ```
/// use posthaste_kit::idempotency::{Begun, IdempotencyStore as _, MemoryStore};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, lock) = (MemoryStore::new(), Duration::from_secs(240));
/// let Begun::Acquired(lease) = store.begin("msg_1", lock).await? else { panic!("it was free") };
/// assert!(matches!(store.begin("msg_1", lock).await?, Begun::UnderWay { .. }));
/// assert!(store.complete(&lease, Duration::from_secs(86_400)).await?);
/// assert!(matches!(store.begin("msg_1", lock).await?, Begun::Done));
/// # Ok(()) }
/// ```
pub struct MemoryStore {
    clock: Clock,
    keys: Mutex<Keys>,
}

struct Keys {
    states: HashMap<String, State>,
    /// The last fence that was handed out, across all keys.
    fence: u64,
    /// The number of keys at which expired ones are searched for.
    sweep_at: usize,
    /// [`KEYS_MAX`], or fewer in tests.
    max: usize,
}

impl MemoryStore {
    /// A store whose clock never jumps.
    pub fn new() -> MemoryStore {
        MemoryStore::with_clock(Clock::steady())
    }

    /// A store with a clock of your own.
    pub fn with_clock(clock: Clock) -> MemoryStore {
        let keys = Keys { states: HashMap::new(), fence: 0, sweep_at: SWEEP_MIN, max: KEYS_MAX };
        MemoryStore { clock, keys: Mutex::new(keys) }
    }

    /// Every step leaves the keys in a valid state, so a panic elsewhere cannot have corrupted them.
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        let since = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)).min(Timestamp::MAX)
    }

    fn take(&self, key: &str, lock: Duration) -> Result<Begun, StoreError> {
        let (stored, token, now) = (storable(key), token()?, self.now());
        let mut keys = self.keys();
        match State::begin(keys.states.get(stored.as_ref()).copied(), token, now, lock) {
            Taken::Acquired(state) => {
                let fence = keys.insert(stored.into_owned(), state, now)?;
                Ok(Begun::Acquired(Lease { key: key.to_owned(), token, fence }))
            }
            Taken::UnderWay { left_ms } => Ok(Begun::UnderWay { retry_after: Duration::from_millis(left_ms) }),
            Taken::Done => Ok(Begun::Done),
        }
    }

    /// Changes the state of a key for its current or former holder. Returns false if the rules do not allow it.
    fn change(&self, lease: &Lease, next: impl FnOnce(Option<State>, Timestamp) -> Option<State>) -> bool {
        let (key, now) = (storable(&lease.key), self.now());
        let mut keys = self.keys();
        match next(keys.states.get(key.as_ref()).copied(), now) {
            Some(state) => {
                keys.states.insert(key.into_owned(), state);
                true
            }
            None => false,
        }
    }

    fn free(&self, lease: &Lease) -> bool {
        let (key, now) = (storable(&lease.key), self.now());
        let mut keys = self.keys();
        let is_held = State::release(keys.states.get(key.as_ref()).copied(), lease.token, now);
        if is_held {
            keys.states.remove(key.as_ref());
        }
        is_held
    }
}

impl Keys {
    /// Stores a key that was begun, and returns its fence.
    fn insert(&mut self, key: String, state: State, now: Timestamp) -> Result<u64, StoreError> {
        if self.states.len() >= self.sweep_at {
            self.states.retain(|_, state| now < state.until());
            // The next search pays off only after the number of keys has doubled.
            self.sweep_at = (self.states.len() * 2).clamp(SWEEP_MIN, self.max);
        }
        if self.states.len() >= self.max && !self.states.contains_key(&key) {
            return Err(StoreError::unavailable(format!(
                "the store is full: it holds {} keys, and none has expired",
                self.max
            )));
        }
        self.states.insert(key, state);
        self.fence += 1;
        Ok(self.fence)
    }
}

impl IdempotencyStore for MemoryStore {
    fn begin<'a>(&'a self, key: &'a str, lock: Duration) -> StoreFuture<'a, Begun> {
        Box::pin(async move { self.take(key, lock) })
    }

    fn extend<'a>(&'a self, lease: &'a Lease, lock: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.change(lease, |state, now| State::extend(state, lease.token, now, lock))) })
    }

    fn complete<'a>(&'a self, lease: &'a Lease, keep: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.change(lease, |state, now| State::complete(state, lease.token, now, keep))) })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.free(lease)) })
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("keys", &self.keys().states.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    const LOCK: Duration = Duration::from_millis(100);

    fn store() -> (MemoryStore, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(1_000));
        let read = Arc::clone(&time);
        let clock = Clock::from_fn(move || UNIX_EPOCH + Duration::from_millis(read.load(Ordering::Relaxed)));
        (MemoryStore::with_clock(clock), time)
    }

    #[test]
    fn expired_keys_are_forgotten() {
        let (store, time) = store();
        for n in 0..20_000 {
            time.fetch_add(1, Ordering::Relaxed);
            assert!(matches!(store.take(&format!("key {n}"), LOCK), Ok(Begun::Acquired(_))));
        }
        let kept = store.keys().states.len();
        assert!((100..=SWEEP_MIN).contains(&kept), "{kept} keys are kept, of which about 100 are under way");
    }

    #[test]
    fn a_full_store_rejects_new_keys_until_some_expire() {
        let (store, time) = store();
        store.keys().max = 3_000;
        for n in 0..3_000 {
            assert!(store.take(&n.to_string(), LOCK).is_ok());
        }
        assert!(store.take("one more", LOCK).unwrap_err().is_unavailable());
        time.fetch_add(100, Ordering::Relaxed);
        assert!(matches!(store.take("one more", LOCK), Ok(Begun::Acquired(_))));
    }

    #[test]
    fn a_step_takes_effect_when_it_is_awaited_or_not_at_all() {
        let (store, _) = store();
        drop(store.begin("key", LOCK));
        assert!(matches!(store.take("key", LOCK), Ok(Begun::Acquired(_))), "nobody awaited the first");
    }
}
