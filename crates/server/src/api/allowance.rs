//! How much a tenant has used of what it may use per day or per second.
//!
//! Counted in RAM, in fixed windows of the wall clock: a restart begins a new window.

use super::token_guesses::TokenGuesses;
use super::turns::Turns;
use crate::core::WAIT_MAX;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Wrong URLs of webhooks that a caller may try in a second; more are refused with 429. Right ones that it calls
/// meanwhile are looked up one at a time.
const HOOK_MISSES_MAX: u64 = 100;
/// How long a call of a webhook waits for that; then it is refused with 429.
const HOOK_PATIENCE: Duration = Duration::from_secs(5);
/// Webhooks that are looked up at once for all callers that have used up their wrong URLs; others wait for that.
const HOOK_LOOKUPS_MAX: usize = 1;
/// How long a look for causes of dead letters waits until another one of the tenant has ended; then it is refused with
/// 429.
const CAUSES_PATIENCE: Duration = Duration::from_secs(1);
/// Wrong tokens that a caller may try at the console in a minute; until the next one its logins are refused with 429.
const WRONG_TOKENS_MAX: u64 = 60;
/// Groups in which callers without a token are counted, so that many addresses take no more RAM than these.
const CALLER_GROUPS_MAX: u64 = 4_096;

/// The quotas that are counted by time.
pub(crate) struct Allowances {
    /// Messages per day.
    pub(super) messages: Allowance,
    /// Requests per second; a page of the console is one.
    pub(crate) requests: Allowance,
    /// Wrong URLs of webhooks per second.
    pub(super) hook_misses: Allowance<CallerGroup>,
    /// Wrong tokens at the console per minute.
    pub(crate) wrong_tokens: Allowance<CallerGroup>,
    /// Wrong tokens at the API.
    pub(super) guesses: TokenGuesses,
    /// Who calls webhooks in spite of too many wrong URLs.
    pub(super) hook_turns: Turns<CallerGroup>,
    /// Those of them that look at the store.
    pub(super) hook_lookups: Semaphore,
    /// Whose batch is taken apart next: one at a time for each tenant.
    pub(super) batches: Turns<TenantId>,
    /// Who looks for causes of dead letters.
    pub(super) causes: Turns<TenantId>,
    callers: RandomState,
}

/// Callers that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallerGroup(u64);

impl Allowances {
    pub(crate) fn new(messages_per_day: Option<u64>, requests_per_second: Option<u64>) -> Allowances {
        Allowances {
            messages: Allowance::new(messages_per_day, 86_400_000),
            requests: Allowance::new(requests_per_second, 1_000),
            hook_misses: Allowance::new(Some(HOOK_MISSES_MAX), 1_000),
            wrong_tokens: Allowance::new(Some(WRONG_TOKENS_MAX), 60_000),
            guesses: TokenGuesses::new(),
            hook_turns: Turns::new(HOOK_PATIENCE),
            hook_lookups: Semaphore::new(HOOK_LOOKUPS_MAX),
            batches: Turns::new(WAIT_MAX),
            causes: Turns::new(CAUSES_PATIENCE),
            callers: RandomState::new(),
        }
    }

    /// Where a caller is counted; nobody can choose to be counted with another. Whoever has an IPv6 address has 2^64.
    pub(crate) fn caller(&self, address: IpAddr) -> CallerGroup {
        let network = match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits() >> 64 << 64,
        };
        CallerGroup(self.callers.hash_one(network) % CALLER_GROUPS_MAX)
    }
}

/// One quota: so many in each window.
pub(crate) struct Allowance<Who = TenantId> {
    limit: Option<u64>,
    window_ms: u64,
    used: Mutex<HashMap<Who, Used>>,
}

/// What somebody has used in the window of the last use.
#[derive(Clone, Copy, Default)]
struct Used {
    window: u64,
    count: u64,
}

/// Somebody has used up what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted {
    /// How many there may be in a window.
    pub(crate) limit: u64,
    /// How many are left; fewer than were asked for.
    pub(super) remaining: u64,
    /// When the next window begins.
    pub(super) reset: Timestamp,
    /// When that was found out.
    pub(super) now: Timestamp,
}

impl Exhausted {
    /// Seconds until the next window, at least one.
    pub(crate) fn wait_seconds(&self) -> u64 {
        self.reset.millis_since(self.now).div_ceil(1_000).max(1)
    }
}

impl<Who: Eq + Hash> Allowance<Who> {
    fn new(limit: Option<u64>, window_ms: u64) -> Self {
        Allowance { limit, window_ms, used: Mutex::default() }
    }

    /// Takes `count`, all or nothing.
    pub(crate) fn take(&self, who: Who, count: u64, now: Timestamp) -> Result<(), Exhausted> {
        let Some(limit) = self.limit else { return Ok(()) };
        let window = now.as_millis() / self.window_ms;
        let mut all = self.lock();
        let used = all.entry(who).or_default();
        if used.window != window {
            *used = Used { window, count: 0 };
        }
        let remaining = limit.saturating_sub(used.count);
        if count > remaining {
            return Err(Exhausted { limit, remaining, reset: Timestamp((window + 1) * self.window_ms), now });
        }
        used.count += count;
        Ok(())
    }

    /// Gives back what was taken at `taken_at` and not used.
    pub(crate) fn give_back(&self, who: Who, count: u64, taken_at: Timestamp) {
        if self.limit.is_none() || count == 0 {
            return;
        }
        let window = taken_at.as_millis() / self.window_ms;
        if let Some(used) = self.lock().get_mut(&who).filter(|used| used.window == window) {
            used.count = used.count.saturating_sub(count);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Who, Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    #[test]
    fn each_tenant_has_its_own_window_and_a_new_one_afterwards() {
        let allowance = Allowance::new(Some(3), 1_000);
        let (now, next) = (Timestamp(5_400), Timestamp(6_000));
        assert_eq!(allowance.take(A, 2, now), Ok(()));
        assert_eq!(allowance.take(A, 2, now), Err(Exhausted { limit: 3, remaining: 1, reset: next, now }));
        assert_eq!(allowance.take(A, 2, now).map_err(|exhausted| exhausted.wait_seconds()), Err(1));
        assert_eq!(allowance.take(A, 1, now), Ok(()), "what was refused took nothing");
        assert_eq!(allowance.take(B, 3, now), Ok(()));
        assert_eq!(allowance.take(A, 3, next), Ok(()));
    }

    #[test]
    fn callers_are_counted_by_address_or_network() {
        let allowances = Allowances::new(None, None);
        let group = |address: &str| allowances.caller(address.parse().unwrap());
        let groups = |addresses: fn(u8) -> String| {
            (0..=255).map(|n| group(&addresses(n))).collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!(groups(|n| format!("2001:db8::{n:x}")), 1);
        assert_ne!(groups(|n| format!("2001:db8:0:{n:x}::")), 1);
        assert_ne!(groups(|n| format!("192.0.2.{n}")), 1);
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_in_the_same_window() {
        let allowance = Allowance::new(Some(2), 1_000);
        assert_eq!(allowance.take(A, 2, Timestamp(10)), Ok(()));
        allowance.give_back(A, 1, Timestamp(10));
        assert_eq!(allowance.take(A, 1, Timestamp(999)), Ok(()));
        assert_eq!(allowance.take(A, 2, Timestamp(1_000)), Ok(()));
        allowance.give_back(A, 2, Timestamp(999));
        assert!(allowance.take(A, 1, Timestamp(1_001)).is_err(), "it was taken from an earlier window");
    }

    #[test]
    fn without_a_limit_nothing_is_refused() {
        let allowance = Allowance::new(None, 1_000);
        assert_eq!(allowance.take(A, u64::MAX, Timestamp(0)), Ok(()));
        assert_eq!(allowance.take(A, u64::MAX, Timestamp(0)), Ok(()));
    }
}
