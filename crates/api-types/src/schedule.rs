//! Schedules, and when a cron expression fires.

use crate::is_false;
use crate::message::Terms;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The state of a message of the last firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ScheduleMessageState {
    InProgress,
    Success,
    Fail,
}

/// A schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    pub schedule_id: String,
    pub cron: String,
    pub destination: String,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub created_at: Timestamp,
    pub retries: u32,
    pub is_paused: bool,
    #[serde(flatten)]
    pub terms: Terms,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub callback_header: BTreeMap<String, Vec<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failure_callback_header: BTreeMap<String, Vec<String>>,
    /// Redacted parts, as in `Upstash-Redact-Fields`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redact_fields: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_redact_fields: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_callback_redact_fields: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<u64>,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub last_schedule_time: Option<Timestamp>,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub next_schedule_time: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(inline)]
    pub last_schedule_states: BTreeMap<String, ScheduleMessageState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// In lists: true if the body is omitted because the page is full. `GET /v2/schedules/{id}` returns it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub body_omitted: bool,
    /// Length of the omitted body in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<u64>,
}

/// A schedule that was created or changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleId {
    pub schedule_id: String,
}

/// Messages that a schedule has published now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleRun {
    pub schedule_id: String,
    #[schema(inline)]
    pub messages: Vec<FiredMessage>,
}

/// A message that a schedule has published.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FiredMessage {
    pub message_id: String,
    pub url: String,
}

/// When a cron expression fires next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    pub expression: String,
    pub zone: String,
    #[schema(inline)]
    pub fires: Vec<Firing>,
}

/// How a change of the clocks affects this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ClockChange {
    Skipped,
    Repeated,
}

/// A time at which a cron expression fires.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Firing {
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub time: Timestamp,
    /// Local time in the time zone, with its UTC offset.
    pub local: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub clock_change: Option<ClockChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}
