//! Messages and short histories for the tests of the stores.

use bytes::Bytes;
use posthaste_engine::bulk_action::{BulkAction, Task};
use posthaste_engine::event::{DeadLetter, Event, EventDetail, Op, Response, State};
use posthaste_engine::flow::Flow;
use posthaste_engine::message::{DueKey, FlowKey, FlowSpec, Live, Message, MessageSpec, Origin, Place, QueueKey, Turn};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget};
use posthaste_engine::shard::{LaneKey, Load, Source};
use posthaste_store::{
    Durability, Epoch, EventFilter, EventRecord, Filter, NamePage, Order, Page, PageRequest, ShardId, Store, StoreError,
};
use posthaste_wire::id::{DlqId, MessageId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::path::Path;
use std::sync::Arc;

pub(crate) const SECOND: u64 = 1_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
/// Midnight, so that a new bucket of every kind starts here.
pub(crate) const T0: Timestamp = Timestamp(20_000 * DAY);
pub(crate) const SHARD: ShardId = ShardId(0);

/// A store with an owner and a tenant, and the steps in the life of a message.
pub(crate) struct Rig<'a> {
    pub store: &'a dyn Store,
    pub epoch: Epoch,
    pub tenant: TenantId,
}

impl<'a> Rig<'a> {
    pub(crate) fn new(store: &'a dyn Store) -> Rig<'a> {
        let epoch = store.lease(SHARD, T0).unwrap();
        Rig { store, epoch, tenant: store.tenant("default").unwrap() }
    }

    pub(crate) fn commit(&self, ops: &[Op]) -> Result<(), StoreError> {
        self.store.commit(SHARD, self.epoch, ops, Durability::Synced)
    }

    /// A message that is due at once, with the log lines of its first attempt.
    pub(crate) fn publish(&self, at: Timestamp) -> Arc<Message> {
        self.publish_with(at, |_| {})
    }

    pub(crate) fn publish_with(&self, at: Timestamp, change: impl FnOnce(&mut Message)) -> Arc<Message> {
        let message = self.draft(at, change);
        self.commit(&published(&message)).unwrap();
        message
    }

    /// A message that is not stored yet.
    pub(crate) fn draft(&self, at: Timestamp, change: impl FnOnce(&mut Message)) -> Arc<Message> {
        let seq = Seq::next(self.store.last_seq().unwrap(), at);
        let mut message = message(self.tenant, MessageId { seq, tag: !seq.0 }, at);
        change(&mut message);
        Arc::new(message)
    }

    pub(crate) fn deliver(&self, message: &Message, at: Timestamp) {
        self.commit(&[Op::Remove { id: message.id }, line(message, at, State::Delivered)]).unwrap();
    }

    pub(crate) fn fail(&self, message: &Message, at: Timestamp, status: Option<u16>) -> DeadLetter {
        let letter = dead_letter(message, at, status);
        self.commit(&[Op::InsertDeadLetter(letter.clone()), line(message, at, State::Failed)]).unwrap();
        letter
    }

    pub(crate) fn events(&self, filter: &EventFilter, page: &PageRequest) -> Page<EventRecord> {
        self.store.list_events(self.tenant, filter, page).unwrap()
    }

    /// All log lines, newest first: message and state.
    pub(crate) fn story(&self) -> Vec<(MessageId, State)> {
        let page = self.events(&EventFilter::default(), &latest(10_000));
        page.entries.iter().map(|line| (line.event.id, line.event.state)).collect()
    }

    pub(crate) fn live_ids(&self) -> Vec<MessageId> {
        let live = self.store.match_live(self.tenant, &Filter::default(), Seq::MIN, usize::MAX).unwrap();
        live.iter().map(|live| live.id).collect()
    }
}

pub(crate) fn message(tenant: TenantId, id: MessageId, at: Timestamp) -> Message {
    let spec = MessageSpec {
        url: "https://example.org/hook".into(),
        method: "POST".into(),
        headers: vec![("Content-Type".into(), "text/plain".into())],
        retries: 3,
        retry_delay: None,
        timeout_ms: None,
        labels: Vec::new(),
        redact: Default::default(),
        caller_ip: "127.0.0.1".into(),
        topic: None,
        ..MessageSpec::default()
    };
    Message { id, tenant, created_at: at, not_before: at, spec, body: Bytes::from_static(b"hello") }
}

pub(crate) fn live(message: &Message) -> Live {
    Live {
        id: message.id,
        tenant: message.tenant,
        origin: Origin(u64::MAX - u64::from(message.tenant.0)),
        body_bytes: u32::try_from(message.body.len()).unwrap(),
        due: message.not_before,
        retried: 0,
        cancel_requested: false,
        place: message.spec.queue.as_ref().map(|name| Place {
            queue: QueueKey::of(message.tenant, name),
            turn: Turn::new(message.id.seq, message.created_at, message.not_before),
        }),
        flow: message.spec.flow.as_ref().map(|flow| FlowKey::of(message.tenant, &flow.key)),
        is_step: message.spec.workflow.is_some(),
    }
}

/// The rows outside of queues that are due between two times, of one lane or of all.
pub(crate) fn due(lane: Option<LaneKey>, after: DueKey, until: Timestamp, max: usize) -> Load {
    Load { source: Source::Due { lane, after, until }, max }
}

/// The rows of a queue after a position, or all of them.
pub(crate) fn queued(tenant: TenantId, name: &str, after: Option<&Live>, max: usize) -> Load {
    let first = (Turn { at: Timestamp(0), seq: Seq::MIN }, Seq::MIN);
    let after = after.map_or(first, |live| (live.place.unwrap().turn, live.id.seq));
    Load { source: Source::Queue { tenant, queue: QueueKey::of(tenant, name), after }, max }
}

pub(crate) fn flow_spec(key: &str) -> FlowSpec {
    FlowSpec { key: key.to_owned(), parallelism: Some(1), rate: None, period_ms: SECOND }
}

pub(crate) fn queue(tenant: TenantId, name: &str) -> Queue {
    Queue {
        tenant,
        name: name.to_owned(),
        parallelism: 3,
        paused: false,
        created_at: T0,
        updated_at: T0,
        deleted: false,
    }
}

pub(crate) fn flow(tenant: TenantId, key: &str) -> Flow {
    Flow {
        tenant,
        key: key.to_owned(),
        parallelism: Some(2),
        rate: None,
        period_ms: SECOND,
        pinned_parallelism: true,
        pinned_rate: false,
        paused: false,
        starts: vec![(T0, 3)],
    }
}

pub(crate) fn schedule(tenant: TenantId, id: &str) -> Schedule {
    let message = message(tenant, MessageId { seq: Seq(1), tag: 1 }, T0);
    Schedule {
        tenant,
        id: id.to_owned(),
        plan: SchedulePlan {
            created_at: T0,
            cron: "* * * * *".into(),
            destination: ScheduleTarget::Url(message.spec.url.clone()),
            delay_ms: Some(5),
            spec: message.spec,
        },
        body: Bytes::from_static(&[0, 255, 10]),
        state: ScheduleState { next: Some(T0.plus_millis(MINUTE)), ..ScheduleState::default() },
    }
}

/// An unfinished bulk action.
pub(crate) fn bulk_action(tenant: TenantId, id: Seq) -> BulkAction {
    BulkAction {
        tenant,
        id,
        task: Task::Cancel,
        filter: vec![("label".into(), vec!["a".into(), "b".into()])],
        until: id,
        after: Seq::MIN,
        count: Some(7),
        rate: Some(50),
        total: 9,
        processed: 0,
        refused: 0,
        problem: None,
        created_at: id.time(),
        completed_at: None,
        stopped: false,
    }
}

pub(crate) fn inserted(message: &Arc<Message>) -> Op {
    Op::Insert { message: Arc::clone(message), live: live(message) }
}

/// The ops of a publish.
pub(crate) fn published(message: &Arc<Message>) -> Vec<Op> {
    vec![inserted(message), line(message, message.created_at, State::Created)]
}

pub(crate) fn line(message: &Message, at: Timestamp, state: State) -> Op {
    Op::Log(Event { tenant: message.tenant, id: message.id, at, state, detail: EventDetail::default() })
}

pub(crate) fn dead_letter(message: &Message, at: Timestamp, status: Option<u16>) -> DeadLetter {
    let response = status.map(|status| {
        let headers = vec![("Server".to_owned(), "test".to_owned())];
        Arc::new(Response { status, headers, body: vec![0, 159, 146, 150], truncated: false })
    });
    let error = response.is_none().then(|| "connection refused".to_owned());
    let dlq_id = DlqId { at, n: message.id.seq.0 };
    DeadLetter { dlq_id, tenant: message.tenant, id: message.id, retried: 3, error, response }
}

pub(crate) fn latest(count: usize) -> PageRequest {
    PageRequest::new(None, count, Order::LatestFirst)
}

/// Reads a whole list page by page.
pub(crate) fn walk<T>(count: usize, order: Order, mut list: impl FnMut(&PageRequest) -> Page<T>) -> Vec<Vec<T>> {
    let mut pages = Vec::new();
    let mut cursor: Option<Position> = None;
    loop {
        let page = list(&PageRequest::new(cursor, count, order));
        cursor = page.next;
        pages.push(page.entries);
        assert!(pages.len() < 10_000, "the cursor does not move");
        if cursor.is_none() {
            return pages;
        }
    }
}

/// All schedules of a tenant. Their bodies fit on a page.
pub(crate) fn all_schedules(store: &dyn Store, tenant: TenantId) -> Vec<Schedule> {
    let page = store.schedules(tenant, &NamePage::FIRST).unwrap();
    assert_eq!(page.next, None);
    page.entries.into_iter().map(|listed| listed.schedule).collect()
}

/// Runs retention until nothing more is due.
pub(crate) fn retain_all(store: &dyn Store, history_ms: u64, dlq_ms: u64, now: Timestamp) -> u32 {
    let policy = posthaste_store::Retention { history_ms, dlq_ms };
    let mut dropped = 0;
    loop {
        let retained = store.retain(&policy, now).unwrap();
        dropped += retained.buckets_dropped;
        if !retained.more {
            return dropped;
        }
    }
}

/// Copies all files: what a process leaves if it is killed now.
pub(crate) fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
