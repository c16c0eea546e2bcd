//! Who may ask the core next: everybody waits in the line of their tenant, so that a tenant who floods the server
//! waits for itself and not the others for it.
//!
//! Only a few publishes of a tenant are with the core at once, and very few while others publish too: whoever
//! comes next finds a short line in front of the core. A line that is too slow is no use to anybody who stands in
//! it: after [`WAIT_MAX`] a publish is refused. That bounds the time of every answer by the delay and not by the
//! length of a line, whatever the disk can do.

use super::CoreError;
use posthaste_wire::id::TenantId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// Requests that may wait for the core at once; one more is refused with 503.
pub const WAITING_MAX: usize = 8_192;
/// Publishes of one tenant that are with the core at once; the others of this tenant wait for them.
pub const TENANT_TURNS_MAX: usize = 256;
/// The same while other tenants publish too: enough for one commit to be worth its time.
pub const SHARED_TURNS_MAX: usize = 16;
/// Who has published within this time publishes too.
const RECENT: Duration = Duration::from_secs(1);
/// How long a publish may wait for its turn; then it is refused with 503.
pub const WAIT_MAX: Duration = Duration::from_millis(500);

const _: () = assert!(SHARED_TURNS_MAX <= TENANT_TURNS_MAX && TENANT_TURNS_MAX <= WAITING_MAX);

/// The waiting room. Cheap to clone.
#[derive(Clone)]
pub(super) struct Admission {
    places: Arc<Semaphore>,
    lines: Lines,
    wait_max: Duration,
}

/// A place in the waiting room, given back when this is dropped.
pub(super) struct Place {
    _waiting: OwnedSemaphorePermit,
    _turn: Option<Turn>,
}

impl Admission {
    pub(super) fn new() -> Admission {
        Admission { places: Arc::new(Semaphore::new(WAITING_MAX)), lines: Lines::default(), wait_max: WAIT_MAX }
    }

    /// A place without a line, for what is not asked often.
    pub(super) fn enter(&self) -> Result<Place, CoreError> {
        let waiting = self.places.clone().try_acquire_owned().map_err(|_| CoreError::Overloaded)?;
        Ok(Place { _waiting: waiting, _turn: None })
    }

    /// Waits in the line of a tenant.
    pub(super) async fn wait(&self, tenant: TenantId) -> Result<Place, CoreError> {
        let place = self.enter()?;
        let turn = match self.lines.stand_in(tenant, Instant::now()) {
            Standing::First(turn) => turn,
            Standing::Behind(turn) => match timeout(self.wait_max, turn).await {
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
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// The turn of one publish; the next of its tenant comes when it is dropped.
struct Turn {
    lines: Lines,
    tenant: TenantId,
}

/// Where a publish stands in the line of its tenant.
enum Standing {
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
    fn stand_in(&self, tenant: TenantId, now: Instant) -> Standing {
        let mut state = self.state();
        state.notice(tenant, now);
        let turns = state.turns(tenant, now);
        let line = state.lines.entry(tenant).or_default();
        if line.with_core < turns && line.waiting.is_empty() {
            line.with_core += 1;
            return Standing::First(Turn { lines: self.clone(), tenant });
        }
        // Who gave up stands in front, for all wait equally long: a core that is stuck leaves no trail of them.
        while line.waiting.front().is_some_and(oneshot::Sender::is_closed) {
            line.waiting.pop_front();
        }
        let (sender, receiver) = oneshot::channel();
        line.waiting.push_back(sender);
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
            && let Some(next) = line.waiting.pop_front()
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
            places.push(admission.wait(tenant).await.ok().unwrap());
        }
        places
    }

    #[tokio::test]
    async fn a_tenant_that_floods_waits_for_itself_and_only_so_long() {
        let admission = Admission { wait_max: Duration::from_millis(20), ..Admission::new() };
        let mut with_the_core = taken(&admission, A, TENANT_TURNS_MAX).await;
        assert!(matches!(admission.wait(A).await, Err(CoreError::Late)));
        assert!(admission.wait(B).await.is_ok(), "another tenant does not notice");
        with_the_core.truncate(SHARED_TURNS_MAX);
        assert!(matches!(admission.wait(A).await, Err(CoreError::Late)), "while the other publishes, few are let in");
        let admission = Admission { wait_max: WAIT_MAX, ..admission };
        let (next, ()) = tokio::join!(admission.wait(A), async { drop(with_the_core.pop()) });
        assert!(next.is_ok(), "whoever waits has the next turn");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_nothing_behind() {
        let admission = Admission { wait_max: Duration::from_millis(1), ..Admission::new() };
        let with_the_core = taken(&admission, A, TENANT_TURNS_MAX).await;
        for _ in 0..10 {
            assert!(matches!(admission.wait(A).await, Err(CoreError::Late)));
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
        assert!(matches!(admission.wait(A).await, Err(CoreError::Overloaded)));
        drop(places);
        assert!(admission.wait(A).await.is_ok(), "those who were refused left nothing behind");
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
