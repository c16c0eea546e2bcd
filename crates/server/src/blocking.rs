//! Work on threads of the blocking pool: its panic ends the request or the attempt that awaits it.

use std::panic::resume_unwind;
use tokio::task::JoinError;

/// The result of a task. Its panic continues here, without being logged again.
pub(crate) fn passed_on<T>(joined: Result<T, JoinError>) -> Result<T, JoinError> {
    joined.map_err(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(cancelled) => cancelled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_faults::panics::{Panicked, caught};
    use std::pin::pin;

    #[tokio::test]
    async fn a_panic_of_a_blocking_thread_continues_where_it_is_awaited() {
        let result = async { passed_on(tokio::task::spawn_blocking(|| -> u8 { panic!("planted") }).await) };
        assert_eq!(caught(pin!(result)).await.err(), Some(Panicked));
        let result = async { passed_on(tokio::task::spawn_blocking(|| 5).await) };
        assert_eq!(caught(pin!(result)).await.expect("no panic").expect("no cancellation"), 5);
    }
}
