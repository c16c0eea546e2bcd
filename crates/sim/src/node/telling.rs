//! An event for many runs takes turns with all else: what `core/tasks.rs` of the server does, with one run each turn.

use super::{Owner, Stop};
use crate::command::{Command, RequestId, RunTask, Said, Task, Telling};
use crate::env::Env;
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;

impl Owner {
    /// Everything is committed, so that the store knows all who wait.
    pub(super) fn notify(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        (event, data): (String, Vec<u8>),
        env: &mut Env,
    ) -> Result<(), Stop> {
        env.read(self.node)?;
        let waiters = env.store.waiters_of(tenant, &event).into();
        let telling = Telling { event, data, waiters, last: self.engine.last_seq, reached: Vec::new() };
        self.tell_later(request, tenant, telling);
        Ok(())
    }

    fn tell_later(&mut self, request: RequestId, tenant: TenantId, telling: Telling) {
        let task = Task::Run { tenant, task: Box::new(RunTask::Tell(telling)) };
        self.inbox.push_back(Command { request, task });
    }

    /// The next one hears of the event. What is said when all have.
    pub(super) fn tell_next(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        mut telling: Telling,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<Option<Said>, Stop> {
        if let Some((timer, _)) = telling.waiters.front().copied() {
            self.tell(tenant, &mut telling, timer, env, now)?;
        }
        if !telling.waiters.is_empty() {
            self.tell_later(request, tenant, telling);
            return Ok(None);
        }
        let Telling { event, last, reached, .. } = telling;
        Ok(Some(Said::Notified { tenant, event, last, reached }))
    }

    /// An event that came before the deadline of a wait ends it, even if it has yet to get there.
    pub(super) fn hear_before_deadline(&mut self, timer: MessageId, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let mut inbox = std::mem::take(&mut self.inbox);
        let tellings = inbox.iter_mut().filter_map(|command| match &mut command.task {
            Task::Run { tenant, task } => match &mut **task {
                RunTask::Tell(telling) => Some((*tenant, telling)),
                _ => None,
            },
            _ => None,
        });
        for (tenant, telling) in tellings {
            self.tell(tenant, telling, timer, env, now)?;
        }
        // What was decided may have put something behind.
        inbox.append(&mut self.inbox);
        self.inbox = inbox;
        Ok(())
    }

    /// This wait, if it has yet to hear of the event, does.
    fn tell(
        &mut self,
        tenant: TenantId,
        telling: &mut Telling,
        timer: MessageId,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let place = telling.waiters.iter().position(|(other, _)| *other == timer);
        let Some((_, run)) = place.and_then(|place| telling.waiters.remove(place)) else { return Ok(()) };
        let data = &telling.data;
        let resolved = self.decide(tenant, run, env, now, |workflow, out| workflow.notify_wait(timer, data, out))?;
        telling.reached.extend(resolved.flatten().map(|resolved| resolved.id));
        Ok(())
    }
}
