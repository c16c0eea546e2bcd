//! Requests that inform a run's endpoint: the result of a call, and the failure of the run.

use super::entry::{Call, Entry};
use super::machine::Workflow;
use super::record::Record;
use super::request::Attempt;
use super::run::{Failure, Run};
use crate::callback::Lists;
use crate::event::Response;
use crate::outcome::{ErrorClass, Outcome};
use bytes::Bytes;
use posthaste_wire::encoding::{base64, unsealed};
use posthaste_wire::workflow::CallType;
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::sync::Arc;

/// The status for a response that did not arrive in time.
const GATEWAY_TIMEOUT: u16 = 504;
/// The status for a missing response.
const UNAVAILABLE: u16 = 503;

/// A callback's body. Fields in the order of the contract.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    status: u16,
    header: Lists<'a>,
    /// Python's client needs it even if it is empty; for a call it is then left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    retried: u32,
    max_retries: u32,
    source_message_id: String,
    url: &'a str,
    method: &'a str,
    source_header: Lists<'a>,
    source_body: String,
    not_before: u64,
    created_at: u64,
    #[serde(rename = "callerIP")]
    caller_ip: &'a str,
    workflow_run_id: &'a str,
    workflow_created_at: u64,
    workflow_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dlq_id: Option<String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The response, or a substitute, because clients always need a status.
pub(super) fn answer(outcome: &Outcome) -> Response {
    match &outcome.result {
        Ok(response) => response.clone(),
        Err(error) if error.class == ErrorClass::Timeout => {
            Response { status: GATEWAY_TIMEOUT, ..no_answer(&error.message) }
        }
        Err(error) => no_answer(&error.message),
    }
}

/// The substitute for a missing response.
pub(super) fn no_answer(why: &str) -> Response {
    Response { status: UNAVAILABLE, body: why.as_bytes().to_vec(), ..Response::default() }
}

/// The body that informs the endpoint about a call that has ended.
pub(super) fn of_call(run: &Run, entry: &Entry, call: &Call, attempt: Attempt<'_>, response: &Response) -> Bytes {
    let retried = attempt.retried;
    let is_success = (200..300).contains(&response.status);
    let payload = Payload {
        body: Some(base64(&response.body)).filter(|body| !body.is_empty()),
        // Clients ignore a failure that a retry may follow; this one is the last.
        max_retries: if is_success { entry.terms.retries } else { retried },
        url: &call.url,
        method: &call.method,
        source_body: base64(attempt.sent),
        ..common(run, entry, retried, response)
    };
    encoded(&payload)
}

/// The body that informs about the failure of a run; `None` if it has not failed.
pub(super) fn of_failure(record: &Record) -> Option<Bytes> {
    let Workflow { run, entries, .. } = &record.workflow;
    let failure = run.failure.as_deref()?;
    let entry = entries.get(failure.entry as usize)?;
    let source_body = match source(&record.workflow, failure) {
        FailureSource::Payload => base64(record.bodies.first()?),
        FailureSource::List => base64(&record.array_up_to(failure.entry)),
        FailureSource::Entry => base64(record.bodies.get(failure.entry as usize)?),
    };
    let no_answer = || Arc::new(no_answer(failure.error.as_deref().unwrap_or_default()));
    let response = record.answer.clone().unwrap_or_else(no_answer);
    let payload = Payload {
        body: Some(base64(&as_json(&response, failure))),
        max_retries: entry.terms.retries,
        url: &run.url,
        method: "POST",
        source_body,
        dlq_id: Some(failure.dlq_id.to_string()),
        ..common(run, entry, failure.retried, &response)
    };
    Some(encoded(&payload))
}

/// The response as JSON. Our own words for a missing response are formatted as a program formats its errors: Python's
/// client accepts only JSON, and would otherwise not call the failure function.
fn as_json<'a>(response: &'a Response, failure: &Failure) -> Cow<'a, [u8]> {
    let is_ours = failure.error.as_ref().is_some_and(|text| text.as_bytes() == response.body);
    if !is_ours {
        return Cow::Borrowed(&response.body);
    }
    let name = if response.status == GATEWAY_TIMEOUT { "GatewayTimeout" } else { "ServiceUnavailable" };
    let text = json!({ "error": name, "message": failure.error });
    Cow::Owned(text.to_string().into_bytes())
}

/// The size of the part that repeats what was sent.
pub(super) fn source_bytes(workflow: &Workflow, failure: &Failure) -> u64 {
    let entries = &workflow.entries[..=failure.entry as usize];
    match source(workflow, failure) {
        FailureSource::Payload => entries[0].gist.size,
        FailureSource::List => entries.iter().map(|entry| entry.encoded_len() as u64 + 1).sum(),
        FailureSource::Entry => entries[entries.len() - 1].gist.size,
    }
}

/// The part of a run that the failure callback repeats.
enum FailureSource {
    /// The payload of its trigger.
    Payload,
    /// All entries up to the one that failed.
    List,
    /// The entry that failed.
    Entry,
}

fn source(workflow: &Workflow, failure: &Failure) -> FailureSource {
    match workflow.entries[failure.entry as usize].terms.call_type {
        _ if workflow.run.config.features.initial_body => FailureSource::Payload,
        CallType::Step => FailureSource::List,
        _ => FailureSource::Entry,
    }
}

fn common<'a>(run: &'a Run, entry: &'a Entry, retried: u32, response: &'a Response) -> Payload<'a> {
    Payload {
        status: response.status,
        header: crate::callback::lists(&response.headers, |value| value.into()),
        body: None,
        retried,
        max_retries: 0,
        source_message_id: entry.id.to_string(),
        url: "",
        method: "",
        source_header: crate::callback::lists(&entry.terms.headers, |value| unsealed(value).into()),
        source_body: String::new(),
        not_before: entry.delivery.due.as_millis(),
        created_at: entry.terms.accepted_at.as_millis(),
        caller_ip: &run.config.caller_ip,
        workflow_run_id: &run.id,
        workflow_created_at: run.created_at.as_millis(),
        workflow_url: &run.url,
        dlq_id: None,
    }
}

fn encoded(payload: &Payload<'_>) -> Bytes {
    // Plain maps and texts always have a JSON form.
    Bytes::from(serde_json::to_vec(payload).expect("a payload is JSON"))
}
