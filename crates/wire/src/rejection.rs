//! Why a request is rejected, in words for the publisher.

use crate::duration::in_units;
use std::fmt;

/// Quotas whose limit is a duration, with the milliseconds of one of its units.
const TIMES: [(&str, u64); 3] = [("maxDelay", 1_000), ("timeout", 1_000), ("maxWorkflowDuration", 1)];
/// Quotas whose limit is a number of bytes.
const SIZES: [&str; 4] = ["maxMessageSize", "maxStoredBytes", "maxWorkflowBytes", "maxNotifiedBytes"];

/// A rejection: nothing was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The class of the rejection, which determines the status.
    pub status: RejectionKind,
    /// The problem and the accepted values.
    pub message: String,
}

/// Classes of rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// The request is invalid.
    Invalid,
    /// The request is valid but exceeds a limit of the server.
    Quota,
}

impl RejectionKind {
    /// The HTTP status of the response.
    pub fn code(self) -> u16 {
        match self {
            RejectionKind::Invalid => 400,
            RejectionKind::Quota => 412,
        }
    }
}

impl Rejection {
    /// Rejects an invalid request.
    pub fn invalid(message: impl Into<String>) -> Rejection {
        Rejection { status: RejectionKind::Invalid, message: message.into() }
    }

    /// Rejects a request over a limit, in the words of the hosted service.
    pub fn quota(name: &str, limit: u64) -> Rejection {
        Rejection { status: RejectionKind::Quota, message: quota_exceeded(name, limit) }
    }
}

/// The hosted service's text for an exceeded quota, followed by the limit in readable units: `quota maxDelay exceeded,
/// current limit: 31536000 (365d)`.
pub fn quota_exceeded(name: &str, limit: u64) -> String {
    let time = TIMES.iter().find(|(quota, _)| *quota == name).map(|(_, ms)| in_units(limit.saturating_mul(*ms)));
    let size = SIZES.contains(&name).then(|| size_in_units(limit)).flatten();
    let for_people = time.or(size).map(|text| format!(" ({text})")).unwrap_or_default();
    format!("quota {name} exceeded, current limit: {limit}{for_people}")
}

/// `10 MiB`, `97.7 KiB`; `None` for less than 1 KiB, where bytes are readable.
fn size_in_units(bytes: u64) -> Option<String> {
    let (shift, unit) = [(30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter().find(|(shift, _)| bytes >> shift > 0)?;
    let tenths = (u128::from(bytes) * 10) >> shift;
    Some(match tenths % 10 {
        0 => format!("{} {unit}", tenths / 10),
        tenth => format!("{}.{tenth} {unit}", tenths / 10),
    })
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Rejection {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_also_shown_in_readable_units() {
        for (name, limit, expected) in [
            ("maxDelay", 31_536_000, "31536000 (365d)"),
            ("maxDelay", 604_800, "604800 (7d)"),
            ("timeout", 7_200, "7200 (2h)"),
            ("timeout", 90_061, "90061 (1d1h1m1s)"),
            ("maxWorkflowDuration", 3_600_000, "3600000 (1h)"),
            ("maxWorkflowDuration", 1_500, "1500 (1.5s)"),
            ("maxMessageSize", 10_485_760, "10485760 (10 MiB)"),
            ("maxMessageSize", 100_000, "100000 (97.6 KiB)"),
            ("maxMessageSize", 1_000, "1000"),
            ("maxStoredBytes", 10_737_418_240, "10737418240 (10 GiB)"),
            ("maxStoredBytes", u64::MAX, "18446744073709551615 (17179869183.9 GiB)"),
            ("maxDelay", u64::MAX, "18446744073709551615 (213503982334d14h25m51.615s)"),
            ("maxRetries", 1_000, "1000"),
        ] {
            assert_eq!(quota_exceeded(name, limit), format!("quota {name} exceeded, current limit: {expected}"));
        }
    }
}
