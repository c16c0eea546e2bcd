//! For operators: is it alive, can it take messages, what has it done.

use super::access::Anyone;
use super::auth::Scraper;
use super::error::ApiError;
use crate::app::App;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use posthaste_api_types::health::{Condition, Health};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an answer of the store to "can you write?" is believed.
const PROBE_VALID: Duration = Duration::from_secs(1);

/// The process answers.
pub(super) async fn health(_: Anyone) -> Json<Health> {
    Json(Health { status: Condition::Ok })
}

/// The store takes writes and the core takes commands.
pub(super) async fn ready(_: Anyone, State(app): State<Arc<App>>) -> Result<Json<Health>, ApiError> {
    if !app.is_running() {
        return Err(ApiError::overloaded("not ready: the engine is not running"));
    }
    if app.disk_is_low() {
        return Err(ApiError::overloaded("not ready: the disk is nearly full, so publishes are rejected"));
    }
    if !store_takes_writes(&app).await {
        return Err(ApiError::overloaded("not ready: the store does not accept writes"));
    }
    Ok(Json(Health { status: Condition::Ready }))
}

/// Asks the store at most once per [`PROBE_VALID`]: anybody may call `/ready`, as often as they like.
pub(super) async fn store_takes_writes(app: &Arc<App>) -> bool {
    let mut last = app.last_probe.lock().await;
    if let Some((at, result)) = *last
        && at.elapsed() < PROBE_VALID
    {
        return result;
    }
    let result = app.look_up(|store| store.probe()).await;
    if let Err(error) = &result {
        tracing::warn!(error = %error, "the store does not accept writes");
    }
    *last = Some((Instant::now(), result.is_ok()));
    result.is_ok()
}

/// Prometheus text.
pub(super) async fn metrics(_: Scraper, State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let text = metrics_text(&app).await?;
    let wants_open = headers
        .get(header::ACCEPT)
        .is_some_and(|accept| accept.to_str().is_ok_and(|accept| accept.contains("application/openmetrics-text")));
    let kind = if wants_open {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=0.0.4; charset=utf-8"
    };
    Ok(([(header::CONTENT_TYPE, kind)], text.to_string()).into_response())
}

async fn metrics_text(app: &Arc<App>) -> Result<Arc<str>, ApiError> {
    if let Some(recent) = app.metrics.recent_text(app.clock.now()) {
        return Ok(recent);
    }
    let counts = app.look_up(|store| store.counts()).await?;
    let text = app.metrics.text(counts).map_err(|_| ApiError::overloaded("the metrics cannot be written"))?;
    let text: Arc<str> = text.into();
    app.metrics.keep_text(text.clone());
    Ok(text)
}
