//! How a run ends, and which others are notified.

use super::callback;
use super::entry::{DeliveryState, StepError, base64_len, push_error};
use super::machine::Workflow;
use super::message;
use super::note::{Note, NoteKind};
use super::outbox::{Change, Notice, Outbox};
use super::request::Attempt;
use super::run::{Failure, FailureCallState, FailureProgress, RunState, StepText, Trigger};
use crate::event::Response;
use crate::limits::LOG_RESPONSE_BYTES_MAX;
use crate::outcome::{Outcome, Verdict};
use crate::planted::{self, Bug};
use crate::retry::Next;
use posthaste_wire::id::{DlqId, Seq};
use posthaste_wire::time::Timestamp;
use serde_json::Value;
use std::cell::LazyCell;
use std::sync::Arc;

/// The error for a response that is not from a workflow.
const NOT_A_WORKFLOW: &str = "detected a non-workflow destination for trigger/invoke. make sure you are sending the \
                              request to the correct endpoint";
/// The response of an old client to a trigger by REST.
const OLD_CLIENT: &str = "trigger rest api is only usable with sdk versions after v1.0.0 major version";
/// The header that every workflow sends.
const PROTOCOL_VERSION: &str = "upstash-workflow-sdk-version";
/// The header that newer clients send.
const CLIENT_VERSION: &str = "upstash-workflow-sdk";

impl Workflow {
    /// Records the end of an attempt of the failure callback.
    pub fn failure_told(&mut self, attempt: Attempt<'_>, out: &mut Outbox<'_>) {
        let Some(call) = self.run.failure.as_mut().and_then(|failure| failure.call.as_mut()) else { return };
        if call.state != FailureCallState::InProgress {
            return;
        }
        match attempt.next {
            Next::Done => call.state = FailureCallState::Success,
            Next::DeadLetter => call.state = FailureCallState::Failed,
            Next::RetryAt(due) => call.due = due,
        }
        let errors = self.told.get_or_insert_default();
        if attempt.outcome.verdict() != Verdict::Success {
            push_error(errors, error_of(attempt.outcome, None, out.now));
        }
        let note = Note::told(errors, callback::answer(attempt.outcome));
        self.save_note(note, out);
        self.save_run(out);
    }

    /// Why the first response shows that the endpoint does not execute this run.
    pub(super) fn is_no_workflow(&self, index: u32, outcome: &Outcome) -> Option<&'static str> {
        let is_first = index == 0 && outcome.verdict() == Verdict::Success;
        let response = outcome.result.as_ref().ok().filter(|_| is_first)?;
        if response.headers.is_empty() && self.is_obsolete(index) {
            // It was not sent once more, because a step that resulted from it had been accepted.
            return None;
        }
        let has = |name: &str| response.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        if self.run.config.features.detect_trigger && !has(PROTOCOL_VERSION) {
            Some(NOT_A_WORKFLOW)
        } else if self.run.config.trigger == Trigger::Rest && !has(CLIENT_VERSION) {
            Some(OLD_CLIENT)
        } else {
            None
        }
    }

    /// The error in words, if it was not simply the status of the response.
    pub(super) fn fail(
        &mut self,
        index: u32,
        retried: u32,
        error: Option<String>,
        response: Response,
        out: &mut Outbox<'_>,
    ) {
        self.finish_delivery(index, DeliveryState::Failed, out);
        let dlq_id = DlqId { at: out.now, n: self.entries[index as usize].id.seq.0 };
        let mut failure = Failure {
            entry: index,
            retried,
            error,
            status: response.status,
            answer_bytes: response.body.len() as u64,
            dlq_id,
            is_in_dlq: true,
            call: None,
            resumed_as: None,
        };
        self.save_note(Note::answer(response), out);
        self.tell(&mut failure, out);
        self.run.failure = Some(Box::new(failure));
        self.end(RunState::Failed, None, out);
    }

    /// Ends the run: none of its messages is sent any more, its waits are removed, and the run that invoked it is
    /// notified.
    pub(super) fn end(&mut self, state: RunState, result: Option<String>, out: &mut Outbox<'_>) {
        self.run.state = state;
        self.run.ended_at = Some(out.now);
        for index in 0..self.entries.len() as u32 {
            let entry = &self.entries[index as usize];
            if entry.delivery.state == DeliveryState::Pending {
                if !planted::has(Bug::RunEndLeavesDeliveries) {
                    out.withdrawn.push(entry.id);
                }
                self.finish_delivery(index, DeliveryState::Canceled, out);
            }
        }
        out.withdrawn.extend(self.run.last_call.take());
        // Kept, so that the log shows them and a resumed run waits for them again.
        for wait in &self.waits {
            out.withdrawn.push(wait.timer);
            out.changes.push(Change::NoWaiter(self.waiter(wait)));
        }
        for early in std::mem::take(&mut self.early) {
            self.drop_early(&early, out);
        }
        let invokers = if planted::has(Bug::InvokerNotTold) { &[][..] } else { &self.invokers[..] };
        // Created once, because it may be long and needed often.
        let told = LazyCell::new(|| Arc::<str>::from(outcome_text(state, result.as_deref())));
        for to in invokers {
            out.notices.push(Notice { tenant: self.run.tenant, to: to.clone(), out: told.clone() });
        }
        if let Some(result) = result {
            self.save_note(Note::result(result), out);
        }
        self.save_run(out);
    }

    /// Removes the failed run from the DLQ. Returns false if it was not there.
    pub fn leave_dlq(&mut self, out: &mut Outbox<'_>) -> bool {
        let was_there = match self.run.failure.as_deref_mut() {
            Some(failure) => std::mem::take(&mut failure.is_in_dlq),
            None => false,
        };
        if was_there {
            self.save_run(out);
        }
        was_there
    }

    /// Records that another run continues where this one failed. Later results for this one go to that one.
    pub fn resumed_as(&mut self, no: Seq, out: &mut Outbox<'_>) {
        if let Some(failure) = self.run.failure.as_deref_mut() {
            failure.resumed_as = Some(no);
            self.save_run(out);
        }
    }

    /// Repeats the failure callback. Returns false unless its last attempt has failed.
    pub fn tell_again(&mut self, out: &mut Outbox<'_>) -> bool {
        let Some(failure) = self.run.failure.as_deref().filter(|failure| has_call(failure, FailureCallState::Failed))
        else {
            return false;
        };
        let mut failure = failure.clone();
        if self.told.take().is_some() {
            self.drop_note(NoteKind::Told.only(), out);
        }
        self.tell(&mut failure, out);
        self.run.failure = Some(Box::new(failure));
        self.save_run(out);
        true
    }

    /// Stops the failure callback. Returns false if it was over.
    pub fn stop_telling(&mut self, out: &mut Outbox<'_>) -> bool {
        let Some(call) = self.run.failure.as_mut().and_then(|failure| failure.call.as_mut()) else { return false };
        if call.state != FailureCallState::InProgress {
            return false;
        }
        call.state = FailureCallState::Canceled;
        out.withdrawn.push(call.id);
        self.save_run(out);
        true
    }

    /// Approximate size of the failure callback. Its actual body is built when it is sent.
    pub fn failure_call_bytes(&self) -> u64 {
        let Some(failure) = &self.run.failure else { return 0 };
        base64_len(callback::source_bytes(self, failure)) + base64_len(failure.answer_bytes) + CALL_BYTES
    }

    /// Creates the failure callback, if the run has one.
    fn tell(&self, failure: &mut Failure, out: &mut Outbox<'_>) {
        let Some(call) = &self.run.config.failure else { return };
        let id = (out.next_id)();
        out.messages.push(Arc::new(message::failure_call(&self.run, call, id, out.now)));
        failure.call = Some(FailureProgress { id, state: FailureCallState::InProgress, due: out.now });
    }
}

/// Approximate size of a failure callback besides the bytes of the response and the list.
const CALL_BYTES: u64 = 2_048;

fn has_call(failure: &Failure, state: FailureCallState) -> bool {
    failure.call.as_ref().is_some_and(|call| call.state == state)
}

/// The result that the invoking run gets.
fn outcome_text(state: RunState, result: Option<&str>) -> String {
    let mut text = StepText::new();
    if let Some(result) = result {
        text.insert("body".to_owned(), Value::String(result.to_owned()));
    }
    text.insert("isCanceled".to_owned(), Value::Bool(state == RunState::Canceled));
    text.insert("isFailed".to_owned(), Value::Bool(state == RunState::Failed));
    Value::Object(text).to_string()
}

/// A failed attempt; `complaint` describes the problem with a response that looks valid.
pub(super) fn error_of(outcome: &Outcome, complaint: Option<&str>, at: Timestamp) -> StepError {
    let response = outcome.result.as_ref().ok().map(|response| Arc::new(response.kept(LOG_RESPONSE_BYTES_MAX)));
    StepError { at, error: complaint.map(str::to_owned).or_else(|| words_of(outcome)), response }
}

/// Why there was no response.
pub(super) fn words_of(outcome: &Outcome) -> Option<String> {
    outcome.result.as_ref().err().map(|error| error.message.clone())
}
