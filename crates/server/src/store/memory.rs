//! The reference model: what every backend must do, in the simplest code that does it.
//!
//! Nothing survives the process. A batch is applied to a copy that replaces the model when all of it
//! worked, so a commit costs as much as there is stored; tests are small enough.

use super::bucket::{DLQ_BUCKET_MS, HISTORY_BUCKET_MS, bucket_of, is_over};
use super::duplicate_window_counts;
use super::page::{Bounds, PageBuilder};
use super::{
    Counts, DeadLetterRecord, Durability, Epoch, EventFilter, EventRecord, Filter, MessageRecord, Order, Page,
    PageRequest, Retained, Retention, ShardId, SigningKeys, Store, StoreError,
};
use posthaste_engine::event::{Event, Op};
use posthaste_engine::limits::GROUP_ENDPOINTS_MAX;
use posthaste_engine::message::{DedupKey, DueKey, Live, Message, Origin};
use posthaste_engine::url_group::{Edit, Refused, UrlGroup};
use posthaste_wire::id::{DlqId, MessageId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A store in RAM.
#[derive(Debug, Default)]
pub struct MemoryStore {
    model: Mutex<Model>,
}

#[derive(Clone, Debug, Default)]
struct Model {
    tenants: Vec<String>,
    keys: BTreeMap<TenantId, SigningKeys>,
    url_groups: BTreeMap<(TenantId, String), UrlGroup>,
    epochs: BTreeMap<ShardId, u64>,
    messages: BTreeMap<Seq, Arc<Message>>,
    live: BTreeMap<Seq, (ShardId, Live)>,
    events: BTreeMap<(TenantId, Position), Event>,
    events_made: u64,
    dedup: BTreeMap<(TenantId, DedupKey), Vec<(MessageId, Timestamp)>>,
    dead_letters: BTreeMap<(TenantId, DlqId), DeadLetterRecord>,
    last_seq: Option<Seq>,
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

    fn load_due(
        &self,
        shard: ShardId,
        origin: Option<Origin>,
        after: DueKey,
        until: Timestamp,
        max: usize,
    ) -> Result<Vec<Live>, StoreError> {
        let model = self.model();
        let of_shard = model.live.values().filter(|(owner, _)| *owner == shard).map(|(_, live)| *live);
        let wanted = of_shard.filter(|live| origin.is_none_or(|origin| live.origin == origin));
        let mut due: Vec<Live> = wanted.filter(|live| live.due_key() > after && live.due <= until).collect();
        due.sort_by_key(Live::due_key);
        due.truncate(max);
        Ok(due)
    }

    fn load_messages(&self, ids: &[MessageId]) -> Result<Vec<Arc<Message>>, StoreError> {
        let model = self.model();
        let found = ids.iter().map(|id| model.message(*id).ok_or_else(|| absent("message", *id)));
        found.collect()
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

    fn message(&self, tenant: TenantId, id: MessageId) -> Result<Option<MessageRecord>, StoreError> {
        let model = self.model();
        let Some(message) = model.message(id).filter(|message| message.tenant == tenant) else {
            return Ok(None);
        };
        let live = model.live_of(id);
        let mut lines = model.events.iter().filter(|(_, event)| event.id == id).map(|(_, event)| event).peekable();
        if live.is_none() && lines.peek().is_none() {
            return Ok(None);
        }
        let ended_at = lines.filter(|event| event.state.is_final()).map(|event| event.at).next_back();
        Ok(Some(MessageRecord { message, live, ended_at: ended_at.filter(|_| live.is_none()) }))
    }

    fn list_events(
        &self,
        tenant: TenantId,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRecord>, StoreError> {
        let model = self.model();
        let mut builder = PageBuilder::new(page.count);
        for (position, event) in in_order(&model.events, tenant, Bounds::new(&filter.message, page), page.order) {
            let message = model.message(event.id).ok_or_else(|| absent("message of a log line", event.id))?;
            let taken = if filter.matches(event, &message) {
                let bytes = message.body.len();
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
        let mut builder = PageBuilder::new(page.count);
        for (position, record) in in_order(&model.dead_letters, tenant, Bounds::new(filter, page), page.order) {
            let taken = if filter.matches_dead_letter(&record.letter, &record.message) {
                builder.offer(position, record.letter.body_bytes() + record.message.body.len(), record.clone())
            } else {
                builder.skip(position)
            };
            if taken.is_break() {
                break;
            }
        }
        Ok(builder.finish())
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

    fn put_signing_keys(&self, tenant: TenantId, keys: &SigningKeys) -> Result<(), StoreError> {
        self.model().keys.insert(tenant, keys.clone());
        Ok(())
    }

    fn url_groups(&self, tenant: TenantId) -> Result<Vec<UrlGroup>, StoreError> {
        let model = self.model();
        let own = model.url_groups.iter().filter(|((owner, _), _)| *owner == tenant);
        Ok(own.map(|(_, group)| group.clone()).collect())
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

    fn retain(&self, policy: &Retention, now: Timestamp) -> Result<Retained, StoreError> {
        Ok(Retained { buckets_dropped: self.model().retain(policy, now), more: false })
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        let model = self.model();
        Ok(Counts { live: model.live.len() as u64, dead_letters: model.dead_letters.len() as u64 })
    }

    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Model {
    fn apply(&mut self, shard: ShardId, op: &Op) -> Result<(), StoreError> {
        match op {
            Op::Insert { message, live } => {
                if self.messages.insert(message.id.seq, Arc::clone(message)).is_some() {
                    return Err(broken("message", "its position is taken"));
                }
                self.live.insert(live.id.seq, (shard, *live));
                self.last_seq = self.last_seq.max(Some(message.id.seq));
            }
            Op::Remember { tenant, key, id, expires } => {
                self.dedup.entry((*tenant, *key)).or_default().push((*id, *expires));
            }
            Op::Log(event) => {
                let position = Position { at: event.at, n: self.events_made };
                self.events_made += 1;
                self.events.insert((event.tenant, position), event.clone());
            }
            Op::Update(live) => {
                self.take_live(shard, live.id)?;
                self.live.insert(live.id.seq, (shard, *live));
            }
            Op::Remove { id } => self.take_live(shard, *id)?,
            Op::Bury(letter) => {
                self.take_live(shard, letter.id)?;
                let message = self.message(letter.id).ok_or_else(|| absent("message", letter.id))?;
                let record = DeadLetterRecord { letter: letter.clone(), message };
                if self.dead_letters.insert((letter.tenant, letter.dlq_id), record).is_some() {
                    return Err(broken("dead letter", "its position is taken"));
                }
            }
            Op::Exhume { tenant, dlq_id } => {
                if self.dead_letters.remove(&(*tenant, *dlq_id)).is_none() {
                    return Err(broken("dead letter", "it is not there"));
                }
            }
        }
        Ok(())
    }

    fn take_live(&mut self, shard: ShardId, id: MessageId) -> Result<(), StoreError> {
        match self.live.remove(&id.seq) {
            Some((owner, live)) if owner == shard && live.id == id => Ok(()),
            _ => Err(absent("live message", id)),
        }
    }

    fn message(&self, id: MessageId) -> Option<Arc<Message>> {
        self.messages.get(&id.seq).filter(|message| message.id == id).cloned()
    }

    fn live_of(&self, id: MessageId) -> Option<Live> {
        self.live.get(&id.seq).map(|(_, live)| *live).filter(|live| live.id == id)
    }

    fn retain(&mut self, policy: &Retention, now: Timestamp) -> u32 {
        let mut dropped = BTreeSet::new();
        self.events.retain(|(_, position), _| {
            let bucket = bucket_of(position.at, HISTORY_BUCKET_MS);
            let over = is_over(bucket, HISTORY_BUCKET_MS, policy.history_ms, now);
            if over {
                dropped.insert(("event", bucket));
            }
            !over
        });
        self.dead_letters.retain(|(_, dlq_id), _| {
            let bucket = bucket_of(dlq_id.at, DLQ_BUCKET_MS);
            let over = is_over(bucket, DLQ_BUCKET_MS, policy.dlq_ms, now);
            if over {
                dropped.insert(("dead letter", bucket));
            }
            !over
        });
        let with_lines: BTreeSet<Seq> = self.events.values().map(|event| event.id.seq).collect();
        let live = &self.live;
        self.messages.retain(|seq, _| live.contains_key(seq) || with_lines.contains(seq));
        for windows in self.dedup.values_mut() {
            windows.retain(|(_, expires)| now < *expires);
        }
        self.dedup.retain(|_, windows| !windows.is_empty());
        u32::try_from(dropped.len()).unwrap_or(u32::MAX)
    }
}

/// The tenant's part of a list within the bounds, in the order asked for.
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

fn absent(what: &'static str, id: MessageId) -> StoreError {
    StoreError::Corrupt { what, source: format!("{id} is not there").into() }
}

fn broken(what: &'static str, how: &'static str) -> StoreError {
    StoreError::Corrupt { what, source: how.into() }
}
