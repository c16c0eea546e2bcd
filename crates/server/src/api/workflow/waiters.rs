//! `GET /v2/waiters/{event}`: which runs wait for an event.

use super::headers::forwarded_name;
use crate::api::auth::Reader;
use crate::api::error::ApiError;
use crate::api::params::{Params, decoded};
use crate::api::pieces::Pieces;
use crate::api::publish::rest_of;
use crate::api::response::{Answer, answer};
use crate::api::shape::{Object, put};
use crate::api::viewer::Viewer;
use crate::app::App;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use posthaste_engine::limits::WAITERS_LISTED_MAX;
use posthaste_engine::workflow::run::Wait;
use posthaste_store::Store;
use posthaste_wire::header::{self, canonical};
use posthaste_wire::id::Seq;
use posthaste_wire::redact::RedactFields;
use serde_json::{Value, json};
use std::sync::Arc;

/// In the order of asking, as a bare list; a header says where the next page begins. The event is the raw rest of the path,
/// slashes included.
pub(in crate::api) async fn list(caller: Reader, State(app): State<Arc<App>>, uri: Uri) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let event = decoded(rest_of(uri.path()))?;
    let params = Params::from_query(uri.query());
    let count = params.number("count", 1)?.and_then(|count| usize::try_from(count).ok());
    let count = count.unwrap_or(WAITERS_LISTED_MAX).min(WAITERS_LISTED_MAX);
    let after = match params.one("cursor")?.filter(|text| !text.is_empty()) {
        None => Seq::MIN,
        Some(text) => Seq(text
            .parse()
            .map_err(|_| ApiError::invalid("cursor is invalid; use the cursor of the previous page"))?),
    };
    let make = move |store: &dyn Store| {
        let mut waits = store.waits(viewer.tenant, &event, after, count)?;
        let last = waits.last().map(|last| last.wait.timer.seq);
        let next = match last {
            Some(last) if !store.waits(viewer.tenant, &event, last, 1)?.is_empty() => Some(last.0.to_string()),
            _ => None,
        };
        let mut pieces = Pieces::default();
        pieces.raw("[");
        for (place, listed) in waits.drain(..).enumerate() {
            pieces.raw(if place == 0 { "" } else { "," });
            pieces.value(&waiter_json(&listed.url, &listed.redact, &listed.wait, &viewer));
        }
        pieces.raw("]");
        Ok(Ok(Answer { json: pieces.finish(), cursor: next }))
    };
    answer(&app, viewer.tenant, make).await
}

/// A wait as callers see it, without what its run or its step hides. Clients look for the run's id under the canonical name
/// of its header.
pub(super) fn waiter_json(run_url: &str, redact: &RedactFields, wait: &Wait, viewer: &Viewer) -> Value {
    let redact = redact.union(&wait.terms.redact);
    let mut headers = Object::new();
    let mut as_sent = Object::new();
    for (name, values) in &wait.headers {
        let is_hidden = is_hidden(name, &redact, viewer);
        let shown: Vec<String> =
            values.iter().map(|value| viewer.stored_value(is_hidden, value, str::to_owned)).collect();
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
fn is_hidden(name: &str, redact: &RedactFields, viewer: &Viewer) -> bool {
    let sent_as = forwarded_name(name).map_or(name, |(_, name)| name);
    viewer.hides_header(redact, sent_as) && !name.eq_ignore_ascii_case(header::WORKFLOW_RUN_ID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Credentials;
    use crate::tenants::Scope;
    use posthaste_engine::workflow::run::StepText;
    use posthaste_wire::id::{MessageId, TenantId};
    use posthaste_wire::redact::Marks;
    use posthaste_wire::time::Timestamp;

    fn viewer(scope: Scope) -> Viewer {
        Viewer::with((Marks::of(&[0; 32], TenantId(1)), Credentials::default()), TenantId(1), scope)
    }

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
        assert_eq!(waiter_json("http://app/wf", &RedactFields::default(), &wait, &viewer(Scope::Full)), expected);
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
            let shown =
                waiter_json("http://app/wf", &RedactFields::parse(hidden).unwrap(), &wait, &viewer(Scope::Full));
            for (name, is_hidden) in names.into_iter().zip(expected) {
                let value = if is_hidden { viewer(Scope::Full).mark(b"value") } else { "value".to_owned() };
                let both = (&shown["timeoutHeaders"][name], &shown["headers"][canonical(name)]);
                assert_eq!(both, (&json!([value]), &json!([value])), "{hidden}: {name}");
            }
        }
    }

    #[test]
    fn a_waiter_hides_what_its_own_step_does_and_credentials_from_those_who_may_only_read() {
        let names = ["Upstash-Forward-Authorization", "Upstash-Forward-X-Key", "X-Open"];
        let mut wait = Wait {
            event: "approved".into(),
            step: StepText::new(),
            timer: MessageId { seq: Seq(1), tag: 1 },
            deadline: Timestamp(0),
            timeout: "10s".into(),
            headers: names.map(|name| (name.to_owned(), vec!["value".to_owned()])).into(),
            terms: Default::default(),
        };
        let hidden = |wait: &Wait, scope| {
            let shown = waiter_json("http://app/wf", &RedactFields::default(), wait, &viewer(scope));
            names.map(|name| shown["timeoutHeaders"][name] != json!(["value"]))
        };
        assert_eq!(hidden(&wait, Scope::Full), [false; 3]);
        assert_eq!(hidden(&wait, Scope::ReadOnly), [true, false, false]);
        wait.terms.redact = RedactFields::parse("header[X-Key]").unwrap();
        assert_eq!(hidden(&wait, Scope::Full), [false, true, false]);
    }
}
