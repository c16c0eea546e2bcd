//! The endpoints that start runs of workflows, move them on and end them.

use super::parameters::{CANCEL, DESTINATION, EVENT, RUN, RUN_ID, USER, run_filters, trigger};
use super::schemas::{done, list_of, millis, object, reference, text};
use super::{Access, Answer, Endpoint, RequestBody};
use serde_json::{Value, json};

const TAG: &str = "Workflow runs";

/// In the order of the router.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let post = |path, summary| Endpoint::new("POST", path, Access::Write, TAG, summary);
    let step = json!({ "type": "object", "required": ["stepId"] });
    let wait = [("step", step), ("timeout", json!({ "type": ["string", "number", "null"] })), ("url", text())];
    let notify = |path, summary| {
        post(path, summary)
            .route("/v2/notify/{*event}")
            .body(RequestBody::Raw)
            .answers(200, "The runs that waited for it.", list_of("NotifiedRun"))
            .errors(&[404, 412])
    };
    let mut endpoints = vec![
        post("/v2/trigger/{destination}", "Start a workflow run; the body is what it is given")
            .route("/v2/trigger/{*destination}")
            .with(&[DESTINATION])
            .with(&trigger())
            .body(RequestBody::Raw)
            .answers(200, "It goes on.", reference("StartedRun"))
            .errors(&[412]),
        post("/v2/trigger", "Without a destination: refused"),
        post("/v2/batch/trigger", "Start many workflow runs in one transaction")
            .body(RequestBody::Json(list_of("BatchItem")))
            .answers(201, "One result for each item, in their order.", list_of("StartedRun"))
            .errors(&[412]),
        post("/v2/wait/{event}", "A step of a run waits for an event")
            .route("/v2/wait/{*event}")
            .with(&[EVENT, RUN_ID])
            .body(RequestBody::Json(object(&["step"], &wait)))
            .answers(200, "It waits, or the event had come before.", done())
            .errors(&[412]),
        notify("/v2/notify/{event}", "Send an event to all runs that wait for it").with(&[EVENT]),
        notify("/v2/notify/{run}/{event}", "Send an event to a run, which need not wait for it yet")
            .with(&[RUN, EVENT]),
        Endpoint::new("DELETE", "/v2/workflows/runs", Access::Write, TAG, "Cancel many workflow runs")
            .with(&run_filters())
            .body(RequestBody::OptionalJson(reference("Filters")))
            .answers(200, "How many were cancelled.", reference("Cancelled")),
        Endpoint::new("GET", "/v2/workflows/runs/{run}", Access::Read, TAG, "Fetch the entries of a run that goes on")
            .route("/v2/workflows/runs/{*run}")
            .with(&[RUN])
            .answers(200, "All of them, the oldest first.", list_of("RunEntry"))
            // A reader does not get those of a run that hides something.
            .errors(&[403, 404]),
        Endpoint::new(
            "DELETE",
            "/v2/workflows/runs/{run}",
            Access::Write,
            TAG,
            "Cancel a run, or say that it has succeeded",
        )
        .route("/v2/workflows/runs/{*run}")
        .with(&[RUN, CANCEL])
        .body(RequestBody::Raw)
        .answers(200, "It has ended.", json!({ "anyOf": [reference("Cancelled"), done()] }))
        .errors(&[404, 412]),
    ];
    endpoints.extend(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"].map(hook));
    endpoints
}

/// A webhook takes whatever it is sent.
fn hook(method: &'static str) -> Endpoint {
    let path = "/v2/workflows/hooks/{user}/{run}/{event}";
    let mut endpoint =
        Endpoint::new(method, path, Access::Open, TAG, "Send a request to a run, as an event that it waits for")
            .route("/v2/workflows/hooks/{user}/{run}/{*event}")
            .with(&[USER, RUN, EVENT])
            .answers(200, "The run has it.", object(&[], &[("messageId", text())]))
            .errors(&[404, 412, 413, 429]);
    if method == "OPTIONS" {
        let meaning = "In dev, where a browser asks whether pages may call: they may.";
        endpoint.answers.push(Answer { status: 204, meaning, content: None });
    }
    if method == "GET" { endpoint } else { endpoint.body(RequestBody::Raw) }
}

/// The objects above, by name.
pub(super) fn schemas() -> Vec<(&'static str, Value)> {
    vec![("StartedRun", started_run()), ("NotifiedRun", notified_run()), ("RunEntry", run_entry())]
}

fn started_run() -> Value {
    let fields = [
        ("workflowRunId", text()),
        ("workflowCreatedAt", millis()),
        ("deduplicated", json!({ "const": true, "description": "Nothing was started: this run goes on already." })),
    ];
    object(&["workflowRunId", "workflowCreatedAt"], &fields)
}

fn notified_run() -> Value {
    let fields = [
        ("waiter", reference("Waiter")),
        ("messageId", text()),
        ("workflowRunId", text()),
        ("workflowCreatedAt", millis()),
    ];
    object(&["waiter", "messageId", "workflowRunId", "workflowCreatedAt"], &fields)
}

fn run_entry() -> Value {
    let fields = [
        ("messageId", text()),
        ("body", json!({ "type": "string", "contentEncoding": "base64" })),
        ("callType", text()),
        ("createdAt", millis()),
    ];
    object(&["messageId", "body", "callType"], &fields)
}
