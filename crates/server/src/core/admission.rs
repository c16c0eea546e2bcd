//! The lines in front of the core, one for each tenant: a tenant that floods the server delays itself and not the others.
//!
//! Only a few writes of a tenant (publishes, cancels, changes of schedules, …) are with the core at once, and very few while
//! other tenants write too, so that the line in front of the core is short. A line that is too slow is no use to anybody who stands in
//! it: after [`WAIT_MAX`] a request is refused. That bounds the time of every answer by the delay and not by the
//! length of a line, whatever the disk can do. In a line in which some will be refused, those in front have little
//! time left, and to serve them is to make everybody wait for as long as they did: so the last are served first there.

use super::CoreError;
use posthaste_wire::id::TenantId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// Requests that may wait for the core at once; one more is refused with 503. A tenant holds at most as many of the places as
/// it leaves free, so at most half of them: the others always find some.
pub const WAITING_MAX: usize = 8_192;
/// Writes of one tenant that are with the core at once; the others of this tenant wait for them.
pub const TENANT_TURNS_MAX: usize = 256;
/// The same while other tenants write too: enough for one commit to be worth its time.
pub const SHARED_TURNS_MAX: usize = 16;
/// A tenant that wrote within this time counts as one that writes.
const RECENT: Duration = Duration::from_secs(1);
/// How long a write may wait for room for its body and for its turn together; then it is refused with 503.
pub const WAIT_MAX: Duration = Duration::from_millis(500);
/// A line in which somebody has waited this long is too slow: the last are served first.
const SLOW: Duration = Duration::from_millis(250);

const _: () = assert!(SHARED_TURNS_MAX <= TENANT_TURNS_MAX && TENANT_TURNS_MAX <= WAITING_MAX);
const _: () = assert!(SLOW.as_millis() < WAIT_MAX.as_millis());

/// The waiting room. Cheap to clone.
#[derive(Clone)]
pub(super) struct Admission {
    places: Arc<Semaphore>,
    lines: Lines,
    wait_max: Duration,
}

/// A place in the waiting room, given back when this is dropped.
pub(crate) struct Place {
    _waiting: OwnedSemaphorePermit,
    _turn: Option<Turn>,
}

impl Admission {
    pub(super) fn new() -> Admission {
        Admission { places: Arc::new(Semaphore::new(WAITING_MAX)), lines: Lines::default(), wait_max: WAIT_MAX }
    }

    /// A place without a line: for reads, which have [turns](crate::reads), and for the server's own work.
    pub(super) fn enter(&self) -> Result<Place, CoreError> {
        let waiting = self.places.clone().try_acquire_owned().map_err(|_| CoreError::Overloaded)?;
        Ok(Place { _waiting: waiting, _turn: None })
    }

    /// Waits in the line of a tenant; who has waited for something else before has less time for it.
    pub(super) async fn wait(&self, tenant: TenantId, waited: Duration) -> Result<Place, CoreError> {
        let place = self.enter()?;
        let turn = match self.lines.stand_in(tenant, self.places.available_permits(), Instant::now()) {
            Standing::Refused => return Err(CoreError::Overloaded),
            Standing::First(turn) => turn,
            Standing::Behind(turn) => match timeout(self.wait_max.saturating_sub(waited), turn).await {
                Ok(turn) => turn.map_err(|_| CoreError::Stopped)?,
                Err(_) => return Err(CoreError::Late),
            },
        };
        Ok(Place { _turn: Some(turn), ..place })
    }
}

/// The lines of all tenants. Tenants are configured, so there are few.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lines: HashMap<TenantId, Line>,
    /// Who published last, and when.
    latest: Option<(TenantId, Instant)>,
    /// When somebody else published last.
    another: Option<Instant>,
}

#[derive(Default)]
struct Line {
    with_core: usize,
    /// Since when they wait.
    waiting: VecDeque<(Instant, oneshot::Sender<Turn>)>,
}

impl Line {
    /// Who has given up is not in line any more, once it is in front.
    fn pass_over(&mut self) {
        while self.waiting.front().is_some_and(|(_, turn)| turn.is_closed()) {
            self.waiting.pop_front();
        }
    }

    /// Whose turn it is.
    fn next(&mut self, now: Instant) -> Option<oneshot::Sender<Turn>> {
        self.pass_over();
        let (since, _) = self.waiting.front()?;
        let is_slow = now.saturating_duration_since(*since) >= SLOW;
        let next = if is_slow { self.waiting.pop_back() } else { self.waiting.pop_front() };
        next.map(|(_, turn)| turn)
    }
}

/// The turn of one publish; the next of its tenant comes when it is dropped.
struct Turn {
    lines: Lines,
    tenant: TenantId,
}

/// Where a publish stands in the line of its tenant.
enum Standing {
    /// The tenant has as many places as it leaves to the others.
    Refused,
    First(Turn),
    Behind(oneshot::Receiver<Turn>),
}

impl State {
    /// A tenant publishes.
    fn notice(&mut self, tenant: TenantId, now: Instant) {
        match self.latest.replace((tenant, now)) {
            Some((before, at)) if before != tenant => self.another = Some(at),
            _ => {}
        }
    }

    /// How many of a tenant may be with the core.
    fn turns(&self, tenant: TenantId, now: Instant) -> usize {
        let other = self.latest.filter(|(latest, _)| *latest != tenant).map(|(_, at)| at).or(self.another);
        let is_shared = other.is_some_and(|at| now.saturating_duration_since(at) < RECENT);
        if is_shared { SHARED_TURNS_MAX } else { TENANT_TURNS_MAX }
    }
}

impl Lines {
    /// Joins the line of a tenant, while this many places are free.
    fn stand_in(&self, tenant: TenantId, free: usize, now: Instant) -> Standing {
        let mut state = self.state();
        state.notice(tenant, now);
        let turns = state.turns(tenant, now);
        let line = state.lines.entry(tenant).or_default();
        // All requests wait for the same time, so those that gave up are at the front. They are removed here, because a core
        // that is stuck would not remove them.
        line.pass_over();
        if line.with_core + line.waiting.len() > free {
            return Standing::Refused;
        }
        if line.with_core < turns && line.waiting.is_empty() {
            line.with_core += 1;
            return Standing::First(Turn { lines: self.clone(), tenant });
        }
        let (sender, receiver) = oneshot::channel();
        line.waiting.push_back((now, sender));
        Standing::Behind(receiver)
    }

    /// A turn has ended: those in front of the line have theirs.
    fn go_on(&self, tenant: TenantId, now: Instant) {
        let mut state = self.state();
        let turns = state.turns(tenant, now);
        let Some(line) = state.lines.get_mut(&tenant) else { return };
        line.with_core -= 1;
        let mut called = Vec::new();
        while line.with_core < turns
            && let Some(next) = line.next(now)
        {
            // Who has given up is passed over.
            if !next.is_closed() {
                line.with_core += 1;
                called.push(next);
            }
        }
        drop(state);
        for next in called {
            // Should it give up just now, dropping its turn calls the one behind it.
            drop(next.send(Turn { lines: self.clone(), tenant }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lines.go_on(self.tenant, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    async fn taken(admission: &Admission, tenant: TenantId, count: usize) -> Vec<Place> {
        let mut places = Vec::new();
        for _ in 0..count {
            places.push(admission.wait(tenant, Duration::ZERO).await.ok().unwrap());
        }
        places
    }

    #[tokio::test]
    async fn a_tenant_that_floods_waits_for_itself_and_only_so_long() {
        let admission = Admission { wait_max: Duration::from_millis(20), ..Admission::new() };
        let mut with_the_core = taken(&admission, A, TENANT_TURNS_MAX).await;
        assert!(matches!(admission.wait(A, Duration::ZERO).await, Err(CoreError::Late)));
        assert!(admission.wait(B, Duration::ZERO).await.is_ok(), "another tenant does not notice");
        with_the_core.truncate(SHARED_TURNS_MAX);
        assert!(
            matches!(admission.wait(A, Duration::ZERO).await, Err(CoreError::Late)),
            "while the other publishes, few are let in"
        );
        let admission = Admission { wait_max: WAIT_MAX, ..admission };
        let (next, ()) = tokio::join!(admission.wait(A, Duration::ZERO), async { drop(with_the_core.pop()) });
        assert!(next.is_ok(), "whoever waits has the next turn");
    }

    #[tokio::test]
    async fn who_has_waited_for_room_before_waits_less() {
        let wait_max = Duration::from_secs(60);
        let admission = Admission { wait_max, ..Admission::new() };
        let _with_the_core = taken(&admission, A, TENANT_TURNS_MAX).await;
        let begun = Instant::now();
        assert!(matches!(admission.wait(A, wait_max).await, Err(CoreError::Late)));
        assert!(begun.elapsed() < wait_max, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn who_gives_up_leaves_nothing_behind() {
        let admission = Admission { wait_max: Duration::from_millis(1), ..Admission::new() };
        let with_the_core = taken(&admission, A, TENANT_TURNS_MAX).await;
        for _ in 0..10 {
            assert!(matches!(admission.wait(A, Duration::ZERO).await, Err(CoreError::Late)));
            assert_eq!(admission.lines.state().lines[&A].waiting.len(), 1, "only the last is still to be passed over");
        }
        drop(with_the_core);
        taken(&admission, A, TENANT_TURNS_MAX).await;
        let state = admission.lines.state();
        assert_eq!((state.lines[&A].with_core, state.lines[&A].waiting.len()), (0, 0));
    }

    #[tokio::test]
    async fn the_waiting_room_is_full_at_its_bound_and_empties() {
        let admission = Admission::new();
        let places: Vec<Place> = (0..WAITING_MAX).map(|_| admission.enter().ok().unwrap()).collect();
        assert!(matches!(admission.enter(), Err(CoreError::Overloaded)));
        assert!(matches!(admission.wait(A, Duration::ZERO).await, Err(CoreError::Overloaded)));
        drop(places);
        assert!(admission.wait(A, Duration::ZERO).await.is_ok(), "those who were refused left nothing behind");
    }

    #[tokio::test]
    async fn a_tenant_leaves_half_of_the_places_to_the_others() {
        let admission = Admission { wait_max: Duration::from_secs(60), ..Admission::new() };
        let with_the_core = taken(&admission, A, TENANT_TURNS_MAX).await;
        let wait = || {
            let admission = admission.clone();
            tokio::spawn(async move { admission.wait(A, Duration::ZERO).await.map(drop) })
        };
        let waiting: Vec<_> = (TENANT_TURNS_MAX..WAITING_MAX / 2).map(|_| wait()).collect();
        while admission.places.available_permits() > WAITING_MAX / 2 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(admission.wait(A, Duration::ZERO).await, Err(CoreError::Overloaded)));
        assert!(admission.wait(B, Duration::ZERO).await.is_ok(), "another tenant has its place");
        drop(with_the_core);
        for waited in waiting {
            assert!(waited.await.unwrap().is_ok(), "nothing is lost of what waits");
        }
    }

    /// Who stands in line and gets the next turn, when so much time has passed since the first of them came.
    fn served(waited: Duration) -> Vec<usize> {
        let (lines, start) = (Lines::default(), Instant::now());
        let with_the_core: Vec<Standing> =
            (0..TENANT_TURNS_MAX).map(|_| lines.stand_in(A, WAITING_MAX, start)).collect();
        let mut waiting: Vec<_> = (0..3)
            .map(|late| match lines.stand_in(A, WAITING_MAX, start + late * Duration::from_millis(10)) {
                Standing::Behind(turn) => turn,
                Standing::First(_) | Standing::Refused => panic!("no turn has ended"),
            })
            .collect();
        let mut called = Vec::new();
        let mut turns = Vec::new();
        for standing in with_the_core.into_iter().take(waiting.len()) {
            // A turn that is dropped goes by the clock.
            std::mem::forget(standing);
            lines.go_on(A, start + waited);
            for (index, turn) in waiting.iter_mut().enumerate() {
                turns.extend(turn.try_recv().inspect(|_| called.push(index)));
            }
        }
        std::mem::forget(turns);
        called
    }

    #[test]
    fn the_first_have_the_next_turns_and_in_a_slow_line_the_last() {
        assert_eq!(served(SLOW - Duration::from_millis(1)), [0, 1, 2]);
        assert_eq!(served(SLOW), [2, 1, 0]);
    }

    #[test]
    fn a_tenant_shares_with_whoever_published_within_the_last_second() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut state = State::default();
        state.notice(A, at(0));
        state.notice(A, at(10));
        assert_eq!(state.turns(A, at(10)), TENANT_TURNS_MAX, "alone");
        state.notice(B, at(20));
        state.notice(A, at(30));
        for tenant in [A, B] {
            assert_eq!(state.turns(tenant, at(40)), SHARED_TURNS_MAX);
        }
        state.notice(A, at(1_019));
        assert_eq!(state.turns(A, at(1_019)), SHARED_TURNS_MAX);
        assert_eq!(state.turns(A, at(1_020)), TENANT_TURNS_MAX, "the other has been silent for a second");
        assert_eq!(state.turns(B, at(1_020)), SHARED_TURNS_MAX);
    }
}
