//! What happened in a run, as seen from outside: what was asked, what was answered, what arrived.

use std::collections::HashMap;

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
}

impl Kind {
    pub(crate) fn delay_ms(self) -> Millis {
        match self {
            Kind::Plain { delay_ms } | Kind::Cancelled { delay_ms } => delay_ms,
            Kind::Flaky | Kind::Dead { .. } | Kind::Dedup | Kind::Member => 0,
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

/// A time in which a queue was paused: from the acknowledgement until the resume was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    pub(crate) queue: usize,
    pub(crate) from: Millis,
    pub(crate) until: Millis,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) publishes: Vec<Publish>,
    /// When the cancel of a message was acknowledged, by message id. Unanswered cancels are not here.
    pub(crate) cancels: HashMap<String, Millis>,
    /// Ids whose cancel was sent, answered or not.
    pub(crate) cancel_sent: Vec<String>,
    pub(crate) pauses: Vec<Pause>,
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
}
