//! What happened in each of the last seconds, tenant by tenant: a ring in RAM that costs nobody anything.
//!
//! The core owns all rings, so there is no lock; a ring takes no allocation once it is there. Times are passed in.

use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::collections::HashMap;

/// Seconds that are remembered.
pub const WINDOW_SECONDS: usize = 300;
/// Tenants that have a ring. One more takes the place of one that was quiet for the whole window; if there is none,
/// its seconds are not remembered.
pub const TENANTS_MAX: usize = 1_000;

/// What happened in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Messages and steps of runs that were stored.
    pub published: u32,
    /// Attempts that brought a 2xx.
    pub delivered: u32,
    /// Attempts that did not.
    pub failed: u32,
    /// Messages that went to the DLQ.
    pub dead_lettered: u32,
    /// From due to delivered, in ms: half of those delivered were faster. Zero if there were none.
    pub p50_ms: u32,
    /// The same for 99 of 100.
    pub p99_ms: u32,
}

/// The last seconds of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seconds {
    /// The Unix second of the last of them, which is not over.
    pub last: u64,
    /// [`WINDOW_SECONDS`] of them, the oldest first.
    pub seconds: Vec<Second>,
    /// From due to delivered over all of them, in ms: p50 and p99. Nothing if none was delivered.
    pub latency_ms: Option<(u32, u32)>,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// A message was stored.
    Published,
    /// An attempt brought a 2xx, so many ms after the message was due.
    Delivered {
        /// From due to delivered.
        latency_ms: u64,
    },
    /// An attempt did not bring a 2xx.
    Failed,
    /// A message went to the DLQ.
    DeadLettered,
}

/// The rings of all tenants.
#[derive(Debug, Default)]
pub struct Pulses {
    rings: HashMap<TenantId, Box<Ring>>,
}

impl Pulses {
    /// Something happened to a message of a tenant.
    pub fn beat(&mut self, tenant: TenantId, beat: Beat, now: Timestamp) {
        let second = now.as_seconds();
        if let Some(ring) = self.rings.get_mut(&tenant) {
            return ring.beat(beat, second);
        }
        if self.rings.len() >= TENANTS_MAX {
            let is_quiet = |ring: &Ring| ring.last + (WINDOW_SECONDS as u64) < second;
            let quiet = self.rings.iter().find(|(_, ring)| is_quiet(ring)).map(|(tenant, _)| *tenant);
            let Some(quiet) = quiet else { return };
            self.rings.remove(&quiet);
        }
        self.rings.entry(tenant).or_insert_with(|| Box::new(Ring::new(second))).beat(beat, second);
    }

    /// The last seconds of a tenant.
    pub fn of(&self, tenant: TenantId, now: Timestamp) -> Seconds {
        let second = now.as_seconds();
        match self.rings.get(&tenant) {
            Some(ring) => ring.seconds(second),
            None => Seconds { last: second, seconds: vec![Second::default(); WINDOW_SECONDS], latency_ms: None },
        }
    }
}

/// Stretches of a window that have a histogram each.
const STRETCHES: usize = 5;
const STRETCH_SECONDS: u64 = (WINDOW_SECONDS / STRETCHES) as u64;

/// The last seconds of one tenant. `seconds[n % WINDOW_SECONDS]` is the second `n`.
#[derive(Debug)]
struct Ring {
    /// The second that is not over.
    last: u64,
    seconds: [Second; WINDOW_SECONDS],
    /// The latencies of the last second, whose figures are made when it is over or somebody asks.
    current: Histogram,
    /// The latencies of the last stretches, one more than the window has: the oldest is partly behind it.
    stretches: [Histogram; STRETCHES + 1],
}

impl Ring {
    fn new(second: u64) -> Ring {
        Ring {
            last: second,
            seconds: [Second::default(); WINDOW_SECONDS],
            current: Histogram::default(),
            stretches: [const { Histogram::EMPTY }; STRETCHES + 1],
        }
    }

    fn beat(&mut self, beat: Beat, second: u64) {
        self.move_to(second);
        let entry = &mut self.seconds[place(self.last)];
        match beat {
            Beat::Published => entry.published += 1,
            Beat::Failed => entry.failed += 1,
            Beat::DeadLettered => entry.dead_lettered += 1,
            Beat::Delivered { latency_ms } => {
                entry.delivered += 1;
                self.current.add(latency_ms);
                self.stretches[stretch_place(self.last)].add(latency_ms);
            }
        }
    }

    /// Another second has begun. A clock that went back is waited for: nothing is counted twice.
    fn move_to(&mut self, second: u64) {
        if second <= self.last {
            return;
        }
        self.close_second();
        let passed = (second - self.last).min(WINDOW_SECONDS as u64);
        for n in 0..passed {
            self.seconds[place(second - n)] = Second::default();
        }
        let stretches = (second / STRETCH_SECONDS - self.last / STRETCH_SECONDS).min(STRETCHES as u64 + 1);
        for n in 0..stretches {
            self.stretches[(second / STRETCH_SECONDS - n) as usize % (STRETCHES + 1)] = Histogram::EMPTY;
        }
        self.last = second;
    }

    fn close_second(&mut self) {
        if let Some((p50, p99)) = self.current.figures() {
            let entry = &mut self.seconds[place(self.last)];
            (entry.p50_ms, entry.p99_ms) = (p50, p99);
            self.current = Histogram::EMPTY;
        }
    }

    fn seconds(&self, now: u64) -> Seconds {
        // Those who ask do not move the ring: they only see how far it would have.
        let last = now.max(self.last);
        let first = (last + 1).saturating_sub(WINDOW_SECONDS as u64);
        let known = |second: u64| second <= self.last && second + WINDOW_SECONDS as u64 > self.last;
        let mut seconds = vec![Second::default(); WINDOW_SECONDS];
        for (second, entry) in (first..=last).zip(&mut seconds).filter(|(second, _)| known(*second)) {
            *entry = self.seconds[place(second)];
            if second == self.last
                && let Some((p50, p99)) = self.current.figures()
            {
                (entry.p50_ms, entry.p99_ms) = (p50, p99);
            }
        }
        let mut latencies = Histogram::default();
        let newest = self.last / STRETCH_SECONDS;
        for stretch in (first / STRETCH_SECONDS)..=newest {
            if stretch + STRETCHES as u64 >= newest {
                latencies.merge(&self.stretches[stretch as usize % (STRETCHES + 1)]);
            }
        }
        Seconds { last, seconds, latency_ms: latencies.figures() }
    }
}

fn place(second: u64) -> usize {
    (second % WINDOW_SECONDS as u64) as usize
}

fn stretch_place(second: u64) -> usize {
    (second / STRETCH_SECONDS) as usize % (STRETCHES + 1)
}

/// Buckets per doubling: a figure is at most an eighth too large.
const STEPS: usize = 8;
/// Doublings that are told apart: latencies from 2^27 ms (37 hours) on count as so much.
const DOUBLINGS: usize = 24;
const BUCKETS: usize = STEPS * (DOUBLINGS + 1);

/// How often latencies of each size were seen.
#[derive(Clone, Debug)]
struct Histogram {
    counts: [u32; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram::EMPTY
    }
}

impl Histogram {
    const EMPTY: Histogram = Histogram { counts: [0; BUCKETS] };

    fn add(&mut self, millis: u64) {
        self.counts[bucket_of(millis)] += 1;
    }

    fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// p50 and p99, each as the largest latency of its bucket.
    fn figures(&self) -> Option<(u32, u32)> {
        let total: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        let figure = |of_hundred: u64| {
            let wanted = (total * of_hundred).div_ceil(100);
            let mut seen = 0;
            let found = self.counts.iter().position(|count| {
                seen += u64::from(*count);
                seen >= wanted
            });
            largest_of(found.unwrap_or(BUCKETS - 1))
        };
        (total > 0).then(|| (figure(50), figure(99)))
    }
}

/// The first buckets hold one value each, then every doubling has [`STEPS`].
fn bucket_of(millis: u64) -> usize {
    let Some(doubling) = (millis / STEPS as u64).checked_ilog2() else { return millis as usize };
    let step = (millis >> doubling) as usize - STEPS;
    (STEPS * (doubling as usize + 1) + step).min(BUCKETS - 1)
}

fn largest_of(bucket: usize) -> u32 {
    let Some(doubling) = (bucket / STEPS).checked_sub(1) else { return bucket as u32 };
    (((STEPS + bucket % STEPS + 1) << doubling) - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn at(second: u64) -> Timestamp {
        Timestamp(second * 1_000 + 7)
    }

    fn delivered(latency_ms: u64) -> Beat {
        Beat::Delivered { latency_ms }
    }

    /// The seconds in which something happened, counted back from the last.
    fn beats(seconds: &Seconds) -> Vec<(usize, Second)> {
        let counted = seconds.seconds.iter().rev().enumerate().map(|(ago, second)| (ago, *second));
        counted.filter(|(_, second)| *second != Second::default()).collect()
    }

    #[test]
    fn every_second_has_what_happened_in_it_for_each_tenant() {
        let mut pulses = Pulses::default();
        let start = 1_780_315_200;
        for (second, beat) in [(0, Beat::Published), (0, Beat::Published), (0, delivered(3)), (2, Beat::Failed)] {
            pulses.beat(A, beat, at(start + second));
        }
        pulses.beat(B, Beat::DeadLettered, at(start + 1));
        let seconds = pulses.of(A, at(start + 3));
        let first = Second { published: 2, delivered: 1, p50_ms: 3, p99_ms: 3, ..Second::default() };
        assert_eq!(beats(&seconds), [(1, Second { failed: 1, ..Second::default() }), (3, first)]);
        assert_eq!(
            (seconds.last, seconds.seconds.len(), seconds.latency_ms),
            (start + 3, WINDOW_SECONDS, Some((3, 3)))
        );
        let dead = Second { dead_lettered: 1, ..Second::default() };
        assert_eq!(beats(&pulses.of(B, at(start + 1))), [(0, dead)]);
        assert_eq!(beats(&pulses.of(TenantId(3), at(start))), []);
    }

    #[test]
    fn seconds_leave_the_window_whether_or_not_others_follow() {
        let mut pulses = Pulses::default();
        let (start, window) = (1_000_000, WINDOW_SECONDS as u64);
        pulses.beat(A, delivered(5), at(start));
        let one = Second { delivered: 1, p50_ms: 5, p99_ms: 5, ..Second::default() };
        assert_eq!(beats(&pulses.of(A, at(start + window - 1))), [(WINDOW_SECONDS - 1, one)]);
        let later = pulses.of(A, at(start + window + STRETCH_SECONDS));
        assert_eq!((beats(&later), later.latency_ms), (vec![], None), "asked late");
        pulses.beat(A, Beat::Failed, at(start + window - 1));
        assert_eq!(beats(&pulses.of(A, at(start + window - 1))).len(), 2);
        pulses.beat(A, Beat::Failed, at(start + window));
        let found = beats(&pulses.of(A, at(start + window)));
        assert_eq!(found.iter().map(|(ago, second)| (*ago, second.failed)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
        pulses.beat(A, Beat::Failed, at(start + 1_000 * window));
        let far = pulses.of(A, at(start + 1_000 * window));
        assert_eq!((beats(&far).len(), far.latency_ms), (1, None), "a clock that jumped ahead");
    }

    #[test]
    fn a_clock_that_goes_back_counts_into_the_last_second() {
        let mut pulses = Pulses::default();
        pulses.beat(A, Beat::Published, at(500));
        pulses.beat(A, Beat::Published, at(100));
        let seconds = pulses.of(A, at(100));
        assert_eq!((seconds.last, seconds.seconds[WINDOW_SECONDS - 1].published), (500, 2));
    }

    #[test]
    fn the_first_seconds_of_all_time_are_no_trouble() {
        let mut pulses = Pulses::default();
        pulses.beat(A, delivered(1), at(0));
        let seconds = pulses.of(A, at(1));
        assert_eq!(seconds.seconds.iter().map(|second| second.delivered).sum::<u32>(), 1);
    }

    #[test]
    fn latencies_are_an_eighth_too_large_at_most() {
        for millis in (0..100_000).chain([1 << 20, (1 << 27) - 1]) {
            let shown = u64::from(largest_of(bucket_of(millis)));
            assert!(shown >= millis && shown <= millis + millis / STEPS as u64, "{millis} is shown as {shown}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        let buckets: Vec<usize> = (0..200_000).map(bucket_of).collect();
        assert!(buckets.is_sorted() && buckets.iter().max() < Some(&BUCKETS), "buckets are in the order of latencies");
    }

    #[test]
    fn figures_are_of_all_latencies_in_the_window() {
        let mut pulses = Pulses::default();
        for n in 0..100 {
            pulses.beat(A, delivered(if n == 0 { 4_000 } else { n % 4 }), at(1_000 + n));
        }
        let (p50, p99) = pulses.of(A, at(1_100)).latency_ms.unwrap();
        assert_eq!((p50, p99), (2, 3), "one of a hundred is slower than p99");
        pulses.beat(A, delivered(4_000), at(1_100));
        let (_, p99) = pulses.of(A, at(1_100)).latency_ms.unwrap();
        assert!((4_000..=4_500).contains(&p99), "{p99}");
        let second = pulses.of(A, at(1_100)).seconds[WINDOW_SECONDS - 1];
        assert_eq!((second.p50_ms, second.p99_ms), (p99, p99), "the second that is not over has its own");
    }

    #[test]
    fn there_are_only_so_many_rings() {
        let mut pulses = Pulses::default();
        for n in 0..TENANTS_MAX as u32 {
            pulses.beat(TenantId(n), Beat::Published, at(1_000 + u64::from(n == 0)));
        }
        let (new, window) = (TenantId(u32::MAX), WINDOW_SECONDS as u64);
        pulses.beat(new, Beat::Published, at(1_000 + window));
        assert_eq!(beats(&pulses.of(new, at(1_000 + window))), [], "nobody was quiet for long enough");
        pulses.beat(new, Beat::Published, at(1_001 + window));
        assert_eq!(beats(&pulses.of(new, at(1_001 + window))).len(), 1);
        assert_eq!(pulses.rings.len(), TENANTS_MAX);
        assert!(pulses.rings.contains_key(&TenantId(0)), "it was not quiet for the whole window");
    }
}
