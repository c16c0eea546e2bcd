//! Judges a history: which promises were broken. Pure, so that it can be shown to see every kind of loss.
//!
//! Here is what holds for every message; `letters`, `queues`, `flows`, `callbacks`, `schedules` and `runs` judge the rest.

use crate::history::{Answer, Arrival, History, Kind, Millis, Publish};
use crate::letters::{self, Life};
use crate::{callbacks, flows, queues, runs, schedules};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// A message may arrive this much before its time: two clocks are compared, both cut to milliseconds.
const EARLY_MS: Millis = 20;

/// A broken promise, about the message with this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Acknowledged, but neither delivered nor cancelled nor a dead letter.
    Lost(String),
    /// Delivered under more than one id, or under another id than the acknowledged one.
    ManyIds(String),
    /// The body was not the published one.
    Corrupt(String),
    /// Delivered before its time.
    Early(String),
    /// Cancelled before it was due, delivered all the same.
    DeliveredAfterCancel(String),
    /// A dead letter whose receiver never failed, or more than one for the same message.
    WronglyDead(String),
    /// A bulk action that was acknowledged has ended without it.
    LeftOut(String),
    /// A dead letter with fewer attempts than promised.
    GaveUpEarly(String),
    /// The log has no end, or more than one, or an end that did not happen.
    WrongEnd(String),
    /// Nobody published what arrived.
    Phantom(String),
    /// An answer that should not occur.
    Unexpected(String),
    /// Some endpoints of the group got it, others never did.
    Torn(String),
    /// Came before a message of its queue that was acknowledged before it was sent.
    Overtaking(String),
    /// Began while its queue had no free slot.
    Crowded(String),
    /// Began while its queue was paused.
    StartedWhilePaused(String),
    /// Began when its flow-control key had no start left in its period.
    OverRate(String),
    /// Began while its flow-control key had as many under way as it may.
    OverParallelism(String),
    /// A message that ended was not told of.
    CallbackLost(String),
    /// One attempt was told of by two messages.
    CallbackTwice(String),
    /// A schedule made two messages for one time.
    FiredTwice(String),
    /// A run that has come to rest and has not ended.
    Unended(String),
    /// A run has returned although its endpoint never executed one of its steps.
    StepLost(String),
    /// A step was executed once more after its result had been accepted.
    ExecutedAgain(String),
    /// Sent and acknowledged when there was no disk any more.
    Baseless(String),
    /// After a start the server has fewer messages than are outstanding: how many of each.
    Unaccounted(String),
}

impl Violation {
    /// Which message it is about.
    pub(crate) fn key(&self) -> &str {
        match self {
            Violation::Lost(key)
            | Violation::ManyIds(key)
            | Violation::Corrupt(key)
            | Violation::Early(key)
            | Violation::DeliveredAfterCancel(key)
            | Violation::WronglyDead(key)
            | Violation::LeftOut(key)
            | Violation::GaveUpEarly(key)
            | Violation::WrongEnd(key)
            | Violation::Phantom(key)
            | Violation::Unexpected(key)
            | Violation::Torn(key)
            | Violation::Overtaking(key)
            | Violation::Crowded(key)
            | Violation::StartedWhilePaused(key)
            | Violation::OverRate(key)
            | Violation::OverParallelism(key)
            | Violation::CallbackLost(key)
            | Violation::CallbackTwice(key)
            | Violation::FiredTwice(key)
            | Violation::Unended(key)
            | Violation::StepLost(key)
            | Violation::ExecutedAgain(key)
            | Violation::Baseless(key)
            | Violation::Unaccounted(key) => key,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}

/// Figures for people, and to see that a run did something at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) acknowledged: usize,
    pub(crate) delivered: usize,
    pub(crate) duplicates: usize,
    pub(crate) dead: usize,
    pub(crate) cancelled: usize,
    /// Never answered.
    pub(crate) unknown: usize,
    /// Only ever answered with 503.
    pub(crate) refused: usize,
    /// Runs of workflows that returned.
    pub(crate) runs: usize,
}

impl Counts {
    /// Adds those of another run.
    pub(crate) fn add(&mut self, other: &Counts) {
        self.acknowledged += other.acknowledged;
        self.delivered += other.delivered;
        self.duplicates += other.duplicates;
        self.dead += other.dead;
        self.cancelled += other.cancelled;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.runs += other.runs;
    }
}

/// What is known about one key.
#[derive(Default)]
struct Subject<'a> {
    publishes: Vec<&'a Publish>,
    arrivals: Vec<&'a Arrival>,
}

impl<'a> Subject<'a> {
    /// The ids it was acknowledged under; more than one is a fault.
    fn acknowledged(&self) -> HashSet<&'a str> {
        self.publishes.iter().filter_map(|publish| publish.answer.id()).collect()
    }

    fn delivered(&self) -> usize {
        self.arrivals.iter().filter(|arrival| arrival.status == 200).count()
    }

    /// The message that was published, and those that it was sent again as.
    fn lives<'b>(&self, ends: &'b Ends<'a>, dead: &HashMap<&str, usize>) -> Vec<Life<'b>> {
        let mut arrivals = self.arrivals.clone();
        arrivals.sort_by_key(|arrival| arrival.began_us);
        let mut ids = Vec::new();
        let known = self.publishes.iter().filter_map(|publish| publish.answer.id());
        for id in known.chain(arrivals.iter().map(|arrival| arrival.id.as_str())) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let life = |id: &str| Life {
            ends: ends.get(id).map_or(&[][..], Vec::as_slice),
            letters: dead.get(id).copied().unwrap_or(0),
            delivered: arrivals.iter().filter(|arrival| arrival.id == id && arrival.status == 200).count(),
        };
        ids.into_iter().map(life).collect()
    }
}

/// Ends in the log, by id.
type Ends<'a> = HashMap<&'a str, Vec<&'static str>>;

/// All broken promises of a run that has come to rest.
pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut violations = check_messages(history);
    violations.extend(check_groups(history));
    violations.extend(queues::check(history));
    violations.extend(flows::check(history));
    violations.extend(callbacks::check(history));
    violations.extend(schedules::check(history));
    violations.extend(runs::check(history));
    violations
}

/// What holds for every message.
fn check_messages(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let ends = ends_by_id(history);
    let mut dead: HashMap<&str, usize> = HashMap::new();
    for id in &history.dead_letters {
        *dead.entry(id).or_default() += 1;
    }
    for (key, subject) in subjects(history) {
        let Some(first) = subject.publishes.first() else {
            violations.push(Violation::Phantom(key.to_owned()));
            continue;
        };
        let mut complain = |violation: fn(String) -> Violation| violations.push(violation(key.to_owned()));
        if subject.publishes.iter().any(|publish| matches!(publish.answer, Answer::Unexpected(_))) {
            complain(Violation::Unexpected);
        }
        if subject.arrivals.iter().any(|arrival| !arrival.intact) {
            complain(Violation::Corrupt);
        }
        let due = first.sent_at + first.kind.delay_ms();
        if subject.arrivals.iter().any(|arrival| arrival.at() + EARLY_MS < due) {
            complain(Violation::Early);
        }
        if matches!(first.kind, Kind::Buried | Kind::Revived) {
            let lives = subject.lives(&ends, &dead);
            if let Some(violation) = letters::wrong(first.kind, history.letters_asked.get(key).copied(), &lives) {
                complain(violation);
            }
            continue;
        }
        let acknowledged = subject.acknowledged();
        let arrived: HashSet<&str> = subject.arrivals.iter().map(|arrival| arrival.id.as_str()).collect();
        if acknowledged.union(&arrived).count() > 1 {
            complain(Violation::ManyIds);
            continue;
        }
        let Some(id) = acknowledged.iter().next().or(arrived.iter().next()).copied() else { continue };
        let cancelled = history.cancels.get(id).copied();
        if cancelled.is_some_and(|at| at + EARLY_MS < due) && !subject.arrivals.is_empty() {
            complain(Violation::DeliveredAfterCancel);
        }
        let letters = dead.get(id).copied().unwrap_or(0);
        let is_known = !acknowledged.is_empty();
        let may_be_cancelled = cancelled.is_some() || history.cancel_sent.contains(id);
        if is_known && subject.delivered() == 0 && letters == 0 && !may_be_cancelled {
            complain(Violation::Lost);
        }
        let attempts_due = match first.kind {
            Kind::Dead { retries } => retries as usize + 1,
            _ => usize::MAX,
        };
        if letters > 1 || (letters == 1 && attempts_due == usize::MAX) {
            complain(Violation::WronglyDead);
        } else if letters == 1 && subject.arrivals.len() < attempts_due {
            complain(Violation::GaveUpEarly);
        }
        let ends = ends.get(id).map_or(&[][..], Vec::as_slice);
        if !is_right_end(ends, is_known, letters, subject.delivered(), may_be_cancelled) {
            complain(Violation::WrongEnd);
        }
    }
    violations
}

/// A publish to the group makes all its messages or none, answered or not.
fn check_groups(history: &History) -> Vec<Violation> {
    let arrived: HashSet<&str> = history.arrivals.iter().map(|arrival| arrival.key.as_str()).collect();
    let mut groups: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for publish in history.publishes.iter().filter(|publish| publish.kind == Kind::Member) {
        let key = publish.key.split('@').next().unwrap_or_default();
        let (members, came) = groups.entry(key).or_default();
        *members += 1;
        *came += usize::from(arrived.contains(publish.key.as_str()));
    }
    let torn = groups.into_iter().filter(|(_, (members, came))| *came > 0 && came < members);
    torn.map(|(key, _)| Violation::Torn(key.to_owned())).collect()
}

/// A message ends once, and as the witness and the DLQ say.
fn is_right_end(ends: &[&str], is_known: bool, letters: usize, delivered: usize, may_be_cancelled: bool) -> bool {
    match ends {
        [] => !is_known && letters == 0 && delivered == 0,
        ["DELIVERED"] => delivered > 0 && letters == 0,
        ["FAILED"] => letters == 1,
        ["CANCELED"] => may_be_cancelled && letters == 0,
        _ => false,
    }
}

fn ends_by_id(history: &History) -> Ends<'_> {
    let mut ends = Ends::new();
    for (id, state) in &history.ends {
        ends.entry(id).or_default().push(state);
    }
    ends
}

fn subjects(history: &History) -> HashMap<&str, Subject<'_>> {
    let mut subjects: HashMap<&str, Subject<'_>> = HashMap::new();
    for publish in &history.publishes {
        subjects.entry(&publish.key).or_default().publishes.push(publish);
    }
    for arrival in &history.arrivals {
        subjects.entry(&arrival.key).or_default().arrivals.push(arrival);
    }
    subjects
}

pub(crate) fn count(history: &History) -> Counts {
    let (dead, cancelled, runs) = (history.dead_letters.len(), history.cancels.len(), runs::count(history));
    let mut counts = Counts { dead, cancelled, runs, ..Counts::default() };
    for subject in subjects(history).values() {
        let acknowledged = !subject.acknowledged().is_empty();
        counts.acknowledged += usize::from(acknowledged);
        let unanswered = subject.publishes.iter().any(|publish| publish.answer == Answer::Unknown);
        counts.unknown += usize::from(!acknowledged && unanswered);
        counts.refused += usize::from(!acknowledged && !unanswered);
        counts.delivered += usize::from(subject.delivered() > 0);
        counts.duplicates += subject.delivered().saturating_sub(1);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Terms;

    fn publish(key: &str, kind: Kind) -> Publish {
        let answer = Answer::Acknowledged { id: format!("msg_{key}") };
        let terms = Terms::default();
        Publish { key: key.to_owned(), kind, terms, sent_at: 1_000, answered_at: 1_001, answer }
    }

    fn arrival(key: &str, at: Millis, status: u16) -> Arrival {
        let (began_us, ended_us) = (at * 1_000, at * 1_000 + 500);
        Arrival { key: key.to_owned(), id: format!("msg_{key}"), began_us, ended_us, status, intact: true }
    }

    /// One message of each kind, and all went well. `unknown` was never answered and never stored.
    fn sound() -> History {
        let mut unknown = publish("unknown", Kind::Plain { delay_ms: 0 });
        unknown.answer = Answer::Unknown;
        History {
            publishes: vec![
                publish("plain", Kind::Plain { delay_ms: 0 }),
                publish("late", Kind::Plain { delay_ms: 2_000 }),
                publish("flaky", Kind::Flaky),
                publish("dead", Kind::Dead { retries: 1 }),
                publish("cancelled", Kind::Cancelled { delay_ms: 2_000 }),
                publish("dedup", Kind::Dedup),
                publish("dedup", Kind::Dedup),
                publish("group@0", Kind::Member),
                publish("group@1", Kind::Member),
                unknown,
            ],
            cancels: HashMap::from([("msg_cancelled".to_owned(), 1_010)]),
            cancel_sent: HashSet::from(["msg_cancelled".to_owned()]),
            arrivals: vec![
                arrival("plain", 1_005, 200),
                arrival("plain", 1_500, 200),
                arrival("late", 3_001, 200),
                arrival("flaky", 1_005, 500),
                arrival("flaky", 1_060, 200),
                arrival("dead", 1_005, 500),
                arrival("dead", 1_060, 500),
                arrival("dedup", 1_005, 200),
                arrival("group@0", 1_005, 200),
                arrival("group@1", 1_005, 200),
            ],
            dead_letters: vec!["msg_dead".to_owned()],
            ends: [
                ("plain", "DELIVERED"),
                ("late", "DELIVERED"),
                ("flaky", "DELIVERED"),
                ("dead", "FAILED"),
                ("cancelled", "CANCELED"),
                ("dedup", "DELIVERED"),
                ("group@0", "DELIVERED"),
                ("group@1", "DELIVERED"),
            ]
            .map(|(key, state)| (format!("msg_{key}"), state))
            .to_vec(),
            ..History::default()
        }
    }

    fn planted(plant: impl FnOnce(&mut History)) -> Vec<Violation> {
        let mut history = sound();
        plant(&mut history);
        check(&history)
    }

    fn of(history: &mut History, key: &str) -> usize {
        history.publishes.iter().position(|publish| publish.key == key).expect("a key of the sound history")
    }

    #[test]
    fn a_sound_history_has_no_violation() {
        assert_eq!(check(&sound()), []);
        let counts = Counts {
            acknowledged: 8,
            delivered: 6,
            duplicates: 1,
            dead: 1,
            cancelled: 1,
            unknown: 1,
            ..Counts::default()
        };
        assert_eq!(count(&sound()), counts);
    }

    #[test]
    fn a_lost_message_is_seen_whatever_the_log_says() {
        let lost = |key: &'static str| {
            planted(|history| {
                history.arrivals.retain(|arrival| arrival.key != key);
                history.dead_letters.retain(|id| id != &format!("msg_{key}"));
            })
        };
        for key in ["plain", "late", "flaky", "dead", "dedup"] {
            assert!(lost(key).contains(&Violation::Lost(key.to_owned())), "{key}");
        }
        let also_in_the_log = planted(|history| {
            history.arrivals.retain(|arrival| arrival.key != "plain");
            history.ends.retain(|(id, _)| id != "msg_plain");
        });
        assert!(also_in_the_log.contains(&Violation::Lost("plain".to_owned())));
    }

    #[test]
    fn every_other_kind_of_fault_is_seen() {
        let key = |key: &str| key.to_owned();
        type Plant = fn(&mut History);
        let cases: [(Plant, Violation); 13] = [
            (|h| h.arrivals[1].id = "msg_other".to_owned(), Violation::ManyIds(key("plain"))),
            (|h| h.arrivals[7].id = "msg_second".to_owned(), Violation::ManyIds(key("dedup"))),
            (|h| h.arrivals[0].intact = false, Violation::Corrupt(key("plain"))),
            (|h| h.arrivals[2].began_us = 2_900_000, Violation::Early(key("late"))),
            (|h| h.arrivals.push(arrival("cancelled", 3_001, 200)), Violation::DeliveredAfterCancel(key("cancelled"))),
            (|h| h.dead_letters.push("msg_late".to_owned()), Violation::WronglyDead(key("late"))),
            (|h| h.dead_letters.push("msg_dead".to_owned()), Violation::WronglyDead(key("dead"))),
            (|h| drop(h.arrivals.remove(6)), Violation::GaveUpEarly(key("dead"))),
            (|h| h.ends.push(("msg_plain".to_owned(), "FAILED")), Violation::WrongEnd(key("plain"))),
            (|h| h.ends.retain(|(id, _)| id != "msg_late"), Violation::WrongEnd(key("late"))),
            (|h| h.arrivals.retain(|arrival| arrival.key != "group@1"), Violation::Torn(key("group"))),
            (|h| h.arrivals.push(arrival("nobody", 1_000, 200)), Violation::Phantom(key("nobody"))),
            (
                |h| {
                    let plain = of(h, "plain");
                    h.publishes[plain].answer = Answer::Unexpected("500".to_owned());
                },
                Violation::Unexpected(key("plain")),
            ),
        ];
        for (plant, expected) in cases {
            let found = planted(plant);
            assert!(found.contains(&expected), "{expected} is missing among {found:?}");
        }
    }

    #[test]
    fn an_unanswered_publish_may_be_there_or_not_but_only_whole() {
        let delivered = planted(|history| {
            history.arrivals.push(arrival("unknown", 1_005, 200));
            history.ends.push(("msg_unknown".to_owned(), "DELIVERED"));
        });
        assert_eq!(delivered, []);
        let without_an_end = planted(|history| history.arrivals.push(arrival("unknown", 1_005, 200)));
        assert_eq!(without_an_end, [Violation::WrongEnd("unknown".to_owned())]);
    }
}
