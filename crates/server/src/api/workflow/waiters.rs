//! `GET /v2/waiters/{event}`: which runs wait for an event.

use crate::api::auth::{Access, authorize};
use crate::api::error::ApiError;
use crate::api::params::decoded;
use crate::api::publish::rest_of;
use crate::api::shape::{Object, put};
use crate::app::App;
use axum::Json;
use axum::extract::{Request, State};
use posthaste_engine::limits::WAITERS_LISTED_MAX;
use posthaste_engine::workflow::run::Wait;
use posthaste_wire::header::canonical;
use serde_json::{Value, json};
use std::sync::Arc;

/// In the order of asking. The event is the raw rest of the path, slashes included.
pub(in crate::api) async fn list(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Read)?;
    let event = decoded(rest_of(request.uri().path()))?;
    let waits = app.read(move |store| store.waits(tenant, &event, WAITERS_LISTED_MAX)).await?;
    Ok(Json(waits.iter().map(|(url, wait)| waiter_json(url, wait)).collect()))
}

/// A wait as callers see it. Clients look for the run's id under the canonical name of its header.
pub(super) fn waiter_json(run_url: &str, wait: &Wait) -> Value {
    let mut headers = Object::new();
    for (name, values) in &wait.headers {
        headers.entry(canonical(name)).or_insert_with(|| json!(values));
    }
    let mut as_sent = Object::new();
    for (name, values) in &wait.headers {
        put(&mut as_sent, name, json!(values));
    }
    json!({
        "url": run_url,
        "deadline": wait.deadline.as_seconds(),
        "headers": headers,
        "timeoutUrl": run_url,
        "timeoutBody": null,
        "timeoutHeaders": as_sent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_engine::workflow::run::StepText;
    use posthaste_wire::id::{MessageId, Seq};
    use posthaste_wire::time::Timestamp;

    #[test]
    fn a_waiter_has_its_deadline_in_seconds_and_its_run_under_the_canonical_name() {
        let headers =
            [("Upstash-Workflow-RunId", "wfr_1"), ("Upstash-Workflow-Runid", "wfr_1"), ("content-type", "x/y")];
        let wait = Wait {
            event: "approved".into(),
            step: StepText::new(),
            timer: MessageId { seq: Seq(1), tag: 1 },
            deadline: Timestamp(1_767_225_600_999),
            timeout: "10s".into(),
            headers: headers.map(|(name, value)| (name.to_owned(), vec![value.to_owned()])).into(),
            terms: Default::default(),
        };
        let expected = json!({
            "url": "http://app/wf",
            "deadline": 1_767_225_600,
            "headers": { "Upstash-Workflow-Runid": ["wfr_1"], "Content-Type": ["x/y"] },
            "timeoutUrl": "http://app/wf",
            "timeoutBody": null,
            "timeoutHeaders": {
                "Upstash-Workflow-RunId": ["wfr_1"],
                "Upstash-Workflow-Runid": ["wfr_1"],
                "content-type": ["x/y"],
            },
        });
        assert_eq!(waiter_json("http://app/wf", &wait), expected);
    }
}
