//! Flow-control keys.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A flow-control key. Limits that are not set are 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlowControlKey {
    pub flow_control_key: String,
    pub wait_list_size: u64,
    pub parallelism_max: u32,
    pub parallelism_count: u64,
    pub rate_max: u32,
    pub rate_count: u64,
    pub rate_period: u64,
    pub rate_period_start: u64,
    pub is_paused: bool,
    pub is_pinned_parallelism: bool,
    pub is_pinned_rate: bool,
}

/// Deliveries of the tenant in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GlobalParallelism {
    pub parallelism_max: u64,
    pub parallelism_count: u64,
}
