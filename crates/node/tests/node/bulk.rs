//! Bulk actions: what a piece reads, and what it counts.

use crate::driver::{Driver, MANY, NOW, TENANT, message};
use posthaste_engine::bulk_action::{BulkAction, Task};
use posthaste_node::{BulkDone, BulkPiece, Command, PutBulkAction, Replay, Reply};
use posthaste_wire::id::{DlqId, MessageId, Position, Seq};

fn action() -> BulkAction {
    BulkAction {
        tenant: TENANT,
        id: Seq::MIN,
        task: Task::Cancel,
        filter: Vec::new(),
        until: Seq::MIN,
        after: Seq::MIN,
        count: None,
        rate: None,
        total: 0,
        processed: 0,
        refused: 0,
        problem: None,
        created_at: NOW,
        completed_at: None,
        stopped: false,
    }
}

impl Driver {
    /// Stores a bulk action and returns it as it is stored then.
    fn put_action(&mut self, action: BulkAction, piece: Option<BulkPiece>) -> BulkAction {
        let story = self.story.clone();
        let reply = Reply::new(move |BulkDone { action, duplicates }| {
            let (done, left) = (action.processed, action.refused);
            story.lock().unwrap().push(format!("{done} done, {left} left, {} duplicates", duplicates.len()));
        });
        self.push(Command::BulkAction(PutBulkAction { action: Box::new(action), piece, reply }));
        self.run();
        self.stored.bulk_actions.values().last().unwrap().clone()
    }
}

#[test]
fn a_bulk_action_is_begun_without_a_read_and_gets_an_id() {
    let mut driver = Driver::new(MANY);
    let begun = driver.put_action(action(), None);
    assert_eq!(driver.story(), ["commit, synced: true", "0 done, 0 left, 0 duplicates"]);
    assert!(begun.id > Seq::MIN);
    driver.put_action(begun.clone(), None);
    assert_eq!(driver.stored.bulk_actions.len(), 1, "it keeps its id");
}

#[test]
fn a_piece_reads_once_counts_what_it_has_done_and_is_one_transaction_with_its_progress() {
    let mut driver = Driver::new(MANY);
    let begun = driver.put_action(action(), None);
    for _ in 0..10 {
        driver.publish("publish", message(None));
    }
    driver.run();
    driver.story();
    let mut ids: Vec<MessageId> = driver.rows().into_iter().map(|row| row.id).collect();
    ids.extend([ids[0], MessageId { seq: Seq(1), tag: 1 }]);
    let after = driver.put_action(begun, Some(BulkPiece::Cancel(ids)));
    let read = "read 0 keys, 12 rows, 0 letters";
    assert_eq!(driver.story(), [read, "commit, synced: true", "10 done, 0 left, 0 duplicates"]);
    assert_eq!((after.processed, driver.rows().len()), (10, 0));
}

#[test]
fn dead_letters_are_deleted_or_published_again_and_duplicates_stay() {
    let mut driver = Driver::new(MANY);
    let begun = driver.put_action(action(), None);
    driver.publish("publish", message(Some(1)));
    driver.run();
    driver.story();
    let letters: Vec<DlqId> = (1..=4).map(|n| Position { at: NOW, n }).collect();
    driver.stored.dead_letters.extend(letters.iter().map(|id| (TENANT, *id)));
    let replay = |dlq_id: &DlqId, key| Replay { dlq_id: *dlq_id, message: message(key) };
    let piece = BulkPiece::Replay(vec![replay(&letters[0], Some(1)), replay(&letters[1], None)]);
    let after = driver.put_action(begun, Some(piece));
    let read = "read 1 keys, 0 rows, 2 letters";
    assert_eq!(driver.story(), [read, "commit, synced: true", "1 done, 1 left, 1 duplicates"]);
    assert!(after.problem.is_some_and(|problem| problem.starts_with("duplicate of msg_")));

    let unknown = Position { at: NOW, n: 9 };
    driver.put_action(action(), Some(BulkPiece::Delete(vec![letters[2], letters[3], unknown])));
    let read = "read 0 keys, 0 rows, 3 letters";
    assert_eq!(driver.story(), [read, "commit, synced: true", "2 done, 0 left, 0 duplicates"]);
    assert_eq!(driver.stored.dead_letters.len(), 1, "the duplicate stays a dead letter");
}
