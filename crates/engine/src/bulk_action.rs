//! A bulk action: something done to many messages or dead letters in the background, with its progress.

use posthaste_wire::id::{Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Something that was asked for with `async`.
///
/// Stored as JSON; new fields need `#[serde(default)]` so that what was begun by an earlier version goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkAction {
    /// Whose.
    pub tenant: TenantId,
    /// Its id: its position in the order of creation.
    pub id: Seq,
    /// What is done.
    #[serde(default, skip_serializing_if = "Task::is_cancel")]
    pub task: Task,
    /// To what: the parameters as they were given, name and values.
    pub filter: Vec<(String, Vec<String>)>,
    /// A cancel: only messages created up to here. Of other tasks [`Seq::MIN`], so that a version which knows only
    /// cancels finds nothing to cancel.
    pub until: Seq,
    /// A cancel: messages created up to here have been looked at.
    pub after: Seq,
    /// At most so many.
    pub count: Option<u64>,
    /// At most so many per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// How many matched when it was begun.
    pub total: u64,
    /// How many it has dealt with so far.
    pub processed: u64,
    /// How many it had to leave as they are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Why the last of those was left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When it was begun.
    pub created_at: Timestamp,
    /// When it was finished, or stopped.
    pub completed_at: Option<Timestamp>,
    /// Somebody stopped it before it was finished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// What a bulk action does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Messages are cancelled.
    #[default]
    Cancel,
    /// Dead letters are published again.
    DlqRetry {
        /// Which ones may be meant, and how far it is.
        range: DlqRange,
        /// What is to be other than it was: lines of headers, values stored as those of messages.
        changes: Vec<(String, String)>,
    },
    /// Dead letters are deleted.
    DlqDelete {
        /// Which ones may be meant, and how far it is.
        range: DlqRange,
    },
}

/// The dead letters that there were when a bulk action was begun, and how far it is among them, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DlqRange {
    /// Those up to here have been looked at.
    pub after: Position,
    /// The last one.
    pub until: Position,
    /// The newest message that there was: what was published since is not meant, whatever the clock says.
    pub newest: Seq,
}

impl Task {
    fn is_cancel(&self) -> bool {
        *self == Task::Cancel
    }

    /// Its name for callers.
    pub fn name(&self) -> &'static str {
        match self {
            Task::Cancel => "cancel",
            Task::DlqRetry { .. } => "dlqRetry",
            Task::DlqDelete { .. } => "dlqDelete",
        }
    }
}

impl DlqRange {
    /// Whether a dead letter may be meant.
    pub fn has(&self, dlq_id: Position) -> bool {
        self.after < dlq_id && dlq_id <= self.until && dlq_id.n <= self.newest.0
    }

    /// Whether there is nothing left to look at.
    pub fn is_done(&self) -> bool {
        self.after >= self.until
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancels_of_earlier_versions_are_understood_and_written_as_then() {
        let old = concat!(
            r#"{"tenant":1,"id":7,"filter":[["label",["a"]]],"until":9,"after":3,"count":null,"total":5,"#,
            r#""processed":2,"created_at":4,"completed_at":null}"#
        );
        let action: BulkAction = serde_json::from_str(old).unwrap();
        assert_eq!((&action.task, action.rate, action.refused, action.stopped), (&Task::Cancel, None, 0, false));
        assert_eq!(serde_json::to_string(&action).unwrap(), old);
    }

    #[test]
    fn a_range_has_what_there_was_and_was_not_looked_at() {
        let at = |at, n| Position { at: Timestamp(at), n };
        let range = DlqRange { after: at(10, 5), until: at(20, 8), newest: Seq(9) };
        let cases = [
            (at(10, 5), false),
            (at(10, 6), true),
            (at(20, 8), true),
            (at(20, 9), false),
            (at(15, 9), true),
            (at(15, 10), false),
        ];
        for (dlq_id, expected) in cases {
            assert_eq!(range.has(dlq_id), expected, "{dlq_id}");
        }
        assert!(!range.is_done() && DlqRange { after: at(20, 8), ..range }.is_done());
    }
}
