//! How many messages of a tenant are due but not in flight, and since when.

use super::{Shard, Stage};
use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;

/// The due messages of a tenant that wait for a slot, a turn or the capacity of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogCounts {
    /// Their number, as far as they are in RAM.
    pub count: u64,
    /// Whether more of them are only in the store.
    pub has_more: bool,
    /// The due time of the one that has waited longest.
    pub oldest_due: Option<Timestamp>,
    /// Paused queues. Messages that wait in them are not counted.
    pub paused_queues: u32,
    /// Paused flow-control keys. Messages that wait for them are not counted.
    pub paused_flows: u32,
    /// Whether the visit stopped at a limit: every figure may be larger, and an older message may wait.
    pub is_partial: bool,
}

impl BacklogCounts {
    /// Adds a line of messages whose first one was due then; the others were due later.
    pub(crate) fn add(&mut self, count: usize, oldest_due: Option<Timestamp>, has_more: bool) {
        self.count += count as u64;
        self.has_more |= has_more;
        self.oldest_due = self.oldest_due.into_iter().chain(oldest_due).min();
    }
}

impl Shard {
    /// The waiting messages of a tenant. Visits at most `looks` of its lanes, keys and queues, but neither its messages
    /// nor the data of others.
    pub fn waiting(&self, tenant: TenantId, looks: usize) -> BacklogCounts {
        let mut waiting = BacklogCounts::default();
        let ready_since =
            |seq: Seq| self.held.get(&seq).filter(|held| held.stage == Stage::Ready).map(|held| held.live.due);
        self.lanes.add_waiting(tenant, ready_since, looks, &mut waiting);
        self.queues.add_waiting(tenant, looks, &mut waiting);
        waiting
    }
}

/// The entries of a tenant in a map, from `first` on.
pub(crate) fn of_tenant<K: Ord, V>(
    map: &BTreeMap<(TenantId, K), V>,
    tenant: TenantId,
    first: K,
) -> impl Iterator<Item = (&(TenantId, K), &V)> {
    map.range((tenant, first)..).take_while(move |((owner, _), _)| *owner == tenant)
}
