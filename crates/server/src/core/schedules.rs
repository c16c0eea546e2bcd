//! Schedules in the core: they are made, paused and dropped here, and fire here.
//!
//! What fires, and when, is decided in `posthaste_engine::schedule`. The messages of a firing and the new state
//! of its schedule are one transaction, so that a crash repeats both or neither.

use super::run::{BATCH_BYTES_MAX, Core, CoreFailure};
use super::{Command, FirstDue, NewMessage, NoRoom, QuotaExceeded, stored_bytes};
use crate::data_dir::Disk;
use posthaste_engine::event::Op;
use posthaste_engine::message::{MessageSpec, Origin};
use posthaste_engine::schedule::{Schedule, ScheduleState, ScheduleTarget, Schedules, Tick};
use posthaste_engine::url_group::Endpoint;
use posthaste_faults::crash_point::crash_point;
use posthaste_node::{Facts, Moment, Reply};
use posthaste_store::{Part, Store, StoreError};
use posthaste_wire::cron::Cron;
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Schedules that fire in one round of the core; the others wait for the next, so that commands go on.
const FIRED_MAX: usize = 256;
/// Messages of schedules after which a round ends, however few have fired: a group has many endpoints.
const FIRED_MESSAGES_MAX: usize = 1_024;
/// Bytes of bodies of schedules after which a round ends: every other command waits for it.
const FIRED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long the schedules of a tenant are held when there is no room for the messages of one of them.
const ROOM_WAIT_MS: u64 = 1_000;

/// A command about a schedule.
pub(crate) enum ScheduleCommand {
    Put { schedule: Box<Schedule>, reply: Reply<Result<(), QuotaExceeded>> },
    Pause { tenant: TenantId, id: String, paused: bool, reply: Reply<bool> },
    Reschedule { tenant: TenantId, id: String, cron: Box<Cron>, reply: Reply<bool> },
    Delete { tenant: TenantId, id: String, reply: Reply<bool> },
}

impl From<ScheduleCommand> for Command {
    fn from(command: ScheduleCommand) -> Command {
        Command::Schedule(command)
    }
}

/// The schedules as the core knows them.
#[derive(Default)]
pub(super) struct Firing {
    schedules: Schedules,
}

impl Firing {
    /// Knows every schedule in the store.
    pub(super) fn load(store: &dyn Store) -> Result<Firing, StoreError> {
        let mut firing = Firing::default();
        for (tenant, id, state) in store.schedule_states()? {
            firing.schedules.put(tenant, &id, &state);
        }
        Ok(firing)
    }

    /// How many schedules a tenant has.
    pub(super) fn count(&self, tenant: TenantId) -> usize {
        self.schedules.count(tenant)
    }

    /// The schedules of a tenant that fire next.
    pub(super) fn next(&self, tenant: TenantId, max: usize) -> Vec<(Timestamp, Arc<str>)> {
        self.schedules.next(tenant, max)
    }

    /// When [`Core::fire_schedules`] has something to do. While the disk is low nothing fires; what is missed is caught up with,
    /// once.
    pub(super) fn next_wake(&self, disk: &Disk, now: Timestamp) -> Timestamp {
        if disk.low.load(Ordering::Relaxed) {
            return Timestamp::MAX;
        }
        self.schedules.next_wake(now)
    }
}

impl Core {
    pub(super) fn handle_schedule(&mut self, command: ScheduleCommand, now: Timestamp) -> Result<(), CoreFailure> {
        match command {
            ScheduleCommand::Put { schedule, reply } => self.put_schedule(*schedule, reply, now),
            ScheduleCommand::Pause { tenant, id, paused, reply } => self.pause_schedule(tenant, id, paused, reply, now),
            ScheduleCommand::Reschedule { tenant, id, cron, reply } => self.reschedule(tenant, id, &cron, reply, now),
            ScheduleCommand::Delete { tenant, id, reply } => {
                self.drop_schedule(tenant, id, reply);
                Ok(())
            }
        }
    }

    /// Makes a schedule, or replaces the one of its id.
    fn put_schedule(
        &mut self,
        mut schedule: Schedule,
        reply: Reply<Result<(), QuotaExceeded>>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        let (tenant, id) = (schedule.tenant, schedule.id.clone());
        let (schedules, max) = (&self.firing.schedules, self.quotas.schedules);
        let replaced = match schedules.contains(tenant, &id) {
            true => self.stored_schedule(tenant, &id)?.map(|replaced| replaced.state),
            false if schedules.count(tenant) >= max => {
                let exceeded = QuotaExceeded { quota: "maxSchedules", limit: max as u64 };
                reply.refuse(exceeded);
                return Ok(());
            }
            false => None,
        };
        schedule.plan.created_at = now;
        schedule.state = match Cron::parse(&schedule.plan.cron) {
            Ok(cron) => ScheduleState::begin(&cron, replaced.as_ref(), now),
            Err(invalid) => ScheduleState { error: Some(invalid.to_string()), ..ScheduleState::default() },
        };
        self.firing.schedules.put(tenant, &id, &schedule.state);
        self.node.batch.body_bytes += schedule.body.len();
        self.node.batch.out.ops.push(Op::PutSchedule(Arc::new(schedule)));
        self.node.batch.reply(reply, Ok(()));
        Ok(())
    }

    /// Pauses or resumes a schedule, if there is one.
    fn pause_schedule(
        &mut self,
        tenant: TenantId,
        id: String,
        paused: bool,
        reply: Reply<bool>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        let schedule = self.stored_schedule(tenant, &id)?;
        let exists = schedule.is_some();
        if let Some(state) = schedule.and_then(|schedule| schedule.switched(paused, now)) {
            self.firing.schedules.put(tenant, &id, &state);
            self.node.batch.out.ops.push(Op::SetSchedule { tenant, id, state });
        }
        self.node.batch.reply(reply, exists);
        Ok(())
    }

    /// Gives a schedule another expression, if there is one.
    fn reschedule(
        &mut self,
        tenant: TenantId,
        id: String,
        cron: &Cron,
        reply: Reply<bool>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        let state = self.stored_schedule(tenant, &id)?.map(|schedule| schedule.rescheduled(cron, now));
        let exists = state.is_some();
        if let Some(state) = state {
            self.firing.schedules.put(tenant, &id, &state);
            self.node.batch.out.ops.push(Op::SetSchedule { tenant, id, state });
        }
        self.node.batch.reply(reply, exists);
        Ok(())
    }

    /// Drops a schedule, if there is one. Messages that it has made go on.
    fn drop_schedule(&mut self, tenant: TenantId, id: String, reply: Reply<bool>) {
        let existed = self.firing.schedules.remove(tenant, &id);
        if existed {
            self.node.batch.out.ops.push(Op::DropSchedule { tenant, id });
        }
        self.node.batch.reply(reply, existed);
    }

    /// Fires a bounded number of the schedules whose time has come. Nothing may be uncommitted.
    pub(super) fn fire_schedules(&mut self) -> Result<(), CoreFailure> {
        let now = self.clock.now();
        if self.firing.next_wake(&self.disk, now) > now {
            return Ok(());
        }
        let (mut messages, mut bytes) = (0, 0);
        let mut without_room = HashSet::new();
        for (tenant, id) in self.firing.schedules.due(now, FIRED_MAX) {
            // Its schedules keep their order; those of others need not wait for them.
            if without_room.contains(&tenant) {
                continue;
            }
            let Some(schedule) = self.store.schedule(tenant, &id, Part::Whole)? else {
                tracing::error!(tenant = tenant.0, schedule.id = %id, "schedule missing from the store");
                self.firing.schedules.remove(tenant, &id);
                continue;
            };
            bytes += schedule.body.len();
            match self.fire(&schedule, self.clock.now())? {
                Some(made) => messages += made,
                None => {
                    let now = self.clock.now();
                    self.firing.schedules.hold(tenant, now, now.plus_millis(ROOM_WAIT_MS));
                    without_room.insert(tenant);
                }
            }
            crash_point("schedule_fired");
            if messages >= FIRED_MESSAGES_MAX || bytes >= FIRED_BYTES_MAX {
                break;
            }
            if self.node.batch.body_bytes >= BATCH_BYTES_MAX {
                self.commit()?;
            }
        }
        self.commit()?;
        crash_point("schedules_committed");
        Ok(())
    }

    /// Fires one schedule and returns how many messages it made. `None` if there is no room for them now: it stays due.
    fn fire(&mut self, schedule: &Schedule, now: Timestamp) -> Result<Option<usize>, CoreFailure> {
        let state = match schedule.tick(now) {
            Tick::Wait => schedule.state.clone(),
            Tick::Broken(state) => state,
            Tick::Fire { state, .. } => {
                let accepted = match messages_of(&*self.store, schedule)? {
                    Ok(messages) => self.accept_fired(messages, now),
                    Err(error) => Err(Unfired::Failed(error)),
                };
                match accepted {
                    Ok(last_messages) => ScheduleState { last_messages, ..state },
                    Err(Unfired::Failed(error)) => ScheduleState { error: Some(error), ..state },
                    Err(Unfired::NoRoomNow) => return Ok(None),
                }
            }
        };
        if let Some(error) = &state.error {
            tracing::info!(tenant = schedule.tenant.0, schedule.id, error, "schedule fired without creating a message");
        }
        let made = state.last_messages.len();
        self.firing.schedules.put(schedule.tenant, &schedule.id, &state);
        self.node.batch.out.ops.push(Op::SetSchedule { tenant: schedule.tenant, id: schedule.id.clone(), state });
        Ok(Some(made))
    }

    fn accept_fired(&mut self, messages: Vec<NewMessage>, now: Timestamp) -> Result<Vec<MessageId>, Unfired> {
        let Some(tenant) = messages.first().map(|message| message.tenant) else { return Ok(Vec::new()) };
        let failed = |exceeded: QuotaExceeded| Unfired::Failed(exceeded.to_string());
        self.node.check_quotas(messages.iter()).map_err(failed)?;
        let bytes = stored_bytes(&messages);
        let room = self.take_room(tenant, bytes).map_err(|no_room| match no_room {
            NoRoom::Quota(exceeded) if !self.fits_quota(tenant, bytes as u64) => failed(exceeded),
            // Requests that are being stored take the rest of the quota, and may count twice for a moment.
            NoRoom::Quota(_) | NoRoom::DiskLow => Unfired::NoRoomNow,
        })?;
        self.keep_until_committed(room);
        // They have no keys, so there is nothing to know of duplicates.
        let mut moment = Moment { now, host: &mut self.host };
        let accepted = self.node.publish(messages, 0, &Facts::default(), &mut moment);
        Ok(accepted.into_iter().map(|accepted| accepted.id).collect())
    }

    /// A schedule as it is now, without its body. Commits first, so that the store's answer is the truth.
    fn stored_schedule(&mut self, tenant: TenantId, id: &str) -> Result<Option<Schedule>, CoreFailure> {
        if !self.firing.schedules.contains(tenant, id) {
            return Ok(None);
        }
        self.commit()?;
        Ok(self.store.schedule(tenant, id, Part::Head)?)
    }
}

/// Why a schedule made no messages.
enum Unfired {
    /// This firing is over.
    Failed(String),
    /// It stays due.
    NoRoomNow,
}

/// The messages of one firing, as a publish would make them; or why there are none.
pub(crate) fn messages_of(
    store: &dyn Store,
    schedule: &Schedule,
) -> Result<Result<Vec<NewMessage>, String>, StoreError> {
    let Schedule { tenant, id, plan, body, .. } = schedule;
    let (topic, endpoints) = match &plan.destination {
        ScheduleTarget::Url(url) => (None, vec![Endpoint { url: url.clone(), name: None }]),
        ScheduleTarget::Group(name) => match store.url_group(*tenant, name)? {
            Some(group) => (Some(name.clone()), group.endpoints),
            None => return Ok(Err(format!("topic {name} not found"))),
        },
    };
    let message = |Endpoint { url, name }| NewMessage {
        tenant: *tenant,
        origin: Origin::of_url(*tenant, &url),
        body: body.clone(),
        first_due: plan.delay_ms.map_or(FirstDue::Now, FirstDue::AfterMs),
        dedup: None,
        spec: MessageSpec {
            url,
            topic: topic.clone(),
            endpoint: name,
            schedule_id: Some(id.clone()),
            ..plan.spec.clone()
        },
    };
    Ok(Ok(endpoints.into_iter().map(message).collect()))
}
