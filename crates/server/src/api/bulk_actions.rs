//! `/v2/bulkActions`: what is done to many messages or dead letters in the background, how far it is, and its end.

use super::auth::{Reader, Writer};
use super::body::Unread;
use super::error::ApiError;
use super::params::Params;
use super::path::PathId;
use super::pieces::Pieces;
use super::publish::refuse_when_disk_is_low;
use super::response::{answer, room_before_storing, stored};
use super::storing;
use crate::app::App;
use crate::bulk::{self, Range, count_dead_letters, count_matching, dead_letters_of_now};
use crate::core::Room;
use crate::data_dir::DiskPromise;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use posthaste_api_types::bulk_action::{self as types, BegunBulkAction, BulkKind, BulkState};
use posthaste_api_types::message::Cancelled;
use posthaste_engine::bulk_action::{BulkAction, DlqRange, Task};
use posthaste_engine::limits::{
    BULK_ACTION_PAGE_DEFAULT, BULK_ACTION_PAGE_MAX, BULK_ACTIONS_MAX, BULK_RATE_MAX, PAGE_BYTES_MAX,
};
use posthaste_store::{Filter, Store, StoreError, UnfinishedAction, json_row_bytes};
use posthaste_wire::id::{BulkActionId, Seq, TenantId};
use std::sync::Arc;
use std::time::Duration;

/// Parameters that say how a bulk action is to be done, not to what.
const TERMS: [&str; 3] = ["async", "count", "rate"];
/// Room for the response that shows one: its filter came in the body of a request.
const ACTION_BYTES: usize = 2 * 1024 * 1024;
/// Bulk actions of a page that are read at once.
const READ_AT_ONCE: usize = 16;
/// Bytes of a bulk action that is short.
const SHORT_BYTES_MAX: usize = 8 * 1024;
/// So many bulk actions are not few any more.
const FEW: usize = 100;

/// Stores a bulk cancel and wakes the worker; `count` is `usize::MAX` when there is no such bound.
pub(super) async fn begin_cancel(
    app: &Arc<App>,
    tenant: TenantId,
    params: &Params,
    count: usize,
) -> Result<(StatusCode, Json<Cancelled>), ApiError> {
    check_room(&app.look_up(|store| store.unfinished_bulk_actions()).await?, tenant)?;
    let until = app.look_up(|store| store.last_seq()).await?;
    let range = Range { tenant, after: Seq::MIN, until };
    let total = count_matching(app, &Arc::new(params.filter()?), range, count).await?;
    let action = BulkAction { until, total: total as u64, ..draft(app, tenant, params, count) };
    let action = store(app, action).await?;
    let answer = Cancelled { cancelled: action.total, action_id: Some(BulkActionId(action.id).to_string()) };
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

/// Stores what is to be done to the dead letters that there are now, and wakes the worker.
pub(super) async fn begin_on_dead_letters(
    app: &Arc<App>,
    tenant: TenantId,
    params: &Params,
    task: impl FnOnce(DlqRange) -> Task,
) -> Result<Response, ApiError> {
    if let Some(name) = ["cursor", "order", "trimBody"].into_iter().find(|name| params.has(name)) {
        return Err(ApiError::invalid(format!("{name} cannot be combined with async=true, which does not paginate")));
    }
    let count = params.number("count", 1)?.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let rate = rate(params)?;
    check_room(&app.look_up(|store| store.unfinished_bulk_actions()).await?, tenant)?;
    let range = dead_letters_of_now(app, tenant).await?;
    let total = count_dead_letters(app, tenant, &Arc::new(params.filter()?), range, count).await?;
    let action = BulkAction { task: task(range), rate, total: total as u64, ..draft(app, tenant, params, count) };
    let action = store(app, action).await?;
    let begun = BegunBulkAction { action_id: BulkActionId(action.id).to_string(), total: action.total };
    Ok((StatusCode::ACCEPTED, Json(begun)).into_response())
}

/// How many per second at most.
fn rate(params: &Params) -> Result<Option<u32>, ApiError> {
    let Some(rate) = params.number("rate", 1)? else { return Ok(None) };
    match u32::try_from(rate) {
        Ok(rate) if rate <= BULK_RATE_MAX => Ok(Some(rate)),
        _ => Err(ApiError::invalid(format!("rate must be 1 to {BULK_RATE_MAX} per second; omit it for no limit"))),
    }
}

/// A cancel of nothing, to be filled in.
fn draft(app: &App, tenant: TenantId, params: &Params, count: usize) -> BulkAction {
    BulkAction {
        tenant,
        id: Seq::MIN,
        task: Task::Cancel,
        filter: params.lists_without(&TERMS),
        until: Seq::MIN,
        after: Seq::MIN,
        count: (count != usize::MAX).then_some(count as u64),
        rate: None,
        total: 0,
        processed: 0,
        refused: 0,
        problem: None,
        created_at: app.clock.now(),
        completed_at: None,
        stopped: false,
    }
}

/// Counting may take long, so others may begin theirs meanwhile: looked at once more, now alone.
async fn store(app: &Arc<App>, action: BulkAction) -> Result<BulkAction, ApiError> {
    let room = Room { disk: take_room(app, &action).await?, ..Room::default() };
    let _alone = app.bulk_actions.beginning.lock().await;
    check_room(&app.look_up(|store| store.unfinished_bulk_actions()).await?, action.tenant)?;
    let action = app.core.put_bulk_action(action, None, room).await?.action;
    app.bulk_actions.begun.notify_one();
    Ok(action)
}

/// Room for a bulk action. A tenant that has none left must be able to make some, so that a few short ones which only cancel or
/// delete need none.
async fn take_room(app: &Arc<App>, action: &BulkAction) -> Result<Option<DiskPromise>, ApiError> {
    let bytes = usize::try_from(json_row_bytes(action)).unwrap_or(usize::MAX);
    let admitted = refuse_when_disk_is_low(app).and_then(|()| storing::admit(app, action.tenant, bytes));
    let makes_room = bytes <= SHORT_BYTES_MAX && !matches!(action.task, Task::DlqRetry { .. });
    if admitted.is_err() && makes_room && has_few(app, action.tenant).await? {
        return Ok(None);
    }
    admitted.map(Some)
}

/// Whether the tenant has few bulk actions, those that have ended included. A filter may be long, so one is read at a time.
async fn has_few(app: &Arc<App>, tenant: TenantId) -> Result<bool, ApiError> {
    let look = move |store: &dyn Store| {
        let mut before = None;
        for _ in 0..FEW {
            match store.bulk_actions(tenant, before, 1)?.pop() {
                None => return Ok(true),
                Some(action) => before = Some(action.id),
            }
        }
        Ok(false)
    };
    Ok(app.read(tenant, look).await?)
}

/// Refuses one more than a tenant may have under way at once.
fn check_room(unfinished: &[UnfinishedAction], tenant: TenantId) -> Result<(), ApiError> {
    if unfinished.iter().filter(|action| action.tenant == tenant).count() < BULK_ACTIONS_MAX {
        return Ok(());
    }
    let text = format!("quota maxBulkActions exceeded, current limit: {BULK_ACTIONS_MAX}; wait until one is finished");
    Err(ApiError::quota(text))
}

/// Newest first. The state selects from a page, as on the hosted service: a page may be short and not the last.
pub(super) async fn list(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<Response, ApiError> {
    params.only(&["cursor", "count", "state"])?;
    let count = match params.number("count", 1)? {
        None => BULK_ACTION_PAGE_DEFAULT,
        Some(count) => usize::try_from(count).unwrap_or(usize::MAX).min(BULK_ACTION_PAGE_MAX),
    };
    let finished = match params.one("state")? {
        None => None,
        Some("IN_PROGRESS") => Some(false),
        Some("FINISHED") => Some(true),
        Some(_) => return Err(ApiError::invalid("state must be IN_PROGRESS or FINISHED")),
    };
    let before = cursor(&params)?;
    let make = move |store: &dyn Store| {
        let (page, more) = listed(store, tenant, before, count)?;
        let next = page.last().filter(|_| more).map(|last| BulkActionId(last.id).to_string());
        let wanted = |action: &&BulkAction| finished.is_none_or(|finished| action.completed_at.is_some() == finished);
        let mut pieces = Pieces::default();
        pieces.raw("{\"bulkActions\":");
        pieces.values(page.iter().filter(wanted).map(shape));
        if let Some(next) = next {
            pieces.raw(",\"cursor\":");
            pieces.value(&next);
        }
        pieces.raw("}");
        Ok(Ok(pieces.into()))
    };
    answer(&app, tenant, make).await
}

/// At most `count` bulk actions and what a page has room for, and whether there are more. A filter may be long, so a few are
/// read at a time.
fn listed(
    store: &dyn Store,
    tenant: TenantId,
    mut before: Option<Seq>,
    count: usize,
) -> Result<(Vec<BulkAction>, bool), StoreError> {
    let (mut listed, mut bytes) = (Vec::new(), 0);
    loop {
        let few = store.bulk_actions(tenant, before, READ_AT_ONCE)?;
        let are_last = few.len() < READ_AT_ONCE;
        before = few.last().map(|action| action.id);
        for action in few {
            let texts =
                action.filter.iter().flat_map(|(name, values)| values.iter().map(|value| name.len() + value.len()));
            bytes += texts.sum::<usize>();
            if listed.len() == count || (bytes > PAGE_BYTES_MAX && !listed.is_empty()) {
                return Ok((listed, true));
            }
            listed.push(action);
        }
        if are_last {
            return Ok((listed, false));
        }
    }
}

pub(super) async fn get(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    id: PathId<BulkActionId>,
) -> Result<Response, ApiError> {
    let BulkActionId(seq) = id.or_absent(absent)?;
    let make = move |store: &dyn Store| {
        let action = store.bulk_action(tenant, seq)?;
        Ok(action.map(|action| Pieces::of(&shape(&action)).into()).ok_or_else(|| absent(id.text())))
    };
    answer(&app, tenant, make).await
}

/// Ends one where it is. When this is answered it does nothing more; one that has ended stays as it is.
pub(super) async fn stop(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    id: PathId<BulkActionId>,
    _: Unread,
) -> Result<Response, ApiError> {
    let BulkActionId(seq) = id.or_absent(absent)?;
    let room = room_before_storing(&app, tenant, ACTION_BYTES, &mut Duration::default()).await?;
    let action = bulk::stop(&app, tenant, seq).await?.ok_or_else(|| absent(id.text()))?;
    Ok(stored(StatusCode::OK, shape(&action), room).await)
}

/// Which messages a stored bulk action means; the text says what is wrong with it.
pub(crate) fn stored_filter(lists: &[(String, Vec<String>)]) -> Result<Filter, String> {
    Params::from_lists(lists).filter().map_err(ApiError::into_message)
}

fn absent(id: &str) -> ApiError {
    ApiError::not_found(format!("bulk action {id} not found"))
}

fn cursor(params: &Params) -> Result<Option<Seq>, ApiError> {
    let Some(text) = params.one("cursor")?.filter(|text| !text.is_empty()) else { return Ok(None) };
    match text.parse() {
        Ok(BulkActionId(seq)) => Ok(Some(seq)),
        Err(_) => Err(ApiError::invalid("cursor is invalid; use the cursor of the previous page")),
    }
}

fn shape(action: &BulkAction) -> types::BulkAction {
    types::BulkAction {
        action_id: BulkActionId(action.id).to_string(),
        kind: match action.task {
            Task::Cancel => BulkKind::Cancel,
            Task::DlqRetry { .. } => BulkKind::DlqRetry,
            Task::DlqDelete { .. } => BulkKind::DlqDelete,
        },
        state: if action.completed_at.is_some() { BulkState::Finished } else { BulkState::InProgress },
        total: action.total,
        processed: action.processed,
        created_at: action.created_at,
        completed_at: action.completed_at,
        filter: action.filter.iter().cloned().collect(),
        // Without the values, which may be secrets of the receiver.
        changes: match &action.task {
            Task::DlqRetry { changes, .. } => Some(changes.iter().map(|(name, _)| name.clone()).collect()),
            _ => None,
        },
        rate: action.rate,
        refused: Some(action.refused).filter(|refused| *refused > 0),
        problem: action.problem.clone(),
        stopped: action.stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_so_many_under_way_and_no_more() {
        let of = |tenant| UnfinishedAction { tenant: TenantId(tenant), id: Seq(1), rate: None };
        let mut unfinished = vec![of(1); BULK_ACTIONS_MAX - 1];
        unfinished.extend(vec![of(2); BULK_ACTIONS_MAX]);
        assert!(check_room(&unfinished, TenantId(1)).is_ok());
        assert!(check_room(&unfinished, TenantId(2)).is_err());
        unfinished.push(of(1));
        let refused = check_room(&unfinished, TenantId(1)).map_err(ApiError::into_message);
        let text = "quota maxBulkActions exceeded, current limit: 10; wait until one is finished";
        assert_eq!(refused, Err(text.to_owned()));
    }
}
