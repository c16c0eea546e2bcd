//! Commands that are much work, which take turns: a bounded piece of work, then everybody else's commands, then the next
//! piece. Whoever asked is answered when all of it is committed.

use super::run::{Core, Flow};
use super::workflow::{Again, BegunAgain, Notified, RunRefused, StartRun, Started};
use super::{CoreFailure, NewMessage, NoRoom, QuotaExceeded, stored_bytes};
use crate::data_dir::DiskPromise;
use posthaste_engine::message::is_same_body;
use posthaste_engine::shard::Accepted;
use posthaste_engine::workflow::Overrides;
use posthaste_node::{BATCH_BYTES_MAX, Reply};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Bytes that one turn reads and writes, give or take one run.
const TURN_BYTES: usize = BATCH_BYTES_MAX;
/// What a run costs besides its bytes: a turn is over after 128 small ones.
const RUN_COST: usize = TURN_BYTES / 128;

/// Bytes that wait in the journal for the database, above which tasks pause.
const TASKS_PENDING_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How long the core waits for other commands before it checks whether tasks can resume.
pub(super) const TURN_PAUSE: Duration = Duration::from_millis(2);

/// A command that is not done yet.
pub(super) enum Task {
    Publish(PublishMany),
    StartRuns(StartRuns),
    CancelRuns(CancelRuns),
    Notify(Notify),
    BeginAgain(BeginAgain),
    Drop(DropFailed),
}

/// Many runs start. They are committed in pieces, as messages of a large publish are.
pub(super) struct StartRuns {
    pub(super) tenant: TenantId,
    /// Those that have not started yet.
    pub(super) runs: VecDeque<StartRun>,
    started: Vec<Started>,
    /// Where a name was started first: whatever became of that run meanwhile, a repetition is its duplicate.
    names: HashMap<String, usize>,
    /// Why the rest does not start.
    refused: Option<RunRefused>,
    reply: Reply<Result<Vec<Started>, RunRefused>>,
}

impl StartRuns {
    pub(super) fn new(
        tenant: TenantId,
        runs: Vec<StartRun>,
        reply: Reply<Result<Vec<Started>, RunRefused>>,
    ) -> StartRuns {
        let (started, names) = (Vec::with_capacity(runs.len()), HashMap::new());
        StartRuns { tenant, runs: runs.into(), started, names, refused: None, reply }
    }

    /// The answer to an item that repeats the name of an earlier one.
    pub(super) fn earlier(&self, name: &str) -> Option<Started> {
        let earlier = self.started.get(*self.names.get(name)?)?;
        Some(Started { deduplicated: true, ..earlier.clone() })
    }

    /// Notes what became of the next run.
    pub(super) fn add(&mut self, started: Result<Started, RunRefused>) {
        match started {
            Ok(started) => {
                self.names.entry(started.id.clone()).or_insert(self.started.len());
                self.started.push(started);
            }
            Err(refused) => {
                self.refused = Some(refused);
                self.runs.clear();
            }
        }
    }
}

/// Runs are cancelled.
pub(super) struct CancelRuns {
    pub(super) tenant: TenantId,
    /// Those that are not cancelled yet.
    pub(super) runs: VecDeque<Seq>,
    pub(super) cancelled: u32,
    pub(super) reply: Reply<u32>,
}

/// A publish of many messages, or of many bytes. Its pieces are committed one by one: a crash in between leaves the first of
/// them stored, as a crash before the answer always may.
pub(super) struct PublishMany {
    /// Those that are not stored yet.
    pub(super) messages: VecDeque<NewMessage>,
    pub(super) accepted: Vec<Accepted>,
    pub(super) reply: Reply<Result<Vec<Accepted>, QuotaExceeded>>,
}

/// Messages of a piece of a publish.
const PIECE_MESSAGES: usize = 64;
/// Bytes to store after which a piece of a publish ends.
const PIECE_BYTES: usize = 1024 * 1024;

/// What a message costs at least: a turn is over after 512 small ones.
const MESSAGE_COST: usize = TURN_BYTES / 512;

/// How many of these messages are the next piece. Messages that share a body stay together, so that it is stored once.
fn piece_length(messages: &VecDeque<NewMessage>) -> usize {
    let mut bytes = 0;
    let mut before: Option<&NewMessage> = None;
    for (count, message) in messages.iter().enumerate() {
        let is_same = before.is_some_and(|before| is_same_body(&before.body, &message.body));
        if !is_same && (count >= PIECE_MESSAGES || bytes >= PIECE_BYTES) {
            return count;
        }
        bytes += stored_bytes([message]) - if is_same { message.body.len() } else { 0 };
        before = Some(message);
    }
    messages.len()
}

/// An event has come.
pub(super) struct Notify {
    pub(super) tenant: TenantId,
    pub(super) data: Vec<u8>,
    /// Bytes that it stores for each waiter.
    pub(super) waiter_bytes: u64,
    /// Who waited when it came, and has yet to hear of it: waits and their runs, in the order of asking.
    pub(super) waiters: VecDeque<(MessageId, Seq)>,
    pub(super) notified: Vec<Notified>,
    /// Bytes of those.
    pub(super) listed_bytes: usize,
    /// Room for the copies that are not stored yet.
    pub(super) room: DiskPromise,
    pub(super) reply: Reply<Result<Vec<Notified>, NoRoom>>,
}

/// Failed runs begin again.
pub(super) struct BeginAgain {
    pub(super) tenant: TenantId,
    /// Those that have yet to, in the order asked; `None` for one that is not in the DLQ.
    pub(super) failed: VecDeque<Option<Seq>>,
    pub(super) again: Again,
    pub(super) overrides: Box<Overrides>,
    pub(super) begun: Vec<Option<Started>>,
    /// Why the rest stays in the DLQ.
    pub(super) stopped: Option<NoRoom>,
    pub(super) reply: Reply<BegunAgain>,
}

/// Failed runs leave the DLQ.
pub(super) struct DropFailed {
    pub(super) tenant: TenantId,
    /// Those that have yet to.
    pub(super) dlq_ids: VecDeque<DlqId>,
    pub(super) dropped: u32,
    pub(super) reply: Reply<u32>,
}

impl Notify {
    /// Where this wait is among those who have yet to hear of the event.
    pub(super) fn place_of(&self, timer: MessageId) -> Option<usize> {
        let place = self.waiters.binary_search_by_key(&timer.seq, |(timer, _)| timer.seq).ok()?;
        (self.waiters[place].0 == timer).then_some(place)
    }
}

impl Task {
    pub(super) fn as_notify(&mut self) -> Option<&mut Notify> {
        match self {
            Task::Notify(notify) => Some(notify),
            Task::Publish(_) | Task::StartRuns(_) | Task::CancelRuns(_) | Task::BeginAgain(_) | Task::Drop(_) => None,
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Task::Publish(task) => task.messages.is_empty(),
            Task::StartRuns(task) => task.runs.is_empty(),
            Task::CancelRuns(task) => task.runs.is_empty(),
            Task::Notify(task) => task.waiters.is_empty(),
            Task::BeginAgain(task) => task.failed.is_empty(),
            Task::Drop(task) => task.dlq_ids.is_empty(),
        }
    }
}

/// All tasks. Tenants take turns, and the tasks of a tenant take turns among themselves, so that many tasks of one tenant do
/// not slow those of another.
pub(super) struct Tasks<T = Task> {
    /// Each tenant that has tasks is here once.
    tenants: VecDeque<(TenantId, VecDeque<T>)>,
}

impl<T> Default for Tasks<T> {
    fn default() -> Tasks<T> {
        Tasks { tenants: VecDeque::new() }
    }
}

impl<T> Tasks<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Adds a new task of a tenant, or one that was taken and is not done: it is the last of its tenant's.
    pub(super) fn push(&mut self, tenant: TenantId, task: T) {
        match self.tenants.iter_mut().find(|(other, _)| *other == tenant) {
            Some((_, tasks)) => tasks.push_back(task),
            None => self.tenants.push_back((tenant, VecDeque::from([task]))),
        }
    }

    /// Takes the next task; its tenant becomes the last one.
    fn pop(&mut self) -> Option<(TenantId, T)> {
        let (tenant, mut tasks) = self.tenants.pop_front()?;
        let task = tasks.pop_front()?;
        if !tasks.is_empty() {
            self.tenants.push_back((tenant, tasks));
        }
        Some((tenant, task))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.tenants.iter_mut().flat_map(|(_, tasks)| tasks)
    }
}

impl Core {
    /// One turn of what is not done yet, or all of it when the core is to stop. Everything is committed before and behind
    /// it.
    pub(super) fn go_on(&mut self, flow: &Flow) -> Result<(), CoreFailure> {
        if matches!(flow, Flow::Go) {
            return if !self.tasks.is_empty() && self.tasks_have_turns() { self.take_turn() } else { Ok(()) };
        }
        while !self.tasks.is_empty() {
            self.take_turn()?;
        }
        Ok(())
    }

    /// Whether the database keeps up with the journal. Tasks could fill the journal faster, and every read would wait for it.
    pub(super) fn tasks_have_turns(&self) -> bool {
        self.host.disk.room.pending_bytes() <= TASKS_PENDING_BYTES_MAX
    }

    /// Each task gets on by one run, or by one piece of a publish, until the turn is over.
    fn take_turn(&mut self) -> Result<(), CoreFailure> {
        let mut cost = 0;
        while cost < TURN_BYTES
            && let Some((tenant, mut task)) = self.tasks.pop()
        {
            let bytes = match &mut task {
                Task::Publish(task) => self.publish_next(task)?,
                Task::StartRuns(task) => self.start_next(task)?,
                Task::CancelRuns(task) => self.cancel_next(task)?,
                Task::Notify(task) => self.tell_next(task)?,
                Task::BeginAgain(task) => self.begin_next(task)?,
                Task::Drop(task) => self.drop_next(task)?,
            };
            cost += RUN_COST + bytes;
            if task.is_done() {
                self.answer_task(task)
            } else {
                self.tasks.push(tenant, task)
            }
            self.commit_if_large()?;
        }
        self.commit()
    }

    fn publish_next(&mut self, task: &mut PublishMany) -> Result<usize, CoreFailure> {
        let piece: Vec<NewMessage> = task.messages.drain(..piece_length(&task.messages)).collect();
        let cost = stored_bytes(&piece).max(piece.len() * MESSAGE_COST);
        task.accepted.extend(self.publish_piece(piece)?);
        Ok(cost)
    }

    fn answer_task(&mut self, task: Task) {
        match task {
            Task::Publish(PublishMany { accepted, reply, .. }) => self.node.batch.reply(reply, Ok(accepted)),
            Task::StartRuns(StartRuns { started, refused, reply, .. }) => {
                self.node.batch.reply(reply, refused.map_or(Ok(started), Err))
            }
            Task::CancelRuns(CancelRuns { cancelled, reply, .. }) => self.node.batch.reply(reply, cancelled),
            Task::Notify(Notify { notified, room, reply, .. }) => {
                self.keep_until_committed(room);
                self.node.batch.reply(reply, Ok(notified))
            }
            Task::BeginAgain(BeginAgain { begun, stopped, reply, .. }) => {
                self.node.batch.reply(reply, BegunAgain { begun, stopped })
            }
            Task::Drop(DropFailed { dropped, reply, .. }) => self.node.batch.reply(reply, dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FirstDue;
    use super::*;
    use bytes::Bytes;
    use posthaste_engine::message::{MessageSpec, Origin};

    fn message(body: Bytes) -> NewMessage {
        let (tenant, spec) = (TenantId(1), MessageSpec::default());
        NewMessage { tenant, origin: Origin(1), spec, body, first_due: FirstDue::Now, dedup: None }
    }

    #[test]
    fn a_piece_is_bounded_in_messages_and_bytes_and_keeps_shared_bodies_together() {
        let small: VecDeque<_> = (0..2 * PIECE_MESSAGES + 1).map(|_| message(Bytes::new())).collect();
        assert_eq!(piece_length(&small), PIECE_MESSAGES);
        let large: VecDeque<_> = (0..3).map(|_| message(Bytes::from(vec![0; PIECE_BYTES]))).collect();
        assert_eq!(piece_length(&large), 1);
        let body = Bytes::from(vec![0; PIECE_BYTES]);
        let mut shared: VecDeque<_> = (0..100).map(|_| message(body.clone())).collect();
        shared.push_back(message(Bytes::new()));
        assert_eq!(piece_length(&shared), 100, "a body that 100 messages share counts once");
        assert!(stored_bytes(&shared) < PIECE_BYTES + 101 * 1024);
        assert_eq!(piece_length(&VecDeque::new()), 0);
    }

    #[test]
    fn tenants_take_turns_however_many_tasks_each_has() {
        let (greedy, other) = (TenantId(1), TenantId(2));
        let mut tasks = Tasks::default();
        for task in ["a", "b", "c"] {
            tasks.push(greedy, task);
        }
        tasks.push(other, "x");
        let mut taken = String::new();
        for _ in 0..8 {
            let (tenant, task) = tasks.pop().unwrap();
            taken += task;
            tasks.push(tenant, task);
        }
        assert_eq!(taken, "axbxcxax");
        let rest: Vec<_> = std::iter::from_fn(|| tasks.pop()).map(|(tenant, _)| tenant).collect();
        assert_eq!(rest, [greedy, other, greedy, greedy]);
        assert!(tasks.is_empty());
    }
}
