//! Attempts end: their outcomes are stored, and reported to the terminal of a developer.

use super::run::Core;
use super::runs::nothing_sent;
use super::{CoreFailure, Permits};
use crate::dev_output::AttemptReport;
use posthaste_engine::message::Message;
use posthaste_engine::outcome::Outcome;
use posthaste_engine::shard::AttemptEnd;
use posthaste_faults::crash_point::{ENABLED, crash_point};
use posthaste_node::Moment;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

impl Core {
    pub(super) fn attempt_ended(
        &mut self,
        message: Arc<Message>,
        outcome: Outcome,
        room: Permits,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        crash_point("outcome_arrived");
        if !room.is_empty() {
            self.node.batch.after_commit(move || drop(room));
        }
        self.node.batch.body_bytes += told_bytes(&message, &outcome);
        self.activity.attempted(&message, &outcome, now);
        let storage = self.host.storage_of(message.tenant);
        let report = self.attempts.reports.is_some().then(|| attempted(&outcome)).flatten();
        if let Some(step) = message.spec.workflow {
            let end = self.step_ended(&message, step, outcome, storage, now)?;
            self.report(message, report, end, now);
            crash_point("outcome_decided");
            return Ok(());
        }
        let mut moment = Moment { now, host: &mut self.host };
        let end = self.node.attempt_ended(&message, outcome, storage, &mut moment).end;
        self.report(message, report, end, now);
        crash_point("outcome_decided");
        if ENABLED {
            self.node.batch.after_commit(|| crash_point("outcome_committed"));
        }
        Ok(())
    }

    /// Reports an attempt to the terminal of a developer once its outcome is stored.
    fn report(
        &mut self,
        message: Arc<Message>,
        attempted: Option<(Result<u16, String>, u64)>,
        end: AttemptEnd,
        at: Timestamp,
    ) {
        let (Some(reports), Some((result, duration_ms))) = (self.attempts.reports.clone(), attempted) else { return };
        let AttemptEnd { retried, next } = end;
        let report = AttemptReport { message, result, duration_ms, retried, next, at };
        self.node.batch.after_commit(move || reports.send(report));
    }
}

/// Bytes that an outcome brings into the batch: the answer, and what callbacks repeat.
fn told_bytes(message: &Message, outcome: &Outcome) -> usize {
    let answer = outcome.result.as_ref().map_or(0, |response| response.body.len());
    let is_told = message.spec.callback.is_some() || message.spec.failure_callback.is_some();
    if is_told { 2 * (answer + message.body.len()) } else { answer }
}

/// What a report says of an attempt; `None` if nothing was sent.
fn attempted(outcome: &Outcome) -> Option<(Result<u16, String>, u64)> {
    let result = match &outcome.result {
        Ok(response) => Ok(response.status),
        Err(error) => Err(error.message.clone()),
    };
    (*outcome != nothing_sent()).then_some((result, outcome.duration_ms))
}
