//! When a message is retried.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// When a message is retried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryPlan {
    pub retries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    #[schema(inline, min_items = 1)]
    pub attempts: Vec<PlannedAttempt>,
    pub gives_up_at_ms: u64,
    /// Maximum random share that is added to each delay, such as 0.05.
    pub jitter: f64,
}

/// An attempt of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedAttempt {
    /// Delay before this attempt, in milliseconds.
    pub delay_ms: u64,
    /// Time since the first attempt, in milliseconds, if attempts take no time.
    pub at_ms: u64,
}
