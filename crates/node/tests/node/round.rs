//! Rounds: how often they read, when they commit, and when their replies leave.

use crate::driver::{Driver, MANY, NOW, TENANT, message};
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::DedupKey;
use posthaste_node::{
    Command, DeadLetterCommand, FlowCommand, MessageCommand, NewMessage, QueueCommand, QueueSettings, Quotas, Replay,
    Reply,
};
use posthaste_wire::id::{DlqId, MessageId, Position, Seq, TenantId};

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
    driver.push(Command::Flows(edit));
    driver.run();
    let story = driver.story();
    assert_eq!(
        story.iter().filter(|line| line.starts_with("read")).collect::<Vec<_>>(),
        ["read 100 keys, 0 rows, 0 letters"]
    );
    assert_eq!(story.iter().filter(|line| line.starts_with("commit")).count(), 1);
}

/// A commit in the middle of a round makes what was read before out of date.
#[test]
fn keys_are_read_a_few_times_however_often_a_round_commits() {
    const PUBLISHES: u32 = 20;
    const MESSAGES: u32 = 500;
    let mut driver = Driver::new(MANY);
    driver.ops_max = 1_024;
    for publish in 0..PUBLISHES {
        let keyed = |number: u32| NewMessage { dedup: Some(key(publish * MESSAGES + number)), ..message(None) };
        driver.publish_many("new", (0..MESSAGES).map(keyed).collect());
    }
    // The first message of each publish again: committed by then, and not known any more from before the commit.
    for publish in 0..PUBLISHES {
        driver.publish_many("again", vec![NewMessage { dedup: Some(key(publish * MESSAGES)), ..message(None) }]);
    }
    driver.run();
    let story = driver.story();
    let keys = |line: &String| line.strip_prefix("read ")?.split(' ').next()?.parse::<u32>().ok();
    let read: u32 = story.iter().filter_map(keys).sum();
    let commits = story.iter().filter(|line| line.starts_with("commit")).count();
    assert!(commits > 5, "{commits} commits");
    assert!(read <= 3 * PUBLISHES * MESSAGES, "{read} keys were read");
    let count = |reply: &str| story.iter().filter(|line| *line == reply).count() as u32;
    assert_eq!(count("new: 500 published, 0 duplicates"), PUBLISHES);
    assert_eq!(count("again: 1 published, 1 duplicates"), PUBLISHES);
}

fn key(number: u32) -> DedupKey {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    DedupKey(bytes)
}

#[test]
fn replies_leave_after_the_commit_in_their_order_and_refusals_at_once() {
    let mut driver = Driver::new(Quotas { queues: 1, ..MANY });
    let settings = QueueSettings { parallelism: 1, paused: false };
    for name in ["first", "second"] {
        let reply = driver.reply(name);
        driver.push(Command::Queues(QueueCommand::Put { tenant: TENANT, name: name.to_owned(), settings, reply }));
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
        driver.push(Command::Messages(MessageCommand::Cancel { tenant: TENANT, ids: twice.clone(), reply }));
    }
    let other = TenantId(2);
    let reply = driver.reply("other tenant");
    driver.push(Command::Messages(MessageCommand::Cancel { tenant: other, ids: vec![row.id], reply }));
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
    driver.push(Command::DeadLetters(DeadLetterCommand::Replay { tenant: TENANT, replays, reply }));
    driver.run();
    assert_eq!(driver.story(), ["read 0 keys, 0 rows, 3 letters", "commit, synced: true", "[true, false, false]"]);
    assert_eq!(driver.rows().len(), 1);
}
