//! The surroundings of a node: chance, room for what it stores, and observers of its decisions.

use crate::quota::QuotaExceeded;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_engine::shard::Accepted;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use posthaste_wire::time::Timestamp;

/// The time and the surroundings of a decision.
pub struct Moment<'a> {
    /// The time.
    pub now: Timestamp,
    /// The surroundings.
    pub host: &'a mut dyn Host,
}

/// Room that is taken until this is dropped.
pub type TakenRoom = Box<dyn Send>;

/// Why nothing more is stored for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The tenant would exceed its quota.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The disk would have less than its reserve. Trying again later may help.
    #[error("the disk is nearly full")]
    DiskLow,
}

/// See the module's text. Decisions are not committed yet when an observer learns of them.
pub trait Host {
    /// A random number.
    fn random(&mut self) -> u64;

    /// Room for bytes that the node itself is about to store for a tenant, on the disk and in its quota.
    fn take_room(&mut self, _tenant: TenantId, _bytes: usize) -> Result<Option<TakenRoom>, NoRoom> {
        Ok(None)
    }

    /// Whether a tenant may store this many bytes besides those that are stored, requests that are being stored not counted.
    fn fits_quota(&mut self, _tenant: TenantId, _bytes: usize) -> bool {
        true
    }

    /// Messages were published for the request with this tag.
    fn published(&mut self, _tag: u64, _accepted: &[Accepted]) {}

    /// A piece of a publish was published for the request with this tag.
    fn piece_published(&mut self, _tag: u64, _accepted: &[Accepted]) {}

    /// Messages were cancelled.
    fn cancelled(&mut self, _ids: &[MessageId]) {}

    /// A queue was paused or resumed.
    fn queue_changed(&mut self) {}

    /// A dead letter was published again for the request with this tag, or is a duplicate.
    fn replayed(&mut self, _tag: u64, _letter: (TenantId, DlqId), _accepted: Accepted) {}

    /// A piece of a bulk action was done.
    fn bulk_piece_done(&mut self) {}

    /// A schedule whose time had come has this state now.
    fn fired(&mut self, _schedule: &Schedule, _state: &ScheduleState) {}

    /// A schedule is missing from the store.
    fn schedule_missing(&mut self, _tenant: TenantId, _id: &str) {}
}
