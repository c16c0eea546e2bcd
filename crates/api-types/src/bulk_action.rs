//! Bulk actions: changes of many messages or dead letters in the background.

use crate::is_false;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum BulkKind {
    Cancel,
    DlqRetry,
    DlqDelete,
}

/// Whether the bulk action has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BulkState {
    InProgress,
    Finished,
}

/// A bulk action and its progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BulkAction {
    pub action_id: String,
    #[schema(inline)]
    pub kind: BulkKind,
    #[schema(inline)]
    pub state: BulkState,
    pub total: u64,
    pub processed: u64,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub created_at: Timestamp,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub completed_at: Option<Timestamp>,
    pub filter: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub stopped: bool,
}

/// One page of bulk actions, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BulkActionPage {
    pub bulk_actions: Vec<BulkAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A bulk action that has begun.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BegunBulkAction {
    pub action_id: String,
    pub total: u64,
}
