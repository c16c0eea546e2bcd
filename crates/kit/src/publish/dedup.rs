//! Deduplication of publishes.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a server remembers ids: a second publish within this time creates no second message. A later one does, and
/// the handler must be idempotent.
pub const DEDUP_WINDOW: Duration = Duration::from_secs(600);
/// Maximum size of an id that is sent unchanged, in bytes. A longer one is replaced by its hash.
pub const DEDUP_ID_BYTES_MAX: usize = 256;

/// How duplicates of a message are detected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dedup {
    /// By an id: messages with the same id are one message.
    Id(DedupId),
    /// By content: destination, body and forwarded headers. A trace context is a forwarded header, so messages of
    /// different traces are different.
    Content,
    /// No deduplication. A publish whose outcome is unknown is then not repeated.
    Off,
}

/// A deduplication id: publishes with the same id within [`DEDUP_WINDOW`] are one message.
///
/// It is a hash of the business key: the same for the same key on every machine, without colons, which QStash
/// rejects, and without names of users, which do not belong in logs.
///
/// ```
/// use posthaste_kit::publish::DedupId;
///
/// let id = DedupId::of_key("billing:u_7:invoice_9:charge:v1");
/// assert_eq!(id, DedupId::of_key("billing:u_7:invoice_9:charge:v1"));
/// assert_ne!(id, DedupId::of_key("billing:u_7:invoice_10:charge:v1"));
/// assert!(!id.as_str().contains(':'));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DedupId(String);

impl DedupId {
    /// The id of a business key.
    pub fn of_key(key: impl fmt::Display) -> DedupId {
        hashed(&format!("key\n{key}"))
    }

    /// The id of a business key that can be published once per period, such as `Duration::from_secs(3_600)` for once an
    /// hour. Periods start at multiples of it since 1970. A period of zero means no period.
    ///
    /// ```
    /// use posthaste_kit::publish::DedupId;
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let (hour, seconds) = (Duration::from_secs(3_600), Duration::from_secs);
    /// let at = |second| DedupId::of_key_in("digest:u_7", hour, UNIX_EPOCH + seconds(second));
    /// assert_eq!(at(3_600), at(7_199));
    /// assert_ne!(at(7_199), at(7_200));
    /// ```
    pub fn of_key_in(key: impl fmt::Display, period: Duration, now: SystemTime) -> DedupId {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        match since.as_nanos().checked_div(period.as_nanos()) {
            Some(number) => hashed(&format!("period\n{}\n{number}\n{key}", period.as_nanos())),
            None => DedupId::of_key(key),
        }
    }

    /// An id from elsewhere, such as the id of a webhook event. It is kept if every server accepts it, and replaced by
    /// its hash otherwise.
    ///
    /// ```
    /// use posthaste_kit::publish::DedupId;
    ///
    /// assert_eq!(DedupId::verbatim("evt_1PqQ2b").as_str(), "evt_1PqQ2b");
    /// assert_ne!(DedupId::verbatim("a:b").as_str(), "a:b");
    /// ```
    pub fn verbatim(id: impl Into<String>) -> DedupId {
        let id = id.into();
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        match !id.is_empty() && id.len() <= DEDUP_ID_BYTES_MAX && id.bytes().all(is_plain) {
            true => DedupId(id),
            false => hashed(&format!("id\n{id}")),
        }
    }

    /// The id as it is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DedupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn hashed(text: &str) -> DedupId {
    DedupId(format!("k_{}", URL_SAFE_NO_PAD.encode(Sha256::digest(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other versions and other programs must create the same ids, otherwise they would publish twice.
    #[test]
    fn ids_never_change_between_versions() {
        let key = DedupId::of_key("billing:u_7:invoice_9:charge:v1");
        assert_eq!(key.as_str(), "k_9GpCV-9nTUauQGt65_MQCQ-yrN2WWcymtaswKB2m-IM");
        let (hour, time) = (Duration::from_secs(3_600), UNIX_EPOCH + Duration::from_secs(7_201));
        let in_period = DedupId::of_key_in("digest:u_7", hour, time);
        assert_eq!(in_period.as_str(), "k_Xn-h5yp5HRP_Y8l6WfPvfRBw8f6jwYeIvuyP87gEXIU");
        assert_eq!(DedupId::of_key_in("digest:u_7", Duration::ZERO, time), DedupId::of_key("digest:u_7"));
        assert_eq!(DedupId::verbatim("a:b").as_str(), "k_UfunRaFKWvIPE_xKAou4UGTI5MWR58lWBFMMjo46ld8");
    }

    #[test]
    fn every_id_is_valid_for_every_server() {
        let long = "x".repeat(DEDUP_ID_BYTES_MAX + 1);
        for id in ["", " ", "a b", "a:b", "ä", "a\nb", &long] {
            let taken = DedupId::verbatim(id);
            assert!(taken.as_str().bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'), "{id}");
            assert!(taken.as_str().len() <= DEDUP_ID_BYTES_MAX && taken.as_str() != id);
        }
        let longest = "x".repeat(DEDUP_ID_BYTES_MAX);
        assert_eq!(DedupId::verbatim(&longest).as_str(), longest);
        // A key and a period can never be confused.
        let (hour, time) = (Duration::from_secs(3_600), UNIX_EPOCH + Duration::from_secs(7_201));
        assert_ne!(DedupId::of_key_in("k", hour, time), DedupId::of_key("period\n3600000000000\n2\nk"));
        assert_ne!(DedupId::of_key("k"), DedupId::verbatim("key\nk"));
    }
}
