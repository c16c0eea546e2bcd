//! Why a call to another service failed, and whether a retry may succeed.
//!
//! Start at [`CallError`]. [`Class`] decides which failures can be retried.

use crate::clock::Clock;
use crate::failure::Failure;
use http::HeaderMap;
use posthaste_wire::retry_after::retry_after_ms;
use posthaste_wire::time::Timestamp;
use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Any error, boxed.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Maximum number of bytes of a response that an error keeps; the rest is cut off.
pub const ERROR_TEXT_BYTES_MAX: usize = 2 * 1024;

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// There was no connection, or it broke.
    Network,
    /// There was no response in time.
    Timeout,
    /// The service is temporarily unavailable: 408, 425, 429, 500, 502, 503, 504.
    Unavailable,
    /// The resource already exists, or another request is creating it: 409. Callers that only want it to exist can
    /// treat this as a success.
    Conflict,
    /// The service rejected the request: any other status.
    Refused,
    /// The request or the response is invalid.
    Invalid,
    /// The caller cancelled the call.
    Cancelled,
}

impl Class {
    /// The class of a response that is not a success.
    pub fn of_status(status: u16) -> Class {
        match status {
            408 | 425 | 429 | 500 | 502 | 503 | 504 => Class::Unavailable,
            409 => Class::Conflict,
            _ => Class::Refused,
        }
    }

    /// Whether a retry may succeed.
    pub fn is_retryable(self) -> bool {
        matches!(self, Class::Network | Class::Timeout | Class::Unavailable)
    }

    /// A name for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Network => "network",
            Class::Timeout => "timeout",
            Class::Unavailable => "unavailable",
            Class::Conflict => "conflict",
            Class::Refused => "refused",
            Class::Invalid => "invalid",
            Class::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a call failed. Its output contains neither tokens nor request bodies.
///
/// ```
/// use posthaste_kit::call::{CallError, Class};
///
/// let error = CallError::from_status(503, &http::HeaderMap::new());
/// assert!(error.is_retryable());
/// assert_eq!(error.class(), Class::Unavailable);
/// assert!(!CallError::from_status(404, &http::HeaderMap::new()).is_retryable());
/// ```
pub struct CallError {
    // One pointer, because results are passed around more often than errors occur.
    inner: Box<Inner>,
}

struct Inner {
    class: Class,
    is_retryable: bool,
    /// Whether the service cannot have acted on the request.
    is_untouched: bool,
    /// Whether the response did not come from the service itself.
    is_foreign: bool,
    status: Option<u16>,
    retry_after: Option<Duration>,
    attempts: u32,
    operation: Option<Cow<'static, str>>,
    /// A description for people who read the error.
    detail: Option<Cow<'static, str>>,
    /// The response of the service. Not shown.
    body: Option<String>,
    source: Option<BoxError>,
}

impl CallError {
    fn new(class: Class) -> CallError {
        CallError {
            inner: Box::new(Inner {
                class,
                is_retryable: class.is_retryable(),
                is_untouched: matches!(class, Class::Invalid),
                is_foreign: false,
                status: None,
                retry_after: None,
                attempts: 0,
                operation: None,
                detail: None,
                body: None,
                source: None,
            }),
        }
    }

    /// A failure to connect, or a broken connection.
    pub fn network(source: impl Into<BoxError>) -> CallError {
        CallError::new(Class::Network).because(source)
    }

    /// No response within this time.
    pub fn timeout(after: Duration) -> CallError {
        let mut error = CallError::new(Class::Timeout);
        error.inner.detail = Some(format!("no response within {} ms", after.as_millis()).into());
        error
    }

    /// An invalid request, which was not sent. A retry cannot succeed.
    pub fn invalid(source: impl Into<BoxError>) -> CallError {
        CallError::new(Class::Invalid).because(source)
    }

    /// An invalid response: too large, or malformed. It is not known whether the request took effect.
    pub fn unreadable(source: impl Into<BoxError>) -> CallError {
        let mut error = CallError::new(Class::Invalid).because(source).unexpected_responder();
        error.inner.is_untouched = false;
        error
    }

    /// A call that the caller cancelled.
    pub fn cancelled() -> CallError {
        CallError::new(Class::Cancelled)
    }

    /// A response that is not a success, with the retry time from its headers.
    pub fn from_status(status: u16, headers: &HeaderMap) -> CallError {
        CallError::from_status_at(status, headers, Clock::system().now())
    }

    /// Like [`from_status`](Self::from_status), but at this time, from which a date in `Retry-After` is counted.
    pub fn from_status_at(status: u16, headers: &HeaderMap, now: SystemTime) -> CallError {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut error = CallError::new(Class::of_status(status));
        error.inner.status = Some(status);
        error.inner.retry_after = retry_after_ms(header, now).map(Duration::from_millis);
        // Each of these statuses means that the request was not processed.
        error.inner.is_untouched = matches!(status, 408 | 425 | 429) || error.inner.class == Class::Refused;
        error
    }

    /// Sets the underlying cause.
    pub fn because(mut self, source: impl Into<BoxError>) -> CallError {
        self.inner.source = Some(source.into());
        self
    }

    /// Adds a description for people who read the error.
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> CallError {
        self.inner.detail = Some(detail.into());
        self
    }

    /// Sets the body of the response, up to [`ERROR_TEXT_BYTES_MAX`]. Logs do not show it.
    pub fn with_body(mut self, body: impl Into<String>) -> CallError {
        let mut body = body.into();
        body.truncate(body.floor_char_boundary(ERROR_TEXT_BYTES_MAX));
        self.inner.body = Some(body);
        self
    }

    /// Prevents further attempts, whatever the class is.
    pub fn give_up(mut self) -> CallError {
        self.inner.is_retryable = false;
        self
    }

    /// Marks a failure that happened before anything was sent, so the service cannot have acted on the request.
    pub fn before_anything_was_sent(mut self) -> CallError {
        self.inner.is_untouched = true;
        self
    }

    /// Marks a response that the service itself would never send, such as one from a proxy in its place.
    pub fn unexpected_responder(mut self) -> CallError {
        self.inner.is_foreign = true;
        self
    }

    pub(crate) fn after(mut self, operation: &str, attempts: u32) -> CallError {
        self.inner.attempts = attempts;
        self.inner.operation.get_or_insert_with(|| operation.to_owned().into());
        self
    }

    /// The class of the failure.
    pub fn class(&self) -> Class {
        self.inner.class
    }

    /// The status of the response, if there was one.
    pub fn status(&self) -> Option<u16> {
        self.inner.status
    }

    /// How long the service asks to wait, if it does.
    pub fn retry_after(&self) -> Option<Duration> {
        self.inner.retry_after
    }

    /// Number of attempts; 0 if there was none.
    pub fn attempts(&self) -> u32 {
        self.inner.attempts
    }

    /// The body of the response, cut off at [`ERROR_TEXT_BYTES_MAX`].
    pub fn body(&self) -> Option<&str> {
        self.inner.body.as_deref()
    }

    /// Whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        self.inner.is_retryable
    }

    /// Whether the resource already exists. Callers that only want it to exist can treat this as a success.
    pub fn is_conflict(&self) -> bool {
        self.inner.class == Class::Conflict
    }

    /// Whether there was no response in time.
    pub fn is_timeout(&self) -> bool {
        self.inner.class == Class::Timeout
    }

    /// Whether the caller cancelled the call.
    pub fn is_cancelled(&self) -> bool {
        self.inner.class == Class::Cancelled
    }

    /// Whether the resource does not exist: 404 or 410.
    pub fn is_not_found(&self) -> bool {
        matches!(self.inner.status, Some(404 | 410))
    }

    /// Whether the service cannot have acted on the request, so repeating it does no harm.
    pub fn is_untouched(&self) -> bool {
        self.inner.is_untouched
    }

    /// Whether the service as a whole is unavailable: no connection, no response in time, 408, 425, 429, any 5xx, or a
    /// response that it did not send itself. A valid request can then go elsewhere. In all other cases another service
    /// would reject it too.
    pub fn is_outage(&self) -> bool {
        let has_failed = |status: u16| status >= 500;
        self.inner.class.is_retryable() || self.inner.is_foreign || self.inner.status.is_some_and(has_failed)
    }

    /// The error and its causes, for logs.
    pub fn chain(&self) -> impl fmt::Display + '_ {
        Chain(self)
    }

    /// Converts to a handler failure, for handlers that depend on this call. An error that cannot be retried becomes a
    /// permanent failure, and the requested wait is passed on to the queue.
    pub fn into_failure(self) -> Failure {
        let (will_pass, wait) = (self.is_outage(), self.inner.retry_after);
        let failure =
            if will_pass || self.is_cancelled() { Failure::retryable(self) } else { Failure::permanent(self) };
        match wait {
            Some(wait) => failure.after(wait),
            None => failure,
        }
    }
}

struct Chain<'a>(&'a CallError);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = std::error::Error::source(self.0);
        while let Some(error) = next {
            write!(f, ": {error}")?;
            next = error.source();
        }
        Ok(())
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { class, status, attempts, operation, detail, .. } = &*self.inner;
        if let Some(operation) = operation {
            write!(f, "{operation}: ")?;
        }
        match class {
            Class::Network => f.write_str("the connection failed")?,
            Class::Timeout => f.write_str("timed out")?,
            Class::Unavailable => f.write_str("temporarily unavailable")?,
            Class::Conflict => f.write_str("conflicts with the existing state")?,
            Class::Refused => f.write_str("rejected")?,
            Class::Invalid => f.write_str("invalid request or response")?,
            Class::Cancelled => f.write_str("cancelled")?,
        }
        if let Some(status) = status {
            write!(f, " (status {status})")?;
        }
        if *attempts > 1 {
            write!(f, " after {attempts} attempts")?;
        }
        match detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { class, status, attempts, source, .. } = &*self.inner;
        let mut shown = f.debug_struct("CallError");
        shown.field("class", class).field("status", status).field("attempts", attempts);
        shown.field("text", &self.to_string()).field("source", source).finish()
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn statuses_are_classified_as_promised() {
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(CallError::from_status(status, &HeaderMap::new()).is_retryable(), "{status}");
        }
        for status in [301, 400, 401, 403, 404, 409, 410, 412, 413, 422, 489, 501, 505, 507] {
            assert!(!CallError::from_status(status, &HeaderMap::new()).is_retryable(), "{status}");
        }
        assert!(CallError::from_status(409, &HeaderMap::new()).is_conflict());
        assert!(!CallError::invalid("no number").is_retryable());
        assert!(CallError::network("reset").is_retryable());
        assert!(CallError::timeout(Duration::from_secs(1)).is_retryable());
        assert!(!CallError::cancelled().is_retryable());
    }

    #[test]
    fn outages_and_rejections_are_distinguished() {
        for status in [408, 425, 429, 500, 501, 503, 507, 520] {
            assert!(CallError::from_status(status, &HeaderMap::new()).is_outage(), "{status}");
        }
        for status in [301, 400, 401, 403, 404, 409, 412] {
            assert!(!CallError::from_status(status, &HeaderMap::new()).is_outage(), "{status}");
        }
        assert!(CallError::network("reset").is_outage() && CallError::timeout(Duration::ZERO).is_outage());
        assert!(!CallError::invalid("x").is_outage() && !CallError::cancelled().is_outage());
        let strange = CallError::unreadable("<html>");
        assert!(strange.is_outage() && !strange.is_retryable() && !strange.is_untouched());
        assert!(CallError::from_status(404, &HeaderMap::new()).unexpected_responder().is_outage());
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_as_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (name, value, expected) in [
            ("retry-after", "7", Some(7)),
            ("retry-after", "Sun, 09 Sep 2001 01:46:50 GMT", Some(10)),
            ("x-ratelimit-reset", "3", Some(3)),
            ("retry-after", "soon", None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            let error = CallError::from_status_at(429, &headers, now);
            assert_eq!(error.retry_after(), expected.map(Duration::from_secs), "{name}: {value}");
        }
    }

    #[test]
    fn errors_describe_the_failure_without_the_response_body() {
        let error = CallError::from_status(503, &HeaderMap::new()).with_body("secret-answer").because("socket");
        let error = error.after("charge", 3);
        assert_eq!(error.to_string(), "charge: temporarily unavailable (status 503) after 3 attempts");
        assert!(!format!("{error:?}").contains("secret-answer"));
        assert_eq!(error.body(), Some("secret-answer"));
        assert_eq!(error.source().unwrap().to_string(), "socket");
        assert_eq!(error.chain().to_string(), "charge: temporarily unavailable (status 503) after 3 attempts: socket");
    }

    #[test]
    fn long_responses_are_cut_between_characters() {
        let error = CallError::from_status(500, &HeaderMap::new()).with_body("ä".repeat(ERROR_TEXT_BYTES_MAX));
        assert_eq!(error.body().unwrap().len(), ERROR_TEXT_BYTES_MAX);
        let error = CallError::from_status(500, &HeaderMap::new()).with_body(format!("x{}", "ä".repeat(2_000)));
        assert_eq!(error.body().unwrap().len(), ERROR_TEXT_BYTES_MAX - 1);
    }

    #[test]
    fn a_handler_passes_retryability_on_to_the_queue() {
        let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, "30".parse().unwrap())]);
        let busy = CallError::from_status(429, &headers).into_failure();
        assert!(busy.is_retryable());
        assert_eq!(busy.wait(), Some(Duration::from_secs(30)));
        assert!(!CallError::from_status(422, &headers).into_failure().is_retryable());
        // A caller that gave up early may succeed the next time.
        assert!(CallError::from_status(503, &headers).give_up().into_failure().is_retryable());
        assert!(CallError::cancelled().into_failure().is_retryable());
    }
}
