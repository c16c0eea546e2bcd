//! The next step after an attempt: done, a retry at some time, or the DLQ.

use crate::limits::{
    FULL_RETRY_MS_MIN, RETRY_AFTER_MS_MIN, RETRY_BYTES_PER_SECOND, RETRY_DELAY_MS_MAX, RETRY_FLOOR_BYTES_MIN,
};
use crate::message::MessageSpec;
use crate::outcome::{Outcome, Verdict};
use crate::planted::{self, Bug};
use crate::shard::Storage;
use posthaste_wire::retry_after::{retry_after_ms, step_retry_after_ms};
use posthaste_wire::retry_delay::RetryDelay;
use posthaste_wire::time::Timestamp;

/// The next step of a message after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Delivered: nothing more to do.
    Done,
    /// Another attempt, not before this time.
    RetryAt(Timestamp),
    /// No further attempt: the DLQ.
    DeadLetter,
}

/// The default wait is extended by up to this share, so that messages that failed together are not retried together.
pub const JITTER_SHARE: f64 = 0.05;

/// The next step of a message after the attempt that followed `retried` retries.
///
/// `random` spreads the default back-off; any number is valid. A time from the receiver takes precedence, within a
/// minimum pause, then the publisher's expression, then the default.
pub fn next(spec: &MessageSpec, retried: u32, outcome: &Outcome, now: Timestamp, random: u64) -> Next {
    match outcome.verdict() {
        Verdict::Success => Next::Done,
        Verdict::Refused if !planted::has(Bug::RefusalIgnored) => Next::DeadLetter,
        Verdict::Refused | Verdict::Failure if retried >= spec.retries => Next::DeadLetter,
        Verdict::Refused | Verdict::Failure => {
            Next::RetryAt(now.plus_millis(delay_ms(spec, retried, outcome, now, random)))
        }
    }
}

impl Next {
    /// The same step, but not before the minimum wait for the size of the body and for full storage is over.
    pub fn with_floor(self, body_bytes: usize, storage: Storage, now: Timestamp) -> Next {
        let of_storage = if storage == Storage::Full { FULL_RETRY_MS_MIN } else { 0 };
        match self {
            Next::RetryAt(at) => Next::RetryAt(at.max(now.plus_millis(floor_ms(body_bytes).max(of_storage)))),
            other => other,
        }
    }
}

/// The minimum wait before a body of this size is sent again.
fn floor_ms(body_bytes: usize) -> u64 {
    if body_bytes < RETRY_FLOOR_BYTES_MIN { 0 } else { body_bytes as u64 * 1_000 / RETRY_BYTES_PER_SECOND as u64 }
}

fn delay_ms(spec: &MessageSpec, retried: u32, outcome: &Outcome, now: Timestamp, random: u64) -> u64 {
    if let Ok(response) = &outcome.result {
        let header = |name: &str| {
            let found = response.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str())
        };
        let asked = match spec.workflow {
            None => retry_after_ms(header, now),
            Some(_) => step_retry_after_ms(header, now),
        };
        if let Some(asked) = asked {
            return asked.clamp(RETRY_AFTER_MS_MIN, RETRY_DELAY_MS_MAX);
        }
    }
    let expression = spec.retry_delay.as_deref().and_then(|text| RetryDelay::parse(text).ok());
    match expression.and_then(|expression| expression_delay_ms(&expression, retried)) {
        Some(wanted) => wanted,
        None => jittered(default_backoff_ms(retried), random),
    }
}

/// The wait before each retry of a message whose receiver sets no time: by its expression, or else the default before
/// jitter.
pub fn planned_delays_ms(expression: Option<&RetryDelay>, retries: u32) -> impl Iterator<Item = u64> {
    let by_expression = move |retried| expression.and_then(|expression| expression_delay_ms(expression, retried));
    (0..retries).map(move |retried| by_expression(retried).unwrap_or_else(|| default_backoff_ms(retried)))
}

fn expression_delay_ms(expression: &RetryDelay, retried: u32) -> Option<u64> {
    expression.delay_ms(retried).map(|wanted| wanted.min(RETRY_DELAY_MS_MAX))
}

/// The documented back-off before retry `retried + 1`: e^(2.5 n) seconds, at most a day.
fn default_backoff_ms(retried: u32) -> u64 {
    let exponent = 2.5 * (f64::from(retried) + 1.0);
    let millis = exponent.exp() * 1_000.0;
    if millis >= RETRY_DELAY_MS_MAX as f64 { RETRY_DELAY_MS_MAX } else { millis as u64 }
}

fn jittered(millis: u64, random: u64) -> u64 {
    let share = (random >> 11) as f64 / (1u64 << 53) as f64;
    (millis + (millis as f64 * JITTER_SHARE * share) as u64).min(RETRY_DELAY_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Response;
    use crate::outcome::{AttemptError, ErrorClass};
    use crate::workflow::{Part, StepRef};
    use posthaste_wire::id::Seq;

    const NOW: Timestamp = Timestamp(1_780_315_200_000);

    fn spec(retries: u32, retry_delay: Option<&str>) -> MessageSpec {
        MessageSpec {
            url: "https://example.com/".into(),
            method: "POST".into(),
            retries,
            retry_delay: retry_delay.map(str::to_owned),
            caller_ip: "127.0.0.1".into(),
            ..MessageSpec::default()
        }
    }

    fn answer(status: u16, headers: &[(&str, &str)]) -> Outcome {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Outcome { result: Ok(Response { status, headers, ..Response::default() }), duration_ms: 1, phases: None }
    }

    fn wait_ms(next: Next) -> u64 {
        match next {
            Next::RetryAt(at) => at.millis_since(NOW),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_large_body_is_not_sent_again_at_once_nor_any_while_storage_is_full() {
        let retry = |ms| Next::RetryAt(NOW.plus_millis(ms));
        assert_eq!(retry(0).with_floor(RETRY_FLOOR_BYTES_MIN - 1, Storage::Free, NOW), retry(0));
        assert_eq!(retry(0).with_floor(RETRY_FLOOR_BYTES_MIN, Storage::Free, NOW), retry(1_000));
        assert_eq!(retry(100).with_floor(10 * 1024 * 1024, Storage::Free, NOW), retry(10_000));
        assert_eq!(
            retry(12_000).with_floor(10 * 1024 * 1024, Storage::Free, NOW),
            retry(12_000),
            "a longer wait stays as it is"
        );
        assert_eq!(Next::DeadLetter.with_floor(10 * 1024 * 1024, Storage::Free, NOW), Next::DeadLetter);
        assert_eq!(retry(0).with_floor(0, Storage::Full, NOW), retry(FULL_RETRY_MS_MIN));
        assert_eq!(retry(70_000).with_floor(0, Storage::Full, NOW), retry(70_000));
    }

    #[test]
    fn failures_are_retried_then_dead_lettered() {
        let spec = spec(2, Some("1000 * (1 + retried)"));
        let failed = answer(500, &[]);
        let cases = [
            (0, Next::RetryAt(NOW.plus_millis(1_000))),
            (1, Next::RetryAt(NOW.plus_millis(2_000))),
            (2, Next::DeadLetter),
        ];
        for (retried, expected) in cases {
            assert_eq!(next(&spec, retried, &failed, NOW, 7), expected, "retried {retried}");
        }
    }

    #[test]
    fn a_success_ends_it_and_a_refusal_is_not_retried() {
        assert_eq!(next(&spec(3, None), 0, &answer(204, &[]), NOW, 0), Next::Done);
        let refused = answer(489, &[("Upstash-Nonretryable-Error", "true")]);
        assert_eq!(next(&spec(3, None), 0, &refused, NOW, 0), Next::DeadLetter);
    }

    #[test]
    fn the_default_back_off_is_the_documented_one() {
        let error = AttemptError { class: ErrorClass::Connect, message: "connection refused".into() };
        let failed = Outcome { result: Err(error), duration_ms: 1, phases: None };
        for (retried, seconds) in [12, 148, 1_808, 22_026, 86_400, 86_400].into_iter().enumerate() {
            let wait = wait_ms(next(&spec(1_000, None), retried as u32, &failed, NOW, 0));
            assert_eq!(wait / 1_000, seconds, "retried {retried}");
        }
    }

    #[test]
    fn the_plan_is_what_happens() {
        for expression in [None, Some("1000 * (1 + retried)"), Some("1e99")] {
            let (spec, parsed) = (spec(7, expression), expression.map(|text| RetryDelay::parse(text).unwrap()));
            let planned: Vec<u64> = planned_delays_ms(parsed.as_ref(), spec.retries).collect();
            let happens = |retried| wait_ms(next(&spec, retried, &answer(500, &[]), NOW, 0));
            assert_eq!(planned, (0..7).map(happens).collect::<Vec<_>>(), "{expression:?}");
        }
    }

    #[test]
    fn jitter_only_ever_adds_and_stays_small() {
        for random in [0, 1, u64::MAX / 2, u64::MAX] {
            let wait = wait_ms(next(&spec(3, None), 0, &answer(500, &[]), NOW, random));
            assert!((12_182..=12_792).contains(&wait), "{wait}");
        }
    }

    #[test]
    fn the_receiver_wins_over_the_expression_and_the_expression_over_the_default() {
        let spec = spec(3, Some("7000"));
        assert_eq!(wait_ms(next(&spec, 0, &answer(429, &[("Retry-After", "5")]), NOW, 9)), 5_000);
        assert_eq!(wait_ms(next(&spec, 0, &answer(429, &[("Retry-After", "999999999")]), NOW, 9)), 7_000);
        assert_eq!(wait_ms(next(&spec, 0, &answer(429, &[]), NOW, 9)), 7_000);
    }

    #[test]
    fn a_receiver_that_wants_to_be_asked_at_once_is_given_a_pause() {
        let spec = spec(3, Some("0"));
        let cases = [
            ("Retry-After", "0", 100),
            ("Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT", 100),
            ("Retry-After", "1", 1_000),
            ("X-RateLimit-Reset", "0", 100),
            ("X-RateLimit-Reset-Requests", "99ms", 100),
            ("X-RateLimit-Reset-Tokens", "101ms", 101),
        ];
        for (name, value, expected) in cases {
            assert_eq!(wait_ms(next(&spec, 0, &answer(429, &[(name, value)]), NOW, 9)), expected, "{name}: {value}");
        }
        assert_eq!(
            wait_ms(next(&spec, 0, &answer(429, &[]), NOW, 9)),
            0,
            "the publisher's own expression has no floor"
        );
    }

    #[test]
    fn a_step_of_a_workflow_may_ask_for_days() {
        let step = StepRef { run: Seq(7), part: Part::Entry(1) };
        let spec = MessageSpec { workflow: Some(step), ..spec(3, Some("7000")) };
        for (asked, millis) in [("1d", 86_400_000), ("3d", 86_400_000), ("15s", 15_000), ("soon", 7_000)] {
            let wait = wait_ms(next(&spec, 0, &answer(429, &[("Retry-After", asked)]), NOW, 9));
            assert_eq!(wait, millis, "{asked}");
        }
    }
}
