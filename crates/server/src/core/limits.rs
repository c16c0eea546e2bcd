//! Queues, flow-control keys and quotas: what the core does about what limits deliveries.

use super::run::Core;
use super::{CoreFailure, NoRoom, Parallelism, QuotaExceeded};
use crate::data_dir::DiskPromise;
use crate::quotas::STORED_BYTES_QUOTA;
use posthaste_engine::shard::Storage;
use posthaste_node::ReadReply;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::sync::atomic::Ordering;

/// Idle flow-control keys looked at in one round.
const IDLE_FLOWS_MAX: usize = 1_000;

impl Core {
    /// Room for bytes that the core itself is about to store for a tenant, on the disk and in its quota. Keep the promise until
    /// they are committed.
    pub(super) fn take_room(&self, tenant: TenantId, adding: usize) -> Result<DiskPromise, NoRoom> {
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
    pub(super) fn fits_quota(&self, tenant: TenantId, adding: u64) -> bool {
        let stored = self.store.stored_bytes(tenant).saturating_add(adding);
        self.quotas.stored_bytes.is_none_or(|limit| stored <= limit)
    }

    /// Whether the outcomes of a tenant's attempts are stored in full.
    pub(super) fn storage_of(&self, tenant: TenantId) -> Storage {
        let is_full = self.disk.low.load(Ordering::Relaxed) || !self.fits_quota(tenant, 0);
        if is_full { Storage::Full } else { Storage::Free }
    }

    /// Ends a promise when what the batch holds is committed.
    pub(super) fn keep_until_committed(&mut self, promise: DiskPromise) {
        self.node.batch.after_commit(move || drop(promise));
    }

    pub(super) fn parallelism(&mut self, tenant: TenantId, reply: ReadReply<Parallelism>) {
        let (max, count) = (self.settings.tenant_in_flight_max, self.node.shard.tenant_in_flight(tenant));
        reply.send(Parallelism { max, count });
    }

    /// Keys that nobody uses any more make room for others.
    pub(super) fn forget_idle_flows(&mut self, now: Timestamp) -> Result<(), CoreFailure> {
        for (tenant, flow) in self.node.shard.idle_flows(now, IDLE_FLOWS_MAX) {
            let has_messages = self.store.flow_loads(tenant, &[flow], Timestamp::MAX)?.first() != Some(&0);
            self.node.shard.forget_flow((tenant, flow), has_messages, now, &mut self.node.batch.out);
        }
        Ok(())
    }
}
