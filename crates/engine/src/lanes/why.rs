//! What a message that is due waits for in its lane.

use super::{Lane, LaneKey, Lanes, first_lane, origin_lane};
use crate::message::Live;
use crate::why::{AtDestination, Busy, Obstacle, Position, Room};
use posthaste_wire::time::Timestamp;

impl Lanes {
    /// What stands in the way of a message; `None` if it is in no lane.
    pub(crate) fn obstacle(&mut self, live: &Live, now: Timestamp) -> Option<Obstacle> {
        let (key, position) =
            [first_lane(live), origin_lane(live)].into_iter().find_map(|key| Some((key, self.position(key, live)?)))?;
        let obstacle = match key.1 {
            Lane::Flow(flow) => self.flows.outlook((key.0, flow), position, now).map(Obstacle::Flow),
            Lane::Origin(_) => self.busy(key, live, position).map(Obstacle::Destination),
        };
        Some(obstacle.or_else(|| self.room(live).map(Obstacle::Room)).unwrap_or(Obstacle::Nothing))
    }

    /// The place of a message in a lane, which is short; behind its end if it was left to the store.
    fn position(&self, key: LaneKey, live: &Live) -> Option<Position> {
        let line = self.lines.get(&key)?;
        match line.waiting.iter().position(|seq| *seq == live.id.seq) {
            Some(before) => Some(Position::Nth(before + 1)),
            None => {
                line.spilled.filter(|spilled| *spilled <= live.due_key()).map(|_| Position::Beyond(line.waiting.len()))
            }
        }
    }

    fn busy(&self, key: LaneKey, live: &Live, position: Position) -> Option<AtDestination> {
        let line = self.lines.get(&key)?;
        let (in_flight, max) = (line.in_flight, self.settings.origin_in_flight_max);
        let bytes = line.in_flight_bytes + u64::from(live.body_bytes);
        let busy = if in_flight >= max {
            Busy::Full
        } else if !self.has_share(key, in_flight) {
            Busy::Share
        } else if line.is_blocked() || (in_flight > 0 && bytes > self.settings.origin_in_flight_bytes_max) {
            Busy::Bytes
        } else {
            return None;
        };
        Some(AtDestination { position, in_flight, max, busy })
    }

    fn room(&self, live: &Live) -> Option<Room> {
        let (settings, bytes) = (&self.settings, u64::from(live.body_bytes));
        let tenant = self.tenants.get(&live.tenant)?;
        if tenant.in_flight >= settings.tenant_in_flight_max {
            Some(Room::Tenant(tenant.in_flight))
        } else if self.in_flight >= settings.in_flight_max {
            Some(Room::Server(self.in_flight))
        } else if tenant.in_flight_bytes + bytes > settings.tenant_in_flight_bytes_max
            || self.in_flight_bytes + bytes > settings.in_flight_bytes_max
        {
            Some(Room::Bytes)
        } else {
            None
        }
    }
}
