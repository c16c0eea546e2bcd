//! What gathers until the next commit: ops and effects of the engine, and the replies that wait for them.
//!
//! ```text
//! Batch ── take ──▶ Uncommitted ── the driver writes its ops ──▶ committed() ──▶ Done: replies, then effects
//! ```
//!
//! The proof that a reply takes, [`Committed`], is made in this file and nowhere else.

use crate::reply::{ReadReply, Reply};
use posthaste_engine::event::Op;
use posthaste_engine::shard::{Effect, Output};

/// Ops for which a batch keeps room when it is committed.
const ROOM_KEPT: usize = 2_048;

/// Proof that everything that was decided before is committed.
pub struct Committed(());

type AfterCommit = Box<dyn FnOnce(&Committed) + Send>;

/// See the module's text.
#[derive(Default)]
pub struct Batch {
    /// Ops, effects, and whether the ops must be on disk before anything else happens.
    pub out: Output,
    /// Bytes of bodies among the ops.
    pub body_bytes: usize,
    after: Vec<AfterCommit>,
}

impl Batch {
    /// Answers a command once everything in this batch is on disk.
    pub fn reply<T: Send + 'static>(&mut self, reply: Reply<T>, value: T) {
        self.out.synced = true;
        self.after.push(Box::new(move |committed| reply.send(value, committed)));
    }

    /// Answers a read that shows what this batch changes. The answer waits for the commit, and not for the disk.
    pub fn reply_read<T: Send + 'static>(&mut self, reply: ReadReply<T>, value: T) {
        self.after_commit(move || reply.send(value));
    }

    /// Does something that no caller waits for, once this batch is committed.
    pub fn after_commit(&mut self, act: impl FnOnce() + Send + 'static) {
        self.after.push(Box::new(move |_| act()));
    }

    /// Whether there is nothing to write, to do, or to answer.
    pub fn is_empty(&self) -> bool {
        self.out.ops.is_empty() && self.out.effects.is_empty() && self.after.is_empty()
    }

    /// Takes what has gathered. The next batch begins empty.
    pub fn take(&mut self) -> Uncommitted {
        Uncommitted { batch: std::mem::take(self) }
    }

    /// Keeps the room that a finished batch and its ops had.
    pub fn reuse(&mut self, done: Done, mut ops: Vec<Op>) {
        if !self.is_empty() {
            return;
        }
        ops.clear();
        ops.shrink_to(ROOM_KEPT);
        let mut effects = done.effects;
        effects.clear();
        self.out = Output { ops, effects, synced: false };
    }
}

/// A batch on its way to the store.
#[derive(Default)]
pub struct Uncommitted {
    batch: Batch,
}

impl Uncommitted {
    /// The ops to write as one transaction.
    pub fn take_ops(&mut self) -> Vec<Op> {
        std::mem::take(&mut self.batch.out.ops)
    }

    /// Whether they must be on disk, not only written.
    pub fn is_synced(&self) -> bool {
        self.batch.out.synced
    }

    /// The ops are committed, as durably as [`Uncommitted::is_synced`] asks.
    pub fn committed(self) -> Done {
        let Batch { out, after, .. } = self.batch;
        Done { effects: out.effects, after: after.into_iter(), proof: Committed(()) }
    }
}

/// A batch that is committed: its replies leave, and then its effects are carried out.
pub struct Done {
    effects: Vec<Effect>,
    after: std::vec::IntoIter<AfterCommit>,
    proof: Committed,
}

impl Done {
    /// Sends the next reply, or does whatever else waited for the commit; false if there was nothing left.
    pub fn reply_next(&mut self) -> bool {
        let Some(after) = self.after.next() else { return false };
        after(&self.proof);
        true
    }

    /// Whether a reply, or something else that waited for the commit, is left.
    pub fn has_replies(&self) -> bool {
        self.after.len() > 0
    }

    /// Whether nothing waits for the commit.
    pub fn is_empty(&self) -> bool {
        !self.has_replies() && self.effects.is_empty()
    }

    /// What is to be done now, in its order.
    pub fn effects(&mut self) -> impl Iterator<Item = Effect> {
        self.effects.drain(..)
    }
}
