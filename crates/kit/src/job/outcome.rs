//! The outcome of a delivery, and the response for the queue. Pure: the value contains everything that happened.

use crate::body::BodyError;
use crate::failure::Failure;
use crate::idempotency::StoreError;
use crate::problem::{Problem, ResponseBody};
use crate::receiver::Rejected;
use http::{Response, StatusCode};
use std::error::Error;
use std::time::Duration;

/// Maximum size of the detail in a response, in bytes; the rest is cut off.
pub const DETAIL_BYTES_MAX: usize = 512;
/// Retry time if too many deliveries are being handled.
pub const BUSY_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum retry time that is requested from the queue, which ignores longer ones.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The outcome of a delivery.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The handler succeeded.
    Succeeded,
    /// The message was already handled.
    Duplicate,
    /// A delivery with the same signature has arrived before.
    Replayed,
    /// Another delivery of the message is being handled.
    UnderWay { retry_after: Duration },
    /// The body was not read.
    Unread(BodyError),
    /// The signature is invalid.
    Rejected {
        why: Rejected,
        /// Of the token, if there is one.
        fingerprint: Option<String>,
    },
    /// The delivery has no unambiguous message id.
    NoMessageId,
    /// Too many deliveries are being handled.
    Busy,
    /// It is not known whether the message was already handled.
    StoreFailed(StoreError),
    /// The body is not a valid payload of the job.
    Invalid(Invalid),
    /// The handler returned a failure.
    Failed(Failure),
    /// The handler took too long and was dropped.
    TimedOut(Duration),
    /// Another holder may have begun, so the handler was dropped.
    LockLost,
    /// The handler panicked.
    Panicked,
    /// The process is shutting down.
    Stopped,
}

/// A body that is not a valid payload of the job.
#[derive(Debug)]
pub(super) struct Invalid {
    /// The error for the queue, which has the body anyway.
    pub(super) detail: String,
    /// The place of the error for logs, which must not contain the body.
    pub(super) place: String,
}

impl Outcome {
    /// The outcome as one word, for logs and metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Duplicate => "duplicate",
            Outcome::Replayed => "replayed",
            Outcome::UnderWay { .. } => "under_way",
            Outcome::Unread(BodyError::TooLong { .. }) => "body_too_long",
            Outcome::Unread(BodyError::TooSlow(_)) => "body_too_slow",
            Outcome::Unread(BodyError::Broken(_)) => "body_broken",
            Outcome::Rejected { .. } => "rejected",
            Outcome::NoMessageId => "no_message_id",
            Outcome::Busy => "busy",
            Outcome::StoreFailed(_) => "store_failed",
            Outcome::Invalid(_) => "invalid",
            Outcome::Failed(failure) if failure.is_retryable() => "failed",
            Outcome::Failed(_) => "failed_for_good",
            Outcome::TimedOut(_) => "timed_out",
            Outcome::LockLost => "lock_lost",
            Outcome::Panicked => "panicked",
            Outcome::Stopped => "stopped",
        }
    }

    /// Whether the message needs no further attempt.
    pub(super) fn is_success(&self) -> bool {
        matches!(self, Outcome::Succeeded | Outcome::Duplicate)
    }

    /// Whether a retry may succeed.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Outcome::Succeeded | Outcome::Duplicate | Outcome::Invalid(_) => false,
            Outcome::Unread(BodyError::TooLong { .. }) => false,
            Outcome::Failed(failure) => failure.is_retryable(),
            _ => true,
        }
    }

    /// Whether no attempt follows. A replay is not an attempt of the queue, so it is never the last one.
    pub(super) fn is_last(&self, is_final_attempt: bool) -> bool {
        match self {
            Outcome::Replayed => false,
            _ => !self.is_success() && (is_final_attempt || !self.is_retryable()),
        }
    }

    /// The cause for logs. It contains neither the body nor a signature.
    pub(super) fn cause(&self) -> Option<String> {
        match self {
            Outcome::Rejected { why, fingerprint } => {
                let token = fingerprint.as_ref().map(|fingerprint| format!(" (token {fingerprint})"));
                Some(format!("{why}{}", token.unwrap_or_default()))
            }
            Outcome::Unread(error) => Some(chain(error)),
            Outcome::StoreFailed(error) => Some(chain(error)),
            Outcome::Invalid(invalid) => Some(invalid.place.clone()),
            Outcome::Failed(failure) => Some(chain(failure.source())),
            Outcome::TimedOut(limit) => Some(format!("dropped after {} s", limit.as_secs())),
            _ => None,
        }
    }

    /// The error response for the queue; `None` for a success.
    pub(super) fn problem(&self) -> Option<Problem> {
        let problem = match self {
            Outcome::Succeeded | Outcome::Duplicate => return None,
            Outcome::Replayed => Problem::new(StatusCode::CONFLICT, "this delivery was already received"),
            Outcome::UnderWay { retry_after } => Problem::new(StatusCode::CONFLICT, "the message is being handled")
                .retry_after((*retry_after).clamp(Duration::from_secs(1), RETRY_AFTER_MAX)),
            Outcome::Unread(BodyError::TooLong { limit }) => Problem::non_retryable("the body is too long")
                .detail(format!("this job accepts bodies of up to {limit} bytes")),
            Outcome::Unread(BodyError::TooSlow(_)) => {
                Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")
            }
            Outcome::Unread(BodyError::Broken(_)) => {
                Problem::new(StatusCode::BAD_REQUEST, "the body could not be read")
            }
            Outcome::Rejected { .. } => Problem::new(StatusCode::UNAUTHORIZED, "invalid signature"),
            Outcome::NoMessageId => Problem::new(StatusCode::BAD_REQUEST, "the delivery has no message id"),
            Outcome::Busy => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many messages are being handled")
                .retry_after(BUSY_RETRY_AFTER),
            Outcome::StoreFailed(_) => unavailable("it is not known whether the message was already handled"),
            Outcome::Invalid(invalid) => {
                Problem::non_retryable("the body does not have the type that this job expects")
                    .detail(cut(&invalid.detail))
            }
            Outcome::Failed(failure) if failure.is_retryable() => {
                let problem = unavailable("the job failed; a retry may succeed");
                match failure.wait() {
                    Some(wait) => problem.retry_after(wait.min(RETRY_AFTER_MAX)),
                    None => problem,
                }
            }
            Outcome::Failed(_) => Problem::non_retryable("the job failed permanently"),
            Outcome::TimedOut(_) => Problem::new(StatusCode::GATEWAY_TIMEOUT, "the job took too long"),
            Outcome::LockLost => unavailable("the lock of the message was lost"),
            Outcome::Panicked => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the job panicked"),
            Outcome::Stopped => unavailable("the service is shutting down"),
        };
        Some(problem)
    }

    /// The response, without the headers that all responses have.
    pub(super) fn response(&self, request_id: &str) -> Response<ResponseBody> {
        match self.problem() {
            Some(problem) => problem.instance(request_id).into_response(),
            None => {
                let mut response = Response::new(ResponseBody::default());
                *response.status_mut() = StatusCode::NO_CONTENT;
                response
            }
        }
    }
}

fn unavailable(title: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, title)
}

/// An error and its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The first [`DETAIL_BYTES_MAX`] bytes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(DETAIL_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::NON_RETRYABLE_HEADER;

    fn invalid(detail: &str) -> Outcome {
        Outcome::Invalid(Invalid { detail: detail.to_owned(), place: String::new() })
    }

    #[test]
    fn only_failures_that_a_retry_may_fix_are_retried() {
        let minute = Duration::from_secs(60);
        let broken = || Outcome::Unread(BodyError::Broken("cut".into()));
        let cases = [
            (Outcome::Succeeded, 204, false, None),
            (Outcome::Duplicate, 204, false, None),
            (Outcome::Replayed, 409, true, None),
            (Outcome::UnderWay { retry_after: minute }, 409, true, Some("60")),
            (Outcome::UnderWay { retry_after: Duration::ZERO }, 409, true, Some("1")),
            (Outcome::UnderWay { retry_after: Duration::MAX }, 409, true, Some("86400")),
            (Outcome::Unread(BodyError::TooLong { limit: 3 }), 489, false, None),
            (Outcome::Unread(BodyError::TooSlow(minute)), 408, true, None),
            (broken(), 400, true, None),
            (Outcome::NoMessageId, 400, true, None),
            (Outcome::Busy, 503, true, Some("1")),
            (Outcome::StoreFailed(StoreError::timed_out()), 503, true, None),
            (invalid("missing field"), 489, false, None),
            (Outcome::Failed(Failure::retryable("later")), 503, true, None),
            (Outcome::Failed(Failure::retryable("later").after(minute)), 503, true, Some("60")),
            (Outcome::Failed(Failure::retryable("later").after(Duration::MAX)), 503, true, Some("86400")),
            (Outcome::Failed(Failure::permanent("never")), 489, false, None),
            (Outcome::TimedOut(minute), 504, true, None),
            (Outcome::LockLost, 503, true, None),
            (Outcome::Panicked, 500, true, None),
            (Outcome::Stopped, 503, true, None),
        ];
        for (outcome, status, is_retryable, retry_after) in cases {
            let response = outcome.response("req_1");
            let headers = response.headers();
            let says_final = headers.get(NON_RETRYABLE_HEADER).is_some_and(|value| value == "true");
            assert_eq!(response.status().as_u16(), status, "{outcome:?}");
            assert_eq!(outcome.is_retryable(), is_retryable, "{outcome:?}");
            assert_eq!(says_final, status == 489, "{outcome:?}");
            assert_eq!(outcome.is_success(), status == 204, "{outcome:?}");
            assert_eq!(headers.get("retry-after").map(|value| value.to_str().unwrap()), retry_after, "{outcome:?}");
        }
    }

    #[test]
    fn the_last_failure_of_a_message_is_known_and_a_replay_is_not_one() {
        let failed = || Outcome::Failed(Failure::retryable("later"));
        assert_eq!([failed().is_last(false), failed().is_last(true)], [false, true]);
        assert!(Outcome::Failed(Failure::permanent("never")).is_last(false));
        assert!(!Outcome::Replayed.is_last(true) && !Outcome::Duplicate.is_last(true));
    }

    #[test]
    fn internal_errors_are_hidden_from_the_caller() {
        for failure in [Failure::retryable("password=hunter2"), Failure::permanent("password=hunter2")] {
            let problem = serde_json::to_string(&Outcome::Failed(failure).problem().unwrap()).unwrap();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }

    #[test]
    fn a_detail_is_cut_off_between_two_characters() {
        let detail = |text: &str| invalid(text).problem().unwrap().detail.unwrap();
        assert_eq!(detail(&"x".repeat(DETAIL_BYTES_MAX)).len(), DETAIL_BYTES_MAX);
        assert_eq!(detail(&"x".repeat(DETAIL_BYTES_MAX + 1)).len(), DETAIL_BYTES_MAX);
        assert_eq!(detail(&format!("x{}", "ü".repeat(DETAIL_BYTES_MAX))).len(), DETAIL_BYTES_MAX - 1);
    }
}
