//! A driver that writes down what it does, and a store in RAM.

use bytes::Bytes;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::message::{DedupKey, Live, MessageSpec, Origin};
use posthaste_engine::schedule::Schedule;
use posthaste_engine::shard::{Accepted, Settings, Shard};
use posthaste_engine::url_group::UrlGroup;
use posthaste_engine::workflow::{Part, StepRef};
use posthaste_node::{
    Bounds, Command, DeliverStep, Facts, FirstDue, Host, MessageCommand, Moment, NewMessage, Next, NoRoom, Node,
    Progress, Quotas, Reply, Round, TakenRoom, Wanted,
};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

pub(crate) const TENANT: TenantId = TenantId(1);
pub(crate) const NOW: Timestamp = Timestamp(1_780_315_200_000);

/// Random numbers that count, and a disk that may be full.
#[derive(Default)]
pub(crate) struct Counter {
    random: u64,
    pub(crate) is_full: bool,
}

impl Host for Counter {
    fn random(&mut self) -> u64 {
        self.random += 1;
        self.random
    }

    fn take_room(&mut self, _tenant: TenantId, _bytes: usize) -> Result<Option<TakenRoom>, NoRoom> {
        if self.is_full { Err(NoRoom::DiskLow) } else { Ok(None) }
    }
}

impl Stored {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::PutDedupKey { tenant, key, id, .. } => drop(self.duplicates.insert((*tenant, *key), *id)),
            Op::Insert { live, .. } | Op::Update(live) => drop(self.live.insert((live.tenant, live.id), *live)),
            Op::Remove { id } => drop(self.live.remove(&(TENANT, *id))),
            Op::PutBulkAction(action) => drop(self.bulk_actions.insert(action.id, action.clone())),
            Op::DeleteDeadLetter { tenant, dlq_id } => drop(self.dead_letters.remove(&(*tenant, *dlq_id))),
            Op::PutSchedule(schedule) => {
                let key = (schedule.tenant, schedule.id.clone());
                self.schedules.insert(key, schedule.as_ref().clone());
            }
            Op::SetSchedule { tenant, id, state } => {
                self.schedules.get_mut(&(*tenant, id.clone())).unwrap().state = state.clone();
            }
            Op::DropSchedule { tenant, id } => drop(self.schedules.remove(&(*tenant, id.clone()))),
            _ => {}
        }
    }
}

/// What is stored.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) duplicates: HashMap<(TenantId, DedupKey), MessageId>,
    pub(crate) live: HashMap<(TenantId, MessageId), Live>,
    pub(crate) steps: HashMap<MessageId, StepRef>,
    pub(crate) dead_letters: HashSet<(TenantId, DlqId)>,
    pub(crate) schedules: BTreeMap<(TenantId, String), Schedule>,
    pub(crate) bulk_actions: BTreeMap<Seq, BulkAction>,
    pub(crate) groups: HashMap<String, UrlGroup>,
}

/// A driver that writes down what it does.
pub(crate) struct Driver {
    pub(crate) node: Node,
    pub(crate) round: Round,
    pub(crate) host: Counter,
    pub(crate) stored: Stored,
    pub(crate) now: Timestamp,
    /// Ops after which it commits in the middle of a round.
    pub(crate) ops_max: usize,
    /// Reads, commits, and replies, in their order.
    pub(crate) story: Arc<Mutex<Vec<String>>>,
}

impl Driver {
    pub(crate) fn new(quotas: Quotas) -> Driver {
        Driver::bounded(quotas, Bounds::default())
    }

    pub(crate) fn bounded(quotas: Quotas, bounds: Bounds) -> Driver {
        let node = Node::new(Shard::new(Settings::default()), quotas, bounds, Seq::MIN);
        let (round, host, stored, story) = (Round::default(), Counter::default(), Stored::default(), Arc::default());
        Driver { node, round, host, stored, now: NOW, ops_max: usize::MAX, story }
    }

    /// A reply that is written down.
    pub(crate) fn reply<T: std::fmt::Debug + 'static>(&self, name: &'static str) -> Reply<T> {
        let story = self.story.clone();
        Reply::new(move |value| story.lock().unwrap().push(format!("{name}: {value:?}")))
    }

    pub(crate) fn push(&mut self, command: Command) {
        self.round.push(command, &self.node);
    }

    pub(crate) fn publish(&mut self, name: &'static str, message: NewMessage) {
        let story = self.story.clone();
        let reply = Reply::new(move |published: Result<Vec<_>, _>| {
            let duplicates =
                published.unwrap().iter().map(|accepted: &Accepted| accepted.deduplicated).collect::<Vec<_>>();
            story.lock().unwrap().push(format!("{name}: {duplicates:?}"));
        });
        self.push(Command::Messages(MessageCommand::Publish { messages: vec![message], reply }));
    }

    pub(crate) fn tell(&self, text: String) {
        self.story.lock().unwrap().push(text);
    }

    pub(crate) fn run(&mut self) {
        loop {
            match self.round.next(&mut self.node, &mut Moment { now: self.now, host: &mut self.host }) {
                Next::Read(wanted) => {
                    let facts = self.read(&wanted);
                    self.round.found(facts);
                }
                Next::Commit => self.commit(),
                Next::Decided if self.node.batch.out.ops.len() >= self.ops_max => self.commit(),
                Next::Decided => {}
                Next::DeliverStep(step) => self.ask_run(*step),
                Next::Done => return self.commit(),
            }
        }
    }

    /// One round of schedules that fire.
    pub(crate) fn fire(&mut self) {
        let Some(mut firing) = self.node.fire_due(self.now) else { return self.tell("nothing is due".to_owned()) };
        loop {
            match firing.next(&mut self.node, &mut Moment { now: self.now, host: &mut self.host }) {
                Progress::Read(wanted) => {
                    let facts = self.read(&wanted);
                    firing.found(facts);
                }
                Progress::Commit => self.commit(),
                Progress::Decided => {}
                Progress::Done => return self.commit(),
            }
        }
    }

    /// Runs in this store agree to everything but to the delivery of their first entry.
    fn ask_run(&mut self, step: DeliverStep) {
        let is_noted = step.step.part != Part::Entry(0);
        self.tell(format!("the run decides about {:?}", step.step.part));
        self.node.deliver_step_now(step, is_noted, &mut Moment { now: self.now, host: &mut self.host });
    }

    /// One turn of large publishes.
    pub(crate) fn take_turn(&mut self) {
        let Some(mut turn) = self.node.next_turn() else { return self.tell("no turn".to_owned()) };
        loop {
            match turn.next(&mut self.node, &mut Moment { now: self.now, host: &mut self.host }) {
                Progress::Read(wanted) => {
                    let facts = self.read(&wanted);
                    turn.found(facts);
                }
                Progress::Commit => self.commit(),
                Progress::Decided => {}
                Progress::Done => return self.commit(),
            }
        }
    }

    /// One trip to the store.
    pub(crate) fn read(&self, wanted: &Wanted) -> Facts {
        let Wanted { duplicates, live, steps, dead_letters, schedules, due, url_groups } = wanted;
        let mut text = format!("read {} keys, {} rows, {} letters", duplicates.len(), live.len(), dead_letters.len());
        let others =
            [(schedules.len(), "schedules"), (due.schedules.len(), "due schedules"), (url_groups.len(), "groups")];
        for (count, kind) in others.into_iter().filter(|(count, _)| *count > 0) {
            text += &format!(", {count} {kind}");
        }
        self.tell(text);
        let stored = &self.stored;
        let mut facts = Facts::default();
        let known = |key: &(TenantId, DedupKey)| Some((*key, *stored.duplicates.get(key)?));
        facts.duplicates = duplicates.iter().filter_map(known).collect();
        facts.live = live.iter().filter_map(|key| Some((*key, *stored.live.get(key)?))).collect();
        facts.steps = steps.iter().filter_map(|(_, id)| Some((*id, *stored.steps.get(id)?))).collect();
        facts.dead_letters = dead_letters.iter().filter(|key| stored.dead_letters.contains(key)).copied().collect();
        for key in schedules {
            if let Some(schedule) = stored.schedules.get(key) {
                facts.schedules.entry(key.0).or_default().insert(key.1.clone(), schedule.clone());
            }
        }
        let mut bytes = 0;
        for (tenant, id) in &due.schedules {
            if bytes >= due.bytes_max {
                break;
            }
            let schedule = stored.schedules.get(&(*tenant, id.to_string())).cloned();
            bytes += schedule.as_ref().map_or(0, |schedule| schedule.body.len());
            facts.due.push(schedule);
        }
        for (tenant, name) in url_groups {
            if let Some(group) = stored.groups.get(name) {
                facts.url_groups.entry(*tenant).or_default().insert(name.clone(), group.clone());
            }
        }
        facts
    }

    pub(crate) fn commit(&mut self) {
        let mut batch = self.node.batch.take();
        let ops = batch.take_ops();
        if !ops.is_empty() {
            self.tell(format!("commit, synced: {}", batch.is_synced()));
        }
        for op in &ops {
            self.stored.apply(op);
        }
        self.round.committed();
        self.node.shard.committed(self.now);
        let mut done = batch.committed();
        while done.reply_next() {}
        self.node.batch.reuse(done, ops);
    }

    pub(crate) fn story(&self) -> Vec<String> {
        std::mem::take(&mut *self.story.lock().unwrap())
    }

    pub(crate) fn rows(&self) -> Vec<Live> {
        let mut rows: Vec<Live> = self.stored.live.values().copied().collect();
        rows.sort_unstable_by_key(|row| row.id);
        rows
    }
}

pub(crate) const MANY: Quotas = Quotas { queues: 100, flow_keys: 100, schedules: 100 };

pub(crate) fn message(key: Option<u8>) -> NewMessage {
    let spec = MessageSpec { url: "https://r.example/".to_owned(), ..MessageSpec::default() };
    NewMessage {
        tenant: TENANT,
        origin: Origin::of_url(TENANT, &spec.url),
        spec,
        body: Bytes::from_static(b"x"),
        first_due: FirstDue::AfterMs(3_600_000),
        dedup: key.map(|key| DedupKey([key; 32])),
    }
}
