//! The only place that reads the time and draws random numbers.

use posthaste_wire::time::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the time comes from: the system, or a test's hand.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    started: Instant,
}

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual { now: Arc<AtomicU64>, uptime_ms: Arc<AtomicU64> },
}

impl Default for Clock {
    fn default() -> Self {
        Clock { source: Source::System, started: Instant::now() }
    }
}

impl Clock {
    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(start: Timestamp) -> Clock {
        let now = Arc::new(AtomicU64::new(start.as_millis()));
        let source = Source::Manual { now, uptime_ms: Arc::default() };
        Clock { source, started: Instant::now() }
    }

    /// Now, by the wall clock. It may jump, in both directions.
    pub fn now(&self) -> Timestamp {
        match &self.source {
            Source::System => {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(since_epoch.as_millis() as u64)
            }
            Source::Manual { now, .. } => Timestamp(now.load(Ordering::SeqCst)),
        }
    }

    /// How long this clock has run. It never jumps.
    pub fn uptime(&self) -> Duration {
        match &self.source {
            Source::System => self.started.elapsed(),
            Source::Manual { uptime_ms, .. } => Duration::from_millis(uptime_ms.load(Ordering::SeqCst)),
        }
    }

    /// Lets time pass on a manual clock; whoever waits for a time must be woken by the caller.
    ///
    /// # Panics
    /// If this is the system's clock.
    pub fn advance(&self, millis: u64) {
        match &self.source {
            Source::System => panic!("the system's clock cannot be moved"),
            Source::Manual { now, uptime_ms } => {
                now.fetch_add(millis, Ordering::SeqCst);
                uptime_ms.fetch_add(millis, Ordering::SeqCst);
            }
        }
    }

    /// Sets a manual clock to another time without any time passing, as happens to wall clocks.
    ///
    /// # Panics
    /// If this is the system's clock.
    pub fn jump_to(&self, time: Timestamp) {
        match &self.source {
            Source::System => panic!("the system's clock cannot be moved"),
            Source::Manual { now, .. } => now.store(time.as_millis(), Ordering::SeqCst),
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
    pool: [u8; 4096],
    used: usize,
}

impl Random {
    /// A source with a fresh pool.
    pub fn new() -> Random {
        Random { pool: random(), used: 0 }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// The next bytes, fewer than the pool has. No byte is given out twice.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        if self.used + N > self.pool.len() {
            *self = Random::new();
        }
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.pool[self.used..self.used + N]);
        self.used += N;
        bytes
    }
}

impl Default for Random {
    fn default() -> Self {
        Random::new()
    }
}
