//! The only place that reads the time and draws random numbers.

use posthaste_wire::time::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the time comes from: the system, or a test's hand.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(start: Timestamp) -> Clock {
        Clock(Source::Manual(Arc::new(AtomicU64::new(start.as_millis()))))
    }

    /// Now.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(since_epoch.as_millis() as u64)
            }
            Source::Manual(millis) => Timestamp(millis.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock; whoever waits for a time must be woken by the caller.
    ///
    /// # Panics
    /// If this is the system's clock.
    pub fn advance(&self, millis: u64) {
        match &self.0 {
            Source::System => panic!("the system's clock cannot be moved"),
            Source::Manual(now) => {
                now.fetch_add(millis, Ordering::SeqCst);
            }
        }
    }
}

/// Random bytes from the operating system.
///
/// # Panics
/// If the operating system has none, which no supported system does after boot.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// A cheap source of random numbers for ids and jitter, seeded by the operating system.
#[derive(Debug)]
pub struct Random {
    pool: [u8; 512],
    used: usize,
}

impl Random {
    /// A source with a fresh pool.
    pub fn new() -> Random {
        Random { pool: random(), used: 0 }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        if self.used + 8 > self.pool.len() {
            *self = Random::new();
        }
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.pool[self.used..self.used + 8]);
        self.used += 8;
        u64::from_le_bytes(bytes)
    }
}

impl Default for Random {
    fn default() -> Self {
        Random::new()
    }
}
