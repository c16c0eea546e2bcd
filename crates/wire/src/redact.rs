//! `Upstash-Redact-Fields`: which parts of a message API answers must hide.
//!
//! What is hidden shows as `REDACTED:` and the SHA-256 of the original, so that two values can still
//! be compared. Deliveries and replays always use the originals.

use crate::encoding::hex;
use crate::header;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Most header names in one list.
const NAMES_MAX: usize = 100;

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

/// The text is not a list of fields that can be hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRedactFields;

impl fmt::Display for InvalidRedactFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a list of fields to redact, accepted are body, header and up to 100 header[Name], separated by commas",
        )
    }
}

impl std::error::Error for InvalidRedactFields {}

impl RedactFields {
    /// What either of two hides.
    pub fn union(&self, other: &RedactFields) -> RedactFields {
        let mut headers = self.headers.clone();
        headers.extend(other.headers.iter().filter(|name| !self.headers.contains(name)).cloned());
        RedactFields { body: self.body || other.body, all_headers: self.all_headers || other.all_headers, headers }
    }

    /// Reads a list such as `body, header[Authorization]`.
    ///
    /// What cannot be understood is refused, never skipped: somebody meant to hide it.
    pub fn parse(text: &str) -> Result<RedactFields, InvalidRedactFields> {
        let mut fields = RedactFields::default();
        for item in text.split(',') {
            match item.trim_matches([' ', '\t']) {
                "body" => fields.body = true,
                "header" | "headers" => fields.all_headers = true,
                item => {
                    let name = bracketed_name(item).ok_or(InvalidRedactFields)?;
                    if !fields.headers.contains(&name) {
                        fields.headers.push(name);
                    }
                    if fields.headers.len() > NAMES_MAX {
                        return Err(InvalidRedactFields);
                    }
                }
            }
        }
        Ok(fields)
    }

    /// Nothing is hidden.
    pub fn is_none(&self) -> bool {
        *self == RedactFields::default()
    }

    /// Whether the value of this header is hidden.
    pub fn hides_header(&self, name: &str) -> bool {
        self.all_headers || self.headers.iter().any(|hidden| hidden.eq_ignore_ascii_case(name))
    }
}

/// As [`RedactFields::parse`] reads it; nothing if nothing is hidden.
impl fmt::Display for RedactFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [(self.body, "body"), (self.all_headers, "header")].into_iter().filter(|(is_hidden, _)| *is_hidden);
        let mut items: Vec<String> = parts.map(|(_, name)| name.to_owned()).collect();
        items.extend(self.headers.iter().map(|name| format!("header[{name}]")));
        f.write_str(&items.join(", "))
    }
}

/// The canonical name in `header[name]` or `headers[name]`.
fn bracketed_name(item: &str) -> Option<String> {
    let rest = item.strip_prefix("header")?;
    let name = rest.strip_prefix('s').unwrap_or(rest).strip_prefix('[')?.strip_suffix(']')?;
    header::is_valid_name(name).then(|| header::canonical(name))
}

/// What stands in the place of a hidden value.
pub fn mark(original: &[u8]) -> String {
    mark_of(&Sha256::digest(original))
}

/// The same, of a value whose SHA-256 is known.
pub fn mark_of(sha256: &[u8]) -> String {
    format!("REDACTED:{}", hex(sha256))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_the_body_and_headers() {
        let fields = |body, all_headers, headers: &[&str]| RedactFields {
            body,
            all_headers,
            headers: headers.iter().map(|name| (*name).to_owned()).collect(),
        };
        for (text, expected) in [
            ("body", fields(true, false, &[])),
            ("header", fields(false, true, &[])),
            ("headers", fields(false, true, &[])),
            ("body,header", fields(true, true, &[])),
            (" body , header[x-api-key] ", fields(true, false, &["X-Api-Key"])),
            ("headers[a],header[A],header[b]", fields(false, false, &["A", "B"])),
        ] {
            assert_eq!(RedactFields::parse(text), Ok(expected.clone()), "{text}");
            assert_eq!(RedactFields::parse(&expected.to_string()), Ok(expected), "{text}, told again");
        }
        assert_eq!(RedactFields::default().to_string(), "");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "",
            ",",
            "body,",
            "passwords",
            "Body",
            "header[",
            "header]",
            "header[]",
            "header[a]b]",
            "header[a b]",
            "header[a,b]",
            "header [a]",
            "headers[[a]]",
            "headerss[a]",
            "body[a]",
        ] {
            assert_eq!(RedactFields::parse(text), Err(InvalidRedactFields), "{text}");
        }
        let many = vec!["header[a]"; 1_000].join(",");
        assert!(RedactFields::parse(&many).is_ok(), "one name, however often");
    }

    #[test]
    fn header_names_are_compared_without_case() {
        let fields = RedactFields::parse("header[Authorization]").unwrap();
        assert!(fields.hides_header("authorization") && !fields.hides_header("Content-Type"));
        assert!(RedactFields::parse("header").unwrap().hides_header("anything"));
    }

    #[test]
    fn the_mark_is_the_hash_of_the_original() {
        let expected = "REDACTED:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(mark(b""), expected);
    }
}
