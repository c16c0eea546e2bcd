//! Points in time, in Unix milliseconds, as used in all crates.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A point in time: milliseconds since the Unix epoch. This crate does not read a clock; callers pass the time in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Later than every time that the system encounters; fits SQLite's signed integers.
    pub const MAX: Timestamp = Timestamp(i64::MAX as u64);

    /// Milliseconds since the Unix epoch.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    pub fn as_seconds(self) -> u64 {
        self.0 / 1_000
    }

    /// This time plus `millis`, saturating at [`Timestamp::MAX`].
    pub fn plus_millis(self, millis: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(millis).min(Self::MAX.0))
    }

    /// This time minus `millis`, saturating at the epoch.
    pub fn minus_millis(self, millis: u64) -> Timestamp {
        Timestamp(self.0.saturating_sub(millis))
    }

    /// Milliseconds from `earlier` to this time; zero if `earlier` is later.
    pub fn millis_since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
