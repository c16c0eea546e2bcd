//! One run between an endpoint that may get anything twice and a server that may crash at any time.

use crate::client::{self, Program, Request};
use bytes::Bytes;
use posthaste_engine::event::Response;
use posthaste_engine::message::Message;
use posthaste_engine::outcome::{AttemptError, ErrorClass, Outcome};
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::{Call, Delivery, Entry, Gist, OwnTerms};
use posthaste_engine::workflow::note::{Note, NoteKey};
use posthaste_engine::workflow::run::{Invoke, Invoker, Run, RunConfig, RunState};
use posthaste_engine::workflow::{
    Attempt, Change, Limits, NewEntry, NewRun, Notice, Outbox, Part, Record, Refusal, StepRef, WaitFor, Waited,
    Workflow,
};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::{CallType, Features};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

pub(crate) const T0: Timestamp = Timestamp(1_780_315_200_000);
pub(crate) const LIMITS: Limits = Limits { entries: 1_000, bytes: 1_000_000, duration_ms: 86_400_000 };
const TENANT: TenantId = TenantId(1);
const URL: &str = "http://app:3000/api/order";

/// SplitMix64: a seed determines the world.
pub(crate) struct Chance(pub u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % bound
    }

    pub(crate) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// The contents of the store.
#[derive(Default)]
struct Stored {
    run: Option<Run>,
    entries: BTreeMap<u32, (Entry, Bytes)>,
    notes: BTreeMap<NoteKey, Note>,
    waiters: BTreeMap<MessageId, String>,
}

impl Stored {
    fn write(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                // A run is stored as JSON.
                Change::Run(run) => {
                    if self.run.as_ref().is_some_and(|known| known.no != run.no) {
                        *self = Stored::default();
                    }
                    self.run = Some(serde_json::from_str(&serde_json::to_string(&*run).unwrap()).unwrap());
                }
                Change::Entry { entry, body, .. } => {
                    let gist: Gist = serde_json::from_str(&serde_json::to_string(&*entry.gist).unwrap()).unwrap();
                    let entry = Entry { gist: Arc::new(gist), ..entry };
                    self.entries.insert(entry.index, (entry, body));
                }
                Change::Delivery { index, delivery, .. } => {
                    let delivery: Delivery = serde_json::from_str(&serde_json::to_string(&delivery).unwrap()).unwrap();
                    self.entries.get_mut(&index).unwrap().0.delivery = delivery;
                }
                Change::Note { note, .. } => drop(self.notes.insert(note.key, note)),
                Change::NoNote { key, .. } => assert!(self.notes.remove(&key).is_some(), "{key:?} is not there"),
                Change::Waiter(waiter) => drop(self.waiters.insert(waiter.timer, waiter.event)),
                Change::NoWaiter(waiter) => assert_eq!(self.waiters.remove(&waiter.timer), Some(waiter.event)),
            }
        }
    }
}

pub(crate) struct World {
    pub program: Program,
    pub chance: Chance,
    pub workflow: Workflow,
    stored: Stored,
    now: Timestamp,
    last: Seq,
    /// Messages to send, with their retries so far.
    pub live: BTreeMap<MessageId, (Arc<Message>, u32)>,
    /// Invoked runs that are live.
    children: Vec<Invoker>,
    /// How often the endpoint executed each step.
    pub executed: BTreeMap<u32, u32>,
    pub told_of_failure: Vec<Arc<Message>>,
    pub notices: Vec<Notice>,
    /// How many more faults may occur.
    pub trouble: u32,
    /// Whether the receiver got the current message before.
    is_repeated: bool,
}

impl World {
    pub(crate) fn new(program: Program, config: RunConfig, chance: Chance) -> World {
        let invoker = Invoker {
            run_id: "wfr_parent".into(),
            created_at: Some(T0),
            url: URL.into(),
            step: serde_json::from_str(r#"{"stepId":9,"stepName":"child","stepType":"Invoke","concurrent":1}"#)
                .unwrap(),
            headers: Vec::new(),
            terms: OwnTerms::default(),
        };
        let new = NewRun {
            tenant: TENANT,
            id: "wfr_order-7".into(),
            created_at: T0,
            url: URL.into(),
            config,
            invoker: Some(invoker),
            first: NewEntry::step(Bytes::from_static(b"{\"order\":7}"), protocol(), T0),
        };
        let mut last = Seq::MIN;
        let mut next_id = || next_id(&mut last, T0);
        let mut out = Outbox::new(T0, &mut next_id);
        let workflow = Workflow::start(new, &mut out);
        let Outbox { changes, messages, .. } = out;
        let mut world = World {
            program,
            chance,
            workflow,
            stored: Stored::default(),
            now: T0,
            last,
            live: BTreeMap::new(),
            children: Vec::new(),
            executed: BTreeMap::new(),
            told_of_failure: Vec::new(),
            notices: Vec::new(),
            trouble: 20,
            is_repeated: false,
        };
        world.stored.write(changes);
        world.live.extend(messages.into_iter().map(|message| (message.id, (message, 0))));
        world
    }

    /// Makes a decision and commits its consequences.
    pub(crate) fn decide<T>(&mut self, decide: impl FnOnce(&mut Workflow, &mut Outbox<'_>) -> T) -> T {
        self.now = self.now.plus_millis(10);
        let (now, last) = (self.now, &mut self.last);
        let mut next_id = || next_id(last, now);
        let mut out = Outbox::new(now, &mut next_id);
        let decided = decide(&mut self.workflow, &mut out);
        let Outbox { changes, messages, withdrawn, notices, .. } = out;
        self.stored.write(changes);
        for message in messages {
            match message.spec.workflow.unwrap().part {
                Part::FailureCall => self.told_of_failure.push(message),
                _ => drop(self.live.insert(message.id, (message, 0))),
            }
        }
        for id in withdrawn {
            self.live.remove(&id);
        }
        self.notices.extend(notices);
        decided
    }

    /// All stored data.
    pub(crate) fn record(&self) -> Record {
        let Stored { run, entries, notes, .. } = &self.stored;
        let (entries, notes) = (entries.values().cloned().collect(), notes.values().cloned().collect());
        Record::restored(run.clone().unwrap(), entries, notes).unwrap()
    }

    /// The process dies. The stored data is all that remains, and it is the same.
    pub(crate) fn crash(&mut self) {
        let restored = self.record().workflow;
        assert_eq!(restored, self.workflow, "a decision was not stored");
        let goes_on = self.workflow.run.state == RunState::Started;
        let waits = self.workflow.waits.iter().filter(|_| goes_on);
        let expected: BTreeMap<_, _> = waits.map(|wait| (wait.timer, wait.event.clone())).collect();
        assert_eq!(self.stored.waiters, expected, "waits are found by their events");
        self.workflow = restored;
    }

    /// Lets one event happen. Returns false if none is possible any more.
    pub(crate) fn step(&mut self) -> bool {
        if self.chance.one_in(8) {
            self.crash();
        }
        let due: Vec<MessageId> = self.live.keys().copied().collect();
        let goes_on = self.workflow.run.state == RunState::Started;
        let waits = if goes_on { self.workflow.waits.len() } else { 0 };
        let choices = due.len() + self.children.len() + waits;
        if choices == 0 {
            return false;
        }
        let choice = self.chance.below(choices);
        if let Some(id) = due.get(choice) {
            self.send(*id);
        } else if let Some(child) = choice.checked_sub(due.len()).filter(|child| *child < self.children.len()) {
            let to = self.children[child].clone();
            // A notice may come twice; only the first one counts.
            if !self.chance.one_in(3) {
                self.children.remove(child);
            }
            let out = r#"{"body":"child","isCanceled":false,"isFailed":false}"#.into();
            let notice = Notice { tenant: TENANT, to, out };
            self.decide(|workflow, out| workflow.invoked_has_ended(&notice, out));
        } else {
            let wait = &self.workflow.waits[choice - due.len() - self.children.len()];
            let event = wait.event.clone();
            self.decide(|workflow, out| workflow.notify(&event, event.as_bytes(), out));
        }
        true
    }

    fn send(&mut self, id: MessageId) {
        let (message, retried) = self.live[&id].clone();
        let StepRef { part, .. } = message.spec.workflow.unwrap();
        let index = match part {
            Part::Entry(index) => index,
            Part::Deadline => {
                // Sometimes nothing else comes first.
                if self.chance.one_in(4) {
                    self.live.remove(&id);
                    self.decide(|workflow, out| workflow.deadline_reached(id, out));
                }
                return;
            }
            Part::FailureCall => unreachable!("kept apart"),
        };
        if self.workflow.is_obsolete(index) {
            self.live.remove(&id);
            let nothing_sent =
                Outcome { result: Ok(Response { status: 200, ..Response::default() }), duration_ms: 0, phases: None };
            return self.attempted(index, nothing_sent, retried, Next::Done);
        }
        let fails_before = self.trouble > 0 && self.chance.one_in(6);
        let fails_behind = self.trouble > 0 && self.chance.one_in(6);
        self.trouble -= u32::from(fails_before || fails_behind).min(self.trouble);
        if !fails_before {
            self.execute(index, &message);
            if self.chance.one_in(5) {
                // The receiver got it twice.
                self.is_repeated = true;
                self.execute(index, &message);
                self.is_repeated = false;
            }
        }
        let is_over = !self.live.contains_key(&id);
        if is_over {
            // Its outcome arrives when it is no longer needed.
            self.attempted(index, answered(200), retried, Next::Done);
        } else if fails_before || fails_behind {
            self.live.insert(id, (message, retried + 1));
            let outcome = if self.chance.one_in(2) { answered(500) } else { unanswered() };
            self.attempted(index, outcome, retried, Next::RetryAt(self.now.plus_millis(100)));
        } else {
            self.live.remove(&id);
            self.attempted(index, answered(200), retried, Next::Done);
        }
    }

    pub(crate) fn attempted(&mut self, index: u32, outcome: Outcome, retried: u32, next: Next) {
        let attempt = Attempt { outcome: &outcome, retried, next, sent: b"what was asked for" };
        self.decide(|workflow, out| workflow.attempted(index, attempt, out));
    }

    /// The receiver processes the request.
    fn execute(&mut self, index: u32, message: &Message) {
        let entry = self.workflow.entries[index as usize].clone();
        match entry.terms.call_type {
            CallType::Step => {
                assert!(message.body.is_empty(), "the array is made when it is sent");
                let shown = client::shown(&self.record().array_up_to(index));
                let request = client::respond(&self.program, &shown);
                self.ask(request);
            }
            // The third party only responds.
            CallType::ToCallback => {}
            CallType::FromCallback => {
                let number = header(message, "Upstash-Workflow-Stepid").parse().unwrap();
                let concurrent = header(message, "Upstash-Workflow-Concurrent").parse().unwrap();
                let result = client::call_result(number, concurrent, &message.body);
                *self.executed.entry(number).or_default() += 1;
                self.ask(Request::Steps(vec![(result, false)]));
            }
            CallType::Other(_) => unreachable!("the client makes none"),
        }
    }

    fn ask(&mut self, request: Request) {
        let now = self.now;
        match request {
            Request::Nothing => {}
            Request::Steps(steps) => {
                for (step, _) in &steps {
                    let number = step["stepId"].as_u64().unwrap() as u32;
                    if number > 0 && step["stepType"] == "Run" {
                        *self.executed.entry(number).or_default() += 1;
                        let is_done = |entry: &Entry| entry.is_result() && entry.gist.info.id == number;
                        let is_again = self.workflow.entries.iter().any(is_done);
                        assert!(
                            self.is_repeated || !is_again,
                            "step {number} is executed although its result is there"
                        );
                    }
                }
                let entry = |(step, sleeps): &(serde_json::Map<_, _>, bool)| {
                    let due = if *sleeps { now.plus_millis(5_000) } else { now };
                    NewEntry::step(Bytes::from(serde_json::to_vec(step).unwrap()), protocol(), due)
                };
                let entries = steps.iter().map(entry).collect();
                self.append(entries);
            }
            Request::Call(number) => {
                let concurrent = self.program.0.iter().scan(0, |sum, group| {
                    *sum += group.len() as u32;
                    Some((*sum, group.len()))
                });
                let concurrent = concurrent.into_iter().find(|(sum, _)| number <= *sum).unwrap().1;
                let headers = [("Stepid", number.to_string()), ("Concurrent", concurrent.to_string())];
                let call = Call {
                    url: "https://api.example.test/charge".into(),
                    method: "POST".into(),
                    step: number,
                    is_forgiven: true,
                    result_headers: headers.map(|(name, value)| (format!("Upstash-Workflow-{name}"), value)).into(),
                    result_retries: None,
                };
                let entry = NewEntry::step(Bytes::from_static(b"{}"), Vec::new(), now);
                self.append(vec![NewEntry { call_type: CallType::ToCallback, call: Some(call), ..entry }]);
            }
            Request::Wait(step) => {
                let event = client::event(step["stepId"].as_u64().unwrap() as u32);
                let headers = vec![("Upstash-Forward-Upstash-Workflow-Sdk-Version".to_owned(), vec!["1".to_owned()])];
                let (timeout, terms) = ("10s".to_owned(), OwnTerms::default());
                let wait = WaitFor { event, step, timeout, timeout_ms: 10_000, headers, terms };
                self.wait(wait).ok();
            }
            Request::Invoke(step) => {
                let (no, run_id) = (step["stepId"].clone(), format!("wfr_child-{}", step["stepId"]));
                let invoker = Invoker {
                    run_id: self.workflow.run.id.clone(),
                    created_at: Some(self.workflow.run.created_at),
                    url: URL.into(),
                    step: step.clone(),
                    headers: protocol(),
                    terms: OwnTerms::default(),
                };
                let invoke = Invoke {
                    id: None,
                    step,
                    run_id,
                    created_at: now,
                    url: format!("{URL}/{no}"),
                    run_headers: Vec::new(),
                    redact: Default::default(),
                    headers: protocol(),
                    terms: OwnTerms::default(),
                    size: 0,
                    has_out: false,
                };
                let given = Bytes::from_static(b"{}");
                if self.decide(|workflow, out| workflow.invoke(invoke, given, &LIMITS, out)) == Ok(true) {
                    self.children.push(invoker);
                }
            }
            Request::Finish => self.decide(|workflow, out| workflow.finish(Some("\"ok\"".into()), out)),
        }
    }

    pub(crate) fn wait(&mut self, wait: WaitFor) -> Result<Waited, Refusal> {
        let notes = self.stored.notes.clone();
        let kept = |key: NoteKey| Ok::<_, Infallible>(notes[&key].body.clone());
        let Ok(waited) = self.decide(|workflow, out| workflow.wait(wait, kept, &LIMITS, out));
        waited
    }

    fn append(&mut self, entries: Vec<NewEntry>) {
        let appended = self.decide(|workflow, out| workflow.append(entries, &LIMITS, out));
        match appended {
            Ok(accepted) => assert!(!accepted.is_empty()),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Ended);
                assert_ne!(self.workflow.run.state, RunState::Started);
            }
        }
    }
}

pub(crate) fn config() -> RunConfig {
    RunConfig { features: Features::OF_TRIGGER, retries: 3, ..RunConfig::default() }
}

/// The protocol headers of a client's step.
pub(crate) fn protocol() -> Vec<(String, String)> {
    vec![("Upstash-Workflow-Sdk-Version".into(), "1".into())]
}

pub(crate) fn header<'a>(message: &'a Message, name: &str) -> &'a str {
    let found: Vec<_> = message.spec.headers.iter().filter(|(other, _)| other == name).collect();
    assert_eq!(found.len(), 1, "{name} in {:?}", message.spec.headers);
    &found[0].1
}

pub(crate) fn answered(status: u16) -> Outcome {
    let headers = vec![("Upstash-Workflow-Sdk-Version".to_owned(), "1".to_owned())];
    Outcome { result: Ok(Response { status, headers, ..Response::default() }), duration_ms: 3, phases: None }
}

pub(crate) fn unanswered() -> Outcome {
    let error = AttemptError { class: ErrorClass::Connect, message: "connection refused".into() };
    Outcome { result: Err(error), duration_ms: 3, phases: None }
}

fn next_id(last: &mut Seq, now: Timestamp) -> MessageId {
    *last = Seq::next(*last, now);
    MessageId { seq: *last, tag: last.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}
