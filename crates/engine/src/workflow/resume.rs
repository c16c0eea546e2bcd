//! Restarts a failed run from its start, or resumes it where it failed.

use super::entry::{Delivery, DeliveryState, Entry};
use super::machine::{Workflow, text_of};
use super::message;
use super::note::Note;
use super::outbox::{Outbox, Rebound};
use super::record::Record;
use super::request::{NewEntry, NewRun};
use super::run::{FailureCall, Invoke, Invoker, Run, RunConfig, RunState, Trigger, Wait};
use crate::message::FlowSpec;
use crate::planted::{self, Bug};
use posthaste_wire::time::Timestamp;
use serde_json::Value;
use std::sync::Arc;

/// New settings for a run that is restarted or resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Number of retries of each delivery.
    pub retries: Option<u32>,
    /// Retry-delay expression.
    pub retry_delay: Option<String>,
    /// The flow-control key of its entries.
    pub flow: Option<FlowSpec>,
    /// Labels.
    pub labels: Option<Vec<String>>,
    /// The failure callback.
    pub failure: Option<FailureCall>,
    /// The delay of its first deliveries.
    pub delay_ms: u64,
}

impl Record {
    /// A new run like this one, from its start. The run that invoked this one was already notified of its failure.
    pub fn restarted(&self, id: String, created_at: Timestamp, overrides: Overrides, out: &mut Outbox<'_>) -> Workflow {
        let Workflow { run, entries, .. } = &self.workflow;
        let first = &entries[0];
        let due = out.now.plus_millis(overrides.delay_ms);
        let first = NewEntry {
            content_type: first.terms.content_type.clone(),
            timeout_ms: first.terms.timeout_ms,
            ..NewEntry::step(self.bodies[0].clone(), first.terms.headers.clone(), due)
        };
        let new = NewRun {
            tenant: run.tenant,
            id,
            created_at,
            url: run.url.clone(),
            config: config_with(&run.config, &overrides),
            invoker: None,
            first,
        };
        Workflow::start(new, out)
    }

    /// A new run with all results of this one, which continues where it failed: unanswered deliveries are repeated, and
    /// waits are restored.
    pub fn resumed(&self, id: String, created_at: Timestamp, overrides: Overrides, out: &mut Outbox<'_>) -> Workflow {
        let due = out.now.plus_millis(overrides.delay_ms);
        let mut entries = self.workflow.entries.clone();
        for entry in &mut entries {
            entry.id = (out.next_id)();
            let due = match entry.delivery.state {
                DeliveryState::Failed => due,
                DeliveryState::Canceled if planted::has(Bug::ResumeForgetsBranches) => continue,
                // A branch that slept when another failed continues to sleep.
                DeliveryState::Canceled => due.max(entry.delivery.due),
                DeliveryState::Pending | DeliveryState::Done => continue,
            };
            entry.delivery = Delivery::due_at(due);
            override_terms(entry, &overrides);
        }
        let mut run = self.workflow.run.clone();
        run.no = entries[0].id.seq;
        run.id = id;
        run.created_at = created_at;
        run.config = Arc::new(config_with(&run.config, &overrides));
        (run.state, run.ended_at, run.failure, run.last_call) = (RunState::Started, None, None, None);
        let mut resumed = Workflow::of(run, entries);
        resumed.save_run(out);
        for (index, body) in self.bodies.iter().enumerate() {
            resumed.save_entry(index as u32, body.clone(), out);
            let entry = &resumed.entries[index];
            if entry.delivery.state == DeliveryState::Pending {
                out.messages.push(Arc::new(message::delivery(&resumed.run, entry, body)));
            }
        }
        for wait in &self.workflow.waits {
            resumed.wait_again(wait.clone(), self.workflow.run.ended_at, out);
        }
        for invoke in &self.workflow.invokes {
            resumed.await_again(invoke.clone(), self, out);
        }
        resumed
    }
}

fn config_with(config: &RunConfig, overrides: &Overrides) -> RunConfig {
    let mut config = config.clone();
    if config.trigger == Trigger::Rest {
        config.trigger = Trigger::Client;
    }
    config.retries = overrides.retries.unwrap_or(config.retries);
    config.retry_delay = overrides.retry_delay.clone().or(config.retry_delay);
    config.flow = overrides.flow.clone().or(config.flow);
    config.labels = overrides.labels.clone().unwrap_or(config.labels);
    config.failure = overrides.failure.clone().or(config.failure);
    config
}

impl Workflow {
    /// Waits for the time that was left when the run failed.
    fn wait_again(&mut self, wait: Wait, ended_at: Option<Timestamp>, out: &mut Outbox<'_>) {
        let left = wait.deadline.millis_since(ended_at.unwrap_or(out.now));
        let wait = Wait { timer: (out.next_id)(), deadline: out.now.plus_millis(left), ..wait };
        let note = Note::wait(&wait);
        self.register(wait, note, out);
    }

    /// The result of an invoked run that has ended in the meantime is available at once. A live one will notify this
    /// run instead.
    fn await_again(&mut self, invoke: Invoke, failed: &Record, out: &mut Outbox<'_>) {
        let (given, result) = (failed.given(&invoke), failed.out(&invoke));
        let invoke = Invoke { id: Some((out.next_id)()), has_out: false, ..invoke };
        self.push_invoke(invoke.clone(), Note::invoke(&invoke, given), out);
        if self.has_result(invoke.number()) {
            return;
        }
        if let Some(result) = result {
            let mut step = invoke.step;
            step.insert("out".to_owned(), Value::String(result));
            let new = NewEntry::step(text_of(&step), invoke.headers, out.now);
            self.accept(new.with(invoke.terms), out);
            return;
        }
        let invoker = Invoker {
            run_id: self.run.id.clone(),
            created_at: Some(self.run.created_at),
            url: self.run.url.clone(),
            step: invoke.step,
            headers: invoke.headers,
            terms: invoke.terms,
        };
        let Run { id, created_at, .. } = &failed.workflow.run;
        let (run_id, from) = (invoke.run_id, (id.clone(), *created_at));
        out.rebound.push(Rebound { run_id, created_at: invoke.created_at, from, invoker });
    }
}

fn override_terms(entry: &mut Entry, overrides: &Overrides) {
    if entry.terms.call.is_some() {
        return;
    }
    let terms = Arc::make_mut(&mut entry.terms);
    terms.retries = overrides.retries.unwrap_or(terms.retries);
    terms.retry_delay = overrides.retry_delay.clone().or(terms.retry_delay.take());
    terms.flow = overrides.flow.clone().or(terms.flow.take());
}
