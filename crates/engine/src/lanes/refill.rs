//! Spilled messages of lanes, and when lanes load them again.

use super::{Lane, LaneKey, Lanes};
use crate::load_queue::Want;
use crate::message::DueKey;
use crate::planted::{self, Bug};

/// Messages that the lane of a flow-control key may hold in a full shard.
const FLOW_FLOOR: usize = 8;

impl Lanes {
    /// A lane with room for its spilled messages, the first missing key, and the number of messages to load.
    pub(crate) fn wants_refill(&self, held: usize) -> Option<(LaneKey, DueKey, usize)> {
        let full = held + self.refill() > self.settings.held_max;
        let key = self.load_queue.first(full)?;
        let max = if full { self.floor(key) } else { self.refill() };
        Some((key, self.lines.get(&key)?.spilled?, max))
    }

    /// The number of messages that a refill loads.
    fn refill(&self) -> usize {
        self.settings.lane_held_max.div_ceil(2)
    }

    /// Call it when the spilled messages were read and are about to be pushed again.
    pub(crate) fn begin_refill(&mut self, key: LaneKey) {
        // A lane that was served goes to the end of the queue.
        self.load_queue.set(key, Want::Nothing);
        if let Some(line) = self.lines.get_mut(&key) {
            line.spilled = None;
        }
    }

    /// Call it when the messages were pushed. From `rest` on, the store may have more.
    pub(crate) fn end_refill(&mut self, key: LaneKey, rest: Option<DueKey>) {
        let rest = rest.filter(|_| !planted::has(Bug::RefillForgetsRest));
        if let (Some(rest), Some(line)) = (rest, self.lines.get_mut(&key)) {
            line.spill(rest);
        }
        self.feed(key);
        self.tidy(key);
    }

    /// How many messages a lane may hold in a full shard: those that could start at once, or fewer if there are enough
    /// lanes to fill the shard again.
    pub(super) fn floor(&self, key: LaneKey) -> usize {
        let at_once = match key.1 {
            Lane::Origin(_) => self.settings.origin_in_flight_max as usize,
            Lane::Flow(_) => FLOW_FLOOR,
        };
        let share = self.settings.held_max / self.lines.len().max(1);
        at_once.min(self.settings.lane_held_max).min(share).max(1)
    }

    /// Updates whether a lane wants its spilled messages.
    pub(super) fn feed(&mut self, key: LaneKey) {
        let Some(line) = self.lines.get(&key) else { return };
        let waiting = line.waiting.len();
        let want = if line.spilled.is_none() || waiting >= self.refill() {
            Want::Nothing
        } else if waiting < self.floor(key).div_ceil(2) {
            Want::Anything
        } else {
            Want::More
        };
        self.load_queue.set(key, want);
    }
}
