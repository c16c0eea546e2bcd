//! Calls that are tried again: a bounded number of times, with growing waits, and only where it can help.
//!
//! Start at [`with_retry`]. What to do after a failure is decided by [`RetryPolicy::next`], which reads no clock and
//! rolls no dice.

use crate::call::CallError;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
pub use tokio_util::sync::CancellationToken;

/// Attempts in all, by default.
pub const ATTEMPTS: u32 = 3;
/// The wait after the first failure, by default; it doubles with each further one.
pub const WAIT_BASE: Duration = Duration::from_millis(250);
/// The longest wait between two attempts, by default.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long one attempt may take, by default.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest `Retry-After` that is waited for, by default. Who asks for more is not asked again; the error says so.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// How often, how long, and with which waits a call is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all; zero counts as one.
    pub attempts: u32,
    /// The wait after the first failure; it doubles with each further one.
    pub base: Duration,
    /// The longest wait, jitter included.
    pub max: Duration,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// The longest `Retry-After` that is waited for. Whoever asks for more is not asked again.
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

/// What comes after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another attempt, after this time.
    Retry(Duration),
    /// No further attempt.
    GiveUp,
}

impl RetryPolicy {
    /// One attempt and no more.
    pub fn once() -> RetryPolicy {
        RetryPolicy { attempts: 1, ..RetryPolicy::default() }
    }

    /// What comes after attempt number `attempt` (the first is 1) has failed. `random` spreads the waits, so that those
    /// who failed together do not come back together: 0 is half of the wait, `u32::MAX` all of it.
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

/// What an attempt knows about itself.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Which one it is; the first is 1.
    pub number: u32,
    /// How many there may be in all.
    pub max: u32,
    ended: CancellationToken,
}

impl Attempt {
    /// Whether no other follows.
    pub fn is_last(&self) -> bool {
        self.number >= self.max
    }

    /// Is cancelled as soon as this attempt is over, however it ends. The future itself is dropped then; this is for
    /// work that it has given to others.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

/// Does something that may fail, and does it again if that can help.
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
/// `class` and `retryable`. What the closure does must bear repetition: an attempt that timed out may have had its
/// effect.
pub async fn with_retry<T, F, A>(operation: &str, policy: &RetryPolicy, call: F) -> Result<T, CallError>
where
    F: FnMut(Attempt) -> A,
    A: Future<Output = Result<T, CallError>>,
{
    with_retry_until(&CancellationToken::new(), operation, policy, call).await
}

/// As [`with_retry`], until somebody cancels: then the attempt is dropped, no other follows, and the error
/// [`is_cancelled`](CallError::is_cancelled).
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

/// As [`with_retry_until`]. What is not repeatable is tried again only after a failure that
/// [left the other side untouched](CallError::is_untouched): an attempt that timed out is none.
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
                    "the call failed, another attempt follows"
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
                    "the call failed for good"
                );
                return Err(error);
            }
        }
        number += 1;
    }
}

/// Without randomness those who failed together come back together, which is no reason to fail.
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
    fn attempts_end_when_there_are_none_left_or_none_can_help() {
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
    fn the_other_side_may_ask_for_a_longer_wait_but_not_for_any() {
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
        // 501 is none that another attempt helps with.
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
