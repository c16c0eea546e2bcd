//! `/v2/messages`: look at one message, send one now, cancel one, cancel many.

use super::auth::{Reader, Writer};
use super::body::{SmallRequest, Unread, read_small};
use super::bulk_actions;
use super::error::ApiError;
use super::params::Params;
use super::path::PathId;
use super::pieces::Pieces;
use super::response::answer;
use super::shape;
use crate::app::App;
use crate::bulk::{Range, cancel_piece};
use crate::core::DeliverNowRefused;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use posthaste_api_types::message::{Cancelled, SentNow};
use posthaste_engine::limits::{BULK_CANCEL_COUNT_MAX, ENDED_GRACE_MS};
use posthaste_store::{Filter, MessageRecord, Part, Store};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use std::sync::Arc;

/// What a bulk cancel may be told.
const CANCEL_PARAMS: [&str; 16] = [
    "messageIds",
    "topicName",
    "queueName",
    "url",
    "host",
    "path",
    "label",
    "flowControlKey",
    "scheduleId",
    "callerIp",
    "callerIP",
    "fromDate",
    "toDate",
    "count",
    "async",
    "urlGroup",
];

pub(super) async fn get(
    caller: Reader,
    State(app): State<Arc<App>>,
    id: PathId<MessageId>,
) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let absent = |id: &str| ApiError::not_found(format!("message {id} not found"));
    let message_id = id.or_absent(absent)?;
    let now = app.clock.now();
    let make = move |store: &dyn Store| {
        let is_readable = |record: &MessageRecord| {
            record.ended_at.is_none_or(|ended_at| now.millis_since(ended_at) <= ENDED_GRACE_MS)
        };
        match store.message(viewer.tenant, message_id, Part::Whole)?.filter(is_readable) {
            Some(record) => {
                let mut pieces = Pieces::default();
                pieces.object(shape::message(&record.message, None, &viewer));
                Ok(Ok(pieces.into()))
            }
            None => Ok(Err(absent(id.text()))),
        }
    };
    answer(&app, viewer.tenant, make).await
}

/// A message that waits for its time or for a retry is sent now; also one of a run.
pub(super) async fn retry(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    id: PathId<MessageId>,
    _: Unread,
) -> Result<Json<SentNow>, ApiError> {
    let absent = |id: &str| {
        let text = "not found, or it has already ended; retry failed messages from the DLQ";
        ApiError::not_found(format!("message {id} {text}"))
    };
    let message_id = id.or_absent(absent)?;
    let id = id.text();
    match app.core.deliver_now(tenant, message_id).await? {
        Ok(()) => Ok(Json(SentNow { message_id: id.to_owned() })),
        Err(DeliverNowRefused::Unknown) => Err(absent(id)),
        Err(refused @ (DeliverNowRefused::Queued | DeliverNowRefused::Deadline)) => {
            Err(ApiError::invalid(format!("message {id} cannot be sent now: {refused}")))
        }
    }
}

pub(super) async fn cancel(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    id: PathId<MessageId>,
    _: Unread,
) -> Result<(StatusCode, Json<Cancelled>), ApiError> {
    let absent = |id: &str| ApiError::not_found(format!("message {id} not found, or it has already ended"));
    match app.core.cancel(tenant, vec![id.or_absent(absent)?]).await? {
        0 => Err(absent(id.text())),
        cancelled => Ok((StatusCode::ACCEPTED, Json(Cancelled { cancelled: cancelled as u64, action_id: None }))),
    }
}

pub(super) async fn cancel_many(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<(StatusCode, Json<Cancelled>), ApiError> {
    let SmallRequest { parts, body } = read_small(&app, tenant, request).await?;
    let params = Params::from_query_and_body(parts.uri.query(), &body.bytes)?;
    params.only(&CANCEL_PARAMS)?;
    let count = match params.number("count", 1)? {
        None => usize::MAX,
        Some(_) if app.config.bulk_cancel_ignore_count => usize::MAX,
        Some(count) if count as usize <= BULK_CANCEL_COUNT_MAX => count as usize,
        Some(_) => return Err(ApiError::invalid(format!("count must be 1 to {BULK_CANCEL_COUNT_MAX}"))),
    };
    let filter = params.filter()?;
    if filter.is_empty() {
        tracing::info!(tenant = tenant.0, "cancelling all messages of the tenant");
    }
    if params.boolean("async")? {
        return bulk_actions::begin_cancel(&app, tenant, &params, count).await;
    }
    let cancelled = cancel_matching(&app, tenant, filter, count).await?;
    Ok((StatusCode::ACCEPTED, Json(Cancelled { cancelled: cancelled as u64, action_id: None })))
}

/// Cancels what matches and was created before now, a piece at a time: others go on meanwhile.
pub(super) async fn cancel_matching(
    app: &Arc<App>,
    tenant: TenantId,
    filter: Filter,
    count: usize,
) -> Result<usize, ApiError> {
    let until = app.look_up(|store| store.last_seq()).await?;
    let filter = Arc::new(filter);
    let (mut cancelled, mut after) = (0, Seq::MIN);
    while cancelled < count {
        let range = Range { tenant, after, until };
        let Some(piece) = cancel_piece(app, &filter, range, count - cancelled).await? else { break };
        after = piece.last;
        cancelled += piece.cancelled;
    }
    Ok(cancelled)
}
