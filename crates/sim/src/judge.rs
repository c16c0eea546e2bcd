//! The judge: knows everything, trusts nobody, and keeps its own books by what receivers saw and what was answered.
//!
//! [`batch`] judges what reaches the store, [`start`] what reaches receivers, [`limits`] order and rates, [`runs`]
//! workflows, [`kept`] what is stored of them, [`schedules`] what they fire, [`due_now`] what need not wait, [`bulk`] what is done to many, [`pieces`] large publishes, [`idle`] what should
//! have started; answers,
//! power cuts and the end are judged here. The first breach of a rule ends a run.

mod batch;
mod bulk;
mod counts;
mod due_now;
mod idle;
mod kept;
mod limits;
mod pieces;
mod runs;
mod schedules;
pub(crate) mod start;

use crate::command::{Answer, RequestId, Said};
use crate::program::Program;
use crate::store::{Named, Store};
use crate::story::short;
use bulk::Meant;
pub use counts::Counts;
pub(crate) use idle::OVERDUE_MS;
use limits::FlowBook;
use pieces::Pieces;
use posthaste_engine::event::State;
use posthaste_engine::flow::Flow;
use posthaste_engine::message::{FlowKey, Place, QueueKey};
use posthaste_engine::queue::Queue;
use posthaste_engine::shard::Settings;
use posthaste_engine::workflow::note::NoteKey;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use runs::RunBook;
use start::Open;
use std::collections::{BTreeMap, BTreeSet};

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which rule.
    pub rule: &'static str,
    /// How.
    pub text: String,
    /// The message that it is about.
    pub about: Option<MessageId>,
    /// When, in milliseconds since the beginning.
    pub at_ms: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Judge {
    pub violation: Option<Violation>,
    pub counts: Counts,
    settings: Settings,
    heeds_tenure: bool,
    /// The epoch of the present owner, as the judge saw it granted.
    epoch: u64,
    granted_at_ms: u64,
    /// The latest time that the present owner's clock has shown.
    latest: Timestamp,
    /// How far off the clocks of owners were, since when.
    offsets: Vec<(u64, i64)>,
    /// Some owner's clock went back, or one with an earlier clock took over.
    clock_went_back: bool,
    /// What each request was turned into, every time that it was.
    decided: BTreeMap<RequestId, Vec<Vec<MessageId>>>,
    acknowledged: BTreeSet<MessageId>,
    answered: BTreeSet<RequestId>,
    /// Their cancel was answered.
    cancelled: BTreeSet<MessageId>,
    /// Attempts for which the receiver said 2xx: epoch, message, retried.
    successes: BTreeSet<(u64, MessageId, u32)>,
    /// Attempts that started: epoch, message, retried.
    starts: BTreeSet<(u64, MessageId, u32)>,
    /// The highest number of retries that a receiver was told, since the last power cut.
    retried: BTreeMap<MessageId, u32>,
    open: Vec<Open>,
    /// Who has started in a queue under the present owner.
    has_slot: BTreeSet<(TenantId, Place)>,
    flow_books: BTreeMap<(TenantId, FlowKey), FlowBook>,
    /// What was in force at any time of the last batch.
    recent_queues: BTreeMap<(TenantId, QueueKey), Vec<Queue>>,
    recent_flows: BTreeMap<(TenantId, FlowKey), Vec<Flow>>,
    run_books: BTreeMap<Seq, RunBook>,
    /// Entries of runs whose append was answered.
    acknowledged_entries: BTreeSet<(Seq, MessageId)>,
    /// Events that were acknowledged, and that their runs keep.
    kept_events: BTreeSet<(Seq, NoteKey)>,
    /// Names of runs that somebody wants to cancel.
    cancels_asked: BTreeSet<(TenantId, String)>,
    /// Results that an event has brought.
    heard: BTreeSet<MessageId>,
    /// What bulk actions are about.
    meant: BTreeMap<Seq, Meant>,
    /// Publishes that are stored in pieces.
    pieces: BTreeMap<RequestId, Pieces>,
    /// Messages that are due now, as was answered, and have not started since: when they are due.
    promised_due: BTreeMap<MessageId, Timestamp>,
    /// Expressions that schedules were given.
    seen_crons: BTreeSet<(Named, String)>,
    /// Those that were acknowledged and are in force.
    promised_crons: BTreeMap<Named, String>,
}

impl Judge {
    pub(crate) fn new(settings: Settings, heeds_tenure: bool) -> Judge {
        Judge {
            violation: None,
            counts: Counts::default(),
            settings,
            heeds_tenure,
            epoch: 0,
            granted_at_ms: 0,
            latest: Timestamp(0),
            offsets: Vec::new(),
            clock_went_back: false,
            decided: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            answered: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            successes: BTreeSet::new(),
            starts: BTreeSet::new(),
            retried: BTreeMap::new(),
            open: Vec::new(),
            has_slot: BTreeSet::new(),
            flow_books: BTreeMap::new(),
            recent_queues: BTreeMap::new(),
            recent_flows: BTreeMap::new(),
            run_books: BTreeMap::new(),
            acknowledged_entries: BTreeSet::new(),
            kept_events: BTreeSet::new(),
            cancels_asked: BTreeSet::new(),
            heard: BTreeSet::new(),
            meant: BTreeMap::new(),
            pieces: BTreeMap::new(),
            promised_due: BTreeMap::new(),
            seen_crons: BTreeSet::new(),
            promised_crons: BTreeMap::new(),
        }
    }

    /// A rule is broken. Only the first breach counts: the others may follow from it.
    pub(crate) fn blame(
        &mut self,
        rule: &'static str,
        about: Option<MessageId>,
        at_ms: u64,
        text: impl FnOnce() -> String,
    ) {
        self.violation.get_or_insert_with(|| Violation { rule, text: text(), about, at_ms });
    }

    /// The store has granted the lease to another process.
    pub(crate) fn granted(&mut self, epoch: u64, offset_ms: i64, clock: Timestamp, now_ms: u64) {
        if epoch <= self.epoch {
            self.blame("every owner has a later epoch", None, now_ms, || format!("epoch {epoch} was granted again"));
        }
        self.epoch = epoch;
        self.granted_at_ms = now_ms;
        self.latest = clock;
        self.set_offset(offset_ms, now_ms);
        self.has_slot.clear();
        self.recent_queues.clear();
        self.recent_flows.clear();
        self.counts.owners += 1;
    }

    /// An owner has looked at its clock.
    pub(crate) fn saw_clock(&mut self, epoch: u64, clock: Timestamp) {
        if epoch == self.epoch {
            self.latest = self.latest.max(clock);
        }
    }

    /// The clock of the present owner is off by so much from now on.
    pub(crate) fn set_offset(&mut self, offset_ms: i64, now_ms: u64) {
        self.clock_went_back |= self.offsets.last().is_some_and(|(_, before)| offset_ms < *before);
        self.offsets.push((now_ms, offset_ms));
    }

    /// A request was turned into these messages; nothing of it is committed yet.
    pub(crate) fn decided(&mut self, request: RequestId, ids: Vec<MessageId>) {
        self.decided.entry(request).or_default().push(ids);
    }

    /// A receiver has said 2xx.
    pub(crate) fn said_success(&mut self, epoch: u64, id: MessageId, retried: u32) {
        self.successes.insert((epoch, id, retried));
    }

    /// An owner has answered: from now on it is a promise.
    pub(crate) fn answered(&mut self, answer: &Answer, epoch: u64, now_ms: u64, store: &Store) {
        self.answered.insert(answer.request);
        let is_current = epoch == self.epoch;
        match &answer.said {
            Said::Published(said) => {
                for (accepted, tenant, dedup) in said {
                    let id = accepted.id;
                    self.counts.acknowledged += u64::from(!accepted.deduplicated);
                    self.counts.deduplicated += u64::from(accepted.deduplicated);
                    self.acknowledge(id, now_ms, store);
                    let windows = dedup.and_then(|key| store.dedup.get(&(*tenant, key)));
                    let is_known = windows.is_some_and(|windows| windows.iter().any(|(other, _)| *other == id));
                    if dedup.is_some() && !is_known {
                        self.blame("a duplicate key is remembered", Some(id), now_ms, || {
                            "a publish with a key was answered, and the store does not know the key".into()
                        });
                    }
                }
            }
            Said::Cancelled(ids) => {
                for id in ids {
                    let is_recorded =
                        matches!(store.states.get(id), Some(State::CancelRequested | State::Canceled | State::Error));
                    if is_current && !(is_recorded && store.is_state_on_disk(*id)) {
                        self.blame("a cancel that was answered is on disk", Some(*id), now_ms, || {
                            format!("its last log line is {:?}", store.states.get(id))
                        });
                    }
                    self.cancelled.insert(*id);
                }
            }
            Said::Bulk(action) if is_current => self.bulk_answered(action.id, now_ms, store),
            Said::Miscounted { asked, answered } => {
                self.blame("every message of a publish has its outcome", None, now_ms, || {
                    format!("{asked} were published, {answered} answered")
                });
            }
            Said::DueNow(id, outcome) if is_current => self.due_now(*id, *outcome, now_ms, store),
            Said::Deleted(tenant, ids) => {
                if let Some(dlq_id) = ids.iter().find(|id| store.dead_letters.contains_key(&(*tenant, **id))) {
                    self.blame("a dead letter that was deleted is gone", None, now_ms, || dlq_id.to_string());
                }
            }
            Said::Replayed(tenant, said) => {
                for (dlq_id, accepted) in said {
                    let Some(accepted) = accepted else { continue };
                    self.counts.replayed += u64::from(!accepted.deduplicated);
                    self.acknowledge(accepted.id, now_ms, store);
                    if !accepted.deduplicated && store.dead_letters.contains_key(&(*tenant, *dlq_id)) {
                        self.blame("a replay takes its dead letter", Some(accepted.id), now_ms, || {
                            format!("{dlq_id} was published again and is still there")
                        });
                    }
                }
            }
            Said::RunStarted(first) => self.acknowledge(*first, now_ms, store),
            Said::Appended { run, entries } => self.appended(*run, entries, now_ms, store),
            Said::Notified { tenant, event, last, reached } if is_current => {
                self.notified((*tenant, event), *last, reached, now_ms, store);
            }
            Said::EventKept(run, key) => self.event_kept(*run, *key, now_ms, store),
            Said::RunOver(run) if is_current => self.run_over(*run, now_ms, store),
            Said::Rescheduled(schedule, cron) if is_current => self.rescheduled(schedule, cron, now_ms, store),
            Said::Notified { .. }
            | Said::RunOver(_)
            | Said::Rescheduled(..)
            | Said::DueNow(..)
            | Said::Bulk(_)
            | Said::Done => {}
        }
    }

    fn acknowledge(&mut self, id: MessageId, now_ms: u64, store: &Store) {
        if !store.is_on_disk(id) {
            self.blame("what was answered is on disk", Some(id), now_ms, || {
                let how = if store.message(id).is_some() { "only written" } else { "not even written" };
                format!("its publish was answered, and it is {how}")
            });
        }
        self.acknowledged.insert(id);
    }

    /// The power was cut: what is left?
    pub(crate) fn power_cut(&mut self, now_ms: u64, store: &Store) {
        self.counts.power_cuts += 1;
        self.retried.clear();
        self.run_books.values_mut().for_each(RunBook::power_cut);
        self.check_acknowledged(now_ms, store);
    }

    fn check_acknowledged(&mut self, now_ms: u64, store: &Store) {
        self.check_entries(now_ms, store);
        self.check_due_now(now_ms, store);
        self.check_crons(now_ms, store);
        self.check_events(now_ms, store);
        if let Some(id) = self.acknowledged.iter().copied().find(|id| store.message(*id).is_none()) {
            self.blame("nothing that was answered is lost", Some(id), now_ms, || "it is not there any more".into());
        }
    }

    /// Everything is over: the law of conservation.
    pub(crate) fn conclude(&mut self, programs: &[Program], now_ms: u64, store: &Store) {
        self.check_acknowledged(now_ms, store);
        for message in store.messages.values() {
            if message.spec.workflow.is_some() {
                continue;
            }
            let state = store.states.get(&message.id).copied();
            self.counts.created += 1;
            match state {
                Some(State::Delivered) => self.counts.delivered += 1,
                Some(State::Failed) => self.counts.failed += 1,
                Some(State::Canceled) => self.counts.cancelled += 1,
                _ => {}
            }
            let is_over = state.is_some_and(State::is_final);
            let is_live = store.live_row(message.id).is_some();
            if is_over == is_live {
                self.blame("created = delivered + failed + cancelled + pending", Some(message.id), now_ms, || {
                    format!(
                        "its last log line is {state:?}, and its live row is {}",
                        if is_live { "there" } else { "gone" }
                    )
                });
            }
        }
        self.conclude_runs(programs, now_ms, store);
        self.check_requests(now_ms, store);
        self.check_pieces(now_ms, store);
    }

    /// A publish that was not answered is stored whole or not at all, and never twice.
    fn check_requests(&mut self, now_ms: u64, store: &Store) {
        let mut broken = None;
        for (request, attempts) in &self.decided {
            let is_stored = |id: &&MessageId| store.message(**id).is_some();
            let stored: Vec<usize> = attempts.iter().map(|ids| ids.iter().filter(is_stored).count()).collect();
            let halves = attempts.iter().zip(&stored).find(|(ids, stored)| **stored != 0 && **stored != ids.len());
            if let Some((ids, stored)) = halves {
                let names: Vec<String> = ids.iter().map(|id| short(*id)).collect();
                broken = broken.or(Some((ids.first().copied(), format!("{stored} of {} are there", names.join(", ")))));
            }
            if stored.iter().filter(|stored| **stored > 0).count() > 1 {
                broken = broken.or(Some((attempts[0].first().copied(), format!("request {} twice", request.0))));
            }
            if !self.answered.contains(request) {
                self.counts.unknown += 1;
            }
        }
        if let Some((about, text)) = broken {
            self.blame("a publish is stored whole or not at all, and once", about, now_ms, || text);
        }
    }
}
