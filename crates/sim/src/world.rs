//! The loop of a simulation: takes the next event, lets it happen, asks the judge.

mod endpoints;
mod faults;
mod healing;
mod leases;

use crate::agenda::Event;
use crate::bug::Bug;
use crate::command::{Command, Ended, Task};
use crate::env::Env;
use crate::node::{CommitRequest, Fate, Owner, Stop};
use crate::publisher::Publishers;
use crate::store::CommitError;
use posthaste_wire::time::Timestamp;

/// Events after which a run is called endless.
const EVENTS_MAX: u32 = 60_000;
/// How long everything may take to come to its end once nothing fails any more.
const HEALED_MS_MAX: u64 = 4 * 86_400_000;

/// A process.
#[derive(Default)]
struct Node {
    /// Counts its restarts.
    incarnation: u64,
    /// How far off its clock is.
    offset_ms: i64,
    paused_until_ms: u64,
    owner: Option<Owner>,
}

/// Everything.
pub(crate) struct World {
    pub env: Env,
    nodes: Vec<Node>,
    publishers: Publishers,
    heal_ms: u64,
    events: u32,
    /// Since when nothing has happened but that clocks were looked at.
    idle_since_ms: u64,
}

impl World {
    pub(crate) fn new(mut env: Env) -> World {
        let count = env.swarm.nodes;
        let mut nodes: Vec<Node> = (0..count).map(|_| Node::default()).collect();
        let (span_ms, skew_ms) = (env.swarm.span_ms, env.swarm.faults.skew_ms);
        for (index, node) in nodes.iter_mut().enumerate() {
            node.offset_ms = env.random.within(0, 2 * skew_ms) as i64 - skew_ms as i64;
            env.agenda.plan(index as u64 * 3, Event::AskLease { node: index, incarnation: 0 });
        }
        for _ in 0..env.swarm.actions {
            let at_ms = env.random.below(span_ms);
            env.agenda.plan(at_ms, Event::Act);
        }
        faults::plan_faults(&mut env, count);
        env.agenda.plan(span_ms, Event::Heal);
        World { env, nodes, publishers: Publishers::default(), heal_ms: span_ms, events: 0, idle_since_ms: 0 }
    }

    /// Runs to the end, or to the first broken rule.
    pub(crate) fn run(&mut self) {
        while self.env.judge.violation.is_none() {
            if self.env.healed && self.is_over() {
                let env = &mut self.env;
                env.judge.conclude(&env.swarm.programs, env.now_ms, &env.store);
                return;
            }
            self.skip_idle_time();
            let Some((at_ms, event)) = self.env.agenda.next() else {
                return self.stuck("nothing is planned any more");
            };
            self.events += 1;
            self.env.now_ms = self.env.now_ms.max(at_ms);
            if self.events > EVENTS_MAX || self.env.now_ms > self.heal_ms + HEALED_MS_MAX {
                return self.stuck("it takes too long");
            }
            self.env.story.note(event.number() ^ self.env.now_ms);
            self.watch_idling(&event);
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some(node) = event.inside() {
            let until_ms = self.nodes[node].paused_until_ms;
            if self.env.now_ms < until_ms {
                return self.env.agenda.plan(until_ms, event);
            }
        }
        if let Event::Committed { node, result, .. } = event
            && self.env.is_cut_off(node)
            && result != Err(CommitError::Unknown)
        {
            // The answer is on its way until both see each other again; that nobody knows, a node finds by itself.
            return self.env.agenda.plan(self.env.cut_off_until_ms[node], event);
        }
        match event {
            Event::Act => self.act(),
            Event::Arrive { node, command } => self.arrive(node, *command),
            Event::Ended { node, incarnation, ended } => self.ended(node, incarnation, ended),
            Event::Execute(visit) => self.execute(*visit),
            Event::Ask(visit) => self.ask(*visit),
            Event::Wake { node, incarnation } => {
                self.with_owner(node, incarnation, |owner, env, now| owner.woken(env, now));
            }
            Event::Apply(commit) => self.apply(*commit),
            Event::Committed { node, incarnation, result } => {
                self.with_owner(node, incarnation, |owner, env, now| owner.committed(result, env, now));
            }
            Event::AskLease { node, incarnation } => self.ask_lease(node, incarnation),
            Event::Crash { node, down_ms } => self.stop(node, down_ms, "crashes"),
            Event::Restart { node, incarnation } if self.nodes[node].incarnation == incarnation => {
                self.ask_lease(node, incarnation);
            }
            Event::Restart { .. } => {}
            Event::Drain { node } => {
                let command = self.publishers.command(Task::Drain);
                self.arrive(node, command);
            }
            Event::Pause { node, for_ms } => {
                self.env.tell(None, || format!("node {node} is paused for {for_ms} ms"));
                self.nodes[node].paused_until_ms = self.env.now_ms + for_ms;
            }
            Event::CutOff { node, for_ms } => self.cut_off(node, for_ms),
            Event::PowerCut { down_ms } => self.power_cut(down_ms),
            Event::Jump { node, by_ms } => self.jump(node, by_ms),
            Event::Full(is_full) => {
                self.env.tell(None, || format!("the store is full: {is_full}"));
                self.env.store.is_full = is_full;
            }
            Event::Heal => self.heal(),
        }
    }

    /// Somebody asks some node for something; requests and answers may get lost.
    fn act(&mut self) {
        for command in self.publishers.next(&mut self.env) {
            let node = self.addressee();
            if self.env.random.permille(self.env.swarm.faults.lost_requests) {
                continue;
            }
            let at_ms = self.env.now_ms + self.env.random.below(4);
            if self.env.random.permille(self.env.swarm.faults.lost_replies) {
                // Who hears nothing asks again.
                let again = Box::new(self.publishers.command(command.task.clone()));
                let again_ms = at_ms + self.env.random.any_size(1, 5_000);
                self.env.agenda.plan(again_ms, Event::Arrive { node, command: again });
            }
            self.env.agenda.plan(at_ms, Event::Arrive { node, command: Box::new(command) });
        }
    }

    /// The node that somebody asks: most know who the owner is.
    fn addressee(&mut self) -> usize {
        let node = self.env.random.below(self.nodes.len() as u64) as usize;
        let owner = self.nodes.iter().position(|node| node.owner.is_some());
        let knows = self.env.healed || self.env.random.permille(800);
        owner.filter(|_| knows).unwrap_or(node)
    }

    /// A node that does not own the shard refuses.
    fn arrive(&mut self, node: usize, command: Command) {
        let incarnation = self.nodes[node].incarnation;
        self.env.story.tell(self.env.now_ms, None, || format!("request {} reaches node {node}", command.request.0));
        self.with_owner(node, incarnation, |owner, env, now| {
            owner.take(command);
            owner.run(env, now)
        });
    }

    fn ended(&mut self, node: usize, incarnation: u64, ended: Box<Ended>) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        self.env.judge.closed(ended.epoch, ended.live.id, ended.live.retried);
        let command = self.publishers.command(Task::Ended(ended));
        self.with_owner(node, incarnation, |owner, env, now| {
            owner.take(command);
            owner.run(env, now)
        });
    }

    /// Lets an owner do something; if it ends thereby, its process ends.
    fn with_owner(
        &mut self,
        node: usize,
        incarnation: u64,
        act: impl FnOnce(&mut Owner, &mut Env, Timestamp) -> Result<(), Stop>,
    ) {
        let state = &mut self.nodes[node];
        if state.incarnation != incarnation {
            return;
        }
        let now = self.env.clock(state.offset_ms);
        let Some(owner) = &mut state.owner else { return };
        self.env.judge.saw_clock(owner.tenure.epoch, now);
        if let Err(stop) = act(owner, &mut self.env, now) {
            if stop == Stop::Store(CommitError::Fenced) {
                self.env.judge.counts.fenced += 1;
            }
            let down_ms = self.env.random.any_size(1, 2_000);
            let (epoch, now) = (owner.tenure.epoch, self.env.store_now());
            if stop == Stop::Drained && !self.env.is_cut_off(node) {
                let lease = self.env.store.lease;
                self.env.store.lease = lease.and_then(|lease| lease.release(epoch, now)).or(lease);
            }
            self.env.tell(None, || format!("node {node} ends: {stop:?}"));
            self.stop(node, down_ms, "stops");
        }
    }

    /// A process ends and is started again.
    fn stop(&mut self, node: usize, down_ms: u64, how: &str) {
        self.env
            .story
            .tell(self.env.now_ms, None, || format!("node {node} {how}, and starts again after {down_ms} ms"));
        let state = &mut self.nodes[node];
        state.owner = None;
        state.incarnation += 1;
        state.paused_until_ms = 0;
        let restart = Event::Restart { node, incarnation: state.incarnation };
        self.env.agenda.plan(self.env.now_ms + down_ms, restart);
    }

    /// A commit reaches the store.
    fn apply(&mut self, commit: CommitRequest) {
        let env = &mut self.env;
        let CommitRequest { node, incarnation, epoch, fate, .. } = commit;
        if commit.cuts != env.judge.counts.power_cuts {
            return;
        }
        if env.is_cut_off(node) {
            return self.hold_up(commit);
        }
        env.judge.counts.late_commits += u64::from(commit.is_late && epoch != env.store.epoch());
        let result = if epoch != env.store.epoch() && !env.has(Bug::NoFencing) {
            Err(CommitError::Fenced)
        } else if env.store.is_full || fate == Fate::Refused {
            Err(CommitError::Unavailable)
        } else if fate == Fate::UnknownLost && !env.has(Bug::TornBatch) {
            Err(CommitError::Unknown)
        } else {
            self.write(commit);
            if fate == Fate::Written { Ok(()) } else { Err(CommitError::Unknown) }
        };
        let env = &mut self.env;
        env.tell(None, || format!("a commit of node {node} in epoch {epoch}: {fate:?}, {result:?}"));
        if fate != Fate::UnknownLate {
            let at_ms = env.now_ms + env.random.below(2);
            env.agenda.plan(at_ms, Event::Committed { node, incarnation, result });
        }
    }

    fn write(&mut self, mut commit: CommitRequest) {
        let env = &mut self.env;
        if env.has(Bug::TornBatch) && commit.fate == Fate::UnknownLost {
            commit.ops.truncate(commit.ops.len() / 2);
        }
        env.judge.apply(&commit, &env.swarm.programs, env.now_ms, &mut env.store, &mut env.story);
        if commit.synced && !(env.has(Bug::SyncLost) && env.random.permille(100)) {
            env.store.sync();
        }
    }
}
