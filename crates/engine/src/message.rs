//! A message: what was published, immutable from then on, and the row that says what is next for it.

use crate::workflow::StepRef;
use bytes::Bytes;
use posthaste_wire::destination;
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The queue it was put into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The flow-control key that it is delivered under, with the limits it brought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// The schedule that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// Somebody let that schedule make it, besides its times.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
    /// Who hears of every attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Box<CallbackSpec>>,
    /// Who hears of the final failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_callback: Option<Box<CallbackSpec>>,
    /// The built-in API it was published to, such as `llm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// How many deliveries led to this message, one causing the next.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hops: u32,
    /// What it is for a run of a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<StepRef>,
    /// The message that led to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What makes other publishes duplicates of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<DedupBy>,
}

/// A body of at least this many bytes that several messages of one publish share is stored once.
const SHARED_BODY_BYTES_MIN: usize = 4 * 1024;

/// Whether two messages were published with one body. The same bytes in memory are the same body; equal ones elsewhere
/// are not looked for.
pub fn is_same_body(one: &Bytes, other: &Bytes) -> bool {
    one.len() >= SHARED_BODY_BYTES_MIN && one.len() == other.len() && one.as_ptr() == other.as_ptr()
}

/// What two publishes must have in common to be the same one. The id itself is never kept, only its hash.
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

/// The message that led to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Which message.
    pub id: MessageId,
    /// In which way.
    pub kind: CauseKind,
}

/// How a message leads to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CauseKind {
    /// The new one tells of an attempt of it.
    Callback,
    /// The new one tells that it has failed.
    FailureCallback,
    /// It was in the DLQ and was sent again.
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

/// A flow-control key and the limits that a message brings for it; see [`crate::flow`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// The key.
    pub key: String,
    /// Most deliveries under way at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<u32>,
    /// Most deliveries started within a period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// Length of that period.
    pub period_ms: u64,
}

/// A message that is made when an attempt or the whole message has ended: what the publisher chose for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackSpec {
    /// Where it goes.
    pub url: String,
    /// Upper-case HTTP method of its delivery.
    pub method: String,
    /// Headers to send, names in canonical form, one entry per received line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// How many attempts may follow its first; `None` means as many as the message has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Its retry-delay expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// How long one of its attempts may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long after the outcome its first attempt is due.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub delay_ms: u64,
    /// Its own labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// What API answers must hide of it.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
    /// The flow-control key that it is delivered under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_u64(number: &u64) -> bool {
    *number == 0
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
    /// Its place in a queue, if it is in one.
    pub place: Option<Place>,
    /// Its flow-control key, if it has one.
    pub flow: Option<FlowKey>,
    /// It belongs to a run of a workflow: what becomes of it is told there, not in the logs and not in the DLQ.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_step: bool,
}

/// A place in a queue. A message and the callbacks it causes share one turn, and thereby one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Which queue.
    pub queue: QueueKey,
    /// Whose turn it is.
    pub turn: Turn,
}

/// The order within a queue: by the time of joining it, then by creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Turn {
    /// When the message joins the queue: at the time of its [`Seq`], which a clock that goes back does not
    /// change; or later, when its delay is over.
    pub at: Timestamp,
    /// Which message; for a callback the one that caused it.
    pub seq: Seq,
}

impl Turn {
    /// The turn of a new message. One that is delayed joins later than its position says, by whatever clock.
    pub fn new(seq: Seq, created_at: Timestamp, not_before: Timestamp) -> Turn {
        let at = if not_before > created_at { not_before.max(seq.time().plus_millis(1)) } else { seq.time() };
        Turn { at, seq }
    }
}

impl Live {
    /// Due by the clock; or, in a queue, due since its creation, which a clock that has gone back since may show
    /// as a time to come.
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
        Origin(hash(tenant, origin))
    }

    /// The same, of the server that a URL leads to.
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

/// A duplicate key: hash of what makes two publishes the same one, within a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupKey(pub [u8; 32]);
