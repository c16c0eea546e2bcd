//! Flow control: how many deliveries of a key may be under way at once and start within a period.
//!
//! [`Flow`] is what is stored. Who may start is decided in `flows`.

use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A flow-control key: its limits, and what must be known of it after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Whose.
    pub tenant: TenantId,
    /// The key, unique within the tenant.
    pub key: String,
    /// Most deliveries under way at once; `None` means no limit.
    pub parallelism: Option<u32>,
    /// Most deliveries started within a period; `None` means no limit.
    pub rate: Option<u32>,
    /// Length of that period.
    pub period_ms: u64,
    /// Messages do not change `parallelism`.
    pub pinned_parallelism: bool,
    /// Messages do not change `rate` and `period_ms`.
    pub pinned_rate: bool,
    /// Nothing is started while this is set.
    pub paused: bool,
    /// Starts within the last period, oldest first: kept for long periods only, see `flows`.
    pub starts: Vec<(Timestamp, u32)>,
}

/// What an operator does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEdit {
    /// Fixes limits, so that messages do not change them; makes the key if it is unknown.
    Pin {
        /// Most deliveries under way at once.
        parallelism: Option<u32>,
        /// Most deliveries started within a period, and its length. Forgets the starts so far.
        rate: Option<(u32, u64)>,
    },
    /// Lets messages change limits again; until one does, they stay as they are.
    Unpin {
        /// `parallelism`.
        parallelism: bool,
        /// `rate` and its period.
        rate: bool,
    },
    /// Starts nothing until it is resumed; makes the key if it is unknown.
    Pause,
    /// Goes on.
    Resume,
    /// Forgets the starts so far.
    ResetRate,
    /// Forgets the starts so far, and no longer counts what is under way.
    Reset,
}

/// Which keys of a tenant are listed, by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPage {
    /// Those that hold this text.
    pub search: String,
    /// Those behind this key, which need not exist.
    pub after: Option<String>,
    /// At most so many.
    pub max: usize,
}

/// A key as the API shows it, but for the length of its wait list, which the store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowInfo {
    /// Its settings.
    pub flow: Flow,
    /// Deliveries under way that count.
    pub in_flight: u32,
    /// The messages of all deliveries under way, also of those that a reset no longer counts.
    pub under_way: Vec<MessageId>,
    /// Deliveries started within the period that ends now.
    pub rate_count: u32,
    /// When the first of them started, or else when the key began to count.
    pub period_start: Timestamp,
}
