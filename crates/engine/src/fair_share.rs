//! How much of its tenant's room one destination may take: the less of it is left, the less.
//!
//! Destinations that hang keep their places until their timeout. Without this, a few of them would take all
//! places of a tenant, and its healthy destinations would wait for the sick ones. With it, each takes less than the
//! one before: with the default caps, ten that hang leave 203 of the thousand places, a hundred leave 24, and it
//! takes 125 to take them all.

use std::collections::BTreeSet;

/// A destination may take this many times its cap when everything is left. At 8, two that are busy reach their caps.
const PARTS: u64 = 8;

/// Whether a destination with so many attempts under way may start one more, as far as its tenant is concerned.
///
/// Its limit falls with the cube of what is left. The first attempt always may: it waits for nothing but the
/// tenant's cap. And an operator who gives one destination as many places as its tenant has wants no such limit.
pub(crate) fn fits(in_flight: u32, origin_max: u32, tenant_in_flight: u32, tenant_max: u32) -> bool {
    let cube = |places: u32| u64::from(places).pow(3);
    let left = tenant_max.saturating_sub(tenant_in_flight);
    in_flight == 0
        || origin_max >= tenant_max
        || u64::from(in_flight) * cube(tenant_max) < PARTS * u64::from(origin_max) * cube(left)
}

/// The destinations of a tenant that have more waiting than their share lets them start. Whoever has the least
/// under way is let go first.
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
    /// A destination waits, with so many under way.
    pub(crate) fn add(&mut self, key: K, in_flight: u32) {
        self.by_in_flight.insert((in_flight, key));
    }

    /// A destination that was added with so many under way waits no longer.
    pub(crate) fn remove(&mut self, key: K, in_flight: u32) {
        self.by_in_flight.remove(&(in_flight, key));
    }

    /// Who waits with the least under way, and how many those are.
    pub(crate) fn first(&self) -> Option<(u32, K)> {
        self.by_in_flight.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{ORIGIN_IN_FLIGHT_MAX, TENANT_IN_FLIGHT_MAX};

    /// How many more places a destination takes when it is let.
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
