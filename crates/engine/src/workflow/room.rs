//! The size of a run, and its limits.

use super::callback;
use super::entry::{DeliveryState, Entry, StepError, Terms, push_error};
use super::machine::Workflow;
use super::message;
use super::note::{Note, NoteKind};
use super::outbox::Outbox;
use super::request::{Limits, NewEntry, Refusal};
use super::run::{Run, RunState, StepText, number_of};
use crate::limits::{WORKFLOW_ERROR_BYTES_MAX, WORKFLOW_INVOKERS_MAX as INVOKERS_MAX};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::rejection::quota_exceeded;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// Approximate size of an event, a wait or an invoke besides its bytes.
const ITEM_BYTES: u64 = 256;
/// The header in which an endpoint names the step that failed.
pub const ERROR_STEP_NAME: &str = "Upstash-Error-Step-Name";
/// Entries of a run.
const ENTRIES_QUOTA: &str = "maxWorkflowSteps";
/// Bytes of a run.
pub(super) const BYTES_QUOTA: &str = "maxWorkflowBytes";
/// Runs that wait for the end of one.
const INVOKERS_QUOTA: &str = "maxWorkflowInvokers";
/// How long a run may last.
const DURATION_QUOTA: &str = "maxWorkflowDuration";

/// The sizes of a run, kept so that they need not be recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Of its entries and their settings.
    entries: u64,
    /// Of its waits, invokes and kept events, without their bodies.
    asked: u64,
    /// Of those bodies.
    bodies: u64,
    /// Of the runs that wait for its end. The run did not cause them, so they do not count toward its limit.
    invokers: u64,
    /// Of errors of deliveries, which do not count toward its limit either.
    errors: u64,
}

impl Sums {
    pub(super) fn of(entries: &[Entry]) -> Sums {
        let errors = entries.iter().map(|entry| error_bytes(&entry.delivery.errors)).sum();
        Sums { entries: entries.iter().map(entry_bytes).sum(), errors, ..Sums::default() }
    }

    /// Adds an error of a delivery. If the run has kept enough responses, only the status is kept.
    pub(super) fn push_error(&mut self, errors: &mut Vec<StepError>, mut error: StepError) {
        if self.errors >= WORKFLOW_ERROR_BYTES_MAX {
            error.response = error.response.map(|response| Arc::new(response.status_and(ERROR_STEP_NAME)));
        }
        let others = self.errors.saturating_sub(error_bytes(errors));
        push_error(errors, error);
        self.errors = others + error_bytes(errors);
    }

    pub(super) fn add_entry(&mut self, entry: &Entry) {
        self.entries += entry_bytes(entry);
    }

    pub(super) fn remove_entry(&mut self, entry: &Entry) {
        self.entries = self.entries.saturating_sub(entry_bytes(entry));
    }

    /// Adds a note with these lengths of its JSON and its body.
    pub(super) fn add_note(&mut self, kind: NoteKind, data: usize, body: u64) {
        let data = ITEM_BYTES + data as u64;
        match kind {
            NoteKind::Wait | NoteKind::Invoke | NoteKind::Early => {
                self.asked += data;
                self.bodies += body;
            }
            NoteKind::Invoker => self.invokers += data,
            // Only a run that has ended has these notes.
            NoteKind::InvokeOut | NoteKind::Result | NoteKind::Answer | NoteKind::Told => {}
        }
    }

    /// Subtracts a note and this length of its body.
    pub(super) fn remove_note(&mut self, note: &Note, body: u64) {
        let mut of_note = Sums::default();
        of_note.add_note(note.key.kind, note.data.len(), body);
        self.asked = self.asked.saturating_sub(of_note.asked);
        self.bodies = self.bodies.saturating_sub(of_note.bodies);
        self.invokers = self.invokers.saturating_sub(of_note.invokers);
    }
}

impl Workflow {
    /// Bytes of its entries with their settings, and of its waits, invokes and kept events.
    pub fn bytes(&self) -> u64 {
        self.sums.entries + self.sums.asked + self.sums.bodies
    }

    /// Bytes of the notes that decisions need: waits, invokes, kept events, and runs that wait for its end.
    pub fn noted_bytes(&self) -> u64 {
        self.sums.asked + self.sums.invokers
    }

    /// Bytes of the run's settings and of its failure.
    pub fn chosen_bytes(&self) -> u64 {
        let Run { id, url, config, failure, .. } = &self.run;
        let texts = [Some(id), Some(url), config.retry_delay.as_ref(), Some(&config.caller_ip)];
        let texts = texts.into_iter().flatten().chain(&config.labels).chain(&config.redact.headers);
        let texts = texts.chain(config.failure.iter().flat_map(|call| &call.redact.headers));
        let texts = texts.chain(config.flow.as_ref().map(|flow| &flow.key));
        let texts = texts.chain(failure.as_ref().and_then(|failure| failure.error.as_ref()));
        let told = config.failure.as_ref().map_or(0, |call| call.url.len() as u64 + header_bytes(&call.headers));
        let errors = self.told.as_deref().map_or(0, error_bytes);
        texts.map(|text| text.len() as u64).sum::<u64>() + header_bytes(&config.headers) + told + errors
    }

    /// Whether this step may invoke a run: it has not invoked one, and has no result.
    pub fn may_invoke(&self, step: &StepText) -> bool {
        let number = number_of(step);
        let is_known = self.has_result(number) || self.invokes.iter().any(|known| known.number() == number);
        self.run.state == RunState::Started && !is_known
    }

    /// Rejects one more run that would wait for the end of this one, because all of them get its result at once.
    pub fn check_invokers(&self) -> Result<(), Refusal> {
        match self.invokers.len() < INVOKERS_MAX {
            true => Ok(()),
            false => Err(Refusal::Exceeded { quota: INVOKERS_QUOTA, limit: INVOKERS_MAX as u64 }),
        }
    }

    /// Checks the limits for this many new entries and bytes, now or after the requested events. Exceeding a limit ends
    /// the run, because it could not continue.
    pub(super) fn check_room(
        &mut self,
        entries: usize,
        bytes: u64,
        limits: &Limits,
        out: &mut Outbox<'_>,
    ) -> Result<(), Refusal> {
        let age = out.now.millis_since(self.run.created_at);
        // Each wait and each invoke will become an entry.
        let most = self.entries.len().max(self.waits.len()).max(self.invokes.len());
        let exceeded = [
            (ENTRIES_QUOTA, (most + entries) as u64, u64::from(limits.entries)),
            (BYTES_QUOTA, self.bytes() + bytes, limits.bytes),
            (DURATION_QUOTA, age, limits.duration_ms),
        ];
        let Some((quota, _, limit)) = exceeded.into_iter().find(|(_, found, limit)| found > limit) else {
            return Ok(());
        };
        let newest = self.entries.last().map_or(0, |entry| entry.index);
        let text = quota_exceeded(quota, limit);
        let Entry { id, delivery, .. } = &self.entries[newest as usize];
        let retried = delivery.attempts;
        if delivery.state == DeliveryState::Pending {
            out.withdrawn.push(*id);
        }
        let response = callback::no_answer(&text);
        self.fail(newest, retried, Some(text), response, out);
        Err(Refusal::Exceeded { quota, limit })
    }
}

impl Workflow {
    /// Call it when every delivery has a response. If nothing more is to come, because the endpoint has published
    /// nothing, the run would never end. It then ends when its maximum duration is over. All other runs end by what is
    /// to come.
    pub(super) fn expect_an_end(&mut self, out: &mut Outbox<'_>) {
        let is_pending = |entry: &Entry| entry.delivery.state == DeliveryState::Pending;
        let is_idle = self.run.state == RunState::Started
            && self.waits.is_empty()
            && !self.entries.iter().rev().any(is_pending)
            && self.invokes.iter().all(|invoke| self.has_result(invoke.number()));
        if !is_idle || self.run.last_call.is_some() {
            return;
        }
        // An append at exactly this time is still allowed.
        let Some(end) = self.run.created_at.as_millis().checked_add(out.limits.duration_ms) else { return };
        let id = (out.next_id)();
        let due = Timestamp(end).plus_millis(1).max(out.now);
        out.messages.push(Arc::new(message::last_call(&self.run, id, due, out.now)));
        self.run.last_call = Some(id);
        self.save_run(out);
    }

    /// The maximum duration of the run is over, unless it was extended since it was scheduled.
    pub(super) fn time_is_over(&mut self, out: &mut Outbox<'_>) {
        let limits = out.limits;
        if self.check_room(0, 0, &limits, out).is_ok() {
            self.save_run(out);
            self.expect_an_end(out);
        }
    }
}

impl Entry {
    /// Bytes of the data that decisions need, which are not the run's own bytes.
    pub fn held_bytes(&self) -> u64 {
        self.terms.bytes() + self.gist.info.kind.len() as u64 + error_bytes(&self.delivery.errors)
    }
}

impl Terms {
    /// Bytes of the texts in it.
    fn bytes(&self) -> u64 {
        let call = self.call.as_ref();
        let call =
            call.map_or(0, |call| (call.url.len() + call.method.len()) as u64 + header_bytes(&call.result_headers));
        said_bytes(&self.content_type, &self.headers, self.retry_delay.as_deref()) + call + redact_bytes(&self.redact)
    }
}

impl NewEntry {
    /// Approximate bytes that it adds to a run.
    pub(super) fn bytes(&self) -> u64 {
        let call = self.call.as_ref().map_or(0, |call| call.url.len() as u64 + header_bytes(&call.result_headers));
        let said = said_bytes(&self.content_type, &self.headers, self.retry_delay.as_deref());
        self.body.len() as u64 + said + call + redact_bytes(&self.redact)
    }
}

impl Note {
    /// Bytes that it adds to a run.
    pub(super) fn bytes(&self) -> u64 {
        let mut sums = Sums::default();
        sums.add_note(self.key.kind, self.data.len(), self.body.len() as u64);
        sums.asked + sums.bodies
    }
}

fn entry_bytes(entry: &Entry) -> u64 {
    entry.gist.size + entry.terms.bytes()
}

fn said_bytes(content_type: &str, headers: &[(String, String)], retry_delay: Option<&str>) -> u64 {
    (content_type.len() + retry_delay.map_or(0, str::len)) as u64 + header_bytes(headers)
}

fn redact_bytes(redact: &RedactFields) -> u64 {
    redact.headers.iter().map(|name| name.len() as u64).sum()
}

fn header_bytes(headers: &[(String, String)]) -> u64 {
    headers.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum()
}

fn error_bytes(errors: &[StepError]) -> u64 {
    let answers = errors.iter().filter_map(|error| error.response.as_ref());
    let answers: u64 = answers.map(|answer| answer.body.len() as u64 + header_bytes(&answer.headers)).sum();
    answers + errors.iter().filter_map(|error| error.error.as_ref()).map(|text| text.len() as u64).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Response;

    #[test]
    fn a_run_keeps_only_so_much_of_failed_responses() {
        let error = |bytes: usize| {
            let headers = vec![("Server".to_owned(), "nginx".to_owned())];
            let response = Response { status: 500, headers, body: vec![b'x'; bytes], truncated: false };
            StepError { at: Timestamp(1), error: None, response: Some(Arc::new(response)) }
        };
        let mut sums = Sums::default();
        let mut deliveries = vec![Vec::new(); 100];
        for errors in &mut deliveries {
            for _ in 0..20 {
                sums.push_error(errors, error(16 * 1024));
            }
        }
        let kept: u64 = deliveries.iter().map(|errors| error_bytes(errors)).sum();
        assert_eq!(sums.errors, kept);
        assert!((WORKFLOW_ERROR_BYTES_MAX..WORKFLOW_ERROR_BYTES_MAX + 32 * 1024).contains(&kept), "{kept}");
        let last = deliveries[99].last().and_then(|error| error.response.as_deref());
        assert_eq!(last, Some(&Response { status: 500, truncated: true, ..Response::default() }));
    }
}
