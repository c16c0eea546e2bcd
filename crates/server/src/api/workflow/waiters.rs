//! `GET /v2/waiters/{event}`: which runs wait for an event.

use super::headers::forwarded_name;
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
use posthaste_wire::encoding::header_bytes;
use posthaste_wire::header::{self, canonical};
use posthaste_wire::redact::{self, RedactFields};
use serde_json::{Value, json};
use std::sync::Arc;

/// In the order of asking. The event is the raw rest of the path, slashes included.
pub(in crate::api) async fn list(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Read)?;
    let event = decoded(rest_of(request.uri().path()))?;
    let waits = app.read(move |store| store.waits(tenant, &event, WAITERS_LISTED_MAX)).await?;
    Ok(Json(waits.iter().map(|it| waiter_json(&it.url, &it.redact, &it.wait)).collect()))
}

/// A wait as callers see it, without what its run hides. Clients look for the run's id under the canonical name of its
/// header.
pub(super) fn waiter_json(run_url: &str, redact: &RedactFields, wait: &Wait) -> Value {
    let mut headers = Object::new();
    let mut as_sent = Object::new();
    for (name, values) in &wait.headers {
        let shown = match is_hidden(name, redact) {
            true => values.iter().map(|value| redact::mark(&header_bytes(value))).collect(),
            false => values.clone(),
        };
        put(&mut as_sent, name, json!(shown));
        headers.entry(canonical(name)).or_insert_with(|| json!(shown));
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

/// A header that is to be sent on is hidden by the name under which it arrives.
fn is_hidden(name: &str, redact: &RedactFields) -> bool {
    let sent_as = forwarded_name(name).map_or(name, |(_, name)| name);
    redact.hides_header(sent_as) && !name.eq_ignore_ascii_case(header::WORKFLOW_RUN_ID)
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
        assert_eq!(waiter_json("http://app/wf", &RedactFields::default(), &wait), expected);
    }

    #[test]
    fn a_waiter_hides_what_its_run_does_but_not_which_run_it_is() {
        let names =
            ["Upstash-Workflow-RunId", "Upstash-Forward-X-Key", "upstash-failure-callback-forward-x-key", "X-Open"];
        let wait = Wait {
            event: "approved".into(),
            step: StepText::new(),
            timer: MessageId { seq: Seq(1), tag: 1 },
            deadline: Timestamp(0),
            timeout: "10s".into(),
            headers: names.map(|name| (name.to_owned(), vec!["value".to_owned()])).into(),
            terms: Default::default(),
        };
        for (hidden, expected) in
            [("body", [false; 4]), ("header[X-Key]", [false, true, true, false]), ("header", [false, true, true, true])]
        {
            let shown = waiter_json("http://app/wf", &RedactFields::parse(hidden).unwrap(), &wait);
            for (name, is_hidden) in names.into_iter().zip(expected) {
                let value = if is_hidden { redact::mark(b"value") } else { "value".to_owned() };
                let both = (&shown["timeoutHeaders"][name], &shown["headers"][canonical(name)]);
                assert_eq!(both, (&json!([value]), &json!([value])), "{hidden}: {name}");
            }
        }
    }
}
