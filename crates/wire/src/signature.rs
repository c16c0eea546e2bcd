//! Signing keys, and the signature that every delivery carries.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A signing key such as `sig_…`: the secret is the text itself. Never printed, not even by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SigningKey(String);

impl SigningKey {
    /// Takes a key as configured or stored.
    pub fn new(text: impl Into<String>) -> Self {
        SigningKey(text.into())
    }

    /// A fresh key from random bytes.
    pub fn from_random(bytes: [u8; 21]) -> Self {
        SigningKey(format!("sig_{}", bs58::encode(bytes).into_string()))
    }

    /// The secret. Only for signing and for the one endpoint that shows keys to their owner.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

/// A tenant's two keys: deliveries are signed with `current`, receivers also accept `next`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningKeys {
    /// Signs every delivery.
    pub current: SigningKey,
    /// Becomes current at the next rotation.
    pub next: SigningKey,
}
