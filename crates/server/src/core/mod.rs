//! The core: one thread that owns the shard, decides everything by the engine and commits it.
//!
//! A command comes in, the engine turns it into ops and effects, the ops are committed in one batch
//! with everything else that arrived meanwhile, and only then are callers answered and attempts started.
//! While one batch is being synced the next one gathers: that is the group commit.
//!
//! Start at [`Core::run`] in `run.rs`. What the commands mean is decided in `posthaste_engine`.

mod attempts;
mod clock_watch;
mod run;

pub use attempts::Attempts;
pub use run::{Core, CoreFailure};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use posthaste_engine::message::{DedupKey, Message, MessageSpec, Origin};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::shard::Accepted;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Requests that may wait for the core at once; one more is refused with 503.
pub const WAITING_MAX: usize = 8_192;

/// A message that is about to get its id.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Who publishes it.
    pub tenant: TenantId,
    /// Where to, and under which conditions.
    pub spec: MessageSpec,
    /// What to send.
    pub body: Bytes,
    /// When its first attempt is due.
    pub first_due: FirstDue,
    /// Hash of tenant and destination origin.
    pub origin: Origin,
    /// What makes it a duplicate.
    pub dedup: Option<DedupKey>,
}

/// When the first attempt is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstDue {
    /// At once.
    Now,
    /// So many milliseconds after it was accepted.
    AfterMs(u64),
    /// Not before this time.
    At(Timestamp),
}

/// What the core can be asked to do. Replies come when the outcome is on disk.
pub(crate) enum Command {
    Publish {
        messages: Vec<NewMessage>,
        reply: Reply<Vec<Accepted>>,
    },
    Ended {
        message: Arc<Message>,
        outcome: Outcome,
    },
    Cancel {
        tenant: TenantId,
        ids: Vec<MessageId>,
        reply: Reply<u32>,
    },
    DeleteDeadLetters {
        tenant: TenantId,
        ids: Vec<DlqId>,
        reply: Reply<u32>,
    },
    Replay {
        tenant: TenantId,
        replays: Vec<Replay>,
        reply: Reply<Vec<Option<Accepted>>>,
    },
    /// The clock may have moved: look at it.
    Tick,
    /// Start nothing from now on.
    Drain {
        reply: Reply<()>,
    },
    /// Commit what has arrived and end.
    Stop,
}

/// A dead letter to publish again.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The dead letter; gone once the new message exists.
    pub dlq_id: DlqId,
    /// The new message.
    pub message: NewMessage,
}

/// A way to answer, and the place in the waiting line that is freed with it.
pub(crate) struct Reply<T> {
    sender: oneshot::Sender<T>,
    _place: OwnedSemaphorePermit,
    _room: Option<Room>,
}

/// Room for bodies in RAM, given back when this is dropped.
pub type Room = Vec<OwnedSemaphorePermit>;

impl<T> Reply<T> {
    /// Answers; a caller who has gone away is nobody's loss.
    fn send(self, value: T) {
        drop(self.sender.send(value));
    }
}

/// How everybody else talks to the core. Cheap to clone.
#[derive(Clone)]
pub struct CoreHandle {
    commands: Sender<Command>,
    places: Arc<Semaphore>,
}

/// Why the core did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// Nothing was stored; trying again later helps.
    #[error("too many requests are waiting")]
    Overloaded,
    /// The core has ended: the outcome is unknown.
    #[error("the server is stopping")]
    Stopped,
}

impl CoreHandle {
    /// A handle, and the other end for [`Core`].
    pub(crate) fn new() -> (CoreHandle, Receiver<Command>) {
        let (commands, receiver) = unbounded();
        let places = Arc::new(Semaphore::new(WAITING_MAX));
        (CoreHandle { commands, places }, receiver)
    }

    /// Stores messages; the answer has the order of the messages. `room` is what their bodies take; it is
    /// given back when they are stored, even if the caller has gone by then.
    pub async fn publish(&self, messages: Vec<NewMessage>, room: Room) -> Result<Vec<Accepted>, CoreError> {
        self.ask(Some(room), |reply| Command::Publish { messages, reply }).await
    }

    /// Cancels these messages; says how many were live and not cancelled before.
    pub async fn cancel(&self, tenant: TenantId, ids: Vec<MessageId>) -> Result<u32, CoreError> {
        self.ask(None, |reply| Command::Cancel { tenant, ids, reply }).await
    }

    /// Deletes these dead letters; says how many existed.
    pub async fn delete_dead_letters(&self, tenant: TenantId, ids: Vec<DlqId>) -> Result<u32, CoreError> {
        self.ask(None, |reply| Command::DeleteDeadLetters { tenant, ids, reply }).await
    }

    /// Publishes dead letters again; `None` for one that no longer exists.
    pub async fn replay(&self, tenant: TenantId, replays: Vec<Replay>) -> Result<Vec<Option<Accepted>>, CoreError> {
        self.ask(None, |reply| Command::Replay { tenant, replays, reply }).await
    }

    /// Makes the core look at the clock.
    pub fn tick(&self) {
        self.tell(Command::Tick);
    }

    /// Nothing is started once this has returned; what is under way goes on.
    pub async fn drain(&self) -> Result<(), CoreError> {
        self.ask(None, |reply| Command::Drain { reply }).await
    }

    /// Ends the core once everything that was said before is committed.
    pub fn stop(&self) {
        self.tell(Command::Stop);
    }

    /// An attempt has ended. Bounded by the number of attempts, so it never has to wait.
    pub(crate) fn ended(&self, message: Arc<Message>, outcome: Outcome) {
        self.tell(Command::Ended { message, outcome });
    }

    /// A core that has ended needs to hear nothing.
    fn tell(&self, command: Command) {
        drop(self.commands.send(command));
    }

    async fn ask<T>(&self, room: Option<Room>, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, CoreError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| CoreError::Overloaded)?;
        let (sender, receiver) = oneshot::channel();
        self.commands.send(command(Reply { sender, _place: place, _room: room })).map_err(|_| CoreError::Stopped)?;
        receiver.await.map_err(|_| CoreError::Stopped)
    }
}
