//! The obstacle of a due message in its lane.

use super::{Lane, LaneKey, Lanes, Tenant, first_lane, origin_lane};
use crate::message::Live;
use crate::why::{AtDestination, Busy, Obstacle, Position, Room};
use posthaste_wire::id::Seq;
use posthaste_wire::time::Timestamp;

impl Lanes {
    /// The obstacle of a message; `None` if it is in no lane. `ready` returns waiting messages that still exist.
    pub(crate) fn obstacle(
        &mut self,
        live: &Live,
        ready: impl Fn(Seq) -> Option<Live>,
        now: Timestamp,
    ) -> Option<Obstacle> {
        let mut found: Vec<(LaneKey, Position)> = [first_lane(live), origin_lane(live)]
            .into_iter()
            .filter_map(|key| Some((key, self.position(key, live)?)))
            .collect();
        // The lane in which it waits is more informative than one that may have left it to the store.
        found.sort_by_key(|(_, position)| matches!(position, Position::Beyond(_)));
        let &(key, _) = found.first()?;
        for (key, position) in found {
            let obstacle = match key.1 {
                Lane::Flow(flow) => self.flows.outlook((key.0, flow), position, now).map(Obstacle::Flow),
                Lane::Origin(_) => self.busy(key, live, position).map(Obstacle::Destination),
            };
            if obstacle.is_some() {
                return obstacle;
            }
        }
        let room = self.room(live).or_else(|| {
            let first = self.lines.get(&key)?.waiting.iter().find_map(|seq| ready(*seq))?;
            self.room(&first).map(|_| Room::BytesOfFirst)
        });
        Some(room.map_or(Obstacle::Nothing, Obstacle::Room))
    }

    /// The position of a message in a lane, or beyond its end if the message was left to the store.
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
        let nobody = Tenant::default();
        let tenant = self.tenants.get(&live.tenant).unwrap_or(&nobody);
        if tenant.in_flight >= self.settings.tenant_in_flight_max {
            Some(Room::Tenant(tenant.in_flight))
        } else if self.in_flight >= self.settings.in_flight_max {
            Some(Room::Server(self.in_flight))
        } else {
            (!self.fits(tenant, live)).then_some(Room::Bytes)
        }
    }
}
