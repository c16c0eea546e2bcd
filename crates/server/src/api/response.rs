//! Responses that may be large: read and built off the async threads when it is the tenant's turn, and held only while there is
//! room.
//!
//! Room is taken for a page before anything is read. When the response is there, what it does not need is given back, and the
//! rest when it is sent or its reader is gone: a tenant whose clients read slowly runs out of its own room. A response that says
//! what was stored is never refused for want of room: its room is taken before, or it says less.

use super::error::ApiError;
use super::pieces::{Finished, Pieces};
use crate::app::{App, ReadError};
use crate::blocking::passed_on;
use crate::core::{CoreError, WAIT_MAX};
use crate::reads::Turn;
use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use posthaste_engine::limits::{MESSAGE_BYTES_MAX, PAGE_BYTES_MAX};
use posthaste_store::{Store, StoreError};
use posthaste_wire::id::TenantId;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bytes of responses held at once, while they are built and until they are sent; over it, reads are refused with 503.
const RESPONSES_BYTES_MAX: usize = 512 * 1024 * 1024;
/// One tenant's share of that; over it, its reads are refused with 429.
const TENANT_RESPONSES_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Room that is taken before a page is read, for the page and its last entry; a larger response takes more when it is there.
const PAGE_ROOM_BYTES: usize = 18 * 1024 * 1024;
/// A response to a write takes no room up to this length: there is little of it that its connection does not hold anyway.
pub(super) const SMALL_RESPONSE_BYTES: usize = 64 * 1024;
/// How long the core may take to answer a read, which keeps its turn meanwhile; then the answer is 503.
const CORE_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes per permit of these budgets.
const BYTES_PER_PERMIT: usize = 1024;

const _: () = assert!(PAGE_BYTES_MAX + MESSAGE_BYTES_MAX <= PAGE_ROOM_BYTES);
const _: () =
    assert!(PAGE_ROOM_BYTES <= TENANT_RESPONSES_BYTES_MAX && TENANT_RESPONSES_BYTES_MAX <= RESPONSES_BYTES_MAX);

/// Says in a response that is a bare list where the next page begins.
pub(crate) const CURSOR: HeaderName = HeaderName::from_static("upstash-cursor");

/// Room for responses.
pub(crate) struct ResponseBudget {
    all: Arc<Semaphore>,
    tenants: HashMap<TenantId, Arc<Semaphore>>,
}

/// Room that a response takes, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    own: OwnedSemaphorePermit,
    common: OwnedSemaphorePermit,
}

impl ResponseBudget {
    pub(crate) fn new(tenants: impl Iterator<Item = TenantId>) -> ResponseBudget {
        let share = || Arc::new(Semaphore::new(TENANT_RESPONSES_BYTES_MAX / BYTES_PER_PERMIT));
        ResponseBudget {
            all: Arc::new(Semaphore::new(RESPONSES_BYTES_MAX / BYTES_PER_PERMIT)),
            tenants: tenants.map(|tenant| (tenant, share())).collect(),
        }
    }

    /// Room in the tenant's share and in all, if there is any: who has a turn to read does not wait with it.
    fn take(&self, tenant: TenantId, bytes: usize) -> Result<Room, ApiError> {
        let own_is_full = || {
            ApiError::too_many(format!(
                "unread responses of this tenant have up to {TENANT_RESPONSES_BYTES_MAX} bytes, the maximum; read them, or request fewer at once"
            ))
        };
        let is_full = || ApiError::overloaded("too many bytes of responses are waiting to be read; try again");
        let permits = u32::try_from(bytes.div_ceil(BYTES_PER_PERMIT)).map_err(|_| own_is_full())?;
        let share = self.tenants.get(&tenant).ok_or_else(own_is_full)?;
        let own = share.clone().try_acquire_many_owned(permits).map_err(|_| own_is_full())?;
        let common = self.all.clone().try_acquire_many_owned(permits).map_err(|_| is_full())?;
        Ok(Room { own, common })
    }

    /// Waits for room, at most for so long. `None`: there is none.
    async fn wait(&self, tenant: TenantId, bytes: usize, wait_max: Duration) -> Option<Room> {
        let permits = u32::try_from(bytes.div_ceil(BYTES_PER_PERMIT)).ok()?;
        let share = self.tenants.get(&tenant)?.clone();
        let taking = async {
            let own = share.acquire_many_owned(permits).await.ok()?;
            let common = self.all.clone().acquire_many_owned(permits).await.ok()?;
            Some(Room { own, common })
        };
        timeout(wait_max, taking).await.ok().flatten()
    }
}

impl Room {
    /// Keeps room for so many bytes and gives the rest back; says how many bytes it lacks.
    fn fit(&mut self, bytes: usize) -> usize {
        let (needed, taken) = (bytes.div_ceil(BYTES_PER_PERMIT), self.own.num_permits());
        drop(self.own.split(taken.saturating_sub(needed)));
        drop(self.common.split(taken.saturating_sub(needed)));
        needed.saturating_sub(taken) * BYTES_PER_PERMIT
    }
}

/// A response of JSON, perhaps one page of several.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) json: Finished,
    /// Where the next page begins, if the response has no place of its own to say so.
    pub(super) cursor: Option<String>,
}

impl From<Pieces> for Answer {
    fn from(pieces: Pieces) -> Self {
        Answer { json: pieces.finish(), cursor: None }
    }
}

/// Says where the next page of a bare list begins, if there is one. Keys may hold anything, so they are percent-encoded; names
/// stay as they are.
pub(super) fn put_cursor(response: &mut Response, next: Option<&str>) {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    let Some(next) = next else { return };
    if let Ok(cursor) = HeaderValue::from_str(&utf8_percent_encode(next, ENCODED).to_string()) {
        response.headers_mut().insert(CURSOR, cursor);
    }
}

/// A turn to read, and room for a page.
pub(super) struct Beginning {
    tenant: TenantId,
    turn: Turn,
    room: Room,
}

/// Waits until it is the tenant's turn to read.
pub(super) async fn turn(app: &App, tenant: TenantId) -> Result<Turn, ApiError> {
    Ok(app.reads.turn(tenant).await.map_err(ReadError::NoTurn)?)
}

/// Waits for the tenant's turn, and takes room for a page.
pub(super) async fn begin(app: &App, tenant: TenantId) -> Result<Beginning, ApiError> {
    let turn = turn(app, tenant).await?;
    let room = app.response_budget.take(tenant, PAGE_ROOM_BYTES)?;
    Ok(Beginning { tenant, turn, room })
}

/// What the core tells somebody who has a turn to read.
pub(super) async fn from_core<T>(asked: impl Future<Output = Result<T, CoreError>>) -> Result<T, ApiError> {
    let late = |_| ApiError::overloaded("the engine does not respond: it is busy or waiting for the disk");
    Ok(timeout(CORE_PATIENCE, asked).await.map_err(late)??)
}

/// Reads and builds a response for a tenant, and sends it.
pub(super) async fn answer(
    app: &App,
    tenant: TenantId,
    make: impl FnOnce(&dyn Store) -> Result<Result<Answer, ApiError>, StoreError> + Send + 'static,
) -> Result<Response, ApiError> {
    finish(app, begin(app, tenant).await?, make).await
}

/// The same for somebody whose turn it is.
pub(super) async fn finish(
    app: &App,
    Beginning { tenant, turn, mut room }: Beginning,
    make: impl FnOnce(&dyn Store) -> Result<Result<Answer, ApiError>, StoreError> + Send + 'static,
) -> Result<Response, ApiError> {
    let Answer { json, cursor } = app.read_with(turn, make).await??;
    let more = match room.fit(json.held()) {
        0 => None,
        lacking => Some(app.response_budget.take(tenant, lacking.min(TENANT_RESPONSES_BYTES_MAX / 2))?),
    };
    let mut response = sent(StatusCode::OK, json, (room, more));
    put_cursor(&mut response, cursor.as_deref());
    Ok(response)
}

/// Room for a response of about so many bytes that will say what was stored, taken before anything is: `None` if it needs none.
/// Who has waited for something else before has less time for it.
pub(super) async fn room_before_storing(
    app: &App,
    tenant: TenantId,
    bytes: usize,
    waited: &mut Duration,
) -> Result<Option<Room>, ApiError> {
    if bytes <= SMALL_RESPONSE_BYTES {
        return Ok(None);
    }
    let begun = tokio::time::Instant::now();
    let wait_max = WAIT_MAX.saturating_sub(*waited);
    let room = app.response_budget.wait(tenant, bytes.min(TENANT_RESPONSES_BYTES_MAX / 2), wait_max).await;
    *waited += begun.elapsed();
    let full = "too many bytes of responses are waiting to be read; nothing was stored, read them and try again";
    room.map(Some).ok_or_else(|| ApiError::overloaded(full))
}

/// A response that says what was stored, in the room that was taken for it.
pub(super) async fn stored<T: Serialize + Send + 'static>(status: StatusCode, told: T, room: Option<Room>) -> Response {
    let Some(mut room) = room else { return (status, Json(told)).into_response() };
    // A long one takes a while to write; others go on meanwhile.
    let written = tokio::task::spawn_blocking(move || Pieces::of(&told).finish()).await;
    let Ok(json) = passed_on(written) else {
        return ApiError::overloaded("the server is stopping; the request was stored").into_response();
    };
    room.fit(json.held());
    sent(status, json, room)
}

/// Room for a response to what is done already, if it needs any; `Err` if there is none.
pub(super) fn room_after(app: &App, tenant: TenantId, bytes: usize) -> Result<Option<Room>, ApiError> {
    match bytes {
        0..=SMALL_RESPONSE_BYTES => Ok(None),
        _ => app.response_budget.take(tenant, bytes).map(Some),
    }
}

/// A response of JSON, which keeps its room until it is sent or given up.
pub(super) fn sent<G: Send + Unpin + 'static>(status: StatusCode, json: Finished, room: G) -> Response {
    let mut response = Response::new(json.into_body(room));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    #[test]
    fn a_tenant_whose_responses_are_not_read_runs_out_of_its_own_room() {
        let budget = ResponseBudget::new([A, B].into_iter());
        let mut held = Vec::new();
        for _ in 0..TENANT_RESPONSES_BYTES_MAX / PAGE_ROOM_BYTES {
            held.push(budget.take(A, PAGE_ROOM_BYTES).unwrap());
        }
        assert!(budget.take(A, PAGE_ROOM_BYTES).is_err());
        assert!(budget.take(B, PAGE_ROOM_BYTES).is_ok(), "another tenant has its own");
        let lacking: Vec<usize> = held.iter_mut().map(|room| room.fit(1)).collect();
        assert!(lacking.iter().all(|bytes| *bytes == 0));
        assert!(budget.take(A, PAGE_ROOM_BYTES).is_ok(), "short responses take little");
        let mut room = budget.take(B, PAGE_ROOM_BYTES).unwrap();
        assert_eq!(room.fit(PAGE_ROOM_BYTES + 5 * BYTES_PER_PERMIT), 5 * BYTES_PER_PERMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_to_store_something_waits_for_room_but_not_for_long() {
        let budget = ResponseBudget::new([A, B].into_iter());
        let held = budget.take(A, TENANT_RESPONSES_BYTES_MAX).unwrap();
        assert!(budget.wait(A, 1, WAIT_MAX).await.is_none());
        assert!(budget.wait(B, 1, Duration::ZERO).await.is_some(), "another tenant has its own");
        let (room, ()) = tokio::join!(budget.wait(A, 1, WAIT_MAX), async { drop(held) });
        assert!(room.is_some());
        drop(room);
        assert!(budget.take(A, TENANT_RESPONSES_BYTES_MAX).is_ok(), "who waited in vain has left nothing");
    }
}
