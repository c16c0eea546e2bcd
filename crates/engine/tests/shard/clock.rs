//! Clocks that go back.

use crate::world::{Action, CAPS, How, New, World};
use posthaste_engine::limits::HORIZON_MS;
use posthaste_engine::shard::Output;
use posthaste_engine::why::Obstacle;

const HOUR_MS: u64 = 3_600_000;

fn publish(delay_ms: u64) -> Action {
    Action::Publish(New { delay_ms, bytes: 1, ..New::default() })
}

/// Lets all attempts that can start finish.
fn deliver(world: &mut World) {
    while !world.in_flight.is_empty() {
        world.act(&Action::End { which: 0, how: How::Ok });
    }
}

#[test]
fn what_was_due_and_left_in_the_store_starts_although_the_clock_went_back_since() {
    for delay_ms in [0, 10_000] {
        let mut world = World::new();
        for _ in 0..3 * CAPS.held_max {
            world.act(&publish(delay_ms));
        }
        world.act(&Action::Wait { millis: 15_000 });
        assert!(world.shard.held() < world.live.len(), "some are in the store only");
        world.act(&Action::ClockBack { millis: HOUR_MS });
        let last = *world.live.values().last().expect("it is live");
        let why = world.shard.why(&last, world.now).obstacle;
        assert!(matches!(why, Obstacle::Destination(_)), "{why:?}");
        deliver(&mut world);
        assert_eq!(world.live.len(), 0, "delayed by {delay_ms} ms");
    }
}

#[test]
fn what_is_delayed_after_the_clock_went_back_waits_for_its_time() {
    let mut world = World::new();
    for _ in 0..3 * CAPS.held_max {
        world.act(&publish(0));
    }
    world.act(&Action::ClockBack { millis: HOUR_MS });
    for _ in 0..2 * CAPS.held_max {
        world.act(&publish(1_000));
    }
    deliver(&mut world);
    assert_eq!(world.live.len(), 2 * CAPS.held_max);
    world.act(&Action::Wait { millis: 1_000 });
    world.heal();
    world.check_history();
}

#[test]
fn who_was_delayed_and_is_left_to_the_store_joins_its_queue_although_the_clock_went_back_since() {
    let mut world = World::new();
    let enqueue = |delay_ms| Action::Publish(New { queue: Some(0), delay_ms, bytes: 1, ..New::default() });
    world.act(&enqueue(0));
    for _ in 0..4 * CAPS.queue_held_max {
        world.act(&enqueue(1_000));
    }
    world.act(&Action::Wait { millis: 2_000 });
    world.act(&Action::ClockBack { millis: HOUR_MS });
    deliver(&mut world);
    assert_eq!(world.live.len(), 0);
}

#[test]
fn a_moment_far_ahead_makes_nothing_due_that_was_not_read_in_it() {
    let mut world = World::new();
    for _ in 0..3 * CAPS.load_page {
        world.act(&publish(HOUR_MS));
    }
    let mut out = Output::default();
    let ahead = world.now.plus_millis(2 * HOUR_MS);
    world.shard.wake(ahead, &mut out);
    assert!(world.shard.wants_load(ahead).is_some() && out.effects.is_empty());
    world.settle(out);
    assert!(world.in_flight.is_empty(), "the clock is right again");
    world.act(&Action::Wait { millis: HOUR_MS });
    deliver(&mut world);
    assert_eq!(world.live.len(), 0);
}

/// A full shard whose clock goes back between the request for rows and their arrival. Messages that are left to the
/// store in between must be requested again.
#[test]
fn who_is_evicted_while_rows_are_on_their_way_is_read_again() {
    let mut world = World::new();
    let soon = HORIZON_MS / 2;
    world.act(&publish(soon + 5));
    for n in 0..CAPS.held_max as u64 - 2 {
        world.act(&publish(HORIZON_MS - 100 + n));
    }
    world.now = world.now.plus_millis(soon);
    world.act(&Action::Stumble { new: New { bytes: 1, ..New::default() }, millis: 6 });
    world.heal();
    world.check_history();
}

/// Due messages are not evicted for other due messages.
#[test]
fn who_was_due_is_not_evicted_for_another_when_the_clock_goes_back() {
    let mut world = World::new();
    for n in 2..CAPS.held_max as u64 {
        world.act(&publish(1_000 + n));
    }
    world.act(&Action::Publish(New { delay_ms: 2_000, origin: 1, bytes: 1, ..New::default() }));
    let mut out = Output::default();
    world.now = world.now.plus_millis(5_000);
    world.publish(&New { bytes: 1, tenant: 1, ..New::default() }, &mut out);
    world.commit(out);
    assert_eq!(world.shard.held(), CAPS.held_max);
    world.act(&Action::ClockBack { millis: HOUR_MS });
    deliver(&mut world);
    assert_eq!(world.live.len(), 0);
}

#[test]
fn what_was_due_between_two_steps_back_starts_whatever_the_first_was() {
    let mut world = World::new();
    world.act(&publish(0));
    world.act(&Action::Wait { millis: 10 * HOUR_MS });
    world.act(&Action::ClockBack { millis: 10 * HOUR_MS });
    for _ in 0..3 * CAPS.held_max {
        world.act(&publish(1_000));
    }
    world.act(&Action::Wait { millis: 2_000 });
    assert!(world.shard.held() < world.live.len(), "some are in the store only");
    world.act(&Action::ClockBack { millis: 600_000 });
    deliver(&mut world);
    assert_eq!(world.live.len(), 0);
}

#[test]
fn a_retry_that_was_due_and_left_in_the_store_starts_although_the_clock_went_back_since() {
    let mut world = World::new();
    for _ in 0..3 * CAPS.lane_held_max {
        world.act(&Action::Publish(New { retries: 1, bytes: 1, ..New::default() }));
        while !world.in_flight.is_empty() {
            world.act(&Action::End { which: 0, how: How::FailWithRetryAfter(20) });
        }
    }
    assert!(world.live.values().all(|row| row.retried == 1));
    world.act(&Action::Wait { millis: 25_000 });
    assert!(world.shard.held() < world.live.len(), "some are in the store only");
    world.act(&Action::ClockBack { millis: HOUR_MS });
    deliver(&mut world);
    assert_eq!(world.live.len(), 0);
}
