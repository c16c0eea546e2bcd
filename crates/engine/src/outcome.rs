//! The outcome of an attempt. A failed delivery is data, never an `Err`.

use crate::event::{Phases, Response};
use posthaste_wire::header::NON_RETRYABLE_ERROR;

/// The outcome of an attempt: the receiver's response, or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The response, or the error.
    pub result: Result<Response, AttemptError>,
    /// Duration of the attempt.
    pub duration_ms: u64,
    /// Its time by phase; `None` if nothing is known.
    pub phases: Option<Box<Phases>>,
}

impl Outcome {
    /// The same outcome with only the status of the response.
    pub fn without_response(self) -> Outcome {
        Outcome { result: self.result.map(|response| response.status_alone()), ..self }
    }
}

/// Why an attempt brought no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptError {
    /// The kind of error, for metrics and filters.
    pub class: ErrorClass,
    /// The error for people.
    pub message: String,
}

/// Kinds of errors on the way to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorClass {
    /// The name did not resolve.
    Dns,
    /// The egress policy refuses the destination.
    Blocked,
    /// No connection could be established.
    Connect,
    /// No trusted, encrypted connection could be established.
    Tls,
    /// The attempt exceeded its timeout.
    Timeout,
    /// The response was not valid HTTP, or exceeded a limit.
    Protocol,
    /// The connection ended before the response.
    Closed,
}

/// How a response counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// 2xx: the message is delivered.
    Success,
    /// Anything else: a retry may succeed.
    Failure,
    /// 489 with `Upstash-NonRetryable-Error: true`: no further attempt.
    Refused,
}

/// The status that, together with its header, forbids retries.
const NON_RETRYABLE_STATUS: u16 = 489;

impl Outcome {
    /// How this outcome counts.
    pub fn verdict(&self) -> Verdict {
        match &self.result {
            Ok(response) if (200..300).contains(&response.status) => Verdict::Success,
            Ok(response) if response.status == NON_RETRYABLE_STATUS && says_non_retryable(response) => Verdict::Refused,
            Ok(_) | Err(_) => Verdict::Failure,
        }
    }
}

/// Whether every value of the header is true. With a contradiction, retries continue.
fn says_non_retryable(response: &Response) -> bool {
    let mut lines = response
        .headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(NON_RETRYABLE_ERROR))
        .map(|(_, value)| value.trim().eq_ignore_ascii_case("true"));
    lines.next() == Some(true) && lines.all(|says_true| says_true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, headers: &[(&str, &str)]) -> Verdict {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let response = Response { status, headers, ..Response::default() };
        Outcome { result: Ok(response), duration_ms: 1, phases: None }.verdict()
    }

    #[test]
    fn only_2xx_is_a_success() {
        for status in 100..600 {
            let expected = if (200..300).contains(&status) { Verdict::Success } else { Verdict::Failure };
            assert_eq!(answered(status, &[]), expected, "{status}");
        }
    }

    #[test]
    fn no_answer_is_a_failure() {
        let error = AttemptError { class: ErrorClass::Timeout, message: "context deadline exceeded".into() };
        assert_eq!(Outcome { result: Err(error), duration_ms: 1, phases: None }.verdict(), Verdict::Failure);
    }

    #[test]
    fn non_retryable_needs_both_the_status_and_one_clear_header() {
        const NAME: &str = "Upstash-NonRetryable-Error";
        let cases = [
            (489, vec![(NAME, "true")], Verdict::Refused),
            (489, vec![("upstash-nonretryable-error", "TRUE")], Verdict::Refused),
            (489, vec![], Verdict::Failure),
            (489, vec![(NAME, "false")], Verdict::Failure),
            (489, vec![(NAME, "true"), (NAME, "false")], Verdict::Failure),
            (500, vec![(NAME, "true")], Verdict::Failure),
            (200, vec![(NAME, "true")], Verdict::Success),
        ];
        for (status, headers, expected) in cases {
            assert_eq!(answered(status, &headers), expected, "{status} {headers:?}");
        }
    }
}
