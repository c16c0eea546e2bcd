//! Handlers of messages: one function that does the work, and around it all that an at-least-once queue asks for.
//!
//! Start at [`JobHandler`]. A delivery goes through these steps, and each can end it:
//!
//! | step | if it ends here | the queue |
//! |---|---|---|
//! | exactly one signature, not too long | 401 | tries again |
//! | the body, within its bounds | 489 too long, 408 too slow, 400 broken off | 489: dead letters; else tries again |
//! | the signature is good for these bytes and this URL | 401 | tries again |
//! | which message it is: signed, or else in its header | 400 | tries again |
//! | room for one more | 503, `Retry-After` | tries again |
//! | the first use of this signature | 204 its work is done, 409 used before, 503 store failed | 204: done; else tries again |
//! | the lock of the message | 204 done before, 409 under way, 503 store failed | 204: done; else tries again |
//! | JSON, validation | 489 | dead letters |
//! | your function | 204, 503 retryable, 489 permanent, 500 panic, 504 too long | as the status says |
//!
//! From the lock on all runs as a task of its own: if the queue hangs up, the handler still comes to its end, and the
//! next delivery finds out what became of it. A process that ends waits for [`JobHandler::idle`].
//!
//! In a program that is built with `panic = "abort"` nothing can answer after a panic: the process ends, with all that
//! it was doing, and the messages that it had locked can be handled again when their locks have ended.

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

/// How long the store may take to answer, by default. After that nobody knows, and the handler does not run.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a handler may run, by default: as long as QStash waits at most. After that it is dropped.
pub const RUN_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// How many deliveries are handled at the same time, by default. More are told to come back.
pub const RUNNING_MAX: u32 = 1_024;
/// How many retries a message has, by default: what the kit's own publisher asks for.
pub const MAX_RETRIES: u32 = crate::publish::RETRIES;

type Run<T> = dyn Fn(Job<T>) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>> + Send + Sync;
type Validate<T> = dyn Fn(&T) -> Result<(), Invalid> + Send + Sync;
type OnSpan = dyn Fn(&Span, Relation) + Send + Sync;

/// One message for a handler: what it says, and where it comes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Job<T> {
    /// The body.
    pub payload: T,
    /// Which message, which attempt, and what its publisher sent along.
    pub delivery: Arc<Delivery>,
    /// The lock of the message. Write its fence beside the effect where the store promises one.
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

/// A handler that could never accept a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receiver does not know its URL; call `at_base`, `at_url` or `at_any_url`")]
pub struct UrlNotConfigured;

impl<T: DeserializeOwned + Send + 'static> JobHandler<T> {
    /// A handler of messages whose body is JSON. `job_type` names it in logs and spans.
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
    /// A handler of messages whose body is taken as it is.
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

    /// Checks what the type of the payload cannot say. What is invalid goes to the dead letters, and the text with it.
    pub fn validate<E: fmt::Display>(
        mut self,
        check: impl Fn(&T) -> Result<(), E> + Send + Sync + 'static,
    ) -> JobHandler<T> {
        let invalid = |error: E| Invalid { detail: error.to_string(), place: "validation".to_owned() };
        self.validate = Some(Arc::new(move |payload| check(payload).map_err(invalid)));
        self
    }

    /// How much of a body is read, and for how long.
    pub fn body_limits(mut self, limits: BodyLimits) -> JobHandler<T> {
        self.body = limits;
        self
    }

    /// How long a message is locked without a heartbeat; [`LOCK_DEFAULT`] by default, [`LOCK_MIN`] at least and
    /// [`TTL_MAX`] at most. The lock is extended for as long as the handler runs; if the process dies, the next attempt has to wait for its end.
    pub fn lock(mut self, lock: Duration) -> JobHandler<T> {
        self.times.lock = lock.clamp(LOCK_MIN, TTL_MAX);
        self
    }

    /// How long it is remembered that a message was handled; [`KEEP_DEFAULT`] by default, [`TTL_MAX`] at most. A
    /// delivery that comes later runs the handler again, so it has to be longer than the longest wait between two
    /// attempts.
    pub fn keep(mut self, keep: Duration) -> JobHandler<T> {
        self.times.keep = keep.min(TTL_MAX);
        self
    }

    /// How long the store may take to answer; [`STORE_TIMEOUT`] by default.
    pub fn store_timeout(mut self, limit: Duration) -> JobHandler<T> {
        self.times.store = limit;
        self
    }

    /// How long the handler may run before it is dropped; [`RUN_MAX`] by default.
    pub fn run_max(mut self, limit: Duration) -> JobHandler<T> {
        self.times.run = limit;
        self
    }

    /// How many deliveries are handled at the same time; [`RUNNING_MAX`] by default. Clones made before keep theirs.
    pub fn running_max(mut self, running: u32) -> JobHandler<T> {
        (self.room, self.running_max) = room_for(running);
        self
    }

    /// Returns when no delivery is being handled; those that arrive meanwhile are told to come back. For the end of a
    /// process: the server that was asked to stop does not know of the handlers whose queue has hung up.
    pub async fn idle(&self) {
        // The room is never closed, so all of it is free in the end, and given back at once.
        drop(self.room.acquire_many(self.running_max).await);
    }

    /// How many retries the messages have if they do not say it themselves; [`MAX_RETRIES`] by default. Only for logs
    /// and [`Delivery::is_final_attempt`].
    pub fn max_retries(mut self, retries: u32) -> JobHandler<T> {
        self.max_retries = retries;
        self
    }

    /// Called with the span of each verified delivery, before the handler runs: to tell a tracing system which trace it
    /// belongs to. `examples/opentelemetry.rs` has the few lines for `tracing-opentelemetry`.
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

/// Room for so many, or for as many as can be counted.
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

/// The URI as the client sent it, where a router has shortened it for the handlers below.
#[cfg(feature = "axum")]
pub(crate) fn original_uri(parts: &http::request::Parts) -> Option<&http::Uri> {
    parts.extensions.get::<axum::extract::OriginalUri>().map(|original| &original.0)
}

/// No router that is known here shortens URIs.
#[cfg(not(feature = "axum"))]
pub(crate) fn original_uri(_: &http::request::Parts) -> Option<&http::Uri> {
    None
}
