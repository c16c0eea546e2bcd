//! Bounds what a tenant can find out about the operator's network by publishing to one private address after another.
//!
//! Only for private addresses that the operator has allowed; the public internet can be looked at without this server.

use posthaste_wire::id::TenantId;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Different private addresses and ports that a tenant may fail to connect to in a window; then others that it has not tried
/// before are not dialled, and the attempt has failed.
const UNREACHED_MAX: usize = 100;
/// How long that window lasts.
const UNREACHED_WINDOW: Duration = Duration::from_secs(3_600);
/// Private addresses and ports that are remembered as reached, per tenant; with one more all are forgotten.
const REACHED_MAX: usize = 1_024;

/// The private addresses that each tenant has tried.
#[derive(Debug, Default)]
pub(super) struct Probes {
    tenants: Mutex<HashMap<TenantId, Tried>>,
}

#[derive(Debug)]
struct Tried {
    begun: Instant,
    unreached: HashSet<SocketAddr>,
    reached: HashSet<SocketAddr>,
}

impl Probes {
    /// Those of these addresses that a tenant may connect to: all, or after too many failures those that it has tried before.
    /// A name of the tenant's own may have one of these and new ones, so that each is looked at.
    pub(super) fn permitted(&self, tenant: TenantId, addresses: &[SocketAddr], now: Instant) -> Vec<SocketAddr> {
        let mut tenants = self.lock();
        let Some(tried) = tenants.get_mut(&tenant) else { return addresses.to_vec() };
        tried.begin_anew(now);
        let is_free = tried.unreached.len() < UNREACHED_MAX;
        let is_known = |address: &SocketAddr| tried.reached.contains(address) || tried.unreached.contains(address);
        addresses.iter().copied().filter(|address| is_free || is_known(address)).collect()
    }

    /// One of the addresses has answered, or none has.
    pub(super) fn tried(&self, tenant: TenantId, addresses: &[SocketAddr], reached: Option<SocketAddr>, now: Instant) {
        let mut tenants = self.lock();
        let fresh = || Tried { begun: now, unreached: HashSet::new(), reached: HashSet::new() };
        let tried = tenants.entry(tenant).or_insert_with(fresh);
        tried.begin_anew(now);
        match reached {
            Some(address) => {
                tried.unreached.remove(&address);
                if tried.reached.len() >= REACHED_MAX && !tried.reached.contains(&address) {
                    tried.reached.clear();
                }
                tried.reached.insert(address);
            }
            None => tried.unreached.extend(addresses),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, Tried>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tried {
    fn begin_anew(&mut self, now: Instant) {
        if now.duration_since(self.begun) >= UNREACHED_WINDOW {
            self.begun = now;
            self.unreached.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: usize) -> [SocketAddr; 1] {
        [SocketAddr::from(([10, 0, 0, 1], u16::try_from(port).unwrap()))]
    }

    fn may_try(probes: &Probes, tenant: TenantId, port: usize, now: Instant) -> bool {
        probes.permitted(tenant, &at(port), now) == at(port)
    }

    #[test]
    fn a_tenant_that_has_failed_too_often_may_go_only_where_it_has_been() {
        let (probes, now, (a, b)) = (Probes::default(), Instant::now(), (TenantId(1), TenantId(2)));
        probes.tried(a, &at(80), Some(at(80)[0]), now);
        for port in 1_000..1_000 + UNREACHED_MAX {
            assert!(may_try(&probes, a, port, now), "{port}");
            probes.tried(a, &at(port), None, now);
        }
        assert!(!may_try(&probes, a, 2_000, now));
        assert!(may_try(&probes, a, 80, now), "it has answered");
        assert!(may_try(&probes, a, 1_000, now), "nothing new can be learnt");
        assert!(may_try(&probes, b, 2_000, now), "another tenant");
        assert!(may_try(&probes, a, 2_000, now + UNREACHED_WINDOW), "later");
    }

    #[test]
    fn of_a_name_with_known_and_new_addresses_only_the_known_ones_are_dialled() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        let (known, new) = (at(1_000)[0], at(2_000)[0]);
        assert_eq!(probes.permitted(tenant, &[known, new], now), [known, new]);
        for port in 1_000..1_000 + UNREACHED_MAX {
            probes.tried(tenant, &at(port), None, now);
        }
        assert_eq!(probes.permitted(tenant, &[new, known], now), [known]);
        assert!(probes.permitted(tenant, &[new], now).is_empty());
    }

    #[test]
    fn one_that_answers_again_does_not_count() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        for port in 1_000..1_000 + UNREACHED_MAX {
            probes.tried(tenant, &at(port), None, now);
        }
        probes.tried(tenant, &at(1_000), Some(at(1_000)[0]), now);
        assert!(may_try(&probes, tenant, 2_000, now));
        for port in 3_000..3_000 + 2 * REACHED_MAX {
            probes.tried(tenant, &at(port), Some(at(port)[0]), now);
        }
        assert!(probes.lock()[&tenant].reached.len() <= REACHED_MAX);
    }
}
