//! Verification of deliveries: checks `Upstash-Signature` against the raw bytes of the body.
//!
//! Start at [`Receiver`]. The order of the checks is guaranteed: the header, the length of the token, its form, its MAC
//! with both keys, its claims, the hash of the body, and finally the header with the message id. Nothing of the body is
//! read before these checks.
//!
//! Posthaste signs the message id. Hosted QStash does not: there [`Verified::message_id`] is `None`, and the id in
//! `Upstash-Message-Id` is only as trustworthy as the connection.

use crate::clock::{Clock, unix_seconds};
use crate::idempotency::hex;
use crate::replay::SingleUse;
use crate::secret::{EmptySecret, Secret};
use crate::telemetry::is_id;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use http::{HeaderMap, Uri};
use posthaste_wire::header as wire;
use posthaste_wire::signature::PUBLISHED_KEYS;
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};
use std::fmt;
use std::time::{Duration, SystemTime};
use subtle::{Choice, ConstantTimeEq};

/// Header with the signature.
pub const SIGNATURE_HEADER: &str = "upstash-signature";
/// Maximum size of a token, in bytes. A longer token is rejected before it is decoded.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Default maximum lifetime of a signature. Signatures of QStash and Posthaste are valid for 5 minutes.
pub const LIFETIME_MAX: Duration = Duration::from_secs(3_600);
/// Maximum clock leeway; a larger one is reduced to it. The leeway extends the lifetime of a signature.
pub const LEEWAY_MAX: Duration = Duration::from_secs(60);
/// Minimum size of a signing key, in bytes. Keys of QStash and Posthaste have 25 to 33.
pub const SIGNING_KEY_BYTES_MIN: usize = 24;

/// The issuer: the only accepted value of `iss`.
const ISSUER: &str = "Upstash";

/// Verifies deliveries.
///
/// ```
/// use posthaste_kit::Receiver;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (current, next) = ("sig_6Sv9SDzFgsZnQ2nzRNB1Qwyp", "sig_4FrAJ3oVtCz1eTh8rGqkXb2m");
/// // QSTASH_CURRENT_SIGNING_KEY and QSTASH_NEXT_SIGNING_KEY
/// let receiver = Receiver::new(current, next)?.at_base("https://app.example.com");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Receiver {
    current: Secret,
    next: Option<Secret>,
    url: Expected,
    leeway: Duration,
    lifetime_max: Duration,
    clock: Clock,
}

/// The expected value of `sub`.
#[derive(Clone, Debug)]
enum Expected {
    /// Not configured yet: everything is rejected.
    Undecided,
    Exactly(String),
    /// This base, followed by the path and query of the request.
    Base(String),
    Anything,
}

/// The content of a verified signature.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The destination as it was published.
    pub url: String,
    /// Id of the message, if it is signed: Posthaste signs it, hosted QStash does not. If it is signed,
    /// `Upstash-Message-Id` is the same or absent.
    pub message_id: Option<String>,
    /// Unique id of the signature, if it has one.
    pub jwt_id: Option<String>,
    /// Time of the signature, in seconds since 1970, if it has one.
    pub issued_at: Option<i64>,
    /// Expiry of the signature, in seconds since 1970.
    pub expires_at: i64,
    /// Identifies this signature: its [`jwt_id`](Self::jwt_id), or the hash of the whole token.
    pub(crate) nonce: String,
}

/// A signing key that protects nothing. It is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSigningKey {
    /// The key is empty.
    #[error("a signing key is empty; set it to the key of your queue")]
    Empty,
    /// The key is too short: it can be guessed, or was not copied completely.
    #[error(
        "a signing key has {bytes} bytes, at least {SIGNING_KEY_BYTES_MIN} are required; copy the whole key (`sig_…`), or use `Receiver::for_development` in tests"
    )]
    TooShort {
        /// Size of the key, in bytes.
        bytes: usize,
    },
    /// The key is public.
    #[error(
        "a signing key is a public key of the development server, so anyone can sign with it; use the keys of your own queue, or `Receiver::for_development` on your own machine"
    )]
    Published,
}

impl From<EmptySecret> for InvalidSigningKey {
    fn from(_: EmptySecret) -> Self {
        InvalidSigningKey::Empty
    }
}

/// Why a delivery was rejected, for logs and metrics. The response does not contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// There is no signature.
    Missing,
    /// There are several signatures, and another reader may use a different one.
    Ambiguous,
    /// The token is longer than [`TOKEN_BYTES_MAX`].
    TooLong,
    /// The token does not consist of three parts in strict base64, or its header or claims are malformed.
    Malformed,
    /// The token is not signed with HS256, or its header requests unsafe features.
    Algorithm,
    /// The signature matches neither key.
    Signature,
    /// The issuer is wrong.
    Issuer,
    /// The signature is for another URL.
    Url,
    /// The signature has expired.
    Expired,
    /// The signature is not valid yet.
    NotYetValid,
    /// The signature is valid for too long.
    LifetimeTooLong,
    /// The signature is for another body.
    Body,
    /// The receiver does not know its own URL: see [`Receiver::at_base`].
    UrlNotConfigured,
    /// The request is authentic, but has no id, so a replay could not be detected.
    EventId,
    /// `Upstash-Message-Id` differs from the signed message id.
    MessageId,
}

impl Reason {
    /// A name for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Missing => "missing",
            Reason::Ambiguous => "ambiguous",
            Reason::TooLong => "too_long",
            Reason::Malformed => "malformed",
            Reason::Algorithm => "algorithm",
            Reason::Signature => "signature",
            Reason::Issuer => "issuer",
            Reason::Url => "url",
            Reason::Expired => "expired",
            Reason::NotYetValid => "not_yet_valid",
            Reason::LifetimeTooLong => "lifetime_too_long",
            Reason::Body => "body",
            Reason::UrlNotConfigured => "url_not_configured",
            Reason::EventId => "event_id",
            Reason::MessageId => "message_id",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A rejected delivery. It shows the reason and never the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid signature: {reason}")]
pub struct Rejected {
    reason: Reason,
}

impl Rejected {
    /// The reason, for logs and metrics.
    pub fn reason(self) -> Reason {
        self.reason
    }

    /// Whether the signature has expired, but is otherwise valid.
    pub fn is_expired(self) -> bool {
        self.reason == Reason::Expired
    }
}

impl Receiver {
    /// Creates a receiver with both signing keys: during a rotation, deliveries are signed with either. Keys shorter
    /// than [`SIGNING_KEY_BYTES_MIN`] and the public keys of the development server are rejected.
    ///
    /// Next, set the URL that deliveries are for ([`at_base`](Self::at_base), [`at_url`](Self::at_url) or, explicitly,
    /// [`at_any_url`](Self::at_any_url)). Until then all deliveries are rejected.
    pub fn new(current_key: impl AsRef<str>, next_key: impl AsRef<str>) -> Result<Receiver, InvalidSigningKey> {
        Ok(Receiver::of_both(signing_key(current_key)?, signing_key(next_key)?))
    }

    /// Creates a receiver with one signing key. After the next rotation, deliveries are rejected until you replace it.
    pub fn with_one_key(current_key: impl AsRef<str>) -> Result<Receiver, InvalidSigningKey> {
        tracing::warn!("only one signing key is set; deliveries will be rejected after the next key rotation");
        Ok(Receiver::of(signing_key(current_key)?))
    }

    /// Like [`new`](Self::new), for tests and for `posthaste dev` on your own machine: short and public keys are
    /// accepted, with a warning. Never use it where others can reach the endpoint, because anyone can sign with such
    /// keys.
    ///
    /// ```
    /// use posthaste_kit::Receiver;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let keys = ("sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r", "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs"); // those of `posthaste dev`
    /// assert!(Receiver::new(keys.0, keys.1).is_err());
    /// let receiver = Receiver::for_development(keys.0, keys.1)?.at_base("http://127.0.0.1:3000");
    /// # Ok(()) }
    /// ```
    pub fn for_development(
        current_key: impl AsRef<str>,
        next_key: impl AsRef<str>,
    ) -> Result<Receiver, InvalidSigningKey> {
        let (current, next) = (Secret::new(current_key)?, Secret::new(next_key)?);
        if let Some(weakness) = weakness(&current).or_else(|| weakness(&next)) {
            tracing::warn!(%weakness, "development keys are accepted, so anyone can sign deliveries to this endpoint");
        }
        Ok(Receiver::of_both(current, next))
    }

    fn of_both(current: Secret, next: Secret) -> Receiver {
        if current.expose() == next.expose() {
            tracing::warn!("both signing keys are the same; deliveries will be rejected after the next key rotation");
        }
        Receiver { next: Some(next), ..Receiver::of(current) }
    }

    fn of(current: Secret) -> Receiver {
        Receiver {
            current,
            next: None,
            url: Expected::Undecided,
            leeway: Duration::ZERO,
            lifetime_max: LIFETIME_MAX,
            clock: Clock::system(),
        }
    }

    /// Accepts deliveries for this origin (and path, if a proxy strips one), followed by the path and query of the
    /// request. The host of the request is ignored, because the caller can choose it.
    pub fn at_base(mut self, base: impl Into<String>) -> Receiver {
        let mut base = base.into();
        base.truncate(base.trim_end_matches('/').len());
        self.url = Expected::Base(base);
        self
    }

    /// Accepts deliveries for exactly this URL.
    pub fn at_url(mut self, url: impl Into<String>) -> Receiver {
        self.url = Expected::Exactly(url.into());
        self
    }

    /// Accepts deliveries for any URL, including those for another endpoint with the same keys.
    pub fn at_any_url(mut self) -> Receiver {
        self.url = Expected::Anything;
        self
    }

    /// Sets the allowed clock difference. Default: zero; maximum: [`LEEWAY_MAX`].
    pub fn leeway(mut self, leeway: Duration) -> Receiver {
        self.leeway = leeway.min(LEEWAY_MAX);
        self
    }

    /// Sets the maximum remaining lifetime of a signature. Default: [`LIFETIME_MAX`].
    pub fn lifetime_max(mut self, lifetime: Duration) -> Receiver {
        self.lifetime_max = lifetime;
        self
    }

    /// Sets the clock.
    pub fn clock(mut self, clock: Clock) -> Receiver {
        self.clock = clock;
        self
    }

    /// How long an accepted token can stay valid.
    pub(crate) fn valid_for(&self) -> Duration {
        self.lifetime_max.saturating_add(self.leeway.saturating_mul(2))
    }

    /// The signature for single use, remembered for as long as any clock within [`LEEWAY_MAX`] would accept it.
    pub(crate) fn single_use(&self, verified: &Verified, now: SystemTime) -> SingleUse {
        let left = verified.expires_at.saturating_sub(unix_seconds(now)).saturating_add(seconds(self.leeway));
        let left = Duration::from_secs(u64::try_from(left).unwrap_or(0)).saturating_add(LEEWAY_MAX);
        SingleUse::new(&verified.nonce, left, verified.message_id.is_some())
    }

    /// The time of the receiver's clock.
    pub(crate) fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Whether the URL of the receiver is set.
    pub fn knows_its_url(&self) -> bool {
        !matches!(self.url, Expected::Undecided)
    }

    /// Checks what is possible before the body is read: that there is exactly one token, and not too long.
    pub fn token<'a>(&self, headers: &'a HeaderMap) -> Result<Token<'a>, Rejected> {
        let mut values = headers.get_all(SIGNATURE_HEADER).iter();
        let value = values.next().ok_or(Reason::Missing)?;
        if values.next().is_some() {
            return Err(Reason::Ambiguous.into());
        }
        let token = value.to_str().map_err(|_| Reason::Malformed)?;
        match token.len() {
            0 => Err(Reason::Missing.into()),
            length if length > TOKEN_BYTES_MAX => Err(Reason::TooLong.into()),
            _ => Ok(Token(token)),
        }
    }

    /// Verifies a request with this body, byte for byte as it was received. If the message id is signed,
    /// `Upstash-Message-Id` must not differ from it.
    pub fn verify(&self, headers: &HeaderMap, uri: &Uri, body: &[u8]) -> Result<Verified, Rejected> {
        self.verify_at(headers, uri, body, self.clock.now())
    }

    /// Like [`verify`](Self::verify), at the given time.
    pub fn verify_at(
        &self,
        headers: &HeaderMap,
        uri: &Uri,
        body: &[u8],
        now: SystemTime,
    ) -> Result<Verified, Rejected> {
        let verified = self.verify_token_at(self.token(headers)?, uri, body, now)?;
        if verified.message_id.as_deref().is_some_and(|signed| !is_message(headers, signed)) {
            return Err(Reason::MessageId.into());
        }
        Ok(verified)
    }

    /// The second half of [`verify`](Self::verify), without the check of `Upstash-Message-Id`. Use
    /// [`Verified::message_id`] if it is present.
    pub fn verify_token(&self, token: Token<'_>, uri: &Uri, body: &[u8]) -> Result<Verified, Rejected> {
        self.verify_token_at(token, uri, body, self.clock.now())
    }

    fn verify_token_at(&self, token: Token<'_>, uri: &Uri, body: &[u8], now: SystemTime) -> Result<Verified, Rejected> {
        let parts = Parts::split(token.0)?;
        parts.header()?.check()?;
        if !self.is_signed(&parts) {
            return Err(Reason::Signature.into());
        }
        let claims = parts.claims()?;
        self.check_claims(&claims, uri, unix_seconds(now))?;
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(body));
        let claimed = claims.body.strip_suffix('=').unwrap_or(&claims.body);
        if !bool::from(hash.as_bytes().ct_eq(claimed.as_bytes())) {
            return Err(Reason::Body.into());
        }
        let nonce = claims.jti.clone().unwrap_or_else(|| token.hash());
        Ok(Verified {
            url: claims.sub,
            message_id: claims.message_id,
            jwt_id: claims.jti,
            issued_at: claims.iat,
            expires_at: claims.exp,
            nonce,
        })
    }

    /// Always tries both keys, so that the time does not reveal which one matched.
    fn is_signed(&self, parts: &Parts<'_>) -> bool {
        let keys = [Some(&self.current), self.next.as_ref()];
        let made_by = |key: &Secret| Choice::from(u8::from(is_made_by(key, parts)));
        keys.into_iter().flatten().map(made_by).fold(Choice::from(0), |any, this| any | this).into()
    }

    fn check_claims(&self, claims: &Claims, uri: &Uri, now: i64) -> Result<(), Reason> {
        if claims.message_id.as_deref().is_some_and(|id| !is_id(id)) {
            return Err(Reason::Malformed);
        }
        if claims.iss != ISSUER {
            return Err(Reason::Issuer);
        }
        let is_ours = match &self.url {
            Expected::Undecided => return Err(Reason::UrlNotConfigured),
            Expected::Anything => true,
            Expected::Exactly(url) => claims.sub == *url,
            Expected::Base(base) => {
                let path = uri.path_and_query().map_or("/", |path| path.as_str());
                claims
                    .sub
                    .strip_prefix(base.as_str())
                    .is_some_and(|rest| rest == path || rest.is_empty() && path == "/")
            }
        };
        if !is_ours {
            return Err(Reason::Url);
        }
        let leeway = seconds(self.leeway);
        if now >= claims.exp.saturating_add(leeway) {
            return Err(Reason::Expired);
        }
        if claims.nbf > now.saturating_add(leeway) {
            return Err(Reason::NotYetValid);
        }
        if claims.exp > now.saturating_add(leeway).saturating_add(seconds(self.lifetime_max)) {
            return Err(Reason::LifetimeTooLong);
        }
        Ok(())
    }
}

/// A token that was sent exactly once and is not too long.
#[derive(Clone, Copy)]
pub struct Token<'a>(&'a str);

impl Token<'_> {
    /// Eight hexadecimal digits that identify the token. Nothing else of it may be logged.
    pub fn fingerprint(self) -> String {
        self.hash()[..8].to_owned()
    }

    /// Equal only for equal tokens, because a token has only one valid encoding.
    fn hash(self) -> String {
        hex(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.fingerprint())
    }
}

/// The parts of a token.
struct Parts<'a> {
    /// The signed text: header and claims as they were sent.
    signed: &'a str,
    header: &'a str,
    claims: &'a str,
    mac: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    // Names of keys and options: keys are not looked up, and nothing is decompressed.
    crit: Option<IgnoredAny>,
    b64: Option<IgnoredAny>,
    zip: Option<IgnoredAny>,
    cty: Option<IgnoredAny>,
    kid: Option<IgnoredAny>,
    jku: Option<IgnoredAny>,
    jwk: Option<IgnoredAny>,
    x5u: Option<IgnoredAny>,
    x5c: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    exp: i64,
    nbf: i64,
    body: String,
    iat: Option<i64>,
    jti: Option<String>,
    #[serde(rename = "messageId")]
    message_id: Option<String>,
}

impl<'a> Parts<'a> {
    fn split(token: &'a str) -> Result<Parts<'a>, Reason> {
        let (signed, mac) = token.rsplit_once('.').ok_or(Reason::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(Reason::Malformed)?;
        if claims.contains('.') {
            return Err(Reason::Malformed);
        }
        let mac = URL_SAFE_NO_PAD.decode(mac).map_err(|_| Reason::Malformed)?;
        Ok(Parts { signed, header, claims, mac })
    }

    fn header(&self) -> Result<Header, Reason> {
        parse(self.header)
    }

    fn claims(&self) -> Result<Claims, Reason> {
        parse(self.claims)
    }
}

impl Header {
    fn check(&self) -> Result<(), Reason> {
        let options =
            [&self.crit, &self.b64, &self.zip, &self.cty, &self.kid, &self.jku, &self.jwk, &self.x5u, &self.x5c];
        let is_plain = options.iter().all(|option| option.is_none());
        if self.alg == "HS256" && is_plain { Ok(()) } else { Err(Reason::Algorithm) }
    }
}

/// Parses one JSON object. Rejects a repeated known member, and anything after the object.
fn parse<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, Reason> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Reason::Malformed)?;
    // An array would also deserialize into a struct.
    if bytes.first() != Some(&b'{') {
        return Err(Reason::Malformed);
    }
    serde_json::from_slice(&bytes).map_err(|_| Reason::Malformed)
}

fn is_made_by(key: &Secret, parts: &Parts<'_>) -> bool {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes()) else { return false };
    mac.update(parts.signed.as_bytes());
    mac.verify_slice(&parts.mac).is_ok()
}

/// Whether the header with the message id has this value or is absent.
fn is_message(headers: &HeaderMap, signed: &str) -> bool {
    let mut values = headers.get_all(wire::MESSAGE_ID).iter();
    match (values.next(), values.next()) {
        (None, _) => true,
        (Some(value), None) => value == signed,
        (Some(_), Some(_)) => false,
    }
}

/// Checks that a key can protect an endpoint.
fn signing_key(text: impl AsRef<str>) -> Result<Secret, InvalidSigningKey> {
    let key = Secret::new(text)?;
    weakness(&key).map_or(Ok(key), Err)
}

/// Why a key protects nothing.
fn weakness(key: &Secret) -> Option<InvalidSigningKey> {
    let key = key.expose();
    if PUBLISHED_KEYS.contains(&key) {
        return Some(InvalidSigningKey::Published);
    }
    (key.len() < SIGNING_KEY_BYTES_MIN).then_some(InvalidSigningKey::TooShort { bytes: key.len() })
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

impl From<Reason> for Rejected {
    fn from(reason: Reason) -> Self {
        Rejected { reason }
    }
}

#[cfg(test)]
mod tests;
