//! The consequences of decisions.

use super::entry::{Delivery, Entry};
use super::note::{Note, NoteKey};
use super::request::Limits;
use super::run::{Invoker, Run};
use crate::message::Message;
use bytes::Bytes;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// The consequences of a decision, all of them in one transaction.
pub struct Outbox<'a> {
    /// The time of the decision.
    pub now: Timestamp,
    /// Creates ids for new messages.
    pub next_id: &'a mut dyn FnMut() -> MessageId,
    /// The limits of a run, which also apply to entries that the server adds.
    pub limits: Limits,
    /// The changes that the store must write.
    pub changes: Vec<Change>,
    /// New messages.
    pub messages: Vec<Arc<Message>>,
    /// Messages that must not be sent any more, if they are waiting.
    pub withdrawn: Vec<MessageId>,
    /// Runs to notify of the end of this one.
    pub notices: Vec<Notice>,
    /// Runs whose end this one now waits for.
    pub rebound: Vec<Rebound>,
}

impl<'a> Outbox<'a> {
    /// An empty outbox without limits.
    pub fn new(now: Timestamp, next_id: &'a mut dyn FnMut() -> MessageId) -> Outbox<'a> {
        let (changes, messages, withdrawn, notices, rebound) = Default::default();
        Outbox { now, next_id, limits: Limits::NONE, changes, messages, withdrawn, notices, rebound }
    }
}

/// The consequences of a decision: an outbox without the inputs. The fields are the same.
pub struct Consequences {
    /// The changes that the store must write.
    pub changes: Vec<Change>,
    /// New messages.
    pub messages: Vec<Arc<Message>>,
    /// Messages that must not be sent any more.
    pub withdrawn: Vec<MessageId>,
    /// Runs to notify of the end of this one.
    pub notices: Vec<Notice>,
    /// Runs whose end this one now waits for.
    pub rebound: Vec<Rebound>,
}

impl Consequences {
    /// The consequences in an outbox.
    pub fn of(out: Outbox<'_>) -> Consequences {
        let Outbox { changes, messages, withdrawn, notices, rebound, .. } = out;
        Consequences { changes, messages, withdrawn, notices, rebound }
    }
}

/// A change of a run that the store must write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new or changed run.
    Run(Arc<Run>),
    /// A new or replaced entry.
    Entry {
        /// The run.
        run: Seq,
        /// The entry.
        entry: Entry,
        /// Its exact bytes.
        body: Bytes,
    },
    /// A new state of an entry's delivery.
    Delivery {
        /// The run.
        run: Seq,
        /// The index of the entry.
        index: u32,
        /// The state.
        delivery: Delivery,
    },
    /// A new or replaced note.
    Note {
        /// The run.
        run: Seq,
        /// The note.
        note: Note,
    },
    /// The removal of a note.
    NoNote {
        /// The run.
        run: Seq,
        /// Its key.
        key: NoteKey,
    },
    /// A wait: an event with this name finds the run.
    Waiter(Waiter),
    /// The end of a wait.
    NoWaiter(Waiter),
}

/// A run that waits for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The tenant.
    pub tenant: TenantId,
    /// The event.
    pub event: String,
    /// The run.
    pub run: Seq,
    /// The wait: the message for its deadline. Waits are in the order of these.
    pub timer: MessageId,
}

/// A notification of a run about the end of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The tenant of both runs.
    pub tenant: TenantId,
    /// The run, and its step that waits.
    pub to: Invoker,
    /// The result of that step. All notifications about this end share the text.
    pub out: Arc<str>,
}

/// A restarted run that waits for the end of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebound {
    /// The run it waits for.
    pub run_id: String,
    /// The instance.
    pub created_at: Timestamp,
    /// The failed run that waited before: its name and instance.
    pub from: (String, Timestamp),
    /// The run that waits now.
    pub invoker: Invoker,
}
