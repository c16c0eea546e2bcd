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

pub use body::BODIES_BYTES_MAX;
pub(crate) use body::BYTES_PER_PERMIT;

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
        // Messages. A trailing slash must never turn "this one" into "all": see `messages::no_id`.
        ("/v2/messages", delete(messages::cancel_many)),
        ("/v2/messages/{id}", get(messages::get).delete(messages::cancel)),
        ("/v1/messages/{id}", get(messages::get).delete(messages::cancel)),
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
    let mut router = Router::new();
    for (path, methods) in routes {
        if !path.contains('*') && path != "/v2/messages" {
            router = router.route(&format!("{path}/"), methods.clone());
        }
        router = router.route(path, methods);
    }
    router
        .route("/v2/messages/", delete(messages::no_id))
        .fallback(|| async { ApiError::not_found("no such endpoint; see the API documentation for the paths there are") })
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// Around every request: a span, a figure, and an error envelope for what the framework refused itself.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = kind_of(request.uri().path());
    let span = tracing::info_span!("request", method = %request.method(), route);
    if let Some(refusal) = error::refuse_malformed(&request) {
        return refusal.into_response();
    }
    let started = Instant::now();
    let response = next.run(request).instrument(span).await;
    app.metrics.requested(route, started.elapsed());
    error::enveloped(response)
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
        _ => "other",
    }
}
