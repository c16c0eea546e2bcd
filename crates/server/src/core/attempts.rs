//! Starts attempts on the async runtime and reports how they ended.

use super::CoreHandle;
use crate::clock::Clock;
use crate::crash_point::crash_point;
use crate::delivery::{Attempt, Deliverer};
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::store::StoreError;
use posthaste_engine::limits::TIMEOUT_MS_MAX;
use posthaste_engine::message::{Live, Message};
use posthaste_engine::outcome::{AttemptError, ErrorClass, Outcome, Verdict};
use posthaste_wire::signature::SigningKeys;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
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
    /// Hears how they ended.
    pub core: CoreHandle,
    /// Dates them.
    pub clock: Clock,
    /// Counts them.
    pub metrics: Arc<Metrics>,
    /// Knows which are under way.
    pub tracker: TaskTracker,
    /// Ends them without an outcome: their messages stay live and are attempted again.
    pub abandon: CancellationToken,
}

impl Attempts {
    /// Starts one attempt. The only thing that can fail is reading the tenant's keys.
    pub(super) fn start(
        self: &Arc<Self>,
        live: Live,
        message: Arc<Message>,
        nonce: [u8; 20],
    ) -> Result<(), StoreError> {
        let keys = self.keys.of(message.tenant)?;
        let this = self.clone();
        let task = async move {
            let started = Instant::now();
            crash_point("attempt_started");
            tokio::select! {
                outcome = this.attempt(&live, &message, &keys, nonce) => {
                    crash_point("attempt_answered");
                    this.report(&live, &message, &outcome, started.elapsed());
                    this.core.ended(message, outcome);
                }
                () = this.abandon.cancelled() => {
                    tracing::info!(msg.id = %live.id, tenant = live.tenant.0, "attempt handed back: the server is stopping");
                }
            }
        };
        self.tracker.spawn_on(task, &self.runtime);
        Ok(())
    }

    async fn attempt(&self, live: &Live, message: &Message, keys: &SigningKeys, nonce: [u8; 20]) -> Outcome {
        let attempt = Attempt {
            message,
            retried: live.retried,
            keys,
            now: self.clock.now(),
            nonce,
            timeout_ms: message.spec.timeout_ms.unwrap_or(TIMEOUT_MS_MAX),
            needs_body: message.spec.callback.is_some() || message.spec.workflow.is_some(),
        };
        match message.spec.api.as_deref() {
            None => self.deliverer.attempt(&attempt).await,
            Some(api) => match self.llm.as_ref().filter(|_| api == API_LLM) {
                Some(llm) => Box::pin(llm.attempt(&attempt)).await,
                None => no_upstream(api),
            },
        }
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
        let origin = posthaste_wire::destination::origin(&message.spec.url).unwrap_or_default();
        match &outcome.result {
            Ok(_) => tracing::info!(msg.id = %id, tenant, retried, origin, status, duration_ms, "attempt failed"),
            Err(error) => {
                tracing::info!(msg.id = %id, tenant, retried, origin, error = error.message, duration_ms, "attempt failed");
            }
        }
    }
}

/// The message was accepted when there was an upstream for it.
fn no_upstream(api: &str) -> Outcome {
    let message = format!("destination refused: the server has no upstream for api/{api} any more");
    Outcome { result: Err(AttemptError { class: ErrorClass::Blocked, message }), duration_ms: 0 }
}
