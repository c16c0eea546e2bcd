//! The HTTP API: the router on one screen, one file per resource.
//!
//! The wire contract is QStash's. Handlers parse, ask the core or the store, and shape the answer; they
//! decide nothing and know no SQL.

mod auth;
mod batch;
mod body;
mod dlq;
mod error;
mod events;
mod health;
mod keys;
mod messages;
mod params;
mod publish;
mod shape;
mod url_groups;

pub(crate) use body::BodyBudget;

use crate::app::App;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use error::ApiError;
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;

/// All routes of the server.
pub fn router(app: Arc<App>) -> Router {
    let routes: Vec<(&str, MethodRouter<Arc<App>>)> = vec![
        // Publishing. The destination is the raw rest of the path, whatever it holds.
        ("/v2/publish", post(publish::publish)),
        ("/v2/publish/{*destination}", post(publish::publish)),
        ("/v1/publish/{*destination}", post(publish::publish)),
        ("/v2/batch", post(batch::batch)),
        // Messages.
        ("/v2/messages", delete(messages::cancel_many)),
        ("/v2/messages/{id}", get(messages::get).delete(messages::cancel)),
        ("/v1/messages/{id}", get(messages::get).delete(messages::cancel)),
        // URL groups, which the protocol calls topics.
        ("/v2/topics", get(url_groups::list)),
        ("/v2/topics/{name}", get(url_groups::get).post(url_groups::add)),
        ("/v2/topics/{name}", delete(url_groups::delete).patch(url_groups::set_headers)),
        ("/v2/topics/{name}/endpoints", post(url_groups::add).delete(url_groups::remove)),
        // The DLQ.
        ("/v2/dlq", get(dlq::list).delete(dlq::delete_many)),
        ("/v2/dlq/messages", get(dlq::list)),
        ("/v2/dlq/messages/{id}", delete(dlq::delete)),
        ("/v2/dlq/retry", post(dlq::retry_many)),
        ("/v2/dlq/retry/{id}", post(dlq::retry)),
        ("/v2/dlq/{id}", get(dlq::get).delete(dlq::delete)),
        // Logs.
        ("/v2/events", get(events::list)),
        ("/v2/logs", get(events::list)),
        ("/v1/events", get(events::list)),
        ("/v1/logs", get(events::list)),
        // Signing keys.
        ("/v2/keys", get(keys::get)),
        ("/v1/keys", get(keys::get)),
        ("/v2/keys/rotate", post(keys::rotate)),
        ("/v1/keys/rotate", post(keys::rotate)),
        ("/v2/rotate", post(keys::rotate)),
        // Operators.
        ("/health", get(health::health)),
        ("/ready", get(health::ready)),
        ("/metrics", get(health::metrics)),
    ];
    // A forgotten id must never turn "this one" into "all".
    let forgotten_ids: Vec<(&str, MethodRouter<Arc<App>>)> = vec![
        ("/v2/messages/", get(no_id).delete(no_id)),
        ("/v2/dlq/", get(dlq::list).delete(no_id)),
        ("/v2/dlq/retry/", post(no_id)),
    ];
    let guarded: Vec<&str> = forgotten_ids.iter().map(|(path, _)| *path).collect();
    let mut router = Router::new();
    for (path, methods) in routes {
        let with_slash = format!("{path}/");
        if !path.contains('*') && !guarded.contains(&with_slash.as_str()) {
            router = router.route(&with_slash, methods.clone());
        }
        router = router.route(path, methods);
    }
    for (path, methods) in forgotten_ids {
        router = router.route(path, methods);
    }
    router.fallback(no_endpoint).layer(middleware::from_fn_with_state(app.clone(), observe)).with_state(app)
}

/// An id was forgotten in the path.
async fn no_id() -> ApiError {
    ApiError::invalid("the id is empty; to act on many use the path without the last slash")
}

/// Parts of the protocol that later versions will have: say so, rather than "no such path".
const LATER: [&str; 8] =
    ["queues", "enqueue", "schedules", "flowcontrol", "globalparallelism", "bulkactions", "workflows", "trigger"];

async fn no_endpoint(request: Request) -> ApiError {
    let segment = request.uri().path().split('/').nth(2).unwrap_or_default().to_ascii_lowercase();
    if LATER.contains(&segment.as_str()) {
        return ApiError::unsupported(format!("{segment} are not supported by this version of Posthaste"));
    }
    ApiError::not_found("no such endpoint; docs/api.md lists the paths there are")
}

/// Around every request: a span, a figure, and an error envelope for what the framework refused itself.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = kind_of(request.uri().path());
    let span = tracing::info_span!("request", method = %request.method(), route);
    let started = Instant::now();
    let response = match error::refuse_malformed(&request) {
        Some(refusal) => refusal.into_response(),
        None => error::enveloped(next.run(request).instrument(span.clone()).await),
    };
    let (status, took) = (response.status(), started.elapsed());
    app.metrics.requested(route, status.as_u16(), took);
    let _in_span = span.enter();
    if status.is_server_error() {
        tracing::warn!(status = status.as_u16(), duration_ms = took.as_millis() as u64, "request failed");
    } else {
        tracing::debug!(status = status.as_u16(), duration_ms = took.as_millis() as u64, "request answered");
    }
    response
}

/// A short name for what is asked; the path itself may hold secrets of the destination.
fn kind_of(path: &str) -> &'static str {
    let mut segments = path.split('/').skip(2);
    match segments.next() {
        Some("publish") => "publish",
        Some("batch") => "batch",
        Some("messages") => "messages",
        Some("dlq") => "dlq",
        Some("events" | "logs") => "logs",
        Some("keys" | "rotate") => "keys",
        Some("topics") => "topics",
        _ => "other",
    }
}
