//! A round: commands that are decided together, and what is read for them.
//!
//! ```text
//! push … push ── next() ──▶ Read ── found() ──▶ next() ──▶ Commit ── committed() ──▶ next() ──▶ Done
//! ```
//!
//! What all commands want to know is read at once, so that a round costs one trip to a remote database. A command that needs the
//! truth ends the part of the round before it: that is committed first, and then the facts for the rest are read.

use crate::deliver_now::DeliverStep;
use crate::facts::{Facts, Wanted};
use crate::host::Moment;
use crate::messages::MessageCommand;
use crate::node::{Command, Node};
use posthaste_engine::planted::{self, Bug};
use std::collections::VecDeque;

/// Keys of duplicates after which no further command is read for. A commit in the middle of a round makes what was read out of date,
/// and a large batch is committed after some hundred messages. Without this bound, the keys of all commands that wait would be read
/// again after each of these commits.
const KEYS_READ_MAX: usize = 512;

/// Commands that are decided together.
#[derive(Default)]
pub struct Round {
    waiting: VecDeque<Command>,
    facts: Facts,
    /// The commands at the front whose facts are known.
    known: usize,
}

/// What a driver does next for a round.
pub enum Next {
    /// Read this, and pass it to [`Round::found`].
    Read(Wanted),
    /// Commit the batch of the node, and call [`Round::committed`].
    Commit,
    /// One command was decided. The driver may commit first if the batch has become large.
    Decided,
    /// The run of a message must decide about it; then pass that to [`Node::deliver_step_now`].
    DeliverStep(Box<DeliverStep>),
    /// Nothing is left.
    Done,
}

/// What a driver does next for work of the node itself.
pub enum Progress {
    /// Read this, and pass it to `found`.
    Read(Wanted),
    /// Commit the batch of the node.
    Commit,
    /// A piece was decided.
    Decided,
    /// Nothing is left for now.
    Done,
}

impl Round {
    /// Adds a command, which is decided after those that came before. A large publish will be stored in pieces.
    pub fn push(&mut self, command: Command, node: &Node) {
        self.waiting.push_back(match command {
            Command::Messages(MessageCommand::Publish { messages, reply }) if node.is_large(&messages) => {
                Command::Messages(MessageCommand::PublishInPieces { messages, reply })
            }
            command => command,
        });
    }

    /// Whether no command waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Decides the next command, or says what must happen before.
    pub fn next(&mut self, node: &mut Node, moment: &mut Moment<'_>) -> Next {
        let Some(command) = self.waiting.front() else { return Next::Done };
        let is_blind = planted::has(Bug::TruthNotCommitted);
        if command.needs_truth(node) && !node.batch.out.ops.is_empty() && !is_blind {
            return Next::Commit;
        }
        if self.known == 0 {
            let (wanted, count) = self.wanted(node);
            if !wanted.is_empty() {
                self.known = count;
                return Next::Read(wanted);
            }
            self.known = count;
        }
        let Some(command) = self.waiting.pop_front() else { return Next::Done };
        self.known -= 1;
        node.handle(command, &self.facts, moment)
    }

    /// What was read for [`Next::Read`].
    pub fn found(&mut self, facts: Facts) {
        self.facts = facts;
    }

    /// The batch was committed: what was read before may be out of date.
    pub fn committed(&mut self) {
        if planted::has(Bug::FactsKeptOverCommit) {
            return;
        }
        self.known = 0;
        self.facts = Facts::default();
    }

    /// What the commands at the front want to know, up to one that needs what those before it decide, and how many they are.
    fn wanted(&self, node: &Node) -> (Wanted, usize) {
        let (mut all, mut count) = (Wanted::default(), 0);
        for command in &self.waiting {
            let is_enough = all.duplicates.len() >= KEYS_READ_MAX;
            if count > 0 && (is_enough || command.needs_truth(node)) {
                break;
            }
            all.merge(command.wanted(node));
            count += 1;
        }
        (all, count)
    }
}
