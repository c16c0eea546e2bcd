//! Duplicate keys: which publishes count as the same one.
//!
//! A key is a hash, so that ids of any length need the same space. The store scopes keys by tenant.

use crate::message::DedupKey;
use sha2::{Digest, Sha256};

/// The key of an id that the publisher chose.
pub fn key_of_id(id: &str) -> DedupKey {
    let mut hash = Sha256::new();
    hash.update(b"id\0");
    hash.update(id.as_bytes());
    DedupKey(hash.finalize().into())
}

/// The key of a publish's content: destination, body and content headers.
///
/// Headers are `(canonical name, value)`; their order does not matter.
pub fn key_of_content(destination: &str, headers: &[(String, String)], body: &[u8]) -> DedupKey {
    let mut hash = Sha256::new();
    hash.update(b"content\0");
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(destination.as_bytes());
    part(body);
    let mut sorted: Vec<_> = headers.iter().collect();
    sorted.sort();
    for (name, value) in sorted {
        part(name.as_bytes());
        part(value.as_bytes());
    }
    DedupKey(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn content_keys_differ_when_any_part_differs() {
        let base = key_of_content("https://a.example/", &headers(&[("A", "1"), ("B", "2")]), b"body");
        assert_eq!(base, key_of_content("https://a.example/", &headers(&[("B", "2"), ("A", "1")]), b"body"));
        let others = [
            key_of_content("https://b.example/", &headers(&[("A", "1"), ("B", "2")]), b"body"),
            key_of_content("https://a.example/", &headers(&[("A", "1"), ("B", "3")]), b"body"),
            key_of_content("https://a.example/", &headers(&[("A", "1B"), ("", "2")]), b"body"),
            key_of_content("https://a.example/", &headers(&[("A", "1")]), b"body"),
            key_of_content("https://a.example/", &headers(&[("A", "1"), ("B", "2")]), b"bodY"),
            key_of_id("https://a.example/"),
        ];
        assert!(others.iter().all(|other| *other != base));
    }
}
