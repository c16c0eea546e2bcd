//! The core: one thread that owns the shard, decides everything by the engine and commits it.
//!
//! A command comes in, the engine turns it into ops and effects, the ops are committed in one batch
//! with everything else that arrived meanwhile, and only then are callers answered and attempts started.
//! While one batch is being synced the next one gathers: that is the group commit.
//!
//! Start at [`Core::run`] in `run.rs`. What the commands mean is decided in `posthaste_engine`.

mod admission;
mod attempts;
mod bulk;
mod clock_watch;
mod failed_runs;
mod hasten;
mod inbox;
mod limits;
mod run;
mod run_cache;
mod run_events;
mod runs;
mod schedules;
mod stats;
mod tail;
mod tasks;
mod workflow;

pub use admission::{SHARED_TURNS_MAX, TENANT_TURNS_MAX, WAIT_MAX, WAITING_MAX};
pub use attempts::{API_LLM, Attempts};
pub use run::{Core, CoreFailure};
pub(crate) use schedules::messages_of;
pub use stats::CoreStats;
pub(crate) use tail::Tail;
pub(crate) use workflow::DEPTH_QUOTA;
pub(crate) use workflow::fresh_run_id;
pub use workflow::{
    Again, BegunAgain, FailureCallEdit, FailureCallRefused, InvokedBy, Notified, RunKey, RunRefused, StartRun, Started,
};

use crate::data_dir::DiskPromise;
use admission::Admission;
pub(crate) use admission::Place;
use bytes::Bytes;
use inbox::{Inbox, Sender, inbox};
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::flow::{FlowEdit, FlowInfo, FlowPage};
use posthaste_engine::message::{DedupKey, Live, Message, MessageSpec, Origin};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::shard::Accepted;
use posthaste_engine::why::Waiting;
use posthaste_engine::workflow::run::FailureCall;
use posthaste_engine::workflow::{NewEntry, Overrides, WaitFor};
use posthaste_store::is_same_body;
use posthaste_wire::cron::Cron;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::rejection::quota_exceeded;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tail::Listener;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

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

/// Bytes that messages store: their bodies, of which one that neighbours share counts once, and their settings.
pub(crate) fn stored_bytes<'a>(messages: impl IntoIterator<Item = &'a NewMessage>) -> usize {
    let mut before: Option<&Bytes> = None;
    let mut bytes = 0;
    for NewMessage { body, spec, .. } in messages {
        if !before.is_some_and(|before| is_same_body(before, body)) {
            bytes += body.len();
        }
        bytes += spec_bytes(spec);
        before = Some(body);
    }
    bytes
}

/// Bytes that a message, a schedule, a run or an entry takes besides its body and what its publisher wrote, more or less.
const OVERHEAD_BYTES: usize = 512;

/// Bytes that the settings of a message, or of a schedule, store.
pub(crate) fn spec_bytes(spec: &MessageSpec) -> usize {
    let callbacks = [&spec.callback, &spec.failure_callback].into_iter().flatten();
    let callbacks: usize = callbacks.map(|callback| callback.url.len() + header_bytes(&callback.headers)).sum();
    OVERHEAD_BYTES + spec.url.len() + header_bytes(&spec.headers) + callbacks
}

/// Bytes that an entry of a run stores.
pub(crate) fn entry_bytes(entry: &NewEntry) -> usize {
    let call = entry.call.as_ref().map_or(0, |call| call.url.len() + header_bytes(&call.result_headers));
    OVERHEAD_BYTES + entry.body.len() + header_bytes(&entry.headers) + call + failure_bytes(entry.failure.as_ref())
}

/// Bytes that a wait for an event stores.
pub(crate) fn wait_bytes(wait: &WaitFor) -> usize {
    let headers = wait.headers.iter();
    let headers = headers.map(|(name, values)| name.len() + values.iter().map(String::len).sum::<usize>());
    // The name of the event is in the run and in the list of those that wait for it.
    OVERHEAD_BYTES + 2 * wait.event.len() + headers.sum::<usize>()
}

fn failure_bytes(failure: Option<&FailureCall>) -> usize {
    failure.map_or(0, |call| call.url.len() + header_bytes(&call.headers))
}

fn header_bytes(headers: &[(String, String)]) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// What the core can be asked to do. Replies come when the outcome is on disk.
pub(crate) enum Command {
    Publish {
        messages: Vec<NewMessage>,
        reply: Reply<Result<Vec<Accepted>, QuotaExceeded>>,
    },
    Ended {
        message: Arc<Message>,
        outcome: Outcome,
        /// What the answer takes of RAM, until it is stored.
        room: Permits,
    },
    Cancel {
        tenant: TenantId,
        ids: Vec<MessageId>,
        reply: Reply<u32>,
    },
    Hasten {
        tenant: TenantId,
        id: MessageId,
        reply: Reply<Result<(), HastenRefused>>,
    },
    Why {
        row: Box<Live>,
        reply: Reply<Waiting>,
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
    PutQueue {
        tenant: TenantId,
        name: String,
        settings: QueueSettings,
        reply: Reply<Result<(), QuotaExceeded>>,
    },
    PauseQueue {
        tenant: TenantId,
        name: String,
        paused: bool,
        reply: Reply<bool>,
    },
    DropQueue {
        tenant: TenantId,
        name: String,
        reply: Reply<()>,
    },
    EditFlow {
        tenant: TenantId,
        key: String,
        edit: FlowEdit,
        reply: Reply<Result<bool, QuotaExceeded>>,
    },
    Flow {
        tenant: TenantId,
        key: String,
        reply: Reply<Option<FlowInfo>>,
    },
    Flows {
        tenant: TenantId,
        page: FlowPage,
        reply: Reply<Vec<FlowInfo>>,
    },
    Parallelism {
        tenant: TenantId,
        reply: Reply<Parallelism>,
    },
    Stats {
        tenant: TenantId,
        reply: Reply<CoreStats>,
    },
    Listen {
        listener: Listener,
    },
    PutSchedule {
        schedule: Box<Schedule>,
        reply: Reply<Result<(), QuotaExceeded>>,
    },
    PauseSchedule {
        tenant: TenantId,
        id: String,
        paused: bool,
        reply: Reply<bool>,
    },
    Reschedule {
        tenant: TenantId,
        id: String,
        cron: Box<Cron>,
        reply: Reply<bool>,
    },
    DropSchedule {
        tenant: TenantId,
        id: String,
        reply: Reply<bool>,
    },
    PutBulkAction {
        action: Box<BulkAction>,
        piece: Option<BulkPiece>,
        reply: Reply<BulkDone>,
    },
    StartRuns {
        tenant: TenantId,
        runs: Vec<StartRun>,
        reply: Reply<Result<Vec<Started>, RunRefused>>,
    },
    Append {
        tenant: TenantId,
        run: RunKey,
        entries: Vec<NewEntry>,
        reply: Reply<Result<Vec<Accepted>, RunRefused>>,
    },
    WaitForEvent {
        tenant: TenantId,
        run: RunKey,
        wait: Box<WaitFor>,
        reply: Reply<Result<(), RunRefused>>,
    },
    Notify {
        tenant: TenantId,
        event: String,
        data: Vec<u8>,
        reply: Reply<Result<Vec<Notified>, NoRoom>>,
    },
    NotifyRun {
        tenant: TenantId,
        run: RunKey,
        event: String,
        data: Vec<u8>,
        reply: Reply<Result<Option<Notified>, RunRefused>>,
    },
    FinishRun {
        tenant: TenantId,
        run: RunKey,
        result: Option<String>,
        reply: Reply<()>,
    },
    CancelRun {
        tenant: TenantId,
        run: RunKey,
        reply: Reply<bool>,
    },
    CancelRuns {
        tenant: TenantId,
        runs: Vec<Seq>,
        reply: Reply<u32>,
    },
    BeginAgain {
        tenant: TenantId,
        dlq_ids: Vec<DlqId>,
        again: Again,
        overrides: Box<Overrides>,
        reply: Reply<BegunAgain>,
    },
    DropFailedRuns {
        tenant: TenantId,
        dlq_ids: Vec<DlqId>,
        reply: Reply<u32>,
    },
    EditFailureCall {
        tenant: TenantId,
        dlq_id: DlqId,
        edit: FailureCallEdit,
        reply: Reply<Result<RunKey, FailureCallRefused>>,
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

/// The settings of a queue, as they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// How many of its messages may be under way at once.
    pub parallelism: u32,
    /// Nothing is started while this is set.
    pub paused: bool,
}

/// How many deliveries a tenant may have under way, and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallelism {
    /// At most.
    pub max: u32,
    /// Now.
    pub count: u32,
}

/// A tenant may have no more of these; nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", quota_exceeded(self.quota, self.limit))]
pub struct QuotaExceeded {
    /// What there is too much of, in the words of the hosted service.
    pub quota: &'static str,
    /// How many there may be.
    pub limit: u64,
}

/// Why nothing more is stored for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// Of its quota.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// On the disk, besides the reserve; trying again later may help.
    #[error("the disk is nearly full")]
    DiskLow,
}

/// Why a message is not sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HastenRefused {
    /// It is unknown, has ended or was cancelled.
    #[error("the message is unknown, or it has already ended")]
    Unknown,
    /// Nobody comes before his turn.
    #[error("the message is in a queue and must wait for its turn")]
    Queued,
    /// It stands for the deadline of a wait, and is never sent.
    #[error("the step waits for an event, and only the event or its timeout ends the wait")]
    Deadline,
}

/// A dead letter to publish again.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The dead letter; gone once the new message exists.
    pub dlq_id: DlqId,
    /// The new message.
    pub message: NewMessage,
}

/// What one piece of a bulk action came to.
#[derive(Debug)]
pub struct BulkDone {
    /// The bulk action as it is now.
    pub action: BulkAction,
    /// What was not published because it duplicates another message: that one.
    pub duplicates: Vec<Accepted>,
}

/// What a bulk action does next.
#[derive(Clone, Debug)]
pub enum BulkPiece {
    /// Messages to cancel.
    Cancel(Vec<MessageId>),
    /// Dead letters to delete.
    Delete(Vec<DlqId>),
    /// Dead letters to publish again.
    Replay(Vec<Replay>),
}

/// A way to answer, with the place in the waiting line and the room that the request has until then.
pub(crate) struct Reply<T> {
    sender: oneshot::Sender<T>,
    place: Place,
    room: Option<Room>,
}

/// Room for the bodies of a request in RAM, given back when this is dropped.
#[derive(Default)]
pub struct Room {
    pub taken: Permits,
    /// How long the request has waited for it: so much less it may wait for its turn.
    pub waited: Duration,
    /// Room on the disk for what it stores.
    pub disk: Option<DiskPromise>,
    /// Its share of the items of batches that a tenant may have at once.
    pub items: Option<OwnedSemaphorePermit>,
}

/// Parts of a budget, given back when this is dropped.
pub type Permits = Vec<OwnedSemaphorePermit>;

impl<T> Reply<T> {
    /// Answers, unless the caller has gone away. The room is free before that: the bytes are stored by now, and the caller's
    /// next request would find them counted twice.
    fn send(self, value: T) {
        drop((self.place, self.room));
        drop(self.sender.send(value));
    }
}

/// How everybody else talks to the core. Cheap to clone.
#[derive(Clone)]
pub struct CoreHandle {
    commands: Sender,
    admission: Admission,
}

/// Why the core did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// Nothing was stored; trying again later helps.
    #[error("too many requests are waiting")]
    Overloaded,
    /// The tenant's turn did not come in time. Nothing was stored; trying again later helps.
    #[error("too many requests of this tenant are waiting")]
    Late,
    /// The core has ended: the outcome is unknown.
    #[error("the server is stopping")]
    Stopped,
    /// A publish would make a queue or a flow-control key that the tenant may not have; nothing was stored.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The disk has no room for it besides the reserve. Nothing was stored.
    #[error("the disk is nearly full")]
    DiskLow,
}

impl From<NoRoom> for CoreError {
    fn from(no_room: NoRoom) -> CoreError {
        match no_room {
            NoRoom::Quota(exceeded) => CoreError::Quota(exceeded),
            NoRoom::DiskLow => CoreError::DiskLow,
        }
    }
}

/// Asks for the next piece of something that has begun: where the tenant's line has no room for it, it waits, because half of
/// the work is done already.
pub(crate) async fn in_time<T, F: Future<Output = Result<T, CoreError>>>(
    core: &CoreHandle,
    mut ask: impl FnMut(CoreHandle) -> F,
) -> Result<T, CoreError> {
    loop {
        match ask(core.clone()).await {
            Err(CoreError::Overloaded | CoreError::Late) => tokio::time::sleep(PIECE_PAUSE).await,
            asked => return asked,
        }
    }
}

/// How long the next piece waits for the line to get shorter.
const PIECE_PAUSE: Duration = Duration::from_millis(100);

impl CoreHandle {
    /// A handle, and the other end for [`Core`].
    pub(crate) fn new() -> (CoreHandle, Inbox) {
        let (commands, inbox) = inbox();
        (CoreHandle { commands, admission: Admission::new() }, inbox)
    }

    /// Stores messages; the answer has the order of the messages. `room` is what their bodies take; it is
    /// given back when they are stored, even if the caller has gone by then.
    pub async fn publish(&self, messages: Vec<NewMessage>, room: Room) -> Result<Vec<Accepted>, CoreError> {
        let Some(tenant) = messages.first().map(|message| message.tenant) else { return Ok(Vec::new()) };
        Ok(self.ask_in_line(tenant, room.waited, Some(room), |reply| Command::Publish { messages, reply }).await??)
    }

    /// Cancels these messages; says how many were live and not cancelled before.
    pub async fn cancel(&self, tenant: TenantId, ids: Vec<MessageId>) -> Result<u32, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| Command::Cancel { tenant, ids, reply }).await
    }

    /// A delayed or retried message is due now; one that is under way, or due already, stays as it is.
    pub async fn hasten(&self, tenant: TenantId, id: MessageId) -> Result<Result<(), HastenRefused>, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| Command::Hasten { tenant, id, reply }).await
    }

    /// What a message waits for, of which the store has this row. Looks at nothing but RAM.
    pub async fn why(&self, row: Live) -> Result<Waiting, CoreError> {
        let row = Box::new(row);
        self.ask(None, |reply| Command::Why { row, reply }).await
    }

    /// Deletes these dead letters; says how many existed.
    pub async fn delete_dead_letters(&self, tenant: TenantId, ids: Vec<DlqId>) -> Result<u32, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| Command::DeleteDeadLetters { tenant, ids, reply }).await
    }

    /// Publishes dead letters again; `None` for one that no longer exists. `room` is what their bodies take.
    pub async fn replay(
        &self,
        tenant: TenantId,
        replays: Vec<Replay>,
        room: Room,
    ) -> Result<Vec<Option<Accepted>>, CoreError> {
        self.ask_in_line(tenant, room.waited, Some(room), |reply| Command::Replay { tenant, replays, reply }).await
    }

    /// Makes a queue or changes it.
    pub async fn put_queue(&self, tenant: TenantId, name: String, settings: QueueSettings) -> Result<(), CoreError> {
        Ok(self
            .ask_in_line(tenant, Duration::ZERO, None, |reply| Command::PutQueue { tenant, name, settings, reply })
            .await??)
    }

    /// Pauses or resumes a queue; false if there is none of this name.
    pub async fn pause_queue(&self, tenant: TenantId, name: String, paused: bool) -> Result<bool, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| Command::PauseQueue { tenant, name, paused, reply })
            .await
    }

    /// Forgets a queue; what it still holds goes on in a fresh one. Its messages must be cancelled before.
    pub async fn drop_queue(&self, tenant: TenantId, name: String) -> Result<(), CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| Command::DropQueue { tenant, name, reply }).await
    }

    /// Changes a flow-control key; false if it is unknown and the change does not make it.
    pub async fn edit_flow(&self, tenant: TenantId, key: String, edit: FlowEdit) -> Result<bool, CoreError> {
        Ok(self
            .ask_in_line(tenant, Duration::ZERO, None, |reply| Command::EditFlow { tenant, key, edit, reply })
            .await??)
    }

    /// One flow-control key, if it is known.
    pub async fn flow(&self, tenant: TenantId, key: String) -> Result<Option<FlowInfo>, CoreError> {
        self.ask(None, |reply| Command::Flow { tenant, key, reply }).await
    }

    /// Flow-control keys of a tenant, by key.
    pub async fn flows(&self, tenant: TenantId, page: FlowPage) -> Result<Vec<FlowInfo>, CoreError> {
        self.ask(None, |reply| Command::Flows { tenant, page, reply }).await
    }

    /// How many deliveries a tenant may have under way, and has.
    pub async fn parallelism(&self, tenant: TenantId) -> Result<Parallelism, CoreError> {
        self.ask(None, |reply| Command::Parallelism { tenant, reply }).await
    }

    /// How a tenant stands.
    pub async fn stats(&self, tenant: TenantId) -> Result<CoreStats, CoreError> {
        self.ask(None, |reply| Command::Stats { tenant, reply }).await
    }

    /// The log lines of a tenant, from now on.
    pub(crate) fn tail(&self, tenant: TenantId) -> Result<Tail, CoreError> {
        let (listener, tail) = tail::listen(tenant);
        self.commands.send(Command::Listen { listener })?;
        Ok(tail)
    }

    /// Makes a schedule, or replaces the one of the same id; its time of creation and its state are made here.
    /// `room` is what the body takes.
    pub async fn put_schedule(&self, schedule: Schedule, room: Room) -> Result<(), CoreError> {
        let (tenant, waited, schedule) = (schedule.tenant, room.waited, Box::new(schedule));
        Ok(self.ask_in_line(tenant, waited, Some(room), |reply| Command::PutSchedule { schedule, reply }).await??)
    }

    /// Pauses or resumes a schedule; false if there is none of this id.
    pub async fn pause_schedule(&self, tenant: TenantId, id: String, paused: bool) -> Result<bool, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| Command::PauseSchedule { tenant, id, paused, reply })
            .await
    }

    /// Gives a schedule another expression; false if there is none of this id.
    pub async fn reschedule(&self, tenant: TenantId, id: String, cron: Cron) -> Result<bool, CoreError> {
        let cron = Box::new(cron);
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| Command::Reschedule { tenant, id, cron, reply }).await
    }

    /// Deletes a schedule; false if there is none of this id.
    pub async fn drop_schedule(&self, tenant: TenantId, id: String) -> Result<bool, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| Command::DropSchedule { tenant, id, reply }).await
    }

    /// Stores a bulk action or its progress, together with its next piece, and answers with what it is then. One with
    /// the id `Seq::MIN` is new and gets an id.
    pub async fn put_bulk_action(
        &self,
        action: BulkAction,
        piece: Option<BulkPiece>,
        room: Room,
    ) -> Result<BulkDone, CoreError> {
        let action = Box::new(action);
        self.ask(Some(room), |reply| Command::PutBulkAction { action, piece, reply }).await
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
    pub(crate) fn ended(&self, message: Arc<Message>, outcome: Outcome, room: Permits) {
        self.tell(Command::Ended { message, outcome, room });
    }

    /// A core that has ended needs to hear nothing.
    fn tell(&self, command: Command) {
        drop(self.commands.send(command));
    }

    /// The turn of a tenant for a write that is not the core's, until it is dropped.
    pub(crate) async fn turn(&self, tenant: TenantId) -> Result<Place, CoreError> {
        self.admission.wait(tenant, Duration::ZERO).await
    }

    /// Asks for a read, or for work of the server itself. Whatever a tenant can ask for at will and has to be stored stands in
    /// its line instead.
    async fn ask<T>(&self, room: Option<Room>, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, CoreError> {
        self.ask_from(self.admission.enter()?, room, command).await
    }

    /// Asks when the tenant's turn has come. The request has `waited` for something else before.
    async fn ask_in_line<T>(
        &self,
        tenant: TenantId,
        waited: Duration,
        room: Option<Room>,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, CoreError> {
        let place = self.admission.wait(tenant, waited).await?;
        self.ask_from(place, room, command).await
    }

    async fn ask_from<T>(
        &self,
        place: Place,
        room: Option<Room>,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, CoreError> {
        let (sender, receiver) = oneshot::channel();
        self.commands.send(command(Reply { sender, place, room }))?;
        receiver.await.map_err(|_| CoreError::Stopped)
    }
}
