//! `/v2/bulkActions`: cancels of many messages that go on in the background, and how far they are.

use super::auth::{Access, authorize};
use super::error::ApiError;
use super::params::Params;
use crate::app::App;
use crate::bulk::{Range, count_matching};
use crate::store::Filter;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::limits::{BULK_ACTION_PAGE_DEFAULT, BULK_ACTION_PAGE_MAX, BULK_ACTIONS_MAX};
use posthaste_wire::id::{BulkActionId, Seq, TenantId};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Stores a bulk cancel and wakes the worker; `count` is `usize::MAX` when there is no such bound.
pub(super) async fn begin(
    app: &Arc<App>,
    tenant: TenantId,
    params: &Params,
    count: usize,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    check_room(&app.read(|store| store.unfinished_bulk_actions()).await?, tenant)?;
    let until = app.read(|store| store.last_seq()).await?;
    let range = Range { tenant, after: Seq::MIN, until };
    let total = count_matching(app, &Arc::new(params.filter()?), range, count).await?;
    // Counting may take long, so others may begin theirs meanwhile: looked at once more, now alone.
    let _alone = app.bulk_actions.beginning.lock().await;
    check_room(&app.read(|store| store.unfinished_bulk_actions()).await?, tenant)?;
    let action = BulkAction {
        tenant,
        id: Seq::MIN,
        filter: params.lists_without(&["async", "count"]),
        until,
        after: Seq::MIN,
        count: (count != usize::MAX).then_some(count as u64),
        total: total as u64,
        processed: 0,
        created_at: app.clock.now(),
        completed_at: None,
    };
    let action = app.core.put_bulk_action(action).await?;
    app.bulk_actions.begun.notify_one();
    let answer = json!({ "actionId": BulkActionId(action.id).to_string(), "cancelled": action.total });
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

/// Refuses one more than a tenant may have under way at once.
fn check_room(unfinished: &[BulkAction], tenant: TenantId) -> Result<(), ApiError> {
    if unfinished.iter().filter(|action| action.tenant == tenant).count() < BULK_ACTIONS_MAX {
        return Ok(());
    }
    let text = format!("quota maxBulkActions exceeded, current limit: {BULK_ACTIONS_MAX}; wait until one is finished");
    Err(ApiError::quota(text))
}

/// Newest first. The state selects from a page, as on the hosted service: a page may be short and not the last.
pub(super) async fn list(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Read)?;
    let params = Params::from_query(request.uri().query());
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
    // One more than asked for tells whether there is a next page.
    let mut page = app.read(move |store| store.bulk_actions(tenant, before, count + 1)).await?;
    let more = page.len() > count;
    page.truncate(count);
    let next = page.last().filter(|_| more).map(|last| BulkActionId(last.id).to_string());
    let wanted = |action: &&BulkAction| finished.is_none_or(|finished| action.completed_at.is_some() == finished);
    let mut answer = json!({ "bulkActions": page.iter().filter(wanted).map(shape).collect::<Vec<_>>() });
    if let Some(next) = next {
        answer["cursor"] = next.into();
    }
    Ok(Json(answer))
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let tenant = authorize(&app, request.headers(), request.uri(), Access::Read)?;
    let absent = || ApiError::not_found(format!("bulk action {id} not found"));
    let BulkActionId(seq) = id.parse().map_err(|_| absent())?;
    let action = app.read(move |store| store.bulk_action(tenant, seq)).await?.ok_or_else(absent)?;
    Ok(Json(shape(&action)))
}

/// Which messages a stored bulk action means; the text says what is wrong with it.
pub(crate) fn stored_filter(lists: &[(String, Vec<String>)]) -> Result<Filter, String> {
    Params::from_lists(lists).filter().map_err(ApiError::into_message)
}

fn cursor(params: &Params) -> Result<Option<Seq>, ApiError> {
    let Some(text) = params.one("cursor")?.filter(|text| !text.is_empty()) else { return Ok(None) };
    match text.parse() {
        Ok(BulkActionId(seq)) => Ok(Some(seq)),
        Err(_) => Err(ApiError::invalid("cursor is not one that this server gave out")),
    }
}

fn shape(action: &BulkAction) -> Value {
    let filter: Map<String, Value> = action.filter.iter().map(|(name, values)| (name.clone(), json!(values))).collect();
    let mut object = json!({
        "actionId": BulkActionId(action.id).to_string(),
        "kind": "cancel",
        "state": if action.completed_at.is_some() { "FINISHED" } else { "IN_PROGRESS" },
        "total": action.total,
        "processed": action.processed,
        "createdAt": action.created_at.as_millis(),
        "filter": filter,
    });
    if let Some(completed_at) = action.completed_at {
        object["completedAt"] = completed_at.as_millis().into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_wire::time::Timestamp;

    #[test]
    fn a_tenant_has_so_many_under_way_and_no_more() {
        let of = |tenant| BulkAction {
            tenant: TenantId(tenant),
            id: Seq(1),
            filter: Vec::new(),
            until: Seq(1),
            after: Seq::MIN,
            count: None,
            total: 0,
            processed: 0,
            created_at: Timestamp(1),
            completed_at: None,
        };
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
