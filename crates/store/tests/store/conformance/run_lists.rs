//! Lists of runs: filters, order, cursors and limits.

use crate::run_support::*;
use crate::support::*;
use posthaste_engine::limits;
use posthaste_engine::workflow::Workflow;
use posthaste_engine::workflow::run::{FailureCall, FailureCallState, RunState};
use posthaste_store::{Order, Page, PageRequest, ReadPool, RunFilter, Store, UrlFilter};
use posthaste_wire::id::{DlqId, MessageId, Position, Seq};
use posthaste_wire::time::Timestamp;

pub(super) fn pages_of_runs_show_every_run_once(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut expected = Vec::new();
    // The fourth run follows another one of its name in the same millisecond, so its time equals that of the fifth.
    for (name, millis) in [("a", 0), ("b", 0), ("c", 0), ("b", 1), ("d", 1), ("e", 5), ("f", HOUR)] {
        let at = T0.plus_millis(millis);
        let mut run = rig.start_with(name, T0, |new| new.created_at = at);
        if ["b", "e"].contains(&name) {
            rig.finish(&mut run, at);
        }
        expected.push(run);
    }
    for order in [Order::EarliestFirst, Order::LatestFirst] {
        for count in 1..=8 {
            let pages = walk(count, order, |page| rig.list(&RunFilter::default(), page));
            assert_eq!(pages.concat(), expected, "{order:?} by {count}");
            assert_eq!(pages.len(), expected.len().div_ceil(count), "no page is empty or short");
        }
        expected.reverse();
    }
}

pub(super) fn a_run_created_between_two_pages_does_not_shift_them(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut expected: Vec<Seq> = ["a", "b", "c", "d"].map(|id| rig.start(id, T0).run.no).to_vec();
    let page = |cursor, order| rig.list(&RunFilter::default(), &PageRequest::new(cursor, 2, order));
    let numbers = |page: &Page<Workflow>| page.entries.iter().map(|run| run.run.no).collect::<Vec<_>>();
    let [oldest, newest] = [Order::EarliestFirst, Order::LatestFirst].map(|order| page(None, order));
    let second = Position { at: T0, n: expected[1].0 };
    assert_eq!((numbers(&oldest), oldest.next), (expected[..2].to_vec(), Some(second)));
    let between = rig.start("e", T0.plus_millis(1)).run.no;
    assert_eq!(numbers(&page(newest.next, Order::LatestFirst)), [expected[1], expected[0]]);
    expected.push(between);
    let rest = walk(2, Order::EarliestFirst, |request| page(request.cursor.or(oldest.next), Order::EarliestFirst));
    assert_eq!(rest.iter().flatten().map(|run| run.run.no).collect::<Vec<_>>(), expected[2..]);
}

/// Four runs: one is live, one returned, and two failed. The last one has a failure callback.
fn four(rig: &Rig<'_>) -> [Workflow; 4] {
    let mut first = rig.start_with("a", T0, |new| {
        new.config.labels = vec!["red".into(), "round".into()];
        new.config.flow = Some(flow_spec("key"));
    });
    rig.append(&mut first, T0, vec![step(1, "one")]);
    let mut second = rig.start_with("b", T0.plus_millis(HOUR), |new| {
        new.url = "http://example.com:8080/path?query".into();
        new.config.caller_ip = "::1".into();
    });
    rig.finish(&mut second, T0.plus_millis(HOUR));
    let third = rig.failed("'", T0.plus_millis(2 * HOUR), T0.plus_millis(6 * HOUR), 500);
    let mut fourth = rig.start_with("b", T0.plus_millis(3 * HOUR), |new| {
        new.config.labels = vec!["red".into()];
        new.config.failure = Some(FailureCall { url: "https://example.org/".into(), ..FailureCall::default() });
    });
    rig.attempt(&mut fourth, 0, T0.plus_millis(5 * HOUR), 404);
    [first, second, third, fourth]
}

pub(super) fn run_filters_are_or_within_and_and_between_fields(store: &dyn Store) {
    let rig = Rig::new(store);
    let runs = four(&rig);
    let all = RunFilter::default;
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let entry = |run: usize, entry: usize| runs[run].entries[entry].id;
    let forged = MessageId { tag: 1, ..entry(0, 0) };
    let hours = |hours: u64| Some(T0.plus_millis(hours * HOUR));
    let instance = |run: usize| (runs[run].run.id.clone(), runs[run].run.created_at);
    let cases: Vec<(&str, RunFilter, &[usize])> = vec![
        ("all", all(), &[0, 1, 2, 3]),
        ("id", RunFilter { ids: texts(&["b"]), ..all() }, &[1, 3]),
        ("ids", RunFilter { ids: texts(&["'", "a", "none", "a"]), ..all() }, &[0, 2]),
        ("case", RunFilter { ids: texts(&["A"]), ..all() }, &[]),
        ("many ids", RunFilter { ids: (0..2_000).map(|n| n.to_string()).chain(["a".into()]).collect(), ..all() }, &[0]),
        ("instance", RunFilter { instances: vec![instance(3), ("a".into(), Timestamp(1))], ..all() }, &[3]),
        ("instance and id", RunFilter { instances: vec![instance(3)], ids: texts(&["a"]), ..all() }, &[]),
        ("created", RunFilter { created_at: Some(runs[1].run.created_at), ..all() }, &[1]),
        ("message", RunFilter { messages: vec![entry(0, 1), entry(3, 0)], ..all() }, &[0, 3]),
        ("forged message", RunFilter { messages: vec![forged], ..all() }, &[]),
        ("url", RunFilter { urls: vec![UrlFilter::Exact("https://example.org/flow".into())], ..all() }, &[0, 2, 3]),
        ("url prefix", RunFilter { urls: vec![UrlFilter::Prefix("http://example".into())], ..all() }, &[1]),
        (
            "urls",
            RunFilter {
                urls: vec![
                    UrlFilter::Exact("https://example.org/flow".into()),
                    UrlFilter::Prefix("http://example".into()),
                ],
                ..all()
            },
            &[0, 1, 2, 3],
        ),
        ("host", RunFilter { hosts: texts(&["example.com"]), ..all() }, &[1]),
        ("path", RunFilter { paths: texts(&["/path", "/no"]), ..all() }, &[1]),
        ("state", RunFilter { states: vec![RunState::Failed], ..all() }, &[2, 3]),
        ("states", RunFilter { states: vec![RunState::Started, RunState::Success], ..all() }, &[0, 1]),
        ("state and id", RunFilter { states: vec![RunState::Failed], ids: texts(&["b"]), ..all() }, &[3]),
        ("canceled", RunFilter { states: vec![RunState::Canceled], ..all() }, &[]),
        ("label", RunFilter { labels: texts(&["red"]), ..all() }, &[0, 3]),
        ("labels", RunFilter { labels: texts(&["round", "no"]), ..all() }, &[0]),
        ("flow", RunFilter { flow_keys: texts(&["key"]), ..all() }, &[0]),
        ("caller", RunFilter { caller_ips: texts(&["::1"]), ..all() }, &[1]),
        ("status", RunFilter { response_statuses: vec![404], ..all() }, &[3]),
        ("statuses", RunFilter { response_statuses: vec![404, 500, 0], ..all() }, &[2, 3]),
        ("called", RunFilter { failure_calls: vec![FailureCallState::InProgress], ..all() }, &[3]),
        ("from", RunFilter { from: hours(1), ..all() }, &[1, 2, 3]),
        ("after", RunFilter { from: Some(T0.plus_millis(HOUR + 1)), ..all() }, &[2, 3]),
        ("to", RunFilter { to: hours(1), ..all() }, &[0, 1]),
        ("never", RunFilter { from: hours(2), to: hours(1), ..all() }, &[]),
        ("to and id", RunFilter { to: hours(2), ids: texts(&["b"]), ..all() }, &[1]),
        ("nothing", RunFilter { nothing: true, ..all() }, &[]),
    ];
    for (name, filter, expected) in cases {
        let mut expected: Vec<Workflow> = expected.iter().map(|run| runs[*run].clone()).collect();
        for order in [Order::EarliestFirst, Order::LatestFirst] {
            for count in [1, 2, 100] {
                let pages = walk(count, order, |page| rig.list(&filter, page));
                assert_eq!(pages.concat(), expected, "{name}, {order:?} by {count}");
            }
            expected.reverse();
        }
        let going_on: Vec<Seq> = expected.iter().map(|run| run.run.no).filter(|no| *no == runs[0].run.no).collect();
        assert_eq!(store.match_runs(rig.tenant, &filter, Seq::MIN, 9).unwrap(), going_on, "{name}");
    }
}

pub(super) fn live_runs_are_matched_oldest_first(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let mut runs: Vec<Workflow> = (0..5)
        .map(|index: u64| {
            let label = if index.is_multiple_of(2) { "even" } else { "odd" };
            let at = T0.plus_millis(index);
            rig.start_with(&format!("run {index}"), at, |new| new.config.labels = vec![label.into()])
        })
        .collect();
    rig.start_with("run 0", T0, |new| new.tenant = other);
    let numbers: Vec<Seq> = runs.iter().map(|run| run.run.no).collect();
    let even = RunFilter { labels: vec!["even".into()], ..RunFilter::default() };
    let found = |filter: &RunFilter, after, max| store.match_runs(rig.tenant, filter, after, max).unwrap();
    assert_eq!(found(&RunFilter::default(), Seq::MIN, usize::MAX), numbers);
    assert_eq!(found(&RunFilter::default(), Seq::MIN, 2), numbers[..2]);
    assert_eq!(found(&RunFilter::default(), numbers[1], 2), numbers[2..4]);
    assert_eq!(found(&RunFilter::default(), Seq::MIN, 0), []);
    assert_eq!(found(&even, numbers[0], 9), [numbers[2], numbers[4]]);
    let named = RunFilter { ids: vec!["run 3".into(), "run 1".into()], ..RunFilter::default() };
    assert_eq!(found(&named, Seq::MIN, 9), [numbers[1], numbers[3]]);
    assert_eq!(found(&named, numbers[1], 9), [numbers[3]]);
    rig.finish(&mut runs[2], T0);
    rig.attempt(&mut runs[4], 0, T0, 500);
    assert_eq!(found(&even, Seq::MIN, 9), [numbers[0]]);
    assert_eq!(found(&RunFilter { states: vec![RunState::Failed], ..even }, Seq::MIN, 9), []);
    assert_eq!(store.match_runs(other, &RunFilter::default(), Seq::MIN, 9).unwrap().len(), 1);
}

pub(super) fn failed_runs_are_listed_by_their_place_in_the_dlq(store: &dyn Store) {
    let rig = Rig::new(store);
    let [_, _, mut third, fourth] = four(&rig);
    let dlq_id = |run: &Workflow| run.run.failure.as_ref().unwrap().dlq_id;
    let together = rig.failed("c", T0.plus_millis(4 * HOUR), T0.plus_millis(5 * HOUR), 503);
    // By the time of failure: the third was created before the others and failed after them.
    let mut expected = vec![fourth.clone(), together.clone(), third.clone()];
    for order in [Order::EarliestFirst, Order::LatestFirst] {
        for count in 1..=4 {
            let pages = walk(count, order, |page| rig.list_failed(&RunFilter::default(), page));
            assert_eq!(pages.concat(), expected, "{order:?} by {count}");
        }
        expected.reverse();
    }
    let six = Some(T0.plus_millis(6 * HOUR));
    let cases: Vec<(RunFilter, Vec<&Workflow>)> = vec![
        (RunFilter { from: six, ..RunFilter::default() }, vec![&third]),
        (RunFilter { to: Some(T0.plus_millis(6 * HOUR - 1)), ..RunFilter::default() }, vec![&together, &fourth]),
        (RunFilter { ids: vec!["'".into(), "b".into()], ..RunFilter::default() }, vec![&third, &fourth]),
        (RunFilter { response_statuses: vec![503], ..RunFilter::default() }, vec![&together]),
        (RunFilter { messages: vec![fourth.entries[0].id], ..RunFilter::default() }, vec![&fourth]),
        (RunFilter { labels: vec!["none".into()], ..RunFilter::default() }, vec![]),
    ];
    for (filter, expected) in cases {
        let page = rig.list_failed(&filter, &latest(9));
        assert_eq!((page.entries.iter().collect::<Vec<_>>(), page.next), (expected, None), "{filter:?}");
    }
    for run in [&third, &fourth, &together] {
        assert_eq!(store.find_failed_run(rig.tenant, dlq_id(run), ReadPool::Core).unwrap(), Some(run.run.no));
    }
    let absent = DlqId { n: dlq_id(&third).n + 1, ..dlq_id(&third) };
    let other = store.tenant("other").unwrap();
    assert_eq!(store.find_failed_run(rig.tenant, absent, ReadPool::Queries).unwrap(), None);
    assert_eq!(store.failed_run(rig.tenant, absent).unwrap(), None);
    assert_eq!(store.failed_run(other, dlq_id(&third)).unwrap(), None);
    assert_eq!(store.list_failed_runs(other, &RunFilter::default(), &latest(9)).unwrap().entries, []);
    assert_eq!(store.list_runs(other, &RunFilter::default(), &latest(9)).unwrap().entries, []);

    assert!(rig.decide(T0, |out| third.leave_dlq(out)));
    assert_eq!(store.failed_run(rig.tenant, dlq_id(&third)).unwrap(), None);
    assert_eq!(rig.list_failed(&RunFilter::default(), &latest(9)).entries, [together, fourth]);
    assert_eq!(rig.stored(&third), Some(third), "it is in the other list still");
}

pub(super) fn a_page_of_runs_ends_before_its_bodies_get_too_large(store: &dyn Store) {
    let rig = Rig::new(store);
    let size = limits::PAGE_BYTES_MAX / 2;
    // The last one is too large for any page but still gets one.
    for (index, bytes) in [size, size, size, 2 * size + 1].into_iter().enumerate() {
        let mut run = rig.start_with(&index.to_string(), T0, |new| new.first.body = vec![b'x'; bytes].into());
        rig.attempt(&mut run, 0, T0, 500);
    }
    let all = RunFilter::default();
    let counts = |pages: Vec<Vec<Workflow>>| pages.iter().map(Vec::len).collect::<Vec<_>>();
    // Each has its response twice more: as the response of its entry and as that of its failure.
    assert_eq!(counts(walk(100, Order::EarliestFirst, |page| rig.list(&all, page))), [1, 1, 1, 1]);
    assert_eq!(counts(walk(100, Order::EarliestFirst, |page| rig.list_failed(&all, page))), [1, 1, 1, 1]);
    // The page also counts the content type of each entry, here `application/json`.
    for id in ["a", "b", "c"] {
        let payload = vec![b'x'; size - "application/json".len()];
        rig.start_with(id, T0.plus_millis(1), |new| new.first.body = payload.into());
    }
    let started = RunFilter { states: vec![RunState::Started], ..RunFilter::default() };
    assert_eq!(counts(walk(100, Order::EarliestFirst, |page| rig.list(&started, page))), [2, 1]);
}
