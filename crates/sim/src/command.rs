//! What nodes are asked to do, and what they answer.

use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{DedupKey, Live, Message};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::shard::Accepted;
use posthaste_engine::workflow::NewEntry;
use posthaste_engine::workflow::note::NoteKey;
use posthaste_engine::workflow::run::{RunConfig, StepText};
use posthaste_node::{BulkPiece, DeliverNowRefused, NewMessage, QueueSettings, Replay};
use posthaste_wire::cron::Cron;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;

/// A request, so that its answer can be told from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestId(pub u64);

/// What a node is asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub request: RequestId,
    pub task: Task,
}

#[derive(Clone, Debug)]
pub(crate) enum Task {
    Node(NodeTask),
    Ended(Box<Ended>),
    Run { tenant: TenantId, task: Box<RunTask> },
    Drain,
}

/// What the node decides itself.
#[derive(Clone, Debug)]
pub(crate) enum NodeTask {
    Publish(Vec<NewMessage>),
    Cancel { tenant: TenantId, ids: Vec<MessageId> },
    DeliverNow { tenant: TenantId, id: MessageId },
    DeleteDeadLetters { tenant: TenantId, ids: Vec<DlqId> },
    Replay { tenant: TenantId, replays: Vec<Replay> },
    PutQueue { tenant: TenantId, name: String, settings: QueueSettings },
    PauseQueue { tenant: TenantId, name: String, paused: bool },
    DropQueue { tenant: TenantId, name: String },
    EditFlow { tenant: TenantId, key: String, edit: FlowEdit },
    PutSchedule(Box<Schedule>),
    PauseSchedule { tenant: TenantId, id: String, paused: bool },
    Reschedule { tenant: TenantId, id: String, cron: Box<Cron> },
    DropSchedule { tenant: TenantId, id: String },
    PutBulkAction { action: Box<BulkAction>, piece: Option<BulkPiece> },
}

impl From<NodeTask> for Task {
    fn from(task: NodeTask) -> Task {
        Task::Node(task)
    }
}

/// What a node is asked about runs of workflows.
#[derive(Clone, Debug)]
pub(crate) enum RunTask {
    Start(Box<StartRun>),
    /// Entries, and how long each waits before it is delivered.
    Append {
        run: RunKey,
        entries: Vec<(NewEntry, u64)>,
    },
    Wait {
        run: RunKey,
        event: String,
        step: StepText,
        timeout_ms: u64,
    },
    Notify {
        event: String,
        data: Vec<u8>,
    },
    /// The rest of that, in its turn.
    Tell(Telling),
    /// Kept for the run if it does not wait yet.
    NotifyRun {
        run: RunKey,
        event: String,
        data: Vec<u8>,
    },
    Finish {
        run: RunKey,
        result: String,
    },
    Cancel {
        run: RunKey,
    },
    /// A failed run goes on where it failed, or begins anew.
    BeginAgain {
        dlq_id: DlqId,
        resumes: bool,
    },
}

/// An event that some have yet to hear of.
#[derive(Clone, Debug)]
pub(crate) struct Telling {
    pub event: String,
    pub data: Vec<u8>,
    /// Waits and their runs, in the order of asking.
    pub waiters: VecDeque<(MessageId, Seq)>,
    /// The last position when it came.
    pub last: Seq,
    /// The messages that bring it to those who have heard.
    pub reached: Vec<MessageId>,
}

/// Which run: the one that goes on, or else the newest of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunKey {
    pub id: String,
    /// Which instance, if the caller says so.
    pub created_at: Option<Timestamp>,
}

/// A run to start.
#[derive(Clone, Debug)]
pub(crate) struct StartRun {
    pub id: String,
    /// What it is given.
    pub payload: String,
    pub url: String,
    pub config: RunConfig,
    /// The run that waits for it, where that is executed, and its step.
    pub invoked_by: Option<(RunKey, String, StepText)>,
}

/// An attempt that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub message: Arc<Message>,
    pub outcome: Outcome,
    /// Something was sent.
    pub sent: bool,
    pub live: Live,
    /// The epoch of the owner that started it.
    pub epoch: u64,
}

/// What a node says once everything is committed.
#[derive(Debug)]
pub(crate) struct Answer {
    pub request: RequestId,
    pub said: Said,
}

#[derive(Debug)]
pub(crate) enum Said {
    /// In the order of the drafts, with the keys they had.
    Published(Vec<(Accepted, TenantId, Option<DedupKey>)>),
    /// A publish has more or fewer outcomes than messages.
    Miscounted {
        asked: usize,
        answered: usize,
    },
    /// How far a bulk action is.
    Bulk(Box<BulkAction>),
    /// These were live, and not cancelled before.
    Cancelled(Vec<MessageId>),
    /// Whether this message is due now.
    DueNow(MessageId, Result<(), DeliverNowRefused>),
    Deleted(TenantId, Vec<DlqId>),
    /// What became of each dead letter.
    Replayed(TenantId, Vec<(DlqId, Option<Accepted>)>),
    /// The message that delivers its first entry.
    RunStarted(MessageId),
    /// Which entries there are now, and the steps that they hold the results of.
    Appended {
        run: Seq,
        entries: Vec<(MessageId, Option<u32>)>,
    },
    /// The messages that bring the event to those who waited when this was the last position.
    Notified {
        tenant: TenantId,
        event: String,
        last: Seq,
        reached: Vec<MessageId>,
    },
    /// The run keeps an event as this note, until it waits for it.
    EventKept(Seq, NoteKey),
    /// The run has ended, now or before.
    RunOver(Seq),
    /// The schedule has this expression.
    Rescheduled((TenantId, String), String),
    Done,
}
