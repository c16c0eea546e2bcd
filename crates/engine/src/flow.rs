//! Flow control: how many deliveries of a key may be in flight at once and start within a period.
//!
//! [`Flow`] is the stored form. `flows` decides which deliveries may start.

use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A flow-control key: its limits, and the state that must survive a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The tenant.
    pub tenant: TenantId,
    /// The key, unique within the tenant.
    pub key: String,
    /// Most deliveries in flight at once; `None` means no limit.
    pub parallelism: Option<u32>,
    /// Most deliveries started within a period; `None` means no limit.
    pub rate: Option<u32>,
    /// Length of that period.
    pub period_ms: u64,
    /// Whether messages cannot change `parallelism`.
    pub pinned_parallelism: bool,
    /// Whether messages cannot change `rate` and `period_ms`.
    pub pinned_rate: bool,
    /// Whether the key is paused, so that nothing starts.
    pub paused: bool,
    /// Starts within the last period, oldest first. Kept only for long periods; see `flows`.
    pub starts: Vec<(Timestamp, u32)>,
}

/// An operator's change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEdit {
    /// Pins limits, so that messages cannot change them. Creates the key if it is unknown.
    Pin {
        /// Most deliveries in flight at once.
        parallelism: Option<u32>,
        /// Most deliveries started within a period, and its length. Forgets earlier starts.
        rate: Option<(u32, u64)>,
    },
    /// Lets messages change limits again. Until one does, they stay as they are.
    Unpin {
        /// `parallelism`.
        parallelism: bool,
        /// `rate` and its period.
        rate: bool,
    },
    /// Pauses the key. Creates it if it is unknown.
    Pause,
    /// Resumes the key.
    Resume,
    /// Forgets earlier starts.
    ResetRate,
    /// Forgets earlier starts, and no longer counts deliveries that are in flight.
    Reset,
}

/// Selects the keys of a tenant for a list, sorted by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPage {
    /// Keys that contain this text.
    pub search: String,
    /// Keys after this one, which need not exist.
    pub after: Option<String>,
    /// Most keys.
    pub max: usize,
}

/// A key as the API shows it, without the length of its wait list, which the store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowInfo {
    /// Its settings.
    pub flow: Flow,
    /// Deliveries in flight that count.
    pub in_flight: u32,
    /// The messages of all deliveries in flight, including those that a reset no longer counts.
    pub under_way: Vec<MessageId>,
    /// Deliveries started within the current period.
    pub rate_count: u32,
    /// When the first of them started, or else when the key began to count.
    pub period_start: Timestamp,
}
