//! Which message may start next. There is one lane per destination origin and one per flow-control key, and lanes take
//! turns, so that no message waits for an unrelated one.
//!
//! The lanes of a tenant take turns, and so do the tenants. There are caps per origin, per key, per tenant and in
//! total. A message with a flow-control key waits in the lane of its key. If its destination is busy when the key lets
//! it start, it moves to the lane of its origin. A lane keeps at most [`limits::LANE_HELD_MAX`] waiting messages in
//! RAM. The others are `spilled`: they stay in the store and are loaded when the lane has room. A message that has its
//! turn in a queue is never spilled.

mod refill;
mod why;

use crate::fair_share::{self, ShareWaiters};
use crate::flows::{Blocked, Flows};
use crate::limits;
use crate::load_queue::LoadQueue;
use crate::message::{DueKey, FlowKey, Live, Origin};
use crate::planted::{self, Bug};
use crate::shard::{BacklogCounts, of_tenant};
use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Most lanes that one round skips because the body of their first message does not fit. The others get their turn
/// [`PASSED_PAUSE_MS`] later.
const PASSED_MAX: usize = 64;
/// How long the other lanes wait after that many were skipped.
const PASSED_PAUSE_MS: u64 = 10;

/// The caps of a shard. [`Settings::default`] takes them from [`limits`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Attempts in flight in total.
    pub in_flight_max: u32,
    /// Attempts in flight per tenant.
    pub tenant_in_flight_max: u32,
    /// Attempts in flight per tenant and destination origin.
    pub origin_in_flight_max: u32,
    /// Bytes of bodies in flight in total.
    pub in_flight_bytes_max: u64,
    /// Bytes of bodies in flight per tenant.
    pub tenant_in_flight_bytes_max: u64,
    /// Bytes of bodies in flight per tenant and destination origin.
    pub origin_in_flight_bytes_max: u64,
    /// Messages in RAM.
    pub held_max: usize,
    /// Due messages in RAM per tenant and destination origin.
    pub lane_held_max: usize,
    /// Waiting messages in RAM per queue.
    pub queue_held_max: usize,
    /// Live rows read from the store at once.
    pub load_page: usize,
    /// How long a duplicate is recognized.
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
            origin_in_flight_bytes_max: limits::ORIGIN_IN_FLIGHT_BYTES_MAX,
            held_max: limits::HELD_MAX,
            lane_held_max: limits::LANE_HELD_MAX,
            queue_held_max: limits::QUEUE_HELD_MAX,
            load_page: limits::LOAD_PAGE,
            dedup_window_ms: limits::DEDUP_WINDOW_MS,
        }
    }
}

/// Waiting and running messages, by lane.
#[derive(Debug)]
pub(crate) struct Lanes {
    settings: Settings,
    /// Lanes of the same tenant are adjacent.
    lines: BTreeMap<LaneKey, Line>,
    tenants: HashMap<TenantId, Tenant>,
    /// Tenants with a lane that may start a message, in turn.
    turn: VecDeque<TenantId>,
    /// Lanes that have room for their spilled messages.
    load_queue: LoadQueue<LaneKey>,
    in_flight: u32,
    in_flight_bytes: u64,
    /// The limits of flow-control keys.
    pub(crate) flows: Flows,
    /// When the rates of flow-control keys allow the next start.
    opens: BTreeSet<(Timestamp, LaneKey)>,
    /// When [`Lanes::wake`] was last called.
    last_wake: Timestamp,
    /// How often [`Lanes::next`] was called.
    rounds: u64,
    /// When it must be called again, because not every lane had its turn.
    goes_on_at: Option<Timestamp>,
}

/// The result of [`Lanes::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// This message starts. The number must be passed to [`Lanes::finish`].
    Start(Live, u32),
    /// This message had to change lanes and is left to the store.
    Spilled(Live),
}

/// Lanes are identified by hashes. The tenant prevents that a collision mixes up tenants.
pub type LaneKey = (TenantId, Lane);

/// The resource that the messages of a lane wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// A free slot of their destination.
    Origin(Origin),
    /// Capacity of their flow-control key.
    Flow(FlowKey),
}

fn origin_lane(live: &Live) -> LaneKey {
    (live.tenant, Lane::Origin(live.origin))
}

/// The first lane of a message.
fn first_lane(live: &Live) -> LaneKey {
    live.flow.map_or_else(|| origin_lane(live), |flow| (live.tenant, Lane::Flow(flow)))
}

#[derive(Debug, Default)]
struct Line {
    /// Attempts in flight to an origin. Keys count their own.
    in_flight: u32,
    in_flight_bytes: u64,
    /// The body of this message does not fit next to those in flight to its origin. While it is the first, nothing
    /// starts.
    waits_for_bytes: Option<Seq>,
    /// Due messages in order. Cancelled ones are skipped when their turn comes.
    waiting: VecDeque<Seq>,
    /// Messages of this lane from this key on are due, but only in the store.
    spilled: Option<DueKey>,
    /// Whether it is in its tenant's `runnable`.
    queued: bool,
    /// Its time in `opens`, if it is there.
    opens_at: Option<Timestamp>,
    /// The number of attempts in flight with which it is in its tenant's `share_waiters`, if it is there.
    crowded: Option<u32>,
    /// The last round in which it was skipped because its first message does not fit.
    passed_in: u64,
}

#[derive(Debug, Default)]
struct Tenant {
    in_flight: u32,
    in_flight_bytes: u64,
    /// Lanes with waiting messages and a free slot, in turn.
    runnable: VecDeque<LaneKey>,
    /// Lanes of origins that have used up their share.
    share_waiters: ShareWaiters<LaneKey>,
    /// Whether it is in `turn`.
    queued: bool,
}

impl Line {
    fn is_idle(&self) -> bool {
        let waits = !self.waiting.is_empty() || self.spilled.is_some() || self.opens_at.is_some();
        self.in_flight == 0 && !waits && !self.queued
    }

    fn is_blocked(&self) -> bool {
        self.waits_for_bytes.is_some() && self.waiting.front() == self.waits_for_bytes.as_ref()
    }

    fn spill(&mut self, key: DueKey) {
        self.spilled = Some(self.spilled.map_or(key, |spilled| spilled.min(key)));
    }
}

impl Lanes {
    pub(crate) fn new(settings: Settings) -> Self {
        let extra = u32::from(planted::has(Bug::OriginOneTooMany));
        Lanes {
            settings: Settings { origin_in_flight_max: settings.origin_in_flight_max + extra, ..settings },
            lines: BTreeMap::new(),
            tenants: HashMap::new(),
            turn: VecDeque::new(),
            load_queue: LoadQueue::default(),
            in_flight: 0,
            in_flight_bytes: 0,
            flows: Flows::default(),
            opens: BTreeSet::new(),
            last_wake: Timestamp(0),
            rounds: 0,
            goes_on_at: None,
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(crate) fn tenant_in_flight(&self, tenant: TenantId) -> u32 {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.in_flight)
    }

    /// Adds the waiting messages in the lanes of a tenant; `ready_since` returns when a waiting message was due. Visits
    /// at most `looks` lanes, `looks` messages that are no longer ready, and `looks` keys.
    pub(crate) fn add_waiting(
        &self,
        tenant: TenantId,
        ready_since: impl Fn(Seq) -> Option<Timestamp>,
        mut looks: usize,
        waiting: &mut BacklogCounts,
    ) {
        waiting.paused_flows += self.flows.paused(tenant, looks);
        waiting.is_partial |= self.flows.count(tenant) > looks;
        for ((_, lane), line) in of_tenant(&self.lines, tenant, Lane::Origin(Origin(0))) {
            if looks == 0 {
                waiting.is_partial = true;
                break;
            }
            if matches!(lane, Lane::Flow(flow) if self.flows.is_paused((tenant, *flow))) {
                looks -= 1;
                continue;
            }
            let mut looked = 0;
            let first = line.waiting.iter().inspect(|_| looked += 1).find_map(|seq| ready_since(*seq));
            looks = looks.saturating_sub(looked.max(1));
            let spilled = line.spilled.map(|key| key.due);
            waiting.add(line.waiting.len(), first.into_iter().chain(spilled).min(), spilled.is_some());
        }
    }

    /// Adds a due message, to the lane that requested it if there is one. Returns false if that lane is full and the
    /// message is left to the store.
    pub(crate) fn push(&mut self, live: &Live, lane: Option<LaneKey>, held: usize, now: Timestamp) -> bool {
        self.push_into(lane.unwrap_or_else(|| first_lane(live)), live, held, now)
    }

    /// Even if the shard is full, a lane may hold the messages that could start at once, so that no destination
    /// starves.
    fn push_into(&mut self, key: LaneKey, live: &Live, held: usize, now: Timestamp) -> bool {
        let room = if held < self.settings.held_max { self.settings.lane_held_max } else { self.floor(key) };
        let line = self.lines.entry(key).or_default();
        if live.place.is_none() && (line.spilled.is_some() || line.waiting.len() >= room) {
            if !planted::has(Bug::SpillForgotten) {
                line.spill(live.due_key());
            }
            self.feed(key);
            return false;
        }
        line.waiting.push_back(live.id.seq);
        self.queue(key, now);
        self.feed(key);
        true
    }

    /// Removes a message from its lanes, because it has ended or waits for something other than a free slot.
    pub(crate) fn withdraw(&mut self, live: &Live, now: Timestamp) {
        for key in [first_lane(live), origin_lane(live)] {
            if let Some(line) = self.lines.get_mut(&key) {
                line.waiting.retain(|seq| *seq != live.id.seq);
                self.queue(key, now);
                self.feed(key);
                self.tidy(key);
            }
        }
    }

    /// The next message that may start, if any. `ready` returns waiting messages that still exist; `held` is the number
    /// of messages in RAM.
    pub(crate) fn next(&mut self, ready: impl Fn(Seq) -> Option<Live>, held: usize, now: Timestamp) -> Option<Next> {
        self.rounds += 1;
        self.goes_on_at = None;
        let mut had_their_turn = Vec::new();
        let next = self.look(ready, held, now, &mut had_their_turn);
        self.turn.extend(had_their_turn);
        next
    }

    /// One round of [`Lanes::next`]. Tenants without any lane that fits leave the turn, so that they are visited once.
    fn look(
        &mut self,
        ready: impl Fn(Seq) -> Option<Live>,
        held: usize,
        now: Timestamp,
        had_their_turn: &mut Vec<TenantId>,
    ) -> Option<Next> {
        let mut passed = 0;
        while self.in_flight < self.settings.in_flight_max {
            let tenant_id = *self.turn.front()?;
            let tenant = self.tenants.get(&tenant_id).expect("a tenant in turn exists");
            let key = *tenant.runnable.front().expect("a tenant in turn has a runnable lane");
            let line = line_of(&mut self.lines, key);
            if line.passed_in == self.rounds {
                if !self.pass_on(tenant_id) {
                    had_their_turn.extend(self.turn.pop_front());
                }
                continue;
            }
            if passed == PASSED_MAX {
                self.goes_on_at = Some(now.plus_millis(PASSED_PAUSE_MS));
                return None;
            }
            let Some(live) = line.waiting.front().and_then(|&seq| ready(seq)) else {
                line.waiting.pop_front();
                self.skip_turn(key, now);
                continue;
            };
            if !self.fits(tenant, &live) {
                // Large bodies wait for room without delaying others.
                line_of(&mut self.lines, key).passed_in = self.rounds;
                self.skip_turn(key, now);
                passed += 1;
                continue;
            }
            if self.is_closed(key, &live, now) {
                let waits_for_bytes = matches!(key.1, Lane::Origin(_)) && self.has_place(key);
                line_of(&mut self.lines, key).waits_for_bytes = waits_for_bytes.then_some(live.id.seq);
                self.skip_turn(key, now);
                continue;
            }
            line_of(&mut self.lines, key).waiting.pop_front();
            let other = self.other_lane(key, &live);
            let other = other.filter(|other| self.is_blocked(*other) || self.is_closed(*other, &live, now));
            let Some(other) = other else {
                let generation = self.start(&live, now);
                self.end_turn(key, now);
                return Some(Next::Start(live, generation));
            };
            self.skip_turn(key, now);
            if !self.push_into(other, &live, held, now) {
                return Some(Next::Spilled(live));
            }
        }
        None
    }

    /// Records the end of an attempt.
    pub(crate) fn finish(&mut self, live: &Live, generation: u32, now: Timestamp) {
        let (key, bytes) = (origin_lane(live), u64::from(live.body_bytes));
        self.in_flight -= 1;
        self.in_flight_bytes -= bytes;
        let line = self.lines.get_mut(&key).expect("an attempt in flight has a lane");
        line.in_flight -= 1;
        line.in_flight_bytes -= bytes;
        line.waits_for_bytes = None;
        let tenant = self.tenants.get_mut(&live.tenant).expect("an attempt in flight has a tenant");
        tenant.in_flight -= 1;
        tenant.in_flight_bytes -= bytes;
        if let Some(flow) = live.flow {
            self.flows.finish((live.tenant, flow), generation, now);
            self.flows.note_under_way((live.tenant, flow), live.id, false);
            self.reopen(live.tenant, flow, now);
        }
        self.queue(key, now);
        self.thin_out(live.tenant, now);
        self.queue_tenant(live.tenant);
        self.tidy(key);
    }

    /// A slot of a tenant is free: the waiting destination with the fewest attempts in flight may use it.
    fn thin_out(&mut self, id: TenantId, now: Timestamp) {
        let first = |lanes: &Lanes| lanes.tenants.get(&id).and_then(|tenant| tenant.share_waiters.first());
        while let Some((_, key)) = first(self).filter(|(in_flight, key)| self.has_share(*key, *in_flight)) {
            self.queue(key, now);
            if self.lines.get(&key).is_some_and(|line| line.queued) {
                break;
            }
        }
    }

    /// Checks a key whose limits may allow more than before.
    pub(crate) fn reopen(&mut self, tenant: TenantId, flow: FlowKey, now: Timestamp) {
        self.queue((tenant, Lane::Flow(flow)), now);
    }

    /// Checks the rates, because time has passed.
    pub(crate) fn wake(&mut self, now: Timestamp) {
        if now < self.last_wake {
            // The clock went back, so the times are too far ahead.
            for (_, key) in std::mem::take(&mut self.opens) {
                line_of(&mut self.lines, key).opens_at = None;
                self.queue(key, now);
                self.tidy(key);
            }
        }
        self.last_wake = now;
        while let Some((time, key)) = self.opens.first().copied().filter(|(time, _)| *time <= now) {
            self.opens.remove(&(time, key));
            if let Some(line) = self.lines.get_mut(&key).filter(|line| line.opens_at == Some(time)) {
                line.opens_at = None;
            }
            self.queue(key, now);
            self.tidy(key);
        }
    }

    /// When [`Lanes::wake`] is needed next.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        self.opens.first().map(|(time, _)| *time).into_iter().chain(self.goes_on_at).min()
    }

    /// Starts a message, which takes a slot of each kind.
    fn start(&mut self, live: &Live, now: Timestamp) -> u32 {
        let bytes = u64::from(live.body_bytes);
        let line = self.lines.entry(origin_lane(live)).or_default();
        line.in_flight += 1;
        line.in_flight_bytes += bytes;
        let tenant = self.tenants.get_mut(&live.tenant).expect("whose turn it is exists");
        tenant.in_flight += 1;
        tenant.in_flight_bytes += bytes;
        self.in_flight += 1;
        self.in_flight_bytes += bytes;
        live.flow.map_or(0, |flow| {
            self.flows.note_under_way((live.tenant, flow), live.id, true);
            self.flows.start((live.tenant, flow), now)
        })
    }

    /// Whether the bodies in flight of its tenant, and of all tenants, leave room for the message's body.
    fn fits(&self, tenant: &Tenant, live: &Live) -> bool {
        let bytes = u64::from(live.body_bytes);
        let (own, in_all) = (tenant.in_flight_bytes + bytes, self.in_flight_bytes + bytes);
        // A tenant without deliveries in flight need not wait for others, up to twice the limit.
        let spare = if tenant.in_flight == 0 { self.settings.in_flight_bytes_max } else { 0 };
        (self.in_flight == 0 || in_all <= self.settings.in_flight_bytes_max + spare)
            && (tenant.in_flight == 0 || own <= self.settings.tenant_in_flight_bytes_max)
    }

    /// The other lane whose capacity a message needs: a message with a flow-control key needs both.
    fn other_lane(&self, key: LaneKey, live: &Live) -> Option<LaneKey> {
        match key.1 {
            Lane::Flow(_) => Some(origin_lane(live)),
            Lane::Origin(_) => live.flow.map(|flow| (live.tenant, Lane::Flow(flow))),
        }
    }

    /// Whether a lane's resource prevents this message from starting now.
    fn is_closed(&mut self, key: LaneKey, live: &Live, now: Timestamp) -> bool {
        match key.1 {
            Lane::Origin(_) => self.lines.get(&key).is_some_and(|line| {
                let bytes = line.in_flight_bytes + u64::from(live.body_bytes);
                !self.has_place(key) || (line.in_flight > 0 && bytes > self.settings.origin_in_flight_bytes_max)
            }),
            Lane::Flow(flow) => self.flows.admits((key.0, flow), now).is_err(),
        }
    }

    /// Whether an origin may have one more attempt in flight, bytes aside.
    fn has_place(&self, key: LaneKey) -> bool {
        let in_flight = self.lines.get(&key).map_or(0, |line| line.in_flight);
        in_flight < self.settings.origin_in_flight_max && self.has_share(key, in_flight)
    }

    /// Whether an origin with this many attempts in flight may use one more of its tenant's slots.
    fn has_share(&self, key: LaneKey, in_flight: u32) -> bool {
        let Settings { origin_in_flight_max, tenant_in_flight_max, .. } = self.settings;
        fair_share::fits(in_flight, origin_in_flight_max, self.tenant_in_flight(key.0), tenant_in_flight_max)
    }

    /// Whether the first message of a lane waits for bytes, which no other may take.
    fn is_blocked(&self, key: LaneKey) -> bool {
        self.lines.get(&key).is_some_and(Line::is_blocked)
    }

    /// Ends the turn of the lane at the front.
    fn end_turn(&mut self, key: LaneKey, now: Timestamp) {
        let tenant_id = key.0;
        let tenant = self.tenants.get_mut(&tenant_id).expect("whose turn it was exists");
        line_of(&mut self.lines, key).queued = false;
        tenant.queued = false;
        tenant.runnable.pop_front();
        self.turn.pop_front();
        self.queue(key, now);
        self.queue_tenant(tenant_id);
        self.feed(key);
        self.tidy(key);
    }

    /// Ends the turn of the lane at the front, which left its slot unused.
    fn skip_turn(&mut self, key: LaneKey, now: Timestamp) {
        self.end_turn(key, now);
        self.thin_out(key.0, now);
    }

    /// Makes the first lane of a tenant that was not skipped in this round the next one. Returns false if there is
    /// none.
    fn pass_on(&mut self, id: TenantId) -> bool {
        let Some(tenant) = self.tenants.get_mut(&id) else { return false };
        let was_passed = |key: &LaneKey| self.lines.get(key).is_some_and(|line| line.passed_in == self.rounds);
        let passed = tenant.runnable.iter().take_while(|key| was_passed(key)).count();
        let has_next = passed < tenant.runnable.len();
        if has_next {
            tenant.runnable.rotate_left(passed);
        }
        has_next
    }

    /// Queues a lane if it has a waiting message that may start.
    fn queue(&mut self, key: LaneKey, now: Timestamp) {
        self.leave_crowd(key);
        let has_place = self.has_place(key);
        let Some(line) = self.lines.get_mut(&key) else { return };
        if line.queued || line.waiting.is_empty() || line.is_blocked() {
            return;
        }
        let admitted = match key.1 {
            Lane::Origin(_) if line.in_flight >= self.settings.origin_in_flight_max => Err(Blocked::ForNow),
            Lane::Origin(_) if !has_place => {
                line.crowded = Some(line.in_flight);
                self.tenants.entry(key.0).or_default().share_waiters.add(key, line.in_flight);
                Err(Blocked::ForNow)
            }
            Lane::Origin(_) => Ok(()),
            Lane::Flow(flow) => self.flows.admits((key.0, flow), now),
        };
        match admitted {
            Err(Blocked::ForNow) => {}
            Err(Blocked::Until(time)) => self.open_at(key, time),
            Ok(()) => {
                line_of(&mut self.lines, key).queued = true;
                self.tenants.entry(key.0).or_default().runnable.push_back(key);
                self.queue_tenant(key.0);
            }
        }
    }

    fn leave_crowd(&mut self, key: LaneKey) {
        let crowded = self.lines.get_mut(&key).and_then(|line| line.crowded.take());
        if let (Some(in_flight), Some(tenant)) = (crowded, self.tenants.get_mut(&key.0)) {
            tenant.share_waiters.remove(key, in_flight);
        }
    }

    /// Schedules the next check of the lane.
    fn open_at(&mut self, key: LaneKey, time: Timestamp) {
        let line = line_of(&mut self.lines, key);
        if line.opens_at != Some(time) {
            if let Some(before) = line.opens_at.replace(time) {
                self.opens.remove(&(before, key));
            }
            self.opens.insert((time, key));
        }
    }

    /// Queues a tenant if it has a runnable lane and a free slot.
    fn queue_tenant(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if !tenant.queued && !tenant.runnable.is_empty() && tenant.in_flight < self.settings.tenant_in_flight_max {
            tenant.queued = true;
            self.turn.push_back(id);
        }
    }

    /// Removes an empty lane.
    fn tidy(&mut self, key: LaneKey) {
        if self.lines.get(&key).is_some_and(Line::is_idle) {
            self.leave_crowd(key);
            self.lines.remove(&key);
        }
    }
}

fn line_of(lines: &mut BTreeMap<LaneKey, Line>, key: LaneKey) -> &mut Line {
    lines.get_mut(&key).expect("a lane with something waiting exists")
}
