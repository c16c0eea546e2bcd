//! Bounds what a tenant can find out about the operator's network by publishing to one private address after another.
//!
//! Only for private addresses that the operator has allowed; the public internet can be looked at without this server.

use super::address;
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

/// The addresses that an attempt may dial.
#[derive(Debug)]
pub(super) struct Permit {
    pub(super) addresses: Vec<SocketAddr>,
    /// Those of them that count as failures until they have answered, or were not dialled.
    new: Vec<SocketAddr>,
}

impl Probes {
    /// Those of these addresses that a tenant may dial. New private ones count as failures from here on, so that attempts at the
    /// same time cannot exceed the limit; over it, only public and known ones are dialled.
    pub(super) fn permit(&self, tenant: TenantId, addresses: &[SocketAddr], now: Instant) -> Permit {
        let mut tenants = self.lock();
        let fresh = || Tried { begun: now, unreached: HashSet::new(), reached: HashSet::new() };
        let tried = tenants.entry(tenant).or_insert_with(fresh);
        tried.begin_anew(now);
        let mut new = Vec::new();
        let mut may_dial = |address: &SocketAddr| {
            if address::kind(address.ip()).is_none() || tried.is_known(address) {
                return true;
            }
            let is_free = tried.unreached.len() < UNREACHED_MAX;
            if is_free {
                tried.unreached.insert(*address);
                new.push(*address);
            }
            is_free
        };
        let addresses = addresses.iter().copied().filter(|address| may_dial(address)).collect();
        Permit { addresses, new }
    }

    /// The first `dialled` addresses were dialled, and one of them has answered or none has.
    pub(super) fn tried(&self, tenant: TenantId, permit: &Permit, dialled: usize, reached: Option<SocketAddr>) {
        let mut tenants = self.lock();
        let Some(tried) = tenants.get_mut(&tenant) else { return };
        for address in permit.addresses.iter().skip(dialled).filter(|address| permit.new.contains(address)) {
            tried.unreached.remove(address);
        }
        let Some(reached) = reached.filter(|reached| address::kind(reached.ip()).is_some()) else { return };
        tried.unreached.remove(&reached);
        if tried.reached.len() >= REACHED_MAX && !tried.reached.contains(&reached) {
            tried.reached.clear();
        }
        tried.reached.insert(reached);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, Tried>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tried {
    fn is_known(&self, address: &SocketAddr) -> bool {
        self.reached.contains(address) || self.unreached.contains(address)
    }

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

    fn at(port: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], u16::try_from(port).unwrap()))
    }

    fn may_dial(probes: &Probes, tenant: TenantId, port: usize, now: Instant) -> bool {
        let permit = probes.permit(tenant, &[at(port)], now);
        probes.tried(tenant, &permit, 0, None);
        permit.addresses == [at(port)]
    }

    /// Dials all of these, of which one answers or none.
    fn dial(probes: &Probes, tenant: TenantId, ports: &[usize], reached: Option<usize>, now: Instant) {
        let addresses: Vec<_> = ports.iter().copied().map(at).collect();
        let permit = probes.permit(tenant, &addresses, now);
        assert_eq!(permit.addresses, addresses);
        probes.tried(tenant, &permit, addresses.len(), reached.map(at));
    }

    #[test]
    fn a_tenant_that_has_failed_too_often_may_go_only_where_it_has_been() {
        let (probes, now, (a, b)) = (Probes::default(), Instant::now(), (TenantId(1), TenantId(2)));
        dial(&probes, a, &[80], Some(80), now);
        for port in 1_000..1_000 + UNREACHED_MAX {
            assert!(may_dial(&probes, a, port, now), "{port}");
            dial(&probes, a, &[port], None, now);
        }
        assert!(!may_dial(&probes, a, 2_000, now));
        assert!(may_dial(&probes, a, 80, now), "it has answered");
        assert!(may_dial(&probes, a, 1_000, now), "nothing new can be learnt");
        assert!(may_dial(&probes, b, 2_000, now), "another tenant");
        assert!(may_dial(&probes, a, 2_000, now + UNREACHED_WINDOW), "later");
    }

    #[test]
    fn an_address_that_answers_does_not_hide_those_that_failed_before_it() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        for port in 1_000..1_000 + UNREACHED_MAX {
            dial(&probes, tenant, &[port, 80], Some(80), now);
        }
        let permit = probes.permit(tenant, &[at(2_000), at(80)], now);
        assert_eq!(permit.addresses, [at(80)], "only the known one is dialled");
        assert!(probes.permit(tenant, &[at(2_000)], now).addresses.is_empty());
        let public = SocketAddr::from(([1, 1, 1, 1], 80));
        assert_eq!(probes.permit(tenant, &[at(2_000), public], now).addresses, [public]);
    }

    #[test]
    fn attempts_at_the_same_time_share_the_limit() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        let permits: Vec<_> = (0..2 * UNREACHED_MAX).map(|n| probes.permit(tenant, &[at(1_000 + n)], now)).collect();
        assert_eq!(permits.iter().filter(|permit| !permit.addresses.is_empty()).count(), UNREACHED_MAX);
        probes.tried(tenant, &permits[0], 0, None);
        assert!(may_dial(&probes, tenant, 5_000, now), "one that was not dialled does not count");
    }

    #[test]
    fn one_that_answers_again_does_not_count() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        for port in 1_000..1_000 + UNREACHED_MAX {
            dial(&probes, tenant, &[port], None, now);
        }
        dial(&probes, tenant, &[1_000], Some(1_000), now);
        assert!(may_dial(&probes, tenant, 2_000, now));
        for port in 3_000..3_000 + 2 * REACHED_MAX {
            dial(&probes, tenant, &[port], Some(port), now);
        }
        assert!(probes.lock()[&tenant].reached.len() <= REACHED_MAX);
    }
}
