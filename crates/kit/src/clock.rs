//! The source of time, so that tests can control it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A clock. The default reads the system's; `Clock::from_fn` reads any other.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// The system clock.
    pub fn system() -> Clock {
        Clock::from_fn(SystemTime::now)
    }

    /// Reads the system time once and then uses a clock that never jumps. In tests it stops when Tokio's clock is
    /// paused.
    pub fn steady() -> Clock {
        let (time, start) = (SystemTime::now(), tokio::time::Instant::now());
        Clock::from_fn(move || time + start.elapsed())
    }

    /// A clock of your own.
    pub fn from_fn(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    /// The current time.
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }
}

/// Whole seconds since 1970; zero for earlier times.
pub(crate) fn unix_seconds(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl Default for Clock {
    fn default() -> Self {
        Clock::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// Measures a duration with the clock that never jumps.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(tokio::time::Instant);

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(monotonic())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// The clock that never jumps. Tests can pause it.
pub(crate) fn monotonic() -> tokio::time::Instant {
    tokio::time::Instant::now()
}
