//! Log events: every state of a message, and the ops that the store must write.

use crate::bulk_action::BulkAction;
use crate::flow::Flow;
use crate::message::{DedupKey, Live, Message};
use crate::queue::Queue;
use crate::schedule::{Schedule, ScheduleState};
use crate::workflow::Change;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

/// The states of a message, as the logs name them.
///
/// `CREATED, ACTIVE, DELIVERED` is the usual sequence. A failed attempt adds `ERROR` and then `RETRY` or `FAILED`. A
/// cancel adds `CANCEL_REQUESTED` and, once no attempt is in flight, `CANCELED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// Accepted and stored.
    Created,
    /// An attempt has started.
    Active,
    /// An attempt failed; the event carries the response.
    Error,
    /// Another attempt is scheduled; the event carries its time.
    Retry,
    /// A 2xx was received. Final.
    Delivered,
    /// Retries are exhausted or the receiver forbade them. Final; the message is in the DLQ.
    Failed,
    /// A cancel was recorded.
    CancelRequested,
    /// The cancel took effect. Final.
    Canceled,
}

impl State {
    /// All states, in the order of their stored numbers.
    pub const ALL: [State; 8] = [
        State::Created,
        State::Active,
        State::Error,
        State::Retry,
        State::Delivered,
        State::Failed,
        State::CancelRequested,
        State::Canceled,
    ];

    /// The name on the wire. `CANCELED` has one L: the Python SDK knows no other spelling.
    pub fn name(self) -> &'static str {
        match self {
            State::Created => "CREATED",
            State::Active => "ACTIVE",
            State::Error => "ERROR",
            State::Retry => "RETRY",
            State::Delivered => "DELIVERED",
            State::Failed => "FAILED",
            State::CancelRequested => "CANCEL_REQUESTED",
            State::Canceled => "CANCELED",
        }
    }

    /// Whether no event follows this one.
    pub fn is_final(self) -> bool {
        matches!(self, State::Delivered | State::Failed | State::Canceled)
    }
}

/// A line of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The tenant.
    pub tenant: TenantId,
    /// The message.
    pub id: MessageId,
    /// When it happened.
    pub at: Timestamp,
    /// The new state.
    pub state: State,
    /// Further details of this kind of event.
    pub detail: EventDetail,
}

/// Details that only some events have. Stored as JSON; empty for most events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventDetail {
    /// When the next attempt is due: for `RETRY`, and for `CREATED` with a delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_due: Option<Timestamp>,
    /// Why the attempt failed, if it was not simply the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The receiver's response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Arc<Response>>,
    /// How long the attempt took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Where the message went: `FAILED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dlq_id: Option<String>,
    /// The time of the attempt by phase: for every failed attempt, and for a success on a new connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Box<Phases>>,
    /// Most messages are delivered on an open connection. Then this is [`Phases::first_byte_us`], and the only stored
    /// phase. Lines of older versions lack it.
    #[serde(rename = "re", default, skip_serializing_if = "Option::is_none")]
    pub reused_first_byte_us: Option<u64>,
    /// The number of retries before the attempt of this line. Not stored for a first attempt, as most are. Lines of
    /// older versions lack it.
    #[serde(rename = "n", default, skip_serializing_if = "is_zero")]
    pub retried: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The time of one attempt by phase, in microseconds, as far as it came. Names are short because many are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// The connection was already open, so there was no lookup, connect or handshake.
    #[serde(rename = "re", default, skip_serializing_if = "std::ops::Not::not")]
    pub reused: bool,
    /// The address of the connection.
    #[serde(rename = "to", default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Looking up the name.
    #[serde(rename = "dns", default, skip_serializing_if = "Option::is_none")]
    pub dns_us: Option<u64>,
    /// Connecting, over all addresses that were tried.
    #[serde(rename = "tcp", default, skip_serializing_if = "Option::is_none")]
    pub connect_us: Option<u64>,
    /// The TLS handshake.
    #[serde(rename = "tls", default, skip_serializing_if = "Option::is_none")]
    pub tls_us: Option<u64>,
    /// From sending the request until the head of the response arrived.
    #[serde(rename = "head", default, skip_serializing_if = "Option::is_none")]
    pub first_byte_us: Option<u64>,
}

impl EventDetail {
    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        *self == EventDetail::default()
    }

    /// The time of the attempt by phase, if known.
    pub fn phases(&self) -> Option<Cow<'_, Phases>> {
        let reused = |micros| Phases { reused: true, first_byte_us: Some(micros), ..Phases::default() };
        let phases = self.phases.as_deref().map(Cow::Borrowed);
        phases.or_else(|| self.reused_first_byte_us.map(reused).map(Cow::Owned))
    }
}

/// A receiver's response, as far as it was kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Headers in the order received, names in canonical form. Bytes that are not UTF-8 are replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The first bytes of the body, up to a limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "base64_bytes")]
    pub body: Vec<u8>,
    /// Whether the body was longer than the kept part, or broke off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// Longest header value that is kept without the rest of its response. A longer one is left out.
const KEPT_VALUE_BYTES_MAX: usize = 256;

impl Response {
    /// The response with at most this many bytes of its body.
    pub fn kept(&self, bytes: usize) -> Response {
        let body = self.body[..self.body.len().min(bytes)].to_vec();
        let truncated = self.truncated || body.len() < self.body.len();
        Response { status: self.status, headers: self.headers.clone(), body, truncated }
    }

    /// Only its status, without headers and body.
    pub fn status_alone(&self) -> Response {
        let truncated = self.truncated || !self.body.is_empty();
        Response { status: self.status, truncated, ..Response::default() }
    }

    /// Its status and the first header of this name, without the other headers and the body.
    pub fn status_and(&self, name: &str) -> Response {
        let named = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        let headers = named.filter(|(_, value)| value.len() <= KEPT_VALUE_BYTES_MAX).cloned().into_iter().collect();
        Response { headers, ..self.status_alone() }
    }
}

/// Why a message is in the DLQ, with the last response. The store adds the message itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its own id: the time of the failure, and the message's position.
    pub dlq_id: DlqId,
    /// The tenant.
    pub tenant: TenantId,
    /// The failed message.
    pub id: MessageId,
    /// Number of retries.
    pub retried: u32,
    /// The transport error of the last attempt, if there was no response.
    pub error: Option<String>,
    /// The last response, if there was one.
    pub response: Option<Arc<Response>>,
}

impl DeadLetter {
    /// How many bytes of the last response were kept.
    pub fn body_bytes(&self) -> usize {
        self.response.as_ref().map_or(0, |response| response.body.len())
    }
}

/// One change that the store must write. A batch of them is one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new message and its live row.
    Insert {
        /// The message itself.
        message: Arc<Message>,
        /// Its live row.
        live: Live,
    },
    /// Publishes with this key before `expires` are duplicates of `id`.
    PutDedupKey {
        /// The tenant.
        tenant: TenantId,
        /// The key.
        key: DedupKey,
        /// The message of the key.
        id: MessageId,
        /// When the window ends.
        expires: Timestamp,
    },
    /// A line of the logs.
    Log(Event),
    /// Replaces the live row: another attempt, or a recorded cancel.
    Update(Live),
    /// Removes the live row, because the message has ended.
    Remove {
        /// The message.
        id: MessageId,
    },
    /// Removes the live row of a failed message, and inserts a dead letter with a copy of it.
    InsertDeadLetter(DeadLetter),
    /// Deletes a dead letter, because it was deleted or is published again in the same batch.
    DeleteDeadLetter {
        /// The tenant.
        tenant: TenantId,
        /// The dead letter.
        dlq_id: DlqId,
    },
    /// Creates or changes a queue.
    PutQueue(Queue),
    /// Drops a queue, whose messages have ended before.
    DropQueue {
        /// The tenant.
        tenant: TenantId,
        /// The name of the queue.
        name: String,
    },
    /// Creates or changes a flow-control key.
    PutFlow(Flow),
    /// Forgets a flow-control key.
    DropFlow {
        /// The tenant.
        tenant: TenantId,
        /// The key.
        key: String,
    },
    /// Creates or replaces a schedule.
    PutSchedule(Arc<Schedule>),
    /// Updates a schedule that fired, was paused or was resumed.
    SetSchedule {
        /// The tenant.
        tenant: TenantId,
        /// The id of the schedule, which exists.
        id: String,
        /// Its new state.
        state: ScheduleState,
    },
    /// Deletes a schedule.
    DropSchedule {
        /// The tenant.
        tenant: TenantId,
        /// The id of the schedule, which exists.
        id: String,
    },
    /// Starts a bulk action, or stores its progress.
    PutBulkAction(BulkAction),
    /// A change of a workflow run.
    Workflow(Change),
}

/// Bodies inside JSON, as base64 text.
pub(crate) mod base64_bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&posthaste_wire::encoding::base64(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        posthaste_wire::encoding::from_base64(&text).ok_or_else(|| serde::de::Error::custom("not base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_before_is_still_read_and_the_usual_line_is_short() {
        let usual = r#"{"response":{"status":200},"duration_ms":3}"#;
        let detail: EventDetail = serde_json::from_str(usual).unwrap();
        assert_eq!((detail.duration_ms, detail.phases()), (Some(3), None));
        assert_eq!(serde_json::to_string(&detail).unwrap(), usual);
        let detail = EventDetail { reused_first_byte_us: Some(845), ..detail };
        let text = serde_json::to_string(&detail).unwrap();
        assert_eq!(text, r#"{"response":{"status":200},"duration_ms":3,"re":845}"#);
        assert_eq!(serde_json::from_str::<EventDetail>(&text).unwrap(), detail);
        assert!(EventDetail { retried: 0, ..EventDetail::default() }.is_empty(), "nothing is stored of a first start");
        let again = serde_json::to_string(&EventDetail { retried: 2, ..EventDetail::default() }).unwrap();
        assert_eq!(again, r#"{"n":2}"#);
        assert_eq!(serde_json::from_str::<EventDetail>(&again).unwrap().retried, 2);
        let reused = Phases { reused: true, first_byte_us: Some(845), ..Phases::default() };
        assert_eq!(detail.phases().as_deref(), Some(&reused));
        let phases = Phases {
            address: Some(SocketAddr::from(([127, 0, 0, 1], 80))),
            connect_us: Some(12),
            first_byte_us: Some(345),
            ..Phases::default()
        };
        let detail = EventDetail { phases: Some(Box::new(phases)), ..EventDetail::default() };
        let text = serde_json::to_string(&detail).unwrap();
        assert_eq!(text, r#"{"phases":{"to":"127.0.0.1:80","tcp":12,"head":345}}"#);
        assert_eq!(serde_json::from_str::<EventDetail>(&text).unwrap(), detail);
    }
}
