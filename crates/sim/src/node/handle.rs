//! What an owner does when it is asked for something.

use super::witness::Witness;
use super::{Owner, Stop};
use crate::bug::Bug;
use crate::command::{Command, Ended, RequestId, RunTask, Said, Task};
use crate::env::Env;
use posthaste_engine::shard::Storage;
use posthaste_node::Moment;
use posthaste_wire::time::Timestamp;

impl Owner {
    pub(super) fn handle(&mut self, command: Command, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let may_wait = !self.engine.batch.is_empty() && !self.forgets_truth(&command.task, env);
        if may_wait && self.needs_truth(&command.task, env)? {
            self.inbox.push_front(command);
            return self.commit(env, now);
        }
        let Command { request, task } = command;
        match task {
            Task::Ended(ended) => return self.ended(*ended, env, now),
            Task::Run { tenant, task } => return self.handle_run(request, tenant, *task, env, now),
            Task::Drain => {
                self.engine.shard.drain();
                self.margin.drains = true;
                self.answer(request, Said::Done);
            }
            Task::Node(_) => self.push(Command { request, task }, env),
        }
        Ok(())
    }

    /// Whether the store must know everything that was decided before.
    fn needs_truth(&mut self, task: &Task, env: &mut Env) -> Result<bool, Stop> {
        Ok(match task {
            Task::Run { tenant, task } => match &**task {
                RunTask::Notify { .. } | RunTask::BeginAgain { .. } => true,
                // What came with the event is in the store alone, and may be in the batch still.
                RunTask::Wait { run, event, .. } => self.has_early(*tenant, run, event, env)?,
                _ => false,
            },
            _ => false,
        })
    }

    fn forgets_truth(&self, task: &Task, env: &Env) -> bool {
        match task {
            Task::Run { task, .. } if matches!(**task, RunTask::Wait { .. }) => env.has(Bug::EarlyReadWithoutCommit),
            Task::Run { .. } => env.has(Bug::NotifyWithoutCommit),
            _ => false,
        }
    }

    pub(super) fn answer(&mut self, request: RequestId, said: Said) {
        let reply = self.answers.reply(request, |said| said);
        self.engine.batch.reply(reply, said);
    }

    fn ended(&mut self, ended: Ended, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let Ended { message, outcome, sent, live, .. } = ended;
        let was_under_way = self.flights.remove(&(live.id, live.retried));
        if !was_under_way && !env.has(Bug::OutcomeTakenTwice) {
            return Ok(());
        }
        if let Some(step) = message.spec.workflow {
            self.margin.notes.steps.push((live, outcome.verdict(), sent));
            return self.step_ended(&message, step, &outcome, env, now);
        }
        let mut witness = Witness::new(env);
        let mut moment = Moment { now, host: &mut witness };
        let verdict = outcome.verdict();
        let ended = self.engine.attempt_ended(&message, outcome, Storage::Free, &mut moment);
        self.margin.notes.outcomes.push((live, verdict, ended.callback, ended.failure_callback));
        env.tell(Some(live.id), || format!("node {} receives {verdict:?}", self.node));
        Ok(())
    }
}
