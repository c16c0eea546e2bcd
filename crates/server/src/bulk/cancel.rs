//! Cancels messages that match, a piece at a time.

use super::{Advance, BulkError, PIECE};
use crate::app::App;
use crate::core::{BulkPiece, in_time};
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::limits::LOAD_PAGE;
use posthaste_store::{Filter, StoreError};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use std::sync::Arc;

/// Messages of a tenant that were created behind one position and up to another.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) tenant: TenantId,
    pub(crate) after: Seq,
    pub(crate) until: Seq,
}

/// What one transaction did.
pub(crate) struct Piece {
    /// The last message that was looked at.
    pub(crate) last: Seq,
    /// How many were cancelled.
    pub(crate) cancelled: usize,
}

/// The next piece of a bulk cancel.
pub(super) async fn advance(
    app: &Arc<App>,
    action: &mut BulkAction,
    filter: &Arc<Filter>,
    max: usize,
) -> Result<Advance, BulkError> {
    let range = Range { tenant: action.tenant, after: action.after, until: action.until };
    let ids = next_ids(app, filter, range, max).await?;
    let Some(last) = ids.last().map(|id| id.seq) else { return Ok(Advance::default()) };
    action.after = last;
    Ok(Advance { piece: Some(BulkPiece::Cancel(ids)), has_more: true, disk: None })
}

/// Cancels the first messages of the range that match, at most `count`; `None` when there are none left.
pub(crate) async fn cancel_piece(
    app: &Arc<App>,
    filter: &Arc<Filter>,
    range: Range,
    count: usize,
) -> Result<Option<Piece>, BulkError> {
    let ids = next_ids(app, filter, range, count).await?;
    let Some(last) = ids.last().map(|id| id.seq) else { return Ok(None) };
    // The first piece may be refused: then nothing was cancelled.
    let cancelled = match range.after {
        Seq::MIN => app.core.cancel(range.tenant, ids).await?,
        _ => {
            in_time(&app.core, |core| {
                let ids = ids.clone();
                async move { core.cancel(range.tenant, ids).await }
            })
            .await?
        }
    };
    Ok(Some(Piece { last, cancelled: cancelled as usize }))
}

/// The first messages of the range that match, at most `count` and what one transaction may end.
async fn next_ids(
    app: &Arc<App>,
    filter: &Arc<Filter>,
    range: Range,
    count: usize,
) -> Result<Vec<MessageId>, StoreError> {
    let page = matching(app, filter, range, PIECE.min(count)).await?;
    Ok(page.into_iter().map(|(id, _)| id).collect())
}

/// How many messages of the range match and would be cancelled, at most `count`.
pub(crate) async fn count_matching(
    app: &Arc<App>,
    filter: &Arc<Filter>,
    range: Range,
    count: usize,
) -> Result<usize, StoreError> {
    let (mut found, mut range) = (0, range);
    while found < count {
        let page = matching(app, filter, range, LOAD_PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        range.after = last.seq;
        found += page.iter().filter(|(_, is_cancellable)| *is_cancellable).count();
    }
    Ok(found.min(count))
}

/// The first messages of the range that match, and whether a cancel would end each: those of runs end with their run, and
/// some were cancelled before.
async fn matching(
    app: &Arc<App>,
    filter: &Arc<Filter>,
    range: Range,
    max: usize,
) -> Result<Vec<(MessageId, bool)>, StoreError> {
    let filter = filter.clone();
    let rows =
        app.read_in_time(range.tenant, move |store| store.match_live(range.tenant, &filter, range.after, max)).await?;
    let in_range = rows.iter().take_while(|row| row.id.seq <= range.until);
    Ok(in_range.map(|row| (row.id, !row.cancel_requested && !row.is_step)).collect())
}
