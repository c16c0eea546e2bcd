//! `/v2/receiver`: what the console's test receiver got for the tenant.

use super::auth::{Reader, Writer};
use super::body::Unread;
use super::error::ApiError;
use super::pieces::Pieces;
use super::response::answer;
use super::shape::{Object, put, put_text_or_base64};
use super::viewer::Viewer;
use crate::app::App;
use crate::receiver::{Received, SignatureCheck};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use posthaste_store::Store;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn get(caller: Reader, State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let inboxes = app.inboxes.clone().ok_or_else(off)?;
    let url = inboxes.url(viewer.tenant).ok_or_else(off)?;
    let make = move |_: &dyn Store| {
        let received = inboxes.received(viewer.tenant);
        let deliveries: Vec<Object> = received.iter().map(|received| shape(received, &viewer)).collect();
        Ok(Ok(Pieces::of(&json!({ "url": url, "deliveries": deliveries })).into()))
    };
    answer(&app, viewer.tenant, make).await
}

pub(super) async fn forget(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    _: Unread,
) -> Result<Json<Value>, ApiError> {
    let inboxes = app.inboxes.as_deref().ok_or_else(off)?;
    Ok(Json(json!({ "deleted": inboxes.forget(tenant) })))
}

fn off() -> ApiError {
    ApiError::not_found("the test receiver is off; set console_receiver = true to turn it on")
}

fn shape(received: &Received, viewer: &Viewer) -> Object {
    let mut object = Object::new();
    put(&mut object, "time", received.at.as_millis());
    if let Some(id) = received.message {
        put(&mut object, "messageId", id.to_string());
    }
    put(&mut object, "attempt", received.attempt);
    put(&mut object, "method", received.method.as_str());
    put(&mut object, "script", received.script.as_str());
    put(&mut object, "answer", received.answer.to_string());
    put(&mut object, "header", viewer.received_headers(&received.headers));
    put_text_or_base64(&mut object, "body", "bodyBase64", &received.body);
    put(&mut object, "bodyBytes", received.body_bytes);
    put(&mut object, "isCut", received.is_cut());
    put(&mut object, "signature", signature(received.signature));
    object
}

fn signature(check: SignatureCheck) -> Value {
    let mut object = json!({ "isValid": check.problem().is_none() });
    if let Some(key) = check.key() {
        object["key"] = key.into();
    }
    if let Some(problem) = check.problem() {
        object["problem"] = problem.into();
    }
    object
}
