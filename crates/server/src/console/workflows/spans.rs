//! When the steps of a run began and ended, as far as its log tells.

use super::data::{Run, Step};
use posthaste_api_types::workflow::StepState;
use posthaste_wire::duration::parse_duration;
use posthaste_wire::time::Timestamp;

/// The time of a step, in Unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The last attempt; its end is that of the step if it is not over.
    pub(super) attempt: Option<(u64, u64)>,
    /// When attempts failed.
    pub(super) failures: Vec<u64>,
}

/// The spans of all steps, by group.
pub(super) fn spans(run: &Run, now: Timestamp) -> Vec<Vec<Span>> {
    let bounds = (run.created_at, run.end(now));
    let mut before = run.created_at;
    let mut spans: Vec<Vec<Span>> = Vec::new();
    for group in &run.steps {
        let of_step = |step: &Step| span(step, falls_asleep(step, &group.kind), before, bounds);
        let of_group: Vec<Span> = group.steps.iter().map(of_step).collect();
        before = of_group.iter().map(|span| span.end).max().unwrap_or(before);
        spans.push(of_group);
    }
    for index in 0..spans.len() {
        let next = spans.get(index + 1).and_then(|group| group.iter().map(|span| span.start).min()).unwrap_or(bounds.1);
        let group = &run.steps[index];
        for (step, span) in group.steps.iter().zip(&mut spans[index]) {
            if falls_asleep(step, &group.kind) {
                // It lasted until its time, or until somebody ended it.
                span.end = planned_end(step).unwrap_or(next).min(next).max(span.start);
            }
        }
    }
    spans
}

/// The time of a whole group.
pub(super) fn of_group(spans: &[Span]) -> Option<(u64, u64)> {
    let start = spans.iter().map(|span| span.start).min()?;
    Some((start, spans.iter().map(|span| span.end).max()?))
}

/// Whether what the log tells of a sleep is when it began. A branch tells of it when it is over.
fn falls_asleep(step: &Step, kind: &str) -> bool {
    step.is_sleep() && kind != "parallel"
}

/// `before` is when the steps before it ended; the bounds are those of the run.
fn span(step: &Step, falls_asleep: bool, before: u64, (first, last): (u64, u64)) -> Span {
    let within = |at: u64| at.clamp(first, last);
    // What is done was told when it was done; all else when it began.
    let is_told_after = step.state == StepState::Success && !falls_asleep && !step.is_trigger();
    let (begun, ended) = if is_told_after { (None, step.created_at) } else { (step.created_at, None) };
    let execution = step.execution.as_ref();
    // The last attempt of a sleep in a branch comes after it.
    let attempted = execution.and_then(|execution| execution.started_at).filter(|_| falls_asleep || !step.is_sleep());
    let failures: Vec<u64> = step.errors.iter().map(|error| within(error.time)).collect();
    let known = [begun, attempted, failures.first().copied(), step.invoked_created_at];
    let start = within(known.into_iter().flatten().min().unwrap_or(before));
    let end = if step.is_trigger() { start } else { ended.map_or(last, within).max(start) };
    let attempt = attempted.map(|at| {
        let until = execution.and_then(|execution| execution.duration).map_or(end, |ms| at.saturating_add(ms));
        // What is done was told before its attempt was answered: that is no time of the step.
        (within(at).min(end), within(until).min(end))
    });
    Span { start, end, attempt, failures }
}

/// When a sleep is over that nobody ends.
fn planned_end(step: &Step) -> Option<u64> {
    let seconds = |text: &str| text.parse::<f64>().ok().map(|seconds| (seconds * 1_000.0) as u64);
    if let Some(until) = &step.sleep_until {
        return seconds(until);
    }
    let text = step.sleep_for.as_deref()?;
    step.created_at?.checked_add(seconds(text).or_else(|| parse_duration(text).ok())?)
}

/// How long an axis is.
pub(super) const WIDTH: u64 = 1_000;

/// Where a time is on an axis of [`WIDTH`] that begins and ends so.
pub(super) fn place(at: u64, (first, last): (u64, u64)) -> u64 {
    let length = u128::from(last.saturating_sub(first).max(1));
    let at = u128::from(at.saturating_sub(first)).min(length);
    u64::try_from(at * u128::from(WIDTH) / length).unwrap_or(WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(completed_at: Option<u64>, groups: Value) -> Run {
        let run = json!({
            "workflowRunId": "wfr_1", "workflowUrl": "http://app", "workflowState": "RUN_STARTED",
            "workflowRunCreatedAt": 1_000, "workflowRunCompletedAt": completed_at, "steps": groups,
        });
        serde_json::from_value(run).unwrap()
    }

    fn times(run: &Run, now: u64) -> Vec<Vec<(u64, u64)>> {
        let pairs = |group: &Vec<Span>| group.iter().map(|span| (span.start, span.end)).collect();
        spans(run, Timestamp(now)).iter().map(pairs).collect()
    }

    fn init() -> Value {
        let step = json!({ "stepType": "Initial", "state": "STEP_SUCCESS", "createdAt": 1_000 });
        json!({ "type": "sequential", "steps": [step] })
    }

    #[test]
    fn steps_follow_one_another_and_sleeps_last_until_their_time_or_the_next_step() {
        let step = |created: u64, started: u64| {
            json!({ "type": "sequential", "steps": [{ "stepId": 1, "state": "STEP_SUCCESS", "createdAt": created,
                "execution": { "attempts": 1, "startedAt": started, "duration": 40 } }] })
        };
        let sleep = |length: Value| {
            json!({ "type": "sequential", "steps": [{ "stepId": 2, "state": "STEP_SUCCESS", "createdAt": 1_300,
                "sleepFor": length, "execution": { "attempts": 1, "startedAt": 1_250 } }] })
        };
        let told =
            |length: Value| run(Some(9_000), json!([init(), step(1_200, 1_100), sleep(length), step(4_000, 3_500)]));
        let expected = vec![vec![(1_000, 1_000)], vec![(1_100, 1_200)], vec![(1_250, 3_300)], vec![(3_500, 4_000)]];
        for length in [json!(2), json!("2s"), json!(2.0)] {
            assert_eq!(times(&told(length.clone()), 99_000), expected, "{length}");
        }
        assert_eq!(times(&told(json!("1d")), 99_000)[2], [(1_250, 3_500)], "somebody ended it");
        assert_eq!(spans(&told(json!(2)), Timestamp(99_000))[1][0].attempt, Some((1_100, 1_140)));
        let answered_later = run(Some(9_000), json!([init(), step(1_110, 1_100)]));
        assert_eq!(
            spans(&answered_later, Timestamp(99_000))[1][0].attempt,
            Some((1_100, 1_110)),
            "as long as the step"
        );
        let asleep = json!({ "stepId": 1, "state": "STEP_PROGRESS", "createdAt": 1_300, "sleepFor": 60,
            "nextDeliveryTime": 61_300 });
        let asleep = run(None, json!([init(), { "type": "sequential", "steps": [asleep] }]));
        assert_eq!(times(&asleep, 5_000)[1], [(1_300, 5_000)]);
    }

    #[test]
    fn what_is_not_over_lasts_until_now_or_until_the_run_ended() {
        let next = json!({ "state": "STEP_RETRY", "errors": [{ "time": 1_500 }, { "time": 2_500 }],
            "execution": { "attempts": 2, "startedAt": 2_400, "duration": 100 } });
        let groups = json!([init(), { "type": "next", "steps": [next] }]);
        let told = run(None, groups.clone());
        let found = spans(&told, Timestamp(7_000));
        let expected = Span { start: 1_500, end: 7_000, attempt: Some((2_400, 2_500)), failures: vec![1_500, 2_500] };
        assert_eq!(found[1], [expected]);
        assert_eq!(times(&run(Some(3_000), groups), 7_000)[1], [(1_500, 3_000)]);
    }

    #[test]
    fn branches_are_told_of_when_they_are_over() {
        let branches = json!([
            { "stepId": 1, "state": "STEP_SUCCESS", "createdAt": 2_000, "execution": { "attempts": 1, "startedAt": 1_400 } },
            { "stepId": 2, "state": "STEP_SUCCESS", "createdAt": 3_000, "sleepFor": 2,
                "execution": { "attempts": 1, "startedAt": 2_990 } },
            { "stepId": 3, "state": "STEP_PROGRESS", "createdAt": 1_200, "waitEventId": "e" },
        ]);
        let told = run(None, json!([init(), { "type": "parallel", "steps": branches }]));
        assert_eq!(times(&told, 4_000)[1], [(1_400, 2_000), (1_000, 3_000), (1_200, 4_000)]);
        assert_eq!(of_group(&spans(&told, Timestamp(4_000))[1]), Some((1_000, 4_000)));
    }

    #[test]
    fn places_are_on_the_axis_whatever_the_times_are() {
        for (at, bounds, expected) in [
            (0, (0, 0), 0),
            (5, (0, 10), 500),
            (20, (0, 10), WIDTH),
            (3, (5, 10), 0),
            (u64::MAX, (0, u64::MAX), WIDTH),
            (9, (9, 4), 0),
        ] {
            assert_eq!(place(at, bounds), expected, "{at} of {bounds:?}");
        }
    }
}
