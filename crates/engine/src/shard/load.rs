//! The rows that a shard requests from the store, and how it handles them.

use super::{Output, Shard, before};
use crate::ending;
use crate::event::Op;
use crate::lanes::LaneKey;
use crate::limits::HORIZON_MS;
use crate::message::{DueKey, Live, QueueKey, Turn};
use crate::planted::{self, Bug};
use crate::queues::Joined;
use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;

/// Rows of a queue that a full shard requests: one that waits, and one to know whether there are more.
const QUEUE_LOAD_WHEN_FULL: usize = 2;

/// A request of [`Shard::wants_load`] to the store. The rows go to [`Shard::loaded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The live rows.
    pub source: Source,
    /// Most rows.
    pub max: usize,
}

/// The live rows, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Rows outside of queues with `after < due_key` and `due <= until`, by due key.
    Due {
        /// Only those of this lane.
        lane: Option<LaneKey>,
        /// Rows after this key.
        after: DueKey,
        /// Rows due at this time or before.
        until: Timestamp,
    },
    /// Rows of a queue with `after < (turn, seq)`, in that order.
    Queue {
        /// The tenant.
        tenant: TenantId,
        /// The queue.
        queue: QueueKey,
        /// Rows after this place.
        after: (Turn, Seq),
    },
    /// Callbacks in queues with `after < seq`, by position: rows whose turn is that of another message.
    Callbacks {
        /// Rows after this position.
        after: Seq,
    },
}

impl Shard {
    /// The rows that the driver should read from the store and pass to [`Shard::loaded`], if any.
    pub fn wants_load(&self, now: Timestamp) -> Option<Load> {
        if self.draining {
            return None;
        }
        if let Some(after) = self.callbacks_after {
            return Some(Load { source: Source::Callbacks { after }, max: self.settings.load_page });
        }
        if now >= self.load_not_before && self.loaded.due <= now.plus_millis(HORIZON_MS / 2) {
            let until = now.plus_millis(HORIZON_MS);
            let source = Source::Due { lane: None, after: self.loaded, until };
            return Some(Load { source, max: self.settings.load_page });
        }
        // In turns, so that neither starves while the other always wants more.
        let (queue, lane) = (|| self.wants_queue_load(), || self.wants_lane_load(now));
        if self.queue_was_loaded { lane().or_else(queue) } else { queue().or_else(lane) }
    }

    fn wants_queue_load(&self) -> Option<Load> {
        let full = self.is_full();
        let ((tenant, queue), after) = self.queues.wants_load(full)?;
        let max = if full { QUEUE_LOAD_WHEN_FULL } else { self.settings.queue_held_max };
        Some(Load { source: Source::Queue { tenant, queue, after }, max })
    }

    fn wants_lane_load(&self, now: Timestamp) -> Option<Load> {
        let (lane, from, max) = self.lanes.wants_refill(self.held.len())?;
        // Spilled messages were due once. After the clock went back they may not be due now.
        let until = if planted::has(Bug::ClockBackStrandsSpilled) { now } else { self.clock.latest().max(now) };
        let source = Source::Due { lane: Some(lane), after: before(from), until };
        Some(Load { source, max })
    }

    /// Takes the rows that [`Shard::wants_load`] requested. Fewer than `max` means that there are no more.
    pub fn loaded(&mut self, load: &Load, rows: &[Live], now: Timestamp, out: &mut Output) {
        let complete = rows.len() < load.max;
        self.queue_was_loaded = matches!(load.source, Source::Queue { .. });
        match load.source {
            Source::Due { lane, until, .. } => {
                let last = rows.last().map(Live::due_key).filter(|_| !complete);
                match lane {
                    None => self.loaded = last.unwrap_or(DueKey { due: until, seq: Seq::MAX }),
                    Some(lane) => self.lanes.begin_refill(lane),
                }
                // Not earlier, because messages that this leaves to the store must be requested again.
                self.see(now);
                for row in rows {
                    if !self.is_settled(row, now, out) {
                        self.arrive_at(*row, lane, now);
                    }
                }
                if let Some(lane) = lane {
                    self.lanes.end_refill(lane, last.map(after));
                }
            }
            Source::Queue { tenant, queue, .. } => {
                let id = (tenant, queue);
                self.queues.begin_load(id);
                self.see(now);
                let key = |row: &Live| row.place.map(|place| (place.turn, row.id.seq));
                let rest = rows.last().and_then(key).filter(|_| !complete);
                for row in rows {
                    let joins = self.queues.is_early(row) || !self.is_settled(row, now, out);
                    if joins && self.join(*row, now) == Joined::Stored {
                        break;
                    }
                }
                self.queues.end_load(id, rest);
                self.advance(id, now, out);
            }
            Source::Callbacks { .. } => {
                self.callbacks_after = rows.last().map(|row| row.id.seq).filter(|_| !complete);
                self.see(now);
                for row in rows {
                    let is_known = self.is_settled(row, now, out);
                    if !is_known && row.place.is_some_and(|place| self.queues.send_early(row, place)) {
                        self.arrive(*row, now);
                    }
                }
            }
        }
        self.dispatch(&[], now, out);
    }

    /// Whether a loaded row needs nothing more: it is already held, or its cancel was promised before the process
    /// ended.
    fn is_settled(&mut self, row: &Live, now: Timestamp, out: &mut Output) -> bool {
        let held = self.held.contains_key(&row.id.seq);
        let cancelled = row.cancel_requested && !planted::has(Bug::CancelForgottenAtRestart);
        if !held && cancelled && row.is_step {
            out.ops.push(Op::Remove { id: row.id });
        } else if !held && cancelled {
            ending::cancelled_waiting(row, now, out);
        }
        held || cancelled
    }
}

/// The key right behind this one.
fn after(key: DueKey) -> DueKey {
    DueKey { due: key.due, seq: Seq(key.seq.0 + 1) }
}
