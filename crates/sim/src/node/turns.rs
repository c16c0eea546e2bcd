//! Turns of large publishes: what `core/tasks.rs` of the server does.

use super::witness::Witness;
use super::{Owner, Stage, Stop};
use crate::env::Env;
use posthaste_node::{Moment, Progress};
use posthaste_wire::time::Timestamp;

impl Owner {
    /// One turn. Nothing is uncommitted when it begins.
    pub(super) fn take_turn(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        self.stage = Stage::Fire;
        let Some(mut turn) = self.engine.next_turn() else { return Ok(()) };
        loop {
            let first = self.engine.batch.out.ops.len();
            let mut witness = Witness::new(env);
            let progress = turn.next(&mut self.engine, &mut Moment { now, host: &mut witness });
            let noted = witness.noted();
            self.note(noted, env, now);
            self.tell_accepted(first, env);
            match progress {
                Progress::Read(wanted) => {
                    env.read(self.node)?;
                    turn.found(env.store.facts(&wanted, now));
                }
                Progress::Commit | Progress::Decided => {}
                Progress::Done => return self.commit(env, now),
            }
        }
    }
}
