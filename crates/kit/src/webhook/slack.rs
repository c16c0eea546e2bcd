//! Slack: `X-Slack-Signature: v0=…` over version, time and body.

use super::event::IdMember;
use super::mac::{
    DAY_SECONDS, InvalidScheme, Keys, MacBytes, TOLERANCE, TOLERANCE_MAX, check_age, from_hex, header, time, valid_for,
};
use super::{Authentic, Incoming, Scheme};
use crate::receiver::{Reason, Rejected};
use http::HeaderMap;
use std::time::{Duration, SystemTime};

const SIGNATURE: &str = "x-slack-signature";
const TIMESTAMP: &str = "x-slack-request-timestamp";
const VERSION: &str = "v0";
/// Slack retries three times within minutes. Apps with delayed events get hourly retries for a day. One more day covers
/// late attempts.
const RETRY_WINDOW: Duration = Duration::from_secs(2 * DAY_SECONDS);

/// Verifies requests of Slack, and of senders that sign like Slack.
///
/// Events are identified by their `event_id`. Commands and interactions have none and are identified by their body,
/// which has a unique `trigger_id`. Slack waits 3 seconds, so set [`answer_within`](super::Webhook::answer_within)
/// accordingly.
///
/// ```
/// use posthaste_kit::webhook::Slack;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheme = Slack::new("8f742231b10e8888abcd99yyyzzz85a5")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Slack {
    keys: Keys,
    tolerance: Duration,
}

impl Slack {
    /// Creates the scheme with the signing secret of the app.
    pub fn new(secret: impl AsRef<str>) -> Result<Slack, InvalidScheme> {
        Ok(Slack { keys: Keys::from_text(secret)?, tolerance: TOLERANCE })
    }

    /// Also accepts another secret.
    pub fn or(mut self, secret: impl AsRef<str>) -> Result<Slack, InvalidScheme> {
        self.keys = self.keys.and(Keys::from_text(secret)?);
        Ok(self)
    }

    /// Sets the maximum age of a request, and how far its clock may be ahead. Default: [`TOLERANCE`]; maximum:
    /// [`TOLERANCE_MAX`].
    pub fn tolerance(mut self, tolerance: Duration) -> Slack {
        self.tolerance = tolerance.min(TOLERANCE_MAX);
        self
    }
}

impl Scheme for Slack {
    fn name(&self) -> &'static str {
        "slack"
    }

    fn verify(&self, request: &Incoming<'_>, now: SystemTime) -> Result<Authentic, Rejected> {
        let (at, mac) = signed(request.headers)?;
        let at_seconds = time(at)?;
        if !self.keys.made(&[VERSION.as_bytes(), b":", at.as_bytes(), b":", request.body], &[mac]) {
            return Err(Reason::Signature.into());
        }
        check_age(at_seconds, now, self.tolerance)?;
        Ok(Authentic::from_body(request.body, &[IdMember::EventId]))
    }

    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        signed(headers).map(drop)
    }

    fn retry_window(&self) -> Duration {
        RETRY_WINDOW
    }

    fn valid_for(&self) -> Duration {
        valid_for(self.tolerance)
    }
}

/// The time and the MAC.
fn signed(headers: &HeaderMap) -> Result<(&str, MacBytes), Rejected> {
    let at = header(headers, TIMESTAMP)?;
    let mac = header(headers, SIGNATURE)?.strip_prefix(VERSION).and_then(|rest| rest.strip_prefix('='));
    Ok((at, mac.and_then(from_hex).ok_or(Reason::Malformed)?))
}
