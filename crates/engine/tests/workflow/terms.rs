//! When deliveries are due, and the settings of those that the server creates itself.

use crate::world::{LIMITS, T0, World};
use crate::{answered, config, quiet, step};
use bytes::Bytes;
use posthaste_engine::message::FlowSpec;
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::{Entry, OwnTerms};
use posthaste_engine::workflow::run::{FailureCall, Invoke, Invoker, RunConfig, StepText};
use posthaste_engine::workflow::{Attempt, NewEntry, Notice, Overrides, Part, WaitFor, Waited};
use posthaste_wire::id::TenantId;
use posthaste_wire::redact::RedactFields;

const DAY_MS: u64 = 86_400_000;

fn deliver_now(world: &mut World, part: Part) -> bool {
    let outcome = world.decide(|workflow, out| workflow.deliver_now(part, out));
    world.crash();
    outcome
}

fn waiting(number: u32, kind: &str) -> StepText {
    serde_json::json!({ "stepId": number, "stepType": kind, "concurrent": 1 }).as_object().cloned().unwrap()
}

fn wait_for(world: &mut World, number: u32, event: &str, terms: OwnTerms) -> Waited {
    let (event, step, timeout) = (event.to_owned(), waiting(number, "Wait"), "1d".to_owned());
    world.wait(WaitFor { event, step, timeout, timeout_ms: DAY_MS, headers: Vec::new(), terms }).unwrap()
}

#[test]
fn a_step_that_sleeps_or_is_retried_is_due_when_somebody_says_so() {
    let mut world = quiet(config());
    let nap = NewEntry { due: T0.plus_millis(DAY_MS), ..step(r#"{"stepId":1}"#) };
    world.decide(|workflow, out| workflow.append(vec![nap], &LIMITS, out)).unwrap();
    let due = |world: &World, index: usize| world.workflow.entries[index].delivery.due;
    assert!(deliver_now(&mut world, Part::Entry(1)));
    let outcome = due(&world, 1);
    assert!(outcome < T0.plus_millis(DAY_MS));
    assert!(deliver_now(&mut world, Part::Entry(1)));
    assert_eq!(due(&world, 1), outcome, "what is due stays so");
    world.attempted(1, answered(500), 0, Next::RetryAt(T0.plus_millis(DAY_MS)));
    assert!(deliver_now(&mut world, Part::Entry(1)));
    assert!(due(&world, 1) < T0.plus_millis(DAY_MS));
    assert_eq!(world.workflow.entries[1].delivery.attempts, 1, "nothing else changes");
    world.attempted(1, answered(200), 1, Next::Done);
    for over in [Part::Entry(1), Part::Entry(7), Part::FailureCall, Part::Deadline] {
        assert!(!deliver_now(&mut world, over), "{over:?}");
    }
}

#[test]
fn the_call_about_a_failure_is_due_when_somebody_says_so() {
    let failure = FailureCall { url: "http://app:3000/failed".into(), ..FailureCall::default() };
    let mut world = quiet(RunConfig { failure: Some(failure), ..config() });
    assert!(!deliver_now(&mut world, Part::FailureCall));
    world.attempted(0, answered(500), 3, Next::DeadLetter);
    assert!(!deliver_now(&mut world, Part::Entry(0)), "the run has ended");
    let outcome = answered(500);
    let later = T0.plus_millis(DAY_MS);
    let attempt = |next| Attempt { outcome: &outcome, retried: 0, next, sent: b"" };
    world.decide(|workflow, out| workflow.failure_told(attempt(Next::RetryAt(later)), out));
    assert!(deliver_now(&mut world, Part::FailureCall));
    let call = |world: &World| world.workflow.run.failure.as_ref().unwrap().call.clone().unwrap();
    assert!(call(&world).due < later);
    world.decide(|workflow, out| workflow.failure_told(attempt(Next::DeadLetter), out));
    assert!(!deliver_now(&mut world, Part::FailureCall), "it is over");
}

#[test]
fn what_is_said_with_a_wait_or_an_invoke_holds_for_its_result() {
    let flow = FlowSpec { key: "k".into(), parallelism: Some(2), rate: None, period_ms: 1_000 };
    let redact = RedactFields::parse("body, header[X-Key]").expect("a list of fields");
    let said = OwnTerms { retries: Some(7), retry_delay: Some("5".into()), flow: Some(flow), redact };
    let mut world = quiet(RunConfig { retries: 1, retry_delay: Some("9".into()), ..config() });
    world.decide(|workflow, out| workflow.notify_or_keep("early", b"", &LIMITS, out)).unwrap();
    assert_eq!(wait_for(&mut world, 1, "early", said.clone()), Waited::Resolved);
    for (number, event) in [(2, "event"), (3, "deadline")] {
        assert_eq!(wait_for(&mut world, number, event, said.clone()), Waited::Waiting);
    }
    assert_eq!(wait_for(&mut world, 4, "silent", OwnTerms::default()), Waited::Waiting);
    world.decide(|workflow, out| workflow.notify("event", b"", out)).expect("it waits");
    world.decide(|workflow, out| workflow.notify("silent", b"", out)).expect("it waits");
    let timer = world.workflow.waits[0].timer;
    world.decide(|workflow, out| workflow.deadline_reached(timer, out));
    let (invoke, to) = invoke(&said);
    assert_eq!(
        world.decide(|workflow, out| workflow.invoke(invoke, Bytes::from_static(b"{}"), &LIMITS, out)),
        Ok(true)
    );
    assert!(world.workflow.invokes[0].id.is_some(), "the log can name it");
    world.crash();
    let notice = Notice { tenant: TenantId(1), to, out: "{}".into() };
    world.decide(|workflow, out| workflow.invoked_has_ended(&notice, out));
    let terms = |number| {
        let is_it = |entry: &&Entry| entry.is_result() && entry.gist.info.id == number;
        let entry = world.workflow.entries.iter().find(is_it).expect("there is a result");
        let terms = &entry.terms;
        OwnTerms {
            retries: Some(terms.retries),
            retry_delay: terms.retry_delay.clone(),
            flow: terms.flow.clone(),
            redact: terms.redact.clone(),
        }
    };
    for number in [1, 2, 3, 5] {
        assert_eq!(terms(number), said, "step {number}");
    }
    assert_eq!(terms(4), OwnTerms { retries: Some(1), retry_delay: Some("9".into()), ..OwnTerms::default() });
}

#[test]
fn a_run_that_begins_again_keeps_what_was_said_with_an_invoke() {
    let said = OwnTerms { retries: Some(7), ..OwnTerms::default() };
    let mut world = quiet(config());
    let (invoke, _) = invoke(&said);
    assert_eq!(
        world.decide(|workflow, out| workflow.invoke(invoke, Bytes::from_static(b"{}"), &LIMITS, out)),
        Ok(true)
    );
    let named = world.workflow.invokes[0].id;
    world.attempted(0, answered(500), 3, Next::DeadLetter);
    let failed = world.record();
    let (again, rebound) = world.decide(|_, out| {
        let again = failed.resumed("wfr_again".into(), out.now, Overrides::default(), out);
        (again, out.rebound.clone())
    });
    assert_eq!((&again.invokes[0].terms, &rebound[0].invoker.terms), (&said, &said));
    let renamed = again.invokes[0].id;
    assert!(renamed.is_some() && renamed != named, "it is another step of another run");
}

/// Another run that the fifth step invoked, and the invoker that waits for it.
fn invoke(said: &OwnTerms) -> (Invoke, Invoker) {
    let (step, url) = (waiting(5, "Invoke"), "http://app:3000/api/child".to_owned());
    let to = Invoker {
        run_id: "wfr_order-7".into(),
        created_at: Some(T0),
        url: url.clone(),
        step: step.clone(),
        headers: Vec::new(),
        terms: said.clone(),
    };
    let invoke = Invoke {
        id: None,
        step,
        run_id: "wfr_child".into(),
        created_at: T0,
        url,
        run_headers: Vec::new(),
        redact: Default::default(),
        headers: Vec::new(),
        terms: said.clone(),
        size: 0,
        has_out: false,
    };
    (invoke, to)
}
