//! What the commands of a round want to know of the store.

use super::Store;
use bytes::Bytes;
use posthaste_engine::schedule::Schedule;
use posthaste_node::{DueSchedules, Facts, Wanted};
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;

impl Store {
    pub(crate) fn facts(&self, wanted: &Wanted, now: Timestamp) -> Facts {
        let duplicate = |(tenant, key)| Some(((tenant, key), self.find_duplicate(tenant, key, now)?));
        let live = |(tenant, id)| {
            let row = self.live_row(id).filter(|row| row.tenant == tenant);
            row.map(|row| ((tenant, id), row))
        };
        let step =
            |(_, id): &(TenantId, MessageId)| Some((*id, self.live_row(*id).and(self.message(*id))?.spec.workflow?));
        let dead_letters = wanted.dead_letters.iter().filter(|key| self.dead_letters.contains_key(key));
        let mut facts = Facts {
            duplicates: wanted.duplicates.iter().copied().filter_map(duplicate).collect(),
            live: wanted.live.iter().copied().filter_map(live).collect(),
            steps: wanted.steps.iter().filter_map(step).collect(),
            dead_letters: dead_letters.copied().collect(),
            due: self.due_schedules(&wanted.due),
            ..Facts::default()
        };
        for key in &wanted.schedules {
            if let Some(schedule) = self.schedules.get(key).cloned() {
                let head = Schedule { body: Bytes::new(), ..schedule };
                facts.schedules.entry(key.0).or_default().insert(key.1.clone(), head);
            }
        }
        facts
    }

    fn due_schedules(&self, wanted: &DueSchedules) -> Vec<Option<Schedule>> {
        let mut bytes = 0;
        let whole = wanted.schedules.iter().map_while(|(tenant, id)| {
            let has_room = bytes == 0 || bytes < wanted.bytes_max;
            let schedule = self.schedules.get(&(*tenant, id.to_string())).filter(|_| has_room).cloned();
            bytes += schedule.as_ref().map_or(0, |schedule| schedule.body.len());
            has_room.then_some(schedule)
        });
        whole.collect()
    }
}
