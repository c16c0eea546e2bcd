//! The surroundings of the node in the server: random numbers, room on the disk, metrics, the log, and places at which tests make
//! the process die.

use crate::clock::Random;
use crate::data_dir::{Disk, DiskPromise};
use crate::metrics::Metrics;
use crate::quotas::{Quotas, STORED_BYTES_QUOTA};
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_engine::shard::{Accepted, Storage};
use posthaste_faults::crash_point::crash_point;
use posthaste_node::{Host, NoRoom, QuotaExceeded, TakenRoom};
use posthaste_store::Store;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// See the module's text.
pub(super) struct Surroundings {
    pub(super) random: Random,
    pub(super) metrics: Arc<Metrics>,
    pub(super) store: Arc<dyn Store>,
    pub(super) disk: Disk,
    pub(super) quotas: Quotas,
}

impl Surroundings {
    /// Room for bytes that the core itself is about to store for a tenant, on the disk and in its quota. Keep the promise until
    /// they are committed.
    pub(super) fn promise(&self, tenant: TenantId, adding: usize) -> Result<DiskPromise, NoRoom> {
        let adding = adding as u64;
        let promise = self.disk.room.take(tenant, adding).ok_or(NoRoom::DiskLow)?;
        let stored = self.store.stored_bytes(tenant).saturating_add(promise.earlier());
        match self.quotas.stored_bytes {
            Some(limit) if stored.saturating_add(adding) > limit => {
                promise.give_back();
                Err(QuotaExceeded { quota: STORED_BYTES_QUOTA, limit }.into())
            }
            _ => Ok(promise),
        }
    }

    /// Whether a tenant may store this many bytes besides those that are stored, leaving out requests that are being stored.
    pub(super) fn has_quota(&self, tenant: TenantId, adding: u64) -> bool {
        let stored = self.store.stored_bytes(tenant).saturating_add(adding);
        self.quotas.stored_bytes.is_none_or(|limit| stored <= limit)
    }

    /// Whether the outcomes of a tenant's attempts are stored in full.
    pub(super) fn storage_of(&self, tenant: TenantId) -> Storage {
        if self.disk_is_low() || !self.has_quota(tenant, 0) { Storage::Full } else { Storage::Free }
    }

    /// Whether the disk has less room than it must keep.
    pub(super) fn disk_is_low(&self) -> bool {
        self.disk.low.load(Ordering::Relaxed)
    }
}

impl Host for Surroundings {
    fn random(&mut self) -> u64 {
        self.random.next_u64()
    }

    fn take_room(&mut self, tenant: TenantId, bytes: usize) -> Result<Option<TakenRoom>, NoRoom> {
        Ok(Some(Box::new(self.promise(tenant, bytes)?)))
    }

    fn fits_quota(&mut self, tenant: TenantId, bytes: usize) -> bool {
        self.has_quota(tenant, bytes as u64)
    }

    fn published(&mut self, _tag: u64, accepted: &[Accepted]) {
        self.metrics.published(accepted);
        crash_point("publish_accepted");
    }

    fn cancelled(&mut self, ids: &[MessageId]) {
        self.metrics.cancelled(ids.len() as u32);
        crash_point("cancel_decided");
    }

    fn queue_changed(&mut self) {
        crash_point("queue_changed");
    }

    fn replayed(&mut self, _tag: u64, _letter: (TenantId, DlqId), _accepted: Accepted) {}

    fn bulk_piece_done(&mut self) {
        crash_point("bulk_piece_done");
    }

    fn fired(&mut self, schedule: &Schedule, state: &ScheduleState) {
        if let Some(error) = &state.error {
            tracing::info!(tenant = schedule.tenant.0, schedule.id, error, "schedule fired without creating a message");
        }
    }

    fn schedule_missing(&mut self, tenant: TenantId, id: &str) {
        tracing::error!(tenant = tenant.0, schedule.id = %id, "schedule missing from the store");
    }
}
