//! Webhooks from other services: verified, identified, and handled once.
//!
//! Start at [`Webhook`], a route that does all of this. A [`Scheme`] verifies that a request comes from its sender;
//! each has its own file. Schemes work on the received bytes, and their arithmetic cannot overflow.
//!
//! | sender | scheme | signs the time | event id | events are remembered for |
//! |---|---|---|---|---|
//! | Stripe | [`Stripe`] | yes | `id` of the body | 4 days: it retries for 3 |
//! | GitHub | [`GitHub`] | no | `X-GitHub-Delivery`, which is not signed | 8 days: people can redeliver for 3, on Enterprise Server for 7 |
//! | Standard Webhooks, Svix | [`Standard`] | yes | `webhook-id` | 4 days: Svix retries for 28 h, the standard suggests about 3 days |
//! | Supabase | [`Supabase`] | auth hooks do | `webhook-id`; database webhooks by their body | 1 h (auth hooks: three retries within seconds); 5 min (database webhooks are not retried) |
//! | Slack | [`Slack`] | yes | `event_id` of the body | 2 days: three retries within minutes, delayed events hourly for a day |
//! | Posthaste | [`Receiver`](crate::Receiver) | yes | the signed id of the message | 3 days: retries come up to 1 day apart |
//! | hosted QStash | [`Receiver`](crate::Receiver) | yes | `Upstash-Message-Id`, which is not signed | 3 days, as above |
//! | any sender with an HMAC | [`Hmac`] | if configured | if configured | 8 days, because the sender is not known |
//! | any sender with a password | [`SharedSecret`] | no | by the body | 8 days, as above |
//!
//! The store must have room for these events. [`Webhook::keep`] changes the time.
//!
//! If the time is not signed, a recorded request stays valid forever: use TLS, and make the effect of the handler
//! idempotent (see [`idempotency`](crate::idempotency)).

mod event;
mod forward;
mod github;
mod handler;
mod hmac;
mod mac;
mod once;
mod qstash;
mod rate;
#[cfg(feature = "tower")]
mod service;
mod shared;
mod slack;
mod standard;
mod stripe;
mod supabase;

pub use event::{Authentic, EVENT_ID_BYTES_MAX, Event, EventId};
pub use forward::EVENT_TYPE_HEADER;
pub use github::GitHub;
pub use handler::{ANSWER_WITHIN, AT_ONCE_MAX, LATE_RETRY_AFTER, LOCK, LOGGED_PER_SECOND, Webhook};
pub use hmac::{Encoding, Hmac};
pub use mac::{
    ENTRIES_MAX, HEADER_BYTES_MAX, InvalidScheme, KEY_BYTES_MIN, RETRY_WINDOW_UNKNOWN, TOLERANCE, TOLERANCE_MAX,
};
pub use once::STORE_TIMEOUT;
pub use rate::{BURST, PER_SECOND, RATE_KEYS_MAX, RateLimit, UNVERIFIED_BURST, UNVERIFIED_PER_SECOND};
#[cfg(feature = "tower")]
pub use service::WebhookFuture;
pub use shared::SharedSecret;
pub use slack::Slack;
pub use standard::Standard;
pub use stripe::{Stripe, StripeData, StripeEvent, StripeRequest};
pub use supabase::{Supabase, SupabaseChange};

use crate::receiver::Rejected;
use http::{HeaderMap, Uri};
use std::time::{Duration, SystemTime};

/// Verifies that a request comes from its sender.
///
/// ```
/// use posthaste_kit::webhook::{GitHub, Incoming, Scheme};
/// use std::time::SystemTime;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let request = http::Request::post("/hooks").header("X-Hub-Signature-256", "sha256=00").body("{}")?;
/// let incoming = Incoming { headers: request.headers(), uri: request.uri(), body: request.body().as_bytes() };
/// let refused = GitHub::new("a secret")?.verify(&incoming, SystemTime::now()).unwrap_err();
/// assert_eq!(refused.reason().as_str(), "malformed");
/// # Ok(()) }
/// ```
pub trait Scheme: Send + Sync + 'static {
    /// A short name for logs, which is also part of the keys of events.
    fn name(&self) -> &'static str;

    /// Verifies a request and returns its event.
    fn verify(&self, request: &Incoming<'_>, now: SystemTime) -> Result<Authentic, Rejected>;

    /// Checks what is possible before the body is read, so that a request without a signature costs almost nothing.
    /// [`verify`](Self::verify) must reject everything that this rejects.
    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        let _ = headers;
        Ok(())
    }

    /// How long the sender may repeat an event after a failure. By default events are remembered this long.
    fn retry_window(&self) -> Duration {
        RETRY_WINDOW_UNKNOWN
    }

    /// How long a request stays valid after it was accepted: events are remembered at least this long. Zero if the time
    /// is not signed, because then no time is long enough.
    fn valid_for(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the sender is a queue that supports permanent failures. They are then answered with
    /// [`NON_RETRYABLE_STATUS`](crate::problem::NON_RETRYABLE_STATUS).
    fn is_queue(&self) -> bool {
        false
    }
}

/// A request with its whole body.
#[derive(Clone, Copy)]
pub struct Incoming<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// The URI of the request. Only queues sign it.
    pub uri: &'a Uri,
    /// The body, byte for byte as it was received.
    pub body: &'a [u8],
}
