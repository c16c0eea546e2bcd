//! The route of a webhook. The order of its steps is guaranteed: callers that failed too often, form of the signature,
//! size of the body, signature, rate limit, filter, payload, idempotency, handler. A request reaches a step only if it
//! has passed all steps before it.
//!
//! The rate limit comes after the signature, so that forged requests do not use up the limit of genuine senders. Before
//! it, a request costs only one hash over a bounded body, and nothing if it has no signature.

use super::event::{Authentic, Event, EventId};
use super::once::{Key, Outcome, Times, Work, once};
use super::rate::{RateLimit, UNVERIFIED_BURST, UNVERIFIED_PER_SECOND};
use super::{Incoming, Scheme};
use crate::body::{BodyError, BodyLimits};
use crate::clock::{Clock, Stopwatch, monotonic};
use crate::failure::HandlerResult;
use crate::idempotency::{IdempotencyStore, TTL_MAX};
use crate::job::{RETRY_AFTER_MAX, original_uri, room_for};
use crate::problem::{Problem, ResponseBody};
use crate::propagation::{EVENT_ID_HEADER, REQUEST_ID_HEADER};
use crate::receiver::Rejected;
use crate::replay::SingleUse;
use crate::telemetry::{self, field};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use serde::de::DeserializeOwned;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument as _, Span};

/// Default time limit for the response: Stripe and GitHub wait for 10 seconds.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// Default time for which an event is locked while it is handled.
pub const LOCK: Duration = Duration::from_secs(300);
/// Maximum number of rejected requests per second and route that are logged as warnings; the others are logged as
/// `debug`.
pub const LOGGED_PER_SECOND: u32 = 10;
/// Default maximum number of handlers that run at the same time. Beyond it the response is 503.
pub const AT_ONCE_MAX: u32 = 256;
/// Retry time for a sender whose event is still being handled.
pub const LATE_RETRY_AFTER: Duration = Duration::from_secs(30);
/// Retry time for a sender if the store failed or the route is too busy.
const BUSY_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Parses the payload of an event and creates the work.
type Prepare = Arc<dyn Fn(Event<()>) -> Result<Work, serde_json::Error> + Send + Sync>;

/// A route for webhooks: call [`answer`](Self::answer) with `http` types, or use it as a service with the feature
/// `tower`.
///
/// | case | response |
/// |---|---|
/// | handled, already handled, or not selected by a filter | 204 |
/// | too many events, or too many unverified requests of one caller | 429 with `Retry-After` |
/// | body too large, too slow, connection broken | 413, 408, 400 |
/// | not verified, for any reason | 401 |
/// | the payload is malformed, or a body to be filtered is not a JSON object | 422 |
/// | the handler returned a permanent failure | 422 |
/// | in progress | 409 with `Retry-After` |
/// | from a queue: the same signature again | 204 if its work is done, otherwise 409 |
/// | the handler failed, or panicked | 500 |
/// | store unavailable, too many handlers, or no result in time | 503 with `Retry-After` |
///
/// A queue gets 489 instead of 413 and 422, so that it does not retry. Errors are `application/problem+json`.
///
/// The handler runs in its own task, so a sender that closes the connection does not stop it. If it takes longer than
/// [`answer_within`](Self::answer_within), the sender gets 503, the handler continues, and the sender gets its result
/// when it retries. Before a process ends, wait for [`idle`](Self::idle). A program built with `panic = "abort"` cannot
/// respond after a panic: the process ends, and its events stay locked until their locks expire.
///
/// ```
/// use posthaste_kit::Failure;
/// use posthaste_kit::idempotency::IdempotencyStore;
/// use posthaste_kit::webhook::{Event, Stripe, StripeEvent, Webhook};
/// use std::sync::Arc;
///
/// #[derive(serde::Deserialize)]
/// struct Invoice {
///     customer: String,
/// }
///
/// async fn paid(event: Event<StripeEvent<Invoice>>) -> Result<(), Failure> {
///     println!("{} has paid", event.payload.data.object.customer);
///     Ok(())
/// }
///
/// fn route(secret: &str, store: Arc<dyn IdempotencyStore>) -> Result<Webhook, Box<dyn std::error::Error>> {
///     Ok(Webhook::new(Stripe::new(secret)?, store, paid).events(["invoice.paid"]))
/// }
/// # let _ = route;
/// ```
#[derive(Clone)]
pub struct Webhook(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    scheme: Arc<dyn Scheme>,
    name: Option<String>,
    store: Option<Arc<dyn IdempotencyStore>>,
    prepare: Prepare,
    rate_limit: RateLimit,
    unverified: RateLimit,
    logged: RateLimit,
    body_limits: BodyLimits,
    kinds: Option<Vec<String>>,
    tables: Option<Vec<String>>,
    lock: Duration,
    /// Set by the caller. The default is the sender's retry window.
    keep: Option<Duration>,
    answer_within: Duration,
    slots: Arc<Semaphore>,
    at_once: u32,
    clock: Clock,
}

impl Webhook {
    /// A route for JSON payloads. The payload is parsed after the signature is verified, and only for selected events.
    pub fn new<P, F, R>(scheme: impl Scheme, store: Arc<dyn IdempotencyStore>, handler: F) -> Webhook
    where
        P: DeserializeOwned + Send + 'static,
        F: Fn(Event<P>) -> R + Send + Sync + 'static,
        R: Future<Output = HandlerResult> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let prepare = move |event: Event<()>| {
            let payload = serde_json::from_slice(&event.body)?;
            Ok(work(Arc::clone(&handler), event.with(payload)))
        };
        Webhook::of(scheme, Some(store), Arc::new(prepare))
    }

    /// A route for any body: [`Event::body`] has it.
    pub fn raw<F, R>(scheme: impl Scheme, store: Arc<dyn IdempotencyStore>, handler: F) -> Webhook
    where
        F: Fn(Event<()>) -> R + Send + Sync + 'static,
        R: Future<Output = HandlerResult> + Send + 'static,
    {
        Webhook::forward(scheme, handler).with_store(store)
    }

    /// A route that passes any body to a queue: `publish` creates a deduplication id from the [route](Event::route) and
    /// the [id of the event](Event::id), and returns when the queue has accepted the message. It needs no store,
    /// because the queue deduplicates: an event that is sent again within the queue's window (10 minutes) is one
    /// message. Senders may repeat events after days, so the handler of the message must be idempotent by the event id.
    pub fn forward<F, R>(scheme: impl Scheme, publish: F) -> Webhook
    where
        F: Fn(Event<()>) -> R + Send + Sync + 'static,
        R: Future<Output = HandlerResult> + Send + 'static,
    {
        let publish = Arc::new(publish);
        Webhook::of(scheme, None, Arc::new(move |event| Ok(work(Arc::clone(&publish), event))))
    }

    fn of(scheme: impl Scheme, store: Option<Arc<dyn IdempotencyStore>>, prepare: Prepare) -> Webhook {
        let (slots, at_once) = room_for(AT_ONCE_MAX);
        Webhook(Arc::new(Inner {
            scheme: Arc::new(scheme),
            name: None,
            store,
            prepare,
            rate_limit: RateLimit::default(),
            unverified: RateLimit::per_second(UNVERIFIED_PER_SECOND).burst(UNVERIFIED_BURST),
            logged: RateLimit::per_second(LOGGED_PER_SECOND),
            body_limits: BodyLimits::default(),
            kinds: None,
            tables: None,
            lock: LOCK,
            keep: None,
            answer_within: ANSWER_WITHIN,
            slots,
            at_once,
            clock: Clock::system(),
        }))
    }

    /// Sets the name of the route in logs and in the keys of events. Default: the scheme and the path of the request,
    /// such as `stripe:/hooks/stripe`. Routes that share a store or a queue and handle the same event differently need
    /// different names. A route for many paths (a wildcard, a fallback) needs a name, because otherwise a recorded
    /// request could be replayed to another path.
    pub fn named(self, name: impl Into<String>) -> Webhook {
        self.with(|inner| inner.name = Some(name.into()))
    }

    /// Handles only these kinds of events, as the sender names them: `invoice.paid`, `pull_request`, `INSERT`. The
    /// response to all others is 204, or 422 if their body cannot be read.
    pub fn events<S: Into<String>>(self, kinds: impl IntoIterator<Item = S>) -> Webhook {
        self.with(|inner| inner.kinds = Some(kinds.into_iter().map(Into::into).collect()))
    }

    /// Handles only changes of these tables. The response to all others is 204, or 422 if their body cannot be read.
    pub fn tables<S: Into<String>>(self, tables: impl IntoIterator<Item = S>) -> Webhook {
        self.with(|inner| inner.tables = Some(tables.into_iter().map(Into::into).collect()))
    }

    /// Sets the rate limit for verified requests. Default: [`RateLimit::default`]. Requests that cannot be verified do
    /// not count.
    pub fn rate_limit(self, limit: RateLimit) -> Webhook {
        self.with(|inner| inner.rate_limit = limit)
    }

    /// Sets how many unverified requests a caller can send before further ones are rejected unread with 429. Default:
    /// [`UNVERIFIED_PER_SECOND`] and [`UNVERIFIED_BURST`] for each known caller. No caller is known until you set how
    /// to identify it: [`RateLimit::by_peer`] if callers connect directly, [`RateLimit::by`] behind a proxy. Requests
    /// of unknown callers are always verified.
    ///
    /// ```
    /// use posthaste_kit::webhook::{RateLimit, Webhook};
    ///
    /// fn behind_a_proxy(route: Webhook) -> Webhook {
    ///     route.unverified_limit(RateLimit::per_second(5).burst(50).by(|request| {
    ///         Some(request.headers.get("x-real-ip")?.to_str().ok()?.to_owned())
    ///     }))
    /// }
    /// # let _ = behind_a_proxy;
    /// ```
    pub fn unverified_limit(self, limit: RateLimit) -> Webhook {
        self.with(|inner| inner.unverified = limit)
    }

    /// Sets limits on the size of a body and the time to read it, which is never longer than
    /// [`answer_within`](Self::answer_within).
    pub fn body_limits(self, limits: BodyLimits) -> Webhook {
        self.with(|inner| inner.body_limits = limits)
    }

    /// Sets how long a handled event is remembered. Default: as long as the sender may repeat it
    /// ([`Scheme::retry_window`]), and at least as long as a recorded request stays valid ([`Scheme::valid_for`]).
    /// Maximum: [`TTL_MAX`]. The store must have room for all events of that time.
    pub fn keep(self, keep: Duration) -> Webhook {
        self.with(|inner| inner.keep = Some(keep))
    }

    /// Sets the maximum time of a handler, during which its event is locked. Default: [`LOCK`]; maximum: [`TTL_MAX`]. A
    /// handler that takes longer is stopped.
    pub fn lock(self, lock: Duration) -> Webhook {
        self.with(|inner| inner.lock = lock.min(TTL_MAX))
    }

    /// Sets the time limit for the response. Default: [`ANSWER_WITHIN`]; maximum: [`TTL_MAX`].
    pub fn answer_within(self, time: Duration) -> Webhook {
        self.with(|inner| inner.answer_within = time.min(TTL_MAX))
    }

    /// Sets the maximum number of handlers that run at the same time. Default: [`AT_ONCE_MAX`]. Existing clones keep
    /// their maximum.
    pub fn at_once(self, count: u32) -> Webhook {
        self.with(|inner| (inner.slots, inner.at_once) = room_for(count))
    }

    /// Waits until no event is being handled; new ones are asked to retry later. Call it before the process ends: a
    /// graceful shutdown of the server does not wait for handlers whose sender has closed the connection.
    pub async fn idle(&self) {
        // The semaphore is never closed, so all permits are eventually free. They are returned immediately.
        drop(self.0.slots.acquire_many(self.0.at_once).await);
    }

    /// Sets the clock.
    pub fn clock(self, clock: Clock) -> Webhook {
        self.with(|inner| inner.clock = clock)
    }

    fn with_store(self, store: Arc<dyn IdempotencyStore>) -> Webhook {
        self.with(|inner| inner.store = Some(store))
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Webhook {
        change(Arc::make_mut(&mut self.0));
        self
    }

    #[cfg(feature = "axum")]
    pub(crate) fn is_for_a_queue(&self) -> bool {
        self.0.scheme.is_queue()
    }

    /// Handles a request and returns the response.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let watch = Stopwatch::start();
        let deadline = monotonic() + self.0.answer_within;
        let (parts, body) = request.into_parts();
        let request_id = telemetry::request_id(&parts.headers);
        let span = telemetry::webhook_span(self.0.label());
        span.record(field::REQUEST_ID, &request_id);
        let answered = self.0.answer(parts, body, &request_id, deadline).instrument(span.clone()).await;
        let (mut response, outcome) = match answered.verdict {
            Ok(outcome) => (no_content(), outcome),
            Err(Refused { outcome, problem }) => (problem.instance(&request_id).into_response(), outcome),
        };
        let headers = response.headers_mut();
        put(headers, REQUEST_ID_HEADER, &request_id);
        if let Some(id) = answered.event_id {
            put(headers, EVENT_ID_HEADER, id.as_str());
        }
        let status = response.status();
        span.record(field::OUTCOME, outcome);
        span.record(field::HTTP_STATUS, status.as_u16());
        span.record(field::RETRYABLE, is_retryable(status));
        span.record(field::LATENCY_MS, u64::try_from(watch.elapsed().as_millis()).unwrap_or(u64::MAX));
        if status.is_server_error() {
            span.record(field::OTEL_STATUS, "ERROR");
        }
        response
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("name", &self.0.label()).finish_non_exhaustive()
    }
}

impl<P> Event<P> {
    /// The same event with this payload.
    fn with<Q>(self, payload: Q) -> Event<Q> {
        let Event { id, route, kind, table, payload: _, body, headers, request_id, fence } = self;
        Event { id, route, kind, table, payload, body, headers, request_id, fence }
    }
}

fn work<P, F, R>(handler: Arc<F>, mut event: Event<P>) -> Work
where
    P: Send + 'static,
    F: Fn(Event<P>) -> R + Send + Sync + 'static,
    R: Future<Output = HandlerResult> + Send + 'static,
{
    Box::new(move |fence| {
        event.fence = fence;
        Box::pin(async move { handler(event).await })
    })
}

/// A response, and the event that it belongs to, as far as it is known.
struct Answered {
    event_id: Option<EventId>,
    verdict: Verdict,
}

/// The outcome of a request as one word, for the span; or the response if it is not 204.
type Verdict = Result<&'static str, Refused>;

struct Refused {
    outcome: &'static str,
    problem: Box<Problem>,
}

impl Refused {
    fn new(outcome: &'static str, problem: Problem) -> Refused {
        Refused { outcome, problem: Box::new(problem) }
    }
}

impl Inner {
    /// The name for logs, which is the same for every request.
    fn label(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.scheme.name())
    }

    /// The name for keys, which is unique to the route.
    fn route(&self, parts: &Parts) -> String {
        let of_path = || format!("{}:{}", self.scheme.name(), original_uri(parts).unwrap_or(&parts.uri).path());
        self.name.clone().unwrap_or_else(of_path)
    }

    async fn answer<B>(&self, parts: Parts, body: B, request_id: &str, deadline: Instant) -> Answered
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (authentic, body) = match self.admit(&parts, body, deadline).await {
            Ok(admitted) => admitted,
            Err(refused) => return Answered { event_id: None, verdict: Err(refused) },
        };
        let event_id = Some(authentic.id.clone());
        let span = Span::current();
        span.record(field::EVENT_KEY, authentic.id.as_str());
        span.record(field::OP, authentic.kind.as_deref());
        span.record(field::TABLE, authentic.table.as_deref());
        match self.wants(&authentic) {
            Some(true) => {}
            None if !Authentic::is_legible(&body) => {
                tracing::warn!("the event cannot be filtered: its body is not a JSON object");
                let problem = self.unprocessable("the body of the event is not a JSON object");
                return Answered { event_id, verdict: Err(Refused::new("invalid", problem)) };
            }
            Some(false) | None => {
                tracing::debug!("event ignored by the filter");
                return Answered { event_id, verdict: Ok("not_wanted") };
            }
        }
        let Authentic { id, kind, table, single_use } = authentic;
        let (route, headers, request_id) = (self.route(&parts), parts.headers, request_id.to_owned());
        let event = Event { id, route, kind, table, payload: (), body, headers, request_id, fence: 0 };
        Answered { event_id, verdict: self.handle(event, single_use, deadline).await }
    }

    /// All steps for unverified requests.
    async fn admit<B>(&self, parts: &Parts, body: B, deadline: Instant) -> Result<(Authentic, Bytes), Refused>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(wait) = self.unverified.wait(parts, self.clock.now()) {
            return Err(too_many(wait));
        }
        let admitted = self.verified(parts, body, deadline).await;
        if admitted.is_err() {
            self.unverified.count(parts, self.clock.now());
        }
        let admitted = admitted?;
        self.rate_limit.take(parts, self.clock.now()).map_err(too_many)?;
        Ok(admitted)
    }

    async fn verified<B>(&self, parts: &Parts, body: B, deadline: Instant) -> Result<(Authentic, Bytes), Refused>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.scheme.precheck(&parts.headers).map_err(|why| self.rejected(why))?;
        let time = self.body_limits.time.min(deadline.saturating_duration_since(monotonic()));
        let limits = BodyLimits { time, ..self.body_limits };
        let body = limits.read_or_drain(body).await.map_err(|error| self.unread(&error))?;
        let uri = original_uri(parts).unwrap_or(&parts.uri);
        let incoming = Incoming { headers: &parts.headers, uri, body: &body };
        // The body may arrive slowly, and the signature must be valid now.
        let authentic = self.scheme.verify(&incoming, self.clock.now()).map_err(|why| self.rejected(why))?;
        Ok((authentic, body))
    }

    fn rejected(&self, why: Rejected) -> Refused {
        let reason = why.reason();
        // A flood of rejected requests must not become a flood of warnings.
        if self.logged.take_one(self.clock.now()).is_ok() {
            tracing::warn!(%reason, "webhook rejected");
        } else {
            tracing::debug!(%reason, "webhook rejected");
        }
        Refused::new("rejected", Problem::new(StatusCode::UNAUTHORIZED, "the request is not verified"))
    }

    async fn handle(&self, event: Event<()>, single_use: Option<SingleUse>, deadline: Instant) -> Verdict {
        let key = Key { event: format!("webhook:{}:{}", event.route, event.id), single_use };
        Span::current().record(field::IDEMPOTENCY_KEY, &key.event);
        let work = (self.prepare)(event).map_err(|error| {
            // Logs only the position, because the message of the error may contain the payload.
            tracing::warn!(
                line = error.line(),
                column = error.column(),
                "the payload of the event does not have the expected type"
            );
            Refused::new("invalid", self.unprocessable("the payload of the event does not have the expected type"))
        })?;
        self.run(key, work, deadline).await
    }

    /// Whether the event is selected; `None` if it lacks the members that decide this.
    fn wants(&self, event: &Authentic) -> Option<bool> {
        let is_in = |wanted: &Option<Vec<String>>, value: &Option<String>| match wanted {
            None => Some(true),
            Some(wanted) => value.as_ref().map(|value| wanted.contains(value)),
        };
        match (is_in(&self.kinds, &event.kind), is_in(&self.tables, &event.table)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            (None, _) | (_, None) => None,
        }
    }

    fn times(&self) -> Times {
        let keep = self.keep.unwrap_or_else(|| self.scheme.retry_window());
        Times { lock: self.lock, keep: keep.max(self.scheme.valid_for()).min(TTL_MAX) }
    }

    /// Runs in its own task, so that neither a closed connection nor the deadline stops it halfway.
    async fn run(&self, key: Key, work: Work, deadline: Instant) -> Verdict {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            tracing::warn!("webhook rejected: too many handlers are running");
            return Err(Refused::new("busy", unavailable("too many events are being handled", BUSY_RETRY_AFTER)));
        };
        let (store, times) = (self.store.clone(), self.times());
        let task = async move {
            let outcome = once(store.as_deref(), &key, times, work).await;
            log(&outcome);
            drop(slot);
            outcome
        };
        let task = tokio::spawn(task.instrument(Span::current()));
        match timeout_at(deadline, task).await {
            Ok(Ok(outcome)) => self.verdict(&outcome),
            Ok(Err(_)) => Err(Refused::new("stopped", unavailable("the server is stopping", BUSY_RETRY_AFTER))),
            Err(_) => {
                tracing::warn!("the handler of the event is still running at the response deadline");
                Err(Refused::new("late", unavailable("the event is still being handled", LATE_RETRY_AFTER)))
            }
        }
    }

    fn verdict(&self, outcome: &Outcome) -> Verdict {
        let failed = || Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the event could not be handled");
        Err(match outcome {
            Outcome::Done => return Ok("succeeded"),
            Outcome::DoneBefore => return Ok("duplicate"),
            Outcome::Replayed => {
                Refused::new("replayed", Problem::new(StatusCode::CONFLICT, "this delivery was already received"))
            }
            Outcome::UnderWay { retry_after } => {
                let problem = Problem::new(StatusCode::CONFLICT, "the event is being handled");
                Refused::new("under_way", problem.retry_after((*retry_after).min(RETRY_AFTER_MAX)))
            }
            Outcome::Failed(failure) if !failure.is_retryable() => {
                Refused::new("failed_for_good", self.unprocessable("the event cannot be handled"))
            }
            Outcome::Failed(failure) => {
                let wait = failure.wait().map(|wait| wait.min(RETRY_AFTER_MAX));
                Refused::new("failed", wait.map_or_else(failed, |wait| failed().retry_after(wait)))
            }
            Outcome::Panicked => Refused::new("panicked", failed()),
            Outcome::TimedOut => Refused::new("timed_out", failed()),
            Outcome::StoreFailed(_) => {
                let title = "it is not known whether the event was handled";
                Refused::new("store_failed", unavailable(title, BUSY_RETRY_AFTER))
            }
        })
    }

    fn unread(&self, error: &BodyError) -> Refused {
        tracing::info!(%error, "webhook rejected");
        match error {
            BodyError::TooLong { .. } => {
                let title = "the body is too long";
                let is_queue = self.scheme.is_queue();
                let for_others = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, title);
                Refused::new("body_too_long", if is_queue { Problem::non_retryable(title) } else { for_others() })
            }
            BodyError::TooSlow(_) => {
                let problem = Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
                Refused::new("body_too_slow", problem)
            }
            BodyError::Broken(_) => {
                Refused::new("body_broken", Problem::new(StatusCode::BAD_REQUEST, "the body could not be read"))
            }
        }
    }

    fn unprocessable(&self, title: &str) -> Problem {
        if self.scheme.is_queue() {
            Problem::non_retryable(title)
        } else {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, title)
        }
    }
}

fn log(outcome: &Outcome) {
    match outcome {
        Outcome::Done => tracing::debug!("event handled"),
        Outcome::DoneBefore => tracing::debug!("the event was already handled"),
        Outcome::Replayed => tracing::warn!("event rejected: its signature was already used"),
        Outcome::UnderWay { .. } => tracing::debug!("the event is being handled"),
        Outcome::Failed(error) => {
            tracing::warn!(%error, retryable = error.is_retryable(), "the handler of the event failed")
        }
        Outcome::Panicked => tracing::error!(retryable = true, "the handler of the event panicked"),
        Outcome::TimedOut => tracing::error!(retryable = true, "the handler of the event ran longer than its lock"),
        Outcome::StoreFailed(error) => {
            tracing::error!(error = error as &dyn std::error::Error, retryable = true, "the event was not handled");
        }
    }
}

fn too_many(wait: Duration) -> Refused {
    tracing::debug!("webhook rejected: too many requests");
    Refused::new("too_many", Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many requests").retry_after(wait))
}

fn unavailable(title: &str, retry_after: Duration) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, title).retry_after(retry_after)
}

fn no_content() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Whether the sender should retry.
fn is_retryable(status: StatusCode) -> bool {
    status.is_server_error() || [408, 409, 429].contains(&status.as_u16())
}

fn put(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
