//! The stated obstacle of a message is the real one.

use crate::world::{Action, CAPS, How, New, NewFlow, World};
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::Live;
use posthaste_engine::shard::Output;
use posthaste_engine::why::{AtDestination, Busy, Obstacle, Position, Room};

/// How long a full shard may wait before it requests more.
const FULL_PAUSE_MS: u64 = 1_000;

impl World {
    /// The obstacle of the `nth` live message.
    fn obstacle(&mut self, nth: usize) -> Obstacle {
        let row = *self.live.values().nth(nth).expect("it is live");
        self.shard.why(&row, self.now).obstacle
    }

    /// The obstacles of all live messages agree with the model.
    pub(crate) fn check_obstacles(&mut self) {
        let rows: Vec<Live> = self.live.values().copied().collect();
        for row in rows {
            let why = self.shard.why(&row, self.now);
            let is_under_way = self.in_flight.iter().any(|live| live.id == row.id);
            assert_eq!(why.obstacle == Obstacle::Attempt, is_under_way, "{row:?}: {why:?}");
            assert_eq!((why.due, why.retried), (row.due, row.retried));
            assert!(self.stands_in_the_way(&why.obstacle, &row), "{row:?}: {why:?}");
        }
    }

    fn stands_in_the_way(&self, obstacle: &Obstacle, row: &Live) -> bool {
        let of_tenant = || self.in_flight.iter().filter(|live| live.tenant == row.tenant);
        let there = || of_tenant().filter(|live| live.origin == row.origin);
        let waits = |other: &Live| {
            other.due <= self.latest.max(self.now) && self.in_flight.iter().all(|live| live.id != other.id)
        };
        let waiting = || self.live.values().filter(|other| other.tenant == row.tenant && waits(other));
        let (own, tenant_left) = (there().count(), CAPS.tenant_in_flight_max as usize - of_tenant().count());
        match obstacle {
            Obstacle::Time => row.due > self.now,
            // Turns are recorded only while the clock moves forward.
            Obstacle::Queue(queue) => row
                .place
                .filter(|place| place.turn.seq == row.id.seq)
                .is_some_and(|place| queue.paused || !self.went_back_at.is_empty() || !self.queue_lets(row, place)),
            Obstacle::Flow(flow) => {
                let book = &self.flows[&(row.tenant, row.flow.expect("it has a key"))];
                let limits = book.flow.as_ref().expect("a key with messages is stored");
                let is_full = limits.parallelism.is_some_and(|max| book.counted.len() >= max as usize);
                limits.paused || is_full || (limits.rate.is_some() && flow.opens_at > Some(self.now))
            }
            Obstacle::Destination(AtDestination { busy: Busy::Full, .. }) => own == CAPS.origin_in_flight_max as usize,
            Obstacle::Destination(AtDestination { busy: Busy::Share, .. }) => own > 0 && own >= tenant_left,
            Obstacle::Destination(AtDestination { busy: Busy::Bytes, .. }) => {
                let left = CAPS.origin_in_flight_bytes_max.checked_sub(bytes(there()));
                let mut to_it = waiting().filter(|other| other.origin == row.origin);
                own > 0 && to_it.any(|other| left < Some(u64::from(other.body_bytes)))
            }
            Obstacle::Room(Room::Tenant(_)) => tenant_left == 0,
            Obstacle::Room(Room::Server(_)) => self.in_flight.len() == CAPS.in_flight_max as usize,
            Obstacle::Room(Room::Bytes) => !self.has_room_for(row),
            Obstacle::Room(Room::BytesOfFirst) => {
                let is_before =
                    |other: &&Live| other.id != row.id && (other.origin == row.origin || row.flow.is_some());
                self.has_room_for(row) && waiting().filter(is_before).any(|other| !self.has_room_for(other))
            }
            // A full shard requests more only at intervals.
            Obstacle::Room(Room::Memory) => {
                self.shard.held_row(row.tenant, row.id).is_none() && self.was_full_within(FULL_PAUSE_MS)
            }
            Obstacle::Attempt => true,
            // The shard is never stopped here, and everything that may start has started before the query.
            Obstacle::Stopping | Obstacle::Nothing => false,
        }
    }

    /// Whether the bodies in flight leave room for this one, apart from its destination.
    fn has_room_for(&self, row: &Live) -> bool {
        let of_tenant = || self.in_flight.iter().filter(|live| live.tenant == row.tenant);
        let is_alone = of_tenant().next().is_none();
        let own = bytes(of_tenant().chain([row]));
        let in_all = bytes(self.in_flight.iter().chain([row]));
        let max = CAPS.in_flight_bytes_max * if is_alone { 2 } else { 1 };
        (is_alone || own <= CAPS.tenant_in_flight_bytes_max) && (self.in_flight.is_empty() || in_all <= max)
    }
}

fn bytes<'a>(rows: impl Iterator<Item = &'a Live>) -> u64 {
    rows.map(|row| u64::from(row.body_bytes)).sum()
}

fn publish(new: New) -> Action {
    Action::Publish(New { bytes: 1, ..new })
}

#[test]
fn time_attempts_and_destinations() {
    let mut world = World::new();
    world.act(&publish(New { delay_ms: 1_000, ..New::default() }));
    world.act(&publish(New { delay_ms: 10_000_000, ..New::default() }));
    assert_eq!((world.obstacle(0), world.obstacle(1)), (Obstacle::Time, Obstacle::Time));
    let mut world = World::new();
    for _ in 0..12 {
        world.act(&publish(New::default()));
    }
    assert_eq!(world.obstacle(0), Obstacle::Attempt);
    let Obstacle::Destination(busy) = world.obstacle(3) else { panic!("{:?}", world.obstacle(3)) };
    assert_eq!((busy.position, busy.in_flight, busy.max, busy.busy), (Position::Nth(2), 2, 2, Busy::Full));
    let Obstacle::Destination(busy) = world.obstacle(11) else { panic!("{:?}", world.obstacle(11)) };
    assert!(matches!(busy.position, Position::Beyond(count) if count > 0), "it is in the store: {busy:?}");
}

#[test]
fn rooms() {
    let mut world = World::new();
    for origin in 0..6 {
        world.act(&publish(New { origin, ..New::default() }));
    }
    let waiting = world.in_flight.len();
    assert!(matches!(world.obstacle(waiting), Obstacle::Room(Room::Tenant(count)) if count as usize == waiting));
}

#[test]
fn behind_a_body_that_does_not_fit() {
    let mut world = World::new();
    for (origin, bytes) in [(2, 0), (0, 19), (0, 52), (0, 0)] {
        world.act(&Action::Publish(New { origin, bytes, ..New::default() }));
    }
    let (first, second) = (world.obstacle(2), world.obstacle(3));
    assert!(matches!(first, Obstacle::Destination(AtDestination { busy: Busy::Bytes, .. })), "{first:?}");
    assert_eq!(second, Obstacle::Room(Room::BytesOfFirst));
}

#[test]
fn who_may_not_have_a_share_follows_whoever_leaves_it() {
    let mut world = World::new();
    for (origin, bytes) in [(0, 30), (1, 30), (2, 1)] {
        world.act(&Action::Publish(New { origin, bytes, ..New::default() }));
    }
    for (origin, bytes) in [(0, 30), (1, 1)] {
        world.act(&Action::Publish(New { origin, bytes, ..New::default() }));
    }
    for nth in [3, 4] {
        let Obstacle::Destination(busy) = world.obstacle(nth) else { panic!("{:?}", world.obstacle(nth)) };
        assert_eq!(busy.busy, Busy::Share);
    }
    let mut out = Output::default();
    world.end(2, How::Ok, &mut out);
    assert_eq!(out.effects.len(), 1, "at once, and not when it is looked at again");
    world.settle(out);
    assert_eq!(world.in_flight.len(), 3, "the first has its share and no room, so the second has it");
}

#[test]
fn turns_and_pauses_of_a_queue() {
    let mut world = World::new();
    for _ in 0..4 {
        world.act(&publish(New { queue: Some(0), ..New::default() }));
    }
    let standing = |world: &mut World, nth| match world.obstacle(nth) {
        Obstacle::Queue(queue) => queue,
        other => panic!("{other:?}"),
    };
    assert_eq!(world.obstacle(0), Obstacle::Attempt);
    let queue = standing(&mut world, 1);
    assert_eq!((queue.position, queue.taken, queue.parallelism), (Some(Position::Nth(1)), 1, 1));
    assert!(!queue.paused);
    assert!(matches!(standing(&mut world, 3).position, Some(Position::Nth(3) | Position::Beyond(_))));
    world.act(&Action::PutQueue { tenant: 0, queue: 0, parallelism: 1, paused: true });
    assert!(standing(&mut world, 1).paused);
    world.act(&Action::End { which: 0, how: How::Ok });
    assert!(standing(&mut world, 0).paused && world.in_flight.is_empty());
}

#[test]
fn keys_by_rate_by_parallelism_and_by_pause() {
    let flow = |rate, parallelism| Some(NewFlow { key: 0, parallelism, rate, period_ms: 1_000 });
    let standing = |world: &mut World, nth| match world.obstacle(nth) {
        Obstacle::Flow(flow) => flow,
        other => panic!("{other:?}"),
    };
    let mut world = World::new();
    for _ in 0..3 {
        world.act(&publish(New { flow: flow(Some(1), None), ..New::default() }));
    }
    let second = standing(&mut world, 2);
    assert_eq!((second.position, second.rate), (Position::Nth(2), Some(1)));
    assert_eq!(second.opens_at, Some(world.now.plus_millis(2 * 1_001)));
    world.act(&Action::EditFlow { tenant: 0, key: 0, edit: FlowEdit::Pause });
    let paused = standing(&mut world, 2);
    assert!(paused.paused && paused.opens_at.is_none());

    let mut world = World::new();
    for _ in 0..3 {
        world.act(&publish(New { flow: flow(None, Some(1)), ..New::default() }));
    }
    let second = standing(&mut world, 2);
    assert_eq!((second.position, second.in_flight, second.opens_at), (Position::Nth(2), 1, None));
}
