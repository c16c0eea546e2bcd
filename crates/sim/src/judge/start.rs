//! What may reach a receiver, and when.

use super::Judge;
use super::runs::run_of;
use crate::store::Store;
use posthaste_engine::event::State;
use posthaste_engine::message::{Live, Message};
use posthaste_engine::workflow::Part;
use posthaste_engine::workflow::run::RunState;
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::time::Timestamp;

/// Who starts an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub node: usize,
    pub incarnation: u64,
    pub epoch: u64,
    /// What the clock of the node shows.
    pub clock: Timestamp,
}

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub epoch: u64,
    pub live: Live,
    /// A reset of its key has not let go of it.
    pub counts_for_key: bool,
}

impl Judge {
    /// An attempt reaches the network.
    pub(crate) fn started(&mut self, start: &Start, live: &Live, message: &Message, now_ms: u64, store: &Store) {
        self.counts.attempts += 1;
        let id = live.id;
        if start.epoch != store.epoch() {
            if self.heeds_tenure {
                self.blame("an owner whose lease is over starts nothing", Some(id), now_ms, || {
                    format!("epoch {} started it in epoch {}", start.epoch, store.epoch())
                });
            }
            // A process that was paused between its commit and this: nobody can stop it.
            self.counts.late_attempts += 1;
            return;
        }
        self.latest = self.latest.max(start.clock);
        self.check_row(live, now_ms, store);
        self.check_repetition(start.epoch, live, message, now_ms);
        if live.place.is_some() {
            self.check_turn(live, start.clock, now_ms, store);
        }
        if live.flow.is_some() {
            self.check_flow(live, start.epoch, now_ms, store);
        }
        self.open.push(Open { epoch: start.epoch, live: *live, counts_for_key: true });
        self.check_caps(start.epoch, live, now_ms);
    }

    /// The process that started an attempt has heard of its end.
    pub(crate) fn closed(&mut self, epoch: u64, id: MessageId, retried: u32) {
        self.open.retain(|open| (open.epoch, open.live.id, open.live.retried) != (epoch, id, retried));
    }

    /// What starts is live, due, not cancelled, and its start is committed.
    fn check_row(&mut self, live: &Live, now_ms: u64, store: &Store) {
        let id = live.id;
        let Some(row) = store.live_row(id) else {
            return self.blame("only live messages start", Some(id), now_ms, || "it has no live row".into());
        };
        let is_active = live.is_step || store.states.get(&id) == Some(&State::Active);
        if row.retried != live.retried || !is_active {
            self.blame("a start is committed before it happens", Some(id), now_ms, || {
                format!("its row says {} retries, its last log line is {:?}", row.retried, store.states.get(&id))
            });
        }
        if row.cancel_requested || self.cancelled.contains(&id) {
            self.blame("after its cancel was answered nothing starts", Some(id), now_ms, || "it starts".into());
        }
        let of = run_of(id, store).filter(|(_, part)| *part != Part::FailureCall);
        if of.is_some_and(|(run, _)| store.runs.get(&run).is_none_or(|run| run.state != RunState::Started)) {
            self.blame("nothing of a run is sent after its end", Some(id), now_ms, || "it is".into());
        }
        if live.is_step && !store.is_on_disk(id) {
            self.blame("what a run sends is on disk", Some(id), now_ms, || "it is only written".into());
        }
        if !row.is_due(self.latest) {
            let latest = self.latest;
            self.blame("nothing starts before it is due", Some(id), now_ms, || {
                format!("it is due at {}, and the clock was never behind {latest}", row.due)
            });
        }
    }

    /// Each attempt is made once by each owner, and the receiver is told truly how many there were.
    fn check_repetition(&mut self, epoch: u64, live: &Live, message: &Message, now_ms: u64) {
        let (id, retried) = (live.id, live.retried);
        if !self.starts.insert((epoch, id, retried)) || retried > message.spec.retries {
            self.blame("attempts are at most one and the retries, and one for each crash", Some(id), now_ms, || {
                format!("attempt {retried} of {} once more in epoch {epoch}", message.spec.retries)
            });
        }
        let told = self.retried.entry(id).or_default();
        if retried < *told {
            let told = *told;
            return self.blame("the number of retries never decreases", Some(id), now_ms, || {
                format!("{retried} after {told}")
            });
        }
        *told = retried;
    }

    /// Never more under way, nor more bytes, than the caps allow.
    fn check_caps(&mut self, epoch: u64, live: &Live, now_ms: u64) {
        let caps = self.settings;
        let own = self.open.iter().filter(|open| open.epoch == epoch).map(|open| open.live);
        let (mut all, mut tenant, mut origin) = (Sum::default(), Sum::default(), Sum::default());
        for other in own {
            all.add(&other);
            if other.tenant == live.tenant {
                tenant.add(&other);
                if other.origin == live.origin {
                    origin.add(&other);
                }
            }
        }
        // A tenant that has nothing under way need not wait for the bytes of others, up to twice the bound.
        let spare = if tenant.count == 1 { caps.in_flight_bytes_max } else { 0 };
        let breaches = [
            all.count > caps.in_flight_max,
            tenant.count > caps.tenant_in_flight_max,
            origin.count > caps.origin_in_flight_max,
            all.count > 1 && all.bytes > caps.in_flight_bytes_max + spare,
            tenant.count > 1 && tenant.bytes > caps.tenant_in_flight_bytes_max,
            origin.count > 1 && origin.bytes > caps.origin_in_flight_bytes_max,
        ];
        if breaches.contains(&true) {
            self.blame("caps hold", Some(live.id), now_ms, || {
                format!("in all {all:?}, tenant {:?} {tenant:?}, origin {origin:?}; {caps:?}", TenantId(live.tenant.0))
            });
        }
    }
}

/// How much is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u32,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, live: &Live) {
        self.count += 1;
        self.bytes += u64::from(live.body_bytes);
    }
}
