//! Operator actions on waiting messages, queues and flow-control keys, and queries about them.

use super::{Output, Shard, Stage};
use crate::event::Op;
use crate::flow::{FlowEdit, FlowInfo, FlowPage};
use crate::message::{FlowKey, Live, QueueKey};
use crate::planted::{self, Bug};
use crate::queue::Queue;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;

/// The result of the request to deliver a message now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliverNowOutcome {
    /// It is due, now or already before.
    Due,
    /// It is in a queue, and queued messages cannot skip the line: nothing has changed.
    Queued,
    /// It has been cancelled: nothing has changed.
    Cancelled,
}

impl Shard {
    /// Makes a live message due now, whether it is delayed or waits for a retry. It gets no additional attempt.
    ///
    /// `row` must be what the store has now, with nothing uncommitted.
    pub fn deliver_now(&mut self, row: &Live, now: Timestamp, out: &mut Output) -> DeliverNowOutcome {
        if row.cancel_requested {
            return DeliverNowOutcome::Cancelled;
        }
        if row.place.is_some() && !planted::has(Bug::DeliverNowSkipsTurn) {
            return DeliverNowOutcome::Queued;
        }
        let waits_for_time = self.held.get(&row.id.seq).is_none_or(|held| held.stage == Stage::Timed);
        if waits_for_time && row.due > now {
            self.forget(row.id.seq, now);
            let live = Live { due: now, ..*row };
            out.synced = true;
            if !planted::has(Bug::DeliverNowNotStored) {
                out.ops.push(Op::Update(live));
            }
            self.arrive(live, now);
            self.dispatch(&[], now, out);
        }
        DeliverNowOutcome::Due
    }

    /// Attempts of a tenant in flight.
    pub fn tenant_in_flight(&self, tenant: TenantId) -> u32 {
        self.lanes.tenant_in_flight(tenant)
    }

    /// The settings of a queue.
    pub fn queue(&self, tenant: TenantId, name: &str) -> Option<&Queue> {
        self.queues.get((tenant, QueueKey::of(tenant, name)))
    }

    /// The number of queues of a tenant.
    pub fn queue_count(&self, tenant: TenantId) -> usize {
        self.queues.count(tenant)
    }

    /// Creates or changes a queue.
    pub fn put_queue(
        &mut self,
        tenant: TenantId,
        name: &str,
        parallelism: u32,
        paused: bool,
        now: Timestamp,
        out: &mut Output,
    ) {
        let id = (tenant, QueueKey::of(tenant, name));
        out.synced = true;
        out.ops.push(Op::PutQueue(self.queues.put(id, name, parallelism, paused, now)));
        self.pause_or_resume(id, now);
        self.advance(id, now, out);
        self.dispatch(&[], now, out);
    }

    /// Deletes a queue whose messages were cancelled. Attempts in flight finish.
    pub fn delete_queue(&mut self, tenant: TenantId, name: &str, now: Timestamp, out: &mut Output) {
        let id = (tenant, QueueKey::of(tenant, name));
        if let Some(queue) = self.queues.delete(id, now) {
            out.synced = true;
            out.ops.push(Op::PutQueue(queue));
            self.pause_or_resume(id, now);
            self.advance(id, now, out);
            self.dispatch(&[], now, out);
        }
    }

    /// The number of flow-control keys of a tenant.
    pub fn flow_count(&self, tenant: TenantId) -> usize {
        self.lanes.flows.count(tenant)
    }

    /// Whether a flow-control key is known.
    pub fn has_flow(&self, tenant: TenantId, key: &str) -> bool {
        self.lanes.flows.contains((tenant, FlowKey::of(tenant, key)))
    }

    /// Changes a flow-control key. Returns false if it is unknown and the change does not create it.
    pub fn edit_flow(&mut self, tenant: TenantId, key: &str, edit: FlowEdit, now: Timestamp, out: &mut Output) -> bool {
        let flow = FlowKey::of(tenant, key);
        let known = self.lanes.flows.edit((tenant, flow), key, edit, now);
        out.synced = true;
        self.lanes.reopen(tenant, flow, now);
        self.dispatch(&[], now, out);
        known
    }

    /// One flow-control key.
    pub fn flow(&mut self, tenant: TenantId, key: &str, now: Timestamp) -> Option<FlowInfo> {
        self.lanes.flows.info((tenant, FlowKey::of(tenant, key)), now)
    }

    /// Flow-control keys of a tenant, by key.
    pub fn flows(&mut self, tenant: TenantId, page: &FlowPage, now: Timestamp) -> Vec<FlowInfo> {
        self.lanes.flows.infos(tenant, page, now)
    }

    /// Flow-control keys that were not used for a long time, at most `max`.
    pub fn idle_flows(&self, now: Timestamp, max: usize) -> Vec<(TenantId, FlowKey)> {
        self.lanes.flows.idle(now, max)
    }

    /// Forgets an idle key, unless the store has messages with it.
    pub fn forget_flow(&mut self, id: (TenantId, FlowKey), has_messages: bool, now: Timestamp, out: &mut Output) {
        if has_messages {
            self.lanes.flows.touch(id, now);
        } else if let Some(key) = self.lanes.flows.forget(id) {
            out.ops.push(Op::DropFlow { tenant: id.0, key });
        }
    }
}
