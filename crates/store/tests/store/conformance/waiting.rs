//! Messages in queues and under flow-control keys: loading, counting and matching them.

use crate::support::*;
use posthaste_engine::event::Op;
use posthaste_engine::message::{DueKey, FlowKey, Live, Message, Origin, QueueKey};
use posthaste_engine::shard::{Lane, Load, Source};
use posthaste_store::{Filter, ShardId, Store};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// A message in a queue, under a key, or both, and its live row.
fn put(rig: &Rig<'_>, delay: u64, queue: Option<&str>, key: Option<&str>) -> Live {
    put_with(rig, |message| {
        message.not_before = T0.plus_millis(delay);
        message.spec.queue = queue.map(str::to_owned);
        message.spec.flow = key.map(flow_spec);
    })
}

fn put_with(rig: &Rig<'_>, change: impl FnOnce(&mut Message)) -> Live {
    live(&rig.publish_with(T0, change))
}

/// Another tenant's message whose row has the same hashes as `row`.
fn collide(rig: &Rig<'_>, row: Live) -> Live {
    let tenant = rig.store.tenant("other").unwrap();
    let message = rig.draft(T0, |message| message.tenant = tenant);
    let row = Live { tenant, origin: row.origin, place: row.place, flow: row.flow, ..live(&message) };
    rig.commit(&[Op::Insert { message, live: row }]).unwrap();
    row
}

/// A callback shares the turn of the message that caused it.
fn call_back(rig: &Rig<'_>, cause: Live) -> Live {
    let message = rig.draft(T0, |_| {});
    let row = Live { place: cause.place, ..live(&message) };
    rig.commit(&[Op::Insert { message, live: row }]).unwrap();
    row
}

fn load(rig: &Rig<'_>, load: &Load) -> Vec<Live> {
    rig.store.load(SHARD, load).unwrap()
}

fn lane(tenant: TenantId, lane: Lane) -> Load {
    due(Some((tenant, lane)), DueKey::MIN, Timestamp::MAX, 100)
}

pub(super) fn callbacks_in_queues_are_loaded_by_position(store: &dyn Store) {
    let rig = Rig::new(store);
    let (first, second) = (put(&rig, 0, Some("q"), None), put(&rig, HOUR, Some("another"), None));
    put(&rig, 0, None, None);
    let callbacks = [call_back(&rig, second), call_back(&rig, first), call_back(&rig, second)];
    let page = |after: Seq, max| Load { source: Source::Callbacks { after }, max };
    assert_eq!(load(&rig, &page(Seq::MIN, 100)), callbacks);
    assert_eq!(load(&rig, &page(Seq::MIN, 2)), callbacks[..2]);
    assert_eq!(load(&rig, &page(callbacks[1].id.seq, 100)), callbacks[2..]);
    assert_eq!(store.load(ShardId(1), &page(Seq::MIN, 100)).unwrap(), []);
    rig.commit(&[Op::Remove { id: callbacks[0].id }]).unwrap();
    assert_eq!(load(&rig, &page(Seq::MIN, 100)), callbacks[1..]);
}

pub(super) fn the_rows_of_a_queue_are_loaded_by_turn(store: &dyn Store) {
    let rig = Rig::new(store);
    let delayed = put(&rig, HOUR, Some("q"), None);
    let first = put(&rig, 0, Some("q"), None);
    let second = put(&rig, 0, Some("q"), Some("key"));
    let delayed_too = put(&rig, HOUR, Some("q"), None);
    let callbacks = [call_back(&rig, first), call_back(&rig, first), call_back(&rig, delayed)];
    put(&rig, 0, Some("another"), None);
    put(&rig, 0, None, None);
    collide(&rig, first);
    let rows = [first, callbacks[0], callbacks[1], second, delayed, callbacks[2], delayed_too];

    assert_eq!(load(&rig, &queued(rig.tenant, "q", None, 100)), rows);
    for size in 1..=rows.len() {
        let mut after = None;
        for expected in rows.chunks(size) {
            assert_eq!(load(&rig, &queued(rig.tenant, "q", after, size)), expected, "by {size}");
            after = expected.last();
        }
        assert_eq!(load(&rig, &queued(rig.tenant, "q", after, size)), []);
    }
    assert_eq!(load(&rig, &queued(rig.tenant, "none", None, 100)), []);
    assert_eq!(store.load(ShardId(1), &queued(rig.tenant, "q", None, 100)).unwrap(), []);

    rig.commit(&[Op::Update(Live { due: T0.plus_millis(DAY), retried: 1, ..first }), Op::Remove { id: second.id }])
        .unwrap();
    let ids: Vec<MessageId> = load(&rig, &queued(rig.tenant, "q", None, 3)).iter().map(|row| row.id).collect();
    assert_eq!(ids, [first.id, callbacks[0].id, callbacks[1].id], "a retry does not lose its turn");
}

pub(super) fn messages_in_a_queue_are_not_loaded_by_due_time(store: &dyn Store) {
    let rig = Rig::new(store);
    let inside = put(&rig, 0, Some("q"), Some("key"));
    let outside = put(&rig, 0, None, Some("key"));
    let plain = put(&rig, 0, None, None);
    let key = Lane::Flow(FlowKey::of(rig.tenant, "key"));
    let origin = Lane::Origin(plain.origin);
    let everything = due(None, DueKey::MIN, Timestamp::MAX, 100);
    assert_eq!(load(&rig, &everything), [outside, plain]);
    assert_eq!(load(&rig, &lane(rig.tenant, origin)), [outside, plain]);
    assert_eq!(load(&rig, &lane(rig.tenant, key)), [outside]);

    // A row that leaves or enters a queue is found in its new place.
    let (left, entered) = (Live { place: None, ..inside }, Live { place: inside.place, flow: None, ..outside });
    rig.commit(&[Op::Update(left), Op::Update(entered)]).unwrap();
    assert_eq!(load(&rig, &everything), [left, plain]);
    assert_eq!(load(&rig, &lane(rig.tenant, key)), [left]);
    assert_eq!(load(&rig, &queued(rig.tenant, "q", None, 100)), [entered]);
    assert_eq!(store.find_live(rig.tenant, &[inside.id, outside.id]).unwrap(), [left, entered]);
    assert_eq!(store.counts().unwrap().live, 3);
    assert_eq!(rig.live_ids(), [inside.id, outside.id, plain.id]);
}

pub(super) fn a_lane_has_the_rows_of_its_tenant_only(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut rows: Vec<Live> = [30, 10, 20, 10].iter().map(|delay| put(&rig, *delay, None, Some("key"))).collect();
    put(&rig, 0, None, Some("another"));
    let foreign = collide(&rig, rows[0]);
    rows.sort_by_key(Live::due_key);
    let key = Lane::Flow(FlowKey::of(rig.tenant, "key"));
    assert_eq!(load(&rig, &lane(rig.tenant, key)), rows);
    assert_eq!(load(&rig, &lane(foreign.tenant, key)), [foreign]);
    assert_eq!(load(&rig, &lane(foreign.tenant, Lane::Origin(foreign.origin))), [foreign]);
    assert_eq!(load(&rig, &lane(rig.tenant, Lane::Origin(foreign.origin))).len(), rows.len() + 1);
    assert_eq!(load(&rig, &lane(rig.tenant, Lane::Origin(Origin(1)))), []);
    let page = |after: DueKey, until, max| due(Some((rig.tenant, key)), after, T0.plus_millis(until), max);
    assert_eq!(load(&rig, &page(rows[0].due_key(), 20, 100)), rows[1..3]);
    assert_eq!(load(&rig, &page(DueKey::MIN, DAY, 3)), rows[..3]);
}

pub(super) fn the_lag_of_a_queue_counts_turns_not_callbacks(store: &dyn Store) {
    let rig = Rig::new(store);
    let first = put(&rig, 0, Some("q"), None);
    put(&rig, HOUR, Some("q"), Some("key"));
    put(&rig, 0, Some("another"), None);
    put(&rig, 0, None, None);
    call_back(&rig, first);
    let foreign = collide(&rig, first);
    let keys = ["q", "another", "none", "q"].map(|name| QueueKey::of(rig.tenant, name));
    assert_eq!(store.queue_lags(rig.tenant, &keys).unwrap(), [2, 1, 0, 2]);
    assert_eq!(store.queue_lags(foreign.tenant, &keys).unwrap(), [0; 4], "not its own turn");
    rig.commit(&[Op::Remove { id: first.id }]).unwrap();
    assert_eq!(store.queue_lags(rig.tenant, &keys).unwrap(), [1, 1, 0, 1], "the callback holds only the slot");
    assert!(store.queue_lags(rig.tenant, &[]).unwrap().is_empty());
}

pub(super) fn the_load_of_a_key_counts_due_messages(store: &dyn Store) {
    let rig = Rig::new(store);
    for (delay, queue) in [(0, None), (10, None), (11, None), (0, Some("q")), (10, Some("p")), (11, Some("q"))] {
        put(&rig, delay, queue, Some("key"));
    }
    let row = put(&rig, 0, Some("q"), Some("another"));
    put(&rig, 0, None, None);
    let foreign = collide(&rig, row);
    let keys = ["key", "another", "none"].map(|key| FlowKey::of(rig.tenant, key));
    let loads = |tenant, until: u64| store.flow_loads(tenant, &keys, T0.plus_millis(until)).unwrap();
    assert_eq!(loads(rig.tenant, 0), [2, 1, 0]);
    assert_eq!(loads(rig.tenant, 9), [2, 1, 0]);
    assert_eq!(loads(rig.tenant, 10), [4, 1, 0], "the end is included");
    assert_eq!(loads(rig.tenant, DAY), [6, 1, 0]);
    assert_eq!(loads(foreign.tenant, DAY), [0, 1, 0]);
    assert_eq!(store.flow_loads(rig.tenant, &keys, T0.minus_millis(1)).unwrap(), [0; 3]);
}

pub(super) fn the_waiting_count_of_a_key_excludes_messages_in_flight(store: &dyn Store) {
    let rig = Rig::new(store);
    let rows = [put(&rig, 0, None, Some("key")), put(&rig, 0, Some("q"), Some("key")), put(&rig, 0, None, Some("key"))];
    let (later, other) = (put(&rig, HOUR, None, Some("key")), put(&rig, 0, None, Some("another")));
    let keys = |under_way: &[Live]| {
        let ids: Vec<MessageId> = under_way.iter().map(|row| row.id).collect();
        [(FlowKey::of(rig.tenant, "key"), ids.clone()), (FlowKey::of(rig.tenant, "another"), ids)]
    };
    let waiting = |under_way: &[Live]| store.flow_waiting(rig.tenant, &keys(under_way), T0).unwrap();
    assert_eq!(waiting(&[]), [3, 1]);
    assert_eq!(waiting(&rows[..2]), [1, 1]);
    assert_eq!(waiting(&[later, other]), [3, 0], "neither what is not due nor what has another key is taken off");
    rig.commit(&[Op::Remove { id: rows[0].id }]).unwrap();
    assert_eq!(waiting(&rows[..2]), [1, 1], "one that was under way and has ended since is not taken off once more");
}

/// All due messages are in flight, and end one by one during the queries. The queries must never count any as waiting.
pub(super) fn messages_that_end_during_the_query_are_not_counted_as_waiting(store: &dyn Store) {
    let rig = Rig::new(store);
    let rows: Vec<Live> = (0..300).map(|_| put(&rig, 0, None, Some("key"))).collect();
    let keys = [(FlowKey::of(rig.tenant, "key"), rows.iter().map(|row| row.id).collect::<Vec<MessageId>>())];
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| {
            for row in &rows {
                rig.commit(&[Op::Remove { id: row.id }]).unwrap();
            }
        });
        while !ending.is_finished() {
            assert_eq!(store.flow_waiting(rig.tenant, &keys, T0).unwrap(), [0]);
        }
    });
}

pub(super) fn live_messages_are_matched_by_queue_and_key(store: &dyn Store) {
    let rig = Rig::new(store);
    let late = put(&rig, HOUR, Some("q"), Some("a"));
    let both = put(&rig, 0, Some("q"), Some("b"));
    let other = put(&rig, 0, Some("p"), Some("a"));
    let key = put(&rig, 0, None, Some("a"));
    put(&rig, 0, None, None);
    // The hash matches, but the message does not name the queue.
    call_back(&rig, both);
    collide(&rig, both);
    let labelled = put_with(&rig, |message| {
        message.spec.queue = Some("q".into());
        message.spec.labels = vec!["red".into()];
    });
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let filter =
        |queues: &[&str], keys: &[&str]| Filter { queues: names(queues), flow_keys: names(keys), ..Filter::default() };
    let cases = [
        (filter(&["q"], &[]), vec![late, both, labelled]),
        (filter(&["q", "p"], &[]), vec![late, both, other, labelled]),
        (filter(&[], &["a"]), vec![late, other, key]),
        (filter(&["q"], &["a", "b"]), vec![late, both]),
        (filter(&["none"], &[]), vec![]),
        (filter(&[], &["none"]), vec![]),
        (Filter { labels: names(&["red"]), ..filter(&["q"], &[]) }, vec![labelled]),
        (Filter { ids: vec![both.id, key.id], ..filter(&["q"], &[]) }, vec![both]),
    ];
    let matched = |filter: &Filter, after, max| store.match_live(rig.tenant, filter, after, max).unwrap();
    for (filter, expected) in cases {
        assert_eq!(matched(&filter, Seq::MIN, 100), expected, "{filter:?}");
        for size in 1..3 {
            let mut after = Seq::MIN;
            for page in expected.chunks(size) {
                assert_eq!(matched(&filter, after, size), page, "{filter:?} by {size}");
                after = page[page.len() - 1].id.seq;
            }
            assert_eq!(matched(&filter, after, size), []);
        }
    }
}

/// More rows than any backend sorts at once, with turns in another order than creation.
pub(super) fn a_long_queue_is_matched_page_by_page(store: &dyn Store) {
    const LENGTH: u64 = 11_000;
    let rig = Rig::new(store);
    let (mut last, mut ops, mut expected) = (store.last_seq().unwrap(), Vec::new(), Vec::new());
    for index in 0..LENGTH {
        last = Seq::next(last, T0);
        let mut message = message(rig.tenant, MessageId { seq: last, tag: 1 }, T0);
        let name = if index % 50 == 0 { "short" } else { "long" };
        message.spec.queue = Some(name.into());
        message.spec.flow = Some(flow_spec(name));
        message.not_before = T0.plus_millis(LENGTH - index);
        if name == "long" {
            expected.push(message.id);
        }
        ops.push(inserted(&Arc::new(message)));
    }
    rig.commit(&ops).unwrap();
    let queues = Filter { queues: vec!["long".into()], ..Filter::default() };
    let keys = Filter { flow_keys: vec!["long".into()], ..Filter::default() };
    for filter in [queues, keys] {
        let mut after = Seq::MIN;
        for page in expected.chunks(4_000) {
            let found = store.match_live(rig.tenant, &filter, after, page.len()).unwrap();
            assert_eq!(found.iter().map(|live| live.id).collect::<Vec<_>>(), page);
            after = page[page.len() - 1].seq;
        }
    }
}
