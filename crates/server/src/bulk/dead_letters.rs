//! Publishes dead letters again or deletes them, a piece at a time, oldest first.

use super::{Advance, BulkError, PIECE};
use crate::api::{replay_of, stored_changes};
use crate::app::App;
use crate::core::{BulkPiece, Replay};
use posthaste_engine::bulk_action::{BulkAction, DlqRange, Task};
use posthaste_engine::limits::RETRY_EXPRESSION_STEPS_MAX;
use posthaste_store::{DeadLetterRecord, Filter, Order, Page, PageRequest, Store, StoreError};
use posthaste_wire::id::{BulkActionId, DlqId, Position, TenantId};
use posthaste_wire::publish::PublishOptions;
use posthaste_wire::retry_delay::RetryDelayChecks;
use posthaste_wire::time::Timestamp;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Dead letters that one look at the store may pass over; then others have their turn.
const LOOK: usize = 10_000;
/// Before every dead letter.
const FIRST: Position = Position { at: Timestamp(0), n: 0 };

/// What one look found.
struct Found {
    ids: Vec<DlqId>,
    /// Those up to here were looked at.
    after: DlqId,
}

/// The dead letters that a tenant has now.
pub(crate) async fn dead_letters_of_now(app: &Arc<App>, tenant: TenantId) -> Result<DlqRange, StoreError> {
    let look = move |store: &dyn Store| {
        let newest = store.last_seq()?;
        let mut until = FIRST;
        let page = PageRequest::new(None, 1, Order::LatestFirst);
        store.visit_dead_letters(tenant, &Filter::default(), &page, &mut |letter, _| {
            until = letter.dlq_id;
            ControlFlow::Break(())
        })?;
        Ok(DlqRange { after: FIRST, until, newest })
    };
    app.read_in_time(tenant, look).await
}

/// How many dead letters of the range match, at most `max`.
pub(crate) async fn count_dead_letters(
    app: &Arc<App>,
    tenant: TenantId,
    filter: &Arc<Filter>,
    mut range: DlqRange,
    max: usize,
) -> Result<usize, StoreError> {
    let mut count = 0;
    while count < max && !range.is_done() {
        let found = find(app, tenant, filter, range, max - count).await?;
        count += found.ids.len();
        range.after = found.after;
    }
    Ok(count)
}

/// The next piece of a bulk action.
pub(super) async fn advance(
    app: &Arc<App>,
    action: &mut BulkAction,
    filter: &Arc<Filter>,
    max: usize,
) -> Result<Advance, BulkError> {
    let tenant = action.tenant;
    match &mut action.task {
        Task::Cancel => Ok(Advance::default()),
        Task::DlqDelete { range } => {
            let found = find(app, tenant, filter, *range, PIECE.min(max)).await?;
            range.after = found.after;
            let piece = (!found.ids.is_empty()).then_some(BulkPiece::Delete(found.ids));
            Ok(Advance { piece, has_more: !range.is_done(), disk: None })
        }
        Task::DlqRetry { range, changes } => {
            let is_full = app.config.quotas.stored_bytes.is_some_and(|limit| app.store.stored_bytes(tenant) >= limit);
            if app.disk_is_low() || is_full {
                return Err(BulkError::DiskLow);
            }
            let changes = match stored_changes(app, action.tenant, changes) {
                Ok(changes) => changes,
                Err(problem) => {
                    let id = BulkActionId(action.id);
                    tracing::error!(bulk_action.id = %id, problem, "the changes of a bulk retry are no longer valid; ending it");
                    action.problem = Some(problem);
                    return Ok(Advance::default());
                }
            };
            let (letters, after) = load(app, tenant, filter, *range, PIECE.min(max)).await?;
            let bytes = letters.iter().map(|letter| letter.message.body.len()).sum::<usize>() as u64;
            let disk = Some(app.disk_room.take(tenant, bytes).ok_or(BulkError::DiskLow)?);
            range.after = after;
            let has_more = !range.is_done();
            let replays = replays(app, action, &letters, &changes);
            let piece = (!replays.is_empty()).then_some(BulkPiece::Replay(replays));
            Ok(Advance { piece, has_more, disk })
        }
    }
}

/// What is to be published again. What cannot be published as things are now stays a dead letter.
fn replays(
    app: &Arc<App>,
    action: &mut BulkAction,
    letters: &[DeadLetterRecord],
    changes: &PublishOptions,
) -> Vec<Replay> {
    let mut replays = Vec::with_capacity(letters.len());
    let checks = RetryDelayChecks::new(RETRY_EXPRESSION_STEPS_MAX);
    for letter in letters {
        match replay_of(app, action.tenant, letter, changes, &checks) {
            Ok(replay) => replays.push(replay),
            Err(problem) => {
                action.refused += 1;
                action.problem = Some(problem);
            }
        }
    }
    replays
}

/// The first dead letters of the range that match, at most `max` and what a page has room for, and where to go on.
async fn load(
    app: &Arc<App>,
    tenant: TenantId,
    filter: &Arc<Filter>,
    range: DlqRange,
    max: usize,
) -> Result<(Vec<DeadLetterRecord>, DlqId), StoreError> {
    let filter = filter.clone();
    let look = move |store: &dyn Store| {
        let page = PageRequest { skips_max: LOOK, ..PageRequest::new(Some(range.after), max, Order::EarliestFirst) };
        let Page { mut entries, next } = store.list_dead_letters(tenant, &filter, &page)?;
        entries.retain(|record| range.has(record.letter.dlq_id));
        Ok((entries, next.map_or(range.until, |next| next.min(range.until))))
    };
    app.read_in_time(tenant, look).await
}

/// Looks for dead letters of the range that match, oldest first, until there are `max` or it has looked long enough.
async fn find(
    app: &Arc<App>,
    tenant: TenantId,
    filter: &Arc<Filter>,
    range: DlqRange,
    max: usize,
) -> Result<Found, StoreError> {
    let filter = filter.clone();
    let look = move |store: &dyn Store| {
        let (mut found, mut looks) = (Found { ids: Vec::new(), after: range.until }, 0);
        let page = PageRequest::new(Some(range.after), max, Order::EarliestFirst);
        store.visit_dead_letters(tenant, &filter, &page, &mut |letter, message| {
            if letter.dlq_id > range.until {
                return ControlFlow::Break(());
            }
            if range.has(letter.dlq_id) && filter.matches_dead_letter(letter, message) {
                found.ids.push(letter.dlq_id);
            }
            looks += 1;
            if found.ids.len() < max && looks < LOOK {
                return ControlFlow::Continue(());
            }
            found.after = letter.dlq_id;
            ControlFlow::Break(())
        })?;
        Ok(found)
    };
    app.read_in_time(tenant, look).await
}
