//! Workflow runs in the reference model.

use super::model::{Model, broken};
use crate::page::{Bounds, PageBuilder};
use crate::run::{Body, Parts, StoredNote, dlq_place_of, is_expired, is_same_run};
use crate::usage::{ROW_BYTES, json_row_bytes};
use crate::{BoxError, FailedRun, ListedWait, Order, Page, PageRequest, Retention, RunFilter, StoreError};
use bytes::Bytes;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::run::{Run, RunState};
use posthaste_engine::workflow::{Change, Record, Waiter, Workflow};
use posthaste_wire::id::{DlqId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

const ABSENT: &str = "it is missing";
const TAKEN: &str = "its position is taken";

impl Model {
    pub(super) fn change_run(&mut self, change: &Change) -> Result<(), StoreError> {
        match change {
            Change::Run(run) => {
                let before = self.runs.insert(run.no, Arc::clone(run));
                if before.is_some_and(|before| !is_same_run(&before, run)) {
                    return Err(broken("run", TAKEN));
                }
            }
            Change::Entry { run, entry, body } => {
                self.entries.insert((*run, entry.index), (entry.clone(), body.clone()));
                self.last_seq = self.last_seq.max(Some(entry.id.seq));
            }
            Change::Delivery { run, index, delivery } => {
                let entry = self.entries.get_mut(&(*run, *index));
                entry.ok_or_else(|| broken("entry", ABSENT))?.0.delivery = delivery.clone();
            }
            Change::Note { run, note } if self.runs.contains_key(run) => {
                self.notes.insert((*run, note.key), note.clone());
            }
            // The run does not exist, so nothing would ever drop the note.
            Change::Note { .. } => {}
            Change::NoNote { run, key } => drop(self.notes.remove(&(*run, *key))),
            Change::Waiter(waiter) => {
                if self.waiters.insert(waiter_key(waiter), waiter.clone()).is_some() {
                    return Err(broken("waiter", TAKEN));
                }
            }
            Change::NoWaiter(waiter) => {
                let known = self.waiters.remove(&waiter_key(waiter));
                known.filter(|known| known == waiter).ok_or_else(|| broken("waiter", ABSENT))?;
            }
        }
        Ok(())
    }

    pub(super) fn find_run(&self, tenant: TenantId, id: &str, created_at: Option<Timestamp>) -> Option<Seq> {
        let is_meant = |run: &&Arc<Run>| run.id == id && created_at.is_none_or(|at| run.created_at == at);
        let newest = self.runs_of(tenant).filter(is_meant).max_by_key(|run| (run.created_at, run.no));
        newest.map(|run| run.no)
    }

    pub(super) fn workflow(&self, tenant: TenantId, no: Seq) -> Result<Option<Workflow>, StoreError> {
        self.parts(tenant, no).workflow().map_err(corrupt)
    }

    pub(super) fn record(&self, tenant: TenantId, no: Seq) -> Result<Option<Record>, StoreError> {
        self.parts(tenant, no).record().map_err(corrupt)
    }

    pub(super) fn run_entries(&self, tenant: TenantId, no: Seq) -> Result<Option<Vec<(Entry, Bytes)>>, StoreError> {
        self.parts(tenant, no).list().map_err(corrupt)
    }

    pub(super) fn run_steps(&self, tenant: TenantId, no: Seq, kind: &str) -> Vec<(Entry, Bytes)> {
        self.parts(tenant, no).steps(kind)
    }

    pub(super) fn note_body(&self, run: Seq, key: NoteKey) -> Result<Bytes, StoreError> {
        let note = self.notes.get(&(run, key)).ok_or_else(|| broken("note", ABSENT))?;
        Ok(note.body.clone())
    }

    fn parts<B: Body>(&self, tenant: TenantId, no: Seq) -> Parts<B> {
        let run = self.runs.get(&no).filter(|run| run.tenant == tenant).map(|run| Run::clone(run));
        let entries =
            self.entries.range((no, 0)..=(no, u32::MAX)).map(|(_, (entry, body))| (entry.clone(), B::of(body)));
        let notes = self.notes.iter().filter(|((run, _), _)| *run == no).map(|(_, note)| StoredNote::of(note));
        Parts { run, entries: entries.collect(), notes: notes.collect() }
    }

    /// A failed run as the DLQ shows it; `None` if its entries are missing.
    pub(super) fn failed(&self, run: &Run) -> Result<Option<FailedRun>, StoreError> {
        let failed = run.failure.as_ref().map_or(0, |failure| failure.entry);
        let entry = |index| self.entries.get(&(run.no, index)).cloned();
        let (Some(first), Some((failed, _))) = (entry(0), entry(failed)) else { return Ok(None) };
        let notes = self.notes.iter().filter(|((of, _), _)| *of == run.no).map(|(_, note)| note.clone());
        FailedRun::restored(run.clone(), first, failed, &notes.collect::<Vec<_>>()).map(Some).map_err(corrupt)
    }

    pub(super) fn waits(
        &self,
        tenant: TenantId,
        event: &str,
        after: Seq,
        max: usize,
    ) -> Result<Vec<ListedWait>, StoreError> {
        let mut found = Vec::new();
        for waiter in self.waiters_for(tenant, event).into_iter().filter(|waiter| waiter.timer.seq > after) {
            let run = self.runs.get(&waiter.run).filter(|run| run.tenant == tenant);
            let key = NoteKey { kind: NoteKind::Wait, n: waiter.timer.seq.0 };
            if let (Some(run), Some(note)) = (run, self.notes.get(&(waiter.run, key))) {
                let wait = serde_json::from_str(&note.data).map_err(|error| corrupt(error.into()))?;
                found.push(ListedWait { url: run.url.clone(), redact: run.config.redact.clone(), wait });
            }
        }
        found.truncate(max);
        ListedWait::fit(&mut found);
        Ok(found)
    }

    pub(super) fn waiters_for(&self, tenant: TenantId, event: &str) -> Vec<Waiter> {
        let key = |seq| (tenant, event.to_owned(), seq);
        self.waiters.range(key(Seq::MIN)..=key(Seq::MAX)).map(|(_, waiter)| waiter.clone()).collect()
    }

    pub(super) fn match_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        after: Seq,
        max: usize,
    ) -> Result<Vec<Seq>, StoreError> {
        let mut found = Vec::new();
        for run in self.runs_of(tenant).filter(|run| run.no > after && run.state == RunState::Started) {
            if found.len() < max && self.matching(run, filter, run.created_at)?.is_some() {
                found.push(run.no);
            }
        }
        Ok(found)
    }

    /// A page of the runs that have a position in the list. `shown` turns each into an entry and its bytes.
    pub(super) fn list_runs<T>(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &PageRequest,
        place_of: impl Fn(&Run) -> Option<Position>,
        shown: impl Fn(Record) -> Result<Option<(usize, T)>, StoreError>,
    ) -> Result<Page<T>, StoreError> {
        let bounds = Bounds::new(filter.dates(), page);
        let in_bounds = |place: &Position| bounds.first <= *place && *place < bounds.end;
        let placed = self.runs_of(tenant).filter_map(|run| Some((place_of(run).filter(in_bounds)?, run)));
        let placed: BTreeMap<Position, &Arc<Run>> = placed.collect();
        let mut runs: Vec<(Position, &Arc<Run>)> = placed.into_iter().collect();
        if page.order == Order::LatestFirst {
            runs.reverse();
        }
        let mut builder = PageBuilder::new(page);
        for (place, run) in runs {
            let meant = self.matching(run, filter, place.at)?;
            let taken = match meant.map(&shown).transpose()?.flatten() {
                Some((bytes, shown)) => builder.offer(place, bytes, shown),
                None => builder.skip(place),
            };
            if taken.is_break() {
                break;
            }
        }
        Ok(builder.finish())
    }

    pub(super) fn find_failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Option<&Arc<Run>> {
        self.runs_of(tenant).find(|run| dlq_place_of(run) == Some(dlq_id))
    }

    /// The number of failed runs in the DLQ.
    pub(super) fn failed_runs(&self) -> u64 {
        let is_in_dlq = |run: &&Arc<Run>| run.failure.as_deref().is_some_and(|failure| failure.is_in_dlq);
        self.runs.values().filter(is_in_dlq).count() as u64
    }

    pub(super) fn retain_runs(&mut self, policy: &Retention, now: Timestamp) {
        self.runs.retain(|no, run| {
            let is_over = is_expired(run, policy, now);
            if is_over {
                self.entries.retain(|(run, _), _| run != no);
                self.notes.retain(|(run, _), _| run != no);
            }
            !is_over
        });
    }

    /// The stored bytes of a tenant's runs, counted as in every store.
    pub(super) fn stored_bytes_of_runs(&self, tenant: TenantId) -> u64 {
        let is_own = |run: &Seq| self.runs.get(run).is_some_and(|run| run.tenant == tenant);
        let entries = self.entries.iter().filter(|((run, _), _)| is_own(run));
        let notes = self.notes.iter().filter(|((run, _), _)| is_own(run));
        self.runs_of(tenant).map(json_row_bytes).sum::<u64>()
            + entries.map(|(_, (entry, body))| json_row_bytes(&entry.terms) + body.len() as u64).sum::<u64>()
            + notes.map(|(_, note)| ROW_BYTES + (note.data.len() + note.body.len()) as u64).sum::<u64>()
    }

    fn runs_of(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<Run>> {
        self.runs.values().filter(move |run| run.tenant == tenant)
    }

    /// The run with its entries, if it matches; dates apply to `at`.
    fn matching(&self, run: &Run, filter: &RunFilter, at: Timestamp) -> Result<Option<Record>, StoreError> {
        if !filter.matches(run) || !filter.matches_time(at) {
            return Ok(None);
        }
        Ok(self.record(run.tenant, run.no)?.filter(|record| filter.matches_messages(&record.workflow)))
    }
}

fn corrupt(source: BoxError) -> StoreError {
    StoreError::Corrupt { what: "run", source }
}

fn waiter_key(waiter: &Waiter) -> (TenantId, String, Seq) {
    (waiter.tenant, waiter.event.clone(), waiter.timer.seq)
}
