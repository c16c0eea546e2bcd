//! Messages that need not wait for their time any longer, be they published or of a run.

use super::run::Core;
use super::{CoreFailure, HastenRefused};
use posthaste_engine::message::Live;
use posthaste_engine::shard::Hastened;
use posthaste_engine::workflow::Part;
use posthaste_node::Reply;
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;

impl Core {
    /// Commits first, so that the store's answer is the truth.
    pub(super) fn hasten(
        &mut self,
        tenant: TenantId,
        id: MessageId,
        reply: Reply<Result<(), HastenRefused>>,
    ) -> Result<(), CoreFailure> {
        self.commit()?;
        let now = self.clock.now();
        let hastened = match self.store.find_live(tenant, &[id])?.pop() {
            Some(row) => self.hasten_live(&row, now)?,
            None => Err(HastenRefused::Unknown),
        };
        self.node.batch.reply(reply, hastened);
        Ok(())
    }

    /// Of a message of a run, the run notes the new time, too.
    fn hasten_live(&mut self, row: &Live, now: Timestamp) -> Result<Result<(), HastenRefused>, CoreFailure> {
        if row.is_step && !row.cancel_requested {
            let step = self.store.load_messages(&[row.id])?.pop().and_then(|message| message.spec.workflow);
            let Some(step) = step else { return Ok(Err(HastenRefused::Unknown)) };
            if step.part == Part::Deadline {
                return Ok(Err(HastenRefused::Deadline));
            }
            if self.decide(row.tenant, step.run, now, |run, out| run.hasten(step.part, out))? != Some(true) {
                return Ok(Err(HastenRefused::Unknown));
            }
        }
        Ok(match self.node.shard.hasten(row, now, &mut self.node.batch.out) {
            Hastened::Due => Ok(()),
            Hastened::Queued => Err(HastenRefused::Queued),
            Hastened::Cancelled => Err(HastenRefused::Unknown),
        })
    }
}
