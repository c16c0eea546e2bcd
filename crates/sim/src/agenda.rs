//! What is still to happen, in order of time.

use crate::command::{Command, Ended};
use crate::endpoint::Visit;
use crate::node::CommitRequest;
use crate::store::CommitError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A publisher or an operator does something.
    Act,
    /// A request reaches a node.
    Arrive { node: usize, command: Box<Command> },
    /// An attempt ends, as far as the process that started it can tell.
    Ended { node: usize, incarnation: u64, ended: Box<Ended> },
    /// A delivery reaches the endpoint of its run.
    Execute(Box<Visit>),
    /// An endpoint asks for the next thing, or answers its delivery.
    Ask(Box<Visit>),
    /// A node looks at its clock.
    Wake { node: usize, incarnation: u64 },
    /// A commit reaches the store.
    Apply(Box<CommitRequest>),
    /// A node hears of its commit.
    Committed { node: usize, incarnation: u64, result: Result<(), CommitError> },
    /// A node asks for the lease, or for more of it.
    AskLease { node: usize, incarnation: u64 },
    /// A process ends without a word, and is started again after a while.
    Crash { node: usize, down_ms: u64 },
    /// A process is asked to end: it starts nothing more.
    Drain { node: usize },
    /// A process is started.
    Restart { node: usize, incarnation: u64 },
    /// A process stands still.
    Pause { node: usize, for_ms: u64 },
    /// A process and the store lose sight of each other.
    CutOff { node: usize, for_ms: u64 },
    /// Everything loses power.
    PowerCut { down_ms: u64 },
    /// The clock of a node is set.
    Jump { node: usize, by_ms: i64 },
    /// The store has no room, or has some again.
    Full(bool),
    /// Nothing fails any more.
    Heal,
}

impl Event {
    /// For the hash of a run.
    pub(crate) fn number(&self) -> u64 {
        let of = |kind: u64, node: usize, rest: u64| kind << 56 | (node as u64) << 48 | rest;
        match self {
            Event::Act => of(1, 0, 0),
            Event::Arrive { node, .. } => of(2, *node, 0),
            Event::Ended { node, incarnation, .. } => of(3, *node, *incarnation),
            Event::Wake { node, incarnation } => of(4, *node, *incarnation),
            Event::Apply(commit) => of(5, 0, commit.ops.len() as u64),
            Event::Committed { node, incarnation, .. } => of(6, *node, *incarnation),
            Event::AskLease { node, incarnation } => of(7, *node, *incarnation),
            Event::Crash { node, .. } => of(8, *node, 0),
            Event::Restart { node, incarnation } => of(9, *node, *incarnation),
            Event::Pause { node, .. } => of(10, *node, 0),
            Event::PowerCut { .. } => of(11, 0, 0),
            Event::Jump { node, .. } => of(12, *node, 0),
            Event::Full(is_full) => of(13, 0, u64::from(*is_full)),
            Event::Heal => of(14, 0, 0),
            Event::Drain { node } => of(15, *node, 0),
            Event::Execute(visit) => of(16, visit.node, 0),
            Event::Ask(visit) => of(17, visit.node, visit.asks.len() as u64),
            Event::CutOff { node, .. } => of(18, *node, 0),
        }
    }

    /// The node that it happens in, if one that stands still would not notice.
    pub(crate) fn inside(&self) -> Option<usize> {
        match self {
            Event::Arrive { node, .. }
            | Event::Ended { node, .. }
            | Event::Wake { node, .. }
            | Event::Drain { node }
            | Event::Committed { node, .. }
            | Event::AskLease { node, .. } => Some(*node),
            _ => None,
        }
    }
}

/// Everything that is still to happen.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    made: u64,
}

#[derive(Debug)]
struct Entry {
    at_ms: u64,
    /// What was planned first happens first.
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.at_ms, self.order) == (other.at_ms, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.at_ms, self.order).cmp(&(other.at_ms, other.order))
    }
}

impl Agenda {
    pub(crate) fn plan(&mut self, at_ms: u64, event: Event) {
        self.made += 1;
        self.heap.push(Reverse(Entry { at_ms, order: self.made, event }));
    }

    /// The next event and its time.
    pub(crate) fn next(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at_ms, entry.event))
    }

    /// Whether nothing is planned but that nodes look at their clocks.
    pub(crate) fn only_wakes(&self) -> bool {
        self.heap.iter().all(|Reverse(entry)| matches!(entry.event, Event::Wake { .. }))
    }
}
