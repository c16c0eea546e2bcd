//! Rate limits: for verified senders, and for callers whose requests cannot be verified.

use http::request::Parts;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Default number of requests per second.
pub const PER_SECOND: u32 = 100;
/// Default burst after a pause.
pub const BURST: u32 = 200;
/// Default number of unverified requests per second and caller; more are rejected unread.
pub const UNVERIFIED_PER_SECOND: u32 = 5;
/// Default burst of unverified requests after a pause.
pub const UNVERIFIED_BURST: u32 = 50;
/// Maximum number of callers that are counted separately. Beyond it, new callers share one count until an old one is
/// idle long enough to be forgotten.
pub const RATE_KEYS_MAX: usize = 16 * 1024;

/// Minimum interval between searches for callers that can be forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Returns the key of requests that are counted together.
type KeyOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// A maximum number of requests per second, with a burst after a pause. Each process counts separately.
///
/// ```
/// use posthaste_kit::webhook::RateLimit;
///
/// // 20 per second for each caller, as the proxy in front names them.
/// let limit = RateLimit::per_second(20).burst(40).by(|request| {
///     Some(request.headers.get("x-real-ip")?.to_str().ok()?.to_owned())
/// });
/// ```
#[derive(Clone)]
pub struct RateLimit {
    per_second: u32,
    burst: u32,
    key_of: Option<KeyOf>,
    state: Arc<Mutex<State>>,
    hasher: RandomState,
}

impl RateLimit {
    /// A limit of this many requests per second, at least 1, with a burst of the same size.
    pub fn per_second(count: u32) -> RateLimit {
        let count = count.max(1);
        RateLimit { per_second: count, burst: count, key_of: None, state: Arc::default(), hasher: RandomState::new() }
    }

    /// Sets the burst after a pause, at least 1.
    pub fn burst(mut self, count: u32) -> RateLimit {
        self.burst = count.max(1);
        self
    }

    /// Counts callers separately, by the key that this function returns. Requests without a key share one count. By
    /// default all requests share one count.
    ///
    /// Do not use a key that the caller can choose, such as `X-Forwarded-For` without a proxy in front.
    pub fn by(mut self, key_of: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> RateLimit {
        self.key_of = Some(Arc::new(key_of));
        self
    }

    /// Counts callers separately by the address of the connection: an IPv4 address, or the first half of an IPv6
    /// address. The address is known if the server was started with axum's
    /// `into_make_service_with_connect_info::<SocketAddr>()`.
    ///
    /// Use it only where callers connect directly. Behind a proxy, a load balancer or a CDN, all requests have its
    /// address; use [`by`](Self::by) with the header in which it passes the caller.
    #[cfg(feature = "axum")]
    pub fn by_peer(self) -> RateLimit {
        use axum::extract::ConnectInfo;
        use std::net::SocketAddr;
        self.by(|request| Some(network(request.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip())))
    }

    /// How long a caller that has used up its count must wait. `None` if it has not, or if the caller is unknown: it
    /// must not be rejected because of other callers.
    pub(crate) fn wait(&self, request: &Parts, now: SystemTime) -> Option<Duration> {
        let key = self.key(request)?;
        self.state.lock().unwrap_or_else(PoisonError::into_inner).wait(key, self.pace(), since_1970(now))
    }

    /// Counts one request, even if there were too many.
    pub(crate) fn count(&self, request: &Parts, now: SystemTime) {
        // `wait` reports whether there were too many.
        let _ = self.take(request, now);
    }

    /// Counts one request. If there were too many, returns how long to wait.
    pub(crate) fn take(&self, request: &Parts, now: SystemTime) -> Result<(), Duration> {
        self.take_of(self.key(request), now)
    }

    /// Counts one request for all callers together.
    pub(crate) fn take_one(&self, now: SystemTime) -> Result<(), Duration> {
        self.take_of(None, now)
    }

    fn take_of(&self, key: Option<u64>, now: SystemTime) -> Result<(), Duration> {
        // A panic cannot leave a count in an invalid state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner).take(key, self.pace(), since_1970(now))
    }

    fn key(&self, request: &Parts) -> Option<u64> {
        let key_of = self.key_of.as_ref()?;
        Some(self.hasher.hash_one(key_of(request)?))
    }

    fn pace(&self) -> Pace {
        Pace::new(self.per_second, self.burst)
    }
}

fn since_1970(now: SystemTime) -> Duration {
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The addresses that are counted together. A client with one IPv6 address has 2^64 of them.
#[cfg(feature = "axum")]
fn network(address: std::net::IpAddr) -> String {
    match address.to_canonical() {
        std::net::IpAddr::V4(address) => address.to_string(),
        std::net::IpAddr::V6(address) => format!("{:x}", address.to_bits() >> 64),
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        RateLimit::per_second(PER_SECOND).burst(BURST)
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RateLimit({}/s, {} at once)", self.per_second, self.burst)
    }
}

/// The rate of requests.
#[derive(Clone, Copy)]
struct Pace {
    /// The interval between two requests.
    interval: Duration,
    /// How far requests may be ahead of the rate.
    ahead_max: Duration,
}

impl Pace {
    fn new(per_second: u32, burst: u32) -> Pace {
        let interval = Duration::from_secs(1) / per_second;
        Pace { interval, ahead_max: interval * (burst - 1) }
    }
}

/// For each caller, the time when it will have its whole burst again.
#[derive(Default)]
struct State {
    shared: Duration,
    apart: HashMap<u64, Duration>,
    swept_at: Duration,
}

impl State {
    /// The generic cell rate algorithm: it stores only one time per caller.
    fn take(&mut self, key: Option<u64>, pace: Pace, now: Duration) -> Result<(), Duration> {
        let even_at = self.slot(key, now);
        // A clock that was set back must not block a caller for longer than a whole burst takes.
        let ahead = even_at.saturating_sub(now).min(pace.ahead_max + pace.interval);
        if ahead > pace.ahead_max {
            *even_at = now + ahead;
            return Err(ahead - pace.ahead_max);
        }
        *even_at = now + ahead + pace.interval;
        Ok(())
    }

    /// How long a caller that has used up its count must wait. Zero for a caller without its own count.
    fn wait(&self, key: u64, pace: Pace, now: Duration) -> Option<Duration> {
        let ahead = self.apart.get(&key)?.saturating_sub(now).min(pace.ahead_max + pace.interval);
        ahead.checked_sub(pace.ahead_max).filter(|wait| !wait.is_zero())
    }

    fn slot(&mut self, key: Option<u64>, now: Duration) -> &mut Duration {
        let Some(key) = key else { return &mut self.shared };
        let is_full = self.apart.len() >= RATE_KEYS_MAX && !self.apart.contains_key(&key);
        if is_full && (now >= self.swept_at + SWEEP_EVERY || now < self.swept_at) {
            self.swept_at = now;
            self.apart.retain(|_, even_at| *even_at > now);
        }
        if is_full && self.apart.len() >= RATE_KEYS_MAX {
            return &mut self.shared;
        }
        self.apart.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let (mut state, pace) = (State::default(), Pace::new(10, 3));
        let mut take = |at: u64| state.take(None, pace, NOW + ms(at));
        assert_eq!([take(0), take(0), take(0)], [Ok(()); 3]);
        assert_eq!(take(0), Err(ms(100)));
        assert_eq!(take(60), Err(ms(40)));
        assert_eq!(take(100), Ok(()));
        assert_eq!(take(100), Err(ms(100)));
        // After a pause the whole burst is available again, and no more.
        assert_eq!([take(900), take(900), take(900)], [Ok(()); 3]);
        assert!(take(900).is_err());
    }

    #[test]
    fn never_more_than_the_burst_and_the_pace_in_any_window() {
        let (mut state, pace) = (State::default(), Pace::new(10, 5));
        let mut taken = Vec::new();
        let mut step: u64 = 1;
        let mut at = NOW;
        for _ in 0..2_000 {
            step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            at += ms((step >> 33) % 90);
            if state.take(None, pace, at).is_ok() {
                taken.push(at);
            }
        }
        for (from, start) in taken.iter().enumerate() {
            let within = |window: Duration| taken[from..].iter().take_while(|at| **at <= *start + window).count();
            for seconds in [1, 3] {
                assert!(within(Duration::from_secs(seconds)) <= 5 + 10 * seconds as usize + 1);
            }
        }
        assert!(taken.len() > 600, "{} of about 880", taken.len());
    }

    #[test]
    fn a_clock_set_back_does_not_block_callers() {
        let (mut state, pace) = (State::default(), Pace::new(10, 3));
        for _ in 0..9 {
            let _ = state.take(None, pace, NOW);
        }
        let earlier = NOW - Duration::from_secs(900);
        assert_eq!(state.take(None, pace, earlier), Err(ms(100)));
        assert_eq!(state.take(None, pace, earlier + ms(100)), Ok(()));
    }

    #[test]
    fn callers_are_counted_separately_up_to_the_limit() {
        let (mut state, pace) = (State::default(), Pace::new(1, 1));
        for key in 0..RATE_KEYS_MAX as u64 {
            assert_eq!(state.take(Some(key), pace, NOW), Ok(()));
            assert!(state.take(Some(key), pace, NOW).is_err());
        }
        // All other callers share one count.
        assert_eq!(state.take(Some(u64::MAX), pace, NOW), Ok(()));
        assert!(state.take(Some(u64::MAX - 1), pace, NOW).is_err());
        assert_eq!(state.apart.len(), RATE_KEYS_MAX);
        // Until the first callers were idle long enough.
        let later = NOW + Duration::from_secs(5);
        assert_eq!(state.take(Some(u64::MAX), pace, later), Ok(()));
        assert_eq!(state.take(Some(u64::MAX - 1), pace, later), Ok(()));
        assert_eq!(state.apart.len(), 2);
    }

    #[test]
    fn a_caller_that_used_up_its_count_waits_and_no_other_does() {
        let (mut state, pace) = (State::default(), Pace::new(10, 3));
        for _ in 0..2 {
            assert_eq!((state.wait(1, pace, NOW), state.take(Some(1), pace, NOW)), (None, Ok(())));
        }
        assert_eq!((state.wait(1, pace, NOW), state.take(Some(1), pace, NOW)), (None, Ok(())));
        assert_eq!(state.wait(1, pace, NOW), Some(ms(100)));
        assert_eq!((state.wait(2, pace, NOW), state.wait(1, pace, NOW + ms(100))), (None, None));
        // No matter how many other callers there are, a caller without its own count is not rejected because of them.
        for key in 0..2 * RATE_KEYS_MAX as u64 {
            for _ in 0..4 {
                let _ = state.take(Some(key), pace, NOW);
            }
        }
        assert!(state.take(None, pace, NOW).is_err());
        assert_eq!(state.wait(u64::MAX, pace, NOW), None);
    }

    #[cfg(feature = "axum")]
    #[test]
    fn callers_are_distinguished_by_their_address() {
        use axum::extract::ConnectInfo;
        let limit = RateLimit::per_second(1).by_peer();
        let from = |address: &str| {
            let address: std::net::SocketAddr = address.parse().unwrap();
            http::Request::get("/").extension(ConnectInfo(address)).body(()).unwrap().into_parts().0
        };
        let now = UNIX_EPOCH + NOW;
        assert_eq!(limit.take(&from("192.0.2.1:1000"), now), Ok(()));
        assert_eq!(limit.take(&from("192.0.2.2:1000"), now), Ok(()));
        assert_eq!(limit.take(&from("[2001:db8::1]:1000"), now), Ok(()));
        assert_eq!(limit.take(&from("[2001:db8:0:1::1]:1000"), now), Ok(()));
        for same in ["192.0.2.1:2000", "[::ffff:192.0.2.1]:1000", "[2001:db8::2]:1000"] {
            assert!(limit.wait(&from(same), now).is_some(), "{same}");
        }
        assert_eq!(limit.wait(&from("192.0.2.3:1000"), now), None);
        assert_eq!(limit.wait(&http::Request::get("/").body(()).unwrap().into_parts().0, now), None);
    }

    #[test]
    fn a_request_is_counted_by_its_key() {
        let limit = RateLimit::per_second(1).by(|parts| Some(parts.headers.get("x-from")?.to_str().ok()?.to_owned()));
        let from = |name: &str| http::Request::get("/").header("x-from", name).body(()).unwrap().into_parts().0;
        let now = UNIX_EPOCH + NOW;
        assert_eq!([limit.take(&from("a"), now), limit.take(&from("b"), now)], [Ok(()); 2]);
        assert!(limit.take(&from("a"), now).is_err() && limit.clone().take(&from("b"), now).is_err());
        let nobody = http::Request::get("/").body(()).unwrap().into_parts().0;
        assert_eq!(limit.take(&nobody, now), Ok(()));
        assert!(limit.take(&nobody, now).is_err());
    }
}
