//! Objects that tenants name: URL groups, queues, flow-control keys, schedules and bulk actions.

use crate::support::*;
use bytes::Bytes;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::Op;
use posthaste_engine::flow::Flow;
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget};
use posthaste_engine::url_group::{Edit, Endpoint, Refused, UrlGroup};
use posthaste_store::{NamePage, Part, Store};
use posthaste_wire::id::Seq;
use std::slice::from_ref;
use std::sync::Arc;

/// In the order of the store, including text that could be mistaken for the end of a statement.
const NAMES: [&str; 4] = ["", "'; --", "a", "\u{fc}"];

pub(super) fn url_groups_are_edited_and_remembered_by_tenant(store: &dyn Store) {
    let (one, other) = (store.tenant("one").unwrap(), store.tenant("other").unwrap());
    let endpoint = |url: &str| Endpoint { url: url.to_owned(), name: None };
    let add = |urls: &[&str]| Edit::Add(urls.iter().map(|url| endpoint(url)).collect());
    store.edit_url_group(one, "b", &add(&["https://b.example"]), T0).unwrap().unwrap();
    store.edit_url_group(one, "a", &add(&["https://a.example"]), T0).unwrap().unwrap();
    store.edit_url_group(one, "a", &add(&["https://c.example"]), T0.plus_millis(5)).unwrap().unwrap();
    let headers = vec![("Upstash-Retries".to_owned(), "1".to_owned())];
    store.edit_url_group(one, "a", &Edit::SetHeaders(headers.clone()), T0.plus_millis(6)).unwrap().unwrap();
    let expected = UrlGroup {
        name: "a".to_owned(),
        created_at: T0,
        updated_at: T0.plus_millis(6),
        endpoints: vec![endpoint("https://a.example"), endpoint("https://c.example")],
        headers,
    };
    assert_eq!(store.url_group(one, "a").unwrap(), Some(expected));
    let names = |tenant| -> Vec<String> {
        let page = store.url_groups(tenant, &NamePage::FIRST).unwrap();
        assert_eq!((page.next, store.url_group_count(tenant).unwrap()), (None, page.entries.len()));
        page.entries.into_iter().map(|group| group.name).collect()
    };
    assert_eq!((names(one), names(other)), (vec!["a".to_owned(), "b".to_owned()], vec![]));
    assert_eq!(store.edit_url_group(other, "a", &Edit::Remove(Vec::new()), T0).unwrap(), Err(Refused::Absent));
    store.edit_url_group(one, "a", &Edit::Delete, T0).unwrap().unwrap();
    assert_eq!((store.url_group(one, "a").unwrap(), names(one)), (None, vec!["b".to_owned()]));
}

pub(super) fn queues_are_put_and_dropped_by_tenant(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let own = NAMES.map(|name| queue(rig.tenant, name));
    let foreign = Queue { parallelism: u32::MAX, paused: true, updated_at: T0.plus_millis(1), ..queue(other, "a") };
    let mut ops: Vec<Op> = own.iter().rev().cloned().map(Op::PutQueue).collect();
    ops.push(Op::PutQueue(foreign.clone()));
    rig.commit(&ops).unwrap();
    assert_eq!(store.queues(Some(rig.tenant)).unwrap(), own);
    assert_eq!(store.queues(Some(other)).unwrap(), from_ref(&foreign));
    assert_eq!(store.queues(None).unwrap(), [&own[..], from_ref(&foreign)].concat());
    assert_eq!(store.queue(other, "a").unwrap(), Some(foreign.clone()));
    assert_eq!(store.queue(other, "A").unwrap(), None);

    let changed =
        Queue { parallelism: 1, paused: true, updated_at: T0.plus_millis(9), deleted: true, ..own[2].clone() };
    let drop = |name: &str| Op::DropQueue { tenant: rig.tenant, name: name.to_owned() };
    rig.commit(&[Op::PutQueue(changed.clone()), drop(NAMES[1]), drop("absent")]).unwrap();
    assert_eq!(store.queues(Some(rig.tenant)).unwrap(), [own[0].clone(), changed, own[3].clone()]);
    rig.commit(&[drop("a")]).unwrap();
    assert_eq!((store.queue(rig.tenant, "a").unwrap(), store.queue(other, "a").unwrap()), (None, Some(foreign)));
}

pub(super) fn flow_control_keys_are_put_and_dropped_by_tenant(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let own = NAMES.map(|key| flow(rig.tenant, key));
    let foreign = Flow { parallelism: None, rate: Some(7), paused: true, starts: Vec::new(), ..flow(other, "a") };
    let mut ops: Vec<Op> = own.iter().rev().cloned().map(Op::PutFlow).collect();
    ops.push(Op::PutFlow(foreign.clone()));
    rig.commit(&ops).unwrap();
    assert_eq!(store.flows().unwrap(), [&own[..], from_ref(&foreign)].concat());

    let changed =
        Flow { pinned_rate: true, period_ms: 5, starts: vec![(T0, 1), (T0.plus_millis(1), 2)], ..own[2].clone() };
    let drop = |key: &str| Op::DropFlow { tenant: rig.tenant, key: key.to_owned() };
    rig.commit(&[Op::PutFlow(changed.clone()), drop(NAMES[1]), drop("absent")]).unwrap();
    assert_eq!(store.flows().unwrap(), [own[0].clone(), changed, own[3].clone(), foreign]);
}

pub(super) fn schedules_are_put_and_dropped_by_tenant(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let own = NAMES.map(|id| schedule(rig.tenant, id));
    let foreign = Schedule { body: Bytes::new(), ..schedule(other, "a") };
    let put = |schedule: &Schedule| Op::PutSchedule(Arc::new(schedule.clone()));
    let mut ops: Vec<Op> = own.iter().rev().map(put).collect();
    ops.push(put(&foreign));
    rig.commit(&ops).unwrap();
    assert_eq!(all_schedules(store, rig.tenant), own);
    assert_eq!(all_schedules(store, other), from_ref(&foreign));
    assert_eq!(store.schedule(rig.tenant, "a", Part::Whole).unwrap().as_ref(), Some(&own[2]));
    assert_eq!(store.schedule(rig.tenant, "A", Part::Whole).unwrap(), None);

    let plan = SchedulePlan { destination: ScheduleTarget::Group("g".into()), delay_ms: None, ..own[2].plan.clone() };
    let replaced =
        Schedule { plan, body: Bytes::from(vec![1; 100_000]), state: ScheduleState::default(), ..own[2].clone() };
    let drop = |id: &str| Op::DropSchedule { tenant: rig.tenant, id: id.to_owned() };
    rig.commit(&[put(&replaced), drop(NAMES[1])]).unwrap();
    assert_eq!(all_schedules(store, rig.tenant), [own[0].clone(), replaced, own[3].clone()]);
    rig.commit(&[drop("a")]).unwrap();
    assert_eq!(
        (store.schedule(rig.tenant, "a", Part::Whole).unwrap(), store.schedule(other, "a", Part::Whole).unwrap()),
        (None, Some(foreign))
    );
    let left: Vec<_> = store.schedule_states().unwrap().into_iter().map(|(tenant, id, _)| (tenant, id)).collect();
    let expected = [(rig.tenant, NAMES[0]), (rig.tenant, NAMES[3]), (other, "a")];
    assert_eq!(left, expected.map(|(tenant, id)| (tenant, id.to_owned())));
}

pub(super) fn a_schedule_changes_its_state_only(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let (own, foreign) = (schedule(rig.tenant, "a"), schedule(other, "a"));
    rig.commit(&[&own, &foreign].map(|schedule| Op::PutSchedule(Arc::new(schedule.clone())))).unwrap();
    let message = rig.publish(T0);
    let state = ScheduleState {
        paused: true,
        next: None,
        last: Some(T0),
        last_messages: vec![message.id],
        floor: Some(T0.plus_millis(60_000)),
        error: Some("no \"endpoint\"".into()),
        cron: Some("* * * * *".into()),
    };
    rig.commit(&[Op::SetSchedule { tenant: rig.tenant, id: "a".into(), state: state.clone() }]).unwrap();
    let expected = Schedule { state: state.clone(), ..own };
    assert_eq!(store.schedule(rig.tenant, "a", Part::Whole).unwrap().as_ref(), Some(&expected));
    let head = store.schedule(rig.tenant, "a", Part::Head).unwrap();
    assert_eq!(head, Some(Schedule { body: Bytes::new(), ..expected }), "the body is left out");
    assert_eq!(store.schedule(other, "a", Part::Whole).unwrap().as_ref(), Some(&foreign));
    let states = store.schedule_states().unwrap();
    assert_eq!(states, [(rig.tenant, "a".to_owned(), state), (other, "a".to_owned(), foreign.state)]);
}

pub(super) fn bulk_actions_are_listed_newest_first(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let mut last = store.last_seq().unwrap();
    let actions: Vec<BulkAction> = [rig.tenant, other, rig.tenant, rig.tenant]
        .into_iter()
        .map(|tenant| {
            last = Seq::next(last, T0);
            bulk_action(tenant, last)
        })
        .collect();
    rig.commit(&actions.iter().cloned().map(Op::PutBulkAction).collect::<Vec<_>>()).unwrap();
    let own = [actions[3].clone(), actions[2].clone(), actions[0].clone()];
    let list = |before: Option<Seq>, max| store.bulk_actions(rig.tenant, before, max).unwrap();
    assert_eq!(list(None, usize::MAX), own);
    assert_eq!(list(None, 2), own[..2]);
    assert_eq!(list(Some(own[1].id), 2), own[2..]);
    assert_eq!(list(Some(own[2].id), 2), []);
    assert_eq!(store.bulk_actions(other, None, 9).unwrap(), [actions[1].clone()]);
    assert_eq!(store.bulk_action(rig.tenant, own[1].id).unwrap().as_ref(), Some(&own[1]));
    assert_eq!(store.bulk_action(other, own[1].id).unwrap(), None);
}

pub(super) fn a_bulk_action_is_unfinished_until_it_is_completed(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let first = bulk_action(rig.tenant, Seq::next(store.last_seq().unwrap(), T0));
    let second = bulk_action(other, Seq::next(first.id, T0));
    rig.commit(&[Op::PutBulkAction(second.clone()), Op::PutBulkAction(first.clone())]).unwrap();
    assert_eq!(store.unfinished_bulk_actions().unwrap(), [(&first).into(), (&second).into()]);
    let further = BulkAction { after: Seq(5), processed: 5, ..first };
    rig.commit(&[Op::PutBulkAction(further.clone())]).unwrap();
    assert_eq!(store.unfinished_bulk_actions().unwrap(), [(&further).into(), (&second).into()]);
    let done = BulkAction { processed: 9, completed_at: Some(T0.plus_millis(3)), ..further };
    rig.commit(&[Op::PutBulkAction(done.clone())]).unwrap();
    assert_eq!(store.unfinished_bulk_actions().unwrap(), [(&second).into()]);
    assert_eq!(store.bulk_action(rig.tenant, done.id).unwrap(), Some(done));
}

pub(super) fn url_groups_and_bulk_actions_count_toward_stored_bytes(store: &dyn Store) {
    let rig = Rig::new(store);
    let other = store.tenant("other").unwrap();
    let row = |json: String| 100 + json.len() as u64;
    let group_bytes = || {
        let group = store.url_group(rig.tenant, "g").unwrap();
        group.map_or(0, |group| row(serde_json::to_string(&group).unwrap()))
    };
    let endpoint = Endpoint { url: format!("https://example.org/{}", "x".repeat(5_000)), name: None };
    let headers = vec![("Upstash-Forward-A".to_owned(), "\u{e4}\"".repeat(2_000))];
    let edits = [Edit::Add(vec![endpoint]), Edit::SetHeaders(headers), Edit::SetHeaders(Vec::new()), Edit::Delete];
    for (edit, least) in edits.into_iter().zip([5_000, 11_000, 5_000, 0]) {
        store.edit_url_group(rig.tenant, "g", &edit, T0).unwrap().unwrap();
        let stored = store.stored_bytes(rig.tenant);
        assert!((least..least + 2_500).contains(&stored), "{stored} bytes after {edit:?}");
        assert_eq!(stored, group_bytes());
    }

    let under_way = BulkAction { problem: Some("x".repeat(5_000)), ..bulk_action(rig.tenant, Seq::first_at(T0)) };
    let done = BulkAction { problem: None, completed_at: Some(T0), ..under_way.clone() };
    for action in [under_way, done] {
        rig.commit(&[Op::PutBulkAction(action.clone())]).unwrap();
        assert_eq!(store.stored_bytes(rig.tenant), row(serde_json::to_string(&action).unwrap()));
    }
    assert_eq!(store.stored_bytes(other), 0);
    retain_all(store, DAY, DAY, T0.plus_millis(8 * DAY));
    assert_eq!(store.stored_bytes(rig.tenant), 0);
}
