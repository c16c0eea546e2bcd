//! Messages that are due but not in flight, as operators see them.

use crate::world::{Action, CAPS, How, New, NewFlow, World};
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::shard::BacklogCounts;
use posthaste_wire::id::TenantId;

/// More than the size of any world.
const LOOKS: usize = 1_000;

fn waiting(world: &World) -> BacklogCounts {
    world.shard.waiting(TenantId(0), LOOKS)
}

#[test]
fn what_waits_for_its_destination_is_counted_until_it_starts() {
    let mut world = World::new();
    let start = world.now;
    let publish = || Action::Publish(New { bytes: 1, ..New::default() });
    assert_eq!(waiting(&world), BacklogCounts::default());
    for _ in 0..CAPS.origin_in_flight_max {
        world.act(&publish());
    }
    world.act(&Action::Publish(New { delay_ms: 5_000, ..New::default() }));
    assert_eq!(waiting(&world), BacklogCounts::default(), "under way, or not due yet");
    world.act(&Action::Wait { millis: 1_000 });
    world.act(&publish());
    world.act(&Action::Wait { millis: 1_000 });
    world.act(&publish());
    let expected = BacklogCounts { count: 2, oldest_due: Some(start.plus_millis(1_000)), ..BacklogCounts::default() };
    assert_eq!(waiting(&world), expected);
    assert_eq!(world.shard.waiting(TenantId(1), LOOKS), BacklogCounts::default(), "of another tenant");
    for _ in 0..CAPS.lane_held_max {
        world.act(&publish());
    }
    let found = waiting(&world);
    assert!(found.has_more && found.oldest_due == expected.oldest_due, "the rest is in the store: {found:?}");
    world.act(&Action::End { which: 0, how: How::Ok });
    assert_eq!(waiting(&world).oldest_due, Some(start.plus_millis(2_000)), "the first has started");
}

#[test]
fn what_waits_for_its_turn_is_counted_unless_its_queue_is_paused() {
    let mut world = World::new();
    let start = world.now;
    let pause = |paused| Action::PutQueue { tenant: 0, queue: 0, parallelism: 1, paused };
    for _ in 0..3 {
        world.act(&Action::Publish(New { queue: Some(0), ..New::default() }));
        world.act(&Action::Wait { millis: 1_000 });
    }
    let expected = BacklogCounts { count: 2, oldest_due: Some(start.plus_millis(1_000)), ..BacklogCounts::default() };
    assert_eq!(waiting(&world), expected);
    world.act(&pause(true));
    assert_eq!(waiting(&world), BacklogCounts { paused_queues: 1, ..BacklogCounts::default() });
    world.act(&pause(false));
    assert_eq!(waiting(&world), expected);
}

#[test]
fn what_waits_for_its_key_is_counted_unless_that_is_paused() {
    let mut world = World::new();
    let start = world.now;
    let edit = |edit| Action::EditFlow { tenant: 0, key: 0, edit };
    let flow = Some(NewFlow { key: 0, parallelism: Some(1), rate: None, period_ms: 1_000 });
    for _ in 0..2 {
        world.act(&Action::Publish(New { flow, ..New::default() }));
    }
    let expected = BacklogCounts { count: 1, oldest_due: Some(start), ..BacklogCounts::default() };
    assert_eq!(waiting(&world), expected);
    world.act(&edit(FlowEdit::Pause));
    assert_eq!(waiting(&world), BacklogCounts { paused_flows: 1, ..BacklogCounts::default() });
    world.act(&edit(FlowEdit::Resume));
    assert_eq!(waiting(&world), expected);
}

#[test]
fn only_so_many_lanes_keys_and_queues_are_looked_at_and_none_of_others() {
    let pause_queue = |tenant, queue| Action::PutQueue { tenant, queue, parallelism: 1, paused: true };
    let pause_key = |tenant, key| Action::EditFlow { tenant, key, edit: FlowEdit::Pause };
    let mut others = World::new();
    for (tenant, which) in [(0, 0), (0, 1), (2, 0), (2, 1)] {
        others.act(&pause_queue(tenant, which));
        others.act(&pause_key(tenant, which));
        others.act(&Action::Publish(New { tenant, ..New::default() }));
    }
    assert_eq!(others.shard.waiting(TenantId(1), 0), BacklogCounts::default());

    let mut queues = World::new();
    let mut keys = World::new();
    let mut lanes = World::new();
    for which in 0..2 {
        queues.act(&pause_queue(0, which));
        keys.act(&pause_key(0, which));
        for _ in 0..=CAPS.origin_in_flight_max {
            lanes.act(&Action::Publish(New { origin: which.into(), ..New::default() }));
        }
    }
    let one_queue = BacklogCounts { paused_queues: 1, ..BacklogCounts::default() };
    let one_key = BacklogCounts { paused_flows: 1, ..BacklogCounts::default() };
    let one_lane = BacklogCounts { count: 1, oldest_due: Some(lanes.now), ..BacklogCounts::default() };
    // The second destination gets fewer slots.
    for (world, one, all) in [(queues, one_queue, 2), (keys, one_key, 2), (lanes, one_lane, 3)] {
        assert_eq!(world.shard.waiting(TenantId(0), 1), BacklogCounts { is_partial: true, ..one });
        let found = world.shard.waiting(TenantId(0), 2);
        let sum = found.count + u64::from(found.paused_queues + found.paused_flows);
        assert_eq!((sum, found.is_partial), (all, false));
    }
}
