//! Runs of workflows: what starts them, moves them on and ends them, their logs and their DLQ. One file per resource.
//!
//! Most of it arrives as publishes, because the protocol was built on them: [`concerns_a_run`] tells those apart,
//! `translate` says what they mean, and `publish` does it. What is done with a run is decided in
//! `posthaste_engine::workflow`.

pub(super) mod dlq;
mod events;
pub mod fuzzing;
mod headers;
pub(super) mod hooks;
pub(super) mod logs;
pub(super) mod notify;
mod protocol;
pub(super) mod publish;
pub(super) mod runs;
mod selection;
mod shape;
mod steps;
mod translate;
pub(super) mod trigger;
pub(super) mod wait;
pub(super) mod waiters;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub(super) use protocol::{concerns_a_run, may_concern_a_run};
pub(super) use translate::Wanted;

use super::error::ApiError;
use crate::core::{RunKey, RunRefused};
use posthaste_engine::limits::{WORKFLOW_NAME_BYTES_MAX, WORKFLOW_STEP_BYTES_MAX};
use posthaste_engine::workflow::Record;
use posthaste_engine::workflow::run::StepText;
use posthaste_store::{ReadPool, Store, StoreError};
use posthaste_wire::id::TenantId;
use posthaste_wire::rejection::Rejection;

/// What clients are told that publish for a run that has ended. Old ones compare it, letter by letter.
const ENDED: &str = "failed to publish to url: can not append to a a cancelled workflow";

/// What everybody else is told who asks for a run that does not go on.
const NOT_FOUND: &str = "workflow run not found";

/// Told to an endpoint that goes on with a run: 400 says that the run has ended, all else that something is wrong.
fn refused_append(refused: RunRefused) -> ApiError {
    match refused {
        RunRefused::Unknown | RunRefused::Ended => ApiError::invalid(ENDED),
        RunRefused::Exceeded(exceeded) => ApiError::quota(exceeded.to_string()),
    }
}

/// Told to somebody who sends an event to a run.
fn refused_event(refused: RunRefused) -> ApiError {
    match refused {
        RunRefused::Unknown | RunRefused::Ended => ApiError::not_found(NOT_FOUND),
        RunRefused::Exceeded(exceeded) => ApiError::quota(exceeded.to_string()),
    }
}

/// A run with its entries and all bodies, the newest of its name unless it says which. Read as lists are: the core has a
/// connection of its own, and must not wait for others to read a large run.
fn run_of(store: &dyn Store, tenant: TenantId, run: &RunKey) -> Result<Option<Record>, StoreError> {
    match store.find_run(tenant, &run.id, run.created_at, ReadPool::Queries)? {
        Some(no) => store.run_record(tenant, no, ReadPool::Queries),
        None => Ok(None),
    }
}

/// A step that waits or invokes, as it was sent: the run keeps it until it has its result.
fn checked_step(step: StepText) -> Result<StepText, Rejection> {
    let is_short = serde_json::to_vec(&step).is_ok_and(|text| text.len() <= WORKFLOW_STEP_BYTES_MAX);
    let text = || Rejection::invalid(format!("step must not be longer than {WORKFLOW_STEP_BYTES_MAX} bytes"));
    is_short.then_some(step).ok_or_else(text)
}

/// The id of a run or of an event, as it was sent.
fn checked_name(what: &str, name: &str) -> Result<String, Rejection> {
    if name.is_empty() || name.len() > WORKFLOW_NAME_BYTES_MAX || name.contains(char::is_control) {
        let text = format!("{what} must have 1 to {WORKFLOW_NAME_BYTES_MAX} bytes, without control characters");
        return Err(Rejection::invalid(text));
    }
    Ok(name.to_owned())
}
