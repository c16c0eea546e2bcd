//! The node: the shard, the batch that gathers, and the ids that it gives.

use crate::batch::Batch;
use crate::dead_letters::DeadLetterCommand;
use crate::facts::{Facts, Wanted};
use crate::flow_keys::FlowCommand;
use crate::messages::MessageCommand;
use crate::queues::QueueCommand;
use crate::quota::Quotas;
use posthaste_engine::shard::{Accepted, Shard};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;

/// See the module's text.
pub struct Node {
    /// Timing, order and limits.
    pub shard: Shard,
    /// What was decided since the last commit.
    pub batch: Batch,
    /// The highest position that it has given.
    pub last_seq: Seq,
    pub(crate) quotas: Quotas,
}

/// What a node is asked to do, by family.
pub enum Command {
    /// Messages.
    Messages(MessageCommand),
    /// Dead letters.
    DeadLetters(DeadLetterCommand),
    /// Queues.
    Queues(QueueCommand),
    /// Flow-control keys.
    Flows(FlowCommand),
}

/// The time and the surroundings of a decision.
pub struct Moment<'a> {
    /// The time.
    pub now: Timestamp,
    /// The surroundings.
    pub host: &'a mut dyn Host,
}

/// The surroundings of a node: a source of random numbers, and observers of its decisions. The decisions are not committed yet
/// when an observer learns of them.
pub trait Host {
    /// A random number.
    fn random(&mut self) -> u64;

    /// Messages were published for the request with this tag.
    fn published(&mut self, _tag: u64, _accepted: &[Accepted]) {}

    /// Messages were cancelled.
    fn cancelled(&mut self, _ids: &[MessageId]) {}

    /// A queue was paused or resumed.
    fn queue_changed(&mut self) {}

    /// A dead letter was published again for the request with this tag, or is a duplicate.
    fn replayed(&mut self, _tag: u64, _letter: (TenantId, DlqId), _accepted: Accepted) {}
}

impl Node {
    /// A node that has given no id after `last_seq`.
    pub fn new(shard: Shard, quotas: Quotas, last_seq: Seq) -> Node {
        Node { shard, batch: Batch::default(), quotas, last_seq }
    }

    /// A new id, after all that were given.
    pub fn next_id(&mut self, moment: &mut Moment<'_>) -> MessageId {
        next_id(&mut self.last_seq, moment.now, moment.host.random())
    }

    /// Decides one command. Its facts must be those that [`Command::wanted`] asks for.
    pub fn handle(&mut self, command: Command, facts: &Facts, moment: &mut Moment<'_>) {
        match command {
            Command::Messages(command) => self.message_command(command, facts, moment),
            Command::DeadLetters(command) => self.dead_letter_command(command, facts, moment),
            Command::Queues(command) => self.queue_command(command, moment),
            Command::Flows(command) => self.flow_command(command, moment),
        }
    }
}

/// A new id, after all that were given, with a random half.
pub fn next_id(last_seq: &mut Seq, now: Timestamp, random: u64) -> MessageId {
    *last_seq = Seq::next(*last_seq, now);
    MessageId { seq: *last_seq, tag: random }
}

impl Command {
    /// What must be read before it is decided.
    pub fn wanted(&self) -> Wanted {
        match self {
            Command::Messages(command) => command.wanted(),
            Command::DeadLetters(command) => command.wanted(),
            Command::Queues(_) | Command::Flows(_) => Wanted::default(),
        }
    }

    /// Whether earlier decisions must be committed before its facts are read.
    pub fn needs_truth(&self) -> bool {
        match self {
            Command::Messages(MessageCommand::Cancel { .. }) | Command::DeadLetters(_) => true,
            Command::Messages(MessageCommand::Publish { .. }) | Command::Queues(_) | Command::Flows(_) => false,
        }
    }
}
