//! Rounds: how often they read, when they commit, and when their replies leave.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use bytes::Bytes;
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{DedupKey, Live, MessageSpec, Origin};
use posthaste_engine::shard::{Settings, Shard};
use posthaste_node::{
    Command, DeadLetterCommand, Facts, FirstDue, FlowCommand, Host, MessageCommand, Moment, NewMessage, Next, Node,
    QueueCommand, QueueSettings, Quotas, Replay, Reply, Round, Wanted,
};
use posthaste_wire::id::{DlqId, MessageId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::sync::{Arc, Mutex};

const TENANT: TenantId = TenantId(1);
const NOW: Timestamp = Timestamp(1_780_315_200_000);

/// Random numbers that count.
struct Counter(u64);

impl Host for Counter {
    fn random(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// A driver that writes down what it does, and a store that holds keys and live rows.
struct Driver {
    node: Node,
    round: Round,
    host: Counter,
    stored: Facts,
    /// Reads, commits, and replies, in their order.
    story: Arc<Mutex<Vec<String>>>,
}

impl Driver {
    fn new(quotas: Quotas) -> Driver {
        let node = Node::new(Shard::new(Settings::default()), quotas, Seq::MIN);
        let (round, host, stored, story) = (Round::default(), Counter(0), Facts::default(), Arc::default());
        Driver { node, round, host, stored, story }
    }

    /// A reply that is written down.
    fn reply<T: std::fmt::Debug + 'static>(&self, name: &'static str) -> Reply<T> {
        let story = self.story.clone();
        Reply::new(move |value| story.lock().unwrap().push(format!("{name}: {value:?}")))
    }

    fn publish(&mut self, name: &'static str, message: NewMessage) {
        let story = self.story.clone();
        let reply = Reply::new(move |published: Result<Vec<_>, _>| {
            let duplicates = published
                .unwrap()
                .iter()
                .map(|accepted: &posthaste_engine::shard::Accepted| accepted.deduplicated)
                .collect::<Vec<_>>();
            story.lock().unwrap().push(format!("{name}: {duplicates:?}"));
        });
        self.round.push(Command::Messages(MessageCommand::Publish { messages: vec![message], reply }));
    }

    fn tell(&self, text: String) {
        self.story.lock().unwrap().push(text);
    }

    fn run(&mut self) {
        loop {
            match self.round.next(&mut self.node, &mut Moment { now: NOW, host: &mut self.host }) {
                Next::Read(wanted) => {
                    self.tell(format!(
                        "read {} keys, {} rows, {} letters",
                        wanted.duplicates.len(),
                        wanted.live.len(),
                        wanted.dead_letters.len()
                    ));
                    let facts = self.find(&wanted);
                    self.round.found(facts);
                }
                Next::Commit => self.commit(),
                Next::Decided => {}
                Next::Done => return self.commit(),
            }
        }
    }

    fn find(&self, wanted: &Wanted) -> Facts {
        let Facts { duplicates, live, dead_letters } = self.stored.clone();
        Facts {
            duplicates: duplicates.into_iter().filter(|(key, _)| wanted.duplicates.contains(key)).collect(),
            live: live.into_iter().filter(|(key, _)| wanted.live.contains(key)).collect(),
            dead_letters: dead_letters.into_iter().filter(|key| wanted.dead_letters.contains(key)).collect(),
        }
    }

    fn commit(&mut self) {
        let mut batch = self.node.batch.take();
        let ops = batch.take_ops();
        if !ops.is_empty() {
            self.tell(format!("commit, synced: {}", batch.is_synced()));
        }
        for op in &ops {
            match op {
                posthaste_engine::event::Op::PutDedupKey { tenant, key, id, .. } => {
                    self.stored.duplicates.insert((*tenant, *key), *id);
                }
                posthaste_engine::event::Op::Insert { live, .. } => {
                    self.stored.live.insert((live.tenant, live.id), *live);
                }
                posthaste_engine::event::Op::Remove { id } => {
                    self.stored.live.remove(&(TENANT, *id));
                }
                _ => {}
            }
        }
        self.round.committed();
        self.node.shard.committed(NOW);
        let mut done = batch.committed();
        while done.reply_next() {}
        self.node.batch.reuse(done, ops);
    }

    fn story(&self) -> Vec<String> {
        std::mem::take(&mut *self.story.lock().unwrap())
    }

    fn rows(&self) -> Vec<Live> {
        let mut rows: Vec<Live> = self.stored.live.values().copied().collect();
        rows.sort_unstable_by_key(|row| row.id);
        rows
    }
}

const MANY: Quotas = Quotas { queues: 100, flow_keys: 100 };

fn message(key: Option<u8>) -> NewMessage {
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

#[test]
fn a_round_reads_once_for_all_its_commands() {
    let mut driver = Driver::new(MANY);
    for _ in 0..20 {
        driver.publish("plain", message(None));
    }
    driver.run();
    assert!(!driver.story().iter().any(|line| line.starts_with("read")), "nothing must be known of plain messages");

    for key in 0..100 {
        driver.publish("new", message(Some(key)));
    }
    let edit =
        FlowCommand::Edit { tenant: TENANT, key: "k".to_owned(), edit: FlowEdit::Pause, reply: driver.reply("edit") };
    driver.round.push(Command::Flows(edit));
    driver.run();
    let story = driver.story();
    assert_eq!(
        story.iter().filter(|line| line.starts_with("read")).collect::<Vec<_>>(),
        ["read 100 keys, 0 rows, 0 letters"]
    );
    assert_eq!(story.iter().filter(|line| line.starts_with("commit")).count(), 1);
}

#[test]
fn replies_leave_after_the_commit_in_their_order_and_refusals_at_once() {
    let mut driver = Driver::new(Quotas { queues: 1, ..MANY });
    let settings = QueueSettings { parallelism: 1, paused: false };
    for name in ["first", "second"] {
        let reply = driver.reply(name);
        driver.round.push(Command::Queues(QueueCommand::Put {
            tenant: TENANT,
            name: name.to_owned(),
            settings,
            reply,
        }));
    }
    driver.publish("publish", message(None));
    driver.run();
    let refused = "second: Err(QuotaExceeded { quota: \"maxQueues\", limit: 1 })";
    assert_eq!(driver.story(), [refused, "commit, synced: true", "first: Ok(())", "publish: [false]"]);
}

#[test]
fn a_command_about_rows_sees_all_that_was_decided_before() {
    let mut driver = Driver::new(MANY);
    driver.publish("a", message(None));
    driver.run();
    let [row] = driver.rows()[..] else { panic!("one row") };
    driver.story();

    driver.publish("b", message(Some(1)));
    let twice = vec![row.id, row.id, MessageId { seq: Seq(1), tag: 1 }];
    for name in ["cancel", "again"] {
        let reply = driver.reply(name);
        driver.round.push(Command::Messages(MessageCommand::Cancel { tenant: TENANT, ids: twice.clone(), reply }));
    }
    let other = TenantId(2);
    let reply = driver.reply("other tenant");
    driver.round.push(Command::Messages(MessageCommand::Cancel { tenant: other, ids: vec![row.id], reply }));
    driver.publish("b again", message(Some(1)));
    driver.run();
    let cancelled = format!("cancel: {:?}", [row.id]);
    assert_eq!(
        driver.story(),
        [
            "read 1 keys, 0 rows, 0 letters",
            "commit, synced: true",
            "b: [false]",
            "read 0 keys, 3 rows, 0 letters",
            "commit, synced: true",
            &cancelled,
            "read 0 keys, 3 rows, 0 letters",
            "read 1 keys, 1 rows, 0 letters",
            "again: []",
            "other tenant: []",
            "b again: [true]",
        ]
    );
}

#[test]
fn duplicates_within_a_round_are_found_without_a_commit() {
    let mut driver = Driver::new(MANY);
    driver.publish("first", message(Some(7)));
    driver.publish("second", message(Some(7)));
    driver.run();
    driver.publish("third", message(Some(7)));
    driver.run();
    let story = driver.story();
    let replies: Vec<_> = story.iter().filter(|line| line.contains('[')).collect();
    assert_eq!(replies, ["first: [false]", "second: [true]", "third: [true]"]);
}

#[test]
fn a_dead_letter_is_published_again_once_however_often_it_is_named() {
    let mut driver = Driver::new(MANY);
    let id = |n| Position { at: NOW, n };
    let (known, unknown): (DlqId, DlqId) = (id(1), id(2));
    driver.stored.dead_letters.insert((TENANT, known));
    let replay = |dlq_id| Replay { dlq_id, message: message(None) };
    let story = driver.story.clone();
    let reply = Reply::new(move |accepted: Vec<Option<_>>| {
        let published: Vec<bool> = accepted.iter().map(Option::is_some).collect();
        story.lock().unwrap().push(format!("{published:?}"));
    });
    let replays = vec![replay(known), replay(unknown), replay(known)];
    driver.round.push(Command::DeadLetters(DeadLetterCommand::Replay { tenant: TENANT, replays, reply }));
    driver.run();
    assert_eq!(driver.story(), ["read 0 keys, 0 rows, 3 letters", "commit, synced: true", "[true, false, false]"]);
    assert_eq!(driver.rows().len(), 1);
}
