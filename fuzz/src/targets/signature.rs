//! Signatures: a verifier that shares no code with the signer reads exactly the claims, and accepts no other token.

use super::choice;
use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use posthaste_wire::signature::{Claims, SigningKey, body_hash, sign};
use posthaste_wire::time::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) fn run(data: &[u8]) {
    if let Ok(token) = std::str::from_utf8(data) {
        assert_eq!(verify(token, "sig_nobody_has_this_key"), None, "{token:?} is not signed");
    }
    let (hops, data) = choice(data);
    let (at, data) = choice(data);
    let texts: Vec<String> =
        data.splitn(4, |byte| *byte == b'\n').map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    let [key, url, jwt_id, body] = &texts[..] else { return };
    let hash = body_hash(body.as_bytes());
    assert_eq!(hash, URL_SAFE.encode(Sha256::digest(body)));
    let issued_at = Timestamp(super::NOW.0 + u64::from(at));
    let expires_at = issued_at.plus_millis(300_000);
    // Every second one contains its message id.
    let message_id = (at % 2 == 1).then_some(jwt_id.as_str());
    let claims = Claims { url, issued_at, expires_at, jwt_id, body_hash: &hash, message_id, hops: hops.into() };
    let token = sign(&SigningKey::new(key.as_str()), &claims);
    let mut expected = json!({
        "iss": "Upstash", "sub": url, "exp": expires_at.as_seconds(), "nbf": 0,
        "iat": issued_at.as_seconds(), "jti": jwt_id, "body": hash,
    });
    if let Some(id) = message_id {
        expected["messageId"] = id.into();
    }
    if hops > 0 {
        expected["hops"] = hops.into();
    }
    assert_eq!(verify(&token, key), Some(expected));
    assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)), "a header value");
    check_forgeries(&token, key, usize::from(at));
}

/// A changed character, a missing one, or another key.
fn check_forgeries(token: &str, key: &str, at: usize) {
    let at = at * 7 % token.len();
    let mut changed = token.as_bytes().to_vec();
    changed[at] = if changed[at] == b'A' { b'g' } else { b'A' };
    let changed = String::from_utf8(changed).expect("ASCII");
    assert_eq!(verify(&changed, key), None, "{changed}");
    assert_eq!(verify(&token[..token.len() - 1], key), None);
    assert_eq!(verify(token, &format!("{key}x")), None);
}

/// The claims of a token if this key signed it.
fn verify(token: &str, key: &str) -> Option<Value> {
    let (signed, mac) = token.rsplit_once('.')?;
    let (header, payload) = signed.split_once('.')?;
    if URL_SAFE_NO_PAD.decode(mac).ok()? != hmac_sha256(key.as_bytes(), signed.as_bytes()) {
        return None;
    }
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    if header != json!({ "alg": "HS256", "typ": "JWT" }) {
        return None;
    }
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

/// RFC 2104.
pub(super) fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 64;
    let key = if key.len() > BLOCK { Sha256::digest(key).to_vec() } else { key.to_vec() };
    let padded = |pad: u8| -> [u8; BLOCK] { std::array::from_fn(|at| key.get(at).copied().unwrap_or(0) ^ pad) };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}
