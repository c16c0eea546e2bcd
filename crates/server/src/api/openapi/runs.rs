//! The endpoints that start runs of workflows, move them on and end them.

use super::parameters::{CANCEL, DESTINATION, EVENT, RUN, RUN_ID, USER, run_filters, trigger};
use super::schemas::{done, list_of, millis, object, reference, text};
use super::{Answer, Endpoint, RequestBody};
use posthaste_api_types::message::Cancelled;
use posthaste_api_types::schema;
use posthaste_api_types::workflow::StartedRun;
use serde_json::{Value, json};

const TAG: &str = "Workflow runs";

/// In the order of the router.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let post = |path, summary| Endpoint::new("POST", path, TAG, summary);
    let step = json!({ "type": "object", "required": ["stepId"] });
    let wait = [("step", step), ("timeout", json!({ "type": ["string", "number", "null"] })), ("url", text())];
    let notify = |path, summary| {
        post(path, summary)
            .route("/v2/notify/{*event}")
            .body(RequestBody::Raw)
            .answers(200, "The runs that were waiting for the event.", list_of("NotifiedRun"))
            .errors(&[404, 412])
    };
    let mut endpoints = vec![
        post("/v2/trigger/{destination}", "Trigger a workflow run; the body is its payload")
            .route("/v2/trigger/{*destination}")
            .with(&[DESTINATION])
            .with(&trigger())
            .body(RequestBody::Raw)
            .answers(200, "The run that was started, or that is already active.", schema::reference::<StartedRun>())
            .errors(&[412]),
        post("/v2/trigger", "Rejected: the destination is missing"),
        post("/v2/batch/trigger", "Trigger a batch of workflow runs")
            .body(RequestBody::Json(list_of("BatchItem")))
            .answers(201, "One result for each item, in the same order.", schema::list::<StartedRun>())
            .errors(&[412]),
        post("/v2/wait/{event}", "Make a step of a run wait for an event")
            .route("/v2/wait/{*event}")
            .with(&[EVENT, RUN_ID])
            .body(RequestBody::Json(object(&["step"], &wait)))
            .answers(200, "The step waits, or the event has already arrived.", done())
            .errors(&[412]),
        notify("/v2/notify/{event}", "Send an event to all runs that are waiting for it").with(&[EVENT]),
        notify("/v2/notify/{run}/{event}", "Send an event to one run, which may not be waiting yet")
            .with(&[RUN, EVENT]),
        Endpoint::new("DELETE", "/v2/workflows/runs", TAG, "Cancel workflow runs that match filters")
            .with(&run_filters())
            .body(RequestBody::OptionalJson(reference("Filters")))
            .answers(200, "Number of cancelled runs.", schema::reference::<Cancelled>()),
        Endpoint::new("GET", "/v2/workflows/runs/{run}", TAG, "Get the entries of an active run")
            .route("/v2/workflows/runs/{*run}")
            .with(&[RUN])
            .answers(200, "All entries, oldest first.", list_of("RunEntry"))
            // A reader does not get those of a run that hides something.
            .errors(&[403, 404]),
        Endpoint::new("DELETE", "/v2/workflows/runs/{run}", TAG, "Cancel a run, or end it as a success")
            .route("/v2/workflows/runs/{*run}")
            .with(&[RUN, CANCEL])
            .body(RequestBody::Raw)
            .answers(200, "The run has ended.", json!({ "anyOf": [schema::reference::<Cancelled>(), done()] }))
            .errors(&[404, 412]),
    ];
    endpoints.extend(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"].map(hook));
    endpoints
}

/// A webhook takes whatever it is sent.
fn hook(method: &'static str) -> Endpoint {
    let path = "/v2/workflows/hooks/{user}/{run}/{event}";
    let mut endpoint = Endpoint::new(method, path, TAG, "Call a webhook of a run; the request becomes an event")
        .route("/v2/workflows/hooks/{user}/{run}/{*event}")
        .with(&[USER, RUN, EVENT])
        .answers(200, "The run has received the event.", object(&[], &[("messageId", text())]))
        .errors(&[404, 412, 413, 429]);
    if method == "OPTIONS" {
        let meaning = "In `dev`, the response to a CORS preflight request.";
        endpoint.answers.push(Answer { status: 204, meaning, content: None });
    }
    if method == "GET" { endpoint } else { endpoint.body(RequestBody::Raw) }
}

/// The objects above, by name.
pub(super) fn schemas() -> Vec<(&'static str, Value)> {
    vec![("NotifiedRun", notified_run()), ("RunEntry", run_entry())]
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
