//! What decisions cause.

use super::entry::{Delivery, Entry};
use super::note::{Note, NoteKey};
use super::request::Limits;
use super::run::{Invoker, Run};
use crate::message::Message;
use bytes::Bytes;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// What a decision causes, all of it in one transaction.
pub struct Outbox<'a> {
    /// When it is made.
    pub now: Timestamp,
    /// Makes ids for new messages.
    pub next_id: &'a mut dyn FnMut() -> MessageId,
    /// What a run may have, also of what the server adds to it by itself.
    pub limits: Limits,
    /// What the store must write.
    pub changes: Vec<Change>,
    /// New messages.
    pub messages: Vec<Arc<Message>>,
    /// Messages that must not be sent any more, should they be waiting.
    pub withdrawn: Vec<MessageId>,
    /// Runs that must hear of the end of this one.
    pub notices: Vec<Notice>,
    /// Runs whose end this one now waits for.
    pub rebound: Vec<Rebound>,
}

impl<'a> Outbox<'a> {
    /// Nothing yet, and no limits.
    pub fn new(now: Timestamp, next_id: &'a mut dyn FnMut() -> MessageId) -> Outbox<'a> {
        let (changes, messages, withdrawn, notices, rebound) = Default::default();
        Outbox { now, next_id, limits: Limits::NONE, changes, messages, withdrawn, notices, rebound }
    }
}

/// What a decision has caused: an outbox without what was needed to fill it. The fields are as there.
pub struct Consequences {
    /// What the store must write.
    pub changes: Vec<Change>,
    /// New messages.
    pub messages: Vec<Arc<Message>>,
    /// Messages that must not be sent any more.
    pub withdrawn: Vec<MessageId>,
    /// Runs that must hear of the end of this one.
    pub notices: Vec<Notice>,
    /// Runs whose end this one now waits for.
    pub rebound: Vec<Rebound>,
}

impl Consequences {
    /// Of a decision that has filled this.
    pub fn of(out: Outbox<'_>) -> Consequences {
        let Outbox { changes, messages, withdrawn, notices, rebound, .. } = out;
        Consequences { changes, messages, withdrawn, notices, rebound }
    }
}

/// Something that the store must write about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The run is new, or stands otherwise.
    Run(Arc<Run>),
    /// An entry is new, or is replaced.
    Entry {
        /// Of which run.
        run: Seq,
        /// The entry.
        entry: Entry,
        /// Its exact bytes.
        body: Bytes,
    },
    /// The delivery of an entry stands otherwise.
    Delivery {
        /// Of which run.
        run: Seq,
        /// Of which entry.
        index: u32,
        /// How it stands.
        delivery: Delivery,
    },
    /// A note is new, or is replaced.
    Note {
        /// Of which run.
        run: Seq,
        /// The note.
        note: Note,
    },
    /// A note is needed no more.
    NoNote {
        /// Of which run.
        run: Seq,
        /// Which one.
        key: NoteKey,
    },
    /// Whoever names this event finds the run.
    Waiter(Waiter),
    /// A wait is over.
    NoWaiter(Waiter),
}

/// A run that waits for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Whose.
    pub tenant: TenantId,
    /// The event.
    pub event: String,
    /// Which run.
    pub run: Seq,
    /// The wait: the message that stands for its deadline. Waits are in the order of these.
    pub timer: MessageId,
}

/// A run must hear of the end of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whose runs.
    pub tenant: TenantId,
    /// Who, and which of its steps waits.
    pub to: Invoker,
    /// The result of that step: one text for all who hear of this end.
    pub out: Arc<str>,
}

/// A run that has begun again waits for the end of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebound {
    /// The run it waits for.
    pub run_id: String,
    /// Which instance of it.
    pub created_at: Timestamp,
    /// The run that had failed and waited before: its name and instance.
    pub from: (String, Timestamp),
    /// Who waits now.
    pub invoker: Invoker,
}
