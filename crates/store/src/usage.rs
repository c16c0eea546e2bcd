//! The stored bytes of each tenant, as its quota counts them, and their effect on the disk.

use super::lock;
use posthaste_wire::id::TenantId;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Approximate bytes of a row besides its texts and bodies: keys, indexes and the live row.
pub(super) const ROW_BYTES: u64 = 100;

/// The counted bytes of a row that contains this value as JSON: a URL group, a bulk action or a run. Only values with a
/// JSON form are stored.
pub fn json_row_bytes(value: &impl Serialize) -> u64 {
    serde_json::to_vec(value).map_or(0, |json| ROW_BYTES + json.len() as u64)
}

/// How the free space of the disk will change.
#[derive(Debug, Default)]
pub struct DiskOutlook {
    /// Accepted bytes that still have to be written elsewhere and will need space on the disk.
    pub backlog: AtomicU64,
    /// Bytes of the journal that the database does not have yet. A read that depends on them must wait until they are
    /// applied.
    pub pending: AtomicU64,
    /// Bytes of free pages inside the files. The next writes use them before a file grows.
    pub reusable: AtomicU64,
    /// Whether the disk is nearly full. The code that watches the disk sets it, and the store then keeps its own files
    /// short.
    pub is_tight: AtomicBool,
}

/// The stored bytes of each tenant.
#[derive(Debug, Default)]
pub(super) struct Usage(Mutex<HashMap<TenantId, i64>>);

/// Changes of the stored bytes of each tenant; may be negative.
pub(super) type UsageChange = HashMap<TenantId, i64>;

impl Usage {
    pub(super) fn new(bytes: UsageChange) -> Usage {
        Usage(Mutex::new(bytes))
    }

    /// The stored bytes of a tenant, never negative.
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
