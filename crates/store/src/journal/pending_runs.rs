//! Changes of workflow runs that are in the journal but not yet in the database: the last state of each run, entry and
//! note, and the current waiters.

use crate::run::{Body, Parts, StoredNote};
use bytes::Bytes;
use posthaste_engine::workflow::entry::{Delivery, Entry};
use posthaste_engine::workflow::note::{Note, NoteKey, NoteKind};
use posthaste_engine::workflow::run::Run;
use posthaste_engine::workflow::{Change, Waiter};
use posthaste_wire::id::{Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The sum of the changes of runs in several batches.
#[derive(Debug, Default)]
pub(crate) struct PendingRuns {
    runs: BTreeMap<Seq, Arc<Run>>,
    /// The runs of each name, by creation.
    names: HashMap<(TenantId, String), BTreeSet<(Timestamp, Seq)>>,
    entries: BTreeMap<(Seq, u32), PendingEntry>,
    /// `None` for removed notes.
    notes: BTreeMap<(Seq, NoteKey), Option<Note>>,
    waiters: BTreeMap<WaiterKey, PendingWaiter>,
    last_seq: Option<Seq>,
}

/// Tenant, event, and the timer of the wait.
pub(super) type WaiterKey = (TenantId, String, Seq);

/// The change of an entry.
#[derive(Clone, Debug)]
pub(crate) enum PendingEntry {
    /// A new or replaced entry, with its bytes.
    Whole(Entry, Bytes),
    /// The new delivery state of an entry that existed before.
    Delivery(Delivery),
}

/// The change of a waiter. A waiter that was added and removed in these batches is not listed.
#[derive(Debug)]
pub(crate) enum PendingWaiter {
    /// A new waiter.
    Added(Waiter),
    /// A removed waiter that existed before.
    Removed(Waiter),
}

impl PendingRuns {
    /// Adds a checked change.
    pub(super) fn add(&mut self, change: &Change) {
        match change {
            Change::Run(run) => {
                if self.runs.insert(run.no, Arc::clone(run)).is_none() {
                    let of_name = self.names.entry((run.tenant, run.id.clone())).or_default();
                    of_name.insert((run.created_at, run.no));
                }
            }
            Change::Entry { run, entry, body } => {
                self.last_seq = self.last_seq.max(Some(entry.id.seq));
                self.entries.insert((*run, entry.index), PendingEntry::Whole(entry.clone(), body.clone()));
            }
            Change::Delivery { run, index, delivery } => match self.entries.get_mut(&(*run, *index)) {
                Some(PendingEntry::Whole(entry, _)) => entry.delivery = delivery.clone(),
                _ => {
                    self.entries.insert((*run, *index), PendingEntry::Delivery(delivery.clone()));
                }
            },
            Change::Note { run, note } => drop(self.notes.insert((*run, note.key), Some(note.clone()))),
            Change::NoNote { run, key } => drop(self.notes.insert((*run, *key), None)),
            Change::Waiter(waiter) => {
                self.waiters.insert(key_of(waiter), PendingWaiter::Added(waiter.clone()));
            }
            Change::NoWaiter(waiter) => {
                let key = key_of(waiter);
                if self.waiters.remove(&key).is_none() {
                    self.waiters.insert(key, PendingWaiter::Removed(waiter.clone()));
                }
            }
        }
    }

    /// The last state of each run.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.runs.values()
    }

    /// The changed entries, by run and index.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&(Seq, u32), &PendingEntry)> {
        self.entries.iter()
    }

    /// The changed notes, by run and key; `None` for removed ones.
    pub(crate) fn notes(&self) -> impl Iterator<Item = (&(Seq, NoteKey), &Option<Note>)> {
        self.notes.iter()
    }

    /// The changed waiters.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &PendingWaiter> {
        self.waiters.values()
    }

    /// The highest position of an entry.
    pub(super) fn last_seq(&self) -> Option<Seq> {
        self.last_seq
    }

    /// The latest state of a run.
    pub(super) fn run(&self, no: Seq) -> Option<&Arc<Run>> {
        self.runs.get(&no)
    }

    /// The newest run of this name, or the one with this time of creation.
    pub(super) fn find(&self, name: &(TenantId, String), created_at: Option<Timestamp>) -> Option<&Arc<Run>> {
        let of_name = self.names.get(name)?;
        let found = match created_at {
            None => of_name.last(),
            Some(at) => of_name.range((at, Seq::MIN)..=(at, Seq::MAX)).next_back(),
        };
        self.runs.get(&found?.1)
    }

    /// The change of a note, if there is one.
    pub(super) fn note(&self, run: Seq, key: NoteKey) -> Option<&Option<Note>> {
        self.notes.get(&(run, key))
    }

    /// Whether notes were added to a run that is not in these batches: it has ended before and may be dropped at any
    /// time.
    pub(super) fn has_late_notes(&self) -> bool {
        let is_late = |(run, key): &(Seq, NoteKey)| key.kind == NoteKind::InvokeOut && !self.runs.contains_key(run);
        self.notes.keys().any(is_late)
    }

    /// Whether this entry was changed, and therefore exists.
    pub(super) fn has_entry(&self, run: Seq, index: u32) -> bool {
        self.entries.contains_key(&(run, index))
    }

    /// The change of a waiter.
    pub(super) fn waiter(&self, key: &WaiterKey) -> Option<&PendingWaiter> {
        self.waiters.get(key)
    }
}

/// All pending changes of one run.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    run: Option<Arc<Run>>,
    entries: BTreeMap<u32, PendingEntry>,
    notes: BTreeMap<NoteKey, Option<Note>>,
}

impl Overlay {
    /// Adds the changes of later batches.
    pub(super) fn add(&mut self, no: Seq, pending: &PendingRuns) {
        if let Some(run) = pending.runs.get(&no) {
            self.run = Some(Arc::clone(run));
        }
        for ((_, index), newer) in pending.entries.range((no, 0)..=(no, u32::MAX)) {
            match (self.entries.get_mut(index), newer) {
                (Some(PendingEntry::Whole(entry, _)), PendingEntry::Delivery(delivery)) => {
                    entry.delivery = delivery.clone();
                }
                _ => {
                    self.entries.insert(*index, newer.clone());
                }
            }
        }
        let first = NoteKey { kind: NoteKind::Invoker, n: 0 };
        let of_run = pending.notes.range((no, first)..).take_while(|((run, _), _)| *run == no);
        self.notes.extend(of_run.map(|((_, key), note)| (*key, note.clone())));
    }

    /// Applies the changes to the stored parts of the run.
    pub(super) fn over<B: Body>(self, stored: Parts<B>) -> Parts<B> {
        let run = self.run.map(Arc::unwrap_or_clone).or(stored.run);
        let mut entries: BTreeMap<u32, (Entry, B)> =
            stored.entries.into_iter().map(|(entry, body)| (entry.index, (entry, body))).collect();
        for (index, newer) in self.entries {
            match (newer, entries.get_mut(&index)) {
                (PendingEntry::Whole(entry, body), _) => {
                    entries.insert(index, (entry, B::of(&body)));
                }
                (PendingEntry::Delivery(delivery), Some((entry, _))) => entry.delivery = delivery,
                // The run was dropped in the meantime.
                (PendingEntry::Delivery(_), None) => {}
            }
        }
        let mut notes: BTreeMap<NoteKey, StoredNote<B>> =
            stored.notes.into_iter().map(|note| (note.key, note)).collect();
        for (key, newer) in self.notes {
            match newer {
                Some(note) => drop(notes.insert(key, StoredNote::of(&note))),
                None => drop(notes.remove(&key)),
            }
        }
        Parts { run, entries: entries.into_values().collect(), notes: notes.into_values().collect() }
    }
}

/// The key of a waiter.
pub(super) fn key_of(waiter: &Waiter) -> WaiterKey {
    (waiter.tenant, waiter.event.clone(), waiter.timer.seq)
}
