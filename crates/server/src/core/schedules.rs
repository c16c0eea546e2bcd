//! Schedules fire between two batches. When and what is decided in `posthaste_node`.

use super::facts;
use super::run::{Core, CoreFailure};
use posthaste_faults::crash_point::crash_point;
use posthaste_node::{Moment, Progress};
use posthaste_wire::time::Timestamp;

impl Core {
    /// When [`Core::fire_schedules`] has something to do. While the disk is low nothing fires; of the times that were missed the
    /// latest is caught up with.
    pub(super) fn schedules_wake(&self, now: Timestamp) -> Timestamp {
        if self.host.disk_is_low() { Timestamp::MAX } else { self.node.schedules.next_wake(now) }
    }

    /// Fires a bounded number of the schedules whose time has come. Nothing may be uncommitted.
    pub(super) fn fire_schedules(&mut self) -> Result<(), CoreFailure> {
        let now = self.clock.now();
        if self.schedules_wake(now) > now {
            return Ok(());
        }
        let Some(mut firing) = self.node.fire_due(now) else { return Ok(()) };
        loop {
            let now = self.clock.now();
            match firing.next(&mut self.node, &mut Moment { now, host: &mut self.host }) {
                Progress::Read(wanted) => firing.found(facts::read(&*self.store, &wanted, now)?),
                Progress::Commit => self.commit()?,
                Progress::Decided => crash_point("schedule_fired"),
                Progress::Done => break,
            }
        }
        self.commit()?;
        crash_point("schedules_committed");
        Ok(())
    }
}
