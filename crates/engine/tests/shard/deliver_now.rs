//! Requests to deliver messages now.

use crate::world::{Action, How, New, World};
use posthaste_engine::event::Op;
use posthaste_engine::message::Live;
use posthaste_engine::shard::{DeliverNowOutcome, Output};

impl World {
    /// Delivers one of the live messages now.
    pub(crate) fn deliver_now(&mut self, which: usize, out: &mut Output) {
        let Some(row) = self.live.values().nth(which % self.live.len().max(1)).copied() else { return };
        let outcome = self.shard.deliver_now(&row, self.now, out);
        let expected = match row {
            _ if row.cancel_requested => DeliverNowOutcome::Cancelled,
            _ if row.place.is_some() => DeliverNowOutcome::Queued,
            _ => DeliverNowOutcome::Due,
        };
        assert_eq!(outcome, expected);
        let changed: Vec<Live> = out.ops.iter().filter_map(updated).collect();
        let is_under_way = self.in_flight.iter().any(|live| live.id == row.id);
        assert!(changed.is_empty() || !is_under_way, "what is under way is left alone");
        assert!(changed.iter().all(|live| *live == Live { due: self.now, ..row }), "nothing but its time changes");
        let waited = expected == DeliverNowOutcome::Due && !is_under_way && row.due > self.latest.max(self.now);
        assert!(!waited || changed.len() == 1, "it waits no longer");
    }
}

fn updated(op: &Op) -> Option<Live> {
    match op {
        Op::Update(live) => Some(*live),
        _ => None,
    }
}

#[test]
fn what_waits_for_its_time_or_a_retry_starts_at_once_and_has_no_attempt_more() {
    let mut world = World::new();
    let publish = |delay_ms| Action::Publish(New { delay_ms, retries: 1, bytes: 1, ..New::default() });
    // One has a timer, the other is left to the store.
    for delay_ms in [1_000, 10_000_000] {
        world.act(&publish(delay_ms));
        assert!(world.in_flight.is_empty());
        world.act(&Action::DeliverNow { which: 0 });
        assert_eq!(world.in_flight.len(), 1, "{delay_ms}");
        world.act(&Action::End { which: 0, how: How::FailWithRetryAfter(60) });
        assert!(world.in_flight.is_empty(), "it waits for its retry");
        world.act(&Action::DeliverNow { which: 0 });
        assert_eq!(world.in_flight.iter().map(|live| live.retried).collect::<Vec<_>>(), [1]);
        world.act(&Action::DeliverNow { which: 0 });
        assert_eq!(world.in_flight.len(), 1, "asking twice is asking once");
        world.act(&Action::End { which: 0, how: How::Fail });
        assert!(world.live.is_empty(), "that was its last attempt");
    }
}

#[test]
fn a_hastened_message_still_waits_for_a_free_place() {
    let mut world = World::new();
    for delay_ms in [0, 0, 1_000] {
        world.act(&Action::Publish(New { delay_ms, bytes: 1, ..New::default() }));
    }
    world.act(&Action::DeliverNow { which: 2 });
    assert_eq!(world.in_flight.len(), 2, "the cap of its destination");
    world.act(&Action::End { which: 0, how: How::Ok });
    assert!(world.in_flight.iter().any(|live| live.id == world.live.values().last().expect("it is live").id));
}
