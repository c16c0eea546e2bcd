//! Commands that are much work, which take turns: a bounded piece of work, then everybody else's commands, then the next
//! piece. Whoever asked is answered when all of it is committed.

use super::facts;
use super::run::{Core, Flow};
use super::workflow::{Again, BegunAgain, Notified, RunRefused, StartRun, Started};
use super::{CoreFailure, NoRoom};
use crate::data_dir::DiskPromise;
use posthaste_engine::workflow::Overrides;
use posthaste_node::{BATCH_BYTES_MAX, Moment, Progress, Reply, Turn};
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
            Task::StartRuns(_) | Task::CancelRuns(_) | Task::BeginAgain(_) | Task::Drop(_) => None,
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Task::StartRuns(task) => task.runs.is_empty(),
            Task::CancelRuns(task) => task.runs.is_empty(),
            Task::Notify(task) => task.waiters.is_empty(),
            Task::BeginAgain(task) => task.failed.is_empty(),
            Task::Drop(task) => task.dlq_ids.is_empty(),
        }
    }
}

impl Core {
    /// One turn of what is not done yet, or all of it when the core is to stop. Everything is committed before and after it.
    pub(super) fn go_on(&mut self, flow: &Flow) -> Result<(), CoreFailure> {
        if matches!(flow, Flow::Go) {
            return if self.has_tasks() && self.tasks_have_turns() { self.take_turns() } else { Ok(()) };
        }
        while self.has_tasks() {
            self.take_turns()?;
        }
        Ok(())
    }

    /// Whether something is not done yet.
    pub(super) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty() || self.node.has_turns()
    }

    /// Whether the database keeps up with the journal. Tasks could fill the journal faster, and every read would wait for it.
    pub(super) fn tasks_have_turns(&self) -> bool {
        self.host.disk.room.pending_bytes() <= TASKS_PENDING_BYTES_MAX
    }

    /// A turn of large publishes, and one of what concerns many runs.
    fn take_turns(&mut self) -> Result<(), CoreFailure> {
        if let Some(turn) = self.node.next_turn() {
            self.publish_pieces(turn)?;
        }
        if !self.tasks.is_empty() {
            self.take_turn()?;
        }
        Ok(())
    }

    /// Publishes the pieces of a turn. What they want to know is read for all of them at once.
    fn publish_pieces(&mut self, mut turn: Turn) -> Result<(), CoreFailure> {
        loop {
            let now = self.clock.now();
            match turn.next(&mut self.node, &mut Moment { now, host: &mut self.host }) {
                Progress::Read(wanted) => turn.found(facts::read(&*self.store, &wanted, now)?),
                Progress::Commit => self.commit()?,
                Progress::Decided => {}
                Progress::Done => return self.commit(),
            }
        }
    }

    /// Each task gets on by one run, until the turn is over.
    fn take_turn(&mut self) -> Result<(), CoreFailure> {
        let mut cost = 0;
        while cost < TURN_BYTES
            && let Some((tenant, mut task)) = self.tasks.pop()
        {
            let bytes = match &mut task {
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

    fn answer_task(&mut self, task: Task) {
        match task {
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
