//! A secret in a header, for senders that cannot sign.

use super::mac::{InvalidScheme, header};
use super::{Authentic, Incoming, Scheme};
use crate::receiver::{Reason, Rejected};
use crate::secret::Secret;
use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};
use std::time::SystemTime;
use subtle::ConstantTimeEq as _;

/// Verifies that the sender knows a secret. It does not protect the body, and anyone who sees one request can forge
/// others: use it only over TLS, and only if the sender supports nothing better. The body identifies the event: the
/// same body again within the [retention](super::Webhook::keep) counts as the same event.
///
/// ```
/// use posthaste_kit::webhook::SharedSecret;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let by_header = SharedSecret::in_header("X-Webhook-Secret", "the secret")?;
/// let by_bearer = SharedSecret::bearer("the secret")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SharedSecret {
    header: HeaderName,
    prefix: &'static str,
    secret: Secret,
}

impl SharedSecret {
    /// The value of this header is the secret.
    pub fn in_header(name: &str, secret: impl AsRef<str>) -> Result<SharedSecret, InvalidScheme> {
        let header = name.parse().map_err(|_| InvalidScheme::NO_HEADER)?;
        Ok(SharedSecret { header, prefix: "", secret: Secret::new(secret)? })
    }

    /// The header is `Authorization: Bearer` followed by the secret.
    pub fn bearer(secret: impl AsRef<str>) -> Result<SharedSecret, InvalidScheme> {
        Ok(SharedSecret { header: http::header::AUTHORIZATION, prefix: "Bearer ", secret: Secret::new(secret)? })
    }
}

impl Scheme for SharedSecret {
    fn name(&self) -> &'static str {
        "shared-secret"
    }

    fn verify(&self, request: &Incoming<'_>, _now: SystemTime) -> Result<Authentic, Rejected> {
        self.precheck(request.headers)?;
        Ok(Authentic::from_body(request.body, &[]))
    }

    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        let given = header(headers, self.header.as_str())?.strip_prefix(self.prefix).ok_or(Reason::Malformed)?;
        // Compares hashes, so that the time does not reveal the length.
        let (given, expected) = (Sha256::digest(given), Sha256::digest(self.secret.expose()));
        if !bool::from(given.ct_eq(&expected)) {
            return Err(Reason::Signature.into());
        }
        Ok(())
    }
}
