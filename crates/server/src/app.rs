//! What every request handler can reach.

use crate::api::{Allowances, BodyBudget, Duplicates, LlmUpstream, ResponseBudget, Streams};
use crate::blocking::passed_on;
use crate::bulk::BulkActions;
use crate::clock::Clock;
use crate::config::Config;
use crate::core::CoreHandle;
use crate::data_dir::DiskRoom;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::reads::{NoTurn, Reads, Turn};
use crate::receiver::Inboxes;
use crate::tenants::Tokens;
use posthaste_delivery::loop_mark::LoopMark;
use posthaste_faults::crash_point::panic_point;
use posthaste_store::{Store, StoreError};
use posthaste_wire::id::TenantId;
use posthaste_wire::redact::Marks;
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
    /// Recognises deliveries that came back, if the server is reached under a public name.
    pub(crate) loop_mark: Option<LoopMark>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Room for request bodies.
    pub(crate) body_budget: BodyBudget,
    /// Room for responses.
    pub(crate) response_budget: ResponseBudget,
    /// Whose turn it is to read.
    pub(crate) reads: Reads,
    /// What marks of hidden values are made with.
    pub(crate) mark_secret: [u8; 32],
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
    /// How much of it requests may take.
    pub(crate) disk_room: Arc<DiskRoom>,
    /// The core takes commands; false once it has ended.
    pub core_running: Arc<AtomicBool>,
}

/// Why something was not read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// Others were first for too long.
    NoTurn(NoTurn),
    /// The store failed.
    Store(StoreError),
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        ReadError::Store(error)
    }
}

impl App {
    /// Reads from the store for a tenant, off the async threads, when it is its turn.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        tenant: TenantId,
        query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let turn = self.reads.turn(tenant).await.map_err(ReadError::NoTurn)?;
        Ok(self.read_with(turn, query).await?)
    }

    /// The same for somebody who has a turn.
    pub(crate) async fn read_with<T: Send + 'static>(
        &self,
        turn: Turn,
        query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(query, Some(turn)).await
    }

    /// The same for work in the background: it waits for as long as it takes.
    pub(crate) async fn read_in_time<T: Send + 'static>(
        &self,
        tenant: TenantId,
        query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = self.reads.turn_in_time(tenant).await;
        self.ask(query, Some(turn)).await
    }

    /// Looks up something small by its key, for a publish or for the server itself, without waiting for a turn.
    pub(crate) async fn look_up<T: Send + 'static>(
        &self,
        query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(query, None).await
    }

    /// The turn ends with the query, also if nobody waits for that any more.
    async fn ask<T: Send + 'static>(
        &self,
        query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
        turn: Option<Turn>,
    ) -> Result<T, StoreError> {
        let store = self.store.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            panic_point("query");
            query(store.as_ref())
        });
        match passed_on(asked.await) {
            Ok(result) => result,
            Err(error) => Err(StoreError::Unavailable(Box::new(error))),
        }
    }

    /// Makes the marks of a tenant's hidden values.
    pub(crate) fn marks_of(&self, tenant: TenantId) -> Marks {
        Marks::of(&self.mark_secret, tenant)
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
