//! Time buckets: history and dead letters are stored in buckets, and each bucket is dropped as a whole.
//!
//! The lengths are defined here because users can observe them: a log line stays until its whole bucket is dropped.

use posthaste_wire::time::Timestamp;

/// Messages and log lines are dropped six hours at a time.
pub(super) const HISTORY_BUCKET_MS: u64 = 6 * 3_600_000;
/// Dead letters are dropped a day at a time.
pub(super) const DLQ_BUCKET_MS: u64 = 86_400_000;

/// The number of the bucket that holds `at`.
pub(super) fn bucket_of(at: Timestamp, length_ms: u64) -> u64 {
    at.0 / length_ms
}

/// Whether the bucket ended at least `keep_ms` ago and may be dropped.
pub(super) fn is_over(bucket: u64, length_ms: u64, keep_ms: u64, now: Timestamp) -> bool {
    let end = bucket.saturating_add(1).saturating_mul(length_ms);
    end.saturating_add(keep_ms) <= now.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_over_when_its_youngest_entry_is_old_enough() {
        let cases = [(1_099, false), (1_100, true), (1_101, true)];
        for (now, expected) in cases {
            assert_eq!(is_over(0, 100, 1_000, Timestamp(now)), expected, "at {now}");
        }
        assert!(!is_over(u64::MAX, 100, 0, Timestamp(5)));
    }
}
