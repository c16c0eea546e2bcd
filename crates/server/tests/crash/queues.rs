//! What queues promise: order, slots, and that a paused queue starts nothing. Pure.
//!
//! A message has its slot from its first request to the end of its last one, over all retries, repetitions
//! after a crash, and callbacks. A power cut may make the server forget that a message had ended: what comes after
//! it is a stay of its own.

use crate::checker::Violation;
use crate::history::{Answer, History, Micros, Millis, QUEUE_SLOTS};
use crate::overlap::{Span, beyond};
use std::collections::HashMap;

/// A request may arrive this long after the pause of its queue was acknowledged: it was under way.
const UNDER_WAY_MS: Millis = 250;

/// A message of a queue at the witness, by its key and the power cuts before.
type Stays<'a> = HashMap<(&'a str, usize), Stay>;

struct Stay {
    queue: usize,
    began_us: Micros,
    ended_us: Micros,
}

pub(crate) fn check(history: &History) -> Vec<Violation> {
    let stays = stays(history);
    let mut violations = Vec::new();
    for (queue, slots) in QUEUE_SLOTS.into_iter().enumerate() {
        let of_queue = stays.iter().filter(|(_, stay)| stay.queue == queue);
        let spans = of_queue.map(|((key, _), stay)| Span { key, began_us: stay.began_us, ended_us: stay.ended_us });
        let spans = spans.collect();
        violations.extend(beyond(spans, slots).into_iter().map(|key| Violation::Crowded(key.to_owned())));
        // With more slots than one, requests may overtake one another on their way.
        if slots == 1 {
            violations.extend(overtakers(history, &stays, queue).into_iter().map(Violation::Overtaking));
        }
    }
    violations.extend(started_while_paused(history, &stays));
    violations
}

fn stays(history: &History) -> Stays<'_> {
    let mut stays = Stays::new();
    let queued = history.publishes.iter().filter_map(|publish| Some((publish.key.as_str(), publish.terms.queue?)));
    let queues: HashMap<&str, usize> = queued.collect();
    let callbacks = history.callbacks.iter().map(|callback| &callback.arrival);
    for arrival in history.arrivals.iter().chain(callbacks) {
        let Some(&queue) = queues.get(arrival.key.as_str()) else { continue };
        let (began_us, ended_us) = (arrival.began_us, arrival.ended_us);
        let stay =
            stays.entry((&arrival.key, history.cuts_before(began_us))).or_insert(Stay { queue, began_us, ended_us });
        stay.began_us = stay.began_us.min(began_us);
        stay.ended_us = stay.ended_us.max(ended_us);
    }
    stays
}

/// Messages that came before one that was acknowledged before they were sent.
fn overtakers(history: &History, stays: &Stays<'_>, queue: usize) -> Vec<String> {
    let mut began: HashMap<&str, Micros> = HashMap::new();
    for ((key, _), stay) in stays.iter().filter(|(_, stay)| stay.queue == queue) {
        let first = began.entry(key).or_insert(stay.began_us);
        *first = stay.began_us.min(*first);
    }
    let of_queue = || history.publishes.iter().filter(|publish| publish.terms.queue == Some(queue));
    let mut acknowledged: Vec<_> =
        of_queue().filter(|publish| matches!(publish.answer, Answer::Acknowledged { .. })).collect();
    acknowledged.sort_by_key(|publish| publish.answered_at);
    let mut sent: Vec<_> = of_queue().collect();
    sent.sort_by_key(|publish| publish.sent_at);
    let mut earlier = acknowledged.into_iter().peekable();
    let (mut latest, mut found) = (0, Vec::new());
    for publish in sent {
        while let Some(before) = earlier.next_if(|before| before.answered_at < publish.sent_at) {
            latest = latest.max(began.get(before.key.as_str()).copied().unwrap_or(Micros::MAX));
        }
        if began.get(publish.key.as_str()).is_some_and(|began_us| *began_us < latest) {
            found.push(publish.key.clone());
        }
    }
    found
}

fn started_while_paused(history: &History, stays: &Stays<'_>) -> Vec<Violation> {
    let queues: HashMap<&str, usize> = stays.iter().map(|((key, _), stay)| (*key, stay.queue)).collect();
    let mut violations = Vec::new();
    for pause in &history.pauses {
        let under_way = |at: Millis| at <= pause.from + UNDER_WAY_MS + history.still_ms(pause.from, at);
        let is_in = |at: Millis| at < pause.until && at > pause.from && !under_way(at);
        let started = history
            .arrivals
            .iter()
            .filter(|arrival| is_in(arrival.at()) && queues.get(arrival.key.as_str()) == Some(&pause.queue));
        violations.extend(started.map(|arrival| Violation::StartedWhilePaused(arrival.key.clone())));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Arrival, Callback, Kind, Pause, Publish, Stall, Terms, Void};

    fn publish(key: &str, sent_at: Millis, answered_at: Millis) -> Publish {
        let terms = Terms { queue: Some(0), callback: true, flow: None };
        let answer = Answer::Acknowledged { id: key.to_owned() };
        Publish { key: key.to_owned(), kind: Kind::Flaky, terms, sent_at, answered_at, answer }
    }

    fn arrival(key: &str, began_ms: Millis, ended_ms: Millis) -> Arrival {
        let (began_us, ended_us) = (began_ms * 1_000, ended_ms * 1_000);
        Arrival { key: key.to_owned(), id: key.to_owned(), began_us, ended_us, status: 200, intact: true }
    }

    fn callback(key: &str, began_ms: Millis, ended_ms: Millis) -> Callback {
        let arrival = arrival(key, began_ms, ended_ms);
        Callback { arrival, source: key.to_owned(), retried: 0, status: 200, is_failure: false }
    }

    /// Two messages one after the other, the first with a retry and a callback; a third sent while the second
    /// was.
    fn sound() -> History {
        History {
            publishes: vec![publish("a", 0, 5), publish("b", 6, 12), publish("c", 8, 11)],
            arrivals: vec![
                arrival("a", 7, 10),
                arrival("a", 60, 64),
                arrival("c", 70, 74),
                arrival("b", 75, 79),
                arrival("b", 900, 904),
            ],
            callbacks: vec![callback("a", 65, 69)],
            pauses: vec![Pause { queue: 0, from: 100, until: 890 }, Pause { queue: 1, from: 0, until: 1_000 }],
            ..History::default()
        }
    }

    #[test]
    fn a_sound_history_has_no_violation() {
        assert_eq!(check(&sound()), []);
    }

    #[test]
    fn only_a_power_cut_lets_a_message_come_again_after_the_next_one() {
        let mut history = sound();
        history.arrivals.push(arrival("a", 1_000, 1_004));
        assert!(check(&history).contains(&Violation::Crowded("c".to_owned())));
        history.voids = vec![Void { cut: (940, 945), gone_us: 950_000 }];
        assert_eq!(check(&history), []);
    }

    #[test]
    fn every_kind_of_fault_is_seen() {
        let key = |key: &str| key.to_owned();
        type Plant = fn(&mut History);
        let cases: [(Plant, Violation); 6] = [
            // Before the retry of the first message; before its callback; before the answer to its request.
            (|h| h.arrivals[2].began_us = 30_000, Violation::Crowded(key("c"))),
            (|h| h.callbacks[0].arrival.ended_us = 71_000, Violation::Crowded(key("c"))),
            (|h| h.arrivals[3].began_us = 73_999, Violation::Crowded(key("b"))),
            // Before the first message.
            (|h| (h.arrivals[2].began_us, h.arrivals[2].ended_us) = (1_000, 2_000), Violation::Overtaking(key("c"))),
            // Never arrived, but its successor did.
            (|h| h.arrivals.retain(|arrival| arrival.key != "a"), Violation::Overtaking(key("b"))),
            (|h| h.arrivals[4].began_us = 500_000, Violation::StartedWhilePaused(key("b"))),
        ];
        for (plant, expected) in cases {
            let mut history = sound();
            plant(&mut history);
            if expected == Violation::Overtaking(key("b")) {
                history.callbacks.clear();
            }
            let found = check(&history);
            assert!(found.contains(&expected), "{expected} is missing among {found:?}");
        }
        let mut history = sound();
        history.arrivals[4].began_us = 500_000;
        history.stalls = vec![Stall { from: 130, until: 499 }];
        assert_eq!(check(&history), [], "it was sent before the pause, perhaps");
        history.stalls = vec![Stall { from: 370, until: 499 }];
        assert_eq!(check(&history), [Violation::StartedWhilePaused(key("b"))], "so long it was not in flight");
    }
}
