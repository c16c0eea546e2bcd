//! How many queues and flow-control keys a tenant may have.

use crate::new_message::NewMessage;
use crate::node::Node;
use posthaste_engine::message::FlowSpec;
use posthaste_wire::id::TenantId;
use posthaste_wire::rejection::quota_exceeded;
use std::collections::{HashMap, HashSet};

/// The quotas of every tenant that a node checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Queues.
    pub queues: usize,
    /// Flow-control keys.
    pub flow_keys: usize,
    /// Schedules.
    pub schedules: usize,
}

/// The tenant may have no more of these; nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", quota_exceeded(self.quota, self.limit))]
pub struct QuotaExceeded {
    /// The name of the quota, in the words of the hosted service.
    pub quota: &'static str,
    /// How many there may be.
    pub limit: u64,
}

impl Node {
    /// Refuses messages that would make more queues or flow-control keys than a tenant may have.
    pub fn check_quotas<'a>(&self, messages: impl Iterator<Item = &'a NewMessage>) -> Result<(), QuotaExceeded> {
        let (mut queues, mut flows) = (NewNames::default(), NewNames::default());
        for NewMessage { tenant, spec, .. } in messages {
            if let Some(name) = spec.queue.as_deref().filter(|name| self.shard.queue(*tenant, name).is_none()) {
                queues.add(*tenant, name, self.shard.queue_count(*tenant), self.queues_exceeded())?;
            }
            let callbacks = [&spec.callback, &spec.failure_callback].into_iter().flatten();
            let of_callbacks = callbacks.filter_map(|callback| callback.flow.as_ref());
            self.check_flows(*tenant, spec.flow.iter().chain(of_callbacks), &mut flows)?;
        }
        Ok(())
    }

    /// The same for the flow-control keys of a run.
    pub fn check_flow_quota<'a>(
        &self,
        tenant: TenantId,
        keys: impl Iterator<Item = &'a FlowSpec>,
    ) -> Result<(), QuotaExceeded> {
        self.check_flows(tenant, keys, &mut NewNames::default())
    }

    fn check_flows<'a>(
        &self,
        tenant: TenantId,
        keys: impl Iterator<Item = &'a FlowSpec>,
        new: &mut NewNames<'a>,
    ) -> Result<(), QuotaExceeded> {
        for flow in keys.filter(|flow| !self.shard.has_flow(tenant, &flow.key)) {
            new.add(tenant, &flow.key, self.shard.flow_count(tenant), self.flows_exceeded())?;
        }
        Ok(())
    }

    pub(crate) fn queues_exceeded(&self) -> QuotaExceeded {
        QuotaExceeded { quota: "maxQueues", limit: self.quotas.queues as u64 }
    }

    pub(crate) fn flows_exceeded(&self) -> QuotaExceeded {
        QuotaExceeded { quota: "maxFlowControlKeys", limit: self.quotas.flow_keys as u64 }
    }
}

/// Names that a request would add, for each tenant.
#[derive(Default)]
struct NewNames<'a>(HashMap<TenantId, HashSet<&'a str>>);

impl<'a> NewNames<'a> {
    fn add(
        &mut self,
        tenant: TenantId,
        name: &'a str,
        existing: usize,
        exceeded: QuotaExceeded,
    ) -> Result<(), QuotaExceeded> {
        let names = self.0.entry(tenant).or_default();
        names.insert(name);
        if existing + names.len() > exceeded.limit as usize { Err(exceeded) } else { Ok(()) }
    }
}
