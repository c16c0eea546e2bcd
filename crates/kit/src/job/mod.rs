//! Message handlers: your function, and the checks around it that an at-least-once queue requires.
//!
//! Start at [`JobHandler`]. Each delivery goes through these steps, and each step can end it:
//!
//! | step | response if it fails | the queue |
//! |---|---|---|
//! | exactly one signature, not too long | 401 | retries |
//! | the body, within its limits | 489 too large, 408 too slow, 400 connection broken | 489: DLQ; otherwise retries |
//! | the signature is valid for this body and this URL | 401 | retries |
//! | the message id: signed, or in its header | 400 | retries |
//! | a free slot | 503, `Retry-After` | retries |
//! | the first use of this signature | 204 its work is done, 409 already used, 503 store failed | 204: done; otherwise retries |
//! | the lock of the message | 204 already done, 409 in progress, 503 store failed | 204: done; otherwise retries |
//! | JSON, validation | 489 | DLQ |
//! | your function | 204, 503 retryable, 489 permanent, 500 panic, 504 timeout | depends on the status |
//!
//! From the lock on, everything runs in its own task: if the queue closes the connection, the handler still finishes,
//! and the next delivery gets its result. Before a process ends, wait for [`JobHandler::idle`].
//!
//! A program built with `panic = "abort"` cannot respond after a panic: the process ends, and the messages that it had
//! locked can be handled again when their locks expire.

mod delivery;
mod lock;
mod outcome;
mod run;
#[cfg(feature = "tower")]
mod service;

pub use delivery::{Delivery, MESSAGE_ID_HEADER};
pub use lock::LOCK_MIN;
pub use outcome::{BUSY_RETRY_AFTER, DETAIL_BYTES_MAX, RETRY_AFTER_MAX};

use crate::body::BodyLimits;
use crate::failure::HandlerResult;
use crate::idempotency::{IdempotencyStore, KEEP_DEFAULT, LOCK_DEFAULT, Lease, TTL_MAX};
use crate::receiver::Receiver;
use crate::telemetry::Relation;
use bytes::Bytes;
use lock::Times;
use outcome::Invalid;
use serde::de::DeserializeOwned;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tracing::Span;

/// Default time limit for a response of the store. Without a response the handler does not run.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Default time limit of a handler, which is the maximum of QStash. After that the handler is dropped.
pub const RUN_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// Default maximum number of deliveries handled at the same time. Others are asked to retry later.
pub const RUNNING_MAX: u32 = 1_024;
/// Default number of retries of a message: the number that the kit's publisher requests.
pub const MAX_RETRIES: u32 = crate::publish::RETRIES;

type Run<T> = dyn Fn(Job<T>) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>> + Send + Sync;
type Validate<T> = dyn Fn(&T) -> Result<(), Invalid> + Send + Sync;
type OnSpan = dyn Fn(&Span, Relation) + Send + Sync;

/// A message for a handler.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Job<T> {
    /// The body.
    pub payload: T,
    /// The message, its attempt and its forwarded headers.
    pub delivery: Arc<Delivery>,
    /// The lock of the message. Write its fence next to the effect if the store provides one.
    pub lease: Lease,
}

/// Handles the deliveries of one kind of job. Cheap to clone.
///
/// ```
/// use posthaste_kit::idempotency::MemoryStore;
/// use posthaste_kit::job::{Job, JobHandler};
/// use posthaste_kit::{Failure, Receiver};
/// use std::sync::Arc;
///
/// #[derive(serde::Deserialize)]
/// struct Mail {
///     to: String,
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (current, next) = ("sig_6Sv9SDzFgsZnQ2nzRNB1Qwyp", "sig_4FrAJ3oVtCz1eTh8rGqkXb2m");
/// let receiver = Receiver::new(current, next)?.at_base("https://app.example.com");
/// // For tests; services of several processes share Redis or PostgreSQL.
/// let store = Arc::new(MemoryStore::new());
/// let mails = JobHandler::json("mail", receiver, store, |job: Job<Mail>| async move {
///     if !job.payload.to.contains('@') {
///         return Err(Failure::permanent("no address"));
///     }
///     println!("send it, with {} as the key of the provider's own deduplication", job.delivery.message_id());
///     Ok(())
/// })?;
/// # let _ = mails;
/// # Ok(()) }
/// ```
///
/// With the feature `tower` it is a `tower::Service`, with the feature `axum` it has a `route`; without either, call
/// [`handle`](Self::handle).
pub struct JobHandler<T> {
    job_type: Arc<str>,
    receiver: Arc<Receiver>,
    store: Arc<dyn IdempotencyStore>,
    decode: fn(Bytes) -> Result<T, Invalid>,
    validate: Option<Arc<Validate<T>>>,
    run: Arc<Run<T>>,
    on_span: Option<Arc<OnSpan>>,
    room: Arc<Semaphore>,
    running_max: u32,
    body: BodyLimits,
    times: Times,
    max_retries: u32,
}

/// The receiver does not know its URL, so the handler could never accept a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receiver does not know its URL; call `at_base`, `at_url` or `at_any_url`")]
pub struct UrlNotConfigured;

impl<T: DeserializeOwned + Send + 'static> JobHandler<T> {
    /// A handler for messages with a JSON body. `job_type` is its name in logs and spans.
    pub fn json<F, R>(
        job_type: impl AsRef<str>,
        receiver: Receiver,
        store: Arc<dyn IdempotencyStore>,
        handler: F,
    ) -> Result<JobHandler<T>, UrlNotConfigured>
    where
        F: Fn(Job<T>) -> R + Send + Sync + 'static,
        R: Future<Output = HandlerResult> + Send + 'static,
    {
        JobHandler::new(job_type.as_ref(), receiver, store, from_json, handler)
    }
}

impl JobHandler<Bytes> {
    /// A handler for messages with any body.
    pub fn raw<F, R>(
        job_type: impl AsRef<str>,
        receiver: Receiver,
        store: Arc<dyn IdempotencyStore>,
        handler: F,
    ) -> Result<JobHandler<Bytes>, UrlNotConfigured>
    where
        F: Fn(Job<Bytes>) -> R + Send + Sync + 'static,
        R: Future<Output = HandlerResult> + Send + 'static,
    {
        JobHandler::new(job_type.as_ref(), receiver, store, Ok, handler)
    }
}

impl<T: Send + 'static> JobHandler<T> {
    fn new<F, R>(
        job_type: &str,
        receiver: Receiver,
        store: Arc<dyn IdempotencyStore>,
        decode: fn(Bytes) -> Result<T, Invalid>,
        handler: F,
    ) -> Result<JobHandler<T>, UrlNotConfigured>
    where
        F: Fn(Job<T>) -> R + Send + Sync + 'static,
        R: Future<Output = HandlerResult> + Send + 'static,
    {
        if !receiver.knows_its_url() {
            return Err(UrlNotConfigured);
        }
        let (room, running_max) = room_for(RUNNING_MAX);
        Ok(JobHandler {
            job_type: job_type.into(),
            receiver: Arc::new(receiver),
            store,
            decode,
            validate: None,
            run: Arc::new(move |job| Box::pin(handler(job))),
            on_span: None,
            room,
            running_max,
            body: BodyLimits::default(),
            times: Times { lock: LOCK_DEFAULT, keep: KEEP_DEFAULT, store: STORE_TIMEOUT, run: RUN_MAX },
            max_retries: MAX_RETRIES,
        })
    }

    /// Adds a check of the payload. Invalid messages go to the DLQ, together with the error text.
    pub fn validate<E: fmt::Display>(
        mut self,
        check: impl Fn(&T) -> Result<(), E> + Send + Sync + 'static,
    ) -> JobHandler<T> {
        let invalid = |error: E| Invalid { detail: error.to_string(), place: "validation".to_owned() };
        self.validate = Some(Arc::new(move |payload| check(payload).map_err(invalid)));
        self
    }

    /// Sets limits on the size of a body and the time to read it.
    pub fn body_limits(mut self, limits: BodyLimits) -> JobHandler<T> {
        self.body = limits;
        self
    }

    /// Sets how long a message stays locked without a heartbeat. Default: [`LOCK_DEFAULT`]; minimum: [`LOCK_MIN`];
    /// maximum: [`TTL_MAX`]. The lock is extended while the handler runs. If the process dies, the next attempt has to
    /// wait until the lock expires.
    pub fn lock(mut self, lock: Duration) -> JobHandler<T> {
        self.times.lock = lock.clamp(LOCK_MIN, TTL_MAX);
        self
    }

    /// Sets how long a handled message is remembered. Default: [`KEEP_DEFAULT`]; maximum: [`TTL_MAX`]. A later delivery
    /// runs the handler again, so the time must be longer than the longest wait between two attempts.
    pub fn keep(mut self, keep: Duration) -> JobHandler<T> {
        self.times.keep = keep.min(TTL_MAX);
        self
    }

    /// Sets the time limit for a response of the store. Default: [`STORE_TIMEOUT`].
    pub fn store_timeout(mut self, limit: Duration) -> JobHandler<T> {
        self.times.store = limit;
        self
    }

    /// Sets the time limit of the handler, after which it is dropped. Default: [`RUN_MAX`].
    pub fn run_max(mut self, limit: Duration) -> JobHandler<T> {
        self.times.run = limit;
        self
    }

    /// Sets the maximum number of deliveries handled at the same time. Default: [`RUNNING_MAX`]. Existing clones keep
    /// their maximum.
    pub fn running_max(mut self, running: u32) -> JobHandler<T> {
        (self.room, self.running_max) = room_for(running);
        self
    }

    /// Waits until no delivery is being handled; new ones are asked to retry later. Call it before the process ends: a
    /// graceful shutdown of the server does not wait for handlers whose connection the queue has closed.
    pub async fn idle(&self) {
        // The semaphore is never closed, so all permits are eventually free. They are returned immediately.
        drop(self.room.acquire_many(self.running_max).await);
    }

    /// Sets the number of retries of messages that do not carry it. Default: [`MAX_RETRIES`]. It is used only for logs
    /// and [`Delivery::is_final_attempt`].
    pub fn max_retries(mut self, retries: u32) -> JobHandler<T> {
        self.max_retries = retries;
        self
    }

    /// Sets a function that is called with the span of each verified delivery before the handler runs, to link it to a
    /// trace. `examples/opentelemetry.rs` shows it with `tracing-opentelemetry`.
    pub fn on_span(mut self, hook: impl Fn(&Span, Relation) + Send + Sync + 'static) -> JobHandler<T> {
        self.on_span = Some(Arc::new(hook));
        self
    }
}

impl<T> Clone for JobHandler<T> {
    fn clone(&self) -> Self {
        JobHandler {
            job_type: Arc::clone(&self.job_type),
            receiver: Arc::clone(&self.receiver),
            store: Arc::clone(&self.store),
            decode: self.decode,
            validate: self.validate.clone(),
            run: Arc::clone(&self.run),
            on_span: self.on_span.clone(),
            room: Arc::clone(&self.room),
            running_max: self.running_max,
            body: self.body,
            times: self.times,
            max_retries: self.max_retries,
        }
    }
}

impl<T> fmt::Debug for JobHandler<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("JobHandler");
        debug.field("job_type", &self.job_type).field("body", &self.body).field("times", &self.times);
        debug.field("max_retries", &self.max_retries).finish_non_exhaustive()
    }
}

/// A semaphore with this number of permits, or the maximum.
pub(crate) fn room_for(running: u32) -> (Arc<Semaphore>, u32) {
    let running = running.min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
    (Arc::new(Semaphore::new(running as usize)), running)
}

fn from_json<T: DeserializeOwned>(body: Bytes) -> Result<T, Invalid> {
    serde_json::from_slice(&body).map_err(|error| Invalid {
        detail: error.to_string(),
        place: format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column()),
    })
}

/// The URI as the client sent it, if a router has shortened it for nested handlers.
#[cfg(feature = "axum")]
pub(crate) fn original_uri(parts: &http::request::Parts) -> Option<&http::Uri> {
    parts.extensions.get::<axum::extract::OriginalUri>().map(|original| &original.0)
}

/// Without axum, no known router shortens URIs.
#[cfg(not(feature = "axum"))]
pub(crate) fn original_uri(_: &http::request::Parts) -> Option<&http::Uri> {
    None
}
