//! `/v2/receiver`: what the console's test receiver got for the tenant.

use super::auth::{Reader, Writer};
use super::body::Unread;
use super::error::ApiError;
use super::pieces::Pieces;
use super::response::answer;
use super::shape::text_or_base64;
use super::viewer::Viewer;
use crate::app::App;
use crate::receiver::{Received, SignatureCheck};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use posthaste_api_types::receiver::{Cleared, ReceivedDelivery, SignatureVerdict, TestReceiver};
use posthaste_store::Store;
use std::sync::Arc;

pub(super) async fn get(caller: Reader, State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let inboxes = app.inboxes.clone().ok_or_else(off)?;
    let url = inboxes.url(viewer.tenant).ok_or_else(off)?;
    let make = move |_: &dyn Store| {
        let received = inboxes.received(viewer.tenant);
        let deliveries = received.iter().map(|received| shape(received, &viewer)).collect();
        Ok(Ok(Pieces::of(&TestReceiver { url: url.clone(), deliveries }).into()))
    };
    answer(&app, viewer.tenant, make).await
}

pub(super) async fn forget(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    _: Unread,
) -> Result<Json<Cleared>, ApiError> {
    let inboxes = app.inboxes.as_deref().ok_or_else(off)?;
    Ok(Json(Cleared { deleted: inboxes.forget(tenant) as u64 }))
}

fn off() -> ApiError {
    ApiError::not_found("the test receiver is off; set console_receiver = true to turn it on")
}

fn shape(received: &Received, viewer: &Viewer) -> ReceivedDelivery {
    let (body, body_base64) = text_or_base64(&received.body);
    ReceivedDelivery {
        time: received.at,
        message_id: received.message.map(|id| id.to_string()),
        attempt: received.attempt.into(),
        method: received.method.as_str().to_owned(),
        script: received.script.clone(),
        answer: received.answer.to_string(),
        header: viewer.received_headers(&received.headers),
        body,
        body_base64,
        body_bytes: received.body_bytes,
        is_cut: received.is_cut(),
        signature: signature(received.signature),
    }
}

fn signature(check: SignatureCheck) -> SignatureVerdict {
    SignatureVerdict { is_valid: check.problem().is_none(), key: check.key(), problem: check.problem().map(Into::into) }
}
