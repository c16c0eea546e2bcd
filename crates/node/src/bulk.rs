//! Bulk actions: a piece of one, and how far it is then, in one transaction.

use crate::dead_letters::Replay;
use crate::facts::{Facts, Wanted};
use crate::host::Moment;
use crate::node::Node;
use crate::reply::Reply;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::planted::{self, Bug};
use posthaste_engine::shard::Accepted;
use posthaste_wire::id::{DlqId, MessageId, Seq};

/// Stores a bulk action or its progress, together with its next piece. One with the id [`Seq::MIN`] is new and gets an id.
pub struct PutBulkAction {
    /// As it is when the piece is done, but for what the piece did, which is counted here.
    pub action: Box<BulkAction>,
    /// The piece.
    pub piece: Option<BulkPiece>,
    /// Sent when all of it is stored.
    pub reply: Reply<BulkDone>,
}

/// What a bulk action does next.
#[derive(Clone, Debug)]
pub enum BulkPiece {
    /// Messages to cancel.
    Cancel(Vec<MessageId>),
    /// Dead letters to delete.
    Delete(Vec<DlqId>),
    /// Dead letters to publish again.
    Replay(Vec<Replay>),
}

/// What a bulk action is after a piece.
#[derive(Debug)]
pub struct BulkDone {
    /// The bulk action as it is now.
    pub action: BulkAction,
    /// What was not published because it duplicates another message: that one.
    pub duplicates: Vec<Accepted>,
}

impl PutBulkAction {
    pub(crate) fn wanted(&self) -> Wanted {
        let tenant = self.action.tenant;
        match &self.piece {
            None => Wanted::default(),
            Some(BulkPiece::Cancel(ids)) => {
                Wanted { live: ids.iter().map(|id| (tenant, *id)).collect(), ..Wanted::default() }
            }
            Some(BulkPiece::Delete(ids)) => {
                Wanted { dead_letters: ids.iter().map(|id| (tenant, *id)).collect(), ..Wanted::default() }
            }
            Some(BulkPiece::Replay(replays)) => Wanted::of_replays(tenant, replays),
        }
    }

    pub(crate) fn needs_truth(&self) -> bool {
        self.piece.is_some()
    }
}

impl Node {
    pub(crate) fn put_bulk_action(&mut self, command: PutBulkAction, facts: &Facts, moment: &mut Moment<'_>) {
        let PutBulkAction { mut action, piece, reply } = command;
        if action.id == Seq::MIN {
            action.id = self.next_id(moment).seq;
        }
        let mut duplicates = Vec::new();
        if let Some(piece) = piece {
            duplicates = self.do_piece(&mut action, piece, reply.tag(), facts, moment);
            moment.host.bulk_piece_done();
        }
        self.batch.out.ops.push(Op::PutBulkAction(BulkAction::clone(&action)));
        self.batch.reply(reply, BulkDone { action: *action, duplicates });
    }

    /// Does a piece, and counts what was done, which nothing can know before. Returns what was a duplicate, and therefore not
    /// published.
    fn do_piece(
        &mut self,
        action: &mut BulkAction,
        piece: BulkPiece,
        tag: u64,
        facts: &Facts,
        moment: &mut Moment<'_>,
    ) -> Vec<Accepted> {
        let tenant = action.tenant;
        let mut duplicates = Vec::new();
        match piece {
            BulkPiece::Cancel(ids) => {
                let cancelled = self.cancel(tenant, &ids, facts, moment).len();
                let count = if planted::has(Bug::BulkCountsAsked) { ids.len() } else { cancelled };
                action.processed += count as u64;
            }
            BulkPiece::Delete(ids) => action.processed += self.delete_dead_letters(tenant, ids, facts).len() as u64,
            BulkPiece::Replay(replays) => {
                for accepted in self.replay(tenant, replays, tag, facts, moment).into_iter().flatten() {
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
        duplicates
    }
}
