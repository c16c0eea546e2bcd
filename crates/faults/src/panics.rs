//! Panics. A panic in a request or an attempt fails only that one. A panic of the core or the journal, or one that
//! leaves the store's state half changed, ends the process. `docs/decisions/0015-a-panic-fails-one-request.md` explains
//! the decision.
//!
//! [`caught`] wraps every request, every attempt and every piece of background work.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// The work ended in a panic, which the hook has logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work panicked; the log has the details")]
pub struct Panicked;

/// Logs every panic with its thread and place. It logs the message only if it is a literal, because other messages may
/// contain tenants' data. Call it once, at the start of a program.
pub fn install_hook() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let location = info.location().map(ToString::to_string).unwrap_or_default();
        let (thread, panic) = (thread.name().unwrap_or("unnamed"), literal_message(info));
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => tracing::error!(thread, location, panic, %backtrace, "a thread panicked"),
            _ => tracing::error!(thread, location, panic, "a thread panicked"),
        }
    }));
}

fn literal_message(info: &PanicHookInfo<'_>) -> &'static str {
    info.payload().downcast_ref::<&'static str>().copied().unwrap_or("message hidden, because it may hold data")
}

/// Runs a future until it returns or panics.
///
/// All state that the future shares with others must be sound after a panic. Locks around small state that changes in
/// one step are sound. The store's locks are not: they call [`end_process`] if they were held.
///
/// Takes a reference, because attempts and requests are large futures and passing one by value copied it three times.
pub async fn caught<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output, Panicked> {
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(_) => Poll::Ready(Err(Panicked)),
    })
    .await
}

/// Runs a function until it returns or panics.
pub fn caught_in<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)
}

/// Ends the process at once, because continuing could lose or invent messages. The next start recovers from the disk.
pub fn end_process(reason: &'static str) -> ! {
    tracing::error!(reason, "ending the process");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_panic_ends_the_future_and_drops_what_it_held() {
        let held = Arc::new(());
        let inside = held.clone();
        let mut work = Box::pin(async move {
            tokio::task::yield_now().await;
            assert_eq!(Arc::strong_count(&inside), 1, "planted");
        });
        assert_eq!(caught(work.as_mut()).await, Err(Panicked));
        drop(work);
        assert_eq!(Arc::strong_count(&held), 1);
        assert_eq!(caught(pin!(async { 5 })).await, Ok(5));
        assert_eq!(caught_in(|| -> u8 { panic!("planted") }), Err(Panicked));
    }
}
