//! How everything else talks to the core.

use super::admission::{Admission, Place};
use super::inbox::{Inbox, Sender, inbox};
use super::tail::{self, Tail};
use super::{Command, CoreError, CoreStats, Parallelism, Permits, Room};
use crate::credentials::Credentials;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::flow::{FlowEdit, FlowInfo, FlowPage};
use posthaste_engine::message::{Live, Message};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::shard::Accepted;
use posthaste_engine::why::WaitReason;
use posthaste_node::{
    BulkDone, BulkPiece, DeadLetterCommand, DeliverNow, DeliverNowRefused, FlowCommand, MessageCommand, NewMessage,
    PutBulkAction, QueueCommand, QueueSettings, ReadReply, Replay, Reply, ScheduleCommand,
};
use posthaste_wire::cron::Cron;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How everybody else talks to the core. Cheap to clone.
#[derive(Clone)]
pub struct CoreHandle {
    pub(super) commands: Sender,
    pub(super) admission: Admission,
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
    /// A handle, and the other end for [`Core`](super::Core). What enters has its credentials sealed.
    pub(crate) fn new(credentials: Credentials) -> (CoreHandle, Inbox) {
        let (commands, inbox) = inbox(credentials);
        (CoreHandle { commands, admission: Admission::new() }, inbox)
    }

    /// Seals what enters the core, and opens what it stores.
    pub(crate) fn credentials(&self) -> Credentials {
        self.commands.credentials
    }

    /// Stores messages; the answer has the order of the messages. `room` is what their bodies take; it is
    /// given back when they are stored, even if the caller has gone by then.
    pub async fn publish(&self, messages: Vec<NewMessage>, room: Room) -> Result<Vec<Accepted>, CoreError> {
        let Some(tenant) = messages.first().map(|message| message.tenant) else { return Ok(Vec::new()) };
        Ok(self
            .ask_in_line(tenant, room.waited, Some(room), |reply| MessageCommand::Publish { messages, reply })
            .await??)
    }

    /// Cancels these messages, and returns how many were live and not cancelled before.
    pub async fn cancel(&self, tenant: TenantId, ids: Vec<MessageId>) -> Result<u32, CoreError> {
        let cancel = |reply| MessageCommand::Cancel { tenant, ids, reply };
        Ok(self.ask_in_line(tenant, Duration::ZERO, None, cancel).await?.len() as u32)
    }

    /// A delayed or retried message is due now; one that is under way, or due already, stays as it is.
    pub async fn deliver_now(
        &self,
        tenant: TenantId,
        id: MessageId,
    ) -> Result<Result<(), DeliverNowRefused>, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| DeliverNow { tenant, id, reply }).await
    }

    /// What a message waits for, of which the store has this row. Looks at nothing but RAM.
    pub async fn why(&self, row: Live) -> Result<WaitReason, CoreError> {
        let row = Box::new(row);
        self.read(|reply| Command::Why { row, reply }).await
    }

    /// Deletes these dead letters; says how many existed.
    pub async fn delete_dead_letters(&self, tenant: TenantId, ids: Vec<DlqId>) -> Result<u32, CoreError> {
        let delete = |reply| DeadLetterCommand::Delete { tenant, ids, reply };
        Ok(self.ask_in_line(tenant, Duration::ZERO, None, delete).await?.len() as u32)
    }

    /// Publishes dead letters again; `None` for one that no longer exists. `room` is what their bodies take.
    pub async fn replay(
        &self,
        tenant: TenantId,
        replays: Vec<Replay>,
        room: Room,
    ) -> Result<Vec<Option<Accepted>>, CoreError> {
        self.ask_in_line(tenant, room.waited, Some(room), |reply| DeadLetterCommand::Replay { tenant, replays, reply })
            .await
    }

    /// Makes a queue or changes it.
    pub async fn put_queue(&self, tenant: TenantId, name: String, settings: QueueSettings) -> Result<(), CoreError> {
        Ok(self
            .ask_in_line(tenant, Duration::ZERO, None, |reply| QueueCommand::Put { tenant, name, settings, reply })
            .await??)
    }

    /// Pauses or resumes a queue; false if there is none of this name.
    pub async fn pause_queue(&self, tenant: TenantId, name: String, paused: bool) -> Result<bool, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| QueueCommand::Pause { tenant, name, paused, reply })
            .await
    }

    /// Forgets a queue; what it still holds goes on in a fresh one. Its messages must be cancelled before.
    pub async fn drop_queue(&self, tenant: TenantId, name: String) -> Result<(), CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| QueueCommand::Delete { tenant, name, reply }).await
    }

    /// Changes a flow-control key; false if it is unknown and the change does not make it.
    pub async fn edit_flow(&self, tenant: TenantId, key: String, edit: FlowEdit) -> Result<bool, CoreError> {
        Ok(self
            .ask_in_line(tenant, Duration::ZERO, None, |reply| FlowCommand::Edit { tenant, key, edit, reply })
            .await??)
    }

    /// One flow-control key, if it is known.
    pub async fn flow(&self, tenant: TenantId, key: String) -> Result<Option<FlowInfo>, CoreError> {
        self.read(|reply| FlowCommand::Get { tenant, key, reply }).await
    }

    /// Flow-control keys of a tenant, by key.
    pub async fn flows(&self, tenant: TenantId, page: FlowPage) -> Result<Vec<FlowInfo>, CoreError> {
        self.read(|reply| FlowCommand::List { tenant, page, reply }).await
    }

    /// How many deliveries a tenant may have under way, and has.
    pub async fn parallelism(&self, tenant: TenantId) -> Result<Parallelism, CoreError> {
        self.read(|reply| Command::Parallelism { tenant, reply }).await
    }

    /// How a tenant stands.
    pub async fn stats(&self, tenant: TenantId) -> Result<CoreStats, CoreError> {
        self.read(|reply| Command::Stats { tenant, reply }).await
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
        Ok(self.ask_in_line(tenant, waited, Some(room), |reply| ScheduleCommand::Put { schedule, reply }).await??)
    }

    /// Pauses or resumes a schedule; false if there is none of this id.
    pub async fn pause_schedule(&self, tenant: TenantId, id: String, paused: bool) -> Result<bool, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| ScheduleCommand::Pause { tenant, id, paused, reply })
            .await
    }

    /// Gives a schedule another expression; false if there is none of this id.
    pub async fn reschedule(&self, tenant: TenantId, id: String, cron: Cron) -> Result<bool, CoreError> {
        let cron = Box::new(cron);
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| ScheduleCommand::Reschedule { tenant, id, cron, reply })
            .await
    }

    /// Deletes a schedule; false if there is none of this id.
    pub async fn drop_schedule(&self, tenant: TenantId, id: String) -> Result<bool, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| ScheduleCommand::Delete { tenant, id, reply }).await
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
        self.ask(Some(room), |reply| PutBulkAction { action, piece, reply }).await
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

    /// Asks for work of the server itself. A command that a tenant can send at will, and that stores something, waits in the line
    /// of its tenant instead.
    pub(super) async fn ask<T: Send + 'static, C: Into<Command>>(
        &self,
        room: Option<Room>,
        command: impl FnOnce(Reply<T>) -> C,
    ) -> Result<T, CoreError> {
        self.ask_from(self.admission.enter()?, room, command).await
    }

    /// Asks when the tenant's turn has come. The request has `waited` for something else before.
    pub(super) async fn ask_in_line<T: Send + 'static, C: Into<Command>>(
        &self,
        tenant: TenantId,
        waited: Duration,
        room: Option<Room>,
        command: impl FnOnce(Reply<T>) -> C,
    ) -> Result<T, CoreError> {
        let place = self.admission.wait(tenant, waited).await?;
        self.ask_from(place, room, command).await
    }

    /// The place in the line and the room are free before the reply leaves: the bytes are stored by then, and the caller's next
    /// request would find them counted twice. A caller that has disconnected is ignored.
    pub(super) async fn ask_from<T: Send + 'static, C: Into<Command>>(
        &self,
        place: Place,
        room: Option<Room>,
        command: impl FnOnce(Reply<T>) -> C,
    ) -> Result<T, CoreError> {
        let (sender, receiver) = oneshot::channel();
        let reply = Reply::new(move |value| {
            drop((place, room));
            drop(sender.send(value));
        });
        self.commands.send(command(reply).into())?;
        receiver.await.map_err(|_| CoreError::Stopped)
    }

    /// Asks for a read.
    pub(super) async fn read<T: Send + 'static, C: Into<Command>>(
        &self,
        command: impl FnOnce(ReadReply<T>) -> C,
    ) -> Result<T, CoreError> {
        let place = self.admission.enter()?;
        let (sender, receiver) = oneshot::channel();
        let reply = ReadReply::new(move |value| {
            drop(place);
            drop(sender.send(value));
        });
        self.commands.send(command(reply).into())?;
        receiver.await.map_err(|_| CoreError::Stopped)
    }
}

impl From<MessageCommand> for Command {
    fn from(command: MessageCommand) -> Command {
        Command::Node(posthaste_node::Command::Messages(command))
    }
}

impl From<DeliverNow> for Command {
    fn from(command: DeliverNow) -> Command {
        Command::Node(posthaste_node::Command::DeliverNow(command))
    }
}

impl From<DeadLetterCommand> for Command {
    fn from(command: DeadLetterCommand) -> Command {
        Command::Node(posthaste_node::Command::DeadLetters(command))
    }
}

impl From<QueueCommand> for Command {
    fn from(command: QueueCommand) -> Command {
        Command::Node(posthaste_node::Command::Queues(command))
    }
}

impl From<FlowCommand> for Command {
    fn from(command: FlowCommand) -> Command {
        Command::Node(posthaste_node::Command::Flows(command))
    }
}

impl From<PutBulkAction> for Command {
    fn from(command: PutBulkAction) -> Command {
        Command::Node(posthaste_node::Command::BulkAction(command))
    }
}

impl From<ScheduleCommand> for Command {
    fn from(command: ScheduleCommand) -> Command {
        Command::Node(posthaste_node::Command::Schedules(command))
    }
}
