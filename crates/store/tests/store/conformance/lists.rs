//! Contents of the lists: filters, order, cursors and limits.

use crate::support::*;
use bytes::Bytes;
use posthaste_engine::cause::Cause;
use posthaste_engine::event::{DeadLetter, Event, EventDetail, Op, Phases, State};
use posthaste_engine::limits;
use posthaste_engine::message::Message;
use posthaste_store::{EventFilter, Filter, Order, PageRequest, Store};
use posthaste_wire::id::Seq;
use posthaste_wire::time::Timestamp;
use std::ops::ControlFlow;
use std::sync::Arc;

pub(super) fn pages_of_logs_show_every_line_once(store: &dyn Store) {
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

pub(super) fn log_filters_are_or_within_and_and_between_fields(store: &dyn Store) {
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

pub(super) fn lines_carry_their_details(store: &dyn Store) {
    let rig = Rig::new(store);
    let message = rig.publish(T0);
    let detail = EventDetail {
        next_due: Some(T0.plus_millis(9)),
        error: Some("timed out".into()),
        response: dead_letter(&message, T0, Some(503)).response,
        duration_ms: Some(12),
        dlq_id: Some("1-2".into()),
        phases: Some(Box::new(Phases { reused: true, tls_us: Some(7), ..Phases::default() })),
        reused_first_byte_us: Some(845),
        retried: 3,
    };
    let event = Event { tenant: rig.tenant, id: message.id, at: T0, state: State::Error, detail };
    rig.commit(&[Op::Log(event.clone())]).unwrap();
    let entries = rig.events(&EventFilter::default(), &latest(1)).entries;
    assert_eq!((&entries[0].event, &entries[0].message, entries[0].position.at), (&event, &message, T0));
}

pub(super) fn pages_of_dead_letters_show_every_one_once(store: &dyn Store) {
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

pub(super) fn dead_letters_are_visited_without_bodies_until_the_visitor_stops(store: &dyn Store) {
    let rig = Rig::new(store);
    let mut letters = Vec::new();
    for hours in [0, 0, 1, 24, 72] {
        let message = rig.publish(T0);
        letters.push(rig.fail(&message, T0.plus_millis(hours * HOUR), Some(500)));
    }
    let visited = |filter: &Filter, page: &PageRequest, max: usize| {
        let mut seen = Vec::new();
        let visit = &mut |letter: &DeadLetter, message: &Message| {
            assert!(message.body.is_empty() && message.id == letter.id && !message.spec.url.is_empty());
            seen.push(letter.clone());
            if seen.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        store.visit_dead_letters(rig.tenant, filter, page, visit).unwrap();
        seen
    };
    let all = Filter::default();
    let earliest = |cursor| PageRequest::new(cursor, 1, Order::EarliestFirst);
    assert_eq!(visited(&all, &earliest(None), 9), letters);
    assert_eq!(visited(&all, &earliest(Some(letters[1].dlq_id)), 2), letters[2..4]);
    let dates = Filter { to: Some(T0.plus_millis(HOUR)), ..Filter::default() };
    assert_eq!(visited(&dates, &earliest(None), 9), letters[..3]);
    let named = Filter { dlq_ids: vec![letters[3].dlq_id, letters[2].dlq_id], ..Filter::default() };
    assert_eq!(visited(&named, &earliest(None), 9), letters[2..4], "ids say when");
    let page = store.list_dead_letters(rig.tenant, &named, &latest(9)).unwrap();
    assert_eq!(page.entries.iter().map(|record| &record.letter).collect::<Vec<_>>(), [&letters[3], &letters[2]]);
    letters.reverse();
    assert_eq!(visited(&all, &latest(1), 2), letters[..2]);
}

pub(super) fn dead_letter_filters_match_the_last_response(store: &dyn Store) {
    let rig = Rig::new(store);
    let [first, second, third] = three_stories(&rig);
    rig.fail(&first, T0, Some(500));
    rig.fail(&second, T0.plus_millis(DAY), Some(404));
    rig.fail(&third, T0.plus_millis(DAY), None);
    let all = Filter::default;
    let cause_of =
        |message: &Arc<Message>, status| Cause::of(&message.spec.url, &dead_letter(message, T0, status)).id();
    let cases = [
        (all(), vec![third.id, second.id, first.id]),
        (Filter { response_statuses: vec![500, 404], ..all() }, vec![second.id, first.id]),
        (Filter { response_statuses: vec![0], ..all() }, vec![third.id]),
        (Filter { ids: vec![first.id, third.id], ..all() }, vec![third.id, first.id]),
        (Filter { from: Some(T0.plus_millis(DAY)), ..all() }, vec![third.id, second.id]),
        (Filter { to: Some(T0.plus_millis(DAY - 1)), ..all() }, vec![first.id]),
        (Filter { labels: vec!["red".into()], response_statuses: vec![500], ..all() }, vec![first.id]),
        (Filter { hosts: vec!["example.com:8080".into()], ..all() }, vec![second.id]),
        (Filter { causes: vec![cause_of(&second, Some(404))], ..all() }, vec![second.id]),
        (
            Filter { causes: vec![cause_of(&third, None), cause_of(&first, Some(500))], ..all() },
            vec![third.id, first.id],
        ),
        (Filter { causes: vec![cause_of(&first, Some(404))], ..all() }, vec![]),
        (Filter { nothing: true, ..all() }, vec![]),
    ];
    for (filter, expected) in cases {
        let page = store.list_dead_letters(rig.tenant, &filter, &latest(9)).unwrap();
        let ids: Vec<_> = page.entries.iter().map(|record| record.message.id).collect();
        assert_eq!((ids, page.next), (expected, None), "{filter:?}");
    }
}

pub(super) fn a_page_ends_before_its_bodies_get_too_large(store: &dyn Store) {
    let rig = Rig::new(store);
    // A message has a URL and headers besides its body.
    let size = limits::PAGE_BYTES_MAX / 2 - 100;
    // The last one is too large for any page but still gets one.
    for bytes in [size, size, size, limits::PAGE_BYTES_MAX + 1] {
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

pub(super) fn live_messages_are_matched_oldest_first(store: &dyn Store) {
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
        let found = store.match_live(rig.tenant, &filter, Seq::MIN, max).unwrap();
        assert_eq!(found.iter().map(|live| live.id).collect::<Vec<_>>(), expected, "{filter:?}");
    }
    let behind_first = store.match_live(rig.tenant, &all(), first.id.seq, 1).unwrap();
    assert_eq!(behind_first.iter().map(|live| live.id).collect::<Vec<_>>(), [second.id]);
    assert_eq!(store.match_live(rig.tenant, &all(), third.id.seq, 9).unwrap(), []);
    rig.deliver(&first, T0);
    assert_eq!(rig.live_ids(), [second.id, third.id]);
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
