//! The JSON of runs: as logs show them, and as the DLQ does.
//!
//! What a run or one of its steps asks to hide is hidden here: payloads and results of steps, and headers. What endpoints
//! answer is shown, but for credentials.

use super::steps::{self, Group, Item, Standing, StepState};
use crate::api::shape::{Object, Shaped, kept_body, put, put_flow, trimmed};
use crate::api::viewer::Viewer;
use axum::http::StatusCode;
use bytes::Bytes;
use posthaste_api_types::HeaderLists;
use posthaste_api_types::workflow as types;
use posthaste_engine::event::Response;
use posthaste_engine::workflow::entry::{Delivery, DeliveryState, Entry, Source, StepError, Terms};
use posthaste_engine::workflow::run::{Failure, FailureCallState, FailureProgress, Invoke, Run, RunState, StepText};
use posthaste_engine::workflow::{ERROR_STEP_NAME, Limits, Record, Workflow};
use posthaste_store::FailedRun;
use posthaste_wire::encoding::{from_base64, header_shown};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use serde_json::{Value, json};

/// The back-off that holds when nobody chose another, as the expression that would choose it.
const DEFAULT_RETRY_DELAY: &str = "min(86400000, 1000 * exp(2.5 * (retried + 1)))";
/// What stands for the status of an answer when there was none.
const NO_ANSWER: u16 = 503;

/// How a caller wants to see runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// Bytes of each body; `None` for all.
    pub(super) trim_body: Option<usize>,
    /// The time that "still" and "already" refer to.
    pub(super) now: Timestamp,
    /// Who looks.
    pub(super) viewer: Viewer,
}

/// The name of a run's state on the wire.
pub(super) fn run_state(state: RunState) -> &'static str {
    let state = match state {
        RunState::Started => types::RunState::Started,
        RunState::Success => types::RunState::Success,
        RunState::Failed => types::RunState::Failed,
        RunState::Canceled => types::RunState::Canceled,
    };
    state.name()
}

/// The name on the wire of how telling about a failure stands.
pub(super) fn call_state(state: FailureCallState) -> &'static str {
    match state {
        FailureCallState::InProgress => "CALLBACK_INPROGRESS",
        FailureCallState::Success => "CALLBACK_SUCCESS",
        FailureCallState::Failed => "CALLBACK_FAIL",
        FailureCallState::Canceled => "CALLBACK_CANCELED",
    }
}

/// A run with its steps, as a log shows it.
pub(super) fn run(record: &Record, view: View) -> Value {
    let is_bare = record.is_without_bodies();
    let has_asked = view.trim_body != Some(0);
    let view = if is_bare { View { trim_body: Some(0), ..view } } else { view };
    let steps = StepShaper::new(record, view);
    let (workflow, shaper) = (&record.workflow, &steps.shaper);
    let run = &workflow.run;
    let mut object = Object::new();
    put(&mut object, "workflowRunId", run.id.as_str());
    put(&mut object, "workflowUrl", run.url.as_str());
    put(&mut object, "workflowState", run_state(run.state));
    put(&mut object, "workflowRunCreatedAt", run.created_at.as_millis());
    if let Some(ended_at) = run.ended_at {
        put(&mut object, "workflowRunCompletedAt", ended_at.as_millis());
    }
    if let Some(result) = &record.result {
        shaper.put_text(&mut object, "workflowRunResponse", result.as_bytes(), shaper.redact());
    }
    if is_bare && has_asked {
        put(&mut object, "bodiesOmitted", true);
    }
    if !run.config.caller_ip.is_empty() {
        put(&mut object, "workflowRunCallerIp", run.config.caller_ip.as_str());
    }
    if let Some(flow) = &run.config.flow {
        put(&mut object, "flowControlKey", flow.key.as_str());
    }
    put_labels(&mut object, run);
    if let Some(invoker) = workflow.invokers.first() {
        let mut told = json!({ "workflowRunId": invoker.run_id, "workflowUrl": invoker.url });
        if let Some(created_at) = invoker.created_at {
            told["workflowRunCreatedAt"] = created_at.as_millis().into();
        }
        put(&mut object, "invoker", told);
    }
    if let Some(failure) = &run.failure {
        put(&mut object, "dlqId", failure.dlq_id.to_string());
        if let Some(call) = &failure.call {
            put(&mut object, "failureFunction", steps.failure_function(failure, call));
        }
    }
    let groups = steps::groups(workflow, view.now);
    put(&mut object, "steps", groups.iter().map(|group| steps.group(group)).collect::<Vec<_>>());
    object.into()
}

/// How much a run has of what it may have.
pub(super) fn usage(workflow: &Workflow, limits: &Limits) -> Value {
    json!({
        "entries": workflow.entries.len(),
        "maxEntries": limits.entries,
        "bytes": workflow.bytes(),
        "maxBytes": limits.bytes,
        "maxDuration": limits.duration_ms,
    })
}

/// A failed run, as the DLQ shows it: what it was triggered with, and why it failed.
pub(super) fn failed_run(failed_run: &FailedRun, view: View) -> Option<Shaped> {
    let FailedRun { run, first, payload, failed, answer, told } = failed_run;
    let failure = run.failure.as_deref()?;
    let (shaper, viewer) = (Shaper { run, view }, &view.viewer);
    let mut object = Object::new();
    put(&mut object, "dlqId", failure.dlq_id.to_string());
    put(&mut object, "messageId", failed.id.to_string());
    put(&mut object, "url", run.url.as_str());
    put(&mut object, "method", "POST");
    put(&mut object, "header", json!(shaper.entry_headers(first, shaper.redact())));
    put(&mut object, "maxRetries", failed.terms.retries);
    put(&mut object, "notBefore", failed.delivery.due.as_millis());
    put(&mut object, "createdAt", failed.terms.accepted_at.as_millis());
    put(&mut object, "callerIP", run.config.caller_ip.as_str());
    put_run(&mut object, run);
    put_labels(&mut object, run);
    put_flow(&mut object, run.config.flow.as_ref());
    if let Some(error) = &failure.error {
        put(&mut object, "error", error.as_str());
    }
    let (status, answer) = last_answer(failure, answer.as_deref());
    put(&mut object, "responseStatus", status);
    let mut response_body = Bytes::new();
    match answer {
        Answer::Given(response) => {
            if !response.headers.is_empty() {
                put(&mut object, "responseHeader", json!(viewer.received_headers(&response.headers)));
            }
            response_body = Bytes::copy_from_slice(kept_body(response));
        }
        Answer::Words(words) => put(&mut object, "responseBody", words),
    }
    if let Some(call) = &run.config.failure {
        put(&mut object, "failureCallback", call.url.as_str());
        let redact = shaper.redact().union(&call.redact);
        put(&mut object, "failureCallbackHeader", json!(viewer.sent_headers(&call.headers, &redact)));
    }
    if let Some(call) = &failure.call {
        put(&mut object, "failureFunctionState", call_state(call.state));
        let mut info = Object::new();
        put(&mut info, "state", call_state(call.state));
        if let Some(response) = told {
            shaper.put_response(&mut info, response);
        }
        put(&mut object, "failureCallbackInfo", info);
    }
    let mut shaped = Shaped::from(object);
    let body = shaper.hidden(payload, shaper.redact()).map_or_else(|| payload.clone(), Bytes::from);
    shaped.put_text_or_base64("body", "bodyBase64", body.slice(..trimmed(&body, view.trim_body).len()));
    shaped.put_text_or_base64("responseBody", "responseBodyBase64", response_body);
    Some(shaped)
}

/// Which run something is about.
pub(super) fn put_run(object: &mut Object, run: &Run) {
    put(object, "workflowRunId", run.id.as_str());
    put(object, "workflowCreatedAt", run.created_at.as_millis());
    put(object, "workflowUrl", run.url.as_str());
}

pub(super) fn put_labels(object: &mut Object, run: &Run) {
    if let Some(first) = run.config.labels.first() {
        put(object, "label", first.as_str());
        put(object, "labels", json!(run.config.labels));
    }
}

/// What the last attempt of a failed run brought.
enum Answer<'a> {
    Given(&'a Response),
    Words(&'a str),
}

fn last_answer<'a>(failure: &'a Failure, answer: Option<&'a Response>) -> (u16, Answer<'a>) {
    match answer {
        Some(response) => (response.status, Answer::Given(response)),
        None => (NO_ANSWER, Answer::Words(failure.error.as_deref().unwrap_or_default())),
    }
}

fn text_of(response: &Response) -> String {
    String::from_utf8_lossy(kept_body(response)).into_owned()
}

/// Such as `500 Internal Server Error`.
fn status_text(status: u16) -> String {
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    reason.map_or_else(|| status.to_string(), |reason| format!("{status} {reason}"))
}

/// Shapes what belongs to one run.
#[derive(Clone, Copy)]
pub(super) struct Shaper<'a> {
    run: &'a Run,
    view: View,
}

impl Shaper<'_> {
    /// What went wrong with a delivery; a run can also fail for another reason than an answer.
    fn errors(&self, entry: &Entry) -> Vec<Value> {
        let mut errors: Vec<Value> = entry.delivery.errors.iter().map(|error| self.error(error)).collect();
        if let Some(error) = self.own_error(entry) {
            errors.push(self.error(&error));
        }
        errors
    }

    /// Why the run failed at this entry, if none of its attempts says so.
    pub(super) fn own_error(&self, entry: &Entry) -> Option<StepError> {
        let run = self.run;
        let failure = run.failure.as_ref().filter(|failure| failure.entry == entry.index)?;
        let error = failure.error.as_ref()?;
        let is_told = entry.delivery.errors.last().is_some_and(|last| last.error.as_ref() == Some(error));
        (!is_told).then(|| StepError {
            at: run.ended_at.unwrap_or_default(),
            error: Some(error.clone()),
            response: None,
        })
    }

    fn error(&self, error: &StepError) -> Value {
        let response = error.response.as_deref();
        let mut object = Object::new();
        put(&mut object, "error", error_text(error));
        put(&mut object, "status", response.map_or(0, |response| response.status));
        let headers = response.map_or(&[][..], |response| &response.headers);
        put(&mut object, "headers", json!(self.view.viewer.received_headers(headers)));
        put(&mut object, "time", error.at.as_millis());
        put_trimmed(&mut object, "body", response.map(text_of).unwrap_or_default(), self.view.trim_body);
        object.into()
    }

    /// `responseStatus`, `responseHeaders` and `responseBody`.
    pub(super) fn put_response(&self, object: &mut Object, response: &Response) {
        put(object, "responseStatus", response.status);
        put(object, "responseHeaders", json!(self.view.viewer.received_headers(&response.headers)));
        put_trimmed(object, "responseBody", text_of(response), self.view.trim_body);
    }

    fn put_trouble(&self, object: &mut Object, standing: &Standing<'_>) {
        if let Some(due) = standing.due {
            put(object, "nextDeliveryTime", due.as_millis());
        }
        let errors = standing.trouble.map(|entry| self.errors(entry)).unwrap_or_default();
        if !errors.is_empty() {
            put(object, "errors", errors);
        }
    }

    /// What is known of the step that a delivery executes.
    pub(super) fn delivery(&self, entry: &Entry) -> Object {
        let mut object = Object::new();
        put(&mut object, "messageId", entry.id.to_string());
        put_retries(&mut object, entry.terms.retries, entry.terms.retry_delay.as_deref());
        let response = entry.delivery.errors.last().and_then(|error| error.response.as_ref());
        let named = response.and_then(|response| header(&response.headers, ERROR_STEP_NAME));
        if let Some(name) = named {
            put(&mut object, "stepName", header_shown(name));
        }
        object
    }

    /// What everything about the run hides.
    pub(super) fn redact(&self) -> &RedactFields {
        &self.run.config.redact
    }

    /// What an entry is delivered with: the first also with the user's headers.
    pub(super) fn entry_headers(&self, entry: &Entry, redact: &RedactFields) -> HeaderLists {
        let Terms { content_type, headers, .. } = &*entry.terms;
        if entry.index > 0 {
            return self.view.viewer.sent_headers(headers, redact);
        }
        let mut all = vec![("Content-Type".to_owned(), content_type.clone())];
        all.extend(headers.iter().chain(&self.run.config.headers).cloned());
        self.view.viewer.sent_headers(&all, redact)
    }

    /// What stands in the place of a payload or result that is to be hidden.
    fn hidden(&self, bytes: &[u8], redact: &RedactFields) -> Option<String> {
        (redact.body && !bytes.is_empty()).then(|| self.view.viewer.mark(bytes))
    }

    /// A payload or a result as text, hidden or cut as asked.
    pub(super) fn put_text(&self, object: &mut Object, name: &str, bytes: &[u8], redact: &RedactFields) {
        let text = self.hidden(bytes, redact).unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned());
        put_trimmed(object, name, text, self.view.trim_body);
    }
}

/// Shapes the steps of one run.
pub(super) struct StepShaper<'a> {
    pub(super) shaper: Shaper<'a>,
    record: &'a Record,
}

impl<'a> StepShaper<'a> {
    pub(super) fn new(record: &'a Record, view: View) -> StepShaper<'a> {
        StepShaper { shaper: Shaper { run: &record.workflow.run, view }, record }
    }

    fn group(&self, group: &Group<'a>) -> Value {
        let now = self.shaper.view.now;
        let steps: Vec<Value> = match group {
            Group::Next(entries) => entries.iter().map(|entry| self.next(entry)).collect(),
            Group::Sequential(_) | Group::Parallel { .. } => {
                let shaped = |item: &Item<'a>| {
                    let standing = item.standing(self.shaper.run, now);
                    let mut object = self.item(item);
                    put(&mut object, "state", standing.state.name());
                    if let Some(retried) = standing.trouble.filter(|_| standing.state == StepState::Retry) {
                        put(&mut object, "messageId", retried.id.to_string());
                    }
                    // What was in the way of a step that is done.
                    let overcome = item.work().filter(|entry| entry.delivery.state == DeliveryState::Done);
                    let trouble = standing.trouble.or(overcome);
                    self.shaper.put_trouble(&mut object, &Standing { trouble, ..standing });
                    if let Some(entry) = item.work() {
                        let has_led_on = item.result.is_some() || item.started().is_some();
                        put_execution(&mut object, &entry.delivery, has_led_on);
                    }
                    object.into()
                };
                group.items().iter().map(shaped).collect()
            }
        };
        json!({ "type": group.kind(), "steps": steps })
    }

    /// A delivery that executes what comes next.
    fn next(&self, entry: &'a Entry) -> Value {
        let standing = Standing::of_delivery(entry, self.shaper.view.now);
        let mut object = self.shaper.delivery(entry);
        put(&mut object, "state", standing.state.name());
        self.shaper.put_trouble(&mut object, &standing);
        put_execution(&mut object, &entry.delivery, false);
        object.into()
    }

    fn failure_function(&self, failure: &Failure, call: &FailureProgress) -> Value {
        let run = self.shaper.run;
        let (status, answer) = last_answer(failure, self.record.answer.as_deref());
        let (text, headers) = match answer {
            Answer::Given(response) => (text_of(response), self.shaper.view.viewer.received_headers(&response.headers)),
            Answer::Words(words) => (words.to_owned(), HeaderLists::new()),
        };
        let mut object = Object::new();
        put(&mut object, "messageId", call.id.to_string());
        put(&mut object, "url", run.url.as_str());
        put(&mut object, "state", call_state(call.state));
        put(&mut object, "failStatus", status);
        put_trimmed(&mut object, "failResponse", text, self.shaper.view.trim_body);
        put(&mut object, "failHeaders", json!(headers));
        put(&mut object, "dlqId", failure.dlq_id.to_string());
        let retries = run.config.failure.as_ref().and_then(|call| call.retries).unwrap_or(run.config.retries);
        put(&mut object, "maxRetries", retries);
        if let Some(errors) = self.record.workflow.told.as_ref().filter(|errors| !errors.is_empty()) {
            put(&mut object, "errors", errors.iter().map(|error| self.shaper.error(error)).collect::<Vec<_>>());
        }
        if let Some(response) = &self.record.told {
            self.shaper.put_response(&mut object, response);
        }
        if call.state == FailureCallState::InProgress {
            put(&mut object, "nextDeliveryTime", call.due.as_millis());
        }
        object.into()
    }

    /// A step without its state.
    pub(super) fn item(&self, item: &Item<'a>) -> Object {
        let mut object = Object::new();
        let redact = item.redact().union(self.shaper.redact());
        match item.result.filter(|result| result.index == 0) {
            Some(first) => self.put_first(&mut object, first, &redact),
            None => self.put_step(&mut object, item, &self.step_of(item), &redact),
        }
        let entry = item.result.or(item.call).or(item.plan);
        let run = self.shaper.run;
        match entry {
            Some(entry) => {
                put(&mut object, "messageId", entry.id.to_string());
                put(&mut object, "callType", entry.terms.call_type.name());
                put(&mut object, "headers", json!(self.shaper.entry_headers(entry, &redact)));
                put(&mut object, "createdAt", entry.terms.accepted_at.as_millis());
                put_retries(&mut object, entry.terms.retries, entry.terms.retry_delay.as_deref());
            }
            None => {
                put(&mut object, "callType", "step");
                put(&mut object, "headers", json!({}));
                put_retries(&mut object, run.config.retries, run.config.retry_delay.as_deref());
                if let Some(created_at) = item.started() {
                    put(&mut object, "createdAt", created_at.as_millis());
                }
                let id = item.wait.map(|wait| wait.timer).or(item.invoke.and_then(|invoke| invoke.id));
                if let Some(id) = id {
                    put(&mut object, "messageId", id.to_string());
                }
            }
        }
        self.put_call(&mut object, item, &redact);
        self.put_sources(&mut object, item, &redact);
        object
    }

    /// The first entry: the payload of the trigger.
    fn put_first(&self, object: &mut Object, first: &Entry, redact: &RedactFields) {
        put(object, "stepName", "init");
        put(object, "stepType", "Initial");
        put(object, "concurrent", 1);
        self.shaper.put_text(object, "out", self.record.body(first), redact);
    }

    /// What a step says about itself.
    fn put_step(&self, object: &mut Object, item: &Item<'_>, step: &StepText, redact: &RedactFields) {
        if let Some(number) = item.number {
            put(object, "stepId", number);
        }
        let name = step.get("stepName").and_then(Value::as_str).unwrap_or_default();
        let kind = step.get("stepType").and_then(Value::as_str).unwrap_or_default();
        put(object, "stepName", name);
        put(object, "stepType", kind);
        put(object, "concurrent", step.get("concurrent").and_then(Value::as_u64).unwrap_or(1));
        let out = item.invoke.and_then(|invoke| self.record.out(invoke)).map(Value::String);
        if let Some(out) = step.get("out").cloned().or(out).filter(|out| !out.is_null()) {
            // What an invoked run returned is hidden as it is in its own log.
            let redact = item.invoked_redact().map_or_else(|| redact.clone(), |other| redact.union(other));
            self.shaper.put_text(object, "out", as_text(&out).as_bytes(), &redact);
        }
        for name in ["sleepFor", "sleepUntil", "waitEventId", "callUrl", "callMethod"] {
            if let Some(value) = step.get(name).filter(|value| !value.is_null()) {
                put(object, name, value.clone());
            }
        }
        if matches!(kind, "Wait" | "WaitForWebhook") {
            put(object, "waitTimeout", step.get("waitTimeout").and_then(Value::as_bool).unwrap_or(false));
        }
        if let Some(timeout) = step.get("timeout").filter(|value| !value.is_null()) {
            put(object, "waitTimeoutDuration", timeout.clone());
        }
    }

    /// The call that a step makes, and what came of it.
    fn put_call(&self, object: &mut Object, item: &Item<'_>, redact: &RedactFields) {
        let Some(entry) = item.call else { return };
        if let Some(call) = &entry.terms.call {
            put(object, "callUrl", call.url.as_str());
            put(object, "callMethod", call.method.as_str());
        }
        let viewer = &self.shaper.view.viewer;
        put(object, "callHeaders", json!(viewer.sent_headers(&entry.terms.headers, redact)));
        self.shaper.put_text(object, "callBody", self.record.body(entry), redact);
        let told = item.answer.and_then(|answer| serde_json::from_slice::<Object>(self.record.body(answer)).ok());
        let Some(told) = told else { return };
        put(object, "callResponseStatus", told.get("status").cloned().unwrap_or_default());
        let headers = told.get("header").cloned().unwrap_or_else(|| json!({}));
        put(object, "callResponseHeaders", viewer.received_json(headers));
        let body = told.get("body").and_then(Value::as_str).and_then(from_base64).unwrap_or_default();
        self.shaper.put_text(object, "callResponseBody", &body, redact);
    }

    /// What a step waits for, or what brought its result.
    fn put_sources(&self, object: &mut Object, item: &Item<'_>, redact: &RedactFields) {
        if let Some(wait) = item.wait {
            put(object, "waitEventId", wait.event.as_str());
            put_wait(object, &wait.source());
        }
        if let Some(invoke) = item.invoke {
            self.put_invoked(object, invoke, &redact.union(&invoke.redact));
        }
        if let Some(source) = item.result.and_then(|result| result.terms.source.as_ref()) {
            put_wait(object, source);
        }
    }

    fn put_invoked(&self, object: &mut Object, invoke: &Invoke, redact: &RedactFields) {
        put(object, "invokedWorkflowRunId", invoke.run_id.as_str());
        put(object, "invokedWorkflowUrl", invoke.url.as_str());
        put(object, "invokedWorkflowCreatedAt", invoke.created_at.as_millis());
        let viewer = &self.shaper.view.viewer;
        put(object, "invokedWorkflowRunHeaders", json!(viewer.sent_headers(&invoke.run_headers, redact)));
        self.shaper.put_text(object, "invokedWorkflowRunBody", &self.record.given(invoke), redact);
    }

    /// What is known of a step: what it says itself, or what was said when it began.
    fn step_of(&self, item: &Item<'_>) -> StepText {
        let held = |entry: &Entry| serde_json::from_slice(self.record.body(entry)).unwrap_or_default();
        let kept = item.wait.map(|wait| &wait.step).or(item.invoke.map(|invoke| &invoke.step));
        let result = item.result.map(held).or_else(|| kept.cloned());
        result.or_else(|| item.plan.map(held)).or_else(|| item.call.map(step_of_call)).unwrap_or_default()
    }
}

fn put_wait(object: &mut Object, source: &Source) {
    let Source::Wait { timeout, deadline, .. } = source;
    put(object, "waitTimeoutDuration", timeout.as_str());
    put(object, "waitTimeoutDeadline", deadline.as_millis());
}

/// How often a delivery was tried, and how its last attempt went: what the hosted service does not tell. One that has led on
/// may not have been answered yet, or never, because the run has ended meanwhile.
fn put_execution(object: &mut Object, delivery: &Delivery, has_led_on: bool) {
    let attempts = delivery.attempts.max(u32::from(has_led_on));
    if attempts == 0 {
        return;
    }
    let mut execution = json!({ "attempts": attempts });
    let ended_at = match delivery.state {
        DeliveryState::Done => delivery.ended_at,
        DeliveryState::Pending | DeliveryState::Failed | DeliveryState::Canceled => {
            delivery.errors.last().map(|error| error.at)
        }
    };
    if let (Some(ended_at), Some(duration)) = (ended_at, delivery.duration_ms) {
        execution["startedAt"] = ended_at.minus_millis(duration).as_millis().into();
        execution["duration"] = duration.into();
    } else if has_led_on {
        execution["startedAt"] = delivery.due.as_millis().into();
    }
    put(object, "execution", execution);
}

fn put_trimmed(object: &mut Object, name: &str, text: String, trim: Option<usize>) {
    if trim == Some(0) {
        return;
    }
    let length = trimmed(text.as_bytes(), trim).len();
    put(object, name, &text[..length]);
}

fn put_retries(object: &mut Object, retries: u32, delay: Option<&str>) {
    put(object, "retries", retries);
    if retries > 0 {
        put(object, "retryDelay", delay.unwrap_or(DEFAULT_RETRY_DELAY));
    }
}

/// What went wrong, in words.
pub(super) fn error_text(error: &StepError) -> String {
    let status = error.response.as_ref().map(|response| status_text(response.status));
    error.error.clone().or(status).unwrap_or_default()
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The step that makes a call, as the headers of its result tell it.
fn step_of_call(entry: &Entry) -> StepText {
    let headers = entry.terms.call.as_ref().map_or(&[][..], |call| &call.result_headers);
    let text = |name: &str| header(headers, name).map_or("", |value| value);
    let mut step = StepText::new();
    put(&mut step, "stepName", header_shown(text("Upstash-Workflow-Stepname")));
    put(&mut step, "stepType", text("Upstash-Workflow-Steptype"));
    put(&mut step, "concurrent", text("Upstash-Workflow-Concurrent").parse::<u64>().unwrap_or(1));
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_wire::retry_delay::RetryDelay;

    #[test]
    fn the_default_back_off_is_told_as_an_expression_that_means_it() {
        let expression = RetryDelay::parse(DEFAULT_RETRY_DELAY).unwrap();
        let seconds: Vec<_> = (0..6).filter_map(|retried| expression.delay_ms(retried)).map(|ms| ms / 1_000).collect();
        assert_eq!(seconds, [12, 148, 1_808, 22_026, 86_400, 86_400]);
    }

    #[test]
    fn statuses_have_their_names() {
        assert_eq!(status_text(400), "400 Bad Request");
        assert_eq!(status_text(489), "489");
    }
}
