//! Bulk actions: what one does to many, and how far it is, in one transaction.

use super::run::Core;
use super::{BulkDone, BulkPiece, CoreFailure, Replay, Reply};
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::shard::Accepted;
use posthaste_faults::crash_point::crash_point;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::HashSet;

impl Core {
    /// Does a piece and stores the bulk action with what was done, which nobody can know before.
    pub(super) fn put_bulk_action(
        &mut self,
        mut action: BulkAction,
        piece: Option<BulkPiece>,
        reply: Reply<BulkDone>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        if action.id == Seq::MIN {
            action.id = self.next_id(now).seq;
        }
        let mut duplicates = Vec::new();
        if let Some(piece) = piece {
            duplicates = self.do_piece(&mut action, piece)?;
            crash_point("bulk_piece_done");
        }
        self.batch.out.synced = true;
        self.batch.out.ops.push(Op::PutBulkAction(action.clone()));
        self.batch.answers.push(Box::new(move || reply.send(BulkDone { action, duplicates })));
        Ok(())
    }

    /// Gives what was a duplicate, and therefore not published.
    fn do_piece(&mut self, action: &mut BulkAction, piece: BulkPiece) -> Result<Vec<Accepted>, CoreFailure> {
        let tenant = action.tenant;
        let mut duplicates = Vec::new();
        match piece {
            BulkPiece::Cancel(ids) => action.processed += u64::from(self.cancel(tenant, &ids)?),
            BulkPiece::Delete(ids) => action.processed += u64::from(self.delete_dead_letters(tenant, ids)?),
            BulkPiece::Replay(replays) => {
                for accepted in self.replay(tenant, replays)?.into_iter().flatten() {
                    if accepted.deduplicated {
                        duplicates.push(accepted);
                        action.refused += 1;
                        action.problem = Some(format!("duplicate of {}; nothing was sent", accepted.id));
                    } else {
                        action.processed += 1;
                    }
                }
            }
        }
        Ok(duplicates)
    }

    /// Cancels these messages; says how many were live and not cancelled before. Commits first, so that the store's
    /// answer is the truth.
    pub(super) fn cancel(&mut self, tenant: TenantId, ids: &[MessageId]) -> Result<u32, CoreFailure> {
        self.commit()?;
        let rows = self.store.find_live(tenant, ids)?;
        let cancelled = self.shard.cancel(&rows, self.clock.now(), &mut self.batch.out);
        crash_point("cancel_decided");
        self.metrics.cancelled(cancelled);
        Ok(cancelled)
    }

    /// Deletes these dead letters; says how many existed.
    pub(super) fn delete_dead_letters(&mut self, tenant: TenantId, ids: Vec<DlqId>) -> Result<u32, CoreFailure> {
        let existing = self.existing_dead_letters(tenant, ids)?;
        self.shard.delete_dead_letters(tenant, &existing, &mut self.batch.out);
        Ok(existing.len() as u32)
    }

    /// Publishes dead letters again; `None` for one that no longer exists.
    pub(super) fn replay(
        &mut self,
        tenant: TenantId,
        replays: Vec<Replay>,
    ) -> Result<Vec<Option<Accepted>>, CoreFailure> {
        let ids = replays.iter().map(|replay| replay.dlq_id).collect();
        let mut existing: HashSet<DlqId> = self.existing_dead_letters(tenant, ids)?.into_iter().collect();
        let now = self.clock.now();
        let duplicates = self.find_duplicates(replays.iter().map(|replay| &replay.message), now)?;
        let accept = |(replay, stored): (Replay, _)| {
            let exists = existing.remove(&replay.dlq_id);
            exists.then(|| {
                self.batch.body_bytes += replay.message.body.len();
                self.accept(replay.message, stored, Some(replay.dlq_id), now)
            })
        };
        Ok(replays.into_iter().zip(duplicates).map(accept).collect())
    }

    /// Which of these exist, each once. Commits first, so that the store's answer is the truth.
    fn existing_dead_letters(&mut self, tenant: TenantId, mut ids: Vec<DlqId>) -> Result<Vec<DlqId>, CoreFailure> {
        self.commit()?;
        ids.sort_unstable();
        ids.dedup();
        Ok(self.store.find_dead_letters(tenant, &ids)?)
    }
}
