//! What every request handler can reach.

use crate::api::{Allowances, BodyBudget, Duplicates, LlmUpstream, Streams};
use crate::bulk::BulkActions;
use crate::clock::Clock;
use crate::config::Config;
use crate::core::CoreHandle;
use crate::crash_point::panic_point;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::panics::passed_on;
use crate::receiver::Inboxes;
use crate::store::{Store, StoreError};
use crate::tenants::Tokens;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

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
    /// Sends to the operator's language model, if there is one.
    pub(crate) llm: Option<LlmUpstream>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Room for request bodies.
    pub(crate) body_budget: BodyBudget,
    /// What tenants have used of what they may use per day or second.
    pub(crate) allowances: Allowances,
    /// What the console's test receiver remembers, if there is one.
    pub(crate) inboxes: Option<Arc<Inboxes>>,
    /// Cancels that go on in the background.
    pub(crate) bulk_actions: BulkActions,
    /// Who has a stream of log lines.
    pub(crate) streams: Streams,
    /// Which messages others were duplicates of.
    pub(crate) duplicates: Duplicates,
    /// The server stops: what would go on for ever must end.
    pub(crate) stopping: CancellationToken,
    /// Held while a URL group is changed, so that what was counted before stays true.
    pub(crate) group_edits: std::sync::Mutex<()>,
    /// What the store last said when it was asked whether it can write.
    pub(crate) last_probe: tokio::sync::Mutex<Option<(Instant, bool)>>,
    /// The disk has less room than it must keep.
    pub(crate) disk_low: Arc<AtomicBool>,
    /// The core takes commands; false once it has ended.
    pub core_running: Arc<AtomicBool>,
}

impl App {
    /// Reads from the store, off the async threads.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.store.clone();
        let query = move || {
            panic_point("query");
            query(store.as_ref())
        };
        match passed_on(tokio::task::spawn_blocking(query).await) {
            Ok(result) => result,
            Err(error) => Err(StoreError::Unavailable(Box::new(error))),
        }
    }

    /// Whether the disk has less room than it must keep: then nothing new is accepted.
    pub fn disk_is_low(&self) -> bool {
        self.disk_low.load(Ordering::Relaxed)
    }

    /// Whether the core takes commands.
    pub fn is_running(&self) -> bool {
        self.core_running.load(Ordering::Acquire)
    }
}
