//! The implementation of [`Store`]: which calls first apply pending changes to the database, and which do not.

use super::super::{
    BoxError, Counts, DeadLetterRecord, DiskOutlook, Durability, Epoch, EventFilter, EventRecord, FailedRun, Filter,
    ListedSchedule, ListedWait, MessageRecord, NamePage, Names, Page, PageRequest, Part, ReadPool, Retained, Retention,
    RunFilter, ShardId, SigningKeys, Store, StoreError, Tally, UnfinishedAction, VisitDeadLetter, lock,
};
use super::{JournalStore, SqliteStore};
use crate::run::{Body, Parts};
use crate::sqlite::Scope;
use bytes::Bytes;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::flow::Flow;
use posthaste_engine::message::{DedupKey, FlowKey, Live, Message, QueueKey};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_engine::shard::Load;
use posthaste_engine::url_group::{Edit, Refused, UrlGroup};
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::NoteKey;
use posthaste_engine::workflow::run::RunState;
use posthaste_engine::workflow::{Record, Waiter, Workflow};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// How often a query retries to combine the pending and the stored parts of a run, if changes are applied in between.
/// After that, it applies all pending changes first.
const RUN_TRIES: usize = 3;

impl JournalStore {
    /// The database, after applying everything that was committed before this call.
    fn up_to_date(&self) -> Result<&SqliteStore, StoreError> {
        self.shared.apply_pending()?;
        Ok(&self.shared.database)
    }

    /// The database, for data that is never pending.
    fn database(&self) -> &SqliteStore {
        &self.shared.database
    }
}

impl JournalStore {
    /// Combines the pending and the stored parts of a run. Returns `None` if changes were applied in between too often.
    fn run_parts<B: Body>(
        &self,
        tenant: TenantId,
        run: Seq,
        scope: Scope,
        pool: ReadPool,
    ) -> Result<Option<Parts<B>>, StoreError> {
        for _ in 0..RUN_TRIES {
            let ((overlay, is_all), moment) = {
                let state = self.shared.state();
                (state.overlay(run), state.moment())
            };
            let stored = if is_all { Parts::default() } else { self.database().run_parts(run, scope, pool)? };
            if is_all || self.shared.state().moment() == moment {
                let parts = overlay.over(stored);
                let is_theirs = parts.run.as_ref().is_some_and(|run| run.tenant == tenant);
                return Ok(Some(if is_theirs { parts } else { Parts::default() }));
            }
        }
        Ok(None)
    }
}

fn corrupt(source: BoxError) -> StoreError {
    StoreError::Corrupt { what: "run", source }
}

impl Store for JournalStore {
    fn lease(&self, shard: ShardId, now: Timestamp) -> Result<Epoch, StoreError> {
        let _commits = lock(&self.shared.log);
        let epoch = self.up_to_date()?.lease(shard, now)?;
        self.shared.state().epochs.insert(shard, epoch);
        Ok(epoch)
    }

    fn commit(&self, shard: ShardId, epoch: Epoch, ops: &[Op], durability: Durability) -> Result<(), StoreError> {
        self.shared.commit(shard, epoch, ops, durability)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.shared.sync()
    }

    fn load(&self, shard: ShardId, load: &Load) -> Result<Vec<Live>, StoreError> {
        self.up_to_date()?.load(shard, load)
    }

    fn load_messages(&self, ids: &[MessageId]) -> Result<Vec<Arc<Message>>, StoreError> {
        let mut found: Vec<Option<Arc<Message>>> = {
            let state = self.shared.state();
            ids.iter().map(|id| state.message(*id)).collect()
        };
        let stored = ids.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(id, _)| *id);
        let stored: Vec<MessageId> = stored.collect();
        if !stored.is_empty() {
            let missing = found.iter_mut().filter(|found| found.is_none());
            for (place, message) in missing.zip(self.database().load_messages(&stored)?) {
                *place = Some(message);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn find_message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<Arc<Message>>, StoreError> {
        let pending = self.shared.state().message(id).filter(|message| message.tenant == tenant);
        match pending {
            Some(message) => Ok(Some(part.of(message))),
            None => self.database().find_message(tenant, id, part),
        }
    }

    fn last_seq(&self) -> Result<Seq, StoreError> {
        Ok(self.shared.state().last_seq)
    }

    fn find_duplicates(
        &self,
        keys: &[(TenantId, DedupKey)],
        now: Timestamp,
    ) -> Result<Vec<Option<MessageId>>, StoreError> {
        let pending: Vec<_> = {
            let state = self.shared.state();
            keys.iter().map(|key| state.find_window(key, now)).collect()
        };
        let stored = self.database().find_windows(keys, now)?;
        // If two windows end at the same time, the one in the journal is later.
        let later = |(stored, pending): (Option<_>, Option<_>)| {
            stored.into_iter().chain(pending).max_by_key(|(_, expires)| *expires).map(|(id, _)| id)
        };
        Ok(stored.into_iter().zip(pending).map(later).collect())
    }

    fn find_live(&self, tenant: TenantId, ids: &[MessageId]) -> Result<Vec<Live>, StoreError> {
        self.up_to_date()?.find_live(tenant, ids)
    }

    fn match_live(&self, tenant: TenantId, filter: &Filter, after: Seq, max: usize) -> Result<Vec<Live>, StoreError> {
        self.up_to_date()?.match_live(tenant, filter, after, max)
    }

    fn message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<MessageRecord>, StoreError> {
        self.up_to_date()?.message(tenant, id, part)
    }

    fn list_events(
        &self,
        tenant: TenantId,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRecord>, StoreError> {
        self.up_to_date()?.list_events(tenant, filter, page)
    }

    fn dead_letter(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<DeadLetterRecord>, StoreError> {
        self.up_to_date()?.dead_letter(tenant, dlq_id)
    }

    fn find_dead_letters(&self, tenant: TenantId, ids: &[DlqId]) -> Result<Vec<DlqId>, StoreError> {
        self.up_to_date()?.find_dead_letters(tenant, ids)
    }

    fn list_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Page<DeadLetterRecord>, StoreError> {
        self.up_to_date()?.list_dead_letters(tenant, filter, page)
    }

    fn visit_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
        visit: &mut VisitDeadLetter<'_>,
    ) -> Result<(), StoreError> {
        self.up_to_date()?.visit_dead_letters(tenant, filter, page, visit)
    }

    fn secret(&self, fresh: &[u8; 32]) -> Result<[u8; 32], StoreError> {
        self.database().secret(fresh)
    }

    fn tenant(&self, name: &str) -> Result<TenantId, StoreError> {
        self.database().tenant(name)
    }

    fn signing_keys(&self, tenant: TenantId) -> Result<Option<SigningKeys>, StoreError> {
        self.database().signing_keys(tenant)
    }

    fn tenants_with_keys(&self) -> Result<Vec<TenantId>, StoreError> {
        self.database().tenants_with_keys()
    }

    fn put_signing_keys(&self, tenant: TenantId, keys: &SigningKeys) -> Result<(), StoreError> {
        self.database().put_signing_keys(tenant, keys)
    }

    fn url_groups(&self, tenant: TenantId, page: &NamePage) -> Result<Names<UrlGroup>, StoreError> {
        self.database().url_groups(tenant, page)
    }

    fn url_group_count(&self, tenant: TenantId) -> Result<usize, StoreError> {
        self.database().url_group_count(tenant)
    }

    fn url_group(&self, tenant: TenantId, name: &str) -> Result<Option<UrlGroup>, StoreError> {
        self.database().url_group(tenant, name)
    }

    fn edit_url_group(
        &self,
        tenant: TenantId,
        name: &str,
        edit: &Edit,
        now: Timestamp,
    ) -> Result<Result<(), Refused>, StoreError> {
        self.database().edit_url_group(tenant, name, edit, now)
    }

    fn queues(&self, tenant: Option<TenantId>) -> Result<Vec<Queue>, StoreError> {
        self.up_to_date()?.queues(tenant)
    }

    fn list_queues(&self, tenant: TenantId, page: &NamePage) -> Result<Names<Queue>, StoreError> {
        self.up_to_date()?.list_queues(tenant, page)
    }

    fn queue(&self, tenant: TenantId, name: &str) -> Result<Option<Queue>, StoreError> {
        self.up_to_date()?.queue(tenant, name)
    }

    fn queue_lags(&self, tenant: TenantId, queues: &[QueueKey]) -> Result<Vec<u64>, StoreError> {
        self.up_to_date()?.queue_lags(tenant, queues)
    }

    fn flows(&self) -> Result<Vec<Flow>, StoreError> {
        self.up_to_date()?.flows()
    }

    fn flow_loads(&self, tenant: TenantId, flows: &[FlowKey], until: Timestamp) -> Result<Vec<u64>, StoreError> {
        self.up_to_date()?.flow_loads(tenant, flows, until)
    }

    fn flow_waiting(
        &self,
        tenant: TenantId,
        flows: &[(FlowKey, Vec<MessageId>)],
        until: Timestamp,
    ) -> Result<Vec<u64>, StoreError> {
        self.up_to_date()?.flow_waiting(tenant, flows, until)
    }

    fn schedules(&self, tenant: TenantId, page: &NamePage) -> Result<Names<ListedSchedule>, StoreError> {
        self.database().schedules(tenant, page)
    }

    fn schedule(&self, tenant: TenantId, id: &str, part: Part) -> Result<Option<Schedule>, StoreError> {
        self.database().schedule(tenant, id, part)
    }

    fn schedule_states(&self) -> Result<Vec<(TenantId, String, ScheduleState)>, StoreError> {
        self.database().schedule_states()
    }

    fn bulk_actions(&self, tenant: TenantId, before: Option<Seq>, max: usize) -> Result<Vec<BulkAction>, StoreError> {
        self.database().bulk_actions(tenant, before, max)
    }

    fn bulk_action(&self, tenant: TenantId, id: Seq) -> Result<Option<BulkAction>, StoreError> {
        self.database().bulk_action(tenant, id)
    }

    fn unfinished_bulk_actions(&self) -> Result<Vec<UnfinishedAction>, StoreError> {
        self.database().unfinished_bulk_actions()
    }

    fn find_run(
        &self,
        tenant: TenantId,
        id: &str,
        created_at: Option<Timestamp>,
        pool: ReadPool,
    ) -> Result<Option<Seq>, StoreError> {
        let pending = {
            let (state, name) = (self.shared.state(), (tenant, id.to_owned()));
            let found = state.generations().filter_map(|pending| pending.runs.find(&name, created_at));
            found.map(|run| ((run.created_at, run.no), run.state)).max_by_key(|(position, _)| *position)
        };
        match pending {
            // The database has no newer run than a live one.
            Some(((_, no), state)) if created_at.is_some() || state == RunState::Started => Ok(Some(no)),
            _ => {
                let stored = self.database().find_run_and_time(tenant, id, created_at, pool)?;
                let newest = stored.max(pending.map(|(position, _)| position));
                Ok(newest.map(|(_, no)| no))
            }
        }
    }

    fn workflow(&self, tenant: TenantId, run: Seq) -> Result<Option<Workflow>, StoreError> {
        match self.run_parts(tenant, run, Scope::All, ReadPool::Core)? {
            Some(parts) => parts.workflow().map_err(corrupt),
            None => self.up_to_date()?.workflow(tenant, run),
        }
    }

    fn run_record(&self, tenant: TenantId, run: Seq, pool: ReadPool) -> Result<Option<Record>, StoreError> {
        match self.run_parts(tenant, run, Scope::All, pool)? {
            Some(parts) => parts.record().map_err(corrupt),
            None => self.up_to_date()?.run_record(tenant, run, pool),
        }
    }

    fn run_entries(
        &self,
        tenant: TenantId,
        run: Seq,
        pool: ReadPool,
    ) -> Result<Option<Vec<(Entry, Bytes)>>, StoreError> {
        match self.run_parts(tenant, run, Scope::Entries, pool)? {
            Some(parts) => parts.list().map_err(corrupt),
            None => self.up_to_date()?.run_entries(tenant, run, pool),
        }
    }

    fn run_steps(&self, tenant: TenantId, run: Seq, kind: &'static str) -> Result<Vec<(Entry, Bytes)>, StoreError> {
        match self.run_parts::<Bytes>(tenant, run, Scope::Steps(kind), ReadPool::Queries)? {
            Some(parts) => Ok(parts.steps(kind)),
            None => self.up_to_date()?.run_steps(tenant, run, kind),
        }
    }

    fn note_body(&self, run: Seq, key: NoteKey) -> Result<Bytes, StoreError> {
        let pending = {
            let state = self.shared.state();
            let note = state.generations().find_map(|pending| pending.runs.note(run, key));
            note.map(|note| note.as_ref().map(|note| note.body.clone()))
        };
        match pending {
            Some(Some(body)) => Ok(body),
            Some(None) => Err(corrupt(format!("{key:?} is missing").into())),
            None => self.database().note_body(run, key),
        }
    }

    fn waiters(&self, tenant: TenantId, event: &str, max: usize) -> Result<Vec<Waiter>, StoreError> {
        self.up_to_date()?.waiters(tenant, event, max)
    }

    fn waits(&self, tenant: TenantId, event: &str, after: Seq, max: usize) -> Result<Vec<ListedWait>, StoreError> {
        self.up_to_date()?.waits(tenant, event, after, max)
    }

    fn match_runs(&self, tenant: TenantId, filter: &RunFilter, after: Seq, max: usize) -> Result<Vec<Seq>, StoreError> {
        self.up_to_date()?.match_runs(tenant, filter, after, max)
    }

    fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Record>, StoreError> {
        self.up_to_date()?.list_runs(tenant, filter, page)
    }

    fn list_failed_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &PageRequest,
    ) -> Result<Page<FailedRun>, StoreError> {
        self.up_to_date()?.list_failed_runs(tenant, filter, page)
    }

    fn find_failed_run(&self, tenant: TenantId, dlq_id: DlqId, pool: ReadPool) -> Result<Option<Seq>, StoreError> {
        self.up_to_date()?.find_failed_run(tenant, dlq_id, pool)
    }

    fn failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<FailedRun>, StoreError> {
        self.up_to_date()?.failed_run(tenant, dlq_id)
    }

    fn retain(&self, policy: &Retention, now: Timestamp) -> Result<Retained, StoreError> {
        self.shared.retain(policy, now)
    }

    fn live_runs(&self) -> Result<u64, StoreError> {
        self.up_to_date()?.live_runs()
    }

    fn failed_runs(&self) -> Result<u64, StoreError> {
        self.up_to_date()?.failed_runs()
    }

    fn tally(&self, tenant: TenantId, max: u64) -> Result<Tally, StoreError> {
        self.up_to_date()?.tally(tenant, max)
    }

    fn disk_outlook(&self) -> Arc<DiskOutlook> {
        self.shared.disk.clone()
    }

    fn stored_bytes(&self, tenant: TenantId) -> u64 {
        self.shared.database.stored_bytes(tenant) + self.shared.pending_usage.of(tenant)
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        Ok(self.shared.state().counts)
    }

    fn check(&self) -> Result<(), StoreError> {
        self.shared.state().check()
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.shared.state().check()?;
        self.database().probe()
    }
}
