//! Queues, flow-control keys and quotas: what the core does about what limits deliveries.

use super::run::Core;
use super::{CoreFailure, NewMessage, NoRoom, Parallelism, QueueSettings, QuotaExceeded, Reply};
use crate::data_dir::DiskPromise;
use crate::quotas::STORED_BYTES_QUOTA;
use posthaste_engine::flow::{FlowEdit, FlowInfo, FlowPage};
use posthaste_engine::message::FlowSpec;
use posthaste_engine::shard::Storage;
use posthaste_faults::crash_point::crash_point;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// Idle flow-control keys looked at in one round.
const IDLE_FLOWS_MAX: usize = 1_000;

impl Core {
    /// Refuses what would make more queues or flow-control keys than a tenant may have.
    pub(super) fn check_quotas<'a>(&self, messages: impl Iterator<Item = &'a NewMessage>) -> Result<(), QuotaExceeded> {
        let (mut queues, mut flows) = (New::default(), New::default());
        for NewMessage { tenant, spec, .. } in messages {
            if let Some(name) = spec.queue.as_deref().filter(|name| self.shard.queue(*tenant, name).is_none()) {
                let exceeded = QuotaExceeded { quota: "maxQueues", limit: self.quotas.queues as u64 };
                queues.add(*tenant, name, self.shard.queue_count(*tenant), exceeded)?;
            }
            let own = spec.flow.as_ref();
            let callbacks = [&spec.callback, &spec.failure_callback].into_iter().flatten();
            let keys = own.into_iter().chain(callbacks.filter_map(|callback| callback.flow.as_ref()));
            self.check_flows(*tenant, keys, &mut flows)?;
        }
        Ok(())
    }

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
        self.batch.answers.push(Box::new(move || drop(promise)));
    }

    /// The same for the keys of a run.
    pub(super) fn check_flow_quota<'a>(
        &self,
        tenant: TenantId,
        keys: impl Iterator<Item = &'a FlowSpec>,
    ) -> Result<(), QuotaExceeded> {
        self.check_flows(tenant, keys, &mut New::default())
    }

    fn check_flows<'a>(
        &self,
        tenant: TenantId,
        keys: impl Iterator<Item = &'a FlowSpec>,
        new: &mut New<'a>,
    ) -> Result<(), QuotaExceeded> {
        for flow in keys.filter(|flow| !self.shard.has_flow(tenant, &flow.key)) {
            let exceeded = QuotaExceeded { quota: "maxFlowControlKeys", limit: self.quotas.flow_keys as u64 };
            new.add(tenant, &flow.key, self.shard.flow_count(tenant), exceeded)?;
        }
        Ok(())
    }

    pub(super) fn put_queue(
        &mut self,
        tenant: TenantId,
        name: &str,
        settings: QueueSettings,
        reply: Reply<Result<(), QuotaExceeded>>,
        now: Timestamp,
    ) {
        let limit = self.quotas.queues;
        if self.shard.queue(tenant, name).is_none() && self.shard.queue_count(tenant) >= limit {
            return reply.send(Err(QuotaExceeded { quota: "maxQueues", limit: limit as u64 }));
        }
        let QueueSettings { parallelism, paused } = settings;
        self.shard.put_queue(tenant, name, parallelism, paused, now, &mut self.batch.out);
        self.batch.answers.push(Box::new(move || reply.send(Ok(()))));
    }

    pub(super) fn pause_queue(
        &mut self,
        tenant: TenantId,
        name: &str,
        paused: bool,
        reply: Reply<bool>,
        now: Timestamp,
    ) {
        let Some(queue) = self.shard.queue(tenant, name) else { return reply.send(false) };
        if queue.paused != paused {
            let parallelism = queue.parallelism;
            self.shard.put_queue(tenant, name, parallelism, paused, now, &mut self.batch.out);
            crash_point("queue_changed");
        }
        self.batch.answers.push(Box::new(move || reply.send(true)));
    }

    pub(super) fn edit_flow(
        &mut self,
        tenant: TenantId,
        key: &str,
        edit: FlowEdit,
        reply: Reply<Result<bool, QuotaExceeded>>,
        now: Timestamp,
    ) {
        let limit = self.quotas.flow_keys;
        if !self.shard.has_flow(tenant, key) && self.shard.flow_count(tenant) >= limit {
            return reply.send(Err(QuotaExceeded { quota: "maxFlowControlKeys", limit: limit as u64 }));
        }
        let known = self.shard.edit_flow(tenant, key, edit, now, &mut self.batch.out);
        self.batch.answers.push(Box::new(move || reply.send(Ok(known))));
    }

    /// Answers with what the batch so far has made of the keys, once it is committed.
    pub(super) fn flows(&mut self, tenant: TenantId, page: &FlowPage, reply: Reply<Vec<FlowInfo>>, now: Timestamp) {
        let flows = self.shard.flows(tenant, page, now);
        self.batch.answers.push(Box::new(move || reply.send(flows)));
    }

    pub(super) fn parallelism(&mut self, tenant: TenantId, reply: Reply<Parallelism>) {
        let (max, count) = (self.settings.tenant_in_flight_max, self.shard.tenant_in_flight(tenant));
        reply.send(Parallelism { max, count });
    }

    /// Keys that nobody uses any more make room for others.
    pub(super) fn forget_idle_flows(&mut self, now: Timestamp) -> Result<(), CoreFailure> {
        for (tenant, flow) in self.shard.idle_flows(now, IDLE_FLOWS_MAX) {
            let has_messages = self.store.flow_loads(tenant, &[flow], Timestamp::MAX)?.first() != Some(&0);
            self.shard.forget_flow((tenant, flow), has_messages, now, &mut self.batch.out);
        }
        Ok(())
    }
}

/// Names that a request would add, for each tenant.
#[derive(Default)]
struct New<'a>(HashMap<TenantId, HashSet<&'a str>>);

impl<'a> New<'a> {
    fn add(
        &mut self,
        tenant: TenantId,
        name: &'a str,
        has: usize,
        exceeded: QuotaExceeded,
    ) -> Result<(), QuotaExceeded> {
        let names = self.0.entry(tenant).or_default();
        names.insert(name);
        if has + names.len() > exceeded.limit as usize { Err(exceeded) } else { Ok(()) }
    }
}
