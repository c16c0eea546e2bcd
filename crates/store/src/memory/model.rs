//! The data of the reference model, and how each op changes it.

use crate::bucket::{DLQ_BUCKET_MS, HISTORY_BUCKET_MS, bucket_of, is_over};
use crate::usage::{ROW_BYTES, json_row_bytes};
use crate::{DeadLetterRecord, Retention, ShardId, SigningKeys, StoreError, absent};
use bytes::Bytes;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{Event, Op};
use posthaste_engine::flow::Flow;
use posthaste_engine::limits;
use posthaste_engine::message::{DedupKey, Live, Message};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::url_group::UrlGroup;
use posthaste_engine::workflow::Waiter;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::{Note, NoteKey};
use posthaste_engine::workflow::run::Run;
use posthaste_wire::id::{DlqId, MessageId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All stored data.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub tenants: Vec<String>,
    pub secret: Option<[u8; 32]>,
    pub keys: BTreeMap<TenantId, SigningKeys>,
    pub url_groups: BTreeMap<(TenantId, String), UrlGroup>,
    pub epochs: BTreeMap<ShardId, u64>,
    pub messages: BTreeMap<Seq, Arc<Message>>,
    pub live: BTreeMap<Seq, (ShardId, Live)>,
    pub events: BTreeMap<(TenantId, Position), Event>,
    events_made: u64,
    pub dedup: BTreeMap<(TenantId, DedupKey), Vec<(MessageId, Timestamp)>>,
    pub dead_letters: BTreeMap<(TenantId, DlqId), DeadLetterRecord>,
    pub queues: BTreeMap<(TenantId, String), Queue>,
    pub flows: BTreeMap<(TenantId, String), Flow>,
    pub schedules: BTreeMap<(TenantId, String), Schedule>,
    pub bulk_actions: BTreeMap<Seq, BulkAction>,
    pub runs: BTreeMap<Seq, Arc<Run>>,
    /// By run and index.
    pub entries: BTreeMap<(Seq, u32), (Entry, Bytes)>,
    /// By run.
    pub notes: BTreeMap<(Seq, NoteKey), Note>,
    /// By tenant, event, and the timer of the wait.
    pub waiters: BTreeMap<(TenantId, String, Seq), Waiter>,
    pub last_seq: Option<Seq>,
}

impl Model {
    /// Applies an op.
    pub(super) fn apply(&mut self, shard: ShardId, op: &Op) -> Result<(), StoreError> {
        match op {
            Op::Insert { message, live } => {
                if self.messages.insert(message.id.seq, Arc::clone(message)).is_some() {
                    return Err(broken("message", "its position is taken"));
                }
                self.live.insert(live.id.seq, (shard, *live));
                self.last_seq = self.last_seq.max(Some(message.id.seq));
            }
            Op::PutDedupKey { tenant, key, id, expires } => {
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
            Op::InsertDeadLetter(letter) => {
                self.take_live(shard, letter.id)?;
                let message = self.message(letter.id).ok_or_else(|| absent("message", letter.id))?;
                let record = DeadLetterRecord { letter: letter.clone(), message };
                if self.dead_letters.insert((letter.tenant, letter.dlq_id), record).is_some() {
                    return Err(broken("dead letter", "its position is taken"));
                }
            }
            Op::DeleteDeadLetter { tenant, dlq_id } => {
                if self.dead_letters.remove(&(*tenant, *dlq_id)).is_none() {
                    return Err(broken("dead letter", "it is missing"));
                }
            }
            Op::PutQueue(queue) => {
                self.queues.insert((queue.tenant, queue.name.clone()), queue.clone());
            }
            Op::DropQueue { tenant, name } => {
                self.queues.remove(&(*tenant, name.clone()));
            }
            Op::PutFlow(flow) => {
                self.flows.insert((flow.tenant, flow.key.clone()), flow.clone());
            }
            Op::DropFlow { tenant, key } => {
                self.flows.remove(&(*tenant, key.clone()));
            }
            Op::PutSchedule(schedule) => {
                self.schedules.insert((schedule.tenant, schedule.id.clone()), schedule.as_ref().clone());
            }
            Op::SetSchedule { tenant, id, state } => {
                let schedule = self.schedules.get_mut(&(*tenant, id.clone()));
                schedule.ok_or_else(|| broken("schedule", "it is missing"))?.state = state.clone();
            }
            Op::DropSchedule { tenant, id } => {
                let schedule = self.schedules.remove(&(*tenant, id.clone()));
                schedule.ok_or_else(|| broken("schedule", "it is missing"))?;
            }
            Op::PutBulkAction(action) => self.put_bulk_action(action)?,
            Op::Workflow(change) => self.change_run(change)?,
        }
        Ok(())
    }

    fn put_bulk_action(&mut self, action: &BulkAction) -> Result<(), StoreError> {
        let before = self.bulk_actions.insert(action.id, action.clone());
        if before.is_some_and(|before| before.tenant != action.tenant) {
            return Err(broken("bulk action", "its position is taken"));
        }
        self.last_seq = self.last_seq.max(Some(action.id));
        Ok(())
    }

    /// Approximate stored bytes of a tenant: of a message only the body counts, and a shared body counts several times.
    pub(super) fn stored_bytes(&self, tenant: TenantId) -> u64 {
        let messages = self.messages.values().filter(|message| message.tenant == tenant);
        let groups = self.url_groups.iter().filter(|((owner, _), _)| *owner == tenant);
        let actions = self.bulk_actions.values().filter(|action| action.tenant == tenant);
        messages.map(|message| ROW_BYTES + message.body.len() as u64).sum::<u64>()
            + groups.map(|(_, group)| json_row_bytes(group)).sum::<u64>()
            + actions.map(json_row_bytes).sum::<u64>()
            + self.stored_bytes_of_runs(tenant)
    }

    fn take_live(&mut self, shard: ShardId, id: MessageId) -> Result<(), StoreError> {
        match self.live.remove(&id.seq) {
            Some((owner, live)) if owner == shard && live.id == id => Ok(()),
            _ => Err(absent("live message", id)),
        }
    }

    /// The message with this id.
    pub(super) fn message(&self, id: MessageId) -> Option<Arc<Message>> {
        self.messages.get(&id.seq).filter(|message| message.id == id).cloned()
    }

    /// The live row of the message with this id.
    pub(super) fn live_of(&self, id: MessageId) -> Option<Live> {
        self.live.get(&id.seq).map(|(_, live)| *live).filter(|live| live.id == id)
    }

    /// The number of live rows that match.
    pub(super) fn count_live(&self, is_meant: impl Fn(&Live) -> bool) -> u64 {
        self.live.values().filter(|(_, live)| is_meant(live)).count() as u64
    }

    /// Drops expired data and returns the number of dropped buckets.
    pub(super) fn retain(&mut self, policy: &Retention, now: Timestamp) -> u32 {
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
        let end = Seq::first_at(now.minus_millis(limits::BULK_ACTION_MS));
        self.bulk_actions.retain(|id, action| action.completed_at.is_none() || *id >= end);
        self.retain_runs(policy, now);
        u32::try_from(dropped.len()).unwrap_or(u32::MAX)
    }
}

pub(super) fn broken(what: &'static str, how: &'static str) -> StoreError {
    StoreError::Corrupt { what, source: how.into() }
}
