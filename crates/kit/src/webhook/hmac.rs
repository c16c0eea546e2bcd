//! An HMAC-SHA256 in a header, for senders without a scheme of their own in this module.

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

/// Encoding of a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Lower-case hexadecimal digits.
    Hex,
    /// Base64 with padding.
    Base64,
}

/// Verifies an HMAC-SHA256 of the body, or of a time and the body, in any header.
///
/// Without [`id_in`](Self::id_in) the body identifies the event: the same body again within the
/// [retention](super::Webhook::keep) (8 days by default, because the sender's retries are not known) counts as the same
/// event. If your sender creates two events with the same body, set a header with their id, or a shorter retention.
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
    /// Creates the scheme. This header has the MAC of the body, by default in hexadecimal digits.
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

    /// Also accepts another secret.
    pub fn or(mut self, secret: impl AsRef<str>) -> Result<Hmac, InvalidScheme> {
        self.keys = self.keys.and(Keys::from_text(secret)?);
        Ok(self)
    }

    /// Sets the text before the MAC in its header.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Hmac {
        self.prefix = prefix.into();
        self
    }

    /// Sets the encoding of the MAC.
    pub fn encoding(mut self, encoding: Encoding) -> Hmac {
        self.encoding = encoding;
        self
    }

    /// Sets the header with the time in seconds since 1970. The signature then covers the header's text, `separator`
    /// and the body. Requests older than [`tolerance`](Self::tolerance) are rejected.
    pub fn timestamp_in(mut self, name: &str, separator: impl Into<String>) -> Result<Hmac, InvalidScheme> {
        self.timestamp = Some((header_name(name)?, separator.into()));
        Ok(self)
    }

    /// Sets the header with the id of the event. Requests without it are rejected. Without this, the body identifies
    /// the event.
    pub fn id_in(mut self, name: &str) -> Result<Hmac, InvalidScheme> {
        self.id = Some(header_name(name)?);
        Ok(self)
    }

    /// Sets the maximum age of a request, and how far its clock may be ahead. Default: [`TOLERANCE`]; maximum:
    /// [`TOLERANCE_MAX`].
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
                // Checked before the MAC, because only digits cannot extend into the body.
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
