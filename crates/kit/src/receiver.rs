//! Whether a delivery comes from whom it says: the check of `Upstash-Signature` on the raw bytes of the body.
//!
//! Start at [`Receiver`]. The order of the checks is part of the promise: the header, the length of the token, its
//! form, its MAC with both keys, its claims, the hash of the body, and last the header with the id of the message.
//! Nothing of the body is looked at before.
//!
//! Posthaste signs the id of the message. Hosted QStash does not: there [`Verified::message_id`] is `None`, and the id
//! in `Upstash-Message-Id` is only as trustworthy as the connection.

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

/// The header with the signature.
pub const SIGNATURE_HEADER: &str = "upstash-signature";
/// A token that is longer is refused before it is decoded.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// A signature that is valid for longer than this is refused, by default; QStash's and Posthaste's last five minutes.
pub const LIFETIME_MAX: Duration = Duration::from_secs(3_600);
/// The largest leeway between clocks; a larger one is cut to it. A signature is good for that much longer.
pub const LEEWAY_MAX: Duration = Duration::from_secs(60);
/// The shortest signing key, in bytes; a shorter one is refused. Keys of QStash and of Posthaste have 25 to 33.
pub const SIGNING_KEY_BYTES_MIN: usize = 24;

/// Who signs: the only value of `iss` that counts.
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

/// What `sub` has to be.
#[derive(Clone, Debug)]
enum Expected {
    /// Nobody has said yet: everything is refused.
    Undecided,
    Exactly(String),
    /// This, and behind it the path and query of the request.
    Base(String),
    Anything,
}

/// What a signature says, once it is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The destination as it was published.
    pub url: String,
    /// The id of the message, if it is signed: Posthaste signs it, hosted QStash does not. Where it is signed,
    /// `Upstash-Message-Id` says the same or nothing.
    pub message_id: Option<String>,
    /// The unique name of the signature, if it has one.
    pub jwt_id: Option<String>,
    /// When it was made, in seconds since 1970, if it says so.
    pub issued_at: Option<i64>,
    /// Until when it is valid, in seconds since 1970.
    pub expires_at: i64,
    /// Identifies this signature: its [`jwt_id`](Self::jwt_id), or else the hash of the whole token.
    pub(crate) nonce: String,
}

/// A signing key that protects nothing. No receiver is made with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSigningKey {
    /// There is none.
    #[error("a signing key is empty; set it to the key of your queue")]
    Empty,
    /// It can be guessed, or was not copied whole.
    #[error(
        "a signing key has {bytes} bytes, at least {SIGNING_KEY_BYTES_MIN} are required; copy the whole key (`sig_…`), or use `Receiver::for_development` in tests"
    )]
    TooShort {
        /// How long it is.
        bytes: usize,
    },
    /// Everybody knows it.
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

/// Why a delivery was refused: for logs and metrics. The caller hears only that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// There is no signature.
    Missing,
    /// There are several, and somebody else may look at another one.
    Ambiguous,
    /// The token is longer than [`TOKEN_BYTES_MAX`].
    TooLong,
    /// It is no token of three parts in strict base64, or its header or claims have another form.
    Malformed,
    /// It is not signed with HS256, or its header asks for what nobody should do.
    Algorithm,
    /// Neither key made it.
    Signature,
    /// It was made by somebody else.
    Issuer,
    /// It was made for another URL.
    Url,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// It would be valid for too long.
    LifetimeTooLong,
    /// The body is not the one that was signed.
    Body,
    /// The receiver does not know its own URL: see [`Receiver::at_base`].
    UrlNotConfigured,
    /// It is genuine, but nothing names it: a repetition could not be told from it.
    EventId,
    /// `Upstash-Message-Id` names another message than the signature.
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

/// A delivery that is not what it says. Shows the reason and never the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid signature: {reason}")]
pub struct Rejected {
    reason: Reason,
}

impl Rejected {
    /// Why, for logs and metrics.
    pub fn reason(self) -> Reason {
        self.reason
    }

    /// Whether the signature was good once.
    pub fn is_expired(self) -> bool {
        self.reason == Reason::Expired
    }
}

impl Receiver {
    /// Takes both signing keys: during a rotation deliveries are signed with either. Keys that are shorter than
    /// [`SIGNING_KEY_BYTES_MIN`] and the published keys of the development server are refused.
    ///
    /// Say next which URL deliveries are for ([`at_base`](Self::at_base), [`at_url`](Self::at_url) or, explicitly,
    /// [`at_any_url`](Self::at_any_url)); until then everything is refused.
    pub fn new(current_key: impl AsRef<str>, next_key: impl AsRef<str>) -> Result<Receiver, InvalidSigningKey> {
        Ok(Receiver::of_both(signing_key(current_key)?, signing_key(next_key)?))
    }

    /// Takes one signing key. Deliveries are refused from the next rotation on until it is replaced.
    pub fn with_one_key(current_key: impl AsRef<str>) -> Result<Receiver, InvalidSigningKey> {
        tracing::warn!("only one signing key is set; deliveries will be rejected after the next key rotation");
        Ok(Receiver::of(signing_key(current_key)?))
    }

    /// The same as [`new`](Self::new) for tests and for `posthaste dev` on your own machine: short and published keys
    /// are accepted, with a warning. Never use it where others can reach the endpoint: anybody can sign with such keys.
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

    /// Deliveries are for this origin (and path, if requests lose one on their way), with the path and query of the
    /// request behind it. What the request says about its host counts for nothing: that is the caller's choice.
    pub fn at_base(mut self, base: impl Into<String>) -> Receiver {
        let mut base = base.into();
        base.truncate(base.trim_end_matches('/').len());
        self.url = Expected::Base(base);
        self
    }

    /// Deliveries are for exactly this URL.
    pub fn at_url(mut self, url: impl Into<String>) -> Receiver {
        self.url = Expected::Exactly(url.into());
        self
    }

    /// Deliveries for any URL are taken: also those that were meant for another endpoint that has the same keys.
    pub fn at_any_url(mut self) -> Receiver {
        self.url = Expected::Anything;
        self
    }

    /// How far the clocks may be apart; nothing by default, [`LEEWAY_MAX`] at most.
    pub fn leeway(mut self, leeway: Duration) -> Receiver {
        self.leeway = leeway.min(LEEWAY_MAX);
        self
    }

    /// Signatures that are valid for longer from now on are refused; [`LIFETIME_MAX`] by default.
    pub fn lifetime_max(mut self, lifetime: Duration) -> Receiver {
        self.lifetime_max = lifetime;
        self
    }

    /// Where the time comes from.
    pub fn clock(mut self, clock: Clock) -> Receiver {
        self.clock = clock;
        self
    }

    /// How long a token can be good for after it was accepted once.
    pub(crate) fn valid_for(&self) -> Duration {
        self.lifetime_max.saturating_add(self.leeway.saturating_mul(2))
    }

    /// The signature as something to be used once, for as long as any clock within [`LEEWAY_MAX`] would accept it.
    pub(crate) fn single_use(&self, verified: &Verified, now: SystemTime) -> SingleUse {
        let left = verified.expires_at.saturating_sub(unix_seconds(now)).saturating_add(seconds(self.leeway));
        let left = Duration::from_secs(u64::try_from(left).unwrap_or(0)).saturating_add(LEEWAY_MAX);
        SingleUse::new(&verified.nonce, left, verified.message_id.is_some())
    }

    /// The time by the receiver's clock.
    pub(crate) fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Whether it is known which URL deliveries are for.
    pub fn knows_its_url(&self) -> bool {
        !matches!(self.url, Expected::Undecided)
    }

    /// Checks what can be checked before the body is read: that there is exactly one token, not too long.
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

    /// Verifies a request whose body is `body`, byte for byte as it arrived. If the id of the message is signed,
    /// `Upstash-Message-Id` must not name another one.
    pub fn verify(&self, headers: &HeaderMap, uri: &Uri, body: &[u8]) -> Result<Verified, Rejected> {
        self.verify_at(headers, uri, body, self.clock.now())
    }

    /// The same at a time of your choice.
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

    /// The second half of [`verify`](Self::verify), without its look at `Upstash-Message-Id`: take the id from
    /// [`Verified::message_id`] if it is there.
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

    /// Both keys are always tried, so that the time says nothing about which of them it was.
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

/// A token that is there once and not too long.
#[derive(Clone, Copy)]
pub struct Token<'a>(&'a str);

impl Token<'_> {
    /// Eight hexadecimal digits that are the same for the same token: all that may be logged of it.
    pub fn fingerprint(self) -> String {
        self.hash()[..8].to_owned()
    }

    /// The same for the same token, and for no other: a token can be written in one way only.
    fn hash(self) -> String {
        hex(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.fingerprint())
    }
}

/// A token in its parts.
struct Parts<'a> {
    /// What is signed: header and claims as they were sent.
    signed: &'a str,
    header: &'a str,
    claims: &'a str,
    mac: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    // Names of keys and options: nobody looks anything up, and nobody inflates anything.
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

/// One JSON object; a member that we look at and that is there twice is refused, as is anything behind the object.
fn parse<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, Reason> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Reason::Malformed)?;
    // An array would pass for a struct.
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

/// Whether the header with the id of the message says this, or is not there at all.
fn is_message(headers: &HeaderMap, signed: &str) -> bool {
    let mut values = headers.get_all(wire::MESSAGE_ID).iter();
    match (values.next(), values.next()) {
        (None, _) => true,
        (Some(value), None) => value == signed,
        (Some(_), Some(_)) => false,
    }
}

/// A key that can protect an endpoint.
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
