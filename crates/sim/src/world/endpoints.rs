//! Deliveries at the endpoints of workflow runs.

use super::World;
use crate::agenda::Event;
use crate::command::{RunTask, Task};
use crate::endpoint::{PATIENCE_MS, Visit, answered};
use crate::program::{self, Deed};

/// Waits whose event comes at about the same time, in a thousand.
const RACES: u64 = 150;

impl World {
    /// A delivery reaches its endpoint, which does what the function says.
    pub(super) fn execute(&mut self, visit: Visit) {
        let env = &mut self.env;
        env.story.tell(env.now_ms, Some(visit.ended.live.id), || format!("reaches its endpoint: {:?}", visit.deed));
        env.judge.executed(visit.run, &visit.deed);
        if visit.deed == Deed::Fail {
            return self.answer_delivery(visit, 500);
        }
        if !visit.asks.is_empty() && !visit.is_unheard {
            // Should nobody answer, the endpoint gives up.
            let Visit { node, incarnation, ref ended, .. } = visit;
            let ended = Box::new(crate::command::Ended { outcome: answered(500), ..ended.clone() });
            env.agenda.plan(env.now_ms + PATIENCE_MS, Event::Ended { node, incarnation, ended });
        }
        self.ask(visit);
    }

    /// The endpoint asks for what it needs next, or answers.
    pub(super) fn ask(&mut self, mut visit: Visit) {
        let Some(task) = visit.asks.pop_front() else { return self.answer_delivery(visit, 200) };
        let tenant = visit.ended.live.tenant;
        let node = self.addressee();
        let faults = &self.env.swarm.faults;
        let (lost_requests, lost_replies) = (faults.lost_requests, faults.lost_replies);
        let mut at_ms = self.env.now_ms + self.env.random.below(4);
        if self.env.chance(lost_requests * 10) {
            return;
        }
        if let RunTask::Wait { run, event, .. } = &task
            && self.env.random.permille(RACES)
        {
            let (run, event, data) = (run.clone(), event.clone(), program::data_of(event));
            let (task, at_ms) = match self.env.random.permille(500) {
                true => (RunTask::Notify { event, data }, at_ms),
                false => (RunTask::NotifyRun { run, event, data }, self.env.now_ms),
            };
            let command = Box::new(self.publishers.command(Task::Run { tenant, task: Box::new(task) }));
            self.env.agenda.plan(at_ms + self.env.random.below(4), Event::Arrive { node, command });
        }
        let task = Task::Run { tenant, task: Box::new(task) };
        if self.env.chance(lost_replies * 10) {
            // It hears nothing and asks again; what it hears then counts.
            let unheard = Box::new(self.publishers.command(task.clone()));
            self.env.agenda.plan(at_ms, Event::Arrive { node, command: unheard });
            at_ms += self.env.random.any_size(1, 2_000);
        }
        let command = Box::new(self.publishers.command(task));
        self.env.visits.insert(command.request, visit);
        self.env.agenda.plan(at_ms, Event::Arrive { node, command });
    }

    fn answer_delivery(&mut self, visit: Visit, status: u16) {
        let Visit { node, incarnation, is_unheard, ended, .. } = visit;
        let env = &mut self.env;
        if is_unheard {
            return;
        }
        if status == 200 {
            env.judge.said_success(ended.epoch, ended.live.id, ended.live.retried);
        }
        let ended = Box::new(crate::command::Ended { outcome: answered(status), ..ended });
        let at_ms = env.now_ms + env.random.below(4);
        if env.chance(env.swarm.faults.doubled_outcomes * 10) {
            let late_ms = env.random.below(2_000);
            env.agenda.plan(at_ms + late_ms, Event::Ended { node, incarnation, ended: ended.clone() });
        }
        env.agenda.plan(at_ms, Event::Ended { node, incarnation, ended });
    }
}
