//! Whether the server is alive, and whether it takes messages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Condition {
    Ok,
    Ready,
}

/// The response of a server that is alive, or ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    #[schema(inline)]
    pub status: Condition,
}
