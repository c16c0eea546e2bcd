//! A look at the server after each start: is everything there that was acknowledged and has not arrived?
//!
//! The judgement at the end of a round sees more; this one names the death that lost something.

use crate::checker::Violation;
use crate::history::{Answer, History, Kind};
use crate::load::Load;
use bytes::Bytes;
use hyper::Method;
use std::collections::HashSet;
use std::net::SocketAddr;

/// Of the messages that must be there, this many of the youngest are asked for by name.
const ASKED_MAX: usize = 24;

/// What the server lacks. Nothing is published meanwhile. A server that dies under the questions has told nothing.
pub(crate) async fn check(load: &Load, server: SocketAddr) -> Vec<Violation> {
    let mut violations = Vec::new();
    load.note(|history| violations.extend(history.take_back_answers().into_iter().map(Violation::Baseless)));
    let mut history = load.history();
    let Some(pending) = load.client.try_pending(server).await else { return violations };
    load.witness.tell(&mut history);
    // None of these had ended when the server counted.
    let outstanding = outstanding(&history);
    if (pending as usize) < outstanding.len() {
        let text = format!("{} messages are outstanding, the server has {pending}", outstanding.len());
        violations.push(Violation::Unaccounted(text));
    }
    for (key, id) in outstanding.iter().rev().take(ASKED_MAX) {
        let target = format!("/v2/messages/{id}");
        let answer = load.client.send(Method::GET, server, &target, &[], Bytes::new()).await;
        if answer.is_some_and(|answer| answer.status == 404) {
            // It may have ended and been forgotten meanwhile.
            load.witness.tell(&mut history);
            if is_outstanding(&history, id) {
                violations.push(Violation::Lost((*key).to_owned()));
            }
        }
    }
    violations
}

fn is_outstanding(history: &History, id: &str) -> bool {
    !history.arrivals.iter().any(|arrival| arrival.id == id && arrival.status == 200)
}

/// Messages (key and id) that the server has promised and can only have ended by delivering them, which it has not;
/// in the order of their acknowledgement.
fn outstanding(history: &History) -> Vec<(String, String)> {
    let delivered: HashSet<&str> =
        history.arrivals.iter().filter(|arrival| arrival.status == 200).map(|arrival| arrival.id.as_str()).collect();
    let mut seen = HashSet::new();
    let mut promised: Vec<_> = history.publishes.iter().collect();
    promised.sort_by_key(|publish| publish.answered_at);
    let open = promised.into_iter().filter_map(|publish| match (&publish.answer, publish.kind) {
        (_, Kind::Dead { .. } | Kind::Cancelled { .. } | Kind::Buried | Kind::Revived) => None,
        (Answer::Acknowledged { id }, _) => {
            let is_open = !delivered.contains(id.as_str()) && !history.cancel_sent.contains(id);
            (is_open && seen.insert(id.as_str())).then(|| (publish.key.clone(), id.clone()))
        }
        (Answer::Overloaded | Answer::Unexpected(_) | Answer::Unknown, _) => None,
    });
    open.collect()
}

#[test]
fn what_was_promised_and_did_not_arrive_is_outstanding() {
    use crate::history::{Arrival, Publish, Terms};
    let publish = |key: &str, kind, answered_at, answer| {
        let terms = Terms::default();
        Publish { key: key.to_owned(), kind, terms, sent_at: 0, answered_at, answer }
    };
    let known = |key: &str| Answer::Acknowledged { id: format!("msg_{key}") };
    let arrival = |key: &str, status| Arrival {
        key: key.to_owned(),
        id: format!("msg_{key}"),
        began_us: 0,
        ended_us: 1,
        status,
        intact: true,
    };
    let plain = Kind::Plain { delay_ms: 0 };
    let history = History {
        publishes: vec![
            publish("late", plain, 9, known("late")),
            publish("here", plain, 1, known("here")),
            publish("failed", Kind::Flaky, 3, known("failed")),
            publish("twice", Kind::Dedup, 4, known("twice")),
            publish("twice", Kind::Dedup, 5, known("twice")),
            publish("dead", Kind::Dead { retries: 0 }, 6, known("dead")),
            publish("cancelled", plain, 7, known("cancelled")),
            publish("unknown", plain, 8, Answer::Unknown),
        ],
        arrivals: vec![arrival("here", 200), arrival("failed", 500)],
        cancel_sent: HashSet::from(["msg_cancelled".to_owned()]),
        ..History::default()
    };
    let keys: Vec<String> = outstanding(&history).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["failed", "twice", "late"]);
}
