//! How messages are delivered unless they say otherwise.

use std::time::Duration;

/// Attempts after the first, by default: six in all.
pub const RETRIES: u32 = 5;
/// The wait before each of them in milliseconds, by default: 10 s, 20 s, 40 s, 80 s and 160 s.
pub const RETRY_DELAY: &str = "10000 * pow(2, retried)";

/// What is said about every message that does not say it itself.
///
/// Plans of hosted QStash may allow fewer retries: it refuses the publish then, with status 412, and the policy has to ask
/// for fewer.
///
/// ```
/// use posthaste_kit::publish::PublishPolicy;
///
/// let patient = PublishPolicy { retries: 9, ..PublishPolicy::default() };
/// assert_eq!(patient.retry_delay, "10000 * pow(2, retried)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishPolicy {
    /// Attempts after the first.
    pub retries: u32,
    /// The wait before each of them in milliseconds: an expression of `retried`, which is 0 before the first.
    pub retry_delay: String,
    /// How long one delivery may take; the server's own limit if it is left out.
    pub timeout: Option<Duration>,
}

impl Default for PublishPolicy {
    fn default() -> Self {
        PublishPolicy { retries: RETRIES, retry_delay: RETRY_DELAY.to_owned(), timeout: None }
    }
}
