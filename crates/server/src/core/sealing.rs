//! Credentials and duplicate keys of commands are sealed here, on their way into the core: there is no other way in.
//!
//! Every kind of command is named, so that a new one with headers cannot be forgotten.

use super::workflow::{InvokedBy, RunCommand, StartRun};
use super::{BulkPiece, Command};
use crate::credentials::{Credentials, StoredHeaders, Unreadable, Visit};
use posthaste_node::{DeadLetterCommand, MessageCommand, NewMessage, PutBulkAction, ScheduleCommand};

impl Command {
    /// Seals the credentials and the duplicate keys in it, if there is a key for that. Exactly once: a duplicate key that is
    /// hashed twice finds nothing.
    pub(super) fn seal(&mut self, credentials: Credentials) {
        if !credentials.has_key() {
            return;
        }
        match self {
            Command::Node(command) => seal_node_command(command, credentials),
            Command::Run(command) => seal_run_command(command, credentials),
            // The message is from the store.
            Command::Ended { .. }
            | Command::Why { .. }
            | Command::Parallelism { .. }
            | Command::Stats { .. }
            | Command::Listen { .. }
            | Command::Tick
            | Command::Drain { .. }
            | Command::Stop => {}
        }
    }
}

fn seal_node_command(command: &mut posthaste_node::Command, credentials: Credentials) {
    match command {
        posthaste_node::Command::Messages(
            MessageCommand::Publish { messages, .. } | MessageCommand::PublishInPieces { messages, .. },
        ) => {
            messages.iter_mut().for_each(|message| seal_message(message, credentials));
        }
        posthaste_node::Command::DeadLetters(DeadLetterCommand::Replay { replays, .. }) => {
            replays.iter_mut().for_each(|replay| seal_message(&mut replay.message, credentials));
        }
        posthaste_node::Command::BulkAction(PutBulkAction { action, piece, .. }) => {
            credentials.seal(action.tenant, action);
            if let Some(BulkPiece::Replay(replays)) = piece {
                replays.iter_mut().for_each(|replay| seal_message(&mut replay.message, credentials));
            }
        }
        posthaste_node::Command::Schedules(ScheduleCommand::Put { schedule, .. }) => {
            credentials.seal(schedule.tenant, schedule);
        }
        posthaste_node::Command::Schedules(
            ScheduleCommand::Pause { .. } | ScheduleCommand::Reschedule { .. } | ScheduleCommand::Delete { .. },
        )
        | posthaste_node::Command::Messages(MessageCommand::Cancel { .. })
        | posthaste_node::Command::DeadLetters(DeadLetterCommand::Delete { .. })
        | posthaste_node::Command::DeliverNow(_)
        | posthaste_node::Command::Queues(_)
        | posthaste_node::Command::Flows(_) => {}
    }
}

fn seal_message(message: &mut NewMessage, credentials: Credentials) {
    credentials.seal(message.tenant, message);
    credentials.seal_duplicate_key(message.tenant, &mut message.dedup);
}

fn seal_run_command(command: &mut RunCommand, credentials: Credentials) {
    match command {
        RunCommand::Start { tenant, runs, .. } => runs.iter_mut().for_each(|run| {
            credentials.seal(*tenant, run);
            credentials.seal_duplicate_key(*tenant, &mut run.dedup);
        }),
        RunCommand::Append { tenant, entries, .. } => {
            entries.iter_mut().for_each(|entry| credentials.seal(*tenant, entry));
        }
        RunCommand::WaitForEvent { tenant, wait, .. } => credentials.seal(*tenant, wait),
        RunCommand::BeginAgain { tenant, overrides, .. } => credentials.seal(*tenant, overrides),
        RunCommand::Notify { .. }
        | RunCommand::NotifyRun { .. }
        | RunCommand::Finish { .. }
        | RunCommand::Cancel { .. }
        | RunCommand::CancelMany { .. }
        | RunCommand::DropFailed { .. }
        | RunCommand::EditFailureCall { .. } => {}
    }
}

impl StoredHeaders for StartRun {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.config.for_each(visit)?;
        self.first.for_each(visit)?;
        self.invoked_by.for_each(visit)
    }
}

impl StoredHeaders for InvokedBy {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.headers.for_each(visit)
    }
}
