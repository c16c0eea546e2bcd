//! Workflows: their endpoints for logs, the DLQ and waiters, and the objects that these show.

use super::parameters::{
    DLQ_ID, EVENT, RUN_OVERRIDES, WAITERS_PAGE, failed_run_filters, failed_run_list, run_log_filters,
};
use super::schemas::{boolean, headers, list_of, millis, object, reference, text, texts, whole};
use super::{Endpoint, RequestBody};
use posthaste_api_types::message::Deleted;
use posthaste_api_types::schema;
use posthaste_api_types::workflow::{BegunRun, BegunRuns};
use serde_json::{Value, json};

const TAG: &str = "Workflows";

pub(super) fn endpoints() -> Vec<Endpoint> {
    [logs(), dlq(), begin_again(), waiters()].into_iter().flatten().collect()
}

fn logs() -> Vec<Endpoint> {
    let runs = || object(&["runs"], &[("runs", list_of("WorkflowRun")), ("cursor", text())]);
    let lines = object(&["events"], &[("events", list_of("WorkflowEvent")), ("cursor", text())]);
    vec![
        Endpoint::new("GET", "/v2/workflows/events", TAG, "List log lines of runs, or runs")
            .with(&run_log_filters())
            .answers(200, "One page, newest first; runs if `groupBy` is set.", json!({ "anyOf": [lines, runs()] })),
        Endpoint::new("GET", "/v2/workflows/logs", TAG, "List runs with their steps").with(&run_log_filters()).answers(
            200,
            "One page, newest first.",
            runs(),
        ),
    ]
}

fn dlq() -> Vec<Endpoint> {
    let page = object(&["messages"], &[("messages", list_of("FailedRun")), ("cursor", text())]);
    let one = |method, path, summary| Endpoint::new(method, path, TAG, summary).with(&[DLQ_ID]).errors(&[404]);
    vec![
        Endpoint::new("GET", "/v2/workflows/dlq", TAG, "List failed runs").with(&failed_run_list()).answers(
            200,
            "One page, newest first.",
            page,
        ),
        Endpoint::new("DELETE", "/v2/workflows/dlq", TAG, "Delete failed runs by page")
            .with(&failed_run_filters())
            .body(RequestBody::OptionalJson(reference("Filters")))
            .answers(200, "Number of deleted failed runs.", schema::of::<Deleted>()),
        one("GET", "/v2/workflows/dlq/{id}", "Get a failed run").answers(
            200,
            "The failed run.",
            reference("FailedRun"),
        ),
        one("DELETE", "/v2/workflows/dlq/{id}", "Delete a failed run from the DLQ").answers(
            200,
            "Deleted. The log of the run stays.",
            schema::of::<Deleted>(),
        ),
        one("POST", "/v2/workflows/dlq/callback/{id}", "Retry the failure function of a run").answers(
            200,
            "The failure function is called again.",
            schema::reference::<BegunRun>(),
        ),
        one("DELETE", "/v2/workflows/dlq/callback/{id}", "Cancel the failure function of a run").answers(
            302,
            "The failure function is no longer called.",
            json!({ "type": "object" }),
        ),
    ]
}

fn begin_again() -> Vec<Endpoint> {
    let many = |path, summary| {
        Endpoint::new("POST", path, TAG, summary)
            .with(&failed_run_filters())
            .with(RUN_OVERRIDES)
            .body(RequestBody::OptionalJson(reference("Filters")))
            .answers(200, "The new runs. `error` says why other runs stay in the DLQ.", schema::of::<BegunRuns>())
            .errors(&[404, 412])
    };
    let one = |path, summary| {
        Endpoint::new("POST", path, TAG, summary)
            .with(&[DLQ_ID])
            .with(RUN_OVERRIDES)
            .answers(200, "The new run.", schema::reference::<BegunRun>())
            .errors(&[404, 412])
    };
    vec![
        many("/v2/workflows/dlq/resume", "Resume failed runs from the failed step"),
        one("/v2/workflows/dlq/resume/{id}", "Resume a failed run from the failed step"),
        many("/v2/workflows/dlq/restart", "Restart failed runs from the beginning"),
        one("/v2/workflows/dlq/restart/{id}", "Restart a failed run from the beginning"),
    ]
}

fn waiters() -> Vec<Endpoint> {
    vec![
        Endpoint::new("GET", "/v2/waiters/{event}", TAG, "List the runs that are waiting for an event")
            .route("/v2/waiters/{*event}")
            .with(&[EVENT])
            .with(WAITERS_PAGE)
            .answers(200, "Waiters, oldest first.", list_of("Waiter")),
    ]
}

/// The objects above, by name.
pub(super) fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("WorkflowRun", run()),
        ("WorkflowStep", step()),
        ("WorkflowError", error()),
        ("WorkflowEvent", event()),
        ("FailedRun", failed_run()),
        ("Waiter", waiter()),
    ]
}

fn one_of(names: &[&str]) -> Value {
    json!({ "type": "string", "enum": names })
}

fn run_state() -> Value {
    one_of(&["RUN_STARTED", "RUN_SUCCESS", "RUN_FAILED", "RUN_CANCELED"])
}

fn step_state() -> Value {
    one_of(&["STEP_PROGRESS", "STEP_SUCCESS", "STEP_RETRY", "STEP_FAILED", "STEP_CANCELED"])
}

fn call_state() -> Value {
    one_of(&["CALLBACK_INPROGRESS", "CALLBACK_SUCCESS", "CALLBACK_FAIL", "CALLBACK_CANCELED"])
}

fn run() -> Value {
    let group = [("type", one_of(&["sequential", "parallel", "next"])), ("steps", list_of("WorkflowStep"))];
    let group = object(&["type", "steps"], &group);
    let invoker = [("workflowRunId", text()), ("workflowUrl", text()), ("workflowRunCreatedAt", millis())];
    let usage = ["entries", "maxEntries", "bytes", "maxBytes", "maxDuration"];
    let fields = [
        ("workflowRunId", text()),
        ("workflowUrl", text()),
        ("workflowState", run_state()),
        ("workflowRunCreatedAt", millis()),
        ("workflowRunCompletedAt", millis()),
        ("workflowRunResponse", text()),
        ("bodiesOmitted", boolean()),
        ("workflowRunCallerIp", text()),
        ("flowControlKey", text()),
        ("label", text()),
        ("labels", texts()),
        ("invoker", object(&["workflowRunId", "workflowUrl"], &invoker)),
        ("dlqId", text()),
        ("failureFunction", failure_function()),
        ("usage", object(&usage, &usage.map(|name| (name, whole())))),
        ("steps", json!({ "type": "array", "items": group })),
    ];
    let always = ["workflowRunId", "workflowUrl", "workflowState", "workflowRunCreatedAt", "steps"];
    object(&always, &fields)
}

fn failure_function() -> Value {
    let fields = [
        ("messageId", text()),
        ("url", text()),
        ("state", call_state()),
        ("failStatus", whole()),
        ("failResponse", text()),
        ("failHeaders", headers()),
        ("dlqId", text()),
        ("maxRetries", whole()),
        ("errors", list_of("WorkflowError")),
        ("responseStatus", whole()),
        ("responseHeaders", headers()),
        ("responseBody", text()),
        ("nextDeliveryTime", millis()),
    ];
    object(&["messageId", "url", "state", "failStatus", "failHeaders", "dlqId"], &fields)
}

/// A step, or what is known of the one that is tried now.
fn step() -> Value {
    let any = || json!({});
    let execution = [("attempts", whole()), ("startedAt", millis()), ("duration", whole())];
    let fields = [
        ("stepId", whole()),
        ("stepName", text()),
        ("stepType", text()),
        ("callType", text()),
        ("messageId", text()),
        ("out", text()),
        ("concurrent", whole()),
        ("retries", whole()),
        ("retryDelay", text()),
        ("state", step_state()),
        ("createdAt", millis()),
        ("headers", headers()),
        ("nextDeliveryTime", millis()),
        ("errors", list_of("WorkflowError")),
        ("execution", object(&["attempts"], &execution)),
        ("sleepFor", any()),
        ("sleepUntil", any()),
        ("waitEventId", text()),
        ("waitTimeoutDuration", any()),
        ("waitTimeoutDeadline", millis()),
        ("waitTimeout", boolean()),
        ("callUrl", text()),
        ("callMethod", text()),
        ("callHeaders", headers()),
        ("callBody", text()),
        ("callResponseStatus", whole()),
        ("callResponseHeaders", headers()),
        ("callResponseBody", text()),
        ("invokedWorkflowRunId", text()),
        ("invokedWorkflowUrl", text()),
        ("invokedWorkflowCreatedAt", millis()),
        ("invokedWorkflowRunBody", text()),
        ("invokedWorkflowRunHeaders", headers()),
    ];
    object(&["retries"], &fields)
}

fn error() -> Value {
    let fields = [("error", text()), ("status", whole()), ("headers", headers()), ("body", text()), ("time", millis())];
    object(&["error", "status", "headers", "time"], &fields)
}

fn event() -> Value {
    let states = json!({ "anyOf": [run_state(), step_state()] });
    let fields = [
        ("time", millis()),
        ("state", states),
        ("workflowRunId", text()),
        ("workflowUrl", text()),
        ("workflowCreatedAt", millis()),
        ("stepInfo", reference("WorkflowStep")),
        ("headers", headers()),
        ("nextDeliveryTime", millis()),
        ("error", text()),
        ("responseStatus", whole()),
        ("responseHeaders", headers()),
        ("responseBody", text()),
        ("invokerWorkflowRunId", text()),
        ("invokerWorkflowUrl", text()),
        ("invokerWorkflowCreatedAt", millis()),
        ("workflowRunResponse", text()),
        ("dlqId", text()),
        ("label", text()),
        ("labels", texts()),
        ("callerIp", text()),
    ];
    object(&["time", "state", "workflowRunId", "workflowUrl", "workflowCreatedAt"], &fields)
}

fn failed_run() -> Value {
    let info = [
        ("state", call_state()),
        ("responseStatus", whole()),
        ("responseHeaders", headers()),
        ("responseBody", text()),
    ];
    let fields = [
        ("dlqId", text()),
        ("messageId", text()),
        ("url", text()),
        ("method", text()),
        ("header", headers()),
        ("body", text()),
        ("bodyBase64", text()),
        ("maxRetries", whole()),
        ("notBefore", millis()),
        ("createdAt", millis()),
        ("callerIP", text()),
        ("workflowRunId", text()),
        ("workflowCreatedAt", millis()),
        ("workflowUrl", text()),
        ("error", text()),
        ("responseStatus", whole()),
        ("responseHeader", headers()),
        ("responseBody", text()),
        ("responseBodyBase64", text()),
        ("failureCallback", text()),
        ("failureCallbackHeader", headers()),
        ("failureFunctionState", call_state()),
        ("failureCallbackInfo", object(&["state"], &info)),
        ("label", text()),
        ("labels", texts()),
        ("flowControlKey", text()),
        ("parallelism", whole()),
        ("rate", whole()),
        ("period", whole()),
    ];
    let always = ["dlqId", "messageId", "url", "workflowRunId", "workflowCreatedAt", "workflowUrl", "responseStatus"];
    object(&always, &fields)
}

fn waiter() -> Value {
    let fields = [
        ("url", text()),
        ("deadline", json!({ "type": "integer", "minimum": 0, "description": "Unix seconds." })),
        ("headers", headers()),
        ("timeoutUrl", text()),
        ("timeoutBody", json!({ "type": ["string", "null"] })),
        ("timeoutHeaders", headers()),
    ];
    object(&fields.each_ref().map(|(name, _)| *name), &fields)
}
