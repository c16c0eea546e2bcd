//! What happened to a run, line by line: derived from the run and its entries, and from nothing else.

use super::shape::{Shaper, StepShaper, View, error_text, put_labels, put_run, run_state};
use super::steps::{self, Group, Item, Sleep, StepState};
use crate::api::shape::{Object, put};
use posthaste_engine::workflow::Record;
use posthaste_engine::workflow::entry::{DeliveryState, Entry, Source, StepError};
use posthaste_engine::workflow::run::{Run, RunState};
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;
use serde_json::{Value, json};

/// One line.
pub(super) struct Line {
    /// When it happened.
    at: Timestamp,
    /// `RUN_…` or `STEP_…`.
    pub(super) state: &'static str,
    /// The message it happened to, if it was one.
    pub(super) message: Option<MessageId>,
    /// All of it.
    pub(super) object: Object,
}

/// The lines of a run, oldest first. Those of one time are in the order in which one leads to the other.
pub(super) fn lines(record: &Record, view: View) -> Vec<Line> {
    let workflow = &record.workflow;
    let view = if record.is_without_bodies() { View { trim_body: Some(0), ..view } } else { view };
    let steps = StepShaper::new(record, view);
    let mut lines = Lines { record, shaper: steps.shaper, steps, run: &workflow.run, lines: Vec::new() };
    lines.push_start();
    let groups = steps::groups(workflow, view.now);
    for item in groups.iter().flat_map(Group::items) {
        lines.push_item(item, view.now);
    }
    for entry in workflow.entries.iter().filter(|entry| entry.index == 0 || entry.is_result()) {
        let about = lines.shaper.delivery(entry);
        lines.push_errors(entry, &about);
    }
    lines.push_end();
    lines.lines.sort_by_key(|line| line.at);
    lines.lines
}

struct Lines<'a> {
    record: &'a Record,
    steps: StepShaper<'a>,
    shaper: Shaper<'a>,
    run: &'a Run,
    lines: Vec<Line>,
}

impl<'a> Lines<'a> {
    fn push(&mut self, at: Timestamp, state: &'static str, message: Option<MessageId>, more: Object) {
        let mut object = Object::new();
        put(&mut object, "time", at.as_millis());
        put(&mut object, "state", state);
        put_run(&mut object, self.run);
        put_labels(&mut object, self.run);
        if !self.run.config.caller_ip.is_empty() {
            put(&mut object, "callerIp", self.run.config.caller_ip.as_str());
        }
        object.extend(more);
        self.lines.push(Line { at, state, message, object });
    }

    fn push_start(&mut self) {
        let mut more = Object::new();
        if let Some(first) = self.record.workflow.entries.first() {
            put(&mut more, "headers", json!(self.shaper.entry_headers(first, self.shaper.redact())));
        }
        if let Some(invoker) = self.record.workflow.invokers.first() {
            put(&mut more, "invokerWorkflowRunId", invoker.run_id.as_str());
            put(&mut more, "invokerWorkflowUrl", invoker.url.as_str());
            if let Some(created_at) = invoker.created_at {
                put(&mut more, "invokerWorkflowCreatedAt", created_at.as_millis());
            }
        }
        self.push(self.run.created_at, run_state(RunState::Started), None, more);
    }

    fn push_end(&mut self) {
        let Some(ended_at) = self.run.ended_at else { return };
        let mut more = Object::new();
        if let Some(result) = &self.record.result {
            self.shaper.put_text(&mut more, "workflowRunResponse", result.as_bytes(), self.shaper.redact());
        }
        if let Some(failure) = &self.run.failure {
            put(&mut more, "dlqId", failure.dlq_id.to_string());
            let error = StepError { at: ended_at, error: failure.error.clone(), response: self.record.answer.clone() };
            self.put_error(&mut more, &error);
        }
        self.push(ended_at, run_state(self.run.state), None, more);
    }

    /// A line about a step; only its result shows what it brought.
    fn push_step(&mut self, at: Timestamp, state: StepState, item: &Item<'a>, message: Option<MessageId>) {
        let mut info = self.steps.item(item);
        if state != StepState::Success {
            leave_out_bodies(&mut info);
        }
        if let Some(message) = message {
            put(&mut info, "messageId", message.to_string());
        }
        let mut more = Object::new();
        put(&mut more, "stepInfo", info);
        self.push(at, state.name(), message, more);
    }

    fn push_item(&mut self, item: &Item<'a>, now: Timestamp) {
        let announced = item.plan.or(item.call);
        let message = item.result.or(announced).map(|entry| entry.id).or(item.wait.map(|wait| wait.timer));
        let message = message.or(item.invoke.and_then(|invoke| invoke.id));
        if let Some(since) = announced.map(|entry| entry.terms.accepted_at).or_else(|| began(item)) {
            self.push_step(since, StepState::Progress, item, announced.map(|entry| entry.id).or(message));
        }
        let mut about = self.steps.item(item);
        leave_out_bodies(&mut about);
        for entry in item.deliveries() {
            self.push_errors(entry, &about);
        }
        if let Some(result) = item.result {
            self.push_result(item, result, now);
        }
        let standing = item.standing(self.run, now);
        match (standing.state, self.run.ended_at) {
            (StepState::Canceled, Some(ended_at)) => self.push_step(ended_at, StepState::Canceled, item, message),
            // Its end came behind that of the run, at a time that nobody knows any more.
            (StepState::Success, Some(ended_at)) if item.result.is_none() => {
                self.push_step(ended_at, StepState::Success, item, message);
            }
            _ => {}
        }
    }

    /// A step that sleeps is accepted at once and over when its delivery is due.
    fn push_result(&mut self, item: &Item<'a>, result: &'a Entry, now: Timestamp) {
        let accepted_at = result.terms.accepted_at;
        // A retry is due later.
        let first_error = result.delivery.errors.first().map(|error| error.at);
        let woke_at = first_error.map_or(result.delivery.due, |at| at.min(result.delivery.due));
        let slept = item.plan.is_none() && result.gist.info.kind.starts_with("Sleep") && woke_at > accepted_at;
        if slept {
            self.push_step(accepted_at, StepState::Progress, item, Some(result.id));
        }
        match steps::sleep(result, self.run, now) {
            Some(Sleep::Until(due)) => {
                if let Some(line) = self.lines.last_mut() {
                    put(&mut line.object, "nextDeliveryTime", due.as_millis());
                }
            }
            Some(Sleep::Canceled) => {}
            None => {
                let at = if slept { woke_at } else { accepted_at };
                self.push_step(at, StepState::Success, item, Some(result.id));
            }
        }
    }

    /// The attempts that failed.
    fn push_errors(&mut self, entry: &'a Entry, about: &Object) {
        let delivery = &entry.delivery;
        let errors = delivery.errors.iter().cloned().chain(self.shaper.own_error(entry)).collect::<Vec<_>>();
        for (place, error) in errors.iter().enumerate() {
            let is_last = place + 1 == errors.len();
            let state = match delivery.state {
                DeliveryState::Failed if is_last => StepState::Failed,
                _ => StepState::Retry,
            };
            let mut info = about.clone();
            put(&mut info, "messageId", entry.id.to_string());
            let mut more = Object::new();
            put(&mut more, "stepInfo", info);
            self.put_error(&mut more, error);
            if is_last && delivery.state == DeliveryState::Pending {
                put(&mut more, "nextDeliveryTime", delivery.due.as_millis());
            }
            self.push(error.at, state.name(), Some(entry.id), more);
        }
    }

    fn put_error(&self, more: &mut Object, error: &StepError) {
        put(more, "error", error_text(error));
        if let Some(response) = &error.response {
            self.shaper.put_response(more, response);
        }
    }
}

/// A step has many lines, and its bodies may be large.
fn leave_out_bodies(info: &mut Object) {
    for name in ["out", "callBody", "callResponseBody", "invokedWorkflowRunBody"] {
        info.remove(name);
    }
}

/// When a step began that no entry announced.
fn began(item: &Item<'_>) -> Option<Timestamp> {
    let source = item.result.and_then(|result| result.terms.source.as_ref());
    match source {
        Some(Source::Wait { since, .. }) => Some(*since),
        None => item.started(),
    }
}

/// The newest lines, and where the next page goes on.
pub(super) struct Tail {
    /// Newest first.
    pub(super) lines: Vec<Value>,
    /// How many older ones there are.
    pub(super) left: usize,
}

/// At most `max` of the oldest `left` lines that are wanted, newest first.
pub(super) fn tail(mut lines: Vec<Line>, left: usize, max: usize, is_wanted: impl Fn(&Line) -> bool) -> Tail {
    lines.truncate(left);
    let mut taken = Vec::new();
    while taken.len() < max {
        match lines.pop() {
            Some(line) if is_wanted(&line) => taken.push(line.object.into()),
            Some(_) => {}
            None => break,
        }
    }
    Tail { lines: taken, left: lines.len() }
}
