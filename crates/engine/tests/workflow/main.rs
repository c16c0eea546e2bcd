//! Runs of workflows against a model of their clients: whatever is repeated, lost or late, the results are the same.
#![cfg(test)]

mod client;
mod room;
mod terms;
mod world;

use bytes::Bytes;
use client::{Kind, Program};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::DeliveryState;
use posthaste_engine::workflow::run::{FailureCall, FailureCallState, RunConfig, RunState, Trigger};
use posthaste_engine::workflow::{Attempt, Limits, NewEntry, Overrides, Refusal, WaitFor, Waited};
use posthaste_wire::encoding::base64;
use posthaste_wire::rejection::quota_exceeded;
use posthaste_wire::workflow::{CallType, Features};
use serde_json::Value;
use std::collections::BTreeMap;
use world::{Chance, LIMITS, T0, World, answered, config, header, protocol, unanswered};

const SEEDS: u64 = if cfg!(debug_assertions) { 1_500 } else { 20_000 };
/// More than any world needs.
const STEPS_MAX: usize = 20_000;

fn program(chance: &mut Chance) -> Program {
    let kinds = [Kind::Run, Kind::Sleep, Kind::Call, Kind::Wait, Kind::Invoke];
    let groups = 1 + chance.below(5);
    let group = |chance: &mut Chance| {
        let steps = if chance.one_in(2) { 1 } else { 2 + chance.below(3) };
        (0..steps).map(|_| kinds[chance.below(kinds.len())]).collect()
    };
    Program((0..groups).map(|_| group(chance)).collect())
}

/// The result that the client sees for every step: the first.
fn results(world: &World) -> BTreeMap<u32, Value> {
    let mut results = BTreeMap::new();
    let record = world.record();
    for entry in record.workflow.entries.iter().filter(|entry| entry.is_result()) {
        let step: Value = serde_json::from_slice(record.body(entry)).unwrap();
        results.entry(entry.gist.info.id).or_insert(step);
    }
    results
}

fn check_results(world: &World) {
    let results = results(world);
    assert_eq!(results.len(), world.program.steps() as usize);
    for (number, kind) in world.program.numbered() {
        let result = &results[&number];
        let out = result.get("out").and_then(Value::as_str);
        match kind {
            Kind::Run => assert_eq!(out, Some(client::out(number).as_str())),
            Kind::Sleep => assert_eq!(out, None),
            Kind::Call => assert!(out.unwrap().contains("\"status\":200"), "{out:?}"),
            Kind::Invoke => assert!(out.unwrap().contains("\"body\":\"child\""), "{out:?}"),
            Kind::Wait if result.get("waitTimeout").is_some() => assert_eq!(out, None),
            Kind::Wait => assert_eq!(out, Some(base64(client::event(number).as_bytes()).as_str())),
        }
        let count =
            world.workflow.entries.iter().filter(|entry| entry.is_result() && entry.gist.info.id == number).count();
        assert_eq!(count, 1, "equal results are one entry, and what the server writes it writes once");
    }
}

#[test]
fn every_interleaving_of_duplicates_losses_and_crashes_ends_with_the_same_results() {
    for seed in 0..SEEDS {
        let mut chance = Chance(seed);
        let program = program(&mut chance);
        let mut world = World::new(program, config(), chance);
        let mut steps = 0;
        while world.step() {
            steps += 1;
            assert!(steps < STEPS_MAX, "seed {seed}: it goes on for ever: {:?}", world.program);
        }
        world.crash();
        assert_eq!(world.workflow.run.state, RunState::Success, "seed {seed}: it is stuck: {:?}", world.program);
        assert_eq!(world.record().result.as_deref(), Some("\"ok\""));
        check_results(&world);
        assert!(world.live.is_empty(), "nothing of an ended run is sent");
        assert_eq!(world.notices.len(), 1, "whoever invoked it hears of it once");
        assert_eq!(&*world.notices[0].out, r#"{"body":"\"ok\"","isCanceled":false,"isFailed":false}"#);
        let refused = world.decide(|workflow, out| workflow.append(vec![step("{}")], &LIMITS, out));
        assert_eq!(refused, Err(Refusal::Ended));
    }
}

#[test]
fn a_cancelled_run_does_nothing_any_more() {
    for seed in 0..SEEDS {
        let mut chance = Chance(seed);
        let program = program(&mut chance);
        let mut world = World::new(program, config(), chance);
        for _ in 0..world.chance.below(40) {
            world.step();
        }
        let has_ended = world.workflow.run.state != RunState::Started;
        let entries = world.workflow.entries.len();
        assert_eq!(world.decide(|workflow, out| workflow.cancel(out)), !has_ended, "seed {seed}");
        let state = if has_ended { RunState::Success } else { RunState::Canceled };
        assert!(world.live.is_empty());
        // Attempts in flight return, events come too late, and the endpoint reports its end.
        for index in 0..entries as u32 {
            world.attempted(index, answered(500), 0, Next::DeadLetter);
        }
        for number in 1..=world.program.steps() {
            assert_eq!(world.decide(|workflow, out| workflow.notify(&client::event(number), b"", out)), None);
        }
        world.decide(|workflow, out| workflow.finish(None, out));
        assert!(!world.decide(|workflow, out| workflow.cancel(out)), "once");
        world.crash();
        assert_eq!((world.workflow.run.state, world.workflow.entries.len()), (state, entries), "seed {seed}");
        assert!(world.told_of_failure.is_empty());
        assert_eq!(world.notices.len(), 1);
        let told = format!(r#""isCanceled":{}"#, !has_ended);
        assert!(world.notices[0].out.contains(&told), "{}", world.notices[0].out);
    }
}

#[test]
fn a_failed_run_is_told_of_once_and_goes_on_where_it_failed() {
    for seed in 0..SEEDS {
        let mut chance = Chance(seed);
        let program = program(&mut chance);
        let failure = FailureCall { url: "http://app:3000/failed".into(), ..FailureCall::default() };
        let mut world = World::new(program, RunConfig { failure: Some(failure), ..config() }, chance);
        for _ in 0..world.chance.below(30) {
            world.step();
        }
        let pending = |world: &World| {
            let mut entries = world.workflow.entries.iter();
            entries.find(|entry| entry.delivery.state == DeliveryState::Pending && entry.terms.call.is_none()).cloned()
        };
        let Some(entry) = pending(&world).filter(|_| world.workflow.run.state == RunState::Started) else { continue };
        world.live.remove(&entry.id);
        world.attempted(entry.index, answered(500), 3, Next::DeadLetter);
        assert_eq!(world.workflow.run.state, RunState::Failed, "seed {seed}");
        world.attempted(entry.index, answered(500), 3, Next::DeadLetter);
        assert_eq!(world.told_of_failure.len(), 1, "once");
        assert!(world.live.is_empty() && world.notices[0].out.contains(r#""isFailed":true"#));
        world.crash();

        let failed = world.record();
        let done = results(&world);
        let resumed = world.decide(|workflow, out| {
            let resumed = failed.resumed("wfr_again".into(), T0.plus_millis(1), Overrides::default(), out);
            *workflow = resumed.clone();
            resumed
        });
        assert!(resumed.invokers.is_empty() && resumed.run.failure.is_none());
        let mut steps = 0;
        while world.step() {
            steps += 1;
            assert!(steps < STEPS_MAX, "seed {seed}: it goes on for ever");
        }
        world.crash();
        assert_eq!(world.workflow.run.state, RunState::Success, "seed {seed}: stuck: {:?}", world.program);
        check_results(&world);
        for (number, before) in done {
            assert_eq!(results(&world)[&number], before, "what was done stays as it was");
        }
    }
}

fn step(text: &str) -> NewEntry {
    NewEntry::step(Bytes::copy_from_slice(text.as_bytes()), protocol(), T0)
}

fn quiet(config: RunConfig) -> World {
    World::new(Program(vec![vec![Kind::Run]]), config, Chance(1))
}

#[test]
fn a_delivery_shows_the_entries_up_to_its_own_byte_for_byte() {
    let mut world = quiet(config());
    let texts = [r#"{"stepId":1,"stepName":"ü","out":"1"}"#, r#"{"stepId":2, "out" : null}"#];
    world.decide(|workflow, out| workflow.append(texts.map(step).to_vec(), &LIMITS, out)).unwrap();
    let array: Vec<Value> = serde_json::from_slice(&world.record().array_up_to(1)).unwrap();
    assert_eq!(array.len(), 2, "nothing behind it");
    for (entry, body) in world.workflow.entries.iter().zip(&world.record().bodies) {
        assert_eq!(entry.encoded(body).len(), entry.encoded_len(), "its length is known without its bytes");
    }
    assert_eq!(array[0]["body"], base64(b"{\"order\":7}"));
    assert_eq!(array[1]["body"], base64(texts[0].as_bytes()));
    assert_eq!(array[1]["messageId"], world.workflow.entries[1].id.to_string());
    assert_eq!(array[1]["callType"], "step");
}

#[test]
fn deliveries_carry_what_the_trigger_chose() {
    let user = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let headers = vec![user("X-Tenant", "t1"), user("Upstash-Workflow-Init", "forged")];
    let labels = vec!["a".to_owned(), "b".to_owned()];
    let retry_delay = Some("1000".to_owned());
    let mut world = quiet(RunConfig { headers, labels, retries: 7, retry_delay, ..config() });
    world.decide(|workflow, out| workflow.append(vec![step("{}")], &LIMITS, out)).unwrap();
    for (message, init) in world.live.values().map(|(message, _)| message).zip(["true", "false"]) {
        assert_eq!(header(message, "X-Tenant"), "t1");
        assert_eq!(header(message, "Upstash-Label"), "a,b");
        assert_eq!(header(message, "Upstash-Workflow-Init"), init);
        assert_eq!(header(message, "Upstash-Workflow-Runid"), "wfr_order-7");
        assert_eq!(header(message, "Upstash-Workflow-Createdat"), T0.as_millis().to_string());
        assert_eq!(header(message, "Upstash-Workflow-Sdk-Version"), "1");
        assert_eq!(header(message, "Content-Type"), "application/json");
        assert_eq!((message.spec.retries, message.spec.retry_delay.as_deref()), (7, Some("1000")));
    }
    let own = NewEntry { retries: Some(1), retry_delay: Some("5".into()), ..step("[]") };
    world.decide(|workflow, out| workflow.append(vec![own], &LIMITS, out)).unwrap();
    let last = world.live.values().last().unwrap().0.clone();
    assert_eq!((last.spec.retries, last.spec.retry_delay.as_deref()), (1, Some("5")), "older clients say it each time");
}

#[test]
fn only_old_clients_say_anew_who_hears_of_a_failure() {
    let call = |url: &str| Some(FailureCall { url: url.to_owned(), ..FailureCall::default() });
    for (trigger_on_config, expected) in [(true, "http://first.example/"), (false, "http://second.example/")] {
        let features = Features { trigger_on_config, ..Features::OF_TRIGGER };
        let mut world = quiet(RunConfig { features, failure: call("http://first.example/"), ..config() });
        let new = NewEntry { failure: call("http://second.example/"), ..step("{}") };
        world.decide(|workflow, out| workflow.append(vec![new, step("[]")], &LIMITS, out)).unwrap();
        assert_eq!(world.workflow.run.config.failure.as_ref().unwrap().url, expected);
    }
}

#[test]
fn what_is_published_again_is_not_appended_again() {
    let mut world = quiet(config());
    let append = |world: &mut World, text: &str| {
        world.decide(|workflow, out| workflow.append(vec![step(text)], &LIMITS, out)).unwrap()[0]
    };
    let first = append(&mut world, r#"{"stepId":1,"out":"1"}"#);
    let again = append(&mut world, r#"{"stepId":1,"out":"1"}"#);
    assert!(!first.deduplicated && again.deduplicated && first.id == again.id);
    assert!(!append(&mut world, r#"{"stepId":1,"out":"2"}"#).deduplicated, "another output is another entry");
    assert!(!append(&mut world, r#"{"order":7}"#).deduplicated, "the trigger's payload is no step");
    assert_eq!(world.workflow.entries.len(), 4);
}

#[test]
fn a_bound_that_is_reached_ends_the_run_and_says_which() {
    let cases = [
        (Limits { entries: 2, ..LIMITS }, "maxWorkflowSteps", 2),
        // 11 and 7 bytes, each with 45 bytes for a content type and a header.
        (Limits { bytes: 110, ..LIMITS }, "maxWorkflowBytes", 110),
        (Limits { duration_ms: 15, ..LIMITS }, "maxWorkflowDuration", 15),
    ];
    for (limits, quota, limit) in cases {
        let mut world = quiet(config());
        let append = |world: &mut World, text: &str| {
            world.decide(|workflow, out| workflow.append(vec![step(text)], &limits, out))
        };
        append(&mut world, "{\"a\":1}").unwrap();
        if quota != "maxWorkflowDuration" {
            assert!(append(&mut world, "{\"a\":1}").unwrap()[0].deduplicated, "what is said twice takes no room");
        }
        assert_eq!(append(&mut world, "{\"a\":22}"), Err(Refusal::Exceeded { quota, limit }));
        let failure = world.workflow.run.failure.clone().unwrap();
        assert_eq!(failure.error, Some(quota_exceeded(quota, limit)));
        assert_eq!((world.workflow.run.state, world.workflow.entries.len()), (RunState::Failed, 2), "all or none");
        assert!(world.live.is_empty());
    }
}

#[test]
fn a_first_answer_that_no_workflow_gives_ends_the_run() {
    let answer = |headers: &[&str]| {
        let Outcome { result, duration_ms, phases } = answered(200);
        let headers = headers.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
        Outcome {
            result: result.map(|response| posthaste_engine::event::Response { headers, ..response }),
            duration_ms,
            phases,
        }
    };
    let rest = RunConfig { trigger: Trigger::Rest, ..config() };
    let old = RunConfig { features: Features { detect_trigger: false, ..Features::OF_TRIGGER }, ..config() };
    let both: &[&str] = &["Upstash-Workflow-Sdk-Version", "Upstash-workflow-sdk"];
    let cases: [(&RunConfig, &[&str], Option<&str>); 6] = [
        (&config(), &["Upstash-Workflow-Sdk-Version"], None),
        (&config(), &[], Some("detected a non-workflow destination")),
        (&old, &[], None),
        (&rest, both, None),
        (&rest, &["Upstash-Workflow-Sdk-Version"], Some("trigger rest api is only usable")),
        (&rest, &[], Some("detected a non-workflow destination")),
    ];
    for (config, headers, complaint) in cases {
        let mut world = quiet(config.clone());
        world.attempted(0, answer(headers), 0, Next::Done);
        match complaint {
            None => assert_eq!(world.workflow.run.state, RunState::Started),
            Some(text) => {
                assert_eq!(world.workflow.run.state, RunState::Failed);
                let errors = &world.workflow.entries[0].delivery.errors;
                assert!(errors.len() == 1 && errors[0].error.as_ref().unwrap().starts_with(text), "{errors:?}");
            }
        }
    }
}

#[test]
fn events_that_come_early_are_kept_for_their_run_in_order() {
    let mut world = quiet(config());
    for data in [b"one", b"two"] {
        let kept = world.decide(|workflow, out| workflow.notify_or_keep("e", data, &LIMITS, out));
        assert_eq!(kept, Ok(None));
    }
    let full = Limits { bytes: 30, ..LIMITS };
    let refused = world.decide(|workflow, out| workflow.notify_or_keep("e", &[0; 20], &full, out));
    assert_eq!(refused, Err(Refusal::Exceeded { quota: "maxWorkflowBytes", limit: 30 }));
    assert_eq!(world.workflow.run.state, RunState::Started, "an event that is too large harms nobody");
    let wait = |world: &mut World, number: u32| {
        let step =
            serde_json::json!({"stepId": number, "stepType": "Wait", "concurrent": 1}).as_object().cloned().unwrap();
        let (event, timeout) = ("e".to_owned(), "7d".to_owned());
        let (headers, terms) = Default::default();
        world.wait(WaitFor { event, step, timeout, timeout_ms: 1_000, headers, terms }).unwrap()
    };
    assert_eq!(wait(&mut world, 1), Waited::Resolved);
    assert_eq!(wait(&mut world, 1), Waited::Resolved, "asking twice is asking once");
    assert_eq!(wait(&mut world, 2), Waited::Resolved);
    assert_eq!((wait(&mut world, 3), wait(&mut world, 3)), (Waited::Waiting, Waited::Waiting));
    assert_eq!(world.workflow.waits.len(), 1);
    let results = results(&world);
    assert_eq!((&results[&1]["out"], &results[&2]["out"]), (&base64(b"one").into(), &base64(b"two").into()));
}

#[test]
fn what_the_server_adds_has_the_room_of_its_run_and_no_more() {
    for (data, state) in [(&[0; 20][..], RunState::Started), (&[0; 500], RunState::Failed)] {
        let mut world = quiet(config());
        let step = serde_json::json!({"stepId": 1, "stepType": "Wait"}).as_object().cloned().unwrap();
        let (event, timeout, (headers, terms)) = ("e".to_owned(), "7d".to_owned(), Default::default());
        world.wait(WaitFor { event, step, timeout, timeout_ms: 1_000, headers, terms }).unwrap();
        world.decide(|workflow, out| {
            out.limits = Limits { bytes: 400, ..LIMITS };
            workflow.notify("e", data, out).unwrap();
        });
        assert_eq!(world.workflow.run.state, state, "{} bytes", data.len());
        if state == RunState::Failed {
            let error = world.workflow.run.failure.as_ref().and_then(|failure| failure.error.clone());
            assert_eq!(error.as_deref(), Some("quota maxWorkflowBytes exceeded, current limit: 400"));
            assert_eq!(
                (world.workflow.entries.len(), world.live.len()),
                (1, 0),
                "it is not kept, and nothing lives on"
            );
        }
    }
}

#[test]
fn a_call_that_fails_is_a_result_unless_it_must_not_be() {
    let call = |is_forgiven| {
        let call = posthaste_engine::workflow::entry::Call {
            url: "https://api.example.test".into(),
            method: "GET".into(),
            step: 1,
            is_forgiven,
            result_headers: Vec::new(),
            result_retries: Some(5),
        };
        NewEntry { call_type: CallType::ToCallback, retries: Some(2), call: Some(call), ..step("") }
    };
    let mut world = quiet(config());
    world.decide(|workflow, out| workflow.append(vec![call(true)], &LIMITS, out)).unwrap();
    let sent = world.live.values().last().unwrap().0.clone();
    assert_eq!((sent.spec.url.as_str(), sent.spec.method.as_str()), ("https://api.example.test", "GET"));
    assert!(!sent.spec.headers.iter().any(|(name, _)| name.contains("Workflow-Runid")), "it hears nothing of the run");
    world.attempted(1, unanswered(), 2, Next::DeadLetter);
    let told = &world.workflow.entries[2];
    assert_eq!((&told.terms.call_type, told.terms.retries), (&CallType::FromCallback, 5));
    let body: Value = serde_json::from_slice(world.record().body(told)).unwrap();
    assert_eq!(body["sourceBody"], base64(b"what was asked for"));
    assert_eq!((&body["status"], &body["retried"], &body["maxRetries"]), (&503.into(), &2.into(), &2.into()));
    assert_eq!(body["body"], base64(b"connection refused"));
    let mut world = quiet(config());
    world.decide(|workflow, out| workflow.append(vec![call(false)], &LIMITS, out)).unwrap();
    world.attempted(1, unanswered(), 2, Next::DeadLetter);
    assert_eq!(world.workflow.run.state, RunState::Failed);
}

#[test]
fn telling_of_a_failure_has_its_own_story() {
    let failure = FailureCall { url: "http://app:3000/failed".into(), retries: Some(1), ..FailureCall::default() };
    let mut world = quiet(RunConfig { failure: Some(failure), ..config() });
    world.attempted(0, answered(500), 3, Next::DeadLetter);
    let told = world.told_of_failure[0].clone();
    assert_eq!((told.spec.url.as_str(), told.spec.retries), ("http://app:3000/failed", 1));
    assert!(!told.spec.headers.iter().any(|(name, _)| name == "Upstash-Workflow-Sdk-Version"));
    assert!(told.body.is_empty(), "it is put together when it is sent");
    let told = world.record().failure_call().unwrap();
    assert!(world.workflow.failure_call_bytes() >= told.len() as u64);
    let body: Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(body["sourceBody"], base64(b"{\"order\":7}"));
    assert_eq!((&body["status"], &body["workflowRunId"]), (&500.into(), &"wfr_order-7".into()));
    let state = |world: &World| world.workflow.run.failure.as_ref().unwrap().call.as_ref().unwrap().state;
    let mut tell = |outcome: &Outcome, retried, next| {
        world.decide(|workflow, out| workflow.failure_told(Attempt { outcome, retried, next, sent: b"" }, out));
        world.crash();
        state(&world)
    };
    assert_eq!(tell(&answered(500), 0, Next::RetryAt(T0)), FailureCallState::InProgress);
    assert_eq!(tell(&answered(500), 1, Next::DeadLetter), FailureCallState::Failed);
    assert_eq!(tell(&answered(200), 1, Next::Done), FailureCallState::Failed, "it is over");
}

#[test]
fn an_endpoint_of_an_unknown_client_triggers_the_run_again_its_own_way() {
    let mut world = quiet(RunConfig { trigger: Trigger::UnknownClient, ..config() });
    let first = world.workflow.entries[0].id;
    let headers =
        vec![("X-User".to_owned(), "u".to_owned()), ("Upstash-Workflow-Sdk-Version".to_owned(), "1".to_owned())];
    let again = |world: &mut World| {
        let headers = headers.clone();
        world.decide(|workflow, out| {
            let body = Bytes::from_static(b"decoded");
            workflow.restart_by_client(body, "text/plain".into(), headers, Features::default(), out)
        })
    };
    assert!(again(&mut world));
    assert!(!again(&mut world), "once");
    world.crash();
    assert!(!world.live.contains_key(&first), "the first delivery is over");
    let (message, _) = world.live.values().next().unwrap();
    assert_eq!((header(message, "X-User"), header(message, "Content-Type")), ("u", "text/plain"));
    assert_eq!(&world.record().bodies[0][..], b"decoded");
    assert_eq!(world.workflow.entries.len(), 1);
}

#[test]
fn a_first_delivery_that_has_ended_is_not_withdrawn_once_more() {
    let mut world = quiet(RunConfig { trigger: Trigger::UnknownClient, ..config() });
    let answer = answered(200);
    let attempt = Attempt { outcome: &answer, retried: 0, next: Next::Done, sent: b"" };
    world.decide(|workflow, out| workflow.attempted(0, attempt, out));
    world.decide(|workflow, out| {
        let body = Bytes::from_static(b"decoded");
        assert!(workflow.restart_by_client(body, "text/plain".into(), Vec::new(), Features::default(), out));
        assert!(out.withdrawn.is_empty(), "it has no live row any more");
    });
}

#[test]
fn a_run_that_begins_again_keeps_how_it_was_triggered_and_what_sleeps_in_it() {
    let mut world = quiet(RunConfig { trigger: Trigger::UnknownClient, retries: 0, ..config() });
    let asleep = NewEntry { due: T0.plus_millis(86_400_000), ..step(r#"{"stepId":0,"targetStep":1,"concurrent":2}"#) };
    let awake = step(r#"{"stepId":0,"targetStep":2,"concurrent":2}"#);
    world.decide(|workflow, out| workflow.append(vec![asleep, awake], &LIMITS, out)).unwrap();
    let answer = answered(500);
    let attempt = Attempt { outcome: &answer, retried: 0, next: Next::DeadLetter, sent: b"" };
    world.decide(|workflow, out| workflow.attempted(2, attempt, out));
    let failed = world.record();
    let again = world.decide(|_, out| failed.resumed("wfr_2".into(), out.now, Overrides::default(), out));
    assert_eq!(again.run.config.trigger, Trigger::UnknownClient, "its endpoint will trigger it once more");
    let due: Vec<_> = again.entries.iter().skip(1).map(|entry| entry.delivery.due).collect();
    assert!(due[0] == T0.plus_millis(86_400_000) && due[1] < due[0], "{due:?}");
}
