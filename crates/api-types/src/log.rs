//! Log lines.

use crate::message::{Source, Terms};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The event that a log line reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LogState {
    Created,
    Active,
    Error,
    Retry,
    Delivered,
    Failed,
    CancelRequested,
    Canceled,
}

/// An event in the life of a message. Some values are sent under two names, because clients disagree about the spelling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub time: Timestamp,
    #[schema(inline)]
    pub state: LogState,
    pub message_id: String,
    #[serde(flatten)]
    pub source: Source,
    #[serde(flatten)]
    pub terms: Terms,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub callback_headers: BTreeMap<String, Vec<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failure_callback_headers: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_delay_expr: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Number of the attempt, starting at 1; absent if the line is not about an attempt. Always 1 in lines of older versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub attempt: Option<u64>,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub next_delivery_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlq_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<u16>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub response_header: BTreeMap<String, Vec<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub response_headers: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_body: Option<String>,
}

/// How an attempt reached its receiver, and the time that each phase took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    pub reused: bool,
    /// IP address of the receiver; absent if it is internal to the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_micros: Option<u64>,
}

/// One page of log lines. Clients of several generations read it: they expect `events`, `logs` or `messages`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogPage {
    pub events: Vec<LogLine>,
    pub logs: Vec<LogLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(inline)]
    pub messages: Vec<MessageLog>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The log lines of one message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageLog {
    pub message_id: String,
    pub events: Vec<LogLine>,
}

/// Lines that a stream has skipped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Missed {
    pub count: u64,
}
