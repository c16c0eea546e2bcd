//! The reference model: the required behaviour of every backend, in the simplest code.
//!
//! Nothing survives the process. A batch is applied to a copy, which replaces the model if the whole batch succeeds. A
//! commit therefore costs as much as the stored data, which is small in tests. This file answers the queries; `model`
//! holds the data and its changes, and `runs` does both for workflow runs.

mod model;
mod runs;

use super::names::NamesBuilder;
use super::page::{Bounds, PageBuilder};
use super::{
    Counts, DeadLetterRecord, Durability, Epoch, EventFilter, EventRecord, FailedRun, Filter, ListedSchedule,
    ListedWait, MessageRecord, NamePage, Names, Order, Page, PageRequest, Part, ReadPool, Retained, Retention,
    RunFilter, ShardId, SigningKeys, Store, StoreError, Tally, UnfinishedAction, VisitDeadLetter,
};
use super::{absent, duplicate_window_counts, run, weight};
use bytes::Bytes;
use model::Model;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::flow::Flow;
use posthaste_engine::limits::GROUP_ENDPOINTS_MAX;
use posthaste_engine::message::{DedupKey, FlowKey, Live, Message, QueueKey};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_engine::shard::{Lane, LaneKey, Load, Source};
use posthaste_engine::url_group::{Edit, Refused, UrlGroup};
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::NoteKey;
use posthaste_engine::workflow::run::{Run, RunState};
use posthaste_engine::workflow::{Record, Waiter, Workflow};
use posthaste_wire::id::{DlqId, MessageId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A store in RAM.
#[derive(Debug, Default)]
pub struct MemoryStore {
    model: Mutex<Model>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        MemoryStore::default()
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn lease(&self, shard: ShardId, _now: Timestamp) -> Result<Epoch, StoreError> {
        let mut model = self.model();
        let epoch = model.epochs.entry(shard).or_default();
        *epoch += 1;
        Ok(Epoch(*epoch))
    }

    fn commit(&self, shard: ShardId, epoch: Epoch, ops: &[Op], _durability: Durability) -> Result<(), StoreError> {
        let mut model = self.model();
        if model.epochs.get(&shard) != Some(&epoch.0) {
            return Err(StoreError::Fenced);
        }
        let mut next = model.clone();
        for op in ops {
            next.apply(shard, op)?;
        }
        *model = next;
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn load(&self, shard: ShardId, load: &Load) -> Result<Vec<Live>, StoreError> {
        let model = self.model();
        let of_shard = model.live.values().filter(|(owner, _)| *owner == shard).map(|(_, live)| *live);
        let mut rows: Vec<Live>;
        match load.source {
            Source::Due { lane, after, until } => {
                let outside = of_shard.filter(|live| live.place.is_none() && is_in_lane(live, lane));
                rows = outside.filter(|live| live.due_key() > after && live.due <= until).collect();
                rows.sort_by_key(Live::due_key);
            }
            Source::Queue { tenant, queue, after } => {
                let place = |live: &Live| live.place.filter(|place| place.queue == queue && live.tenant == tenant);
                let key = |live: &Live| place(live).map(|place| (place.turn, live.id.seq));
                rows = of_shard.filter(|live| key(live).is_some_and(|key| key > after)).collect();
                rows.sort_by_key(key);
            }
            Source::Callbacks { after } => {
                let is_callback = |live: &Live| live.place.is_some_and(|place| place.turn.seq != live.id.seq);
                rows = of_shard.filter(|live| is_callback(live) && live.id.seq > after).collect();
                rows.sort_by_key(|live| live.id.seq);
            }
        }
        rows.truncate(load.max);
        Ok(rows)
    }

    fn load_messages(&self, ids: &[MessageId]) -> Result<Vec<Arc<Message>>, StoreError> {
        let model = self.model();
        let found = ids.iter().map(|id| model.message(*id).ok_or_else(|| absent("message", *id)));
        found.collect()
    }

    fn find_message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<Arc<Message>>, StoreError> {
        let found = self.model().message(id).filter(|message| message.tenant == tenant);
        Ok(found.map(|message| part.of(message)))
    }

    fn last_seq(&self) -> Result<Seq, StoreError> {
        Ok(self.model().last_seq.unwrap_or(Seq::MIN))
    }

    fn find_duplicates(
        &self,
        keys: &[(TenantId, DedupKey)],
        now: Timestamp,
    ) -> Result<Vec<Option<MessageId>>, StoreError> {
        let model = self.model();
        let counts = |(_, expires): &&(MessageId, Timestamp)| duplicate_window_counts(*expires, now);
        let find = |key| model.dedup.get(key)?.iter().filter(counts).max_by_key(|(_, expires)| *expires);
        Ok(keys.iter().map(|key| find(key).map(|(id, _)| *id)).collect())
    }

    fn find_live(&self, tenant: TenantId, ids: &[MessageId]) -> Result<Vec<Live>, StoreError> {
        let model = self.model();
        Ok(ids.iter().filter_map(|id| model.live_of(*id)).filter(|live| live.tenant == tenant).collect())
    }

    fn match_live(&self, tenant: TenantId, filter: &Filter, after: Seq, max: usize) -> Result<Vec<Live>, StoreError> {
        let model = self.model();
        let mut found = Vec::new();
        for (_, live) in model.live.values().filter(|(_, live)| live.tenant == tenant && live.id.seq > after) {
            let message = model.message(live.id).ok_or_else(|| absent("message", live.id))?;
            if found.len() < max && filter.matches(&message) && filter.matches_time(message.created_at) {
                found.push(*live);
            }
        }
        Ok(found)
    }

    fn message(&self, tenant: TenantId, id: MessageId, part: Part) -> Result<Option<MessageRecord>, StoreError> {
        let model = self.model();
        let Some(message) = model.message(id).filter(|message| message.tenant == tenant) else {
            return Ok(None);
        };
        let live = model.live_of(id);
        let mut lines = model.events.iter().filter(|(_, event)| event.id == id).map(|(_, event)| event).peekable();
        if live.is_none() && lines.peek().is_none() {
            return Ok(None);
        }
        let end = lines.filter(|event| event.state.is_final()).map(|event| (event.at, event.state)).next_back();
        let (ended_at, final_state) = end.filter(|_| live.is_none()).unzip();
        Ok(Some(MessageRecord { message: part.of(message), live, ended_at, final_state }))
    }

    fn list_events(
        &self,
        tenant: TenantId,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRecord>, StoreError> {
        let model = self.model();
        let mut builder = PageBuilder::new(page);
        for (position, event) in in_order(&model.events, tenant, Bounds::new(filter.message.dates(), page), page.order)
        {
            let message = model.message(event.id).ok_or_else(|| absent("message of a log line", event.id))?;
            let taken = if filter.matches(event, &message) {
                let message = page.part.of(message);
                let bytes = weight::of_event(event, &message);
                builder.offer(position, bytes, EventRecord { position, event: event.clone(), message })
            } else {
                builder.skip(position)
            };
            if taken.is_break() {
                break;
            }
        }
        Ok(builder.finish())
    }

    fn dead_letter(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<DeadLetterRecord>, StoreError> {
        Ok(self.model().dead_letters.get(&(tenant, dlq_id)).cloned())
    }

    fn find_dead_letters(&self, tenant: TenantId, ids: &[DlqId]) -> Result<Vec<DlqId>, StoreError> {
        let model = self.model();
        Ok(ids.iter().copied().filter(|dlq_id| model.dead_letters.contains_key(&(tenant, *dlq_id))).collect())
    }

    fn list_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Page<DeadLetterRecord>, StoreError> {
        let model = self.model();
        let mut builder = PageBuilder::new(page);
        for (position, record) in in_order(&model.dead_letters, tenant, Bounds::new(filter.dates(), page), page.order) {
            let taken = if filter.matches_dead_letter(&record.letter, &record.message) {
                let record = DeadLetterRecord { message: page.part.of(record.message.clone()), ..record.clone() };
                builder.offer(position, weight::of_dead_letter(&record.letter, &record.message), record)
            } else {
                builder.skip(position)
            };
            if taken.is_break() {
                break;
            }
        }
        Ok(builder.finish())
    }

    fn visit_dead_letters(
        &self,
        tenant: TenantId,
        filter: &Filter,
        page: &PageRequest,
        visit: &mut VisitDeadLetter<'_>,
    ) -> Result<(), StoreError> {
        let model = self.model();
        let bounds = Bounds::new(filter.dates(), page);
        for (_, record) in in_order(&model.dead_letters, tenant, bounds, page.order) {
            let message = Message { body: Bytes::new(), ..Message::clone(&record.message) };
            if visit(&record.letter, &message).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn secret(&self, fresh: &[u8; 32]) -> Result<[u8; 32], StoreError> {
        Ok(*self.model().secret.get_or_insert(*fresh))
    }

    fn tenant(&self, name: &str) -> Result<TenantId, StoreError> {
        let mut model = self.model();
        let index = model.tenants.iter().position(|known| known == name).unwrap_or_else(|| {
            model.tenants.push(name.to_owned());
            model.tenants.len() - 1
        });
        Ok(TenantId(u32::try_from(index + 1).unwrap_or(u32::MAX)))
    }

    fn signing_keys(&self, tenant: TenantId) -> Result<Option<SigningKeys>, StoreError> {
        Ok(self.model().keys.get(&tenant).cloned())
    }

    fn tenants_with_keys(&self) -> Result<Vec<TenantId>, StoreError> {
        Ok(self.model().keys.keys().copied().collect())
    }

    fn put_signing_keys(&self, tenant: TenantId, keys: &SigningKeys) -> Result<(), StoreError> {
        self.model().keys.insert(tenant, keys.clone());
        Ok(())
    }

    fn url_groups(&self, tenant: TenantId, page: &NamePage) -> Result<Names<UrlGroup>, StoreError> {
        let mut builder = NamesBuilder::new(page);
        for (name, group) in entries_after(&self.model().url_groups, tenant, page) {
            if builder.admits(weight::of_url_group(group)).is_break() {
                break;
            }
            builder.push(name, group.clone());
        }
        Ok(builder.finish())
    }

    fn url_group_count(&self, tenant: TenantId) -> Result<usize, StoreError> {
        Ok(self.model().url_groups.keys().filter(|(owner, _)| *owner == tenant).count())
    }

    fn url_group(&self, tenant: TenantId, name: &str) -> Result<Option<UrlGroup>, StoreError> {
        Ok(self.model().url_groups.get(&(tenant, name.to_owned())).cloned())
    }

    fn edit_url_group(
        &self,
        tenant: TenantId,
        name: &str,
        edit: &Edit,
        now: Timestamp,
    ) -> Result<Result<(), Refused>, StoreError> {
        let mut model = self.model();
        let key = (tenant, name.to_owned());
        let before = model.url_groups.get(&key).cloned();
        Ok(UrlGroup::edited(before, name, edit, GROUP_ENDPOINTS_MAX, now).map(|after| {
            match after {
                Some(group) => model.url_groups.insert(key, group),
                None => model.url_groups.remove(&key),
            };
        }))
    }

    fn queues(&self, tenant: Option<TenantId>) -> Result<Vec<Queue>, StoreError> {
        let model = self.model();
        let wanted = model.queues.values().filter(|queue| tenant.is_none_or(|tenant| queue.tenant == tenant));
        Ok(wanted.cloned().collect())
    }

    fn list_queues(&self, tenant: TenantId, page: &NamePage) -> Result<Names<Queue>, StoreError> {
        let mut builder = NamesBuilder::new(page);
        for (name, queue) in entries_after(&self.model().queues, tenant, page).filter(|(_, queue)| !queue.deleted) {
            if builder.admits(name.len()).is_break() {
                break;
            }
            builder.push(name, queue.clone());
        }
        Ok(builder.finish())
    }

    fn queue(&self, tenant: TenantId, name: &str) -> Result<Option<Queue>, StoreError> {
        Ok(self.model().queues.get(&(tenant, name.to_owned())).cloned())
    }

    fn queue_lags(&self, tenant: TenantId, queues: &[QueueKey]) -> Result<Vec<u64>, StoreError> {
        let model = self.model();
        let has_own_turn = |live: &Live, queue: QueueKey| {
            live.tenant == tenant
                && live.place.is_some_and(|place| place.queue == queue && place.turn.seq == live.id.seq)
        };
        Ok(queues.iter().map(|queue| model.count_live(|live| has_own_turn(live, *queue))).collect())
    }

    fn flows(&self) -> Result<Vec<Flow>, StoreError> {
        Ok(self.model().flows.values().cloned().collect())
    }

    fn flow_loads(&self, tenant: TenantId, flows: &[FlowKey], until: Timestamp) -> Result<Vec<u64>, StoreError> {
        let model = self.model();
        let is_due = |live: &Live, flow| live.tenant == tenant && live.flow == Some(flow) && live.due <= until;
        Ok(flows.iter().map(|flow| model.count_live(|live| is_due(live, *flow))).collect())
    }

    fn flow_waiting(
        &self,
        tenant: TenantId,
        flows: &[(FlowKey, Vec<MessageId>)],
        until: Timestamp,
    ) -> Result<Vec<u64>, StoreError> {
        let model = self.model();
        let waits = |live: &Live, (flow, under_way): &(FlowKey, Vec<MessageId>)| {
            let is_due = live.tenant == tenant && live.flow == Some(*flow) && live.due <= until;
            is_due && !under_way.contains(&live.id)
        };
        Ok(flows.iter().map(|key| model.count_live(|live| waits(live, key))).collect())
    }

    fn schedules(&self, tenant: TenantId, page: &NamePage) -> Result<Names<ListedSchedule>, StoreError> {
        let mut builder = NamesBuilder::new(page);
        for (id, schedule) in entries_after(&self.model().schedules, tenant, page) {
            if builder.admits(weight::of_schedule_head(schedule)).is_break() {
                break;
            }
            let body_bytes = schedule.body.len();
            let body = if builder.takes_body(body_bytes) { schedule.body.clone() } else { Bytes::new() };
            builder.push(id, ListedSchedule { schedule: Schedule { body, ..schedule.clone() }, body_bytes });
        }
        Ok(builder.finish())
    }

    fn schedule(&self, tenant: TenantId, id: &str, part: Part) -> Result<Option<Schedule>, StoreError> {
        let found = self.model().schedules.get(&(tenant, id.to_owned())).cloned();
        Ok(found.map(|schedule| match part {
            Part::Whole => schedule,
            Part::Head => Schedule { body: Bytes::new(), ..schedule },
        }))
    }

    fn schedule_states(&self) -> Result<Vec<(TenantId, String, ScheduleState)>, StoreError> {
        let model = self.model();
        let state = |schedule: &Schedule| (schedule.tenant, schedule.id.clone(), schedule.state.clone());
        Ok(model.schedules.values().map(state).collect())
    }

    fn bulk_actions(&self, tenant: TenantId, before: Option<Seq>, max: usize) -> Result<Vec<BulkAction>, StoreError> {
        let model = self.model();
        let is_meant = |action: &&BulkAction| action.tenant == tenant && before.is_none_or(|before| action.id < before);
        Ok(model.bulk_actions.values().rev().filter(is_meant).take(max).cloned().collect())
    }

    fn bulk_action(&self, tenant: TenantId, id: Seq) -> Result<Option<BulkAction>, StoreError> {
        Ok(self.model().bulk_actions.get(&id).filter(|action| action.tenant == tenant).cloned())
    }

    fn unfinished_bulk_actions(&self) -> Result<Vec<UnfinishedAction>, StoreError> {
        let model = self.model();
        Ok(model
            .bulk_actions
            .values()
            .filter(|action| action.completed_at.is_none())
            .map(UnfinishedAction::from)
            .collect())
    }

    fn find_run(
        &self,
        tenant: TenantId,
        id: &str,
        created_at: Option<Timestamp>,
        _pool: ReadPool,
    ) -> Result<Option<Seq>, StoreError> {
        Ok(self.model().find_run(tenant, id, created_at))
    }

    fn workflow(&self, tenant: TenantId, run: Seq) -> Result<Option<Workflow>, StoreError> {
        self.model().workflow(tenant, run)
    }

    fn run_record(&self, tenant: TenantId, run: Seq, _pool: ReadPool) -> Result<Option<Record>, StoreError> {
        self.model().record(tenant, run)
    }

    fn run_entries(
        &self,
        tenant: TenantId,
        run: Seq,
        _pool: ReadPool,
    ) -> Result<Option<Vec<(Entry, Bytes)>>, StoreError> {
        self.model().run_entries(tenant, run)
    }

    fn run_steps(&self, tenant: TenantId, run: Seq, kind: &'static str) -> Result<Vec<(Entry, Bytes)>, StoreError> {
        Ok(self.model().run_steps(tenant, run, kind))
    }

    fn note_body(&self, run: Seq, key: NoteKey) -> Result<Bytes, StoreError> {
        self.model().note_body(run, key)
    }

    fn waiters(&self, tenant: TenantId, event: &str, max: usize) -> Result<Vec<Waiter>, StoreError> {
        Ok(self.model().waiters_for(tenant, event).into_iter().take(max).collect())
    }

    fn waits(&self, tenant: TenantId, event: &str, after: Seq, max: usize) -> Result<Vec<ListedWait>, StoreError> {
        self.model().waits(tenant, event, after, max)
    }

    fn match_runs(&self, tenant: TenantId, filter: &RunFilter, after: Seq, max: usize) -> Result<Vec<Seq>, StoreError> {
        self.model().match_runs(tenant, filter, after, max)
    }

    fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Record>, StoreError> {
        let model = self.model();
        let place_of = |run: &Run| Some(run::place_of(run));
        model.list_runs(tenant, filter, page, place_of, |record| {
            let record = if run::shows_bodies(page, &record) { record } else { record.without_bodies() };
            Ok(Some((run::page_bytes(&record), record)))
        })
    }

    fn list_failed_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &PageRequest,
    ) -> Result<Page<FailedRun>, StoreError> {
        let model = self.model();
        model.list_runs(tenant, filter, page, run::dlq_place_of, |record| {
            let failed = model.failed(&record.workflow.run)?;
            Ok(failed.map(|failed| (failed.bytes(), failed)))
        })
    }

    fn find_failed_run(&self, tenant: TenantId, dlq_id: DlqId, _pool: ReadPool) -> Result<Option<Seq>, StoreError> {
        Ok(self.model().find_failed_run(tenant, dlq_id).map(|run| run.no))
    }

    fn failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<FailedRun>, StoreError> {
        let model = self.model();
        Ok(model.find_failed_run(tenant, dlq_id).map(|run| model.failed(run)).transpose()?.flatten())
    }

    fn retain(&self, policy: &Retention, now: Timestamp) -> Result<Retained, StoreError> {
        let mut model = self.model();
        let before = model.failed_runs();
        let buckets_dropped = model.retain(policy, now);
        Ok(Retained { buckets_dropped, failed_runs_dropped: before - model.failed_runs(), more: false })
    }

    fn live_runs(&self) -> Result<u64, StoreError> {
        let model = self.model();
        Ok(model.runs.values().filter(|run| run.state == RunState::Started).count() as u64)
    }

    fn failed_runs(&self) -> Result<u64, StoreError> {
        Ok(self.model().failed_runs())
    }

    fn tally(&self, tenant: TenantId, max: u64) -> Result<Tally, StoreError> {
        let model = self.model();
        let dead = model.dead_letters.keys().filter(|(owner, _)| *owner == tenant).map(|(_, dlq_id)| dlq_id.at);
        let runs = || model.runs.values().filter(|run| run.tenant == tenant);
        let failed = || runs().filter_map(|run| run::dlq_place_of(run)).map(|dlq_id| dlq_id.at);
        let own = model.live.values().filter(|(_, live)| live.tenant == tenant);
        let looked = own.clone().take(usize::try_from(max).unwrap_or(usize::MAX));
        Ok(Tally {
            dead_letters: (dead.clone().count() as u64).min(max),
            oldest_dead_letter: dead.min(),
            failed_runs: (failed().count() as u64).min(max),
            oldest_failed_run: failed().min(),
            live_runs: (runs().filter(|run| run.state == RunState::Started).count() as u64).min(max),
            live_messages: looked.filter(|(_, live)| !live.is_step).count() as u64,
            more_live_messages: own.count() as u64 >= max,
        })
    }

    fn stored_bytes(&self, tenant: TenantId) -> u64 {
        self.model().stored_bytes(tenant)
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        let model = self.model();
        Ok(Counts { live: model.live.len() as u64, dead_letters: model.dead_letters.len() as u64 })
    }

    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Whether the row is in the lane. Without a lane every row matches.
fn is_in_lane(live: &Live, lane: Option<LaneKey>) -> bool {
    lane.is_none_or(|(tenant, lane)| {
        live.tenant == tenant
            && match lane {
                Lane::Origin(origin) => live.origin == origin,
                Lane::Flow(flow) => live.flow == Some(flow),
            }
    })
}

/// The tenant's named objects after the cursor of the page.
fn entries_after<'a, T>(
    list: &'a BTreeMap<(TenantId, String), T>,
    tenant: TenantId,
    page: &NamePage,
) -> impl Iterator<Item = (&'a str, &'a T)> {
    let start = match &page.after {
        Some(after) => Bound::Excluded((tenant, after.clone())),
        None => Bound::Included((tenant, String::new())),
    };
    let range = list.range((start, Bound::Unbounded));
    range.take_while(move |((owner, _), _)| *owner == tenant).map(|((_, name), entry)| (name.as_str(), entry))
}

/// The tenant's entries within the bounds, in the requested order.
fn in_order<T>(
    list: &BTreeMap<(TenantId, Position), T>,
    tenant: TenantId,
    bounds: Bounds,
    order: Order,
) -> Box<dyn Iterator<Item = (Position, &T)> + '_> {
    if bounds.is_empty() {
        return Box::new(std::iter::empty());
    }
    let range = list.range((tenant, bounds.first)..(tenant, bounds.end));
    let entries = range.map(|((_, position), entry)| (*position, entry));
    match order {
        Order::LatestFirst => Box::new(entries.rev()),
        Order::EarliestFirst => Box::new(entries),
    }
}
