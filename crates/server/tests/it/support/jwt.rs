//! Verifies `Upstash-Signature` as a receiver does, without any code of the server.

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The claims of a token, if this key signed it.
pub(crate) fn verify(token: &str, key: &str) -> Option<Value> {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, payload, mac] = parts.as_slice() else { return None };
    let signed = format!("{header}.{payload}");
    if URL_SAFE_NO_PAD.decode(mac).ok()? != hmac_sha256(key.as_bytes(), signed.as_bytes()) {
        return None;
    }
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    assert_eq!(header, serde_json::json!({ "alg": "HS256", "typ": "JWT" }));
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

/// The `body` claim.
pub(crate) fn body_claim(body: &[u8]) -> String {
    URL_SAFE.encode(Sha256::digest(body))
}

/// RFC 2104, for keys of at most one block.
fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 64;
    assert!(key.len() <= BLOCK);
    let padded = |pad: u8| -> [u8; BLOCK] { std::array::from_fn(|at| key.get(at).copied().unwrap_or(0) ^ pad) };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}
