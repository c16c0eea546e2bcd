//! Runs of workflows in the reference model.

use super::model::{Model, broken};
use crate::store::page::{Bounds, PageBuilder};
use crate::store::run::{assemble, dlq_place_of, is_expired, is_same_run, page_bytes};
use crate::store::{Order, Page, PageRequest, Retention, RunFilter, StoreError};
use posthaste_engine::workflow::run::{Run, RunState};
use posthaste_engine::workflow::{Change, Waiter, Workflow};
use posthaste_wire::id::{DlqId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

const ABSENT: &str = "it is not there";
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
            Change::Entry { run, entry } => {
                self.entries.insert((*run, entry.index), entry.clone());
                self.last_seq = self.last_seq.max(Some(entry.id.seq));
            }
            Change::Delivery { run, index, delivery } => {
                let entry = self.entries.get_mut(&(*run, *index));
                entry.ok_or_else(|| broken("entry", ABSENT))?.delivery = delivery.clone();
            }
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
        let Some(run) = self.runs.get(&no).filter(|run| run.tenant == tenant) else { return Ok(None) };
        let entries = self.entries.range((no, 0)..=(no, u32::MAX)).map(|(_, entry)| entry.clone());
        assemble(Run::clone(run), entries.collect())
            .map_err(|missing| StoreError::Corrupt { what: "run", source: missing.into() })
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

    /// A page of the runs that have a place in the list.
    pub(super) fn list_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &PageRequest,
        place_of: impl Fn(&Run) -> Option<Position>,
    ) -> Result<Page<Workflow>, StoreError> {
        let bounds = Bounds::new(filter.dates(), page);
        let in_bounds = |place: &Position| bounds.first <= *place && *place < bounds.end;
        let placed = self.runs_of(tenant).filter_map(|run| Some((place_of(run).filter(in_bounds)?, run)));
        let placed: BTreeMap<Position, &Arc<Run>> = placed.collect();
        let mut runs: Vec<(Position, &Arc<Run>)> = placed.into_iter().collect();
        if page.order == Order::LatestFirst {
            runs.reverse();
        }
        let mut builder = PageBuilder::new(page.count);
        for (place, run) in runs {
            let taken = match self.matching(run, filter, place.at)? {
                Some(workflow) => builder.offer(place, page_bytes(&workflow), workflow),
                None => builder.skip(place),
            };
            if taken.is_break() {
                break;
            }
        }
        Ok(builder.finish())
    }

    pub(super) fn failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Option<Seq> {
        self.runs_of(tenant).find(|run| dlq_place_of(run) == Some(dlq_id)).map(|run| run.no)
    }

    pub(super) fn retain_runs(&mut self, policy: &Retention, now: Timestamp) {
        self.runs.retain(|no, run| {
            let is_over = is_expired(run, policy, now);
            if is_over {
                self.entries.retain(|(run, _), _| run != no);
            }
            !is_over
        });
    }

    fn runs_of(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<Run>> {
        self.runs.values().filter(move |run| run.tenant == tenant)
    }

    /// The run with its entries, if it is meant; dates compare with `at`.
    fn matching(&self, run: &Run, filter: &RunFilter, at: Timestamp) -> Result<Option<Workflow>, StoreError> {
        if !filter.matches(run) || !filter.matches_time(at) {
            return Ok(None);
        }
        Ok(self.workflow(run.tenant, run.no)?.filter(|workflow| filter.matches_messages(workflow)))
    }
}

fn waiter_key(waiter: &Waiter) -> (TenantId, String, Seq) {
    (waiter.tenant, waiter.event.clone(), waiter.timer.seq)
}
