//! Who may read next: a tenant has at most a share of the reads that are done at once, so that its expensive reads make
//! itself wait and not the others.
//!
//! The store has few reading connections, and a read also keeps a processor busy while its response is built. So only
//! [`READS_MAX`] are done at once, [`TENANT_READS_MAX`] of one tenant, and of those who wait, the tenant with the fewest under
//! way is next. After [`READ_WAIT_MAX`] a read is refused. What is looked up by its key, by publishes and by the server itself,
//! does not wait here.

use posthaste_store::QUERIES_AT_ONCE_MAX;
use posthaste_wire::id::TenantId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Reads that are done at once for all tenants; more wait for them.
pub const READS_MAX: usize = 3;
/// Reads of one tenant that are done at once; its others wait for them.
pub const TENANT_READS_MAX: usize = 2;
/// Reads of one tenant that may wait; one more is refused with 429.
pub const TENANT_READS_WAITING_MAX: usize = 1_000;
/// How long a read may wait for its turn; then it is refused with 429, or 503 where only others are in the way.
pub const READ_WAIT_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(TENANT_READS_MAX < READS_MAX, "one tenant leaves a place to others");
const _: () = assert!(READS_MAX == QUERIES_AT_ONCE_MAX, "each read has a connection");

/// Why there is no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTurn {
    /// The tenant's own reads are in the way.
    Own,
    /// Those of others are.
    Others,
}

/// The lines of all tenants. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Reads(Arc<Mutex<State>>);

/// The turn of one read; the next one comes when it is dropped.
pub(crate) struct Turn {
    reads: Reads,
    tenant: TenantId,
}

impl Reads {
    /// Waits for a turn, but not for long.
    pub(crate) async fn turn(&self, tenant: TenantId) -> Result<Turn, NoTurn> {
        self.turn_within(tenant, READ_WAIT_MAX).await
    }

    async fn turn_within(&self, tenant: TenantId, wait_max: Duration) -> Result<Turn, NoTurn> {
        let turn = match self.state().enter(tenant) {
            Entered::Now => return Ok(Turn { reads: self.clone(), tenant }),
            Entered::Full => return Err(NoTurn::Own),
            Entered::Later(turn) => turn,
        };
        match timeout(wait_max, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(self.state().in_the_way_of(tenant)),
        }
    }

    /// Waits for a turn for as long as it takes: for work in the background.
    pub(crate) async fn turn_in_time(&self, tenant: TenantId) -> Turn {
        loop {
            let entered = self.state().enter(tenant);
            match entered {
                Entered::Now => return Turn { reads: self.clone(), tenant },
                Entered::Later(turn) => {
                    if let Ok(turn) = turn.await {
                        return turn;
                    }
                }
                Entered::Full => tokio::time::sleep(READ_WAIT_MAX).await,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.reads.state().leave(self.tenant);
        if let Some((tenant, next)) = next {
            // Whoever gives up just now drops the turn, which calls the one after it.
            drop(next.send(Turn { reads: self.reads.clone(), tenant }));
        }
    }
}

#[derive(Default)]
struct State {
    under_way: usize,
    lines: HashMap<TenantId, Line>,
    /// Counts those who came.
    came: u64,
}

#[derive(Default)]
struct Line {
    under_way: usize,
    /// In the order in which they came.
    waiting: VecDeque<(u64, oneshot::Sender<Turn>)>,
}

/// What becomes of a read that came.
enum Entered {
    Now,
    Later(oneshot::Receiver<Turn>),
    Full,
}

impl State {
    fn enter(&mut self, tenant: TenantId) -> Entered {
        let is_free = self.under_way < READS_MAX;
        let line = self.lines.entry(tenant).or_default();
        if is_free && line.under_way < TENANT_READS_MAX && line.waiting.is_empty() {
            line.under_way += 1;
            self.under_way += 1;
            return Entered::Now;
        }
        if line.waiting.len() >= TENANT_READS_WAITING_MAX {
            line.waiting.retain(|(_, turn)| !turn.is_closed());
        }
        if line.waiting.len() >= TENANT_READS_WAITING_MAX {
            return Entered::Full;
        }
        let (sender, receiver) = oneshot::channel();
        self.came += 1;
        line.waiting.push_back((self.came, sender));
        Entered::Later(receiver)
    }

    /// A read has ended: whose turn is it?
    fn leave(&mut self, tenant: TenantId) -> Option<(TenantId, oneshot::Sender<Turn>)> {
        self.under_way -= 1;
        if let Some(line) = self.lines.get_mut(&tenant) {
            line.under_way -= 1;
        }
        for line in self.lines.values_mut() {
            while line.waiting.front().is_some_and(|(_, turn)| turn.is_closed()) {
                line.waiting.pop_front();
            }
        }
        self.lines.retain(|_, line| line.under_way > 0 || !line.waiting.is_empty());
        let may_go = |line: &&mut Line| line.under_way < TENANT_READS_MAX && !line.waiting.is_empty();
        let rank = |line: &Line| (line.under_way, line.waiting.front().map(|(came, _)| *came));
        let lines = self.lines.iter_mut().filter(|(_, line)| may_go(line));
        let (tenant, line) = lines.min_by_key(|(_, line)| rank(line))?;
        let (_, turn) = line.waiting.pop_front()?;
        line.under_way += 1;
        self.under_way += 1;
        Some((*tenant, turn))
    }

    fn in_the_way_of(&self, tenant: TenantId) -> NoTurn {
        match self.lines.get(&tenant).is_some_and(|line| line.under_way > 0) {
            true => NoTurn::Own,
            false => NoTurn::Others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const C: TenantId = TenantId(3);
    const SOON: Duration = Duration::from_millis(20);

    async fn taken(reads: &Reads, tenant: TenantId, count: usize) -> Vec<Turn> {
        let mut turns = Vec::new();
        for _ in 0..count {
            turns.push(reads.turn(tenant).await.unwrap_or_else(|_| panic!("a place is free")));
        }
        turns
    }

    #[tokio::test]
    async fn a_tenant_has_a_share_and_leaves_the_rest_to_others() {
        let reads = Reads::default();
        let mut own = taken(&reads, A, TENANT_READS_MAX).await;
        assert_eq!(reads.turn_within(A, SOON).await.err(), Some(NoTurn::Own));
        let others = taken(&reads, B, READS_MAX - TENANT_READS_MAX).await;
        assert_eq!(reads.turn_within(C, SOON).await.err(), Some(NoTurn::Others), "all places are taken");
        own.pop();
        assert!(reads.turn_within(C, SOON).await.is_ok());
        drop((own, others));
        assert!(reads.state().lines.is_empty() && reads.state().under_way == 0, "nothing is left of them");
    }

    #[tokio::test]
    async fn of_those_who_wait_the_tenant_with_the_fewest_under_way_is_next() {
        let reads = Reads::default();
        let mut own = taken(&reads, A, TENANT_READS_MAX).await;
        let _other = taken(&reads, B, READS_MAX - TENANT_READS_MAX).await;
        let later = |tenant| match reads.state().enter(tenant) {
            Entered::Later(turn) => turn,
            Entered::Now | Entered::Full => panic!("all places are taken"),
        };
        let (mut first, mut second) = (later(A), later(C));
        own.pop();
        assert!(first.try_recv().is_err(), "its tenant has one under way");
        let turn = second.try_recv().unwrap_or_else(|_| panic!("it is their turn"));
        drop(turn);
        assert!(first.try_recv().is_ok());
    }

    #[tokio::test]
    async fn who_gives_up_is_passed_over_and_leaves_no_trail() {
        let reads = Reads::default();
        let own = taken(&reads, A, TENANT_READS_MAX).await;
        for _ in 0..2 * TENANT_READS_WAITING_MAX {
            assert!(reads.turn_within(A, Duration::ZERO).await.is_err());
        }
        assert!(reads.state().lines[&A].waiting.len() <= TENANT_READS_WAITING_MAX);
        let (turn, ()) = tokio::join!(reads.turn(A), async { drop(own) });
        assert!(turn.is_ok());
        let waiting: Vec<_> =
            (0..TENANT_READS_WAITING_MAX + TENANT_READS_MAX).map(|_| reads.state().enter(B)).collect();
        assert!(matches!(reads.state().enter(B), Entered::Full), "only so many wait");
        assert!(waiting.iter().any(|entered| matches!(entered, Entered::Later(_))));
    }
}
