//! URL groups, which the protocol calls topics.

use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A URL group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UrlGroup {
    pub name: String,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub created_at: Timestamp,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub updated_at: Timestamp,
    pub endpoints: Vec<Endpoint>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Vec<String>>,
}

/// A destination of a URL group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub url: String,
}
