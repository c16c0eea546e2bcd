//! Who is connected: a bound on all connections, and one on those of each address.

use super::HEADS_BYTES_PER_ADDRESS;
use super::exchange::HeadBudget;
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections by the address they come from.
#[derive(Debug)]
pub(super) struct Connections {
    per_address: usize,
    exempt: Vec<IpNet>,
    open: Mutex<HashMap<IpAddr, Caller>>,
}

/// The connections of one address.
#[derive(Debug)]
struct Caller {
    count: usize,
    heads: Arc<HeadBudget>,
}

impl Default for Caller {
    fn default() -> Caller {
        Caller { count: 0, heads: Arc::new(HeadBudget::new(HEADS_BYTES_PER_ADDRESS)) }
    }
}

impl Connections {
    /// At most so many of each address; those of `exempt` are not counted.
    pub(super) fn new(per_address: usize, exempt: Vec<IpNet>) -> Arc<Connections> {
        Arc::new(Connections { per_address, exempt, open: Mutex::default() })
    }

    /// A place for one more connection, if its address may have one.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let peer = peer.to_canonical();
        if self.exempt.iter().any(|network| network.contains(&peer)) {
            return Some(Place(None));
        }
        let network = network(peer);
        let mut open = self.open();
        let caller = open.entry(network).or_default();
        if caller.count >= self.per_address {
            return None;
        }
        caller.count += 1;
        Some(Place(Some((self.clone(), network, caller.heads.clone()))))
    }

    fn open(&self) -> MutexGuard<'_, HashMap<IpAddr, Caller>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place(Option<(Arc<Connections>, IpAddr, Arc<HeadBudget>)>);

impl Place {
    /// What the heads of this address may hold; `None` if that is not bounded.
    pub(super) fn heads(&self) -> Option<Arc<HeadBudget>> {
        self.0.as_ref().map(|(_, _, heads)| heads.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((connections, network, _)) = &self.0 else { return };
        let mut open = connections.open();
        if let Some(caller) = open.get_mut(network) {
            caller.count -= 1;
            if caller.count == 0 {
                open.remove(network);
            }
        }
    }
}

/// One caller has one IPv4 address, but 2^64 IPv6 addresses.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_places_and_proxies_have_as_many_as_they_like() {
        let connections = Connections::new(2, vec!["10.0.0.0/8".parse().unwrap()]);
        let enter = |text: &str| connections.enter(text.parse().unwrap());
        let one = enter("192.0.2.1").unwrap();
        let _two = enter("::ffff:192.0.2.1").unwrap();
        assert!(enter("192.0.2.1").is_none());
        let _other = enter("192.0.2.2").unwrap();
        drop(one);
        let _again = enter("192.0.2.1").unwrap();
        assert!(enter("192.0.2.1").is_none());

        let _network = [enter("2001:db8::1").unwrap(), enter("2001:db8::2").unwrap()];
        assert!(enter("2001:db8::3").is_none(), "one /64 is one caller");
        let _neighbour = enter("2001:db8:0:1::1").unwrap();

        let proxies: Vec<Place> = (0..5).map(|_| enter("10.1.2.3").unwrap()).collect();
        drop(proxies);
        drop((_two, _other, _again, _network, _neighbour));
        assert!(connections.open().is_empty(), "nothing is remembered of those who have gone");
    }
}
