//! A clock that tests set by hand.

use crate::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The first second that [`ManualClock::new`] shows: 1 June 2026, 12:00 UTC.
const START_SECONDS: u64 = 1_780_315_200;

/// A clock that only moves when you advance it. Clones show the same time.
///
/// ```
/// use posthaste_kit::testing::ManualClock;
/// use std::time::Duration;
///
/// let manual = ManualClock::new();
/// let clock = manual.clock();
/// let before = clock.now();
/// manual.advance(Duration::from_secs(60));
/// assert_eq!(clock.now(), before + Duration::from_secs(60));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    /// Milliseconds since 1970.
    millis: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock with a fixed time at noon.
    pub fn new() -> ManualClock {
        ManualClock::at(UNIX_EPOCH + Duration::from_secs(START_SECONDS))
    }

    /// A clock with this time, to the millisecond.
    pub fn at(time: SystemTime) -> ManualClock {
        ManualClock { millis: Arc::new(AtomicU64::new(millis_of(time))) }
    }

    /// The current time of the clock.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.millis.load(Ordering::SeqCst))
    }

    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.millis.fetch_add(by, Ordering::SeqCst);
    }

    /// Sets the clock, forward or back.
    pub fn set(&self, time: SystemTime) {
        self.millis.store(millis_of(time), Ordering::SeqCst);
    }

    /// The clock, to pass to a [`Receiver`](crate::Receiver) or a store.
    pub fn clock(&self) -> Clock {
        let clock = self.clone();
        Clock::from_fn(move || clock.now())
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new()
    }
}

pub(super) fn millis_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
