//! A process that owns the shard while it has the lease: what `core/run.rs` of the server does, with time and the
//! store passed in.
//!
//! A commit takes time here, and anything can happen meanwhile: so a round is a [`Stage`] that waits for the commit
//! and goes on after it. Nothing else of the contract differs: decide, commit, answer, start.

mod bulk;
mod commands;
mod commit;
mod firing;
mod handle;
mod remembered;
mod runs;
mod telling;
mod turns;
mod witness;

use crate::agenda::Event;
use crate::bug::Bug;
use crate::command::{Command, RequestId};
use crate::env::Env;
use crate::store::{CommitError, Named};
use commands::Answers;
pub(crate) use commit::{CommitRequest, Fate};
use commit::{Margin, Pending};
use posthaste_engine::event::Op;
use posthaste_engine::lease::Tenure;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::shard::Shard;
use posthaste_node::{Bounds, Firing, Node, Quotas, Round};
use posthaste_wire::id::{MessageId, Seq};
use posthaste_wire::time::Timestamp;
pub(crate) use remembered::Remembered;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Commands taken into one batch.
const BATCH_COMMANDS_MAX: usize = 32;
/// Rows after which a round reads no further page.
const LOAD_ROWS_MAX: usize = 64;
/// What was written lazily is on disk after at most about this long.
const FLUSH_AFTER_MS: u64 = 200;
/// How often unused keys are looked for.
const RETENTION_EVERY_MS: u64 = 60_000;
/// Idle flow-control keys looked at in one round.
const IDLE_FLOWS_MAX: usize = 8;
/// Rounds without any time passing after which an owner is called busy for nothing.
const IDLE_ROUNDS_MAX: u32 = 300;

/// No seed comes near.
const QUOTAS: Quotas = Quotas { queues: 1_000, flow_keys: 1_000, schedules: 1_000 };
/// So small that firings and publishes take several rounds, and several commits.
const BOUNDS: Bounds = Bounds {
    batch_bytes: 1_400,
    batch_messages: 4,
    piece_messages: 2,
    piece_bytes: 600,
    turn_bytes: 3_000,
    fired: 4,
    fired_read: 2,
    fired_messages: 3,
    fired_bytes: 60,
};

/// Why a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is killed.
    Crash,
    /// The store failed.
    Store(CommitError),
    /// Its lease is over, by its own clock.
    LeaseOver,
    /// It was asked to, and has nothing under way any more.
    Drained,
}

/// How far a round has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Commands,
    Wake,
    Turn,
    Fire,
    Load(usize),
    Rest,
}

/// The owner of the shard, or a process that takes itself for the owner.
pub(crate) struct Owner {
    node: usize,
    incarnation: u64,
    pub tenure: Tenure,
    engine: Node,
    round: Round,
    /// Answers that have left the node, and have yet to reach the judge.
    answers: Answers,
    /// Schedules that fire, while a commit between them is waited for.
    firing: Option<Firing>,
    inbox: VecDeque<Command>,
    taken: usize,
    margin: Margin,
    stage: Stage,
    /// The batch that is being committed, without its ops.
    waits: Option<(Pending, Margin)>,
    waits_synced: bool,
    unsynced_since_ms: Option<u64>,
    wake_at_ms: Option<u64>,
    retain_at_ms: u64,
    /// The clock when the present round began: a commit later it is stale.
    wake_now: Timestamp,
    /// Attempts that have not ended.
    flights: BTreeSet<(MessageId, u32)>,
    idle_rounds: u32,
    /// It has said that it starts nothing more.
    drained: bool,
    /// An op that a planted bug leaves to the next commit.
    later: Option<Op>,
    /// The piece of a bulk action that is asked for.
    bulk: Option<RequestId>,
    /// The runs that it remembers.
    runs: BTreeMap<Seq, Remembered>,
}

impl Owner {
    /// A process that has just got the lease; nothing is loaded yet.
    pub(crate) fn new(node: usize, incarnation: u64, tenure: Tenure, env: &Env, now: Timestamp) -> Owner {
        let store = &env.store;
        let mut shard = Shard::new(env.swarm.settings);
        let queues =
            if env.has(Bug::QueuesNotRestored) { Vec::new() } else { store.queues.values().cloned().collect() };
        shard.restore(queues, store.flows.values().cloned().collect(), now);
        let last_seq = if env.has(Bug::PositionsForgotten) { Seq::MIN } else { store.last_seq.0 };
        let mut engine = Node::new(shard, QUOTAS, BOUNDS, last_seq);
        let state = |((tenant, id), schedule): (&Named, &Schedule)| (*tenant, id.clone(), schedule.state.clone());
        engine.restore_schedules(store.schedules.iter().map(state));
        Owner {
            node,
            incarnation,
            tenure,
            engine,
            round: Round::default(),
            answers: Answers::default(),
            firing: None,
            inbox: VecDeque::new(),
            taken: 0,
            margin: Margin::default(),
            stage: Stage::Wake,
            waits: None,
            waits_synced: false,
            unsynced_since_ms: None,
            wake_at_ms: None,
            retain_at_ms: env.now_ms,
            wake_now: now,
            flights: BTreeSet::new(),
            idle_rounds: 0,
            drained: false,
            later: None,
            bulk: None,
            runs: BTreeMap::new(),
        }
    }

    /// Something was asked for.
    pub(crate) fn take(&mut self, command: Command) {
        self.inbox.push_back(command);
    }

    /// Goes on until there is nothing to do, or a commit to wait for.
    pub(crate) fn run(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        self.idle_rounds = 0;
        while self.waits.is_none() {
            match self.stage {
                Stage::Commands => self.take_command(env, now)?,
                Stage::Wake => {
                    self.wake_now = now;
                    self.engine.shard.wake(now, &mut self.engine.batch.out);
                    self.stage = Stage::Turn;
                    if !env.has(Bug::LoadBeforeCommit) {
                        self.commit(env, now)?;
                    }
                }
                Stage::Turn => self.take_turn(env, now)?,
                Stage::Fire => self.fire_schedules(env, now)?,
                Stage::Load(read) => self.load(read, env, now)?,
                Stage::Rest => {
                    (self.stage, self.taken) = (Stage::Commands, 0);
                    self.work_on_bulk(env, now)?;
                    if self.rests(env, now) {
                        let is_over = self.drained && self.flights.is_empty();
                        return if is_over { Err(Stop::Drained) } else { Ok(()) };
                    }
                }
            }
        }
        Ok(())
    }

    /// The store has answered.
    pub(crate) fn committed(
        &mut self,
        result: Result<(), CommitError>,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let Some((batch, margin)) = self.waits.take() else { return Ok(()) };
        if let Err(error) = result {
            if env.has(Bug::AnswerAfterFailure) {
                let mut done = batch.committed();
                while done.reply_next() {}
                self.pass_on_answers(env);
            }
            if env.has(Bug::UnknownMeansFailed) && error == CommitError::Unknown {
                for command in margin.commands {
                    let node = self.node;
                    env.agenda.plan(env.now_ms + 20_000, Event::Arrive { node, command: Box::new(command) });
                }
            }
            return Err(Stop::Store(error));
        }
        env.crash_point("after a commit, before it has answered")?;
        self.engine.shard.committed(now);
        if self.waits_synced {
            self.unsynced_since_ms = None;
        } else {
            self.unsynced_since_ms.get_or_insert(env.now_ms);
        }
        self.finish(batch.committed(), margin, env, now)?;
        self.run(env, now)
    }

    /// When the process should look at its clock, it does.
    pub(crate) fn woken(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        if self.wake_at_ms.is_some_and(|at_ms| at_ms <= env.now_ms) {
            self.wake_at_ms = None;
        }
        self.run(env, now)
    }

    /// The next command. Commands of the node that come one after the other are a round.
    fn take_command(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let is_full = self.taken >= BATCH_COMMANDS_MAX;
        if let Some(command) = self.inbox.pop_front_if(|command| !is_full && commands::is_for_node(&command.task)) {
            self.taken += 1;
            self.push(command, env);
            return Ok(());
        }
        self.decide_round(env, now)?;
        if self.waits.is_some() {
            return Ok(());
        }
        match if is_full { None } else { self.inbox.pop_front() } {
            Some(command) => {
                self.taken += 1;
                self.handle(command, env, now)
            }
            None => {
                self.stage = Stage::Wake;
                Ok(())
            }
        }
    }

    /// One page of what the shard asks for. It is committed before the next is read, because a load must see all
    /// that the shard has decided.
    fn load(&mut self, read: usize, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let fresh = now;
        let now = if env.has(Bug::StaleClock) { self.wake_now } else { now };
        let wanted = self.engine.shard.wants_load(now).filter(|_| read < LOAD_ROWS_MAX);
        let Some(load) = wanted else {
            self.stage = Stage::Rest;
            self.forget_idle_flows(env, now);
            return self.commit(env, fresh);
        };
        env.read(self.node)?;
        let rows = env.store.load(&load);
        self.stage = Stage::Load(read + rows.len() + 1);
        self.engine.shard.loaded(&load, &rows, now, &mut self.engine.batch.out);
        if self.engine.batch.out.ops.is_empty() || env.has(Bug::LoadBeforeCommit) {
            Ok(())
        } else {
            self.commit(env, fresh)
        }
    }

    fn forget_idle_flows(&mut self, env: &Env, now: Timestamp) {
        if env.now_ms < self.retain_at_ms {
            return;
        }
        self.retain_at_ms = env.now_ms + RETENTION_EVERY_MS;
        for (tenant, flow) in self.engine.shard.idle_flows(now, IDLE_FLOWS_MAX) {
            let has_messages = env.store.live.values().any(|row| row.tenant == tenant && row.flow == Some(flow));
            self.engine.shard.forget_flow((tenant, flow), has_messages, now, &mut self.engine.batch.out);
        }
    }

    /// Whether there is nothing to do for now; plans when to look again.
    fn rests(&mut self, env: &mut Env, now: Timestamp) -> bool {
        self.idle_rounds += 1;
        if self.idle_rounds > IDLE_ROUNDS_MAX {
            env.judge.blame("an owner rests when there is nothing to do", None, env.now_ms, || {
                format!("node {} goes round without end", self.node)
            });
            return true;
        }
        let has_work = !self.inbox.is_empty() || !self.round.is_empty() || self.engine.has_turns();
        if has_work || self.engine.shard.wants_load(now).is_some() {
            return false;
        }
        let next = self.engine.shard.next_wake().min(self.engine.schedules.next_wake(now));
        if next <= now {
            return false;
        }
        let flush_at = self.unsynced_since_ms.map(|since| (since + FLUSH_AFTER_MS).max(env.now_ms + 1));
        let due_at = env.now_ms.saturating_add(next.millis_since(now));
        let at_ms = flush_at.map_or(due_at, |flush_at| flush_at.min(due_at));
        if next < Timestamp::MAX || flush_at.is_some() {
            self.wake_by(at_ms, env);
        }
        true
    }

    /// Looks at the clock at this time or before.
    pub(crate) fn wake_by(&mut self, at_ms: u64, env: &mut Env) {
        if self.wake_at_ms.is_none_or(|planned| at_ms < planned) {
            self.wake_at_ms = Some(at_ms);
            env.agenda.plan(at_ms, Event::Wake { node: self.node, incarnation: self.incarnation });
        }
    }
}
