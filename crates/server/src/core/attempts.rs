//! Starts attempts on the async runtime and reports how they ended.

use super::CoreHandle;
use crate::clock::{Clock, random};
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
use tracing::Instrument;

/// The built-in API of language models, as messages name it.
pub const API_LLM: &str = "llm";

/// What an attempt needs. Cheap to clone.
#[derive(Clone)]
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
    pub(super) fn start(&self, live: Live, message: Arc<Message>) -> Result<(), StoreError> {
        let keys = self.keys.of(message.tenant)?;
        let this = self.clone();
        let span = tracing::info_span!("attempt", msg.id = %message.id, tenant = live.tenant.0, retried = live.retried);
        let task = async move {
            let started = Instant::now();
            tokio::select! {
                outcome = this.attempt(&live, &message, &keys) => {
                    this.report(&message, &outcome, started.elapsed());
                    this.core.ended(message, outcome);
                }
                () = this.abandon.cancelled() => {
                    tracing::info!("attempt handed back: the server is stopping");
                }
            }
        };
        self.tracker.spawn_on(task.instrument(span), &self.runtime);
        Ok(())
    }

    async fn attempt(&self, live: &Live, message: &Message, keys: &SigningKeys) -> Outcome {
        let attempt = Attempt {
            message,
            retried: live.retried,
            keys,
            now: self.clock.now(),
            nonce: random(),
            timeout_ms: message.spec.timeout_ms.unwrap_or(TIMEOUT_MS_MAX),
            needs_body: message.spec.callback.is_some(),
        };
        match message.spec.api.as_deref() {
            None => self.deliverer.attempt(&attempt).await,
            Some(api) => match self.llm.as_ref().filter(|_| api == API_LLM) {
                Some(llm) => llm.attempt(&attempt).await,
                None => no_upstream(api),
            },
        }
    }

    fn report(&self, message: &Message, outcome: &Outcome, took: Duration) {
        self.metrics.attempted(outcome, took);
        let duration_ms = outcome.duration_ms;
        let origin = || posthaste_wire::destination::origin(&message.spec.url).unwrap_or_default();
        match (&outcome.result, outcome.verdict()) {
            (Ok(response), Verdict::Success) => tracing::debug!(status = response.status, duration_ms, "delivered"),
            (Ok(response), _) => {
                tracing::info!(origin = origin(), status = response.status, duration_ms, "attempt failed");
            }
            (Err(error), _) => tracing::info!(origin = origin(), error = error.message, duration_ms, "attempt failed"),
        }
    }
}

/// The message was accepted when there was an upstream for it.
fn no_upstream(api: &str) -> Outcome {
    let message = format!("destination refused: the server has no upstream for api/{api} any more");
    Outcome { result: Err(AttemptError { class: ErrorClass::Blocked, message }), duration_ms: 0 }
}
