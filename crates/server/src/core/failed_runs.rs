//! Failed runs, which are the DLQ of workflows: they begin again, leave it, or tell of their failure once more.

use super::run::Core;
use super::tasks::{BeginAgain, DropFailed, Task};
use super::workflow::{Again, BegunAgain, FailureCallEdit, FailureCallRefused, RunKey, Started, fresh_run_id};
use super::{CoreFailure, NoRoom};
use bytes::Bytes;
use posthaste_engine::event::Op;
use posthaste_engine::workflow::run::Run;
use posthaste_engine::workflow::{Change, Overrides};
use posthaste_node::Reply;
use posthaste_store::ReadPool;
use posthaste_wire::id::{DlqId, Seq, TenantId};

impl Core {
    pub(super) fn begin_again(
        &mut self,
        tenant: TenantId,
        dlq_ids: &[DlqId],
        again: Again,
        overrides: Box<Overrides>,
        reply: Reply<BegunAgain>,
    ) -> Result<(), CoreFailure> {
        let failed = self.find_failed_runs(tenant, dlq_ids)?;
        let begun = Vec::with_capacity(failed.len());
        let task = BeginAgain { tenant, failed: failed.into(), again, overrides, begun, stopped: None, reply };
        self.tasks.push(tenant, Task::BeginAgain(task));
        Ok(())
    }

    /// The next one begins again; says how many bytes that were. One for which there is no room stays in the DLQ, and so do those
    /// after it.
    pub(super) fn begin_next(&mut self, task: &mut BeginAgain) -> Result<usize, CoreFailure> {
        let Some(failed) = task.failed.pop_front() else { return Ok(0) };
        let (begun, bytes) = match failed {
            Some(failed) => self.begin_one_again(task.tenant, failed, task.again, &task.overrides)?,
            None => (Ok(None), 0),
        };
        match begun {
            Ok(begun) => task.begun.push(begun),
            Err(no_room) => {
                task.stopped = Some(no_room);
                task.failed.clear();
            }
        }
        Ok(bytes)
    }

    fn begin_one_again(
        &mut self,
        tenant: TenantId,
        failed: Seq,
        again: Again,
        overrides: &Overrides,
    ) -> Result<(Result<Option<Started>, NoRoom>, usize), CoreFailure> {
        if self.node.batch.out.ops.iter().any(|op| is_about(op, failed)) {
            // The store must have all of it.
            self.commit()?;
        }
        let Some(mut old) = self.store.run_record(tenant, failed, ReadPool::Core)? else { return Ok((Ok(None), 0)) };
        let (now, bytes) = (self.clock.now(), old.bytes() as usize);
        if !old.workflow.run.failure.as_deref().is_some_and(|failure| failure.is_in_dlq) {
            return Ok((Ok(None), bytes));
        }
        let copied = match again {
            Again::Resume => bytes,
            Again::Restart => old.bodies.first().map_or(0, Bytes::len),
        };
        match self.host.promise(tenant, copied) {
            Ok(room) => self.keep_until_committed(room),
            Err(no_room) => return Ok((Err(no_room), bytes)),
        }
        if self.decide(tenant, failed, now, |workflow, out| workflow.leave_dlq(out))? != Some(true) {
            return Ok((Ok(None), bytes));
        }
        // Otherwise plain text or an older key would be carried on as often as the run begins again. Each attempt that needs what
        // cannot be read says so.
        self.attempts.core.credentials().renew(tenant, &mut old);
        let (id, overrides) = (fresh_run_id(), overrides.clone());
        let no = self.begin(now, |out| match again {
            Again::Resume => old.resumed(id, now, overrides, out),
            Again::Restart => old.restarted(id, now, overrides, out),
        })?;
        if again == Again::Resume {
            self.decide(tenant, failed, now, |workflow, out| workflow.resumed_as(no, out))?;
        }
        Ok((Ok(self.started(tenant, no, false)?), bytes))
    }

    pub(super) fn edit_failure_call(
        &mut self,
        tenant: TenantId,
        dlq_id: DlqId,
        edit: FailureCallEdit,
        reply: Reply<Result<RunKey, FailureCallRefused>>,
    ) -> Result<(), CoreFailure> {
        let edited = match self.find_failed_runs(tenant, &[dlq_id])?.into_iter().flatten().next() {
            None => None,
            Some(no) => self.decide(tenant, no, self.clock.now(), |workflow, out| {
                let done = match edit {
                    FailureCallEdit::Retry => workflow.tell_again(out),
                    FailureCallEdit::Cancel => workflow.stop_telling(out),
                };
                let Run { id, created_at, .. } = &workflow.run;
                done.then(|| RunKey { id: id.clone(), created_at: Some(*created_at) })
            })?,
        };
        let answer = edited.ok_or(FailureCallRefused::Unknown).and_then(|key| key.ok_or(FailureCallRefused::State));
        self.node.batch.reply(reply, answer);
        Ok(())
    }

    /// The next one leaves the DLQ; says how many bytes were looked at for that. All that came before the turn is committed,
    /// so the store knows the run; one that has left in this turn says so itself.
    pub(super) fn drop_next(&mut self, task: &mut DropFailed) -> Result<usize, CoreFailure> {
        let Some(dlq_id) = task.dlq_ids.pop_front() else { return Ok(0) };
        let Some(no) = self.store.find_failed_run(task.tenant, dlq_id, ReadPool::Core)? else { return Ok(0) };
        let was_there = self.decide(task.tenant, no, self.clock.now(), |workflow, out| workflow.leave_dlq(out))?;
        task.dropped += u32::from(was_there == Some(true));
        Ok(self.runs.bytes_of(no))
    }

    /// The runs with these places in the DLQ. Commits first, so that the store's answer is the truth.
    fn find_failed_runs(&mut self, tenant: TenantId, dlq_ids: &[DlqId]) -> Result<Vec<Option<Seq>>, CoreFailure> {
        self.commit()?;
        let find = |dlq_id: &DlqId| self.store.find_failed_run(tenant, *dlq_id, ReadPool::Core);
        Ok(dlq_ids.iter().map(find).collect::<Result<_, _>>()?)
    }
}

/// Whether something of this run is written.
fn is_about(op: &Op, no: Seq) -> bool {
    match op {
        Op::Workflow(Change::Run(run)) => run.no == no,
        Op::Workflow(
            Change::Entry { run, .. }
            | Change::Delivery { run, .. }
            | Change::Note { run, .. }
            | Change::NoNote { run, .. },
        ) => *run == no,
        _ => false,
    }
}
