//! Lines of a log.

use super::story::{Story, T0, branch, config, plan, result, step, with_failure_function};
use crate::api::workflow::events::{Line, lines, tail};
use posthaste_engine::workflow::run::RunConfig;
use serde_json::{Value, json};

fn digest(story: &Story) -> Vec<String> {
    let line = |line: &Line| {
        let seconds = (line.object["time"].as_u64().unwrap() - T0.as_millis()) / 1_000;
        let name = line.object.get("stepInfo").and_then(|info| info["stepName"].as_str()).unwrap_or("");
        let text = format!("{seconds} {} {name}", line.state);
        text.trim_end().to_owned()
    };
    lines(&story.record(), story.view()).iter().map(line).collect()
}

#[test]
fn every_run_has_its_story() {
    let cases = [
        (
            "success",
            Story::new().does(0, result(1, "charge")).finishes(),
            vec!["0 RUN_STARTED", "0 STEP_SUCCESS init", "1 STEP_SUCCESS charge", "3 RUN_SUCCESS"],
        ),
        (
            "failure",
            Story::new().stumbles(0).fails(0),
            vec!["0 RUN_STARTED", "0 STEP_SUCCESS init", "1 STEP_RETRY ship", "2 STEP_FAILED ship", "2 RUN_FAILED"],
        ),
        (
            "branches",
            Story::new().publishes(&[plan(1, "a", "Run"), plan(2, "b", "Run")]).does(2, branch(2, "b")).canceled(),
            vec![
                "0 RUN_STARTED",
                "0 STEP_SUCCESS init",
                "1 STEP_PROGRESS a",
                "1 STEP_PROGRESS b",
                "2 STEP_SUCCESS b",
                "4 STEP_CANCELED a",
                "4 RUN_CANCELED",
            ],
        ),
        (
            "a call",
            Story::new().calls(1, "ship", 1, true).answers(0).stumbles(1).answers(1).does(2, step(1, "ship", "Call")),
            vec![
                "0 RUN_STARTED",
                "0 STEP_SUCCESS init",
                "1 STEP_PROGRESS ship",
                "3 STEP_RETRY ship",
                "5 STEP_SUCCESS ship",
            ],
        ),
        (
            "a wait",
            Story::new().waits(step(1, "approval", "Wait"), "approved").notified("approved"),
            vec!["0 RUN_STARTED", "0 STEP_SUCCESS init", "1 STEP_PROGRESS approval", "2 STEP_SUCCESS approval"],
        ),
        (
            "a nap that is over",
            Story::new().publishes_for_later(&[step(1, "nap", "SleepFor")], 5_000).wait_ms(60_000),
            vec!["0 RUN_STARTED", "0 STEP_SUCCESS init", "1 STEP_PROGRESS nap", "6 STEP_SUCCESS nap"],
        ),
        (
            "a nap",
            Story::new().publishes_for_later(&[step(1, "nap", "SleepFor")], 5_000),
            vec!["0 RUN_STARTED", "0 STEP_SUCCESS init", "1 STEP_PROGRESS nap"],
        ),
    ];
    for (name, story, expected) in cases {
        assert_eq!(digest(&story), expected, "{name}");
    }
}

#[test]
fn lines_tell_what_they_are_about() {
    let config = RunConfig { labels: vec!["a".into()], ..with_failure_function() };
    let story = Story::with(config).stumbles(0).fails(0);
    let lines = lines(&story.record(), story.view());
    let first = story.workflow.entries[0].id;
    assert_eq!(
        lines.iter().map(|line| line.message).collect::<Vec<_>>(),
        [None, Some(first), Some(first), Some(first), None]
    );
    let headers = json!({ "Content-Type": ["application/json"], "Upstash-Workflow-Sdk-Version": ["1"] });
    assert_eq!(lines[0].object["headers"], headers, "those of the trigger");
    let failed: Value = lines[3].object.clone().into();
    assert_eq!(failed["error"], "500 Internal Server Error");
    assert_eq!((&failed["responseStatus"], &failed["responseBody"]), (&json!(500), &json!("boom")));
    assert_eq!((&failed["stepInfo"]["messageId"], &failed["label"]), (&json!(first.to_string()), &json!("a")));
    let end: Value = lines[4].object.clone().into();
    assert_eq!(end["dlqId"], story.workflow.run.failure.as_ref().unwrap().dlq_id.to_string());
    assert_eq!(end["workflowRunId"], "wfr_order-7");
    assert_eq!(end["callerIp"], "10.0.0.4");
    let finished = Story::with(self::config()).finishes();
    let lines = self::lines(&finished.record(), finished.view());
    assert_eq!(lines.last().unwrap().object["workflowRunResponse"], "\"ok\"");
}

#[test]
fn only_the_line_of_a_result_shows_it() {
    let story = Story::new().publishes(&[plan(1, "a", "Run"), plan(2, "b", "Run")]).stumbles(1).does(1, branch(1, "a"));
    let entries = &story.workflow.entries;
    let lines = lines(&story.record(), story.view());
    let told = lines.iter().filter(|line| line.object.get("stepInfo").is_some_and(|info| info["stepName"] == "a"));
    let told: Vec<_> =
        told.map(|line| (line.state, line.message, line.object["stepInfo"].get("out").cloned())).collect();
    let (planned, brought) = (Some(entries[1].id), Some(entries[3].id));
    let expected = [
        ("STEP_PROGRESS", planned, None),
        ("STEP_RETRY", planned, None),
        ("STEP_SUCCESS", brought, Some(json!("\"a\""))),
    ];
    assert_eq!(told, expected);
}

#[test]
fn pages_go_from_the_newest_line_to_the_oldest() {
    let story = Story::new().does(0, result(1, "a")).does(1, result(2, "b")).finishes();
    let all = || lines(&story.record(), story.view());
    let (mut left, mut seen) = (usize::MAX, Vec::new());
    loop {
        let page = tail(all(), left, 2, |_| true);
        seen.extend(page.lines);
        left = page.left;
        if left == 0 {
            break;
        }
    }
    let expected: Vec<Value> = all().into_iter().rev().map(|line| line.object.into()).collect();
    assert_eq!(seen, expected);
    let steps = tail(all(), usize::MAX, 10, |line| line.state == "STEP_SUCCESS");
    assert_eq!((steps.lines.len(), steps.left), (3, 0));
}
