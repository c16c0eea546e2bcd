//! Events that steps of a run wait for: they come, came before, or never come.

use super::entry::{Source, base64_len};
use super::machine::{Workflow, text_of};
use super::message;
use super::note::{Note, NoteKey};
use super::outbox::{Change, Outbox, Waiter};
use super::request::{Limits, NewEntry, Refusal, Resolved, WaitFor, Waited};
use super::room::BYTES_QUOTA;
use super::run::{EarlyEvent, RunState, StepText, Wait, number_of};
use crate::limits::WORKFLOW_EARLY_EVENTS_MAX as EARLY_EVENTS_MAX;
use crate::planted::{self, Bug};
use bytes::Bytes;
use posthaste_wire::encoding::base64;
use posthaste_wire::id::MessageId;
use serde_json::Value;
use std::sync::Arc;

/// Events of a run that no step has waited for yet.
const EVENTS_QUOTA: &str = "maxWorkflowEvents";

impl Workflow {
    /// Lets a step wait for an event. Repeating the call has no further effect. `kept` reads the data of a kept event.
    pub fn wait<E>(
        &mut self,
        wait: WaitFor,
        kept: impl FnOnce(NoteKey) -> Result<Bytes, E>,
        limits: &Limits,
        out: &mut Outbox<'_>,
    ) -> Result<Result<Waited, Refusal>, E> {
        if self.run.state != RunState::Started {
            return Ok(Err(Refusal::Ended));
        }
        let WaitFor { event, step, timeout, timeout_ms, headers, terms } = wait;
        let number = number_of(&step);
        if self.has_result(number) {
            return Ok(Ok(Waited::Resolved));
        }
        if self.waits.iter().any(|wait| number_of(&wait.step) == number) {
            return Ok(Ok(Waited::Waiting));
        }
        let deadline = out.now.plus_millis(timeout_ms);
        if let Some(found) = self.early.iter().position(|early| early.event == event) {
            if let Err(refusal) = self.check_room(1, 0, limits, out) {
                return Ok(Err(refusal));
            }
            let data = kept(self.early[found].key())?;
            let early = self.early.remove(found);
            self.drop_early(&early, out);
            let source = Source::Wait { since: out.now, timeout, deadline };
            let new = NewEntry::step(awaited(step, &event, Some(&data)), message::forwarded(&headers), out.now);
            self.accept_from(new.with(terms), Some(source), out);
            return Ok(Ok(Waited::Resolved));
        }
        let wait = Wait { event, step, timer: (out.next_id)(), deadline, timeout, headers, terms };
        let note = Note::wait(&wait);
        if let Err(refusal) = self.check_room(1, note.bytes(), limits, out) {
            return Ok(Err(refusal));
        }
        self.register(wait, note, out);
        Ok(Ok(Waited::Waiting))
    }

    /// Whether an event of this name came before a step waited for it.
    pub fn has_early(&self, event: &str) -> bool {
        self.early.iter().any(|early| early.event == event)
    }

    /// Delivers an event to the first step of the run that waits for it.
    pub fn notify(&mut self, event: &str, data: &[u8], out: &mut Outbox<'_>) -> Option<Resolved> {
        self.notify_first(|wait| wait.event == event, data, out)
    }

    /// Delivers the event of this wait.
    pub fn notify_wait(&mut self, timer: MessageId, data: &[u8], out: &mut Outbox<'_>) -> Option<Resolved> {
        self.notify_first(|wait| wait.timer == timer, data, out)
    }

    fn notify_first(
        &mut self,
        is_meant: impl Fn(&Wait) -> bool,
        data: &[u8],
        out: &mut Outbox<'_>,
    ) -> Option<Resolved> {
        let goes_on = self.run.state == RunState::Started;
        let found = self.waits.iter().position(|wait| goes_on && is_meant(wait))?;
        let is_kept = planted::has(Bug::WaitEndsTwice);
        let wait = if is_kept { self.waits[found].clone() } else { self.waits.remove(found) };
        out.withdrawn.push(wait.timer);
        let id = self.end_wait(&wait, Some(data), out);
        Some(Resolved { wait, id })
    }

    /// Like [`Self::notify`], but keeps the event for a later wait if no step waits for it.
    pub fn notify_or_keep(
        &mut self,
        event: &str,
        data: &[u8],
        limits: &Limits,
        out: &mut Outbox<'_>,
    ) -> Result<Option<Resolved>, Refusal> {
        if self.run.state != RunState::Started {
            return Err(Refusal::Ended);
        }
        if self.bytes() + base64_len(data.len() as u64) > limits.bytes {
            return Err(Refusal::Exceeded { quota: BYTES_QUOTA, limit: limits.bytes });
        }
        if let Some(resolved) = self.notify(event, data, out) {
            return Ok(Some(resolved));
        }
        if self.early.len() >= EARLY_EVENTS_MAX {
            return Err(Refusal::Exceeded { quota: EVENTS_QUOTA, limit: EARLY_EVENTS_MAX as u64 });
        }
        let n = self.early.last().map_or(0, |last| last.n + 1);
        let early = EarlyEvent { n, event: event.to_owned(), size: data.len() as u64 };
        let note = Note::early(&early, Bytes::copy_from_slice(data));
        if self.bytes() + note.bytes() > limits.bytes {
            return Err(Refusal::Exceeded { quota: BYTES_QUOTA, limit: limits.bytes });
        }
        self.save_note(note, out);
        self.early.push(early);
        Ok(None)
    }

    /// Handles the deadline of a wait, or of the run. Has no effect if the event was first, or if the run has ended.
    pub fn deadline_reached(&mut self, timer: MessageId, out: &mut Outbox<'_>) {
        let goes_on = self.run.state == RunState::Started;
        if goes_on && self.run.last_call == Some(timer) {
            self.run.last_call = None;
            self.time_is_over(out);
            return;
        }
        let Some(found) = self.waits.iter().position(|wait| goes_on && wait.timer == timer) else { return };
        let wait = self.waits.remove(found);
        self.end_wait(&wait, None, out);
    }

    pub(super) fn register(&mut self, wait: Wait, note: Note, out: &mut Outbox<'_>) {
        out.messages.push(Arc::new(message::deadline(&self.run, &wait, out.now)));
        out.changes.push(Change::Waiter(self.waiter(&wait)));
        self.save_note(note, out);
        self.waits.push(wait);
    }

    pub(super) fn waiter(&self, wait: &Wait) -> Waiter {
        Waiter { tenant: self.run.tenant, event: wait.event.clone(), run: self.run.no, timer: wait.timer }
    }

    fn end_wait(&mut self, wait: &Wait, data: Option<&[u8]>, out: &mut Outbox<'_>) -> MessageId {
        out.changes.push(Change::NoWaiter(self.waiter(wait)));
        self.drop_note(wait.key(), out);
        self.sums.remove_note(&Note::wait(wait), 0);
        let body = awaited(wait.step.clone(), &wait.event, data);
        let new = NewEntry::step(body, message::forwarded(&wait.headers), out.now);
        self.accept_own(new.with(wait.terms.clone()), Some(wait.source()), out)
    }

    pub(super) fn drop_early(&mut self, early: &EarlyEvent, out: &mut Outbox<'_>) {
        self.drop_note(early.key(), out);
        self.sums.remove_note(&Note::early(early, Bytes::new()), early.size);
    }
}

/// The result of a step that waited: the data of the event, or that none came.
fn awaited(mut step: StepText, event: &str, data: Option<&[u8]>) -> Bytes {
    step.insert("waitEventId".to_owned(), Value::String(event.to_owned()));
    match data {
        Some(data) => step.insert("out".to_owned(), Value::String(base64(data))),
        None => step.insert("waitTimeout".to_owned(), Value::Bool(true)),
    };
    text_of(&step)
}
