//! Events of runs: who waits for one, and what happens when it comes.

use super::run::Core;
use super::runs::refused;
use super::tasks::{Notify, Task};
use super::workflow::{Notified, RunKey, RunRefused};
use super::{CoreFailure, NoRoom, QuotaExceeded};
use posthaste_engine::limits::{NOTIFIED_LISTED_BYTES_MAX, NOTIFIED_RUNS_MAX, REQUEST_STORED_BYTES_MAX};
use posthaste_engine::workflow::entry::base64_len;
use posthaste_engine::workflow::run::Run;
use posthaste_engine::workflow::{Outbox, Resolved, WaitFor, Workflow};
use posthaste_faults::crash_point::crash_point;
use posthaste_node::Reply;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;

impl Core {
    pub(super) fn wait_for_event(
        &mut self,
        tenant: TenantId,
        run: &RunKey,
        wait: WaitFor,
        reply: Reply<Result<(), RunRefused>>,
        mut now: Timestamp,
    ) -> Result<(), CoreFailure> {
        if let Err(exceeded) = self.node.check_flow_quota(tenant, wait.terms.flow.iter()) {
            reply.refuse(exceeded.into());
            return Ok(());
        }
        let (limits, store) = (self.quotas.workflow, self.store.clone());
        let Some(no) = self.find_run(tenant, run)? else {
            reply.refuse(RunRefused::Unknown);
            return Ok(());
        };
        if self.cached(tenant, no)?.is_some_and(|cached| cached.workflow.has_early(&wait.event)) {
            // What came with the event is in the store alone, and may be in the batch still.
            self.commit()?;
            now = self.clock.now();
        }
        let ask = |workflow: &mut Workflow, out: &mut Outbox<'_>| {
            workflow.wait(wait, |key| store.note_body(no, key), &limits, out)
        };
        let waited = self.decide(tenant, no, now, ask)?.transpose()?;
        crash_point("run_waits");
        let answer = waited.map_or(Err(RunRefused::Unknown), |waited| waited.map(drop).map_err(refused));
        self.node.batch.reply(reply, answer);
        Ok(())
    }

    /// Each run that waits gets a copy of the data, and all of them together no more than one request may store: a larger event
    /// is refused before the runs are read. Commits first, so that the store knows all waiters. Of two who bring the same event at once, each of those hears one.
    pub(super) fn notify(
        &mut self,
        tenant: TenantId,
        event: &str,
        data: Vec<u8>,
        reply: Reply<Result<Vec<Notified>, NoRoom>>,
    ) -> Result<(), CoreFailure> {
        self.commit()?;
        let data_bytes = base64_len(data.len() as u64).max(1);
        let by_bytes = (REQUEST_STORED_BYTES_MAX as u64 / data_bytes) as usize;
        let waiters = self.store.waiters(tenant, event, by_bytes.min(NOTIFIED_RUNS_MAX) + 1)?;
        let exceeded = match waiters.len() {
            runs if runs > NOTIFIED_RUNS_MAX => Some(("maxNotifiedRuns", NOTIFIED_RUNS_MAX)),
            runs if runs > by_bytes => Some(("maxNotifiedBytes", REQUEST_STORED_BYTES_MAX)),
            _ => None,
        };
        if let Some((quota, limit)) = exceeded {
            reply.refuse(QuotaExceeded { quota, limit: limit as u64 }.into());
            return Ok(());
        }
        let bytes = REACHED_OVERHEAD_BYTES + data_bytes;
        let room = match self.host.promise(tenant, (waiters.len() as u64 * bytes) as usize) {
            Ok(room) => room,
            Err(no_room) => {
                reply.refuse(no_room);
                return Ok(());
            }
        };
        let waiters = waiters.into_iter().map(|waiter| (waiter.timer, waiter.run)).collect();
        let (waiter_bytes, notified, listed_bytes) = (bytes, Vec::new(), 0);
        self.tasks.push(
            tenant,
            Task::Notify(Notify { tenant, data, waiter_bytes, waiters, notified, listed_bytes, room, reply }),
        );
        Ok(())
    }

    /// The next one hears of the event.
    pub(super) fn tell_next(&mut self, notify: &mut Notify) -> Result<usize, CoreFailure> {
        let Some((timer, run)) = notify.waiters.pop_front() else { return Ok(0) };
        self.tell(notify, timer, run, self.clock.now())?;
        crash_point("run_heard");
        Ok(notify.data.len() + self.runs.bytes_of(run))
    }

    /// An event that came before the deadline of a wait ends it, even if it has yet to get there.
    pub(super) fn hear_before_deadline(&mut self, timer: MessageId, now: Timestamp) -> Result<(), CoreFailure> {
        let mut tasks = std::mem::take(&mut self.tasks);
        for notify in tasks.iter_mut().filter_map(Task::as_notify) {
            if let Some((_, run)) = notify.place_of(timer).and_then(|place| notify.waiters.remove(place)) {
                self.tell(notify, timer, run, now)?;
            }
        }
        self.tasks = tasks;
        Ok(())
    }

    fn tell(&mut self, notify: &mut Notify, timer: MessageId, run: Seq, now: Timestamp) -> Result<(), CoreFailure> {
        self.keep_until_committed(notify.room.split(notify.waiter_bytes));
        let (tenant, data) = (notify.tenant, &notify.data);
        let resolved = self.decide(tenant, run, now, |workflow, out| {
            let resolved = workflow.notify_wait(timer, data, out);
            resolved.map(|resolved| notified_of(&workflow.run, resolved))
        })?;
        if let Some(notified) = resolved.flatten() {
            notify.listed_bytes += notified.bytes();
            if notify.listed_bytes <= NOTIFIED_LISTED_BYTES_MAX {
                notify.notified.push(notified);
            }
        }
        Ok(())
    }

    /// The run that goes on where this one failed, should it have been resumed since: who was given its name, in a webhook for
    /// instance, knows no other.
    fn successor_of(&mut self, tenant: TenantId, no: Seq) -> Result<Seq, CoreFailure> {
        let mut newest = no;
        for _ in 0..SUCCESSORS_MAX {
            let failure = self.cached(tenant, newest)?.and_then(|cached| cached.workflow.run.failure.as_deref());
            match failure.and_then(|failure| failure.resumed_as) {
                Some(next) => newest = next,
                None => break,
            }
        }
        Ok(newest)
    }

    pub(super) fn notify_run(
        &mut self,
        tenant: TenantId,
        run: &RunKey,
        event: &str,
        data: &[u8],
        reply: Reply<Result<Option<Notified>, RunRefused>>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        let limits = self.quotas.workflow;
        let notify = |workflow: &mut Workflow, out: &mut Outbox<'_>| {
            let resolved = workflow.notify_or_keep(event, data, &limits, out);
            resolved.map(|resolved| resolved.map(|resolved| notified_of(&workflow.run, resolved)))
        };
        let resolved = match self.find_run(tenant, run)? {
            Some(no) => {
                let no = self.successor_of(tenant, no)?;
                self.decide(tenant, no, now, notify)?
            }
            None => None,
        };
        let answer = resolved.map_or(Err(RunRefused::Unknown), |resolved| resolved.map_err(refused));
        self.node.batch.reply(reply, answer);
        Ok(())
    }
}

/// Bytes that an event stores for each run that it reaches, besides its data, more or less.
const REACHED_OVERHEAD_BYTES: u64 = 512;

/// How often a run may have failed and gone on as another before what comes for the first is not looked for any further.
const SUCCESSORS_MAX: usize = 100;

fn notified_of(run: &Run, resolved: Resolved) -> Notified {
    let Resolved { wait, id } = resolved;
    let (redact, url) = (run.config.redact.clone(), run.url.clone());
    Notified { id: run.id.clone(), created_at: run.created_at, url, redact, wait, message_id: id }
}
