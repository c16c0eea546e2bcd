//! A bulk action: something done to many messages in the background, with its progress.

use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A bulk cancel that was asked for with `async`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkAction {
    /// Whose.
    pub tenant: TenantId,
    /// Its id: its position in the order of creation.
    pub id: Seq,
    /// What to cancel: the parameters as they were given, name and values.
    pub filter: Vec<(String, Vec<String>)>,
    /// Only messages created up to here.
    pub until: Seq,
    /// Messages created up to here have been looked at.
    pub after: Seq,
    /// At most so many.
    pub count: Option<u64>,
    /// How many matched when it was begun.
    pub total: u64,
    /// How many were cancelled so far.
    pub processed: u64,
    /// When it was begun.
    pub created_at: Timestamp,
    /// When it was finished.
    pub completed_at: Option<Timestamp>,
}
