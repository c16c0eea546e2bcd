//! The surroundings of the node in the server: random numbers, metrics, and places at which tests make the process die.

use crate::clock::Random;
use crate::metrics::Metrics;
use posthaste_engine::shard::Accepted;
use posthaste_faults::crash_point::crash_point;
use posthaste_node::Host;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use std::sync::Arc;

/// See the module's text.
pub(super) struct Surroundings {
    pub(super) random: Random,
    pub(super) metrics: Arc<Metrics>,
}

impl Host for Surroundings {
    fn random(&mut self) -> u64 {
        self.random.next_u64()
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
}
