//! A message that has been accepted by the API and has no id yet.

use bytes::Bytes;
use posthaste_engine::message::{DedupKey, MessageSpec, Origin};
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;

/// A message that is about to get its id.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// The tenant that publishes it.
    pub tenant: TenantId,
    /// Where to, and under which conditions.
    pub spec: MessageSpec,
    /// The bytes to send.
    pub body: Bytes,
    /// When its first attempt is due.
    pub first_due: FirstDue,
    /// Hash of tenant and destination origin.
    pub origin: Origin,
    /// The key that makes it a duplicate.
    pub dedup: Option<DedupKey>,
}

/// When the first attempt is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstDue {
    /// At once.
    Now,
    /// This many milliseconds after it was accepted.
    AfterMs(u64),
    /// Not before this time.
    At(Timestamp),
}

impl FirstDue {
    /// The time, for a message that is accepted now.
    pub(crate) fn time(self, now: Timestamp) -> Timestamp {
        match self {
            FirstDue::Now => now,
            FirstDue::AfterMs(millis) => now.plus_millis(millis),
            FirstDue::At(time) => time.max(now),
        }
    }
}
