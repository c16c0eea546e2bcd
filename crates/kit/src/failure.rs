//! How a handler reports a failure, and whether a retry may succeed.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;

/// The result of a handler.
pub type HandlerResult = Result<(), Failure>;

/// Why a handler failed. Any error converts to a failure that is retried. Use [`Failure::permanent`] if a retry cannot
/// succeed.
#[derive(Debug)]
pub struct Failure {
    is_retryable: bool,
    retry_after: Option<Duration>,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Failure {
    /// A failure that may not happen again: the queue retries by its policy.
    pub fn retryable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        Failure { is_retryable: true, retry_after: None, source: source.into() }
    }

    /// A failure that a retry cannot fix: the message goes to the DLQ immediately.
    pub fn permanent(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        Failure { is_retryable: false, retry_after: None, source: source.into() }
    }

    /// Sets the minimum time before the retry.
    pub fn after(mut self, wait: Duration) -> Failure {
        self.retry_after = Some(wait);
        self
    }

    /// Whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        self.is_retryable
    }

    /// How long to wait before the retry, if the handler set a time.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The cause of the failure. It appears in logs, never in responses.
    pub fn source(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self.source.as_ref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)
    }
}

/// Not an `Error` itself, so that every error can become one with `?`.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(source: E) -> Self {
        Failure::retryable(source)
    }
}

/// The handler panicked.
pub(crate) struct Panicked;

/// Runs a future and turns a panic into a result.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    // The future is not used after a panic.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(_) => Err(Panicked).into(),
    })
    .await
}
