//! How much of its tenant's capacity one destination may take: the less is left, the smaller its share.
//!
//! Destinations that hang keep their slots until their timeout. Without a share, a few of them would take all slots of
//! a tenant, and its healthy destinations would wait for the hanging ones. With a share, each one takes less than the
//! one before: with the default caps, ten hanging destinations leave 203 of the thousand slots, a hundred leave 24, and
//! 125 are needed to take all.

use std::collections::BTreeSet;

/// A destination may take this many times its cap while everything is left. With 8, two busy destinations reach their
/// caps.
const PARTS: u64 = 8;

/// Whether a destination with this many attempts in flight may start one more, as far as its tenant is concerned.
///
/// Its limit falls with the cube of the remaining capacity. The first attempt may always start, subject only to the
/// tenant's cap. If an operator gives one destination as many slots as its tenant, there is no such limit.
pub(crate) fn fits(in_flight: u32, origin_max: u32, tenant_in_flight: u32, tenant_max: u32) -> bool {
    let cube = |places: u32| u64::from(places).pow(3);
    let left = tenant_max.saturating_sub(tenant_in_flight);
    in_flight == 0
        || origin_max >= tenant_max
        || u64::from(in_flight) * cube(tenant_max) < PARTS * u64::from(origin_max) * cube(left)
}

/// The destinations of a tenant that have waiting messages but have used up their share. The one with the fewest
/// attempts in flight goes first.
#[derive(Debug)]
pub(crate) struct ShareWaiters<K> {
    by_in_flight: BTreeSet<(u32, K)>,
}

impl<K> Default for ShareWaiters<K> {
    fn default() -> Self {
        ShareWaiters { by_in_flight: BTreeSet::new() }
    }
}

impl<K: Ord + Copy> ShareWaiters<K> {
    /// Adds a waiting destination with this many attempts in flight.
    pub(crate) fn add(&mut self, key: K, in_flight: u32) {
        self.by_in_flight.insert((in_flight, key));
    }

    /// Removes a destination that was added with this many attempts in flight.
    pub(crate) fn remove(&mut self, key: K, in_flight: u32) {
        self.by_in_flight.remove(&(in_flight, key));
    }

    /// The waiting destination with the fewest attempts in flight, and their number.
    pub(crate) fn first(&self) -> Option<(u32, K)> {
        self.by_in_flight.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{ORIGIN_IN_FLIGHT_MAX, TENANT_IN_FLIGHT_MAX};

    /// How many more slots a destination takes if it is allowed to.
    fn takes(mut own: u32, all: u32, most: u32) -> u32 {
        let before = own;
        while own - before < most
            && own < ORIGIN_IN_FLIGHT_MAX
            && all + own - before < TENANT_IN_FLIGHT_MAX
            && fits(own, ORIGIN_IN_FLIGHT_MAX, all + own - before, TENANT_IN_FLIGHT_MAX)
        {
            own += 1;
        }
        own - before
    }

    #[test]
    fn those_who_come_one_after_the_other_leave_some_places() {
        let cases = [(1, 800), (2, 600), (5, 318), (10, 203), (100, 24), (124, 0)];
        for (destinations, left) in cases {
            let taken = (0..destinations).fold(0, |all, _| all + takes(0, all, u32::MAX));
            assert_eq!(TENANT_IN_FLIGHT_MAX - taken, left, "{destinations} destinations");
        }
    }

    #[test]
    fn those_who_come_together_get_the_same() {
        for (destinations, each, left) in [(2, 200, 600), (5, 117, 416), (10, 66, 343), (100, 9, 170)] {
            let mut own = vec![0; destinations];
            for _ in 0..ORIGIN_IN_FLIGHT_MAX {
                for destination in 0..destinations {
                    own[destination] += takes(own[destination], own.iter().sum(), 1);
                }
            }
            assert_eq!(own.iter().copied().max(), Some(each), "{destinations} destinations");
            assert_eq!(TENANT_IN_FLIGHT_MAX - own.iter().sum::<u32>(), left, "{destinations} destinations");
        }
    }

    #[test]
    fn the_first_attempt_waits_for_nobody_and_neither_does_who_may_have_all() {
        assert!(fits(0, 1, 999, 1_000));
        assert!(!fits(1, 200, 950, 1_000));
        assert!(fits(2, 3, 2, 3));
        assert!(fits(9_999, 10_000, 9_999, 10_000));
    }
}
