//! Default delivery settings of messages.

use std::time::Duration;

/// Default number of retries: six attempts in total.
pub const RETRIES: u32 = 5;
/// Default delay before each retry, in milliseconds: 10 s, 20 s, 40 s, 80 s and 160 s.
pub const RETRY_DELAY: &str = "10000 * pow(2, retried)";

/// Delivery settings for messages that do not set their own.
///
/// Some plans of hosted QStash allow fewer retries and reject the publish with status 412. The policy must then request
/// fewer.
///
/// ```
/// use posthaste_kit::publish::PublishPolicy;
///
/// let patient = PublishPolicy { retries: 9, ..PublishPolicy::default() };
/// assert_eq!(patient.retry_delay, "10000 * pow(2, retried)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishPolicy {
    /// Number of retries.
    pub retries: u32,
    /// Delay before each retry in milliseconds: an expression of `retried`, which is 0 before the first retry.
    pub retry_delay: String,
    /// Time limit of a delivery. Default: the limit of the server.
    pub timeout: Option<Duration>,
}

impl Default for PublishPolicy {
    fn default() -> Self {
        PublishPolicy { retries: RETRIES, retry_delay: RETRY_DELAY.to_owned(), timeout: None }
    }
}
