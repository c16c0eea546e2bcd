//! Every sentence, as people read it.

use super::*;
use crate::event::{EventDetail, Response};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use std::sync::Arc;

const NOW: Timestamp = Timestamp(1_780_315_200_000);

fn subject() -> Subject<'static> {
    let created_at = NOW.minus_millis(3_200);
    let timeout = Timeout::Ms(2_000);
    Subject { destination: "https://example.com", created_at, retries: 3, timeout, is_deadline: false }
}

fn waiting(obstacle: Obstacle) -> WaitReason {
    WaitReason { due: NOW.plus_millis(12_345), retried: 0, cancel_requested: false, obstacle }
}

fn queue(position: Option<Position>, paused: bool) -> WaitReason {
    let changed_at = NOW.minus_millis(240_000);
    let queue = InQueue { name: "orders".into(), paused, changed_at, parallelism: 2, taken: 2, position };
    waiting(Obstacle::Queue(queue))
}

fn flow() -> InFlow {
    InFlow {
        key: "stripe-eu".into(),
        paused: false,
        parallelism: None,
        in_flight: 1,
        rate: Some(5),
        period_ms: 1_000,
        position: Position::Nth(3),
        opens_at: Some(NOW.plus_millis(600)),
    }
}

fn destination(busy: Busy) -> WaitReason {
    waiting(Obstacle::Destination(AtDestination { position: Position::Nth(11), in_flight: 200, max: 200, busy }))
}

#[test]
fn every_obstacle_has_its_sentence() {
    let retried = |obstacle| WaitReason { retried: 1, ..waiting(obstacle) };
    let full = InFlow { rate: None, opens_at: None, parallelism: Some(1), ..flow() };
    let slow = InFlow { period_ms: 90_000, position: Position::Beyond(2_000), ..flow() };
    let cases = [
        (waiting(Obstacle::Time), "delayed: due in 12 s"),
        (retried(Obstacle::Time), "attempt 2 of 4 is due in 12 s, after 503 from https://example.com"),
        (queue(Some(Position::Nth(3)), false), "3rd in line for queue orders, 2 of 2 in flight"),
        (
            queue(Some(Position::Beyond(64)), false),
            "at least 64 others ahead in line for queue orders, 2 of 2 in flight",
        ),
        (queue(Some(Position::Beyond(0)), false), "waiting in line for queue orders, 2 of 2 in flight"),
        (queue(Some(Position::Nth(1)), true), "queue orders is paused (changed 4 min ago): 1st in line"),
        (
            queue(None, true),
            "queue orders is paused (changed 4 min ago): it is this message's turn when the queue resumes",
        ),
        (queue(None, false), "queue orders now has a parallelism of 2, and earlier messages use all of it"),
        (waiting(Obstacle::Flow(flow())), "3rd in line for key stripe-eu, 5/s, about 0.6 s"),
        (waiting(Obstacle::Flow(full)), "3rd in line for key stripe-eu, 1 of 1 in flight"),
        (
            waiting(Obstacle::Flow(slow)),
            "at least 2000 others ahead in line for key stripe-eu, 5 per 90 s, at least 0.6 s",
        ),
        (
            waiting(Obstacle::Flow(InFlow { paused: true, opens_at: None, ..flow() })),
            "flow-control key stripe-eu is paused: 3rd in line",
        ),
        (destination(Busy::Full), "11th in line for https://example.com, 200 of 200 deliveries in flight"),
        (
            destination(Busy::Share),
            "11th in line for https://example.com, 200 deliveries in flight, its fair share while the tenant is busy",
        ),
        (
            destination(Busy::Bytes),
            "11th in line for https://example.com, where the bodies in flight leave too little room for the next one",
        ),
        (
            waiting(Obstacle::Room(Room::Tenant(1_000))),
            "waiting for a free slot: the tenant has 1000 deliveries in flight, its maximum",
        ),
        (
            waiting(Obstacle::Room(Room::Server(9))),
            "waiting for a free slot: the server has 9 deliveries in flight, its maximum",
        ),
        (
            waiting(Obstacle::Room(Room::Bytes)),
            "waiting for memory: the bodies in flight leave too little room for this one",
        ),
        (
            waiting(Obstacle::Room(Room::BytesOfFirst)),
            "waiting for memory: the bodies in flight leave too little room for the first message in its line",
        ),
        (
            waiting(Obstacle::Room(Room::Memory)),
            "waiting for memory: the server holds the maximum number of messages and loads this one later",
        ),
        (retried(Obstacle::Attempt), "the 2nd attempt has been in flight for 1.2 s"),
        (
            WaitReason { cancel_requested: true, ..waiting(Obstacle::Attempt) },
            "the 1st attempt has been in flight for 1.2 s; the message is cancelled and will not be retried",
        ),
        (waiting(Obstacle::Stopping), "the server is stopping: the message starts after the restart"),
        (waiting(Obstacle::Nothing), "ready: it starts immediately"),
    ];
    let last = Answer::Status(503);
    for (waiting, expected) in cases {
        let told = waiting_sentence(&waiting, &subject(), Some(&last), Some(NOW.minus_millis(1_200)), NOW);
        assert_eq!(told, expected);
    }
    let deadline = Subject { is_deadline: true, ..subject() };
    let told = waiting_sentence(&waiting(Obstacle::Time), &deadline, None, None, NOW);
    assert_eq!(told, "its run is waiting for an event; the wait times out in 12 s");
}

fn line(state: State, detail: EventDetail) -> Event {
    Event { tenant: TenantId(1), id: MessageId { seq: Seq(1), tag: 1 }, at: NOW, state, detail }
}

fn answered(state: State, status: u16) -> Event {
    let response = Some(Arc::new(Response { status, ..Response::default() }));
    line(state, EventDetail { response, duration_ms: Some(1), ..EventDetail::default() })
}

fn plain(state: State) -> Event {
    line(state, EventDetail::default())
}

fn failed() -> Event {
    line(State::Failed, EventDetail { dlq_id: Some("1-1".into()), ..EventDetail::default() })
}

#[test]
fn every_ending_has_its_sentence() {
    let no_answer =
        EventDetail { error: Some("connection refused".into()), duration_ms: Some(0), ..Default::default() };
    let looped = EventDetail { error: Some("loop: too many".into()), duration_ms: Some(0), ..Default::default() };
    let error = |status| vec![plain(State::Active), answered(State::Error, status), plain(State::Retry)];
    let cases = [
        (vec![answered(State::Delivered, 200)], 3, true, "delivered on the 1st attempt after 3.2 s"),
        (
            [error(500), vec![plain(State::Active), plain(State::Active), answered(State::Delivered, 204)]].concat(),
            3,
            true,
            "delivered on the 2nd attempt after 3.2 s",
        ),
        (
            [error(502), error(502), error(502), vec![answered(State::Error, 500), failed()]].concat(),
            3,
            true,
            "in the DLQ: 500 from https://example.com, after 3 retries",
        ),
        (
            vec![line(State::Error, no_answer.clone()), failed()],
            0,
            false,
            "failed, no longer in the DLQ: connection refused, with no retries",
        ),
        (
            [error(500), vec![answered(State::Error, 489), failed()]].concat(),
            3,
            true,
            "in the DLQ: 489 from https://example.com, not retryable (1 of 3 retries used)",
        ),
        (
            [error(500), vec![line(State::Error, no_answer), failed()]].concat(),
            1,
            true,
            "in the DLQ: connection refused, after 1 retry",
        ),
        (vec![line(State::Error, looped), failed()], 0, true, "in the DLQ: loop: too many, with no retries"),
        (
            vec![plain(State::CancelRequested), plain(State::Canceled)],
            3,
            true,
            "cancelled just now, before the 1st attempt",
        ),
        (
            [error(500), vec![plain(State::CancelRequested), plain(State::Canceled)]].concat(),
            3,
            true,
            "cancelled just now, after 1 failed attempt",
        ),
        (
            [error(500), error(500), vec![plain(State::Canceled)]].concat(),
            3,
            true,
            "cancelled just now, after 2 failed attempts",
        ),
        (
            [error(500), vec![plain(State::CancelRequested), answered(State::Canceled, 200)]].concat(),
            3,
            true,
            "cancelled just now, during the 2nd attempt, which succeeded",
        ),
    ];
    for (events, retries, in_dlq, expected) in cases {
        let ending = ending(&events).expect("it has ended");
        let subject = Subject { retries, ..subject() };
        assert_eq!(ended_sentence(&ending, &subject, in_dlq, NOW), expected);
    }
    assert_eq!(ending(&error(500)), None);
}

#[test]
fn lengths_and_ordinals_read_well() {
    let lengths = [(0, "0 ms"), (99, "99 ms"), (600, "0.6 s"), (9_999, "9.9 s"), (12_345, "12 s"), (600_000, "10 min")];
    for (millis, expected) in lengths {
        assert_eq!(length(millis), expected);
    }
    for (number, expected) in
        [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (112, "112th"), (121, "121st")]
    {
        assert_eq!(ordinal(number), expected);
    }
}
