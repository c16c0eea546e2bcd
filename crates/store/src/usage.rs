//! How many bytes each tenant has stored, as the quota of a tenant counts them, and what that means for the disk.

use super::lock;
use posthaste_wire::id::TenantId;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Bytes that a row counts for besides its texts and bodies: keys, indexes and the live row, more or less.
pub(super) const ROW_BYTES: u64 = 100;

/// Bytes that a row counts for which holds this as JSON: a URL group, a bulk action, a run. A value that has no JSON is never
/// stored.
pub fn json_row_bytes(value: &impl Serialize) -> u64 {
    serde_json::to_vec(value).map_or(0, |json| ROW_BYTES + json.len() as u64)
}

/// How the room on the disk will change.
#[derive(Debug, Default)]
pub struct DiskOutlook {
    /// Bytes that are accepted and still have to be written elsewhere: they will take room on the disk.
    pub backlog: AtomicU64,
    /// Bytes of the journal that the database does not have yet: a read of them has to wait until it has.
    pub pending: AtomicU64,
    /// Bytes of free pages inside the files: what is written next takes their room before a file grows.
    pub reusable: AtomicU64,
    /// Whether the disk has little room: then the store keeps its own files short. Whoever watches the disk sets it.
    pub is_tight: AtomicBool,
}

/// The stored bytes of each tenant.
#[derive(Debug, Default)]
pub(super) struct Usage(Mutex<HashMap<TenantId, i64>>);

/// What some changes add to each tenant, or take away.
pub(super) type UsageChange = HashMap<TenantId, i64>;

impl Usage {
    pub(super) fn new(bytes: UsageChange) -> Usage {
        Usage(Mutex::new(bytes))
    }

    /// Never negative.
    pub(super) fn of(&self, tenant: TenantId) -> u64 {
        let bytes = lock(&self.0).get(&tenant).copied().unwrap_or(0);
        u64::try_from(bytes).unwrap_or(0)
    }

    pub(super) fn add(&self, change: &UsageChange) {
        let mut usage = lock(&self.0);
        for (tenant, bytes) in change {
            *usage.entry(*tenant).or_default() += bytes;
        }
    }

    pub(super) fn remove(&self, change: &UsageChange) {
        let mut usage = lock(&self.0);
        for (tenant, bytes) in change {
            *usage.entry(*tenant).or_default() -= bytes;
        }
    }
}
