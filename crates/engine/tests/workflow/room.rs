//! The limits of a run: kept data counts with its size, and the number of runs that wait for its end is limited.

use crate::world::{LIMITS, T0, World};
use crate::{answered, config, quiet, step};
use bytes::Bytes;
use posthaste_engine::limits::WORKFLOW_INVOKERS_MAX;
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::OwnTerms;
use posthaste_engine::workflow::run::{Invoke, Invoker, RunState, StepText};
use posthaste_engine::workflow::{Attempt, Limits, NewEntry, Overrides, Refusal, WaitFor};
use posthaste_wire::rejection::quota_exceeded;
use std::sync::Arc;

const LONG: usize = 5_000;

fn long_step(number: usize) -> StepText {
    let step = serde_json::json!({"stepId": number, "stepName": "n".repeat(LONG), "concurrent": 1});
    step.as_object().cloned().unwrap()
}

fn long_wait(number: usize) -> WaitFor {
    let headers = vec![("A".to_owned(), vec!["v".repeat(LONG)])];
    let (event, timeout, terms) = (format!("event {number}"), "1d".to_owned(), OwnTerms::default());
    WaitFor { event, step: long_step(number), timeout, timeout_ms: 1_000, headers, terms }
}

fn long_invoke(number: usize) -> Invoke {
    Invoke {
        id: None,
        step: long_step(number),
        run_id: "wfr_child".into(),
        created_at: T0,
        url: "http://app:3000/child".into(),
        run_headers: vec![("A".to_owned(), "v".repeat(LONG))],
        redact: Default::default(),
        headers: Vec::new(),
        terms: OwnTerms::default(),
        size: 0,
        has_out: false,
    }
}

fn invoker(run_id: &str) -> Invoker {
    let (created_at, url, step) = (Some(T0), "http://app:3000/parent".to_owned(), long_step(1));
    Invoker { run_id: run_id.to_owned(), created_at, url, step, headers: Vec::new(), terms: OwnTerms::default() }
}

/// Adds the run that invoked it, and as many others as allowed.
fn fill(world: &mut World) {
    while world.workflow.check_invokers().is_ok() {
        let run_id = format!("parent {}", world.workflow.invokers.len());
        world.decide(|workflow, out| workflow.add_invoker(invoker(&run_id), out));
    }
}

#[test]
fn what_a_run_keeps_counts_with_all_that_was_said_of_it() {
    let mut world = quiet(config());
    let mut grows_by = |least: usize, most: usize, what: &str, act: &mut dyn FnMut(&mut World)| {
        let before = world.workflow.bytes();
        act(&mut world);
        world.crash();
        let grown = (world.workflow.bytes() - before) as usize;
        assert!((least..most).contains(&grown), "{what}: {grown}");
        before
    };
    let empty = grows_by(2 * LONG, 2 * LONG + 1_000, "a wait", &mut |world| {
        world.wait(long_wait(1)).unwrap();
    });
    grows_by(3 * LONG, 3 * LONG + 1_000, "an invoke", &mut |world| {
        let given = Bytes::from(vec![b'x'; LONG]);
        assert_eq!(world.decide(|workflow, out| workflow.invoke(long_invoke(2), given, &LIMITS, out)), Ok(true));
    });
    grows_by(LONG, LONG + 1_000, "an event", &mut |world| {
        world.decide(|workflow, out| workflow.notify_or_keep("early", &[0; LONG], &LIMITS, out)).unwrap();
    });
    grows_by(LONG, LONG + 100, "headers of a step", &mut |world| {
        let headers = vec![("A".to_owned(), "v".repeat(LONG))];
        let new = NewEntry { headers, ..step(r#"{"stepId":3}"#) };
        world.decide(|workflow, out| workflow.append(vec![new], &LIMITS, out)).unwrap();
    });
    grows_by(0, 1, "who waits for its end", &mut |world| {
        world.decide(|workflow, out| workflow.add_invoker(invoker("other"), out));
    });
    assert!(world.workflow.noted_bytes() > 5 * LONG as u64, "but it is held");
    let before = world.workflow.bytes();
    world.decide(|workflow, out| workflow.notify("event 1", b"", out)).unwrap();
    let wait_is_gone = before - world.workflow.bytes();
    assert!((LONG as u64..LONG as u64 + 500).contains(&wait_is_gone), "its step is in the result: {wait_is_gone}");
    assert!(world.workflow.bytes() > empty);
    world.decide(|workflow, out| workflow.cancel(out));
    world.crash();
}

#[test]
fn waits_that_are_too_long_end_the_run() {
    let mut world = quiet(config());
    let limits = Limits { bytes: 10 * LONG as u64, ..LIMITS };
    let mut ask = |number: usize| {
        let never = |_| Err(());
        world.decide(|workflow, out| workflow.wait(long_wait(number), never, &limits, out)).unwrap()
    };
    for number in 1..5 {
        ask(number).unwrap();
    }
    assert_eq!(ask(5), Err(Refusal::Exceeded { quota: "maxWorkflowBytes", limit: limits.bytes }));
    assert_eq!(world.workflow.run.state, RunState::Failed);
    world.crash();
}

#[test]
fn those_who_wait_for_the_end_of_a_run_are_bounded_and_get_one_text() {
    let mut world = quiet(config());
    fill(&mut world);
    world.crash();
    assert_eq!(world.workflow.invokers.len(), WORKFLOW_INVOKERS_MAX);
    let limit = WORKFLOW_INVOKERS_MAX as u64;
    assert_eq!(world.workflow.check_invokers(), Err(Refusal::Exceeded { quota: "maxWorkflowInvokers", limit }));
    world.decide(|workflow, out| workflow.finish(Some("result".into()), out));
    assert_eq!(world.notices.len(), WORKFLOW_INVOKERS_MAX);
    assert!(world.notices.iter().all(|notice| Arc::ptr_eq(&notice.out, &world.notices[0].out)));
}

#[test]
fn a_run_that_begins_again_waits_for_the_end_of_a_run_whoever_else_does() {
    let mut parent = quiet(config());
    let given = Bytes::from_static(b"{}");
    assert_eq!(parent.decide(|workflow, out| workflow.invoke(long_invoke(1), given, &LIMITS, out)), Ok(true));
    parent.attempted(0, answered(500), 3, Next::DeadLetter);
    let failed = parent.record();
    let rebound = parent.decide(|_, out| {
        failed.resumed("wfr_again".into(), out.now, Overrides::default(), out);
        out.rebound.remove(0)
    });
    let mut child = quiet(config());
    let first = invoker(&parent.workflow.run.id);
    child.decide(|workflow, out| workflow.add_invoker(first.clone(), out));
    let mut free = child.workflow.clone();
    fill(&mut child);
    child.decide(|workflow, out| workflow.rebind(rebound.clone(), out));
    child.crash();
    let waits = |workflow: &posthaste_engine::workflow::Workflow, invoker: &Invoker| {
        workflow.invokers.iter().filter(|known| *known == invoker).count()
    };
    let of_full = (waits(&child.workflow, &first), waits(&child.workflow, &rebound.invoker));
    assert_eq!((child.workflow.invokers.len(), of_full), (WORKFLOW_INVOKERS_MAX, (0, 1)), "it takes the place");
    // With room for both, the failed run is notified for its log.
    child.decide(|_, out| free.rebind(rebound.clone(), out));
    assert_eq!((waits(&free, &first), waits(&free, &rebound.invoker)), (1, 1));
}

#[test]
fn a_run_waits_and_invokes_no_more_often_than_it_may_have_entries() {
    let limits = Limits { entries: 3, ..LIMITS };
    let refused = Err(Refusal::Exceeded { quota: "maxWorkflowSteps", limit: 3 });
    let mut world = quiet(config());
    let mut wait = |number: usize| {
        world.decide(|workflow, out| workflow.wait(long_wait(number), |_| Err(()), &limits, out)).unwrap().map(drop)
    };
    assert_eq!([wait(1), wait(2), wait(3), wait(4)], [Ok(()), Ok(()), Ok(()), refused]);
    let mut world = quiet(config());
    let mut invoke = |number: usize| {
        let given = Bytes::from_static(b"{}");
        world.decide(|workflow, out| workflow.invoke(long_invoke(number), given, &limits, out)).map(drop)
    };
    assert_eq!([invoke(1), invoke(2), invoke(3), invoke(4)], [Ok(()), Ok(()), Ok(()), refused]);
}

/// Ends the delivery of an entry with a success, within the limits of the run.
fn answer_in(world: &mut World, index: u32) {
    let outcome = answered(200);
    let attempt = Attempt { outcome: &outcome, retried: 0, next: Next::Done, sent: b"" };
    world.decide(|workflow, out| {
        out.limits = LIMITS;
        workflow.attempted(index, attempt, out);
    });
    world.crash();
}

#[test]
fn a_run_that_nothing_moves_on_ends_when_its_time_is_over() {
    let mut world = quiet(config());
    answer_in(&mut world, 0);
    let timer = world.workflow.run.last_call.expect("nothing else is to come");
    let due = world.live[&timer].0.not_before;
    assert_eq!(due.millis_since(T0), LIMITS.duration_ms + 1, "until then it may be appended to");
    // The operator has raised the limit since then.
    let longer = Limits { duration_ms: 2 * LIMITS.duration_ms, ..LIMITS };
    world.decide(|workflow, out| {
        (out.now, out.limits) = (due, longer);
        workflow.deadline_reached(timer, out);
    });
    world.crash();
    let timer = world.workflow.run.last_call.expect("it waits once more");
    world.decide(|workflow, out| {
        (out.now, out.limits) = (T0.plus_millis(longer.duration_ms + 1), longer);
        workflow.deadline_reached(timer, out);
    });
    world.crash();
    let failure = world.workflow.run.failure.as_ref().expect("it has failed");
    let text = quota_exceeded("maxWorkflowDuration", longer.duration_ms);
    assert_eq!((world.workflow.run.state, failure.error.as_deref()), (RunState::Failed, Some(text.as_str())));
}

#[test]
fn a_run_that_goes_on_by_itself_waits_for_no_end_and_one_that_ends_waits_no_longer() {
    let mut world = quiet(config());
    world.decide(|workflow, out| workflow.append(vec![step(r#"{"stepId":1}"#)], &LIMITS, out)).unwrap();
    answer_in(&mut world, 0);
    assert_eq!(world.workflow.run.last_call, None, "a step is to be delivered");
    world.wait(long_wait(2)).unwrap();
    answer_in(&mut world, 1);
    assert_eq!(world.workflow.run.last_call, None, "it waits for an event");
    world.decide(|workflow, out| workflow.notify("event 2", b"", out)).unwrap();
    answer_in(&mut world, 2);
    let timer = world.workflow.run.last_call.expect("nothing is to come");
    world.decide(|workflow, out| workflow.finish(None, out));
    world.crash();
    assert_eq!((world.workflow.run.last_call, world.live.get(&timer)), (None, None));
}
