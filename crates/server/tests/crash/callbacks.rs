//! What callbacks promise: each outcome that counts is told, by one message. Pure.

use crate::checker::Violation;
use crate::history::{Answer, History};
use std::collections::{HashMap, HashSet};

pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    // An outcome that a power cut made forgotten happens again, and is told again.
    let mut told: HashMap<(&str, u64, bool, usize), HashSet<&str>> = HashMap::new();
    let mut delivered: HashSet<&str> = HashSet::new();
    let mut failed: HashSet<&str> = HashSet::new();
    let wanted: HashSet<&str> =
        history.publishes.iter().filter(|publish| publish.terms.callback).map(|publish| publish.key.as_str()).collect();
    for callback in &history.callbacks {
        let key = callback.arrival.key.as_str();
        if !wanted.contains(key) || !callback.arrival.intact {
            violations.push(Violation::Phantom(key.to_owned()));
        }
        let cuts = history.cuts_before(callback.arrival.began_us);
        let outcome = (callback.source.as_str(), callback.retried, callback.is_failure, cuts);
        told.entry(outcome).or_default().insert(&callback.arrival.id);
        if callback.is_failure {
            failed.insert(&callback.source);
        } else if callback.status == 200 {
            delivered.insert(&callback.source);
        }
    }
    let twice = told.iter().filter(|(_, ids)| ids.len() > 1);
    violations.extend(twice.map(|((source, ..), _)| Violation::CallbackTwice((*source).to_owned())));
    let ends: HashMap<&str, &str> = history.ends.iter().map(|(id, state)| (id.as_str(), *state)).collect();
    for publish in history.publishes.iter().filter(|publish| publish.terms.callback) {
        let Answer::Acknowledged { id } = &publish.answer else { continue };
        let is_told = match ends.get(id.as_str()) {
            Some(&"DELIVERED") => delivered.contains(id.as_str()),
            Some(&"FAILED") => failed.contains(id.as_str()),
            _ => true,
        };
        if !is_told {
            violations.push(Violation::CallbackLost(publish.key.clone()));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Arrival, Callback, Kind, Publish, Terms};

    fn publish(key: &str) -> Publish {
        let terms = Terms { callback: true, ..Terms::default() };
        let answer = Answer::Acknowledged { id: format!("msg_{key}") };
        Publish { key: key.to_owned(), kind: Kind::Flaky, terms, sent_at: 0, answered_at: 1, answer }
    }

    fn callback(key: &str, id: &str, retried: u64, status: u64, is_failure: bool) -> Callback {
        let (key, id, source) = (key.to_owned(), id.to_owned(), format!("msg_{key}"));
        let arrival = Arrival { key, id, began_us: 0, ended_us: 1, status: 200, intact: true };
        Callback { arrival, source, retried, status, is_failure }
    }

    /// One message delivered at the second attempt, one dead.
    fn sound() -> History {
        History {
            publishes: vec![publish("good"), publish("dead")],
            callbacks: vec![
                callback("good", "c1", 0, 500, false),
                callback("good", "c2", 1, 200, false),
                callback("good", "c2", 1, 200, false),
                callback("dead", "c3", 0, 500, false),
                callback("dead", "c4", 0, 500, true),
            ],
            ends: vec![("msg_good".to_owned(), "DELIVERED"), ("msg_dead".to_owned(), "FAILED")],
            ..History::default()
        }
    }

    #[test]
    fn every_kind_of_fault_is_seen() {
        assert_eq!(check(&sound()), []);
        type Plant = fn(&mut History);
        let cases: [(Plant, Violation); 5] = [
            (|h| h.callbacks[2].arrival.id = "c9".to_owned(), Violation::CallbackTwice("msg_good".to_owned())),
            (|h| h.callbacks.truncate(1), Violation::CallbackLost("good".to_owned())),
            (|h| drop(h.callbacks.pop()), Violation::CallbackLost("dead".to_owned())),
            (|h| h.publishes[0].terms.callback = false, Violation::Phantom("good".to_owned())),
            (|h| h.callbacks[0].arrival.intact = false, Violation::Phantom("good".to_owned())),
        ];
        for (plant, expected) in cases {
            let mut history = sound();
            plant(&mut history);
            let found = check(&history);
            assert!(found.contains(&expected), "{expected} is missing among {found:?}");
        }
    }
}
