//! Workflow runs: reading back the written data, and finding it.

use crate::run_support::*;
use crate::support::*;
use posthaste_engine::event::{Op, Response};
use posthaste_engine::message::{DueKey, Message};
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::Delivery;
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::run::{Run, Trigger};
use posthaste_engine::workflow::{Attempt, Change, Overrides, Waiter, Workflow};
use posthaste_store::{ListedWait, Order, PageRequest, Part, ReadPool, RunFilter, Store, StoreError, Tally};
use posthaste_wire::id::{MessageId, Seq};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::Features;
use std::sync::Arc;

pub(super) fn a_run_is_read_back_as_it_was_written(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.start_with("run", T0, rich_run);
    let check = |run: &Workflow, what: &str| assert_eq!(rig.stored(run).as_ref(), Some(run), "{what}");
    check(&run, "started");
    rig.attempt(&mut run, 0, T0.plus_millis(1), 200);
    check(&run, "the first entry is delivered");
    rig.append(&mut run, T0.plus_millis(2), vec![step(1, "one"), call(2), step(3, "three")]);
    check(&run, "appended");
    rig.wait(&mut run, T0.plus_millis(3), "event", 4);
    rig.keep(&mut run, T0.plus_millis(4), "early", &[0, 255]);
    rig.invoke(&mut run, T0.plus_millis(5), 5, "{}");
    check(&run, "waiting");
    rig.decide(T0.plus_millis(6), |out| run.notify("event", b"data", out)).unwrap();
    check(&run, "notified");
    let again = Attempt { outcome: &outcome(500), retried: 0, next: Next::RetryAt(T0.plus_millis(DAY)), sent: b"" };
    rig.decide(T0.plus_millis(7), |out| run.attempted(1, again, out));
    check(&run, "to be tried again");
    rig.wait(&mut run, T0.plus_millis(8), "event", 6);
    rig.attempt(&mut run, 2, T0.plus_millis(9), 404);
    check(&run, "a call has failed, which is a result");
    rig.attempt(&mut run, 1, T0.plus_millis(10), 500);
    check(&run, "failed");
    assert!(run.run.failure.is_some() && is_quiet(&run));
    let told = Attempt { outcome: &outcome(200), retried: 0, next: Next::Done, sent: b"" };
    rig.decide(T0.plus_millis(11), |out| run.failure_told(told, out));
    check(&run, "told");
    assert_eq!(rig.live_ids().len(), 1, "the call about the failure");

    let overrides = Overrides { retries: Some(9), delay_ms: 5, ..Overrides::default() };
    let failed = rig.record(&run);
    let resumed =
        rig.decide(T0.plus_millis(12), |out| failed.resumed("again".into(), T0.plus_millis(12), overrides, out));
    check(&resumed, "resumed");
    check(&run, "what was resumed stays as it was");
    let mut finished = rig.start("finished", T0.plus_millis(13));
    rig.finish(&mut finished, T0.plus_millis(14));
    check(&finished, "finished");
    assert_eq!(store.workflow(rig.tenant, Seq(5)).unwrap(), None);
    let other = store.tenant("other").unwrap();
    assert_eq!(store.workflow(other, run.run.no).unwrap(), None);
    assert_eq!(store.run_steps(rig.tenant, run.run.no, "Run").unwrap().len(), 2);
    assert_eq!(store.run_steps(other, run.run.no, "Run").unwrap(), []);
}

pub(super) fn the_first_entry_can_be_replaced(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.start_with("run", T0, |new| new.config.trigger = Trigger::UnknownClient);
    let body = b"{\"stepId\":5}".as_slice().into();
    let replaced = rig.decide(T0.plus_millis(1), |out| {
        run.restart_by_client(body, "text/plain".into(), Vec::new(), Features::OF_TRIGGER, out)
    });
    assert!(replaced);
    rig.attempt(&mut run, 0, T0.plus_millis(2), 200);
    assert_eq!((rig.stored(&run).as_ref(), run.entries.len()), (Some(&run), 1));
    assert_eq!(rig.live_ids(), []);
}

pub(super) fn a_name_finds_its_newest_run(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let find = |id: &str, at: Option<Timestamp>| store.find_run(rig.tenant, id, at, ReadPool::Core).unwrap();
    assert_eq!(find("a", None), None);
    let mut first = rig.start("a", T0);
    let (other_name, foreign) = (rig.start("A", T0), rig.start_with("a", T0.plus_millis(9), |new| new.tenant = other));
    assert_eq!(find("a", None), Some(first.run.no));
    rig.finish(&mut first, T0);
    assert_eq!(find("a", None), Some(first.run.no), "it is remembered when it has ended");
    // In the same millisecond, so its time is a later one.
    let mut second = rig.start_with("a", T0, |new| new.created_at = T0.plus_millis(1));
    rig.finish(&mut second, T0.plus_millis(5));
    let third = rig.start("a", T0.plus_millis(7));
    assert_eq!(find("a", None), Some(third.run.no));
    for run in [&first, &second, &third] {
        assert_eq!(find("a", Some(run.run.created_at)), Some(run.run.no));
    }
    assert_eq!((find("a", Some(T0.plus_millis(2))), find("'", None)), (None, None));
    assert_eq!((find("A", None), find("A", Some(T0))), (Some(other_name.run.no), Some(other_name.run.no)));
    assert_eq!(store.find_run(other, "a", None, ReadPool::Core).unwrap(), Some(foreign.run.no));
}

pub(super) fn waiters_are_returned_in_the_order_they_were_added(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let mut runs = ["a", "b", "c"].map(|id| rig.start(id, T0));
    for which in [1, 0, 2] {
        rig.wait(&mut runs[which], T0, "event", 1);
    }
    rig.wait(&mut runs[0], T0, "event", 2);
    rig.wait(&mut runs[0], T0, "Event", 3);
    let mut foreign = rig.start_with("a", T0, |new| new.tenant = other);
    rig.wait(&mut foreign, T0, "event", 1);
    let waiting = |event: &str| {
        let waiters = store.waiters(rig.tenant, event, usize::MAX).unwrap();
        assert!(waiters.iter().all(|waiter| waiter.event == event && waiter.tenant == rig.tenant));
        waiters.iter().map(|waiter| (waiter.run, waiter.timer)).collect::<Vec<_>>()
    };
    let wait = |run: &Workflow, which: usize| (run.run.no, run.waits[which].timer);
    let all = [wait(&runs[1], 0), wait(&runs[0], 0), wait(&runs[2], 0), wait(&runs[0], 1)];
    assert_eq!(waiting("event"), all);
    assert_eq!((waiting("Event"), waiting("none")), (vec![wait(&runs[0], 2)], vec![]));
    rig.decide(T0, |out| runs[0].notify("event", b"", out)).unwrap();
    assert_eq!(waiting("event"), [all[0], all[2], all[3]]);
    // An ended run waits for nothing.
    rig.finish(&mut runs[0], T0);
    assert_eq!((waiting("event"), waiting("Event")), (vec![all[0], all[2]], vec![]));
    rig.decide(T0, |out| runs[1].deadline_reached(all[0].1, out));
    assert_eq!(waiting("event"), [all[2]]);
    assert_eq!(store.waiters(other, "event", usize::MAX).unwrap().len(), 1);
}

pub(super) fn waits_are_listed_with_the_details_of_their_runs(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let mut runs = ["a", "b"].map(|id| {
        rig.start_with(id, T0, |new| {
            new.url = format!("https://{id}.example/\u{e4}'");
            // One of them has redacted fields.
            if id == "b" {
                new.config.redact = RedactFields::parse("body, header[A]").unwrap();
            }
        })
    });
    for (which, event, step) in [(1, "event", 1), (0, "event", 1), (1, "Event", 2), (0, "event", 3)] {
        rig.wait(&mut runs[which], T0, event, step);
    }
    let mut foreign = rig.start_with("a", T0, |new| new.tenant = other);
    rig.wait(&mut foreign, T0, "event", 1);
    let listed = |event: &str, max: usize| store.waits(rig.tenant, event, Seq::MIN, max).unwrap();
    let wait = |runs: &[Workflow; 2], run: usize, wait: usize| {
        let Workflow { run, waits, .. } = &runs[run];
        ListedWait { url: run.url.clone(), redact: run.config.redact.clone(), wait: waits[wait].clone() }
    };
    let all = [wait(&runs, 1, 0), wait(&runs, 0, 0), wait(&runs, 0, 1)];
    assert_eq!(listed("event", 9), all);
    assert_eq!((listed("event", 2), listed("none", 9)), (all[..2].to_vec(), vec![]));
    let after = all[0].wait.timer.seq;
    assert_eq!(store.waits(rig.tenant, "event", after, 1).unwrap(), all[1..2], "the next page");
    assert_eq!(listed("Event", 9), [wait(&runs, 1, 1)]);
    rig.decide(T0, |out| runs[0].notify("event", b"", out)).unwrap();
    assert_eq!(listed("event", 9), [all[0].clone(), all[2].clone()]);
    rig.finish(&mut runs[1], T0);
    assert_eq!(listed("event", 9), [all[2].clone()], "what a run waited for when it ended is only in its log");
    assert_eq!(runs[1].waits.len(), 2);
}

pub(super) fn notes_of_a_run_are_read_back(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.start("a", T0);
    for (event, data) in [("x", &[0, 255][..]), ("y", b""), ("x", b"second")] {
        rig.keep(&mut run, T0, event, data);
    }
    assert_eq!(rig.stored(&run).as_ref(), Some(&run));
    // In the order of arrival. Taking one makes room for the next.
    for (number, event, expected) in [(1, "x", "AP8="), (2, "x", "c2Vjb25k"), (3, "y", "")] {
        rig.wait(&mut run, T0, event, number);
        let last: serde_json::Value = serde_json::from_slice(rig.record(&run).bodies.last().unwrap()).unwrap();
        assert_eq!((&last["stepId"], &last["out"]), (&number.into(), &expected.into()));
        if number == 2 {
            rig.keep(&mut run, T0, "z", b"later");
        }
        assert_eq!(rig.stored(&run).as_ref(), Some(&run));
    }
    rig.invoke(&mut run, T0, 4, "given to the child");
    rig.invoke(&mut run, T0, 5, "given to another");
    rig.invoked_has_ended(&mut run, T0, 5, "in time");
    rig.finish(&mut run, T0);
    rig.invoked_has_ended(&mut run, T0, 4, "too late");
    let record = rig.record(&run);
    assert_eq!((record.result.as_deref(), &record.answer, &record.told), (Some("\"ok\""), &None, &None));
    let told = |which: usize| (record.given(&run.invokes[which]), record.out(&run.invokes[which]));
    assert_eq!(told(0), ("given to the child".into(), Some("too late".to_owned())));
    assert_eq!(told(1), ("given to another".into(), None), "its result is in the list");
    assert_eq!((run.early.len(), run.entries.len()), (0, 5), "nobody will wait for the last event");
    let gone = store.note_body(run.run.no, NoteKey { kind: NoteKind::Early, n: 1 });
    assert!(matches!(gone, Err(StoreError::Corrupt { .. })), "{gone:?}");
    assert_eq!(rig.stored(&run), Some(run));
}

pub(super) fn a_failure_is_read_back_with_its_responses(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.start_with("a", T0, rich_run);
    rig.attempt(&mut run, 0, T0, 418);
    let tell = |run: &mut Workflow, status: u16, next: Next| {
        let told = Attempt { outcome: &outcome(status), retried: 0, next, sent: b"" };
        rig.decide(T0, |out| run.failure_told(told, out));
    };
    assert_eq!(rig.record(&run).told, None);
    tell(&mut run, 500, Next::RetryAt(T0));
    tell(&mut run, 502, Next::DeadLetter);
    let status = |answer: &Option<Arc<Response>>| answer.as_ref().map(|answer| (answer.status, answer.body.clone()));
    let record = rig.record(&run);
    assert_eq!((status(&record.answer), status(&record.told)), (Some((418, vec![1, 255])), Some((502, vec![1, 255]))));
    assert_eq!(run.told.as_ref().map(Vec::len), Some(2));
    let page = rig.list_failed(&RunFilter::default(), &latest(9));
    assert_eq!(page.entries, [run.clone()]);
    let call = record.failure_call().unwrap();
    assert!(rig.decide(T0, |out| run.tell_again(out)));
    assert_eq!((rig.record(&run).told, rig.record(&run).failure_call()), (None, Some(call)), "the same is told again");
    assert_eq!(rig.stored(&run), Some(run));
}

pub(super) fn changes_of_absent_parts_are_rejected(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.start("a", T0);
    rig.wait(&mut run, T0, "event", 1);
    let waiter = store.waiters(rig.tenant, "event", usize::MAX).unwrap().remove(0);
    let no = run.run.no;
    let delivery = Delivery::due_at(T0);
    let renamed = |change: fn(&mut Run)| {
        let mut run = run.run.clone();
        change(&mut run);
        vec![Change::Run(Arc::new(run))]
    };
    let went = |waiter: &Waiter| Change::NoWaiter(waiter.clone());
    let tagged = Waiter { timer: MessageId { tag: 5, ..waiter.timer }, ..waiter.clone() };
    let impossible: Vec<(&str, Vec<Change>)> = vec![
        ("an entry", vec![Change::Delivery { run: no, index: 1, delivery: delivery.clone() }]),
        ("a run", vec![Change::Delivery { run: Seq(no.0 + 9), index: 0, delivery }]),
        ("an event", vec![went(&Waiter { event: "none".into(), ..waiter.clone() })]),
        ("a wait", vec![went(&tagged)]),
        ("whose wait", vec![went(&Waiter { run: Seq(no.0 + 9), ..waiter.clone() })]),
        ("twice", vec![went(&waiter), went(&waiter)]),
        ("waits twice", vec![Change::Waiter(waiter.clone())]),
        ("another name", renamed(|run| run.id.push('b'))),
        ("another time", renamed(|run| run.created_at = run.created_at.plus_millis(1))),
        ("another tenant", renamed(|run| run.tenant.0 += 1)),
    ];
    // The first round runs while changes may be pending in a journal, the second after they were applied.
    for round in 0..2 {
        for (what, changes) in &impossible {
            let mut ops = published(&rig.draft(T0, |_| {}));
            ops.extend(changes.iter().cloned().map(Op::Workflow));
            let result = rig.commit(&ops);
            assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{what}, {round}: {result:?}");
        }
        assert_eq!(rig.stored(&run).as_ref(), Some(&run));
        assert_eq!(store.waiters(rig.tenant, "event", usize::MAX).unwrap(), std::slice::from_ref(&waiter));
        assert_eq!((rig.story(), rig.live_ids().len()), (vec![], 2), "nothing else of those batches is left either");
    }
}

pub(super) fn tallies_are_per_tenant_and_bounded(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    assert_eq!(store.tally(rig.tenant, 10).unwrap(), Tally::default());
    let day = |days: u64| T0.plus_millis(days * 24 * 3_600_000);
    // Dead letters of three days are in more than one table.
    for days in [2, 1, 3] {
        rig.fail(&rig.publish(T0), day(days), Some(500));
    }
    let foreign = rig.publish_with(T0, |message| message.tenant = other);
    rig.publish(T0);
    rig.start("goes on", T0);
    rig.start_with("foreign", T0, |new| new.tenant = other);
    let mut failed = rig.start_with("failed", T0, rich_run);
    rig.attempt(&mut failed, 0, day(1), 500);
    let counted = |tenant, max| store.tally(tenant, max).unwrap();
    let own = Tally {
        dead_letters: 3,
        oldest_dead_letter: Some(day(1)),
        failed_runs: 1,
        oldest_failed_run: Some(day(1)),
        live_runs: 1,
        live_messages: 1,
        more_live_messages: false,
    };
    assert_eq!(counted(rig.tenant, 10), own, "live messages without the steps of runs");
    assert_eq!(counted(other, 10), Tally { live_runs: 1, live_messages: 1, ..Tally::default() });
    let two = counted(rig.tenant, 2);
    assert_eq!((two.dead_letters, two.more_live_messages), (2, true), "a message and a step are looked at");
    // After more messages of other tenants than the query visits.
    let in_queue = |n: u64| n.is_multiple_of(2).then(|| format!("queue {}", n % 4));
    for n in 0..20 {
        rig.publish_with(T0, |message| (message.tenant, message.spec.queue) = (other, in_queue(n)));
    }
    rig.publish_with(T0, |message| message.spec.queue = in_queue(0));
    let own = Tally { live_messages: 2, ..own };
    assert_eq!(counted(rig.tenant, 10), own);
    let theirs = counted(other, 10);
    assert!(theirs.live_messages >= 9 && theirs.more_live_messages, "one of ten may be a step: {theirs:?}");
    rig.fail(&foreign, T0, None);
    let now = counted(other, 10);
    assert_eq!((now.dead_letters, now.more_live_messages, counted(rig.tenant, 10)), (1, true, own));
}

pub(super) fn live_runs_are_counted_and_found_by_all_their_messages(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let mut waiting = rig.start("waiting", T0);
    rig.wait(&mut waiting, T0, "event", 1);
    rig.invoke(&mut waiting, T0, 2, "{}");
    rig.start_with("foreign", T0, |new| new.tenant = other);
    assert_eq!(store.live_runs().unwrap(), 2, "of all tenants");
    let mut failed = rig.start_with("failed", T0, rich_run);
    rig.attempt(&mut failed, 0, T0, 500);
    let mut finished = rig.start("finished", T0);
    assert_eq!(store.live_runs().unwrap(), 3);
    rig.finish(&mut finished, T0);
    assert_eq!(store.live_runs().unwrap(), 2);
    let found = |messages: Vec<MessageId>| {
        let filter = RunFilter { messages, ..RunFilter::default() };
        let page = PageRequest::new(None, 10, Order::LatestFirst);
        let runs = store.list_runs(rig.tenant, &filter, &page).unwrap().entries;
        runs.into_iter().map(|record| record.workflow.run.id).collect::<Vec<_>>()
    };
    let timer = waiting.waits[0].timer;
    let invoke = waiting.invokes[0].id.expect("an invoke has an id");
    let call = failed.run.failure.as_ref().and_then(|failure| failure.call.as_ref()).expect("it is told").id;
    for (id, run) in [(timer, "waiting"), (invoke, "waiting"), (call, "failed"), (finished.entries[0].id, "finished")] {
        assert_eq!(found(vec![id]), [run]);
        assert_eq!(found(vec![MessageId { tag: id.tag ^ 1, ..id }]), [""; 0]);
    }
    assert_eq!(found(vec![timer, call]), ["failed", "waiting"]);
}

pub(super) fn positions_of_entries_are_never_reused(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.start("a", T0);
    rig.attempt(&mut run, 0, T0, 200);
    rig.append(&mut run, T0, vec![step(1, "one"), step(2, "two"), step(3, "three")]);
    for index in [2, 3] {
        rig.attempt(&mut run, index, T0, 200);
    }
    rig.attempt(&mut run, 1, T0, 500);
    let failed = rig.record(&run);
    let again = rig.decide(T0, |out| failed.resumed("b".into(), T0, Overrides::default(), out));
    // Only the second entry has a message. The later ones were delivered before the restart of the run.
    assert_eq!(rig.live_ids(), [again.entries[1].id]);
    assert_eq!(store.last_seq().unwrap(), again.entries[3].id.seq);
    let message = rig.publish(T0);
    assert!(message.id.seq > again.entries[3].id.seq);
    assert_eq!(rig.stored(&again), Some(again));
}

pub(super) fn a_message_of_a_run_lives_and_ends_like_others(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.start("a", T0);
    let id = run.entries[0].id;
    let record = store.message(rig.tenant, id, Part::Whole).unwrap().unwrap();
    let Message { spec, .. } = record.message.as_ref();
    assert_eq!((spec.workflow.map(|step| step.run), record.live.map(|live| live.id)), (Some(run.run.no), Some(id)));
    assert_eq!(store.load_messages(&[id]).unwrap(), [record.message]);
    rig.append(&mut run, T0, vec![step(1, "one")]);
    rig.attempt(&mut run, 0, T0, 200);
    assert_eq!(store.message(rig.tenant, id, Part::Whole).unwrap(), None, "it has no log lines");
    assert_eq!((rig.live_ids(), store.counts().unwrap().live), (vec![run.entries[1].id], 1));
    rig.finish(&mut run, T0);
    assert_eq!((rig.live_ids(), store.counts().unwrap().live), (vec![], 0));
    assert_eq!(store.last_seq().unwrap(), run.entries[1].id.seq);
    assert_eq!(rig.story(), []);
}

pub(super) fn the_settings_of_a_run_count_toward_stored_bytes(store: &dyn Store) {
    let rig = Rig::new(store);
    // A journal counts pending bytes only approximately. Loading everything applies them to the database.
    let stored = || {
        store.load(SHARD, &due(None, DueKey::MIN, Timestamp::MAX, 9)).unwrap();
        store.stored_bytes(rig.tenant)
    };
    let mut run = rig.start("run", T0);
    let before = stored();
    let longer = Run { url: run.run.url.clone() + &"x".repeat(50_000), ..run.run.clone() };
    // An id is 21 bytes shorter than the URL.
    for (url, bytes) in [(longer.url, before + 50_000), (longer.id, before - 21)] {
        rig.commit(&[Op::Workflow(Change::Run(Arc::new(Run { url, ..run.run.clone() })))]).unwrap();
        assert_eq!(stored(), bytes);
    }
    rig.finish(&mut run, T0);
    assert!(stored() > 0);
    retain_all(store, DAY, DAY, T0.plus_millis(3 * DAY));
    assert_eq!(stored(), 0);
}
