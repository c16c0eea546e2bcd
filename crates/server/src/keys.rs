//! Every tenant's signing keys: read for each attempt, rotated on request, durable before they are used.

use crate::clock::random;
use crate::config::Mode;
use crate::store::{Store, StoreError};
use crate::tenants::DEV_USERS;
use posthaste_wire::id::TenantId;
use posthaste_wire::signature::{SigningKey, SigningKeys};
use posthaste_wire::time::Timestamp;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A second rotation within this time is the same one: two that race, or a client that tries again because
/// it did not see the answer, must not drop both old keys.
const SAME_ROTATION_MS: u64 = 10_000;

/// The keys of all tenants.
pub struct Keys {
    store: Arc<dyn Store>,
    current: RwLock<HashMap<TenantId, Entry>>,
    /// Held while rotating, so that rotations happen one by one.
    rotating: Mutex<()>,
}

#[derive(Clone)]
struct Entry {
    keys: Arc<SigningKeys>,
    rotated_at: Option<Timestamp>,
}

impl Keys {
    /// Loads the keys of these tenants. In `serve` what is stored wins over what is configured, because a
    /// rotation is stored; in `dev` the published keys are what the SDKs know, so they are taken anew.
    pub fn load(store: Arc<dyn Store>, mode: Mode, configured: &[(TenantId, SigningKeys)]) -> Result<Keys, StoreError> {
        let mut current = HashMap::new();
        for (tenant, keys) in configured {
            let stored = store.signing_keys(*tenant)?.filter(|stored| may_be_used(mode, *tenant, stored, keys));
            let keys = match stored {
                Some(stored) => stored,
                None => {
                    store.put_signing_keys(*tenant, keys)?;
                    keys.clone()
                }
            };
            current.insert(*tenant, Entry { keys: Arc::new(keys), rotated_at: None });
        }
        Ok(Keys { store, current: RwLock::new(current), rotating: Mutex::new(()) })
    }

    /// The tenant's keys as of now. A tenant that is no longer configured may still have messages: its
    /// keys are in the store.
    pub fn of(&self, tenant: TenantId) -> Result<Arc<SigningKeys>, StoreError> {
        if let Some(entry) = self.current.read().unwrap_or_else(PoisonError::into_inner).get(&tenant) {
            return Ok(entry.keys.clone());
        }
        let stored = self.store.signing_keys(tenant)?.ok_or_else(|| StoreError::Corrupt {
            what: "signing keys",
            source: "a tenant with messages has none".into(),
        })?;
        let entry = Entry { keys: Arc::new(stored), rotated_at: None };
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        Ok(current.entry(tenant).or_insert(entry).keys.clone())
    }

    /// Makes the next key current and draws a new next one. Blocks until that is on disk.
    pub fn rotate(&self, tenant: TenantId, now: Timestamp) -> Result<Arc<SigningKeys>, StoreError> {
        let _one_by_one = self.rotating.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.read().unwrap_or_else(PoisonError::into_inner).get(&tenant).cloned();
        let before = before.expect("only a configured tenant can ask");
        if before.rotated_at.is_some_and(|at| now.millis_since(at) < SAME_ROTATION_MS) {
            return Ok(before.keys);
        }
        tracing::info!(tenant = tenant.0, "rotating signing keys");
        let keys = SigningKeys { current: before.keys.next.clone(), next: SigningKey::from_random(random()) };
        self.store.put_signing_keys(tenant, &keys)?;
        let keys = Arc::new(keys);
        let entry = Entry { keys: keys.clone(), rotated_at: Some(now) };
        self.current.write().unwrap_or_else(PoisonError::into_inner).insert(tenant, entry);
        Ok(keys)
    }
}

/// Whether stored keys are taken rather than the configured ones; says so when they differ.
fn may_be_used(mode: Mode, tenant: TenantId, stored: &SigningKeys, configured: &SigningKeys) -> bool {
    if mode == Mode::Dev && is_published(configured) {
        return false;
    }
    if mode == Mode::Serve && is_published(stored) {
        tracing::warn!(
            tenant = tenant.0,
            "the stored signing keys are published development keys; the configured ones are used"
        );
        return false;
    }
    if stored != configured && stored.current != configured.next {
        tracing::warn!(
            tenant = tenant.0,
            "the stored signing keys differ from the configured ones and are used; rotate them by the API to change them"
        );
    }
    true
}

fn is_published(keys: &SigningKeys) -> bool {
    let known =
        |key: &SigningKey| DEV_USERS.iter().any(|user| key.expose() == user.current || key.expose() == user.next);
    known(&keys.current) || known(&keys.next)
}
