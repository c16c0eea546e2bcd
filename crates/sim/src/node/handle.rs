//! What an owner does when it is asked for something.

use super::{Batch, Owner, Stop};
use crate::bug::Bug;
use crate::command::{Answer, Command, Draft, Ended, RequestId, RunTask, Said, Task};
use crate::env::Env;
use crate::random::Random;
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{FlowKey, Live, Message};
use posthaste_engine::shard::{Accepted, Chance, Publish, Storage};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Owner {
    pub(super) fn handle(&mut self, command: Command, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let may_wait = !self.batch.is_empty() && !self.forgets_truth(&command.task, env);
        if may_wait && self.needs_truth(&command.task, env)? {
            self.inbox.push_front(command);
            return self.commit(env, now);
        }
        if env.has(Bug::UnknownMeansFailed) && matches!(command.task, Task::Publish(_)) {
            self.batch.commands.push(command.clone());
        }
        let Command { request, task } = command;
        let out = &mut self.batch.out;
        match task {
            Task::Publish(drafts) => return self.publish(request, drafts, env, now),
            Task::Ended(ended) => return self.ended(*ended, env, now),
            Task::Run { tenant, task } => return self.handle_run(request, tenant, *task, env, now),
            Task::Cancel { tenant, ids } => return self.cancel(request, tenant, &ids, env, now),
            Task::DeleteDeadLetters { tenant, ids } => {
                env.read(self.node)?;
                let existing = existing_dead_letters(tenant, ids, env);
                self.shard.delete_dead_letters(tenant, &existing, out);
                self.answer(request, Said::Deleted(tenant, existing));
            }
            Task::Replay { tenant, replays } => return self.replay(request, tenant, replays, env, now),
            Task::PutQueue { tenant, name, parallelism, paused } => {
                self.shard.put_queue(tenant, &name, parallelism, paused, now, out);
                self.answer(request, Said::Done);
            }
            Task::PauseQueue { tenant, name, paused } => {
                if let Some(queue) = self.shard.queue(tenant, &name).filter(|queue| queue.paused != paused) {
                    let parallelism = queue.parallelism;
                    self.shard.put_queue(tenant, &name, parallelism, paused, now, out);
                }
                self.answer(request, Said::Done);
            }
            Task::DropQueue { tenant, name } => {
                self.shard.delete_queue(tenant, &name, now, out);
                self.answer(request, Said::Done);
            }
            Task::EditFlow { tenant, key, edit } => {
                self.shard.edit_flow(tenant, &key, edit, now, out);
                if matches!(edit, FlowEdit::Reset | FlowEdit::ResetRate | FlowEdit::Pin { .. }) {
                    let lets_go = edit == FlowEdit::Reset;
                    self.batch.notes.resets.push((tenant, FlowKey::of(tenant, &key), lets_go));
                }
                self.answer(request, Said::Done);
            }
            Task::PutSchedule(schedule) => self.put_schedule(request, *schedule, env, now),
            Task::PauseSchedule { tenant, id, paused } => self.pause_schedule(request, tenant, &id, paused, env, now),
            Task::DropSchedule { tenant, id } => self.drop_schedule(request, tenant, id),
            Task::Drain => {
                self.shard.drain();
                self.batch.drains = true;
                self.answer(request, Said::Done);
            }
        }
        Ok(())
    }

    /// Whether the store must know everything that was decided before.
    fn needs_truth(&mut self, task: &Task, env: &mut Env) -> Result<bool, Stop> {
        Ok(match task {
            Task::Cancel { .. } | Task::DeleteDeadLetters { .. } | Task::Replay { .. } => true,
            Task::Run { tenant, task } => match &**task {
                RunTask::Notify { .. } | RunTask::BeginAgain { .. } => true,
                // What came with the event is in the store alone, and may be in the batch still.
                RunTask::Wait { run, event, .. } => self.has_early(*tenant, run, event, env)?,
                _ => false,
            },
            Task::PutSchedule(schedule) => self.firing.contains(schedule.tenant, &schedule.id),
            Task::PauseSchedule { tenant, id, .. } => self.firing.contains(*tenant, id),
            _ => false,
        })
    }

    fn forgets_truth(&self, task: &Task, env: &Env) -> bool {
        match task {
            Task::Cancel { .. } => env.has(Bug::CancelWithoutCommit),
            Task::Run { task, .. } if matches!(**task, RunTask::Wait { .. }) => env.has(Bug::EarlyReadWithoutCommit),
            Task::Run { .. } => env.has(Bug::NotifyWithoutCommit),
            _ => false,
        }
    }

    pub(super) fn answer(&mut self, request: RequestId, said: Said) {
        self.batch.answers.push(Answer { request, said });
    }

    fn publish(&mut self, request: RequestId, drafts: Vec<Draft>, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        env.read(self.node)?;
        let find = |draft: &Draft| draft.dedup.and_then(|key| env.store.find_duplicate(draft.tenant, key, now));
        let stored: Vec<Option<MessageId>> = drafts.iter().map(find).collect();
        let mut said = Vec::with_capacity(drafts.len());
        for (draft, stored) in drafts.into_iter().zip(stored) {
            let (tenant, dedup) = (draft.tenant, draft.dedup);
            said.push((self.accept(draft, stored, None, env, now), tenant, dedup));
        }
        let made = said.iter().map(|(accepted, ..)| *accepted).filter(|accepted| !accepted.deduplicated);
        env.judge.decided(request, made.map(|accepted| accepted.id).collect());
        self.answer(request, Said::Published(said));
        Ok(())
    }

    fn ended(&mut self, ended: Ended, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let Ended { message, outcome, sent, live, .. } = ended;
        let was_under_way = self.flights.remove(&(live.id, live.retried));
        if !was_under_way && !env.has(Bug::OutcomeTakenTwice) {
            return Ok(());
        }
        if let Some(step) = message.spec.workflow {
            self.batch.notes.steps.push((live, outcome.verdict(), sent));
            return self.step_ended(&message, step, &outcome, env, now);
        }
        let random = env.random.next_u64();
        let (callback, failure_callback) = (self.next_id(env, now), self.next_id(env, now));
        self.batch.notes.outcomes.push((live, outcome.verdict(), callback, failure_callback));
        env.tell(Some(live.id), || format!("node {} receives {:?}", self.node, outcome.verdict()));
        let chance = Chance { random, callback, failure_callback, storage: Storage::Free };
        self.shard.ended(&message, outcome, chance, now, &mut self.batch.out);
        Ok(())
    }

    fn cancel(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        ids: &[MessageId],
        env: &mut Env,
        now: Timestamp,
    ) -> Result<(), Stop> {
        env.read(self.node)?;
        let rows: Vec<_> =
            ids.iter().filter_map(|id| env.store.live_row(*id)).filter(|row| row.tenant == tenant).collect();
        self.shard.cancel(&rows, now, &mut self.batch.out);
        let is_fresh = |row: &&Live| !row.cancel_requested && !row.is_step;
        let fresh = rows.iter().filter(is_fresh).map(|row| row.id).collect();
        self.answer(request, Said::Cancelled(fresh));
        Ok(())
    }

    fn replay(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        replays: Vec<(DlqId, Draft)>,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<(), Stop> {
        env.read(self.node)?;
        let ids = replays.iter().map(|(dlq_id, _)| *dlq_id).collect();
        let mut existing: BTreeSet<DlqId> = existing_dead_letters(tenant, ids, env).into_iter().collect();
        let mut said = Vec::new();
        for (dlq_id, draft) in replays {
            let stored = draft.dedup.and_then(|key| env.store.find_duplicate(tenant, key, now));
            let exists = existing.remove(&dlq_id);
            let accepted = exists.then(|| self.accept(draft, stored, Some(dlq_id), env, now));
            if let Some(Accepted { id, deduplicated: false }) = accepted {
                self.batch.notes.replays.push((tenant, dlq_id, id));
            }
            said.push((dlq_id, accepted));
        }
        let made = said.iter().filter_map(|(_, accepted)| *accepted).filter(|accepted| !accepted.deduplicated);
        env.judge.decided(request, made.map(|accepted| accepted.id).collect());
        self.answer(request, Said::Replayed(tenant, said));
        Ok(())
    }

    fn next_id(&mut self, env: &mut Env, now: Timestamp) -> MessageId {
        next_id(&mut self.last_seq, &mut env.random, now)
    }

    /// Gives a message its id and hands it to the engine.
    pub(super) fn accept(
        &mut self,
        draft: Draft,
        stored: Option<MessageId>,
        replaces: Option<DlqId>,
        env: &mut Env,
        now: Timestamp,
    ) -> Accepted {
        let id = self.next_id(env, now);
        let Draft { tenant, spec, body, delay_ms, origin, dedup } = draft;
        let not_before = now.plus_millis(delay_ms);
        env.tell(Some(id), || format!("is accepted by node {}: {}", self.node, describe(&spec, delay_ms)));
        let message = Arc::new(Message { id, tenant, created_at: now, not_before, spec, body });
        let dedup = dedup.map(|key| (key, stored));
        let publish = Publish { message, origin, dedup, replaces };
        self.shard.publish(publish, now, &mut self.batch.out)
    }
}

/// A new id, behind all that were made.
pub(super) fn next_id(last_seq: &mut Seq, random: &mut Random, now: Timestamp) -> MessageId {
    *last_seq = Seq::next(*last_seq, now);
    MessageId { seq: *last_seq, tag: random.next_u64() }
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.out.ops.is_empty() && self.answers.is_empty()
    }
}

/// Which of these exist, each once.
fn existing_dead_letters(tenant: TenantId, mut ids: Vec<DlqId>, env: &Env) -> Vec<DlqId> {
    ids.sort_unstable();
    ids.dedup();
    ids.retain(|dlq_id| env.store.dead_letters.contains_key(&(tenant, *dlq_id)));
    ids
}

fn describe(spec: &posthaste_engine::message::MessageSpec, delay_ms: u64) -> String {
    let mut text = format!("to {}, {} retries", spec.url, spec.retries);
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
