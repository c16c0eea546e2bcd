//! The shard against a model of the world: random publishes, outcomes, cancels, pauses, waits and crashes.

mod clock;
mod deliver_now;
mod flows;
mod makings;
mod queues;
mod steps;
mod waiting;
mod why;
mod world;

use posthaste_engine::event::Op;
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{DedupKey, DueKey, Message, Origin};
use posthaste_engine::shard::{Effect, Output, Publish, Shard, Source};
use posthaste_wire::id::{MessageId, Seq};
use proptest::prelude::*;
use std::sync::Arc;
use world::{Action, CAPS, How, New, NewFlow, World};

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        4 => Just(How::Ok),
        2 => Just(How::Fail),
        1 => (0u32..100).prop_map(How::FailWithRetryAfter),
        1 => Just(How::Refuse),
        1 => Just(How::NoAnswer),
    ]
}

fn flow() -> impl Strategy<Value = NewFlow> {
    let limit = || proptest::option::of(1u32..4);
    let period = prop_oneof![3 => 1_000u64..5_000, 1 => Just(60_000u64)];
    (0u8..2, limit(), limit(), period).prop_map(|(key, parallelism, rate, period_ms)| NewFlow {
        key,
        parallelism,
        rate,
        period_ms,
    })
}

fn new() -> impl Strategy<Value = New> {
    let delay = prop_oneof![4 => Just(0u64), 2 => 1u64..5_000, 1 => 30_000u64..200_000];
    let plain = (0u32..2, 0u64..3, delay, proptest::option::weighted(0.2, 0u8..4), 0u32..3, 0usize..60);
    let queue = proptest::option::weighted(0.4, 0u8..2);
    let flow = proptest::option::weighted(0.4, flow());
    (plain, queue, flow, proptest::bool::weighted(0.2), proptest::bool::weighted(0.2)).prop_map(
        |((tenant, origin, delay_ms, key, retries, bytes), queue, flow, callback, failure_callback)| New {
            tenant,
            origin,
            delay_ms,
            key,
            retries,
            bytes,
            queue,
            flow,
            callback,
            failure_callback,
            hops: 0,
        },
    )
}

fn edit() -> impl Strategy<Value = FlowEdit> {
    let limit = || proptest::option::of(1u32..4);
    prop_oneof![
        (limit(), limit())
            .prop_map(|(parallelism, rate)| FlowEdit::Pin { parallelism, rate: rate.map(|rate| (rate, 2_000)) }),
        (any::<bool>(), any::<bool>()).prop_map(|(parallelism, rate)| FlowEdit::Unpin { parallelism, rate }),
        Just(FlowEdit::Pause),
        Just(FlowEdit::Resume),
        Just(FlowEdit::ResetRate),
        Just(FlowEdit::Reset),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let put_queue = (0u32..2, 0u8..2, 1u32..4, any::<bool>())
        .prop_map(|(tenant, queue, parallelism, paused)| Action::PutQueue { tenant, queue, parallelism, paused });
    prop_oneof![
        16 => new().prop_map(Action::Publish),
        16 => (0usize..8, how()).prop_map(|(which, how)| Action::End { which, how }),
        2 => (0usize..40).prop_map(|which| Action::Cancel { which }),
        2 => (0usize..40).prop_map(|which| Action::DeliverNow { which }),
        2 => put_queue,
        1 => (0u32..2, 0u8..2).prop_map(|(tenant, queue)| Action::DeleteQueue { tenant, queue }),
        2 => (0u32..2, 0u8..2, edit()).prop_map(|(tenant, key, edit)| Action::EditFlow { tenant, key, edit }),
        6 => prop_oneof![1u64..100, 1_000u64..70_000].prop_map(|millis| Action::Wait { millis }),
        2 => prop_oneof![1u64..100, 1_000u64..100_000_000].prop_map(|millis| Action::ClockBack { millis }),
        2 => (new(), 1u64..100).prop_map(|(new, millis)| Action::Stumble { new: New { key: None, ..new }, millis }),
        2 => Just(Action::Crash),
    ]
}

proptest! {
    // More with PROPTEST_CASES.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(1_024), ..ProptestConfig::default() })]

    #[test]
    fn every_message_ends_once_in_order_and_within_the_limits(
        actions in proptest::collection::vec(action(), 1..160)
    ) {
        let mut world = World::new();
        for action in &actions {
            world.act(action);
            world.check_obstacles();
        }
        world.heal();
        world.check_history();
    }

    #[test]
    fn nothing_idles_that_could_start(actions in proptest::collection::vec(action(), 1..160)) {
        let mut world = World::new();
        let settle_down = |world: &mut World| {
            for _ in 0..3 {
                while !world.in_flight.is_empty() {
                    world.act(&Action::End { which: 0, how: How::Ok });
                }
                world.act(&Action::Wait { millis: 1_100 });
            }
            world.check_no_idling();
            world.check_obstacles();
        };
        for action in &actions {
            world.act(action);
            if matches!(action, Action::Wait { .. }) {
                settle_down(&mut world);
            }
        }
    }
}

#[test]
fn destinations_that_hang_leave_room_for_the_others() {
    let mut world = World::new();
    let publish = |origin| Action::Publish(New { origin, bytes: 1, ..New::default() });
    let under_way =
        |world: &World, origin: u64| world.in_flight.iter().filter(|live| live.origin == Origin(origin)).count();
    for _ in 0..20 {
        world.act(&publish(0));
        world.act(&publish(1));
    }
    for _ in 0..10 {
        world.act(&publish(2));
        assert_eq!(under_way(&world, 2), 1, "of the four places of the tenant, one is left for the healthy one");
        let healthy = world.in_flight.iter().position(|live| live.origin == Origin(2)).expect("it is under way");
        world.act(&Action::End { which: healthy, how: How::Ok });
    }
    assert_eq!((under_way(&world, 0), under_way(&world, 1)), (2, 1));
    world.heal();
    world.check_history();
}

#[test]
fn a_backlog_to_one_destination_does_not_hold_up_another() {
    let mut world = World::new();
    let publish = |origin| Action::Publish(New { origin, bytes: 1, ..New::default() });
    for _ in 0..200 {
        world.act(&publish(0));
    }
    assert_eq!(world.in_flight.len(), 2, "the cap of the sick destination");
    world.act(&publish(1));
    let healthy = world.in_flight.iter().filter(|live| live.origin == Origin(1)).count();
    assert_eq!(healthy, 1, "the healthy destination is served at once");
    assert!(world.shard.held() < 20, "the backlog waits in the store");
}

#[test]
fn a_fresh_publish_starts_with_its_message_and_a_loaded_one_without() {
    let mut shard = Shard::new(CAPS);
    let mut world = World::new();
    let mut out = Output::default();
    let load = shard.wants_load(world.now).expect("a new shard wants the window");
    shard.loaded(&load, &[], world.now, &mut out);
    std::mem::swap(&mut shard, &mut world.shard);
    world.publish(&New { bytes: 1, ..New::default() }, &mut out);
    assert!(out.synced, "a publish must be on disk before it is answered");
    assert!(matches!(out.effects[..], [Effect::Start { message: Some(_), .. }]));
    let row = match &out.ops[0] {
        Op::Insert { live, .. } => *live,
        other => panic!("{other:?}"),
    };
    let mut restarted = Shard::new(CAPS);
    let mut out = Output::default();
    let load = restarted.wants_load(world.now).expect("a new shard wants the window");
    assert!(matches!(load.source, Source::Due { lane: None, after: DueKey::MIN, .. }));
    restarted.loaded(&load, &[row], world.now, &mut out);
    assert!(matches!(out.effects[..], [Effect::Start { message: None, .. }]));
}

#[test]
fn duplicates_within_one_batch_are_recognised_before_anything_is_committed() {
    let mut world = World::new();
    let new = New { key: Some(1), bytes: 1, ..New::default() };
    let mut out = Output::default();
    world.publish(&new, &mut out);
    world.publish(&new, &mut out);
    assert_eq!(world.published, 1);
    assert_eq!(out.ops.iter().filter(|op| matches!(op, Op::Insert { .. })).count(), 1);
}

#[test]
fn a_replay_that_is_a_duplicate_leaves_its_dead_letter_alone() {
    let mut world = World::new();
    let action = Action::Publish(New { key: Some(1), bytes: 1, ..New::default() });
    world.act(&action);
    let original = world.messages.values().next().expect("published").clone();
    let message = Arc::new(Message { id: MessageId { seq: Seq(u64::MAX >> 2), tag: 1 }, ..(*original).clone() });
    let mut replay = |dedup| {
        let mut out = Output::default();
        let replaces = Some(posthaste_wire::id::DlqId { at: world.now, n: 1 });
        let publish = Publish { message: message.clone(), origin: Origin(0), dedup, replaces };
        let accepted = world.shard.publish(publish, world.now, &mut out);
        (accepted.deduplicated, out.ops.iter().any(|op| matches!(op, Op::DeleteDeadLetter { .. })))
    };
    assert_eq!(replay(Some((DedupKey([1; 32]), Some(original.id)))), (true, false));
    assert_eq!(replay(None), (false, true));
}

#[test]
fn the_bytes_of_ended_attempts_are_given_back() {
    let mut world = World::new();
    let publish = |origin| Action::Publish(New { origin, bytes: 30, ..New::default() });
    for _ in 0..20 {
        world.act(&publish(0));
        world.act(&Action::End { which: 0, how: How::Ok });
    }
    for origin in 0..3 {
        world.act(&publish(origin));
    }
    assert_eq!(world.in_flight.len(), 2, "two bodies of 30 fit into a tenant's 70 bytes");
}

#[test]
fn large_bodies_that_wait_for_room_hold_up_nobody_else() {
    let mut world = World::new();
    let publish = |tenant, origin, bytes| Action::Publish(New { tenant, origin, bytes, ..New::default() });
    for _ in 0..4 {
        world.act(&publish(0, 0, 60));
    }
    world.act(&publish(1, 0, 5));
    world.act(&publish(0, 1, 5));
    let started: Vec<(u32, u32)> = world.in_flight.iter().map(|live| (live.tenant.0, live.body_bytes)).collect();
    assert_eq!(started, [(0, 60), (1, 5), (0, 5)]);
}

#[test]
fn the_bodies_of_a_hung_destination_leave_room_for_others() {
    let mut world = World::new();
    let publish = |origin, bytes| Action::Publish(New { origin, bytes, ..New::default() });
    for _ in 0..3 {
        world.act(&publish(0, 35));
    }
    assert_eq!(world.in_flight.len(), 1, "two bodies of 35 do not fit into the 60 bytes of a destination");
    world.act(&publish(1, 30));
    assert_eq!(world.in_flight.len(), 2);
    world.act(&Action::End { which: 0, how: How::Ok });
    assert_eq!(world.in_flight.len(), 2, "the next one follows");
}

#[test]
fn a_large_body_that_waits_is_neither_passed_nor_remembered_for_too_long() {
    let mut world = World::new();
    let publish = |bytes| Action::Publish(New { bytes, ..New::default() });
    world.act(&publish(35));
    world.act(&publish(35));
    let flow = Some(NewFlow { key: 0, parallelism: None, rate: None, period_ms: 1_000 });
    world.act(&Action::Publish(New { bytes: 5, flow, ..New::default() }));
    assert_eq!(world.in_flight.len(), 1, "a key does not lead past the one that waits for room");
    world.act(&Action::Cancel { which: 1 });
    assert_eq!(world.in_flight.len(), 2, "the one behind it fits, now that it is gone");
}

#[test]
fn a_full_shard_still_holds_what_a_lane_could_start_at_once() {
    let mut world = World::new();
    let publish = |tenant, origin| Action::Publish(New { tenant, origin, bytes: 1, ..New::default() });
    for _ in 0..6 {
        world.act(&publish(0, 0));
        world.act(&publish(0, 1));
    }
    world.act(&publish(0, 2));
    assert_eq!(world.shard.held(), CAPS.held_max, "one tenant fills the shard");
    for _ in 0..4 {
        world.act(&publish(1, 0));
    }
    assert_eq!(world.shard.held(), CAPS.held_max + 4, "two under way and two that follow them without a load");
}

#[test]
fn origins_that_collide_do_not_mix_tenants_up() {
    let mut world = World::new();
    for (tenant, origin) in [(0, 10), (1, 0)] {
        world.act(&Action::Publish(New { tenant, origin, bytes: 1, ..New::default() }));
    }
    assert!(world.in_flight.iter().all(|live| live.origin == Origin(10)));
    for _ in 0..2 {
        world.act(&Action::End { which: 0, how: How::Ok });
    }
    assert_eq!((world.live.len(), world.shard.in_flight()), (0, 0));
}

#[test]
fn a_draining_shard_starts_nothing_but_still_accepts() {
    let mut world = World::new();
    world.shard.drain();
    world.act(&Action::Publish(New { bytes: 1, ..New::default() }));
    assert_eq!((world.live.len(), world.in_flight.len()), (1, 0));
}
