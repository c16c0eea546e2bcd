//! Turns in every FIFO queue.
//!
//! A queue has as many slots as its parallelism. A message takes a slot when its turn comes and keeps it over all its
//! retries. Its callbacks share the slot, which is freed when the last of them has ended. Messages in a slot are always
//! in RAM. Of the waiting messages only the first few are in RAM, and the others stay in the store.
//!
//! A pause or the parallelism holds back messages, never callbacks. After a restart all callbacks are loaded first and
//! sent immediately, *early*: before the slots are filled again in the order of turns.

use crate::lanes::Settings;
use crate::load_queue::{LoadQueue, Want};
use crate::message::{Live, Place, QueueKey, Turn};
use crate::planted::{self, Bug};
use crate::queue::Queue;
use crate::shard::{BacklogCounts, of_tenant};
use crate::why::{InQueue, Position};
use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

/// A queue with its tenant, so that a hash collision does not mix up tenants.
pub(crate) type QueueId = (TenantId, QueueKey);

/// The order of the rows of a queue in the store.
type RowKey = (Turn, Seq);

/// Before every row of a queue.
const FIRST_ROW: RowKey = (Turn { at: Timestamp(0), seq: Seq::MIN }, Seq::MIN);

/// Slots of a queue that are filled in a full shard, if there are few queues.
const FULL_SLOTS_MAX: usize = 8;

/// All queues.
#[derive(Debug)]
pub(crate) struct Queues {
    settings: Settings,
    /// Queues of the same tenant are adjacent.
    queues: BTreeMap<QueueId, Line>,
    per_tenant: HashMap<TenantId, usize>,
    /// Queues with room for their messages in the store.
    load_queue: LoadQueue<QueueId>,
    /// When the first delayed message joins its queue.
    joins: BTreeSet<(Timestamp, QueueId)>,
}

#[derive(Debug)]
struct Line {
    queue: Queue,
    /// The messages in slots, each with its callbacks.
    slots: BTreeMap<Turn, Vec<Seq>>,
    /// The next messages, in RAM.
    waiting: BTreeSet<RowKey>,
    /// Callbacks that are sent although their turn has had no slot since the restart. Those that the line has reached
    /// are in `waiting` too, so that the next message waits for them.
    early: BTreeSet<RowKey>,
    /// Rows after this one may be only in the store.
    stored: Option<RowKey>,
    /// Its time in `joins`, if it is there: the rows after `stored` are still delayed.
    joins_at: Option<Timestamp>,
}

/// The place of a message in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// It shares a slot that is already taken.
    Slot,
    /// It waits in RAM for its turn.
    Waiting,
    /// It is left to the store.
    Stored,
}

impl Queues {
    pub(crate) fn new(settings: Settings) -> Queues {
        Queues {
            settings,
            queues: BTreeMap::new(),
            per_tenant: HashMap::new(),
            load_queue: LoadQueue::default(),
            joins: BTreeSet::new(),
        }
    }

    /// Restores a queue from the store after a restart: all its messages must be loaded.
    pub(crate) fn restore(&mut self, queue: Queue) {
        let id = (queue.tenant, QueueKey::of(queue.tenant, &queue.name));
        let line = Line { stored: Some(FIRST_ROW), ..Line::new(queue) };
        if !line.queue.deleted {
            *self.per_tenant.entry(id.0).or_default() += 1;
        }
        self.queues.insert(id, line);
        self.feed(id);
    }

    /// The number of queues of a tenant.
    pub(crate) fn count(&self, tenant: TenantId) -> usize {
        self.per_tenant.get(&tenant).copied().unwrap_or(0)
    }

    /// Adds the messages that wait for their turn in the queues of a tenant, for at most `looks` queues.
    pub(crate) fn add_waiting(&self, tenant: TenantId, looks: usize, waiting: &mut BacklogCounts) {
        for (looked, (_, line)) in of_tenant(&self.queues, tenant, QueueKey(0)).enumerate() {
            if looked == looks {
                waiting.is_partial = true;
                break;
            }
            if line.queue.paused {
                waiting.paused_queues += 1;
                continue;
            }
            let has_more = line.stored.is_some() && line.joins_at.is_none();
            let mut held_up = line.waiting.difference(&line.early);
            let oldest = held_up.next().map(|(turn, _)| turn.at);
            waiting.add(usize::from(oldest.is_some()) + held_up.count(), oldest, has_more);
        }
    }

    /// The settings of a queue, if it exists.
    pub(crate) fn get(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(&id).map(|line| &line.queue).filter(|queue| !queue.deleted)
    }

    /// Creates or changes a queue, and returns the row to store.
    pub(crate) fn put(&mut self, id: QueueId, name: &str, parallelism: u32, paused: bool, now: Timestamp) -> Queue {
        let created_at = self.get(id).map_or(now, |queue| queue.created_at);
        if self.get(id).is_none() {
            *self.per_tenant.entry(id.0).or_default() += 1;
        }
        let (tenant, name) = (id.0, name.to_owned());
        let queue = Queue { tenant, name, parallelism, paused, created_at, updated_at: now, deleted: false };
        match self.queues.get_mut(&id) {
            Some(line) => line.queue = queue.clone(),
            None => drop(self.queues.insert(id, Line::new(queue.clone()))),
        }
        self.feed(id);
        queue
    }

    /// Deletes a queue. Its remaining messages end first; then [`Queues::forget_if_over`] removes it.
    pub(crate) fn delete(&mut self, id: QueueId, now: Timestamp) -> Option<Queue> {
        let line = self.queues.get_mut(&id).filter(|line| !line.queue.deleted)?;
        line.queue = Queue { deleted: true, parallelism: 1, paused: false, updated_at: now, ..line.queue.clone() };
        // The rows in the store are read again, because delayed messages may have been cancelled.
        line.stored = Some(FIRST_ROW);
        self.joins_no_more(id);
        if let Some(count) = self.per_tenant.get_mut(&id.0) {
            *count -= 1;
        }
        self.feed(id);
        self.queues.get(&id).map(|line| line.queue.clone())
    }

    /// Forgets a deleted queue that is empty, and returns its name.
    pub(crate) fn forget_if_over(&mut self, id: QueueId) -> Option<String> {
        let line = self.queues.get(&id)?;
        let is_empty = line.slots.is_empty() && line.waiting.is_empty() && line.early.is_empty();
        if !line.queue.deleted || !is_empty || line.stored.is_some() {
            return None;
        }
        self.load_queue.set(id, Want::Nothing);
        self.joins_no_more(id);
        self.queues.remove(&id).map(|line| line.queue.name)
    }

    /// Sends a callback from the store early after a restart, if its queue exists.
    pub(crate) fn send_early(&mut self, live: &Live, place: Place) -> bool {
        let Some(line) = self.queues.get_mut(&(live.tenant, place.queue)) else { return false };
        line.early.insert((place.turn, live.id.seq))
    }

    /// Whether a callback is sent although its turn has no slot.
    pub(crate) fn is_early(&self, live: &Live) -> bool {
        live.place.is_some_and(|place| {
            let line = self.queues.get(&(live.tenant, place.queue));
            line.is_some_and(|line| line.early.contains(&(place.turn, live.id.seq)))
        })
    }

    /// Adds a message. A full shard, and a paused queue, have room for one waiting message.
    pub(crate) fn join(&mut self, live: &Live, place: Place, full: bool, now: Timestamp) -> Joined {
        let id = (live.tenant, place.queue);
        let Some(line) = self.queues.get_mut(&id) else { return Joined::Stored };
        let key = (place.turn, live.id.seq);
        if let Some(members) = line.slots.get_mut(&place.turn) {
            if !members.contains(&live.id.seq) {
                members.push(live.id.seq);
            }
            return Joined::Slot;
        }
        if line.stored.is_some_and(|stored| stored < key) {
            // A load of the earlier messages includes it.
            return Joined::Stored;
        }
        let is_early = planted::has(Bug::DelayedJoinsEarly);
        let is_callback = place.turn.seq != live.id.seq;
        let has_joined = place.turn.at <= now || live.is_due(now) || live.retried > 0 || is_callback || is_early;
        let room = if full || line.queue.paused { 1 } else { self.settings.queue_held_max };
        // Messages that share a turn wait together, so that they take their slot together.
        if has_joined && (line.waiting.len() < room || line.has_some_of(place.turn)) {
            line.waiting.insert(key);
            self.feed(id);
            return Joined::Waiting;
        }
        line.stored = Some(before(key));
        // Earlier awaited messages come after it, and are loaded with it.
        self.joins_no_more(id);
        if !has_joined {
            self.joins_at(id, place.turn.at.min(live.due));
        }
        self.feed(id);
        Joined::Stored
    }

    /// Gives a free slot to the next message, to its callbacks if it had some before a restart, or to both.
    pub(crate) fn appoint(&mut self, id: QueueId) -> Vec<Seq> {
        let Some(line) = self.queues.get_mut(&id) else { return Vec::new() };
        let first = if planted::has(Bug::QueueTakesTheLast) { line.waiting.last() } else { line.waiting.first() };
        let Some((turn, _)) = first.copied() else { return Vec::new() };
        let paused = line.queue.paused && !planted::has(Bug::PausedQueueStarts);
        if paused || line.slots.len() >= line.queue.parallelism as usize {
            return Vec::new();
        }
        let sharing = line.waiting.range(rows_of(turn)).chain(line.early.range(rows_of(turn)));
        let sharing: BTreeSet<RowKey> = sharing.copied().collect();
        for row in &sharing {
            line.waiting.remove(row);
            line.early.remove(row);
        }
        let members: Vec<Seq> = sharing.into_iter().map(|(_, seq)| seq).collect();
        line.slots.insert(turn, members.clone());
        self.feed(id);
        members
    }

    /// Removes a message that has ended or is no longer wanted. Returns true if others that were held back may
    /// continue.
    pub(crate) fn leave(&mut self, live: &Live, place: Place) -> bool {
        let Some(line) = self.queues.get_mut(&(live.tenant, place.queue)) else { return false };
        line.early.remove(&(place.turn, live.id.seq));
        if line.waiting.remove(&(place.turn, live.id.seq)) {
            self.feed((live.tenant, place.queue));
            return false;
        }
        let Some(members) = line.slots.get_mut(&place.turn) else {
            // Later messages may have waited for it, so they are checked again.
            if !planted::has(Bug::CancelledHeadStrands) {
                self.joins_no_more((live.tenant, place.queue));
                self.feed((live.tenant, place.queue));
            }
            return false;
        };
        members.retain(|seq| *seq != live.id.seq);
        if !members.is_empty() && !planted::has(Bug::SlotFreedBeforeCallbacks) {
            return false;
        }
        line.slots.remove(&place.turn);
        let goes_on = line.slots.len() >= line.queue.parallelism as usize;
        self.feed((live.tenant, place.queue));
        goes_on
    }

    /// Whether a message that has its turn must still wait, because its queue is paused or has fewer slots than before.
    /// Callbacks continue.
    pub(crate) fn holds_back(&self, live: &Live) -> bool {
        let Some(place) = live.place.filter(|place| place.turn.seq == live.id.seq) else { return false };
        let Some(line) = self.queues.get(&(live.tenant, place.queue)) else { return false };
        let slots = line.queue.parallelism as usize;
        let paused = line.queue.paused && !planted::has(Bug::PausedQueueStarts);
        paused || (line.slots.len() > slots && line.slots.range(..place.turn).count() >= slots)
    }

    /// The position of a message; `None` if the queue does not exist.
    pub(crate) fn standing(&self, live: &Live, place: Place) -> Option<InQueue> {
        let line = self.queues.get(&(live.tenant, place.queue))?;
        let key = (place.turn, live.id.seq);
        let position = if line.slots.contains_key(&place.turn) || line.early.contains(&key) {
            None
        } else if line.waiting.contains(&key) {
            Some(Position::Nth(line.waiting.range(..key).count() + 1))
        } else {
            Some(Position::Beyond(line.waiting.len()))
        };
        let Queue { name, paused, updated_at: changed_at, parallelism, .. } = line.queue.clone();
        Some(InQueue { name, paused, changed_at, parallelism, taken: line.slots.len(), position })
    }

    /// Whether the queue's messages stay in the store until a full shard has room.
    pub(crate) fn waits_for_room(&self, id: QueueId) -> bool {
        let Some(line) = self.queues.get(&id) else { return false };
        let has_free_slot = !line.queue.paused && line.slots.len() < line.queue.parallelism as usize;
        has_free_slot && line.stored.is_some() && line.joins_at.is_none()
    }

    /// All messages in slots.
    pub(crate) fn members(&self, id: QueueId) -> Vec<Seq> {
        self.queues.get(&id).map(|line| line.slots.values().flatten().copied().collect()).unwrap_or_default()
    }

    /// Lets delayed messages join their queues, because time has passed.
    pub(crate) fn wake(&mut self, now: Timestamp) {
        while let Some((_, id)) = self.joins.first().copied().filter(|(time, _)| *time <= now) {
            self.joins_no_more(id);
            self.feed(id);
        }
    }

    /// When [`Queues::wake`] is needed next.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        self.joins.first().map(|(time, _)| *time)
    }

    /// A queue with room for its messages in the store, and the row after which they begin. In a full shard, only a
    /// queue without waiting messages in RAM.
    pub(crate) fn wants_load(&self, full: bool) -> Option<(QueueId, RowKey)> {
        let id = self.load_queue.first(full)?;
        Some((id, self.queues.get(&id)?.stored?))
    }

    /// Call it when the queue's rows were read and are about to join.
    pub(crate) fn begin_load(&mut self, id: QueueId) {
        self.joins_no_more(id);
        if let Some(line) = self.queues.get_mut(&id) {
            line.stored = None;
        }
        // A queue that was served goes to the end of the line.
        self.load_queue.set(id, Want::Nothing);
    }

    /// Call it when the rows have joined. After `rest` the store may have more.
    pub(crate) fn end_load(&mut self, id: QueueId, rest: Option<RowKey>) {
        if let (Some(rest), Some(line)) = (rest, self.queues.get_mut(&id)) {
            line.stored = Some(line.stored.map_or(rest, |stored| stored.min(rest)));
        }
        self.feed(id);
    }

    fn joins_at(&mut self, id: QueueId, time: Timestamp) {
        if let Some(line) = self.queues.get_mut(&id) {
            line.joins_at = Some(time);
            self.joins.insert((time, id));
        }
    }

    fn joins_no_more(&mut self, id: QueueId) {
        if let Some(time) = self.queues.get_mut(&id).and_then(|line| line.joins_at.take()) {
            self.joins.remove(&(time, id));
        }
    }

    /// Updates whether a queue wants its rows from the store.
    fn feed(&mut self, id: QueueId) {
        let slots_when_full = (self.settings.held_max / self.queues.len().max(1)).clamp(1, FULL_SLOTS_MAX);
        let Some(line) = self.queues.get(&id) else { return };
        let enough = if line.queue.paused { 1 } else { self.settings.queue_held_max.div_ceil(2) };
        let want = if line.stored.is_none() || line.joins_at.is_some() {
            Want::Nothing
        } else if line.stored.is_some_and(|(turn, _)| line.has_some_of(turn)) {
            Want::Anything
        } else if line.waiting.len() >= enough {
            Want::Nothing
        } else if line.waiting.is_empty() && line.slots.len() < slots_when_full {
            Want::Anything
        } else {
            Want::More
        };
        self.load_queue.set(id, want);
    }
}

impl Line {
    fn new(queue: Queue) -> Line {
        let (slots, waiting, early) = Default::default();
        Line { queue, slots, waiting, early, stored: None, joins_at: None }
    }

    /// Whether some of the messages that share a turn are in RAM.
    fn has_some_of(&self, turn: Turn) -> bool {
        self.slots.contains_key(&turn) || self.waiting.range(rows_of(turn)).next().is_some()
    }
}

/// The rows of the messages that share a turn.
fn rows_of(turn: Turn) -> RangeInclusive<RowKey> {
    (turn, Seq::MIN)..=(turn, Seq::MAX)
}

/// The key right before this one.
fn before(key: RowKey) -> RowKey {
    (key.0, Seq(key.1.0.saturating_sub(1)))
}
