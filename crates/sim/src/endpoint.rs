//! Endpoints of workflow runs: what one asks of the server when it gets a delivery, before it answers.

use crate::command::{Ended, RunKey, RunTask, StartRun};
use crate::program::{self, CONCURRENT_HEADER, Deed, Program, STEP_HEADER};
use bytes::Bytes;
use posthaste_engine::event::Response;
use posthaste_engine::message::Message;
use posthaste_engine::outcome::Outcome;
use posthaste_engine::workflow::entry::Call;
use posthaste_engine::workflow::run::{RunConfig, StepText};
use posthaste_engine::workflow::{NewEntry, Part};
use posthaste_wire::id::Seq;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::{CallType, Features};
use std::collections::VecDeque;

/// How long an endpoint tries to get what it asks for; then it fails.
pub(crate) const PATIENCE_MS: u64 = 8_000;

/// A delivery at an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    /// The process that made it.
    pub node: usize,
    pub incarnation: u64,
    pub run: Seq,
    pub deed: Deed,
    /// What is still to be asked for, in this order.
    pub asks: VecDeque<RunTask>,
    /// Whoever made the delivery does not hear the answer.
    pub is_unheard: bool,
    /// What it hears otherwise.
    pub ended: Ended,
}

/// Whether an endpoint of a run gets this, and not somebody else or nobody.
pub(crate) fn is_for_endpoint(message: &Message) -> bool {
    matches!(message.spec.workflow, Some(step) if matches!(step.part, Part::Entry(_)))
        && program::function_at(&message.spec.url).is_some()
}

/// What a client does with a delivery, and what it asks for; `None` if it cannot read it.
pub(crate) fn open(
    programs: &[Program],
    message: &Message,
    fresh_id: &mut dyn FnMut() -> String,
) -> Option<(Deed, VecDeque<RunTask>)> {
    let run = key_of(message)?;
    let step = header(message, STEP_HEADER).and_then(|number| number.parse().ok());
    if let Some(number) = step {
        let concurrent = header(message, CONCURRENT_HEADER)?.parse().ok()?;
        let result = program::call_result(number, concurrent, &message.body);
        let append = RunTask::Append { run, entries: vec![(entry(&result), 0)] };
        return Some((Deed::Nothing, VecDeque::from([append])));
    }
    let program = programs.get(program::function_at(&message.spec.url)?)?;
    let (payload, steps) = program::shown(&message.body)?;
    let deed = program.respond(&payload, &steps);
    let asks = asks(programs, &deed, run, &payload, message, fresh_id);
    Some((deed, asks))
}

fn asks(
    programs: &[Program],
    deed: &Deed,
    run: RunKey,
    payload: &str,
    message: &Message,
    fresh_id: &mut dyn FnMut() -> String,
) -> VecDeque<RunTask> {
    let asks = match deed {
        Deed::Plan(plans) => {
            let entries = plans.iter().map(|(plan, after_ms)| (entry(plan), *after_ms)).collect();
            vec![RunTask::Append { run, entries }]
        }
        Deed::Execute { step, after_ms, .. } => {
            vec![RunTask::Append { run, entries: vec![(entry(step), *after_ms)] }]
        }
        Deed::Call { number, concurrent } => {
            vec![RunTask::Append { run, entries: vec![(call(*number, *concurrent), 0)] }]
        }
        Deed::Wait { step, event, timeout_ms, .. } => {
            let event = program::event_name(*event);
            vec![RunTask::Wait { run, event, step: step.clone(), timeout_ms: *timeout_ms }]
        }
        Deed::Notify { step, event, .. } => {
            let notify = RunTask::Notify { event: program::event_name(*event), data: program::event_data(*event) };
            vec![notify, RunTask::Append { run, entries: vec![(entry(step), 0)] }]
        }
        Deed::Invoke { step, function, .. } => {
            let (id, payload) = (fresh_id(), fresh_id());
            let invoked_by = Some((run, message.spec.url.clone(), step.clone()));
            let config = RunConfig { flow: message.spec.flow.clone(), ..config(programs, *function, message) };
            let start = StartRun { id, payload, url: program::url(*function), config, invoked_by };
            vec![RunTask::Start(Box::new(start))]
        }
        Deed::Finish => vec![RunTask::Finish { run, result: program::result(payload) }],
        Deed::Fail | Deed::Nothing => Vec::new(),
    };
    asks.into()
}

/// What an invoked run is started with: what the run has that invokes it.
fn config(programs: &[Program], function: usize, message: &Message) -> RunConfig {
    let (retries, retry_delay) = (message.spec.retries, message.spec.retry_delay.clone());
    RunConfig { retries, retry_delay, ..plain_config(programs, function) }
}

pub(crate) fn plain_config(programs: &[Program], function: usize) -> RunConfig {
    let failure = posthaste_engine::workflow::run::FailureCall {
        url: "https://told.example/run".to_owned(),
        retry_delay: Some("1000".to_owned()),
        ..Default::default()
    };
    let has_failure_call = programs.get(function).is_some_and(|program| program.has_failure_call);
    RunConfig { features: Features::OF_TRIGGER, failure: has_failure_call.then_some(failure), ..RunConfig::default() }
}

/// What the client of a workflow answers.
pub(crate) fn answered(status: u16) -> Outcome {
    let headers = vec![("Upstash-Workflow-Sdk-Version".to_owned(), "1".to_owned())];
    Outcome { result: Ok(Response { status, headers, ..Response::default() }), duration_ms: 5, phases: None }
}

fn entry(step: &StepText) -> NewEntry {
    let body = Bytes::from(serde_json::to_vec(step).unwrap_or_default());
    NewEntry::step(body, Vec::new(), Timestamp(0))
}

fn call(number: u32, concurrent: usize) -> NewEntry {
    let result_headers =
        vec![(STEP_HEADER.to_owned(), number.to_string()), (CONCURRENT_HEADER.to_owned(), concurrent.to_string())];
    let call = Call {
        url: "https://third.example/charge".to_owned(),
        method: "POST".to_owned(),
        step: number,
        is_forgiven: true,
        result_headers,
        result_retries: None,
    };
    let body = NewEntry::step(Bytes::from_static(b"{}"), Vec::new(), Timestamp(0));
    let retry_delay = Some("1000".to_owned());
    NewEntry { call_type: CallType::ToCallback, call: Some(call), retries: Some(1), retry_delay, ..body }
}

/// The run that a delivery says it is of.
fn key_of(message: &Message) -> Option<RunKey> {
    let created_at = header(message, "Upstash-Workflow-Createdat")?.parse().ok()?;
    Some(RunKey { id: header(message, "Upstash-Workflow-Runid")?.to_owned(), created_at: Some(Timestamp(created_at)) })
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.spec.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}
