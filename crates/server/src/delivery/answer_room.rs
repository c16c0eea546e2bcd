//! Room in RAM for long answers. What runs of workflows call may answer with megabytes, and many may answer at once: who
//! finds no room is not read until there is some.

use posthaste_engine::limits::{RESPONSE_BYTES_MAX, WORKFLOW_RESPONSE_BYTES_MAX};
use posthaste_wire::id::TenantId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of long answers held at once, while they are read and until what came of them is stored; more wait.
pub const ANSWERS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The share of that which one tenant may take.
pub const TENANT_ANSWERS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// An answer of up to this length needs no room.
const SHORT_BYTES: usize = RESPONSE_BYTES_MAX;
/// Bytes per permit of these budgets.
const BYTES_PER_PERMIT: usize = 64 * 1024;

const _: () =
    assert!(WORKFLOW_RESPONSE_BYTES_MAX <= TENANT_ANSWERS_BYTES_MAX && TENANT_ANSWERS_BYTES_MAX <= ANSWERS_BYTES_MAX);

/// Room for the answers of all attempts.
#[derive(Debug)]
pub struct AnswerBudget {
    all: Arc<Semaphore>,
    tenants: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
}

impl Default for AnswerBudget {
    fn default() -> Self {
        let all = Arc::new(Semaphore::new(ANSWERS_BYTES_MAX / BYTES_PER_PERMIT));
        AnswerBudget { all, tenants: Mutex::default() }
    }
}

impl AnswerBudget {
    fn share(&self, tenant: TenantId) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let share = || Arc::new(Semaphore::new(TENANT_ANSWERS_BYTES_MAX / BYTES_PER_PERMIT));
        tenants.entry(tenant).or_insert_with(share).clone()
    }
}

/// What the answer to one attempt takes of it.
#[derive(Debug)]
pub struct AnswerRoom {
    budget: Arc<AnswerBudget>,
    tenant: TenantId,
    taken: Mutex<Vec<OwnedSemaphorePermit>>,
}

impl AnswerRoom {
    /// Nothing yet.
    pub fn new(budget: Arc<AnswerBudget>, tenant: TenantId) -> AnswerRoom {
        AnswerRoom { budget, tenant, taken: Mutex::default() }
    }

    /// Waits for room for all of an answer of which so many bytes are there, and that will have at most `max`. It is taken
    /// once and for the whole: those who had a part each would wait for one another.
    pub(super) async fn reserve(&self, bytes: usize, max: usize) {
        if bytes <= SHORT_BYTES || !self.taken().is_empty() {
            return;
        }
        let permits = u32::try_from(max.max(bytes).div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX);
        // Neither is ever closed.
        let own = self.budget.share(self.tenant).acquire_many_owned(permits).await;
        let common = self.budget.all.clone().acquire_many_owned(permits).await;
        self.taken().extend(own.into_iter().chain(common));
    }

    /// What was taken, to be given back when the answer is needed no more.
    pub fn into_taken(self) -> Vec<OwnedSemaphorePermit> {
        self.taken.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Vec<OwnedSemaphorePermit>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    const LONG: usize = 16 * 1024 * 1024;

    /// Room for a long answer, if there is some at once.
    fn reserved(budget: &Arc<AnswerBudget>, tenant: u32, bytes: usize) -> Option<AnswerRoom> {
        let room = AnswerRoom::new(budget.clone(), TenantId(tenant));
        has_room(&room, bytes).then_some(room)
    }

    fn has_room(room: &AnswerRoom, bytes: usize) -> bool {
        let reserving = pin!(room.reserve(bytes, LONG));
        reserving.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn long_answers_wait_for_room_and_short_ones_do_not() {
        let budget = Arc::new(AnswerBudget::default());
        let mut held = Vec::new();
        for tenant in 1..=4 {
            for _ in 0..TENANT_ANSWERS_BYTES_MAX / LONG {
                held.push(reserved(&budget, tenant, SHORT_BYTES + 1).expect("there is room"));
            }
            assert!(reserved(&budget, tenant, SHORT_BYTES + 1).is_none(), "tenant {tenant} has its share");
        }
        assert!(reserved(&budget, 5, SHORT_BYTES + 1).is_none(), "all of it is taken");
        assert!(reserved(&budget, 1, SHORT_BYTES).is_some());
        let first = held.swap_remove(0);
        assert!(has_room(&first, LONG), "once for all of it");
        let taken = first.into_taken();
        assert!(reserved(&budget, 5, LONG).is_none(), "it is held on");
        drop(taken);
        assert!(reserved(&budget, 5, LONG).is_some());
    }
}
