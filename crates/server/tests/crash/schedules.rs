//! What schedules promise: never two messages for one fire time, and none lost. Pure.
//!
//! A schedule of every minute fires for the latest minute that has come, so the minute in which a message was
//! made is its fire time.

use crate::checker::Violation;
use crate::history::History;
use std::collections::{HashMap, HashSet};

const MINUTE_MS: u64 = 60_000;

pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut made: HashMap<(&str, u64), HashSet<&str>> = HashMap::new();
    for arrival in &history.fired {
        if !arrival.intact {
            violations.push(Violation::Corrupt(arrival.key.clone()));
        }
        match history.fired_at.get(&arrival.id) {
            None => violations.push(Violation::Phantom(arrival.key.clone())),
            Some(at) => drop(made.entry((&arrival.key, at / MINUTE_MS)).or_default().insert(&arrival.id)),
        }
    }
    let twice = made.iter().filter(|(_, ids)| ids.len() > 1);
    violations.extend(twice.map(|((schedule, _), _)| Violation::FiredTwice((*schedule).to_owned())));
    let arrived: HashSet<&str> = history.fired.iter().map(|arrival| arrival.id.as_str()).collect();
    let lost = history.fired_at.keys().filter(|id| !arrived.contains(id.as_str()));
    violations.extend(lost.map(|id| Violation::Lost(id.clone())));
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Arrival;

    fn arrival(schedule: &str, id: &str) -> Arrival {
        let (key, id) = (schedule.to_owned(), id.to_owned());
        Arrival { key, id, began_us: 0, ended_us: 1, status: 200, intact: true }
    }

    fn history(fired: &[(&str, &str)], made: &[(&str, u64)]) -> History {
        History {
            fired: fired.iter().map(|(schedule, id)| arrival(schedule, id)).collect(),
            fired_at: made.iter().map(|(id, at)| ((*id).to_owned(), *at)).collect(),
            ..History::default()
        }
    }

    #[test]
    fn a_message_may_come_twice_but_a_fire_time_makes_only_one() {
        let made = [("a", 60_000), ("b", 119_999), ("c", 120_000)];
        let sound = history(&[("s1", "a"), ("s1", "a"), ("s2", "b"), ("s1", "c")], &made);
        assert_eq!(check(&sound), []);
        let twice = history(&[("s1", "a"), ("s1", "b"), ("s1", "c")], &made);
        assert_eq!(check(&twice), [Violation::FiredTwice("s1".to_owned())]);
    }

    #[test]
    fn what_the_log_does_not_know_or_nobody_received_is_seen() {
        let unknown = history(&[("s1", "a")], &[]);
        assert_eq!(check(&unknown), [Violation::Phantom("s1".to_owned())]);
        let lost = history(&[], &[("a", 60_000)]);
        assert_eq!(check(&lost), [Violation::Lost("a".to_owned())]);
    }
}
