//! Workflow runs for the tests of the stores, created and changed by the engine itself.

use crate::support::*;
use posthaste_engine::event::{Op, Response};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::{Call, DeliveryState, Entry, OwnTerms};
use posthaste_engine::workflow::run::{FailureCall, Invoke, Invoker, RunConfig, StepText};
use posthaste_engine::workflow::{Attempt, Limits, NewEntry, NewRun, Notice, Outbox, Record, WaitFor, Workflow};
use posthaste_store::{FailedRun, Page, PageRequest, ReadPool, RunFilter};
use posthaste_wire::id::{MessageId, Seq};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::{CallType, Features};
use serde_json::json;

pub(crate) const LIMITS: Limits = Limits { entries: u32::MAX, bytes: u64::MAX, duration_ms: u64::MAX };

impl Rig<'_> {
    /// The engine's decision, and the ops that the store must write for it. Messages that end are live before.
    pub(crate) fn decided<T>(&self, at: Timestamp, decide: impl FnOnce(&mut Outbox<'_>) -> T) -> (T, Vec<Op>) {
        let mut last = self.store.last_seq().unwrap();
        let mut next_id = || {
            last = Seq::next(last, at);
            MessageId { seq: last, tag: !last.0 }
        };
        let mut out = Outbox::new(at, &mut next_id);
        let decided = decide(&mut out);
        (decided, ops_of(out))
    }

    /// Like [`Self::decided`], and commits the ops.
    pub(crate) fn decide<T>(&self, at: Timestamp, decide: impl FnOnce(&mut Outbox<'_>) -> T) -> T {
        let (decided, ops) = self.decided(at, decide);
        self.commit(&ops).unwrap();
        decided
    }

    pub(crate) fn start(&self, id: &str, at: Timestamp) -> Workflow {
        self.start_with(id, at, |_| {})
    }

    pub(crate) fn start_with(&self, id: &str, at: Timestamp, change: impl FnOnce(&mut NewRun)) -> Workflow {
        let mut new = new_run(id, at);
        new.tenant = self.tenant;
        change(&mut new);
        self.decide(at, |out| Workflow::start(new, out))
    }

    pub(crate) fn append(&self, workflow: &mut Workflow, at: Timestamp, entries: Vec<NewEntry>) {
        self.decide(at, |out| workflow.append(entries, &LIMITS, out)).unwrap();
    }

    /// Ends an attempt of an entry: a 2xx completes it, any other status fails the run.
    pub(crate) fn attempt(&self, workflow: &mut Workflow, index: u32, at: Timestamp, status: u16) {
        let id = workflow.entries[index as usize].id;
        let outcome = outcome(status);
        let next = if status == 200 { Next::Done } else { Next::DeadLetter };
        let attempt = Attempt { outcome: &outcome, retried: 2, next, sent: b"sent" };
        let ((), mut ops) = self.decided(at, |out| workflow.attempted(index, attempt, out));
        ops.push(Op::Remove { id });
        self.commit(&ops).unwrap();
    }

    /// A run that failed at once.
    pub(crate) fn failed(&self, id: &str, created_at: Timestamp, failed_at: Timestamp, status: u16) -> Workflow {
        let mut workflow = self.start(id, created_at);
        self.attempt(&mut workflow, 0, failed_at, status);
        workflow
    }

    pub(crate) fn finish(&self, workflow: &mut Workflow, at: Timestamp) {
        self.decide(at, |out| workflow.finish(Some("\"ok\"".into()), out));
    }

    pub(crate) fn wait(&self, workflow: &mut Workflow, at: Timestamp, event: &str, step: u32) {
        let no = workflow.run.no;
        let wait = wait_for(event, step);
        let kept = |key| self.store.note_body(no, key);
        self.decide(at, |out| workflow.wait(wait, kept, &LIMITS, out)).unwrap().unwrap();
    }

    /// Delivers an event that no step waits for.
    pub(crate) fn keep(&self, workflow: &mut Workflow, at: Timestamp, event: &str, data: &[u8]) {
        assert_eq!(self.decide(at, |out| workflow.notify_or_keep(event, data, &LIMITS, out)), Ok(None));
    }

    pub(crate) fn invoke(&self, workflow: &mut Workflow, at: Timestamp, step: u32, given: &str) {
        let given = given.to_owned().into();
        assert_eq!(self.decide(at, |out| workflow.invoke(invoke(step), given, &LIMITS, out)), Ok(true));
    }

    /// Ends the run that a step has invoked, with this result.
    pub(crate) fn invoked_has_ended(&self, workflow: &mut Workflow, at: Timestamp, step: u32, out: &str) {
        let to = Invoker {
            run_id: workflow.run.id.clone(),
            created_at: Some(workflow.run.created_at),
            url: workflow.run.url.clone(),
            step: step_text(step),
            headers: Vec::new(),
            terms: own_terms(),
        };
        let notice = Notice { tenant: workflow.run.tenant, to, out: out.into() };
        self.decide(at, |out| workflow.invoked_has_ended(&notice, out));
    }

    /// The run as the store has it. All queries that read it must agree.
    pub(crate) fn stored(&self, workflow: &Workflow) -> Option<Workflow> {
        let (tenant, no) = (workflow.run.tenant, workflow.run.no);
        let stored = self.store.workflow(tenant, no).unwrap();
        for pool in [ReadPool::Core, ReadPool::Queries] {
            let record = self.store.run_record(tenant, no, pool).unwrap();
            assert_eq!(record.as_ref().map(|record| &record.workflow), stored.as_ref());
            let entries =
                record.map(|record| record.workflow.entries.into_iter().zip(record.bodies).collect::<Vec<_>>());
            assert_eq!(self.store.run_entries(tenant, no, pool).unwrap(), entries);
            let Some(entries) = entries else { continue };
            for kind in ["Run", "Wait"] {
                let of_kind = entries.iter().filter(|(entry, _)| entry.gist.info.kind == kind).cloned();
                assert_eq!(self.store.run_steps(tenant, no, kind).unwrap(), of_kind.collect::<Vec<_>>(), "{kind}");
            }
            for (entry, body) in entries {
                let (terms, delivery) = (entry.terms.clone(), entry.delivery.clone());
                assert_eq!(Entry::new(entry.index, entry.id, &body, terms, delivery), entry, "its own bytes");
            }
        }
        stored
    }

    /// All stored parts of a run.
    pub(crate) fn record(&self, workflow: &Workflow) -> Record {
        self.store.run_record(workflow.run.tenant, workflow.run.no, ReadPool::Queries).unwrap().unwrap()
    }

    /// A page of runs.
    pub(crate) fn list(&self, filter: &RunFilter, page: &PageRequest) -> Page<Workflow> {
        let page = self.store.list_runs(self.tenant, filter, page).unwrap();
        for record in &page.entries {
            assert_eq!(self.record(&record.workflow), *record);
        }
        Page { entries: page.entries.into_iter().map(|record| record.workflow).collect(), next: page.next }
    }

    /// A page of failed runs.
    pub(crate) fn list_failed(&self, filter: &RunFilter, page: &PageRequest) -> Page<Workflow> {
        let page = self.store.list_failed_runs(self.tenant, filter, page).unwrap();
        let whole = |failed: FailedRun| {
            let workflow = self.store.workflow(self.tenant, failed.run.no).unwrap().unwrap();
            let (record, failure) = (self.record(&workflow), failed.run.failure.clone().unwrap());
            let expected = FailedRun {
                run: workflow.run.clone(),
                first: workflow.entries[0].clone(),
                payload: record.bodies[0].clone(),
                failed: workflow.entries[failure.entry as usize].clone(),
                answer: record.answer,
                told: record.told,
            };
            assert_eq!((&failed, expected.answer.is_some()), (&expected, true));
            assert_eq!(self.store.failed_run(self.tenant, failure.dlq_id).unwrap(), Some(failed));
            workflow
        };
        Page { entries: page.entries.into_iter().map(whole).collect(), next: page.next }
    }
}

pub(crate) fn ops_of(out: Outbox<'_>) -> Vec<Op> {
    let changes = out.changes.into_iter().map(Op::Workflow);
    let messages = out.messages.iter().map(inserted).collect::<Vec<_>>();
    changes.chain(messages).chain(out.withdrawn.into_iter().map(|id| Op::Remove { id })).collect()
}

pub(crate) fn new_run(id: &str, at: Timestamp) -> NewRun {
    NewRun {
        tenant: posthaste_wire::id::TenantId(1),
        id: id.to_owned(),
        created_at: at,
        url: "https://example.org/flow".into(),
        config: RunConfig { retries: 3, caller_ip: "127.0.0.1".into(), ..RunConfig::default() },
        invoker: None,
        first: NewEntry::step(b"the payload".as_slice().into(), Vec::new(), at),
    }
}

/// Sets every optional field of a run.
pub(crate) fn rich_run(new: &mut NewRun) {
    let headers = || vec![("A".to_owned(), "\u{e4}".to_owned()), ("B".to_owned(), String::new())];
    let failure = FailureCall {
        url: "https://example.org/failed".into(),
        headers: headers(),
        retries: Some(0),
        retry_delay: Some("1000".into()),
        flow: Some(flow_spec("other")),
        redact: RedactFields { headers: vec!["B".into()], ..RedactFields::default() },
    };
    new.config = RunConfig {
        features: Features { detect_trigger: false, ..Features::OF_TRIGGER },
        labels: vec!["red".into(), "'".into()],
        headers: headers(),
        retries: 0,
        retry_delay: Some("1000 * retried".into()),
        flow: Some(flow_spec("key")),
        failure: Some(failure),
        redact: RedactFields { body: true, ..RedactFields::default() },
        caller_ip: "::1".into(),
        depth: 2,
        ..RunConfig::default()
    };
    new.invoker = Some(Invoker {
        run_id: "parent".into(),
        created_at: Some(T0),
        url: "https://example.org/parent".into(),
        step: step_text(7),
        headers: headers(),
        terms: own_terms(),
    });
    new.first.body = vec![0, 159, 146, 150].into();
}

/// A step whose result is this text.
pub(crate) fn step(number: u32, out: &str) -> NewEntry {
    let text = json!({ "stepId": number, "stepName": "s", "stepType": "Run", "out": out, "concurrent": 1 });
    NewEntry::step(text.to_string().into(), Vec::new(), T0)
}

/// A call to another service, with every optional field set.
pub(crate) fn call(number: u32) -> NewEntry {
    let call = Call {
        url: "https://example.com/".into(),
        method: "PUT".into(),
        step: number,
        is_forgiven: true,
        result_headers: vec![("C".into(), "d".into())],
        result_retries: Some(5),
    };
    NewEntry {
        call_type: CallType::ToCallback,
        headers: vec![("E".into(), "f".into())],
        due: T0.plus_millis(HOUR),
        retries: Some(1),
        retry_delay: Some("5".into()),
        timeout_ms: Some(9),
        flow: Some(flow_spec("calls")),
        call: Some(call),
        ..NewEntry::step(b"\xff\x00".as_slice().into(), Vec::new(), T0)
    }
}

pub(crate) fn step_text(number: u32) -> StepText {
    let text = json!({ "stepId": number, "stepName": "wait", "stepType": "Wait", "more": [1, null, "\u{e4}"] });
    text.as_object().unwrap().clone()
}

pub(crate) fn wait_for(event: &str, step: u32) -> WaitFor {
    let headers = vec![("Upstash-Forward-A".into(), vec!["b".into()])];
    let (event, step, timeout) = (event.to_owned(), step_text(step), "1d".into());
    WaitFor { event, step, timeout, timeout_ms: DAY, headers, terms: own_terms() }
}

/// Settings of a delivery, with every field set.
fn own_terms() -> OwnTerms {
    OwnTerms {
        retries: Some(4),
        retry_delay: Some("6".into()),
        flow: Some(flow_spec("results")),
        redact: RedactFields::parse("header[X-Key]").expect("a list of fields"),
    }
}

pub(crate) fn invoke(number: u32) -> Invoke {
    Invoke {
        id: None,
        step: step_text(number),
        run_id: "child".into(),
        created_at: T0,
        url: "https://example.org/child".into(),
        headers: vec![("G".into(), "h".into())],
        run_headers: vec![("X-Child".into(), "c".into())],
        redact: RedactFields { body: true, ..RedactFields::default() },
        terms: own_terms(),
        size: 0,
        has_out: false,
    }
}

pub(crate) fn outcome(status: u16) -> Outcome {
    let headers = vec![("Upstash-Workflow-Sdk-Version".to_owned(), "1".to_owned())];
    Outcome {
        result: Ok(Response { status, headers, body: vec![1, 255], truncated: true }),
        duration_ms: 12,
        phases: None,
    }
}

/// Whether no entry has anything left to send.
pub(crate) fn is_quiet(workflow: &Workflow) -> bool {
    workflow.entries.iter().all(|entry| entry.delivery.state != DeliveryState::Pending)
}
