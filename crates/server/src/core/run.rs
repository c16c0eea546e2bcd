//! The loop of the core thread: gather, decide, commit, answer.

use super::clock_watch::ClockWatch;
use super::inbox::Inbox;
use super::run_cache::RunCache;
use super::runs::{ToSend, nothing_sent};
use super::schedules::Firing;
use super::stats::Activity;
use super::tasks::{PublishMany, TURN_PAUSE, Task, Tasks};
use super::{Attempts, Command, FirstDue, NewMessage, Permits, QuotaExceeded, Reply, stored_bytes};
use crate::clock::{Clock, Random};
use crate::data_dir::Disk;
use crate::dev_output::AttemptReport;
use crate::metrics::Metrics;
use crate::quotas::Quotas;
use posthaste_engine::event::{DeadLetter, Op};
use posthaste_engine::message::{Live, Message};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::shard::{Accepted, AttemptEnd, Chance, Effect, Output, Publish, Settings, Shard};
use posthaste_faults::crash_point::{ANSWER_BEFORE_COMMIT, ENABLED, HASTE, crash_point, is_planted};
use posthaste_store::{Durability, Epoch, Retention, ShardId, Store, StoreError};
use posthaste_wire::id::{DlqId, MessageId, Seq};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The embedded store has one shard.
const SHARD: ShardId = ShardId(0);
/// Commands taken into one batch.
const BATCH_COMMANDS_MAX: usize = 512;
/// Bytes of new bodies after which a batch is committed even if more is waiting.
pub(super) const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Ops for which a batch keeps room when it is committed.
const ROOM_KEPT: usize = 4 * BATCH_COMMANDS_MAX;
/// Rows after which a round reads no further page.
const LOAD_ROWS_MAX: usize = 512;
/// The clock is looked at this often, whatever timers say: wall clocks jump.
const CLOCK_CHECK: Duration = Duration::from_secs(5);
/// What was written lazily is on disk after at most about this long.
const FLUSH_AFTER: Duration = Duration::from_millis(200);
/// How often retention is looked at.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// How long retention pauses between two pieces of work, so that others go on.
const RETENTION_PAUSE: Duration = Duration::from_millis(20);

/// The core thread's state.
pub struct Core {
    pub(super) store: Arc<dyn Store>,
    pub(super) shard: Shard,
    pub(super) epoch: Epoch,
    pub(super) commands: Inbox,
    pub(super) attempts: Arc<Attempts>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) retention: Retention,
    pub(super) settings: Settings,
    pub(super) quotas: Quotas,
    pub(super) disk: Disk,
    pub(super) firing: Firing,
    pub(super) runs: RunCache,
    pub(super) activity: Activity,
    pub(super) last_seq: Seq,
    pub(super) random: Random,
    pub(super) batch: Batch,
    /// Commands about many runs that are not done yet, each taking its turn.
    pub(super) tasks: Tasks,
    unsynced_since: Option<Instant>,
    clock_watch: ClockWatch,
    /// By [`Clock::uptime`].
    retain_at: Duration,
}

/// What gathers until the next commit.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) out: Output,
    pub(super) answers: Vec<Box<dyn FnOnce() + Send>>,
    pub(super) body_bytes: usize,
}

impl Batch {
    /// The same room for another batch.
    fn emptied(mut self) -> Batch {
        self.answers.clear();
        self.out.ops.clear();
        self.out.ops.shrink_to(ROOM_KEPT);
        self.out.effects.clear();
        Batch { out: Output { synced: false, ..self.out }, answers: self.answers, body_bytes: 0 }
    }
}

/// Why the core ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum CoreFailure {
    /// The store could not be read or written.
    #[error("the store failed; rejecting all requests")]
    Store(#[from] StoreError),
    /// What it has decided since the last commit is lost with it, and nobody was told of it.
    #[error("the core thread panicked, as logged above; rejecting all requests")]
    Panicked,
}

pub(super) enum Flow {
    Go,
    Stop,
}

impl Core {
    /// Takes the shard and gets ready; nothing is loaded yet.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        commands: Inbox,
        attempts: Arc<Attempts>,
        retention: Retention,
        quotas: Quotas,
        disk: Disk,
    ) -> Result<Core, StoreError> {
        let (clock, metrics) = (attempts.clock.clone(), attempts.metrics.clone());
        let now = clock.now();
        let epoch = store.lease(SHARD, now)?;
        crash_point("start_leased");
        let last_seq = store.last_seq()?;
        let firing = Firing::load(store.as_ref())?;
        let activity = Activity::default();
        metrics.set_runs(store.live_runs()?, store.failed_runs()?);
        let mut shard = Shard::new(settings);
        shard.restore(store.queues(None)?, store.flows()?, now);
        crash_point("start_restored");
        Ok(Core {
            store,
            shard,
            settings,
            quotas,
            epoch,
            commands,
            attempts,
            clock,
            metrics,
            retention,
            disk,
            firing,
            runs: RunCache::default(),
            activity,
            batch: Batch::default(),
            tasks: Tasks::default(),
            last_seq,
            random: Random::new(),
            unsynced_since: None,
            clock_watch: ClockWatch::default(),
            retain_at: Duration::ZERO,
        })
    }

    /// Runs until it is told to stop, or until the store fails.
    pub fn run(mut self) -> Result<(), CoreFailure> {
        loop {
            match self.step()? {
                Flow::Go => {}
                Flow::Stop => return Ok(()),
            }
        }
    }

    /// One round: what has arrived, what has become due, one page of what must be loaded.
    fn step(&mut self) -> Result<Flow, CoreFailure> {
        self.store.check()?;
        let mut flow = Flow::Go;
        let mut next = self.wait();
        let mut taken = 0;
        while let Some(command) = next.take() {
            flow = self.handle(command)?;
            taken += 1;
            self.commit_if_large()?;
            if taken < BATCH_COMMANDS_MAX && matches!(flow, Flow::Go) {
                next = self.commands.next();
            }
        }
        self.shard.wake(self.clock.now(), &mut self.batch.out);
        self.commit()?;
        self.go_on(&flow)?;
        self.fire_schedules()?;
        self.load()?;
        self.retain(self.clock.now())?;
        Ok(flow)
    }

    /// The next command, or `None` when it is time to look at the clock.
    fn wait(&mut self) -> Option<Command> {
        if let Some(command) = self.commands.next() {
            return Some(command);
        }
        let now = self.clock.now();
        let tasks_wait = !self.tasks.is_empty();
        if self.shard.wants_load(now).is_some() || (tasks_wait && self.tasks_have_turns()) {
            return None;
        }
        let next_due = self.shard.next_wake().min(self.firing.next_wake(&self.disk, now));
        let until_due = Duration::from_millis(next_due.millis_since(now));
        let until_flush = self.unsynced_since.map(|since| FLUSH_AFTER.saturating_sub(since.elapsed()));
        let until_retention = self.retain_at.saturating_sub(self.clock.uptime());
        let until_turn = if tasks_wait { TURN_PAUSE } else { CLOCK_CHECK };
        let patience = until_due.min(until_turn).min(until_flush.unwrap_or(CLOCK_CHECK)).min(until_retention);
        self.commands.wait(patience)
    }

    fn handle(&mut self, command: Command) -> Result<Flow, CoreFailure> {
        let now = self.clock.now();
        match command {
            Command::Publish { messages, reply } => self.publish(messages, reply, now)?,
            Command::Ended { message, outcome, room } => self.attempt_ended(message, outcome, room, now)?,
            Command::Cancel { tenant, ids, reply } => {
                let cancelled = self.cancel(tenant, &ids)?;
                self.batch.answers.push(Box::new(move || reply.send(cancelled)));
            }
            Command::Hasten { tenant, id, reply } => self.hasten(tenant, id, reply)?,
            Command::Why { row, reply } => reply.send(self.shard.why(&row, now)),
            Command::DeleteDeadLetters { tenant, ids, reply } => {
                let deleted = self.delete_dead_letters(tenant, ids)?;
                self.batch.answers.push(Box::new(move || reply.send(deleted)));
            }
            Command::Replay { tenant, replays, reply } => {
                let accepted = self.replay(tenant, replays)?;
                self.batch.answers.push(Box::new(move || reply.send(accepted)));
            }
            Command::PutSchedule { schedule, reply } => self.put_schedule(*schedule, reply, now)?,
            Command::PauseSchedule { tenant, id, paused, reply } => {
                self.pause_schedule(tenant, id, paused, reply, now)?;
            }
            Command::Reschedule { tenant, id, cron, reply } => self.reschedule(tenant, id, &cron, reply, now)?,
            Command::DropSchedule { tenant, id, reply } => self.drop_schedule(tenant, id, reply),
            Command::PutQueue { tenant, name, settings, reply } => self.put_queue(tenant, &name, settings, reply, now),
            Command::PauseQueue { tenant, name, paused, reply } => self.pause_queue(tenant, &name, paused, reply, now),
            Command::DropQueue { tenant, name, reply } => {
                self.shard.delete_queue(tenant, &name, now, &mut self.batch.out);
                self.batch.answers.push(Box::new(move || reply.send(())));
            }
            Command::EditFlow { tenant, key, edit, reply } => self.edit_flow(tenant, &key, edit, reply, now),
            Command::Flow { tenant, key, reply } => {
                let flow = self.shard.flow(tenant, &key, now);
                self.batch.answers.push(Box::new(move || reply.send(flow)));
            }
            Command::Flows { tenant, page, reply } => self.flows(tenant, &page, reply, now),
            Command::Parallelism { tenant, reply } => self.parallelism(tenant, reply),
            Command::Stats { tenant, reply } => self.stats(tenant, reply, now),
            Command::Listen { listener } => self.activity.listeners.add(listener),
            Command::PutBulkAction { action, piece, reply } => self.put_bulk_action(*action, piece, reply, now)?,
            Command::StartRuns { .. }
            | Command::Append { .. }
            | Command::WaitForEvent { .. }
            | Command::Notify { .. }
            | Command::NotifyRun { .. }
            | Command::FinishRun { .. }
            | Command::CancelRun { .. }
            | Command::CancelRuns { .. }
            | Command::BeginAgain { .. }
            | Command::DropFailedRuns { .. }
            | Command::EditFailureCall { .. } => self.handle_run(command, now)?,
            Command::Tick => {}
            Command::Drain { reply } => {
                self.shard.drain();
                self.batch.answers.push(Box::new(move || reply.send(())));
            }
            Command::Stop => return Ok(Flow::Stop),
        }
        Ok(Flow::Go)
    }

    fn attempt_ended(
        &mut self,
        message: Arc<Message>,
        outcome: Outcome,
        room: Permits,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        crash_point("outcome_arrived");
        if !room.is_empty() {
            self.batch.answers.push(Box::new(move || drop(room)));
        }
        self.batch.body_bytes += told_bytes(&message, &outcome);
        self.activity.attempted(&message, &outcome, now);
        let storage = self.storage_of(message.tenant);
        let report = self.attempts.reports.is_some().then(|| attempted(&outcome)).flatten();
        if let Some(step) = message.spec.workflow {
            let end = self.step_ended(&message, step, outcome, storage, now)?;
            self.report(message, report, end, now);
            crash_point("outcome_decided");
            return Ok(());
        }
        let random = self.random.next_u64();
        let (callback, failure_callback) = (self.next_id(now), self.next_id(now));
        let chance = Chance { random, callback, failure_callback, storage };
        let end = self.shard.ended(&message, outcome, chance, now, &mut self.batch.out);
        self.report(message, report, end, now);
        crash_point("outcome_decided");
        if ENABLED {
            self.batch.answers.push(Box::new(|| crash_point("outcome_committed")));
        }
        Ok(())
    }

    /// Reports an attempt to the terminal of a developer once its outcome is stored.
    fn report(
        &mut self,
        message: Arc<Message>,
        attempted: Option<(Result<u16, String>, u64)>,
        end: AttemptEnd,
        at: Timestamp,
    ) {
        let (Some(reports), Some((result, duration_ms))) = (self.attempts.reports.clone(), attempted) else { return };
        let AttemptEnd { retried, next } = end;
        let report = AttemptReport { message, result, duration_ms, retried, next, at };
        self.batch.answers.push(Box::new(move || reports.send(report)));
    }

    fn publish(
        &mut self,
        messages: Vec<NewMessage>,
        reply: Reply<Result<Vec<Accepted>, QuotaExceeded>>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        if let Err(exceeded) = self.check_quotas(messages.iter()) {
            reply.send(Err(exceeded));
            return Ok(());
        }
        if let Some(NewMessage { tenant, .. }) = messages.first()
            && (messages.len() > BATCH_COMMANDS_MAX || stored_bytes(&messages) > BATCH_BYTES_MAX)
        {
            let tenant = *tenant;
            let (accepted, messages) = (Vec::with_capacity(messages.len()), messages.into());
            self.tasks.push(tenant, Task::Publish(PublishMany { messages, accepted, reply }));
            return Ok(());
        }
        let accepted = self.accept_all(messages, now)?;
        crash_point("publish_accepted");
        self.batch.answers.push(Box::new(move || reply.send(Ok(accepted))));
        Ok(())
    }

    /// Gives messages their ids and hands them to the engine, unless they are duplicates.
    pub(super) fn accept_all(
        &mut self,
        messages: Vec<NewMessage>,
        now: Timestamp,
    ) -> Result<Vec<Accepted>, CoreFailure> {
        let duplicates = self.find_duplicates(messages.iter(), now)?;
        self.batch.body_bytes += stored_bytes(&messages);
        let accept = |(message, stored)| self.accept(message, stored, None, now);
        let accepted: Vec<Accepted> = messages.into_iter().zip(duplicates).map(accept).collect();
        self.metrics.published(&accepted);
        Ok(accepted)
    }

    /// What the store has for the keys of these messages.
    pub(super) fn find_duplicates<'a>(
        &self,
        messages: impl Iterator<Item = &'a NewMessage> + Clone,
        now: Timestamp,
    ) -> Result<Vec<Option<MessageId>>, CoreFailure> {
        let keys: Vec<_> = messages.clone().filter_map(|message| Some((message.tenant, message.dedup?))).collect();
        if keys.is_empty() {
            return Ok(messages.map(|_| None).collect());
        }
        let mut found = self.store.find_duplicates(&keys, now)?.into_iter();
        Ok(messages.map(|message| message.dedup.and_then(|_| found.next().flatten())).collect())
    }

    pub(super) fn next_id(&mut self, now: Timestamp) -> MessageId {
        next_id(&mut self.last_seq, &mut self.random, now)
    }

    /// Gives a message its id and hands it to the engine. Whoever calls it counts the body.
    pub(super) fn accept(
        &mut self,
        new: NewMessage,
        stored: Option<MessageId>,
        replaces: Option<DlqId>,
        now: Timestamp,
    ) -> Accepted {
        let id = self.next_id(now);
        let not_before = match new.first_due {
            FirstDue::Now => now,
            FirstDue::AfterMs(millis) => now.plus_millis(millis),
            FirstDue::At(time) => time.max(now),
        };
        let message =
            Arc::new(Message { id, tenant: new.tenant, created_at: now, not_before, spec: new.spec, body: new.body });
        let dedup = new.dedup.map(|key| (key, stored));
        let publish = Publish { message, origin: new.origin, dedup, replaces };
        self.shard.publish(publish, now, &mut self.batch.out)
    }

    /// Commits the batch; then, and only then, answers callers and starts attempts.
    pub(super) fn commit(&mut self) -> Result<(), CoreFailure> {
        let mut batch = std::mem::take(&mut self.batch);
        if is_planted(ANSWER_BEFORE_COMMIT) {
            batch.answers.drain(..).for_each(|answer| answer());
        }
        if !batch.out.ops.is_empty() {
            self.write(&batch.out)?;
        } else if self.unsynced_since.is_some_and(|since| since.elapsed() >= FLUSH_AFTER) {
            crash_point("before_flush");
            self.store.flush()?;
            crash_point("after_flush");
            self.unsynced_since = None;
        }
        for answer in batch.answers.drain(..) {
            answer();
            crash_point("between_answers");
        }
        crash_point("after_answer");
        self.runs.trim();
        self.start(batch.out.effects.drain(..))?;
        crash_point("after_start");
        self.batch = batch.emptied();
        Ok(())
    }

    fn write(&mut self, out: &Output) -> Result<(), CoreFailure> {
        let started = Instant::now();
        let flush = self.unsynced_since.is_some_and(|since| started.duration_since(since) >= FLUSH_AFTER);
        let durability = if out.synced || flush { Durability::Synced } else { Durability::Lazy };
        crash_point("before_commit");
        self.store.commit(SHARD, self.epoch, &out.ops, durability)?;
        crash_point("after_commit");
        self.metrics.committed(&out.ops, durability, started.elapsed());
        for letter in out.ops.iter().filter_map(buried) {
            let status = letter.response.as_ref().map_or(0, |response| response.status);
            tracing::warn!(msg.id = %letter.id, dlq.id = %letter.dlq_id, retried = letter.retried, status, "message failed and moved to the DLQ");
        }
        let now = self.clock.now();
        self.activity.committed(&out.ops, now);
        self.shard.committed(now);
        match durability {
            Durability::Synced => self.unsynced_since = None,
            Durability::Lazy => {
                self.unsynced_since.get_or_insert(started);
            }
        }
        Ok(())
    }

    fn start(&mut self, effects: impl Iterator<Item = Effect>) -> Result<(), CoreFailure> {
        let mut missing = Vec::new();
        for effect in effects {
            // Everything is committed, and lists may have been read.
            self.runs.trim();
            match effect {
                Effect::Start { live, message: Some(message) } => self.start_one(live, message)?,
                Effect::Start { live, message: None } => missing.push(live),
            }
        }
        if !missing.is_empty() {
            let ids: Vec<MessageId> = missing.iter().map(|live| live.id).collect();
            let messages = self.store.load_messages(&ids)?;
            for (live, message) in missing.into_iter().zip(messages) {
                self.runs.trim();
                self.start_one(live, message)?;
            }
        }
        self.metrics.set_load(self.shard.in_flight(), self.shard.held());
        Ok(())
    }

    fn start_one(&mut self, live: Live, message: Arc<Message>) -> Result<(), CoreFailure> {
        let (message, stored) = match message.spec.workflow {
            None => (message, None),
            Some(step) => match self.step_to_send(&live, message.clone(), step)? {
                ToSend::Message(message) => (message, None),
                ToSend::Stored(message, step) => (message, Some(step)),
                ToSend::Nothing => {
                    crash_point("run_nothing_sent");
                    self.attempts.core.ended(message, nothing_sent(), Permits::new());
                    return Ok(());
                }
            },
        };
        Ok(self.attempts.start(live, message, stored, self.random.bytes())?)
    }

    /// Reads a few pages of what the shard asks for. Each is committed before the next is read, because a
    /// load must see all that the shard has decided.
    fn load(&mut self) -> Result<(), CoreFailure> {
        let mut rows_read = 0;
        // A commit takes time, and keys count from its end: no decision is made with the time before it.
        let mut now = self.clock.now();
        while rows_read < LOAD_ROWS_MAX
            && let Some(load) = self.shard.wants_load(now)
        {
            let rows = self.store.load(SHARD, &load)?;
            crash_point("page_loaded");
            rows_read += rows.len() + 1;
            self.shard.loaded(&load, &rows, now, &mut self.batch.out);
            if !self.batch.out.ops.is_empty() || !self.batch.out.effects.is_empty() {
                self.commit()?;
                now = self.clock.now();
            }
        }
        Ok(())
    }

    fn retain(&mut self, now: Timestamp) -> Result<(), CoreFailure> {
        let uptime = self.clock.uptime();
        if uptime < self.retain_at {
            return Ok(());
        }
        self.retain_at = uptime + RETENTION_EVERY;
        self.forget_idle_flows(now)?;
        if !self.clock_watch.trusts(now, uptime) && !is_planted(HASTE) {
            return Ok(());
        }
        crash_point("before_retain");
        let retained = self.store.retain(&self.retention, now)?;
        crash_point("after_retain");
        self.metrics.runs_left_dlq(retained.failed_runs_dropped);
        if retained.buckets_dropped > 0 {
            tracing::info!(buckets = retained.buckets_dropped, "deleted history past its retention");
        }
        if retained.more {
            self.retain_at = self.clock.uptime() + RETENTION_PAUSE;
        }
        Ok(())
    }
}

/// A new id, behind all that were made.
pub(super) fn next_id(last_seq: &mut Seq, random: &mut Random, now: Timestamp) -> MessageId {
    *last_seq = Seq::next(*last_seq, now);
    MessageId { seq: *last_seq, tag: random.next_u64() }
}

/// Bytes that an outcome brings into the batch: the answer, and what callbacks repeat.
fn told_bytes(message: &Message, outcome: &Outcome) -> usize {
    let answer = outcome.result.as_ref().map_or(0, |response| response.body.len());
    let is_told = message.spec.callback.is_some() || message.spec.failure_callback.is_some();
    if is_told { 2 * (answer + message.body.len()) } else { answer }
}

/// What a report says of an attempt; `None` if nothing was sent.
fn attempted(outcome: &Outcome) -> Option<(Result<u16, String>, u64)> {
    let result = match &outcome.result {
        Ok(response) => Ok(response.status),
        Err(error) => Err(error.message.clone()),
    };
    (*outcome != nothing_sent()).then_some((result, outcome.duration_ms))
}

fn buried(op: &Op) -> Option<&DeadLetter> {
    match op {
        Op::Bury(letter) => Some(letter),
        _ => None,
    }
}
