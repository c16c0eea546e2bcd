//! For operators: is it alive, can it take messages, what has it done.

use super::auth::bearer;
use super::error::ApiError;
use crate::app::App;
use crate::config::MetricsAccess;
use crate::tenants::hash;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// The process answers.
pub(super) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// The store takes writes and the core takes commands.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if !app.is_running() {
        return Err(ApiError::overloaded("not ready: the engine is not running"));
    }
    match app.read(|store| store.probe()).await {
        Ok(()) => Ok(Json(json!({ "status": "ready" }))),
        Err(error) => {
            tracing::warn!(error = %error, "not ready");
            Err(ApiError::overloaded("not ready: the store does not take writes"))
        }
    }
}

/// Prometheus text.
pub(super) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    match &app.config.metrics_access {
        MetricsAccess::Open => {}
        MetricsAccess::Off => return Err(ApiError::not_found("metrics are off: set metrics_token to switch them on")),
        MetricsAccess::Token(expected) => {
            if bearer(&headers).map(hash).as_ref() != Some(expected) {
                return Err(ApiError::unauthenticated());
            }
        }
    }
    let counts = app.read(|store| store.counts()).await?;
    let text = app.metrics.text(counts).map_err(|_| ApiError::overloaded("the metrics cannot be written"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
