//! The surroundings of a node in the simulation: chance, and what the judge must know of decisions that are not committed yet.

use super::Owner;
use crate::command::RequestId;
use crate::env::Env;
use crate::random::Random;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_engine::shard::Accepted;
use posthaste_node::{Host, NoRoom, TakenRoom};
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;

/// See the module's text.
pub(super) struct Witness<'a> {
    random: &'a mut Random,
    has_room: bool,
    noted: Noted,
}

/// What it has seen.
#[derive(Default)]
pub(super) struct Noted {
    /// The messages that each request has made.
    made: BTreeMap<RequestId, Vec<MessageId>>,
    replays: Vec<(TenantId, DlqId, MessageId)>,
    /// Schedules that had a turn, and the time that each fired for last.
    fired: Vec<(String, Option<Timestamp>)>,
    missing: Vec<String>,
    /// Pieces of large publishes.
    pieces: Vec<(RequestId, Vec<MessageId>)>,
}

impl Witness<'_> {
    pub(super) fn new(env: &mut Env) -> Witness<'_> {
        Witness { has_room: !env.store.is_full, random: &mut env.random, noted: Noted::default() }
    }

    pub(super) fn noted(self) -> Noted {
        self.noted
    }
}

impl Host for Witness<'_> {
    fn random(&mut self) -> u64 {
        self.random.next_u64()
    }

    fn take_room(&mut self, _tenant: TenantId, _bytes: usize) -> Result<Option<TakenRoom>, NoRoom> {
        if self.has_room { Ok(None) } else { Err(NoRoom::DiskLow) }
    }

    fn published(&mut self, tag: u64, accepted: &[Accepted]) {
        // No request has made what a schedule publishes.
        if tag != 0 {
            let made = accepted.iter().filter(|accepted| !accepted.deduplicated).map(|accepted| accepted.id);
            self.noted.made.entry(RequestId(tag)).or_default().extend(made);
        }
    }

    fn piece_published(&mut self, tag: u64, accepted: &[Accepted]) {
        let made = accepted.iter().filter(|accepted| !accepted.deduplicated).map(|accepted| accepted.id);
        self.noted.pieces.push((RequestId(tag), made.collect()));
    }

    fn replayed(&mut self, tag: u64, (tenant, dlq_id): (TenantId, DlqId), accepted: Accepted) {
        self.published(tag, &[accepted]);
        if !accepted.deduplicated {
            self.noted.replays.push((tenant, dlq_id, accepted.id));
        }
    }

    fn fired(&mut self, schedule: &Schedule, state: &ScheduleState) {
        self.noted.fired.push((schedule.id.clone(), state.last));
    }

    fn schedule_missing(&mut self, _tenant: TenantId, id: &str) {
        self.noted.missing.push(id.to_owned());
    }
}

impl Owner {
    /// Hands on to the judge and to the story what was seen.
    pub(super) fn note(&mut self, noted: Noted, env: &mut Env, now: Timestamp) {
        let Noted { made, replays, fired, missing, pieces } = noted;
        self.margin.notes.replays.extend(replays);
        for (request, ids) in made {
            env.judge.decided(request, ids);
        }
        for (request, ids) in pieces {
            env.judge.piece_decided(request, ids, self.tenure.epoch, env.now_ms);
        }
        for (id, at) in fired {
            env.tell(None, || format!("schedule {id} has fired for {at:?} at {now}"));
        }
        if self.tenure.epoch != env.store.epoch() {
            return;
        }
        for id in missing {
            env.judge.blame("what was promised stays", None, env.now_ms, || format!("schedule {id} has vanished"));
        }
    }
}
