//! The decisions: events of a run, and their consequences.

use super::callback;
use super::ending::{error_of, words_of};
use super::entry::{Delivery, DeliveryState, Digest, Entry, Gist, Source, StepError, Terms};
use super::message::{self, Part};
use super::note::{Note, NoteKey};
use super::outbox::{Change, Notice, Outbox, Rebound};
use super::request::{Attempt, Limits, NewEntry, NewRun, Refusal};
use super::room::Sums;
use super::run::{EarlyEvent, FailureCallState, Invoke, Invoker, Run, RunState, StepText, Trigger, Wait, number_of};
use crate::outcome::Verdict;
use crate::planted::{self, Bug};
use crate::retry::Next;
use crate::shard::Accepted;
use bytes::Bytes;
use posthaste_wire::id::MessageId;
use posthaste_wire::workflow::{CallType, Features};
use serde_json::Value;
use std::cell::LazyCell;
use std::sync::Arc;

/// A run with its entries and notes: everything that decisions about it need. It is small, because data that only
/// endpoints and logs need is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workflow {
    /// The run.
    pub run: Run,
    /// Its entries, in the order of their acceptance.
    pub entries: Vec<Entry>,
    /// The runs that wait for its end.
    pub invokers: Vec<Invoker>,
    /// Events it waits for, in the order of the waits.
    pub waits: Vec<Wait>,
    /// Runs it has invoked, by the number of the step. For those that are over, the list contains the result.
    pub invokes: Vec<Invoke>,
    /// Events that came before a step waited for them, oldest first.
    pub early: Vec<EarlyEvent>,
    /// The errors of its failure callback, the first ones and the last one; `None` before its first attempt ended.
    pub told: Option<Vec<StepError>>,
    /// The sizes of all this.
    pub(super) sums: Sums,
}

impl Workflow {
    /// Starts a run.
    pub fn start(new: NewRun, out: &mut Outbox<'_>) -> Workflow {
        let first = (out.next_id)();
        let run = Run {
            no: first.seq,
            tenant: new.tenant,
            id: new.id,
            created_at: new.created_at,
            url: new.url,
            config: Arc::new(new.config),
            state: RunState::Started,
            ended_at: None,
            failure: None,
            last_call: None,
        };
        let mut workflow = Workflow::of(run, Vec::new());
        workflow.save_run(out);
        if let Some(invoker) = new.invoker {
            workflow.push_invoker(invoker, out);
        }
        workflow.push(first, new.first, None, out);
        workflow
    }

    /// A run with these entries and no notes.
    pub(super) fn of(run: Run, entries: Vec<Entry>) -> Workflow {
        let (sums, (invokers, waits, invokes, early)) = (Sums::of(&entries), Default::default());
        Workflow { run, entries, invokers, waits, invokes, early, told: None, sums }
    }

    /// The endpoint of a run that was triggered without knowledge of its client triggers it again with its own client.
    /// The new payload replaces the first entry. Returns false if that was not expected.
    pub fn restart_by_client(
        &mut self,
        body: Bytes,
        content_type: String,
        headers: Vec<(String, String)>,
        features: Features,
        out: &mut Outbox<'_>,
    ) -> bool {
        if self.run.state != RunState::Started || self.run.config.trigger != Trigger::UnknownClient {
            return false;
        }
        let (user_headers, protocol_headers) = headers.into_iter().partition(|(name, _)| !is_protocol(name));
        let config = Arc::make_mut(&mut self.run.config);
        config.trigger = Trigger::Client;
        config.features = features;
        config.headers = user_headers;
        self.save_run(out);
        let first = &mut self.entries[0];
        if first.delivery.state == DeliveryState::Pending {
            out.withdrawn.push(first.id);
        }
        let mut terms = Terms::clone(&first.terms);
        terms.content_type = content_type;
        terms.headers = protocol_headers;
        self.sums.remove_entry(first);
        *first = Entry::new(0, (out.next_id)(), &body, Arc::new(terms), Delivery::due_at(out.now));
        self.sums.add_entry(first);
        out.messages.push(Arc::new(message::delivery(&self.run, &self.entries[0], &body)));
        self.save_entry(0, body, out);
        true
    }

    /// Appends entries, all or none.
    pub fn append(
        &mut self,
        new: Vec<NewEntry>,
        limits: &Limits,
        out: &mut Outbox<'_>,
    ) -> Result<Vec<Accepted>, Refusal> {
        if self.run.state != RunState::Started {
            return Err(Refusal::Ended);
        }
        // Repeated entries take no room.
        let is_new = |entry: &&NewEntry| self.twin(entry).is_none();
        let added: Vec<u64> = new.iter().filter(is_new).map(NewEntry::bytes).collect();
        self.check_room(added.len(), added.iter().sum(), limits, out)?;
        self.heed_failure_call(&new, out);
        let mut accepted = Vec::new();
        for entry in new {
            accepted.push(match self.twin(&entry) {
                Some(id) => Accepted { id, deduplicated: true },
                None => Accepted { id: self.accept(entry, out), deduplicated: false },
            });
        }
        Ok(accepted)
    }

    /// Records the end of an attempt to deliver an entry.
    pub fn attempted(&mut self, index: u32, attempt: Attempt<'_>, out: &mut Outbox<'_>) {
        let complaint = self.is_no_workflow(index, attempt.outcome);
        let Entry { delivery, terms, .. } = &mut self.entries[index as usize];
        if self.run.state != RunState::Started || delivery.state != DeliveryState::Pending {
            return;
        }
        delivery.attempts = attempt.retried + 1;
        delivery.duration_ms = Some(attempt.outcome.duration_ms);
        if complaint.is_some() || attempt.outcome.verdict() != Verdict::Success {
            self.sums.push_error(&mut delivery.errors, error_of(attempt.outcome, complaint, out.now));
        }
        let is_forgiven = terms.call.as_ref().is_some_and(|call| call.is_forgiven);
        match (attempt.next, complaint) {
            (Next::RetryAt(due), _) => {
                delivery.due = due;
                self.save_delivery(index, out);
            }
            (Next::Done, None) => self.delivered(index, attempt, out),
            (Next::DeadLetter, _) if is_forgiven && planted::has(Bug::FailedCallNotTold) => {
                self.finish_delivery(index, DeliveryState::Done, out);
            }
            (Next::DeadLetter, _) if is_forgiven => self.delivered(index, attempt, out),
            (Next::Done, Some(_)) | (Next::DeadLetter, _) => {
                let response = callback::answer(attempt.outcome);
                let error = complaint.map(str::to_owned).or_else(|| words_of(attempt.outcome));
                self.fail(index, attempt.retried, error, response, out);
            }
        }
    }

    /// Makes a message of the run due now. Returns false if no attempt of it is to come, or if it has no attempts.
    pub fn deliver_now(&mut self, part: Part, out: &mut Outbox<'_>) -> bool {
        let call = self.run.failure.as_mut().and_then(|failure| failure.call.as_mut());
        match (part, call) {
            (Part::Entry(index), _) => {
                let goes_on = self.run.state == RunState::Started;
                let delivery = self.entries.get_mut(index as usize).map(|entry| &mut entry.delivery);
                let Some(delivery) = delivery.filter(|it| goes_on && it.state == DeliveryState::Pending) else {
                    return false;
                };
                delivery.due = delivery.due.min(out.now);
                self.save_delivery(index, out);
                true
            }
            (Part::FailureCall, Some(call)) if call.state == FailureCallState::InProgress => {
                call.due = call.due.min(out.now);
                self.save_run(out);
                true
            }
            (Part::FailureCall, _) => false,
            // Only its event ends a wait.
            (Part::Deadline, _) => false,
        }
    }

    /// Records that a step has invoked another run with these bytes. Returns false if it had done so before.
    pub fn invoke(
        &mut self,
        mut invoke: Invoke,
        body: Bytes,
        limits: &Limits,
        out: &mut Outbox<'_>,
    ) -> Result<bool, Refusal> {
        if self.run.state != RunState::Started {
            return Err(Refusal::Ended);
        }
        if !self.may_invoke(&invoke.step) {
            return Ok(false);
        }
        invoke.id = Some((out.next_id)());
        let note = Note::invoke(&invoke, body);
        self.check_room(1, note.bytes(), limits, out)?;
        self.push_invoke(invoke, note, out);
        Ok(true)
    }

    /// The run that this step has invoked.
    pub fn invoked(&self, step: &StepText) -> Option<&Invoke> {
        let number = number_of(step);
        self.invokes.iter().find(|invoke| invoke.number() == number)
    }

    /// Records the end of a run that this one has invoked.
    pub fn invoked_has_ended(&mut self, notice: &Notice, out: &mut Outbox<'_>) {
        let number = number_of(&notice.to.step);
        if self.run.state != RunState::Started {
            // Nothing waits for it any more; only the log shows it.
            let is_open = |invoke: &&mut Invoke| invoke.number() == number && !invoke.has_out;
            if let Some(invoke) = self.invokes.iter_mut().find(is_open) {
                invoke.has_out = true;
                let note = Note::invoke_out(invoke, Bytes::copy_from_slice(notice.out.as_bytes()));
                self.save_note(note, out);
            }
            return;
        }
        if self.has_result(number) {
            return;
        }
        let mut step = notice.to.step.clone();
        step.insert("out".to_owned(), Value::String(notice.out.as_ref().to_owned()));
        let new = NewEntry::step(text_of(&step), notice.to.headers.clone(), out.now);
        self.accept_own(new.with(notice.to.terms.clone()), None, out);
    }

    /// Adds another run that waits for the end of this one.
    pub fn add_invoker(&mut self, invoker: Invoker, out: &mut Outbox<'_>) {
        let is_same = |known: &Invoker| {
            (&known.run_id, known.created_at, number_of(&known.step))
                == (&invoker.run_id, invoker.created_at, number_of(&invoker.step))
        };
        if self.run.state == RunState::Started && !self.invokers.iter().any(is_same) {
            self.push_invoker(invoker, out);
        }
    }

    /// Adds a restarted run that waits for the end of this one. If there are too many, it replaces the failed run that
    /// waited before, because a run that must wait cannot be rejected.
    pub fn rebind(&mut self, rebound: Rebound, out: &mut Outbox<'_>) {
        let Rebound { from, invoker, .. } = rebound;
        let is_from = |known: &Invoker| {
            known.run_id == from.0
                && known.created_at.is_none_or(|at| at == from.1)
                && number_of(&known.step) == number_of(&invoker.step)
        };
        match self.invokers.iter().position(is_from) {
            Some(place) if self.run.state == RunState::Started && self.check_invokers().is_err() => {
                self.sums.remove_note(&Note::invoker(place, &self.invokers[place]), 0);
                self.save_note(Note::invoker(place, &invoker), out);
                self.invokers[place] = invoker;
            }
            _ => self.add_invoker(invoker, out),
        }
    }

    /// The function has returned. Repeating the call has no further effect.
    pub fn finish(&mut self, result: Option<String>, out: &mut Outbox<'_>) {
        if self.run.state == RunState::Started {
            self.end(RunState::Success, result, out);
        }
    }

    /// Cancels the run. Returns false if it has ended before.
    pub fn cancel(&mut self, out: &mut Outbox<'_>) -> bool {
        let goes_on = self.run.state == RunState::Started;
        if goes_on {
            self.end(RunState::Canceled, None, out);
        }
        goes_on
    }

    /// The trigger's settings apply permanently, unless the client sends them with each entry.
    fn heed_failure_call(&mut self, new: &[NewEntry], out: &mut Outbox<'_>) {
        let newest = new.iter().rev().find_map(|entry| entry.failure.as_ref());
        let is_said_anew = !self.run.config.features.trigger_on_config;
        if is_said_anew && newest.is_some() && newest != self.run.config.failure.as_ref() {
            Arc::make_mut(&mut self.run.config).failure = newest.cloned();
            self.save_run(out);
        }
    }

    /// The existing entry that this one repeats. A retried endpoint publishes the same entries again.
    fn twin(&self, new: &NewEntry) -> Option<MessageId> {
        let digest = LazyCell::new(|| Digest::of(&new.body));
        let has_bytes = |gist: &Gist| gist.size == new.body.len() as u64 && gist.digest == *digest;
        let is_twin = |entry: &&Entry| match (&new.call, &entry.terms.call) {
            (None, None) => entry.index > 0 && entry.terms.call_type == new.call_type && has_bytes(&entry.gist),
            (Some(new), Some(call)) => new.step == call.step,
            _ => false,
        };
        if planted::has(Bug::StepAppendedTwice) {
            return None;
        }
        self.entries.iter().find(is_twin).map(|entry| entry.id)
    }

    /// Whether the result of this entry already exists. Delivering it again would only execute a finished step again.
    /// This happens after a crash between the two.
    pub fn is_obsolete(&self, index: u32) -> bool {
        if planted::has(Bug::DoneStepSentAgain) {
            return false;
        }
        let (shown, later) = self.entries.split_at(index as usize + 1);
        let Some(entry) = shown.last().filter(|entry| entry.terms.call_type == CallType::Step) else { return false };
        let waits = self.waits.iter().map(|wait| &wait.step);
        let asked = waits.chain(self.invokes.iter().map(|invoke| &invoke.step)).map(number_of);
        if entry.gist.info.is_plan() {
            let made = later.iter().filter(|later| !later.gist.info.is_plan()).map(Entry::number);
            return made.chain(asked).any(|number| number == entry.number());
        }
        let reached = shown.iter().map(Entry::number).max().unwrap_or(0);
        later.iter().map(Entry::number).chain(asked).any(|number| number > reached)
    }

    pub(super) fn has_result(&self, number: u32) -> bool {
        number > 0 && self.entries.iter().any(|entry| entry.is_result() && entry.gist.info.id == number)
    }

    pub(super) fn accept(&mut self, new: NewEntry, out: &mut Outbox<'_>) -> MessageId {
        self.accept_from(new, None, out)
    }

    /// Accepts an entry that the server itself adds: a response, an event, or the end of an invoked run. The same
    /// limits apply as for a client's entry. Without room the run ends, with this entry as the cause.
    pub(super) fn accept_own(&mut self, new: NewEntry, source: Option<Source>, out: &mut Outbox<'_>) -> MessageId {
        let limits = out.limits;
        match self.check_room(1, new.bytes(), &limits, out) {
            Ok(()) => self.accept_from(new, source, out),
            Err(_) => self.entries.last().map_or((out.next_id)(), |newest| newest.id),
        }
    }

    pub(super) fn accept_from(&mut self, new: NewEntry, source: Option<Source>, out: &mut Outbox<'_>) -> MessageId {
        let id = (out.next_id)();
        self.push(id, new, source, out);
        id
    }

    fn push(&mut self, id: MessageId, new: NewEntry, source: Option<Source>, out: &mut Outbox<'_>) {
        let config = &self.run.config;
        let is_call = new.call.is_some();
        // The trigger's settings apply to all deliveries to the endpoint, unless the client sends them each time.
        let terms = Terms {
            accepted_at: out.now,
            retries: new.retries.unwrap_or(if is_call { 0 } else { config.retries }),
            retry_delay: new.retry_delay.or_else(|| config.retry_delay.clone().filter(|_| !is_call)),
            timeout_ms: new.timeout_ms,
            flow: new.flow.or_else(|| config.flow.clone().filter(|_| !is_call)),
            call_type: new.call_type,
            content_type: new.content_type,
            headers: new.headers,
            call: new.call,
            source,
            redact: new.redact,
        };
        let index = self.entries.len() as u32;
        let delivery = Delivery::due_at(new.due.max(out.now));
        let entry = Entry::new(index, id, &new.body, Arc::new(terms), delivery);
        out.messages.push(Arc::new(message::delivery(&self.run, &entry, &new.body)));
        self.sums.add_entry(&entry);
        self.entries.push(entry);
        self.save_entry(index, new.body, out);
    }

    fn push_invoker(&mut self, invoker: Invoker, out: &mut Outbox<'_>) {
        self.save_note(Note::invoker(self.invokers.len(), &invoker), out);
        self.invokers.push(invoker);
    }

    pub(super) fn push_invoke(&mut self, mut invoke: Invoke, note: Note, out: &mut Outbox<'_>) {
        invoke.size = note.body.len() as u64;
        self.save_note(note, out);
        let place = self.invokes.partition_point(|known| known.number() < invoke.number());
        self.invokes.insert(place, invoke);
    }

    /// Ends a call: its result is the next entry.
    fn tell_of_call(&mut self, index: u32, attempt: Attempt<'_>, out: &mut Outbox<'_>) {
        let entry = &self.entries[index as usize];
        let Some(call) = &entry.terms.call else { return };
        let response = callback::answer(attempt.outcome);
        let new = NewEntry {
            call_type: CallType::FromCallback,
            retries: call.result_retries,
            // The result contains what was sent and the response.
            redact: entry.terms.redact.clone(),
            ..NewEntry::step(
                callback::of_call(&self.run, entry, call, attempt, &response),
                call.result_headers.clone(),
                out.now,
            )
        };
        self.accept_own(new, None, out);
    }

    /// Ends a delivery with a success. For a call, the endpoint gets the result.
    fn delivered(&mut self, index: u32, attempt: Attempt<'_>, out: &mut Outbox<'_>) {
        self.finish_delivery(index, DeliveryState::Done, out);
        self.tell_of_call(index, attempt, out);
        self.expect_an_end(out);
    }

    pub(super) fn finish_delivery(&mut self, index: u32, state: DeliveryState, out: &mut Outbox<'_>) {
        let delivery = &mut self.entries[index as usize].delivery;
        delivery.state = state;
        delivery.ended_at = Some(out.now);
        self.save_delivery(index, out);
    }

    pub(super) fn save_run(&self, out: &mut Outbox<'_>) {
        out.changes.push(Change::Run(Arc::new(self.run.clone())));
    }

    pub(super) fn save_entry(&self, index: u32, body: Bytes, out: &mut Outbox<'_>) {
        out.changes.push(Change::Entry { run: self.run.no, entry: self.entries[index as usize].clone(), body });
    }

    pub(super) fn save_note(&mut self, note: Note, out: &mut Outbox<'_>) {
        self.sums.add_note(note.key.kind, note.data.len(), note.body.len() as u64);
        out.changes.push(Change::Note { run: self.run.no, note });
    }

    pub(super) fn drop_note(&self, key: NoteKey, out: &mut Outbox<'_>) {
        if !planted::has(Bug::NoteLeftBehind) {
            out.changes.push(Change::NoNote { run: self.run.no, key });
        }
    }

    fn save_delivery(&self, index: u32, out: &mut Outbox<'_>) {
        let delivery = self.entries[index as usize].delivery.clone();
        out.changes.push(Change::Delivery { run: self.run.no, index, delivery });
    }
}

/// Whether a header belongs to the protocol and not to the user.
fn is_protocol(name: &str) -> bool {
    name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("upstash-"))
}

pub(super) fn text_of(step: &StepText) -> Bytes {
    // A map of JSON values always has a JSON form.
    Bytes::from(serde_json::to_vec(step).expect("a step is JSON"))
}
