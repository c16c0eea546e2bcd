//! `Upstash-Redact-Fields`: which parts of a message API answers must hide.
//!
//! What is hidden shows as `REDACTED:` and the SHA-256 of the original, so that two values can still
//! be compared. Deliveries and replays always use the originals.

use crate::encoding::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Which parts of a message are hidden.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedactFields {
    /// The body.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub body: bool,
    /// Every header value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_headers: bool,
    /// The values of these headers, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
}

impl RedactFields {
    /// Nothing is hidden.
    pub fn is_none(&self) -> bool {
        *self == RedactFields::default()
    }

    /// Whether the value of this header is hidden.
    pub fn hides_header(&self, name: &str) -> bool {
        self.all_headers || self.headers.iter().any(|hidden| hidden.eq_ignore_ascii_case(name))
    }
}

/// What stands in the place of a hidden value.
pub fn mark(original: &[u8]) -> String {
    format!("REDACTED:{}", hex(&Sha256::digest(original)))
}
