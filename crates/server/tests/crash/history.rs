//! What happened in a run, as seen from outside: what was asked, what was answered, what arrived.

use std::collections::HashMap;

/// Milliseconds since the run began.
pub(crate) type Millis = u64;

/// What a message is made to do. Its key (the last part of its URL) tells the witness how to answer.
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
}

impl Kind {
    pub(crate) fn delay_ms(self) -> Millis {
        match self {
            Kind::Plain { delay_ms } | Kind::Cancelled { delay_ms } => delay_ms,
            Kind::Flaky | Kind::Dead { .. } | Kind::Dedup => 0,
        }
    }
}

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
    pub(crate) sent_at: Millis,
    pub(crate) answer: Answer,
}

/// One request at the witness.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) at: Millis,
    /// What the witness answered.
    pub(crate) status: u16,
    /// Whether the body was the published one.
    pub(crate) intact: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) publishes: Vec<Publish>,
    /// When the cancel of a message was acknowledged, by message id. Unanswered cancels are not here.
    pub(crate) cancels: HashMap<String, Millis>,
    /// Ids whose cancel was sent, answered or not.
    pub(crate) cancel_sent: Vec<String>,
    pub(crate) arrivals: Vec<Arrival>,
    /// Message ids in the DLQ at the end, one element per entry.
    pub(crate) dead_letters: Vec<String>,
    /// Ids of the log lines DELIVERED, FAILED and CANCELED at the end.
    pub(crate) ends: Vec<(String, &'static str)>,
}
