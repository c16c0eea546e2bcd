//! Schedules: what must be known to change them, and how often a round of firings reads.

use crate::driver::{Driver, MANY, NOW, TENANT};
use bytes::Bytes;
use posthaste_engine::message::MessageSpec;
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget};
use posthaste_engine::url_group::{Endpoint, UrlGroup};
use posthaste_node::{Bounds, Command, Quotas, ScheduleCommand};
use posthaste_wire::cron::Cron;
use posthaste_wire::time::Timestamp;

const MINUTE_MS: u64 = 60_000;

fn schedule(id: &str, destination: ScheduleTarget, bytes: usize) -> Box<Schedule> {
    let (cron, spec) = ("* * * * *".to_owned(), MessageSpec::default());
    let plan = SchedulePlan { created_at: Timestamp(0), cron, destination, delay_ms: None, spec };
    let body = Bytes::from(vec![b'x'; bytes]);
    Box::new(Schedule { tenant: TENANT, id: id.to_owned(), plan, body, state: ScheduleState::default() })
}

fn url() -> ScheduleTarget {
    ScheduleTarget::Url("https://r.example/".to_owned())
}

impl Driver {
    fn schedule(&mut self, command: ScheduleCommand) {
        self.push(Command::Schedules(command));
    }

    fn put(&mut self, id: &str, destination: ScheduleTarget, bytes: usize) {
        let (schedule, reply) = (schedule(id, destination, bytes), self.reply("put"));
        self.schedule(ScheduleCommand::Put { schedule, reply });
    }

    fn pause(&mut self, id: &str) {
        let (id, reply) = (id.to_owned(), self.reply("pause"));
        self.schedule(ScheduleCommand::Pause { tenant: TENANT, id, paused: true, reply });
    }

    fn reschedule(&mut self, id: &str, cron: &str) {
        let (id, cron, reply) = (id.to_owned(), Box::new(Cron::parse(cron).unwrap()), self.reply("reschedule"));
        self.schedule(ScheduleCommand::Reschedule { tenant: TENANT, id, cron, reply });
    }

    fn delete(&mut self, id: &str) {
        let (id, reply) = (id.to_owned(), self.reply("delete"));
        self.schedule(ScheduleCommand::Delete { tenant: TENANT, id, reply });
    }

    fn state(&self, id: &str) -> &ScheduleState {
        &self.stored.schedules[&(TENANT, id.to_owned())].state
    }

    /// How many messages each schedule has made.
    fn made(&self) -> usize {
        self.stored.live.len()
    }
}

#[test]
fn a_new_schedule_reads_nothing_and_a_stored_one_is_read_after_all_before_is_committed() {
    let mut driver = Driver::new(MANY);
    driver.put("a", url(), 1);
    driver.put("b", url(), 1);
    driver.pause("unknown");
    driver.run();
    assert_eq!(driver.story(), ["commit, synced: true", "put: Ok(())", "put: Ok(())", "pause: false"]);

    driver.put("c", url(), 1);
    driver.pause("c");
    driver.reschedule("a", "*/5 * * * *");
    driver.run();
    assert_eq!(
        driver.story(),
        [
            "commit, synced: true",
            "put: Ok(())",
            "read 0 keys, 0 rows, 0 letters, 1 schedules",
            "commit, synced: true",
            "pause: true",
            "read 0 keys, 0 rows, 0 letters, 1 schedules",
            "commit, synced: true",
            "reschedule: true",
        ]
    );
    assert!(driver.state("c").paused);
    assert_eq!(driver.state("a").next, Some(NOW.plus_millis(5 * MINUTE_MS)));
    assert_eq!(driver.state("b").next, Some(NOW.plus_millis(MINUTE_MS)));
}

#[test]
fn a_deleted_schedule_is_unknown_in_the_same_round_and_makes_room_for_another() {
    let mut driver = Driver::new(Quotas { schedules: 1, ..MANY });
    driver.put("a", url(), 1);
    driver.put("b", url(), 1);
    driver.run();
    driver.story();
    driver.delete("a");
    driver.pause("a");
    driver.put("b", url(), 1);
    driver.run();
    assert_eq!(driver.story(), ["commit, synced: true", "delete: true", "pause: false", "put: Ok(())"]);
    assert_eq!(driver.stored.schedules.len(), 1);
}

#[test]
fn more_schedules_than_the_quota_are_refused_and_a_stored_one_can_be_replaced() {
    let mut driver = Driver::new(Quotas { schedules: 1, ..MANY });
    driver.put("a", url(), 1);
    driver.put("b", url(), 1);
    driver.put("a", url(), 2);
    driver.run();
    let refused = "put: Err(QuotaExceeded { quota: \"maxSchedules\", limit: 1 })";
    let read = "read 0 keys, 0 rows, 0 letters, 1 schedules";
    assert_eq!(
        driver.story(),
        [refused, "commit, synced: true", "put: Ok(())", read, "commit, synced: true", "put: Ok(())"]
    );
}

#[test]
fn a_round_of_firings_reads_its_schedules_at_once_and_their_groups_at_once() {
    let mut driver = Driver::new(MANY);
    for id in 0..20 {
        driver.put(&format!("url-{id}"), url(), 1);
        driver.put(&format!("group-{id}"), ScheduleTarget::Group("g".to_owned()), 1);
    }
    driver.put("nowhere", ScheduleTarget::Group("unknown".to_owned()), 1);
    driver.run();
    let endpoints = ["https://a.example/", "https://b.example/"];
    let endpoints = endpoints.map(|url| Endpoint { url: url.to_owned(), name: None }).to_vec();
    let group =
        UrlGroup { name: "g".to_owned(), endpoints, created_at: NOW, updated_at: NOW, headers: Default::default() };
    driver.stored.groups.insert("g".to_owned(), group);
    driver.story();

    driver.fire();
    assert_eq!(driver.story(), ["nothing is due"]);
    driver.now = NOW.plus_millis(MINUTE_MS);
    driver.fire();
    let reads = ["read 0 keys, 0 rows, 0 letters, 41 due schedules", "read 0 keys, 0 rows, 0 letters, 2 groups"];
    assert_eq!(driver.story(), [reads[0], reads[1], "commit, synced: true"]);
    assert_eq!(driver.made(), 20 + 2 * 20);
    assert_eq!(driver.state("nowhere").error.as_deref(), Some("topic unknown not found"));
    driver.fire();
    assert_eq!(driver.story(), ["nothing is due"]);
}

#[test]
fn a_round_of_firings_is_bounded_in_schedules_messages_and_bytes_and_the_rest_stays_due() {
    let wide = Bounds::default();
    let cases = [
        (Bounds { fired: 2, ..wide }, 2, "read 0 keys, 0 rows, 0 letters, 2 due schedules"),
        (Bounds { fired_messages: 3, ..wide }, 3, "read 0 keys, 0 rows, 0 letters, 5 due schedules"),
        (Bounds { fired_bytes: 15, ..wide }, 2, "read 0 keys, 0 rows, 0 letters, 5 due schedules"),
    ];
    for (bounds, fired, read) in cases {
        let mut driver = Driver::bounded(MANY, bounds);
        for id in 0..5 {
            driver.put(&format!("s{id}"), url(), 10);
        }
        driver.run();
        driver.story();
        driver.now = NOW.plus_millis(MINUTE_MS);
        driver.fire();
        assert_eq!(driver.story(), [read, "commit, synced: true"], "{bounds:?}");
        assert_eq!(driver.made(), fired, "{bounds:?}");
        for _ in 0..4 {
            driver.fire();
        }
        assert_eq!(driver.made(), 5, "{bounds:?}");
    }
}

/// A schedule that is read and does not fire would have to be read again in the next round.
#[test]
fn schedules_are_read_in_portions_until_the_round_has_done_enough() {
    let bounds = Bounds { fired_read: 2, fired_messages: 3, ..Bounds::default() };
    let mut driver = Driver::bounded(MANY, bounds);
    for id in 0..9 {
        driver.put(&format!("s{id}"), url(), 10);
    }
    driver.run();
    driver.story();
    driver.now = NOW.plus_millis(MINUTE_MS);
    driver.fire();
    let read = "read 0 keys, 0 rows, 0 letters, 2 due schedules";
    assert_eq!(driver.story(), [read, read, "commit, synced: true"]);
    assert_eq!(driver.made(), 3);
    for _ in 0..2 {
        driver.fire();
    }
    assert_eq!(driver.made(), 9);
    driver.story();

    // After the first schedule of a tenant found no room, no other one of it is read.
    driver.now = NOW.plus_millis(2 * MINUTE_MS);
    driver.host.is_full = true;
    driver.fire();
    assert_eq!(driver.story(), [read]);
}

#[test]
fn a_large_firing_is_committed_in_between_and_reads_no_more_for_it() {
    let mut driver = Driver::bounded(MANY, Bounds { batch_bytes: 1_000, ..Bounds::default() });
    for id in 0..3 {
        driver.put(&format!("s{id}"), url(), 1_000);
    }
    driver.run();
    driver.story();
    driver.now = NOW.plus_millis(MINUTE_MS);
    driver.fire();
    let read = "read 0 keys, 0 rows, 0 letters, 3 due schedules";
    assert_eq!(driver.story(), [read, "commit, synced: true", "commit, synced: true", "commit, synced: true"]);
}

#[test]
fn a_schedule_without_room_stays_due_and_fires_when_there_is_some() {
    let mut driver = Driver::new(MANY);
    driver.put("a", url(), 1);
    driver.put("b", url(), 1);
    driver.run();
    driver.now = NOW.plus_millis(MINUTE_MS);
    driver.host.is_full = true;
    driver.fire();
    assert_eq!((driver.made(), driver.state("a").last), (0, None));
    driver.story();
    driver.fire();
    assert_eq!(driver.story(), ["nothing is due"], "its tenant is held");
    driver.host.is_full = false;
    driver.now = driver.now.plus_millis(1_000);
    driver.fire();
    assert_eq!((driver.made(), driver.state("a").last), (2, Some(NOW.plus_millis(MINUTE_MS))));
}
