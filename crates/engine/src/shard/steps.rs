//! Messages of workflow runs. They are timed, limited and retried like all others, and the run decides about their
//! outcome.

use super::{Held, Output, Shard, Stage, Storage};
use crate::event::Op;
use crate::message::{Live, Message, Origin};
use crate::outcome::Outcome;
use crate::retry::{self, Next};
use crate::workflow::Part;
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// A new message of a run.
#[derive(Clone, Debug)]
pub struct Step {
    /// The message.
    pub message: Arc<Message>,
    /// Its destination, as a hash.
    pub origin: Origin,
    /// Approximate size of the request, because a step is sent with all earlier ones.
    pub body_bytes: u32,
}

/// The lane of deadlines of runs, which must not wait for a slow destination.
const DEADLINES: &str = "deadlines of workflow runs";

impl Step {
    /// A step with this message, and the size of its request.
    pub fn new(message: Arc<Message>, body_bytes: usize) -> Step {
        let origin = match message.spec.workflow.map(|step| step.part) {
            Some(Part::Deadline) => Origin::of(message.tenant, DEADLINES),
            _ => Origin::of_url(message.tenant, &message.spec.url),
        };
        Step { message, origin, body_bytes: u32::try_from(body_bytes).unwrap_or(u32::MAX) }
    }
}

/// The end of an attempt of a run's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepEnd {
    /// Retries before it.
    pub retried: u32,
    /// The next step of the message.
    pub next: Next,
}

impl Shard {
    /// Applies a decision of a run: new messages, and live messages that must not be sent. An attempt in flight may
    /// finish, but its outcome is ignored.
    pub fn decided(&mut self, new: &[Step], withdrawn: &[MessageId], now: Timestamp, out: &mut Output) {
        for step in new {
            self.insert_step(step, now, out);
        }
        for id in withdrawn {
            self.withdraw(*id, now, out);
        }
        let fresh: Vec<Arc<Message>> = new.iter().map(|step| step.message.clone()).collect();
        self.dispatch(&fresh, now, out);
    }

    /// Ends an attempt; `None` if the message was withdrawn.
    pub fn step_ended(
        &mut self,
        message: &Message,
        outcome: &Outcome,
        random: u64,
        storage: Storage,
        now: Timestamp,
        out: &mut Output,
    ) -> Option<StepEnd> {
        let held = self.held.remove(&message.id.seq).expect("an attempt ends only if it was started and not ended");
        let Held { live, stage: Stage::InFlight(generation) } = held else {
            panic!("{:?} was not in flight", message.id)
        };
        self.lanes.finish(&live, generation, now);
        let next = retry::next(&message.spec, live.retried, outcome, now, random).with_floor(0, storage, now);
        match next {
            Next::RetryAt(due) if !live.cancel_requested => {
                let live = Live { due, retried: live.retried + 1, ..live };
                out.ops.push(Op::Update(live));
                self.arrive(live, now);
            }
            _ => out.ops.push(Op::Remove { id: live.id }),
        }
        self.dispatch(&[], now, out);
        (!live.cancel_requested).then_some(StepEnd { retried: live.retried, next })
    }

    fn insert_step(&mut self, step: &Step, now: Timestamp, out: &mut Output) {
        let Step { message, origin, body_bytes } = step;
        self.see(now);
        self.clock.created(message.id.seq);
        let live = Live {
            id: message.id,
            tenant: message.tenant,
            origin: *origin,
            body_bytes: *body_bytes,
            due: message.not_before,
            retried: 0,
            cancel_requested: false,
            place: None,
            flow: self.flow_of(message, now),
            is_step: true,
        };
        out.ops.push(Op::Insert { message: message.clone(), live });
        self.arrive(live, now);
    }

    fn withdraw(&mut self, id: MessageId, now: Timestamp, out: &mut Output) {
        if let Some(held) = self.held.get_mut(&id.seq).filter(|held| matches!(held.stage, Stage::InFlight(_))) {
            held.live.cancel_requested = true;
            out.ops.push(Op::Update(held.live));
        } else {
            self.forget(id.seq, now);
            out.ops.push(Op::Remove { id });
        }
    }
}
