//! Queues, flow-control keys and quotas: what the core does about what limits deliveries.

use super::run::Core;
use super::{CoreFailure, Parallelism};
use crate::data_dir::DiskPromise;
use posthaste_node::ReadReply;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;

/// Idle flow-control keys looked at in one round.
const IDLE_FLOWS_MAX: usize = 1_000;

impl Core {
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
