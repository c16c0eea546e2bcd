//! Who owns the shard: the lease, by the store's clock.

use super::{Node, World};
use crate::agenda::Event;
use crate::bug::Bug;
use crate::node::Owner;
use posthaste_engine::lease::{Lease, Tenure};

/// The lease of the owner that brings everything to its end.
const LONG_LEASE_MS: u64 = 100 * 86_400_000;

impl World {
    /// The node that owns the shard, if one does.
    pub(super) fn owner(&self) -> Option<usize> {
        let epoch = self.env.store.epoch();
        let is_owner = |node: &Node| node.owner.as_ref().is_some_and(|owner| owner.tenure.epoch == epoch);
        self.nodes.iter().position(is_owner)
    }

    /// A node wants to own the shard, or to own it for longer.
    pub(super) fn ask_lease(&mut self, node: usize, incarnation: u64) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let has_owner = self.owner().is_some();
        let env = &mut self.env;
        let length_ms = if env.healed { LONG_LEASE_MS } else { env.swarm.lease_ms };
        let again_ms = env.now_ms + length_ms.min(env.swarm.lease_ms) / 3 + env.random.below(20);
        if env.is_cut_off(node) {
            if let Some(owner) = self.nodes[node].owner.as_mut().filter(|_| env.has(Bug::RenewalAssumed)) {
                owner.tenure = Tenure::new(owner.tenure.epoch, env.now_ms, length_ms);
            }
            return env.agenda.plan(again_ms, Event::AskLease { node, incarnation });
        }
        if env.store.is_full {
            return env.agenda.plan(again_ms, Event::AskLease { node, incarnation });
        }
        let now = env.store_now();
        if let Some(owner) = &mut self.nodes[node].owner {
            let epoch = owner.tenure.epoch;
            if let Some(renewed) = env.store.lease.and_then(|lease| lease.renew(epoch, now, length_ms)) {
                env.store.lease = Some(renewed);
                owner.tenure = Tenure::new(epoch, env.now_ms, length_ms);
                let renew_at_ms = owner.tenure.renew_at_ms();
                if !env.healed {
                    env.agenda.plan(renew_at_ms.max(env.now_ms + 1), Event::AskLease { node, incarnation });
                }
            }
            return;
        }
        // A single process need not wait for its own lease: its data directory is locked. And the long lease that
        // brings everything to its end must not outlive its owner.
        let is_free = self.nodes.len() == 1 || (env.healed && !has_owner);
        let held = env.store.lease.map(|lease| if is_free { Lease { until: now, ..lease } } else { lease });
        match Lease::take(held, node as u64, now, length_ms) {
            Ok(lease) => self.begin(node, lease, length_ms),
            Err(_) if env.has(Bug::LeaseGrantedTwice) && env.random.permille(300) => {
                let lease = held.unwrap_or(Lease { owner: 0, epoch: 0, until: now });
                self.begin(node, lease, length_ms);
            }
            Err(held) => {
                let at_ms = env.now_ms + held.0.millis_since(now) + env.random.below(50);
                env.agenda.plan(at_ms.min(again_ms + length_ms), Event::AskLease { node, incarnation });
            }
        }
    }

    /// A node has got the lease.
    fn begin(&mut self, node: usize, lease: Lease, length_ms: u64) {
        // Who ran all the time, cut off, takes itself for the owner still.
        let runs_blindly = |(other, state): (usize, &Node)| state.owner.is_some() && self.env.is_cut_off(other);
        let replaced = self.nodes.iter().enumerate().any(runs_blindly);
        self.env.judge.counts.replaced += u64::from(replaced);
        let state = &mut self.nodes[node];
        let (env, incarnation) = (&mut self.env, state.incarnation);
        let now = env.clock(state.offset_ms);
        env.tell(None, || format!("node {node} owns the shard in epoch {}, its clock shows {now}", lease.epoch));
        env.store.lease = Some(lease);
        env.judge.granted(lease.epoch, state.offset_ms, now, env.now_ms);
        let tenure = Tenure::new(lease.epoch, env.now_ms, length_ms);
        state.owner = Some(Owner::new(node, incarnation, tenure, env, now));
        if !env.healed {
            env.agenda.plan(tenure.renew_at_ms().max(env.now_ms + 1), Event::AskLease { node, incarnation });
        }
        self.with_owner(node, incarnation, |owner, env, now| owner.run(env, now));
    }
}
