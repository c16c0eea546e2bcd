//! What happened in a run, as seen from outside: what was asked, what was answered, what arrived.

use crate::endpoint::Script;
use std::collections::{HashMap, HashSet};

/// Milliseconds since the run began.
pub(crate) type Millis = u64;
/// Microseconds since the run began.
pub(crate) type Micros = u64;

/// What a message is made to do. Its key (a part of its URL) tells the witness how to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Due at once, or later; the witness answers 200.
    Plain { delay_ms: Millis },
    /// The witness answers 500 to the first attempt.
    Flaky,
    /// The witness always answers 500: it has to end in the DLQ.
    Dead { retries: u32 },
    /// Cancelled as soon as it is acknowledged.
    Cancelled { delay_ms: Millis },
    /// Published more than once under one deduplication id.
    Dedup,
    /// One of the messages of a publish to the URL group.
    Member,
    /// The witness always answers 500, and the first time is the last: a dead letter, to be deleted with many others.
    Buried,
    /// The same, but the witness answers 500 only once: to be sent again with many others.
    Revived,
}

impl Kind {
    pub(crate) fn delay_ms(self) -> Millis {
        match self {
            Kind::Plain { delay_ms } | Kind::Cancelled { delay_ms } => delay_ms,
            Kind::Flaky | Kind::Dead { .. } | Kind::Dedup | Kind::Member | Kind::Buried | Kind::Revived => 0,
        }
    }
}

/// What else was asked for a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The queue it goes through: an index into [`QUEUE_SLOTS`].
    pub(crate) queue: Option<usize>,
    /// The flow-control key it shares: an index into [`FLOWS`].
    pub(crate) flow: Option<usize>,
    /// Callback and failure callback go to the witness.
    pub(crate) callback: bool,
}

/// The queues of a run: how many messages of each may be under way.
pub(crate) const QUEUE_SLOTS: [usize; 10] = [1, 1, 1, 1, 1, 1, 1, 1, 3, 3];

/// The limits of a flow-control key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowLimits {
    pub(crate) parallelism: Option<usize>,
    /// At most so many starts within so many milliseconds.
    pub(crate) rate: Option<(usize, Millis)>,
}

/// The flow-control keys of a run.
pub(crate) const FLOWS: [FlowLimits; 3] = [
    FlowLimits { parallelism: None, rate: Some((60, 1_000)) },
    FlowLimits { parallelism: Some(2), rate: None },
    FlowLimits { parallelism: Some(10), rate: Some((40, 60_000)) },
];
/// The key with a short window, which is full again and again.
pub(crate) const SHORT_WINDOW: usize = 0;
/// The key with a long window. It lets few through, so what it still holds at the end is cancelled.
pub(crate) const LONG_WINDOW: usize = 2;

/// How a publish was answered. Unknown is a class of its own: such a message may or may not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Acknowledged {
        id: String,
    },
    /// 503: the server says that it did not take it.
    Overloaded,
    /// Any other answer; none is expected.
    Unexpected(String),
    /// The connection broke.
    Unknown,
}

impl Answer {
    /// The id of a message that was acknowledged.
    pub(crate) fn id(&self) -> Option<&str> {
        match self {
            Answer::Acknowledged { id } => Some(id),
            Answer::Overloaded | Answer::Unexpected(_) | Answer::Unknown => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Publish {
    pub(crate) key: String,
    pub(crate) kind: Kind,
    pub(crate) terms: Terms,
    pub(crate) sent_at: Millis,
    pub(crate) answered_at: Millis,
    pub(crate) answer: Answer,
}

/// One request at the witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) began_us: Micros,
    /// When it was answered, or its connection broke.
    pub(crate) ended_us: Micros,
    /// What the witness answered.
    pub(crate) status: u16,
    /// Whether the body was the published one.
    pub(crate) intact: bool,
}

impl Arrival {
    pub(crate) fn at(&self) -> Millis {
        self.began_us / 1_000
    }
}

/// One callback at the witness; its key is that of the message it is about.
#[derive(Clone, Debug)]
pub(crate) struct Callback {
    pub(crate) arrival: Arrival,
    /// The message it is about.
    pub(crate) source: String,
    /// Which attempt it tells of.
    pub(crate) retried: u64,
    /// What the receiver had answered.
    pub(crate) status: u64,
    /// It tells that the message has failed for good.
    pub(crate) is_failure: bool,
}

/// A run of a workflow that was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) key: String,
    pub(crate) script: Script,
    pub(crate) sent_at: Millis,
    pub(crate) answered_at: Millis,
    pub(crate) answer: Answer,
}

/// The endpoint of a run has executed a step.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    pub(crate) key: String,
    pub(crate) step: u32,
    pub(crate) began_us: Micros,
    /// When the server had accepted its result.
    pub(crate) accepted_us: Option<Micros>,
}

/// A time in which a queue was paused: from the acknowledgement until the resume was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    pub(crate) queue: usize,
    pub(crate) from: Millis,
    pub(crate) until: Millis,
}

/// A time in which this process was not let run, and so others perhaps neither.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    pub(crate) from: Millis,
    pub(crate) until: Millis,
}

/// The time from a power cut to the end of the server that had no power. What it said in this time it could not have
/// said on a machine without power, and a sync that the cut interrupts may claim to have succeeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Void {
    /// When the cut began, and when it was done.
    pub(crate) cut: (Millis, Millis),
    pub(crate) gone_us: Micros,
}

impl Void {
    /// An answer may be read a little after the server is gone.
    const READ_LATE_MS: Millis = 20;

    fn contains(&self, sent_at: Millis, answered_at: Millis) -> bool {
        sent_at <= self.gone_us / 1_000 + Void::READ_LATE_MS && answered_at >= self.cut.0
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) publishes: Vec<Publish>,
    /// When the cancel of a message was acknowledged, by message id. Unanswered cancels are not here.
    pub(crate) cancels: HashMap<String, Millis>,
    /// Ids whose cancel was sent, answered or not.
    pub(crate) cancel_sent: HashSet<String>,
    /// Dead letters (keys of their messages) that a bulk action was sent for, and whether it was acknowledged.
    pub(crate) letters_asked: HashMap<String, bool>,
    pub(crate) pauses: Vec<Pause>,
    pub(crate) stalls: Vec<Stall>,
    /// Times without power. Outcomes of the last moment before may be forgotten, so a message may come again after it,
    /// and tell of itself again.
    pub(crate) voids: Vec<Void>,
    /// Requests that brought a published message.
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) callbacks: Vec<Callback>,
    /// Requests that brought a message of a schedule; the key is the schedule's id.
    pub(crate) fired: Vec<Arrival>,
    /// When the messages of schedules were made, by id: Unix milliseconds of the log line CREATED.
    pub(crate) fired_at: HashMap<String, u64>,
    /// Message ids in the DLQ at the end, one element per entry.
    pub(crate) dead_letters: Vec<String>,
    /// Ids of the log lines DELIVERED, FAILED and CANCELED at the end.
    pub(crate) ends: Vec<(String, &'static str)>,
    pub(crate) runs: Vec<Start>,
    pub(crate) executions: Vec<Execution>,
    /// Runs (by key) that have returned, and when the server had accepted that.
    pub(crate) finished: HashMap<String, Option<Micros>>,
    /// Runs of whose failure the endpoint was told.
    pub(crate) told_of_failure: HashSet<String>,
    /// Runs of which something came that was never published.
    pub(crate) corrupt_runs: HashSet<String>,
    /// Runs whose cancel was sent, answered or not.
    pub(crate) run_cancels: HashSet<String>,
    /// How each run (by id) stands at the end; one element per instance.
    pub(crate) run_states: HashMap<String, Vec<String>>,
}

impl History {
    /// Takes back what was answered without power: nobody knows about it. Returns the keys of messages that were
    /// acknowledged although there was surely no disk any more when they were sent.
    pub(crate) fn take_back_answers(&mut self) -> Vec<String> {
        let mut baseless = Vec::new();
        for void in &self.voids {
            let answered = self.publishes.iter_mut().filter(|publish| publish.answer != Answer::Unknown);
            for publish in answered.filter(|publish| void.contains(publish.sent_at, publish.answered_at)) {
                // A duplicate needs no disk.
                if publish.sent_at > void.cut.1 && publish.answer.id().is_some() && publish.kind != Kind::Dedup {
                    baseless.push(publish.key.clone());
                }
                publish.answer = Answer::Unknown;
            }
            for start in self.runs.iter_mut().filter(|start| void.contains(start.sent_at, start.answered_at)) {
                if start.sent_at > void.cut.1 && start.answer.id().is_some() {
                    baseless.push(start.key.clone());
                }
                start.answer = Answer::Unknown;
            }
            self.cancels.retain(|_, at| !void.contains(*at, *at));
        }
        baseless
    }

    /// Takes back what arrived without power and is not known otherwise: such a message was never on disk.
    pub(crate) fn take_back_arrivals(&mut self) {
        let is_in_power = |arrival: &&Arrival| self.had_power(arrival.at(), arrival.at());
        let mut known: HashSet<String> = self.ends.iter().map(|(id, _)| id.clone()).collect();
        known.extend(self.publishes.iter().filter_map(|publish| publish.answer.id().map(str::to_owned)));
        known.extend(self.fired_at.keys().cloned());
        known.extend(self.arrivals.iter().chain(&self.fired).filter(is_in_power).map(|arrival| arrival.id.clone()));
        self.arrivals.retain(|arrival| known.contains(&arrival.id));
        self.fired.retain(|arrival| known.contains(&arrival.id));
    }

    /// Whether an answer meant something.
    pub(crate) fn had_power(&self, sent_at: Millis, answered_at: Millis) -> bool {
        !self.voids.iter().any(|void| void.contains(sent_at, answered_at))
    }

    /// How long the machine stood still near this time: that much later than sent an arrival in it may be, and no more.
    pub(crate) fn still_ms(&self, from: Millis, until: Millis) -> Millis {
        let near = self.stalls.iter().filter(|stall| stall.from <= until && stall.until >= from);
        near.map(|stall| stall.until - stall.from).sum()
    }

    /// How many times the power had been cut by then.
    pub(crate) fn cuts_before(&self, at_us: Micros) -> usize {
        self.voids.iter().filter(|void| void.gone_us <= at_us).count()
    }
}

#[test]
fn what_was_said_without_power_counts_for_nothing() {
    let publish = |key: &str, sent_at, answered_at| {
        let (kind, terms, answer) = (Kind::Flaky, Terms::default(), Answer::Acknowledged { id: key.to_owned() });
        Publish { key: key.to_owned(), kind, terms, sent_at, answered_at, answer }
    };
    let arrival = |key: &str, at: Millis| {
        let (key, id, began_us) = (key.to_owned(), key.to_owned(), at * 1_000);
        Arrival { key, id, began_us, ended_us: began_us, status: 200, intact: true }
    };
    let mut history = History {
        publishes: vec![
            publish("before", 1, 9),
            publish("during", 9, 12),
            publish("after", 13, 14),
            publish("again", 100, 110),
        ],
        arrivals: vec![arrival("before", 11), arrival("during", 11), arrival("late", 11), arrival("late", 200)],
        cancels: HashMap::from([("early".to_owned(), 9), ("late".to_owned(), 10)]),
        voids: vec![Void { cut: (10, 12), gone_us: 20_000 }],
        ..History::default()
    };
    assert_eq!(history.take_back_answers(), ["after"]);
    let known: Vec<bool> = history.publishes.iter().map(|publish| publish.answer.id().is_some()).collect();
    assert_eq!(known, [true, false, false, true]);
    assert!(history.cancels.contains_key("early") && !history.cancels.contains_key("late"));
    assert!(history.had_power(9, 9) && !history.had_power(9, 10) && history.had_power(100, 110));
    assert_eq!((history.cuts_before(19_999), history.cuts_before(20_000)), (0, 1));
    history.take_back_arrivals();
    let keys: Vec<&str> = history.arrivals.iter().map(|arrival| arrival.key.as_str()).collect();
    assert_eq!(keys, ["before", "late", "late"]);
}
