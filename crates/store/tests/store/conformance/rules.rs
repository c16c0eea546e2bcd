//! Rules for all methods: tenants, owners, atomic batches and totals.

use crate::support::*;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::limits;
use posthaste_engine::message::{DedupKey, Live};
use posthaste_engine::schedule::ScheduleState;
use posthaste_store::{
    Counts, Durability, Epoch, EventFilter, Filter, Order, PageRequest, Part, ShardId, SigningKeys, Store, StoreError,
};
use posthaste_wire::id::{DlqId, MessageId, Seq};
use posthaste_wire::signature::SigningKey;
use std::slice::from_ref;

pub(super) fn tenants_never_see_each_other(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    assert_ne!(other, rig.tenant);
    let lives = rig.publish(T0);
    let failed = rig.publish(T0);
    let letter = rig.fail(&failed, T0, Some(500));
    let key = DedupKey([7; 32]);
    let expires = T0.plus_millis(limits::DEDUP_WINDOW_MS);
    rig.commit(&[Op::PutDedupKey { tenant: rig.tenant, key, id: lives.id, expires }]).unwrap();

    let by_ids = Filter { ids: vec![lives.id, failed.id], ..Filter::default() };
    assert_eq!(store.message(other, lives.id, Part::Whole).unwrap(), None);
    assert_eq!(store.find_live(other, &[lives.id]).unwrap(), []);
    assert_eq!(store.dead_letter(other, letter.dlq_id).unwrap(), None);
    assert_eq!(store.find_dead_letters(other, &[letter.dlq_id]).unwrap(), []);
    let absent = DlqId { n: letter.dlq_id.n + 1, ..letter.dlq_id };
    assert_eq!(store.find_dead_letters(rig.tenant, &[absent, letter.dlq_id]).unwrap(), [letter.dlq_id]);
    assert_eq!(store.find_duplicates(&[(other, key)], T0).unwrap()[0], None);
    for filter in [Filter::default(), by_ids] {
        assert_eq!(store.match_live(other, &filter, Seq::MIN, 9).unwrap(), []);
        assert_eq!(store.list_dead_letters(other, &filter, &latest(9)).unwrap().entries, []);
        let filter = EventFilter { message: filter, states: Vec::new() };
        assert_eq!(store.list_events(other, &filter, &latest(9)).unwrap().entries, []);
    }
    let theft = rig.commit(&[Op::DeleteDeadLetter { tenant: other, dlq_id: letter.dlq_id }]);
    assert!(matches!(theft, Err(StoreError::Corrupt { .. })), "{theft:?}");
    assert!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().is_some());
}

pub(super) fn an_earlier_owner_is_fenced(store: &dyn Store) {
    let earlier = Rig::new(store);
    let message = earlier.draft(T0, |_| {});
    let later = Rig::new(store);
    assert!(later.epoch > earlier.epoch);
    assert!(matches!(earlier.commit(&published(&message)), Err(StoreError::Fenced)));
    let future = store.commit(SHARD, Epoch(later.epoch.0 + 1), &published(&message), Durability::Lazy);
    assert!(matches!(future, Err(StoreError::Fenced)));
    let unowned = store.commit(ShardId(9), later.epoch, &published(&message), Durability::Synced);
    assert!(matches!(unowned, Err(StoreError::Fenced)));
    assert_eq!((later.live_ids(), later.story()), (vec![], vec![]));
    later.commit(&published(&message)).unwrap();
    assert_eq!(later.live_ids(), [message.id]);
}

pub(super) fn a_failing_batch_leaves_nothing_behind(store: &dyn Store) {
    let rig = Rig::new(store);
    let known = rig.publish(T0);
    let ended = rig.publish(T0);
    rig.deliver(&ended, T0);
    let buried = rig.publish(T0);
    let letter = rig.fail(&buried, T0, None);
    let forged = MessageId { tag: known.id.tag ^ 1, ..known.id };
    let at = |days| T0.plus_millis(days * DAY);
    let absent = DlqId { at: at(3), n: 1 };
    let scheduled = schedule(rig.tenant, "known");
    let action = bulk_action(rig.tenant, Seq::next(store.last_seq().unwrap(), T0));
    rig.commit(&[Op::PutSchedule(scheduled.clone().into()), Op::PutBulkAction(action.clone())]).unwrap();
    let other = store.tenant("other").unwrap();
    let state = ScheduleState { paused: true, ..ScheduleState::default() };
    let bad: Vec<(&str, Op)> = vec![
        ("a taken position", inserted(&known)),
        ("the position of an ended message", inserted(&ended)),
        ("an update of an ended message", Op::Update(live(&ended))),
        ("an update with a forged id", Op::Update(Live { id: forged, ..live(&known) })),
        ("the end of an ended message", Op::Remove { id: ended.id }),
        ("the end of a forged id", Op::Remove { id: forged }),
        ("the burial of an ended message", Op::InsertDeadLetter(dead_letter(&ended, T0, None))),
        ("a second burial", Op::InsertDeadLetter(letter.clone())),
        ("an absent dead letter", Op::DeleteDeadLetter { tenant: rig.tenant, dlq_id: absent }),
        ("an absent schedule", Op::SetSchedule { tenant: rig.tenant, id: "absent".into(), state: state.clone() }),
        ("another's schedule", Op::SetSchedule { tenant: other, id: "known".into(), state: state.clone() }),
        ("the end of an absent schedule", Op::DropSchedule { tenant: rig.tenant, id: "absent".into() }),
        ("the end of another's schedule", Op::DropSchedule { tenant: other, id: "known".into() }),
        ("another's bulk action", Op::PutBulkAction(BulkAction { tenant: other, ..action.clone() })),
    ];
    let before = (rig.story(), rig.live_ids(), store.counts().unwrap());
    for (name, op) in bad {
        // In a bucket that only this batch would have created.
        let fresh = rig.draft(at(2), |_| {});
        let key = DedupKey([3; 32]);
        let mut ops = published(&fresh);
        ops.push(Op::PutDedupKey { tenant: rig.tenant, key, id: fresh.id, expires: at(3) });
        ops.push(Op::DeleteDeadLetter { tenant: rig.tenant, dlq_id: letter.dlq_id });
        ops.push(Op::Update(Live { retried: 9, ..live(&known) }));
        ops.push(Op::PutQueue(queue(rig.tenant, "q")));
        ops.push(Op::PutFlow(flow(rig.tenant, "key")));
        ops.push(Op::PutSchedule(schedule(rig.tenant, "fresh").into()));
        ops.push(Op::SetSchedule { tenant: rig.tenant, id: "known".into(), state: state.clone() });
        ops.push(Op::PutBulkAction(BulkAction { processed: 5, ..action.clone() }));
        ops.push(op);
        let result = rig.commit(&ops);
        assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{name}: {result:?}");
        assert_eq!((rig.story(), rig.live_ids(), store.counts().unwrap()), before, "{name}");
        assert_eq!(store.find_live(rig.tenant, &[known.id]).unwrap(), [live(&known)], "{name}");
        assert_eq!(store.find_duplicates(&[(rig.tenant, key)], T0).unwrap()[0], None, "{name}");
        assert!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().is_some(), "{name}");
        assert_eq!((store.queues(None).unwrap(), store.flows().unwrap()), (vec![], vec![]), "{name}");
        assert_eq!(all_schedules(store, rig.tenant), from_ref(&scheduled), "{name}");
        assert_eq!(store.bulk_actions(rig.tenant, None, 9).unwrap(), from_ref(&action), "{name}");
        assert_eq!(store.last_seq().unwrap(), action.id, "{name}");
    }
    // The store continues: the batch was at fault, not the file.
    let fresh = rig.publish(at(2));
    assert_eq!(rig.live_ids(), [known.id, fresh.id]);
}

pub(super) fn counts_follow_every_change(store: &dyn Store) {
    let rig = Rig::new(store);
    let counts = |live, dead_letters| assert_eq!(store.counts().unwrap(), Counts { live, dead_letters });
    counts(0, 0);
    let (first, second) = (rig.publish(T0), rig.publish(T0));
    counts(2, 0);
    rig.commit(&[Op::Update(live(&first))]).unwrap();
    counts(2, 0);
    let letter = rig.fail(&first, T0, None);
    counts(1, 1);
    rig.deliver(&second, T0);
    counts(0, 1);
    rig.commit(&[Op::DeleteDeadLetter { tenant: rig.tenant, dlq_id: letter.dlq_id }]).unwrap();
    counts(0, 0);
}

pub(super) fn tenants_and_keys_are_remembered(store: &dyn Store) {
    let names = ["default", "a", "'; --", "ü"];
    let tenants: Vec<_> = names.iter().map(|name| store.tenant(name).unwrap()).collect();
    let again: Vec<_> = names.iter().map(|name| store.tenant(name).unwrap()).collect();
    assert_eq!(tenants, again);
    for (index, tenant) in tenants.iter().enumerate() {
        assert_eq!(store.signing_keys(*tenant).unwrap(), None);
        for round in 0..2 {
            let key = |name| SigningKey::new(format!("sig_{name}_{index}_{round}"));
            let keys = SigningKeys { current: key("current"), next: key("next") };
            store.put_signing_keys(*tenant, &keys).unwrap();
            assert_eq!(store.signing_keys(*tenant).unwrap(), Some(keys));
        }
    }
    let mut with_keys = store.tenants_with_keys().unwrap();
    with_keys.sort();
    assert_eq!(with_keys, tenants);
}

pub(super) fn positions_never_go_back(store: &dyn Store) {
    let rig = Rig::new(store);
    assert_eq!(store.last_seq().unwrap(), Seq::MIN);
    let message = rig.publish(T0);
    assert_eq!(store.last_seq().unwrap(), message.id.seq);
    let failing = rig.draft(T0.plus_millis(DAY), |_| {});
    rig.commit(&[inserted(&failing), Op::Remove { id: message.id }, Op::Remove { id: message.id }]).unwrap_err();
    assert_eq!(store.last_seq().unwrap(), message.id.seq);
    rig.deliver(&message, T0);
    retain_all(store, 0, 0, T0.plus_millis(9 * DAY));
    assert_eq!(store.last_seq().unwrap(), message.id.seq);
    let id = Seq::next(message.id.seq, T0);
    rig.commit(&[Op::PutBulkAction(BulkAction { completed_at: Some(T0), ..bulk_action(rig.tenant, id) })]).unwrap();
    assert_eq!(store.last_seq().unwrap(), id);
    retain_all(store, 0, 0, T0.plus_millis(9 * DAY));
    assert_eq!((store.bulk_action(rig.tenant, id).unwrap(), store.last_seq().unwrap()), (None, id));
}

pub(super) fn a_probe_and_a_flush_change_nothing(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.draft(T0, |_| {});
    store.commit(SHARD, rig.epoch, &published(&message), Durability::Lazy).unwrap();
    for _ in 0..3 {
        store.probe().unwrap();
        store.flush().unwrap();
        store.commit(SHARD, rig.epoch, &[], Durability::Synced).unwrap();
    }
    assert_eq!((rig.live_ids(), rig.story().len()), (vec![message.id], 1));
    let page = PageRequest::new(None, 0, Order::LatestFirst);
    assert_eq!(rig.events(&EventFilter::default(), &page).entries.len(), 1, "a page has at least one entry");
}
