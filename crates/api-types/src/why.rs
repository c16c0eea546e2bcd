//! Why a message waits, or how it ended.

use crate::is_false;
use crate::log::LogState;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The obstacle that keeps a message waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum WaitsFor {
    Time,
    Queue,
    FlowControl,
    Destination,
    Room,
    Attempt,
    Nothing,
}

/// One sentence that says why a message waits or how it ended, and the facts behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    pub message_id: String,
    pub sentence: String,
    /// State of the last log line.
    #[serde(with = "state_or_empty")]
    #[schema(value_type = String)]
    pub state: Option<LogState>,
    #[schema(inline)]
    pub waits_for: WaitsFor,
    /// Number of attempts that have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u64>,
    pub max_attempts: u64,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub due_at: Option<Timestamp>,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub ended_at: Option<Timestamp>,
    /// Estimated time until the message starts, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate_ms: Option<u64>,
    /// Position in line; 1 is next.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub position: Option<u64>,
    /// At least this number of messages are ahead in line. Replaces `position` if the position is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position_more_than: Option<u64>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancel_requested: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlq_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub queue: Option<QueueFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub flow_control: Option<FlowFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub destination: Option<DestinationFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub duplicates: Option<Duplicates>,
}

/// The queue that a message waits in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueFacts {
    pub name: String,
    pub paused: bool,
    pub parallelism: u32,
    pub under_way: u64,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub updated_at: Timestamp,
}

/// The flow-control key that a message waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlowFacts {
    pub key: String,
    pub paused: bool,
    #[schema(required)]
    pub parallelism: Option<u32>,
    pub under_way: u64,
    #[schema(required)]
    pub rate: Option<u32>,
    pub period_ms: u64,
}

/// How busy a destination is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DestinationFacts {
    pub under_way: u64,
    pub max: u64,
}

/// Publishes that were duplicates of a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Duplicates {
    /// Number of publishes that were duplicates of this message. Counted in RAM, so a restart resets it.
    #[schema(minimum = 1)]
    pub count: u64,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub first_at: Timestamp,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub last_at: Timestamp,
}

/// A state, or an empty text if the last log line has expired.
mod state_or_empty {
    use crate::log::LogState;
    use serde::de::value::StrDeserializer;
    use serde::de::{Deserialize, Deserializer, IntoDeserializer};
    use serde::ser::{Serialize, Serializer};
    use std::borrow::Cow;

    pub(super) fn serialize<S: Serializer>(state: &Option<LogState>, serializer: S) -> Result<S::Ok, S::Error> {
        match state {
            Some(state) => state.serialize(serializer),
            None => "".serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LogState>, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        let text: StrDeserializer<'_, D::Error> = text.as_ref().into_deserializer();
        LogState::deserialize(text).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_whose_log_has_expired_has_an_empty_state() {
        for (state, name) in [(None, ""), (Some(LogState::CancelRequested), "CANCEL_REQUESTED")] {
            let why = json!({
                "messageId": "msg_1", "sentence": "ended", "state": name, "waitsFor": "nothing", "maxAttempts": 4,
            });
            let read: Why = serde_json::from_value(why.clone()).unwrap();
            assert_eq!((read.state, json!(read)), (state, why));
        }
    }
}
