//! Base64, in the two alphabets the protocol uses.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};

/// Standard alphabet, padded: bodies inside JSON.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Reverses [`base64()`]; `None` when the text is not base64.
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
