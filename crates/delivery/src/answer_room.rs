//! RAM for long responses. Endpoints called by workflow runs may respond with megabytes, many at a time. A response
//! that finds no room is not read further until there is room.
//!
//! A response waits first for its receiver's share, then for its tenant's share, then for the total. Once it has room,
//! it has little time for the rest. Therefore a slow receiver delays mainly its own responses, and only a few of them
//! can delay others.

use http::uri::Authority;
use posthaste_engine::limits::{RESPONSE_BYTES_MAX, WORKFLOW_RESPONSE_BYTES_MAX};
use posthaste_wire::id::TenantId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// Bytes of long responses held at once, from reading them until their results are stored. Further ones wait.
pub const ANSWERS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The share of one tenant.
pub const TENANT_ANSWERS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The share of one receiver of a tenant.
pub const ORIGIN_ANSWERS_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long a response waits for room before the attempt fails. The wait does not count as the receiver's time.
pub const ANSWER_ROOM_PATIENCE: Duration = Duration::from_secs(300);
/// How long the rest of a response may take once there is room, before the attempt fails.
pub const ANSWER_REST_PATIENCE: Duration = Duration::from_secs(60);
/// Responses of up to this length need no room.
pub(super) const SHORT_BYTES: usize = RESPONSE_BYTES_MAX;
/// Bytes per permit of these budgets.
const BYTES_PER_PERMIT: usize = 64 * 1024;

const _: () = assert!(
    WORKFLOW_RESPONSE_BYTES_MAX <= ORIGIN_ANSWERS_BYTES_MAX
        && ORIGIN_ANSWERS_BYTES_MAX <= TENANT_ANSWERS_BYTES_MAX
        && TENANT_ANSWERS_BYTES_MAX <= ANSWERS_BYTES_MAX
);

/// How long the reader waits for long responses.
#[derive(Clone, Copy, Debug)]
pub struct AnswerPatience {
    /// Longest wait for room.
    pub room: Duration,
    /// Longest time for the rest of a response once there is room.
    pub rest: Duration,
}

impl Default for AnswerPatience {
    fn default() -> Self {
        AnswerPatience { room: ANSWER_ROOM_PATIENCE, rest: ANSWER_REST_PATIENCE }
    }
}

/// Room for the responses of all attempts.
#[derive(Debug)]
pub struct AnswerBudget {
    all: Arc<Semaphore>,
    shares: Mutex<HashMap<Holder, Arc<Semaphore>>>,
}

/// The owner of a share: a tenant, or one receiver of a tenant.
type Holder = (TenantId, Option<Authority>);

impl Default for AnswerBudget {
    fn default() -> Self {
        AnswerBudget { all: permits_for(ANSWERS_BYTES_MAX), shares: Mutex::default() }
    }
}

fn permits_for(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes / BYTES_PER_PERMIT))
}

impl AnswerBudget {
    /// Waits for this many bytes. They are reserved at once for the whole response, because responses with partial
    /// reservations would wait for one another.
    async fn take(&self, tenant: TenantId, receiver: &Authority, bytes: usize) -> Vec<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes.div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX);
        let lines = [
            self.share((tenant, Some(receiver.clone())), ORIGIN_ANSWERS_BYTES_MAX),
            self.share((tenant, None), TENANT_ANSWERS_BYTES_MAX),
            self.all.clone(),
        ];
        let mut taken = Vec::with_capacity(lines.len());
        for line in lines {
            // The semaphores are never closed.
            taken.extend(line.acquire_many_owned(permits).await);
        }
        taken
    }

    fn share(&self, holder: Holder, bytes: usize) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        // Forgets shares that are not in use.
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        shares.entry(holder).or_insert_with(|| permits_for(bytes)).clone()
    }
}

/// The part of the budget that the response of one attempt takes.
#[derive(Debug)]
pub struct AnswerRoom {
    budget: Arc<AnswerBudget>,
    tenant: TenantId,
    reserved: OnceLock<Reserved>,
}

#[derive(Debug)]
struct Reserved {
    waited: Duration,
    taken: Vec<OwnedSemaphorePermit>,
}

impl AnswerRoom {
    /// Starts without any room.
    pub fn new(budget: Arc<AnswerBudget>, tenant: TenantId) -> AnswerRoom {
        AnswerRoom { budget, tenant, reserved: OnceLock::new() }
    }

    /// Waits, once, for room for a response of up to `bytes` bytes. Returns false if there was none within `patience`.
    pub(super) async fn reserve(&self, receiver: &Authority, bytes: usize, patience: Duration) -> bool {
        let started = Instant::now();
        let taken = timeout(patience, self.budget.take(self.tenant, receiver, bytes)).await;
        let is_there = taken.is_ok();
        self.reserved.get_or_init(|| Reserved { waited: started.elapsed(), taken: taken.unwrap_or_default() });
        is_there
    }

    /// The time spent waiting for room.
    pub(super) fn waited(&self) -> Duration {
        self.reserved.get().map_or(Duration::ZERO, |reserved| reserved.waited)
    }

    /// The duration of an attempt that started at `begun`, without the wait for room, which is not the receiver's time.
    pub fn spent_since(&self, begun: Instant) -> Duration {
        begun.elapsed().saturating_sub(self.waited())
    }

    /// The reserved room, to be dropped when the response is no longer needed.
    pub fn into_taken(self) -> Vec<OwnedSemaphorePermit> {
        self.reserved.into_inner().map(|reserved| reserved.taken).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const LONG: usize = 16 * 1024 * 1024;

    /// Room for a long answer, if there is some at once.
    fn taken(budget: &AnswerBudget, tenant: u32, receiver: &'static str) -> Option<Vec<OwnedSemaphorePermit>> {
        let receiver = Authority::from_static(receiver);
        let taking = pin!(budget.take(TenantId(tenant), &receiver, LONG));
        match taking.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(taken) => Some(taken),
            Poll::Pending => None,
        }
    }

    #[test]
    fn room_is_limited_per_receiver_per_tenant_and_in_total() {
        let budget = AnswerBudget::default();
        let mut held = Vec::new();
        for tenant in 1..=4 {
            for receiver in ["a.example", "b.example:8443"] {
                for _ in 0..ORIGIN_ANSWERS_BYTES_MAX / LONG {
                    held.push(taken(&budget, tenant, receiver).expect("there is room"));
                }
                assert!(taken(&budget, tenant, receiver).is_none(), "{receiver} has its share");
            }
            assert!(taken(&budget, tenant, "c.example").is_none(), "tenant {tenant} has its share");
        }
        assert!(taken(&budget, 5, "a.example").is_none(), "all of it is taken");
        drop(held.swap_remove(0));
        assert!(taken(&budget, 1, "b.example:8443").is_none());
        assert!(taken(&budget, 5, "a.example").is_some());
        drop(held);
        assert!(taken(&budget, 6, "a.example").is_some());
        assert_eq!(budget.shares.lock().unwrap().len(), 2, "the others are forgotten");
    }

    #[tokio::test]
    async fn the_wait_for_room_is_not_counted() {
        const RECEIVER: &str = "a.example";
        let budget = Arc::new(AnswerBudget::default());
        let held: Vec<_> =
            (0..ORIGIN_ANSWERS_BYTES_MAX / LONG).map(|_| taken(&budget, 1, RECEIVER).expect("there is room")).collect();
        let begun = Instant::now();
        let room = AnswerRoom::new(budget, TenantId(1));
        let receiver = Authority::from_static(RECEIVER);
        let (is_there, ()) = tokio::join!(room.reserve(&receiver, LONG, ANSWER_ROOM_PATIENCE), async { drop(held) });
        assert!(is_there && room.waited() > Duration::ZERO);
        let spent = room.spent_since(begun);
        assert!(spent + room.waited() <= begun.elapsed(), "{spent:?} beside {:?}", room.waited());
    }
}
