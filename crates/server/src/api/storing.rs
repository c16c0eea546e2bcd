//! Bounds on what a request may store: bytes per request, bytes per tenant, and the reserve of the disk.

use super::error::ApiError;
use crate::app::App;
use crate::data_dir::DiskPromise;
use crate::quotas::STORED_BYTES_QUOTA;
use posthaste_engine::limits::REQUEST_STORED_BYTES_MAX;
use posthaste_wire::id::TenantId;
use posthaste_wire::rejection::quota_exceeded;

/// Room for the settings of the messages of one publish, where the largest message is larger than what a request may store.
const SETTINGS_BYTES: usize = 16 * 1024 * 1024;

/// Admits a request that stores this many bytes, or returns the error of the bound that it exceeds. Keep the promise until the
/// bytes are stored.
pub(super) fn admit(app: &App, tenant: TenantId, bytes: usize) -> Result<DiskPromise, ApiError> {
    let promise = promise(app, tenant, bytes)?;
    if let Some(limit) = app.config.quotas.stored_bytes {
        let adding = bytes as u64;
        // Those of requests that came earlier and are not stored yet count, or many requests at once would exceed the quota.
        let stored = app.store.stored_bytes(tenant).saturating_add(promise.earlier());
        if stored.saturating_add(adding) > limit {
            promise.give_back();
            return Err(ApiError::quota(format!(
                "{}; {stored} bytes are stored or being stored, and the request adds {adding}: delete dead letters, schedules \
                 and URL groups, or wait until logs expire",
                quota_exceeded(STORED_BYTES_QUOTA, limit)
            )));
        }
    }
    Ok(promise)
}

/// Admits a request without the quota of its tenant.
pub(super) fn promise(app: &App, tenant: TenantId, bytes: usize) -> Result<DiskPromise, ApiError> {
    check_request(app, bytes)?;
    app.disk_room.take(tenant, bytes as u64).ok_or_else(ApiError::disk_low)
}

/// Refuses a request that would store more than one request may.
pub(super) fn check_request(app: &App, bytes: usize) -> Result<(), ApiError> {
    let largest = app.config.message_bytes_max;
    let is_usual = largest <= REQUEST_STORED_BYTES_MAX - SETTINGS_BYTES;
    let max = if is_usual { REQUEST_STORED_BYTES_MAX } else { largest + SETTINGS_BYTES };
    if bytes > max {
        return Err(ApiError::too_large(format!(
            "the request would store {bytes} bytes, at most {max} are accepted: split it, or send smaller bodies or fewer headers"
        )));
    }
    Ok(())
}
