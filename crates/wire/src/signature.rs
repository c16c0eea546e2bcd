//! Signing keys, and the signature of every delivery: a JWT with the hash of the body.
//!
//! Start at [`sign`]. Receivers verify it with the QStash SDKs, so the claims are exactly theirs. Only `messageId` and
//! `hops` are ours, and the SDKs ignore them.

use crate::encoding::{base64url_padded, from_base64url, push_base64url};
use crate::time::Timestamp;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fmt::Write as _;

/// How long a signature is valid, in seconds.
pub const LIFETIME_SECONDS: u64 = 300;

/// `{"alg":"HS256","typ":"JWT"}` and the dot after it.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.";
/// A dot and the 32 bytes of the MAC in base64.
const MAC_BYTES: usize = 1 + 43;
/// Room for the fixed parts of the payload: names, punctuation, two times and the body hash.
const PAYLOAD_BYTES: usize = 192;

/// The signing keys of the four users that the official development server publishes; `posthaste dev` uses the same.
/// Anyone can sign with them.
pub const PUBLISHED_KEYS: [&str; 8] = [
    "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r",
    "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs",
    "sig_7GVPjvuwsfqF65iC8fSrs1dfYruM",
    "sig_5NoELc3EFnZn4DVS5bDs2Nk4b7Ua",
    "sig_6jWGaWRxHsw4vMSPJprXadyvrybF",
    "sig_7qHbvhmahe5GwfePDiS5Lg3pi6Qx",
    "sig_5T8FcSsynBjn9mMLBsXhpacRovJf",
    "sig_7GFR4YaDshFcqsxWRZpRB161jguD",
];

/// A signing key such as `sig_…`. The secret is the text itself. It is never printed, not even by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SigningKey(String);

impl SigningKey {
    /// Creates a key from its configured or stored text.
    pub fn new(text: impl Into<String>) -> Self {
        SigningKey(text.into())
    }

    /// Creates a new key from random bytes.
    pub fn from_random(bytes: [u8; 21]) -> Self {
        SigningKey(format!("sig_{}", bs58::encode(bytes).into_string()))
    }

    /// The secret. Use it only to sign, and in the one endpoint that shows keys to their owner.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

/// A tenant's two keys. Deliveries are signed with `current`; receivers also accept `next`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningKeys {
    /// Signs every delivery.
    pub current: SigningKey,
    /// Becomes current at the next rotation.
    pub next: SigningKey,
}

/// The claims of one signature. The others (`iss`, `nbf`) are always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims<'a> {
    /// The destination exactly as published: receivers compare it as text.
    pub url: &'a str,
    /// The start of the attempt, rounded down to the second, because receivers reject a time in the future.
    pub issued_at: Timestamp,
    /// When the signature expires, usually [`LIFETIME_SECONDS`] later.
    pub expires_at: Timestamp,
    /// Unique name of this signature.
    pub jwt_id: &'a str,
    /// The [`body_hash`] of the sent body.
    pub body_hash: &'a str,
    /// The id of the delivered message, so that a receiver need not trust `Upstash-Message-Id`. Hosted QStash leaves it
    /// out.
    pub message_id: Option<&'a str>,
    /// How many deliveries led to the message, signed so that a receiver can trust the number. Left out if zero.
    pub hops: u32,
}

/// The `body` claim: the SHA-256 of the body in padded base64url. It is the same for all attempts of a message.
pub fn body_hash(body: &[u8]) -> String {
    body_hash_of(&Sha256::digest(body))
}

/// Like [`body_hash`], for a body whose SHA-256 is known.
pub fn body_hash_of(sha256: &[u8]) -> String {
    base64url_padded(sha256)
}

/// Makes the value of `Upstash-Signature`.
pub fn sign(key: &SigningKey, claims: &Claims<'_>) -> String {
    let payload = payload(claims);
    let mut token = String::with_capacity(HEADER.len() + payload.len().div_ceil(3) * 4 + MAC_BYTES);
    token.push_str(HEADER);
    push_base64url(payload.as_bytes(), &mut token);
    push_mac(key, &mut token);
    token
}

/// The payload of a token that this key signed. The caller must still check the claims.
pub fn opened(key: &SigningKey, token: &str) -> Option<Vec<u8>> {
    let (signed, mac) = token.rsplit_once('.')?;
    let payload = token.strip_prefix(HEADER)?.split('.').next()?;
    let mut expected = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes()).expect("HMAC takes keys of any length");
    expected.update(signed.as_bytes());
    expected.verify_slice(&from_base64url(mac)?).ok()?;
    from_base64url(payload)
}

fn payload(claims: &Claims<'_>) -> String {
    let mut json = String::with_capacity(payload_bytes(claims));
    json.push_str(r#"{"iss":"Upstash","sub":"#);
    push_json_string(claims.url, &mut json);
    let (expires, issued) = (claims.expires_at.as_seconds(), claims.issued_at.as_seconds());
    write!(json, r#","exp":{expires},"nbf":0,"iat":{issued},"jti":"#).expect("writing to a String cannot fail");
    push_json_string(claims.jwt_id, &mut json);
    json.push_str(r#","body":"#);
    push_json_string(claims.body_hash, &mut json);
    if let Some(id) = claims.message_id {
        json.push_str(r#","messageId":"#);
        push_json_string(id, &mut json);
    }
    if claims.hops > 0 {
        write!(json, r#","hops":{}"#, claims.hops).expect("writing to a String cannot fail");
    }
    json.push('}');
    json
}

/// Upper bound for the length of a usual payload.
fn payload_bytes(claims: &Claims<'_>) -> usize {
    PAYLOAD_BYTES + claims.url.len() + claims.jwt_id.len() + claims.message_id.map_or(0, str::len)
}

/// Appends the dot and the MAC of everything before it.
fn push_mac(key: &SigningKey, token: &mut String) {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes()).expect("HMAC takes keys of any length");
    mac.update(token.as_bytes());
    token.push('.');
    push_base64url(&mac.finalize().into_bytes(), token);
}

/// Appends the text as a JSON string. Escapes only the characters that JSON requires.
fn push_json_string(text: &str, json: &mut String) {
    json.push('"');
    let mut copied = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        json.push_str(&text[copied..at]);
        copied = at + 1;
        match byte {
            b'"' => json.push_str("\\\""),
            b'\\' => json.push_str("\\\\"),
            control => write!(json, "\\u{control:04x}").expect("writing to a String cannot fail"),
        }
    }
    json.push_str(&text[copied..]);
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    const BODY: &[u8] = br#"{"hello":"world"}"#;

    #[test]
    fn the_vector_of_the_contract_matches_byte_for_byte() {
        let hash = body_hash(BODY);
        assert_eq!(hash, "k6I5cakU5erL8KjSUVTNownDwccvu5kU1Hxg88toFYg=");
        let claims = Claims {
            url: "https://example.com/hook?a=1",
            issued_at: Timestamp(1_700_000_000_999),
            expires_at: Timestamp(4_102_444_800_000),
            jwt_id: "jwt_67kxXD6UBAk7DqU6hzuHMDdXFXfP",
            body_hash: &hash,
            message_id: None,
            hops: 0,
        };
        let token = sign(&SigningKey::new("sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r"), &claims);
        assert_eq!(
            token,
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJVcHN0YXNoIiwic3ViIjoiaHR0cHM6Ly9leGFtcGxlLmNvbS9ob29rP2E9\
             MSIsImV4cCI6NDEwMjQ0NDgwMCwibmJmIjowLCJpYXQiOjE3MDAwMDAwMDAsImp0aSI6Imp3dF82N2t4WEQ2VUJBazdEcVU2aHp1SE1EZF\
             hGWGZQIiwiYm9keSI6Ims2STVjYWtVNWVyTDhLalNVVlROb3duRHdjY3Z1NWtVMUh4Zzg4dG9GWWc9In0.JkxSdQh8U8Vm0ObZYA8jKW7R\
             ovL9nzoexO7NsT5yqyk"
        );
    }

    /// Its `nbf` is not 0, so the payload cannot be rebuilt. Header, MAC and body hash can.
    #[test]
    fn an_accepted_token_has_our_header_and_mac() {
        let vectors: Value = serde_json::from_str(include_str!("../../../vectors/signature.json")).unwrap();
        let case = vectors["jwt"].as_array().unwrap().iter().find(|case| case["id"] == "ok-current").unwrap();
        let expected = case["token"].as_str().unwrap();
        assert!(expected.starts_with(HEADER));
        let mut token = expected[..expected.len() - MAC_BYTES].to_owned();
        push_mac(&SigningKey::new(vectors["keys"]["current"].as_str().unwrap()), &mut token);
        assert_eq!(token, expected);
    }

    #[test]
    fn only_the_key_that_signed_a_token_opens_it() {
        let (key, other) = (SigningKey::new("sig_a"), SigningKey::new("sig_b"));
        let (issued_at, expires_at) = (Timestamp(0), Timestamp(300_000));
        let claims =
            Claims { url: "https://a", issued_at, expires_at, jwt_id: "j", body_hash: "h", message_id: None, hops: 0 };
        let token = sign(&key, &claims);
        assert_eq!(opened(&key, &token), Some(payload(&claims).into_bytes()));
        assert_eq!(opened(&other, &token), None);
        let unsigned = &token[..token.len() - MAC_BYTES];
        for forged in ["", ".", unsigned, &format!("{unsigned}."), &format!("{token}.x"), &token[1..]] {
            assert_eq!(opened(&key, forged), None, "{forged}");
        }
    }

    #[test]
    fn an_empty_body_has_a_hash_too() {
        assert_eq!(body_hash(b""), "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=");
    }

    #[test]
    fn a_usual_signature_needs_no_reallocation() {
        let hash = body_hash(BODY);
        let claims = Claims {
            url: "https://example.com/",
            issued_at: Timestamp(1_700_000_000_000),
            expires_at: Timestamp(1_700_000_300_000),
            jwt_id: "jwt_67kxXD6UBAk7DqU6hzuHMDdXFXfP",
            body_hash: &hash,
            message_id: Some("msg_26hZCxZCuWyyTWPmSVBrNCtiJEnLp2yRUn8vV9yV"),
            hops: 9,
        };
        assert!(payload(&claims).len() <= payload_bytes(&claims));
        assert!(payload(&Claims { message_id: None, ..claims }).len() <= PAYLOAD_BYTES + claims.url.len() + 32);
    }

    #[test]
    fn our_own_claims_come_last_and_only_when_set() {
        let cases = [
            (None, 0, r#""body":"h"}"#),
            (None, 1, r#""body":"h","hops":1}"#),
            (Some("msg_1"), 0, r#""body":"h","messageId":"msg_1"}"#),
            (Some("msg_1"), u32::MAX, r#""body":"h","messageId":"msg_1","hops":4294967295}"#),
        ];
        for (message_id, hops, end) in cases {
            let (issued_at, expires_at) = (Timestamp(0), Timestamp(300_000));
            let claims =
                Claims { url: "https://a", issued_at, expires_at, jwt_id: "j", body_hash: "h", message_id, hops };
            let start = r#"{"iss":"Upstash","sub":"https://a","exp":300,"nbf":0,"iat":0,"jti":"j","#;
            assert_eq!(payload(&claims), format!("{start}{end}"));
        }
    }

    proptest! {
        #[test]
        fn every_text_survives_the_payload(url in any::<String>(), jwt_id in any::<String>(), id in any::<String>()) {
            let hash = body_hash(BODY);
            let claims = Claims {
                url: &url,
                issued_at: Timestamp(1_999),
                expires_at: Timestamp(301_999),
                jwt_id: &jwt_id,
                body_hash: &hash,
                message_id: Some(&id),
                hops: 0,
            };
            let json: Value = serde_json::from_str(&payload(&claims)).unwrap();
            let expected = serde_json::json!({
                "iss": "Upstash", "sub": url, "exp": 301, "nbf": 0, "iat": 1, "jti": jwt_id, "body": hash,
                "messageId": id,
            });
            prop_assert_eq!(json, expected);
        }
    }
}
