//! Messages, dead letters, and the responses to requests that publish, cancel, retry and delete them.

use crate::is_false;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// How something is delivered: of messages, dead letters, log lines and schedules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Terms {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    #[serde(rename = "callerIP")]
    pub caller_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_callback: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_control_key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    pub method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_delay_expression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

/// Where a message goes and what led to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub deduplication: Option<DeduplicatedBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_name: Option<String>,
    pub max_retries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub schedule_run_by_hand: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub source_kind: Option<SourceKind>,
    /// Id of the message that led to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_name: Option<String>,
    pub url: String,
}

/// Why other messages are duplicates of this one: they have its id, or its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum DeduplicatedBy {
    Id,
    Content,
}

/// How the source message led to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum SourceKind {
    Callback,
    FailureCallback,
    DlqRetry,
}

/// A message that has not ended, or ended a short time ago.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub message_id: String,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub created_at: Timestamp,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub not_before: Timestamp,
    #[serde(flatten)]
    pub source: Source,
    #[serde(flatten)]
    pub terms: Terms,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub callback_header: BTreeMap<String, Vec<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failure_callback_header: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// A message in the DLQ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    pub dlq_id: String,
    #[serde(flatten)]
    pub message: Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub response_status: u16,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub response_header: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_body_base64: Option<String>,
}

/// One page of dead letters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterPage {
    pub messages: Vec<DeadLetter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A message that was published.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    pub message_id: String,
    /// Destination URL; present for messages of a URL group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// True if the message is a duplicate and nothing was stored. `messageId` is that of the first message.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deduplicated: bool,
    /// Id of the workflow run that the message starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_run_id: Option<String>,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub workflow_created_at: Option<Timestamp>,
}

/// A message that is due now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SentNow {
    pub message_id: String,
}

/// Messages or runs that were cancelled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cancelled {
    pub cancelled: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action_id: Option<String>,
}

/// Entries that were deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    pub deleted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Messages that were published again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retried {
    pub responses: Vec<Published>,
    #[serde(default)]
    pub cursor: String,
}
