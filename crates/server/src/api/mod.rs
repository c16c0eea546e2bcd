//! The HTTP API: the router on one screen, one file per resource.
//!
//! The wire contract is QStash's. Handlers parse, ask the core or the store, and shape the answer; they
//! decide nothing and know no SQL.

mod access;
mod allowance;
mod auth;
mod batch;
mod body;
mod bulk_actions;
mod caller;
mod causes;
mod cors;
mod counts;
mod cron;
mod dlq;
mod duplicates;
mod error;
mod event_stream;
mod events;
mod flow_control;
#[doc(hidden)]
pub mod fuzzing;
mod header_hints;
mod health;
mod keys;
mod llm;
mod messages;
mod openapi;
mod pages;
mod params;
mod path;
mod pieces;
mod publish;
mod queues;
mod receiver;
mod response;
mod retry_delay;
mod schedules;
mod settings;
mod shape;
mod stats;
mod storing;
mod token_guesses;
mod turns;
mod url_groups;
mod viewer;
mod why;
mod workflow;

pub(crate) use allowance::{Allowances, Exhausted};
pub(crate) use body::{BodyBudget, READ_TIMEOUT, read_form};
pub(crate) use bulk_actions::stored_filter;
pub(crate) use caller::{Peer, caller as address_of_caller};
pub(crate) use counts::{Countable, Counted, count};
pub(crate) use dlq::{replay_of, stored_changes};
pub(crate) use duplicates::Duplicates;
pub(crate) use event_stream::Streams;
pub(crate) use llm::LlmUpstream;
pub(crate) use response::{CURSOR, ResponseBudget};

use crate::app::App;
use crate::browsers::Page;
use crate::config::Mode;
use access::{Methods, delete, get, post};
use auth::{Reader, Writer};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{Method, header};
use axum::middleware;
use axum::response::{IntoResponse, Redirect, Response};
use error::ApiError;
use posthaste_faults::crash_point::panic_point;
use posthaste_faults::panics::{Panicked, caught};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;
use tower::ServiceExt;

pub use openapi::documented_routes;

/// All routes of the server. `openapi` describes each.
fn all_routes() -> impl Iterator<Item = (&'static str, Methods)> {
    routes().into_iter().chain(workflow_routes())
}

/// Those about messages, what they go through, and the server itself.
fn routes() -> Vec<(&'static str, Methods)> {
    vec![
        // Publishing. The destination is the raw rest of the path, whatever it holds.
        ("/v2/publish", post(publish::publish)),
        ("/v2/publish/{*destination}", post(publish::publish)),
        ("/v1/publish", post(publish::publish)),
        ("/v1/publish/{*destination}", post(publish::publish)),
        ("/v2/enqueue", post(publish::enqueue)),
        ("/v2/enqueue/{queue}", post(publish::enqueue)),
        ("/v2/enqueue/{queue}/{*destination}", post(publish::enqueue)),
        ("/v2/batch", post(batch::batch)),
        // Messages.
        ("/v2/messages", delete(messages::cancel_many)),
        ("/v2/messages/{id}", get(messages::get).delete(messages::cancel)),
        ("/v2/messages/{id}/retry", post(messages::retry)),
        ("/v2/messages/{id}/why", get(why::get)),
        ("/v1/messages/{id}", get(messages::get).delete(messages::cancel)),
        // Bulk actions.
        ("/v2/bulkActions", get(bulk_actions::list)),
        ("/v2/bulkActions/{id}", get(bulk_actions::get).delete(bulk_actions::stop)),
        // Queues.
        ("/v2/queues", get(queues::list).post(queues::put)),
        ("/v2/queues/{name}", get(queues::get).delete(queues::delete)),
        ("/v2/queues/{name}/pause", post(queues::pause)),
        ("/v2/queues/{name}/resume", post(queues::resume)),
        // Schedules. What follows is an id, or a destination.
        ("/v2/schedules", get(schedules::list).post(schedules::post)),
        ("/v2/schedules/{*rest}", get(schedules::get).delete(schedules::delete)),
        ("/v2/schedules/{*rest}", post(schedules::post).patch(schedules::patch)),
        ("/v1/schedules", get(schedules::list)),
        ("/v1/schedules/{*rest}", get(schedules::get).delete(schedules::delete)),
        ("/v2/cron", get(cron::forecast)),
        // Flow control. A key is the raw rest of the path, slashes included.
        ("/v2/flowControl", get(flow_control::list)),
        ("/v2/flowControl/{*key}", get(flow_control::get).post(flow_control::edit)),
        ("/v2/globalParallelism", get(flow_control::global)),
        // URL groups, which the protocol calls topics.
        ("/v2/topics", get(url_groups::list)),
        ("/v2/topics/{name}", get(url_groups::get).post(url_groups::add)),
        ("/v2/topics/{name}", delete(url_groups::delete).patch(url_groups::set_headers)),
        ("/v1/topics", get(url_groups::list)),
        ("/v1/topics/{name}", get(url_groups::get).delete(url_groups::delete)),
        ("/v2/topics/{name}/endpoints", post(url_groups::add).delete(url_groups::remove)),
        // The DLQ.
        ("/v2/dlq", get(dlq::list).delete(dlq::delete_many)),
        ("/v2/dlq/causes", get(causes::list)),
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
        ("/v2/events/stream", get(event_stream::stream)),
        // Signing keys.
        ("/v2/keys", get(keys::get)),
        ("/v1/keys", get(keys::get)),
        ("/v2/keys/rotate", post(keys::rotate)),
        ("/v1/keys/rotate", post(keys::rotate)),
        ("/v2/rotate", post(keys::rotate)),
        // What a publisher wants to know and try before.
        ("/v2/retryDelay", get(retry_delay::plan)),
        ("/v2/receiver", get(receiver::get).delete(receiver::forget)),
        ("/v2/settings", get(settings::get)),
        // The operator's language model.
        ("/llm/v1/chat/completions", post(llm::complete)),
        // Operators.
        ("/v2/stats", get(stats::get)),
        ("/health", get(health::health)),
        ("/ready", get(health::ready)),
        ("/metrics", get(health::metrics)),
        ("/openapi.json", get(openapi::document)),
    ]
}

/// Those about runs of workflows. Names of events and runs are the raw rest of the path, slashes included.
fn workflow_routes() -> Vec<(&'static str, Methods)> {
    use workflow::{dlq, hooks, logs, notify, runs, trigger, wait, waiters};
    vec![
        // What starts runs, moves them on and ends them.
        ("/v2/trigger", post(trigger::one)),
        ("/v2/trigger/{*destination}", post(trigger::one)),
        ("/v2/batch/trigger", post(trigger::many)),
        ("/v2/wait/{*event}", post(wait::wait)),
        ("/v2/notify/{*event}", post(notify::notify)),
        ("/v2/workflows/runs", delete(runs::cancel_many)),
        ("/v2/workflows/runs/{*run}", get(runs::get).delete(runs::end)),
        ("/v2/workflows/hooks/{user}/{run}/{*event}", hooks::methods()),
        // Their DLQ, their logs, and who waits for an event.
        ("/v2/workflows/dlq", get(dlq::list).delete(dlq::delete_many)),
        ("/v2/workflows/dlq/resume", post(dlq::resume_many)),
        ("/v2/workflows/dlq/resume/{id}", post(dlq::resume)),
        ("/v2/workflows/dlq/restart", post(dlq::restart_many)),
        ("/v2/workflows/dlq/restart/{id}", post(dlq::restart)),
        ("/v2/workflows/dlq/callback/{id}", post(dlq::retry_callback).delete(dlq::cancel_callback)),
        ("/v2/workflows/dlq/{id}", get(dlq::get).delete(dlq::delete)),
        ("/v2/workflows/events", get(logs::events)),
        ("/v2/workflows/logs", get(logs::logs)),
        ("/v2/waiters/{*event}", get(waiters::list)),
    ]
}

/// The paths of all routes, as the router writes them.
pub fn route_paths() -> Vec<&'static str> {
    all_routes().map(|(path, _)| path).collect()
}

/// The router: every route with and without a slash at its end.
fn router(app: Arc<App>) -> Router {
    // A forgotten id must never turn "this one" into "all".
    let forgotten_ids: Vec<(&str, Methods)> = vec![
        ("/v2/messages/", get(no_id_to_read).delete(no_id)),
        ("/v2/queues/", get(queues::list).post(queues::put).delete(no_id)),
        ("/v2/schedules/", get(schedules::list).post(schedules::post).delete(no_id).patch(no_id)),
        ("/v1/schedules/", get(schedules::list).delete(no_id)),
        ("/v2/dlq/", get(dlq::list).delete(no_id)),
        ("/v2/dlq/retry/", post(no_id)),
        ("/v2/workflows/dlq/", get(workflow::dlq::list).delete(no_id)),
        ("/v2/workflows/dlq/resume/", post(no_id)),
        ("/v2/workflows/dlq/restart/", post(no_id)),
        ("/v2/workflows/runs/", get(no_id_to_read).delete(no_id)),
    ];
    let guarded: Vec<&str> = forgotten_ids.iter().map(|(path, _)| *path).collect();
    let mut router = Router::new();
    for (path, methods) in all_routes() {
        let with_slash = format!("{path}/");
        if !path.contains('*') && !guarded.contains(&with_slash.as_str()) {
            router = router.route(&with_slash, methods.clone().into_router());
        }
        router = router.route(path, methods.into_router());
    }
    for (path, methods) in forgotten_ids {
        router = router.route(path, methods.into_router());
    }
    // What is not found is looked for once more, with its resource spelled as above.
    let respelled = router.clone().fallback(no_endpoint).with_state(app.clone());
    let respelled = Router::new().fallback_service(respelled).layer(middleware::map_request(respell));
    router.fallback_service(respelled).with_state(app)
}

/// The resources of the protocol, and the name under which requests for them are counted. Clients write them
/// in any case.
const RESOURCES: [(&str, &str); 25] = [
    ("publish", "publish"),
    ("enqueue", "enqueue"),
    ("batch", "batch"),
    ("messages", "messages"),
    ("bulkActions", "messages"),
    ("queues", "queues"),
    ("schedules", "schedules"),
    ("cron", "schedules"),
    ("flowControl", "flow_control"),
    ("globalParallelism", "flow_control"),
    ("topics", "topics"),
    ("dlq", "dlq"),
    ("events", "logs"),
    ("logs", "logs"),
    ("stats", "stats"),
    ("keys", "keys"),
    ("rotate", "keys"),
    ("retryDelay", "retry_delay"),
    ("receiver", "receiver"),
    ("settings", "settings"),
    ("trigger", "workflows"),
    ("wait", "workflows"),
    ("notify", "workflows"),
    ("waiters", "workflows"),
    ("workflows", "workflows"),
];

/// The resource that a path is about, and how it is counted.
fn resource_of(path: &str) -> Option<(&'static str, &'static str)> {
    let segment = path.split('/').nth(2)?;
    RESOURCES.iter().find(|(name, _)| name.eq_ignore_ascii_case(segment)).copied()
}

/// Spells the resource as the routes do; the rest of the path is left alone.
async fn respell(mut request: Request) -> Request {
    let path = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
    if let Some((name, _)) = resource_of(request.uri().path())
        && let [_, version, rest] = path.splitn(3, '/').collect::<Vec<_>>()[..]
        && let Ok(uri) = format!("/{version}/{name}{}", &rest[name.len()..]).parse()
    {
        *request.uri_mut() = uri;
    }
    request
}

/// An id to look at was forgotten in the path.
async fn no_id_to_read(_: Reader) -> ApiError {
    missing_id()
}

/// An id was forgotten in the path of a request that changes something.
async fn no_id(_: Writer) -> ApiError {
    missing_id()
}

fn missing_id() -> ApiError {
    ApiError::invalid("the id is missing; for a bulk request, remove the trailing slash")
}

/// A browser that opens the bare address is shown the console.
async fn no_endpoint(request: Request) -> Response {
    let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if request.method() == Method::GET && request.uri().path() == "/" && accepts.contains("text/html") {
        return Redirect::to("/console").into_response();
    }
    ApiError::not_found("no such endpoint; /openapi.json lists all paths").into_response()
}

/// The response to a request that ended in a panic.
pub(crate) fn internal_error() -> Response {
    ApiError::internal().into_response()
}

/// The whole API: what is around every request, and the routes.
pub struct Api {
    app: Arc<App>,
    router: Router,
}

impl Api {
    /// All routes of the server.
    pub fn new(app: Arc<App>) -> Api {
        openapi::prepare();
        Api { router: router(app.clone()), app }
    }

    /// Answers a request.
    pub async fn serve(&self, request: Request) -> Response {
        match self.app.config.browsers.page(request.method(), request.headers()) {
            Page::Allowed(origin) => {
                let origin = origin.clone();
                let answers = self.app.config.browsers.answers_to(request.headers());
                match answers && cors::is_preflight(request.method(), request.headers()) {
                    true => cors::preflight(request.headers(), origin),
                    false => cors::permit(self.observe(request, false).await, origin),
                }
            }
            Page::Foreign => self.observe(request, true).await,
            Page::None => self.observe(request, false).await,
        }
    }

    /// A figure, a line, and an error envelope for what the framework refused itself.
    async fn observe(&self, request: Request, is_foreign: bool) -> Response {
        let route = kind_of(request.uri().path());
        let method = request.method().clone();
        let started = Instant::now();
        let warning = self.warning(&request);
        let refusal = error::refuse_malformed(&request)
            .or_else(|| pages::refusal(&self.app.config, &request, is_foreign))
            .or_else(|| token_guesses::refuse(&self.app, &request))
            .or_else(|| self.refuse_loop(&request));
        let mut response = match refusal {
            Some(refusal) => refusal.into_response(),
            None => match caught(pin!(self.route(request))).await {
                Ok(response) => error::enveloped(response),
                Err(Panicked) => internal_error(),
            },
        };
        if let Some(value) = warning.as_deref().and_then(header_hints::value) {
            response.headers_mut().insert(header_hints::WARNING, value);
        }
        let (status, took) = (response.status(), started.elapsed());
        self.app.metrics.requested(route, status.as_u16(), took);
        let (status, duration_ms) = (status.as_u16(), took.as_millis() as u64);
        if status >= 500 {
            tracing::warn!(%method, route, status, duration_ms, "request failed");
        } else {
            tracing::debug!(%method, route, status, duration_ms, "request completed");
        }
        response
    }

    /// In `dev`, names a header of the protocol that does not exist.
    fn warning(&self, request: &Request) -> Option<String> {
        let warning =
            (self.app.config.mode == Mode::Dev).then(|| header_hints::warning(request.headers())).flatten()?;
        tracing::warn!("{warning}");
        Some(warning)
    }

    /// A delivery of ours that has come back under a name that we did not know as ours.
    fn refuse_loop(&self, request: &Request) -> Option<ApiError> {
        let mark = self.app.loop_mark.as_ref()?;
        mark.is_on(request.headers(), request.uri()).then(ApiError::came_back)
    }

    /// The request that there are most of does not need to be looked for.
    async fn route(&self, request: Request) -> Response {
        panic_point("request");
        if request.method() == Method::POST && request.uri().path().starts_with("/v2/publish/") {
            return match Writer::let_in(&self.app, request.headers(), request.uri()) {
                Ok(caller) => publish::publish(caller, State(self.app.clone()), request).await.into_response(),
                Err(refusal) => refusal.into_response(),
            };
        }
        // What is large and rare is boxed, here and below: a future is moved with every request.
        match Box::pin(self.router.clone().oneshot(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// A short name for what is asked; the path itself may hold secrets of the destination.
fn kind_of(path: &str) -> &'static str {
    resource_of(path).map_or("other", |(_, kind)| kind)
}
