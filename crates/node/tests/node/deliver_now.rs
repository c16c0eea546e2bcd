//! Deliver now: what must be known of a message, and what becomes of it.

use crate::driver::{Driver, MANY, TENANT, message};
use posthaste_engine::message::{Live, MessageSpec};
use posthaste_engine::workflow::{Part, StepRef};
use posthaste_node::{Command, DeliverNow, NewMessage};
use posthaste_wire::id::{MessageId, Seq, TenantId};

const READ: &str = "read 0 keys, 1 rows, 0 letters";

impl Driver {
    fn deliver_now(&mut self, tenant: TenantId, id: MessageId) {
        let reply = self.reply("due");
        self.push(Command::DeliverNow(DeliverNow { tenant, id, reply }));
    }

    fn publish_one(&mut self, message: NewMessage) -> Live {
        self.publish("publish", message);
        self.run();
        self.story();
        *self.rows().last().unwrap()
    }
}

#[test]
fn a_delayed_message_is_due_when_that_is_stored() {
    let mut driver = Driver::new(MANY);
    let row = driver.publish_one(message(None));
    assert!(row.due > driver.now);
    driver.deliver_now(TENANT, row.id);
    driver.run();
    assert_eq!(driver.story(), [READ, "commit, synced: true", "due: Ok(())"]);
    assert_eq!(driver.rows()[0].due, driver.now);
}

#[test]
fn what_is_unknown_queued_or_of_another_tenant_stays_as_it_is() {
    let mut driver = Driver::new(MANY);
    let spec = MessageSpec { queue: Some("q".to_owned()), ..message(None).spec };
    let queued = driver.publish_one(NewMessage { spec, ..message(None) });
    let delayed = driver.publish_one(message(None));
    driver.deliver_now(TENANT, queued.id);
    driver.deliver_now(TENANT, MessageId { seq: Seq(1), tag: 1 });
    driver.deliver_now(TenantId(2), delayed.id);
    driver.run();
    let refused = ["due: Err(Queued)", "due: Err(Unknown)", "due: Err(Unknown)"];
    assert_eq!(driver.story(), [READ, READ, READ, refused[0], refused[1], refused[2]]);
    assert_eq!(driver.rows(), [queued, delayed]);
}

#[test]
fn the_run_of_a_message_decides_and_a_deadline_is_never_sent() {
    let mut driver = Driver::new(MANY);
    let row = driver.publish_one(message(None));
    let key = (TENANT, row.id);
    driver.stored.live.insert(key, Live { is_step: true, ..row });
    let asked = |driver: &mut Driver, part| {
        driver.stored.steps.insert(row.id, StepRef { run: Seq(1), part });
        driver.deliver_now(TENANT, row.id);
        driver.run();
        driver.story()[1..].to_vec()
    };
    assert_eq!(asked(&mut driver, Part::Deadline), ["due: Err(Deadline)"]);
    assert_eq!(asked(&mut driver, Part::Entry(0)), ["the run decides about Entry(0)", "due: Err(Unknown)"]);
    let agreed = ["the run decides about Entry(1)", "commit, synced: true", "due: Ok(())"];
    assert_eq!(asked(&mut driver, Part::Entry(1)), agreed);
}
