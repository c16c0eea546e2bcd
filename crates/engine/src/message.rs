//! A message: what was published, immutable from then on, and the row that says what is next for it.

use bytes::Bytes;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What was published. Stored once and never changed; a retry rewrites only its [`Live`] row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Made by the server when the message was accepted.
    pub id: MessageId,
    /// Who published it.
    pub tenant: TenantId,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its first attempt is due; equal to `created_at` without a delay.
    pub not_before: Timestamp,
    /// Where to, and under which conditions.
    pub spec: MessageSpec,
    /// The exact bytes to send.
    pub body: Bytes,
}

/// Where a message goes and under which conditions: everything the publisher may choose but the body.
///
/// Stored as JSON; new fields need `#[serde(default)]` so that stored messages stay readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSpec {
    /// The destination, verbatim, query included.
    pub url: String,
    /// Upper-case HTTP method of the delivery.
    pub method: String,
    /// Headers to send, names in canonical form, one entry per received line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// How many attempts may follow the first.
    pub retries: u32,
    /// Retry-delay expression as given; checked when it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// How long one attempt may take; `None` means the server's maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Labels for filtering, in the order given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// What API answers must hide.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
    /// Address of the publisher.
    pub caller_ip: String,
    /// The URL group it was published to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// The name of its endpoint in that group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// What is next for a message that has not ended: the narrow row that a retry rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Which message.
    pub id: MessageId,
    /// Whose.
    pub tenant: TenantId,
    /// Hash of tenant and destination origin; messages with one share its concurrency cap.
    pub origin: Origin,
    /// Size of the body, for the bound on bytes in flight.
    pub body_bytes: u32,
    /// When the next attempt is due.
    pub due: Timestamp,
    /// Retries done so far; 0 before and during the first attempt.
    pub retried: u32,
    /// A cancel was recorded while an attempt was under way.
    pub cancel_requested: bool,
}

impl Live {
    /// The order in which live messages become due.
    pub fn due_key(&self) -> DueKey {
        DueKey { due: self.due, seq: self.id.seq }
    }
}

/// Order of live messages: by due time, then by creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DueKey {
    /// When the next attempt is due.
    pub due: Timestamp,
    /// Which message.
    pub seq: Seq,
}

impl DueKey {
    /// Before every live message.
    pub const MIN: DueKey = DueKey { due: Timestamp(0), seq: Seq::MIN };
}

/// Hash of (tenant, scheme, host, port): the unit of the per-destination concurrency cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Origin(pub u64);

impl Origin {
    /// The hash of a tenant and `scheme://host:port`. It is stored, so it must never change.
    pub fn of(tenant: TenantId, origin: &str) -> Origin {
        let hash = Sha256::new().chain_update(tenant.0.to_be_bytes()).chain_update(origin).finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        Origin(u64::from_be_bytes(first))
    }
}

/// A duplicate key: hash of what makes two publishes the same one, within a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupKey(pub [u8; 32]);
