//! The suite on the store in memory.

use crate::support::World;
use crate::{conformance, crash, property};
use posthaste_kit::clock::Clock;
use posthaste_kit::idempotency::{IdempotencyStore, MemoryStore};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

struct Memory {
    store: Arc<MemoryStore>,
    millis: Arc<AtomicU64>,
}

impl Memory {
    fn new() -> Memory {
        let millis = Arc::new(AtomicU64::new(1_700_000_000_000));
        let read = Arc::clone(&millis);
        let clock = Clock::from_fn(move || UNIX_EPOCH + Duration::from_millis(read.load(Ordering::Relaxed)));
        Memory { store: Arc::new(MemoryStore::with_clock(clock)), millis }
    }
}

impl World for Memory {
    fn store(&self) -> Arc<dyn IdempotencyStore> {
        Arc::clone(&self.store) as Arc<dyn IdempotencyStore>
    }

    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.millis.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
        Box::pin(ready(()))
    }

    fn has_fences(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn conforms() {
    conformance::all(&Memory::new()).await;
}

#[test]
fn matches_the_model() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    property::check(&Memory::new(), runtime.handle(), 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_crashes_at_every_await() {
    crash::all(&Memory::new()).await;
}
