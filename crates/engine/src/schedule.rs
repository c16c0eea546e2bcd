//! A schedule: publishes the same message again and again, at the times of a cron expression.
//!
//! A (schedule, fire time) makes at most one message, over restarts and clock jumps: the time of the next
//! one is stored in the transaction that stores the message, and only ever moves ahead. Of times that were
//! missed, because nobody ran or the clock jumped, the latest one is caught up with and the others are left
//! out. `@every` counts from the Unix epoch, not from the creation of the schedule, so that a restart or a
//! replaced schedule keeps its rhythm.
//!
//! [`Schedule::tick`] decides; [`Schedules`] knows in RAM when that is needed, and of nothing else.

use crate::message::MessageSpec;
use crate::planted::{self, Bug};
use bytes::Bytes;
use posthaste_wire::cron::{Cron, InvalidCron};
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// What was asked for, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Whose.
    pub tenant: TenantId,
    /// Its id, unique within the tenant.
    pub id: String,
    /// What was asked for; immutable. [`Schedule::cron_text`] is the expression that counts.
    pub plan: SchedulePlan,
    /// The exact bytes to send.
    pub body: Bytes,
    /// How far it has come.
    pub state: ScheduleState,
}

/// What was asked for. Stored as JSON; new fields need `#[serde(default)]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulePlan {
    /// When it was made.
    pub created_at: Timestamp,
    /// The cron expression, trimmed; it was checked. A later one is in the state, so that a change does not write the body again.
    pub cron: String,
    /// A URL, or the name of a URL group.
    pub destination: ScheduleTarget,
    /// How long after its fire time a message is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Everything else that its messages have in common; `url` is that of the destination, or empty.
    pub spec: MessageSpec,
}

/// Where the messages of a schedule go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleTarget {
    /// One URL.
    Url(String),
    /// Each endpoint that the group has when the schedule fires.
    Group(String),
}

/// How far a schedule has come. Stored as JSON; new fields need `#[serde(default)]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// It does not fire; times go by.
    #[serde(default)]
    pub paused: bool,
    /// When it fires next; `None` when it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// Which time it last fired for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// The messages it made then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_messages: Vec<MessageId>,
    /// Why the last firing made no message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Until it fires: a schedule that it has replaced fired for this time, so nothing up to it is fired again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Timestamp>,
    /// The expression that has replaced the plan's; it was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
}

/// What the clock asks of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Nothing: it is paused, or its time has not come.
    Wait,
    /// It fires.
    Fire {
        /// The time that it fires for: the latest that has come.
        at: Timestamp,
        /// What becomes of it, once the messages that it makes are filled in.
        state: ScheduleState,
    },
    /// Its expression was accepted once and cannot be read any more: it never fires again.
    Broken(ScheduleState),
}

impl Schedule {
    /// What the clock asks of it.
    pub fn tick(&self, now: Timestamp) -> Tick {
        let Some(next) = self.state.next.filter(|next| *next <= now && !self.state.paused) else { return Tick::Wait };
        match self.cron() {
            Ok(cron) => {
                // What was due by the rules of a time zone that have changed since is due all the same.
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

    /// What becomes of it when it is paused or resumed; `None` if it is so already. What it missed while it was
    /// paused is not caught up with.
    pub fn switched(&self, paused: bool, now: Timestamp) -> Option<ScheduleState> {
        let state = ScheduleState { paused, next: self.next_behind(now), ..self.state.clone() };
        (paused != self.state.paused).then_some(state)
    }

    /// What becomes of it when it gets another expression. All else stays, and what has fired does not fire again.
    pub fn rescheduled(&self, cron: &Cron, now: Timestamp) -> ScheduleState {
        let ScheduleState { next, floor, .. } = ScheduleState::begin(cron, Some(&self.state), now);
        let next = if planted::has(Bug::RescheduleKeepsTime) { self.state.next } else { next };
        ScheduleState { next, floor, error: None, cron: Some(cron.text().to_owned()), ..self.state.clone() }
    }

    /// Its cron expression as it is now.
    pub fn cron_text(&self) -> &str {
        self.state.cron.as_deref().unwrap_or(&self.plan.cron)
    }

    /// When it would fire next, as people are told. The times of a paused one go by.
    pub fn next_shown(&self, now: Timestamp) -> Option<Timestamp> {
        if self.state.paused { self.next_behind(now) } else { self.state.next }
    }

    /// The stored next time, or if that has gone by the first one that has not.
    fn next_behind(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.state.next?;
        if next > now { Some(next) } else { self.cron().map_or(Some(next), |cron| cron.next_after(now)) }
    }

    fn cron(&self) -> Result<Cron, InvalidCron> {
        Cron::parse(self.cron_text())
    }
}

impl ScheduleState {
    /// The state of a schedule that is made now, perhaps in the place of another one of its id.
    pub fn begin(cron: &Cron, replaced: Option<&ScheduleState>, now: Timestamp) -> ScheduleState {
        let floor = replaced.and_then(|replaced| replaced.last.max(replaced.floor));
        let after = floor.map_or(now, |floor| floor.max(now));
        ScheduleState { next: cron.next_after(after), floor, ..ScheduleState::default() }
    }

    /// When it must be looked at.
    fn wake(&self) -> Option<Timestamp> {
        self.next.filter(|_| !self.paused)
    }
}

/// When each schedule must be looked at. Tenants take turns, so that one with many holds up nobody.
#[derive(Debug, Default)]
pub struct Schedules {
    tenants: HashMap<TenantId, Wakes>,
    /// The first wake of each tenant that has one.
    firsts: BTreeSet<(Timestamp, TenantId)>,
    /// Since when, and until when, the schedules of a tenant are held.
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
    /// A schedule is made, or its state has changed.
    pub fn put(&mut self, tenant: TenantId, id: &str, state: &ScheduleState) {
        self.change(tenant, |wakes| wakes.put(id.into(), state.wake()));
    }

    /// A schedule is gone; says whether there was one.
    pub fn remove(&mut self, tenant: TenantId, id: &str) -> bool {
        self.change(tenant, |wakes| wakes.remove(id))
    }

    /// Whether there is such a schedule.
    pub fn contains(&self, tenant: TenantId, id: &str) -> bool {
        self.tenants.get(&tenant).is_some_and(|wakes| wakes.of.contains_key(id))
    }

    /// How many schedules a tenant has.
    pub fn count(&self, tenant: TenantId) -> usize {
        self.tenants.get(&tenant).map_or(0, |wakes| wakes.of.len())
    }

    /// The schedules of a tenant that fire next, at most so many: when, and which. Paused ones do not.
    pub fn next(&self, tenant: TenantId, max: usize) -> Vec<(Timestamp, Arc<str>)> {
        self.tenants.get(&tenant).map_or(Vec::new(), |wakes| wakes.order.iter().take(max).cloned().collect())
    }

    /// Holds the schedules of a tenant until then. A clock that is set back ends it.
    pub fn hold(&mut self, tenant: TenantId, now: Timestamp, until: Timestamp) {
        self.held.insert(tenant, (now, until));
    }

    fn held_until(&self, tenant: TenantId, now: Timestamp) -> Timestamp {
        let held = self.held.get(&tenant).filter(|(since, _)| *since <= now);
        held.map_or(Timestamp::default(), |(_, until)| *until)
    }

    /// When [`Schedules::due`] will say something.
    pub fn next_wake(&self, now: Timestamp) -> Timestamp {
        let mut earliest = Timestamp::MAX;
        // Tenants by their first wake: once it is too late, those after it are, too.
        for (wake, tenant) in self.firsts.iter() {
            if *wake >= earliest {
                break;
            }
            earliest = earliest.min(self.held_until(*tenant, now).max(*wake));
        }
        earliest
    }

    /// At most `max` schedules whose time has come, of each tenant the earliest, dealt out in turns. None of a tenant that is
    /// held.
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
