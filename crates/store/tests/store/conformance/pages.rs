//! The length and contents of pages.

use crate::support::*;
use bytes::Bytes;
use posthaste_engine::event::Op;
use posthaste_engine::limits::{PAGE_BYTES_MAX, RUN_SHOWN_BYTES_MAX};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::url_group::{Edit, Endpoint};
use posthaste_store::{EventFilter, Filter, NamePage, Names, Order, PageRequest, Part, RunFilter, Store};
use std::sync::Arc;

/// Reads a whole list of names page by page. `name` names each entry.
fn walk_names<T>(count: usize, list: impl Fn(&NamePage) -> Names<T>, name: impl Fn(&T) -> String) -> Vec<Vec<String>> {
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = list(&NamePage { after, count, part: Part::Whole });
        pages.push(page.entries.iter().map(&name).collect::<Vec<_>>());
        assert!(pages.len() < 100, "the cursor does not move");
        after = page.next;
        match &after {
            Some(next) => assert_eq!(Some(next), pages.last().and_then(|page| page.last())),
            None => return pages,
        }
    }
}

pub(super) fn names_are_listed_page_by_page(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let names = ["a", "a.b", "a_", "b", "\u{e4}"];
    let add = Edit::Add(vec![Endpoint { url: "https://a.example".to_owned(), name: None }]);
    let mut ops = vec![Op::PutQueue(Queue { deleted: true, ..queue(rig.tenant, "aa") })];
    for name in names {
        ops.extend([rig.tenant, other].map(|tenant| Op::PutSchedule(Arc::new(schedule(tenant, name)))));
        ops.extend([rig.tenant, other].map(|tenant| Op::PutQueue(queue(tenant, name))));
        store.edit_url_group(rig.tenant, name, &add, T0).unwrap().unwrap();
        store.edit_url_group(other, name, &add, T0).unwrap().unwrap();
    }
    rig.commit(&ops).unwrap();
    for count in [1, 2, 4, 5, 9] {
        let expected: Vec<Vec<String>> =
            names.chunks(count).map(|chunk| chunk.iter().map(|name| (*name).to_owned()).collect()).collect();
        let tenant = rig.tenant;
        let schedules = walk_names(count, |page| store.schedules(tenant, page).unwrap(), |it| it.schedule.id.clone());
        assert_eq!(schedules, expected, "schedules, {count} on a page");
        let queues = walk_names(count, |page| store.list_queues(tenant, page).unwrap(), |it| it.name.clone());
        assert_eq!(queues, expected, "queues, {count} on a page");
        let groups = walk_names(count, |page| store.url_groups(tenant, page).unwrap(), |it| it.name.clone());
        assert_eq!(groups, expected, "URL groups, {count} on a page");
    }
    let behind = NamePage { after: Some("a.c".to_owned()), ..NamePage::FIRST };
    let listed = store.schedules(rig.tenant, &behind).unwrap().entries;
    assert_eq!(listed.len(), 3, "the name of a cursor need not exist");
}

pub(super) fn lists_of_schedules_omit_large_bodies_but_not_the_schedules(store: &dyn Store) {
    let rig = Rig::new(store);
    let sizes = [("a", 3), ("b", PAGE_BYTES_MAX), ("c", PAGE_BYTES_MAX - 10), ("d", 8), ("e", 7), ("f", 0)];
    for (id, bytes) in sizes {
        let schedule = Schedule { body: Bytes::from(vec![7; bytes]), ..schedule(rig.tenant, id) };
        rig.commit(&[Op::PutSchedule(Arc::new(schedule))]).unwrap();
    }
    let listed = |part| {
        let page = NamePage { part, ..NamePage::FIRST };
        let page = store.schedules(rig.tenant, &page).unwrap();
        assert_eq!(page.next, None);
        let lengths = page.entries.iter().map(|it| it.body_bytes).collect::<Vec<_>>();
        assert_eq!(lengths, sizes.map(|(_, bytes)| bytes), "how long a body is, is said anyway");
        page.entries.iter().map(|it| (it.schedule.body.len(), it.is_without_body())).collect::<Vec<_>>()
    };
    let most = PAGE_BYTES_MAX - 10;
    assert_eq!(listed(Part::Whole), [(3, false), (0, true), (most, false), (0, true), (7, false), (0, false)]);
    let heads = [true, true, true, true, true, false];
    assert_eq!(listed(Part::Head), heads.map(|is_without| (0, is_without)));
    assert_eq!(
        store.schedule(rig.tenant, "b", Part::Whole).unwrap().unwrap().body.len(),
        PAGE_BYTES_MAX,
        "one alone is whole"
    );
}

pub(super) fn a_page_without_bodies_holds_more_entries(store: &dyn Store) {
    let rig = Rig::new(store);
    for n in 1..=3 {
        let at = T0.plus_millis(n);
        let message = rig.publish_with(at, |message| message.body = Bytes::from(vec![b'x'; PAGE_BYTES_MAX / 2]));
        rig.fail(&message, at, Some(500));
    }
    let page = |part| PageRequest { part, ..latest(100) };
    let lines = |part| store.list_events(rig.tenant, &EventFilter::default(), &page(part)).unwrap();
    let letters = |part| store.list_dead_letters(rig.tenant, &Filter::default(), &page(part)).unwrap();
    assert!(lines(Part::Whole).next.is_some() && letters(Part::Whole).next.is_some(), "bodies fill a page");
    let (lines, letters) = (lines(Part::Head), letters(Part::Head));
    assert_eq!((lines.entries.len(), lines.next), (6, None));
    assert_eq!((letters.entries.len(), letters.next), (3, None));
    let messages = lines.entries.iter().map(|line| &line.message);
    let messages = messages.chain(letters.entries.iter().map(|letter| &letter.message));
    assert!(messages.into_iter().all(|message| message.body.is_empty() && !message.spec.url.is_empty()));
}

pub(super) fn a_page_ends_before_its_headers_get_too_large(store: &dyn Store) {
    let rig = Rig::new(store);
    let long = "h".repeat(PAGE_BYTES_MAX / 4);
    for n in 1..=5 {
        let header = ("X-Long".to_owned(), long.clone());
        rig.publish_with(T0.plus_millis(n), |message| message.spec.headers.push(header));
    }
    let page = |cursor| PageRequest { part: Part::Head, ..PageRequest::new(cursor, 100, Order::LatestFirst) };
    let lines = |cursor| store.list_events(rig.tenant, &EventFilter::default(), &page(cursor)).unwrap();
    let first = lines(None);
    assert_eq!(first.entries.len(), 3);
    let second = lines(first.next);
    assert_eq!((second.entries.len(), second.next), (2, None));
}

pub(super) fn a_large_run_is_listed_without_its_bodies(store: &dyn Store) {
    let rig = Rig::new(store);
    let small = rig.start("a", T0);
    let large = rig.start_with("b", T0, |new| {
        new.first.body = Bytes::from(vec![b'x'; RUN_SHOWN_BYTES_MAX + 1]);
    });
    let listed = |part| {
        let page = PageRequest { part, ..latest(10) };
        let page = store.list_runs(rig.tenant, &RunFilter::default(), &page).unwrap();
        assert_eq!(page.next, None);
        let shown = |id: &str| page.entries.iter().find(|it| it.workflow.run.id == id).expect("it is listed").clone();
        [(shown("a"), &small), (shown("b"), &large)].map(|(record, run)| {
            assert_eq!(&record.workflow, run, "all but the bodies is there");
            record.is_without_bodies()
        })
    };
    assert_eq!(listed(Part::Whole), [false, true]);
    assert_eq!(listed(Part::Head), [true, true]);
}

pub(super) fn the_secret_of_a_store_stays_the_same(store: &dyn Store) {
    assert_eq!(store.secret(&[1; 32]).unwrap(), [1; 32]);
    assert_eq!(store.secret(&[2; 32]).unwrap(), [1; 32]);
}
