//! One at a time for each: what others of the same tenant or address wait for, but not for long.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who has the turn among those that count as one.
pub(super) struct Turns<Who> {
    patience: Duration,
    /// Never more than there are tenants, or groups of addresses.
    all: Mutex<HashMap<Who, Arc<Semaphore>>>,
}

impl<Who: Eq + Hash> Turns<Who> {
    /// Whoever has waited for `patience` is sent away.
    pub(super) fn new(patience: Duration) -> Self {
        Turns { patience, all: Mutex::default() }
    }

    /// The turn, until it is dropped; `None` if those before did not end in time.
    pub(super) async fn wait(&self, who: Who) -> Option<OwnedSemaphorePermit> {
        let own = self
            .all
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(who)
            .or_insert_with(|| Arc::new(Semaphore::new(1)))
            .clone();
        tokio::time::timeout(self.patience, own.acquire_owned()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_has_its_own_turn_and_nobody_waits_for_long() {
        let patience = Duration::from_millis(20);
        let turns = Turns::new(patience);
        let first = turns.wait('a').await;
        assert!(first.is_some());
        assert!(turns.wait('b').await.is_some(), "another's turn");
        assert!(turns.wait('a').await.is_none(), "two at once");
        let (next, ()) = tokio::join!(turns.wait('a'), async { drop(first) });
        assert!(next.is_some(), "the turn has come");
    }
}
