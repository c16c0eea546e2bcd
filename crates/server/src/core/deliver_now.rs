//! Messages that need not wait for their time any longer, be they published or of a run.

use super::run::Core;
use super::{CoreFailure, DeliverNowRefused};
use posthaste_engine::message::Live;
use posthaste_engine::shard::DeliverNowOutcome;
use posthaste_engine::workflow::Part;
use posthaste_node::Reply;
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;

impl Core {
    /// Commits first, so that the store's answer is the truth.
    pub(super) fn deliver_now(
        &mut self,
        tenant: TenantId,
        id: MessageId,
        reply: Reply<Result<(), DeliverNowRefused>>,
    ) -> Result<(), CoreFailure> {
        self.commit()?;
        let now = self.clock.now();
        let outcome = match self.store.find_live(tenant, &[id])?.pop() {
            Some(row) => self.deliver_live_now(&row, now)?,
            None => Err(DeliverNowRefused::Unknown),
        };
        self.node.batch.reply(reply, outcome);
        Ok(())
    }

    /// Of a message of a run, the run notes the new time, too.
    fn deliver_live_now(&mut self, row: &Live, now: Timestamp) -> Result<Result<(), DeliverNowRefused>, CoreFailure> {
        if row.is_step && !row.cancel_requested {
            let step = self.store.load_messages(&[row.id])?.pop().and_then(|message| message.spec.workflow);
            let Some(step) = step else { return Ok(Err(DeliverNowRefused::Unknown)) };
            if step.part == Part::Deadline {
                return Ok(Err(DeliverNowRefused::Deadline));
            }
            if self.decide(row.tenant, step.run, now, |run, out| run.deliver_now(step.part, out))? != Some(true) {
                return Ok(Err(DeliverNowRefused::Unknown));
            }
        }
        Ok(match self.node.shard.deliver_now(row, now, &mut self.node.batch.out) {
            DeliverNowOutcome::Due => Ok(()),
            DeliverNowOutcome::Queued => Err(DeliverNowRefused::Queued),
            DeliverNowOutcome::Cancelled => Err(DeliverNowRefused::Unknown),
        })
    }
}
