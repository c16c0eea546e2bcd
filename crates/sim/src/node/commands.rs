//! Commands that the node decides itself: as it takes them, and how its replies come back.

use super::witness::Witness;
use super::{BOUNDS, Owner, Stop};
use crate::bug::Bug;
use crate::command::{Answer, Command, NodeTask, RequestId, Said, Task};
use crate::env::Env;
use posthaste_engine::event::Op;
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{FlowKey, Message};
use posthaste_engine::shard::Accepted;
use posthaste_node::{
    BulkDone, DeadLetterCommand, DeliverNow, FlowCommand, MessageCommand, Moment, Next, PutBulkAction, QueueCommand,
    QuotaExceeded, Reply, ScheduleCommand,
};
use posthaste_wire::id::DlqId;
use posthaste_wire::time::Timestamp;
use std::sync::{Arc, Mutex, PoisonError};

/// Whether the node decides this itself.
pub(super) fn is_for_node(task: &Task) -> bool {
    matches!(task, Task::Node(_))
}

/// Answers that have left the node.
#[derive(Clone, Default)]
pub(super) struct Answers(Arc<Mutex<Vec<Answer>>>);

impl Answers {
    /// A reply whose value becomes the answer to this request.
    pub(super) fn reply<T>(&self, request: RequestId, said: impl FnOnce(T) -> Said + Send + 'static) -> Reply<T> {
        let answers = self.0.clone();
        Reply::tagged(request.0, move |value| {
            let answer = Answer { request, said: said(value) };
            answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        })
    }

    /// The same for a command that may exceed a quota, which no seed does.
    fn within_quota<T>(
        &self,
        request: RequestId,
        said: impl FnOnce(T) -> Said + Send + 'static,
    ) -> Reply<Result<T, QuotaExceeded>> {
        self.reply(request, |value: Result<T, QuotaExceeded>| value.map_or(Said::Done, said))
    }

    pub(super) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Owner {
    /// Adds a command to the round.
    pub(super) fn push(&mut self, command: Command, env: &Env) {
        if env.has(Bug::UnknownMeansFailed) && matches!(command.task, Task::Node(NodeTask::Publish(_))) {
            self.margin.commands.push(command.clone());
        }
        let Command { request, task: Task::Node(task) } = command else { return };
        if let NodeTask::EditFlow { tenant, key, edit } = &task
            && matches!(edit, FlowEdit::Reset | FlowEdit::ResetRate | FlowEdit::Pin { .. })
        {
            let is_all_let_go = *edit == FlowEdit::Reset;
            self.margin.notes.resets.push((*tenant, FlowKey::of(*tenant, key), is_all_let_go));
        }
        let command = self.node_command(request, task);
        self.round.push(command, &self.engine);
    }

    fn node_command(&self, request: RequestId, task: NodeTask) -> posthaste_node::Command {
        let answers = &self.answers;
        match task {
            NodeTask::Publish(messages) => {
                let keys: Vec<_> = messages.iter().map(|message| (message.tenant, message.dedup)).collect();
                let said = |accepted: Vec<Accepted>| {
                    let (asked, answered) = (keys.len(), accepted.len());
                    if asked != answered {
                        return Said::Miscounted { asked, answered };
                    }
                    let with_key = |(accepted, (tenant, key))| (accepted, tenant, key);
                    Said::Published(accepted.into_iter().zip(keys).map(with_key).collect())
                };
                let reply = answers.within_quota(request, said);
                posthaste_node::Command::Messages(MessageCommand::Publish { messages, reply })
            }
            NodeTask::Cancel { tenant, ids } => {
                let reply = answers.reply(request, Said::Cancelled);
                posthaste_node::Command::Messages(MessageCommand::Cancel { tenant, ids, reply })
            }
            NodeTask::DeliverNow { tenant, id } => {
                let reply = answers.reply(request, move |outcome| Said::DueNow(id, outcome));
                posthaste_node::Command::DeliverNow(DeliverNow { tenant, id, reply })
            }
            NodeTask::DeleteDeadLetters { tenant, ids } => {
                let reply = answers.reply(request, move |deleted| Said::Deleted(tenant, deleted));
                posthaste_node::Command::DeadLetters(DeadLetterCommand::Delete { tenant, ids, reply })
            }
            NodeTask::Replay { tenant, replays } => {
                let ids: Vec<DlqId> = replays.iter().map(|replay| replay.dlq_id).collect();
                let said = move |accepted| Said::Replayed(tenant, ids.into_iter().zip::<Vec<_>>(accepted).collect());
                let reply = answers.reply(request, said);
                posthaste_node::Command::DeadLetters(DeadLetterCommand::Replay { tenant, replays, reply })
            }
            NodeTask::PutQueue { tenant, name, settings } => {
                let reply = answers.within_quota(request, |()| Said::Done);
                posthaste_node::Command::Queues(QueueCommand::Put { tenant, name, settings, reply })
            }
            NodeTask::PauseQueue { tenant, name, paused } => {
                let reply = answers.reply(request, |_: bool| Said::Done);
                posthaste_node::Command::Queues(QueueCommand::Pause { tenant, name, paused, reply })
            }
            NodeTask::DropQueue { tenant, name } => {
                let reply = answers.reply(request, |()| Said::Done);
                posthaste_node::Command::Queues(QueueCommand::Delete { tenant, name, reply })
            }
            NodeTask::EditFlow { tenant, key, edit } => {
                let reply = answers.within_quota(request, |_: bool| Said::Done);
                posthaste_node::Command::Flows(FlowCommand::Edit { tenant, key, edit, reply })
            }
            NodeTask::PutSchedule(schedule) => {
                let reply = answers.within_quota(request, |()| Said::Done);
                posthaste_node::Command::Schedules(ScheduleCommand::Put { schedule, reply })
            }
            NodeTask::PauseSchedule { tenant, id, paused } => {
                let reply = answers.reply(request, |_: bool| Said::Done);
                posthaste_node::Command::Schedules(ScheduleCommand::Pause { tenant, id, paused, reply })
            }
            NodeTask::Reschedule { tenant, id, cron } => {
                let done = Said::Rescheduled((tenant, id.clone()), cron.text().to_owned());
                let reply = answers.reply(request, |exists| if exists { done } else { Said::Done });
                posthaste_node::Command::Schedules(ScheduleCommand::Reschedule { tenant, id, cron, reply })
            }
            NodeTask::PutBulkAction { action, piece } => {
                let reply = answers.reply(request, |done: BulkDone| Said::Bulk(Box::new(done.action)));
                posthaste_node::Command::BulkAction(PutBulkAction { action, piece, reply })
            }
            NodeTask::DropSchedule { tenant, id } => {
                let reply = answers.reply(request, |_: bool| Said::Done);
                posthaste_node::Command::Schedules(ScheduleCommand::Delete { tenant, id, reply })
            }
        }
    }

    /// Decides the commands of the round, until there is a commit to wait for.
    pub(super) fn decide_round(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        while self.waits.is_none() {
            let first = self.engine.batch.out.ops.len();
            let mut witness = Witness::new(env);
            let next = self.round.next(&mut self.engine, &mut Moment { now, host: &mut witness });
            let noted = witness.noted();
            self.note(noted, env, now);
            self.tell_accepted(first, env);
            match next {
                Next::Read(wanted) => {
                    env.read(self.node)?;
                    self.round.found(env.store.facts(&wanted, now));
                }
                Next::Commit => self.commit(env, now)?,
                Next::Decided => {
                    self.split_bulk(env);
                    if self.engine.batch.body_bytes >= BOUNDS.batch_bytes {
                        self.commit(env, now)?;
                    }
                }
                Next::DeliverStep(step) => self.deliver_step_now(*step, env, now)?,
                Next::Done => return Ok(()),
            }
        }
        Ok(())
    }

    /// Tells the story of messages that were accepted since there were this many ops.
    pub(super) fn tell_accepted(&self, first: usize, env: &mut Env) {
        for op in self.engine.batch.out.ops.iter().skip(first) {
            if let Op::Insert { message, .. } = op {
                env.tell(Some(message.id), || format!("is accepted by node {}: {}", self.node, describe(message)));
            }
        }
    }
}

fn describe(message: &Message) -> String {
    let spec = &message.spec;
    let mut text = format!("to {}, {} retries", spec.url, spec.retries);
    let delay_ms = message.not_before.millis_since(message.created_at);
    if delay_ms > 0 {
        text += &format!(", after {delay_ms} ms");
    }
    if let Some(queue) = &spec.queue {
        text += &format!(", queue {queue}");
    }
    if let Some(flow) = &spec.flow {
        text +=
            &format!(", key {} ({:?} at once, {:?} in {} ms)", flow.key, flow.parallelism, flow.rate, flow.period_ms);
    }
    if let Some(id) = &spec.schedule_id {
        text += &format!(", schedule {id}");
    }
    text
}
