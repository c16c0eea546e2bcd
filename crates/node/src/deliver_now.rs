//! Deliver now: a message that waits for its time, or for a retry, is due at once.

use crate::facts::{Facts, Wanted};
use crate::host::Moment;
use crate::node::Node;
use crate::reply::Reply;
use crate::round::Next;
use posthaste_engine::message::Live;
use posthaste_engine::shard::DeliverNowOutcome;
use posthaste_engine::workflow::{Part, StepRef};
use posthaste_wire::id::{MessageId, TenantId};

/// A message is due now, be it published or of a run. One that is in flight, or due already, stays as it is.
pub struct DeliverNow {
    /// The tenant that has it.
    pub tenant: TenantId,
    /// The message.
    pub id: MessageId,
    /// Sent when that is stored.
    pub reply: Reply<Result<(), DeliverNowRefused>>,
}

/// Why a message is not due now. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliverNowRefused {
    /// It is unknown, has ended or was cancelled.
    #[error("the message is unknown, or it has already ended")]
    Unknown,
    /// Queued messages cannot skip the line.
    #[error("the message is in a queue and must wait for its turn")]
    Queued,
    /// It stands for the deadline of a wait, and is never sent.
    #[error("the step waits for an event, and only the event or its timeout ends the wait")]
    Deadline,
}

/// A message of a run, for which the run must note the new time. The driver has the runs: it lets this one decide, and passes
/// what came of that to [`Node::deliver_step_now`].
pub struct DeliverStep {
    /// Its row.
    pub row: Live,
    /// Its run, and its part in it.
    pub step: StepRef,
    reply: Reply<Result<(), DeliverNowRefused>>,
}

impl DeliverNow {
    pub(crate) fn wanted(&self) -> Wanted {
        let message = (self.tenant, self.id);
        Wanted { live: vec![message], steps: vec![message], ..Wanted::default() }
    }
}

impl Node {
    pub(crate) fn deliver_now(&mut self, command: DeliverNow, facts: &Facts, moment: &mut Moment<'_>) -> Next {
        let DeliverNow { tenant, id, reply } = command;
        let Some(row) = facts.live.get(&(tenant, id)) else {
            self.batch.reply(reply, Err(DeliverNowRefused::Unknown));
            return Next::Decided;
        };
        let outcome = match facts.steps.get(&id) {
            _ if !row.is_step || row.cancel_requested => self.deliver_row_now(row, moment),
            None => Err(DeliverNowRefused::Unknown),
            Some(StepRef { part: Part::Deadline, .. }) => Err(DeliverNowRefused::Deadline),
            Some(step) => return Next::DeliverStep(Box::new(DeliverStep { row: *row, step: *step, reply })),
        };
        self.batch.reply(reply, outcome);
        Next::Decided
    }

    /// The run of a message has noted that it is due now, or has refused.
    pub fn deliver_step_now(&mut self, step: DeliverStep, is_noted: bool, moment: &mut Moment<'_>) {
        let DeliverStep { row, reply, .. } = step;
        let noted = if is_noted { Ok(()) } else { Err(DeliverNowRefused::Unknown) };
        let outcome = noted.and_then(|()| self.deliver_row_now(&row, moment));
        self.batch.reply(reply, outcome);
    }

    fn deliver_row_now(&mut self, row: &Live, moment: &mut Moment<'_>) -> Result<(), DeliverNowRefused> {
        match self.shard.deliver_now(row, moment.now, &mut self.batch.out) {
            DeliverNowOutcome::Due => Ok(()),
            DeliverNowOutcome::Queued => Err(DeliverNowRefused::Queued),
            DeliverNowOutcome::Cancelled => Err(DeliverNowRefused::Unknown),
        }
    }
}
