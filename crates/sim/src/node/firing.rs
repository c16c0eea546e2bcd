//! Schedules of an owner: what `core/schedules.rs` of the server does.

use super::commands::Witness;
use super::{Owner, Stop};
use crate::bug::Bug;
use crate::command::{RequestId, Said};
use crate::env::Env;
use posthaste_engine::event::Op;
use posthaste_engine::message::{MessageSpec, Origin};
use posthaste_engine::schedule::{Schedule, ScheduleState, ScheduleTarget, Tick};
use posthaste_node::{FirstDue, Moment, NewMessage};
use posthaste_wire::cron::Cron;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// Schedules that fire in one round.
const FIRED_MAX: usize = 4;

impl Owner {
    pub(super) fn put_schedule(&mut self, request: RequestId, mut schedule: Schedule, env: &mut Env, now: Timestamp) {
        let (tenant, id) = (schedule.tenant, schedule.id.clone());
        let replaced = env.store.schedules.get(&(tenant, id.clone())).filter(|_| self.firing.contains(tenant, &id));
        schedule.plan.created_at = now;
        schedule.state = match Cron::parse(&schedule.plan.cron) {
            Ok(cron) => ScheduleState::begin(&cron, replaced.map(|replaced| &replaced.state), now),
            Err(invalid) => ScheduleState { error: Some(invalid.to_string()), ..ScheduleState::default() },
        };
        self.firing.put(tenant, &id, &schedule.state);
        self.engine.batch.out.ops.push(Op::PutSchedule(Arc::new(schedule)));
        self.answer(request, Said::Done);
    }

    pub(super) fn pause_schedule(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        id: &str,
        paused: bool,
        env: &mut Env,
        now: Timestamp,
    ) {
        let stored = env.store.schedules.get(&(tenant, id.to_owned())).filter(|_| self.firing.contains(tenant, id));
        if let Some(state) = stored.and_then(|schedule| schedule.switched(paused, now)) {
            self.firing.put(tenant, id, &state);
            self.engine.batch.out.ops.push(Op::SetSchedule { tenant, id: id.to_owned(), state });
        }
        self.answer(request, Said::Done);
    }

    pub(super) fn drop_schedule(&mut self, request: RequestId, tenant: TenantId, id: String) {
        if self.firing.remove(tenant, &id) {
            self.engine.batch.out.ops.push(Op::DropSchedule { tenant, id });
        }
        self.answer(request, Said::Done);
    }

    /// Fires a bounded number of the schedules whose time has come. Nothing is uncommitted.
    pub(super) fn fire_schedules(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        if self.firing.next_wake(now) > now {
            return Ok(());
        }
        for (tenant, id) in self.firing.due(now, FIRED_MAX) {
            env.read(self.node)?;
            let Some(schedule) = env.store.schedules.get(&(tenant, id.to_string())).cloned() else {
                let text = || format!("schedule {id} has vanished");
                if self.tenure.epoch == env.store.epoch() {
                    env.judge.blame("what was promised stays", None, env.now_ms, text);
                }
                self.firing.remove(tenant, &id);
                continue;
            };
            self.fire(&schedule, env, now);
        }
        self.commit(env, now)
    }

    fn fire(&mut self, schedule: &Schedule, env: &mut Env, now: Timestamp) {
        let state = match schedule.tick(now) {
            Tick::Wait => schedule.state.clone(),
            Tick::Broken(state) => state,
            Tick::Fire { at, state } => {
                env.tell(None, || format!("schedule {} fires for {at} at {now}", schedule.id));
                let (first, mut witness) = (self.engine.batch.out.ops.len(), Witness::new(&mut env.random));
                let mut moment = Moment { now, host: &mut witness };
                let accepted = self.engine.accept(message_of(schedule), None, None, &mut moment);
                self.tell_accepted(first, env);
                ScheduleState { last_messages: vec![accepted.id], ..state }
            }
        };
        self.firing.put(schedule.tenant, &schedule.id, &state);
        let op = Op::SetSchedule { tenant: schedule.tenant, id: schedule.id.clone(), state };
        if env.has(Bug::FiringInTwoCommits) && self.later.is_none() {
            self.later = Some(op);
        } else {
            self.engine.batch.out.ops.push(op);
        }
    }
}

/// The message of one firing, as a publish would make it.
fn message_of(schedule: &Schedule) -> NewMessage {
    let Schedule { tenant, id, plan, body, .. } = schedule;
    let url = match &plan.destination {
        ScheduleTarget::Url(url) => url.clone(),
        ScheduleTarget::Group(name) => name.clone(),
    };
    let origin = Origin::of_url(*tenant, &url);
    let spec = MessageSpec { url, schedule_id: Some(id.clone()), ..plan.spec.clone() };
    let first_due = plan.delay_ms.map_or(FirstDue::Now, FirstDue::AfterMs);
    NewMessage { tenant: *tenant, spec, body: body.clone(), first_due, origin, dedup: None }
}
