//! Standard Webhooks: `webhook-signature: v1,…` over id, time and body. Svix uses the same scheme with other header
//! names.

use super::mac::{
    DAY_SECONDS, ENTRIES_MAX, InvalidScheme, KEY_BYTES_MIN, Keys, MacBytes, TOLERANCE, TOLERANCE_MAX, check_age,
    header, time, valid_for,
};
use super::{Authentic, EventId, Incoming, Scheme};
use crate::receiver::{Reason, Rejected};
use crate::secret::Secret;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use http::HeaderMap;
use std::time::{Duration, SystemTime};

const PREFIX: &str = "whsec_";
/// Svix retries for 28 hours, and the schedule that the standard suggests takes about three days. One more day covers
/// late attempts.
const RETRY_WINDOW: Duration = Duration::from_secs(4 * DAY_SECONDS);
/// The names of the three headers: the standard's and Svix's.
const NAMES: [[&str; 3]; 2] =
    [["webhook-id", "webhook-timestamp", "webhook-signature"], ["svix-id", "svix-timestamp", "svix-signature"]];
/// Secrets may have padding or not.
const SECRET: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Verifies [Standard Webhooks](https://www.standardwebhooks.com) with symmetric keys (`v1`).
///
/// ```
/// use posthaste_kit::webhook::Standard;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheme = Standard::new("whsec_AQIDBAUGBwgBAgMEBQYHCAECAwQFBgcI")?;
/// assert!(Standard::new("whsec_c2hvcnQ=").is_err(), "a key has 24 bytes at least");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Standard {
    keys: Keys,
    tolerance: Duration,
}

impl Standard {
    /// Creates the scheme with the secret of the endpoint: base64, with or without the prefix `whsec_`.
    pub fn new(secret: impl AsRef<str>) -> Result<Standard, InvalidScheme> {
        Ok(Standard { keys: keys(secret)?, tolerance: TOLERANCE })
    }

    /// Also accepts another secret.
    pub fn or(mut self, secret: impl AsRef<str>) -> Result<Standard, InvalidScheme> {
        self.keys = self.keys.and(keys(secret)?);
        Ok(self)
    }

    /// Sets the maximum age of a request, and how far its clock may be ahead. Default: [`TOLERANCE`]; maximum:
    /// [`TOLERANCE_MAX`].
    pub fn tolerance(mut self, tolerance: Duration) -> Standard {
        self.tolerance = tolerance.min(TOLERANCE_MAX);
        self
    }
}

impl Scheme for Standard {
    fn name(&self) -> &'static str {
        "standard"
    }

    fn verify(&self, request: &Incoming<'_>, now: SystemTime) -> Result<Authentic, Rejected> {
        let Signed { id, at, macs } = Signed::read(request.headers)?;
        if !self.keys.made(&[id.as_bytes(), b".", at.as_bytes(), b".", request.body], &macs) {
            return Err(Reason::Signature.into());
        }
        check_age(time(at)?, now, self.tolerance)?;
        Ok(Authentic { id: EventId::new(id), ..Authentic::from_body(request.body, &[]) })
    }

    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        Signed::read(headers).map(drop)
    }

    fn retry_window(&self) -> Duration {
        RETRY_WINDOW
    }

    fn valid_for(&self) -> Duration {
        valid_for(self.tolerance)
    }
}

/// The three headers.
struct Signed<'a> {
    id: &'a str,
    at: &'a str,
    macs: Vec<MacBytes>,
}

impl<'a> Signed<'a> {
    fn read(headers: &'a HeaderMap) -> Result<Signed<'a>, Rejected> {
        let [id, at, signatures] = names(headers)?;
        let id = header(headers, id)?;
        // A full stop separates the parts of the signed text.
        if id.contains('.') {
            return Err(Reason::Malformed.into());
        }
        Ok(Signed { id, at: header(headers, at)?, macs: macs(header(headers, signatures)?)? })
    }
}

/// The names of the headers. Rejects a request with both sets, because another reader might use the other set.
fn names(headers: &HeaderMap) -> Result<[&'static str; 3], Reason> {
    let present = |names: &&[&'static str; 3]| names.iter().any(|name| headers.contains_key(*name));
    let mut found = NAMES.iter().filter(present);
    match (found.next(), found.next()) {
        (Some(names), None) => Ok(*names),
        (None, _) => Err(Reason::Missing),
        _ => Err(Reason::Ambiguous),
    }
}

/// The signatures, separated by spaces. Unknown versions are skipped.
fn macs(value: &str) -> Result<Vec<MacBytes>, Reason> {
    let mut macs = Vec::new();
    for (count, entry) in value.split(' ').enumerate() {
        if count == ENTRIES_MAX {
            return Err(Reason::TooLong);
        }
        match entry.split_once(',') {
            Some(("v1", mac)) => macs.extend(STANDARD.decode(mac).ok().and_then(|mac| MacBytes::try_from(mac).ok())),
            Some(_) => {}
            None => return Err(Reason::Malformed),
        }
    }
    Ok(macs)
}

fn keys(secret: impl AsRef<str>) -> Result<Keys, InvalidScheme> {
    let secret = Secret::new(secret)?;
    let encoded = secret.expose().strip_prefix(PREFIX).unwrap_or(secret.expose());
    let key = SECRET.decode(encoded).map_err(|_| InvalidScheme::NOT_BASE64)?;
    if key.len() < KEY_BYTES_MIN { Err(InvalidScheme::TOO_SHORT) } else { Ok(Keys::from_bytes(&key)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_base64_and_long_enough() {
        let key = "AQIDBAUGBwgBAgMEBQYHCAECAwQFBgcI";
        for good in
            [key, &format!("whsec_{key}"), &format!(" whsec_{key}\n"), &format!("{key}AQ"), &format!("{key}AQ==")]
        {
            assert!(keys(good).is_ok(), "{good}");
        }
        assert!(keys(" ").unwrap_err().is_empty_secret());
        assert_eq!(keys("whsec_").unwrap_err(), InvalidScheme::TOO_SHORT);
        assert_eq!(keys(&key[4..]).unwrap_err(), InvalidScheme::TOO_SHORT);
        assert_eq!(keys(format!("whsec-{key}")).unwrap_err(), InvalidScheme::NOT_BASE64);
    }

    #[test]
    fn one_set_of_names_counts() {
        let headers = |names: &[&'static str]| {
            HeaderMap::from_iter(names.iter().map(|name| (name.parse().unwrap(), "x".parse().unwrap())))
        };
        assert_eq!(names(&headers(&["webhook-id"])), Ok(NAMES[0]));
        assert_eq!(names(&headers(&NAMES[1])), Ok(NAMES[1]));
        assert_eq!(names(&headers(&["other"])), Err(Reason::Missing));
        assert_eq!(names(&headers(&["webhook-id", "svix-signature"])), Err(Reason::Ambiguous));
    }

    #[test]
    fn signatures_are_counted() {
        let one = format!("v1,{}", STANDARD.encode([0; 32]));
        assert_eq!(macs(&vec![one.as_str(); ENTRIES_MAX].join(" ")).unwrap().len(), ENTRIES_MAX);
        assert_eq!(macs(&vec![one.as_str(); ENTRIES_MAX + 1].join(" ")), Err(Reason::TooLong));
        assert_eq!(macs(&format!("{one}  {one}")), Err(Reason::Malformed));
    }
}
