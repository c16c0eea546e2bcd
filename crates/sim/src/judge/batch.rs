//! What a transaction may do. Judged op by op as it reaches the store, and then as a whole.

use super::Judge;
use super::runs::run_of;
use crate::node::CommitRequest;
use crate::program::Program;
use crate::store::{Store, window_counts};
use crate::story::Story;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{Event, Op, State};
use posthaste_engine::message::{FlowKey, Live, QueueKey};
use posthaste_engine::outcome::Verdict;
use posthaste_engine::workflow::Change;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// What one transaction did.
#[derive(Default)]
pub(super) struct Deeds {
    pub inserted: BTreeMap<MessageId, Live>,
    /// Rows that changed, as they were last.
    pub updated: BTreeMap<MessageId, Live>,
    /// Log lines, by message.
    pub logged: BTreeMap<MessageId, Vec<State>>,
    pub removed: BTreeSet<MessageId>,
    buried: BTreeSet<MessageId>,
    pub exhumed: BTreeSet<(TenantId, DlqId)>,
    /// Messages of firings, as their schedules name them.
    pub fired: BTreeSet<MessageId>,
    /// Bulk actions that were stored, and how many more each has processed.
    pub bulk: Vec<(BulkAction, u64)>,
    /// Entries of runs that are new, in their order.
    pub entries: Vec<(Seq, u32)>,
    /// Entries whose deliveries are new or stand otherwise.
    pub deliveries: BTreeSet<(Seq, u32)>,
    pub new_runs: BTreeSet<Seq>,
    pub ended_runs: BTreeSet<Seq>,
    /// Rules about runs that were broken on the way.
    pub breaches: Vec<(&'static str, Option<MessageId>, String)>,
}

impl Deeds {
    pub(super) fn breach(&mut self, rule: &'static str, about: Option<MessageId>, text: impl FnOnce() -> String) {
        self.breaches.push((rule, about, text()));
    }
}

impl Judge {
    /// A batch is written: its ops are judged and applied.
    pub(crate) fn apply(
        &mut self,
        commit: &CommitRequest,
        programs: &[Program],
        now_ms: u64,
        store: &mut Store,
        story: &mut Story,
    ) {
        let epoch = self.epoch;
        if commit.epoch != epoch {
            self.blame("an earlier owner changes nothing", None, now_ms, || {
                format!("a batch of epoch {} was written in epoch {epoch}", commit.epoch)
            });
        }
        self.latest = self.latest.max(commit.notes.clock);
        self.forget_starts();
        self.remember_limits(&commit.ops, store);
        self.note_resumed(commit);
        let mut deeds = Deeds::default();
        for op in &commit.ops {
            note(op, now_ms, story);
            self.check_op(op, commit, now_ms, store, &mut deeds);
            if let Err(text) = store.apply(op) {
                self.blame("every op is valid", subject(op), now_ms, || text);
            }
        }
        self.check_runs(&deeds, programs, now_ms, store);
        self.check_kept(commit, now_ms, store);
        self.check_steps(commit, &deeds, now_ms, store);
        self.check_ends(&deeds, now_ms, store);
        self.check_outcomes(commit, &deeds, now_ms, store);
        self.check_replays(commit, &deeds, now_ms);
        self.check_bulk(&deeds, now_ms, store);
        self.check_firings(&deeds, now_ms, store);
        self.note_resets(commit);
    }

    fn check_op(&mut self, op: &Op, commit: &CommitRequest, now_ms: u64, store: &mut Store, deeds: &mut Deeds) {
        match op {
            Op::Insert { message, live } => {
                if live.id != message.id || live.retried != 0 || live.cancel_requested {
                    self.blame("a message begins at the beginning", Some(message.id), now_ms, || format!("{live:?}"));
                }
                deeds.inserted.insert(message.id, *live);
            }
            Op::Log(event) => self.check_log(event, now_ms, store, deeds),
            Op::Update(live) => {
                deeds.updated.insert(live.id, *live);
                self.check_update(live, now_ms, store);
            }
            Op::Workflow(change) => self.check_change(change, commit, store, deeds),
            Op::Remove { id } => drop(deeds.removed.insert(*id)),
            Op::InsertDeadLetter(letter) => drop(deeds.buried.insert(letter.id)),
            Op::DeleteDeadLetter { tenant, dlq_id } => drop(deeds.exhumed.insert((*tenant, *dlq_id))),
            Op::PutDedupKey { tenant, key, id, .. } => {
                let created_at = store.message(*id).or_else(|| inserted(&commit.ops, *id)).map(|new| new.created_at);
                let windows = store.dedup.get(&(*tenant, *key)).map_or(&[][..], Vec::as_slice);
                let counts = |expires: Timestamp| created_at.is_some_and(|at| window_counts(expires, at));
                if let Some((original, _)) = windows.iter().find(|(_, expires)| counts(*expires)) {
                    let original = *original;
                    self.blame("one publish in a duplicate window creates", Some(*id), now_ms, || {
                        format!("it was created although {original} has the same key")
                    });
                }
            }
            Op::PutBulkAction(action) => self.note_bulk(action, now_ms, store, deeds),
            Op::PutSchedule(_) | Op::SetSchedule { .. } | Op::DropSchedule { .. } => {
                self.check_schedule(op, commit, now_ms, store, deeds);
            }
            _ => {}
        }
    }

    fn check_log(&mut self, event: &Event, now_ms: u64, store: &Store, deeds: &mut Deeds) {
        let Event { id, state, .. } = event;
        let before = store.states.get(id).copied();
        if before.is_some_and(State::is_final) {
            self.blame("an end is final", Some(*id), now_ms, || format!("{state:?} after {before:?}"));
        }
        // A message that is one delivery too many of a loop ends in the transaction that made it.
        let is_loop = before == Some(State::Created) && *state == State::Error && deeds.inserted.contains_key(id);
        if !may_follow(before, *state) && !is_loop {
            self.blame("log lines follow one another", Some(*id), now_ms, || format!("{state:?} after {before:?}"));
        }
        deeds.logged.entry(*id).or_default().push(*state);
    }

    fn check_update(&mut self, live: &Live, now_ms: u64, store: &Store) {
        let Some(before) = store.live_row(live.id) else { return };
        let retries = store.message(live.id).map_or(0, |message| message.spec.retries);
        if live.retried < before.retried || live.retried > retries {
            self.blame("retries only ever count up, to what was asked for", Some(live.id), now_ms, || {
                format!("{} after {}, at most {retries}", live.retried, before.retried)
            });
        }
        if before.cancel_requested && !live.cancel_requested {
            self.blame("a cancel is never taken back", Some(live.id), now_ms, || "its row forgets the cancel".into());
        }
    }

    /// A live row goes when its end is logged, in the same transaction.
    fn check_ends(&mut self, deeds: &Deeds, now_ms: u64, store: &Store) {
        for (id, states) in &deeds.logged {
            let ends = |state: State| states.contains(&state);
            let gone = ends(State::Delivered) || ends(State::Canceled);
            if gone != deeds.removed.contains(id) || ends(State::Failed) != deeds.buried.contains(id) {
                self.blame("an end and its log line are one transaction", Some(*id), now_ms, || format!("{states:?}"));
            }
        }
        // Of messages of runs the list of the run tells.
        let is_silent = |id: &&MessageId| !deeds.logged.contains_key(id) && run_of(**id, store).is_none();
        let silent = deeds.removed.iter().chain(&deeds.buried).find(is_silent);
        if let Some(id) = silent.copied() {
            self.blame("an end and its log line are one transaction", Some(id), now_ms, || "it went silently".into());
        }
    }

    /// What became of each attempt, and the callbacks that tell of it.
    fn check_outcomes(&mut self, commit: &CommitRequest, deeds: &Deeds, now_ms: u64, store: &Store) {
        for (live, verdict, callback, failure_callback) in &commit.notes.outcomes {
            let id = live.id;
            let states = deeds.logged.get(&id).map_or(&[][..], Vec::as_slice);
            let has = |state: State| states.contains(&state);
            let Some(spec) = store.message(id).map(|message| &message.spec) else { continue };
            let is_right = match verdict {
                _ if has(State::Canceled) => true,
                Verdict::Success => has(State::Delivered),
                Verdict::Refused => has(State::Failed),
                Verdict::Failure if live.retried >= spec.retries => has(State::Failed),
                Verdict::Failure => has(State::Retry),
            };
            if !is_right {
                self.blame("an attempt has the end that it brought", Some(id), now_ms, || {
                    format!("{verdict:?} after {} of {} retries came to {states:?}", live.retried, spec.retries)
                });
            }
            if has(State::Delivered) && !self.successes.contains(&(commit.epoch, id, live.retried)) {
                self.blame("delivered means that the receiver said 2xx", Some(id), now_ms, || "it did not".into());
            }
            let told = !has(State::Canceled);
            let expected = [
                (callback, told && spec.callback.is_some()),
                (failure_callback, has(State::Failed) && spec.failure_callback.is_some()),
            ];
            for (callback, is_expected) in expected {
                let made = deeds.inserted.get(callback);
                self.counts.callbacks += u64::from(made.is_some());
                if made.is_some() != is_expected {
                    self.blame("every outcome has its callback, in its transaction", Some(id), now_ms, || {
                        format!("{states:?}, and its callback is {}", if is_expected { "missing" } else { "too many" })
                    });
                }
                if made.is_some_and(|made| made.place != live.place) {
                    self.blame("callbacks share the turn of their message", Some(id), now_ms, || "one does not".into());
                }
            }
        }
    }

    fn check_replays(&mut self, commit: &CommitRequest, deeds: &Deeds, now_ms: u64) {
        for (tenant, dlq_id, id) in &commit.notes.replays {
            if !deeds.exhumed.contains(&(*tenant, *dlq_id)) || !deeds.inserted.contains_key(id) {
                self.blame("a replay takes its dead letter", Some(*id), now_ms, || {
                    format!("{dlq_id} and its new message are not one transaction")
                });
            }
        }
    }

    /// What was in force before the batch and within it: a start may have been decided at any time of it.
    fn remember_limits(&mut self, ops: &[Op], store: &Store) {
        self.recent_queues.clear();
        self.recent_flows.clear();
        for op in ops {
            match op {
                Op::PutQueue(queue) => {
                    let key = (queue.tenant, QueueKey::of(queue.tenant, &queue.name));
                    let known = || store.queues.get(&key).cloned().into_iter().collect();
                    self.recent_queues.entry(key).or_insert_with(known).push(queue.clone());
                }
                Op::PutFlow(flow) => {
                    let key = (flow.tenant, FlowKey::of(flow.tenant, &flow.key));
                    let known = || store.flows.get(&key).cloned().into_iter().collect();
                    self.recent_flows.entry(key).or_insert_with(known).push(flow.clone());
                }
                _ => {}
            }
        }
    }
}

fn inserted(ops: &[Op], id: MessageId) -> Option<&std::sync::Arc<posthaste_engine::message::Message>> {
    ops.iter().find_map(|op| match op {
        Op::Insert { message, .. } if message.id == id => Some(message),
        _ => None,
    })
}

/// The sequences of the contract; a crash may leave an attempt without an end.
fn may_follow(before: Option<State>, state: State) -> bool {
    use State::{Active, CancelRequested, Canceled, Created, Delivered, Error, Failed, Retry};
    match state {
        Created => before.is_none(),
        Active => matches!(before, Some(Created | Retry | Active)),
        Delivered => before == Some(Active),
        Error => matches!(before, Some(Active | CancelRequested)),
        Retry | Failed => before == Some(Error),
        CancelRequested => matches!(before, Some(Created | Active | Retry)),
        Canceled => matches!(before, Some(CancelRequested | Error)),
    }
}

fn subject(op: &Op) -> Option<MessageId> {
    match op {
        Op::Insert { message, .. } => Some(message.id),
        Op::Log(event) => Some(event.id),
        Op::Update(live) => Some(live.id),
        Op::Remove { id } | Op::PutDedupKey { id, .. } => Some(*id),
        Op::InsertDeadLetter(letter) => Some(letter.id),
        Op::Workflow(Change::Entry { entry, .. }) => Some(entry.id),
        _ => None,
    }
}

/// What an op that is not about a message is about.
fn name_of(op: &Op) -> &str {
    match op {
        Op::PutQueue(queue) => &queue.name,
        Op::PutFlow(flow) => &flow.key,
        Op::PutSchedule(schedule) => &schedule.id,
        Op::DropQueue { name, .. } | Op::DropFlow { key: name, .. } => name,
        Op::SetSchedule { id, .. } | Op::DropSchedule { id, .. } => id,
        Op::Workflow(Change::Run(run)) => &run.id,
        Op::Workflow(Change::Waiter(waiter) | Change::NoWaiter(waiter)) => &waiter.event,
        _ => "",
    }
}

fn note(op: &Op, now_ms: u64, story: &mut Story) {
    let about = subject(op);
    story.note(about.map_or_else(|| name_of(op).bytes().map(u64::from).sum(), |id| id.tag));
    let text = || match op {
        Op::Insert { live, .. } => format!("is stored, due at {}", live.due),
        Op::Log(event) => format!("is {}", event.state.name()),
        Op::Update(live) => {
            format!("waits until {}, retried {}, cancelled: {}", live.due, live.retried, live.cancel_requested)
        }
        Op::Remove { .. } => "its live row goes".to_owned(),
        Op::InsertDeadLetter(letter) => format!("is dead letter {}", letter.dlq_id),
        Op::Workflow(Change::Entry { run, entry, body }) => {
            let text = String::from_utf8_lossy(body);
            format!("is entry {} of run {}: {} {text}", entry.index, run.0, entry.terms.call_type.name())
        }
        Op::Workflow(Change::Delivery { run, index, delivery }) => {
            format!("the delivery of entry {index} of run {} is {:?}", run.0, delivery.state)
        }
        Op::Workflow(Change::Run(run)) => {
            format!("run {}, {}, is {:?}", run.no.0, run.id, run.state)
        }
        Op::Workflow(Change::Note { run, note }) => {
            let (kind, body) = (note.key.kind, String::from_utf8_lossy(&note.body));
            format!("run {} keeps {kind:?} {}: {} {body}", run.0, note.key.n, note.data)
        }
        Op::Workflow(Change::NoNote { run, key }) => {
            format!("run {} needs {:?} {} no more", run.0, key.kind, key.n)
        }
        other => format!("{other:?}"),
    };
    story.tell(now_ms, about, text);
}
