//! What commands must know of the store, and what the store has said.
//!
//! Commands say what they want to know before they decide; the driver reads for all commands of a round at once. A command that
//! is about stored rows needs the truth: nothing that was decided before may be uncommitted when its facts are read and used.

use posthaste_engine::message::{DedupKey, Live};
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use std::collections::{HashMap, HashSet};

/// What must be read, of each kind at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The messages that these keys stand for.
    pub duplicates: Vec<(TenantId, DedupKey)>,
    /// The live rows of these messages, if they belong to the tenant.
    pub live: Vec<(TenantId, MessageId)>,
    /// Which of these dead letters exist.
    pub dead_letters: Vec<(TenantId, DlqId)>,
}

impl Wanted {
    /// Whether nothing must be read.
    pub fn is_empty(&self) -> bool {
        self.duplicates.is_empty() && self.live.is_empty() && self.dead_letters.is_empty()
    }

    pub(crate) fn merge(&mut self, other: Wanted) {
        self.duplicates.extend(other.duplicates);
        self.live.extend(other.live);
        self.dead_letters.extend(other.dead_letters);
    }
}

/// What was read. Something that is not in here does not exist.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The message that each key stands for.
    pub duplicates: HashMap<(TenantId, DedupKey), MessageId>,
    /// Live rows.
    pub live: HashMap<(TenantId, MessageId), Live>,
    /// Dead letters.
    pub dead_letters: HashSet<(TenantId, DlqId)>,
}
