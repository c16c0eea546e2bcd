//! A FIFO queue: its messages are delivered in the order in which they joined it.
//!
//! [`Queue`] is the stored and displayed form. `queues` decides which messages may start.

use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The tenant.
    pub tenant: TenantId,
    /// Its name, unique within the tenant.
    pub name: String,
    /// How many of its messages may be in flight at once.
    pub parallelism: u32,
    /// Whether the queue is paused, so that nothing starts.
    pub paused: bool,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its settings were last changed.
    pub updated_at: Timestamp,
    /// Whether it was deleted. It is no longer shown, and is removed when the last of its messages has ended.
    pub deleted: bool,
}
