//! Workflow runs of an owner: what `core/runs.rs` of the server does with the decisions of the engine.
//!
//! Every task finds its run, lets it decide, and adds all that follows to the batch that is being gathered.

use super::witness::Witness;
use super::{Owner, Remembered, Stop};
use crate::bug::Bug;
use crate::command::{Command, Ended, RequestId, RunKey, RunTask, Said, StartRun, Task};
use crate::env::Env;
use crate::store::CommitError;
use bytes::Bytes;
use posthaste_engine::event::{Op, Response};
use posthaste_engine::message::{Live, Message};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::shard::{Step, Storage};
use posthaste_engine::workflow::entry::OwnTerms;
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::run::{EarlyEvent, Invoke, Invoker, RunState};
use posthaste_engine::workflow::{
    Attempt, Change, Consequences, Limits, NewEntry, NewRun, Notice, Outbox, Overrides, Part, Refusal, StepRef,
    WaitFor, Workflow,
};
use posthaste_node::{DeliverStep, Moment, next_id};
use posthaste_wire::id::{DlqId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::{CallType, StepInfo};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Nothing that a seed writes comes near.
const LIMITS: Limits = Limits { entries: 1_000, bytes: 1_000_000, duration_ms: 1_000 * 86_400_000 };
/// The answer to a task of internal origin, which nobody hears.
const NOBODY: RequestId = RequestId(0);

impl Owner {
    pub(super) fn handle_run(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        task: RunTask,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let said = match task {
            RunTask::Start(new) => self.start_run(request, tenant, *new, env, now)?,
            RunTask::Append { run, entries } => self.append(tenant, &run, entries, env, now)?,
            RunTask::Wait { run, event, step, timeout_ms } => {
                let timeout = format!("{timeout_ms}ms");
                let (headers, terms) = Default::default();
                self.wait(tenant, &run, WaitFor { event, step, timeout, timeout_ms, headers, terms }, env, now)?;
                Said::Done
            }
            RunTask::Notify { event, data } => return self.notify(request, tenant, (event, data), env),
            RunTask::Tell(telling) => match self.tell_next(request, tenant, telling, env, now)? {
                Some(said) => said,
                None => return Ok(()),
            },
            RunTask::NotifyRun { run, event, data } => self.notify_run(tenant, &run, event, &data, env, now)?,
            RunTask::Finish { run, result } => {
                let over =
                    self.decide_by(tenant, &run, env, now, |workflow, out| workflow.finish(Some(result), out))?;
                over.map_or(Said::Done, |(no, ())| Said::RunOver(no))
            }
            RunTask::Cancel { run } => {
                let over = self.decide_by(tenant, &run, env, now, |workflow, out| workflow.cancel(out))?;
                over.map_or(Said::Done, |(no, _)| Said::RunOver(no))
            }
            RunTask::BeginAgain { dlq_id, resumes } => {
                self.begin_again(request, tenant, dlq_id, resumes, env, now)?;
                Said::Done
            }
        };
        self.answer(request, said);
        Ok(())
    }

    fn start_run(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        new: StartRun,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<Said, Stop> {
        let known = match self.find_run(tenant, &RunKey { id: new.id.clone(), created_at: None }, env) {
            Some(no) => self.cached(tenant, no, env)?.map(|Remembered { workflow, .. }| {
                (no, workflow.run.state, workflow.run.created_at, workflow.check_invokers())
            }),
            None => None,
        };
        let (created_at, room) = match known {
            Some((_, RunState::Started, created_at, room)) => (created_at, room),
            // Instances of one name differ in their time.
            Some((_, _, created_at, _)) => (now.max(created_at.plus_millis(1)), Ok(())),
            None => (now, Ok(())),
        };
        let invoker = match self.invoke(tenant, &new, created_at, room, env, now)? {
            Ok(invoker) => invoker,
            Err(said) => return Ok(said),
        };
        if let Some((no, RunState::Started, ..)) = known {
            if let Some(invoker) = invoker {
                self.decide(tenant, no, env, now, |workflow, out| workflow.add_invoker(invoker, out))?;
            }
            return self.started(tenant, no, env);
        }
        let StartRun { id, payload, url, config, .. } = new;
        let first = NewEntry::step(Bytes::from(payload), Vec::new(), now);
        let new = NewRun { tenant, id, created_at, url, config, invoker, first };
        let no = self.begin(env, now, |out| Workflow::start(new, out))?;
        let said = self.started(tenant, no, env)?;
        if let Said::RunStarted(first) = &said {
            env.judge.decided(request, vec![*first]);
        }
        Ok(said)
    }

    fn started(&mut self, tenant: TenantId, no: Seq, env: &mut Env) -> Result<Said, Stop> {
        let first = self.cached(tenant, no, env)?.and_then(|run| run.workflow.entries.first());
        let first = first.map(|entry| entry.id);
        Ok(first.map_or(Said::Done, Said::RunStarted))
    }

    /// If a run is started by a step of another, that one notes it, once for each step; or this is all that is said. `room`
    /// says whether the run that is started may have another that waits for its end.
    fn invoke(
        &mut self,
        tenant: TenantId,
        new: &StartRun,
        created_at: Timestamp,
        room: Result<(), Refusal>,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<Result<Option<Invoker>, Said>, Stop> {
        let Some((parent, url, step)) = &new.invoked_by else { return Ok(Ok(None)) };
        let invoke = Invoke {
            id: None,
            step: step.clone(),
            run_id: new.id.clone(),
            created_at,
            url: new.url.clone(),
            run_headers: Vec::new(),
            redact: Default::default(),
            headers: Vec::new(),
            terms: OwnTerms::default(),
            size: 0,
            has_out: false,
        };
        let body = Bytes::from(new.payload.clone());
        let invoked = self.decide_by(tenant, parent, env, now, |parent, out| {
            let has_room = room.is_ok() || !parent.may_invoke(step);
            let is_new = has_room && parent.invoke(invoke, body, &LIMITS, out).unwrap_or(false);
            is_new.then_some(parent.run.created_at)
        })?;
        let Some((_, Some(parent_created_at))) = invoked else { return Ok(Err(Said::Done)) };
        Ok(Ok(Some(Invoker {
            run_id: parent.id.clone(),
            created_at: Some(parent_created_at),
            url: url.clone(),
            step: step.clone(),
            headers: Vec::new(),
            terms: OwnTerms::default(),
        })))
    }

    fn append(
        &mut self,
        tenant: TenantId,
        run: &RunKey,
        entries: Vec<(NewEntry, u64)>,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<Said, Stop> {
        let result = |entry: &NewEntry| {
            let info = StepInfo::parse(&entry.body);
            (entry.call_type == CallType::Step && !info.is_plan()).then_some(info.id)
        };
        let numbers: Vec<Option<u32>> = entries.iter().map(|(entry, _)| result(entry)).collect();
        let due = |(entry, after_ms)| NewEntry { due: now.plus_millis(after_ms), ..entry };
        let entries = entries.into_iter().map(due).collect();
        let append = |workflow: &mut Workflow, out: &mut Outbox<'_>| workflow.append(entries, &LIMITS, out);
        let Some((run, Ok(accepted))) = self.decide_by(tenant, run, env, now, append)? else { return Ok(Said::Done) };
        let entries = accepted.iter().map(|accepted| accepted.id).zip(numbers).collect();
        Ok(Said::Appended { run, entries })
    }

    fn wait(
        &mut self,
        tenant: TenantId,
        run: &RunKey,
        wait: WaitFor,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let Some(no) = self.find_run(tenant, run, env) else { return Ok(()) };
        let is_meant = |early: &&EarlyEvent| early.event == wait.event;
        let early = self.cached(tenant, no, env)?.and_then(|run| run.workflow.early.iter().find(is_meant));
        let key = early.map(|early| NoteKey { kind: NoteKind::Early, n: early.n });
        if key.is_some() {
            env.read(self.node)?;
        }
        let kept = key.and_then(|key| env.store.notes.get(&(no, key))).map(|note| note.body.clone());
        let ask = |workflow: &mut Workflow, out: &mut Outbox<'_>| {
            let found = |found: NoteKey| kept.filter(|_| key == Some(found)).ok_or(found);
            workflow.wait(wait, found, &LIMITS, out)
        };
        if let Some(Err(key)) = self.decide(tenant, no, env, now, ask)? {
            env.judge.blame("what a run keeps is in the store", None, env.now_ms, || {
                format!("{key:?} of run {} is not there when it is needed", no.0)
            });
        }
        Ok(())
    }

    /// Whether an event came to a run before it was waited for.
    pub(super) fn has_early(
        &mut self,
        tenant: TenantId,
        run: &RunKey,
        event: &str,
        env: &mut Env,
    ) -> Result<bool, Stop> {
        let Some(no) = self.find_run(tenant, run, env) else { return Ok(false) };
        Ok(self.cached(tenant, no, env)?.is_some_and(|run| run.workflow.has_early(event)))
    }

    fn notify_run(
        &mut self,
        tenant: TenantId,
        run: &RunKey,
        event: String,
        data: &[u8],
        env: &mut Env,
        now: Timestamp,
    ) -> Result<Said, Stop> {
        let notify = |workflow: &mut Workflow, out: &mut Outbox<'_>| {
            let resolved = workflow.notify_or_keep(&event, data, &LIMITS, out);
            resolved.map(|resolved| (resolved, workflow.early.last().map(|early| early.n)))
        };
        let notified = self.decide_by(tenant, run, env, now, notify)?;
        let Some((no, Ok((resolved, last)))) = notified else { return Ok(Said::Done) };
        Ok(match (resolved, last) {
            (None, Some(n)) => Said::EventKept(no, NoteKey { kind: NoteKind::Early, n }),
            (resolved, _) => {
                let reached = resolved.map(|resolved| resolved.id).into_iter().collect();
                Said::Notified { tenant, event, last: Seq::MIN, reached }
            }
        })
    }

    fn begin_again(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        dlq_id: DlqId,
        resumes: bool,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<(), Stop> {
        env.read(self.node)?;
        let Some(failed) = env.store.failed_run(tenant, dlq_id) else { return Ok(()) };
        let Some(old) = readable(env.store.record(tenant, failed), env)? else { return Ok(()) };
        if self.decide(tenant, failed, env, now, |workflow, out| workflow.leave_dlq(out))? != Some(true) {
            return Ok(());
        }
        let id = format!("again-{:x}", env.random.next_u64());
        let no = self.begin(env, now, |out| match resumes {
            true => old.resumed(id, now, Overrides::default(), out),
            false => old.restarted(id, now, Overrides::default(), out),
        })?;
        if resumes {
            self.margin.notes.resumed.push((failed, no));
        }
        if let Some(first) = self.runs.get(&no).and_then(|run| run.workflow.entries.first()) {
            env.judge.decided(request, vec![first.id]);
        }
        Ok(())
    }

    /// An attempt of a message of a run has ended.
    pub(super) fn step_ended(
        &mut self,
        message: &Message,
        step: StepRef,
        outcome: &Outcome,
        env: &mut Env,
        now: Timestamp,
    ) -> Result<(), Stop> {
        if step.part == Part::Deadline {
            self.hear_before_deadline(message.id, env, now)?;
        }
        let random = env.random.next_u64();
        env.tell(Some(message.id), || format!("node {} receives {:?}", self.node, outcome.verdict()));
        let Some(end) =
            self.engine.shard.step_ended(message, outcome, random, Storage::Free, now, &mut self.engine.batch.out)
        else {
            return Ok(());
        };
        let attempt = Attempt { outcome, retried: end.retried, next: end.next, sent: &message.body };
        self.decide(message.tenant, step.run, env, now, |workflow, out| match step.part {
            Part::Entry(index) => workflow.attempted(index, attempt, out),
            Part::FailureCall => workflow.failure_told(attempt, out),
            Part::Deadline => workflow.deadline_reached(message.id, out),
        })?;
        Ok(())
    }

    /// A message of a run is to be due now.
    pub(super) fn deliver_step_now(&mut self, step: DeliverStep, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let part = step.step.part;
        let noted = self.decide(step.row.tenant, step.step.run, env, now, |run, out| run.deliver_now(part, out))?;
        let mut witness = Witness::new(env);
        self.engine.deliver_step_now(step, noted == Some(true), &mut Moment { now, host: &mut witness });
        Ok(())
    }

    /// What a message sends; if it is one of a run that has nothing to send, it has ended by being due.
    pub(super) fn sendable(
        &mut self,
        live: &Live,
        message: Arc<Message>,
        env: &mut Env,
    ) -> Result<Option<Arc<Message>>, Stop> {
        let Some(step) = message.spec.workflow else { return Ok(Some(message)) };
        let sent = self.step_to_send(live, &message, step, env)?;
        if sent.is_none() {
            env.judge.not_sent(live, env.now_ms);
            env.tell(Some(live.id), || "has nothing to send".to_owned());
            let (outcome, epoch) = (nothing_sent(), self.tenure.epoch);
            let ended = Ended { message, outcome, sent: false, live: *live, epoch };
            self.inbox.push_back(Command { request: NOBODY, task: Task::Ended(Box::new(ended)) });
        }
        Ok(sent)
    }

    fn step_to_send(
        &mut self,
        live: &Live,
        message: &Arc<Message>,
        step: StepRef,
        env: &mut Env,
    ) -> Result<Option<Arc<Message>>, Stop> {
        let index = match step.part {
            _ if live.cancel_requested => return Ok(None),
            Part::Deadline => return Ok(None),
            Part::FailureCall => {
                env.read(self.node)?;
                return failure_call(message, step, env);
            }
            Part::Entry(index) => index,
        };
        let is_blind = env.has(Bug::EndedRunSent);
        let Some(Remembered { workflow, .. }) = self.cached(message.tenant, step.run, env)? else { return Ok(None) };
        let Some(entry) = workflow.entries.get(index as usize) else { return Ok(None) };
        // It may have been withdrawn by what was decided behind it.
        if (workflow.run.state != RunState::Started || entry.id != live.id) && !is_blind {
            return Ok(None);
        }
        if entry.terms.call_type != CallType::Step {
            return Ok(Some(message.clone()));
        }
        if workflow.is_obsolete(index) {
            return Ok(None);
        }
        let body = self.array(step.run, index, env)?;
        Ok(body.map(|body| Arc::new(Message { body, ..Message::clone(message) })))
    }

    /// The list of a run, read if it is not remembered. Everything is committed, so the store has all of it.
    fn array(&mut self, no: Seq, index: u32, env: &mut Env) -> Result<Option<Bytes>, Stop> {
        let Some(run) = self.runs.get_mut(&no) else { return Ok(None) };
        if run.bodies.is_none() {
            env.read(self.node)?;
            run.set_bodies(readable(env.store.list(no), env)?);
        }
        Ok(run.array_up_to(index))
    }

    /// Lets the run that is meant decide; `None` if there is no such run.
    fn decide_by<T>(
        &mut self,
        tenant: TenantId,
        key: &RunKey,
        env: &mut Env,
        now: Timestamp,
        decide: impl FnOnce(&mut Workflow, &mut Outbox<'_>) -> T,
    ) -> Result<Option<(Seq, T)>, Stop> {
        let Some(no) = self.find_run(tenant, key, env) else { return Ok(None) };
        Ok(self.decide(tenant, no, env, now, decide)?.map(|decided| (no, decided)))
    }

    /// Lets a run decide, and adds what follows to the batch.
    pub(super) fn decide<T>(
        &mut self,
        tenant: TenantId,
        no: Seq,
        env: &mut Env,
        now: Timestamp,
        decide: impl FnOnce(&mut Workflow, &mut Outbox<'_>) -> T,
    ) -> Result<Option<T>, Stop> {
        if self.cached(tenant, no, env)?.is_none() {
            return Ok(None);
        }
        let Some(mut run) = self.runs.remove(&no) else { return Ok(None) };
        let (last_seq, random) = (&mut self.engine.last_seq, &mut env.random);
        let mut next_id = || next_id(last_seq, now, random.next_u64());
        let mut out = Outbox::new(now, &mut next_id);
        let decided = decide(&mut run.workflow, &mut out);
        let caused = Consequences::of(out);
        self.follow(run, caused, env, now)?;
        Ok(Some(decided))
    }

    /// A new run; says which.
    fn begin(
        &mut self,
        env: &mut Env,
        now: Timestamp,
        begin: impl FnOnce(&mut Outbox<'_>) -> Workflow,
    ) -> Result<Seq, Stop> {
        let (last_seq, random) = (&mut self.engine.last_seq, &mut env.random);
        let mut next_id = || next_id(last_seq, now, random.next_u64());
        let mut out = Outbox::new(now, &mut next_id);
        let workflow = begin(&mut out);
        let (caused, no) = (Consequences::of(out), workflow.run.no);
        self.follow(Remembered::begun(workflow), caused, env, now)?;
        Ok(no)
    }

    /// Adds to the batch what a run has decided, and lets those decide who must hear of it.
    fn follow(&mut self, mut run: Remembered, caused: Consequences, env: &mut Env, now: Timestamp) -> Result<(), Stop> {
        let Consequences { mut changes, messages, withdrawn, notices, rebound } = caused;
        run.absorb(&changes);
        let tenant = run.workflow.run.tenant;
        let steps: Vec<Step> = messages.into_iter().map(|message| step_of(&run, message)).collect();
        if !env.has(Bug::RunForgottenBeforeCommit) || env.random.permille(900) {
            self.runs.insert(run.workflow.run.no, run);
        }
        if env.has(Bug::NoteNotWritten) && env.random.permille(200) {
            changes.retain(|change| !matches!(change, Change::Note { .. }));
        }
        if env.has(Bug::BytesNotWritten)
            && env.random.permille(200)
            && let Some(Change::Entry { body, .. }) = changes.last_mut()
        {
            body.clear();
        }
        let is_entry = |change: &Change| matches!(change, Change::Entry { .. });
        if env.has(Bug::EntryInTwoCommits) && self.later.is_none() && changes.last().is_some_and(is_entry) {
            self.later = changes.pop().map(Op::Workflow);
        }
        self.engine.batch.out.ops.extend(changes.into_iter().map(Op::Workflow));
        self.engine.batch.out.synced |= !steps.is_empty() && !env.has(Bug::RunSentBeforeSync);
        self.engine.shard.decided(&steps, &withdrawn, now, &mut self.engine.batch.out);
        let notices = if env.has(Bug::EndNotPassedOn) { Vec::new() } else { notices };
        for notice in notices {
            let Notice { tenant, to, .. } = &notice;
            let key = RunKey { id: to.run_id.clone(), created_at: to.created_at };
            self.decide_by(*tenant, &key, env, now, |workflow, out| workflow.invoked_has_ended(&notice, out))?;
        }
        for rebound in rebound {
            let key = RunKey { id: rebound.run_id.clone(), created_at: Some(rebound.created_at) };
            self.decide_by(tenant, &key, env, now, |workflow, out| workflow.rebind(rebound, out))?;
        }
        Ok(())
    }

    /// The run that is meant: what is remembered is newer than what is stored.
    fn find_run(&self, tenant: TenantId, key: &RunKey, env: &Env) -> Option<Seq> {
        let mut known = self.runs.values().rev().map(|known| &known.workflow.run);
        let known = known.find(|run| run.tenant == tenant && run.id == key.id);
        let known = known.filter(|known| key.created_at.is_none_or(|at| known.created_at == at));
        match known {
            Some(run) if run.state == RunState::Started || key.created_at.is_some() => Some(run.no),
            known => known.map(|run| run.no).max(env.store.find_run(tenant, &key.id, key.created_at)),
        }
    }

    /// A run, read if it is not remembered. What is not remembered is committed, so the store knows it.
    fn cached(&mut self, tenant: TenantId, no: Seq, env: &mut Env) -> Result<Option<&Remembered>, Stop> {
        if !self.runs.contains_key(&no) {
            env.read(self.node)?;
            let stored = readable(env.store.workflow(tenant, no), env)?;
            self.runs.extend(stored.map(|workflow| (no, Remembered::stored(workflow))));
        }
        Ok(self.runs.get(&no).filter(|run| run.workflow.run.tenant == tenant))
    }

    /// The runs that these ops are about, as they are remembered.
    pub(super) fn remembered(&self, ops: &[Op]) -> Vec<Remembered> {
        let changed = ops.iter().filter_map(|op| match op {
            Op::Workflow(Change::Run(run)) => Some(run.no),
            Op::Workflow(
                Change::Entry { run, .. }
                | Change::Delivery { run, .. }
                | Change::Note { run, .. }
                | Change::NoNote { run, .. },
            ) => Some(*run),
            _ => None,
        });
        let changed: BTreeSet<Seq> = changed.collect();
        changed.iter().filter_map(|no| self.runs.get(no)).cloned().collect()
    }

    /// Everything is committed: what is remembered may be forgotten.
    pub(super) fn forget_runs(&mut self, env: &mut Env) {
        if !self.runs.is_empty() && env.random.permille(env.swarm.forgotten_runs) {
            self.runs.clear();
        }
    }
}

fn step_of(run: &Remembered, message: Arc<Message>) -> Step {
    let part = message.spec.workflow.map(|step| step.part);
    let is_step = |index: u32| {
        let entry = run.workflow.entries.get(index as usize);
        entry.is_some_and(|entry| entry.terms.call_type == CallType::Step)
    };
    let bytes = match part {
        Some(Part::Entry(index)) if is_step(index) => run.array_bytes(index),
        Some(Part::FailureCall) => run.workflow.failure_call_bytes() as usize,
        _ => message.body.len(),
    };
    Step::new(message, bytes)
}

/// What tells of a failure is put together when it is sent.
fn failure_call(message: &Arc<Message>, step: StepRef, env: &mut Env) -> Result<Option<Arc<Message>>, Stop> {
    let record = readable(env.store.record(message.tenant, step.run), env)?;
    let body = record.and_then(|record| record.failure_call());
    Ok(body.map(|body| Arc::new(Message { body, ..Message::clone(message) })))
}

/// What was read of a run; an owner that cannot make sense of it ends.
fn readable<T>(read: Result<T, String>, env: &mut Env) -> Result<T, Stop> {
    read.map_err(|text| {
        env.judge.blame("what is stored of a run can be read", None, env.now_ms, || text);
        Stop::Store(CommitError::Unavailable)
    })
}

/// What a message comes to that had nothing to send.
fn nothing_sent() -> Outcome {
    Outcome { result: Ok(Response { status: 200, ..Response::default() }), duration_ms: 0, phases: None }
}
