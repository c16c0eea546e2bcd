//! The end of a run: nothing fails any more, and everything must come to its end.

use super::World;
use crate::agenda::Event;
use crate::judge::OVERDUE_MS;
use crate::publisher;
use posthaste_engine::event::State;
use posthaste_engine::workflow::run::{Run, RunState};

/// How long after the healing somebody may still have asked for something before it.
const HEALING_MS: u64 = 20_000;
/// How long after the healing operators begin to cancel what holds up others.
const IMPATIENT_MS: u64 = 10_000;
/// What publishers wait before they ask again for what must be done in the end.
const AGAIN_MS: u64 = 3_000;

impl World {
    /// Nothing fails any more: clocks are right, receivers answer, processes run, and what was paused goes on.
    pub(super) fn heal(&mut self) {
        if !self.env.healed {
            self.env.tell(None, || "nothing fails any more".to_owned());
            self.env.healed = true;
            self.env.store.is_full = false;
            self.env.cut_off_until_ms.fill(0);
            for node in 0..self.nodes.len() {
                let by_ms = -self.nodes[node].offset_ms;
                self.jump(node, by_ms);
                self.nodes[node].paused_until_ms = 0;
                let incarnation = self.nodes[node].incarnation;
                self.env.agenda.plan(self.env.now_ms + 1, Event::AskLease { node, incarnation });
            }
        }
        // Until everything has gone through: owners may change once more.
        let mut tasks = publisher::resume_everything(&self.env);
        tasks.extend(publisher::drop_schedules(&self.env));
        // By then a new owner has seen who is delayed.
        if self.env.swarm.traffic.operators > 0 && self.env.now_ms > self.heal_ms + IMPATIENT_MS {
            tasks.extend(publisher::cancel_delayed_heads(&self.env));
        }
        if !self.canary_is_delivered() {
            tasks.push(publisher::canary());
        }
        let node = self.owner();
        if tasks.is_empty() && self.env.now_ms > self.heal_ms + HEALING_MS {
            return;
        }
        for task in tasks {
            let command = Box::new(self.publishers.command(task));
            self.env.agenda.plan(self.env.now_ms, Event::Arrive { node: node.unwrap_or(0), command });
        }
        self.env.agenda.plan(self.env.now_ms + AGAIN_MS, Event::Heal);
    }

    fn canary_is_delivered(&self) -> bool {
        let store = &self.env.store;
        let is_canary = |message: &&std::sync::Arc<posthaste_engine::message::Message>| {
            message.spec.url.starts_with("https://canary.") && store.states.get(&message.id) == Some(&State::Delivered)
        };
        store.messages.values().rev().any(|message| is_canary(&message))
    }

    /// Everything has ended, and proof of life was given.
    pub(super) fn is_over(&self) -> bool {
        let store = &self.env.store;
        let has_ended = |run: &std::sync::Arc<Run>| run.state != RunState::Started;
        store.live.is_empty()
            && store.schedules.is_empty()
            && store.bulk_actions.values().all(|action| action.completed_at.is_some())
            && store.runs.values().all(has_ended)
            && self.canary_is_delivered()
    }

    /// When only clocks are looked at until something is due, that time may as well be now; but not before the judge
    /// has looked for somebody who was forgotten.
    pub(super) fn skip_idle_time(&mut self) {
        let is_idle = self.env.now_ms >= self.idle_since_ms + OVERDUE_MS;
        if !self.env.healed || !is_idle || !self.env.agenda.only_wakes() {
            return;
        }
        let now = self.env.store_now();
        let due = self.env.store.live.values().map(|row| row.due).min();
        if let Some(ahead_ms) = due.map(|due| due.millis_since(now)).filter(|ahead_ms| *ahead_ms > 60_000) {
            self.env.now_ms += ahead_ms;
            self.idle_since_ms = self.env.now_ms;
        }
    }

    /// Before a clock is looked at: has somebody been forgotten?
    pub(super) fn watch_idling(&mut self, event: &Event) {
        let env = &mut self.env;
        if !env.healed || !matches!(event, Event::Wake { .. }) || !env.agenda.only_wakes() {
            self.idle_since_ms = self.env.now_ms;
            return;
        }
        let now = env.store_now();
        env.judge.check_idling(self.idle_since_ms, env.now_ms, now, &env.store);
    }

    pub(super) fn stuck(&mut self, why: &str) {
        let env = &mut self.env;
        let row = env.store.live.values().next().copied();
        let count = env.store.live.len();
        let run = env.store.runs.values().find(|run| run.state == RunState::Started);
        env.judge.blame("everything comes to its end", row.map(|row| row.id), env.now_ms, || {
            format!("{why}; {count} messages have not ended, the first is {row:?}; the first such run is {run:?}")
        });
    }
}
