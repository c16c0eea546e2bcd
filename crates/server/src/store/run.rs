//! What all backends agree on about runs of workflows: what belongs together, where a run stands in its lists, and when
//! it may go.

use super::Retention;
use posthaste_engine::event::Response;
use posthaste_engine::workflow::Workflow;
use posthaste_engine::workflow::entry::{Entry, StepError};
use posthaste_engine::workflow::run::{Failure, Run};
use posthaste_wire::id::{DlqId, Position, Seq};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// A gap in the list of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} of run {} is not there", .run.0)]
pub(super) struct MissingEntry {
    run: Seq,
    index: usize,
}

/// A run with its entries, which are in their order. `None` without the first one: the run is being dropped, or
/// something was written about it when it was gone.
pub(super) fn assemble(run: Run, entries: Vec<Entry>) -> Result<Option<Workflow>, MissingEntry> {
    if entries.first().is_none_or(|first| first.index > 0) {
        return Ok(None);
    }
    match entries.iter().enumerate().find(|(place, entry)| entry.index as usize != *place) {
        Some((index, _)) => Err(MissingEntry { run: run.no, index }),
        None => Ok(Some(Workflow { run, entries })),
    }
}

/// Whether these are states of one run. What it was named by never changes.
pub(super) fn is_same_run(one: &Run, other: &Run) -> bool {
    (one.no, one.tenant, &one.id, one.created_at) == (other.no, other.tenant, &other.id, other.created_at)
}

/// Its place in the list of all runs.
pub(super) fn place_of(run: &Run) -> Position {
    Position { at: run.created_at, n: run.no.0 }
}

/// Its place in the DLQ, if it is there.
pub(super) fn dlq_place_of(run: &Run) -> Option<DlqId> {
    run.failure.as_ref().filter(|failure| failure.is_in_dlq).map(|failure| failure.dlq_id)
}

/// Whether a run was kept long enough; one that goes on never was.
pub(super) fn is_expired(run: &Run, policy: &Retention, now: Timestamp) -> bool {
    run.ended_at.is_some_and(|ended_at| match dlq_place_of(run) {
        Some(place) => place.at < now.minus_millis(policy.dlq_ms),
        None => ended_at < now.minus_millis(policy.history_ms),
    })
}

/// Bytes of the bodies that a page gets by a run: of its entries, early events and answers.
pub(super) fn page_bytes(workflow: &Workflow) -> usize {
    let of_answer = |answer: &Arc<Response>| answer.body.len();
    let of_errors =
        |errors: &[StepError]| -> usize { errors.iter().filter_map(|e| e.response.as_ref()).map(of_answer).sum() };
    let of_failure = |failure: &Failure| {
        let call = failure.call.as_ref();
        let told = call.map_or(0, |call| of_errors(&call.errors) + call.response.as_ref().map_or(0, of_answer));
        told + failure.response.as_ref().map_or(0, of_answer)
    };
    let Workflow { run, entries } = workflow;
    let entries: usize = entries.iter().map(|entry| entry.body.len() + of_errors(&entry.delivery.errors)).sum();
    let early: usize = run.early.iter().map(|early| early.data.len()).sum();
    entries + early + run.failure.as_deref().map_or(0, of_failure)
}
