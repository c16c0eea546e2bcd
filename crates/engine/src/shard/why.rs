//! The obstacle of a message: a query that changes nothing.

use super::{Shard, Stage};
use crate::message::Live;
use crate::why::{Obstacle, Room, WaitReason};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;

impl Shard {
    /// The live row of a message that is in RAM.
    pub fn held_row(&self, tenant: TenantId, id: MessageId) -> Option<Live> {
        self.held.get(&id.seq).map(|held| held.live).filter(|live| live.id == id && live.tenant == tenant)
    }

    /// The reason why a live message waits. `row` is the store's row, or [`Shard::held_row`].
    pub fn why(&mut self, row: &Live, now: Timestamp) -> WaitReason {
        let held = self.held.get(&row.id.seq).map(|held| (held.live, held.stage));
        let live = held.map_or(*row, |(live, _)| live);
        let obstacle = match held.map(|(_, stage)| stage) {
            Some(Stage::InFlight(_)) => Obstacle::Attempt,
            _ if self.draining => Obstacle::Stopping,
            Some(Stage::Timed) => Obstacle::Time,
            Some(Stage::Queued | Stage::Paused) => self.in_queue(&live),
            Some(Stage::Ready) => self.in_lane(&live, now).unwrap_or(Obstacle::Nothing),
            None => self.why_stored(&live, now),
        };
        WaitReason { due: live.due, retried: live.retried, cancel_requested: live.cancel_requested, obstacle }
    }

    /// Like [`Self::why`], for a message that is only in the store.
    fn why_stored(&mut self, live: &Live, now: Timestamp) -> Obstacle {
        let time = self.clock.time_of(live, now);
        let has_slot = |place| self.queues.standing(live, place).is_some_and(|queue| queue.position.is_none());
        match live.place {
            // Messages that share its slot were read before, so it is read next; callbacks are read first.
            Some(place) if has_slot(place) || place.turn.seq != live.id.seq => {
                if live.is_due(time) {
                    Obstacle::Nothing
                } else {
                    Obstacle::Time
                }
            }
            Some(place) if place.turn.at <= time || live.is_due(time) || live.retried > 0 => self.in_queue(live),
            None if live.due <= time || live.due_key() <= self.loaded => self.in_lane(live, now).unwrap_or_else(|| {
                if live.due_key() > self.loaded { Obstacle::Room(Room::Memory) } else { Obstacle::Nothing }
            }),
            _ => Obstacle::Time,
        }
    }

    fn in_lane(&mut self, live: &Live, now: Timestamp) -> Option<Obstacle> {
        let held = &self.held;
        let is_ready = |seq: Seq| held.get(&seq).filter(|held| held.stage == Stage::Ready).map(|held| held.live);
        self.lanes.obstacle(live, is_ready, now)
    }

    fn in_queue(&self, live: &Live) -> Obstacle {
        let Some(place) = live.place else { return Obstacle::Nothing };
        let Some(queue) = self.queues.standing(live, place) else { return Obstacle::Nothing };
        // A message that waits in RAM takes a free slot at once.
        if queue.position.is_some() && self.queues.waits_for_room((live.tenant, place.queue)) {
            return Obstacle::Room(Room::Memory);
        }
        Obstacle::Queue(queue)
    }
}
