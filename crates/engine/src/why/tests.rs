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

fn waiting(obstacle: Obstacle) -> Waiting {
    Waiting { due: NOW.plus_millis(12_345), retried: 0, cancel_requested: false, obstacle }
}

fn queue(position: Option<Position>, paused: bool) -> Waiting {
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

fn destination(busy: Busy) -> Waiting {
    waiting(Obstacle::Destination(AtDestination { position: Position::Nth(11), in_flight: 200, max: 200, busy }))
}

#[test]
fn every_obstacle_has_its_sentence() {
    let retried = |obstacle| Waiting { retried: 1, ..waiting(obstacle) };
    let full = InFlow { rate: None, opens_at: None, parallelism: Some(1), ..flow() };
    let slow = InFlow { period_ms: 90_000, position: Position::Beyond(2_000), ..flow() };
    let cases = [
        (waiting(Obstacle::Time), "delayed: it is due in 12 s"),
        (retried(Obstacle::Time), "its 2nd attempt of 4 is due in 12 s, after 503 from https://example.com"),
        (queue(Some(Position::Nth(3)), false), "3rd in line for queue orders, 2 of 2 under way"),
        (
            queue(Some(Position::Beyond(64)), false),
            "behind more than 64 others in line for queue orders, 2 of 2 under way",
        ),
        (queue(Some(Position::Beyond(0)), false), "somewhere in line for queue orders, 2 of 2 under way"),
        (queue(Some(Position::Nth(1)), true), "the queue orders is paused (changed 4 min ago): it is 1st in line"),
        (
            queue(None, true),
            "the queue orders is paused (changed 4 min ago): it has its turn, and goes on when the queue does",
        ),
        (queue(None, false), "the queue orders lets 2 go at once now, and others had their turn before it"),
        (waiting(Obstacle::Flow(flow())), "3rd in line for key stripe-eu, 5/s, about 0.6 s"),
        (waiting(Obstacle::Flow(full)), "3rd in line for key stripe-eu, 1 of 1 under way"),
        (
            waiting(Obstacle::Flow(slow)),
            "behind more than 2000 others in line for key stripe-eu, 5 per 90 s, at least 0.6 s",
        ),
        (
            waiting(Obstacle::Flow(InFlow { paused: true, opens_at: None, ..flow() })),
            "the flow-control key stripe-eu is paused: it is 3rd in line",
        ),
        (destination(Busy::Full), "11th in line for https://example.com, 200 of 200 deliveries under way"),
        (
            destination(Busy::Share),
            "11th in line for https://example.com, 200 deliveries under way, which is its share while its tenant has so many",
        ),
        (
            destination(Busy::Bytes),
            "11th in line for https://example.com, where the bodies under way leave too little room for the next one",
        ),
        (
            waiting(Obstacle::Room(Room::Tenant(1_000))),
            "it waits for room: all 1000 deliveries that its tenant may have are under way",
        ),
        (
            waiting(Obstacle::Room(Room::Server(9))),
            "it waits for room: all 9 deliveries that the server may have are under way",
        ),
        (waiting(Obstacle::Room(Room::Bytes)), "it waits for room: the bodies under way leave too little for its own"),
        (
            waiting(Obstacle::Room(Room::BytesOfFirst)),
            "it waits for room: the bodies under way leave too little for that of the first in its line",
        ),
        (
            waiting(Obstacle::Room(Room::Memory)),
            "it waits for room: the server has as many messages in memory as it may, and reads this one later",
        ),
        (retried(Obstacle::Attempt), "its 2nd attempt is under way, for 1.2 s"),
        (
            Waiting { cancel_requested: true, ..waiting(Obstacle::Attempt) },
            "its 1st attempt is under way, for 1.2 s; it was cancelled, so there is no other",
        ),
        (waiting(Obstacle::Stopping), "the server is stopping: it starts again with the server"),
        (waiting(Obstacle::Nothing), "nothing is in its way: it starts at once"),
    ];
    let last = Answer::Status(503);
    for (waiting, expected) in cases {
        let told = waiting_sentence(&waiting, &subject(), Some(&last), Some(NOW.minus_millis(1_200)), NOW);
        assert_eq!(told, expected);
    }
    let deadline = Subject { is_deadline: true, ..subject() };
    let told = waiting_sentence(&waiting(Obstacle::Time), &deadline, None, None, NOW);
    assert_eq!(told, "its run waits for an event, for 12 s more");
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
        (vec![answered(State::Delivered, 200)], 3, true, "delivered at the 1st attempt after 3.2 s"),
        (
            [error(500), vec![plain(State::Active), plain(State::Active), answered(State::Delivered, 204)]].concat(),
            3,
            true,
            "delivered at the 2nd attempt after 3.2 s",
        ),
        (
            [error(502), error(502), error(502), vec![answered(State::Error, 500), failed()]].concat(),
            3,
            true,
            "in the DLQ: 500 from https://example.com, 3 retries used up",
        ),
        (
            vec![line(State::Error, no_answer.clone()), failed()],
            0,
            false,
            "failed, and no longer in the DLQ: connection refused, it had no retries",
        ),
        (
            [error(500), vec![answered(State::Error, 489), failed()]].concat(),
            3,
            true,
            "in the DLQ: 489 from https://example.com, which forbids retries (1 of 3 used)",
        ),
        (
            [error(500), vec![line(State::Error, no_answer), failed()]].concat(),
            1,
            true,
            "in the DLQ: connection refused, its retry is used up",
        ),
        (vec![line(State::Error, looped), failed()], 0, true, "in the DLQ: loop: too many, it had no retries"),
        (
            vec![plain(State::CancelRequested), plain(State::Canceled)],
            3,
            true,
            "cancelled just now, before its 1st attempt",
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
            "cancelled just now, while its 2nd attempt was under way, which succeeded",
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
