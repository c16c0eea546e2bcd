//! What bulk actions do, and what they count.

use super::Judge;
use super::batch::Deeds;
use crate::store::Store;
use posthaste_engine::bulk_action::{BulkAction, Task};
use posthaste_engine::event::State;
use posthaste_wire::id::{DlqId, MessageId, Seq};
use std::collections::BTreeSet;

/// What a bulk action is about: what there was when it was begun.
#[derive(Debug)]
pub(super) enum Meant {
    Messages(BTreeSet<MessageId>),
    DeadLetters(BTreeSet<DlqId>),
}

impl Meant {
    fn of(action: &BulkAction, store: &Store) -> Meant {
        let range = match &action.task {
            Task::Cancel => {
                let is_meant = |row: &&posthaste_engine::message::Live| {
                    row.tenant == action.tenant && row.id.seq <= action.until && !row.is_step
                };
                return Meant::Messages(store.live.values().filter(is_meant).map(|row| row.id).collect());
            }
            Task::DlqDelete { range } | Task::DlqRetry { range, .. } => range,
        };
        let own = store.dead_letters.keys().filter(|(tenant, dlq_id)| *tenant == action.tenant && range.has(*dlq_id));
        Meant::DeadLetters(own.map(|(_, dlq_id)| *dlq_id).collect())
    }

    /// What is as it was.
    fn left(&self, action: &BulkAction, store: &Store) -> Option<String> {
        match self {
            Meant::Messages(ids) => {
                let is_left = |id: &&MessageId| store.live_row(**id).is_some_and(|row| !row.cancel_requested);
                ids.iter().find(is_left).map(ToString::to_string)
            }
            Meant::DeadLetters(ids) => {
                let is_left = |id: &&DlqId| store.dead_letters.contains_key(&(action.tenant, **id));
                ids.iter().find(is_left).map(ToString::to_string)
            }
        }
    }
}

impl Judge {
    /// A bulk action is stored, before that is applied.
    pub(super) fn note_bulk(&mut self, action: &BulkAction, now_ms: u64, store: &Store, deeds: &mut Deeds) {
        let before = store.bulk_actions.get(&action.id);
        if before.is_none() {
            self.meant.insert(action.id, Meant::of(action, store));
        }
        if before.is_some_and(|before| before.completed_at.is_some() || before.processed > action.processed) {
            self.blame("a bulk action only gets on, to its end", None, now_ms, || format!("{before:?}, {action:?}"));
        }
        let processed = action.processed - before.map_or(0, |before| before.processed).min(action.processed);
        self.counts.bulk_processed += processed;
        deeds.bulk.push((action.clone(), processed));
    }

    /// What a bulk action has counted, the same transaction has done; and one that has ended has left nothing out.
    pub(super) fn check_bulk(&mut self, deeds: &Deeds, now_ms: u64, store: &Store) {
        for (action, processed) in &deeds.bulk {
            let is_cancelled = |states: &&Vec<State>| {
                states.iter().any(|state| matches!(state, State::CancelRequested | State::Canceled))
            };
            let done = match action.task {
                Task::Cancel => deeds.logged.values().filter(is_cancelled).count(),
                Task::DlqDelete { .. } | Task::DlqRetry { .. } => deeds.exhumed.len(),
            };
            if *processed > done as u64 {
                self.blame("a piece of a bulk action and its progress are one transaction", None, now_ms, || {
                    format!("{processed} were counted and {done} done: {action:?}")
                });
            }
            if action.completed_at.is_some() {
                self.counts.bulk_finished += 1;
                let left = self.meant.get(&action.id).and_then(|meant| meant.left(action, store));
                if let Some(left) = left {
                    self.blame("a bulk action that has ended has left nothing out", None, now_ms, || left);
                }
            }
        }
    }

    /// It was answered how far a bulk action is.
    pub(super) fn bulk_answered(&mut self, id: Seq, now_ms: u64, store: &Store) {
        if !store.bulk_actions.contains_key(&id) || !store.is_bulk_on_disk(id) {
            self.blame("what was answered is on disk", None, now_ms, || format!("bulk action {} is not", id.0));
        }
    }
}
