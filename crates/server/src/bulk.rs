//! Cancels many messages, a piece at a time: others go on meanwhile.
//!
//! A caller who does not wait gets a bulk action, which is stored with its progress; [`run`] works on those in the
//! background, also on those that an earlier process left behind. Which filters there are is decided in `api`.

use crate::api::stored_filter;
use crate::app::App;
use crate::core::CoreError;
use crate::crash_point::crash_point;
use crate::store::{Filter, StoreError};
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::limits::LOAD_PAGE;
use posthaste_wire::id::{BulkActionId, MessageId, Seq, TenantId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

/// Messages that one transaction ends.
const PIECE: usize = 1_000;
/// How long the worker pauses when the store or the core did not do what it asked.
const PAUSE: Duration = Duration::from_secs(1);

/// What the API and the worker share.
#[derive(Default)]
pub(crate) struct BulkActions {
    /// Held while one is begun, so that what was counted before stays true.
    pub(crate) beginning: Mutex<()>,
    /// Tells the worker that there is something to do.
    pub(crate) begun: Notify,
}

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

/// Why a piece was not cancelled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CancelError {
    /// What to cancel could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The core did not cancel it.
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// Cancels the first messages of the range that match, at most `count`; `None` when there are none left.
pub(crate) async fn cancel_piece(
    app: &Arc<App>,
    filter: &Arc<Filter>,
    range: Range,
    count: usize,
) -> Result<Option<Piece>, CancelError> {
    let page = matching(app, filter, range, PIECE.min(count)).await?;
    let ids: Vec<MessageId> = page.into_iter().map(|(id, _)| id).collect();
    let Some(last) = ids.last().map(|id| id.seq) else { return Ok(None) };
    let cancelled = app.core.cancel(range.tenant, ids).await? as usize;
    Ok(Some(Piece { last, cancelled }))
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

/// Works on bulk actions until `stop`. What is under way then goes on at the next start.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let pause = match step(&app).await {
            Ok(true) => continue,
            Ok(false) => None,
            Err(error) => {
                tracing::warn!(error = %error, "bulk actions do not get on; trying again");
                Some(PAUSE)
            }
        };
        let wait = async {
            match pause {
                None => app.bulk_actions.begun.notified().await,
                Some(pause) => tokio::time::sleep(pause).await,
            }
        };
        tokio::select! {
            () = wait => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Does one piece of every bulk action that is not finished; says whether there was one.
async fn step(app: &Arc<App>) -> Result<bool, CancelError> {
    let unfinished = app.read(|store| store.unfinished_bulk_actions()).await?;
    for action in &unfinished {
        let next = advance(app, action.clone()).await?;
        crash_point("bulk_piece_cancelled");
        app.core.put_bulk_action(next).await?;
        crash_point("bulk_progress_stored");
    }
    Ok(!unfinished.is_empty())
}

/// A bulk action after its next piece.
///
/// The piece and the progress are two transactions. After a crash between them the messages of that piece are
/// cancelled and not counted: `processed` may be too low by a piece, never too high.
async fn advance(app: &Arc<App>, mut action: BulkAction) -> Result<BulkAction, CancelError> {
    let left = action.count.map_or(u64::MAX, |count| count.saturating_sub(action.processed));
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    let piece = match stored_filter(&action.filter) {
        Ok(filter) if left > 0 => {
            let range = Range { tenant: action.tenant, after: action.after, until: action.until };
            cancel_piece(app, &Arc::new(filter), range, left).await?
        }
        Ok(_) => None,
        Err(problem) => {
            let id = BulkActionId(action.id);
            tracing::error!(bulk_action.id = %id, problem, "a stored bulk action is not understood: it is ended");
            None
        }
    };
    match piece {
        Some(piece) => {
            action.after = piece.last;
            action.processed += piece.cancelled as u64;
        }
        None => action.completed_at = Some(app.clock.now()),
    }
    Ok(action)
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
    let rows = app.read(move |store| store.match_live(range.tenant, &filter, range.after, max)).await?;
    let in_range = rows.iter().take_while(|row| row.id.seq <= range.until);
    Ok(in_range.map(|row| (row.id, !row.cancel_requested && !row.is_step)).collect())
}
