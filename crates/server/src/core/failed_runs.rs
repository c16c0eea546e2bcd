//! Failed runs, which are the DLQ of workflows: they begin again, leave it, or tell of their failure once more.

use super::run::Core;
use super::workflow::{Again, FailureCallEdit, FailureCallRefused, RunKey, Started, fresh_run_id};
use super::{CoreFailure, Reply};
use crate::store::Asker;
use posthaste_engine::workflow::Overrides;
use posthaste_engine::workflow::run::Run;
use posthaste_wire::id::{DlqId, Seq, TenantId};
use posthaste_wire::time::Timestamp;

impl Core {
    pub(super) fn begin_again(
        &mut self,
        tenant: TenantId,
        dlq_ids: &[DlqId],
        again: Again,
        overrides: &Overrides,
        reply: Reply<Vec<Option<Started>>>,
    ) -> Result<(), CoreFailure> {
        let mut begun = Vec::with_capacity(dlq_ids.len());
        for dlq_id in dlq_ids {
            begun.push(match self.find_failed_run(tenant, *dlq_id)? {
                Some(failed) => self.begin_one_again(tenant, failed, again, overrides)?,
                None => None,
            });
        }
        self.answer(move || reply.send(begun));
        Ok(())
    }

    fn begin_one_again(
        &mut self,
        tenant: TenantId,
        failed: Seq,
        again: Again,
        overrides: &Overrides,
    ) -> Result<Option<Started>, CoreFailure> {
        // All is committed, so that the store has all of it.
        let Some(old) = self.store.run_record(tenant, failed, Asker::Owner)? else { return Ok(None) };
        let now = self.clock.now();
        if self.decide(tenant, failed, now, |workflow, out| workflow.leave_dlq(out))? != Some(true) {
            return Ok(None);
        }
        let (id, overrides) = (fresh_run_id(), overrides.clone());
        let no = self.begin(now, |out| match again {
            Again::Resume => old.resumed(id, now, overrides, out),
            Again::Restart => old.restarted(id, now, overrides, out),
        })?;
        self.started(tenant, no, false)
    }

    pub(super) fn edit_failure_call(
        &mut self,
        tenant: TenantId,
        dlq_id: DlqId,
        edit: FailureCallEdit,
        reply: Reply<Result<RunKey, FailureCallRefused>>,
    ) -> Result<(), CoreFailure> {
        let edited = match self.find_failed_run(tenant, dlq_id)? {
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
        self.answer(move || reply.send(answer));
        Ok(())
    }

    pub(super) fn drop_failed_runs(
        &mut self,
        tenant: TenantId,
        dlq_ids: Vec<DlqId>,
        reply: Reply<u32>,
        now: Timestamp,
    ) -> Result<(), CoreFailure> {
        let mut dropped = 0;
        for dlq_id in dlq_ids {
            if let Some(no) = self.find_failed_run(tenant, dlq_id)? {
                let was_there = self.decide(tenant, no, now, |workflow, out| workflow.leave_dlq(out))?;
                dropped += u32::from(was_there == Some(true));
            }
        }
        self.answer(move || reply.send(dropped));
        Ok(())
    }

    /// The run with this place in the DLQ. Commits first, so that the store's answer is the truth.
    fn find_failed_run(&mut self, tenant: TenantId, dlq_id: DlqId) -> Result<Option<Seq>, CoreFailure> {
        self.commit()?;
        Ok(self.store.find_failed_run(tenant, dlq_id, Asker::Owner)?)
    }
}
