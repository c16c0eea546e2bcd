//! What fails, and when: crashes, pauses, power cuts, clocks, and a full store.

use super::World;
use crate::agenda::Event;
use crate::env::Env;

/// A clock that was set is noticed after at most this long.
const CLOCK_CHECK_MS: u64 = 5_000;

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
