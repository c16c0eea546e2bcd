//! Recognizes a delivery that returns to the server that sent it.
//!
//! The egress policy refuses the server's own addresses and its `public_url` as destinations. The server may also be
//! reachable under other names: a DNS alias, a load balancer, or an address that a proxy shares with other sites. It
//! cannot know all of them, and refusing a shared address would block the other sites. Therefore deliveries carry a
//! mark that only this process knows, and the API rejects requests that carry it. The mark is bound to the path, so
//! that a handler that copies all headers of a delivery into a publish is not mistaken for a loop.

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use posthaste_wire::encoding::hex;
use sha2::{Digest, Sha256};
use std::fmt;

/// The header with the mark.
const LOOP: HeaderName = HeaderName::from_static("posthaste-loop");

/// Creates and recognizes marks. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LoopMark([u8; 32]);

impl fmt::Debug for LoopMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoopMark(…)")
    }
}

impl LoopMark {
    /// Creates a marker. Only code that knows the secret can create its marks.
    pub fn new(secret: [u8; 32]) -> LoopMark {
        LoopMark(secret)
    }

    /// Adds the mark for this path to the headers.
    pub(super) fn put_on(&self, headers: &mut HeaderMap, path_and_query: &str) {
        if let Ok(mark) = HeaderValue::try_from(self.of(path_and_query)) {
            headers.insert(LOOP, mark);
        }
    }

    /// Whether this process sent this request.
    pub fn is_on(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        let Some(mark) = headers.get(LOOP) else { return false };
        uri.path_and_query().is_some_and(|path| mark == self.of(path.as_str()).as_str())
    }

    fn of(&self, path_and_query: &str) -> String {
        let digest = Sha256::new().chain_update(self.0).chain_update(path_and_query).finalize();
        hex(&digest[..16])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_requests_to_the_same_path_are_recognised() {
        let (ours, other) = (LoopMark::new([1; 32]), LoopMark::new([2; 32]));
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let mut headers = HeaderMap::new();
        assert!(!ours.is_on(&headers, &uri("/v2/publish/https://a.example/?x=1")));
        ours.put_on(&mut headers, "/v2/publish/https://a.example/?x=1");
        assert!(ours.is_on(&headers, &uri("/v2/publish/https://a.example/?x=1")));
        assert!(!ours.is_on(&headers, &uri("/v2/publish/https://a.example/?x=2")), "copied into another request");
        assert!(!other.is_on(&headers, &uri("/v2/publish/https://a.example/?x=1")), "another server");
        assert_eq!(format!("{ours:?}"), "LoopMark(…)");
    }
}
