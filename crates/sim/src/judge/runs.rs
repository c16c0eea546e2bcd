//! Workflow runs: their lists are what their functions say, their ends are ends, and nothing is executed twice that was
//! acknowledged.

use super::Judge;
use super::batch::Deeds;
use super::start::Start;
use crate::command::RunKey;
use crate::endpoint::Visit;
use crate::node::CommitRequest;
use crate::program::{self, Deed, Kind, Line, Program};
use crate::store::Store;
use posthaste_engine::message::Live;
use posthaste_engine::outcome::Verdict;
use posthaste_engine::workflow::entry::{DeliveryState, Entry};
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::run::{Invoker, Run, RunState, StepText, number_of};
use posthaste_engine::workflow::{Change, Part};
use posthaste_wire::encoding::base64;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the judge knows of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunBook {
    /// Steps whose results were acknowledged.
    acknowledged: BTreeSet<u32>,
    /// How often each step was executed.
    effects: BTreeMap<u32, u32>,
    /// The list that was shown with each entry.
    lists: BTreeMap<u32, bytes::Bytes>,
    /// Its function has returned.
    has_returned: bool,
}

impl RunBook {
    /// Entries that the server wrote itself, and that nobody waited for, may be gone: they are written anew.
    pub(super) fn power_cut(&mut self) {
        self.lists.clear();
    }
}

impl Judge {
    /// Somebody wants to cancel a run.
    pub(crate) fn cancel_asked(&mut self, tenant: TenantId, run: &RunKey) {
        self.cancels_asked.insert((tenant, run.id.clone()));
    }

    /// A delivery leaves for its endpoint, which will do something.
    pub(crate) fn shown(&mut self, start: &Start, visit: &Visit, now_ms: u64, store: &Store) {
        if start.epoch != store.epoch() {
            return;
        }
        let (id, body) = (visit.ended.live.id, &visit.ended.message.body);
        let Some(Part::Entry(index)) = visit.ended.message.spec.workflow.map(|step| step.part) else { return };
        let book = self.run_books.entry(visit.run).or_default();
        let is_same = book.lists.entry(index).or_insert_with(|| body.clone()) == body;
        let is_done = visit.deed.number().filter(|number| book.acknowledged.contains(number));
        if let Some(number) = is_done {
            self.blame("a step whose result was acknowledged is not executed again", Some(id), now_ms, || {
                format!("step {number} would be")
            });
        }
        if !is_same {
            self.blame("a list is the same at every delivery", Some(id), now_ms, || {
                format!("entry {index} was shown with another list before")
            });
        }
    }

    /// An endpoint does something.
    pub(crate) fn executed(&mut self, run: Seq, deed: &Deed) {
        let book = self.run_books.entry(run).or_default();
        book.has_returned |= *deed == Deed::Finish;
        if let Some(number) = deed.number() {
            *book.effects.entry(number).or_default() += 1;
            self.counts.steps += 1;
        }
    }

    /// Entries were acknowledged, and the results of steps with them.
    pub(super) fn appended(&mut self, run: Seq, entries: &[(MessageId, Option<u32>)], now_ms: u64, store: &Store) {
        for (id, number) in entries {
            if !store.is_entry_on_disk(run, *id) {
                self.blame("what was answered is on disk", Some(*id), now_ms, || "its entry is not".into());
            }
            self.acknowledged_entries.insert((run, *id));
            self.run_books.entry(run).or_default().acknowledged.extend(*number);
        }
    }

    /// Is what was acknowledged of runs still there?
    pub(super) fn check_entries(&mut self, now_ms: u64, store: &Store) {
        let is_lost = |(run, id): &&(Seq, MessageId)| !store.entries_of(*run).any(|entry| entry.id == *id);
        if let Some((_, id)) = self.acknowledged_entries.iter().find(is_lost).copied() {
            self.blame("nothing that was answered is lost", Some(id), now_ms, || "its entry is gone".into());
        }
    }

    /// An event was acknowledged. `last` is the last position when it came: who had asked by then has heard of it.
    pub(super) fn notified(
        &mut self,
        (tenant, event): (TenantId, &str),
        last: Seq,
        reached: &[MessageId],
        now_ms: u64,
        store: &Store,
    ) {
        let missed = store.waiters_of(tenant, event).into_iter().find(|(timer, _)| timer.seq <= last);
        if let Some((timer, _)) = missed {
            self.blame("an event reaches all runs that wait for it", Some(timer), now_ms, || {
                format!("not for {event}")
            });
        }
        for id in reached {
            self.counts.events_heard += 1;
            self.acknowledge(*id, now_ms, store);
            if !self.heard.insert(*id) {
                self.blame("a wait ends once", Some(*id), now_ms, || format!("{event} has ended it twice"));
            }
        }
    }

    /// Somebody was told that a run has ended.
    pub(super) fn run_over(&mut self, no: Seq, now_ms: u64, store: &Store) {
        let Some(run) = store.runs.get(&no) else { return };
        let is_promised = matches!(run.state, RunState::Success | RunState::Canceled);
        if run.state == RunState::Started || (is_promised && store.run_state_on_disk(no) == Some(RunState::Started)) {
            self.blame("an end that was answered is on disk", first_of(no, store), now_ms, || format!("{run:?}"));
        }
    }

    /// A run that failed goes on as another: what was done stays done.
    pub(super) fn note_resumed(&mut self, commit: &CommitRequest) {
        for (old, new) in &commit.notes.resumed {
            self.counts.runs_resumed += 1;
            let RunBook { acknowledged, effects, .. } = self.run_books.get(old).cloned().unwrap_or_default();
            self.run_books.insert(*new, RunBook { acknowledged, effects, ..RunBook::default() });
        }
    }

    /// A change is about to be written.
    pub(super) fn check_change(&mut self, change: &Change, commit: &CommitRequest, store: &Store, deeds: &mut Deeds) {
        match change {
            Change::Run(run) => self.check_run(run, commit, store, deeds),
            Change::Entry { run, entry, .. } => {
                if !store.entries.contains_key(&(*run, entry.index)) {
                    deeds.entries.push((*run, entry.index));
                }
                deeds.deliveries.insert((*run, entry.index));
            }
            Change::Delivery { run, index, delivery } => {
                let before = store.entries.get(&(*run, *index)).map(|entry| entry.delivery.state);
                if before.is_some_and(|before| before != DeliveryState::Pending) {
                    deeds.breach("the end of a delivery is final", first_of(*run, store), || {
                        format!("{:?} after {before:?}", delivery.state)
                    });
                }
                deeds.deliveries.insert((*run, *index));
            }
            Change::Note { run, note } => {
                self.counts.events_kept += u64::from(note.key.kind == NoteKind::Early);
                check_note(*run, note.key, store, deeds);
            }
            Change::NoNote { run, key } => {
                self.event_taken(*run, *key);
                check_note(*run, *key, store, deeds);
            }
            Change::Waiter(_) | Change::NoWaiter(_) => {}
        }
    }

    fn check_run(&mut self, run: &Arc<Run>, commit: &CommitRequest, store: &Store, deeds: &mut Deeds) {
        let first = first_of(run.no, store);
        let Some(before) = store.runs.get(&run.no) else {
            let is_rival =
                |other: &&Arc<Run>| (other.tenant, &other.id, other.state) == (run.tenant, &run.id, RunState::Started);
            if store.runs.values().any(|other| is_rival(&other)) {
                deeds.breach("only one run of a name is active at a time", None, || run.id.clone());
            }
            deeds.new_runs.insert(run.no);
            return;
        };
        if before.state != RunState::Started {
            if (before.state, before.ended_at) != (run.state, run.ended_at) {
                deeds
                    .breach("the end of a run is final", first, || format!("{:?} after {:?}", run.state, before.state));
            }
            return;
        }
        let has_cause = match run.state {
            RunState::Started => return,
            RunState::Success => self.run_books.get(&run.no).is_some_and(|book| book.has_returned),
            RunState::Canceled => self.cancels_asked.contains(&(run.tenant, run.id.clone())),
            RunState::Failed => commit.notes.steps.iter().any(|(live, verdict, _)| {
                *verdict != Verdict::Success && run_of(live.id, store).is_some_and(|(of, _)| of == run.no)
            }),
        };
        if !has_cause {
            deeds.breach("a run has the end that it was given", first, || format!("{:?}", run.state));
        }
        deeds.ended_runs.insert(run.no);
    }

    /// The batch is written: does all of it belong together?
    pub(super) fn check_runs(&mut self, deeds: &Deeds, programs: &[Program], now_ms: u64, store: &Store) {
        for (rule, about, text) in &deeds.breaches {
            self.blame(rule, *about, now_ms, || text.clone());
        }
        for no in &deeds.new_runs {
            self.check_invoker(*no, now_ms, store);
        }
        for (run, index) in &deeds.entries {
            self.check_entry(*run, *index, programs, now_ms, store);
        }
        for key in &deeds.deliveries {
            let Some(entry) = store.entries.get(key) else { continue };
            let is_live = store.live_row(entry.id).is_some_and(|row| !row.cancel_requested);
            if is_live != (entry.delivery.state == DeliveryState::Pending) {
                self.blame("an entry and its delivery are one transaction", Some(entry.id), now_ms, || {
                    format!("the delivery is {:?}, its message is live: {is_live}", entry.delivery.state)
                });
            }
        }
        for id in deeds.inserted.keys() {
            let Some((run, Part::Entry(index))) = run_of(*id, store) else { continue };
            if store.entries.get(&(run, index)).is_none_or(|entry| entry.id != *id) {
                self.blame("an entry and its delivery are one transaction", Some(*id), now_ms, || {
                    format!("there is no entry {index} for it")
                });
            }
        }
        for no in &deeds.ended_runs {
            self.check_end(*no, deeds, now_ms, store);
        }
    }

    /// A new run is the only one that its invoker waits for.
    fn check_invoker(&mut self, no: Seq, now_ms: u64, store: &Store) {
        let Some(run) = store.runs.get(&no) else { return };
        let invokers = invokers(no, store);
        self.counts.runs_invoked += u64::from(!invokers.is_empty());
        let mut others = store.runs.values().filter(|other| other.tenant == run.tenant && other.no != no);
        let is_sibling = |other: &&Arc<Run>| !invokers.is_disjoint(&self::invokers(other.no, store));
        if let Some(sibling) = others.find(is_sibling).filter(|_| !invokers.is_empty()) {
            self.blame("a step invokes one run", first_of(no, store), now_ms, || {
                format!("{} and {}", sibling.id, run.id)
            });
        }
    }

    /// An entry is a line of the function's list, the first of its kind, behind all that it follows from.
    fn check_entry(&mut self, no: Seq, index: u32, programs: &[Program], now_ms: u64, store: &Store) {
        let rule = "the list of a run is what its function says";
        let (Some(run), Some(entry)) = (store.runs.get(&no), store.entries.get(&(no, index))) else { return };
        let program = program::function_at(&run.url).and_then(|function| programs.get(function));
        let (Some(program), Some(line)) = (program, program::line(entry)) else {
            return self.blame(rule, Some(entry.id), now_ms, || format!("{entry:?}"));
        };
        let before = store.entries_of(no).take_while(|other| other.index < index);
        let before: BTreeSet<Line> = before.filter_map(program::line).collect();
        if before.contains(&line) {
            return self.blame(rule, Some(entry.id), now_ms, || format!("{line:?} is there twice"));
        }
        if let Some(missing) = program.before(line).into_iter().find(|line| !before.contains(line)) {
            return self.blame(rule, Some(entry.id), now_ms, || format!("{line:?} is there before {missing:?}"));
        }
        let (Line::Result(number) | Line::Call(number)) = line else { return };
        let (book, body) = (self.run_books.entry(no).or_default(), store.body(no, index));
        let is_executed = book.effects.contains_key(&number);
        self.counts.waits_timed_out += u64::from(body.ends_with(b"\"waitTimeout\":true}"));
        if !is_executed || !says_what_it_should(program, number, body, store.body(no, 0)) {
            self.blame(rule, Some(entry.id), now_ms, || {
                let text = String::from_utf8_lossy(body);
                format!("{line:?} was executed: {is_executed}, and says {text}")
            });
        }
    }

    /// A run has ended: nothing of it lives on but what tells of its failure, and those who wait for it have heard.
    fn check_end(&mut self, no: Seq, deeds: &Deeds, now_ms: u64, store: &Store) {
        let Some(run) = store.runs.get(&no) else { return };
        let lives_on = |row: &&Live| {
            row.is_step
                && !row.cancel_requested
                && run_of(row.id, store).is_some_and(|(of, part)| of == no && part != Part::FailureCall)
        };
        if let Some(row) = store.live.values().find(lives_on).copied() {
            self.blame("no message of a run lives on after its end", Some(row.id), now_ms, || format!("{row:?}"));
        }
        if let Some((.., timer)) = store.waiters.iter().find(|(_, waiting)| **waiting == no).map(|(key, _)| key) {
            self.blame("an ended run waits for nothing", Some(*timer), now_ms, || run.id.clone());
        }
        let is_call = |id: &&MessageId| run_of(**id, store) == Some((no, Part::FailureCall));
        let calls = deeds.inserted.keys().filter(is_call).count();
        if calls != usize::from(run.state == RunState::Failed && run.config.failure.is_some()) {
            self.blame("a failure is reported once", first_of(no, store), now_ms, || format!("{calls} calls"));
        }
        for invoker in invokers(no, store) {
            let Ok(invoker) = serde_json::from_str::<Invoker>(invoker) else { continue };
            let Some(parent) = store.find_run(run.tenant, &invoker.run_id, invoker.created_at) else { continue };
            let goes_on = store.runs.get(&parent).is_some_and(|parent| parent.state == RunState::Started);
            let number = number_of(&invoker.step);
            let is_told = |entry: &Entry| program::line(entry) == Some(Line::Result(number));
            if goes_on && !store.entries_of(parent).any(is_told) {
                self.blame("the end of a run reaches the run that invoked it", first_of(no, store), now_ms, || {
                    format!("{} has ended, and {} has not received its result", run.id, invoker.run_id)
                });
            }
        }
    }

    /// Attempts of messages of runs have the ends that they brought.
    pub(super) fn check_steps(&mut self, commit: &CommitRequest, deeds: &Deeds, now_ms: u64, store: &Store) {
        for (live, verdict, sent) in &commit.notes.steps {
            let id = live.id;
            let (Some((no, _)), Some(message)) = (run_of(id, store), store.message(id)) else { continue };
            let is_withdrawn = store.runs.get(&no).is_some_and(|run| run.state != RunState::Started);
            let is_gone = deeds.removed.contains(&id);
            let is_retried = deeds.updated.get(&id).is_some_and(|row| row.retried == live.retried + 1);
            let has_retries = *verdict == Verdict::Failure && live.retried < message.spec.retries;
            if !(is_gone && is_withdrawn) && (is_retried, is_gone) != (has_retries, !has_retries) {
                self.blame("an attempt has the end that it brought", Some(id), now_ms, || {
                    format!("{verdict:?} after {} of {} retries", live.retried, message.spec.retries)
                });
            }
            let is_success = *verdict == Verdict::Success && *sent;
            if is_success && !self.successes.contains(&(commit.epoch, id, live.retried)) {
                self.blame("delivered means that the receiver said 2xx", Some(id), now_ms, || "it did not".into());
            }
        }
    }

    /// Everything is over: every run has an end, and its list is whole.
    pub(super) fn conclude_runs(&mut self, programs: &[Program], now_ms: u64, store: &Store) {
        for run in store.runs.values() {
            self.counts.runs += 1;
            match run.state {
                RunState::Started => {}
                RunState::Success => self.counts.runs_finished += 1,
                RunState::Failed => self.counts.runs_failed += 1,
                RunState::Canceled => self.counts.runs_cancelled += 1,
            }
            self.check_children(run, now_ms, store);
            if run.state == RunState::Success {
                self.check_list(run, programs, now_ms, store);
            }
        }
    }

    fn check_list(&mut self, run: &Run, programs: &[Program], now_ms: u64, store: &Store) {
        let found: BTreeSet<Line> = store.entries_of(run.no).filter_map(program::line).collect();
        let program = program::function_at(&run.url).and_then(|function| programs.get(function));
        let expected: BTreeSet<Line> = program.map(Program::lines).unwrap_or_default().into_iter().collect();
        let result = program::result(&String::from_utf8_lossy(store.body(run.no, 0)));
        let returned = store.result_of(run.no);
        if found != expected || returned != Some(result.as_bytes()) {
            self.blame("a run that succeeds has done all of its function", first_of(run.no, store), now_ms, || {
                let returned = returned.map(String::from_utf8_lossy);
                format!("{}: {found:?} instead of {expected:?}, and it returned {returned:?}", run.id)
            });
        }
    }

    /// What a run was told of those that it invoked is how they ended, and what it keeps of them is what they were given.
    fn check_children(&mut self, run: &Run, now_ms: u64, store: &Store) {
        let about = first_of(run.no, store);
        let record = match store.record(run.tenant, run.no) {
            Ok(Some(record)) => record,
            unreadable => {
                let text = || format!("{unreadable:?}");
                return self.blame("what is stored of a run can be read", about, now_ms, text);
            }
        };
        for invoke in &record.workflow.invokes {
            let child = store.find_run(run.tenant, &invoke.run_id, Some(invoke.created_at));
            if child.is_none_or(|child| record.given(invoke) != store.body(child, 0)) {
                self.blame("what an invoked run was given is kept", about, now_ms, || format!("{invoke:?}"));
            }
            let is_result = |entry: &&Entry| program::line(entry) == Some(Line::Result(invoke.number()));
            let told = record.workflow.entries.iter().find(is_result).map(|entry| {
                let step: StepText = serde_json::from_slice(record.body(entry)).unwrap_or_default();
                step.get("out").and_then(Value::as_str).unwrap_or_default().to_owned()
            });
            for told in told.into_iter().chain(record.out(invoke)) {
                if !child.is_some_and(|child| is_end_of(child, &told, store)) {
                    self.blame("an invoking run gets the result of the run", about, now_ms, || {
                        format!("{told} of {}", invoke.run_id)
                    });
                }
            }
        }
    }
}

/// Whether this is what is told of the end of a run.
fn is_end_of(no: Seq, told: &str, store: &Store) -> bool {
    let Some(run) = store.runs.get(&no) else { return false };
    let told: StepText = serde_json::from_str(told).unwrap_or_default();
    let says = |name: &str, state: RunState| told.get(name) == Some(&Value::Bool(run.state == state));
    let body = told.get("body").and_then(Value::as_str);
    run.state != RunState::Started
        && says("isFailed", RunState::Failed)
        && says("isCanceled", RunState::Canceled)
        && body.map(str::as_bytes) == store.result_of(no)
}

/// Who waits for the end of a run, each as it is stored.
fn invokers(no: Seq, store: &Store) -> BTreeSet<&str> {
    let of_kind = store.notes_of(no).filter(|note| note.key.kind == NoteKind::Invoker);
    of_kind.map(|note| note.data.as_str()).collect()
}

/// What a run returned, or was answered when it failed, stays.
fn check_note(run: Seq, key: NoteKey, store: &Store, deeds: &mut Deeds) {
    let is_end = matches!(key.kind, NoteKind::Result | NoteKind::Answer);
    let is_over = store.runs.get(&run).is_some_and(|run| run.state != RunState::Started);
    if is_end && is_over {
        deeds.breach("the end of a run is final", first_of(run, store), || format!("{key:?} changes"));
    }
}

/// The run that a message is of, and its part.
pub(super) fn run_of(id: MessageId, store: &Store) -> Option<(Seq, Part)> {
    store.message(id)?.spec.workflow.map(|step| (step.run, step.part))
}

/// The message that a story about a run begins with.
fn first_of(no: Seq, store: &Store) -> Option<MessageId> {
    store.entries.get(&(no, 0)).map(|entry| entry.id)
}

/// Whether the result of a step is one that its function may give.
fn says_what_it_should(program: &Program, number: u32, body: &[u8], payload: &[u8]) -> bool {
    let step: StepText = serde_json::from_slice(body).unwrap_or_default();
    let out = step.get("out").and_then(Value::as_str);
    let payload = String::from_utf8_lossy(payload);
    match program.kind(number) {
        Some(Kind::Run) => out == Some(&format!("step {number} of {payload}")),
        Some(Kind::Sleep { .. }) => out.is_none(),
        Some(Kind::Wait { event, .. }) => match step.get("waitTimeout") {
            Some(_) => out.is_none(),
            None => out == Some(&base64(&program::event_data(event))),
        },
        Some(Kind::Notify { event }) => out == Some(&program::event_name(event)),
        Some(Kind::Call | Kind::Invoke { .. }) => true,
        Some(Kind::Fail) | None => false,
    }
}
