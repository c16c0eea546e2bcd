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
    /// Bytes of bodies under way per tenant.
    pub tenant_in_flight_bytes_max: u64,
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
            tenant_in_flight_bytes_max: limits::TENANT_IN_FLIGHT_BYTES_MAX,
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
    lanes: HashMap<LaneKey, Lane>,
    tenants: HashMap<TenantId, Tenant>,
    /// Tenants with a lane that may start something, in turn.
    turn: VecDeque<TenantId>,
    /// Lanes that have room for what they spilled.
    hungry: VecDeque<LaneKey>,
    in_flight: u32,
    in_flight_bytes: u64,
}

/// Origins are hashes: the tenant beside it keeps a collision from mixing tenants up.
pub(crate) type LaneKey = (TenantId, Origin);

fn lane_of(live: &Live) -> LaneKey {
    (live.tenant, live.origin)
}

#[derive(Debug, Default)]
struct Lane {
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
    in_flight_bytes: u64,
    /// Lanes with something waiting and a free slot, in turn.
    runnable: VecDeque<LaneKey>,
    /// Stands in `turn`.
    queued: bool,
}

impl Lane {
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
    ///
    /// However full the shard is, a lane may hold what could start at once: no destination starves.
    pub(crate) fn push(&mut self, live: &Live, held: usize) -> bool {
        let key = lane_of(live);
        let room = if held < self.settings.held_max { self.settings.lane_held_max } else { self.floor() };
        let lane = self.lanes.entry(key).or_default();
        if lane.spilled.is_some() || lane.waiting.len() >= room {
            lane.spill(live.due_key());
            self.feed(key);
            return false;
        }
        lane.waiting.push_back(live.id.seq);
        self.queue(key);
        true
    }

    /// The next message that may start, if any. `ready` knows which waiting messages still exist.
    pub(crate) fn start(&mut self, ready: impl Fn(Seq) -> Option<Live>) -> Option<Live> {
        let mut passed = 0;
        while self.in_flight < self.settings.in_flight_max && passed < self.turn.len() {
            let tenant_id = *self.turn.front()?;
            let tenant = self.tenants.get(&tenant_id).expect("a tenant in turn exists");
            let key = *tenant.runnable.front().expect("a tenant in turn has a runnable lane");
            let lane = self.lanes.get_mut(&key).expect("a runnable lane exists");
            let next = lane.waiting.front().and_then(|&seq| ready(seq));
            let bytes = next.map_or(0, |live| u64::from(live.body_bytes));
            let fits = |in_flight: u32, sum: u64, max: u64| in_flight == 0 || sum + bytes <= max;
            if !fits(self.in_flight, self.in_flight_bytes, self.settings.in_flight_bytes_max)
                || !fits(tenant.in_flight, tenant.in_flight_bytes, self.settings.tenant_in_flight_bytes_max)
            {
                // Large bodies wait for room without holding up others.
                self.end_turn(tenant_id, key, None);
                passed += 1;
                continue;
            }
            lane.waiting.pop_front();
            self.end_turn(tenant_id, key, next);
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// An attempt has ended.
    pub(crate) fn finish(&mut self, live: &Live) {
        let (key, bytes) = (lane_of(live), u64::from(live.body_bytes));
        self.in_flight -= 1;
        self.in_flight_bytes -= bytes;
        self.lanes.get_mut(&key).expect("an attempt under way has a lane").in_flight -= 1;
        let tenant = self.tenants.get_mut(&live.tenant).expect("an attempt under way has a tenant");
        tenant.in_flight -= 1;
        tenant.in_flight_bytes -= bytes;
        self.queue(key);
        self.queue_tenant(live.tenant);
        self.tidy(key);
    }

    /// A lane that has room for what it spilled, and the first key that it lacks.
    pub(crate) fn wants_refill(&self, held: usize) -> Option<(LaneKey, DueKey)> {
        let full = held + self.refill() > self.settings.held_max;
        self.hungry.iter().find_map(|&key| {
            let lane = self.lanes.get(&key)?;
            let from = lane.spilled?;
            (!full || lane.waiting.len() < self.floor().div_ceil(2)).then_some((key, from))
        })
    }

    /// How many messages a refill asks for.
    pub(crate) fn refill(&self) -> usize {
        self.settings.lane_held_max.div_ceil(2)
    }

    /// What the lane spilled has been read and is about to be pushed again.
    pub(crate) fn begin_refill(&mut self, key: LaneKey) {
        self.hungry.retain(|&other| other != key);
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.hungry = false;
            lane.spilled = None;
        }
    }

    /// What was read is pushed; from `rest` on, the store may have more.
    pub(crate) fn end_refill(&mut self, key: LaneKey, rest: Option<DueKey>) {
        if let (Some(rest), Some(lane)) = (rest, self.lanes.get_mut(&key)) {
            lane.spill(rest);
        }
        self.feed(key);
        self.tidy(key);
    }

    /// Messages that a lane may hold in a full shard: those that could start at once.
    fn floor(&self) -> usize {
        (self.settings.origin_in_flight_max as usize).min(self.settings.lane_held_max)
    }

    /// The lane at the front of the turn has had it, and started this.
    fn end_turn(&mut self, tenant_id: TenantId, key: LaneKey, started: Option<Live>) {
        let tenant = self.tenants.get_mut(&tenant_id).expect("whose turn it was exists");
        let lane = self.lanes.get_mut(&key).expect("whose turn it was exists");
        if let Some(live) = started {
            let bytes = u64::from(live.body_bytes);
            lane.in_flight += 1;
            tenant.in_flight += 1;
            tenant.in_flight_bytes += bytes;
            self.in_flight += 1;
            self.in_flight_bytes += bytes;
        }
        lane.queued = false;
        tenant.queued = false;
        tenant.runnable.pop_front();
        self.turn.pop_front();
        self.queue(key);
        self.queue_tenant(tenant_id);
        self.feed(key);
        self.tidy(key);
    }

    /// Puts a lane in line if it has something waiting and a free slot.
    fn queue(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if lane.queued || lane.waiting.is_empty() || lane.in_flight >= self.settings.origin_in_flight_max {
            return;
        }
        lane.queued = true;
        self.tenants.entry(key.0).or_default().runnable.push_back(key);
        self.queue_tenant(key.0);
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
    fn feed(&mut self, key: LaneKey) {
        let refill = self.refill();
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if !lane.hungry && lane.spilled.is_some() && lane.waiting.len() < refill {
            lane.hungry = true;
            self.hungry.push_back(key);
        }
    }

    /// Forgets a lane that holds nothing.
    fn tidy(&mut self, key: LaneKey) {
        let idle = self.lanes.get(&key).is_some_and(|lane| {
            lane.in_flight == 0 && lane.waiting.is_empty() && lane.spilled.is_none() && !lane.queued && !lane.hungry
        });
        if idle {
            self.lanes.remove(&key);
        }
    }
}
