//! What may become of schedules, and what they fire.

use super::Judge;
use super::batch::Deeds;
use crate::node::CommitRequest;
use crate::store::{Named, Store};
use posthaste_engine::event::Op;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_wire::time::Timestamp;

/// A batch reaches the store at most about this long after the clock was looked at.
const COMMIT_MS_MAX: u64 = 10_000;

impl Judge {
    /// An op of a batch that is about a schedule, before it is applied.
    pub(super) fn check_schedule(
        &mut self,
        op: &Op,
        commit: &CommitRequest,
        now_ms: u64,
        store: &mut Store,
        deeds: &mut Deeds,
    ) {
        match op {
            Op::PutSchedule(schedule) => drop(self.promised_crons.remove(&(schedule.tenant, schedule.id.clone()))),
            Op::DropSchedule { tenant, id } => drop(self.promised_crons.remove(&(*tenant, id.clone()))),
            Op::SetSchedule { tenant, id, state } => {
                let key = (*tenant, id.clone());
                let Some(before) = store.schedules.get(&key).cloned() else { return };
                let is_past = |next: Timestamp| next.plus_millis(COMMIT_MS_MAX) <= commit.notes.clock;
                if before.state.paused && !state.paused && state.next.is_some_and(is_past) {
                    self.blame("what a paused schedule missed is not caught up with", None, now_ms, || {
                        format!("schedule {id} is resumed, and its next time is {:?}", state.next)
                    });
                }
                let after = Schedule { state: state.clone(), ..before.clone() };
                let is_changed = before.cron_text() != after.cron_text();
                if before.state.last != state.last {
                    if is_changed {
                        self.blame("a firing keeps the expression of its schedule", None, now_ms, || {
                            format!("schedule {id} had {} and has {}", before.cron_text(), after.cron_text())
                        });
                    }
                    self.check_firing(key, &before.state, state, commit, now_ms, store);
                    deeds.fired.extend(&state.last_messages);
                } else if is_changed {
                    self.check_reschedule(key, &before, &after, commit, now_ms);
                } else if let Some(cron) = &state.cron {
                    self.seen_crons.insert((key, cron.clone()));
                }
            }
            _ => {}
        }
    }

    /// A schedule got another expression: it fires at the first of the new times, and all else stays.
    fn check_reschedule(
        &mut self,
        key: Named,
        before: &Schedule,
        after: &Schedule,
        commit: &CommitRequest,
        now_ms: u64,
    ) {
        let (cron, state) = (after.cron_text(), &after.state);
        self.counts.rescheduled += 1;
        let expected = ScheduleState { next: state.next, floor: state.floor, error: None, ..before.state.clone() };
        if (ScheduleState { cron: before.state.cron.clone(), ..state.clone() }) != expected {
            self.blame("another expression changes nothing else", None, now_ms, || {
                format!("schedule {} was {:?} and is {state:?}", after.id, before.state)
            });
        }
        let clock = commit.notes.clock;
        let fired = before.state.last.max(before.state.floor).unwrap_or_default();
        let is_first = |next: Timestamp, period_ms: u64| {
            let is_soon = next <= clock.max(fired).plus_millis(period_ms);
            is_soon && next.0.is_multiple_of(period_ms) && next > fired && next.plus_millis(COMMIT_MS_MAX) > clock
        };
        if !state.next.zip(period_ms(cron)).is_some_and(|(next, period_ms)| is_first(next, period_ms)) {
            self.blame("a schedule fires next at the first time of its new expression", None, now_ms, || {
                format!("schedule {} is {cron} since {clock}, and its next time is {:?}", after.id, state.next)
            });
        }
        self.promised_crons.remove(&key);
        self.seen_crons.insert((key, cron.to_owned()));
    }

    /// It was answered that a schedule has another expression.
    pub(super) fn rescheduled(&mut self, key: &Named, cron: &str, now_ms: u64, store: &Store) {
        if !self.seen_crons.contains(&(key.clone(), cron.to_owned())) {
            return self.blame("what was answered is on disk", None, now_ms, || {
                format!("schedule {} got the expression {cron}, and it is not written", key.1)
            });
        }
        // It may have been replaced or deleted in the same transaction.
        if store.schedules.get(key).is_none_or(|schedule| schedule.cron_text() != cron) {
            return;
        }
        if !store.is_schedule_on_disk(key) {
            self.blame("what was answered is on disk", None, now_ms, || format!("the expression of {} is not", key.1));
        }
        self.promised_crons.insert(key.clone(), cron.to_owned());
    }

    /// Are expressions that were acknowledged still there?
    pub(super) fn check_crons(&mut self, now_ms: u64, store: &Store) {
        let is_lost = |(key, cron): &(&Named, &String)| {
            store.schedules.get(*key).is_none_or(|schedule| schedule.cron_text() != cron.as_str())
        };
        if let Some((key, cron)) = self.promised_crons.iter().find(is_lost) {
            let text = format!("the expression {cron} of schedule {} is", key.1);
            self.blame("nothing that was answered is lost", None, now_ms, || text);
        }
    }

    /// A firing is for a time that has come, the latest one, and never for one that was fired for before.
    fn check_firing(
        &mut self,
        (tenant, id): Named,
        before: &ScheduleState,
        state: &ScheduleState,
        commit: &CommitRequest,
        now_ms: u64,
        store: &mut Store,
    ) {
        let Some(at) = state.last else { return };
        self.counts.fired += 1;
        let clock = commit.notes.clock;
        let period_ms = store.schedules.get(&(tenant, id.clone())).and_then(|schedule| period_ms(schedule.cron_text()));
        let latest = period_ms.map(|period_ms| Timestamp(clock.0 / period_ms * period_ms));
        // The round looked at its clock a little before its commit; a time may have come in between.
        let is_latest = latest.zip(period_ms).is_none_or(|(latest, period_ms)| at.plus_millis(period_ms) >= latest);
        if at > clock || !is_latest {
            self.blame("a schedule catches up with the latest time only", None, now_ms, || {
                format!("schedule {id} fired for {at} at {clock}")
            });
        }
        if before.last.is_some_and(|last| at <= last) || state.next.is_some_and(|next| next <= at) {
            self.blame("the times of a schedule only move ahead", None, now_ms, || {
                format!("schedule {id} fired for {at} after {:?}, next is {:?}", before.last, state.next)
            });
        }
        let generation = store.dropped.get(&(tenant, id.clone())).copied().unwrap_or(0);
        if store.note_firing((tenant, id.clone(), generation, at), clock).is_some() {
            self.blame("a time of a schedule fires once", None, now_ms, || {
                format!("schedule {id} fired twice for {at}")
            });
        }
    }

    /// Messages of a schedule and its new state are one transaction.
    pub(super) fn check_firings(&mut self, deeds: &Deeds, now_ms: u64, store: &Store) {
        for id in deeds.inserted.keys() {
            let is_of_schedule = store.message(*id).is_some_and(|message| message.spec.schedule_id.is_some());
            let is_replay = !deeds.exhumed.is_empty();
            if is_of_schedule && !is_replay && !deeds.fired.contains(id) {
                self.blame("a firing and its messages are one transaction", Some(*id), now_ms, || {
                    "its schedule does not name it".into()
                });
            }
        }
        if let Some(id) = deeds.fired.iter().find(|id| !deeds.inserted.contains_key(id)).copied() {
            self.blame("a firing and its messages are one transaction", Some(id), now_ms, || "it was not made".into());
        }
    }
}

/// The period of the expressions that the simulation uses, by arithmetic of its own.
fn period_ms(cron: &str) -> Option<u64> {
    let minutes = cron.strip_prefix("@every ").and_then(|rest| rest.strip_suffix('m'));
    let minutes = minutes.or_else(|| cron.strip_prefix("*/").and_then(|rest| rest.strip_suffix(" * * * *")));
    minutes.and_then(|minutes| minutes.parse::<u64>().ok()).map(|minutes| minutes * 60_000)
}
