//! The life of one message, from publish to its end.

use crate::support::*;
use bytes::Bytes;
use posthaste_engine::event::{Op, State};
use posthaste_engine::limits;
use posthaste_engine::message::{DedupKey, DueKey, Live, Message, Origin};
use posthaste_engine::shard::Lane;
use posthaste_store::{EventFilter, Filter, Part, ShardId, Store, StoreError};
use posthaste_wire::id::{DlqId, MessageId, Seq};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

pub(super) fn a_published_message_is_live_and_readable(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish_with(T0, |message| {
        message.body = Bytes::from_static(&[0, 255, 10]);
        message.not_before = T0.plus_millis(DAY);
        message.spec.labels = vec!["a \"quoted\" label".into()];
    });
    let record = store.message(rig.tenant, message.id, Part::Whole).unwrap().unwrap();
    assert_eq!((record.message.as_ref(), record.live, record.ended_at), (message.as_ref(), Some(live(&message)), None));
    let head = store.message(rig.tenant, message.id, Part::Head).unwrap().unwrap();
    let expected = Message { body: Bytes::new(), ..Message::clone(&message) };
    assert_eq!((head.message.as_ref(), head.live, head.ended_at), (&expected, record.live, None));
    assert_eq!(store.load_messages(&[message.id]).unwrap(), [Arc::clone(&message)]);
    assert_eq!(store.find_live(rig.tenant, &[message.id]).unwrap(), [live(&message)]);
    assert_eq!(rig.story(), [(message.id, State::Created)]);
}

pub(super) fn live_messages_are_loaded_in_due_order(store: &dyn Store) {
    let rig = Rig::new(store);
    // Created in another order than their due times. Three share a due time, and one goes to another origin.
    let mut rows = Vec::new();
    for (index, delay) in [50, 10, 30, 30, 30, 20, 40].into_iter().enumerate() {
        let message = rig.draft(T0, |message| message.not_before = T0.plus_millis(delay));
        let row = Live { origin: Origin((index % 3) as u64), ..live(&message) };
        rig.commit(&[Op::Insert { message, live: row }]).unwrap();
        rows.push(row);
    }
    rows.sort_by_key(Live::due_key);
    let load = |origin: Option<Origin>, after, until: u64, max| {
        let lane = origin.map(|origin| (rig.tenant, Lane::Origin(origin)));
        store.load(SHARD, &due(lane, after, T0.plus_millis(until), max)).unwrap()
    };

    assert_eq!(load(None, DueKey::MIN, DAY, 100), rows);
    assert_eq!(load(None, DueKey::MIN, 30, 100), rows[..5], "the end is included");
    for size in 1..=7 {
        let mut after = DueKey::MIN;
        for expected in rows.chunks(size) {
            let page = load(None, after, DAY, size);
            assert_eq!(page, expected);
            after = page.last().unwrap().due_key();
        }
        assert_eq!(load(None, after, DAY, size), []);
    }
    for origin in (0..4).map(Origin) {
        let expected: Vec<Live> = rows.iter().copied().filter(|row| row.origin == origin).collect();
        assert_eq!(load(Some(origin), DueKey::MIN, DAY, 100), expected);
        if let [first, rest @ ..] = &expected[..] {
            assert_eq!(load(Some(origin), first.due_key(), DAY, 100), rest);
        }
    }
    assert_eq!(load(None, rows[6].due_key(), 0, 100), [], "an end before the start");
    let everything = due(None, DueKey::MIN, Timestamp::MAX, 100);
    assert_eq!(store.load(ShardId(1), &everything).unwrap(), []);
    assert_eq!(store.load(SHARD, &everything).unwrap(), rows);
}

pub(super) fn an_update_replaces_only_the_live_row(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    let row = Live { due: T0.plus_millis(MINUTE), retried: 2, cancel_requested: true, ..live(&message) };
    rig.commit(&[Op::Update(row)]).unwrap();
    let record = store.message(rig.tenant, message.id, Part::Whole).unwrap().unwrap();
    assert_eq!((record.live, record.message), (Some(row), message));
    assert_eq!(store.load(SHARD, &due(None, DueKey::MIN, T0, 9)).unwrap(), []);
    assert_eq!(store.load(SHARD, &due(None, DueKey::MIN, row.due, 9)).unwrap(), [row]);
}

pub(super) fn a_message_ends_at_its_final_line(store: &dyn Store) {
    let rig = Rig::new(store);
    for (state, at) in [(State::Delivered, 7 * HOUR), (State::Canceled, 0)] {
        let message = rig.publish(T0);
        let end = T0.plus_millis(at);
        rig.commit(&[line(&message, end, State::Active), Op::Remove { id: message.id }, line(&message, end, state)])
            .unwrap();
        for part in [Part::Whole, Part::Head] {
            let record = store.message(rig.tenant, message.id, part).unwrap().unwrap();
            let end = (None, Some(end), Some(state));
            assert_eq!((record.live, record.ended_at, record.final_state), end, "{part:?}");
        }
        assert_eq!(store.find_live(rig.tenant, &[message.id]).unwrap(), []);
    }
    assert_eq!(rig.live_ids(), []);
}

pub(super) fn an_ended_message_is_readable_while_it_has_log_lines(store: &dyn Store) {
    let rig = Rig::new(store);
    let silent = rig.draft(T0, |_| {});
    rig.commit(&[inserted(&silent)]).unwrap();
    assert!(store.message(rig.tenant, silent.id, Part::Whole).unwrap().is_some());
    rig.commit(&[Op::Remove { id: silent.id }]).unwrap();
    assert_eq!(store.message(rig.tenant, silent.id, Part::Whole).unwrap(), None);

    let open_end = rig.publish(T0);
    rig.commit(&[Op::Remove { id: open_end.id }]).unwrap();
    assert_eq!(store.message(rig.tenant, open_end.id, Part::Whole).unwrap().unwrap().ended_at, None);
}

pub(super) fn a_failed_message_is_kept_whole_as_a_dead_letter(store: &dyn Store) {
    let rig = Rig::new(store);
    for status in [Some(500), None] {
        let message = rig.publish(T0);
        let letter = rig.fail(&message, T0.plus_millis(SECOND), status);
        let record = store.dead_letter(rig.tenant, letter.dlq_id).unwrap().unwrap();
        assert_eq!((&record.letter, &record.message), (&letter, &message));
        assert_eq!(store.find_live(rig.tenant, &[message.id]).unwrap(), []);
        assert_eq!(store.dead_letter(rig.tenant, DlqId { n: 1, ..letter.dlq_id }).unwrap(), None);
        assert_eq!(store.dead_letter(rig.tenant, DlqId { at: T0, ..letter.dlq_id }).unwrap(), None);
    }
}

pub(super) fn a_dead_letter_is_published_again_in_one_batch(store: &dyn Store) {
    let rig = Rig::new(store);
    let failed = rig.publish(T0);
    let letter = rig.fail(&failed, T0, Some(500));
    let again = rig.draft(T0.plus_millis(DAY), |message| message.body = failed.body.clone());
    let mut ops = published(&again);
    ops.insert(0, Op::DeleteDeadLetter { tenant: rig.tenant, dlq_id: letter.dlq_id });
    rig.commit(&ops).unwrap();
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap(), None);
    assert_eq!(rig.live_ids(), [again.id]);
}

pub(super) fn a_forged_id_finds_nothing(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    for forged in [
        MessageId { tag: message.id.tag ^ 1, ..message.id },
        MessageId { seq: Seq(message.id.seq.0 + 1), ..message.id },
        MessageId { seq: Seq::MAX, tag: 0 },
        MessageId { seq: Seq::MIN, tag: 0 },
    ] {
        assert_eq!(store.message(rig.tenant, forged, Part::Whole).unwrap(), None);
        assert_eq!(store.find_live(rig.tenant, &[forged, message.id]).unwrap(), [live(&message)]);
        let filter = Filter { ids: vec![forged], ..Filter::default() };
        assert_eq!(store.match_live(rig.tenant, &filter, Seq::MIN, 9).unwrap(), []);
        assert_eq!(rig.events(&EventFilter { message: filter, states: Vec::new() }, &latest(9)).entries, []);
        assert!(matches!(store.load_messages(&[forged]), Err(StoreError::Corrupt { .. })));
        assert_eq!(store.find_message(rig.tenant, forged, Part::Whole).unwrap(), None);
        assert_eq!(store.find_message(rig.tenant, forged, Part::Head).unwrap(), None);
    }
    let other = store.tenant("other").unwrap();
    assert_eq!(store.find_message(other, message.id, Part::Head).unwrap(), None);
    assert_eq!(store.find_message(other, message.id, Part::Whole).unwrap(), None);
    assert_eq!(store.find_message(rig.tenant, message.id, Part::Whole).unwrap().as_ref(), Some(&message));
    let head = Message { body: Bytes::new(), ..Message::clone(&message) };
    assert_ne!(head, *message, "it has a body");
    assert_eq!(store.find_message(rig.tenant, message.id, Part::Head).unwrap().as_deref(), Some(&head));
}

pub(super) fn duplicates_are_found_until_the_window_ends(store: &dyn Store) {
    let rig = Rig::new(store);
    let key = DedupKey([1; 32]);
    for start in [0, limits::DEDUP_WINDOW_MS, 5 * limits::DEDUP_WINDOW_MS - 1] {
        let now = T0.plus_millis(start);
        let expires = now.plus_millis(limits::DEDUP_WINDOW_MS);
        let message = rig.publish(now);
        rig.commit(&[Op::PutDedupKey { tenant: rig.tenant, key, id: message.id, expires }]).unwrap();
        let find = |key, now| store.find_duplicates(&[(rig.tenant, key)], now).unwrap()[0];
        assert_eq!(find(key, now), Some(message.id));
        assert_eq!(find(key, expires.minus_millis(1)), Some(message.id));
        assert_eq!(find(key, expires), None);
        assert_eq!(find(DedupKey([2; 32]), now), None);
        retain_all(store, DAY, DAY, expires.minus_millis(1));
        assert_eq!(find(key, expires.minus_millis(1)), Some(message.id), "retention keeps open windows");
    }
}

pub(super) fn the_window_that_ends_later_counts(store: &dyn Store) {
    let rig = Rig::new(store);
    let key = DedupKey([1; 32]);
    let put_dedup_key = |expires: u64| {
        let message = rig.publish(T0);
        let expires = T0.plus_millis(expires);
        rig.commit(&[Op::PutDedupKey { tenant: rig.tenant, key, id: message.id, expires }]).unwrap();
        message.id
    };
    let find = |now: u64| store.find_duplicates(&[(rig.tenant, key)], T0.plus_millis(now)).unwrap()[0];
    put_dedup_key(10);
    let longer = put_dedup_key(20);
    put_dedup_key(15);
    assert_eq!(find(0), Some(longer));
    let same = put_dedup_key(20);
    assert_eq!(find(19), Some(same));
    let longest = put_dedup_key(3 * limits::DEDUP_WINDOW_MS);
    put_dedup_key(2 * limits::DEDUP_WINDOW_MS);
    assert_eq!(find(0), Some(longest));
}
