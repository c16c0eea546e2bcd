//! Runs of workflows: what the core does with the decisions of `posthaste_engine::workflow`.
//!
//! Every command finds its run ([`Core::find_run`]), lets it decide ([`Core::decide`]), and adds all that follows to the batch
//! that is being gathered: it is committed as a whole, like everything else.

use super::run::Core;
use super::run_cache::Cached;
use super::tasks::{CancelRuns, DropFailed, StartRuns, Task};
use super::workflow::{DEPTH_QUOTA, InvokedBy, RunCommand, RunKey, RunRefused, StartRun, Started};
use super::{CoreFailure, QuotaExceeded};
use bytes::Bytes;
use posthaste_engine::event::{Op, Response};
use posthaste_engine::message::{DedupKey, Live, Message};
use posthaste_engine::outcome::{AttemptError, ErrorClass, Outcome};
use posthaste_engine::shard::{Accepted, AttemptEnd, Step, Storage};
use posthaste_engine::workflow::run::{Invoke, Invoker, Run, RunState};
use posthaste_engine::workflow::{
    Attempt, Change, Consequences, ERROR_STEP_NAME, NewEntry, NewRun, Notice, Outbox, Part, Refusal, StepRef, Workflow,
};
use posthaste_faults::crash_point::{SEND_DONE_STEPS, crash_point, is_planted};
use posthaste_node::{BATCH_BYTES_MAX, Reply, next_id};
use posthaste_store::ReadPool;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::CallType;
use std::sync::Arc;

/// Runs that one transaction starts; a batch of more starts in pieces.
const STARTED_AT_ONCE_MAX: usize = 128;

impl Core {
    pub(super) fn handle_run(&mut self, command: RunCommand, now: Timestamp) -> Result<(), CoreFailure> {
        match command {
            RunCommand::Start { tenant, runs, reply } => self.start_runs(tenant, runs, reply, now),
            RunCommand::Append { tenant, run, entries, reply } => self.append(tenant, &run, entries, reply, now),
            RunCommand::WaitForEvent { tenant, run, wait, reply } => {
                self.wait_for_event(tenant, &run, *wait, reply, now)
            }
            RunCommand::Notify { tenant, event, data, reply } => self.notify(tenant, &event, data, reply),
            RunCommand::NotifyRun { tenant, run, event, data, reply } => {
                self.notify_run(tenant, &run, &event, &data, reply, now)
            }
            RunCommand::Finish { tenant, run, result, reply } => {
                if let Some(no) = self.find_run(tenant, &run)? {
                    self.decide(tenant, no, now, |workflow, out| workflow.finish(result, out))?;
                    crash_point("run_ended");
                }
                self.node.batch.reply(reply, ());
                Ok(())
            }
            RunCommand::Cancel { tenant, run, reply } => {
                let cancelled = match self.find_run(tenant, &run)? {
                    Some(no) => self.decide(tenant, no, now, |workflow, out| workflow.cancel(out))? == Some(true),
                    None => false,
                };
                crash_point("run_cancelled");
                self.node.batch.reply(reply, cancelled);
                Ok(())
            }
            RunCommand::CancelMany { tenant, runs, reply } => {
                let runs = runs.into();
                self.tasks.push(tenant, Task::CancelRuns(CancelRuns { tenant, runs, cancelled: 0, reply }));
                Ok(())
            }
            RunCommand::BeginAgain { tenant, dlq_ids, again, overrides, reply } => {
                self.begin_again(tenant, &dlq_ids, again, overrides, reply)
            }
            RunCommand::DropFailed { tenant, dlq_ids, reply } => {
                let dlq_ids = dlq_ids.into();
                self.tasks.push(tenant, Task::Drop(DropFailed { tenant, dlq_ids, dropped: 0, reply }));
                Ok(())
            }
            RunCommand::EditFailureCall { tenant, dlq_id, edit, reply } => {
                self.edit_failure_call(tenant, dlq_id, edit, reply)
            }
        }
    }

    fn start_runs(
        &mut self,
        tenant: TenantId,
        runs: Vec<StartRun>,
        reply: Reply<Result<Vec<Started>, RunRefused>>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        if let Err(exceeded) = self.node.check_flow_quota(tenant, runs.iter().flat_map(StartRun::flows)) {
            reply.refuse(exceeded.into());
            return Ok(());
        }
        let bytes: usize = runs.iter().map(StartRun::stored_bytes).sum();
        if runs.len() > STARTED_AT_ONCE_MAX || bytes > BATCH_BYTES_MAX {
            self.tasks.push(tenant, Task::StartRuns(StartRuns::new(tenant, runs, reply)));
            return Ok(());
        }
        let mut started = Vec::with_capacity(runs.len());
        for run in runs {
            match self.start_run(tenant, run, now)? {
                Ok(run) => started.push(run),
                // Only an invoke is refused, and it comes alone.
                Err(refused) => {
                    self.node.batch.reply(reply, Err(refused));
                    return Ok(());
                }
            }
        }
        self.node.batch.reply(reply, Ok(started));
        Ok(())
    }

    /// The next run starts; returns its bytes.
    pub(super) fn start_next(&mut self, task: &mut StartRuns) -> Result<usize, CoreFailure> {
        let Some(run) = task.runs.pop_front() else { return Ok(0) };
        let bytes = run.stored_bytes();
        // Other requests may have made keys since this one was checked.
        let started = match (task.earlier(&run.id), self.node.check_flow_quota(task.tenant, run.flows())) {
            (Some(earlier), _) => Ok(earlier),
            (None, Err(exceeded)) => Err(exceeded.into()),
            (None, Ok(())) => self.start_run(task.tenant, run, self.clock.now())?,
        };
        task.add(started);
        Ok(bytes)
    }

    /// The next run is cancelled; returns the bytes that were read for it.
    pub(super) fn cancel_next(&mut self, task: &mut CancelRuns) -> Result<usize, CoreFailure> {
        let Some(no) = task.runs.pop_front() else { return Ok(0) };
        let was_running = self.decide(task.tenant, no, self.clock.now(), |workflow, out| workflow.cancel(out))?;
        task.cancelled += u32::from(was_running == Some(true));
        Ok(self.runs.bytes_of(no))
    }

    fn start_run(
        &mut self,
        tenant: TenantId,
        mut new: StartRun,
        now: Timestamp,
    ) -> Result<Result<Started, RunRefused>, CoreFailure> {
        let dedup = new.dedup.filter(|_| !new.is_by_client);
        if let Some(original) = self.triggered_before(tenant, dedup, &new.id, now)? {
            return Ok(Ok(original));
        }
        let known = match self.find_run(tenant, &RunKey { id: new.id.clone(), created_at: None })? {
            Some(no) => self.cached(tenant, no)?.map(|cached| {
                let Run { no, state, created_at, .. } = cached.workflow.run;
                (no, state, created_at)
            }),
            None => None,
        };
        let created_at = match known {
            Some((no, RunState::Started, _)) if new.is_by_client => return self.start_by_client(tenant, no, new, now),
            Some((no, RunState::Started, created_at)) => {
                let mut room = Ok(());
                if let Some(cached) = self.cached(tenant, no)? {
                    // What it hides, it hides from all who invoke it.
                    new.config.redact = new.config.redact.union(&cached.workflow.run.config.redact);
                    room = cached.workflow.check_invokers();
                }
                match self.invoke(tenant, &new, created_at, room, now)? {
                    Invoked::ByNobody => {}
                    Invoked::Now { invoker, .. } => {
                        self.decide(tenant, no, now, |workflow, out| workflow.add_invoker(invoker, out))?;
                    }
                    Invoked::Before(started) => return Ok(Ok(started)),
                    Invoked::Refused(refused) => return Ok(Err(refused)),
                }
                return Ok(self.started(tenant, no, true)?.ok_or(RunRefused::Unknown));
            }
            // Instances of one name differ in their time.
            Some((_, _, created_at)) => now.max(created_at.plus_millis(1)),
            None => now,
        };
        let (invoker, depth) = match self.invoke(tenant, &new, created_at, Ok(()), now)? {
            Invoked::ByNobody => (None, 0),
            Invoked::Now { invoker, depth } => (Some(invoker), depth),
            Invoked::Before(started) => return Ok(Ok(started)),
            Invoked::Refused(refused) => return Ok(Err(refused)),
        };
        let StartRun { id, url, mut config, first, .. } = new;
        config.depth = config.depth.max(depth);
        let new = NewRun { tenant, id, created_at, url, config, invoker, first };
        let no = self.begin(now, |out| Workflow::start(new, out))?;
        let started = self.started(tenant, no, false)?;
        if let (Some(key), Some(started)) = (dedup, &started) {
            self.node.shard.remember(tenant, key, started.message_id, now, &mut self.node.batch.out);
        }
        crash_point("run_started");
        Ok(started.ok_or(RunRefused::Unknown))
    }

    /// What a trigger with this key has started before, if its window has not ended.
    fn triggered_before(
        &mut self,
        tenant: TenantId,
        key: Option<DedupKey>,
        id: &str,
        now: Timestamp,
    ) -> Result<Option<Started>, CoreFailure> {
        let Some(key) = key else { return Ok(None) };
        let stored = self.store.find_duplicates(&[(tenant, key)], now)?.pop().flatten();
        let Some(message_id) = self.node.shard.original(tenant, key, stored) else { return Ok(None) };
        // A run has the place of its first message. If there is none, the key was that of a plain message.
        let of_run = self.started(tenant, message_id.seq, true)?;
        let of_message = || Started { id: id.to_owned(), created_at: now, message_id, deduplicated: true };
        Ok(Some(of_run.unwrap_or_else(of_message)))
    }

    /// The endpoint triggers a run that goes on: it may be waiting for that.
    fn start_by_client(
        &mut self,
        tenant: TenantId,
        no: Seq,
        new: StartRun,
        now: Timestamp,
    ) -> Result<Result<Started, RunRefused>, CoreFailure> {
        let StartRun { config, first, .. } = new;
        let headers = config.headers.into_iter().chain(first.headers).collect();
        let restarted = self.decide(tenant, no, now, |workflow, out| {
            workflow.restart_by_client(first.body, first.content_type, headers, config.features, out)
        })?;
        Ok(self.started(tenant, no, restarted != Some(true))?.ok_or(RunRefused::Unknown))
    }

    /// If a run is started by a step of another, that one notes it: once for each step. `room` says whether the run that is
    /// started may have another that waits for its end.
    fn invoke(
        &mut self,
        tenant: TenantId,
        new: &StartRun,
        created_at: Timestamp,
        room: Result<(), Refusal>,
        now: Timestamp,
    ) -> Result<Invoked, CoreFailure> {
        let Some(InvokedBy { run, url, step, headers, terms, body }) = &new.invoked_by else {
            return Ok(Invoked::ByNobody);
        };
        let invoke = Invoke {
            id: None,
            step: step.clone(),
            run_id: new.id.clone(),
            created_at,
            url: new.url.clone(),
            run_headers: new.config.headers.clone(),
            redact: new.config.redact.clone(),
            headers: headers.clone(),
            terms: terms.clone(),
            size: 0,
            has_out: false,
        };
        let body = Bytes::from(body.clone());
        let (limits, depth_max) = (self.quotas.workflow, self.quotas.workflow_depth);
        let found = match self.find_run(tenant, run)? {
            // Its client has told a time that no run of this name has.
            None => self.find_run(tenant, &RunKey { created_at: None, ..run.clone() })?,
            found => found,
        };
        let invoked = match found {
            None => None,
            Some(no) => self.decide(tenant, no, now, |parent, out| {
                // Whatever the client says: it counts only what it was told itself.
                let depth = parent.run.config.depth.saturating_add(1);
                if depth >= depth_max {
                    return Err(Refusal::Exceeded { quota: DEPTH_QUOTA, limit: depth_max.into() });
                }
                if parent.may_invoke(step) {
                    room?;
                }
                let is_new = parent.invoke(invoke, body, &limits, out)?;
                let earlier = (!is_new).then(|| (parent.invoked(step).cloned(), started_of(parent, true)));
                Ok((parent.run.created_at, depth, earlier))
            })?,
        };
        Ok(match invoked {
            None => Invoked::Refused(RunRefused::Unknown),
            Some(Err(refusal)) => Invoked::Refused(refused(refusal)),
            Some(Ok((parent_created_at, depth, None))) => {
                let (run_id, created_at, url) = (run.id.clone(), Some(parent_created_at), url.clone());
                let (step, headers, terms) = (step.clone(), headers.clone(), terms.clone());
                Invoked::Now { invoker: Invoker { run_id, created_at, url, step, headers, terms }, depth }
            }
            // What it had invoked may have ended long ago: then nobody looks at what is said of it.
            Some(Ok((.., Some((earlier, parent))))) => Invoked::Before(match earlier {
                Some(invoke) => Started { id: invoke.run_id, created_at: invoke.created_at, ..parent },
                None => parent,
            }),
        })
    }

    fn append(
        &mut self,
        tenant: TenantId,
        run: &RunKey,
        entries: Vec<NewEntry>,
        reply: Reply<Result<Vec<Accepted>, RunRefused>>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        if let Err(exceeded) =
            self.node.check_flow_quota(tenant, entries.iter().filter_map(|entry| entry.flow.as_ref()))
        {
            reply.refuse(exceeded.into());
            return Ok(());
        }
        let limits = self.quotas.workflow;
        let appended = match self.find_run(tenant, run)? {
            Some(no) => self.decide(tenant, no, now, |workflow, out| workflow.append(entries, &limits, out))?,
            None => None,
        };
        crash_point("run_appended");
        let answer = appended.map_or(Err(RunRefused::Unknown), |appended| appended.map_err(refused));
        self.node.batch.reply(reply, answer);
        Ok(())
    }

    /// An attempt of a message of a run has ended.
    pub(super) fn step_ended(
        &mut self,
        message: &Message,
        step: StepRef,
        mut outcome: Outcome,
        storage: Storage,
        now: Timestamp,
    ) -> Result<AttemptEnd, CoreFailure> {
        if step.part == Part::Deadline {
            self.hear_before_deadline(message.id, now)?;
        }
        if storage == Storage::Full && self.is_call(message.tenant, step)? {
            outcome = unstored(outcome);
        }
        let random = self.host.random.next_u64();
        let Some(end) = self.node.shard.step_ended(message, &outcome, random, storage, now, &mut self.node.batch.out)
        else {
            return Ok(AttemptEnd { retried: 0, next: None });
        };
        if storage == Storage::Full {
            outcome.result = outcome.result.map(|response| response.status_and(ERROR_STEP_NAME));
        }
        let attempt = Attempt { outcome: &outcome, retried: end.retried, next: end.next, sent: &message.body };
        self.decide(message.tenant, step.run, now, |workflow, out| match step.part {
            Part::Entry(index) => workflow.attempted(index, attempt, out),
            Part::FailureCall => workflow.failure_told(attempt, out),
            Part::Deadline => workflow.deadline_reached(message.id, out),
        })?;
        crash_point("run_outcome");
        Ok(AttemptEnd { retried: end.retried, next: Some(end.next) })
    }

    /// Whether a message of a run calls another service for it, so that the response is the result of a step.
    fn is_call(&mut self, tenant: TenantId, step: StepRef) -> Result<bool, CoreFailure> {
        let Part::Entry(index) = step.part else { return Ok(false) };
        let entry = self.cached(tenant, step.run)?.and_then(|cached| cached.workflow.entries.get(index as usize));
        Ok(entry.is_some_and(|entry| entry.terms.call_type == CallType::ToCallback))
    }

    /// What a message of a run sends.
    pub(super) fn step_to_send(
        &mut self,
        live: &Live,
        message: Arc<Message>,
        step: StepRef,
    ) -> Result<ToSend, CoreFailure> {
        let index = match step.part {
            _ if live.cancel_requested => return Ok(ToSend::Nothing),
            Part::Deadline => return Ok(ToSend::Nothing),
            // Before format 5 it was stored with its body.
            Part::FailureCall if !message.body.is_empty() => return Ok(ToSend::Message(message)),
            Part::FailureCall => return Ok(ToSend::Stored(message, step)),
            Part::Entry(index) => index,
        };
        let lazy_bytes = self.quotas.workflow_lazy_bytes;
        let Some(cached) = self.cached(message.tenant, step.run)? else { return Ok(ToSend::Nothing) };
        let Some(entry) = cached.workflow.entries.get(index as usize) else { return Ok(ToSend::Nothing) };
        // It may have been withdrawn by what was decided behind it.
        if cached.workflow.run.state != RunState::Started || entry.id != live.id {
            return Ok(ToSend::Nothing);
        }
        if entry.terms.call_type != CallType::Step {
            return Ok(ToSend::Message(message));
        }
        if cached.workflow.is_obsolete(index) && !is_planted(SEND_DONE_STEPS) {
            return Ok(ToSend::Nothing);
        }
        let (is_fetched, is_short) = (cached.is_fetched(index, lazy_bytes), cached.is_short());
        let body = match cached.array_up_to(index) {
            _ if is_fetched => Bytes::new(),
            Some(array) => array,
            None if is_short => match self.read_array(message.tenant, step.run, index)? {
                Some(array) => array,
                None => return Ok(ToSend::Nothing),
            },
            None => return Ok(ToSend::Stored(message, step)),
        };
        Ok(ToSend::Message(Arc::new(Message { body, ..Message::clone(&message) })))
    }

    /// Reads the list of a run that is remembered without it, and remembers it. Everything is committed, so the store has
    /// all of it.
    fn read_array(&mut self, tenant: TenantId, no: Seq, index: u32) -> Result<Option<Bytes>, CoreFailure> {
        let Some(entries) = self.store.run_entries(tenant, no, ReadPool::Core)? else { return Ok(None) };
        let Some(mut cached) = self.runs.take(no) else { return Ok(None) };
        cached.set_array(&entries);
        let array = cached.array_up_to(index);
        self.runs.put(cached);
        Ok(array)
    }

    /// Lets a run decide, and adds what follows to the batch; `None` if there is no such run.
    pub(super) fn decide<T>(
        &mut self,
        tenant: TenantId,
        no: Seq,
        now: Timestamp,
        decide: impl FnOnce(&mut Workflow, &mut Outbox<'_>) -> T,
    ) -> Result<Option<T>, CoreFailure> {
        if self.cached(tenant, no)?.is_none() {
            return Ok(None);
        }
        let Some(mut cached) = self.runs.take(no) else { return Ok(None) };
        let (last_seq, random) = (&mut self.node.last_seq, &mut self.host.random);
        let mut next_id = || next_id(last_seq, now, random.next_u64());
        let mut out = Outbox { limits: self.quotas.workflow, ..Outbox::new(now, &mut next_id) };
        let (before, was_in_dlq) = (cached.workflow.run.state, dlq_id_of(&cached.workflow).is_some());
        let decided = decide(&mut cached.workflow, &mut out);
        let consequences = Consequences::of(out);
        self.metrics.run_decided(before, cached.workflow.run.state, &consequences.changes);
        let now_in_dlq = dlq_id_of(&cached.workflow).map(|dlq_id| (dlq_id, cached.workflow.run.id.clone()));
        self.follow(cached, consequences, now)?;
        self.report_dlq(was_in_dlq, now_in_dlq);
        Ok(Some(decided))
    }

    /// Counts and logs, once it is committed, that a run went to the DLQ or left it.
    fn report_dlq(&mut self, was_there: bool, is_there: Option<(DlqId, String)>) {
        let metrics = self.metrics.clone();
        match is_there {
            Some((dlq_id, id)) if !was_there => self.node.batch.after_commit(move || {
                metrics.run_dead_lettered();
                tracing::warn!(workflow.run_id = ?id, dlq.id = %dlq_id, "workflow run failed and moved to the DLQ");
            }),
            None if was_there => self.node.batch.after_commit(move || metrics.runs_left_dlq(1)),
            _ => {}
        }
    }

    /// A new run; says which.
    pub(super) fn begin(
        &mut self,
        now: Timestamp,
        begin: impl FnOnce(&mut Outbox<'_>) -> Workflow,
    ) -> Result<Seq, CoreFailure> {
        let (last_seq, random) = (&mut self.node.last_seq, &mut self.host.random);
        let mut next_id = || next_id(last_seq, now, random.next_u64());
        let mut out = Outbox::new(now, &mut next_id);
        let workflow = begin(&mut out);
        let (consequences, no) = (Consequences::of(out), workflow.run.no);
        self.metrics.run_started();
        let cached = Cached::begun(workflow, &consequences.changes);
        self.follow(cached, consequences, now)?;
        Ok(no)
    }

    /// Adds to the batch what a run has decided, and lets those decide who must hear of it.
    fn follow(&mut self, mut cached: Cached, caused: Consequences, now: Timestamp) -> Result<(), CoreFailure> {
        let Consequences { changes, messages, withdrawn, notices, rebound } = caused;
        cached.absorb(&changes);
        let tenant = cached.workflow.run.tenant;
        let lazy_bytes = self.quotas.workflow_lazy_bytes;
        let steps: Vec<Step> = messages.into_iter().map(|message| step_of(&cached, message, lazy_bytes)).collect();
        self.runs.put(cached);
        self.node.batch.body_bytes += changes.iter().map(new_bytes).sum::<usize>();
        self.node.batch.out.ops.extend(changes.into_iter().map(Op::Workflow));
        // What a run causes is on disk before it is sent: an endpoint may go on with an entry that the server wrote itself,
        // and a power cut must not leave what came of it without the entry.
        self.node.batch.out.synced |= !steps.is_empty();
        self.node.shard.decided(&steps, &withdrawn, now, &mut self.node.batch.out);
        for Notice { tenant, to, out } in notices {
            let key = RunKey { id: to.run_id.clone(), created_at: to.created_at };
            if let Some(no) = self.find_run(tenant, &key)? {
                let notice = Notice { tenant, to, out };
                self.decide(tenant, no, now, |workflow, out| workflow.invoked_has_ended(&notice, out))?;
            }
        }
        for rebound in rebound {
            let key = RunKey { id: rebound.run_id.clone(), created_at: Some(rebound.created_at) };
            if let Some(no) = self.find_run(tenant, &key)? {
                self.decide(tenant, no, now, |workflow, out| workflow.rebind(rebound, out))?;
            }
        }
        Ok(())
    }

    /// Many runs are told of something one by one, and each by itself: they need not wait for one another.
    pub(super) fn commit_if_large(&mut self) -> Result<(), CoreFailure> {
        let is_large = self.node.batch.body_bytes >= BATCH_BYTES_MAX || self.node.batch.out.ops.len() >= BATCH_OPS_MAX;
        if is_large || self.runs.is_overfull() { self.commit() } else { Ok(()) }
    }

    /// The run that is meant.
    pub(super) fn find_run(&self, tenant: TenantId, key: &RunKey) -> Result<Option<Seq>, CoreFailure> {
        let known = self.runs.find(tenant, &key.id);
        let known = known.filter(|known| key.created_at.is_none_or(|at| known.run.created_at == at));
        match known.map(|known| &known.run) {
            // None is newer than one that goes on, and an instance is an instance.
            Some(run) if run.state == RunState::Started || key.created_at.is_some() => Ok(Some(run.no)),
            known => {
                Ok(known.map(|run| run.no).max(self.store.find_run(tenant, &key.id, key.created_at, ReadPool::Core)?))
            }
        }
    }

    /// A run, read if it is not remembered. What is not remembered is committed, so the store knows it.
    pub(super) fn cached(&mut self, tenant: TenantId, no: Seq) -> Result<Option<&Cached>, CoreFailure> {
        if self.runs.get(no).is_none()
            && let Some(workflow) = self.store.workflow(tenant, no)?
        {
            self.runs.put(Cached::stored(workflow));
        }
        Ok(self.runs.get(no).filter(|cached| cached.workflow.run.tenant == tenant))
    }

    pub(super) fn started(
        &mut self,
        tenant: TenantId,
        no: Seq,
        deduplicated: bool,
    ) -> Result<Option<Started>, CoreFailure> {
        let cached = self.cached(tenant, no)?;
        Ok(cached.map(|cached| started_of(&cached.workflow, deduplicated)))
    }
}

/// What a message of a run sends.
pub(super) enum ToSend {
    /// Nothing: it has ended by being due.
    Nothing,
    /// This.
    Message(Arc<Message>),
    /// This, with a body that is to be read from the store.
    Stored(Arc<Message>, StepRef),
}

/// What came of noting that a step starts a run.
enum Invoked {
    /// No step starts it.
    ByNobody,
    /// The step waits for it, which so many runs led to.
    Now { invoker: Invoker, depth: u32 },
    /// The step had started one before.
    Before(Started),
    /// The run of the step goes on no more.
    Refused(RunRefused),
}

/// Ops after which a batch is committed although a command about many runs goes on.
const BATCH_OPS_MAX: usize = 1_024;

/// Bytes that a change brings into the batch.
fn new_bytes(change: &Change) -> usize {
    match change {
        Change::Entry { body, .. } => body.len(),
        Change::Note { note, .. } => note.data.len() + note.body.len(),
        _ => 0,
    }
}

fn step_of(cached: &Cached, message: Arc<Message>, lazy_bytes: usize) -> Step {
    let part = message.spec.workflow.map(|step| step.part);
    let bytes = match part {
        Some(Part::Entry(index)) if cached.is_fetched(index, lazy_bytes) => 0,
        Some(Part::Entry(index)) if cached.is_step(index) => cached.array_bytes(index),
        Some(Part::FailureCall) => cached.workflow.failure_call_bytes() as usize,
        _ => message.body.len(),
    };
    Step::new(message, bytes)
}

/// The id under which a failed run is in the DLQ.
fn dlq_id_of(workflow: &Workflow) -> Option<DlqId> {
    workflow.run.failure.as_deref().filter(|failure| failure.is_in_dlq).map(|failure| failure.dlq_id)
}

fn started_of(workflow: &Workflow, deduplicated: bool) -> Started {
    let Run { no, id, created_at, .. } = &workflow.run;
    let message_id = workflow.entries.first().map_or(MessageId { seq: *no, tag: 0 }, |entry| entry.id);
    Started { id: id.clone(), created_at: *created_at, message_id, deduplicated }
}

pub(super) fn refused(refusal: Refusal) -> RunRefused {
    match refusal {
        Refusal::Ended => RunRefused::Ended,
        Refusal::Exceeded { quota, limit } => RunRefused::Exceeded(QuotaExceeded { quota, limit }),
    }
}

/// The outcome of a call whose response cannot be stored: the attempt has failed, and is repeated as long as it may be.
fn unstored(outcome: Outcome) -> Outcome {
    let message = "the response is not stored: quota maxStoredBytes exceeded, or the disk is nearly full".to_owned();
    let refused = |_| Err(AttemptError { class: ErrorClass::Protocol, message });
    Outcome { result: outcome.result.and_then(refused), ..outcome }
}

/// What a message comes to that had nothing to send.
pub(super) fn nothing_sent() -> Outcome {
    Outcome { result: Ok(Response { status: 200, ..Response::default() }), duration_ms: 0, phases: None }
}
