//! A message: the immutable publish, and the row with its next step.

use crate::workflow::StepRef;
use bytes::Bytes;
use posthaste_wire::destination;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A publish. Stored once and never changed; a retry rewrites only its [`Live`] row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Created by the server when the message was accepted.
    pub id: MessageId,
    /// The publisher.
    pub tenant: TenantId,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its first attempt is due; equal to `created_at` without a delay.
    pub not_before: Timestamp,
    /// Its destination and settings.
    pub spec: MessageSpec,
    /// The exact bytes to send.
    pub body: Bytes,
}

/// The destination and settings of a message: everything that the publisher may choose, except the body.
///
/// Stored as JSON; new fields need `#[serde(default)]` so that stored messages stay readable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSpec {
    /// The destination, verbatim, query included.
    pub url: String,
    /// Upper-case HTTP method of the delivery.
    pub method: String,
    /// Headers to send, names in canonical form, one entry per received line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Number of retries after the first attempt.
    pub retries: u32,
    /// Retry-delay expression as given; it was checked at the publish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// Timeout of one attempt; `None` means the server's maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Labels for filtering, in the order given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Fields that API responses must hide.
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
    /// The queue it was put into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Its flow-control key, with the limits of this message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// The schedule that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// Whether the schedule was triggered manually, outside its times.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
    /// The callback after every attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Box<CallbackSpec>>,
    /// The callback after the final failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_callback: Option<Box<CallbackSpec>>,
    /// The built-in API it was published to, such as `llm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// How many deliveries led to this message.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hops: u32,
    /// Its part in a workflow run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<StepRef>,
    /// The message that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// How its duplicates are recognized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<DedupBy>,
}

/// A body of at least this size that several messages of one publish share is stored once.
const SHARED_BODY_BYTES_MIN: usize = 4 * 1024;

/// Whether two messages were published with the same body. Only the same bytes in memory count; equal bytes elsewhere
/// are not detected.
pub fn is_same_body(one: &Bytes, other: &Bytes) -> bool {
    one.len() >= SHARED_BODY_BYTES_MIN && one.len() == other.len() && one.as_ptr() == other.as_ptr()
}

/// How duplicates are recognized. The id itself is never kept, only its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DedupBy {
    /// The id that the publisher chose.
    Id,
    /// Their contents.
    Content,
}

impl DedupBy {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            DedupBy::Id => "id",
            DedupBy::Content => "content",
        }
    }
}

/// The message that caused another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The message.
    pub id: MessageId,
    /// How it caused the other one.
    pub kind: CauseKind,
}

/// How a message causes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CauseKind {
    /// The new message is the callback of an attempt.
    Callback,
    /// The new message is the failure callback.
    FailureCallback,
    /// The message was in the DLQ and was published again.
    DlqRetry,
}

impl CauseKind {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            CauseKind::Callback => "callback",
            CauseKind::FailureCallback => "failureCallback",
            CauseKind::DlqRetry => "dlqRetry",
        }
    }
}

/// A flow-control key, and the limits that a message sets for it; see [`crate::flow`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// The key.
    pub key: String,
    /// Most deliveries in flight at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<u32>,
    /// Most deliveries started within a period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// Length of that period.
    pub period_ms: u64,
}

/// A callback after an attempt or after the end of the message, as the publisher configured it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackSpec {
    /// Its destination.
    pub url: String,
    /// Upper-case HTTP method of its delivery.
    pub method: String,
    /// Headers to send, names in canonical form, one entry per received line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Number of retries after its first attempt; `None` means that of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Its retry-delay expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// Timeout of one of its attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Delay of its first attempt after the outcome.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub delay_ms: u64,
    /// Its own labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Fields of it that API responses must hide.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
    /// Its flow-control key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_u64(number: &u64) -> bool {
    *number == 0
}

/// The next step of a message that has not ended: the narrow row that a retry rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// The message.
    pub id: MessageId,
    /// The tenant.
    pub tenant: TenantId,
    /// Hash of tenant and destination origin. Messages with the same hash share its concurrency cap.
    pub origin: Origin,
    /// Size of the body, for the limit on bytes in flight.
    pub body_bytes: u32,
    /// When the next attempt is due.
    pub due: Timestamp,
    /// Retries done so far; 0 before and during the first attempt.
    pub retried: u32,
    /// Whether a cancel was recorded while an attempt was in flight.
    pub cancel_requested: bool,
    /// Its place in a queue, if it is in one.
    pub place: Option<Place>,
    /// Its flow-control key, if it has one.
    pub flow: Option<FlowKey>,
    /// Whether it belongs to a workflow run. Its outcome is then recorded in the run, not in the logs and not in the
    /// DLQ.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_step: bool,
}

/// A place in a queue. A message and its callbacks share one turn, and therefore one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The queue.
    pub queue: QueueKey,
    /// The turn.
    pub turn: Turn,
}

/// The order within a queue: by the time of joining it, then by creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Turn {
    /// When the message joins the queue: at the time of its [`Seq`], which a clock that goes back does not change, or
    /// later, after its delay.
    pub at: Timestamp,
    /// The message; for a callback, the message that caused it.
    pub seq: Seq,
}

impl Turn {
    /// The turn of a new message. A delayed message joins later than its position, by whatever clock.
    pub fn new(seq: Seq, created_at: Timestamp, not_before: Timestamp) -> Turn {
        let at = if not_before > created_at { not_before.max(seq.time().plus_millis(1)) } else { seq.time() };
        Turn { at, seq }
    }
}

impl Live {
    /// Whether it is due by the clock, or, in a queue, due since its creation. If the clock went back since then, that
    /// may seem to be in the future.
    pub fn is_due(&self, now: Timestamp) -> bool {
        let joined_at_once = |place: Place| place.turn.seq == self.id.seq && place.turn.at == self.id.seq.time();
        self.due <= now || (self.retried == 0 && self.place.is_some_and(joined_at_once))
    }

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
    /// The message.
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
        Origin(hash(tenant, origin))
    }

    /// The hash for the server of a URL.
    pub fn of_url(tenant: TenantId, url: &str) -> Origin {
        Origin::of(tenant, &destination::origin(url).unwrap_or_default())
    }
}

/// Hash of a tenant and the name of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueueKey(pub u64);

impl QueueKey {
    /// The hash of a tenant and a queue's name. It is stored, so it must never change.
    pub fn of(tenant: TenantId, name: &str) -> QueueKey {
        QueueKey(hash(tenant, name))
    }
}

/// Hash of a tenant and a flow-control key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlowKey(pub u64);

impl FlowKey {
    /// The hash of a tenant and a flow-control key. It is stored, so it must never change.
    pub fn of(tenant: TenantId, key: &str) -> FlowKey {
        FlowKey(hash(tenant, key))
    }
}

fn hash(tenant: TenantId, text: &str) -> u64 {
    let hash = Sha256::new().chain_update(tenant.0.to_be_bytes()).chain_update(text).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_be_bytes(first)
}

/// A duplicate key: the hash of the id or content, within a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupKey(pub [u8; 32]);
