//! Every tenant's signing keys: read for each attempt, rotated on request, durable before they are used.

use crate::clock::random;
use crate::config::Mode;
use crate::store::{Store, StoreError};
use crate::tenants::DEV_USERS;
use posthaste_wire::id::TenantId;
use posthaste_wire::signature::{SigningKey, SigningKeys};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The keys of all tenants.
pub struct Keys {
    store: Arc<dyn Store>,
    current: RwLock<HashMap<TenantId, Arc<SigningKeys>>>,
    /// Held while rotating, so that rotations happen one by one.
    rotating: Mutex<()>,
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
            current.insert(*tenant, Arc::new(keys));
        }
        Ok(Keys { store, current: RwLock::new(current), rotating: Mutex::new(()) })
    }

    /// The tenant's keys as of now. A tenant that is no longer configured may still have messages: its
    /// keys are in the store.
    pub fn of(&self, tenant: TenantId) -> Result<Arc<SigningKeys>, StoreError> {
        if let Some(keys) = self.current.read().unwrap_or_else(PoisonError::into_inner).get(&tenant) {
            return Ok(keys.clone());
        }
        let stored = self.store.signing_keys(tenant)?.ok_or_else(|| StoreError::Corrupt {
            what: "signing keys",
            source: "a tenant with messages has none".into(),
        })?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        Ok(current.entry(tenant).or_insert_with(|| Arc::new(stored)).clone())
    }

    /// Makes the next key current and draws a new next one. Blocks until that is on disk.
    ///
    /// `seen` are the keys that [`Keys::of`] gave when the request began. If they are no longer current, another
    /// rotation ended since: the two overlapped and are the same one, because two would drop both old keys.
    pub fn rotate(&self, tenant: TenantId, seen: &Arc<SigningKeys>) -> Result<Arc<SigningKeys>, StoreError> {
        let _one_by_one = self.rotating.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.of(tenant)?;
        if !Arc::ptr_eq(&before, seen) {
            return Ok(before);
        }
        tracing::info!(tenant = tenant.0, "rotating signing keys");
        let keys = SigningKeys { current: before.next.clone(), next: SigningKey::from_random(random()) };
        self.store.put_signing_keys(tenant, &keys)?;
        let keys = Arc::new(keys);
        self.current.write().unwrap_or_else(PoisonError::into_inner).insert(tenant, keys.clone());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[test]
    fn rotations_that_overlap_are_one_and_others_are_not() {
        let (tenant, key) = (TenantId(1), |text: &str| SigningKey::new(text.to_owned()));
        let configured = [(tenant, SigningKeys { current: key("sig_a"), next: key("sig_b") })];
        let keys = Keys::load(Arc::new(MemoryStore::new()), Mode::Serve, &configured).unwrap();
        let seen_by_both = keys.of(tenant).unwrap();
        let first = keys.rotate(tenant, &seen_by_both).unwrap();
        let second = keys.rotate(tenant, &seen_by_both).unwrap();
        assert!(first.current == configured[0].1.next);
        assert!(first == second, "a receiver that knows the old next key still knows the current one");
        let third = keys.rotate(tenant, &keys.of(tenant).unwrap()).unwrap();
        assert!(third.current == first.next && third.next != first.next);
    }
}
