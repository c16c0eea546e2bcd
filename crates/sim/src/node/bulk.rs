//! The worker of bulk actions: what `bulk` of the server does, one piece after the other, also after a restart.

use super::{Owner, Stop};
use crate::bug::Bug;
use crate::command::{Command, NodeTask};
use crate::env::Env;
use crate::store::Store;
use posthaste_engine::bulk_action::{BulkAction, DlqRange, Task};
use posthaste_engine::event::Op;
use posthaste_engine::message::{MessageSpec, Origin};
use posthaste_node::{BulkPiece, FirstDue, NewMessage, Replay};
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use posthaste_wire::time::Timestamp;

/// Messages that one piece ends or makes.
const PIECE: usize = 2;

impl Owner {
    /// Asks for the next piece of a bulk action that is not finished, if the one before is stored. What it reads may have changed
    /// when the piece is decided.
    pub(super) fn work_on_bulk(&mut self, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let unfinished = env.store.bulk_actions.values().filter(|action| action.completed_at.is_none());
        let unfinished: Vec<_> = unfinished.map(|action| action.id).collect();
        if unfinished.is_empty() || self.bulk.is_some() || self.drained {
            return Ok(());
        }
        env.read(self.node)?;
        let id = env.random.pick(&unfinished);
        let Some(mut action) = env.store.bulk_actions.get(&id).cloned() else { return Ok(()) };
        let piece = advance(&mut action, &env.store, now);
        let request = env.own_request();
        self.bulk = Some(request);
        let task = NodeTask::PutBulkAction { action: Box::new(action), piece };
        self.inbox.push_back(Command { request, task: task.into() });
        Ok(())
    }

    /// A planted bug leaves the progress of a bulk action to the next commit.
    pub(super) fn split_bulk(&mut self, env: &Env) {
        let ops = &mut self.engine.batch.out.ops;
        if env.has(Bug::BulkInTwoCommits) && self.later.is_none() {
            self.later = ops.pop_if(|op| matches!(op, Op::PutBulkAction(action) if action.processed > 0));
        }
    }
}

/// The next piece, and how far the action is then.
fn advance(action: &mut BulkAction, store: &Store, now: Timestamp) -> Option<BulkPiece> {
    let tenant = action.tenant;
    let (piece, has_more) = match &mut action.task {
        Task::Cancel => {
            let rows = store.live.values().filter(|row| row.tenant == tenant && row.id.seq <= action.until);
            let ids: Vec<MessageId> = rows.map(|row| row.id).filter(|id| id.seq > action.after).take(PIECE).collect();
            action.after = ids.last().map_or(action.after, |id| id.seq);
            let has_more = !ids.is_empty();
            (Some(BulkPiece::Cancel(ids)), has_more)
        }
        Task::DlqDelete { range } => {
            let ids = next_letters(tenant, range, store);
            (Some(BulkPiece::Delete(ids)), !range.is_done())
        }
        Task::DlqRetry { range, .. } => {
            let ids = next_letters(tenant, range, store);
            let replays = ids.into_iter().filter_map(|dlq_id| replay(tenant, dlq_id, store)).collect();
            (Some(BulkPiece::Replay(replays)), !range.is_done())
        }
    };
    if !has_more {
        action.completed_at = Some(now);
    }
    piece
}

fn next_letters(tenant: TenantId, range: &mut DlqRange, store: &Store) -> Vec<DlqId> {
    let own = store.dead_letters.keys().filter(|(owner, dlq_id)| *owner == tenant && range.has(*dlq_id));
    let ids: Vec<DlqId> = own.map(|(_, dlq_id)| *dlq_id).take(PIECE).collect();
    range.after = ids.last().filter(|_| ids.len() == PIECE).copied().unwrap_or(range.until);
    ids
}

fn replay(tenant: TenantId, dlq_id: DlqId, store: &Store) -> Option<Replay> {
    let message = store.dead_letters.get(&(tenant, dlq_id))?;
    let spec = MessageSpec { hops: 0, ..message.spec.clone() };
    let (body, origin) = (message.body.clone(), Origin::of_url(tenant, &spec.url));
    let message = NewMessage { tenant, spec, body, first_due: FirstDue::Now, origin, dedup: None };
    Some(Replay { dlq_id, message })
}
