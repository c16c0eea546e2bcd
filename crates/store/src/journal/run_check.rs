//! Checks a batch's changes of workflow runs before it is acknowledged, because pending changes cannot be rejected
//! later.

use super::State;
use super::pending_runs::{PendingWaiter, WaiterKey, key_of};
use crate::StoreError;
use crate::run::is_same_run;
use crate::sqlite::Preconditions;
use posthaste_engine::workflow::run::Run;
use posthaste_engine::workflow::{Change, Waiter};
use posthaste_wire::id::Seq;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The changes of the batch so far, and the conditions that only the database can check.
#[derive(Default)]
pub(super) struct RunCheck<'a> {
    runs: HashMap<Seq, &'a Arc<Run>>,
    entries: HashSet<(Seq, u32)>,
    /// `None` for a removed waiter.
    waiters: HashMap<WaiterKey, Option<&'a Waiter>>,
    /// The conditions that the database must check.
    pub preconditions: Preconditions,
}

impl<'a> RunCheck<'a> {
    /// Checks the next change. Returns false if the journal cannot take it.
    pub(super) fn add(&mut self, change: &'a Change, state: &State) -> Result<bool, StoreError> {
        match change {
            Change::Run(run) => self.add_run(run, state)?,
            Change::Entry { run, entry, .. } => {
                self.entries.insert((*run, entry.index));
            }
            Change::Delivery { run, index, .. } => {
                let is_known = self.entries.contains(&(*run, *index))
                    || state.generations().any(|pending| pending.runs.has_entry(*run, *index));
                if !is_known {
                    self.preconditions.entries.push((*run, *index));
                }
            }
            Change::Note { run, .. } => {
                let is_known =
                    self.runs.contains_key(run) || state.generations().any(|pending| pending.runs.run(*run).is_some());
                if !is_known {
                    self.preconditions.noted.insert(*run);
                }
            }
            // Removing an absent note is allowed.
            Change::NoNote { .. } => {}
            // It may exist already.
            Change::Waiter(waiter) if waiter.timer.seq <= state.last_seq => return Ok(false),
            Change::Waiter(waiter) => return Ok(self.waiters.insert(key_of(waiter), Some(waiter)).is_none()),
            Change::NoWaiter(waiter) => self.add_no_waiter(waiter, state)?,
        }
        Ok(true)
    }

    fn add_run(&mut self, run: &'a Arc<Run>, state: &State) -> Result<(), StoreError> {
        let of_batch = self.runs.insert(run.no, run);
        match of_batch.or_else(|| state.generations().find_map(|pending| pending.runs.run(run.no))) {
            Some(known) if !is_same_run(known, run) => {
                return Err(StoreError::Corrupt { what: "run", source: "its position is taken".into() });
            }
            Some(_) => {}
            None if run.no > state.last_seq => {}
            None => self.preconditions.runs.push(Arc::clone(run)),
        }
        Ok(())
    }

    fn add_no_waiter(&mut self, waiter: &'a Waiter, state: &State) -> Result<(), StoreError> {
        let key = key_of(waiter);
        let pending = || {
            state.generations().find_map(|pending| pending.runs.waiter(&key)).map(|pending| match pending {
                PendingWaiter::Added(waiter) => Some(waiter),
                PendingWaiter::Removed(_) => None,
            })
        };
        match self.waiters.get(&key).copied().or_else(pending) {
            Some(known) if known != Some(waiter) => {
                return Err(StoreError::Corrupt { what: "waiter", source: "it is missing".into() });
            }
            Some(_) => {}
            None => self.preconditions.waiters.push(waiter.clone()),
        }
        self.waiters.insert(key, None);
        Ok(())
    }
}
