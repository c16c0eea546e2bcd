//! FIFO queues, one scenario at a time.

use crate::world::{Action, CAPS, How, New, NewFlow, World};
use posthaste_engine::event::State;
use posthaste_engine::flow::FlowEdit;
use posthaste_wire::id::Seq;

fn enqueue() -> Action {
    Action::Publish(New { queue: Some(0), retries: 1, ..New::default() })
}

fn put(parallelism: u32, paused: bool) -> Action {
    Action::PutQueue { tenant: 0, queue: 0, parallelism, paused }
}

fn end(how: How) -> Action {
    Action::End { which: 0, how }
}

/// The messages in flight, as positions in the order of creation.
fn under_way(world: &World) -> Vec<usize> {
    let mut own: Vec<Seq> = world.messages.values().filter(|message| message.id.tag == 7).map(|m| m.id.seq).collect();
    own.sort();
    let position = |seq: Seq| own.iter().position(|other| *other == seq);
    let mut under_way: Vec<usize> = world.in_flight.iter().filter_map(|live| position(live.id.seq)).collect();
    under_way.sort_unstable();
    under_way
}

#[test]
fn the_head_blocks_through_its_retries() {
    let mut world = World::new();
    for _ in 0..3 {
        world.act(&enqueue());
    }
    assert_eq!(under_way(&world), [0]);
    world.act(&end(How::Fail));
    assert_eq!(under_way(&world), [0; 0], "the head waits for its retry, and nobody overtakes it");
    world.act(&Action::Crash);
    assert_eq!(under_way(&world), [0; 0], "not after a crash either");
    world.act(&Action::Wait { millis: 2_000 });
    assert_eq!(under_way(&world), [0]);
    world.act(&end(How::Fail));
    assert_eq!(under_way(&world), [1], "it has failed for good");
}

#[test]
fn a_cancelled_head_frees_its_slot_at_once() {
    let mut world = World::new();
    world.act(&enqueue());
    world.act(&enqueue());
    world.act(&end(How::Fail));
    world.act(&Action::Cancel { which: 0 });
    assert_eq!(under_way(&world), [1]);
    world.act(&enqueue());
    world.act(&enqueue());
    world.act(&Action::Cancel { which: 1 });
    world.act(&end(How::Ok));
    assert_eq!(under_way(&world), [3], "a cancelled message that waits is passed over");
}

#[test]
fn the_slot_is_kept_until_the_callbacks_are_done() {
    for crash in [false, true] {
        let mut world = World::new();
        world.act(&Action::Publish(New { queue: Some(0), callback: true, ..New::default() }));
        world.act(&enqueue());
        world.act(&end(How::Ok));
        assert_eq!((under_way(&world), world.in_flight.len()), (vec![], 1), "the callback is under way");
        if crash {
            world.act(&Action::Crash);
            assert_eq!((under_way(&world), world.in_flight.len()), (vec![], 1));
        }
        world.act(&end(How::Fail));
        assert_eq!(world.in_flight.len(), 0, "the callback waits for its retry");
        world.act(&Action::Wait { millis: 1_000 });
        world.act(&end(How::Ok));
        assert_eq!(under_way(&world), [1]);
    }
}

/// A message of a queue has failed for good and has three callbacks. Another message waits after them.
fn with_three_callbacks() -> World {
    let mut world = World::new();
    let first = New { queue: Some(0), retries: 1, callback: true, failure_callback: true, ..New::default() };
    world.act(&Action::Publish(first));
    world.act(&enqueue());
    world.act(&end(How::Fail));
    world.act(&end(How::FailWithRetryAfter(5)));
    world.act(&Action::Wait { millis: 2_000 });
    assert_eq!(under_way(&world), [0], "its retry");
    world.act(&end(How::Fail));
    world.act(&Action::Wait { millis: 5_000 });
    assert_eq!((world.callbacks, world.live.len(), world.in_flight.len()), (3, 4, 1), "their bodies are large");
    world
}

/// The number of callbacks in RAM.
fn callbacks_held(world: &World) -> usize {
    let callbacks = world.live.values().filter(|row| row.id.tag == 8);
    callbacks.filter(|row| world.shard.held_row(row.tenant, row.id).is_some()).count()
}

/// Fills the shard with due messages of another tenant whose keys are paused, and with as many queues.
fn fill(world: &mut World) {
    for queue in 0..CAPS.held_max as u8 {
        world.act(&Action::PutQueue { tenant: 1, queue, parallelism: 1, paused: false });
    }
    for key in 0..4 {
        world.act(&Action::EditFlow { tenant: 1, key, edit: FlowEdit::Pause });
        let flow = Some(NewFlow { key, parallelism: None, rate: None, period_ms: 1_000 });
        for _ in 0..CAPS.lane_held_max {
            world.act(&Action::Publish(New { tenant: 1, flow, ..New::default() }));
        }
    }
    assert!(world.shard.held() >= CAPS.held_max);
}

fn end_callback(world: &mut World) {
    let which = world.in_flight.iter().position(|live| live.id.tag == 8).expect("a callback is under way");
    world.act(&Action::End { which, how: How::Ok });
}

#[test]
fn nobody_has_the_slot_before_the_last_callback_has_ended_wherever_it_crashes() {
    for case in 0_usize..1 << 4 {
        let is = |bit: usize| case >> bit & 1 == 1;
        let mut world = with_three_callbacks();
        if is(0) {
            fill(&mut world);
        }
        for ended in 0..3 {
            if is(1 + ended) {
                world.act(&Action::Crash);
            }
            assert!(!under_way(&world).contains(&1), "case {case}: {ended} of three callbacks have ended");
            assert_eq!(callbacks_held(&world), 3 - ended, "case {case}: what shares a slot is in RAM");
            end_callback(&mut world);
        }
        assert!(under_way(&world).contains(&1), "case {case}");
    }
}

#[test]
fn callbacks_end_in_a_paused_queue_also_after_a_crash() {
    for crowded in [false, true] {
        let mut world = with_three_callbacks();
        if crowded {
            fill(&mut world);
        }
        world.act(&put(1, true));
        for left in [3, 2, 1] {
            world.act(&Action::Crash);
            assert_eq!(callbacks_held(&world), left);
            end_callback(&mut world);
        }
        assert!(!under_way(&world).contains(&1), "paused");
        world.act(&put(1, false));
        assert!(under_way(&world).contains(&1));
    }
}

#[test]
fn callbacks_end_in_a_paused_queue_also_after_a_crash_while_their_message_waits_for_its_retry() {
    let mut world = World::new();
    world.act(&Action::Publish(New { queue: Some(0), retries: 1, callback: true, ..New::default() }));
    world.act(&enqueue());
    world.act(&end(How::Fail));
    world.act(&put(1, true));
    world.act(&Action::Crash);
    world.act(&Action::Wait { millis: 5_000 });
    assert_eq!(
        (under_way(&world), world.in_flight.len()),
        (vec![], 1),
        "the callback, and neither the retry nor the next"
    );
    world.act(&end(How::Ok));
    world.act(&put(1, false));
    assert_eq!(under_way(&world), [0], "its retry");
}

#[test]
fn a_callback_keeps_one_slot_and_leaves_the_other_after_a_clock_that_went_back_and_a_crash() {
    let mut world = World::new();
    world.act(&put(2, false));
    world.act(&Action::Publish(New { queue: Some(0), callback: true, ..New::default() }));
    world.act(&enqueue());
    let first = world.in_flight.iter().position(|live| live.place.is_some_and(|place| place.turn.seq == live.id.seq));
    world.act(&Action::End { which: first.expect("it is under way"), how: How::Ok });
    world.act(&Action::ClockBack { millis: 3_600_000 });
    world.act(&Action::Crash);
    assert!(under_way(&world).contains(&1), "the callback has its turn, and of two slots one is left for the next");
}

/// A message without callbacks waits for its retry in one slot, and a callback of another message is in flight in the
/// next one.
fn with_a_callback_after_a_message_without() -> World {
    let mut world = World::new();
    world.act(&put(2, false));
    world.act(&enqueue());
    world.act(&Action::Publish(New { queue: Some(0), callback: true, ..New::default() }));
    world.act(&enqueue());
    world.act(&end(How::Fail));
    world.act(&end(How::Ok));
    assert_eq!((under_way(&world), callbacks_under_way(&world)), (vec![], 1));
    world
}

fn callbacks_under_way(world: &World) -> usize {
    world.in_flight.iter().filter(|live| live.id.tag == 8).count()
}

#[test]
fn a_callback_after_a_message_without_callbacks_is_sent_in_a_paused_queue_after_a_crash() {
    for (parallelism, crowded) in [(2, false), (2, true), (1, false), (1, true)] {
        let mut world = with_a_callback_after_a_message_without();
        if crowded {
            fill(&mut world);
        }
        world.act(&put(parallelism, true));
        for _ in 0..2 {
            world.act(&Action::Crash);
            let sent = callbacks_under_way(&world);
            assert_eq!(sent, 1, "parallelism {parallelism}, crowded {crowded}: it does not wait for the resume");
        }
        end_callback(&mut world);
        world.act(&Action::Wait { millis: 5_000 });
        assert_eq!(under_way(&world).iter().filter(|nth| **nth < 3).count(), 0, "paused");
        world.act(&put(parallelism, false));
        world.heal();
        world.check_history();
    }
}

#[test]
fn a_callback_that_is_sent_before_its_turn_still_keeps_its_turn() {
    let mut world = World::new();
    world.act(&put(2, false));
    world.act(&Action::Publish(New { queue: Some(0), callback: true, ..New::default() }));
    world.act(&Action::Publish(New { queue: Some(0), callback: true, ..New::default() }));
    world.act(&enqueue());
    world.act(&end(How::Ok));
    world.act(&end(How::Ok));
    world.act(&put(1, true));
    world.act(&Action::Crash);
    let second = world.live.values().filter(|row| row.id.tag == 8).nth(1).expect("there are two callbacks").id;
    assert_eq!(callbacks_held(&world), 2, "their bodies are large, so they are sent one after the other");
    end_callback(&mut world);
    assert_eq!(
        world.in_flight.iter().map(|live| live.id).collect::<Vec<_>>(),
        [second],
        "although the queue is paused"
    );
    world.act(&put(1, false));
    assert_eq!(under_way(&world), [0; 0], "the next message waits until both have ended");
    end_callback(&mut world);
    assert_eq!(under_way(&world), [2]);
}

#[test]
fn parallelism_and_pause_hold_over_a_crash() {
    let mut world = World::new();
    world.act(&put(2, true));
    for _ in 0..4 {
        world.act(&enqueue());
    }
    assert_eq!(under_way(&world), [0; 0]);
    world.act(&Action::Crash);
    assert_eq!(under_way(&world), [0; 0], "still paused");
    world.act(&put(2, false));
    assert_eq!(under_way(&world), [0, 1]);
    world.act(&Action::End { which: 0, how: How::Fail });
    world.act(&put(2, true));
    world.act(&Action::Wait { millis: 5_000 });
    assert_eq!(under_way(&world), [1], "what is under way goes on, a retry does not start");
    world.act(&put(2, false));
    assert_eq!(under_way(&world), [0, 1]);
}

#[test]
fn a_delayed_message_joins_when_its_delay_is_over() {
    let mut world = World::new();
    world.act(&put(1, true));
    world.act(&Action::Publish(New { queue: Some(0), delay_ms: 10_000, ..New::default() }));
    world.act(&enqueue());
    world.act(&Action::Wait { millis: 20_000 });
    world.act(&enqueue());
    world.act(&put(1, false));
    assert_eq!(under_way(&world), [1], "joined first");
    world.act(&end(How::Ok));
    assert_eq!(under_way(&world), [0], "joined when its delay was over");
    world.act(&end(How::Ok));
    assert_eq!(under_way(&world), [2]);
}

#[test]
fn a_long_queue_stays_in_the_store_and_in_order() {
    let mut world = World::new();
    for _ in 0..300 {
        world.act(&enqueue());
    }
    assert!(world.shard.held() <= 80, "{} are in RAM", world.shard.held());
    for expected in 0..300 {
        assert_eq!(under_way(&world), [expected]);
        world.act(&end(How::Ok));
        if expected % 50 == 7 {
            world.act(&Action::Crash);
        }
    }
    assert!(world.live.is_empty());
}

#[test]
fn a_deleted_queue_cancels_what_waits_and_a_new_one_begins_afresh() {
    let mut world = World::new();
    world.act(&put(2, false));
    for _ in 0..4 {
        world.act(&enqueue());
    }
    world.act(&Action::DeleteQueue { tenant: 0, queue: 0 });
    let cancelled = world.events.iter().filter(|event| event.state == State::Canceled).count();
    assert_eq!((cancelled, world.in_flight.len()), (2, 2));
    assert!(world.queues.values().all(|queue| queue.deleted), "hidden until the rest has ended");
    world.act(&enqueue());
    let queue = world.queues.values().next().expect("it is there again");
    assert_eq!((queue.deleted, queue.parallelism), (false, 1));
    world.heal();
    world.check_history();
    world.act(&Action::DeleteQueue { tenant: 0, queue: 0 });
    assert!(world.queues.is_empty());
}

#[test]
fn a_loop_ends_in_the_dlq() {
    let mut world = World::new();
    let mut out = posthaste_engine::shard::Output::default();
    world.publish(&New { hops: 17, ..New::default() }, &mut out);
    world.settle(out);
    assert!(world.live.is_empty() && world.in_flight.is_empty());
    assert_eq!(world.events.last().map(|event| event.state), Some(State::Failed));
}

#[test]
fn a_clock_that_goes_back_does_not_hold_up_a_queue() {
    let mut world = World::new();
    world.act(&Action::Publish(New::default()));
    world.act(&Action::ClockBack { millis: 9 * 86_400_000 });
    world.act(&Action::Publish(New { queue: Some(0), delay_ms: 1_000, ..New::default() }));
    world.act(&Action::Publish(New { queue: Some(1), ..New::default() }));
    assert!(under_way(&world).contains(&2), "it joined at once");
    world.act(&Action::Crash);
    world.act(&Action::Wait { millis: 1_000 });
    assert!(under_way(&world).contains(&1), "its delay is over, by the clock that it was given by");
}

#[test]
fn a_cancelled_delayed_head_lets_those_behind_it_go_on_after_the_clock_went_back() {
    let mut world = World::new();
    world.act(&put(1, true));
    world.act(&Action::Publish(New { queue: Some(0), delay_ms: 600_000, ..New::default() }));
    // The clock is far ahead, so the delay seems to be over, and a new message comes after it.
    world.act(&Action::Wait { millis: 3_600_000 });
    world.act(&enqueue());
    world.act(&Action::ClockBack { millis: 3_600_000 });
    world.act(&Action::Crash);
    world.act(&put(1, false));
    assert_eq!(under_way(&world), [0; 0], "the first of the queue is delayed again");
    world.act(&Action::Cancel { which: 0 });
    assert_eq!(under_way(&world), [1], "nobody is before it any more");
}

#[test]
fn who_waited_for_its_turn_starts_although_the_clock_went_back_since() {
    let mut world = World::new();
    world.act(&enqueue());
    world.act(&Action::Publish(New { queue: Some(0), delay_ms: 1_000, ..New::default() }));
    world.act(&Action::Wait { millis: 2_000 });
    world.act(&enqueue());
    world.act(&Action::ClockBack { millis: 86_400_000 });
    world.act(&end(How::Ok));
    assert_eq!(under_way(&world), [1], "its delay was over");
    world.act(&end(How::Ok));
    assert_eq!(under_way(&world), [2], "and the queue goes on");
}

#[test]
fn a_paused_queue_keeps_little_in_ram() {
    let mut world = World::new();
    world.act(&put(3, true));
    for _ in 0..40 {
        world.act(&enqueue());
    }
    assert_eq!(world.shard.held(), 1);
    world.act(&put(3, false));
    assert_eq!(under_way(&world), [0, 1], "the cap of the destination");
}

#[test]
fn a_delayed_message_does_not_hold_up_a_long_queue() {
    let mut world = World::new();
    world.act(&put(1, true));
    world.act(&Action::Publish(New { queue: Some(0), delay_ms: 3_600_000, ..New::default() }));
    for _ in 0..150 {
        world.act(&enqueue());
    }
    world.act(&put(1, false));
    for expected in 1..=150 {
        assert_eq!(under_way(&world), [expected]);
        world.act(&end(How::Ok));
    }
    assert_eq!(world.live.len(), 1, "only the delayed one is left");
}

#[test]
fn a_clock_that_goes_back_does_not_shorten_a_delay() {
    let mut world = World::new();
    world.act(&Action::Publish(New::default()));
    world.act(&Action::ClockBack { millis: 3_600_000 });
    world.act(&Action::Publish(New { queue: Some(0), delay_ms: 1_800_000, ..New::default() }));
    world.act(&Action::Wait { millis: 1_799_999 });
    assert!(!under_way(&world).contains(&1), "not before its delay is over");
    world.act(&Action::Wait { millis: 1 });
    assert!(under_way(&world).contains(&1));
}
