//! Bulk actions: what one does to many, and how far it is, in one transaction.

use super::facts;
use super::run::Core;
use super::{BulkDone, BulkPiece, CoreFailure};
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::shard::Accepted;
use posthaste_faults::crash_point::crash_point;
use posthaste_node::{Facts, Moment, Replay, Reply, Wanted};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;

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
        self.node.batch.out.ops.push(Op::PutBulkAction(action.clone()));
        self.node.batch.reply(reply, BulkDone { action, duplicates });
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

    fn cancel(&mut self, tenant: TenantId, ids: &[MessageId]) -> Result<u32, CoreFailure> {
        let live = ids.iter().map(|id| (tenant, *id)).collect();
        let facts = self.truth(&Wanted { live, ..Wanted::default() })?;
        let mut moment = Moment { now: self.clock.now(), host: &mut self.host };
        Ok(self.node.cancel(tenant, ids, &facts, &mut moment).len() as u32)
    }

    fn delete_dead_letters(&mut self, tenant: TenantId, ids: Vec<DlqId>) -> Result<u32, CoreFailure> {
        let dead_letters = ids.iter().map(|id| (tenant, *id)).collect();
        let facts = self.truth(&Wanted { dead_letters, ..Wanted::default() })?;
        Ok(self.node.delete_dead_letters(tenant, ids, &facts).len() as u32)
    }

    fn replay(&mut self, tenant: TenantId, replays: Vec<Replay>) -> Result<Vec<Option<Accepted>>, CoreFailure> {
        let facts = self.truth(&Wanted::of_replays(tenant, &replays))?;
        let mut moment = Moment { now: self.clock.now(), host: &mut self.host };
        Ok(self.node.replay(tenant, replays, 0, &facts, &mut moment))
    }

    /// Commits first, so that the store's answer is the truth.
    fn truth(&mut self, wanted: &Wanted) -> Result<Facts, CoreFailure> {
        self.commit()?;
        Ok(facts::read(&*self.store, wanted, self.clock.now())?)
    }
}
