//! Whether a delivery was signed by this server, as an endpoint of its own would check it.

use posthaste_api_types::receiver::KeyName;
use posthaste_wire::signature::{self, SigningKeys};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;

/// What the signature of a delivery was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureCheck {
    /// Signed with this key.
    Valid(KeyName),
    /// Signed with this key, but not for this delivery, for this reason.
    Misplaced(KeyName, &'static str),
    /// Signed, but with none of the tenant's keys.
    Forged,
    /// Not signed.
    Unsigned,
    /// It could not be checked, for this reason.
    Unknown(&'static str),
}

impl SignatureCheck {
    /// The key that made it, if it was one of the tenant's.
    pub(crate) fn key(&self) -> Option<KeyName> {
        match self {
            SignatureCheck::Valid(key) | SignatureCheck::Misplaced(key, _) => Some(*key),
            SignatureCheck::Forged | SignatureCheck::Unsigned | SignatureCheck::Unknown(_) => None,
        }
    }

    /// Why an endpoint would refuse the delivery.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        match self {
            SignatureCheck::Valid(_) => None,
            SignatureCheck::Misplaced(_, why) | SignatureCheck::Unknown(why) => Some(why),
            SignatureCheck::Forged => Some("signed with neither the current nor the next key"),
            SignatureCheck::Unsigned => Some("no Upstash-Signature header"),
        }
    }

    /// Whether this server has sent it, as far as can be known.
    pub(super) fn is_ours(&self) -> bool {
        !matches!(self, SignatureCheck::Forged | SignatureCheck::Unsigned)
    }
}

/// The claims that are checked; the wire crate writes them.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    exp: u64,
    body: String,
    #[serde(rename = "messageId")]
    message_id: Option<String>,
}

/// A delivery as it arrived.
#[derive(Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub(super) token: Option<&'a str>,
    pub(super) url: &'a str,
    pub(super) body_hash: &'a str,
    /// `Upstash-Message-Id`.
    pub(super) message_id: Option<&'a str>,
}

/// Checks the token of a delivery.
pub(super) fn check(keys: &SigningKeys, arrived: Arrived<'_>, now: Timestamp) -> SignatureCheck {
    let Arrived { token, url, body_hash, message_id } = arrived;
    let Some(token) = token else { return SignatureCheck::Unsigned };
    let opened = [(KeyName::Current, &keys.current), (KeyName::Next, &keys.next)]
        .into_iter()
        .find_map(|(name, key)| Some((name, signature::opened(key, token)?)));
    let Some((key, payload)) = opened else { return SignatureCheck::Forged };
    let Ok(claims) = serde_json::from_slice::<Claims>(&payload) else {
        return SignatureCheck::Misplaced(key, "its claims cannot be read");
    };
    let problem = match claims {
        Claims { ref iss, .. } if iss != "Upstash" => "its issuer is not Upstash",
        Claims { ref sub, .. } if sub != url => "signed for another URL",
        Claims { exp, .. } if exp <= now.as_seconds() => "expired",
        Claims { ref body, .. } if body != body_hash => "signed for another body",
        Claims { message_id: Some(ref id), .. } if message_id != Some(id.as_str()) => "signed for another message",
        _ => return SignatureCheck::Valid(key),
    };
    SignatureCheck::Misplaced(key, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_wire::signature::{Claims, SigningKey, body_hash, sign};

    #[test]
    fn a_signature_holds_for_its_key_url_time_and_body() {
        let key = |text: &str| SigningKey::new(text);
        let keys = SigningKeys { current: key("sig_a"), next: key("sig_b") };
        let (url, hash, now) = ("http://127.0.0.1:9/x", body_hash(b"hello"), Timestamp(1_000_000));
        let expires_at = now.plus_millis(300_000);
        let claims = Claims {
            url,
            issued_at: now,
            expires_at,
            jwt_id: "j",
            body_hash: &hash,
            message_id: Some("msg_1"),
            hops: 1,
        };
        let token = |with: &str| sign(&key(with), &claims);
        let arrived = Arrived { token: None, url, body_hash: &hash, message_id: Some("msg_1") };
        let checked = |token: &str, url: &str, body_hash: &str, now| {
            check(&keys, Arrived { token: Some(token), url, body_hash, ..arrived }, now)
        };
        assert_eq!(checked(&token("sig_a"), url, &hash, now), SignatureCheck::Valid(KeyName::Current));
        assert_eq!(checked(&token("sig_b"), url, &hash, now), SignatureCheck::Valid(KeyName::Next));
        assert_eq!(checked(&token("sig_c"), url, &hash, now), SignatureCheck::Forged);
        assert_eq!(checked("malformed", url, &hash, now), SignatureCheck::Forged);
        assert_eq!(check(&keys, arrived, now), SignatureCheck::Unsigned);
        let signed = token("sig_a");
        for message_id in [None, Some("msg_2")] {
            let misnamed = check(&keys, Arrived { token: Some(&signed), message_id, ..arrived }, now);
            assert_eq!(misnamed, SignatureCheck::Misplaced(KeyName::Current, "signed for another message"));
        }
        let unnamed = sign(&key("sig_a"), &Claims { message_id: None, ..claims });
        assert_eq!(checked(&unnamed, url, &hash, now), SignatureCheck::Valid(KeyName::Current));
        let other = body_hash(b"other");
        for (misplaced, why) in [
            (checked(&token("sig_a"), "http://127.0.0.1:9/y", &hash, now), "signed for another URL"),
            (checked(&token("sig_a"), url, &other, now), "signed for another body"),
            (checked(&token("sig_a"), url, &hash, expires_at), "expired"),
        ] {
            assert_eq!(misplaced, SignatureCheck::Misplaced(KeyName::Current, why));
            assert!(misplaced.problem() == Some(why) && misplaced.is_ours());
        }
    }
}
