//! Who has logged in. Sessions live in RAM: a restart ends them.

use crate::tenants::Scope;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a session lasts that nobody uses; it also ends at [`LIFE_MS_MAX`].
const IDLE_MS_MAX: u64 = 12 * 60 * 60 * 1_000;
/// How long a session lasts at most.
const LIFE_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;
/// Sessions of a tenant at once; of more, the one that was not used the longest ends.
const SESSIONS_MAX: usize = 100;

/// Who somebody is who has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) tenant: TenantId,
    pub(super) scope: Scope,
}

struct Session {
    who: Identity,
    begun: Timestamp,
    used: Timestamp,
}

/// Everybody who has logged in, by the hash of what their cookie says.
#[derive(Default)]
pub(super) struct Sessions {
    sessions: Mutex<HashMap<[u8; 32], Session>>,
}

impl Sessions {
    /// Begins a session; what is returned is the visitor's secret.
    pub(super) fn begin(&self, who: Identity, now: Timestamp) -> String {
        let secret = bs58::encode(crate::clock::random::<32>()).into_string();
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.is_good(now));
        let own = || sessions.iter().filter(|(_, session)| session.who.tenant == who.tenant);
        if own().count() >= SESSIONS_MAX {
            let oldest = own().min_by_key(|(_, session)| session.used).map(|(key, _)| *key);
            oldest.and_then(|key| sessions.remove(&key));
        }
        sessions.insert(key(&secret), Session { who, begun: now, used: now });
        secret
    }

    /// Whose session this is.
    pub(super) fn find(&self, secret: &str, now: Timestamp) -> Option<Identity> {
        let mut sessions = self.lock();
        let session = sessions.get_mut(&key(secret)).filter(|session| session.is_good(now))?;
        session.used = session.used.max(now);
        Some(session.who)
    }

    /// Ends a session.
    pub(super) fn end(&self, secret: &str) {
        self.lock().remove(&key(secret));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn is_good(&self, now: Timestamp) -> bool {
        now.millis_since(self.used) < IDLE_MS_MAX && now.millis_since(self.begun) < LIFE_MS_MAX
    }
}

fn key(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Identity = Identity { tenant: TenantId(7), scope: Scope::ReadOnly };

    #[test]
    fn sessions_end_when_they_are_old_unused_or_ended() {
        let sessions = Sessions::default();
        let secret = sessions.begin(WHO, Timestamp(0));
        assert_eq!(sessions.find(&secret, Timestamp(0)), Some(WHO));
        assert_eq!(sessions.find("guessed", Timestamp(0)), None);
        let mut now = 0;
        while now + IDLE_MS_MAX - 1 < LIFE_MS_MAX {
            now += IDLE_MS_MAX - 1;
            assert_eq!(sessions.find(&secret, Timestamp(now)), Some(WHO), "used at {now}");
        }
        assert_eq!(sessions.find(&secret, Timestamp(LIFE_MS_MAX)), None);
        let secret = sessions.begin(WHO, Timestamp(0));
        assert_eq!(sessions.find(&secret, Timestamp(IDLE_MS_MAX)), None);
        sessions.end(&secret);
        assert_eq!(sessions.find(&secret, Timestamp(0)), None);
    }

    #[test]
    fn there_are_only_so_many_and_the_least_used_goes() {
        let sessions = Sessions::default();
        let first = sessions.begin(WHO, Timestamp(0));
        let second = sessions.begin(WHO, Timestamp(1));
        let other = sessions.begin(Identity { tenant: TenantId(8), ..WHO }, Timestamp(0));
        assert!(sessions.find(&first, Timestamp(2)).is_some());
        for _ in 2..=SESSIONS_MAX {
            sessions.begin(WHO, Timestamp(3));
        }
        assert_eq!(sessions.find(&second, Timestamp(4)), None);
        assert!(sessions.find(&first, Timestamp(4)).is_some());
        assert!(sessions.find(&other, Timestamp(4)).is_some(), "another tenant's stay");
    }
}
