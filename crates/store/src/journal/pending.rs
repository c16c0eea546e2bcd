//! Changes that are in the journal but not yet in the database: enough to answer the engine, and their net effect for
//! the database.

use super::pending_runs::PendingRuns;
use crate::run::is_expired;
use crate::usage::{ROW_BYTES, UsageChange};
use crate::{Retention, ShardId};
use posthaste_engine::event::{DeadLetter, Event, Op};
use posthaste_engine::flow::Flow;
use posthaste_engine::message::{DedupKey, Live, Message, is_same_body};
use posthaste_engine::queue::Queue;
use posthaste_engine::workflow::run::Run;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// A log line that is at least this old when it is written does not count as recent.
const OLD_MS: u64 = 60_000;

/// The sum of several batches. A message that was published and has ended within them has no live row.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The first frame in here.
    /// The last frame in here; 0 if there is none.
    pub first: u64,
    pub last: u64,
    /// Total length of the frames.
    pub bytes: usize,
    /// The latest state of every message that the batches change, by position.
    pub messages: BTreeMap<Seq, PendingMessage>,
    /// Log lines, in the order of the batches.
    pub events: Vec<Event>,
    pub letters: Vec<DeadLetter>,
    /// Duplicate keys, with the windows of each in the order of the batches.
    pub keys: HashMap<(TenantId, DedupKey), Vec<(MessageId, Timestamp)>>,
    pub queues: BTreeMap<(TenantId, String), Queue>,
    pub flows: BTreeMap<(TenantId, String), Flow>,
    pub runs: PendingRuns,
    /// Approximate change of each tenant's stored bytes. The database counts them exactly.
    pub usage: UsageChange,
}

/// The latest state of a message.
#[derive(Debug)]
pub(crate) struct PendingMessage {
    pub id: MessageId,
    pub shard: ShardId,
    /// The message, if it was published in these batches.
    pub message: Option<Arc<Message>>,
    /// Its live row; `None` if it has ended.
    pub live: Option<Live>,
}

impl PendingMessage {
    /// Whether it belonged to a run and has ended. The entry of the run contains everything about it.
    pub(crate) fn is_ended_step(&self) -> bool {
        self.live.is_none() && self.message.as_ref().is_some_and(|message| message.spec.workflow.is_some())
    }
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.last == 0
    }

    /// Adds a checked batch, and returns how it changes the stored bytes of each tenant.
    pub(super) fn add(&mut self, number: u64, bytes: usize, shard: ShardId, ops: &[Op]) -> UsageChange {
        if self.is_empty() {
            self.first = number;
        }
        self.last = number;
        self.bytes += bytes;
        let (mut body, mut usage) = (None, UsageChange::new());
        for op in ops {
            match op {
                Op::Insert { message, live } => {
                    let is_same = body.is_some_and(|body| is_same_body(body, &message.body));
                    let own_bytes = if is_same { 0 } else { message.body.len() as u64 };
                    body = Some(&message.body);
                    *usage.entry(message.tenant).or_default() += (ROW_BYTES + own_bytes).cast_signed();
                    let entry =
                        PendingMessage { id: live.id, shard, message: Some(message.clone()), live: Some(*live) };
                    self.messages.insert(live.id.seq, entry);
                }
                Op::Update(live) => self.set_live(shard, live.id, Some(*live)),
                Op::Remove { id } => self.set_live(shard, *id, None),
                Op::InsertDeadLetter(letter) => {
                    self.set_live(shard, letter.id, None);
                    self.letters.push(letter.clone());
                }
                Op::Log(event) => self.events.push(event.clone()),
                Op::PutDedupKey { tenant, key, id, expires } => {
                    self.keys.entry((*tenant, *key)).or_default().push((*id, *expires));
                }
                Op::PutQueue(queue) => {
                    self.queues.insert((queue.tenant, queue.name.clone()), queue.clone());
                }
                Op::PutFlow(flow) => {
                    self.flows.insert((flow.tenant, flow.key.clone()), flow.clone());
                }
                Op::Workflow(change) => self.runs.add(change),
                _ => unreachable!("the journal takes no such op"),
            }
        }
        for (tenant, bytes) in &usage {
            *self.usage.entry(*tenant).or_default() += bytes;
        }
        usage
    }

    /// Whether history may be dropped while these changes are pending. Every log line must be recent and belong to a
    /// message in here, because any other message may have ended long ago and would be dropped if it has no log line.
    /// No run may be due for removal, in its pending or in its stored state, and there may be no late note of such a
    /// run.
    pub(super) fn allows_retention(&self, policy: &Retention, now: Timestamp) -> bool {
        let is_here = |event: &Event| event.at.plus_millis(OLD_MS) >= now && self.messages.contains_key(&event.id.seq);
        let shorter = policy.history_ms.min(policy.dlq_ms);
        let shorter = Retention { history_ms: shorter, dlq_ms: shorter };
        let is_old = |run: &Arc<Run>| is_expired(run, &shorter, now);
        self.events.iter().all(is_here) && !self.runs.runs().any(is_old) && !self.runs.has_late_notes()
    }

    /// The highest position of a published message or an entry of a run.
    pub(crate) fn last_seq(&self) -> Option<Seq> {
        let published = self.messages.iter().rev().find(|(_, entry)| entry.message.is_some());
        published.map(|(seq, _)| *seq).max(self.runs.last_seq())
    }

    /// Messages with pending log lines or dead letters. The set is empty if no ended step is pending, because only then
    /// is it needed.
    pub(crate) fn mentioned(&self) -> HashSet<Seq> {
        if !self.messages.values().any(PendingMessage::is_ended_step) {
            return HashSet::new();
        }
        let lines = self.events.iter().map(|event| event.id.seq);
        lines.chain(self.letters.iter().map(|letter| letter.id.seq)).collect()
    }

    fn set_live(&mut self, shard: ShardId, id: MessageId, live: Option<Live>) {
        self.messages.entry(id.seq).or_insert(PendingMessage { id, shard, message: None, live: None }).live = live;
    }

    /// Whether this message is live; `None` if nothing with its position is pending.
    pub(super) fn is_live(&self, shard: ShardId, id: MessageId) -> Option<bool> {
        let entry = self.messages.get(&id.seq)?;
        Some(entry.live.is_some() && entry.id == id && entry.shard == shard)
    }

    /// A message that was published in these batches.
    pub(super) fn message(&self, id: MessageId) -> Option<Arc<Message>> {
        self.messages.get(&id.seq).filter(|entry| entry.id == id)?.message.clone()
    }

    /// Whether the message with this position was published in these batches.
    pub(super) fn has_published(&self, seq: Seq) -> bool {
        self.messages.get(&seq).is_some_and(|entry| entry.message.is_some())
    }

    /// The windows of a duplicate key, in the order of their creation.
    pub(super) fn windows(&self, key: &(TenantId, DedupKey)) -> &[(MessageId, Timestamp)] {
        self.keys.get(key).map_or(&[], Vec::as_slice)
    }
}
