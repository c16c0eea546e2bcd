//! A FIFO queue: its messages are delivered in the order in which they joined it.
//!
//! [`Queue`] is what is stored and shown. Who may start is decided in `queues`.

use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Whose.
    pub tenant: TenantId,
    /// Its name, unique within the tenant.
    pub name: String,
    /// How many of its messages may be under way at once.
    pub parallelism: u32,
    /// Nothing is started while this is set.
    pub paused: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its settings were last changed.
    pub updated_at: Timestamp,
    /// It was deleted and is shown no more; it goes for good when the last of its messages has ended.
    pub deleted: bool,
}
