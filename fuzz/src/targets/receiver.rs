//! The kit's verification of deliveries: an accepted token is signed with one of the keys, for this URL, this time and
//! this body. Tokens of the server are accepted, and tokens with any changed character are not.
//!
//! The token, a line break, the body.

use super::signature::hmac_sha256;
use super::{NOW, choice};
use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, Uri};
use posthaste_kit::Receiver;
use posthaste_kit::clock::Clock;
use posthaste_kit::receiver::{SIGNATURE_HEADER, TOKEN_BYTES_MAX, Verified};
use posthaste_wire::signature::{Claims, SigningKey, body_hash, sign};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::{Duration, UNIX_EPOCH};

const URL: &str = "https://app.example.com/api/jobs/run";
/// Keys of the vectors, so that some seeds are valid.
const KEYS: [&str; 2] = ["sig_test_current_4Kq8vWz1Lr7T", "sig_test_next_9Yb3nHc6Pf2M"];

pub(crate) fn run(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (token, body) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let receiver = receiver(URL);
    if let Some(verified) = verify(&receiver, token, body) {
        assert!(is_proven(token, body, &verified), "{verified:?}");
    }
    check_signed(token, body);
}

fn receiver(url: &str) -> Receiver {
    let clock = Clock::from_fn(|| UNIX_EPOCH + Duration::from_millis(NOW.0));
    Receiver::new(KEYS[0], KEYS[1]).expect("they are not empty").at_url(url).clock(clock)
}

fn verify(receiver: &Receiver, token: &[u8], body: &[u8]) -> Option<Verified> {
    let mut headers = HeaderMap::new();
    headers.insert(SIGNATURE_HEADER, HeaderValue::from_bytes(token).ok()?);
    receiver.verify(&headers, &Uri::default(), body).ok()
}

/// Whether the token is accepted if the header contains this message id.
fn is_taken_as(receiver: &Receiver, token: &str, body: &[u8], message_id: &'static str) -> bool {
    let mut headers = HeaderMap::new();
    headers.insert(SIGNATURE_HEADER, HeaderValue::from_str(token).expect("a token is text"));
    headers.insert("upstash-message-id", HeaderValue::from_static(message_id));
    receiver.verify(&headers, &Uri::default(), body).is_ok()
}

/// Verifies the same token independently.
fn is_proven(token: &[u8], body: &[u8], verified: &Verified) -> bool {
    let token = std::str::from_utf8(token).expect("a token is text");
    let [header, claims, mac] = token.split('.').collect::<Vec<_>>()[..] else { return false };
    let signed = &token[..header.len() + 1 + claims.len()];
    let mac = URL_SAFE_NO_PAD.decode(mac).expect("a MAC is base64");
    let json = |part: &str| -> Value {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).expect("a part is base64")).expect("a part is JSON")
    };
    let (header, claims) = (json(header), json(claims));
    let now = i64::try_from(NOW.as_seconds()).expect("it is not that late");
    let hash = URL_SAFE.encode(Sha256::digest(body));
    KEYS.iter().any(|key| hmac_sha256(key.as_bytes(), signed.as_bytes()) == mac)
        && header["alg"] == "HS256"
        && claims["iss"] == "Upstash"
        && claims["sub"] == URL
        && verified.url == URL
        && claims["exp"] == verified.expires_at
        && (now + 1..=now + 3_600).contains(&verified.expires_at)
        && claims["nbf"].as_i64().is_some_and(|nbf| nbf <= now)
        && claims["messageId"].as_str() == verified.message_id.as_deref()
        && verified.message_id.as_ref().is_none_or(|id| id.bytes().all(|byte| byte.is_ascii_graphic()))
        && claims["body"].as_str().is_some_and(|claim| claim == hash || claim == hash.trim_end_matches('='))
}

/// A token of the server is accepted exactly for what it was signed for.
fn check_signed(url: &[u8], body: &[u8]) {
    let (at, url) = choice(url);
    let url = String::from_utf8_lossy(url);
    let hash = body_hash(body);
    let expires_at = NOW.plus_millis(1_000 + u64::from(at) * 1_000);
    // Every second one contains its message id.
    let message_id = (at % 2 == 1).then_some("msg_1");
    let (jwt_id, hops) = ("jwt_1", at.into());
    let claims = Claims { url: &url, issued_at: NOW, expires_at, jwt_id, body_hash: &hash, message_id, hops };
    let key = KEYS[usize::from(at) % KEYS.len()];
    let token = sign(&SigningKey::new(key), &claims);
    let receiver = receiver(&url);
    let verified = verify(&receiver, token.as_bytes(), body);
    assert_eq!(verified.is_some(), token.len() <= TOKEN_BYTES_MAX, "{token}");
    if let Some(verified) = verified {
        assert_eq!((verified.url, verified.jwt_id.as_deref()), (url.to_string(), Some(jwt_id)));
        assert_eq!(verified.message_id.as_deref(), message_id);
        assert!(is_taken_as(&receiver, &token, body, "msg_1"));
        assert_eq!(is_taken_as(&receiver, &token, body, "msg_2"), message_id.is_none(), "under another id");
    }
    let place = usize::from(at) * 7 % token.len();
    let mut changed = token.clone().into_bytes();
    changed[place] = if changed[place] == b'A' { b'g' } else { b'A' };
    assert_eq!(verify(&receiver, &changed, body), None, "another character at {place}");
    assert_eq!(verify(&receiver, &token.as_bytes()[..token.len() - 1], body), None);
    assert_eq!(verify(&receiver, token.as_bytes(), &[body, b"x"].concat()), None, "another body");
    assert_eq!(verify(&self::receiver(&format!("{url}x")), token.as_bytes(), body), None, "another URL");
}
