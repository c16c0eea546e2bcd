//! Messages of runs that need not wait for their time any longer: their runs note the new time.

use super::CoreFailure;
use super::run::Core;
use posthaste_node::{DeliverStep, Moment};

impl Core {
    pub(super) fn deliver_step_now(&mut self, step: DeliverStep) -> Result<(), CoreFailure> {
        let now = self.clock.now();
        let part = step.step.part;
        let decided = self.decide(step.row.tenant, step.step.run, now, |run, out| run.deliver_now(part, out))?;
        let mut moment = Moment { now, host: &mut self.host };
        self.node.deliver_step_now(step, decided == Some(true), &mut moment);
        Ok(())
    }
}
