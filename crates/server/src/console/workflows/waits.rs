//! What a run waits for, in words.

use super::data::{Run, Step};
use crate::console::view::distance;
use posthaste_api_types::workflow::StepState;
use posthaste_wire::time::Timestamp;

/// Waits that are named if a run has several; the others are counted.
const NAMED_MAX: usize = 3;

/// What a run waits for now; nothing once it has ended. It completes "Waiting for …".
pub(super) fn waits_for(run: &Run, now: Timestamp) -> Option<String> {
    if !run.is_running() {
        return None;
    }
    let is_first = run.steps.len() <= 2;
    let of_group = |group: &super::data::Group| {
        let is_next = group.kind == "next";
        let parts = group.steps.iter().filter_map(|step| of_step(step, run, is_next && is_first, now));
        parts.collect::<Vec<_>>()
    };
    let all: Vec<String> = run.steps.iter().flat_map(of_group).collect();
    let named = all[..all.len().min(NAMED_MAX)].join("; ");
    Some(match all.len() {
        0 => "the program to run the next step or to return".to_owned(),
        1..=NAMED_MAX => named,
        many => format!("{named}; and {} more", many - NAMED_MAX),
    })
}

/// The events that it waits for.
pub(super) fn events(run: &Run) -> Vec<&str> {
    let steps = run.steps.iter().flat_map(|group| &group.steps);
    let waiting = steps.filter(|step| run.is_running() && step.state == StepState::Progress);
    waiting.filter_map(|step| step.wait_event_id.as_deref()).collect()
}

fn of_step(step: &Step, run: &Run, is_start: bool, now: Timestamp) -> Option<String> {
    let named = step.name().map_or("the next step".to_owned(), |name| format!("“{name}”"));
    let due = step.next_delivery_time.map(Timestamp);
    let later = due.filter(|due| *due > now).map(|due| distance(due, now));
    match step.state {
        StepState::Retry => {
            let attempt = step.errors.len() + 1;
            let last = step.errors.last().map(|error| format!(" (last: {})", error.in_words())).unwrap_or_default();
            let when = later.unwrap_or_else(|| "now".to_owned());
            Some(format!("attempt {attempt} of {named} {when}{last}"))
        }
        StepState::Progress => Some(match (step, later) {
            (Step { wait_event_id: Some(event), wait_timeout_deadline, .. }, _) => match wait_timeout_deadline {
                Some(deadline) => format!("event {event}, which times out {}", distance(Timestamp(*deadline), now)),
                None => format!("event {event}"),
            },
            (Step { invoked_id: Some(id), .. }, _) => format!("the invoked run {id} to end"),
            (step, Some(later)) if step.is_sleep() => format!("{named} to end {later}"),
            (_, Some(later)) if is_start => format!("its start {later}"),
            (_, Some(later)) => format!("{named}, which is due {later}"),
            (Step { call_url: Some(url), call_method, .. }, _) => {
                format!("the response to {} {url}", call_method.as_deref().unwrap_or("GET"))
            }
            (_, None) => match &run.flow_control_key {
                Some(key) => format!("the limits of key {key}, or the program to run {named}"),
                None => format!("the program to run {named}"),
            },
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_api_types::workflow::RunState;
    use serde_json::{Value, json};

    const NOW: Timestamp = Timestamp(1_000_000);

    fn run(groups: Value) -> Run {
        let run = json!({
            "workflowRunId": "wfr_1", "workflowUrl": "http://app", "workflowState": "RUN_STARTED",
            "workflowRunCreatedAt": 900_000, "steps": groups,
        });
        serde_json::from_value(run).unwrap()
    }

    fn words(groups: Value) -> String {
        waits_for(&run(groups), NOW).unwrap()
    }

    #[test]
    fn every_kind_of_waiting_has_its_words() {
        let one = |kind: &str, step: Value| {
            let init = json!({ "stepType": "Initial", "stepName": "init", "state": "STEP_SUCCESS" });
            json!([{ "type": "sequential", "steps": [init] }, { "type": kind, "steps": [step] }])
        };
        let cases = [
            ("next", json!({ "state": "STEP_PROGRESS" }), "the program to run the next step"),
            ("next", json!({ "state": "STEP_PROGRESS", "nextDeliveryTime": 1_060_000 }), "its start in 60 s"),
            (
                "next",
                json!({ "state": "STEP_RETRY", "stepName": "pay", "nextDeliveryTime": 1_012_000,
                    "errors": [{ "error": "500 Internal Server Error", "time": 1 }] }),
                "attempt 2 of “pay” in 12 s (last: 500 Internal Server Error)",
            ),
            (
                "sequential",
                json!({ "state": "STEP_PROGRESS", "stepName": "w", "waitEventId": "paid", "waitTimeoutDeadline": 1_030_000 }),
                "event paid, which times out in 30 s",
            ),
            (
                "sequential",
                json!({ "state": "STEP_PROGRESS", "stepName": "nap", "sleepFor": "1h", "nextDeliveryTime": 4_600_000 }),
                "“nap” to end in 1 h",
            ),
            (
                "sequential",
                json!({ "state": "STEP_PROGRESS", "stepName": "c", "callUrl": "http://x", "callMethod": "PUT" }),
                "the response to PUT http://x",
            ),
            (
                "sequential",
                json!({ "state": "STEP_PROGRESS", "stepName": "i", "invokedWorkflowRunId": "wfr_2" }),
                "the invoked run wfr_2 to end",
            ),
        ];
        for (kind, step, expected) in cases {
            assert_eq!(words(one(kind, step.clone())), expected, "{step}");
        }
    }

    #[test]
    fn of_many_waits_a_few_are_named() {
        let branch = |n: u32| json!({ "state": "STEP_PROGRESS", "stepName": format!("b{n}"), "stepType": "Run" });
        let groups = json!([{ "type": "parallel", "steps": (1..=5).map(branch).collect::<Vec<_>>() }]);
        assert_eq!(
            words(groups),
            "the program to run “b1”; the program to run “b2”; the program to run “b3”; and 2 more"
        );
        assert_eq!(words(json!([])), "the program to run the next step or to return");
        let ended = Run { state: RunState::Failed, ..run(json!([])) };
        assert_eq!(waits_for(&ended, NOW), None);
    }
}
