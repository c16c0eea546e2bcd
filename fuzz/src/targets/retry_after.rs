//! Retry headers of a receiver: the wait is at most a day, never zero, and never an error.
//!
//! One header of a response per line, `Name: value`. The first byte selects the status.

use super::{NOW, choice};
use posthaste_engine::event::Response;
use posthaste_engine::limits::{RETRY_AFTER_MS_MIN, RETRY_DELAY_MS_MAX};
use posthaste_engine::message::MessageSpec;
use posthaste_engine::outcome::{Outcome, Verdict};
use posthaste_engine::retry::{Next, next};
use posthaste_wire::retry_after::retry_after_ms;

const STATUSES: [u16; 8] = [200, 204, 301, 400, 429, 489, 500, 503];

pub(crate) fn run(data: &[u8]) {
    let (status, data) = choice(data);
    let text = String::from_utf8_lossy(data);
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let headers: Vec<(String, String)> =
        lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    let found = |name: &str| headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
    let asked = retry_after_ms(|name| found(name).map(|(_, value)| value.as_str()), NOW);
    assert!(asked.is_none_or(|ms| ms <= RETRY_DELAY_MS_MAX));
    if let Some(seconds) = found("retry-after").and_then(|(_, value)| whole_seconds(value)) {
        let expected = seconds.checked_mul(1_000).filter(|ms| *ms <= RETRY_DELAY_MS_MAX);
        assert_eq!(asked, expected, "{headers:?}");
    }
    let status = STATUSES[usize::from(status) % STATUSES.len()];
    let outcome =
        Outcome { result: Ok(Response { status, headers, ..Response::default() }), duration_ms: 1, phases: None };
    let spec = MessageSpec { retries: 1, retry_delay: Some("retried * 1000".into()), ..MessageSpec::default() };
    assert_eq!(outcome.verdict() == Verdict::Success, (200..300).contains(&status));
    assert!(outcome.verdict() != Verdict::Refused || status == 489);
    match next(&spec, 0, &outcome, NOW, 0) {
        Next::Done => assert!((200..300).contains(&status)),
        Next::DeadLetter => assert_eq!(status, 489),
        Next::RetryAt(at) => {
            let waits = asked.map_or(0, |ms| ms.max(RETRY_AFTER_MS_MIN));
            assert_eq!(at, NOW.plus_millis(waits));
        }
    }
    let last = next(&spec, 1, &outcome, NOW, 0);
    assert!(last == Next::Done || last == Next::DeadLetter, "one retry was allowed");
}

fn whole_seconds(value: &str) -> Option<u64> {
    let is_number = (1..=18).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { value.parse().ok() } else { None }
}
