//! Queues.

use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    pub name: String,
    pub parallelism: u32,
    pub paused: bool,
    pub lag: u64,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub created_at: Timestamp,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub updated_at: Timestamp,
}
