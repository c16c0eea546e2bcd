//! How many messages of a tenant are due and yet not under way, and since when.

use super::{Shard, Stage};
use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;

/// What of a tenant waits for a slot, a turn or the capacity of a key, although its time has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogCounts {
    /// How many, as far as they are in RAM.
    pub count: u64,
    /// More of them are in the store only.
    pub has_more: bool,
    /// When the one that waits longest was due.
    pub oldest_due: Option<Timestamp>,
    /// Queues that are paused; what waits in them is not counted.
    pub paused_queues: u32,
    /// Flow-control keys that are paused; what waits for them is not counted.
    pub paused_flows: u32,
    /// There was more to look at than was allowed: every figure may be larger, and an older message may wait.
    pub is_partial: bool,
}

impl BacklogCounts {
    /// So many in a line, whose first was due then; those behind it were due later.
    pub(crate) fn add(&mut self, count: usize, oldest_due: Option<Timestamp>, has_more: bool) {
        self.count += count as u64;
        self.has_more |= has_more;
        self.oldest_due = self.oldest_due.into_iter().chain(oldest_due).min();
    }
}

impl Shard {
    /// What of a tenant waits. Walks its lanes, keys and queues, at most `looks` of each, and neither its messages nor
    /// what others have.
    pub fn waiting(&self, tenant: TenantId, looks: usize) -> BacklogCounts {
        let mut waiting = BacklogCounts::default();
        let ready_since =
            |seq: Seq| self.held.get(&seq).filter(|held| held.stage == Stage::Ready).map(|held| held.live.due);
        self.lanes.add_waiting(tenant, ready_since, looks, &mut waiting);
        self.queues.add_waiting(tenant, looks, &mut waiting);
        waiting
    }
}

/// What a tenant has in a map, from `first` on.
pub(crate) fn of_tenant<K: Ord, V>(
    map: &BTreeMap<(TenantId, K), V>,
    tenant: TenantId,
    first: K,
) -> impl Iterator<Item = (&(TenantId, K), &V)> {
    map.range((tenant, first)..).take_while(move |((owner, _), _)| *owner == tenant)
}
