//! Request bodies: read whole, never over their bound, and never more of them at once than RAM has room for.

use super::error::ApiError;
use crate::app::App;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of request bodies held at once, while they are read and until they are stored.
pub const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes per permit of that budget.
pub(crate) const BYTES_PER_PERMIT: usize = 1024;
/// How long a request waits for its share of the budget before it is refused with 503.
const BUDGET_PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take to send a body.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of a body over its bound that are read and forgotten.
const DRAINED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a body over its bound is read and forgotten.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A body, and its share of the budget, given back when this is dropped.
pub(super) struct HeldBody {
    pub(super) bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

/// Reads a body of at most `max` bytes; `over` makes the error for a longer one.
pub(super) async fn read(
    app: &Arc<App>,
    headers: &HeaderMap,
    mut body: Body,
    max: usize,
    over: impl FnOnce() -> ApiError,
) -> Result<HeldBody, ApiError> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let expected = match declared {
        Some(length) if length > max => {
            drain(body).await;
            return Err(over());
        }
        Some(length) => length,
        None => max,
    };
    let permits = expected.div_ceil(BYTES_PER_PERMIT) as u32;
    let share = app.body_budget.clone().acquire_many_owned(permits);
    let share = match tokio::time::timeout(BUDGET_PATIENCE, share).await {
        Ok(Ok(share)) => share,
        Ok(Err(_)) | Err(_) => {
            return Err(ApiError::overloaded("the server is overloaded: too many bytes are waiting; nothing was stored, try again"));
        }
    };
    match tokio::time::timeout(READ_TIMEOUT, Limited::new(&mut body, max).collect()).await {
        Ok(Ok(collected)) => Ok(HeldBody { bytes: collected.to_bytes(), _share: share }),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            drain(body).await;
            Err(over())
        }
        Ok(Err(_)) => Err(ApiError::invalid("the request body broke off; nothing was stored")),
        Err(_) => Err(ApiError::invalid("the request body took longer than 60 s; nothing was stored")),
    }
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
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, read_on).await;
}
