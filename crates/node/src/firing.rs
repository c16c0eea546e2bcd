//! Schedules fire: those whose time has come are read together, and each becomes messages and a new state in one transaction.
//!
//! ```text
//! fire_due() ── next() ──▶ Read ── found() ──▶ next() ──▶ Read, of URL groups ── found() ──▶ next() ──▶ Decided … Done
//! ```
//!
//! A round with many schedules reads them in portions.
//!
//! When a schedule fires is decided in [`posthaste_engine::schedule`].

use crate::facts::{DueSchedules, Facts, Wanted};
use crate::host::{Moment, NoRoom};
use crate::new_message::{FirstDue, NewMessage};
use crate::node::Node;
use crate::quota::QuotaExceeded;
use crate::round::Progress;
use crate::weight::stored_bytes;
use posthaste_engine::message::{MessageSpec, Origin};
use posthaste_engine::schedule::{Schedule, ScheduleState, ScheduleTarget, Tick};
use posthaste_engine::url_group::{Endpoint, UrlGroup};
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// How long the schedules of a tenant are held when there is no room for the messages of one of them.
const ROOM_WAIT_MS: u64 = 1_000;

/// Schedules whose time has come, and how far their firing is. Nothing else may be decided before it is done.
pub struct Firing {
    /// Those that are not read yet.
    due: VecDeque<(TenantId, Arc<str>)>,
    /// Those that are being read.
    reading: Vec<(TenantId, Arc<str>)>,
    stage: Stage,
    /// Those that are read and have yet to fire; `None` for one that is missing.
    read: VecDeque<(TenantId, Arc<str>, Option<Schedule>)>,
    groups: HashMap<TenantId, HashMap<String, UrlGroup>>,
    /// Tenants whose other schedules wait, too: those of one tenant keep their order.
    without_room: HashSet<TenantId>,
    messages: usize,
    /// Bytes of bodies that were read.
    bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    ReadSchedules,
    ReadGroups,
    Fire,
}

/// Why a schedule made no messages.
enum Unfired {
    /// This firing is over.
    Failed(String),
    /// It stays due.
    NoRoomNow,
}

impl Node {
    /// A bounded number of the schedules whose time has come; `None` if it is none's. Nothing may be uncommitted.
    pub fn fire_due(&self, now: Timestamp) -> Option<Firing> {
        if self.schedules.next_wake(now) > now {
            return None;
        }
        Some(Firing {
            due: self.schedules.due(now, self.bounds.fired).into(),
            reading: Vec::new(),
            stage: Stage::ReadSchedules,
            read: VecDeque::new(),
            groups: HashMap::new(),
            without_room: HashSet::new(),
            messages: 0,
            bytes: 0,
        })
    }

    /// Fires one schedule and returns how many messages it made. `None` if there is no room for them now: it stays due.
    fn fire(&mut self, schedule: &Schedule, group: Option<&UrlGroup>, moment: &mut Moment<'_>) -> Option<usize> {
        let state = match schedule.tick(moment.now) {
            Tick::Wait => schedule.state.clone(),
            Tick::Broken(state) => state,
            Tick::Fire { state, .. } => {
                let messages = messages_of(schedule, group).map_err(Unfired::Failed);
                match messages.and_then(|messages| self.accept_fired(messages, moment)) {
                    Ok(last_messages) => ScheduleState { last_messages, ..state },
                    Err(Unfired::Failed(error)) => ScheduleState { error: Some(error), ..state },
                    Err(Unfired::NoRoomNow) => return None,
                }
            }
        };
        moment.host.fired(schedule, &state);
        let made = state.last_messages.len();
        self.set_schedule(schedule.tenant, schedule.id.clone(), state);
        Some(made)
    }

    fn accept_fired(&mut self, messages: Vec<NewMessage>, moment: &mut Moment<'_>) -> Result<Vec<MessageId>, Unfired> {
        let Some(tenant) = messages.first().map(|message| message.tenant) else { return Ok(Vec::new()) };
        let failed = |exceeded: QuotaExceeded| Unfired::Failed(exceeded.to_string());
        self.check_quotas(messages.iter()).map_err(failed)?;
        let bytes = stored_bytes(&messages);
        let room = moment.host.take_room(tenant, bytes).map_err(|no_room| match no_room {
            NoRoom::Quota(exceeded) if !moment.host.fits_quota(tenant, bytes) => failed(exceeded),
            // Requests that are being stored take the rest of the quota, and may count twice for a moment.
            NoRoom::Quota(_) | NoRoom::DiskLow => Unfired::NoRoomNow,
        })?;
        if let Some(room) = room {
            self.batch.after_commit(move || drop(room));
        }
        // They have no keys, so there is nothing to know of duplicates.
        let accepted = self.publish(messages, 0, &Facts::default(), moment);
        Ok(accepted.into_iter().map(|accepted| accepted.id).collect())
    }
}

impl Firing {
    /// Fires the next schedule, or says what must happen before.
    pub fn next(&mut self, node: &mut Node, moment: &mut Moment<'_>) -> Progress {
        match self.stage {
            Stage::ReadSchedules => self.read_next(node),
            Stage::ReadGroups => Progress::Read(Wanted { url_groups: self.wanted_groups(), ..Wanted::default() }),
            Stage::Fire if node.batch.body_bytes >= node.bounds.batch_bytes => Progress::Commit,
            Stage::Fire => self.fire_next(node, moment),
        }
    }

    /// Asks for the next schedules, unless the round has done enough.
    fn read_next(&mut self, node: &Node) -> Progress {
        let bytes_max = node.bounds.fired_bytes.saturating_sub(self.bytes);
        let without_room = &self.without_room;
        self.due.retain(|(tenant, _)| !without_room.contains(tenant));
        if self.due.is_empty() || bytes_max == 0 || self.messages >= node.bounds.fired_messages {
            return Progress::Done;
        }
        self.reading = self.due.drain(..self.due.len().min(node.bounds.fired_read)).collect();
        let due = DueSchedules { schedules: self.reading.clone(), bytes_max };
        Progress::Read(Wanted { due, ..Wanted::default() })
    }

    /// What was read for [`Progress::Read`].
    pub fn found(&mut self, facts: Facts) {
        match self.stage {
            Stage::ReadSchedules => {
                self.bytes += facts.due.iter().flatten().map(|schedule| schedule.body.len()).sum::<usize>();
                let due = std::mem::take(&mut self.reading);
                self.read = due.into_iter().zip(facts.due).map(|((tenant, id), read)| (tenant, id, read)).collect();
                self.stage = if self.wanted_groups().is_empty() { Stage::Fire } else { Stage::ReadGroups };
            }
            Stage::ReadGroups | Stage::Fire => (self.groups, self.stage) = (facts.url_groups, Stage::Fire),
        }
    }

    fn wanted_groups(&self) -> Vec<(TenantId, String)> {
        let mut groups: Vec<(TenantId, String)> = self.read.iter().filter_map(group_of).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    fn fire_next(&mut self, node: &mut Node, moment: &mut Moment<'_>) -> Progress {
        if self.messages >= node.bounds.fired_messages {
            return Progress::Done;
        }
        let Some((tenant, id, schedule)) = self.read.pop_front() else {
            self.stage = Stage::ReadSchedules;
            return self.read_next(node);
        };
        if self.without_room.contains(&tenant) {
            return Progress::Decided;
        }
        let Some(schedule) = schedule else {
            moment.host.schedule_missing(tenant, &id);
            node.schedules.remove(tenant, &id);
            return Progress::Decided;
        };
        let group = match &schedule.plan.destination {
            ScheduleTarget::Url(_) => None,
            ScheduleTarget::Group(name) => self.groups.get(&tenant).and_then(|groups| groups.get(name)),
        };
        match node.fire(&schedule, group, moment) {
            Some(made) => self.messages += made,
            None => {
                node.schedules.hold(tenant, moment.now, moment.now.plus_millis(ROOM_WAIT_MS));
                self.without_room.insert(tenant);
            }
        }
        Progress::Decided
    }
}

fn group_of((tenant, _, schedule): &(TenantId, Arc<str>, Option<Schedule>)) -> Option<(TenantId, String)> {
    match &schedule.as_ref()?.plan.destination {
        ScheduleTarget::Url(_) => None,
        ScheduleTarget::Group(name) => Some((*tenant, name.clone())),
    }
}

/// The messages of one firing, as a publish would make them, or why there are none. `group` is the stored URL group that the
/// schedule names, if it names one.
pub fn messages_of(schedule: &Schedule, group: Option<&UrlGroup>) -> Result<Vec<NewMessage>, String> {
    let Schedule { tenant, id, plan, body, .. } = schedule;
    let (topic, endpoints) = match (&plan.destination, group) {
        (ScheduleTarget::Url(url), _) => (None, vec![Endpoint { url: url.clone(), name: None }]),
        (ScheduleTarget::Group(name), Some(group)) => (Some(name.clone()), group.endpoints.clone()),
        (ScheduleTarget::Group(name), None) => return Err(format!("topic {name} not found")),
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
    Ok(endpoints.into_iter().map(message).collect())
}
