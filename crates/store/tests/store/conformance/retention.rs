//! Which data is dropped, and which data stays because it is still needed.

use crate::run_support::*;
use crate::support::*;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{Op, State};
use posthaste_engine::limits;
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::{Change, Workflow};
use posthaste_store::{Counts, Filter, Part, ReadPool, Retention, RunFilter, Store, StoreError};
use posthaste_wire::id::{MessageId, Seq};
use std::sync::Arc;

pub(super) fn log_lines_are_dropped_when_their_bucket_is_old_enough(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    rig.deliver(&message, T0);
    // The bucket of six hours ends at 06:00 and is kept for a day after that.
    let last_moment = T0.plus_millis(30 * HOUR - 1);
    assert_eq!(retain_all(store, DAY, DAY, last_moment), 0);
    assert_eq!(rig.story().len(), 2);
    assert!(retain_all(store, DAY, DAY, last_moment.plus_millis(1)) > 0);
    assert_eq!(rig.story(), []);
    assert_eq!(store.message(rig.tenant, message.id, Part::Whole).unwrap(), None);
    assert_eq!(retain_all(store, DAY, DAY, last_moment.plus_millis(1)), 0);
}

pub(super) fn live_messages_survive_repeated_retention(store: &dyn Store) {
    let rig = Rig::new(store);
    let delayed: Vec<_> = (0..20)
        .map(|hours| {
            rig.publish_with(T0.plus_millis(hours * HOUR), |message| message.not_before = T0.plus_millis(300 * DAY))
        })
        .collect();
    for days in (2..60).step_by(3) {
        let now = T0.plus_millis(days * DAY);
        retain_all(store, DAY, DAY, now);
        assert_eq!(rig.live_ids().len(), 20, "after {days} days");
        let ids: Vec<_> = delayed.iter().map(|message| message.id).collect();
        assert_eq!(store.load_messages(&ids).unwrap(), delayed);
    }
    assert_eq!(rig.story(), [], "the lines of their creation are long gone");
    let now = T0.plus_millis(60 * DAY);
    assert_eq!(store.message(rig.tenant, delayed[0].id, Part::Whole).unwrap().unwrap().message, delayed[0]);
    let filter = Filter { paths: vec!["/hook".into()], ..Filter::default() };
    assert_eq!(store.match_live(rig.tenant, &filter, Seq::MIN, 99).unwrap().len(), 20);

    // They still end like any other message: delivered, failed, canceled.
    rig.deliver(&delayed[0], now);
    let letter = rig.fail(&delayed[1], now, Some(500));
    assert_eq!(store.message(rig.tenant, delayed[0].id, Part::Whole).unwrap().unwrap().ended_at, Some(now));
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().unwrap().message, delayed[1]);
    assert_eq!(rig.story(), [(delayed[1].id, State::Failed), (delayed[0].id, State::Delivered)]);
    retain_all(store, DAY, DAY, now.plus_millis(30 * HOUR));
    assert_eq!((rig.story(), rig.live_ids().len()), (vec![], 18));
}

pub(super) fn a_message_stays_as_long_as_its_last_log_line(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0.plus_millis(6 * HOUR - 1));
    rig.deliver(&message, T0.plus_millis(6 * HOUR));
    retain_all(store, DAY, DAY, T0.plus_millis(30 * HOUR));
    assert_eq!(rig.story(), [(message.id, State::Delivered)]);
    let record = store.message(rig.tenant, message.id, Part::Whole).unwrap().unwrap();
    assert_eq!((record.message, record.ended_at), (Arc::clone(&message), Some(T0.plus_millis(6 * HOUR))));
    retain_all(store, DAY, DAY, T0.plus_millis(36 * HOUR));
    assert_eq!(rig.story(), []);
    assert_eq!(store.message(rig.tenant, message.id, Part::Whole).unwrap(), None);
}

pub(super) fn dead_letters_have_their_own_retention(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    let letter = rig.fail(&message, T0, Some(500));
    retain_all(store, HOUR, 30 * DAY, T0.plus_millis(31 * DAY - 1));
    assert_eq!((rig.story(), store.message(rig.tenant, message.id, Part::Whole).unwrap()), (vec![], None));
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().unwrap().message, message);
    assert_eq!(store.counts().unwrap(), Counts { live: 0, dead_letters: 1 });
    retain_all(store, HOUR, 30 * DAY, T0.plus_millis(31 * DAY));
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap(), None);
    assert_eq!(store.list_dead_letters(rig.tenant, &Filter::default(), &latest(9)).unwrap().entries, []);
    assert_eq!(store.counts().unwrap(), Counts { live: 0, dead_letters: 0 });
}

pub(super) fn retention_has_no_leftovers_in_large_buckets(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut last = store.last_seq().unwrap();
    let (mut ops, mut living) = (Vec::new(), Vec::new());
    for index in 0..3_000 {
        last = Seq::next(last, T0);
        let message = Arc::new(message(rig.tenant, MessageId { seq: last, tag: 5 }, T0));
        ops.extend(published(&message));
        match index % 3 {
            0 => living.push(message.id),
            1 => ops.push(Op::Remove { id: message.id }),
            _ => ops.push(Op::InsertDeadLetter(dead_letter(&message, T0, None))),
        }
    }
    rig.commit(&ops).unwrap();
    retain_all(store, HOUR, HOUR, T0.plus_millis(2 * DAY));
    assert_eq!(rig.live_ids(), living);
    assert_eq!(rig.story(), []);
    assert_eq!(store.counts().unwrap(), Counts { live: living.len() as u64, dead_letters: 0 });
    assert_eq!(store.load_messages(&living).unwrap().len(), living.len());
}

pub(super) fn finished_bulk_actions_are_dropped_after_a_week(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut last = store.last_seq().unwrap();
    // There are too many for one round, and the last one is finished a millisecond later. The first one is unfinished.
    let actions: Vec<BulkAction> = (0..2_500)
        .map(|index| {
            last = Seq::next(last, T0.plus_millis(index / 2_499));
            BulkAction { completed_at: (index > 0).then_some(T0), ..bulk_action(rig.tenant, last) }
        })
        .collect();
    rig.commit(&actions.iter().cloned().map(Op::PutBulkAction).collect::<Vec<_>>()).unwrap();
    let left_at = |now| {
        retain_all(store, DAY, DAY, now);
        store.bulk_actions(rig.tenant, None, usize::MAX).unwrap()
    };
    let week = T0.plus_millis(limits::BULK_ACTION_MS);
    assert_eq!(left_at(week).len(), 2_500);
    assert_eq!(left_at(week.plus_millis(1)), [actions[2_499].clone(), actions[0].clone()]);
    assert_eq!(left_at(week.plus_millis(DAY)), [actions[0].clone()]);
}

/// The listed runs, in the order of their creation.
fn listed(rig: &Rig<'_>) -> Vec<Workflow> {
    let mut runs = rig.list(&RunFilter::default(), &latest(10_000)).entries;
    runs.reverse();
    runs
}

pub(super) fn old_runs_are_dropped_with_their_entries(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut runs = ["a", "b", "c"].map(|id| rig.start(id, T0));
    rig.append(&mut runs[1], T0, vec![step(1, "one"), step(2, "two")]);
    for (run, millis) in runs.iter_mut().zip([2, 1, 3]) {
        rig.finish(run, T0.plus_millis(millis));
    }
    for (passed, left) in [(1, vec![0, 1, 2]), (2, vec![0, 2]), (3, vec![2]), (4, vec![])] {
        retain_all(store, DAY, 0, T0.plus_millis(DAY + passed));
        let expected: Vec<_> = left.iter().map(|run| runs[*run].clone()).collect();
        assert_eq!(listed(&rig), expected, "{passed} ms after a day");
    }
    for run in &runs {
        assert_eq!(rig.stored(run), None);
        assert_eq!(store.find_run(rig.tenant, &run.run.id, None, ReadPool::Core).unwrap(), None);
    }
}

pub(super) fn failed_runs_are_kept_as_long_as_dead_letters(store: &dyn Store) {
    let rig = Rig::new(store);
    let failed_at = T0.plus_millis(HOUR);
    let mut left = rig.failed("a", T0, failed_at, 500);
    let failed = rig.failed("b", T0, failed_at, 500);
    let dlq_id = failed.run.failure.as_ref().unwrap().dlq_id;
    assert!(rig.decide(failed_at, |out| left.leave_dlq(out)));
    retain_all(store, DAY, 7 * DAY, failed_at.plus_millis(DAY));
    assert_eq!(listed(&rig), [left, failed.clone()]);
    retain_all(store, DAY, 7 * DAY, failed_at.plus_millis(DAY + 1));
    assert_eq!(listed(&rig), std::slice::from_ref(&failed), "whoever has left the DLQ goes like the others");
    retain_all(store, DAY, 7 * DAY, failed_at.plus_millis(7 * DAY));
    assert_eq!(store.find_failed_run(rig.tenant, dlq_id, ReadPool::Core).unwrap(), Some(failed.run.no));
    retain_all(store, 30 * DAY, 7 * DAY, failed_at.plus_millis(7 * DAY + 1));
    assert_eq!((listed(&rig), store.failed_run(rig.tenant, dlq_id).unwrap()), (vec![], None));
    let page = store.list_failed_runs(rig.tenant, &RunFilter::default(), &latest(9)).unwrap();
    assert_eq!((page.entries, page.next), (vec![], None));
}

pub(super) fn a_live_run_is_kept_forever(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.start("a", T0);
    rig.attempt(&mut run, 0, T0, 200);
    rig.wait(&mut run, T0, "event", 1);
    for days in [2, 20, 200] {
        retain_all(store, 0, 0, T0.plus_millis(days * DAY));
        assert_eq!(listed(&rig), [run.clone()], "after {days} days");
        assert_eq!(store.waiters(rig.tenant, "event", usize::MAX).unwrap().len(), 1);
    }
    let late = T0.plus_millis(300 * DAY);
    rig.decide(late, |out| run.notify("event", b"", out)).unwrap();
    rig.finish(&mut run, late);
    retain_all(store, DAY, DAY, late.plus_millis(DAY));
    assert_eq!(rig.stored(&run).as_ref(), Some(&run), "its time counts from its end");
    retain_all(store, DAY, DAY, late.plus_millis(DAY + 1));
    assert_eq!(rig.stored(&run), None);
}

pub(super) fn retention_has_no_leftovers_of_large_runs(store: &dyn Store) {
    let rig = Rig::new(store);
    // Many entries, large entries, and many runs: each needs more than one round.
    let mut many = rig.start("many", T0);
    rig.append(&mut many, T0, (1..2_500).map(|number| step(number, "")).collect());
    let mut large = rig.start("large", T0);
    for number in 1..4 {
        rig.append(&mut large, T0, vec![step(number, &"x".repeat(3 * 1024 * 1024))]);
        rig.invoke(&mut large, T0, 10 + number, &"x".repeat(3 * 1024 * 1024));
    }
    rig.finish(&mut many, T0);
    rig.finish(&mut large, T0);
    let body = rig.record(&many).bodies[0].clone();
    let (mut last, mut ops) = (store.last_seq().unwrap(), Vec::new());
    for index in 0..1_500 {
        last = Seq::next(last, T0);
        let mut run = many.run.clone();
        (run.no, run.id) = (last, index.to_string());
        let mut entry = many.entries[0].clone();
        entry.id.seq = last;
        let body = body.clone();
        ops.extend([Change::Entry { run: last, entry, body }, Change::Run(Arc::new(run))].map(Op::Workflow));
    }
    rig.commit(&ops).unwrap();
    let stays = rig.start("stays", T0);
    let (policy, late) = (Retention { history_ms: HOUR, dlq_ms: HOUR }, T0.plus_millis(DAY));
    while store.retain(&policy, late).unwrap().more {
        // Readers never get a part of a run that is being dropped.
        for run in [&many, &large] {
            assert!(rig.stored(run).is_none_or(|stored| stored == *run));
        }
    }
    assert_eq!(listed(&rig), [stays]);
    assert_eq!((rig.stored(&many), rig.stored(&large)), (None, None));
    assert_eq!(store.last_seq().unwrap(), last.max(listed(&rig)[0].run.no), "positions never come again");
}

pub(super) fn writes_about_a_dropped_run_are_harmless(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut run = rig.failed("a", T0, T0, 500);
    retain_all(store, DAY, DAY, T0.plus_millis(2 * DAY));
    assert_eq!(rig.stored(&run), None);
    rig.decide(T0.plus_millis(2 * DAY), |out| run.leave_dlq(out));
    assert_eq!((rig.stored(&run), listed(&rig)), (None, vec![]));
    retain_all(store, DAY, DAY, T0.plus_millis(2 * DAY));
    assert_eq!(store.find_run(rig.tenant, "a", None, ReadPool::Core).unwrap(), None);
    assert_eq!((rig.stored(&run), listed(&rig)), (None, vec![]));
}

pub(super) fn notes_of_a_dropped_run_are_not_stored(store: &dyn Store) {
    let rig = Rig::new(store);
    let late = T0.plus_millis(2 * DAY);
    let key = NoteKey { kind: NoteKind::InvokeOut, n: 1 };
    let is_kept = |run: &Workflow| match store.note_body(run.run.no, key) {
        Ok(_) => true,
        Err(StoreError::Corrupt { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    let parent = |id: &str| {
        let mut run = rig.start(id, T0);
        rig.invoke(&mut run, T0, 1, "{}");
        rig.finish(&mut run, T0);
        run
    };
    // One invoked run ends before the retention time of its parent is over, the other one after it.
    let (mut before, mut behind) = (parent("before"), parent("behind"));
    assert_eq!(listed(&rig).len(), 2);
    rig.invoked_has_ended(&mut before, late, 1, "out");
    assert!(is_kept(&before));
    retain_all(store, DAY, DAY, late);
    assert!(!is_kept(&before));
    rig.invoked_has_ended(&mut behind, late, 1, "out");
    assert!(!is_kept(&behind));
    // A later write about such a run does not bring back its earlier data.
    let [before, behind] = [before, behind].map(|run| (Op::Workflow(Change::Run(Arc::new(run.run.clone()))), run));
    rig.commit(&[before.0, behind.0]).unwrap();
    assert!(!is_kept(&before.1) && !is_kept(&behind.1));
    retain_all(store, DAY, DAY, late);
    assert_eq!(listed(&rig), []);
}
