//! The node: the shard, the batch that gathers, and the ids that it gives.

use crate::batch::Batch;
use crate::bounds::Bounds;
use crate::bulk::PutBulkAction;
use crate::dead_letters::DeadLetterCommand;
use crate::deliver_now::DeliverNow;
use crate::facts::{Facts, Wanted};
use crate::flow_keys::FlowCommand;
use crate::host::Moment;
use crate::messages::MessageCommand;
use crate::pieces::Publishes;
use crate::queues::QueueCommand;
use crate::quota::Quotas;
use crate::round::Next;
use crate::schedules::ScheduleCommand;
use posthaste_engine::schedule::Schedules;
use posthaste_engine::shard::Shard;
use posthaste_wire::id::{MessageId, Seq};
use posthaste_wire::time::Timestamp;

/// See the module's text.
pub struct Node {
    /// Timing, order and limits.
    pub shard: Shard,
    /// When each schedule must be looked at.
    pub schedules: Schedules,
    /// What was decided since the last commit.
    pub batch: Batch,
    /// The highest position that it has given.
    pub last_seq: Seq,
    pub(crate) quotas: Quotas,
    pub(crate) bounds: Bounds,
    /// Publishes that are stored in pieces.
    pub(crate) publishes: Publishes,
}

/// What a node is asked to do, by family.
pub enum Command {
    /// Messages.
    Messages(MessageCommand),
    /// A message is due now.
    DeliverNow(DeliverNow),
    /// Dead letters.
    DeadLetters(DeadLetterCommand),
    /// Queues.
    Queues(QueueCommand),
    /// Flow-control keys.
    Flows(FlowCommand),
    /// Schedules.
    Schedules(ScheduleCommand),
    /// A bulk action.
    BulkAction(PutBulkAction),
}

impl Node {
    /// A node that has given no id after `last_seq`.
    pub fn new(shard: Shard, quotas: Quotas, bounds: Bounds, last_seq: Seq) -> Node {
        let (schedules, batch, publishes) = (Schedules::default(), Batch::default(), Publishes::default());
        Node { shard, schedules, batch, quotas, bounds, publishes, last_seq }
    }

    /// A new id, after all that were given.
    pub fn next_id(&mut self, moment: &mut Moment<'_>) -> MessageId {
        next_id(&mut self.last_seq, moment.now, moment.host.random())
    }

    /// Decides one command. Its facts must be those that [`Command::wanted`] asks for.
    pub(crate) fn handle(&mut self, command: Command, facts: &Facts, moment: &mut Moment<'_>) -> Next {
        match command {
            Command::DeliverNow(command) => return self.deliver_now(command, facts, moment),
            Command::Messages(command) => self.message_command(command, facts, moment),
            Command::DeadLetters(command) => self.dead_letter_command(command, facts, moment),
            Command::Queues(command) => self.queue_command(command, moment),
            Command::Flows(command) => self.flow_command(command, moment),
            Command::Schedules(command) => self.schedule_command(command, facts, moment),
            Command::BulkAction(command) => self.put_bulk_action(command, facts, moment),
        }
        Next::Decided
    }
}

/// A new id, after all that were given, with a random half.
pub fn next_id(last_seq: &mut Seq, now: Timestamp, random: u64) -> MessageId {
    *last_seq = Seq::next(*last_seq, now);
    MessageId { seq: *last_seq, tag: random }
}

impl Command {
    /// What must be read before it is decided.
    pub fn wanted(&self, node: &Node) -> Wanted {
        match self {
            Command::Messages(command) => command.wanted(),
            Command::DeliverNow(command) => command.wanted(),
            Command::DeadLetters(command) => command.wanted(),
            Command::Queues(_) | Command::Flows(_) => Wanted::default(),
            Command::Schedules(command) => command.wanted(node),
            Command::BulkAction(command) => command.wanted(),
        }
    }

    /// Whether earlier decisions must be committed before its facts are read.
    pub fn needs_truth(&self, node: &Node) -> bool {
        match self {
            Command::Messages(command) => command.needs_truth(),
            Command::Schedules(command) => command.needs_truth(node),
            Command::BulkAction(command) => command.needs_truth(),
            Command::DeadLetters(_) | Command::DeliverNow(_) => true,
            Command::Queues(_) | Command::Flows(_) => false,
        }
    }
}
