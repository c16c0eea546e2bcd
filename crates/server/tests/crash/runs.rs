//! What runs of workflows promise: each ends as its function does, and no step is executed again whose result was
//! accepted. Pure.

use crate::checker::Violation;
use crate::endpoint::{Script, run_id};
use crate::history::{Answer, Execution, History, Micros, Start};
use std::collections::HashMap;

const STARTED: &str = "RUN_STARTED";
const SUCCESS: &str = "RUN_SUCCESS";
const FAILED: &str = "RUN_FAILED";
const CANCELED: &str = "RUN_CANCELED";

pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut executed: HashMap<&str, Vec<&Execution>> = HashMap::new();
    for execution in &history.executions {
        executed.entry(&execution.key).or_default().push(execution);
    }
    for start in &history.runs {
        let executions = executed.remove(start.key.as_str()).unwrap_or_default();
        violations.extend(check_run(history, start, &executions));
    }
    violations.extend(executed.keys().map(|key| Violation::Phantom((*key).to_owned())));
    violations.extend(history.corrupt_runs.iter().map(|key| Violation::Corrupt(key.clone())));
    violations
}

/// How many runs have returned.
pub(crate) fn count(history: &History) -> usize {
    history.run_states.values().filter(|states| states.iter().any(|state| state == SUCCESS)).count()
}

fn check_run(history: &History, start: &Start, executions: &[&Execution]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut complain = |violation: fn(String) -> Violation| violations.push(violation(start.key.clone()));
    if matches!(start.answer, Answer::Unexpected(_)) {
        complain(Violation::Unexpected);
    }
    for execution in executions {
        let accepted = accepted_us(history, executions, execution.step);
        if accepted.is_some_and(|accepted_us| execution.began_us > accepted_us) {
            complain(Violation::ExecutedAgain);
            break;
        }
    }
    let states = history.run_states.get(&run_id(&start.key)).map_or(&[][..], Vec::as_slice);
    let is_known = matches!(start.answer, Answer::Acknowledged { .. });
    let count = |number: u32| executions.iter().filter(|execution| execution.step == number).count();
    let may_be_cancelled = history.run_cancels.contains(&start.key);
    match states.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] if is_known => complain(Violation::Lost),
        [] => {}
        [STARTED] => complain(Violation::Unended),
        [CANCELED] if may_be_cancelled => {}
        [SUCCESS] if start.script != Script::Broken => {
            if !start.script.steps().all(|(number, _)| count(number) > 0) {
                complain(Violation::StepLost);
            }
            if !history.finished.contains_key(&start.key) {
                complain(Violation::WrongEnd);
            }
        }
        [FAILED] if start.script == Script::Broken => {
            // A server that has just started may not hear from the endpoint yet: then the step before is given up as well.
            let last = executions.iter().map(|execution| execution.step).max().unwrap_or(0);
            if count(last) <= start.script.retries() as usize {
                complain(Violation::GaveUpEarly);
            }
            if !history.told_of_failure.contains(&start.key) {
                complain(Violation::CallbackLost);
            }
        }
        _ => complain(Violation::WrongEnd),
    }
    let is_finished = history.finished.get(&start.key).copied().flatten().is_some_and(|at| has_power(history, at));
    if is_finished && !states.iter().any(|state| state == SUCCESS) && !may_be_cancelled {
        complain(Violation::WrongEnd);
    }
    violations
}

/// When the server had accepted the result of a step, as far as that means something.
fn accepted_us(history: &History, executions: &[&Execution], step: u32) -> Option<Micros> {
    let accepted = executions.iter().filter(|execution| execution.step == step);
    accepted.filter_map(|execution| execution.accepted_us).filter(|at_us| has_power(history, *at_us)).min()
}

fn has_power(history: &History, at_us: Micros) -> bool {
    history.had_power(at_us / 1_000, at_us / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Void;

    fn execution(key: &str, step: u32, began_us: Micros, accepted_us: Option<Micros>) -> Execution {
        Execution { key: key.to_owned(), step, began_us, accepted_us }
    }

    /// One run of each kind of end; a step of `steps` was executed twice, because nobody knew of the first time.
    fn sound() -> History {
        let start = |key: &str, script| {
            let answer = Answer::Acknowledged { id: format!("msg_{key}") };
            Start { key: key.to_owned(), script, sent_at: 1, answered_at: 2, answer }
        };
        let unknown = Start { answer: Answer::Unknown, ..start("unknown", Script::Nap) };
        let state = |key: &str, state: &str| (run_id(key), vec![state.to_owned()]);
        History {
            runs: vec![
                start("steps", Script::Steps),
                start("broken", Script::Broken),
                start("refused", Script::Broken),
                start("cancelled", Script::Wait),
                unknown,
            ],
            run_states: [
                state("steps", SUCCESS),
                state("broken", FAILED),
                state("refused", FAILED),
                state("cancelled", CANCELED),
            ]
            .into(),
            run_cancels: ["cancelled".to_owned()].into(),
            executions: vec![
                execution("steps", 1, 10_000, None),
                execution("steps", 1, 20_000, Some(21_000)),
                execution("steps", 2, 22_000, Some(23_000)),
                execution("steps", 3, 24_000, Some(25_000)),
                execution("refused", 1, 10_000, None),
                execution("refused", 1, 70_000, None),
                execution("broken", 1, 10_000, Some(11_000)),
                execution("broken", 2, 12_000, None),
                execution("broken", 2, 70_000, None),
            ],
            finished: [("steps".to_owned(), Some(26_000))].into(),
            told_of_failure: ["broken".to_owned(), "refused".to_owned()].into(),
            ..History::default()
        }
    }

    #[test]
    fn every_kind_of_fault_is_seen() {
        assert_eq!(check(&sound()), []);
        assert_eq!(count(&sound()), 1);
        type Plant = fn(&mut History);
        let again = execution("steps", 2, 23_001, None);
        let mut repeated = sound();
        repeated.executions.push(again);
        assert_eq!(check(&repeated), [Violation::ExecutedAgain("steps".to_owned())]);
        repeated.voids.push(Void { cut: (23, 23), gone_us: 23_500 });
        assert_eq!(check(&repeated), [], "without power it could not have been accepted");
        let cases: [(Plant, Violation); 12] = [
            (|h| drop(h.run_states.remove(&run_id("steps"))), Violation::Lost("steps".to_owned())),
            (
                |h| h.run_states.get_mut(&run_id("steps")).unwrap()[0] = STARTED.into(),
                Violation::Unended("steps".into()),
            ),
            (
                |h| h.run_states.get_mut(&run_id("steps")).unwrap()[0] = FAILED.into(),
                Violation::WrongEnd("steps".into()),
            ),
            (|h| h.executions.retain(|execution| execution.step != 3), Violation::StepLost("steps".to_owned())),
            (|h| h.finished.clear(), Violation::WrongEnd("steps".to_owned())),
            (|h| drop(h.executions.pop()), Violation::GaveUpEarly("broken".to_owned())),
            (|h| h.executions.retain(|it| it.began_us < 70_000), Violation::GaveUpEarly("refused".to_owned())),
            (|h| h.told_of_failure.clear(), Violation::CallbackLost("broken".to_owned())),
            (|h| h.run_cancels.clear(), Violation::WrongEnd("cancelled".to_owned())),
            (|h| h.executions.push(execution("nobody", 1, 1, None)), Violation::Phantom("nobody".to_owned())),
            (|h| h.corrupt_runs.extend(["steps".to_owned()]), Violation::Corrupt("steps".to_owned())),
            (|h| h.runs[0].answer = Answer::Unexpected("500".to_owned()), Violation::Unexpected("steps".to_owned())),
        ];
        for (plant, expected) in cases {
            let mut history = sound();
            plant(&mut history);
            let found = check(&history);
            assert!(found.contains(&expected), "{expected} is missing among {found:?}");
        }
    }
}
