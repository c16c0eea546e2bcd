//! What is in the journal about runs of workflows and not yet in the database: the last state of each run and each
//! entry, and who waits now.

use crate::store::StoreError;
use crate::store::run::assemble;
use posthaste_engine::workflow::entry::{Delivery, Entry};
use posthaste_engine::workflow::run::Run;
use posthaste_engine::workflow::{Change, Waiter, Workflow};
use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The sum of what some batches say about runs.
#[derive(Debug, Default)]
pub(crate) struct PendingRuns {
    runs: BTreeMap<Seq, Arc<Run>>,
    /// The runs of each name, by creation.
    names: HashMap<(TenantId, String), BTreeSet<(Timestamp, Seq)>>,
    entries: BTreeMap<(Seq, u32), PendingEntry>,
    waiters: BTreeMap<WaiterKey, PendingWaiter>,
    last_seq: Option<Seq>,
}

/// Event and wait.
pub(super) type WaiterKey = (TenantId, String, Seq);

/// What became of an entry.
#[derive(Clone, Debug)]
pub(crate) enum PendingEntry {
    /// It is new, or was replaced.
    Whole(Entry),
    /// Of one that was there before, the delivery stands otherwise.
    Delivery(Delivery),
}

/// What became of a waiter. One that came and went is not here.
#[derive(Debug)]
pub(crate) enum PendingWaiter {
    /// It is new.
    Came(Waiter),
    /// It was there before.
    Went(Waiter),
}

impl PendingRuns {
    /// Adds a change that was checked.
    pub(super) fn add(&mut self, change: &Change) {
        match change {
            Change::Run(run) => {
                if self.runs.insert(run.no, Arc::clone(run)).is_none() {
                    let of_name = self.names.entry((run.tenant, run.id.clone())).or_default();
                    of_name.insert((run.created_at, run.no));
                }
            }
            Change::Entry { run, entry } => {
                self.last_seq = self.last_seq.max(Some(entry.id.seq));
                self.entries.insert((*run, entry.index), PendingEntry::Whole(entry.clone()));
            }
            Change::Delivery { run, index, delivery } => match self.entries.get_mut(&(*run, *index)) {
                Some(PendingEntry::Whole(entry)) => entry.delivery = delivery.clone(),
                _ => {
                    self.entries.insert((*run, *index), PendingEntry::Delivery(delivery.clone()));
                }
            },
            Change::Waiter(waiter) => {
                self.waiters.insert(key_of(waiter), PendingWaiter::Came(waiter.clone()));
            }
            Change::NoWaiter(waiter) => {
                let key = key_of(waiter);
                if self.waiters.remove(&key).is_none() {
                    self.waiters.insert(key, PendingWaiter::Went(waiter.clone()));
                }
            }
        }
    }

    /// The last state of each run.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.runs.values()
    }

    /// What became of entries, by run and place.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&(Seq, u32), &PendingEntry)> {
        self.entries.iter()
    }

    /// What became of waiters.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &PendingWaiter> {
        self.waiters.values()
    }

    /// The highest position of an entry.
    pub(super) fn last_seq(&self) -> Option<Seq> {
        self.last_seq
    }

    /// A run as it stands.
    pub(super) fn run(&self, no: Seq) -> Option<&Arc<Run>> {
        self.runs.get(&no)
    }

    /// The newest run of this name, or the one that was created at this time.
    pub(super) fn find(&self, name: &(TenantId, String), created_at: Option<Timestamp>) -> Option<&Arc<Run>> {
        let of_name = self.names.get(name)?;
        let found = match created_at {
            None => of_name.last(),
            Some(at) => of_name.range((at, Seq::MIN)..=(at, Seq::MAX)).next_back(),
        };
        self.runs.get(&found?.1)
    }

    /// Whether something is known of this entry: then it is there.
    pub(super) fn has_entry(&self, run: Seq, index: u32) -> bool {
        self.entries.contains_key(&(run, index))
    }

    /// What became of a waiter.
    pub(super) fn waiter(&self, key: &WaiterKey) -> Option<&PendingWaiter> {
        self.waiters.get(key)
    }
}

/// All that is pending about one run.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    run: Option<Arc<Run>>,
    entries: BTreeMap<u32, PendingEntry>,
}

impl Overlay {
    /// Adds what later batches say of the run.
    pub(super) fn add(&mut self, no: Seq, pending: &PendingRuns) {
        if let Some(run) = pending.runs.get(&no) {
            self.run = Some(Arc::clone(run));
        }
        for ((_, index), newer) in pending.entries.range((no, 0)..=(no, u32::MAX)) {
            match (self.entries.get_mut(index), newer) {
                (Some(PendingEntry::Whole(entry)), PendingEntry::Delivery(delivery)) => {
                    entry.delivery = delivery.clone();
                }
                _ => {
                    self.entries.insert(*index, newer.clone());
                }
            }
        }
    }

    /// The run, where the database has this of it.
    pub(super) fn over(self, (run, entries): (Option<Run>, Vec<Entry>)) -> Result<Option<Workflow>, StoreError> {
        let Some(run) = self.run.map(Arc::unwrap_or_clone).or(run) else { return Ok(None) };
        let mut merged: BTreeMap<u32, Entry> = entries.into_iter().map(|entry| (entry.index, entry)).collect();
        for (index, newer) in self.entries {
            match (newer, merged.get_mut(&index)) {
                (PendingEntry::Whole(entry), _) => {
                    merged.insert(index, entry);
                }
                (PendingEntry::Delivery(delivery), Some(entry)) => entry.delivery = delivery,
                // The run was dropped meanwhile.
                (PendingEntry::Delivery(_), None) => {}
            }
        }
        assemble(run, merged.into_values().collect())
            .map_err(|missing| StoreError::Corrupt { what: "run", source: missing.into() })
    }
}

/// Which wait a waiter is.
pub(super) fn key_of(waiter: &Waiter) -> WaiterKey {
    (waiter.tenant, waiter.event.clone(), waiter.timer.seq)
}
