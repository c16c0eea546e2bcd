//! Schedules: they are created, paused, changed and deleted. [`crate::Firing`] fires them.

use crate::facts::{Facts, Wanted};
use crate::host::Moment;
use crate::node::Node;
use crate::quota::QuotaExceeded;
use crate::reply::Reply;
use posthaste_engine::event::Op;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_wire::cron::Cron;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// A command about a schedule.
pub enum ScheduleCommand {
    /// Creates a schedule, or replaces the one of its id. Its time of creation and its state are decided here.
    Put {
        /// The schedule.
        schedule: Box<Schedule>,
        /// Sent when it is stored.
        reply: Reply<Result<(), QuotaExceeded>>,
    },
    /// Pauses or resumes a schedule.
    Pause {
        /// The tenant that has it.
        tenant: TenantId,
        /// Its id.
        id: String,
        /// Whether to pause it.
        paused: bool,
        /// Whether there is such a schedule.
        reply: Reply<bool>,
    },
    /// Gives a schedule another cron expression.
    Reschedule {
        /// The tenant that has it.
        tenant: TenantId,
        /// Its id.
        id: String,
        /// The expression.
        cron: Box<Cron>,
        /// Whether there is such a schedule.
        reply: Reply<bool>,
    },
    /// Deletes a schedule. Messages that it has made stay.
    Delete {
        /// The tenant that has it.
        tenant: TenantId,
        /// Its id.
        id: String,
        /// Whether there was such a schedule.
        reply: Reply<bool>,
    },
}

impl ScheduleCommand {
    /// The stored schedule that it must know before it is decided.
    fn stored<'a>(&'a self, node: &Node) -> Option<(TenantId, &'a str)> {
        let (tenant, id) = match self {
            ScheduleCommand::Put { schedule, .. } => (schedule.tenant, &schedule.id),
            ScheduleCommand::Pause { tenant, id, .. } | ScheduleCommand::Reschedule { tenant, id, .. } => (*tenant, id),
            ScheduleCommand::Delete { .. } => return None,
        };
        node.schedules.contains(tenant, id).then_some((tenant, id.as_str()))
    }

    pub(crate) fn wanted(&self, node: &Node) -> Wanted {
        let schedules = self.stored(node).map(|(tenant, id)| (tenant, id.to_owned()));
        Wanted { schedules: schedules.into_iter().collect(), ..Wanted::default() }
    }

    pub(crate) fn needs_truth(&self, node: &Node) -> bool {
        self.stored(node).is_some()
    }
}

impl Node {
    /// The node knows every stored schedule.
    pub fn restore_schedules(&mut self, states: impl IntoIterator<Item = (TenantId, String, ScheduleState)>) {
        for (tenant, id, state) in states {
            self.schedules.put(tenant, &id, &state);
        }
    }

    pub(crate) fn schedule_command(&mut self, command: ScheduleCommand, facts: &Facts, moment: &mut Moment<'_>) {
        let now = moment.now;
        match command {
            ScheduleCommand::Put { schedule, reply } => self.put_schedule(*schedule, reply, facts, now),
            ScheduleCommand::Pause { tenant, id, paused, reply } => {
                let schedule = self.stored_schedule(tenant, &id, facts);
                let exists = schedule.is_some();
                if let Some(state) = schedule.and_then(|schedule| schedule.switched(paused, now)) {
                    self.set_schedule(tenant, id, state);
                }
                self.batch.reply(reply, exists);
            }
            ScheduleCommand::Reschedule { tenant, id, cron, reply } => {
                let state = self.stored_schedule(tenant, &id, facts).map(|stored| stored.rescheduled(&cron, now));
                let exists = state.is_some();
                if let Some(state) = state {
                    self.set_schedule(tenant, id, state);
                }
                self.batch.reply(reply, exists);
            }
            ScheduleCommand::Delete { tenant, id, reply } => {
                let existed = self.schedules.remove(tenant, &id);
                if existed {
                    self.batch.out.ops.push(Op::DropSchedule { tenant, id });
                }
                self.batch.reply(reply, existed);
            }
        }
    }

    fn put_schedule(
        &mut self,
        mut schedule: Schedule,
        reply: Reply<Result<(), QuotaExceeded>>,
        facts: &Facts,
        now: Timestamp,
    ) {
        let (tenant, id) = (schedule.tenant, schedule.id.as_str());
        if !self.schedules.contains(tenant, id) && self.schedules.count(tenant) >= self.quotas.schedules {
            return reply.refuse(QuotaExceeded { quota: "maxSchedules", limit: self.quotas.schedules as u64 });
        }
        let replaced = self.stored_schedule(tenant, id, facts).map(|replaced| &replaced.state);
        let state = match Cron::parse(&schedule.plan.cron) {
            Ok(cron) => ScheduleState::begin(&cron, replaced, now),
            Err(invalid) => ScheduleState { error: Some(invalid.to_string()), ..ScheduleState::default() },
        };
        self.schedules.put(tenant, id, &state);
        (schedule.plan.created_at, schedule.state) = (now, state);
        self.batch.body_bytes += schedule.body.len();
        self.batch.out.ops.push(Op::PutSchedule(Arc::new(schedule)));
        self.batch.reply(reply, Ok(()));
    }

    /// A schedule as it is stored. One that was deleted before in the same round is gone.
    fn stored_schedule<'a>(&self, tenant: TenantId, id: &str, facts: &'a Facts) -> Option<&'a Schedule> {
        let exists = self.schedules.contains(tenant, id);
        facts.schedules.get(&tenant)?.get(id).filter(|_| exists)
    }

    pub(crate) fn set_schedule(&mut self, tenant: TenantId, id: String, state: ScheduleState) {
        self.schedules.put(tenant, &id, &state);
        self.batch.out.ops.push(Op::SetSchedule { tenant, id, state });
    }
}
