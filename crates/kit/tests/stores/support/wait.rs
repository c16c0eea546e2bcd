//! Waiting for a condition, with a deadline.

use std::future::Future;
use std::time::Duration;

/// Longest wait for a condition before the test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Tries until there is a result. Panics with the last reason if there is none in time.
pub(crate) async fn until<T, F: Future<Output = Result<T, String>>>(what: &str, mut attempt: impl FnMut() -> F) -> T {
    let mut last = String::from("nothing was tried");
    let tries = async {
        loop {
            match attempt().await {
                Ok(found) => return found,
                Err(reason) => last = reason,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(DEADLINE, tries).await;
    found.unwrap_or_else(|_| panic!("{what} did not happen: {last}"))
}
