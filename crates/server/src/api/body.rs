//! Request bodies: read whole, never over their bound, and never more of them at once than RAM has room for.
//!
//! Room is taken as bytes arrive, not as they are announced, so that a slow or lying client takes only what
//! it has sent; and each tenant has a share, so that one cannot take the room of all.

use super::error::ApiError;
use crate::app::App;
use crate::core::{Room, WAIT_MAX};
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use http_body_util::BodyExt;
use posthaste_engine::limits::BATCH_ITEMS_MAX;
use posthaste_wire::id::TenantId;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// Bytes of request bodies held at once, while they are read and until they are stored.
const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The share of that which one tenant may take.
const TENANT_BODIES_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Items of batches of one tenant that are held at once, from when they are read until they are stored: as many as one batch may
/// have. They take more memory, and more work, than their bytes say.
const TENANT_ITEMS_MAX: u32 = 10_000;
const _: () = assert!(TENANT_ITEMS_MAX as usize == BATCH_ITEMS_MAX);
/// Bytes per permit of these budgets.
const BYTES_PER_PERMIT: usize = 1024;
/// How long a client may take to send a body; then the answer is 408.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a body over its bound that are read and forgotten.
const DRAINED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a body over its bound is read and forgotten.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Room for request bodies.
pub(crate) struct BodyBudget {
    all: Arc<Semaphore>,
    tenants: HashMap<TenantId, Arc<Semaphore>>,
    /// Items of batches, by tenant.
    items: HashMap<TenantId, Arc<Semaphore>>,
}

impl BodyBudget {
    pub(crate) fn new(tenants: impl Iterator<Item = TenantId>) -> BodyBudget {
        let share = || Arc::new(Semaphore::new(TENANT_BODIES_BYTES_MAX / BYTES_PER_PERMIT));
        let items = || Arc::new(Semaphore::new(TENANT_ITEMS_MAX as usize));
        let (tenants, of_items) = tenants.map(|tenant| ((tenant, share()), (tenant, items()))).unzip();
        BodyBudget { all: Arc::new(Semaphore::new(BODIES_BYTES_MAX / BYTES_PER_PERMIT)), tenants, items: of_items }
    }

    /// Waits until a request holds room for this many items of a batch, those included that it holds already. It waits for at
    /// most [`WAIT_MAX`] in all; after that the result is `None`.
    pub(super) async fn take_items(&self, tenant: TenantId, items: usize, room: &mut Room) -> Option<()> {
        let items = u32::try_from(items).unwrap_or(u32::MAX).min(TENANT_ITEMS_MAX);
        let held = room.items.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) as u32;
        let begun = Instant::now();
        let wait = self.items.get(&tenant)?.clone().acquire_many_owned(items.saturating_sub(held));
        let taken = timeout(WAIT_MAX.saturating_sub(room.waited), wait).await.ok()?.ok()?;
        match &mut room.items {
            Some(held) => held.merge(taken),
            none => *none = Some(taken),
        }
        room.waited += begun.elapsed();
        Some(())
    }

    /// Waits for more room, first in the tenant's share and then in all, for no longer than [`WAIT_MAX`] in the whole life of
    /// `room`. `None`: there is none.
    pub(super) async fn take(&self, tenant: TenantId, bytes: usize, room: &mut Room) -> Option<()> {
        let permits = u32::try_from(bytes.div_ceil(BYTES_PER_PERMIT)).ok()?;
        let share = self.tenants.get(&tenant)?.clone();
        if let (Ok(own), Ok(common)) =
            (share.clone().try_acquire_many_owned(permits), self.all.clone().try_acquire_many_owned(permits))
        {
            room.taken.extend([own, common]);
            return Some(());
        }
        let wait = async {
            let own = share.acquire_many_owned(permits).await.ok()?;
            let common = self.all.clone().acquire_many_owned(permits).await.ok()?;
            Some([own, common])
        };
        let begun = Instant::now();
        let taken = timeout(WAIT_MAX.saturating_sub(room.waited), Box::pin(wait)).await.ok().flatten()?;
        room.waited += begun.elapsed();
        room.taken.extend(taken);
        Some(())
    }
}

/// Waits until no other batch of the tenant is read. `None`: that took longer than [`WAIT_MAX`].
pub(super) async fn batch_turn(app: &App, tenant: TenantId, room: &mut Room) -> Option<OwnedSemaphorePermit> {
    let begun = Instant::now();
    let turn = app.allowances.batches.wait(tenant).await?;
    room.waited += begun.elapsed();
    Some(turn)
}

/// 503: too many bytes are held.
pub(super) fn no_room() -> ApiError {
    ApiError::overloaded(
        "the server is overloaded: too many bytes are waiting to be stored; nothing was stored, try again",
    )
}

/// Bytes that a request has room for: each is taken from the tenant's share and from that of all.
pub(super) fn held_bytes(room: &Room) -> usize {
    room.taken.iter().map(OwnedSemaphorePermit::num_permits).sum::<usize>() / 2 * BYTES_PER_PERMIT
}

/// A body, and the room it takes.
pub(super) struct HeldBody {
    pub(super) bytes: Bytes,
    pub(super) room: Room,
}

/// Reads the form of a page of the console: its bytes and the room they take, or the answer that refuses it.
pub(crate) async fn read_form(
    app: &App,
    tenant: TenantId,
    headers: &HeaderMap,
    body: Body,
    max: usize,
) -> Result<(Bytes, Room), Response> {
    let over = || ApiError::too_large(format!("the form is larger than {max} bytes"));
    let held = read(app, tenant, headers, body, max, over).await.map_err(IntoResponse::into_response)?;
    Ok((held.bytes, held.room))
}

/// Reads a body of at most `max` bytes; `over` makes the error for a longer one.
pub(super) async fn read(
    app: &App,
    tenant: TenantId,
    headers: &HeaderMap,
    body: Body,
    max: usize,
    over: impl FnOnce() -> ApiError,
) -> Result<HeldBody, ApiError> {
    read_into(&app.body_budget, tenant, headers, body, max, over).await
}

async fn read_into(
    budget: &BodyBudget,
    tenant: TenantId,
    headers: &HeaderMap,
    mut body: Body,
    max: usize,
    over: impl FnOnce() -> ApiError,
) -> Result<HeldBody, ApiError> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let reading = async {
        if declared.is_some_and(|length| length > max) {
            return Err(Failure::TooLong);
        }
        collect(budget, tenant, &mut body, max).await
    };
    match timeout(READ_TIMEOUT, reading).await {
        Ok(Ok(held)) => Ok(held),
        Ok(Err(Failure::TooLong)) => {
            Box::pin(drain(body)).await;
            Err(over())
        }
        Ok(Err(Failure::NoRoom)) => {
            Box::pin(drain(body)).await;
            Err(no_room())
        }
        Ok(Err(Failure::Broken)) => Err(ApiError::invalid("the request body broke off; nothing was stored")),
        // No 400: to a client of workflows that means that its run has ended.
        Err(_) => Err(ApiError::timed_out(format!(
            "the request body took longer than {} s to arrive; nothing was stored, try again",
            READ_TIMEOUT.as_secs()
        ))),
    }
}

/// Most bytes of a body that names filters or endpoints; over it the answer is 413.
const SMALL_BYTES_MAX: usize = 1024 * 1024;

/// A request that changes something, with a small body that says what.
pub(super) struct SmallRequest {
    pub(super) parts: Parts,
    pub(super) body: HeldBody,
}

/// Reads what a caller says who was let in.
pub(super) async fn read_small(app: &App, tenant: TenantId, request: Request) -> Result<SmallRequest, ApiError> {
    let (parts, body) = request.into_parts();
    let over = || ApiError::too_large(format!("the body is larger than {SMALL_BYTES_MAX} bytes"));
    let body = read(app, tenant, &parts.headers, body, SMALL_BYTES_MAX, over).await?;
    Ok(SmallRequest { parts, body })
}

/// A body of which nothing is read. It is kept until the response is made: the connection of a body that is dropped before it has
/// arrived is closed.
pub(super) struct Unread {
    _body: Body,
}

impl<S: Sync> FromRequest<S> for Unread {
    type Rejection = Infallible;

    async fn from_request(request: Request, _: &S) -> Result<Unread, Infallible> {
        Ok(Unread { _body: request.into_body() })
    }
}

/// Why a body was not read.
enum Failure {
    TooLong,
    NoRoom,
    Broken,
}

/// A body up to this length is copied. It arrives in the buffer of its connection, some kilobytes, which it would keep until it
/// is stored; and the connection would need another one for its next request.
const COPIED_BYTES_MAX: usize = 4 * 1024;

/// Most bodies come in one piece; one that is not short is kept as it is.
async fn collect(budget: &BodyBudget, tenant: TenantId, body: &mut Body, max: usize) -> Result<HeldBody, Failure> {
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    let mut room = Room::default();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Failure::Broken)?.into_data() else { continue };
        if first.len() + rest.len() + data.len() > max {
            return Err(Failure::TooLong);
        }
        budget.take(tenant, data.len(), &mut room).await.ok_or(Failure::NoRoom)?;
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    if rest.is_empty() {
        let bytes = if first.len() <= COPIED_BYTES_MAX { Bytes::copy_from_slice(&first) } else { first };
        return Ok(HeldBody { bytes, room });
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(HeldBody { bytes: whole.freeze(), room })
}

/// Reads on for a while and forgets: a client that is still sending would not see an answer, only a
/// broken connection.
async fn drain(mut body: Body) {
    let read_on = async {
        let mut left = DRAINED_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    // Whoever sends even more, or slower, gets the broken connection.
    let _ = timeout(DRAIN_TIMEOUT, read_on).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    #[tokio::test]
    async fn a_tenant_without_room_waits_a_moment_and_another_does_not() {
        let budget = BodyBudget::new([A, B].into_iter());
        let (mut held, mut other) = (Room::default(), Room::default());
        assert!(budget.take(A, TENANT_BODIES_BYTES_MAX, &mut held).await.is_some());
        assert!(budget.take(A, 1, &mut Room::default()).await.is_none(), "its share is used up");
        assert!(budget.take(B, TENANT_BODIES_BYTES_MAX, &mut other).await.is_some());
        drop(held);
        assert!(budget.take(A, 1, &mut Room::default()).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_only_for_the_items_that_it_does_not_hold() {
        let budget = BodyBudget::new([A].into_iter());
        let (mut room, most) = (Room::default(), TENANT_ITEMS_MAX as usize);
        assert!(budget.take_items(A, most - 1, &mut room).await.is_some());
        assert!(budget.take_items(A, most, &mut room).await.is_some(), "it takes one more");
        assert!(budget.take_items(A, most + 1, &mut room).await.is_some(), "more than all is all");
        assert!(budget.take_items(A, 1, &mut Room::default()).await.is_none(), "another request finds none");
        drop(room);
        assert!(budget.take_items(A, most, &mut Room::default()).await.is_some());
    }

    /// A body of which one piece arrives, and then nothing.
    struct Silent(Option<Bytes>);

    impl http_body::Body for Silent {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            match self.0.take() {
                Some(piece) => std::task::Poll::Ready(Some(Ok(http_body::Frame::data(piece)))),
                None => std::task::Poll::Pending,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_arriving_is_a_request_timeout() {
        let budget = BodyBudget::new([A].into_iter());
        let body = Body::new(Silent(Some(Bytes::from_static(b"half"))));
        let begun = Instant::now();
        let headers = HeaderMap::new();
        let read = read_into(&budget, A, &headers, body, 100, || panic!("it is short"));
        let response = read.await.err().map(IntoResponse::into_response).expect("it is refused");
        assert_eq!(begun.elapsed(), READ_TIMEOUT);
        assert_eq!(response.status(), 408);
        let text = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            text,
            serde_json::json!({ "error": "the request body took longer than 60 s to arrive; nothing was stored, try again" })
        );
        assert!(budget.take(A, TENANT_BODIES_BYTES_MAX, &mut Room::default()).await.is_some(), "its room is free");
    }

    /// Of a body that arrives in many pieces, each may find the room taken.
    #[tokio::test]
    async fn all_pieces_of_a_body_together_wait_no_longer_than_one() {
        let budget = BodyBudget::new([A].into_iter());
        let (mut held, mut room) = (Room::default(), Room::default());
        assert!(budget.take(A, TENANT_BODIES_BYTES_MAX, &mut held).await.is_some());
        let stored = async { drop(held) };
        let (taken, ()) = tokio::join!(budget.take(A, TENANT_BODIES_BYTES_MAX, &mut room), stored);
        assert!(taken.is_some() && room.waited > Duration::ZERO, "the first piece has waited");
        room.waited = WAIT_MAX;
        // A busy machine may make it seem to wait once, not each time.
        let mut took = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            assert!(budget.take(A, 1, &mut room).await.is_none(), "there is no room, and no time left to wait for it");
            took.push(begun.elapsed());
        }
        assert!(took.iter().any(|took| *took < WAIT_MAX), "{took:?}");
    }
}
