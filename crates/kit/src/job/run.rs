//! One delivery from its first byte to its response. Start at [`JobHandler::handle`].

use super::delivery::{Delivery, MESSAGE_ID_HEADER, NoMessageId};
use super::lock::{self, Held};
use super::outcome::Outcome;
use super::{Job, JobHandler};
use crate::clock::Stopwatch;
use crate::failure::{Panicked, caught};
use crate::idempotency::Lease;
use crate::problem::ResponseBody;
use crate::propagation::{EVENT_ID_HEADER, REQUEST_ID_HEADER};
use crate::replay::{SingleUse, Used};
use crate::telemetry::{self, field};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body::Body;
use std::error::Error;
use std::sync::Arc;
use tracing::{Instrument as _, Span};

/// A delivery that may have an effect: verified, and completely in memory.
struct Accepted {
    delivery: Arc<Delivery>,
    signature: SingleUse,
    body: Bytes,
}

impl<T: Send + 'static> JobHandler<T> {
    /// Handles one delivery and responds to it.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let watch = Stopwatch::start();
        let (parts, body) = request.into_parts();
        let request_id = telemetry::request_id(&parts.headers);
        let span = telemetry::job_span(&self.job_type);
        span.record(field::REQUEST_ID, &request_id);
        let uri = super::original_uri(&parts).unwrap_or(&parts.uri).clone();
        // Outside the span, because its trace is not known yet and cannot be changed once the span was entered.
        match self.accept(parts.headers, &uri, &request_id, body).await {
            Ok(accepted) => self.start(accepted, request_id, span, watch).await,
            Err(outcome) => self.answer(&outcome, None, &request_id, &span, watch),
        }
    }

    /// All steps before the first effect.
    async fn accept<B>(&self, headers: HeaderMap, uri: &Uri, request_id: &str, body: B) -> Result<Accepted, Outcome>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let token = self.receiver.token(&headers).map_err(|why| Outcome::Rejected { why, fingerprint: None })?;
        let bytes = self.body.read_or_drain(body).await.map_err(Outcome::Unread)?;
        let now = self.receiver.now();
        let verified = self
            .receiver
            .verify_at(&headers, uri, &bytes, now)
            .map_err(|why| Outcome::Rejected { why, fingerprint: Some(token.fingerprint()) })?;
        let signature = self.receiver.single_use(&verified, now);
        let delivery = Delivery::read(headers, request_id.to_owned(), self.max_retries, verified)
            .map_err(|NoMessageId| Outcome::NoMessageId)?;
        Ok(Accepted { delivery: Arc::new(delivery), signature, body: bytes })
    }

    /// Runs the other steps in a task, which finishes even if the caller stops waiting.
    async fn start(
        &self,
        accepted: Accepted,
        request_id: String,
        span: Span,
        watch: Stopwatch,
    ) -> Response<ResponseBody> {
        self.describe(&accepted.delivery, &span);
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            return self.answer(&Outcome::Busy, Some(&accepted.delivery), &request_id, &span, watch);
        };
        let (handler, delivery, task_span) = (self.clone(), Arc::clone(&accepted.delivery), span.clone());
        let work = async move {
            let delivery = Arc::clone(&accepted.delivery);
            let outcome = handler.process(accepted).await;
            drop(permit);
            handler.answer(&outcome, Some(&delivery), delivery.request_id(), &task_span, watch)
        };
        match tokio::spawn(work.instrument(span.clone())).await {
            Ok(response) => response,
            // Not the handler, whose panics are caught: the store panicked, or the process is shutting down.
            Err(error) => {
                let outcome = if error.is_panic() { Outcome::Panicked } else { Outcome::Stopped };
                self.answer(&outcome, Some(&delivery), &request_id, &span, watch)
            }
        }
    }

    /// Uses the signature, and does the work if this is its first use.
    async fn process(&self, accepted: Accepted) -> Outcome {
        let Accepted { delivery, signature, body } = accepted;
        let used = match signature.begin(&*self.store, self.times.store).await {
            Ok(Used::First(used)) => used,
            Ok(Used::Done) => return Outcome::Duplicate,
            Ok(Used::Before) => return Outcome::Replayed,
            Err(error) => return Outcome::StoreFailed(error),
        };
        let (outcome, held) = self.locked(delivery, body).await;
        let settled = async {
            if let Some(held) = &held {
                lock::settle(&*self.store, held, &outcome, self.times).await;
            }
        };
        let noted = async {
            if outcome.is_success() {
                signature.complete(&*self.store, &used, self.times.store).await;
            }
        };
        tokio::join!(settled, noted);
        outcome
    }

    /// Takes the lock and runs the handler. Also returns the lock, if it must be ended.
    async fn locked(&self, delivery: Arc<Delivery>, body: Bytes) -> (Outcome, Option<Held>) {
        let key = key_of(&delivery);
        Span::current().record(field::IDEMPOTENCY_KEY, &key);
        let held = match lock::begin(&*self.store, &key, self.times).await {
            Ok(held) => held,
            Err(outcome) => return (outcome, None),
        };
        let work = tokio::time::timeout(self.times.run, caught(self.work(delivery, body, held.lease.clone())));
        let outcome = tokio::select! {
            // A handler that is ready is not dropped because the lock is lost at the same moment.
            biased;
            done = work => match done {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(Panicked)) => Outcome::Panicked,
                Err(_) => Outcome::TimedOut(self.times.run),
            },
            () = lock::hold(&*self.store, &held, self.times) => Outcome::LockLost,
        };
        (outcome, Some(held))
    }

    /// Parses and validates the payload, and calls the handler. All of this is the caller's code and may panic.
    async fn work(&self, delivery: Arc<Delivery>, body: Bytes, lease: Lease) -> Outcome {
        let payload = match (self.decode)(body) {
            Ok(payload) => payload,
            Err(invalid) => return Outcome::Invalid(invalid),
        };
        if let Some(Err(invalid)) = self.validate.as_ref().map(|validate| validate(&payload)) {
            return Outcome::Invalid(invalid);
        }
        match (self.run)(Job { payload, delivery, lease }).await {
            Ok(()) => Outcome::Succeeded,
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// Reports the outcome of a delivery to the queue, the span and the log.
    fn answer(
        &self,
        outcome: &Outcome,
        delivery: Option<&Delivery>,
        request_id: &str,
        span: &Span,
        watch: Stopwatch,
    ) -> Response<ResponseBody> {
        let mut response = outcome.response(request_id);
        let is_dead = delivery.is_some_and(|delivery| outcome.is_last(delivery.is_final_attempt()));
        let latency_ms = u64::try_from(watch.elapsed().as_millis()).unwrap_or(u64::MAX);
        if !span.is_disabled() {
            span.record(field::OUTCOME, outcome.name());
            span.record(field::HTTP_STATUS, response.status().as_u16());
            span.record(field::RETRYABLE, outcome.is_retryable());
            span.record(field::DLQ, is_dead);
            span.record(field::LATENCY_MS, latency_ms);
            if !outcome.is_success() {
                span.record(field::OTEL_STATUS, "ERROR");
            }
        }
        span.in_scope(|| log(&self.job_type, outcome, delivery, is_dead, response.status().as_u16(), latency_ms));
        correlate(response.headers_mut(), delivery, request_id);
        response
    }

    /// Records the fields of the delivery in the span.
    fn describe(&self, delivery: &Delivery, span: &Span) {
        if let Some(hook) = &self.on_span {
            hook(span, delivery.relation());
        }
        if span.is_disabled() {
            return;
        }
        span.record(field::MESSAGE_ID, delivery.message_id());
        span.record(field::ATTEMPT, delivery.attempt());
        span.record(field::MAX_RETRIES, delivery.max_retries());
        span.record(field::FINAL_ATTEMPT, delivery.is_final_attempt());
        if let Some(id) = delivery.deduplication_id() {
            span.record(field::DEDUP_ID, id);
        }
        if let Some(id) = delivery.event_id() {
            span.record(field::EVENT_KEY, id);
        }
    }
}

/// The key of the message in the store.
fn key_of(delivery: &Delivery) -> String {
    format!("delivery:{}", delivery.message_id())
}

/// Logs one line per failure. The last line of a message contains all details, because people find it without its span.
fn log(
    job_type: &str,
    outcome: &Outcome,
    delivery: Option<&Delivery>,
    is_dead: bool,
    http_status: u16,
    latency_ms: u64,
) {
    let retryable = outcome.is_retryable();
    let error = outcome.cause();
    let error = error.as_deref();
    match delivery {
        Some(delivery) if is_dead => tracing::error!(
            job_type,
            qstash.message_id = delivery.message_id(),
            qstash.attempt = delivery.attempt(),
            qstash.max_retries = delivery.max_retries(),
            qstash.final_attempt = delivery.is_final_attempt(),
            qstash.dedup_id = delivery.deduplication_id(),
            qstash.dlq = true,
            event.key = delivery.event_id(),
            request_id = delivery.request_id(),
            outcome = outcome.name(),
            error,
            http_status,
            latency_ms,
            retryable,
            "the message failed permanently; the queue moves it to the DLQ"
        ),
        _ if outcome.is_success() => tracing::debug!(outcome = outcome.name(), latency_ms, "message handled"),
        _ => tracing::warn!(outcome = outcome.name(), error, http_status, latency_ms, retryable, "delivery failed"),
    }
}

/// Adds the ids that identify the response.
fn correlate(headers: &mut HeaderMap, delivery: Option<&Delivery>, request_id: &str) {
    let message_id = delivery.map(Delivery::message_id);
    let event_id = delivery.and_then(Delivery::event_id);
    let ids = [(REQUEST_ID_HEADER, Some(request_id)), (MESSAGE_ID_HEADER, message_id), (EVENT_ID_HEADER, event_id)];
    for (name, id) in ids {
        if let Some(Ok(value)) = id.map(HeaderValue::from_str) {
            headers.insert(name, value);
        }
    }
}
