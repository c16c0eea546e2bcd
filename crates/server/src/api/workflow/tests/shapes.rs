//! The fields of runs, steps and failed runs.

use super::story::{Story, T0, URL, branch, config, mark, plan, result, step, with_failure_function};
use crate::api::workflow::shape::{self, View};
use posthaste_engine::message::FlowSpec;
use posthaste_engine::outcome::ErrorClass;
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::run::{FailureCall, Invoker, RunConfig, StepText};
use posthaste_wire::redact::RedactFields;
use serde_json::{Value, json};

const DEFAULT_DELAY: &str = "min(86400000, 1000 * exp(2.5 * (retried + 1)))";

/// The only step of a group.
fn only(log: &Value, group: usize) -> &Value {
    assert_eq!(log["steps"][group]["steps"].as_array().map(Vec::len), Some(1), "{log}");
    &log["steps"][group]["steps"][0]
}

fn at(seconds: u64) -> u64 {
    T0.as_millis() + seconds * 1_000
}

#[test]
fn a_run_that_failed_at_its_second_step() {
    let headers = vec![("X-Tenant".to_owned(), "t1".to_owned())];
    let story = Story::with(RunConfig { headers, ..with_failure_function() });
    let story = story.does(0, result(1, "charge")).stumbles(1).fails(1).told(200, Next::Done);
    let ids: Vec<String> = story.workflow.entries.iter().map(|entry| entry.id.to_string()).collect();
    let failure = story.workflow.run.failure.as_ref().unwrap();
    let told = failure.call.as_ref().unwrap().id.to_string();
    let error = |seconds| {
        let headers = json!({ "Upstash-Error-Step-Name": ["ship"] });
        json!({ "error": "500 Internal Server Error", "status": 500, "headers": headers, "body": "boom", "time": at(seconds) })
    };
    let expected = json!({
        "workflowRunId": "wfr_order-7",
        "workflowUrl": URL,
        "workflowState": "RUN_FAILED",
        "workflowRunCreatedAt": at(0),
        "workflowRunCompletedAt": at(4),
        "workflowRunCallerIp": "10.0.0.4",
        "dlqId": failure.dlq_id.to_string(),
        "steps": [
            { "type": "sequential", "steps": [{
                "stepName": "init",
                "stepType": "Initial",
                "callType": "step",
                "concurrent": 1,
                "messageId": ids[0],
                "out": "{\"order\":7}",
                "state": "STEP_SUCCESS",
                "retries": 1,
                "retryDelay": DEFAULT_DELAY,
                "createdAt": at(0),
                "headers": {
                    "Content-Type": ["application/json"],
                    "Upstash-Workflow-Sdk-Version": ["1"],
                    "X-Tenant": ["t1"],
                },
            }] },
            { "type": "sequential", "steps": [{
                "stepId": 1,
                "stepName": "charge",
                "stepType": "Run",
                "callType": "step",
                "concurrent": 1,
                "messageId": ids[1],
                "out": "charge is done",
                "state": "STEP_SUCCESS",
                "retries": 1,
                "retryDelay": DEFAULT_DELAY,
                "createdAt": at(1),
                "headers": {},
                "execution": { "attempts": 1, "startedAt": at(2) - 3, "duration": 3 },
            }] },
            { "type": "next", "steps": [{
                "messageId": ids[1],
                "stepName": "ship",
                "state": "STEP_FAILED",
                "retries": 1,
                "retryDelay": DEFAULT_DELAY,
                "errors": [error(3), error(4)],
                "execution": { "attempts": 2, "startedAt": at(4) - 3, "duration": 3 },
            }] },
        ],
        "failureFunction": {
            "messageId": told,
            "url": URL,
            "state": "CALLBACK_SUCCESS",
            "failStatus": 500,
            "failResponse": "boom",
            "failHeaders": { "Upstash-Error-Step-Name": ["ship"] },
            "dlqId": failure.dlq_id.to_string(),
            "maxRetries": 1,
            "responseStatus": 200,
            "responseHeaders": {},
            "responseBody": "{\"result\":\"cleaned\"}",
        },
    });
    assert_eq!(story.log(), expected);
}

#[test]
fn every_step_tells_how_often_it_was_tried() {
    let attempts = |story: &Story| {
        let log = story.log();
        let steps = log["steps"].as_array().unwrap().iter().flat_map(|group| group["steps"].as_array().unwrap());
        let told = |step: &Value| {
            let errors = step["errors"].as_array().map_or(0, Vec::len);
            (step["execution"]["attempts"].as_u64().unwrap_or(0), errors)
        };
        steps.skip(1).map(told).collect::<Vec<_>>()
    };
    let planned = || Story::new().publishes(&[plan(1, "a", "Run"), plan(2, "ship", "Call")]).answers(0);
    let cases = [
        ("not tried yet", Story::new(), vec![(0, 0)]),
        ("to be tried again", Story::new().stumbles(0), vec![(1, 1)]),
        ("done, but not answered", Story::new().publishes(&[result(1, "a")]), vec![(1, 0), (0, 0)]),
        ("done the second time", Story::new().stumbles(0).does(0, result(1, "a")), vec![(2, 1), (0, 0)]),
        ("a branch that is not executed yet", planned(), vec![(0, 0), (0, 0)]),
        ("a branch that is done", planned().stumbles(1).does(1, branch(1, "a")), vec![(2, 1), (0, 0)]),
        (
            "the call of a branch",
            planned().stumbles(2).calls(2, "ship", 2, true).answers(2).stumbles(3).answers(3),
            vec![(0, 0), (2, 1)],
        ),
        ("a call that was asked for", Story::new().calls(1, "ship", 1, true).answers(0), vec![(0, 0)]),
        ("a wait", Story::new().stumbles(0).waits(step(1, "w", "Wait"), "e").answers(0), vec![(2, 1)]),
        ("an invoke", Story::new().stumbles(0).invokes(step(1, "i", "Invoke")).answers(0), vec![(2, 1)]),
        (
            "a wait that is over",
            Story::new().stumbles(0).waits(step(1, "w", "Wait"), "e").answers(0).notified("e"),
            vec![(2, 1), (0, 0)],
        ),
        (
            "a step behind branches",
            planned().does(1, branch(1, "a")).does(2, branch(2, "b")).stumbles(4).does(4, result(3, "c")),
            vec![(1, 0), (1, 0), (2, 1), (0, 0)],
        ),
    ];
    for (name, story, expected) in cases {
        assert_eq!(attempts(&story), expected, "{name}");
    }
    let unanswered = Story::new().publishes(&[result(1, "a")]).finishes().log();
    assert_eq!(only(&unanswered, 1)["execution"], json!({ "attempts": 1, "startedAt": at(0) }));
}

#[test]
fn a_run_that_goes_on_tells_when_it_is_tried_next() {
    let story = Story::new().stumbles(0);
    let next = only(&story.log(), 1).clone();
    assert_eq!(next["nextDeliveryTime"], story.now.as_millis() + 60_000);
    assert_eq!((&next["state"], &next["stepName"]), (&json!("STEP_RETRY"), &json!("ship")));
    assert_eq!(story.log()["workflowRunCompletedAt"], Value::Null);
}

#[test]
fn a_delay_is_told_unless_there_are_no_retries() {
    let none = Story::with(RunConfig { retries: 0, ..config() }).log();
    let own = Story::with(RunConfig { retry_delay: Some("1000 * retried".into()), ..config() }).log();
    for group in [0, 1] {
        assert_eq!(only(&none, group).get("retryDelay"), None);
        assert_eq!(only(&none, group)["retries"], 0);
        assert_eq!(only(&own, group)["retryDelay"], "1000 * retried");
    }
}

#[test]
fn a_successful_run_shows_what_it_returned_and_who_invoked_it() {
    let invoker = Invoker {
        run_id: "wfr_parent".into(),
        created_at: Some(T0),
        url: "http://app:3000/api/parent".into(),
        step: StepText::new(),
        headers: Vec::new(),
        terms: Default::default(),
    };
    let flow = FlowSpec { key: "mail".into(), parallelism: Some(2), rate: None, period_ms: 1_000 };
    let config = RunConfig { labels: vec!["a".into(), "b".into()], flow: Some(flow), ..config() };
    let log = Story::invoked(config, Some(invoker)).finishes().log();
    assert_eq!(log["workflowState"], "RUN_SUCCESS");
    assert_eq!(log["workflowRunResponse"], "\"ok\"");
    assert_eq!(log["flowControlKey"], "mail");
    assert_eq!((&log["label"], &log["labels"]), (&json!("a"), &json!(["a", "b"])));
    let parent = json!({
        "workflowRunId": "wfr_parent",
        "workflowUrl": "http://app:3000/api/parent",
        "workflowRunCreatedAt": T0.as_millis(),
    });
    assert_eq!(log["invoker"], parent);
    assert_eq!(log.get("failureFunction"), None);
}

#[test]
fn a_non_workflow_is_named_in_the_first_error() {
    let log = Story::new().answers_like_a_stranger(0).log();
    let error = &only(&log, 1)["errors"][0];
    let text = "detected a non-workflow destination for trigger/invoke. make sure you are sending the request to the \
                correct endpoint";
    assert_eq!((&error["error"], &error["body"]), (&json!(text), &json!("hello")));
}

#[test]
fn a_bound_that_was_reached_is_named() {
    let log = Story::new().does(0, result(1, "charge")).overflows().log();
    let error = &only(&log, 2)["errors"][0];
    assert_eq!(error["error"], "quota maxWorkflowSteps exceeded, current limit: 20");
    assert_eq!(error["time"], log["workflowRunCompletedAt"]);
}

#[test]
fn sleeps_are_told_as_they_were_asked_for() {
    let mut nap = step(1, "nap", "SleepFor");
    nap["sleepFor"] = 5.into();
    let story = Story::new().publishes_for_later(&[nap], 5_000);
    let log = story.log();
    let shown = only(&log, 1);
    assert_eq!((&shown["sleepFor"], &shown["state"]), (&json!(5), &json!("STEP_PROGRESS")));
    assert_eq!(shown["nextDeliveryTime"], story.now.as_millis() + 5_000);
    let mut until = step(1, "nap", "SleepUntil");
    until["sleepUntil"] = json!(1_800_000_000.7);
    let log = Story::new().publishes(&[until]).log();
    assert_eq!(only(&log, 1)["sleepUntil"], 1_800_000_000.7);
}

#[test]
fn calls_are_told_with_what_came_of_them() {
    let called = Story::new().calls(1, "ship", 1, true).answers(0);
    let log = called.log();
    let shown = only(&log, 1);
    let expected = json!({
        "stepId": 1,
        "stepName": "ship",
        "stepType": "Call",
        "callType": "toCallback",
        "concurrent": 1,
        "messageId": called.workflow.entries[1].id.to_string(),
        "state": "STEP_PROGRESS",
        "retries": 2,
        "retryDelay": DEFAULT_DELAY,
        "createdAt": T0.as_millis() + 1_000,
        "headers": { "Authorization": ["Bearer key"] },
        "callUrl": "https://api.example.test/charge",
        "callMethod": "PUT",
        "callHeaders": { "Authorization": ["Bearer key"] },
        "callBody": "{\"amount\":5}",
    });
    assert_eq!(*shown, expected);
    let mut result = step(1, "ship", "Call");
    result["out"] = r#"{"status":200}"#.into();
    let called = called.answers(1).stumbles(2);
    let retried = &called.log()["steps"][1]["steps"][0];
    assert_eq!(retried["state"], "STEP_RETRY");
    let answer = called.workflow.entries[2].id.to_string();
    assert_eq!(retried["messageId"], answer, "the delivery that is tried again, which may be tried now");
    let log = called.answers(2).does(2, result).log();
    let shown = only(&log, 1);
    assert_eq!(shown["callType"], "step");
    assert_eq!(shown["callResponseStatus"], 200);
    assert_eq!(shown["callResponseBody"], "{}");
    assert_eq!(shown["callResponseHeaders"], json!({ "Upstash-Workflow-Sdk-Version": ["1"] }));
    assert_eq!(shown["callUrl"], "https://api.example.test/charge");
    assert_eq!(shown["out"], r#"{"status":200}"#);
}

#[test]
fn waits_are_told_also_when_they_are_over() {
    let waiting = || Story::new().waits(step(1, "approval", "Wait"), "approved");
    let deadline = T0.as_millis() + 11_000;
    for (story, timed_out, out) in [
        (waiting(), false, None),
        (waiting().notified("approved"), false, Some("InllcyI=")),
        (waiting().timed_out(), true, None),
    ] {
        let log = story.log();
        let shown = only(&log, 1);
        assert_eq!(shown["waitEventId"], "approved");
        assert_eq!(shown["waitTimeoutDuration"], "10s");
        assert_eq!(shown["waitTimeoutDeadline"], deadline);
        assert_eq!(shown["waitTimeout"], timed_out);
        assert_eq!(shown.get("out").and_then(Value::as_str), out);
        assert!(shown["messageId"].as_str().unwrap().starts_with("msg_"));
    }
    let mut wait = plan(2, "approval", "Wait");
    wait["waitEventId"] = "approved".into();
    wait["timeout"] = "5m".into();
    let log = Story::new().publishes(&[plan(1, "a", "Run"), wait]).log();
    let shown = &log["steps"][1]["steps"][1];
    assert_eq!((&shown["stepId"], &shown["waitTimeoutDuration"]), (&json!(2), &json!("5m")));
    assert_eq!(shown.get("targetStep"), None);
}

#[test]
fn invokes_are_told_also_when_they_are_over() {
    let child = || step(1, "child", "Invoke");
    let invoked = || Story::new().invokes(child());
    let out = r#"{"body":"7","isCanceled":false,"isFailed":false}"#;
    for (story, out) in [
        (invoked(), None),
        (invoked().child_ends(child()), Some(out)),
        (invoked().fails(0).child_ends(child()), Some(out)),
    ] {
        let log = story.log();
        let shown = only(&log, 1);
        assert_eq!(shown["invokedWorkflowRunId"], "wfr_child");
        assert_eq!(shown["invokedWorkflowUrl"], "http://app:3000/api/child");
        assert_eq!(shown["invokedWorkflowCreatedAt"], T0.as_millis() + 1_000);
        assert_eq!(shown["invokedWorkflowRunBody"], "{\"doc\":42}");
        assert_eq!(shown["invokedWorkflowRunHeaders"], json!({ "X-Child": ["c"] }));
        assert_eq!(shown.get("out").and_then(Value::as_str), out);
        assert!(shown["messageId"].as_str().is_some_and(|id| id.starts_with("msg_")), "{shown}");
    }
}

#[test]
fn what_an_invoked_run_hides_its_invoker_hides_too() {
    let redact = || RedactFields::parse("body,header[X-Child]").unwrap();
    let child = || step(2, "child", "Invoke");
    let invoked = || Story::new().does(0, result(1, "charge")).invokes_hiding(child(), redact());
    let out = r#"{"body":"7","isCanceled":false,"isFailed":false}"#;
    for story in [invoked(), invoked().child_ends(child()), invoked().fails(1).child_ends(child())] {
        let log = story.log();
        let shown = only(&log, 2);
        assert_eq!(shown["invokedWorkflowRunBody"], mark(b"{\"doc\":42}"));
        assert_eq!(shown["invokedWorkflowRunHeaders"], json!({ "X-Child": [mark(b"c")] }));
        let told = shown.get("out").and_then(Value::as_str);
        assert!(told.is_none_or(|told| told == mark(out.as_bytes())), "{shown}");
        assert_eq!(only(&log, 1)["out"], "charge is done", "what is its own is shown");
    }
}

#[test]
fn telling_of_a_failure_is_shown_at_every_stage() {
    let failed = || Story::with(with_failure_function()).fails(0);
    let later = Next::RetryAt(T0.plus_millis(90_000));
    for (story, state, errors) in [
        (failed(), "CALLBACK_INPROGRESS", 0),
        (failed().told(500, later), "CALLBACK_INPROGRESS", 1),
        (failed().told(500, later).told(500, Next::DeadLetter), "CALLBACK_FAIL", 2),
        (failed().told(500, later).told(200, Next::Done), "CALLBACK_SUCCESS", 1),
    ] {
        let log = story.log();
        let call = &log["failureFunction"];
        assert_eq!(call["state"], state);
        assert_eq!(call["errors"].as_array().map_or(0, Vec::len), errors, "{call}");
        assert_eq!(call.get("nextDeliveryTime").is_some(), state == "CALLBACK_INPROGRESS");
        let letter = story.letter().unwrap();
        assert_eq!(
            (&letter["failureFunctionState"], &letter["failureCallbackInfo"]["state"]),
            (&call["state"], &call["state"])
        );
    }
    assert_eq!(Story::new().fails(0).log().get("failureFunction"), None);
}

#[test]
fn the_dlq_shows_the_trigger_and_the_last_answer() {
    let flow = FlowSpec { key: "mail".into(), parallelism: Some(2), rate: Some(3), period_ms: 60_000 };
    let headers = vec![("X-Tenant".to_owned(), "t1".to_owned())];
    let config = RunConfig { labels: vec!["a".into()], flow: Some(flow), headers, ..with_failure_function() };
    let story = Story::with(config).does(0, result(1, "charge")).fails(1);
    let at = |seconds: u64| T0.as_millis() + seconds * 1_000;
    let expected = json!({
        "dlqId": story.workflow.run.failure.as_ref().unwrap().dlq_id.to_string(),
        "messageId": story.workflow.entries[1].id.to_string(),
        "url": URL,
        "method": "POST",
        "header": {
            "Content-Type": ["application/json"],
            "Upstash-Workflow-Sdk-Version": ["1"],
            "X-Tenant": ["t1"],
        },
        "body": "{\"order\":7}",
        "maxRetries": 1,
        "notBefore": at(1),
        "createdAt": at(1),
        "callerIP": "10.0.0.4",
        "workflowRunId": "wfr_order-7",
        "workflowCreatedAt": at(0),
        "workflowUrl": URL,
        "responseStatus": 500,
        "responseHeader": { "Upstash-Error-Step-Name": ["ship"] },
        "responseBody": "boom",
        "failureCallback": "http://app:3000/failed",
        "failureCallbackHeader": {},
        "failureFunctionState": "CALLBACK_INPROGRESS",
        "failureCallbackInfo": { "state": "CALLBACK_INPROGRESS" },
        "label": "a",
        "labels": ["a"],
        "flowControlKey": "mail",
        "parallelism": 2,
        "rate": 3,
        "period": 60,
    });
    assert_eq!(story.letter(), Some(expected));
    assert_eq!(Story::new().letter(), None);
}

#[test]
fn no_answer_has_a_status_and_its_words() {
    for (class, status) in [(ErrorClass::Connect, 503), (ErrorClass::Timeout, 504)] {
        let story = Story::with(with_failure_function()).fails_unanswered(0, class);
        let letter = story.letter().unwrap();
        assert_eq!((&letter["responseStatus"], &letter["responseBody"]), (&json!(status), &json!("nobody there")));
        let log = story.log();
        assert_eq!(log["failureFunction"]["failStatus"], status);
        assert_eq!(log["failureFunction"]["failResponse"], "nobody there");
        let error = &only(&log, 1)["errors"][0];
        assert_eq!((&error["error"], &error["status"]), (&json!("nobody there"), &json!(0)));
    }
}

#[test]
fn who_hears_of_a_failure_may_hide_more_than_the_run() {
    let failure = FailureCall {
        url: "http://app:3000/failed".into(),
        headers: vec![("X-Key".to_owned(), "secret".to_owned()), ("X-A".to_owned(), "a".to_owned())],
        redact: RedactFields::parse("header[X-Key]").unwrap(),
        ..FailureCall::default()
    };
    let letter = Story::with(RunConfig { failure: Some(failure), ..config() }).fails(0).letter().unwrap();
    assert_eq!(letter["failureCallbackHeader"], json!({ "X-Key": [mark(b"secret")], "X-A": ["a"] }));
}

#[test]
fn what_a_run_asks_to_hide_is_hidden_everywhere() {
    let redact = RedactFields::parse("body,header[Authorization]").unwrap();
    let headers = vec![("Authorization".to_owned(), "Bearer secret".to_owned()), ("X-A".to_owned(), "a".to_owned())];
    let config = RunConfig { redact, headers, ..with_failure_function() };
    let story = Story::with(config)
        .does(0, result(1, "charge"))
        .calls(2, "ship", 1, true)
        .answers(1)
        .answers(2)
        .does(3, step(2, "ship", "Call"))
        .invokes(step(3, "child", "Invoke"));
    let log = story.log();
    let first = only(&log, 0);
    assert_eq!(first["out"], mark(b"{\"order\":7}"));
    assert_eq!(first["headers"]["Authorization"], json!([mark(b"Bearer secret")]));
    assert_eq!(first["headers"]["X-A"], json!(["a"]));
    assert_eq!(only(&log, 1)["out"], mark(b"charge is done"));
    let call = only(&log, 2);
    assert_eq!(call["callBody"], mark(b"{\"amount\":5}"));
    assert_eq!(call["callResponseBody"], mark(b"{}"));
    assert_eq!(call["callHeaders"]["Authorization"], json!([mark(b"Bearer key")]));
    assert_eq!(only(&log, 3)["invokedWorkflowRunBody"], mark(b"{\"doc\":42}"));
    let failed = story.fails(4);
    let letter = failed.letter().unwrap();
    assert_eq!(letter["body"], mark(b"{\"order\":7}"));
    assert_eq!(letter["header"]["Authorization"], json!([mark(b"Bearer secret")]));
    for text in [failed.log().to_string(), letter.to_string()] {
        assert!(!text.contains("Bearer") && !text.contains("order\\\"") && !text.contains("is done"), "{text}");
    }
}

#[test]
fn bodies_are_cut_or_left_out_as_asked() {
    let story = Story::new().does(0, result(1, "größe")).finishes();
    let view = |trim_body| View { trim_body, ..story.view() };
    let cut = shape::run(&story.record(), view(Some(4)));
    assert_eq!(only(&cut, 0)["out"], "{\"or");
    assert_eq!(only(&cut, 1)["out"], "gr\u{f6}", "not within a character");
    assert_eq!(cut["workflowRunResponse"], "\"ok\"");
    let none = shape::run(&story.record(), view(Some(0)));
    assert_eq!(only(&none, 0).get("out"), None);
    assert_eq!(none.get("workflowRunResponse"), None);
}
