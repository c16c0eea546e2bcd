//! An HMAC-SHA256 in a header, for senders that have no scheme of their own here.

use super::mac::{
    InvalidScheme, Keys, MacBytes, TOLERANCE, TOLERANCE_MAX, check_age, from_hex, header, optional_header, time,
    valid_for,
};
use super::{Authentic, EventId, Incoming, Scheme};
use crate::receiver::{Reason, Rejected};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use std::time::{Duration, SystemTime};

/// How a MAC is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// In lower-case hexadecimal digits.
    Hex,
    /// In base64 with padding.
    Base64,
}

/// Verifies an HMAC-SHA256 of the body, or of a time and the body, in a header of any name.
///
/// Without [`id_in`](Self::id_in) the body names the event: the same body again within the time that events are
/// [kept](super::Webhook::keep) (eight days by default, because nothing is known of the sender's retries) counts as the
/// same event. If your sender makes two events with the same body, name a header with their id, or keep them for less.
///
/// ```
/// use posthaste_kit::webhook::{Encoding, Hmac};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Linear-Signature: <hex of the body's MAC>
/// let plain = Hmac::in_header("Linear-Signature", "the secret")?;
/// // X-Signature: sha256=<base64 of the MAC of "<X-Timestamp>.<body>">
/// let with_time = Hmac::in_header("X-Signature", "the secret")?
///     .prefix("sha256=")
///     .encoding(Encoding::Base64)
///     .timestamp_in("X-Timestamp", ".")?
///     .id_in("X-Event-Id")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Hmac {
    keys: Keys,
    header: HeaderName,
    prefix: String,
    encoding: Encoding,
    timestamp: Option<(HeaderName, String)>,
    id: Option<HeaderName>,
    tolerance: Duration,
}

impl Hmac {
    /// The MAC of the body is in this header, in hexadecimal digits unless told otherwise.
    pub fn in_header(name: &str, secret: impl AsRef<str>) -> Result<Hmac, InvalidScheme> {
        Ok(Hmac {
            keys: Keys::from_text(secret)?,
            header: header_name(name)?,
            prefix: String::new(),
            encoding: Encoding::Hex,
            timestamp: None,
            id: None,
            tolerance: TOLERANCE,
        })
    }

    /// Takes another secret beside the first.
    pub fn or(mut self, secret: impl AsRef<str>) -> Result<Hmac, InvalidScheme> {
        self.keys = self.keys.and(Keys::from_text(secret)?);
        Ok(self)
    }

    /// What stands before the MAC in its header.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Hmac {
        self.prefix = prefix.into();
        self
    }

    /// How the MAC is written.
    pub fn encoding(mut self, encoding: Encoding) -> Hmac {
        self.encoding = encoding;
        self
    }

    /// This header has the time in seconds since 1970, which is signed together with the body: first the header's
    /// text, then `separator`, then the body. Requests that are older than [`tolerance`](Self::tolerance) are refused.
    pub fn timestamp_in(mut self, name: &str, separator: impl Into<String>) -> Result<Hmac, InvalidScheme> {
        self.timestamp = Some((header_name(name)?, separator.into()));
        Ok(self)
    }

    /// This header names the event; a request without it is refused. Without this, the body names it.
    pub fn id_in(mut self, name: &str) -> Result<Hmac, InvalidScheme> {
        self.id = Some(header_name(name)?);
        Ok(self)
    }

    /// How old a request may be, and how far ahead; [`TOLERANCE`] by default, [`TOLERANCE_MAX`] at most.
    pub fn tolerance(mut self, tolerance: Duration) -> Hmac {
        self.tolerance = tolerance.min(TOLERANCE_MAX);
        self
    }

    fn mac(&self, headers: &HeaderMap) -> Result<MacBytes, Rejected> {
        let text = header(headers, self.header.as_str())?.strip_prefix(self.prefix.as_str());
        let text = text.ok_or(Reason::Malformed)?;
        let mac = match self.encoding {
            Encoding::Hex => from_hex(text),
            Encoding::Base64 => STANDARD.decode(text).ok().and_then(|mac| mac.try_into().ok()),
        };
        mac.ok_or(Reason::Malformed.into())
    }
}

impl Scheme for Hmac {
    fn name(&self) -> &'static str {
        "hmac"
    }

    fn verify(&self, request: &Incoming<'_>, now: SystemTime) -> Result<Authentic, Rejected> {
        let mac = self.mac(request.headers)?;
        let is_signed = match &self.timestamp {
            None => self.keys.made(&[request.body], &[mac]),
            Some((name, separator)) => {
                let at = header(request.headers, name.as_str())?;
                // Before the MAC: only digits cannot run over into the body.
                let at_seconds = time(at)?;
                let is_signed = self.keys.made(&[at.as_bytes(), separator.as_bytes(), request.body], &[mac]);
                if is_signed {
                    check_age(at_seconds, now, self.tolerance)?;
                }
                is_signed
            }
        };
        if !is_signed {
            return Err(Reason::Signature.into());
        }
        let authentic = Authentic::from_body(request.body, &[]);
        let Some(name) = &self.id else { return Ok(authentic) };
        let id = optional_header(request.headers, name.as_str())?.ok_or(Reason::EventId)?;
        Ok(Authentic { id: EventId::new(id), ..authentic })
    }

    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        self.mac(headers).map(drop)
    }

    fn valid_for(&self) -> Duration {
        self.timestamp.as_ref().map_or(Duration::ZERO, |_| valid_for(self.tolerance))
    }
}

fn header_name(name: &str) -> Result<HeaderName, InvalidScheme> {
    name.parse().map_err(|_| InvalidScheme::NO_HEADER)
}
