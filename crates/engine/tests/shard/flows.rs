//! Flow control, one scenario at a time.

use crate::world::{Action, How, New, NewFlow, World};
use posthaste_engine::flow::FlowEdit;
use posthaste_wire::id::TenantId;

fn publish(origin: u64, parallelism: Option<u32>, rate: Option<u32>) -> Action {
    let flow = Some(NewFlow { key: 0, parallelism, rate, period_ms: 10_000 });
    Action::Publish(New { origin, flow, ..New::default() })
}

fn edit(edit: FlowEdit) -> Action {
    Action::EditFlow { tenant: 0, key: 0, edit }
}

#[test]
fn the_slot_of_the_rate_is_taken_with_the_publish() {
    let mut world = World::new();
    world.act(&publish(0, None, Some(1)));
    let info = world.shard.flow(TenantId(0), "key-0", world.now).expect("visible at once");
    assert_eq!((info.rate_count, info.in_flight), (1, 1));
    world.act(&publish(0, None, Some(1)));
    world.act(&Action::End { which: 0, how: How::Ok });
    assert!(world.in_flight.is_empty(), "the second waits for the next period");
    world.act(&edit(FlowEdit::ResetRate));
    assert_eq!(world.in_flight.len(), 1);
}

#[test]
fn a_rate_that_waits_wakes_the_shard() {
    let mut world = World::new();
    for _ in 0..2 {
        world.act(&publish(0, None, Some(1)));
    }
    world.act(&Action::End { which: 0, how: How::Ok });
    assert_eq!(world.shard.next_wake(), world.now.plus_millis(10_001));
    world.act(&Action::Wait { millis: 10_001 });
    assert_eq!(world.in_flight.len(), 1);
}

#[test]
fn retries_pass_through_flow_control_again() {
    let mut world = World::new();
    let flow = Some(NewFlow { key: 0, parallelism: None, rate: Some(1), period_ms: 10_000 });
    world.act(&Action::Publish(New { flow, retries: 1, ..New::default() }));
    world.act(&Action::End { which: 0, how: How::Fail });
    world.act(&Action::Wait { millis: 2_000 });
    assert!(world.in_flight.is_empty(), "due, but the rate is used up");
    world.act(&Action::Wait { millis: 8_001 });
    assert_eq!(world.in_flight.len(), 1);
}

#[test]
fn a_busy_destination_does_not_hold_up_the_others_of_a_key() {
    let mut world = World::new();
    for _ in 0..30 {
        world.act(&publish(0, Some(4), None));
    }
    assert_eq!(world.in_flight.len(), 2, "the cap of the destination");
    world.act(&publish(1, Some(4), None));
    assert_eq!(world.in_flight.len(), 3, "another destination of the same key");
    world.heal();
    world.check_history();
}

#[test]
fn a_message_keeps_its_place_in_the_queue_while_it_waits_for_its_key() {
    let mut world = World::new();
    let flow = Some(NewFlow { key: 0, parallelism: None, rate: Some(1), period_ms: 10_000 });
    world.act(&Action::Publish(New { flow, ..New::default() }));
    world.act(&Action::Publish(New { flow, queue: Some(0), ..New::default() }));
    world.act(&Action::Publish(New { queue: Some(0), ..New::default() }));
    assert_eq!(world.in_flight.len(), 1, "the head of the queue waits for its key, the next one for the head");
    world.act(&Action::Wait { millis: 10_001 });
    assert_eq!(world.in_flight.len(), 2);
}

#[test]
fn a_clock_that_goes_back_does_not_hold_up_a_rate() {
    let mut world = World::new();
    for _ in 0..2 {
        world.act(&publish(0, None, Some(1)));
    }
    world.act(&Action::End { which: 0, how: How::Ok });
    world.act(&Action::ClockBack { millis: 9 * 86_400_000 });
    world.act(&Action::Wait { millis: 10_001 });
    assert_eq!(world.in_flight.len(), 1, "one period after the clock went back");
}
