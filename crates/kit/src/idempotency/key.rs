//! The name of a piece of work, the same each time it is requested.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Maximum size of a part of a key, in bytes. A longer part is rejected, because a key consists of ids, not of content.
pub const PART_BYTES_MAX: usize = 96;

const PARTS: [&str; 5] = ["domain", "user", "entity", "operation", "version"];

/// `<domain>:<user>:<entity>:<operation>:<version>`: the part of the business, the user, the object, the operation, and
/// its version. Requests for the same work have the same key; a new version makes it new work.
///
/// ```
/// use posthaste_kit::idempotency::BusinessKey;
///
/// let key = BusinessKey::new("billing", "user_7", "invoice_42", "send", "v1")?;
/// assert_eq!(key.to_string(), "billing:user_7:invoice_42:send:v1");
/// assert_eq!((key.domain(), key.operation()), ("billing", "send"));
/// assert!("billing:user_7:invoice_42".parse::<BusinessKey>().is_err());
/// # Ok::<(), posthaste_kit::idempotency::key::InvalidKey>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BusinessKey(String);

/// Why a text is not a key. It does not repeat the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a business key is <domain>:<user>:<entity>:<operation>:<version>: {what}")]
pub struct InvalidKey {
    what: String,
}

impl BusinessKey {
    /// A key of these parts. No part may be empty, longer than [`PART_BYTES_MAX`], or contain a colon, white space or a
    /// control character.
    pub fn new(
        domain: impl AsRef<str>,
        user: impl AsRef<str>,
        entity: impl AsRef<str>,
        operation: impl AsRef<str>,
        version: impl AsRef<str>,
    ) -> Result<BusinessKey, InvalidKey> {
        let parts = [domain.as_ref(), user.as_ref(), entity.as_ref(), operation.as_ref(), version.as_ref()];
        for (name, part) in PARTS.into_iter().zip(parts) {
            check(name, part)?;
        }
        Ok(BusinessKey(parts.join(":")))
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part of the business.
    pub fn domain(&self) -> &str {
        self.part(0)
    }

    /// The user.
    pub fn user(&self) -> &str {
        self.part(1)
    }

    /// The object.
    pub fn entity(&self) -> &str {
        self.part(2)
    }

    /// The operation.
    pub fn operation(&self) -> &str {
        self.part(3)
    }

    /// The version of the operation.
    pub fn version(&self) -> &str {
        self.part(4)
    }

    fn part(&self, n: usize) -> &str {
        self.0.split(':').nth(n).unwrap_or_default()
    }
}

fn check(name: &str, part: &str) -> Result<(), InvalidKey> {
    let refuse = |what: &str| Err(InvalidKey { what: format!("{name} {what}") });
    if part.is_empty() {
        return refuse("is empty");
    }
    if part.len() > PART_BYTES_MAX {
        return refuse(&format!("has {} bytes, at most {PART_BYTES_MAX} are allowed", part.len()));
    }
    match part.chars().find(|c| *c == ':' || c.is_whitespace() || c.is_control()) {
        Some(':') => refuse("has a colon"),
        Some(_) => refuse("has white space or a control character"),
        None => Ok(()),
    }
}

impl FromStr for BusinessKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<BusinessKey, InvalidKey> {
        let parts: Vec<&str> = text.split(':').take(PARTS.len() + 1).collect();
        match parts[..] {
            [domain, user, entity, operation, version] => BusinessKey::new(domain, user, entity, operation, version),
            _ => Err(InvalidKey { what: "it must have five parts".to_owned() }),
        }
    }
}

impl TryFrom<String> for BusinessKey {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<BusinessKey, InvalidKey> {
        text.parse()
    }
}

impl From<BusinessKey> for String {
    fn from(key: BusinessKey) -> String {
        key.0
    }
}

impl AsRef<str> for BusinessKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BusinessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::KEY_BYTES_MAX;
    use proptest::prelude::*;

    #[test]
    fn a_key_has_five_parts_that_cannot_be_mixed_up() {
        let long = "x".repeat(PART_BYTES_MAX + 1);
        let cases = [
            ("a:b:c:d", "it must have five parts"),
            ("a:b:c:d:e:f", "it must have five parts"),
            ("", "it must have five parts"),
            ("a::c:d:e", "user is empty"),
            ("a:b:c:d:", "version is empty"),
            ("a:b:c d:d:e", "entity has white space or a control character"),
            ("a:b:c:d\0:e", "operation has white space or a control character"),
            (&format!("{long}:b:c:d:e"), "domain has 97 bytes, at most 96 are allowed"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<BusinessKey>().unwrap_err().to_string();
            assert_eq!(error, format!("a business key is <domain>:<user>:<entity>:<operation>:<version>: {expected}"));
        }
        let error = BusinessKey::new("a", "b:c", "c", "d", "e").unwrap_err();
        assert!(error.to_string().ends_with(": user has a colon"));
    }

    #[test]
    fn the_longest_key_needs_no_hash() {
        let part = "x".repeat(PART_BYTES_MAX);
        let key = BusinessKey::new(&part, &part, &part, &part, &part).unwrap();
        assert!(key.as_str().len() <= KEY_BYTES_MAX);
    }

    #[test]
    fn a_key_is_text_in_json() {
        let key: BusinessKey = serde_json::from_str(r#""a:b:c:d:v1""#).unwrap();
        assert_eq!(serde_json::to_string(&key).unwrap(), r#""a:b:c:d:v1""#);
        assert!(serde_json::from_str::<BusinessKey>(r#""a:b""#).is_err());
    }

    proptest! {
        #[test]
        fn text_and_parts_are_the_same_key(parts in prop::array::uniform5("[^:\\s\\pC]{1,20}")) {
            let [domain, user, entity, operation, version] = &parts;
            let key = BusinessKey::new(domain, user, entity, operation, version).unwrap();
            prop_assert_eq!(&key.to_string().parse::<BusinessKey>().unwrap(), &key);
            let read = [key.domain(), key.user(), key.entity(), key.operation(), key.version()];
            prop_assert_eq!(read.map(str::to_owned), parts);
        }
    }
}
