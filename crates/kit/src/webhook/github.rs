//! GitHub: `X-Hub-Signature-256: sha256=…` over the body.

use super::mac::{DAY_SECONDS, InvalidScheme, Keys, MacBytes, from_hex, header, optional_header};
use super::{Authentic, EventId, Incoming, Scheme};
use crate::receiver::{Reason, Rejected};
use http::HeaderMap;
use std::time::{Duration, SystemTime};

const SIGNATURE: &str = "x-hub-signature-256";
const PREFIX: &str = "sha256=";
const DELIVERY: &str = "x-github-delivery";
const EVENT: &str = "x-github-event";
/// GitHub does not retry. People can redeliver events that are up to three days old, on Enterprise Server up to seven.
/// One more day covers late deliveries.
const RETRY_WINDOW: Duration = Duration::from_secs(8 * DAY_SECONDS);

/// Verifies webhooks of GitHub. The kind of an event is `X-GitHub-Event`, such as `pull_request`.
///
/// GitHub signs neither the time nor the id of a delivery, so anyone who has seen one can send it again under another
/// id. The effect of a handler must therefore be idempotent by the content of the body.
///
/// ```
/// use posthaste_kit::webhook::GitHub;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheme = GitHub::new("the secret of the hook")?.or("the one before")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct GitHub {
    keys: Keys,
}

impl GitHub {
    /// Creates the scheme with the secret of the webhook.
    pub fn new(secret: impl AsRef<str>) -> Result<GitHub, InvalidScheme> {
        Ok(GitHub { keys: Keys::from_text(secret)? })
    }

    /// Also accepts another secret.
    pub fn or(mut self, secret: impl AsRef<str>) -> Result<GitHub, InvalidScheme> {
        self.keys = self.keys.and(Keys::from_text(secret)?);
        Ok(self)
    }
}

impl Scheme for GitHub {
    fn name(&self) -> &'static str {
        "github"
    }

    fn verify(&self, request: &Incoming<'_>, _now: SystemTime) -> Result<Authentic, Rejected> {
        let mac = mac(request.headers)?;
        if !self.keys.made(&[request.body], &[mac]) {
            return Err(Reason::Signature.into());
        }
        let id = optional_header(request.headers, DELIVERY)?.ok_or(Reason::EventId)?;
        let kind = optional_header(request.headers, EVENT)?.map(str::to_owned);
        Ok(Authentic { kind, ..Authentic::new(EventId::new(id)) })
    }

    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        mac(headers).map(drop)
    }

    fn retry_window(&self) -> Duration {
        RETRY_WINDOW
    }
}

fn mac(headers: &HeaderMap) -> Result<MacBytes, Rejected> {
    let mac = header(headers, SIGNATURE)?.strip_prefix(PREFIX).and_then(from_hex);
    mac.ok_or(Reason::Malformed.into())
}
