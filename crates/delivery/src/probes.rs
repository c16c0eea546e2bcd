//! Limits what a tenant can learn about the operator's network by publishing to many private addresses.
//!
//! Applies only to private addresses that the operator has allowed. The public internet can be scanned without this
//! server.

use super::address;
use posthaste_wire::id::TenantId;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Different private addresses and ports that a tenant may fail to connect to within a window. After that, addresses
/// that it has not tried before are not dialled, and the attempt fails.
const UNREACHED_MAX: usize = 100;
/// Length of that window.
const UNREACHED_WINDOW: Duration = Duration::from_secs(3_600);
/// Private addresses and ports that are remembered as reached, per tenant. When there are more, all are forgotten.
const REACHED_MAX: usize = 1_024;

/// The private addresses that each tenant has tried.
#[derive(Debug, Default)]
pub(super) struct Probes {
    tenants: Mutex<HashMap<TenantId, Tried>>,
    /// Signals that an attempt has ended, so that another may dial.
    ended: Notify,
}

#[derive(Debug)]
struct Tried {
    begun: Instant,
    unreached: HashMap<SocketAddr, Unreached>,
    reached: HashSet<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unreached {
    /// An attempt may dial it.
    Reserved,
    Failed,
}

/// The addresses that an attempt may dial. When it is dropped, the dialled addresses that did not accept count as
/// failed.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    pub(super) addresses: Vec<SocketAddr>,
    /// How many of them were dialled, counted from the first.
    pub(super) dialled: AtomicUsize,
    probes: &'a Probes,
    tenant: TenantId,
    /// The addresses that it has reserved.
    reserved: Vec<SocketAddr>,
    reached: Option<SocketAddr>,
}

impl Probes {
    /// The addresses that a tenant may dial: public ones, known ones and, up to the limit, new ones. Waits if
    /// reservations of other attempts, which have not failed yet, use up the limit.
    pub(super) async fn permit(&self, tenant: TenantId, addresses: &[SocketAddr]) -> Permit<'_> {
        loop {
            let ended = self.ended.notified();
            if let Some(permit) = self.try_permit(tenant, addresses, Instant::now()) {
                return permit;
            }
            ended.await;
        }
    }

    fn try_permit(&self, tenant: TenantId, addresses: &[SocketAddr], now: Instant) -> Option<Permit<'_>> {
        let mut tenants = self.lock();
        let fresh = || Tried { begun: now, unreached: HashMap::new(), reached: HashSet::new() };
        let tried = tenants.entry(tenant).or_insert_with(fresh);
        tried.begin_anew(now);
        let mut reserved = Vec::new();
        let mut may_dial = |address: &SocketAddr| {
            if address::kind(address.ip()).is_none() || tried.is_known(address) {
                return true;
            }
            let is_free = tried.unreached.len() < UNREACHED_MAX;
            if is_free {
                tried.unreached.insert(*address, Unreached::Reserved);
                reserved.push(*address);
            }
            is_free
        };
        let addresses: Vec<_> = addresses.iter().copied().filter(|address| may_dial(address)).collect();
        if addresses.is_empty() && tried.unreached.values().any(|state| *state == Unreached::Reserved) {
            return None;
        }
        Some(Permit { addresses, dialled: AtomicUsize::new(0), probes: self, tenant, reserved, reached: None })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, Tried>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit<'_> {
    /// Records the address that accepted, if any.
    pub(super) fn end(mut self, reached: Option<SocketAddr>) {
        self.reached = reached;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut tenants = self.probes.lock();
        let Some(tried) = tenants.get_mut(&self.tenant) else { return };
        let is_private = |address: &&SocketAddr| address::kind(address.ip()).is_some();
        let dialled = self.dialled.load(Ordering::Relaxed);
        for address in self.addresses.iter().take(dialled).filter(is_private) {
            if !tried.reached.contains(address) {
                tried.unreached.insert(*address, Unreached::Failed);
            }
        }
        for address in &self.reserved {
            if tried.unreached.get(address) == Some(&Unreached::Reserved) {
                tried.unreached.remove(address);
            }
        }
        if let Some(reached) = self.reached.as_ref().filter(is_private) {
            tried.reach(*reached);
        }
        drop(tenants);
        self.probes.ended.notify_waiters();
    }
}

impl Tried {
    fn is_known(&self, address: &SocketAddr) -> bool {
        self.reached.contains(address) || self.unreached.contains_key(address)
    }

    fn reach(&mut self, address: SocketAddr) {
        self.unreached.remove(&address);
        if self.reached.len() >= REACHED_MAX && !self.reached.contains(&address) {
            self.reached.clear();
        }
        self.reached.insert(address);
    }

    fn begin_anew(&mut self, now: Instant) {
        if now.duration_since(self.begun) >= UNREACHED_WINDOW {
            self.begun = now;
            self.unreached.retain(|_, state| *state == Unreached::Reserved);
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
        probes.try_permit(tenant, &[at(port)], now).is_some_and(|permit| permit.addresses == [at(port)])
    }

    /// Dials all of these addresses; at most one accepts.
    fn dial(probes: &Probes, tenant: TenantId, ports: &[usize], reached: Option<usize>, now: Instant) {
        let addresses: Vec<_> = ports.iter().copied().map(at).collect();
        let permit = probes.try_permit(tenant, &addresses, now).unwrap();
        assert_eq!(permit.addresses, addresses);
        permit.dialled.store(addresses.len(), Ordering::Relaxed);
        permit.end(reached.map(at));
    }

    fn fail_too_often(probes: &Probes, tenant: TenantId, now: Instant) {
        for port in 1_000..1_000 + UNREACHED_MAX {
            assert!(may_dial(probes, tenant, port, now), "{port}");
            dial(probes, tenant, &[port], None, now);
        }
    }

    #[test]
    fn after_too_many_failures_a_tenant_may_dial_known_addresses_only() {
        let (probes, now, (a, b)) = (Probes::default(), Instant::now(), (TenantId(1), TenantId(2)));
        dial(&probes, a, &[80], Some(80), now);
        fail_too_often(&probes, a, now);
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
        let permit = probes.try_permit(tenant, &[at(2_000), at(80)], now).unwrap();
        assert_eq!(permit.addresses, [at(80)], "only the known one is dialled");
        assert!(!may_dial(&probes, tenant, 2_000, now));
        let public = SocketAddr::from(([1, 1, 1, 1], 80));
        assert_eq!(probes.try_permit(tenant, &[at(2_000), public], now).unwrap().addresses, [public]);
    }

    #[test]
    fn attempts_at_the_same_time_share_the_limit_and_wait_for_one_another() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        let permits: Vec<_> =
            (0..2 * UNREACHED_MAX).map(|n| probes.try_permit(tenant, &[at(1_000 + n)], now)).collect();
        let (first, others) = permits.split_at(UNREACHED_MAX);
        assert!(first.iter().all(Option::is_some) && others.iter().all(Option::is_none), "the others wait");
        drop(permits);
        assert!(may_dial(&probes, tenant, 5_000, now), "those that were not dialled do not count");
    }

    #[test]
    fn an_address_that_another_attempt_reserved_counts() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        for port in 1_000..1_000 + UNREACHED_MAX {
            let slow = probes.try_permit(tenant, &[at(port)], now).unwrap();
            dial(&probes, tenant, &[port], None, now);
            drop(slow);
        }
        assert!(!may_dial(&probes, tenant, 5_000, now));
    }

    #[test]
    fn an_address_that_is_listed_twice_counts_once_it_was_dialled() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        for port in 1_000..1_000 + UNREACHED_MAX {
            let permit = probes.try_permit(tenant, &[at(port), at(80), at(port)], now).unwrap();
            permit.dialled.store(2, Ordering::Relaxed);
            permit.end(Some(at(80)));
        }
        assert!(!may_dial(&probes, tenant, 5_000, now));
    }

    #[tokio::test]
    async fn a_waiting_attempt_continues_when_another_ends() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        let mut permits: Vec<_> =
            (0..UNREACHED_MAX).map(|n| probes.try_permit(tenant, &[at(1_000 + n)], now)).collect();
        let addresses = [at(5_000)];
        let waiting = probes.permit(tenant, &addresses);
        let end_one = async {
            tokio::task::yield_now().await;
            permits.pop();
        };
        let (permit, ()) = tokio::join!(waiting, end_one);
        assert_eq!(permit.addresses, addresses);
    }

    #[test]
    fn an_address_that_answers_again_does_not_count() {
        let (probes, now, tenant) = (Probes::default(), Instant::now(), TenantId(1));
        fail_too_often(&probes, tenant, now);
        dial(&probes, tenant, &[1_000], Some(1_000), now);
        assert!(may_dial(&probes, tenant, 2_000, now));
        for port in 3_000..3_000 + 2 * REACHED_MAX {
            dial(&probes, tenant, &[port], Some(port), now);
        }
        assert!(probes.lock()[&tenant].reached.len() <= REACHED_MAX);
    }
}
