//! Statistics of a tenant.

use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The tenant's statistics, and the last 5 minutes by second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub time: Timestamp,
    pub version: String,
    /// Uptime in milliseconds.
    pub uptime: u64,
    #[schema(inline)]
    pub storage: StorageStats,
    #[schema(inline)]
    pub messages: MessageStats,
    #[schema(inline)]
    pub dlq: CountedEntries,
    #[schema(inline)]
    pub runs: RunStats,
    #[schema(inline)]
    pub schedules: ScheduleStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub latency: Option<Latency>,
    #[schema(inline)]
    pub seconds: SecondStats,
}

/// The data directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    pub disk_low: bool,
    pub takes_writes: bool,
}

/// Messages of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageStats {
    /// Messages that have not ended.
    pub live: u64,
    /// True if there may be more, because not all were counted.
    pub live_has_more: bool,
    /// Attempts in flight.
    pub in_flight: u64,
    /// Messages that are due but not in flight.
    pub waiting: u64,
    pub waiting_has_more: bool,
    /// Due time of the message that has waited longest, in Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub oldest_due: Option<Timestamp>,
    #[serde(default)]
    pub paused_queues: u64,
    #[serde(default)]
    pub paused_flow_control_keys: u64,
    /// True if the counts of waiting messages and paused keys and queues are incomplete.
    pub partial: bool,
}

/// Entries of a list that were counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CountedEntries {
    pub size: u64,
    /// True if there may be more.
    pub has_more: bool,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub oldest: Option<Timestamp>,
}

/// Workflow runs of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStats {
    pub live: u64,
    pub has_more: bool,
    #[schema(inline)]
    pub dlq: CountedEntries,
}

/// Schedules of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleStats {
    pub count: u64,
    #[schema(inline)]
    pub next: Vec<NextFiring>,
}

/// The next firing of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextFiring {
    pub schedule_id: String,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub time: Timestamp,
}

/// Percentiles of the time that attempts take, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    pub p50: u64,
    pub p99: u64,
}

/// One list per figure, all of the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecondStats {
    /// Time of the last value of each list, in Unix seconds.
    pub last: u64,
    #[serde(default)]
    pub published: Vec<u32>,
    #[serde(default)]
    pub delivered: Vec<u32>,
    #[serde(default)]
    pub failed: Vec<u32>,
    #[serde(default)]
    pub dead_lettered: Vec<u32>,
    #[serde(default)]
    pub p50: Vec<u32>,
    #[serde(default)]
    pub p99: Vec<u32>,
}
