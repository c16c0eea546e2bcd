//! The specification of `Store`: every function is a claim about every backend.

use crate::support::*;
use bytes::Bytes;
use posthaste::store::memory::MemoryStore;
use posthaste::store::sqlite::{SqliteOptions, SqliteStore};
use posthaste::store::{
    Counts, Durability, Epoch, EventFilter, Filter, Order, PageRequest, ShardId, SigningKeys, Store, StoreError,
};
use posthaste_engine::event::{Event, EventDetail, Op, State};
use posthaste_engine::limits;
use posthaste_engine::message::{DedupKey, DueKey, Live, Message, Origin};
use posthaste_wire::id::{DlqId, MessageId, Seq};
use posthaste_wire::signature::SigningKey;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

macro_rules! claims {
    ($($claim:ident,)*) => {
        mod memory {
            $(#[test] fn $claim() { super::$claim(&super::MemoryStore::new()); })*
        }
        mod sqlite {
            $(#[test] fn $claim() { super::on_file(super::$claim); })*
        }
    };
}

fn on_file(claim: fn(&dyn Store)) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&directory.path().join("posthaste.db"), SqliteOptions::default()).unwrap();
    claim(&store);
}

claims! {
    a_published_message_is_live_and_readable,
    live_messages_are_loaded_in_due_order,
    an_update_replaces_only_the_live_row,
    a_message_ends_at_its_final_line,
    an_ended_message_is_readable_while_it_has_log_lines,
    a_failed_message_is_kept_whole_as_a_dead_letter,
    a_dead_letter_is_published_again_in_one_batch,
    tenants_never_see_each_other,
    a_forged_id_finds_nothing,
    pages_of_logs_show_every_line_once,
    log_filters_are_or_within_and_and_between_fields,
    lines_carry_their_details,
    pages_of_dead_letters_show_every_one_once,
    dead_letter_filters_know_the_last_answer,
    a_page_ends_before_its_bodies_get_too_large,
    duplicates_are_found_until_the_window_ends,
    the_window_that_ends_later_counts,
    an_earlier_owner_is_fenced,
    a_failing_batch_leaves_nothing_behind,
    live_messages_are_matched_oldest_first,
    log_lines_go_when_their_bucket_is_old_enough,
    live_messages_survive_retention_again_and_again,
    a_message_stays_as_long_as_its_last_log_line,
    dead_letters_have_their_own_retention,
    retention_has_no_leftovers_in_large_buckets,
    counts_follow_every_change,
    tenants_and_keys_are_remembered,
    positions_never_go_back,
    a_probe_and_a_flush_change_nothing,
}

fn a_published_message_is_live_and_readable(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish_with(T0, |message| {
        message.body = Bytes::from_static(&[0, 255, 10]);
        message.not_before = T0.plus_millis(DAY);
        message.spec.labels = vec!["a \"quoted\" label".into()];
    });
    let record = store.message(rig.tenant, message.id).unwrap().unwrap();
    assert_eq!((record.message.as_ref(), record.live, record.ended_at), (message.as_ref(), Some(live(&message)), None));
    assert_eq!(store.load_messages(&[message.id]).unwrap(), [Arc::clone(&message)]);
    assert_eq!(store.find_live(rig.tenant, &[message.id]).unwrap(), [live(&message)]);
    assert_eq!(rig.story(), [(message.id, State::Created)]);
}

fn live_messages_are_loaded_in_due_order(store: &dyn Store) {
    let rig = Rig::new(store);
    // Created in another order than due, three of them at the same time, one to another origin.
    let mut rows = Vec::new();
    for (index, delay) in [50, 10, 30, 30, 30, 20, 40].into_iter().enumerate() {
        let message = rig.draft(T0, |message| message.not_before = T0.plus_millis(delay));
        let row = Live { origin: Origin((index % 3) as u64), ..live(&message) };
        rig.commit(&[Op::Insert { message, live: row }]).unwrap();
        rows.push(row);
    }
    rows.sort_by_key(Live::due_key);
    let load =
        |origin, after, until: u64, max| store.load_due(SHARD, origin, after, T0.plus_millis(until), max).unwrap();

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
    assert_eq!(store.load_due(ShardId(1), None, DueKey::MIN, Timestamp::MAX, 100).unwrap(), []);
}

fn an_update_replaces_only_the_live_row(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    let row = Live { due: T0.plus_millis(MINUTE), retried: 2, cancel_requested: true, ..live(&message) };
    rig.commit(&[Op::Update(row)]).unwrap();
    let record = store.message(rig.tenant, message.id).unwrap().unwrap();
    assert_eq!((record.live, record.message), (Some(row), message));
    assert_eq!(store.load_due(SHARD, None, DueKey::MIN, T0, 9).unwrap(), []);
    assert_eq!(store.load_due(SHARD, None, DueKey::MIN, row.due, 9).unwrap(), [row]);
}

fn a_message_ends_at_its_final_line(store: &dyn Store) {
    let rig = Rig::new(store);
    for (state, at) in [(State::Delivered, 7 * HOUR), (State::Canceled, 0)] {
        let message = rig.publish(T0);
        let end = T0.plus_millis(at);
        rig.commit(&[line(&message, end, State::Active), Op::Remove { id: message.id }, line(&message, end, state)])
            .unwrap();
        let record = store.message(rig.tenant, message.id).unwrap().unwrap();
        assert_eq!((record.live, record.ended_at), (None, Some(end)), "{state:?}");
        assert_eq!(store.find_live(rig.tenant, &[message.id]).unwrap(), []);
    }
    assert_eq!(rig.live_ids(), []);
}

fn an_ended_message_is_readable_while_it_has_log_lines(store: &dyn Store) {
    let rig = Rig::new(store);
    let silent = rig.draft(T0, |_| {});
    rig.commit(&[inserted(&silent)]).unwrap();
    assert!(store.message(rig.tenant, silent.id).unwrap().is_some());
    rig.commit(&[Op::Remove { id: silent.id }]).unwrap();
    assert_eq!(store.message(rig.tenant, silent.id).unwrap(), None);

    let open_end = rig.publish(T0);
    rig.commit(&[Op::Remove { id: open_end.id }]).unwrap();
    assert_eq!(store.message(rig.tenant, open_end.id).unwrap().unwrap().ended_at, None);
}

fn a_failed_message_is_kept_whole_as_a_dead_letter(store: &dyn Store) {
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

fn a_dead_letter_is_published_again_in_one_batch(store: &dyn Store) {
    let rig = Rig::new(store);
    let failed = rig.publish(T0);
    let letter = rig.fail(&failed, T0, Some(500));
    let again = rig.draft(T0.plus_millis(DAY), |message| message.body = failed.body.clone());
    let mut ops = published(&again);
    ops.insert(0, Op::Exhume { tenant: rig.tenant, dlq_id: letter.dlq_id });
    rig.commit(&ops).unwrap();
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap(), None);
    assert_eq!(rig.live_ids(), [again.id]);
}

fn tenants_never_see_each_other(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    assert_ne!(other, rig.tenant);
    let lives = rig.publish(T0);
    let failed = rig.publish(T0);
    let letter = rig.fail(&failed, T0, Some(500));
    let key = DedupKey([7; 32]);
    let expires = T0.plus_millis(limits::DEDUP_WINDOW_MS);
    rig.commit(&[Op::Remember { tenant: rig.tenant, key, id: lives.id, expires }]).unwrap();

    let by_ids = Filter { ids: vec![lives.id, failed.id], ..Filter::default() };
    assert_eq!(store.message(other, lives.id).unwrap(), None);
    assert_eq!(store.find_live(other, &[lives.id]).unwrap(), []);
    assert_eq!(store.dead_letter(other, letter.dlq_id).unwrap(), None);
    assert_eq!(store.find_duplicate(other, key, T0).unwrap(), None);
    for filter in [Filter::default(), by_ids] {
        assert_eq!(store.match_live(other, &filter, 9).unwrap(), []);
        assert_eq!(store.list_dead_letters(other, &filter, &latest(9)).unwrap().entries, []);
        let filter = EventFilter { message: filter, states: Vec::new() };
        assert_eq!(store.list_events(other, &filter, &latest(9)).unwrap().entries, []);
    }
    let theft = rig.commit(&[Op::Exhume { tenant: other, dlq_id: letter.dlq_id }]);
    assert!(matches!(theft, Err(StoreError::Corrupt { .. })), "{theft:?}");
    assert!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().is_some());
}

fn a_forged_id_finds_nothing(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    for forged in [
        MessageId { tag: message.id.tag ^ 1, ..message.id },
        MessageId { seq: Seq(message.id.seq.0 + 1), ..message.id },
        MessageId { seq: Seq::MAX, tag: 0 },
        MessageId { seq: Seq::MIN, tag: 0 },
    ] {
        assert_eq!(store.message(rig.tenant, forged).unwrap(), None);
        assert_eq!(store.find_live(rig.tenant, &[forged, message.id]).unwrap(), [live(&message)]);
        let filter = Filter { ids: vec![forged], ..Filter::default() };
        assert_eq!(store.match_live(rig.tenant, &filter, 9).unwrap(), []);
        assert_eq!(rig.events(&EventFilter { message: filter, states: Vec::new() }, &latest(9)).entries, []);
        assert!(matches!(store.load_messages(&[forged]), Err(StoreError::Corrupt { .. })));
    }
}

/// Three messages over three buckets, with several lines in one millisecond.
fn three_stories(rig: &Rig<'_>) -> [Arc<Message>; 3] {
    let first = rig.publish_with(T0, |message| message.spec.labels = vec!["red".into(), "round".into()]);
    let second = rig.publish_with(T0, |message| {
        message.spec.url = "http://example.com:8080/path?query".into();
        message.spec.caller_ip = "::1".into();
    });
    let third = rig.publish_with(T0.plus_millis(6 * HOUR), |message| message.spec.labels = vec!["red".into()]);
    let later = T0.plus_millis(6 * HOUR);
    rig.commit(&[
        line(&first, later, State::Active),
        line(&second, later, State::Active),
        line(&first, later, State::Error),
        line(&first, T0.plus_millis(13 * HOUR), State::Retry),
    ])
    .unwrap();
    [first, second, third]
}

fn pages_of_logs_show_every_line_once(store: &dyn Store) {
    let rig = Rig::new(store);
    let [first, second, third] = three_stories(&rig);
    let mut expected = vec![
        (first.id, State::Created),
        (second.id, State::Created),
        (third.id, State::Created),
        (first.id, State::Active),
        (second.id, State::Active),
        (first.id, State::Error),
        (first.id, State::Retry),
    ];
    for order in [Order::EarliestFirst, Order::LatestFirst] {
        for count in 1..=8 {
            let pages = walk(count, order, |page| rig.events(&EventFilter::default(), page));
            let lines: Vec<_> = pages.iter().flatten().map(|line| (line.event.id, line.event.state)).collect();
            assert_eq!(lines, expected, "{order:?} by {count}");
            assert_eq!(pages.len(), expected.len().div_ceil(count), "no page is empty or short");
        }
        expected.reverse();
    }
}

fn log_filters_are_or_within_and_and_between_fields(store: &dyn Store) {
    let rig = Rig::new(store);
    let [first, second, third] = three_stories(&rig);
    let all = Filter::default;
    let cases: Vec<(&str, Filter, Vec<State>, usize)> = vec![
        ("all", all(), vec![], 7),
        ("state", all(), vec![State::Active], 2),
        ("states", all(), vec![State::Active, State::Created], 5),
        ("id", Filter { ids: vec![first.id], ..all() }, vec![], 4),
        ("ids", Filter { ids: vec![second.id, third.id], ..all() }, vec![], 3),
        ("ids and state", Filter { ids: vec![second.id, third.id], ..all() }, vec![State::Active], 1),
        ("url", Filter { urls: vec![second.spec.url.clone()], ..all() }, vec![], 2),
        ("host", Filter { hosts: vec!["example.com".into()], ..all() }, vec![], 2),
        ("path", Filter { paths: vec!["/path".into(), "/no".into()], ..all() }, vec![], 2),
        ("label", Filter { labels: vec!["round".into()], ..all() }, vec![], 4),
        ("labels", Filter { labels: vec!["round".into(), "red".into()], ..all() }, vec![], 5),
        ("caller", Filter { caller_ips: vec!["::1".into()], ..all() }, vec![], 2),
        (
            "label and host",
            Filter { labels: vec!["red".into()], hosts: vec!["example.com".into()], ..all() },
            vec![],
            0,
        ),
        ("from", Filter { from: Some(T0.plus_millis(6 * HOUR)), ..all() }, vec![], 5),
        ("after", Filter { from: Some(T0.plus_millis(6 * HOUR + 1)), ..all() }, vec![], 1),
        ("to", Filter { to: Some(T0), ..all() }, vec![], 2),
        ("never", Filter { from: Some(T0.plus_millis(1)), to: Some(T0), ..all() }, vec![], 0),
        ("far", Filter { from: Some(Timestamp(u64::MAX)), ..all() }, vec![], 0),
        ("from and id", Filter { ids: vec![first.id], from: Some(T0.plus_millis(1)), ..all() }, vec![], 3),
        ("nothing", Filter { nothing: true, ..all() }, vec![], 0),
    ];
    for (name, message, states, expected) in cases {
        let filter = EventFilter { message, states };
        for order in [Order::LatestFirst, Order::EarliestFirst] {
            for count in [1, 2, 100] {
                let pages = walk(count, order, |page| rig.events(&filter, page));
                let lines: Vec<_> = pages.concat();
                assert_eq!(lines.len(), expected, "{name}, {order:?} by {count}");
                assert!(lines.iter().all(|line| filter.matches(&line.event, &line.message)), "{name}");
            }
        }
    }
}

fn lines_carry_their_details(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    let detail = EventDetail {
        next_due: Some(T0.plus_millis(9)),
        error: Some("timed out".into()),
        response: dead_letter(&message, T0, Some(503)).response,
        duration_ms: Some(12),
        dlq_id: Some("1-2".into()),
    };
    let event = Event { tenant: rig.tenant, id: message.id, at: T0, state: State::Error, detail };
    rig.commit(&[Op::Log(event.clone())]).unwrap();
    let entries = rig.events(&EventFilter::default(), &latest(1)).entries;
    assert_eq!((&entries[0].event, &entries[0].message, entries[0].position.at), (&event, &message, T0));
}

fn pages_of_dead_letters_show_every_one_once(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut expected = Vec::new();
    for hours in [0, 0, 0, 1, 23, 24, 24, 72] {
        let message = rig.publish(T0);
        expected.push(rig.fail(&message, T0.plus_millis(hours * HOUR), Some(500)).dlq_id);
    }
    for order in [Order::EarliestFirst, Order::LatestFirst] {
        for count in 1..=9 {
            let pages =
                walk(count, order, |page| store.list_dead_letters(rig.tenant, &Filter::default(), page).unwrap());
            let ids: Vec<_> = pages.iter().flatten().map(|record| record.letter.dlq_id).collect();
            assert_eq!(ids, expected, "{order:?} by {count}");
            assert_eq!(pages.len(), expected.len().div_ceil(count));
        }
        expected.reverse();
    }
}

fn dead_letter_filters_know_the_last_answer(store: &dyn Store) {
    let rig = Rig::new(store);
    let [first, second, third] = three_stories(&rig);
    rig.fail(&first, T0, Some(500));
    rig.fail(&second, T0.plus_millis(DAY), Some(404));
    rig.fail(&third, T0.plus_millis(DAY), None);
    let all = Filter::default;
    let cases = [
        (all(), vec![third.id, second.id, first.id]),
        (Filter { response_statuses: vec![500, 404], ..all() }, vec![second.id, first.id]),
        (Filter { response_statuses: vec![0], ..all() }, vec![third.id]),
        (Filter { ids: vec![first.id, third.id], ..all() }, vec![third.id, first.id]),
        (Filter { from: Some(T0.plus_millis(DAY)), ..all() }, vec![third.id, second.id]),
        (Filter { to: Some(T0.plus_millis(DAY - 1)), ..all() }, vec![first.id]),
        (Filter { labels: vec!["red".into()], response_statuses: vec![500], ..all() }, vec![first.id]),
        (Filter { hosts: vec!["example.com:8080".into()], ..all() }, vec![second.id]),
        (Filter { nothing: true, ..all() }, vec![]),
    ];
    for (filter, expected) in cases {
        let page = store.list_dead_letters(rig.tenant, &filter, &latest(9)).unwrap();
        let ids: Vec<_> = page.entries.iter().map(|record| record.message.id).collect();
        assert_eq!((ids, page.next), (expected, None), "{filter:?}");
    }
}

fn a_page_ends_before_its_bodies_get_too_large(store: &dyn Store) {
    let rig = Rig::new(store);
    let size = limits::PAGE_BYTES_MAX / 2;
    // The last is too large for any page and still gets one.
    for bytes in [size, size, size, 2 * size + 1] {
        let message = rig.publish_with(T0, |message| message.body = Bytes::from(vec![b'x'; bytes]));
        rig.fail(&message, T0, Some(500));
    }
    let logs = walk(100, Order::EarliestFirst, |page| {
        rig.events(&EventFilter { states: vec![State::Created], ..EventFilter::default() }, page)
    });
    let letters =
        walk(100, Order::EarliestFirst, |page| store.list_dead_letters(rig.tenant, &Filter::default(), page).unwrap());
    assert_eq!(logs.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
    assert_eq!(letters.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
}

fn duplicates_are_found_until_the_window_ends(store: &dyn Store) {
    let rig = Rig::new(store);
    let key = DedupKey([1; 32]);
    for start in [0, limits::DEDUP_WINDOW_MS, 5 * limits::DEDUP_WINDOW_MS - 1] {
        let now = T0.plus_millis(start);
        let expires = now.plus_millis(limits::DEDUP_WINDOW_MS);
        let message = rig.publish(now);
        rig.commit(&[Op::Remember { tenant: rig.tenant, key, id: message.id, expires }]).unwrap();
        let find = |key, now| store.find_duplicate(rig.tenant, key, now).unwrap();
        assert_eq!(find(key, now), Some(message.id));
        assert_eq!(find(key, expires.minus_millis(1)), Some(message.id));
        assert_eq!(find(key, expires), None);
        assert_eq!(find(DedupKey([2; 32]), now), None);
        retain_all(store, DAY, DAY, expires.minus_millis(1));
        assert_eq!(find(key, expires.minus_millis(1)), Some(message.id), "retention keeps open windows");
    }
}

fn the_window_that_ends_later_counts(store: &dyn Store) {
    let rig = Rig::new(store);
    let key = DedupKey([1; 32]);
    let remember = |expires: u64| {
        let message = rig.publish(T0);
        let expires = T0.plus_millis(expires);
        rig.commit(&[Op::Remember { tenant: rig.tenant, key, id: message.id, expires }]).unwrap();
        message.id
    };
    let find = |now: u64| store.find_duplicate(rig.tenant, key, T0.plus_millis(now)).unwrap();
    remember(10);
    let longer = remember(20);
    remember(15);
    assert_eq!(find(0), Some(longer));
    let same = remember(20);
    assert_eq!(find(19), Some(same));
    let longest = remember(3 * limits::DEDUP_WINDOW_MS);
    remember(2 * limits::DEDUP_WINDOW_MS);
    assert_eq!(find(0), Some(longest));
}

fn an_earlier_owner_is_fenced(store: &dyn Store) {
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

fn a_failing_batch_leaves_nothing_behind(store: &dyn Store) {
    let rig = Rig::new(store);
    let known = rig.publish(T0);
    let ended = rig.publish(T0);
    rig.deliver(&ended, T0);
    let buried = rig.publish(T0);
    let letter = rig.fail(&buried, T0, None);
    let forged = MessageId { tag: known.id.tag ^ 1, ..known.id };
    let at = |days| T0.plus_millis(days * DAY);
    let absent = DlqId { at: at(3), n: 1 };
    let bad: Vec<(&str, Op)> = vec![
        ("a taken position", inserted(&known)),
        ("the position of an ended message", inserted(&ended)),
        ("an update of an ended message", Op::Update(live(&ended))),
        ("an update with a forged id", Op::Update(Live { id: forged, ..live(&known) })),
        ("the end of an ended message", Op::Remove { id: ended.id }),
        ("the end of a forged id", Op::Remove { id: forged }),
        ("the burial of an ended message", Op::Bury(dead_letter(&ended, T0, None))),
        ("a second burial", Op::Bury(letter.clone())),
        ("an absent dead letter", Op::Exhume { tenant: rig.tenant, dlq_id: absent }),
    ];
    let before = (rig.story(), rig.live_ids(), store.counts().unwrap());
    for (name, op) in bad {
        // In a bucket that only this batch would have made.
        let fresh = rig.draft(at(2), |_| {});
        let key = DedupKey([3; 32]);
        let mut ops = published(&fresh);
        ops.push(Op::Remember { tenant: rig.tenant, key, id: fresh.id, expires: at(3) });
        ops.push(Op::Exhume { tenant: rig.tenant, dlq_id: letter.dlq_id });
        ops.push(Op::Update(Live { retried: 9, ..live(&known) }));
        ops.push(op);
        let result = rig.commit(&ops);
        assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{name}: {result:?}");
        assert_eq!((rig.story(), rig.live_ids(), store.counts().unwrap()), before, "{name}");
        assert_eq!(store.find_live(rig.tenant, &[known.id]).unwrap(), [live(&known)], "{name}");
        assert_eq!(store.find_duplicate(rig.tenant, key, T0).unwrap(), None, "{name}");
        assert!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().is_some(), "{name}");
    }
    // The store goes on: the batch was at fault, not the file.
    let fresh = rig.publish(at(2));
    assert_eq!(rig.live_ids(), [known.id, fresh.id]);
}

fn live_messages_are_matched_oldest_first(store: &dyn Store) {
    let rig = Rig::new(store);
    let [first, second, third] = three_stories(&rig);
    let all = Filter::default;
    let red = || Filter { labels: vec!["red".into()], ..all() };
    let cases = [
        (all(), 9, vec![first.id, second.id, third.id]),
        (all(), 2, vec![first.id, second.id]),
        (all(), 0, vec![]),
        (red(), 9, vec![first.id, third.id]),
        (red(), 1, vec![first.id]),
        (Filter { ids: vec![third.id, first.id], ..all() }, 9, vec![first.id, third.id]),
        (Filter { to: Some(T0), ..all() }, 9, vec![first.id, second.id]),
        (Filter { from: Some(T0.plus_millis(1)), ..all() }, 9, vec![third.id]),
        (Filter { nothing: true, ..all() }, 9, vec![]),
    ];
    for (filter, max, expected) in cases {
        let found = store.match_live(rig.tenant, &filter, max).unwrap();
        assert_eq!(found.iter().map(|live| live.id).collect::<Vec<_>>(), expected, "{filter:?}");
    }
    rig.deliver(&first, T0);
    assert_eq!(rig.live_ids(), [second.id, third.id]);
}

fn log_lines_go_when_their_bucket_is_old_enough(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    rig.deliver(&message, T0);
    // The bucket of six hours ends at 06:00 and is kept for a day from then on.
    let last_moment = T0.plus_millis(30 * HOUR - 1);
    assert_eq!(retain_all(store, DAY, DAY, last_moment), 0);
    assert_eq!(rig.story().len(), 2);
    assert!(retain_all(store, DAY, DAY, last_moment.plus_millis(1)) > 0);
    assert_eq!(rig.story(), []);
    assert_eq!(store.message(rig.tenant, message.id).unwrap(), None);
    assert_eq!(retain_all(store, DAY, DAY, last_moment.plus_millis(1)), 0);
}

fn live_messages_survive_retention_again_and_again(store: &dyn Store) {
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
    assert_eq!(store.message(rig.tenant, delayed[0].id).unwrap().unwrap().message, delayed[0]);
    let filter = Filter { paths: vec!["/hook".into()], ..Filter::default() };
    assert_eq!(store.match_live(rig.tenant, &filter, 99).unwrap().len(), 20);

    // They still end like any other: delivered, failed, canceled.
    rig.deliver(&delayed[0], now);
    let letter = rig.fail(&delayed[1], now, Some(500));
    assert_eq!(store.message(rig.tenant, delayed[0].id).unwrap().unwrap().ended_at, Some(now));
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().unwrap().message, delayed[1]);
    assert_eq!(rig.story(), [(delayed[1].id, State::Failed), (delayed[0].id, State::Delivered)]);
    retain_all(store, DAY, DAY, now.plus_millis(30 * HOUR));
    assert_eq!((rig.story(), rig.live_ids().len()), (vec![], 18));
}

fn a_message_stays_as_long_as_its_last_log_line(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0.plus_millis(6 * HOUR - 1));
    rig.deliver(&message, T0.plus_millis(6 * HOUR));
    retain_all(store, DAY, DAY, T0.plus_millis(30 * HOUR));
    assert_eq!(rig.story(), [(message.id, State::Delivered)]);
    let record = store.message(rig.tenant, message.id).unwrap().unwrap();
    assert_eq!((record.message, record.ended_at), (Arc::clone(&message), Some(T0.plus_millis(6 * HOUR))));
    retain_all(store, DAY, DAY, T0.plus_millis(36 * HOUR));
    assert_eq!(rig.story(), []);
    assert_eq!(store.message(rig.tenant, message.id).unwrap(), None);
}

fn dead_letters_have_their_own_retention(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    let letter = rig.fail(&message, T0, Some(500));
    retain_all(store, HOUR, 30 * DAY, T0.plus_millis(31 * DAY - 1));
    assert_eq!((rig.story(), store.message(rig.tenant, message.id).unwrap()), (vec![], None));
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().unwrap().message, message);
    assert_eq!(store.counts().unwrap(), Counts { live: 0, dead_letters: 1 });
    retain_all(store, HOUR, 30 * DAY, T0.plus_millis(31 * DAY));
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap(), None);
    assert_eq!(store.list_dead_letters(rig.tenant, &Filter::default(), &latest(9)).unwrap().entries, []);
    assert_eq!(store.counts().unwrap(), Counts { live: 0, dead_letters: 0 });
}

fn retention_has_no_leftovers_in_large_buckets(store: &dyn Store) {
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
            _ => ops.push(Op::Bury(dead_letter(&message, T0, None))),
        }
    }
    rig.commit(&ops).unwrap();
    retain_all(store, HOUR, HOUR, T0.plus_millis(2 * DAY));
    assert_eq!(rig.live_ids(), living);
    assert_eq!(rig.story(), []);
    assert_eq!(store.counts().unwrap(), Counts { live: living.len() as u64, dead_letters: 0 });
    assert_eq!(store.load_messages(&living).unwrap().len(), living.len());
}

fn counts_follow_every_change(store: &dyn Store) {
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
    rig.commit(&[Op::Exhume { tenant: rig.tenant, dlq_id: letter.dlq_id }]).unwrap();
    counts(0, 0);
}

fn tenants_and_keys_are_remembered(store: &dyn Store) {
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
}

fn positions_never_go_back(store: &dyn Store) {
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
}

fn a_probe_and_a_flush_change_nothing(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.draft(T0, |_| {});
    store.commit(SHARD, rig.epoch, &published(&message), Durability::Lazy).unwrap();
    for _ in 0..3 {
        store.probe().unwrap();
        store.flush().unwrap();
        store.commit(SHARD, rig.epoch, &[], Durability::Synced).unwrap();
    }
    assert_eq!((rig.live_ids(), rig.story().len()), (vec![message.id], 1));
    let page = PageRequest { cursor: None, count: 0, order: Order::LatestFirst };
    assert_eq!(rig.events(&EventFilter::default(), &page).entries.len(), 1, "a page has at least one entry");
}
