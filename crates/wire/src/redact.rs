//! `Upstash-Redact-Fields`: the parts of a message that API responses must hide.
//!
//! A hidden value shows as `REDACTED:` and 64 hex digits. They are the same for the same value of one tenant, so that
//! two values can still be compared. The digits are keyed, so a reader cannot find a short value by trying candidates.
//! Deliveries and replays always use the originals.

use crate::encoding::hex;
use crate::header;
use crate::id::TenantId;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::fmt;

/// Most header names in one list.
const NAMES_MAX: usize = 100;

/// The parts of a message that are hidden.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedactFields {
    /// The body.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub body: bool,
    /// Every header value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_headers: bool,
    /// The values of these headers, with names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
}

/// The text is not a list of fields that can be hidden. Errors do not repeat it, because it may contain the value to
/// hide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRedactFields {
    /// The item with this number, counted from 1, is not a field.
    Item(usize),
    /// Too many headers.
    TooMany,
}

impl fmt::Display for InvalidRedactFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidRedactFields::Item(nth) => write!(f, "item {nth} of the list is not a field to redact")?,
            InvalidRedactFields::TooMany => f.write_str("the list has too many headers")?,
        }
        write!(f, "; accepted are body, header and up to {NAMES_MAX} header[Name], separated by commas")
    }
}

impl std::error::Error for InvalidRedactFields {}

impl RedactFields {
    /// The fields that either of the two hides.
    pub fn union(&self, other: &RedactFields) -> RedactFields {
        let mut headers = self.headers.clone();
        headers.extend(other.headers.iter().filter(|name| !self.headers.contains(name)).cloned());
        RedactFields { body: self.body || other.body, all_headers: self.all_headers || other.all_headers, headers }
    }

    /// Reads a list such as `body, header[Authorization]`.
    ///
    /// Unknown fields are rejected, never skipped, because the publisher wants to hide them.
    pub fn parse(text: &str) -> Result<RedactFields, InvalidRedactFields> {
        let mut fields = RedactFields::default();
        for (item, nth) in text.split(',').zip(1..) {
            match item.trim_matches([' ', '\t']) {
                "body" => fields.body = true,
                "header" | "headers" => fields.all_headers = true,
                item => {
                    let name = bracketed_name(item).ok_or(InvalidRedactFields::Item(nth))?;
                    if !fields.headers.contains(&name) {
                        fields.headers.push(name);
                    }
                    if fields.headers.len() > NAMES_MAX {
                        return Err(InvalidRedactFields::TooMany);
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

/// The list as [`RedactFields::parse`] reads it; empty if nothing is hidden.
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

/// Headers whose values are credentials. Read-only callers do not see them, even if the publisher did not ask to hide
/// them.
pub const CREDENTIAL_HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "x-auth-token"];

/// Whether a header carries a credential, by its own name or by the name under which it is forwarded.
pub fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_setting = name.starts_with(header::PREFIX);
    let sent_as = name.rsplit_once("forward-").filter(|_| is_setting).map_or(name.as_str(), |(_, sent_as)| sent_as);
    CREDENTIAL_HEADERS.contains(&sent_as)
}

/// Makes the marks that replace a tenant's hidden values. Its debug output shows no key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    key: [u8; 32],
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marks")
    }
}

impl Marks {
    /// The marks of a tenant, derived from the secret of the server's store.
    pub fn of(secret: &[u8; 32], tenant: TenantId) -> Marks {
        let mut mac = keyed(secret);
        mac.update(b"redaction marks of tenant ");
        mac.update(&tenant.0.to_be_bytes());
        Marks { key: mac.finalize().into_bytes().into() }
    }

    /// The mark that replaces this value.
    pub fn mark(&self, original: &[u8]) -> String {
        let mut mark = self.begin();
        mark.update(original);
        mark.finish()
    }

    /// Starts the mark of a value that arrives in pieces.
    pub fn begin(&self) -> Mark {
        Mark(keyed(&self.key))
    }
}

/// A mark that is being made.
pub struct Mark(Hmac<Sha256>);

impl Mark {
    /// Adds the next piece of the value.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The mark that replaces all pieces together.
    pub fn finish(self) -> String {
        format!("REDACTED:{}", hex(&self.0.finalize().into_bytes()))
    }
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
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
    fn an_invalid_list_is_rejected_with_the_position() {
        for (text, nth) in [
            ("", 1),
            (",", 1),
            ("body,", 2),
            ("passwords", 1),
            ("body, header[a], Body", 3),
            ("header[", 1),
            ("header]", 1),
            ("header[]", 1),
            ("header[a]b]", 1),
            ("header[a b]", 1),
            ("header[a,b]", 1),
            ("header [a]", 1),
            ("headers[[a]]", 1),
            ("headerss[a]", 1),
            ("body[a]", 1),
        ] {
            assert_eq!(RedactFields::parse(text), Err(InvalidRedactFields::Item(nth)), "{text}");
        }
        let different: Vec<String> = (0..=NAMES_MAX).map(|n| format!("header[a{n}]")).collect();
        assert_eq!(RedactFields::parse(&different.join(",")), Err(InvalidRedactFields::TooMany));
        let accepted = "; accepted are body, header and up to 100 header[Name], separated by commas";
        for (error, expected) in [
            (InvalidRedactFields::Item(2), "item 2 of the list is not a field to redact"),
            (InvalidRedactFields::TooMany, "the list has too many headers"),
        ] {
            assert_eq!(error.to_string(), format!("{expected}{accepted}"));
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
    fn a_mark_is_the_same_for_the_same_value_of_one_tenant_only() {
        let (one, other) = (Marks::of(&[7; 32], TenantId(1)), Marks::of(&[7; 32], TenantId(2)));
        let mark = one.mark(b"1234");
        let digits = mark.strip_prefix("REDACTED:").unwrap();
        assert!(digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')), "{mark}");
        assert_eq!(mark, Marks::of(&[7; 32], TenantId(1)).mark(b"1234"), "it outlives a restart");
        assert_ne!(mark, one.mark(b"1235"));
        assert_ne!(mark, other.mark(b"1234"), "another tenant learns nothing from it");
        assert_ne!(mark, Marks::of(&[8; 32], TenantId(1)).mark(b"1234"), "it takes the secret to make it");
        let mut pieces = one.begin();
        pieces.update(b"12");
        pieces.update(b"34");
        assert_eq!(pieces.finish(), mark);
        // The plain hash, which anyone could compute.
        assert_ne!(mark, "REDACTED:03ac674216f3e15c761ee1a5e255f067953623c8b388b4459e13f978d7c846f4");
        assert_eq!(format!("{one:?}"), "Marks");
    }

    #[test]
    fn credentials_are_recognized_by_the_name_they_are_forwarded_under() {
        for name in [
            "Authorization",
            "COOKIE",
            "Set-Cookie",
            "Proxy-Authorization",
            "X-Api-Key",
            "Upstash-Forward-Authorization",
            "Upstash-Callback-Forward-Cookie",
            "upstash-failure-callback-forward-authorization",
        ] {
            assert!(is_credential(name), "{name}");
        }
        for name in ["Content-Type", "X-Forward-Cookie", "Authorization-Info", "Upstash-Forward-X-Trace", ""] {
            assert!(!is_credential(name), "{name}");
        }
    }
}
