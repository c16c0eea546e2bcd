//! The decisions: what happens to a run, and what that causes.

use super::callback;
use super::ending::{error_of, words_of};
use super::entry::{Delivery, DeliveryState, Entry, OwnTerms, Source, Terms, array, push_error};
use super::message::{self, Part};
use super::outbox::{Change, Notice, Outbox, Waiter};
use super::request::{Attempt, Limits, NewEntry, NewRun, Refusal, Resolved, Waited};
use super::run::{EarlyEvent, FailureCallState, HeaderLists, Invoke, Invoker, Run, RunState, StepText, Trigger, Wait};
use crate::limits::WORKFLOW_EARLY_EVENTS_MAX as EARLY_EVENTS_MAX;
use crate::outcome::Verdict;
use crate::retry::Next;
use crate::shard::Accepted;
use bytes::Bytes;
use posthaste_wire::encoding::base64;
use posthaste_wire::id::MessageId;
use posthaste_wire::workflow::{CallType, Features};
use serde_json::Value;
use std::sync::Arc;

/// A run with its entries: all that decisions about it need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workflow {
    /// The run.
    pub run: Run,
    /// Its entries, in the order of their acceptance.
    pub entries: Vec<Entry>,
}

impl Workflow {
    /// A run starts.
    pub fn start(new: NewRun, out: &mut Outbox<'_>) -> Workflow {
        let first = (out.next_id)();
        let run = Run {
            no: first.seq,
            tenant: new.tenant,
            id: new.id,
            created_at: new.created_at,
            url: new.url,
            config: Arc::new(new.config),
            invokers: new.invoker.into_iter().collect(),
            state: RunState::Started,
            ended_at: None,
            result: None,
            failure: None,
            waits: Vec::new(),
            invokes: Vec::new(),
            early: Vec::new(),
        };
        let mut workflow = Workflow { run, entries: Vec::new() };
        workflow.save_run(out);
        workflow.push(first, new.first, None, out);
        workflow
    }

    /// The endpoint of a run that was triggered without knowledge of its client triggers it its own way: what it sends
    /// takes the place of the first entry. False if that was not to be expected.
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
        first.id = (out.next_id)();
        first.body = body;
        let terms = Arc::make_mut(&mut first.terms);
        terms.content_type = content_type;
        terms.headers = protocol_headers;
        first.delivery = Delivery::due_at(out.now);
        self.save_entry(0, out);
        out.messages.push(Arc::new(message::delivery(&self.run, &self.entries[0])));
        true
    }

    /// Entries are appended, all or none.
    pub fn append(
        &mut self,
        new: Vec<NewEntry>,
        limits: &Limits,
        out: &mut Outbox<'_>,
    ) -> Result<Vec<Accepted>, Refusal> {
        if self.run.state != RunState::Started {
            return Err(Refusal::Ended);
        }
        // What is said twice takes no room.
        let is_new = |entry: &&NewEntry| self.twin(entry).is_none();
        let added: Vec<usize> = new.iter().filter(is_new).map(|entry| entry.body.len()).collect();
        self.check_room(&added, limits, out)?;
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

    /// An attempt to deliver an entry has ended.
    pub fn attempted(&mut self, index: u32, attempt: Attempt<'_>, out: &mut Outbox<'_>) {
        let complaint = self.is_no_workflow(index, attempt.outcome);
        let Entry { delivery, terms, .. } = &mut self.entries[index as usize];
        if self.run.state != RunState::Started || delivery.state != DeliveryState::Pending {
            return;
        }
        delivery.attempts = attempt.retried + 1;
        delivery.duration_ms = Some(attempt.outcome.duration_ms);
        if complaint.is_some() || attempt.outcome.verdict() != Verdict::Success {
            push_error(&mut delivery.errors, error_of(attempt.outcome, complaint, out.now));
        }
        let is_forgiven = terms.call.as_ref().is_some_and(|call| call.is_forgiven);
        match (attempt.next, complaint) {
            (Next::RetryAt(due), _) => {
                delivery.due = due;
                self.save_delivery(index, out);
            }
            (Next::Done, None) => self.delivered(index, attempt, out),
            (Next::DeadLetter, _) if is_forgiven => self.delivered(index, attempt, out),
            (Next::Done, Some(_)) | (Next::DeadLetter, _) => {
                let response = Some(callback::answer(attempt.outcome));
                let error = complaint.map(str::to_owned).or_else(|| words_of(attempt.outcome));
                self.fail(index, attempt.retried, error, response, out);
            }
        }
    }

    /// A message of the run need not wait for its time any longer; false if it is not to be attempted, or is no attempt.
    pub fn hasten(&mut self, part: Part, out: &mut Outbox<'_>) -> bool {
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
            // A wait ends by its event.
            (Part::Deadline, _) => false,
        }
    }

    /// A step waits for an event. Asking twice is asking once.
    pub fn wait(
        &mut self,
        event: &str,
        step: StepText,
        (timeout, timeout_ms): (String, u64),
        (headers, terms): (HeaderLists, OwnTerms),
        limits: &Limits,
        out: &mut Outbox<'_>,
    ) -> Result<Waited, Refusal> {
        if self.run.state != RunState::Started {
            return Err(Refusal::Ended);
        }
        let number = number_of(&step);
        if self.has_result(number) {
            return Ok(Waited::Resolved);
        }
        if self.run.waits.iter().any(|wait| number_of(&wait.step) == number) {
            return Ok(Waited::Waiting);
        }
        self.check_room(&[], limits, out)?;
        let deadline = out.now.plus_millis(timeout_ms);
        if let Some(found) = self.run.early.iter().position(|early| early.event == event) {
            let EarlyEvent { data, .. } = self.run.early.remove(found);
            self.save_run(out);
            let source = Source::Wait { since: out.now, timeout, deadline };
            let new = NewEntry::step(awaited(step, event, Some(&data)), message::forwarded(&headers), out.now);
            self.accept_from(new.with(terms), Some(source), out);
            return Ok(Waited::Resolved);
        }
        let timer = (out.next_id)();
        self.register(Wait { event: event.to_owned(), step, timer, deadline, timeout, headers, terms }, out);
        self.save_run(out);
        Ok(Waited::Waiting)
    }

    /// An event has come for whichever step of the run waits for it first.
    pub fn notify(&mut self, event: &str, data: &[u8], out: &mut Outbox<'_>) -> Option<Resolved> {
        let goes_on = self.run.state == RunState::Started;
        let found = self.run.waits.iter().position(|wait| goes_on && wait.event == event)?;
        let wait = self.run.waits.remove(found);
        out.withdrawn.push(wait.timer);
        let id = self.end_wait(&wait, Some(data), out);
        Some(Resolved { wait, id })
    }

    /// The same; kept for the step that will wait for it, if none does.
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
        if let Some(resolved) = self.notify(event, data, out) {
            return Ok(Some(resolved));
        }
        if self.run.early.len() >= EARLY_EVENTS_MAX {
            return Err(Refusal::Exceeded { quota: EVENTS_QUOTA, limit: EARLY_EVENTS_MAX as u64 });
        }
        let bytes = self.bytes() + data.len() as u64;
        if bytes > limits.bytes {
            return Err(Refusal::Exceeded { quota: BYTES_QUOTA, limit: limits.bytes });
        }
        self.run.early.push(EarlyEvent { event: event.to_owned(), data: data.to_owned() });
        self.save_run(out);
        Ok(None)
    }

    /// Whether a step of the run has made this webhook: only those who know its URL know its event.
    pub fn has_webhook(&self, event: &str) -> bool {
        self.entries.iter().filter(|entry| entry.is_result() && entry.info.kind == "CreateWebhook").any(|entry| {
            let step: StepText = serde_json::from_slice(&entry.body).unwrap_or_default();
            let made = step.get("out").and_then(Value::as_str);
            let made = made.and_then(|text| serde_json::from_str::<StepText>(text).ok());
            made.is_some_and(|made| made.get("eventId").and_then(Value::as_str) == Some(event))
        })
    }

    /// The deadline of a wait has come. Too late if its event was first.
    pub fn deadline_reached(&mut self, timer: MessageId, out: &mut Outbox<'_>) {
        let goes_on = self.run.state == RunState::Started;
        let Some(found) = self.run.waits.iter().position(|wait| goes_on && wait.timer == timer) else { return };
        let wait = self.run.waits.remove(found);
        self.end_wait(&wait, None, out);
    }

    /// A step has invoked another run. False if it had done so before.
    pub fn invoke(&mut self, mut invoke: Invoke, limits: &Limits, out: &mut Outbox<'_>) -> Result<bool, Refusal> {
        if self.run.state != RunState::Started {
            return Err(Refusal::Ended);
        }
        let number = number_of(&invoke.step);
        if self.has_result(number) || self.run.invokes.iter().any(|known| number_of(&known.step) == number) {
            return Ok(false);
        }
        self.check_room(&[invoke.body.len()], limits, out)?;
        invoke.id = Some((out.next_id)());
        self.run.invokes.push(invoke);
        self.save_run(out);
        Ok(true)
    }

    /// The run that this step has invoked, if it goes on.
    pub fn invoked(&self, step: &StepText) -> Option<&Invoke> {
        let number = number_of(step);
        self.run.invokes.iter().find(|invoke| number_of(&invoke.step) == number)
    }

    /// A run that this one has invoked has ended.
    pub fn invoked_has_ended(&mut self, notice: &Notice, out: &mut Outbox<'_>) {
        let number = number_of(&notice.to.step);
        let found = self.run.invokes.iter().position(|invoke| number_of(&invoke.step) == number);
        if self.run.state != RunState::Started {
            // Nobody waits any more; only the log shows it.
            if let Some(found) = found {
                self.run.invokes[found].out = Some(notice.out.clone());
                self.save_run(out);
            }
            return;
        }
        if self.has_result(number) {
            return;
        }
        let mut source = None;
        if let Some(found) = found {
            source = Some(self.run.invokes.remove(found).source());
            self.save_run(out);
        }
        let mut step = notice.to.step.clone();
        step.insert("out".to_owned(), Value::String(notice.out.clone()));
        let new = NewEntry::step(text_of(&step), notice.to.headers.clone(), out.now);
        self.accept_from(new.with(notice.to.terms.clone()), source, out);
    }

    /// Another run waits for the end of this one, too.
    pub fn add_invoker(&mut self, invoker: Invoker, out: &mut Outbox<'_>) {
        let is_same = |known: &Invoker| {
            (&known.run_id, known.created_at, number_of(&known.step))
                == (&invoker.run_id, invoker.created_at, number_of(&invoker.step))
        };
        if self.run.state == RunState::Started && !self.run.invokers.iter().any(is_same) {
            self.run.invokers.push(invoker);
            self.save_run(out);
        }
    }

    /// The function has returned. Saying so twice is saying it once.
    pub fn finish(&mut self, result: Option<String>, out: &mut Outbox<'_>) {
        if self.run.state == RunState::Started {
            self.run.result = result;
            self.end(RunState::Success, out);
        }
    }

    /// Somebody cancels the run; false if it has ended before.
    pub fn cancel(&mut self, out: &mut Outbox<'_>) -> bool {
        let goes_on = self.run.state == RunState::Started;
        if goes_on {
            self.end(RunState::Canceled, out);
        }
        goes_on
    }

    /// The list as its endpoint gets it with this entry: all up to it, in JSON.
    pub fn array_up_to(&self, index: u32) -> Vec<u8> {
        array(&self.entries[..=index as usize])
    }

    /// Bytes of its entries, and of what it waits for and keeps meanwhile.
    pub fn bytes(&self) -> u64 {
        let Run { early, waits, invokes, .. } = &self.run;
        let entries = self.entries.iter().map(|entry| entry.body.len());
        let early = early.iter().map(|early| ITEM_BYTES + early.event.len() + early.data.len());
        let waits = waits.iter().map(|wait| ITEM_BYTES + wait.event.len());
        let invokes = invokes.iter().map(|invoke| ITEM_BYTES + invoke.body.len());
        entries.chain(early).chain(waits).chain(invokes).map(|bytes| bytes as u64).sum()
    }

    /// A bound that is reached ends the run: it could not go on.
    fn check_room(&mut self, added: &[usize], limits: &Limits, out: &mut Outbox<'_>) -> Result<(), Refusal> {
        let entries = self.entries.len() as u64 + added.len() as u64;
        let bytes = self.bytes() + added.iter().map(|bytes| *bytes as u64).sum::<u64>();
        let age = out.now.millis_since(self.run.created_at);
        let exceeded = [
            (ENTRIES_QUOTA, entries, u64::from(limits.entries)),
            (BYTES_QUOTA, bytes, limits.bytes),
            (DURATION_QUOTA, age, limits.duration_ms),
        ];
        let Some((quota, _, limit)) = exceeded.into_iter().find(|(_, found, limit)| found > limit) else {
            return Ok(());
        };
        let newest = self.entries.last().map_or(0, |entry| entry.index);
        let text = format!("quota {quota} exceeded, current limit: {limit}");
        let Entry { id, delivery, .. } = &self.entries[newest as usize];
        let retried = delivery.attempts;
        if delivery.state == DeliveryState::Pending {
            out.withdrawn.push(*id);
        }
        let response = Some(callback::no_answer(&text));
        self.fail(newest, retried, Some(text), response, out);
        Err(Refusal::Exceeded { quota, limit })
    }

    /// What the trigger chose holds for ever, unless the client is one that says it each time.
    fn heed_failure_call(&mut self, new: &[NewEntry], out: &mut Outbox<'_>) {
        let newest = new.iter().rev().find_map(|entry| entry.failure.as_ref());
        let is_said_anew = !self.run.config.features.trigger_on_config;
        if is_said_anew && newest.is_some() && newest != self.run.config.failure.as_ref() {
            Arc::make_mut(&mut self.run.config).failure = newest.cloned();
            self.save_run(out);
        }
    }

    /// The entry that this one would repeat. An endpoint that is tried again publishes again what it had published.
    fn twin(&self, new: &NewEntry) -> Option<MessageId> {
        let is_twin = |entry: &&Entry| match (&new.call, &entry.terms.call) {
            (None, None) => entry.index > 0 && entry.terms.call_type == new.call_type && entry.body == new.body,
            (Some(new), Some(call)) => new.step == call.step,
            _ => false,
        };
        self.entries.iter().find(is_twin).map(|entry| entry.id)
    }

    /// What the endpoint makes of this entry is there already: to deliver it again would only execute a step again that is
    /// done. So it is after a crash that came between the two.
    pub fn is_obsolete(&self, index: u32) -> bool {
        let (shown, later) = self.entries.split_at(index as usize + 1);
        let Some(entry) = shown.last().filter(|entry| entry.terms.call_type == CallType::Step) else { return false };
        let waits = self.run.waits.iter().map(|wait| &wait.step);
        let asked = waits.chain(self.run.invokes.iter().map(|invoke| &invoke.step)).map(number_of);
        if entry.info.is_plan() {
            let made = later.iter().filter(|later| !later.info.is_plan()).map(Entry::number);
            return made.chain(asked).any(|number| number == entry.number());
        }
        let reached = shown.iter().map(Entry::number).max().unwrap_or(0);
        later.iter().map(Entry::number).chain(asked).any(|number| number > reached)
    }

    fn has_result(&self, number: u32) -> bool {
        number > 0 && self.entries.iter().any(|entry| entry.is_result() && entry.info.id == number)
    }

    fn accept(&mut self, new: NewEntry, out: &mut Outbox<'_>) -> MessageId {
        self.accept_from(new, None, out)
    }

    pub(super) fn accept_from(&mut self, new: NewEntry, source: Option<Source>, out: &mut Outbox<'_>) -> MessageId {
        let id = (out.next_id)();
        self.push(id, new, source, out);
        id
    }

    fn push(&mut self, id: MessageId, new: NewEntry, source: Option<Source>, out: &mut Outbox<'_>) {
        let config = &self.run.config;
        let is_call = new.call.is_some();
        // What the trigger chose holds for all deliveries to the endpoint, unless the client is one that says it each time.
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
        };
        let index = self.entries.len() as u32;
        let delivery = Delivery::due_at(new.due.max(out.now));
        self.entries.push(Entry::new(index, id, new.body, Arc::new(terms), delivery));
        self.save_entry(index, out);
        out.messages.push(Arc::new(message::delivery(&self.run, &self.entries[index as usize])));
    }

    pub(super) fn register(&mut self, wait: Wait, out: &mut Outbox<'_>) {
        out.messages.push(Arc::new(message::deadline(&self.run, &wait, out.now)));
        out.changes.push(Change::Waiter(self.waiter(&wait)));
        self.run.waits.push(wait);
    }

    pub(super) fn waiter(&self, wait: &Wait) -> Waiter {
        Waiter { tenant: self.run.tenant, event: wait.event.clone(), run: self.run.no, timer: wait.timer }
    }

    /// A call has ended: its result is the next entry.
    fn tell_of_call(&mut self, index: u32, attempt: Attempt<'_>, out: &mut Outbox<'_>) {
        let entry = &self.entries[index as usize];
        let Some(call) = &entry.terms.call else { return };
        let response = callback::answer(attempt.outcome);
        let new = NewEntry {
            call_type: CallType::FromCallback,
            retries: call.result_retries,
            ..NewEntry::step(
                callback::of_call(&self.run, entry, call, attempt.retried, &response),
                call.result_headers.clone(),
                out.now,
            )
        };
        self.accept(new, out);
    }

    /// A delivery was answered; if it was a call, the endpoint hears of it.
    fn delivered(&mut self, index: u32, attempt: Attempt<'_>, out: &mut Outbox<'_>) {
        self.finish_delivery(index, DeliveryState::Done, out);
        self.tell_of_call(index, attempt, out);
    }

    fn end_wait(&mut self, wait: &Wait, data: Option<&[u8]>, out: &mut Outbox<'_>) -> MessageId {
        out.changes.push(Change::NoWaiter(self.waiter(wait)));
        self.save_run(out);
        let body = awaited(wait.step.clone(), &wait.event, data);
        let new = NewEntry::step(body, message::forwarded(&wait.headers), out.now);
        self.accept_from(new.with(wait.terms.clone()), Some(wait.source()), out)
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

    pub(super) fn save_entry(&self, index: u32, out: &mut Outbox<'_>) {
        out.changes.push(Change::Entry { run: self.run.no, entry: self.entries[index as usize].clone() });
    }

    fn save_delivery(&self, index: u32, out: &mut Outbox<'_>) {
        let delivery = self.entries[index as usize].delivery.clone();
        out.changes.push(Change::Delivery { run: self.run.no, index, delivery });
    }
}

/// What an event, a wait or an invoke takes besides its bytes, more or less.
const ITEM_BYTES: usize = 256;
/// Entries of a run.
const ENTRIES_QUOTA: &str = "maxWorkflowSteps";
/// Bytes of a run.
const BYTES_QUOTA: &str = "maxWorkflowBytes";
/// Events of a run that nobody has waited for yet.
const EVENTS_QUOTA: &str = "maxWorkflowEvents";
/// How long a run may last.
const DURATION_QUOTA: &str = "maxWorkflowDuration";

/// Whether a header belongs to the protocol and not to the user.
fn is_protocol(name: &str) -> bool {
    name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("upstash-"))
}

pub(super) fn number_of(step: &StepText) -> u32 {
    step.get("stepId").and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

pub(super) fn text_of(step: &StepText) -> Bytes {
    // A map of JSON values always has a JSON form.
    Bytes::from(serde_json::to_vec(step).expect("a step is JSON"))
}

/// The result of a step that waited: what the event brought, or that none came.
fn awaited(mut step: StepText, event: &str, data: Option<&[u8]>) -> Bytes {
    step.insert("waitEventId".to_owned(), Value::String(event.to_owned()));
    match data {
        Some(data) => step.insert("out".to_owned(), Value::String(base64(data))),
        None => step.insert("waitTimeout".to_owned(), Value::Bool(true)),
    };
    text_of(&step)
}
