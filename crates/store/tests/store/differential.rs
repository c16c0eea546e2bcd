//! Random histories on the reference model and on SQLite, with and without a journal. Both must give the same answers,
//! also after the process was killed.
//!
//! Log lines are numbered differently, so pages are compared by content, and each store gets its own cursors.

mod runs;

use crate::support::*;
use bytes::Bytes;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{DeadLetter, Event, EventDetail, Op, State};
use posthaste_engine::flow::Flow;
use posthaste_engine::limits;
use posthaste_engine::message::{DedupKey, DueKey, FlowKey, Live, Message, Origin, QueueKey};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_engine::shard::{Lane, Load};
use posthaste_engine::url_group::{Edit, Endpoint};
use posthaste_engine::workflow::{Waiter, Workflow};
use posthaste_store::journal::{JournalOptions, JournalStore};
use posthaste_store::memory::MemoryStore;
use posthaste_store::sqlite::fuzzing::usage_and_recount;
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};
use posthaste_store::{
    Durability, Epoch, EventFilter, EventRecord, Filter, NamePage, Order, PageRequest, Part, Store, StoreError,
};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use runs::{AskRuns, RunStep, ask_runs, run_step};
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const URLS: [&str; 3] = ["https://a.example/x", "https://a.example:8443/y?q=1", "http://b.example/x"];
const LABELS: [&str; 3] = ["red", "green", "blue"];
/// Names of queues, flow-control keys and schedules.
const NAMES: [&str; 3] = ["a", "b", "'"];

/// One step of a history. It chooses among all messages that were ever published. A large part of the steps therefore
/// concerns messages that have ended. Both stores must reject those steps in the same way and change nothing.
#[derive(Clone, Debug)]
enum Step {
    Publish {
        tenant: u32,
        url: usize,
        labels: Vec<usize>,
        delay: u64,
        body: usize,
        key: Option<u8>,
        queue: Option<usize>,
        flow: Option<usize>,
    },
    /// A message that shares the turn of another.
    CallBack {
        which: Index,
    },
    Named(Named),
    /// Several messages with one body.
    PublishTogether {
        tenant: u32,
        count: usize,
    },
    Run(RunStep),
    PeekAtRuns {
        which: Index,
    },
    AskForRuns {
        filter: AskRuns,
        count: usize,
        order: Order,
    },
    Reschedule {
        which: Index,
        delay: u64,
        cancel: bool,
    },
    Log {
        which: Index,
        state: State,
        next_due: Option<u64>,
    },
    Deliver {
        which: Index,
    },
    Bury {
        which: Index,
        status: Option<u16>,
    },
    Exhume {
        which: Index,
    },
    /// Several ends in one batch. One of them may be impossible.
    DeliverTogether {
        which: Vec<Index>,
    },
    /// The process is killed, and another one takes over.
    Kill,
    Pass {
        millis: u64,
    },
    Retain {
        history_ms: u64,
        dlq_ms: u64,
    },
    Ask {
        filter: AskFilter,
        count: usize,
        order: Order,
    },
}

/// A change of a named object.
#[derive(Clone, Debug)]
struct Named {
    what: What,
    tenant: u32,
    name: usize,
    /// The written value; `None` drops the object.
    value: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Queue,
    Flow,
    Schedule,
    ScheduleState,
    NewBulkAction,
    BulkAction,
    Group,
}

/// A filter, before the messages of the history are known.
#[derive(Clone, Debug, Default)]
struct AskFilter {
    ids: Vec<Index>,
    urls: Vec<usize>,
    hosts: Vec<&'static str>,
    labels: Vec<usize>,
    queues: Vec<usize>,
    flows: Vec<usize>,
    states: Vec<State>,
    statuses: Vec<u16>,
    from: Option<u64>,
    to: Option<u64>,
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<Index>;
    let delay = || select(vec![0, 1, SECOND, HOUR, 10 * DAY, 300 * DAY]);
    let status = || select(vec![None, Some(404), Some(500)]);
    let publish = (
        1..3_u32,
        0..URLS.len(),
        prop::collection::vec(0..LABELS.len(), 0..3),
        delay(),
        0..40_usize,
        prop::option::weighted(0.3, 0..3_u8),
        prop::option::weighted(0.4, 0..NAMES.len()),
        prop::option::weighted(0.3, 0..NAMES.len()),
    );
    prop_oneof![
        6 => publish.prop_map(|(tenant, url, labels, delay, body, key, queue, flow)| {
            Step::Publish { tenant, url, labels, delay, body, key, queue, flow }
        }),
        2 => (1..3_u32, 2..5_usize).prop_map(|(tenant, count)| Step::PublishTogether { tenant, count }),
        1 => which().prop_map(|which| Step::CallBack { which }),
        4 => named().prop_map(Step::Named),
        16 => run_step().prop_map(Step::Run),
        4 => which().prop_map(|which| Step::PeekAtRuns { which }),
        2 => (ask_runs(), 1..6_usize, select(vec![Order::LatestFirst, Order::EarliestFirst]))
            .prop_map(|(filter, count, order)| Step::AskForRuns { filter, count, order }),
        2 => (which(), delay(), any::<bool>())
            .prop_map(|(which, delay, cancel)| Step::Reschedule { which, delay, cancel }),
        2 => (which(), select(State::ALL.to_vec()), prop::option::of(delay()))
            .prop_map(|(which, state, next_due)| Step::Log { which, state, next_due }),
        2 => which().prop_map(|which| Step::Deliver { which }),
        2 => (which(), status()).prop_map(|(which, status)| Step::Bury { which, status }),
        1 => which().prop_map(|which| Step::Exhume { which }),
        1 => Just(Step::Kill),
        1 => prop::collection::vec(which(), 1..4).prop_map(|which| Step::DeliverTogether { which }),
        4 => select(vec![1, SECOND, limits::DEDUP_WINDOW_MS - 1, 3 * HOUR, 6 * HOUR, DAY, 3 * DAY, 9 * DAY])
            .prop_map(|millis| Step::Pass { millis }),
        2 => (select(vec![0, HOUR, DAY, 7 * DAY]), select(vec![0, 2 * DAY, 30 * DAY]))
            .prop_map(|(history_ms, dlq_ms)| Step::Retain { history_ms, dlq_ms }),
        4 => (ask_filter(), 1..6_usize, select(vec![Order::LatestFirst, Order::EarliestFirst]))
            .prop_map(|(filter, count, order)| Step::Ask { filter, count, order }),
    ]
}

fn named() -> impl Strategy<Value = Named> {
    use What::{BulkAction, Flow, Group, NewBulkAction, Queue, Schedule, ScheduleState};
    let what = select(vec![Queue, Flow, Schedule, ScheduleState, NewBulkAction, BulkAction, Group]);
    (what, 1..3_u32, 0..NAMES.len(), prop::option::weighted(0.7, 0..9_u32))
        .prop_map(|(what, tenant, name, value)| Named { what, tenant, name, value })
}

fn ask_filter() -> impl Strategy<Value = AskFilter> {
    let rarely = 0.25;
    let time = || prop::option::weighted(rarely, select(vec![0, 1, 3 * HOUR, DAY, 10 * DAY]));
    (
        prop::option::weighted(rarely, prop::collection::vec(any::<Index>(), 1..4)),
        prop::option::weighted(rarely, prop::collection::vec(0..URLS.len(), 1..3)),
        prop::option::weighted(rarely, select(vec!["a.example", "a.example:8443", "c.example"])),
        prop::option::weighted(rarely, prop::collection::vec(0..LABELS.len(), 1..3)),
        prop::option::weighted(rarely, prop::collection::vec(0..NAMES.len(), 1..3)),
        prop::option::weighted(rarely, prop::collection::vec(0..NAMES.len(), 1..3)),
        prop::option::weighted(rarely, prop::collection::vec(select(State::ALL.to_vec()), 1..4)),
        prop::option::weighted(rarely, prop::collection::vec(select(vec![0, 404, 500]), 1..3)),
        time(),
        time(),
    )
        .prop_map(|(ids, urls, host, labels, queues, flows, states, statuses, from, to)| AskFilter {
            ids: ids.unwrap_or_default(),
            urls: urls.unwrap_or_default(),
            hosts: host.into_iter().collect(),
            labels: labels.unwrap_or_default(),
            queues: queues.unwrap_or_default(),
            flows: flows.unwrap_or_default(),
            states: states.unwrap_or_default(),
            statuses: statuses.unwrap_or_default(),
            from,
            to,
        })
}

/// The two stores, and what happened to them so far.
struct Pair {
    model: MemoryStore,
    subject: Box<dyn Store>,
    has_journal: bool,
    directory: tempfile::TempDir,
    epoch: Epoch,
    now: Timestamp,
    last: Seq,
    commits: u32,
    messages: Vec<Arc<Message>>,
    letters: Vec<DeadLetter>,
    bulk_actions: Vec<BulkAction>,
    runs: Vec<Workflow>,
    waiters: Vec<Waiter>,
    /// The last name of a restarted run.
    last_name: u32,
}

impl Pair {
    fn new(has_journal: bool) -> Pair {
        let model = MemoryStore::new();
        let directory = tempfile::tempdir().unwrap();
        let subject = open(directory.path(), has_journal);
        let epoch = model.lease(SHARD, T0).unwrap();
        assert_eq!(subject.lease(SHARD, T0).unwrap(), epoch);
        for name in ["one", "two"] {
            assert_eq!(model.tenant(name).unwrap(), subject.tenant(name).unwrap());
        }
        Pair {
            model,
            subject,
            has_journal,
            directory,
            epoch,
            now: T0,
            last: Seq::MIN,
            commits: 0,
            messages: Vec::new(),
            letters: Vec::new(),
            bulk_actions: Vec::new(),
            runs: Vec::new(),
            waiters: Vec::new(),
            last_name: 0,
        }
    }

    /// Continues with a copy of the files as they are now, which is what a kill leaves.
    fn kill(&mut self) {
        let copy = tempfile::tempdir().unwrap();
        copy_all(self.directory.path(), copy.path());
        self.subject = open(copy.path(), self.has_journal);
        self.directory = copy;
        self.epoch = self.both(|store| store.lease(SHARD, self.now)).unwrap();
    }

    /// Asks both stores. The answers must be equal. Errors are equal if they require the same reaction of the caller.
    fn both<T: PartialEq + Debug>(&self, ask: impl Fn(&dyn Store) -> Result<T, StoreError>) -> Result<T, &'static str> {
        let name = |error: StoreError| match error {
            StoreError::Corrupt { .. } => "corrupt",
            StoreError::Fenced => "fenced",
            StoreError::Unknown(_) => "unknown",
            StoreError::Unavailable(_) => "unavailable",
        };
        let (model, subject) = (ask(&self.model).map_err(name), ask(self.subject.as_ref()).map_err(name));
        assert_eq!(model, subject);
        subject
    }

    fn commit(&mut self, ops: &[Op]) -> bool {
        self.commits += 1;
        let durability = if self.commits.is_multiple_of(4) { Durability::Synced } else { Durability::Lazy };
        self.both(|store| store.commit(SHARD, self.epoch, ops, durability)).is_ok()
    }

    fn pick(&self, which: &Index) -> Option<Arc<Message>> {
        (!self.messages.is_empty()).then(|| Arc::clone(which.get(&self.messages)))
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Publish { tenant, url, labels, delay, body, key, queue, flow } => {
                let mut message = self.draft(TenantId(*tenant));
                let id = message.id;
                message.spec.queue = queue.map(|name| NAMES[name].into());
                message.spec.flow = flow.map(|name| flow_spec(NAMES[name]));
                message.spec.url = URLS[*url].into();
                message.spec.labels = labels.iter().map(|label| LABELS[*label].into()).collect();
                message.not_before = self.now.plus_millis(*delay);
                message.body = vec![b'x'; *body].into();
                let message = Arc::new(message);
                let live = Live { origin: Origin(*url as u64), ..live(&message) };
                let mut ops =
                    vec![Op::Insert { message: Arc::clone(&message), live }, line(&message, self.now, State::Created)];
                if let Some(key) = key {
                    let expires = self.now.plus_millis(limits::DEDUP_WINDOW_MS);
                    ops.push(Op::PutDedupKey { tenant: message.tenant, key: DedupKey([*key; 32]), id, expires });
                }
                assert!(self.commit(&ops));
                self.messages.push(message);
            }
            Step::PublishTogether { tenant, count } => {
                let body = Bytes::from(vec![b'y'; 5_000]);
                let mut ops = Vec::new();
                for _ in 0..*count {
                    let message = Arc::new(Message { body: body.clone(), ..self.draft(TenantId(*tenant)) });
                    ops.push(Op::Insert { message: Arc::clone(&message), live: live(&message) });
                    ops.push(line(&message, self.now, State::Created));
                    self.messages.push(message);
                }
                assert!(self.commit(&ops));
            }
            Step::CallBack { which } => {
                if let Some(cause) = self.pick(which) {
                    let message = Arc::new(self.draft(cause.tenant));
                    let live = Live { place: live(&cause).place, ..live(&message) };
                    assert!(self.commit(&[Op::Insert { message: Arc::clone(&message), live }]));
                    self.messages.push(message);
                }
            }
            Step::Named(named) => self.change(named),
            Step::Run(step) => self.apply_to_runs(step),
            Step::PeekAtRuns { which } => self.peek_at_runs(which),
            Step::AskForRuns { filter, count, order } => self.ask_for_runs(filter, *count, *order),
            Step::Exhume { which } if !self.letters.is_empty() => {
                let letter = which.get(&self.letters).clone();
                self.commit(&[Op::DeleteDeadLetter { tenant: letter.tenant, dlq_id: letter.dlq_id }]);
            }
            Step::Exhume { .. } => {}
            Step::DeliverTogether { which } => {
                let messages: Vec<_> = which.iter().filter_map(|which| self.pick(which)).collect();
                let ends = messages.iter().flat_map(|message| self.delivered(message));
                self.commit(&ends.collect::<Vec<_>>());
            }
            Step::Kill => self.kill(),
            Step::Pass { millis } => self.now = self.now.plus_millis(*millis),
            Step::Retain { history_ms, dlq_ms } => {
                retain_all(&self.model, *history_ms, *dlq_ms, self.now);
                retain_all(self.subject.as_ref(), *history_ms, *dlq_ms, self.now);
            }
            Step::Ask { filter, count, order } => self.ask(filter, *count, *order),
            Step::Reschedule { which, .. }
            | Step::Log { which, .. }
            | Step::Deliver { which }
            | Step::Bury { which, .. } => {
                if let Some(message) = self.pick(which) {
                    self.go_on(&message, step);
                }
            }
        }
    }

    fn draft(&mut self, tenant: TenantId) -> Message {
        self.last = Seq::next(self.last, self.now);
        let id = MessageId { seq: self.last, tag: self.last.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
        message(tenant, id, self.now)
    }

    fn change(&mut self, named: &Named) {
        let (tenant, name) = (TenantId(named.tenant), NAMES[named.name]);
        let state = |value: u32| ScheduleState { next: Some(Timestamp(value.into())), ..ScheduleState::default() };
        let op = match (named.what, named.value) {
            (What::Queue, Some(parallelism)) => Op::PutQueue(Queue { parallelism, ..queue(tenant, name) }),
            (What::Queue, None) => Op::DropQueue { tenant, name: name.into() },
            (What::Flow, rate @ Some(_)) => Op::PutFlow(Flow { rate, ..flow(tenant, name) }),
            (What::Flow, None) => Op::DropFlow { tenant, key: name.into() },
            (What::Schedule, Some(value)) => {
                Op::PutSchedule(Arc::new(Schedule { state: state(value), ..schedule(tenant, name) }))
            }
            (What::ScheduleState, Some(value)) => Op::SetSchedule { tenant, id: name.into(), state: state(value) },
            (What::Schedule | What::ScheduleState, None) => Op::DropSchedule { tenant, id: name.into() },
            (What::NewBulkAction, _) => {
                self.last = Seq::next(self.last, self.now);
                self.bulk_actions.push(bulk_action(tenant, self.last));
                Op::PutBulkAction(bulk_action(tenant, self.last))
            }
            (What::BulkAction, value) => {
                let Some(known) = self.bulk_actions.get(named.name) else { return };
                // From either tenant. The call with the other tenant is rejected.
                let completed_at = value.map(|value| self.now.plus_millis(value.into()));
                Op::PutBulkAction(BulkAction { tenant, completed_at, ..known.clone() })
            }
            (What::Group, value) => return self.edit_group(tenant, name, value),
        };
        self.commit(&[op]);
    }

    /// One step of a message that was published before.
    fn go_on(&mut self, message: &Message, step: &Step) {
        match step {
            Step::Reschedule { delay, cancel, .. } => {
                let due = self.now.plus_millis(*delay);
                let row = Live { due, retried: 1, cancel_requested: *cancel, ..live(message) };
                self.commit(&[Op::Update(row), line(message, self.now, State::Retry)]);
            }
            Step::Log { state, next_due, .. } => {
                // The engine writes log lines only for existing messages, and a line needs its message.
                if self.both(|store| store.message(message.tenant, message.id, Part::Whole)).unwrap().is_some() {
                    let next_due = next_due.map(|delay| self.now.plus_millis(delay));
                    let detail = EventDetail { next_due, ..EventDetail::default() };
                    let event = Event { tenant: message.tenant, id: message.id, at: self.now, state: *state, detail };
                    assert!(self.commit(&[Op::Log(event)]));
                }
            }
            Step::Bury { status, .. } => {
                let letter = dead_letter(message, self.now, *status);
                if self.commit(&[line(message, self.now, State::Failed), Op::InsertDeadLetter(letter.clone())]) {
                    self.letters.push(letter);
                }
            }
            _ => {
                self.commit(&self.delivered(message));
            }
        }
    }

    fn edit_group(&self, tenant: TenantId, name: &str, value: Option<u32>) {
        let endpoint = |n: u32| Endpoint { url: URLS[n as usize % URLS.len()].to_owned(), name: Some(n.to_string()) };
        let edit = match value {
            Some(n) if n < 6 => Edit::Add((0..=n).map(endpoint).collect()),
            Some(n) => Edit::SetHeaders(vec![("A".to_owned(), "b".repeat(n as usize))]),
            None => Edit::Delete,
        };
        let _ = self.both(|store| store.edit_url_group(tenant, name, &edit, self.now)).unwrap();
        self.both(|store| store.url_group(tenant, name)).unwrap();
    }

    fn delivered(&self, message: &Message) -> [Op; 2] {
        [Op::Remove { id: message.id }, line(message, self.now, State::Delivered)]
    }

    fn ask(&self, ask: &AskFilter, count: usize, order: Order) {
        let time = |back: u64| self.now.minus_millis(back);
        let mut filter = Filter {
            ids: ask.ids.iter().filter_map(|which| self.pick(which)).map(|message| message.id).collect(),
            urls: ask.urls.iter().map(|url| URLS[*url].to_owned()).collect(),
            hosts: ask.hosts.iter().map(|host| (*host).to_owned()).collect(),
            labels: ask.labels.iter().map(|label| LABELS[*label].to_owned()).collect(),
            queues: ask.queues.iter().map(|name| NAMES[*name].to_owned()).collect(),
            flow_keys: ask.flows.iter().map(|name| NAMES[*name].to_owned()).collect(),
            from: ask.from.map(time),
            to: ask.to.map(time),
            ..Filter::default()
        };
        let events = EventFilter { message: filter.clone(), states: ask.states.clone() };
        for tenant in [1, 2].map(TenantId) {
            self.both(|store| store.match_live(tenant, &filter, Seq::MIN, count)).unwrap();
            self.both(|store| {
                let list = |page: &PageRequest| store.list_events(tenant, &events, page).unwrap();
                let pages = walk(count, order, list);
                let content = |page: Vec<_>| page.into_iter().map(|line: EventRecord| (line.event, line.message));
                Ok(pages.into_iter().map(|page| content(page).collect::<Vec<_>>()).collect::<Vec<_>>())
            })
            .unwrap();
        }
        filter.response_statuses.clone_from(&ask.statuses);
        for tenant in [1, 2].map(TenantId) {
            self.both(|store| Ok(walk(count, order, |page| store.list_dead_letters(tenant, &filter, page).unwrap())))
                .unwrap();
            self.both(|store| {
                let (mut seen, page) = (Vec::new(), PageRequest::new(None, count, order));
                let visit = &mut |letter: &DeadLetter, message: &Message| {
                    if filter.matches_dead_letter(letter, message) {
                        seen.push((letter.clone(), message.clone()));
                    }
                    if seen.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                };
                store.visit_dead_letters(tenant, &filter, &page, visit).map(|()| seen)
            })
            .unwrap();
        }
    }

    /// Asks every query that has no filter. Every live message must be loadable.
    fn check(&self) {
        self.both(|store| store.counts()).unwrap();
        self.both(|store| store.last_seq()).unwrap();
        let until = self.now.plus_millis(DAY);
        let load = |load: &Load| self.both(|store| store.load(SHARD, load)).unwrap();
        let mut rows = load(&due(None, DueKey::MIN, Timestamp::MAX, 1_000));
        if let [first, ..] = &rows[..] {
            load(&due(None, first.due_key(), until, 5));
        }
        for tenant in [1, 2].map(TenantId) {
            load(&due(Some((tenant, Lane::Origin(Origin(1)))), DueKey::MIN, until, 3));
            for name in NAMES {
                load(&due(Some((tenant, Lane::Flow(FlowKey::of(tenant, name)))), DueKey::MIN, until, 3));
                let in_queue = load(&queued(tenant, name, None, 1_000));
                for row in &in_queue {
                    load(&queued(tenant, name, Some(row), 2));
                }
                rows.extend(in_queue);
            }
            self.check_named(tenant, until);
        }
        assert_eq!(rows.len() as u64, self.model.counts().unwrap().live, "every live message is loaded by one way");
        let ids: Vec<_> = rows.iter().map(|live| live.id).collect();
        self.both(|store| store.load_messages(&ids)).expect("every live message is there");
        for message in &self.messages {
            self.both(|store| store.message(message.tenant, message.id, Part::Whole)).unwrap();
        }
        for letter in &self.letters {
            self.both(|store| store.dead_letter(letter.tenant, letter.dlq_id)).unwrap();
        }
        for key in 0..3 {
            self.both(|store| store.find_duplicates(&[(TenantId(1), DedupKey([key; 32]))], self.now)).unwrap();
        }
        self.both(|store| store.queues(None)).unwrap();
        self.both(|store| store.flows()).unwrap();
        self.both(|store| store.schedule_states()).unwrap();
        self.both(|store| store.unfinished_bulk_actions()).unwrap();
        self.check_runs();
    }

    /// A tenant's named objects, and the messages that wait in them.
    fn check_named(&self, tenant: TenantId, until: Timestamp) {
        let queues = NAMES.map(|name| QueueKey::of(tenant, name));
        let flows = NAMES.map(|name| FlowKey::of(tenant, name));
        self.both(|store| store.queue_lags(tenant, &queues)).unwrap();
        self.both(|store| store.flow_loads(tenant, &flows, until)).unwrap();
        self.both(|store| store.queues(Some(tenant))).unwrap();
        for (after, count, part) in [(None, 9, Part::Whole), (Some("a".to_owned()), 1, Part::Head)] {
            let page = NamePage { after, count, part };
            self.both(|store| store.schedules(tenant, &page)).unwrap();
            self.both(|store| store.list_queues(tenant, &page)).unwrap();
        }
        self.both(|store| store.bulk_actions(tenant, None, 3)).unwrap();
        for name in NAMES {
            self.both(|store| store.queue(tenant, name)).unwrap();
            self.both(|store| store.schedule(tenant, name, Part::Whole)).unwrap();
        }
        for action in &self.bulk_actions {
            self.both(|store| store.bulk_action(tenant, action.id)).unwrap();
            self.both(|store| store.bulk_actions(tenant, Some(action.id), 2)).unwrap();
        }
    }
}

/// Changes are applied only when a query needs them, so that the copy for a kill shows one point in time.
fn open(directory: &Path, has_journal: bool) -> Box<dyn Store> {
    let file = directory.join("posthaste.db");
    if !has_journal {
        return Box::new(SqliteStore::open(&file, SqliteOptions::default()).unwrap());
    }
    let options = JournalOptions { apply_after: Duration::MAX, ..JournalOptions::default() };
    Box::new(JournalStore::open(&file, &directory.join("journal"), options).unwrap())
}

fn compare(steps: &[Step], has_journal: bool) {
    let mut pair = Pair::new(has_journal);
    for step in steps {
        pair.apply(step);
    }
    pair.check();
    let everything = AskFilter::default();
    pair.ask(&everything, 3, Order::LatestFirst);
    pair.ask(&everything, 4, Order::EarliestFirst);
    pair.ask_for_runs(&AskRuns::default(), 3, Order::LatestFirst);
    pair.kill();
    pair.check();
    let Pair { subject, directory, .. } = pair;
    drop(subject);
    let [counted, walked] = usage_and_recount(&directory.path().join("posthaste.db")).unwrap();
    assert_eq!(counted, walked, "what each tenant has stored is counted as it is written and dropped");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96, max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn sqlite_and_the_model_agree(steps in prop::collection::vec(step(), 1..60)) {
        compare(&steps, false);
    }

    #[test]
    fn the_journal_and_the_model_agree(steps in prop::collection::vec(step(), 1..60)) {
        compare(&steps, true);
    }
}
