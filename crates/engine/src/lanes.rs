//! Who may start next: one lane per destination origin, taken in turns, so that nobody waits for a
//! stranger.
//!
//! A tenant's lanes take turns, and so do the tenants; caps hold per lane, per tenant and in all. A lane
//! keeps at most [`limits::LANE_HELD_MAX`] waiting messages in RAM; the rest is `spilled`: left in the store and
//! asked for again when the lane has room.

use crate::limits;
use crate::message::{DueKey, Live, Origin};
use posthaste_wire::id::{Seq, TenantId};
use std::collections::{HashMap, VecDeque};

/// The caps of a shard. [`Settings::default`] takes them from [`limits`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Attempts under way in all.
    pub in_flight_max: u32,
    /// Attempts under way per tenant.
    pub tenant_in_flight_max: u32,
    /// Attempts under way per tenant and destination origin.
    pub origin_in_flight_max: u32,
    /// Bytes of bodies under way in all.
    pub in_flight_bytes_max: u64,
    /// Messages in RAM.
    pub held_max: usize,
    /// Due messages in RAM per tenant and destination origin.
    pub lane_held_max: usize,
    /// Live rows read from the store at once.
    pub load_page: usize,
    /// How long a duplicate is recognised.
    pub dedup_window_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            in_flight_max: limits::IN_FLIGHT_MAX,
            tenant_in_flight_max: limits::TENANT_IN_FLIGHT_MAX,
            origin_in_flight_max: limits::ORIGIN_IN_FLIGHT_MAX,
            in_flight_bytes_max: limits::IN_FLIGHT_BYTES_MAX,
            held_max: limits::HELD_MAX,
            lane_held_max: limits::LANE_HELD_MAX,
            load_page: limits::LOAD_PAGE,
            dedup_window_ms: limits::DEDUP_WINDOW_MS,
        }
    }
}

/// Waiting and running messages, by where they go.
#[derive(Debug)]
pub(crate) struct Lanes {
    settings: Settings,
    lanes: HashMap<Origin, Lane>,
    tenants: HashMap<TenantId, Tenant>,
    /// Tenants with a lane that may start something, in turn.
    turn: VecDeque<TenantId>,
    /// Lanes that have room for what they spilled.
    hungry: VecDeque<Origin>,
    in_flight: u32,
    in_flight_bytes: u64,
}

#[derive(Debug)]
struct Lane {
    tenant: TenantId,
    in_flight: u32,
    /// Due, in order. Entries that were cancelled meanwhile are skipped when their turn comes.
    waiting: VecDeque<Seq>,
    /// Messages of this lane from here on are due, but in the store only.
    spilled: Option<DueKey>,
    /// Stands in its tenant's `runnable`.
    queued: bool,
    /// Stands in `hungry`.
    hungry: bool,
}

#[derive(Debug, Default)]
struct Tenant {
    in_flight: u32,
    /// Lanes with something waiting and a free slot, in turn.
    runnable: VecDeque<Origin>,
    /// Stands in `turn`.
    queued: bool,
}

impl Lane {
    fn new(tenant: TenantId) -> Self {
        Lane { tenant, in_flight: 0, waiting: VecDeque::new(), spilled: None, queued: false, hungry: false }
    }

    fn spill(&mut self, key: DueKey) {
        self.spilled = Some(self.spilled.map_or(key, |spilled| spilled.min(key)));
    }
}

impl Lanes {
    pub(crate) fn new(settings: Settings) -> Self {
        Lanes {
            settings,
            lanes: HashMap::new(),
            tenants: HashMap::new(),
            turn: VecDeque::new(),
            hungry: VecDeque::new(),
            in_flight: 0,
            in_flight_bytes: 0,
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A message is due. False: the lane is full, the message is left to the store.
    pub(crate) fn push(&mut self, live: &Live, held: usize) -> bool {
        let lane = self.lanes.entry(live.origin).or_insert_with(|| Lane::new(live.tenant));
        let full = lane.waiting.len() >= self.settings.lane_held_max || (held >= self.settings.held_max && !lane.waiting.is_empty());
        if full || lane.spilled.is_some() {
            lane.spill(live.due_key());
            self.feed(live.origin);
            return false;
        }
        lane.waiting.push_back(live.id.seq);
        self.queue(live.origin);
        true
    }

    /// The next message that may start, if any. `ready` knows which waiting messages still exist.
    pub(crate) fn start(&mut self, ready: impl Fn(Seq) -> Option<Live>) -> Option<Live> {
        while self.in_flight < self.settings.in_flight_max {
            let tenant = *self.turn.front()?;
            let runnable = self.tenants.get(&tenant).and_then(|tenant| tenant.runnable.front().copied());
            let origin = runnable.expect("a tenant in turn has a runnable lane");
            let lane = self.lanes.get_mut(&origin).expect("a runnable lane exists");
            let next = lane.waiting.front().and_then(|&seq| ready(seq));
            let bytes = self.in_flight_bytes + next.map_or(0, |live| u64::from(live.body_bytes));
            if next.is_some() && self.in_flight > 0 && bytes > self.settings.in_flight_bytes_max {
                return None;
            }
            lane.waiting.pop_front();
            let started = u32::from(next.is_some());
            lane.in_flight += started;
            self.in_flight += started;
            self.in_flight_bytes = bytes;
            self.end_turn(tenant, origin, started);
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// An attempt has ended.
    pub(crate) fn finish(&mut self, live: &Live) {
        self.in_flight -= 1;
        self.in_flight_bytes -= u64::from(live.body_bytes);
        self.lanes.get_mut(&live.origin).expect("an attempt under way has a lane").in_flight -= 1;
        self.tenants.get_mut(&live.tenant).expect("an attempt under way has a tenant").in_flight -= 1;
        self.queue(live.origin);
        self.queue_tenant(live.tenant);
        self.tidy(live.origin);
    }

    /// A lane that has room for what it spilled, and the first key that it lacks.
    ///
    /// However full the shard is, a lane with nothing waiting may load: no destination starves.
    pub(crate) fn wants_refill(&self, held: usize) -> Option<(Origin, DueKey)> {
        let full = held + self.settings.lane_held_max / 2 > self.settings.held_max;
        self.hungry.iter().find_map(|&origin| {
            let lane = self.lanes.get(&origin)?;
            let from = lane.spilled?;
            (!full || lane.waiting.is_empty()).then_some((origin, from))
        })
    }

    /// What the lane spilled has been read and is about to be pushed again.
    pub(crate) fn begin_refill(&mut self, origin: Origin) {
        self.hungry.retain(|&other| other != origin);
        if let Some(lane) = self.lanes.get_mut(&origin) {
            lane.hungry = false;
            lane.spilled = None;
        }
    }

    /// What was read is pushed; from `rest` on, the store may have more.
    pub(crate) fn end_refill(&mut self, origin: Origin, rest: Option<DueKey>) {
        if let (Some(rest), Some(lane)) = (rest, self.lanes.get_mut(&origin)) {
            lane.spill(rest);
        }
        self.feed(origin);
        self.tidy(origin);
    }

    /// The lane at the front of the turn has had it.
    fn end_turn(&mut self, tenant_id: TenantId, origin: Origin, started: u32) {
        let tenant = self.tenants.get_mut(&tenant_id).expect("whose turn it was exists");
        tenant.in_flight += started;
        tenant.runnable.pop_front();
        tenant.queued = false;
        self.turn.pop_front();
        self.lanes.get_mut(&origin).expect("whose turn it was exists").queued = false;
        self.queue(origin);
        self.queue_tenant(tenant_id);
        self.feed(origin);
        self.tidy(origin);
    }

    /// Puts a lane in line if it has something waiting and a free slot.
    fn queue(&mut self, origin: Origin) {
        let Some(lane) = self.lanes.get_mut(&origin) else { return };
        if lane.queued || lane.waiting.is_empty() || lane.in_flight >= self.settings.origin_in_flight_max {
            return;
        }
        lane.queued = true;
        let tenant = lane.tenant;
        self.tenants.entry(tenant).or_default().runnable.push_back(origin);
        self.queue_tenant(tenant);
    }

    /// Puts a tenant in line if it has a runnable lane and a free slot.
    fn queue_tenant(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if !tenant.queued && !tenant.runnable.is_empty() && tenant.in_flight < self.settings.tenant_in_flight_max {
            tenant.queued = true;
            self.turn.push_back(id);
        }
    }

    /// Marks a lane that has room for what it spilled.
    fn feed(&mut self, origin: Origin) {
        let Some(lane) = self.lanes.get_mut(&origin) else { return };
        if !lane.hungry && lane.spilled.is_some() && lane.waiting.len() < self.settings.lane_held_max.div_ceil(2) {
            lane.hungry = true;
            self.hungry.push_back(origin);
        }
    }

    /// Forgets a lane that holds nothing.
    fn tidy(&mut self, origin: Origin) {
        let idle = self.lanes.get(&origin).is_some_and(|lane| {
            lane.in_flight == 0 && lane.waiting.is_empty() && lane.spilled.is_none() && !lane.queued && !lane.hungry
        });
        if idle {
            self.lanes.remove(&origin);
        }
    }
}
