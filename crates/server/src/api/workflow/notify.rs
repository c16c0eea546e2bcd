//! `POST /v2/notify/{eventId}` and `POST /v2/notify/{runId}/{eventId}`: an event comes, for all who wait for it or for
//! one run.
//!
//! An event id may hold slashes. What stands before the first one names a run if it looks like one, or if there is one.

use super::waiters::waiter_json;
use super::{checked_name, refused_event};
use crate::api::auth::Writer;
use crate::api::body;
use crate::api::error::ApiError;
use crate::api::params::decoded;
use crate::api::pieces::{Finished, Pieces};
use crate::api::publish::{refuse_when_disk_is_low, rest_of};
use crate::api::response::{SMALL_RESPONSE_BYTES, room_after, sent};
use crate::api::storing;
use crate::api::viewer::Viewer;
use crate::app::App;
use crate::core::{Notified, RunKey};
use crate::tenants::Scope;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use posthaste_engine::workflow::entry::base64_len;
use posthaste_store::ReadPool;
use posthaste_wire::id::TenantId;
use serde_json::{Value, json};
use std::sync::Arc;

/// What the ids of runs begin with that clients or the server have made.
const RUN_PREFIX: &str = "wfr_";

pub(in crate::api) async fn notify(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    refuse_when_disk_is_low(&app)?;
    let max = app.config.message_bytes_max;
    let over = || ApiError::message_too_large(max);
    let body = body::read(&app, tenant, &parts.headers, body, max, over).await?;
    let (run, event) = addressee(&app, tenant, rest_of(parts.uri.path())).await?;
    let event = checked_name("the event id", &event)?;
    let data = body.bytes.to_vec();
    let notified = match run {
        // Only the core knows how many runs wait, and takes room for their copies.
        None => app.core.notify(tenant, event, data).await?,
        Some(id) => {
            let _promise = storing::admit(&app, tenant, base64_len(data.len() as u64) as usize)?;
            let run = RunKey { id: checked_name("the run id", &id)?, created_at: None };
            let notified = app.core.notify_run(tenant, run, event, data).await?;
            notified.map_err(refused_event)?.into_iter().collect()
        }
    };
    Ok(told(&app, tenant, &notified))
}

/// The runs that the event has reached; as many as fit a small response, if there is no room for a large one: the event has
/// reached them, so this is no error.
fn told(app: &App, tenant: TenantId, notified: &[Notified]) -> Response {
    let viewer = Viewer::of_scope(app, tenant, Scope::Full);
    let shown = || notified.iter().map(|notified| notified_json(notified, &viewer));
    let json = listed(shown(), usize::MAX);
    match room_after(app, tenant, json.held()) {
        Ok(room) => sent(StatusCode::OK, json, room),
        Err(_) => sent(StatusCode::OK, listed(shown(), SMALL_RESPONSE_BYTES), ()),
    }
}

/// A list of the first of these, as many as this many bytes have room for.
fn listed(values: impl Iterator<Item = Value>, bytes_max: usize) -> Finished {
    let mut left = bytes_max.saturating_sub("[]".len());
    let fits = |text: &String| {
        let rest = left.checked_sub(text.len() + ",".len());
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    let texts = values.map(|value| value.to_string()).take_while(fits);
    let mut pieces = Pieces::default();
    pieces.raw("[");
    for (place, text) in texts.enumerate() {
        pieces.raw(if place == 0 { "" } else { "," });
        pieces.raw(&text);
    }
    pieces.raw("]");
    pieces.finish()
}

/// The run, if one is named, and the event.
async fn addressee(app: &Arc<App>, tenant: TenantId, rest: &str) -> Result<(Option<String>, String), ApiError> {
    if let Some((run, event)) = split(rest) {
        let run = decoded(run)?;
        let is_known = run.starts_with(RUN_PREFIX) || {
            let run = run.clone();
            app.look_up(move |store| store.find_run(tenant, &run, None, ReadPool::Queries)).await?.is_some()
        };
        if is_known {
            return Ok((Some(run), decoded(event)?));
        }
    }
    Ok((None, decoded(rest)?))
}

/// What may be a run and an event, both still encoded.
pub(super) fn split(rest: &str) -> Option<(&str, &str)> {
    rest.split_once('/').filter(|(run, event)| !run.is_empty() && !event.is_empty())
}

/// A run that an event has reached.
fn notified_json(notified: &Notified, viewer: &Viewer) -> Value {
    json!({
        "waiter": waiter_json(&notified.url, &notified.redact, &notified.wait, viewer),
        "messageId": notified.message_id.to_string(),
        "workflowRunId": notified.id,
        "workflowCreatedAt": notified.created_at.as_millis(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_the_first_slash_may_be_a_run() {
        for (rest, expected) in [
            ("event", None),
            ("wfr_1/event", Some(("wfr_1", "event"))),
            ("ev/1/2", Some(("ev", "1/2"))),
            ("/event", None),
            ("event/", None),
            ("", None),
        ] {
            assert_eq!(split(rest), expected, "{rest}");
        }
    }

    #[tokio::test]
    async fn a_list_that_may_not_be_long_ends_with_a_whole_run() {
        let text = async |bytes_max: usize| {
            let values = ["first", "second", "third"].into_iter().map(Value::from);
            let body = listed(values, bytes_max).into_body(());
            let bytes = axum::body::to_bytes(body, 1_000).await.expect("it is short");
            assert!(bytes.len() <= bytes_max.max("[]".len()));
            String::from_utf8(bytes.to_vec()).expect("JSON is text")
        };
        assert_eq!(text(usize::MAX).await, r#"["first","second","third"]"#);
        assert_eq!(text(26).await, r#"["first","second"]"#);
        assert_eq!(text(10).await, r#"["first"]"#);
        assert_eq!(text(0).await, "[]");
    }
}
