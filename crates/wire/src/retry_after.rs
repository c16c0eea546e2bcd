//! When the receiver wants the next attempt: `Retry-After` and the `X-RateLimit-Reset` family.
//!
//! A value that is invalid or longer than one day never fails a message: the caller then falls back to the publisher's
//! expression or the default back-off. Workflow endpoints are taken more literally; see [`step_retry_after_ms`].

use crate::header;
use crate::retry_delay::DELAY_MS_MAX;
use crate::time::Timestamp;
use std::time::{Duration, UNIX_EPOCH};

/// Longest value that is parsed.
const TEXT_BYTES_MAX: usize = 64;
/// Go's duration units in nanoseconds, after one that only workflow clients know. Longer names come first, so that `ms`
/// is not read as `m`.
const UNITS: [(&str, f64); 9] = [
    ("d", 86_400e9),
    ("ns", 1.0),
    ("us", 1e3),
    ("\u{b5}s", 1e3),
    ("\u{3bc}s", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3_600e9),
];

/// The wait that the response asks for, in milliseconds; `None` if it does not contain a usable one.
///
/// `header` looks up a response header by its lower-case name. `Retry-After` takes precedence over `X-RateLimit-Reset`.
/// Of `-Requests` and `-Tokens` the longer wait counts, because both must have reset.
pub fn retry_after_ms<'a>(header: impl Fn(&str) -> Option<&'a str>, now: Timestamp) -> Option<u64> {
    asked_ms(header, now, &UNITS[1..]).filter(|ms| *ms <= DELAY_MS_MAX)
}

/// Like [`retry_after_ms`], for a message of a workflow run. The workflow program chooses the time itself, and may use
/// days. A wait over the maximum is cut to the maximum: ignoring it would retry soon, the opposite of the request.
pub fn step_retry_after_ms<'a>(header: impl Fn(&str) -> Option<&'a str>, now: Timestamp) -> Option<u64> {
    asked_ms(header, now, &UNITS).map(|ms| ms.min(DELAY_MS_MAX))
}

fn asked_ms<'a>(header: impl Fn(&str) -> Option<&'a str>, now: Timestamp, units: &[(&str, f64)]) -> Option<u64> {
    match header(header::RETRY_AFTER).or_else(|| header(header::RATE_LIMIT_RESET)) {
        Some(value) => wait_ms(value, now, units),
        None => [header::RATE_LIMIT_RESET_REQUESTS, header::RATE_LIMIT_RESET_TOKENS]
            .into_iter()
            .filter_map(|name| wait_ms(header(name)?, now, units))
            .max(),
    }
}

/// Seconds, an RFC 1123 date or a duration with these units.
fn wait_ms(value: &str, now: Timestamp, units: &[(&str, f64)]) -> Option<u64> {
    if value.is_empty() || value.len() > TEXT_BYTES_MAX {
        return None;
    }
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        return value.parse::<u64>().ok()?.checked_mul(1_000);
    }
    duration_ms(value, units).or_else(|| date_ms(value, now))
}

fn date_ms(value: &str, now: Timestamp) -> Option<u64> {
    let date = httpdate::parse_http_date(value).ok()?;
    // The parser turns 31 February into 3 March and accepts two older formats. Only a date that formats back to the
    // same text counts.
    if httpdate::fmt_http_date(date) != value {
        return None;
    }
    Some(
        date.duration_since(UNIX_EPOCH + Duration::from_millis(now.as_millis()))
            .map_or(0, |wait| wait.as_millis() as u64),
    )
}

/// `<number><unit>` one or more times, in any order, as Go's `time.ParseDuration` reads it, without a sign.
fn duration_ms(value: &str, units: &[(&str, f64)]) -> Option<u64> {
    let mut rest = value;
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let (unit, unit_nanos) = units.iter().find(|(unit, _)| rest[end..].starts_with(unit))?;
        nanos += (number * unit_nanos).round();
        rest = &rest[end + unit.len()..];
    }
    // The float conversion saturates, and the caller ignores or cuts values over a day.
    Some((nanos / 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    const NOON: Timestamp = Timestamp(1_780_315_200_000);

    fn ask(headers: &[(&str, &str)]) -> Option<u64> {
        let lookup =
            |name: &str| headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value);
        retry_after_ms(lookup, NOON)
    }

    #[test]
    fn waits_follow_the_vectors() {
        let vectors: Value = serde_json::from_str(include_str!("../../../vectors/durations.json")).unwrap();
        let cases = vectors["retry_after"].as_array().unwrap();
        assert_eq!(cases.len(), 24);
        let mut asked = 0;
        for case in cases {
            if case["status"] == 200 {
                continue; // Successful responses are not retried.
            }
            let headers: Vec<(&str, &str)> = match case["headers"].as_object() {
                Some(headers) => headers.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect(),
                None => vec![(case["header"].as_str().unwrap(), case["value"].as_str().unwrap())],
            };
            assert_eq!(ask(&headers), case["expect_delay_ms"].as_u64(), "{headers:?}");
            asked += 1;
        }
        assert_eq!(asked, 23);
    }

    #[test]
    fn go_durations_are_read() {
        for (value, expected) in [
            ("6m5s", Some(365_000)),
            ("1.5h", Some(5_400_000)),
            (".5s", Some(500)),
            ("1s1m", Some(61_000)),
            ("1ms", Some(1)),
            ("1500µs", Some(1)),
            ("1500μs", Some(1)),
            ("0.3s", Some(300)),
            ("999999999ns", Some(999)),
            ("s", None),
            ("1..5s", None),
            ("-5s", None),
            ("5s ", None),
            ("1e3s", None),
            ("99999999999999999999999999999999999999999h", None),
            ("Monday, 01-Jun-26 12:00:10 GMT", None),
        ] {
            assert_eq!(ask(&[("Retry-After", value)]), expected, "{value}");
        }
    }

    #[test]
    fn the_first_header_present_wins() {
        assert_eq!(ask(&[]), None);
        assert_eq!(ask(&[("X-RateLimit-Reset", "30"), ("X-RateLimit-Reset-Tokens", "40")]), Some(30_000));
        assert_eq!(ask(&[("Retry-After", "2h"), ("X-RateLimit-Reset", "30")]), Some(7_200_000));
        assert_eq!(ask(&[("Retry-After", "90000"), ("X-RateLimit-Reset", "30")]), None);
        assert_eq!(ask(&[("X-RateLimit-Reset-Requests", "junk"), ("X-RateLimit-Reset-Tokens", "40")]), Some(40_000));
        assert_eq!(ask(&[("X-RateLimit-Reset-Requests", "25h"), ("X-RateLimit-Reset-Tokens", "40")]), None);
    }

    #[test]
    fn a_step_may_ask_for_days_and_what_is_too_long_is_cut() {
        for (value, expected) in [
            ("1d", Some(DELAY_MS_MAX)),
            ("0.5d", Some(DELAY_MS_MAX / 2)),
            ("1d10h", Some(DELAY_MS_MAX)),
            ("2d", Some(DELAY_MS_MAX)),
            ("25h", Some(DELAY_MS_MAX)),
            ("86401", Some(DELAY_MS_MAX)),
            ("Tue, 02 Jun 2026 13:00:00 GMT", Some(DELAY_MS_MAX)),
            ("15s", Some(15_000)),
            ("15", Some(15_000)),
            ("soon", None),
            ("1days", None),
        ] {
            let lookup = |name: &str| (name == header::RETRY_AFTER).then_some(value);
            assert_eq!(step_retry_after_ms(lookup, NOON), expected, "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_value_is_read_or_ignored(value in "[0-9.nuµmshd]{0,66}|.{0,66}") {
            prop_assert!(ask(&[("Retry-After", &value)]).is_none_or(|ms| ms <= DELAY_MS_MAX));
            let lookup = |name: &str| (name == header::RETRY_AFTER).then_some(value.as_str());
            prop_assert!(step_retry_after_ms(lookup, NOON).is_none_or(|ms| ms <= DELAY_MS_MAX));
        }
    }
}
