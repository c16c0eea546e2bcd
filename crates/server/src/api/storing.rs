//! What a request may store: so much at once, so much in all for its tenant, and never what the disk must keep.

use super::error::ApiError;
use crate::app::App;
use crate::core::{NewMessage, body_bytes};
use crate::data_dir::DiskPromise;
use crate::quotas::STORED_BYTES_QUOTA;
use posthaste_engine::limits::REQUEST_STORED_BYTES_MAX;
use posthaste_engine::message::{CallbackSpec, MessageSpec};
use posthaste_wire::id::TenantId;

/// Bytes that a message takes besides its body and what its publisher wrote, more or less.
const MESSAGE_OVERHEAD_BYTES: usize = 512;

/// Lets a request store so many bytes, or says which bound it would exceed. The promise is kept until they are stored.
pub(super) fn admit(app: &App, tenant: TenantId, bytes: usize) -> Result<DiskPromise, ApiError> {
    let adding = bytes as u64;
    if let Some(limit) = app.config.quotas.stored_bytes {
        let stored = app.store.stored_bytes(tenant);
        if stored.saturating_add(adding) > limit {
            return Err(ApiError::quota(format!(
                "quota {STORED_BYTES_QUOTA} exceeded, current limit: {limit}; {stored} bytes are stored and the request adds \
                 {adding}: delete dead letters and schedules, or wait until logs expire"
            )));
        }
    }
    promise(app, bytes)
}

/// The same whatever its tenant has stored: for what began within its quota and has bounds of its own.
pub(super) fn promise(app: &App, bytes: usize) -> Result<DiskPromise, ApiError> {
    check_request(app, bytes)?;
    app.disk_room.take(bytes as u64).ok_or_else(ApiError::disk_low)
}

/// Refuses a request that would store more than one request may.
pub(super) fn check_request(app: &App, bytes: usize) -> Result<(), ApiError> {
    let max = REQUEST_STORED_BYTES_MAX.max(app.config.message_bytes_max + MESSAGE_OVERHEAD_BYTES);
    if bytes > max {
        return Err(ApiError::too_large(format!(
            "the request would store {bytes} bytes, at most {max} are accepted: send it in parts, with smaller bodies or fewer headers"
        )));
    }
    Ok(())
}

/// Bytes that messages store. A body that neighbours share is stored once.
pub(super) fn stored_bytes(messages: &[NewMessage]) -> usize {
    body_bytes(messages) + messages.iter().map(|message| spec_bytes(&message.spec)).sum::<usize>()
}

fn spec_bytes(spec: &MessageSpec) -> usize {
    let callbacks = [&spec.callback, &spec.failure_callback].into_iter().flatten();
    let callbacks: usize = callbacks.map(|callback| callback_bytes(callback)).sum();
    MESSAGE_OVERHEAD_BYTES + spec.url.len() + header_bytes(&spec.headers) + callbacks
}

fn callback_bytes(callback: &CallbackSpec) -> usize {
    callback.url.len() + header_bytes(&callback.headers)
}

fn header_bytes(headers: &[(String, String)]) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}
