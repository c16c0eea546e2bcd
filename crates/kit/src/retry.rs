//! Retries of calls: a bounded number of attempts with growing delays, and only where a retry may succeed.
//!
//! Start at [`with_retry`]. [`RetryPolicy::next`] decides what happens after a failure. It uses no clock and no random
//! numbers of its own.

use crate::call::CallError;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
pub use tokio_util::sync::CancellationToken;

/// Default number of attempts, including the first.
pub const ATTEMPTS: u32 = 3;
/// Default delay after the first failure; it doubles with each further failure.
pub const WAIT_BASE: Duration = Duration::from_millis(250);
/// Default maximum delay between two attempts.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// Default time limit of one attempt.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Default maximum `Retry-After`. A longer one ends the retries, and the error reports it.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Number of attempts, time limit of each and delays between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Number of attempts, including the first; 0 counts as 1.
    pub attempts: u32,
    /// Delay after the first failure; it doubles with each further failure.
    pub base: Duration,
    /// Maximum delay, including jitter.
    pub max: Duration,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Maximum `Retry-After`. A longer one ends the retries.
    pub retry_after_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            attempts: ATTEMPTS,
            base: WAIT_BASE,
            max: WAIT_MAX,
            timeout: ATTEMPT_TIMEOUT,
            retry_after_max: RETRY_AFTER_MAX,
        }
    }
}

/// The step after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Retry after this time.
    Retry(Duration),
    /// Do not retry.
    GiveUp,
}

impl RetryPolicy {
    /// A single attempt without retries.
    pub fn once() -> RetryPolicy {
        RetryPolicy { attempts: 1, ..RetryPolicy::default() }
    }

    /// Decides what happens after attempt `attempt` (starting at 1) has failed. `random` spreads the delays, so that
    /// calls that failed together are not retried together: 0 is half of the delay, `u32::MAX` the whole delay.
    pub fn next(&self, attempt: u32, error: &CallError, random: u32) -> Next {
        if !error.is_retryable() || attempt >= self.attempts {
            return Next::GiveUp;
        }
        let doubled = 2_u32.checked_pow(attempt.saturating_sub(1)).and_then(|times| self.base.checked_mul(times));
        let whole = doubled.map_or(self.max, |wait| wait.min(self.max));
        let spread = whole / 2 + (whole / 2).mul_f64(f64::from(random) / f64::from(u32::MAX));
        match error.retry_after() {
            None => Next::Retry(spread),
            Some(asked) if asked > self.retry_after_max => Next::GiveUp,
            Some(asked) => Next::Retry(asked.max(spread)),
        }
    }
}

/// Information about the current attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Number of the attempt, starting at 1.
    pub number: u32,
    /// Maximum number of attempts.
    pub max: u32,
    ended: CancellationToken,
}

impl Attempt {
    /// Whether this is the last attempt.
    pub fn is_last(&self) -> bool {
        self.number >= self.max
    }

    /// A token that is cancelled when this attempt ends, in whatever way. The future itself is dropped then; the token
    /// is for work that it handed to other tasks.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

/// Calls a function that may fail, and retries it if a retry may succeed.
///
/// ```
/// use posthaste_kit::call::CallError;
/// use posthaste_kit::retry::{RetryPolicy, with_retry};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let policy = RetryPolicy::default();
/// let answer = with_retry("fetch the price", &policy, |attempt| async move {
///     if attempt.number < 3 { Err(CallError::network("connection reset")) } else { Ok(42) }
/// });
/// assert_eq!(answer.await.unwrap(), 42);
/// # }
/// ```
///
/// `operation` names it in logs. Every attempt is logged with `operation`, `attempt`, `latency_ms`, `http_status`,
/// `class` and `retryable`. The closure must be safe to repeat: an attempt that timed out may have taken effect.
pub async fn with_retry<T, F, A>(operation: &str, policy: &RetryPolicy, call: F) -> Result<T, CallError>
where
    F: FnMut(Attempt) -> A,
    A: Future<Output = Result<T, CallError>>,
{
    with_retry_until(&CancellationToken::new(), operation, policy, call).await
}

/// Like [`with_retry`], until the token is cancelled. The current attempt is then dropped, there are no further
/// attempts, and the error [`is_cancelled`](CallError::is_cancelled).
pub async fn with_retry_until<T, F, A>(
    cancelled: &CancellationToken,
    operation: &str,
    policy: &RetryPolicy,
    call: F,
) -> Result<T, CallError>
where
    F: FnMut(Attempt) -> A,
    A: Future<Output = Result<T, CallError>>,
{
    with_retry_if(true, cancelled, operation, policy, call).await
}

/// Like [`with_retry_until`]. A call that is not repeatable is retried only after a failure that [left the service
/// untouched](CallError::is_untouched); a timeout does not.
pub(crate) async fn with_retry_if<T, F, A>(
    is_repeatable: bool,
    cancelled: &CancellationToken,
    operation: &str,
    policy: &RetryPolicy,
    mut call: F,
) -> Result<T, CallError>
where
    F: FnMut(Attempt) -> A,
    A: Future<Output = Result<T, CallError>>,
{
    let max = policy.attempts.max(1);
    let mut number = 1;
    loop {
        let begun = Instant::now();
        let outcome = {
            let ended = cancelled.child_token();
            let _at_the_end = ended.clone().drop_guard();
            let attempt = tokio::time::timeout(policy.timeout, call(Attempt { number, max, ended }));
            tokio::select! {
                biased;
                () = cancelled.cancelled() => Err(CallError::cancelled()),
                outcome = attempt => outcome.unwrap_or_else(|_| Err(CallError::timeout(policy.timeout))),
            }
        };
        let latency_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let error = match outcome {
            Ok(value) => {
                tracing::debug!(operation, attempt = number, latency_ms, "the call succeeded");
                return Ok(value);
            }
            Err(error) if is_repeatable || error.is_untouched() => error,
            Err(error) => error.give_up(),
        };
        let (class, http_status, retryable) = (error.class().as_str(), error.status(), error.is_retryable());
        match policy.next(number, &error, random()) {
            Next::Retry(wait) => {
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(
                    operation,
                    attempt = number,
                    latency_ms,
                    http_status,
                    class,
                    retryable,
                    wait_ms,
                    error = %error.chain(),
                    "the call failed; retrying"
                );
                if tokio::time::timeout(wait, cancelled.cancelled()).await.is_ok() {
                    return Err(CallError::cancelled().because(error).after(operation, number));
                }
            }
            Next::GiveUp => {
                let error = error.after(operation, number);
                tracing::warn!(
                    operation,
                    attempt = number,
                    latency_ms,
                    http_status,
                    class,
                    retryable,
                    error = %error.chain(),
                    "the call failed permanently"
                );
                return Err(error);
            }
        }
        number += 1;
    }
}

/// Without randomness, calls that failed together are retried together. That is no reason to fail.
fn random() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use proptest::prelude::*;
    use std::cell::RefCell;

    fn status(status: u16) -> CallError {
        CallError::from_status(status, &HeaderMap::new())
    }

    fn busy_for(seconds: u64) -> CallError {
        CallError::from_status(429, &HeaderMap::from_iter([(http::header::RETRY_AFTER, seconds.into())]))
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let policy = RetryPolicy { attempts: 100, ..RetryPolicy::default() };
        let waits = [(1, 250), (2, 500), (3, 1_000), (4, 2_000), (5, 4_000), (6, 5_000), (33, 5_000), (99, 5_000)];
        for (attempt, ms) in waits {
            let wait = Duration::from_millis(ms);
            assert_eq!(policy.next(attempt, &status(503), u32::MAX), Next::Retry(wait), "{attempt}");
            assert_eq!(policy.next(attempt, &status(503), 0), Next::Retry(wait / 2), "{attempt}");
        }
    }

    #[test]
    fn attempts_end_when_none_are_left_or_a_retry_cannot_help() {
        let policy = RetryPolicy::default();
        assert!(matches!(policy.next(2, &status(503), 0), Next::Retry(_)));
        assert_eq!(policy.next(3, &status(503), 0), Next::GiveUp);
        for error in [status(400), status(409), CallError::invalid("x"), CallError::cancelled(), status(503).give_up()]
        {
            assert_eq!(policy.next(1, &error, 0), Next::GiveUp, "{error}");
        }
        assert_eq!(RetryPolicy::once().next(1, &status(503), 0), Next::GiveUp);
    }

    #[test]
    fn retry_after_extends_the_wait_up_to_a_limit() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.next(1, &busy_for(7), u32::MAX), Next::Retry(Duration::from_secs(7)));
        assert_eq!(policy.next(1, &busy_for(0), u32::MAX), Next::Retry(WAIT_BASE));
        assert_eq!(policy.next(1, &busy_for(30), 0), Next::Retry(RETRY_AFTER_MAX));
        assert_eq!(policy.next(1, &busy_for(31), 0), Next::GiveUp);
    }

    proptest! {
        #[test]
        fn no_wait_is_longer_than_allowed(attempt in 1_u32.., base in any::<u64>(), max in any::<u64>(), random: u32) {
            let (base, max) = (Duration::from_nanos(base), Duration::from_nanos(max));
            let policy = RetryPolicy { attempts: u32::MAX, base, max, ..RetryPolicy::default() };
            match policy.next(attempt, &status(503), random) {
                Next::Retry(wait) => prop_assert!(wait <= max && (attempt > 1 || wait >= base.min(max) / 2)),
                Next::GiveUp => prop_assert_eq!(attempt, u32::MAX),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_repeated_until_it_succeeds() {
        let seen = RefCell::new(Vec::new());
        let (begun, policy) = (Instant::now(), RetryPolicy::default());
        let result = with_retry("test", &policy, |attempt| {
            seen.borrow_mut().push((attempt.number, attempt.max, attempt.is_last()));
            async move { if attempt.number < 3 { Err(status(502)) } else { Ok("done") } }
        });
        assert_eq!(result.await.unwrap(), "done");
        assert_eq!(*seen.borrow(), [(1, 3, false), (2, 3, false), (3, 3, true)]);
        // Between half and all of 250 ms, and of 500 ms.
        assert!((375..=751).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_is_dropped_and_counts() {
        let begun = Instant::now();
        let tokens = RefCell::new(Vec::new());
        let policy = RetryPolicy { base: Duration::ZERO, ..RetryPolicy::default() };
        let hang = |attempt: Attempt| {
            tokens.borrow_mut().push(attempt.ended().clone());
            std::future::pending::<Result<(), CallError>>()
        };
        let error = with_retry("test", &policy, hang).await.unwrap_err();
        assert!(error.is_timeout() && error.attempts() == 3, "{error}");
        assert_eq!(begun.elapsed().as_secs(), 30);
        assert!(tokens.borrow().iter().all(CancellationToken::is_cancelled));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_error_is_the_one_that_is_returned() {
        let call = |attempt: Attempt| async move { Err::<(), _>(status(500 + u16::try_from(attempt.number).unwrap())) };
        let policy = RetryPolicy { attempts: 9, ..RetryPolicy::default() };
        // A retry does not help with 501.
        let error = with_retry("test", &policy, call).await.unwrap_err();
        assert_eq!((error.status(), error.attempts()), (Some(501), 1));
        let call = |attempt: Attempt| async move { Err::<(), _>(status(501 + u16::try_from(attempt.number).unwrap())) };
        let error = with_retry("test", &policy, call).await.unwrap_err();
        assert_eq!((error.status(), error.attempts()), (Some(505), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn cancelling_ends_an_attempt_and_a_wait() {
        for policy in [RetryPolicy { attempts: 2, ..RetryPolicy::default() }, RetryPolicy::once()] {
            let cancelled = CancellationToken::new();
            let cancel = cancelled.clone();
            let hang =
                with_retry_until(&cancelled, "test", &policy, |_| std::future::pending::<Result<(), CallError>>());
            let (result, ()) = tokio::join!(hang, async { cancel.cancel() });
            assert!(result.unwrap_err().is_cancelled());
        }
        let (cancelled, begun) = (CancellationToken::new(), Instant::now());
        let (cancel, policy) = (cancelled.clone(), RetryPolicy::default());
        let wait = with_retry_until(&cancelled, "test", &policy, |_| async { Err::<(), _>(busy_for(30)) });
        let soon = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cancel.cancel();
        };
        let (result, ()) = tokio::join!(wait, soon);
        assert!(result.unwrap_err().is_cancelled());
        assert_eq!(begun.elapsed().as_secs(), 1);
    }
}
