//! Signing keys.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The signing keys.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    pub current: String,
    pub next: String,
}
