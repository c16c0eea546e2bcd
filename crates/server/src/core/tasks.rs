//! Commands about many runs, which take turns: a bounded piece of work, then everybody else's commands, then the next
//! piece. Who waits for an event is found when it comes; whoever asked is answered when all of it is committed.

use super::run::{BATCH_BYTES_MAX, Core, Flow};
use super::workflow::{Again, Notified, Started};
use super::{CoreFailure, Reply};
use posthaste_engine::workflow::Overrides;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use std::collections::VecDeque;

/// Bytes that one turn reads and writes, give or take one run.
const TURN_BYTES: usize = BATCH_BYTES_MAX;
/// What a run costs besides its bytes: a turn is over after 128 small ones.
const RUN_COST: usize = TURN_BYTES / 128;

/// A command that is not done yet.
pub(super) enum Task {
    Notify(Notify),
    BeginAgain(BeginAgain),
    Drop(DropFailed),
}

/// An event has come.
pub(super) struct Notify {
    pub(super) tenant: TenantId,
    pub(super) data: Vec<u8>,
    /// Who waited when it came, and has yet to hear of it: waits and their runs, in the order of asking.
    pub(super) waiters: VecDeque<(MessageId, Seq)>,
    pub(super) notified: Vec<Notified>,
    pub(super) reply: Reply<Vec<Notified>>,
}

/// Failed runs begin again.
pub(super) struct BeginAgain {
    pub(super) tenant: TenantId,
    /// Those that have yet to, in the order asked; `None` for one that is not in the DLQ.
    pub(super) failed: VecDeque<Option<Seq>>,
    pub(super) again: Again,
    pub(super) overrides: Box<Overrides>,
    pub(super) begun: Vec<Option<Started>>,
    pub(super) reply: Reply<Vec<Option<Started>>>,
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
            Task::BeginAgain(_) | Task::Drop(_) => None,
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Task::Notify(task) => task.waiters.is_empty(),
            Task::BeginAgain(task) => task.failed.is_empty(),
            Task::Drop(task) => task.dlq_ids.is_empty(),
        }
    }
}

impl Core {
    /// One turn of what is not done yet, or all of it when the core is to stop. Everything is committed before and behind
    /// it.
    pub(super) fn go_on(&mut self, flow: &Flow) -> Result<(), CoreFailure> {
        while !self.tasks.is_empty() {
            self.take_turn()?;
            if matches!(flow, Flow::Go) {
                break;
            }
        }
        Ok(())
    }

    /// Tasks go on by one run each, until the turn is over.
    fn take_turn(&mut self) -> Result<(), CoreFailure> {
        let mut cost = 0;
        while cost < TURN_BYTES
            && let Some(mut task) = self.tasks.pop_front()
        {
            let bytes = match &mut task {
                Task::Notify(task) => self.tell_next(task)?,
                Task::BeginAgain(task) => self.begin_next(task)?,
                Task::Drop(task) => self.drop_next(task)?,
            };
            cost += RUN_COST + bytes;
            if task.is_done() {
                self.answer_task(task)
            } else {
                self.tasks.push_back(task)
            }
            self.commit_if_large()?;
        }
        self.commit()
    }

    fn answer_task(&mut self, task: Task) {
        match task {
            Task::Notify(Notify { notified, reply, .. }) => self.answer(move || reply.send(notified)),
            Task::BeginAgain(BeginAgain { begun, reply, .. }) => self.answer(move || reply.send(begun)),
            Task::Drop(DropFailed { dropped, reply, .. }) => self.answer(move || reply.send(dropped)),
        }
    }
}
