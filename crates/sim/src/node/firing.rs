//! Schedules of an owner fire: what `core/schedules.rs` of the server does, with commits that take time.

use super::witness::Witness;
use super::{Owner, Stage, Stop};
use crate::bug::Bug;
use crate::env::Env;
use posthaste_engine::event::Op;
use posthaste_node::{Moment, Progress};
use posthaste_wire::time::Timestamp;

impl Owner {
    /// Fires a bounded number of the schedules whose time has come, until there is a commit to wait for. Nothing is uncommitted
    /// when it begins.
    pub(super) fn fire_schedules(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let Some(mut firing) = self.firing.take().or_else(|| self.engine.fire_due(now)) else {
            self.stage = Stage::Load(0);
            return Ok(());
        };
        while self.waits.is_none() {
            let first = self.engine.batch.out.ops.len();
            let mut witness = Witness::new(env);
            let next = firing.next(&mut self.engine, &mut Moment { now, host: &mut witness });
            let noted = witness.noted();
            self.note(noted, env, now);
            self.tell_accepted(first, env);
            match next {
                Progress::Read(wanted) => {
                    env.read(self.node)?;
                    firing.found(env.store.facts(&wanted, now));
                }
                Progress::Commit => self.commit(env, now)?,
                Progress::Decided => self.split_firing(env),
                Progress::Done => {
                    self.stage = Stage::Load(0);
                    return self.commit(env, now);
                }
            }
        }
        self.firing = Some(firing);
        Ok(())
    }

    /// A planted bug leaves the new state of a schedule to the next commit.
    fn split_firing(&mut self, env: &Env) {
        let ops = &mut self.engine.batch.out.ops;
        if env.has(Bug::FiringInTwoCommits) && self.later.is_none() {
            self.later = ops.pop_if(|op| matches!(op, Op::SetSchedule { .. }));
        }
    }
}
