//! The behaviour of an SDK for a delivery: it replays the known steps and executes the next one.

use posthaste_wire::encoding::from_base64;
use posthaste_wire::workflow::StepInfo;
use serde_json::{Map, Value, json};

/// The kind of a step in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Run,
    Sleep,
    Call,
    Wait,
    Invoke,
}

/// A function: groups of steps, one after the other. Steps of the same group run in parallel.
#[derive(Clone, Debug)]
pub(crate) struct Program(pub Vec<Vec<Kind>>);

impl Program {
    /// The number of its steps.
    pub(crate) fn steps(&self) -> u32 {
        self.0.iter().map(|group| group.len() as u32).sum()
    }

    /// The steps with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, Kind)> + '_ {
        self.0.iter().flatten().copied().zip(1..).map(|(kind, number)| (number, kind))
    }
}

/// The request of the endpoint to the server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    /// Appends these steps. Steps that sleep are delivered later.
    Steps(Vec<(Map<String, Value>, bool)>),
    Call(u32),
    Wait(Map<String, Value>),
    Invoke(Map<String, Value>),
    Finish,
    Nothing,
}

/// The result of a step that only the endpoint computes.
pub(crate) fn out(number: u32) -> String {
    format!("result {number}")
}

/// The name of the event that a step waits for.
pub(crate) fn event(number: u32) -> String {
    format!("event/{number}")
}

fn step(number: u32, kind: Kind, concurrent: usize) -> Map<String, Value> {
    let kind = match kind {
        Kind::Run => "Run",
        Kind::Sleep => "SleepFor",
        Kind::Call => "Call",
        Kind::Wait => "Wait",
        Kind::Invoke => "Invoke",
    };
    let step =
        json!({"stepId": number, "stepName": format!("step {number}"), "stepType": kind, "concurrent": concurrent});
    step.as_object().unwrap().clone()
}

/// The result that the endpoint publishes for the outcome of its call.
pub(crate) fn call_result(number: u32, concurrent: usize, callback: &[u8]) -> Map<String, Value> {
    let told: Value = serde_json::from_slice(callback).unwrap();
    let mut result = step(number, Kind::Call, concurrent);
    result.insert("out".into(), json!({"status": told["status"], "body": told["body"]}).to_string().into());
    result
}

/// The steps of an array, as the client reads them.
pub(crate) fn shown(array: &[u8]) -> Vec<StepInfo> {
    let array: Vec<Value> = serde_json::from_slice(array).unwrap();
    let steps = array.iter().skip(1).filter(|element| element["callType"] == "step");
    steps.map(|element| StepInfo::parse(&from_base64(element["body"].as_str().unwrap()).unwrap())).collect()
}

/// The endpoint's request for these steps.
pub(crate) fn respond(program: &Program, steps: &[StepInfo]) -> Request {
    let key = |step: &StepInfo| (step.is_plan(), step.target.unwrap_or(step.id));
    let mut seen = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        if seen.contains(&key(step)) {
            if place + 1 == steps.len() {
                return Request::Nothing;
            }
        } else {
            seen.push(key(step));
        }
    }
    let mut first = 1;
    for group in &program.0 {
        let numbers = first..first + group.len() as u32;
        let of_group = seen.iter().filter(|(_, number)| numbers.contains(number)).count();
        let is_parallel = group.len() > 1;
        let is_over = if is_parallel { of_group >= 2 * group.len() } else { of_group == 1 };
        if is_over {
            first = numbers.end;
            continue;
        }
        if !is_parallel {
            return execute(first, group[0], 1, false);
        }
        if of_group == 0 {
            let plans = numbers.zip(group).map(|(number, kind)| {
                let mut plan = step(0, *kind, group.len());
                plan.insert("targetStep".into(), number.into());
                (plan, *kind == Kind::Sleep)
            });
            return Request::Steps(plans.collect());
        }
        return match steps.last().filter(|last| last.is_plan()).and_then(|last| last.target) {
            Some(number) => execute(number, group[(number - first) as usize], group.len(), true),
            None => Request::Nothing,
        };
    }
    Request::Finish
}

fn execute(number: u32, kind: Kind, concurrent: usize, has_slept: bool) -> Request {
    let mut step = step(number, kind, concurrent);
    match kind {
        Kind::Run => {
            step.insert("out".into(), out(number).into());
            Request::Steps(vec![(step, false)])
        }
        Kind::Sleep => Request::Steps(vec![(step, !has_slept)]),
        Kind::Call => Request::Call(number),
        Kind::Wait => Request::Wait(step),
        Kind::Invoke => Request::Invoke(step),
    }
}
