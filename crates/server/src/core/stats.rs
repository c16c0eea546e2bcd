//! What the core counts while it works, and what it tells of it: one look, for one tenant.

use super::run::Core;
use super::runs::nothing_sent;
use super::tail::Listeners;
use crate::pulse::{Beat, Pulses, Seconds};
use posthaste_engine::event::Op;
use posthaste_engine::message::Message;
use posthaste_engine::outcome::{Outcome, Verdict};
use posthaste_engine::shard::BacklogCounts;
use posthaste_engine::workflow::Part;
use posthaste_node::ReadReply;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// Schedules that are named as the next ones to fire.
const NEXT_SCHEDULES_MAX: usize = 5;
/// Destinations, flow-control keys and queues of a tenant that are looked at, of each kind so many: the core does nothing
/// else meanwhile. Of more it is told that not all were looked at.
const LOOKS_MAX: usize = 5_000;

/// How a tenant stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreStats {
    /// What happened lately.
    pub seconds: Seconds,
    /// What is due and not under way.
    pub waiting: BacklogCounts,
    /// Attempts under way.
    pub in_flight: u32,
    /// How many schedules there are.
    pub schedules: usize,
    /// Those that fire next, and when.
    pub next_schedules: Vec<(Timestamp, Arc<str>)>,
}

/// What is counted, and who listens.
#[derive(Default)]
pub(super) struct Activity {
    pulses: Pulses,
    pub(super) listeners: Listeners,
}

impl Activity {
    /// An attempt has ended.
    pub(super) fn attempted(&mut self, message: &Message, outcome: &Outcome, now: Timestamp) {
        // A step that is not needed any more ends without having been sent.
        if message.spec.workflow.is_some() && *outcome == nothing_sent() {
            return;
        }
        let beat = match outcome.verdict() {
            Verdict::Success => Beat::Delivered { latency_ms: now.millis_since(message.not_before) },
            Verdict::Refused | Verdict::Failure => Beat::Failed,
        };
        self.pulses.beat(message.tenant, beat, now);
    }

    /// These ops are committed.
    pub(super) fn committed(&mut self, ops: &[Op], now: Timestamp) {
        for op in ops {
            match op {
                Op::Insert { message, .. } if !is_deadline(message) => {
                    self.pulses.beat(message.tenant, Beat::Published, now);
                }
                Op::InsertDeadLetter(letter) => self.pulses.beat(letter.tenant, Beat::DeadLettered, now),
                _ => {}
            }
        }
        self.listeners.tell(ops);
    }
}

/// It stands for a time and goes nowhere.
fn is_deadline(message: &Message) -> bool {
    message.spec.workflow.is_some_and(|step| step.part == Part::Deadline)
}

impl Core {
    /// Answers at once: nothing is promised by it.
    pub(super) fn stats(&mut self, tenant: TenantId, reply: ReadReply<CoreStats>, now: Timestamp) {
        reply.send(CoreStats {
            seconds: self.activity.pulses.of(tenant, now),
            waiting: self.node.shard.waiting(tenant, LOOKS_MAX),
            in_flight: self.node.shard.tenant_in_flight(tenant),
            schedules: self.node.schedules.count(tenant),
            next_schedules: self.node.schedules.next(tenant, NEXT_SCHEDULES_MAX),
        });
    }
}
