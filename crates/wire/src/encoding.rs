//! Bytes as text: base64 in the two alphabets of the protocol, header values that are not UTF-8, and errors in a JSON
//! text.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use std::borrow::Cow;
use std::fmt;

/// Standard alphabet, padded: bodies inside JSON.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Reverses [`base64()`]; `None` if the text is not base64.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// URL-safe alphabet, padded: the body hash inside a signature.
pub fn base64url_padded(bytes: &[u8]) -> String {
    URL_SAFE.encode(bytes)
}

/// URL-safe alphabet without padding, appended to `out`: the parts of a signature.
pub fn push_base64url(bytes: &[u8], out: &mut String) {
    URL_SAFE_NO_PAD.encode_string(bytes, out);
}

/// Reverses [`push_base64url`]; `None` if the text is not in that alphabet.
pub fn from_base64url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The private-use character of a byte `b` from 0x80 on is `ESCAPES + b`: U+F780 to U+F7FF.
const ESCAPES: u32 = 0xf700;

/// A header value as text to store. UTF-8 stays as it is. Otherwise each byte from 0x80 on becomes a private-use
/// character, as Python does with surrogates. [`header_bytes`] returns exactly the same bytes.
pub fn header_text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(|c| escaped(c).is_some()) => Cow::Borrowed(text),
        _ => bytes.iter().map(|byte| escape(*byte)).collect::<String>().into(),
    }
}

/// The bytes of a header value that is stored as [`header_text`].
pub fn header_bytes(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(|c| escaped(c).is_some()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match escaped(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

/// The stored header value as people see it.
pub fn header_shown(text: &str) -> Cow<'_, str> {
    match header_bytes(unsealed(text)) {
        Cow::Borrowed(_) => Cow::Borrowed(unsealed(text)),
        Cow::Owned(bytes) => Cow::Owned(utf8_or_latin1(&bytes).into_owned()),
    }
}

/// Decodes text in UTF-8 or in Latin-1, which JavaScript's `fetch` uses for headers.
pub fn utf8_or_latin1(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect::<String>().into(),
    }
}

/// Begins a value that the server has encrypted before it stored it. No header can be published with it: see
/// `forward::Line`, and HTTP does not allow control characters either.
pub const SEALED: char = '\u{1}';

/// Stands for an encrypted value where the key is not at hand.
pub const WITHHELD: &str = "REDACTED";

/// Whether a stored value of a header is encrypted.
pub fn is_sealed(text: &str) -> bool {
    // Of every header of every attempt, so by the byte.
    text.as_bytes().first().is_some_and(|first| char::from(*first) == SEALED)
}

/// A stored value of a header as it is, unless it is encrypted: then [`WITHHELD`], which is all that people see of it.
pub fn unsealed(text: &str) -> &str {
    if is_sealed(text) { WITHHELD } else { text }
}

fn escape(byte: u8) -> char {
    if byte.is_ascii() {
        return char::from(byte);
    }
    char::from_u32(ESCAPES + u32::from(byte)).expect("private-use characters are characters")
}

/// The byte that a private-use character stands for.
fn escaped(c: char) -> Option<u8> {
    u32::from(c).checked_sub(ESCAPES).and_then(|byte| u8::try_from(byte).ok()).filter(|byte| !byte.is_ascii())
}

/// The error in a JSON text, without the text itself: it may hold a secret, and errors are logged and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError(String);

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> JsonError {
        let text = error.to_string();
        // The library quotes the value: `invalid type: string "…", expected a map at line 1 column 9`.
        let quoting = ["invalid type", "invalid value"].into_iter().find(|kind| text.starts_with(kind));
        JsonError(match (quoting, text.rfind(", expected ")) {
            (Some(kind), Some(expected)) => format!("{kind}{}", &text[expected..]),
            _ => text,
        })
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JsonError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_of_json_do_not_repeat_what_was_there() {
        let error = |text: &str| {
            let read = serde_json::from_str::<std::collections::BTreeMap<String, Option<u8>>>(text);
            JsonError::from(read.unwrap_err()).to_string()
        };
        for (text, expected) in [
            (r#""secret""#, "invalid type, expected a map at line 1 column "),
            (r#"{"a":"secret, expected one"}"#, "invalid type, expected u8 at line 1 column "),
            (r#"{"a":4711}"#, "invalid value, expected u8 at line 1 column "),
            ("{", "EOF while parsing an object at line 1 column "),
        ] {
            // The column depends on features of the library that other crates may enable.
            assert_eq!(error(text).trim_end_matches(|c: char| c.is_ascii_digit()), expected, "{text}");
        }
    }

    #[test]
    fn values_of_headers_are_text_where_they_can_be() {
        let cases: [(&[u8], &str, &str); 6] = [
            (b"", "", ""),
            (b"plain", "plain", "plain"),
            ("grün".as_bytes(), "grün", "grün"),
            (b"caf\xe9", "caf\u{f7e9}", "café"),
            (b"\xff\xc3\xbc", "\u{f7ff}\u{f7c3}\u{f7bc}", "ÿÃ¼"),
            ("\u{f7e9}".as_bytes(), "\u{f7ef}\u{f79f}\u{f7a9}", "\u{f7e9}"),
        ];
        for (bytes, text, shown) in cases {
            assert_eq!(header_text(bytes), text, "{bytes:?}");
            assert_eq!(header_shown(text), shown, "{bytes:?}");
        }
    }

    #[test]
    fn of_an_encrypted_value_only_its_existence_is_shown() {
        let sealed = "\u{1}sealed:1:0011223344556677:AAAA";
        assert!(is_sealed(sealed) && !is_sealed("sealed:1:a:b") && !is_sealed("") && !is_sealed("a\u{1}"));
        assert_eq!((unsealed(sealed), header_shown(sealed).as_ref()), (WITHHELD, WITHHELD));
        assert_eq!(unsealed("Bearer a"), "Bearer a");
        assert!(sealed.starts_with(char::is_control), "the parsers refuse it");
    }

    proptest! {
        #[test]
        fn the_bytes_of_a_header_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..20), text in ".*") {
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                let text = header_text(bytes);
                prop_assert_eq!(header_bytes(&text), bytes);
            }
        }
    }
}
