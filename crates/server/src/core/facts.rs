//! Reads what the commands of a round want to know: one trip to the store of each kind, however many commands ask.

use posthaste_engine::message::Message;
use posthaste_engine::schedule::Schedule;
use posthaste_node::{DueSchedules, Facts, Wanted};
use posthaste_store::{Part, Store, StoreError};
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn read(store: &dyn Store, wanted: &Wanted, now: Timestamp) -> Result<Facts, StoreError> {
    let mut facts = Facts::default();
    if !wanted.duplicates.is_empty() {
        let found = store.find_duplicates(&wanted.duplicates, now)?;
        let known = wanted.duplicates.iter().zip(found).filter_map(|(key, found)| Some((*key, found?)));
        facts.duplicates = known.collect();
    }
    for (tenant, ids) in by_tenant(&wanted.live) {
        let rows = store.find_live(tenant, &ids)?;
        facts.live.extend(rows.into_iter().map(|row| ((tenant, row.id), row)));
    }
    let steps = wanted.steps.iter().filter_map(|key| facts.live.get(key));
    let steps: Vec<MessageId> = steps.filter(|row| row.is_step).map(|row| row.id).collect();
    if !steps.is_empty() {
        let messages = store.load_messages(&steps)?;
        let step = |message: &Arc<Message>| Some((message.id, message.spec.workflow?));
        facts.steps = messages.iter().filter_map(step).collect();
    }
    for (tenant, ids) in by_tenant(&wanted.dead_letters) {
        let found = store.find_dead_letters(tenant, &ids)?;
        facts.dead_letters.extend(found.into_iter().map(|id| (tenant, id)));
    }
    for (tenant, id) in &wanted.schedules {
        if let Some(schedule) = store.schedule(*tenant, id, Part::Head)? {
            facts.schedules.entry(*tenant).or_default().insert(id.clone(), schedule);
        }
    }
    facts.due = due_schedules(store, &wanted.due)?;
    for (tenant, name) in &wanted.url_groups {
        if let Some(group) = store.url_group(*tenant, name)? {
            facts.url_groups.entry(*tenant).or_default().insert(name.clone(), group);
        }
    }
    Ok(facts)
}

fn due_schedules(store: &dyn Store, wanted: &DueSchedules) -> Result<Vec<Option<Schedule>>, StoreError> {
    let (mut found, mut bytes) = (Vec::with_capacity(wanted.schedules.len()), 0);
    for (tenant, id) in &wanted.schedules {
        if bytes >= wanted.bytes_max && bytes > 0 {
            break;
        }
        let schedule = store.schedule(*tenant, id, Part::Whole)?;
        bytes += schedule.as_ref().map_or(0, |schedule| schedule.body.len());
        found.push(schedule);
    }
    Ok(found)
}

/// The ids of each tenant, each once.
fn by_tenant<T: Copy + Ord>(ids: &[(TenantId, T)]) -> BTreeMap<TenantId, Vec<T>> {
    let mut tenants: BTreeMap<TenantId, Vec<T>> = BTreeMap::new();
    for (tenant, id) in ids {
        tenants.entry(*tenant).or_default().push(*id);
    }
    for ids in tenants.values_mut() {
        ids.sort_unstable();
        ids.dedup();
    }
    tenants
}
