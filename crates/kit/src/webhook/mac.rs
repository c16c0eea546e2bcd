//! Shared parts of the schemes: strict reading of headers, the age of a request, and MACs compared in constant time.

use crate::clock::unix_seconds;
use crate::receiver::{Reason, Rejected};
use crate::secret::{EmptySecret, Secret};
use hmac::{Hmac, Mac as _};
use http::HeaderMap;
use sha2::Sha256;
use std::fmt;
use std::time::{Duration, SystemTime};
use subtle::{Choice, ConstantTimeEq as _};

/// Maximum size of a header, in bytes. A longer one is rejected unread.
pub const HEADER_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of signatures in a header. Senders that rotate their secret send two.
pub const ENTRIES_MAX: usize = 16;
/// Default maximum age of a request, and how far its clock may be ahead.
pub const TOLERANCE: Duration = Duration::from_secs(300);
/// Maximum tolerance; a larger one is reduced to it. A recorded request can be accepted for up to twice this time.
pub const TOLERANCE_MAX: Duration = Duration::from_secs(3_600);
/// How long events are remembered if the sender's retries are not known: common senders retry for up to 7 days.
pub const RETRY_WINDOW_UNKNOWN: Duration = Duration::from_secs(8 * DAY_SECONDS);
/// Minimum size of a key of Standard Webhooks, in bytes; a shorter one is rejected.
pub const KEY_BYTES_MIN: usize = 24;

/// A day in seconds.
pub(crate) const DAY_SECONDS: u64 = 86_400;

/// Digits of a time in seconds: enough for all times, too few to overflow.
const TIME_DIGITS_MAX: usize = 18;

/// A MAC. Its type fixes its length, so a partial one is invalid.
pub(crate) type MacBytes = [u8; 32];

/// An invalid scheme: its secret is empty or malformed, or the header name is invalid. No route starts with it, so it
/// cannot be open by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidScheme(&'static str);

impl InvalidScheme {
    pub(crate) const EMPTY: InvalidScheme =
        InvalidScheme("a secret is empty; set it, or anyone could send valid requests");
    pub(crate) const NOT_BASE64: InvalidScheme =
        InvalidScheme("a secret of Standard Webhooks must be whsec_ followed by base64");
    pub(crate) const TOO_SHORT: InvalidScheme =
        InvalidScheme("a secret of Standard Webhooks must have at least 24 bytes");
    pub(crate) const NO_HEADER: InvalidScheme = InvalidScheme("invalid header name");

    /// Whether the secret is empty.
    pub fn is_empty_secret(self) -> bool {
        self == InvalidScheme::EMPTY
    }
}

impl From<EmptySecret> for InvalidScheme {
    fn from(_: EmptySecret) -> Self {
        InvalidScheme::EMPTY
    }
}

/// The keys of a sender: one, or two during a rotation.
#[derive(Clone)]
pub(crate) struct Keys(Vec<Box<[u8]>>);

impl Keys {
    /// A secret whose text is the key.
    pub(crate) fn from_text(secret: impl AsRef<str>) -> Result<Keys, EmptySecret> {
        Ok(Keys::from_bytes(Secret::new(secret)?.expose().as_bytes()))
    }

    pub(crate) fn from_bytes(key: &[u8]) -> Keys {
        Keys(vec![key.into()])
    }

    /// Adds other keys.
    pub(crate) fn and(mut self, others: Keys) -> Keys {
        self.0.extend(others.0);
        self
    }

    /// Whether one of the keys created one of the MACs of the concatenated pieces. All are tried, so that the time does
    /// not reveal which one matched.
    pub(crate) fn made(&self, pieces: &[&[u8]], macs: &[MacBytes]) -> bool {
        let mut found = Choice::from(0);
        for key in &self.0 {
            let expected = mac(key, pieces);
            for mac in macs {
                found |= expected.ct_eq(mac);
            }
        }
        found.into()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

fn mac(key: &[u8], pieces: &[&[u8]]) -> MacBytes {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for piece in pieces {
        mac.update(piece);
    }
    mac.finalize().into_bytes().into()
}

/// The value of a header that appears once, is not too long, and is plain text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Rejected> {
    optional_header(headers, name)?.ok_or(Reason::Missing.into())
}

/// Like [`header`], for an optional header. An empty one is invalid.
pub(crate) fn optional_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Rejected> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Reason::Ambiguous.into());
    }
    match value.len() {
        0 => Ok(None),
        length if length > HEADER_BYTES_MAX => Err(Reason::TooLong.into()),
        _ => Ok(Some(value.to_str().map_err(|_| Reason::Malformed)?)),
    }
}

/// 64 lower-case hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<MacBytes> {
    let mut mac = [0; 32];
    if text.len() != 2 * mac.len() {
        return None;
    }
    for (byte, digits) in mac.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(mac)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// Seconds since 1970, as digits only.
pub(crate) fn time(text: &str) -> Result<u64, Rejected> {
    let is_number = (1..=TIME_DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let time = if is_number { text.parse().ok() } else { None };
    time.ok_or(Reason::Malformed.into())
}

/// Checks that a request is recent.
pub(crate) fn check_age(made_at: u64, now: SystemTime, tolerance: Duration) -> Result<(), Rejected> {
    let now = u64::try_from(unix_seconds(now)).unwrap_or(0);
    if now.saturating_sub(made_at) > tolerance.as_secs() {
        return Err(Reason::Expired.into());
    }
    if made_at.saturating_sub(now) > tolerance.as_secs() {
        return Err(Reason::NotYetValid.into());
    }
    Ok(())
}

/// How long an accepted request would be accepted again. Its time may have been in the future by the whole tolerance,
/// and it may then be old by the whole tolerance. Times are whole seconds.
pub(crate) fn valid_for(tolerance: Duration) -> Duration {
    tolerance.saturating_mul(2).saturating_add(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn a_mac_needs_all_of_its_digits() {
        let digits = "00ff".repeat(16);
        assert_eq!(from_hex(&digits).unwrap()[..3], [0, 255, 0]);
        for wrong in ["", "00", &digits[1..], &format!("{digits}00"), &digits.to_uppercase(), &digits.replace('f', "g")]
        {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_time_must_be_digits_and_recent() {
        for wrong in ["", "+5", "-5", " 5", "5 ", "5.0", "٣", "1780315200000000000"] {
            assert_eq!(time(wrong).unwrap_err().reason(), Reason::Malformed, "{wrong:?}");
        }
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let check = |made_at| check_age(made_at, now, TOLERANCE).map_err(Rejected::reason);
        assert_eq!([700, 1_000, 1_300].map(check), [Ok(()); 3]);
        assert_eq!([0, 699].map(check), [Err(Reason::Expired); 2]);
        assert_eq!([1_301, u64::MAX].map(check), [Err(Reason::NotYetValid); 2]);
        let before_1970 = UNIX_EPOCH - Duration::from_secs(9);
        assert_eq!(check_age(0, before_1970, Duration::ZERO), Ok(()));
        assert!(check_age(1, before_1970, Duration::ZERO).is_err());
    }

    #[test]
    fn accepted_requests_stay_valid_for_exactly_the_stated_time() {
        let (now, made_at) = (UNIX_EPOCH + Duration::from_secs(1_000), 1_300);
        let again = |after| check_age(made_at, now + after, TOLERANCE);
        assert!(
            [Duration::ZERO, valid_for(TOLERANCE) - Duration::from_millis(1)].into_iter().all(|at| again(at).is_ok())
        );
        assert!(again(valid_for(TOLERANCE)).is_err());
        assert_eq!(valid_for(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn every_key_and_every_mac_counts() {
        let keys = Keys::from_text("one").unwrap().and(Keys::from_text("two").unwrap());
        let other = mac(b"three", &[b"ab"]);
        for key in ["one", "two"] {
            let good = mac(key.as_bytes(), &[b"a", b"b"]);
            assert!(keys.made(&[b"ab"], &[other, good]) && keys.made(&[b"ab"], &[good, other]));
            assert!(!keys.made(&[b"a"], &[good]));
        }
        assert!(!keys.made(&[b"ab"], &[other]) && !keys.made(&[b"ab"], &[]));
        assert_eq!(format!("{keys:?}"), "Keys(2)");
    }

    #[test]
    fn a_header_must_appear_once_as_plain_text() {
        let long = "x".repeat(HEADER_BYTES_MAX + 1);
        let map = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-one", http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
            headers
        };
        let cases: [(&[&str], Reason); 5] = [
            (&[], Reason::Missing),
            (&[""], Reason::Missing),
            (&["a", "a"], Reason::Ambiguous),
            (&["ü"], Reason::Malformed),
            (&[&long], Reason::TooLong),
        ];
        for (values, reason) in cases {
            assert_eq!(header(&map(values), "X-One").unwrap_err().reason(), reason);
        }
        assert_eq!(header(&map(&[&long[1..]]), "X-One").unwrap(), &long[1..]);
    }
}
