//! Errors of attempts in words for people: for the console, the lines of `posthaste dev`, and the `why` sentence. The
//! API keeps the texts of the hosted service.

use crate::limits::TIMEOUT_MS_MAX;
use std::borrow::Cow;

/// The text of the hosted service for an attempt that took too long; SDKs and programs compare it.
pub const TIMED_OUT: &str = "context deadline exceeded";

/// The error of an attempt for people. `timeout` is that of the message, or unknown.
pub fn for_people(error: &str, timeout: Timeout) -> Cow<'_, str> {
    match (error, timeout) {
        (TIMED_OUT, Timeout::Ms(ms)) => format!("no response within {}", length(ms)).into(),
        (TIMED_OUT, Timeout::Unknown) => "no response in time".into(),
        (other, _) => other.into(),
    }
}

/// How long the attempts of a message may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// This many milliseconds.
    Ms(u64),
    /// Unknown, because the error belongs to several messages or the message is not at hand.
    Unknown,
}

impl Timeout {
    /// The timeout of a message, or the default if it has none.
    pub fn of(timeout_ms: Option<u64>) -> Timeout {
        Timeout::Ms(timeout_ms.unwrap_or(TIMEOUT_MS_MAX))
    }
}

/// A timeout in the largest unit that is exact: `2 h`, `90 s`, `1.5 s`.
fn length(ms: u64) -> String {
    let units = [(3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    match units.into_iter().find(|(unit_ms, _)| ms > 0 && ms.is_multiple_of(*unit_ms)) {
        Some((unit_ms, unit)) => format!("{} {unit}", ms / unit_ms),
        None => {
            format!("{} s", format!("{}.{:03}", ms / 1_000, ms % 1_000).trim_end_matches('0').trim_end_matches('.'))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_named_with_its_length_and_other_errors_stay() {
        for (error, timeout, expected) in [
            (TIMED_OUT, Timeout::Ms(2_000), "no response within 2 s"),
            (TIMED_OUT, Timeout::Ms(1_500), "no response within 1.5 s"),
            (TIMED_OUT, Timeout::Ms(90_000), "no response within 90 s"),
            (TIMED_OUT, Timeout::Ms(900_000), "no response within 15 min"),
            (TIMED_OUT, Timeout::Ms(1), "no response within 0.001 s"),
            (TIMED_OUT, Timeout::Ms(0), "no response within 0 s"),
            (TIMED_OUT, Timeout::of(Some(7_000)), "no response within 7 s"),
            (TIMED_OUT, Timeout::of(None), "no response within 2 h"),
            (TIMED_OUT, Timeout::Unknown, "no response in time"),
            ("connecting timed out after 10s", Timeout::Ms(2_000), "connecting timed out after 10s"),
            ("order 7: context deadline exceeded", Timeout::Ms(2_000), "order 7: context deadline exceeded"),
            ("", Timeout::Unknown, ""),
        ] {
            assert_eq!(for_people(error, timeout), expected);
        }
    }
}
