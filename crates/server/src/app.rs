//! What every request handler can reach.

use crate::clock::Clock;
use crate::config::Config;
use crate::core::CoreHandle;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::store::{Store, StoreError};
use crate::tenants::Tokens;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;

/// The shared handles of a running server.
pub struct App {
    /// What was configured, with our own addresses in the egress policy.
    pub config: Config,
    /// Who may call.
    pub tokens: Tokens,
    /// Everything that writes goes through it.
    pub core: CoreHandle,
    /// Reads come from it.
    pub store: Arc<dyn Store>,
    /// Signing keys.
    pub keys: Arc<Keys>,
    /// Where the time comes from.
    pub clock: Clock,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Room for request bodies, in units of a KiB.
    pub(crate) body_budget: Arc<Semaphore>,
    /// The core takes commands. False before it has started and after it has ended.
    pub core_running: Arc<AtomicBool>,
}

impl App {
    /// Reads from the store, off the async threads.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.store.clone();
        match tokio::task::spawn_blocking(move || query(store.as_ref())).await {
            Ok(result) => result,
            Err(error) => Err(StoreError::Unavailable(Box::new(error))),
        }
    }

    /// Whether publishes can be accepted.
    pub fn is_running(&self) -> bool {
        self.core_running.load(Ordering::Acquire)
    }
}
