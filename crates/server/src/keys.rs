//! Every tenant's signing keys: read for each attempt, rotated on request, durable before they are used.

use crate::clock::random;
use crate::config::Mode;
use crate::sealed::{self, CannotOpen, KeyRing, Place};
use crate::tenants::DEV_USERS;
use posthaste_store::{Store, StoreError};
use posthaste_wire::id::TenantId;
use posthaste_wire::signature::{SigningKey, SigningKeys};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The keys of all tenants.
pub struct Keys {
    stored: StoredKeys,
    current: RwLock<HashMap<TenantId, Arc<SigningKeys>>>,
    /// Held while rotating, so that rotations happen one by one.
    rotating: Mutex<()>,
}

impl Keys {
    /// Loads the keys of these tenants. In `serve` what is stored wins over what is configured, because a
    /// rotation is stored; in `dev` the published keys are what the SDKs know, so they are taken anew.
    ///
    /// With an encryption key, stored keys are encrypted. Those in the clear or under an older key are encrypted again here,
    /// also for tenants that are no longer configured.
    pub fn load(
        store: Arc<dyn Store>,
        encryption: Option<KeyRing>,
        mode: Mode,
        configured: &[(TenantId, SigningKeys)],
    ) -> Result<Keys, KeysError> {
        let stored = StoredKeys { store, encryption };
        let mut current = HashMap::new();
        for (tenant, keys) in configured {
            // Published keys are no secret, and those of dev are not asked for.
            let is_replaced = mode == Mode::Dev && is_published(keys);
            let found = if is_replaced { None } else { stored.get(*tenant)? };
            let keys = match found.filter(|found| may_be_used(mode, *tenant, found, keys)) {
                Some(found) => found,
                None => {
                    stored.put(*tenant, keys)?;
                    keys.clone()
                }
            };
            current.insert(*tenant, Arc::new(keys));
        }
        stored.encrypt_all()?;
        Ok(Keys { stored, current: RwLock::new(current), rotating: Mutex::new(()) })
    }

    /// The tenant's keys as of now. A tenant that is no longer configured may still have messages: its
    /// keys are in the store.
    pub fn of(&self, tenant: TenantId) -> Result<Arc<SigningKeys>, StoreError> {
        if let Some(keys) = self.current.read().unwrap_or_else(PoisonError::into_inner).get(&tenant) {
            return Ok(keys.clone());
        }
        let stored = self.stored.get(tenant).map_err(KeysError::into_store_error)?;
        let stored = stored.ok_or_else(|| StoreError::Corrupt {
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
        self.stored.put(tenant, &keys)?;
        let keys = Arc::new(keys);
        self.current.write().unwrap_or_else(PoisonError::into_inner).insert(tenant, keys.clone());
        Ok(keys)
    }
}

/// Why the keys of a tenant are not there.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// They are encrypted, and cannot be read.
    #[error(
        "the stored signing keys of tenant {tenant} cannot be read: {source}; set the encryption key that they were \
         stored with, as an older key after the new one if it was replaced"
    )]
    Encrypted {
        /// The tenant's number in the store.
        tenant: u32,
        /// Why.
        source: CannotOpen,
    },
}

impl KeysError {
    fn into_store_error(self) -> StoreError {
        match self {
            KeysError::Store(error) => error,
            KeysError::Encrypted { .. } => {
                StoreError::Corrupt { what: "signing keys", source: self.to_string().into() }
            }
        }
    }
}

/// The keys in the store, encrypted if there is a key for that.
struct StoredKeys {
    store: Arc<dyn Store>,
    encryption: Option<KeyRing>,
}

const CURRENT: &str = "current";
const NEXT: &str = "next";

impl StoredKeys {
    fn get(&self, tenant: TenantId) -> Result<Option<SigningKeys>, KeysError> {
        let Some(stored) = self.store.signing_keys(tenant)? else { return Ok(None) };
        let open = |field, key: &SigningKey| {
            let opened = sealed::open(self.encryption.as_ref(), Place { tenant, field }, key.expose());
            opened.map(SigningKey::new).map_err(|source| KeysError::Encrypted { tenant: tenant.0, source })
        };
        Ok(Some(SigningKeys { current: open(CURRENT, &stored.current)?, next: open(NEXT, &stored.next)? }))
    }

    fn put(&self, tenant: TenantId, keys: &SigningKeys) -> Result<(), StoreError> {
        let Some(ring) = &self.encryption else { return self.store.put_signing_keys(tenant, keys) };
        let seal = |field, key: &SigningKey| {
            let sealed = ring.seal(Place { tenant, field }, key.expose());
            // Never in the clear instead.
            sealed.map(SigningKey::new).ok_or_else(|| StoreError::Unavailable("the key could not be encrypted".into()))
        };
        let sealed = SigningKeys { current: seal(CURRENT, &keys.current)?, next: seal(NEXT, &keys.next)? };
        self.store.put_signing_keys(tenant, &sealed)
    }

    /// Checks that all keys can be read, and encrypts those that are not encrypted with the newest key.
    fn encrypt_all(&self) -> Result<(), KeysError> {
        for tenant in self.store.tenants_with_keys()? {
            let (Some(stored), Some(keys)) = (self.store.signing_keys(tenant)?, self.get(tenant)?) else { continue };
            let Some(ring) = &self.encryption else { continue };
            if !ring.is_current(stored.current.expose()) || !ring.is_current(stored.next.expose()) {
                self.put(tenant, &keys)?;
                tracing::info!(tenant = tenant.0, "encrypted the stored signing keys with the newest key");
            }
        }
        Ok(())
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
            "using the configured signing keys, because the stored ones are published development keys"
        );
        return false;
    }
    if stored != configured && stored.current != configured.next {
        tracing::warn!(
            tenant = tenant.0,
            "using the stored signing keys, which differ from the configured ones; rotate the keys with the API to change them"
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
    use posthaste_store::memory::MemoryStore;

    #[test]
    fn rotations_that_overlap_are_one_and_others_are_not() {
        let (tenant, key) = (TenantId(1), |text: &str| SigningKey::new(text.to_owned()));
        let configured = [(tenant, SigningKeys { current: key("sig_a"), next: key("sig_b") })];
        let keys = Keys::load(Arc::new(MemoryStore::new()), None, Mode::Serve, &configured).unwrap();
        let seen_by_both = keys.of(tenant).unwrap();
        let first = keys.rotate(tenant, &seen_by_both).unwrap();
        let second = keys.rotate(tenant, &seen_by_both).unwrap();
        assert!(first.current == configured[0].1.next);
        assert!(first == second, "a receiver that knows the old next key still knows the current one");
        let third = keys.rotate(tenant, &keys.of(tenant).unwrap()).unwrap();
        assert!(third.current == first.next && third.next != first.next);
    }

    const OLD: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const NEW: &str = "f0f102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn pair(name: &str) -> SigningKeys {
        let key = |which: &str| SigningKey::new(format!("sig_{name}_{which}"));
        SigningKeys { current: key("current"), next: key("next") }
    }

    #[test]
    fn keys_are_encrypted_from_the_first_start_with_a_key_on_and_again_with_the_next() {
        let store = Arc::new(MemoryStore::new());
        let configured = [(TenantId(1), pair("a"))];
        let load = |keys: Option<&str>| {
            let ring = keys.map(|keys| KeyRing::parse(keys).unwrap());
            Keys::load(store.clone(), ring, Mode::Serve, &configured)
        };
        let raw = |tenant| store.signing_keys(TenantId(tenant)).unwrap().unwrap();
        load(None).unwrap();
        assert!(raw(1) == pair("a"), "in the clear without a key");
        // A tenant that is configured no more, whose messages still have to be signed.
        store.put_signing_keys(TenantId(9), &pair("gone")).unwrap();

        let keys = load(Some(OLD)).unwrap();
        for tenant in [1, 9] {
            let raw = raw(tenant);
            assert!([&raw.current, &raw.next].iter().all(|key| key.expose().starts_with("sealed:1:")), "{tenant}");
        }
        assert!(*keys.of(TenantId(1)).unwrap() == pair("a") && *keys.of(TenantId(9)).unwrap() == pair("gone"));
        let rotated = keys.rotate(TenantId(1), &keys.of(TenantId(1)).unwrap()).unwrap();
        assert!(raw(1).current.expose().starts_with("sealed:1:") && rotated.current == pair("a").next);

        for wrong in [None, Some(NEW)] {
            let error = load(wrong).err().expect("the keys cannot be read").to_string();
            assert!(error.contains("encryption_key") && error.contains("tenant"), "{error}");
        }
        let before = raw(9);
        let keys = load(Some(&format!("{NEW},{OLD}"))).unwrap();
        assert!(*keys.of(TenantId(1)).unwrap() == *rotated && raw(9) != before);
        let keys = load(Some(NEW)).unwrap();
        assert!(*keys.of(TenantId(1)).unwrap() == *rotated, "the old key is not needed any more");
        let before = raw(9);
        load(Some(NEW)).unwrap();
        assert!(raw(9) == before, "written only when it has to be");
    }

    #[test]
    fn keys_that_were_moved_to_another_tenant_are_refused() {
        let (store, ring) = (Arc::new(MemoryStore::new()), KeyRing::parse(OLD).unwrap());
        let configured = [(TenantId(1), pair("a")), (TenantId(2), pair("b"))];
        Keys::load(store.clone(), Some(ring.clone()), Mode::Serve, &configured).unwrap();
        store.put_signing_keys(TenantId(2), &store.signing_keys(TenantId(1)).unwrap().unwrap()).unwrap();
        let error = Keys::load(store, Some(ring), Mode::Serve, &configured).err().expect("refused").to_string();
        assert!(error.contains("tenant 2"), "{error}");
    }
}
