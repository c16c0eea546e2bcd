//! A run that is told step by step, as its endpoint and its callers make it.

use crate::api::shape::Shaped;
use crate::api::viewer::Viewer;
use crate::api::workflow::shape::{self, View};
use crate::credentials::Credentials;
use crate::tenants::Scope;
use bytes::Bytes;
use posthaste_engine::event::{Op, Response};
use posthaste_engine::outcome::{AttemptError, ErrorClass, Outcome};
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::{Call, OwnTerms};
use posthaste_engine::workflow::run::{FailureCall, Invoke, Invoker, RunConfig, StepText};
use posthaste_engine::workflow::{
    Attempt, Change, Limits, NewEntry, NewRun, Notice, Outbox, Record, WaitFor, Workflow,
};
use posthaste_store::memory::MemoryStore;
use posthaste_store::{Durability, Epoch, ReadPool, ShardId, Store as _};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::redact::{Marks, RedactFields};
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::{CallType, Features};
use serde_json::{Value, json};

/// When every story begins; each decision takes a second.
pub(super) const T0: Timestamp = Timestamp(1_767_225_600_000);
pub(super) const URL: &str = "http://app:3000/api/order";
const LIMITS: Limits = Limits { entries: 20, bytes: 1_000_000, duration_ms: 86_400_000 };
const TENANT: TenantId = TenantId(1);
const SHARD: ShardId = ShardId(0);

pub(super) struct Story {
    pub(super) workflow: Workflow,
    pub(super) now: Timestamp,
    last: Seq,
    /// Has all that was decided.
    store: MemoryStore,
    epoch: Epoch,
}

/// Somebody who may do everything.
fn viewer() -> Viewer {
    Viewer::with((Marks::of(&[0; 32], TENANT), Credentials::default()), TENANT, Scope::Full)
}

/// What stands in the place of a hidden value.
pub(super) fn mark(original: &[u8]) -> String {
    viewer().mark(original)
}

pub(super) fn config() -> RunConfig {
    RunConfig { features: Features::OF_TRIGGER, retries: 1, caller_ip: "10.0.0.4".into(), ..RunConfig::default() }
}

/// A run that tells of its failure.
pub(super) fn with_failure_function() -> RunConfig {
    let failure = FailureCall { url: "http://app:3000/failed".into(), ..FailureCall::default() };
    RunConfig { failure: Some(failure), ..config() }
}

/// A step of a sequence.
pub(super) fn step(number: u32, name: &str, kind: &str) -> Value {
    json!({ "stepId": number, "stepName": name, "stepType": kind, "concurrent": 1 })
}

/// A step of a sequence that has brought something.
pub(super) fn result(number: u32, name: &str) -> Value {
    let mut step = step(number, name, "Run");
    step["out"] = format!("{name} is done").into();
    step
}

/// The plan of one of two branches.
pub(super) fn plan(target: u32, name: &str, kind: &str) -> Value {
    json!({ "stepId": 0, "stepName": name, "stepType": kind, "concurrent": 2, "targetStep": target })
}

/// The result of one of two branches.
pub(super) fn branch(number: u32, name: &str) -> Value {
    json!({ "stepId": number, "stepName": name, "stepType": "Run", "concurrent": 2, "out": format!("\"{name}\"") })
}

fn object(value: Value) -> StepText {
    value.as_object().cloned().expect("an object")
}

impl Story {
    pub(super) fn new() -> Story {
        Story::with(config())
    }

    pub(super) fn with(config: RunConfig) -> Story {
        Story::invoked(config, None)
    }

    pub(super) fn invoked(config: RunConfig, invoker: Option<Invoker>) -> Story {
        let protocol = vec![("Upstash-Workflow-Sdk-Version".to_owned(), "1".to_owned())];
        let new = NewRun {
            tenant: TENANT,
            id: "wfr_order-7".into(),
            created_at: T0,
            url: URL.into(),
            config,
            invoker,
            first: NewEntry::step(Bytes::from_static(b"{\"order\":7}"), protocol, T0),
        };
        let mut last = Seq::first_at(T0);
        let mut next_id = || next_id(&mut last, T0);
        let mut out = Outbox::new(T0, &mut next_id);
        let workflow = Workflow::start(new, &mut out);
        let store = MemoryStore::new();
        let epoch = store.lease(SHARD, T0).expect("nobody else has it");
        write(&store, epoch, out.changes);
        Story { workflow, now: T0, last, store, epoch }
    }

    fn decide<T>(&mut self, decide: impl FnOnce(&mut Workflow, &mut Outbox<'_>) -> T) -> T {
        self.now = self.now.plus_millis(1_000);
        let (now, last) = (self.now, &mut self.last);
        let mut next_id = || next_id(last, now);
        let mut out = Outbox::new(now, &mut next_id);
        let decided = decide(&mut self.workflow, &mut out);
        write(&self.store, self.epoch, out.changes);
        decided
    }

    /// All that is stored.
    pub(super) fn record(&self) -> Record {
        let record = self.store.run_record(TENANT, self.workflow.run.no, ReadPool::Core).expect("it can be read");
        record.expect("it is there")
    }

    /// What the DLQ shows.
    pub(super) fn letter(&self) -> Option<Value> {
        let dlq_id = self.workflow.run.failure.as_ref()?.dlq_id;
        let failed = self.store.failed_run(TENANT, dlq_id).expect("it can be read");
        shape::failed_run(&failed.expect("it is there"), self.view()).map(Shaped::into_value)
    }

    pub(super) fn wait_ms(mut self, millis: u64) -> Story {
        self.now = self.now.plus_millis(millis);
        self
    }

    fn append(mut self, entries: Vec<NewEntry>) -> Story {
        self.decide(|workflow, out| workflow.append(entries, &LIMITS, out)).map(drop).expect("accepted");
        self
    }

    /// The endpoint publishes steps, all at once.
    pub(super) fn publishes(self, steps: &[Value]) -> Story {
        self.publishes_for_later(steps, 0)
    }

    /// The endpoint publishes steps that are delivered so much later.
    pub(super) fn publishes_for_later(self, steps: &[Value], delay_ms: u64) -> Story {
        let due = self.now.plus_millis(1_000 + delay_ms);
        let entry = |step: &Value| NewEntry::step(Bytes::from(step.to_string()), Vec::new(), due);
        self.append(steps.iter().map(entry).collect())
    }

    /// The endpoint publishes a step that was delivered to it before, and answers that delivery.
    pub(super) fn does(self, index: u32, step: Value) -> Story {
        self.publishes(&[step]).answers(index)
    }

    /// The endpoint asks for a call of somebody else.
    pub(super) fn calls(self, number: u32, name: &str, concurrent: u32, is_forgiven: bool) -> Story {
        let concurrent = concurrent.to_string();
        let number_text = number.to_string();
        let told = [("Stepid", &*number_text), ("Stepname", name), ("Steptype", "Call"), ("Concurrent", &concurrent)];
        let told = told.map(|(name, value)| (format!("Upstash-Workflow-{name}"), value.to_owned()));
        let call = Call {
            url: "https://api.example.test/charge".into(),
            method: "PUT".into(),
            step: number,
            is_forgiven,
            result_headers: told.into(),
            result_retries: None,
        };
        let headers = vec![("Authorization".to_owned(), "Bearer key".to_owned())];
        let entry = NewEntry {
            call_type: CallType::ToCallback,
            call: Some(call),
            retries: Some(2),
            ..NewEntry::step(Bytes::from_static(b"{\"amount\":5}"), headers, self.now)
        };
        self.append(vec![entry])
    }

    pub(super) fn waits(mut self, step: Value, event: &str) -> Story {
        let headers = vec![("Upstash-Workflow-Runid".to_owned(), vec!["wfr_order-7".to_owned()])];
        let (event, step, timeout) = (event.to_owned(), object(step), "10s".to_owned());
        let wait = WaitFor { event, step, timeout, timeout_ms: 10_000, headers, terms: OwnTerms::default() };
        let kept = |key| Err(format!("{key:?}: no event comes early here"));
        let waited = self.decide(|workflow, out| workflow.wait(wait, kept, &LIMITS, out));
        waited.expect("nothing is read").map(drop).expect("accepted");
        self
    }

    pub(super) fn notified(mut self, event: &str) -> Story {
        self.decide(|workflow, out| workflow.notify(event, b"\"yes\"", out)).map(drop).expect("somebody waits");
        self
    }

    pub(super) fn timed_out(mut self) -> Story {
        let wait = self.workflow.waits.first().expect("somebody waits").timer;
        self.decide(|workflow, out| workflow.deadline_reached(wait, out));
        self
    }

    pub(super) fn invokes(self, step: Value) -> Story {
        self.invokes_hiding(step, RedactFields::default())
    }

    /// The endpoint invokes another run, which asks to hide something.
    pub(super) fn invokes_hiding(mut self, step: Value, redact: RedactFields) -> Story {
        let invoke = Invoke {
            id: None,
            step: object(step),
            run_id: "wfr_child".into(),
            created_at: self.now.plus_millis(1_000),
            url: "http://app:3000/api/child".into(),
            run_headers: vec![("X-Child".into(), "c".into())],
            redact,
            headers: Vec::new(),
            terms: OwnTerms::default(),
            size: 0,
            has_out: false,
        };
        let given = Bytes::from_static(b"{\"doc\":42}");
        assert_eq!(self.decide(|workflow, out| workflow.invoke(invoke, given, &LIMITS, out)), Ok(true));
        self
    }

    pub(super) fn child_ends(mut self, step: Value) -> Story {
        let to = Invoker {
            run_id: "wfr_order-7".into(),
            created_at: Some(T0),
            url: URL.into(),
            step: object(step),
            headers: Vec::new(),
            terms: OwnTerms::default(),
        };
        let out = r#"{"body":"7","isCanceled":false,"isFailed":false}"#.into();
        let notice = Notice { tenant: TENANT, to, out };
        self.decide(|workflow, out| workflow.invoked_has_ended(&notice, out));
        self
    }

    pub(super) fn finishes(mut self) -> Story {
        self.decide(|workflow, out| workflow.finish(Some("\"ok\"".into()), out));
        self
    }

    pub(super) fn canceled(mut self) -> Story {
        assert!(self.decide(Workflow::cancel));
        self
    }

    fn attempted(mut self, index: u32, outcome: &Outcome, next: Next) -> Story {
        let retried = self.workflow.entries[index as usize].delivery.attempts;
        let sent = self.record().bodies[index as usize].clone();
        let attempt = Attempt { outcome, retried, next, sent: &sent };
        self.decide(|workflow, out| workflow.attempted(index, attempt, out));
        self
    }

    /// The delivery of an entry is answered well.
    pub(super) fn answers(self, index: u32) -> Story {
        self.attempted(index, &answer(200, &[("Upstash-Workflow-Sdk-Version", "1")], "{}"), Next::Done)
    }

    /// The delivery of an entry is answered well, but not as a workflow would.
    pub(super) fn answers_like_a_stranger(self, index: u32) -> Story {
        self.attempted(index, &answer(200, &[], "hello"), Next::Done)
    }

    /// An attempt fails and another one will follow, a minute later.
    pub(super) fn stumbles(self, index: u32) -> Story {
        let next = Next::RetryAt(self.now.plus_millis(61_000));
        self.attempted(index, &answer(500, &[("Upstash-Error-Step-Name", "ship")], "boom"), next)
    }

    /// The last attempt fails.
    pub(super) fn fails(self, index: u32) -> Story {
        self.attempted(index, &answer(500, &[("Upstash-Error-Step-Name", "ship")], "boom"), Next::DeadLetter)
    }

    /// The last attempt gets no answer.
    pub(super) fn fails_unanswered(self, index: u32, class: ErrorClass) -> Story {
        let error = AttemptError { class, message: "nobody there".into() };
        self.attempted(index, &Outcome { result: Err(error), duration_ms: 3, phases: None }, Next::DeadLetter)
    }

    /// The call about the failure is answered so.
    pub(super) fn told(mut self, status: u16, next: Next) -> Story {
        let outcome = answer(status, &[], "{\"result\":\"cleaned\"}");
        self.decide(|workflow, out| {
            workflow.failure_told(Attempt { outcome: &outcome, retried: 0, next, sent: b"" }, out);
        });
        self
    }

    /// More steps than a run may have.
    pub(super) fn overflows(mut self) -> Story {
        let entry = NewEntry::step(Bytes::from_static(b"{}"), Vec::new(), self.now);
        let entries = vec![entry; LIMITS.entries as usize];
        self.decide(|workflow, out| workflow.append(entries, &LIMITS, out)).expect_err("too much");
        self
    }

    /// A new run that goes on where this one failed.
    pub(super) fn resumed(mut self) -> Story {
        let (now, failed) = (self.now, self.record());
        self.workflow = self.decide(|_, out| failed.resumed("wfr_again".into(), now, Default::default(), out));
        self
    }

    pub(super) fn view(&self) -> View {
        View { trim_body: None, now: self.now, viewer: viewer() }
    }

    pub(super) fn log(&self) -> Value {
        shape::run(&self.record(), self.view())
    }

    /// The log in one line.
    pub(super) fn digest(&self) -> String {
        let step = |step: &Value| {
            let name = step["stepName"].as_str().unwrap_or("?");
            let state = step["state"].as_str().expect("a state").trim_start_matches("STEP_").to_lowercase();
            let errors = step["errors"].as_array().map_or(String::new(), |errors| format!(" {}!", errors.len()));
            format!("{name} {state}{errors}")
        };
        let log = self.log();
        let group = |group: &Value| {
            let steps: Vec<String> = group["steps"].as_array().expect("steps").iter().map(step).collect();
            format!("{}({})", group["type"].as_str().expect("a type"), steps.join(", "))
        };
        log["steps"].as_array().expect("groups").iter().map(group).collect::<Vec<_>>().join(" ")
    }
}

fn write(store: &MemoryStore, epoch: Epoch, changes: Vec<Change>) {
    let ops: Vec<Op> = changes.into_iter().map(Op::Workflow).collect();
    store.commit(SHARD, epoch, &ops, Durability::Synced).expect("the store takes it");
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Outcome {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let response = Response { status, headers, body: body.as_bytes().to_vec(), truncated: false };
    Outcome { result: Ok(response), duration_ms: 3, phases: None }
}

fn next_id(last: &mut Seq, now: Timestamp) -> MessageId {
    *last = Seq::next(*last, now);
    MessageId { seq: *last, tag: last.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}
