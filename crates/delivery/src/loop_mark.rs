//! Recognises a delivery that has come back to the server that sent it.
//!
//! Under its own addresses and its `public_url` the server is refused as a destination. It may be reached under other names
//! too: an alias in DNS, a load balancer, an address that a proxy shares with other sites. Which of them lead here cannot be
//! known before, and refusing a shared address would cut off its other sites. So deliveries carry a mark that only this
//! process knows, and the API refuses requests that have it. It is bound to the path, so that a handler that copies all
//! headers of a delivery into a publish of its own is not taken for a loop.

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use posthaste_wire::encoding::hex;
use sha2::{Digest, Sha256};
use std::fmt;

/// The header with the mark.
const LOOP: HeaderName = HeaderName::from_static("posthaste-loop");

/// Makes and recognises marks. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LoopMark([u8; 32]);

impl fmt::Debug for LoopMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoopMark(…)")
    }
}

impl LoopMark {
    /// Marks that only who knows the secret can make.
    pub fn new(secret: [u8; 32]) -> LoopMark {
        LoopMark(secret)
    }

    /// Marks a request to this path.
    pub(super) fn put_on(&self, headers: &mut HeaderMap, path_and_query: &str) {
        if let Ok(mark) = HeaderValue::try_from(self.of(path_and_query)) {
            headers.insert(LOOP, mark);
        }
    }

    /// Whether this very request was sent by us.
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
