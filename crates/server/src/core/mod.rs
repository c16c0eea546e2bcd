//! The core: one thread that owns the shard, decides everything by the engine and commits it.
//!
//! A command comes in, the engine turns it into ops and effects, the ops are committed in one batch
//! with everything else that arrived meanwhile, and only then are callers answered and attempts started.
//! While one batch is being synced the next one gathers: that is the group commit.
//!
//! Start at [`Core::run`] in `run.rs`. What the commands mean is decided in `posthaste_engine`.

mod admission;
mod attempts;
mod clock_watch;
mod deliver_now;
mod facts;
mod failed_runs;
mod handle;
mod host;
mod inbox;
mod limits;
mod outcomes;
mod run;
mod run_cache;
mod run_events;
mod runs;
mod schedules;
mod sealing;
mod stats;
mod tail;
mod tasks;
mod workflow;

pub use admission::{SHARED_TURNS_MAX, TENANT_TURNS_MAX, WAIT_MAX, WAITING_MAX};
pub use attempts::{API_LLM, Attempts, Throttle};
pub(crate) use run::SHARD;
pub use run::{Core, CoreFailure};
pub use stats::CoreStats;
pub(crate) use tail::Tail;
pub(crate) use workflow::DEPTH_QUOTA;
use workflow::RunCommand;
pub(crate) use workflow::fresh_run_id;
pub use workflow::{
    Again, BegunAgain, FailureCallEdit, FailureCallRefused, InvokedBy, Notified, RunKey, RunRefused, StartRun, Started,
};

use crate::data_dir::DiskPromise;
pub use handle::CoreHandle;
pub(crate) use handle::in_time;
use posthaste_engine::message::{Live, Message};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::why::WaitReason;
pub use posthaste_node::{
    BulkDone, BulkPiece, DeliverNowRefused, FirstDue, NewMessage, NoRoom, QueueSettings, QuotaExceeded, Replay,
};
use posthaste_node::{ReadReply, Reply};
pub(crate) use posthaste_node::{entry_bytes, messages_of, spec_bytes, stored_bytes, wait_bytes};
use posthaste_wire::id::TenantId;
use std::sync::Arc;
use std::time::Duration;
use tail::Listener;
use tokio::sync::OwnedSemaphorePermit;

/// A command for the core. Its reply leaves when the outcome is on disk.
pub(crate) enum Command {
    /// All that the node decides itself.
    Node(posthaste_node::Command),
    /// An attempt has ended.
    Ended {
        message: Arc<Message>,
        outcome: Outcome,
        /// Room in RAM that the response takes until it is stored.
        room: Permits,
    },
    Run(RunCommand),
    Why {
        row: Box<Live>,
        reply: ReadReply<WaitReason>,
    },
    Parallelism {
        tenant: TenantId,
        reply: ReadReply<Parallelism>,
    },
    Stats {
        tenant: TenantId,
        reply: ReadReply<CoreStats>,
    },
    Listen {
        listener: Listener,
    },
    /// The clock may have moved: look at it.
    Tick,
    /// Start nothing from now on.
    Drain {
        reply: Reply<()>,
    },
    /// Commit what has arrived and end.
    Stop,
}

/// How many deliveries a tenant may have under way, and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallelism {
    /// At most.
    pub max: u32,
    /// Now.
    pub count: u32,
}

/// Room for the bodies of a request in RAM, given back when this is dropped.
#[derive(Default)]
pub struct Room {
    pub taken: Permits,
    /// How long the request has waited for it: so much less it may wait for its turn.
    pub waited: Duration,
    /// Room on the disk for what it stores.
    pub disk: Option<DiskPromise>,
    /// Its share of the items of batches that a tenant may have at once.
    pub items: Option<OwnedSemaphorePermit>,
}

/// Parts of a budget, given back when this is dropped.
pub type Permits = Vec<OwnedSemaphorePermit>;

/// Why the core did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// Nothing was stored; trying again later helps.
    #[error("too many requests are waiting")]
    Overloaded,
    /// The tenant's turn did not come in time. Nothing was stored; trying again later helps.
    #[error("too many requests of this tenant are waiting")]
    Late,
    /// The core has ended: the outcome is unknown.
    #[error("the server is stopping")]
    Stopped,
    /// A publish would make a queue or a flow-control key that the tenant may not have; nothing was stored.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The disk has no room for it besides the reserve. Nothing was stored.
    #[error("the disk is nearly full")]
    DiskLow,
}

impl From<NoRoom> for CoreError {
    fn from(no_room: NoRoom) -> CoreError {
        match no_room {
            NoRoom::Quota(exceeded) => CoreError::Quota(exceeded),
            NoRoom::DiskLow => CoreError::DiskLow,
        }
    }
}
