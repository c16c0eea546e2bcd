//! Starts attempts on the runtime of the deliveries and reports how they ended.

use super::CoreHandle;
use super::runs::nothing_sent;
use crate::blocking::passed_on;
use crate::clock::Clock;
use crate::credentials::{Unreadable, has_sealed};
use crate::dev_output::AttemptReports;
use crate::keys::Keys;
use crate::metrics::Metrics;
use bytes::Bytes;
use posthaste_delivery::{AnswerBudget, AnswerRoom, Attempt, Deliverer};
use posthaste_engine::limits::TIMEOUT_MS_MAX;
use posthaste_engine::message::{Live, Message};
use posthaste_engine::outcome::{AttemptError, ErrorClass, Outcome, Verdict};
use posthaste_engine::workflow::entry::array_of;
use posthaste_engine::workflow::{Part, StepRef};
use posthaste_faults::crash_point::{crash_point, panic_point};
use posthaste_faults::panics::{Panicked, caught};
use posthaste_store::{BoxError, ReadPool, Store, StoreError};
use posthaste_wire::id::TenantId;
use posthaste_wire::signature::SigningKeys;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The built-in API of language models, as messages name it.
pub const API_LLM: &str = "llm";

/// What an attempt needs.
pub struct Attempts {
    /// Where attempts run.
    pub runtime: Handle,
    /// Sends them.
    pub deliverer: Arc<Deliverer>,
    /// Sends those to `api/llm`, if the operator named a place for them.
    pub llm: Option<Arc<Deliverer>>,
    /// Signs them.
    pub keys: Arc<Keys>,
    /// Bounds how often the log says that credentials cannot be read.
    pub unreadable: Throttle,
    /// Has the bodies that are put together when they are sent.
    pub store: Arc<dyn Store>,
    /// Hears how they ended.
    pub core: CoreHandle,
    /// Dates them.
    pub clock: Clock,
    /// Counts them.
    pub metrics: Arc<Metrics>,
    /// Has room for their answers.
    pub answers: Arc<AnswerBudget>,
    /// Knows which are under way.
    pub tracker: TaskTracker,
    /// Ends them without an outcome: their messages stay live and are attempted again.
    pub abandon: CancellationToken,
    /// Where each attempt is reported for the terminal of a developer.
    pub reports: Option<AttemptReports>,
}

impl Attempts {
    /// Starts one attempt. The only thing that can fail is reading the tenant's keys. `stored` says what of a run is sent,
    /// if that is to be read first: on another thread, because it may be large.
    pub(super) fn start(
        self: &Arc<Self>,
        live: Live,
        message: Arc<Message>,
        stored: Option<StepRef>,
        nonce: [u8; 20],
    ) -> Result<(), StoreError> {
        let keys = self.keys.of(message.tenant)?;
        let this = self.clone();
        let task = async move {
            let room = AnswerRoom::new(this.answers.clone(), message.tenant);
            crash_point("attempt_started");
            let outcome = {
                let attempted = pin!(async {
                    let (outcome, took) = this.attempt(&live, &message, stored, (&keys, nonce), &room).await;
                    crash_point("attempt_answered");
                    this.report(&live, &message, &outcome, took);
                    outcome
                });
                tokio::select! {
                    outcome = caught(attempted) => Some(outcome),
                    () = this.abandon.cancelled() => None,
                }
            };
            match outcome {
                Some(outcome) => {
                    // A message whose attempt ended in a panic must not stay in flight: it is retried like any other.
                    let outcome = outcome.unwrap_or_else(|Panicked| failed_by_us());
                    this.core.ended(message, outcome, room.into_taken());
                }
                None => {
                    tracing::info!(msg.id = %live.id, tenant = live.tenant.0, "attempt returned to the store: the server is stopping");
                }
            }
        };
        self.tracker.spawn_on(task, &self.runtime);
        Ok(())
    }

    /// How it ended, and how long it took: from when there was something to send, without the wait for room.
    async fn attempt(
        &self,
        live: &Live,
        message: &Arc<Message>,
        stored: Option<StepRef>,
        (keys, nonce): (&SigningKeys, [u8; 20]),
        room: &AnswerRoom,
    ) -> (Outcome, Duration) {
        panic_point("attempt");
        let read;
        let message = match stored {
            None => message,
            Some(step) => match self.read_body(message.tenant, step).await {
                Ok(body) => {
                    read = Message { body, ..Message::clone(message) };
                    &read
                }
                Err(outcome) => return (outcome, Duration::ZERO),
            },
        };
        let opened;
        let message = match has_sealed(&message.spec.headers) {
            false => message,
            true => match self.opened(message) {
                Ok(message) => {
                    opened = message;
                    &opened
                }
                Err(outcome) => return (outcome, Duration::ZERO),
            },
        };
        let begun = Instant::now();
        let attempt = Attempt {
            message,
            retried: live.retried,
            keys,
            now: self.clock.now(),
            nonce,
            timeout_ms: message.spec.timeout_ms.unwrap_or(TIMEOUT_MS_MAX),
            needs_body: message.spec.callback.is_some() || message.spec.workflow.is_some(),
            room,
        };
        let outcome = match message.spec.api.as_deref() {
            None => self.deliverer.attempt(&attempt).await,
            Some(api) => match self.llm.as_ref().filter(|_| api == API_LLM) {
                Some(llm) => Box::pin(llm.attempt(&attempt)).await,
                None => no_upstream(api),
            },
        };
        (outcome, room.spent_since(begun))
    }

    /// The message with its credentials as they were published, or how the attempt ends without them: it is never sent without
    /// a header that it should have.
    fn opened(&self, message: &Message) -> Result<Message, Outcome> {
        let mut opened = message.clone();
        let unreadable = match self.core.credentials().open_all(message.tenant, &mut opened.spec.headers) {
            Ok(()) => return Ok(opened),
            Err(unreadable) => unreadable,
        };
        if let Some(attempts) = self.unreadable.admits(self.clock.uptime()) {
            let Unreadable { name, source } = &unreadable;
            tracing::error!(
                tenant = message.tenant.0, msg.id = %message.id, header = name, error = %source, attempts,
                "stored credentials cannot be read; these attempts fail and are retried"
            );
        }
        let error = AttemptError { class: ErrorClass::Closed, message: unreadable.to_string() };
        Err(Outcome { result: Err(error), duration_ms: 0, phases: None })
    }

    /// What of a run is sent, or how the attempt ends without it. Its ops are committed, so the store has all of it.
    async fn read_body(&self, tenant: TenantId, step: StepRef) -> Result<Bytes, Outcome> {
        let store = self.store.clone();
        let read = tokio::task::spawn_blocking(move || body_of(store.as_ref(), tenant, step));
        let failed: BoxError = match passed_on(read.await) {
            Ok(Ok(Some(body))) => return Ok(body),
            // It was dropped with its history.
            Ok(Ok(None)) => return Err(nothing_sent()),
            Ok(Err(error)) => error.into(),
            Err(error) => error.into(),
        };
        let error = failed.as_ref() as &dyn std::error::Error;
        tracing::error!(run = step.run.0, error, "cannot read a workflow run; its delivery fails");
        let message = "the server could not read the workflow run".to_owned();
        Err(Outcome { result: Err(AttemptError { class: ErrorClass::Closed, message }), duration_ms: 0, phases: None })
    }

    /// The lines name their message themselves: a span around every attempt would cost more than writing none.
    fn report(&self, live: &Live, message: &Message, outcome: &Outcome, took: Duration) {
        self.metrics.attempted(outcome, took);
        let (id, tenant, retried) = (live.id, live.tenant.0, live.retried);
        let duration_ms = outcome.duration_ms;
        let status = outcome.result.as_ref().map_or(0, |response| response.status);
        if outcome.verdict() == Verdict::Success {
            tracing::debug!(msg.id = %id, tenant, retried, status, duration_ms, "delivered");
            return;
        }
        let origin = posthaste_wire::destination::origin(&message.spec.url).unwrap_or_else(|| message.spec.url.clone());
        match &outcome.result {
            Ok(_) => tracing::info!(msg.id = %id, tenant, retried, origin, status, duration_ms, "attempt failed"),
            Err(error) => {
                tracing::info!(msg.id = %id, tenant, retried, origin, error = error.message, duration_ms, "attempt failed");
            }
        }
    }
}

/// Lets one log line through per minute, with how many it stands for.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<Throttled>);

#[derive(Debug, Default)]
struct Throttled {
    /// The uptime at which the last line was written.
    last: Option<Duration>,
    /// How often it happened since, this time included.
    count: u64,
}

/// The log says once in this time that credentials cannot be read, however many attempts fail.
const THROTTLE_PERIOD: Duration = Duration::from_secs(60);

impl Throttle {
    /// It has happened once more: for how many times the line stands that is due now, if one is.
    fn admits(&self, uptime: Duration) -> Option<u64> {
        let mut throttled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        throttled.count += 1;
        if throttled.last.is_some_and(|last| uptime.saturating_sub(last) < THROTTLE_PERIOD) {
            return None;
        }
        throttled.last = Some(uptime);
        Some(std::mem::take(&mut throttled.count))
    }
}

/// The body of a message of a run that is put together when it is sent.
fn body_of(store: &dyn Store, tenant: TenantId, step: StepRef) -> Result<Option<Bytes>, StoreError> {
    match step.part {
        Part::Entry(index) => {
            let Some(mut entries) = store.run_entries(tenant, step.run, ReadPool::Queries)? else { return Ok(None) };
            entries.truncate(index as usize + 1);
            Ok(Some(array_of(entries).into()))
        }
        Part::FailureCall => {
            let record = store.run_record(tenant, step.run, ReadPool::Queries)?;
            Ok(record.and_then(|record| record.failure_call()))
        }
        Part::Deadline => Ok(None),
    }
}

/// An attempt that ended in a panic: nothing is known of what the receiver did.
fn failed_by_us() -> Outcome {
    let message = "the server failed during this attempt; its log has the cause".to_owned();
    Outcome { result: Err(AttemptError { class: ErrorClass::Closed, message }), duration_ms: 0, phases: None }
}

/// The message was accepted when there was an upstream for it.
fn no_upstream(api: &str) -> Outcome {
    let message = format!("destination refused: the server no longer has an upstream for api/{api}");
    Outcome { result: Err(AttemptError { class: ErrorClass::Blocked, message }), duration_ms: 0, phases: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_once_a_minute_and_counts_what_it_stands_for() {
        let (throttle, at) = (Throttle::default(), Duration::from_secs);
        let lines: Vec<Option<u64>> = [0, 0, 59, 60, 61, 119, 200].map(|second| throttle.admits(at(second))).into();
        assert_eq!(lines, [Some(1), None, None, Some(3), None, None, Some(3)]);
    }
}
