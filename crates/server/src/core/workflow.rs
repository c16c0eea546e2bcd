//! What the core can be asked to do with runs of workflows.

use super::{Command, CoreError, CoreHandle, NoRoom, QuotaExceeded, Room};
use crate::clock::random;
use posthaste_engine::message::{DedupKey, FlowSpec};
use posthaste_engine::shard::Accepted;
use posthaste_engine::workflow::entry::OwnTerms;
use posthaste_engine::workflow::run::{RunConfig, StepText, Wait};
use posthaste_engine::workflow::{NewEntry, Overrides, WaitFor};
use posthaste_node::{Reply, entry_bytes, failure_bytes, header_bytes};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use std::time::Duration;

/// How many runs may lead to one, each invoking the next.
pub(crate) const DEPTH_QUOTA: &str = "maxWorkflowInvokeDepth";

/// A command about runs.
pub(crate) enum RunCommand {
    Start {
        tenant: TenantId,
        runs: Vec<StartRun>,
        reply: Reply<Result<Vec<Started>, RunRefused>>,
    },
    Append {
        tenant: TenantId,
        run: RunKey,
        entries: Vec<NewEntry>,
        reply: Reply<Result<Vec<Accepted>, RunRefused>>,
    },
    WaitForEvent {
        tenant: TenantId,
        run: RunKey,
        wait: Box<WaitFor>,
        reply: Reply<Result<(), RunRefused>>,
    },
    Notify {
        tenant: TenantId,
        event: String,
        data: Vec<u8>,
        reply: Reply<Result<Vec<Notified>, NoRoom>>,
    },
    NotifyRun {
        tenant: TenantId,
        run: RunKey,
        event: String,
        data: Vec<u8>,
        reply: Reply<Result<Option<Notified>, RunRefused>>,
    },
    Finish {
        tenant: TenantId,
        run: RunKey,
        result: Option<String>,
        reply: Reply<()>,
    },
    Cancel {
        tenant: TenantId,
        run: RunKey,
        reply: Reply<bool>,
    },
    CancelMany {
        tenant: TenantId,
        runs: Vec<Seq>,
        reply: Reply<u32>,
    },
    BeginAgain {
        tenant: TenantId,
        dlq_ids: Vec<DlqId>,
        again: Again,
        overrides: Box<Overrides>,
        reply: Reply<BegunAgain>,
    },
    DropFailed {
        tenant: TenantId,
        dlq_ids: Vec<DlqId>,
        reply: Reply<u32>,
    },
    EditFailureCall {
        tenant: TenantId,
        dlq_id: DlqId,
        edit: FailureCallEdit,
        reply: Reply<Result<RunKey, FailureCallRefused>>,
    },
}

impl From<RunCommand> for Command {
    fn from(command: RunCommand) -> Command {
        Command::Run(command)
    }
}

/// Which run: the one that goes on, or else the newest of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunKey {
    /// Its name.
    pub id: String,
    /// Which instance, if the caller says so.
    pub created_at: Option<Timestamp>,
}

/// A run to start.
#[derive(Clone, Debug)]
pub struct StartRun {
    /// Its name.
    pub id: String,
    /// Where its steps are executed.
    pub url: String,
    /// What was chosen for it.
    pub config: RunConfig,
    /// Its first entry.
    pub first: NewEntry,
    /// What makes another trigger a duplicate of this one, besides the name of a run that goes on.
    pub dedup: Option<DedupKey>,
    /// The endpoint itself triggers a run that is waiting for that.
    pub is_by_client: bool,
    /// The step of another run that invokes it.
    pub invoked_by: Option<InvokedBy>,
}

impl StartRun {
    /// The flow-control keys that it names.
    pub(super) fn flows(&self) -> impl Iterator<Item = &FlowSpec> {
        let of_failure = self.config.failure.as_ref().and_then(|call| call.flow.as_ref());
        let of_result = self.invoked_by.as_ref().and_then(|step| step.terms.flow.as_ref());
        self.config.flow.iter().chain(&self.first.flow).chain(of_failure).chain(of_result)
    }

    /// Bytes that it stores.
    pub(crate) fn stored_bytes(&self) -> usize {
        let config = header_bytes(&self.config.headers) + failure_bytes(self.config.failure.as_ref());
        let invoked = self.invoked_by.as_ref().map_or(0, |step| step.body.len() + header_bytes(&step.headers));
        self.url.len() + config + entry_bytes(&self.first) + invoked
    }
}

/// The step of a run that invokes another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvokedBy {
    /// The invoking run.
    pub run: RunKey,
    /// Where its steps are executed.
    pub url: String,
    /// The step.
    pub step: StepText,
    /// Headers to deliver its result with, names in canonical form.
    pub headers: Vec<(String, String)>,
    /// What else is said about that delivery.
    pub terms: OwnTerms,
    /// What the invoked run is given, for the log.
    pub body: String,
}

/// A run that was started, or the one that goes on under this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its name.
    pub id: String,
    /// Which instance.
    pub created_at: Timestamp,
    /// The message that delivers its first entry.
    pub message_id: MessageId,
    /// Nothing was started: a run of this name goes on.
    pub deduplicated: bool,
}

/// A run that an event has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notified {
    /// The run.
    pub id: String,
    /// Which instance.
    pub created_at: Timestamp,
    /// Where its steps are executed.
    pub url: String,
    /// What its answers must hide.
    pub redact: RedactFields,
    /// What it waited for.
    pub wait: Wait,
    /// The message that delivers the event.
    pub message_id: MessageId,
}

impl Notified {
    /// Bytes that it takes in RAM and in a response, more or less.
    pub(super) fn bytes(&self) -> usize {
        let Wait { event, step, timeout, headers, .. } = &self.wait;
        let lists = headers.iter().flat_map(|(name, values)| values.iter().map(|value| name.len() + value.len()));
        let step = step.iter().map(|(name, value)| name.len() + value.to_string().len()).sum::<usize>();
        let texts = self.id.len() + self.url.len() + event.len() + step + timeout.len();
        NOTIFIED_OVERHEAD_BYTES + texts + lists.sum::<usize>()
    }
}

/// Bytes of a notified run besides its texts.
const NOTIFIED_OVERHEAD_BYTES: usize = 256;

/// How a failed run begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// From where it failed.
    Resume,
    /// From its start.
    Restart,
}

/// Failed runs that have begun again.
#[derive(Debug)]
pub struct BegunAgain {
    /// In the order asked; `None` for one that is not in the DLQ.
    pub begun: Vec<Option<Started>>,
    /// Why the others stay in the DLQ.
    pub stopped: Option<NoRoom>,
}

/// Why a run did not take what was meant for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunRefused {
    /// No run has this name.
    #[error("workflow run not found")]
    Unknown,
    /// It has ended.
    #[error("the workflow run has ended")]
    Ended,
    /// A bound is reached. If it is one of the run, the run has failed thereby.
    #[error(transparent)]
    Exceeded(#[from] QuotaExceeded),
}

/// Why the call about a failure was not made or stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailureCallRefused {
    /// Nothing in the DLQ has this id.
    #[error("dlq message not found")]
    Unknown,
    /// The run has no failure function, or its call does not stand so that this can be done.
    #[error("the failure callback of this run is not in a state that allows this")]
    State,
}

/// What is to be done with the call about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCallEdit {
    /// Make it again.
    Retry,
    /// Do not make it any more.
    Cancel,
}

impl CoreHandle {
    /// Starts runs; the answer has the order of the runs. `room` is what their first entries take.
    pub async fn start_runs(
        &self,
        tenant: TenantId,
        runs: Vec<StartRun>,
        room: Room,
    ) -> Result<Result<Vec<Started>, RunRefused>, CoreError> {
        self.ask_in_line(tenant, room.waited, Some(room), |reply| RunCommand::Start { tenant, runs, reply }).await
    }

    /// Appends entries to a run, all or none. `room` is what they take.
    pub async fn append(
        &self,
        tenant: TenantId,
        run: RunKey,
        entries: Vec<NewEntry>,
        room: Room,
    ) -> Result<Result<Vec<Accepted>, RunRefused>, CoreError> {
        self.ask_in_line(tenant, room.waited, Some(room), |reply| RunCommand::Append { tenant, run, entries, reply })
            .await
    }

    /// A step of a run waits for an event.
    pub async fn wait_for_event(
        &self,
        tenant: TenantId,
        run: RunKey,
        wait: WaitFor,
        room: Room,
    ) -> Result<Result<(), RunRefused>, CoreError> {
        self.ask_in_line(tenant, room.waited, Some(room), |reply| RunCommand::WaitForEvent {
            tenant,
            run,
            wait: Box::new(wait),
            reply,
        })
        .await
    }

    /// An event has come for all who wait for it.
    pub async fn notify(&self, tenant: TenantId, event: String, data: Vec<u8>) -> Result<Vec<Notified>, CoreError> {
        Ok(self
            .ask_in_line(tenant, Duration::ZERO, None, |reply| RunCommand::Notify { tenant, event, data, reply })
            .await??)
    }

    /// An event has come for one run; it is kept for the run if it does not wait for it yet.
    pub async fn notify_run(
        &self,
        tenant: TenantId,
        run: RunKey,
        event: String,
        data: Vec<u8>,
    ) -> Result<Result<Option<Notified>, RunRefused>, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| RunCommand::NotifyRun {
            tenant,
            run,
            event,
            data,
            reply,
        })
        .await
    }

    /// The function of a run has returned. A run that has ended, or is unknown, stays as it is.
    pub async fn finish_run(&self, tenant: TenantId, run: RunKey, result: Option<String>) -> Result<(), CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| RunCommand::Finish { tenant, run, result, reply }).await
    }

    /// Cancels a run; false if none of this name goes on.
    pub async fn cancel_run(&self, tenant: TenantId, run: RunKey) -> Result<bool, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| RunCommand::Cancel { tenant, run, reply }).await
    }

    /// Cancels runs; says how many of them went on.
    pub async fn cancel_runs(&self, tenant: TenantId, runs: Vec<Seq>) -> Result<u32, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| RunCommand::CancelMany { tenant, runs, reply }).await
    }

    /// Begins failed runs again, each as a new run, until there is no room for the next one.
    pub async fn begin_again(
        &self,
        tenant: TenantId,
        dlq_ids: Vec<DlqId>,
        again: Again,
        overrides: Overrides,
    ) -> Result<BegunAgain, CoreError> {
        let overrides = Box::new(overrides);
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| RunCommand::BeginAgain {
            tenant,
            dlq_ids,
            again,
            overrides,
            reply,
        })
        .await
    }

    /// Takes failed runs out of the DLQ; says how many were in it.
    pub async fn drop_failed_runs(&self, tenant: TenantId, dlq_ids: Vec<DlqId>) -> Result<u32, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| RunCommand::DropFailed { tenant, dlq_ids, reply }).await
    }

    /// Makes the call about a failure again, or stops it; says which run it is about.
    pub async fn edit_failure_call(
        &self,
        tenant: TenantId,
        dlq_id: DlqId,
        edit: FailureCallEdit,
    ) -> Result<Result<RunKey, FailureCallRefused>, CoreError> {
        self.ask_in_line(tenant, Duration::ZERO, None, |reply| RunCommand::EditFailureCall {
            tenant,
            dlq_id,
            edit,
            reply,
        })
        .await
    }
}

/// An id for a run that nobody has named.
pub(crate) fn fresh_run_id() -> String {
    format!("wfr_{}", bs58::encode(random::<16>()).into_string())
}
