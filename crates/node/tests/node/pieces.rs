//! Large publishes: their pieces, their turns, and when they are answered.

use crate::driver::{Driver, MANY, TENANT, message};
use posthaste_engine::shard::Accepted;
use posthaste_node::{Bounds, Command, MessageCommand, NewMessage, QuotaExceeded, Quotas, Reply};
use posthaste_wire::id::TenantId;

/// Pieces of 2 messages, and turns of 3 pieces.
const SMALL: Bounds = Bounds {
    batch_bytes: 4_000,
    batch_messages: 4,
    piece_messages: 2,
    piece_bytes: 100_000,
    turn_bytes: 3_100,
    fired: 1,
    fired_read: 1,
    fired_messages: 1,
    fired_bytes: 1,
};

impl Driver {
    pub(crate) fn publish_many(&mut self, name: &'static str, messages: Vec<NewMessage>) {
        let story = self.story.clone();
        let reply = Reply::new(move |published: Result<Vec<Accepted>, QuotaExceeded>| {
            let text = match published {
                Ok(accepted) => {
                    let duplicates = accepted.iter().filter(|accepted| accepted.deduplicated).count();
                    format!("{name}: {} published, {duplicates} duplicates", accepted.len())
                }
                Err(exceeded) => format!("{name}: {}", exceeded.quota),
            };
            story.lock().unwrap().push(text);
        });
        self.push(Command::Messages(MessageCommand::Publish { messages, reply }));
    }
}

fn messages(count: usize, key: Option<u8>) -> Vec<NewMessage> {
    (0..count).map(|_| message(key)).collect()
}

#[test]
fn a_small_publish_takes_no_turn_and_without_keys_nothing_is_read() {
    let mut driver = Driver::bounded(MANY, SMALL);
    driver.publish_many("small", messages(4, None));
    driver.run();
    driver.take_turn();
    assert_eq!(driver.story(), ["commit, synced: true", "small: 4 published, 0 duplicates", "no turn"]);
    driver.publish_many("large", messages(13, None));
    driver.run();
    while driver.node.has_turns() {
        driver.take_turn();
    }
    let story = driver.story();
    assert!(story.iter().all(|line| !line.starts_with("read")), "{story:?}");
    assert_eq!(story.last().unwrap(), "large: 13 published, 0 duplicates");
    assert_eq!(driver.stored.live.len(), 17);
}

#[test]
fn a_turn_reads_once_for_all_its_pieces_and_the_reply_leaves_after_the_last_commit() {
    let mut driver = Driver::bounded(MANY, SMALL);
    driver.publish_many("large", (0..9).map(|key| message(Some(key))).collect());
    driver.run();
    assert_eq!(driver.story(), [] as [String; 0], "nothing is decided before its turn");
    driver.take_turn();
    assert_eq!(driver.story(), ["read 6 keys, 0 rows, 0 letters", "commit, synced: true"], "no reply yet");
    driver.take_turn();
    let last = "large: 9 published, 0 duplicates";
    assert_eq!(driver.story(), ["read 3 keys, 0 rows, 0 letters", "commit, synced: true", last]);
    driver.take_turn();
    assert_eq!(driver.story(), ["no turn"]);
}

#[test]
fn duplicates_are_found_within_a_turn_and_over_turns() {
    let mut driver = Driver::bounded(MANY, SMALL);
    driver.publish_many("large", messages(9, Some(7)));
    driver.run();
    driver.take_turn();
    driver.take_turn();
    assert_eq!(driver.story().last().unwrap(), "large: 9 published, 8 duplicates");
    assert_eq!(driver.stored.live.len(), 1);
}

#[test]
fn tenants_take_turns_piece_by_piece() {
    let mut driver = Driver::bounded(MANY, SMALL);
    driver.publish_many("greedy", messages(50, None));
    let other = messages(6, None).into_iter().map(|message| NewMessage { tenant: TenantId(2), ..message });
    driver.publish_many("other", other.collect());
    driver.run();
    let own = |driver: &Driver, tenant| driver.stored.live.keys().filter(|(owner, _)| *owner == tenant).count();
    driver.take_turn();
    assert_eq!((own(&driver, TENANT), own(&driver, TenantId(2))), (4, 2));
    driver.take_turn();
    assert_eq!((own(&driver, TENANT), own(&driver, TenantId(2))), (6, 6));
    assert_eq!(driver.story().last().unwrap(), "other: 6 published, 0 duplicates");
}

#[test]
fn a_large_publish_that_exceeds_a_quota_stores_nothing() {
    let mut driver = Driver::bounded(Quotas { queues: 0, ..MANY }, SMALL);
    let mut many = messages(9, None);
    many[8].spec.queue = Some("q".to_owned());
    driver.publish_many("large", many);
    driver.run();
    assert_eq!(driver.story(), ["large: maxQueues"]);
    assert!(!driver.node.has_turns());
}
