//! Workflow runs: states of runs and steps, and the responses to requests that start runs.

use crate::is_false;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of a workflow run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunState {
    #[default]
    #[serde(rename = "RUN_STARTED")]
    Started,
    #[serde(rename = "RUN_SUCCESS")]
    Success,
    #[serde(rename = "RUN_FAILED")]
    Failed,
    #[serde(rename = "RUN_CANCELED")]
    Canceled,
}

impl RunState {
    pub const ALL: [RunState; 4] = [RunState::Started, RunState::Success, RunState::Failed, RunState::Canceled];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            RunState::Started => "RUN_STARTED",
            RunState::Success => "RUN_SUCCESS",
            RunState::Failed => "RUN_FAILED",
            RunState::Canceled => "RUN_CANCELED",
        }
    }
}

/// The state of a step of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepState {
    #[default]
    #[serde(rename = "STEP_PROGRESS")]
    Progress,
    #[serde(rename = "STEP_SUCCESS")]
    Success,
    #[serde(rename = "STEP_RETRY")]
    Retry,
    #[serde(rename = "STEP_FAILED")]
    Failed,
    #[serde(rename = "STEP_CANCELED")]
    Canceled,
}

impl StepState {
    pub const ALL: [StepState; 5] =
        [StepState::Progress, StepState::Success, StepState::Retry, StepState::Failed, StepState::Canceled];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            StepState::Progress => "STEP_PROGRESS",
            StepState::Success => "STEP_SUCCESS",
            StepState::Retry => "STEP_RETRY",
            StepState::Failed => "STEP_FAILED",
            StepState::Canceled => "STEP_CANCELED",
        }
    }
}

/// A run that was started, or that was already active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartedRun {
    pub workflow_run_id: String,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub workflow_created_at: Timestamp,
    /// True if nothing was started because a run with this id is active.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deduplicated: bool,
}

/// A failed run that was resumed or restarted as a new run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BegunRun {
    pub workflow_run_id: String,
    /// Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub workflow_created_at: Option<Timestamp>,
}

/// Failed runs that were resumed or restarted as new runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BegunRuns {
    pub workflow_runs: Vec<BegunRun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn filters_and_objects_name_states_alike() {
        for state in RunState::ALL {
            assert_eq!(json!(state), state.name());
        }
        for state in StepState::ALL {
            assert_eq!(json!(state), state.name());
        }
    }
}
