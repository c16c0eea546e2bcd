//! What a message is said to wait for is what it waits for.

use crate::world::{Action, How, New, NewFlow, World};
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::Live;
use posthaste_engine::why::{Busy, Obstacle, Position, Room};

impl World {
    /// What the `nth` live message waits for.
    fn obstacle(&mut self, nth: usize) -> Obstacle {
        let row = *self.live.values().nth(nth).expect("it is live");
        self.shard.why(&row, self.now).obstacle
    }

    /// What is said of every live message fits the model.
    pub(crate) fn check_obstacles(&mut self) {
        let rows: Vec<Live> = self.live.values().copied().collect();
        for row in rows {
            let why = self.shard.why(&row, self.now);
            let is_under_way = self.in_flight.iter().any(|live| live.id == row.id);
            assert_eq!(why.obstacle == Obstacle::Attempt, is_under_way, "{row:?}: {why:?}");
            assert_eq!((why.due, why.retried), (row.due, row.retried));
            match &why.obstacle {
                Obstacle::Time => assert!(row.due > self.now, "{row:?}"),
                Obstacle::Queue(_) => assert!(row.place.is_some(), "{row:?}"),
                Obstacle::Flow(_) => assert!(row.flow.is_some(), "{row:?}"),
                Obstacle::Stopping => panic!("nobody stops it"),
                // Nothing: a full shard has not read it yet, or others have their turn before it.
                Obstacle::Destination(_) | Obstacle::Room(_) | Obstacle::Attempt | Obstacle::Nothing => {}
            }
        }
    }
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
