//! What nodes are asked to do, and what they answer.

use bytes::Bytes;
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{DedupKey, Live, Message, MessageSpec, Origin};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::shard::Accepted;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use std::sync::Arc;

/// A request, so that its answer can be told from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestId(pub u64);

/// A message that is about to get its id.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub tenant: TenantId,
    pub spec: MessageSpec,
    pub body: Bytes,
    pub delay_ms: u64,
    pub origin: Origin,
    pub dedup: Option<DedupKey>,
}

/// What a node is asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub request: RequestId,
    pub task: Task,
}

#[derive(Clone, Debug)]
pub(crate) enum Task {
    Publish(Vec<Draft>),
    Cancel { tenant: TenantId, ids: Vec<MessageId> },
    DeleteDeadLetters { tenant: TenantId, ids: Vec<DlqId> },
    Replay { tenant: TenantId, replays: Vec<(DlqId, Draft)> },
    PutQueue { tenant: TenantId, name: String, parallelism: u32, paused: bool },
    PauseQueue { tenant: TenantId, name: String, paused: bool },
    DropQueue { tenant: TenantId, name: String },
    EditFlow { tenant: TenantId, key: String, edit: FlowEdit },
    PutSchedule(Box<Schedule>),
    PauseSchedule { tenant: TenantId, id: String, paused: bool },
    DropSchedule { tenant: TenantId, id: String },
    Ended(Box<Ended>),
    Drain,
}

/// An attempt that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub message: Arc<Message>,
    pub outcome: Outcome,
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
    /// These were live, and not cancelled before.
    Cancelled(Vec<MessageId>),
    Deleted(TenantId, Vec<DlqId>),
    /// What became of each dead letter.
    Replayed(TenantId, Vec<(DlqId, Option<Accepted>)>),
    Done,
}
