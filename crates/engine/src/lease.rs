//! Ownership of a shard, and its end.
//!
//! The store grants leases by its own clock, to one owner at a time, and counts owners. Every write carries the epoch
//! of its owner, and the store rejects writes of an earlier epoch. **Only that rejection provides safety.** A process
//! that was paused does not know that its lease is over. [`Tenure`] is the owner's own view, by a clock that never
//! jumps, and prevents useless or doubled work.

use posthaste_wire::time::Timestamp;

/// A lease as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The owner.
    pub owner: u64,
    /// Counts owners. Writes with an earlier epoch are rejected.
    pub epoch: u64,
    /// When another owner may take it, by the store's clock.
    pub until: Timestamp,
}

/// Another owner has the lease until this time, by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldUntil(pub Timestamp);

impl Lease {
    /// Takes the lease for an owner. `now` is the store's clock. A previous owner that starts again gets a new epoch
    /// and waits like any other, because its earlier process may still be running.
    pub fn take(current: Option<Lease>, owner: u64, now: Timestamp, length_ms: u64) -> Result<Lease, HeldUntil> {
        match current {
            Some(held) if now < held.until => Err(HeldUntil(held.until)),
            _ => {
                let epoch = current.map_or(0, |before| before.epoch) + 1;
                Ok(Lease { owner, epoch, until: now.plus_millis(length_ms) })
            }
        }
    }

    /// Extends the lease; `None` if the caller is no longer the owner. An expired lease can be renewed as long as no
    /// other owner has taken it. It never gets shorter.
    pub fn renew(self, epoch: u64, now: Timestamp, length_ms: u64) -> Option<Lease> {
        let until = now.plus_millis(length_ms).max(self.until);
        (self.epoch == epoch).then_some(Lease { until, ..self })
    }

    /// Releases the lease, so that the next owner need not wait.
    pub fn release(self, epoch: u64, now: Timestamp) -> Option<Lease> {
        (self.epoch == epoch).then_some(Lease { until: now, ..self })
    }
}

/// An owner's view of its lease, in milliseconds of a clock that never jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The epoch of its writes.
    pub epoch: u64,
    until_ms: u64,
    renew_at_ms: u64,
}

/// A lease is renewed when a third of it has passed, so that two renewals may fail.
const RENEWALS_PER_LEASE: u64 = 3;

impl Tenure {
    /// The view after a lease was granted or renewed that was requested at `asked_at_ms`. The store cannot have granted
    /// it earlier, so it lasts at least its length from then on.
    pub fn new(epoch: u64, asked_at_ms: u64, length_ms: u64) -> Tenure {
        let renew_at_ms = asked_at_ms.saturating_add(length_ms / RENEWALS_PER_LEASE);
        Tenure { epoch, until_ms: asked_at_ms.saturating_add(length_ms), renew_at_ms }
    }

    /// Whether the lease certainly still belongs to the owner. If not, the owner replies to nothing and starts nothing.
    pub fn holds(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }

    /// When to renew the lease.
    pub fn renew_at_ms(&self) -> u64 {
        self.renew_at_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Timestamp = Timestamp(1_000_000);

    #[test]
    fn one_owner_at_a_time_and_every_one_has_a_later_epoch() {
        let first = Lease::take(None, 7, T, 10).unwrap();
        assert_eq!(first, Lease { owner: 7, epoch: 1, until: T.plus_millis(10) });
        for owner in [7, 8] {
            assert_eq!(Lease::take(Some(first), owner, T.plus_millis(9), 10), Err(HeldUntil(first.until)));
        }
        let second = Lease::take(Some(first), 8, first.until, 10).unwrap();
        assert_eq!((second.owner, second.epoch), (8, 2));
    }

    #[test]
    fn only_the_owner_renews_and_releases() {
        let lease = Lease::take(None, 7, T, 10).unwrap();
        assert_eq!(lease.renew(1, T.plus_millis(50), 10).unwrap().until, T.plus_millis(60), "nobody has taken it");
        assert_eq!(lease.renew(1, T.minus_millis(50), 10).unwrap().until, lease.until, "the clock went back");
        assert_eq!((lease.renew(0, T, 10), lease.release(0, T)), (None, None));
        let released = lease.release(1, T).unwrap();
        assert!(Lease::take(Some(released), 8, T, 10).is_ok());
    }

    #[test]
    fn an_owner_stops_no_later_than_the_store_lets_go() {
        let tenure = Tenure::new(3, 100, 30);
        assert_eq!((tenure.renew_at_ms(), tenure.holds(129), tenure.holds(130)), (110, true, false));
        assert!(Tenure::new(3, 100, u64::MAX).holds(u64::MAX - 1));
    }
}
