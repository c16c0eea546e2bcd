//! Commits of an owner: what goes to the store, and what happens when it is there.

use super::{FLUSH_AFTER_MS, Owner, Remembered, Stop};
use crate::agenda::Event;
use crate::bug::Bug;
use crate::command::Command;
use crate::env::Env;
use crate::judge::start::Start;
use crate::store::CommitError;
use posthaste_engine::event::Op;
use posthaste_engine::message::{FlowKey, Live};
use posthaste_engine::outcome::Verdict;
use posthaste_engine::shard::Effect;
use posthaste_node::{Done, Uncommitted};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;

/// What an owner sends to the store.
#[derive(Debug)]
pub(crate) struct CommitRequest {
    pub node: usize,
    pub incarnation: u64,
    pub epoch: u64,
    pub ops: Vec<Op>,
    pub synced: bool,
    /// How often the power was cut before: what is under way then is lost.
    pub cuts: u64,
    pub notes: Notes,
    pub fate: Fate,
    /// It was held up on its way.
    pub is_late: bool,
}

/// What becomes of a commit, unless it is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Written,
    Refused,
    /// The owner hears that it is unknown.
    UnknownWritten,
    UnknownLost,
    /// The owner has heard so already, and now it is written after all.
    UnknownLate,
}

/// What the judge must know of a batch besides its ops.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Attempts that ended, what they brought, and the ids for callbacks.
    pub outcomes: Vec<(Live, Verdict, MessageId, MessageId)>,
    /// Dead letters that were published again as these messages.
    pub replays: Vec<(TenantId, DlqId, MessageId)>,
    /// Attempts of messages of runs that ended, what they brought, and whether anything was sent.
    pub steps: Vec<(Live, Verdict, bool)>,
    /// Failed runs that go on as these.
    pub resumed: Vec<(Seq, Seq)>,
    /// The runs that it is about, as the owner remembers them.
    pub runs: Vec<Remembered>,
    /// Keys whose starts were forgotten on purpose, and whether what is under way was let go.
    pub resets: Vec<(TenantId, FlowKey, bool)>,
    /// The clock of the owner.
    pub clock: Timestamp,
}

/// What the simulation notes about the batch that gathers.
#[derive(Debug, Default)]
pub(super) struct Margin {
    pub(super) notes: Notes,
    /// What was asked for, if it may have to be done again.
    pub(super) commands: Vec<Command>,
    /// From then on nothing starts.
    pub(super) drains: bool,
}

/// A batch on its way to the store. A planted bug carries out its effects before it is there.
pub(super) enum Pending {
    Uncommitted(Uncommitted),
    Started(Done),
}

impl Pending {
    pub(super) fn committed(self) -> Done {
        match self {
            Pending::Uncommitted(batch) => batch.committed(),
            Pending::Started(done) => done,
        }
    }
}

impl Owner {
    /// Commits the batch; then, and only then, answers callers and starts attempts.
    pub(super) fn commit(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let mut batch = self.engine.batch.take();
        let mut margin = std::mem::take(&mut self.margin);
        self.engine.batch.out.ops.extend(self.later.take());
        let flush = self.unsynced_since_ms.is_some_and(|since| env.now_ms - since >= FLUSH_AFTER_MS);
        let ops = batch.take_ops();
        if ops.is_empty() {
            if flush {
                env.store.sync();
                self.unsynced_since_ms = None;
            }
            self.round.committed();
            return self.finish(batch.committed(), margin, env, now);
        }
        self.check_tenure(env)?;
        env.crash_point("before a commit")?;
        let mut notes = std::mem::take(&mut margin.notes);
        notes.clock = now;
        notes.runs = self.remembered(&ops);
        let synced = (batch.is_synced() && !env.has(Bug::AnswerBeforeSync)) || flush;
        let mut pending = Pending::Uncommitted(batch);
        if env.has(Bug::EffectsBeforeCommit) {
            let mut done = pending.committed();
            let effects = done.effects().collect();
            self.start(effects, env, now)?;
            pending = Pending::Started(done);
        }
        self.waits = Some((pending, margin));
        self.waits_synced = synced;
        self.round.committed();
        let (node, incarnation, epoch) = (self.node, self.incarnation, self.tenure.epoch);
        let (takes_ms, fate) = draw_fate(env);
        let mut at_ms = env.now_ms + takes_ms;
        if fate == Fate::UnknownLate {
            env.agenda.plan(at_ms, Event::Committed { node, incarnation, result: Err(CommitError::Unknown) });
            at_ms += env.random.any_size(1, 4_000);
        }
        let (cuts, is_late) = (env.judge.counts.power_cuts, false);
        let commit = CommitRequest { node, incarnation, epoch, ops, synced, cuts, notes, fate, is_late };
        env.agenda.plan(at_ms, Event::Apply(Box::new(commit)));
        Ok(())
    }

    /// Everything is committed: callers are answered and attempts started.
    pub(super) fn finish(&mut self, mut done: Done, margin: Margin, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        if done.is_empty() {
            return Ok(());
        }
        self.check_tenure(env)?;
        while done.has_replies() {
            env.crash_point("between two answers")?;
            done.reply_next();
            self.pass_on_answers(env);
        }
        self.forget_runs(env);
        let effects = done.effects().collect();
        self.start(effects, env, now)?;
        self.drained |= margin.drains;
        Ok(())
    }

    /// Answers have left the node.
    pub(super) fn pass_on_answers(&mut self, env: &mut Env) {
        for answer in self.answers.take() {
            self.bulk = self.bulk.filter(|request| *request != answer.request);
            env.answer(&answer, self.tenure.epoch);
        }
    }

    fn start(&mut self, effects: Vec<Effect>, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let (node, incarnation, epoch) = (self.node, self.incarnation, self.tenure.epoch);
        for Effect::Start { live, message } in effects {
            env.crash_point("between two starts")?;
            let Some(message) = message.or_else(|| env.store.message(live.id).cloned()) else {
                env.judge.blame("what starts is stored", Some(live.id), env.now_ms, || "its message is missing".into());
                continue;
            };
            if self.drained {
                env.judge.blame("who drains starts nothing", Some(live.id), env.now_ms, || "it starts".into());
            }
            self.flights.insert((live.id, live.retried));
            let Some(message) = self.sendable(&live, message, env)? else { continue };
            env.start(&Start { node, incarnation, epoch, clock: now }, live, message);
        }
        Ok(())
    }

    fn check_tenure(&self, env: &Env) -> Result<(), Stop> {
        let is_over = env.swarm.heeds_tenure && !self.tenure.holds(env.now_ms);
        if is_over { Err(Stop::LeaseOver) } else { Ok(()) }
    }
}

/// How long a commit takes, and what becomes of it.
fn draw_fate(env: &mut Env) -> (u64, Fate) {
    let faults = &env.swarm.faults;
    let (slow, unknown, refused) = (faults.slow_commits, faults.unknown_commits, faults.refused_commits);
    let slow_ms = faults.slow_commit_ms.max(4);
    let takes_ms = if env.chance(slow * 10) { env.random.any_size(4, slow_ms) } else { env.random.below(3) };
    let fate = if env.chance(unknown * 10) {
        env.random.pick(&[Fate::UnknownWritten, Fate::UnknownLost, Fate::UnknownLate])
    } else if env.chance(refused * 10) {
        Fate::Refused
    } else {
        Fate::Written
    };
    (takes_ms, fate)
}
