//! The loop of the core thread: gather, decide, commit, answer.

use super::clock_watch::ClockWatch;
use super::facts;
use super::host::Surroundings;
use super::inbox::Inbox;
use super::run_cache::RunCache;
use super::runs::{ToSend, nothing_sent};
use super::stats::Activity;
use super::tasks::{TURN_PAUSE, Task};
use super::{Attempts, Command, Permits};
use crate::clock::{Clock, Random};
use crate::data_dir::Disk;
use crate::metrics::Metrics;
use crate::quotas::Quotas;
use posthaste_engine::event::{DeadLetter, Op};
use posthaste_engine::message::{Live, Message};
use posthaste_engine::shard::{Effect, Settings, Shard};
use posthaste_faults::crash_point::{ANSWER_BEFORE_COMMIT, HASTE, crash_point, is_planted};
use posthaste_node::{Bounds, Done, Moment, Next, Node, Round, Turns};
use posthaste_store::{Durability, Epoch, Retention, ShardId, Store, StoreError};
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The embedded store has one shard.
pub(crate) const SHARD: ShardId = ShardId(0);
/// Commands taken into one batch.
const BATCH_COMMANDS_MAX: usize = 512;
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
    pub(super) node: Node,
    round: Round,
    pub(super) epoch: Epoch,
    pub(super) commands: Inbox,
    pub(super) attempts: Arc<Attempts>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) retention: Retention,
    pub(super) settings: Settings,
    pub(super) quotas: Quotas,
    pub(super) runs: RunCache,
    pub(super) activity: Activity,
    pub(super) host: Surroundings,
    /// Commands about many runs that are not done yet, each taking its turn.
    pub(super) tasks: Turns<Task>,
    unsynced_since: Option<Instant>,
    clock_watch: ClockWatch,
    /// By [`Clock::uptime`].
    retain_at: Duration,
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
        let activity = Activity::default();
        metrics.set_runs(store.live_runs()?, store.failed_runs()?);
        let mut shard = Shard::new(settings);
        shard.restore(store.queues(None)?, store.flows()?, now);
        let Quotas { queues, flow_keys, schedules, .. } = quotas;
        let node_quotas = posthaste_node::Quotas { queues, flow_keys, schedules };
        let mut node = Node::new(shard, node_quotas, Bounds::default(), last_seq);
        node.restore_schedules(store.schedule_states()?);
        let host = Surroundings { random: Random::new(), metrics: metrics.clone(), store: store.clone(), disk, quotas };
        crash_point("start_restored");
        Ok(Core {
            store,
            node,
            round: Round::default(),
            host,
            settings,
            quotas,
            epoch,
            commands,
            attempts,
            clock,
            metrics,
            retention,
            runs: RunCache::default(),
            activity,
            tasks: Turns::default(),
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
            match command {
                Command::Node(command) => self.round.push(command, &self.node),
                command => {
                    self.decide_round()?;
                    flow = self.handle(command)?;
                    self.commit_if_large()?;
                }
            }
            taken += 1;
            if taken < BATCH_COMMANDS_MAX && matches!(flow, Flow::Go) {
                next = self.commands.next();
            }
        }
        self.decide_round()?;
        self.node.shard.wake(self.clock.now(), &mut self.node.batch.out);
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
        let tasks_wait = self.has_tasks();
        if self.node.shard.wants_load(now).is_some() || (tasks_wait && self.tasks_have_turns()) {
            return None;
        }
        let next_due = self.node.shard.next_wake().min(self.schedules_wake(now));
        let until_due = Duration::from_millis(next_due.millis_since(now));
        let until_flush = self.unsynced_since.map(|since| FLUSH_AFTER.saturating_sub(since.elapsed()));
        let until_retention = self.retain_at.saturating_sub(self.clock.uptime());
        let until_turn = if tasks_wait { TURN_PAUSE } else { CLOCK_CHECK };
        let patience = until_due.min(until_turn).min(until_flush.unwrap_or(CLOCK_CHECK)).min(until_retention);
        self.commands.wait(patience)
    }

    /// Decides the commands of the round, in their order. What they want to know is read for all of them at once.
    fn decide_round(&mut self) -> Result<(), CoreFailure> {
        loop {
            let now = self.clock.now();
            match self.round.next(&mut self.node, &mut Moment { now, host: &mut self.host }) {
                Next::Read(wanted) => self.round.found(facts::read(&*self.store, &wanted, now)?),
                Next::Commit => self.commit()?,
                Next::Decided => self.commit_if_large()?,
                Next::DeliverStep(step) => self.deliver_step_now(*step)?,
                Next::Done => return Ok(()),
            }
        }
    }

    fn handle(&mut self, command: Command) -> Result<Flow, CoreFailure> {
        let now = self.clock.now();
        match command {
            Command::Node(command) => self.round.push(command, &self.node),
            Command::Ended { message, outcome, room } => self.attempt_ended(message, outcome, room, now)?,
            Command::Run(command) => self.handle_run(command, now)?,
            Command::Why { row, reply } => reply.send(self.node.shard.why(&row, now)),
            Command::Parallelism { tenant, reply } => self.parallelism(tenant, reply),
            Command::Stats { tenant, reply } => self.stats(tenant, reply, now),
            Command::Listen { listener } => self.activity.listeners.add(listener),
            Command::Tick => {}
            Command::Drain { reply } => {
                self.node.shard.drain();
                self.node.batch.reply(reply, ());
            }
            Command::Stop => return Ok(Flow::Stop),
        }
        Ok(Flow::Go)
    }

    /// Commits the batch; then, and only then, answers callers and starts attempts.
    pub(super) fn commit(&mut self) -> Result<(), CoreFailure> {
        let mut batch = self.node.batch.take();
        let (ops, is_synced) = (batch.take_ops(), batch.is_synced());
        let mut early = is_planted(ANSWER_BEFORE_COMMIT).then(|| std::mem::take(&mut batch).committed());
        while early.as_mut().is_some_and(Done::reply_next) {}
        if !ops.is_empty() {
            self.write(&ops, is_synced)?;
        } else if self.unsynced_since.is_some_and(|since| since.elapsed() >= FLUSH_AFTER) {
            crash_point("before_flush");
            self.store.flush()?;
            crash_point("after_flush");
            self.unsynced_since = None;
        }
        self.round.committed();
        let mut done = early.unwrap_or_else(|| batch.committed());
        while done.reply_next() {
            crash_point("between_answers");
        }
        crash_point("after_answer");
        self.runs.trim();
        self.start(done.effects())?;
        crash_point("after_start");
        self.node.batch.reuse(done, ops);
        Ok(())
    }

    fn write(&mut self, ops: &[Op], is_synced: bool) -> Result<(), CoreFailure> {
        let started = Instant::now();
        let flush = self.unsynced_since.is_some_and(|since| started.duration_since(since) >= FLUSH_AFTER);
        let durability = if is_synced || flush { Durability::Synced } else { Durability::Lazy };
        crash_point("before_commit");
        self.store.commit(SHARD, self.epoch, ops, durability)?;
        crash_point("after_commit");
        self.metrics.committed(ops, durability, started.elapsed());
        for letter in ops.iter().filter_map(buried) {
            let status = letter.response.as_ref().map_or(0, |response| response.status);
            tracing::warn!(msg.id = %letter.id, dlq.id = %letter.dlq_id, retried = letter.retried, status, "message failed and moved to the DLQ");
        }
        let now = self.clock.now();
        self.activity.committed(ops, now);
        self.node.shard.committed(now);
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
        self.metrics.set_load(self.node.shard.in_flight(), self.node.shard.held());
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
        Ok(self.attempts.start(live, message, stored, self.host.random.bytes())?)
    }

    /// Reads a few pages of what the shard asks for. Each is committed before the next is read, because a
    /// load must see all that the shard has decided.
    fn load(&mut self) -> Result<(), CoreFailure> {
        let mut rows_read = 0;
        // A commit takes time, and keys count from its end: no decision is made with the time before it.
        let mut now = self.clock.now();
        while rows_read < LOAD_ROWS_MAX
            && let Some(load) = self.node.shard.wants_load(now)
        {
            let rows = self.store.load(SHARD, &load)?;
            crash_point("page_loaded");
            rows_read += rows.len() + 1;
            self.node.shard.loaded(&load, &rows, now, &mut self.node.batch.out);
            if !self.node.batch.out.ops.is_empty() || !self.node.batch.out.effects.is_empty() {
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

fn buried(op: &Op) -> Option<&DeadLetter> {
    match op {
        Op::InsertDeadLetter(letter) => Some(letter),
        _ => None,
    }
}
