//! A schedule publishes the same message repeatedly, at the times of a cron expression.
//!
//! A (schedule, fire time) creates at most one message, across restarts and clock jumps: the next time is stored in the
//! transaction that stores the message, and only moves forward. If times were missed, because the server was down or
//! the clock jumped, the schedule catches up with the latest one and skips the others. `@every` counts from the Unix
//! epoch, not from the creation of the schedule, so that a restarted or replaced schedule keeps its rhythm.
//!
//! [`Schedule::tick`] decides. [`Schedules`] keeps only the wake-up times in RAM.

use crate::message::MessageSpec;
use crate::planted::{self, Bug};
use bytes::Bytes;
use posthaste_wire::cron::{Cron, InvalidCron};
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// A schedule and its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The tenant.
    pub tenant: TenantId,
    /// Its id, unique within the tenant.
    pub id: String,
    /// The settings; immutable. [`Schedule::cron_text`] is the current expression.
    pub plan: SchedulePlan,
    /// The exact bytes to send.
    pub body: Bytes,
    /// The progress.
    pub state: ScheduleState,
}

/// The settings of a schedule. Stored as JSON; new fields need `#[serde(default)]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulePlan {
    /// When it was created.
    pub created_at: Timestamp,
    /// The cron expression, trimmed and checked. A later expression is in the state, so that a change does not write
    /// the body again.
    pub cron: String,
    /// A URL, or the name of a URL group.
    pub destination: ScheduleTarget,
    /// How long after its fire time a message is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// All other settings of its messages; `url` is that of the destination, or empty.
    pub spec: MessageSpec,
}

/// Where the messages of a schedule go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleTarget {
    /// One URL.
    Url(String),
    /// Each endpoint of the group at the fire time.
    Group(String),
}

/// The progress of a schedule. Stored as JSON; new fields need `#[serde(default)]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// Whether it is paused; its times pass without firing.
    #[serde(default)]
    pub paused: bool,
    /// The next fire time; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// The last fire time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// The messages of the last firing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_messages: Vec<MessageId>,
    /// Why the last firing created no message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Set until it fires: the schedule that it replaced fired for this time, so it does not fire again up to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Timestamp>,
    /// The expression that replaced the plan's; it was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
}

/// The action of a schedule at the current time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Nothing: it is paused, or its time has not come.
    Wait,
    /// It fires.
    Fire {
        /// The fire time: the latest that has come.
        at: Timestamp,
        /// Its new state, to which the created messages must be added.
        state: ScheduleState,
    },
    /// Its expression was accepted once but is no longer valid, so it never fires again.
    Broken(ScheduleState),
}

impl Schedule {
    /// Its action at this time.
    pub fn tick(&self, now: Timestamp) -> Tick {
        let Some(next) = self.state.next.filter(|next| *next <= now && !self.state.paused) else { return Tick::Wait };
        match self.cron() {
            Ok(cron) => {
                // A time that was due by old time zone rules is still due.
                let at = cron.latest_between(next.minus_millis(1), now).unwrap_or(next);
                let at = if planted::has(Bug::ScheduleCatchesUpWithAll) { next } else { at };
                let after = match () {
                    () if planted::has(Bug::ScheduleNotAdvanced) => next.minus_millis(1),
                    () if planted::has(Bug::ScheduleCatchesUpWithAll) => next,
                    () => now,
                };
                let given = self.state.cron.clone().filter(|_| !planted::has(Bug::RescheduleForgottenAtFiring));
                let (next, cron) = (cron.next_after(after), given);
                let state = ScheduleState { next, last: Some(at), cron, ..ScheduleState::default() };
                Tick::Fire { at, state }
            }
            Err(invalid) => {
                let error = Some(invalid.to_string());
                Tick::Broken(ScheduleState { next: None, error, ..self.state.clone() })
            }
        }
    }

    /// Its state after a pause or a resume; `None` if it does not change. Times that were missed during a pause are not
    /// caught up with.
    pub fn switched(&self, paused: bool, now: Timestamp) -> Option<ScheduleState> {
        let state = ScheduleState { paused, next: self.next_behind(now), ..self.state.clone() };
        (paused != self.state.paused).then_some(state)
    }

    /// Its state with another expression. All else stays, and times that have fired do not fire again.
    pub fn rescheduled(&self, cron: &Cron, now: Timestamp) -> ScheduleState {
        let ScheduleState { next, floor, .. } = ScheduleState::begin(cron, Some(&self.state), now);
        let next = if planted::has(Bug::RescheduleKeepsTime) { self.state.next } else { next };
        ScheduleState { next, floor, error: None, cron: Some(cron.text().to_owned()), ..self.state.clone() }
    }

    /// Its current cron expression.
    pub fn cron_text(&self) -> &str {
        self.state.cron.as_deref().unwrap_or(&self.plan.cron)
    }

    /// The next fire time for display. The times of a paused schedule pass.
    pub fn next_shown(&self, now: Timestamp) -> Option<Timestamp> {
        if self.state.paused { self.next_behind(now) } else { self.state.next }
    }

    /// The stored next time or, if it has passed, the first one that has not.
    fn next_behind(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.state.next?;
        if next > now { Some(next) } else { self.cron().map_or(Some(next), |cron| cron.next_after(now)) }
    }

    fn cron(&self) -> Result<Cron, InvalidCron> {
        Cron::parse(self.cron_text())
    }
}

impl ScheduleState {
    /// The state of a schedule that is created now, possibly replacing another one with its id.
    pub fn begin(cron: &Cron, replaced: Option<&ScheduleState>, now: Timestamp) -> ScheduleState {
        let floor = replaced.and_then(|replaced| replaced.last.max(replaced.floor));
        let after = floor.map_or(now, |floor| floor.max(now));
        ScheduleState { next: cron.next_after(after), floor, ..ScheduleState::default() }
    }

    /// When it must be checked.
    fn wake(&self) -> Option<Timestamp> {
        self.next.filter(|_| !self.paused)
    }
}

/// The wake-up times of schedules. Tenants take turns, so that a tenant with many schedules delays no other.
#[derive(Debug, Default)]
pub struct Schedules {
    tenants: HashMap<TenantId, Wakes>,
    /// The first wake of each tenant that has one.
    firsts: BTreeSet<(Timestamp, TenantId)>,
    /// The start and end of a hold on a tenant's schedules.
    held: HashMap<TenantId, (Timestamp, Timestamp)>,
}

/// The schedules of one tenant.
#[derive(Debug, Default)]
struct Wakes {
    of: HashMap<Arc<str>, Option<Timestamp>>,
    order: BTreeSet<(Timestamp, Arc<str>)>,
}

impl Wakes {
    fn first(&self) -> Option<Timestamp> {
        self.order.first().map(|(wake, _)| *wake)
    }

    fn put(&mut self, id: Arc<str>, wake: Option<Timestamp>) {
        self.remove(&id);
        if let Some(wake) = wake {
            self.order.insert((wake, id.clone()));
        }
        self.of.insert(id, wake);
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some((id, wake)) = self.of.remove_entry(id) else { return false };
        if let Some(wake) = wake {
            self.order.remove(&(wake, id));
        }
        true
    }
}

impl Schedules {
    /// Adds a schedule, or updates its state.
    pub fn put(&mut self, tenant: TenantId, id: &str, state: &ScheduleState) {
        self.change(tenant, |wakes| wakes.put(id.into(), state.wake()));
    }

    /// Removes a schedule, and returns whether it existed.
    pub fn remove(&mut self, tenant: TenantId, id: &str) -> bool {
        self.change(tenant, |wakes| wakes.remove(id))
    }

    /// Whether the schedule exists.
    pub fn contains(&self, tenant: TenantId, id: &str) -> bool {
        self.tenants.get(&tenant).is_some_and(|wakes| wakes.of.contains_key(id))
    }

    /// The number of schedules of a tenant.
    pub fn count(&self, tenant: TenantId) -> usize {
        self.tenants.get(&tenant).map_or(0, |wakes| wakes.of.len())
    }

    /// The next schedules of a tenant, at most `max`, with their times. Paused ones are left out.
    pub fn next(&self, tenant: TenantId, max: usize) -> Vec<(Timestamp, Arc<str>)> {
        self.tenants.get(&tenant).map_or(Vec::new(), |wakes| wakes.order.iter().take(max).cloned().collect())
    }

    /// Holds the schedules of a tenant until then. A clock that is set back ends the hold.
    pub fn hold(&mut self, tenant: TenantId, now: Timestamp, until: Timestamp) {
        self.held.insert(tenant, (now, until));
    }

    fn held_until(&self, tenant: TenantId, now: Timestamp) -> Timestamp {
        let held = self.held.get(&tenant).filter(|(since, _)| *since <= now);
        held.map_or(Timestamp::default(), |(_, until)| *until)
    }

    /// When [`Schedules::due`] will return something.
    pub fn next_wake(&self, now: Timestamp) -> Timestamp {
        let mut earliest = Timestamp::MAX;
        // Tenants are ordered by their first wake-up: once it is too late, all later ones are too.
        for (wake, tenant) in self.firsts.iter() {
            if *wake >= earliest {
                break;
            }
            earliest = earliest.min(self.held_until(*tenant, now).max(*wake));
        }
        earliest
    }

    /// At most `max` schedules whose time has come, the earliest of each tenant, in turns. Tenants on hold are left
    /// out.
    pub fn due(&self, now: Timestamp, max: usize) -> Vec<(TenantId, Arc<str>)> {
        let firsts = self.firsts.iter().take_while(|(wake, _)| *wake <= now);
        let tenants = firsts.map(|(_, tenant)| *tenant).filter(|tenant| self.held_until(*tenant, now) <= now);
        let orders = tenants.filter_map(|tenant| Some((tenant, self.tenants.get(&tenant)?.order.iter())));
        let mut orders: VecDeque<_> = orders.collect();
        let mut due = Vec::new();
        while due.len() < max
            && let Some((tenant, mut order)) = orders.pop_front()
        {
            if let Some((_, id)) = order.next().filter(|(wake, _)| *wake <= now) {
                due.push((tenant, id.clone()));
                orders.push_back((tenant, order));
            }
        }
        due
    }

    fn change<T>(&mut self, tenant: TenantId, change: impl FnOnce(&mut Wakes) -> T) -> T {
        let wakes = self.tenants.entry(tenant).or_default();
        let before = wakes.first();
        let result = change(wakes);
        let after = wakes.first();
        if before != after {
            before.map(|wake| self.firsts.remove(&(wake, tenant)));
            after.map(|wake| self.firsts.insert((wake, tenant)));
        }
        result
    }
}
