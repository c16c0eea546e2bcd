//! What fails, and when: crashes, pauses, partitions, power cuts, clocks, and a full store.

use super::World;
use crate::agenda::Event;
use crate::env::{CLOCK_CHECK_MS, Env};
use crate::node::{CommitRequest, Fate};
use crate::store::CommitError;

impl World {
    /// Everything loses power: what was not on disk is gone.
    pub(super) fn power_cut(&mut self, down_ms: u64) {
        self.env.tell(None, || "the power is cut".to_owned());
        for node in 0..self.nodes.len() {
            self.stop(node, down_ms + node as u64, "has no power");
        }
        let env = &mut self.env;
        env.store.power_cut();
        env.judge.power_cut(env.now_ms, &env.store);
    }

    /// A node and the store lose sight of each other. The node is not told, and goes on.
    pub(super) fn cut_off(&mut self, node: usize, for_ms: u64) {
        let env = &mut self.env;
        env.tell(None, || format!("node {node} cannot reach the store for {for_ms} ms"));
        env.cut_off_until_ms[node] = env.now_ms + for_ms;
        let is_owner = self.owner() == Some(node);
        self.env.judge.counts.cut_off += u64::from(is_owner);
    }

    /// A commit of a node that is cut off: it is lost, or reaches the store when both see each other again. Meanwhile
    /// the node hears nothing, or that nobody knows.
    pub(super) fn hold_up(&mut self, commit: CommitRequest) {
        let env = &mut self.env;
        let CommitRequest { node, incarnation, .. } = commit;
        let until_ms = env.cut_off_until_ms[node];
        let gives_up = env.random.permille(300);
        if gives_up {
            let result = Err(CommitError::Unknown);
            env.agenda.plan(env.now_ms + env.random.any_size(1, 1_000), Event::Committed { node, incarnation, result });
        }
        let arrives = env.random.permille(700);
        env.tell(None, || format!("a commit of node {node} does not reach the store; it will: {arrives}"));
        let fate = if gives_up { Fate::UnknownLate } else { commit.fate };
        if arrives {
            let at_ms = until_ms + env.random.below(20);
            env.agenda.plan(at_ms, Event::Apply(Box::new(CommitRequest { fate, is_late: true, ..commit })));
        } else if !gives_up {
            let result = Err(CommitError::Unknown);
            env.agenda.plan(until_ms + env.random.below(20), Event::Committed { node, incarnation, result });
        }
    }

    /// The clock of a node is set; it notices after a while.
    pub(super) fn jump(&mut self, node: usize, by_ms: i64) {
        let env = &mut self.env;
        let state = &mut self.nodes[node];
        state.offset_ms = state.offset_ms.saturating_add(by_ms);
        let offset_ms = state.offset_ms;
        env.tell(None, || format!("the clock of node {node} jumps by {by_ms} ms"));
        let Some(owner) = &mut state.owner else { return };
        if owner.tenure.epoch == env.store.epoch() {
            env.judge.set_offset(offset_ms, env.now_ms);
        }
        let at_ms = env.now_ms + env.random.below(CLOCK_CHECK_MS);
        owner.wake_by(at_ms, env);
    }
}

/// When what fails.
pub(super) fn plan_faults(env: &mut Env, nodes: usize) {
    let (span_ms, faults) = (env.swarm.span_ms, env.swarm.faults.clone());
    let random = &mut env.random;
    let mut planned = Vec::new();
    for _ in 0..faults.crashes {
        let node = random.below(nodes as u64) as usize;
        planned.push((random.below(span_ms), Event::Crash { node, down_ms: random.any_size(1, 5_000) }));
    }
    for _ in 0..faults.drains {
        let (node, at_ms) = (random.below(nodes as u64) as usize, random.below(span_ms));
        planned.push((at_ms, Event::Drain { node }));
        // Who waits for too long is told to end at once.
        planned.push((at_ms + random.any_size(10, 3_000), Event::Crash { node, down_ms: random.any_size(1, 1_000) }));
    }
    for _ in 0..faults.pauses {
        let node = random.below(nodes as u64) as usize;
        planned.push((random.below(span_ms), Event::Pause { node, for_ms: random.any_size(100, 8_000) }));
    }
    for _ in 0..faults.cuts {
        let node = random.below(nodes as u64) as usize;
        planned.push((random.below(span_ms), Event::CutOff { node, for_ms: random.any_size(200, 20_000) }));
    }
    for _ in 0..faults.power_cuts {
        planned.push((random.below(span_ms), Event::PowerCut { down_ms: random.any_size(1, 5_000) }));
    }
    for _ in 0..faults.jumps {
        let size = random.any_size(10, 86_400_000) as i64;
        let by_ms = if random.permille(500) { size } else { -size };
        planned.push((random.below(span_ms), Event::Jump { node: random.below(nodes as u64) as usize, by_ms }));
    }
    for _ in 0..faults.full_times {
        let from_ms = random.below(span_ms);
        planned.push((from_ms, Event::Full(true)));
        planned.push((from_ms + random.any_size(50, 5_000), Event::Full(false)));
    }
    for (at_ms, event) in planned {
        env.agenda.plan(at_ms, event);
    }
}
