//! Dead letters by cause.

use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Causes, those with the most dead letters first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Causes {
    pub causes: Vec<Cause>,
    pub left_out: u64,
    pub looked: u64,
    pub more: bool,
}

/// Dead letters with the same cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    pub cause: String,
    pub destination: String,
    pub text: String,
    pub count: u64,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub first_seen: Timestamp,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub last_seen: Timestamp,
    #[schema(inline)]
    pub sample: Sample,
    pub response_status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_class: Option<String>,
}

/// The newest dead letter of a cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    pub dlq_id: String,
    pub text: String,
}
