//! A bulk action: an operation on many messages or dead letters in the background, with its progress.

use posthaste_wire::id::{Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};

/// An operation that was requested with `async`.
///
/// Stored as JSON; new fields need `#[serde(default)]`, so that an action of an earlier version continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkAction {
    /// The tenant.
    pub tenant: TenantId,
    /// Its id: its position in the order of creation.
    pub id: Seq,
    /// The operation.
    #[serde(default, skip_serializing_if = "Task::is_cancel")]
    pub task: Task,
    /// The filter: the parameters as they were given, names and values.
    pub filter: Vec<(String, Vec<String>)>,
    /// For a cancel: only messages created up to here. For other tasks [`Seq::MIN`], so that a version that knows only
    /// cancels finds nothing to cancel.
    pub until: Seq,
    /// For a cancel: messages created up to here have been processed.
    pub after: Seq,
    /// Most messages or dead letters to process.
    pub count: Option<u64>,
    /// Most messages or dead letters per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// The number of matches at the start.
    pub total: u64,
    /// The number processed so far.
    pub processed: u64,
    /// The number that could not be changed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Why the last of those could not be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When it started.
    pub created_at: Timestamp,
    /// When it finished or was stopped.
    pub completed_at: Option<Timestamp>,
    /// Whether it was stopped before it finished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// The operation of a bulk action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Messages are cancelled.
    #[default]
    Cancel,
    /// Dead letters are published again.
    DlqRetry {
        /// The candidates, and the progress among them.
        range: DlqRange,
        /// The changes: headers, with values stored as those of messages.
        changes: Vec<(String, String)>,
    },
    /// Dead letters are deleted.
    DlqDelete {
        /// The candidates, and the progress among them.
        range: DlqRange,
    },
}

/// The dead letters that existed when a bulk action started, and its progress among them, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DlqRange {
    /// Dead letters up to here have been processed.
    pub after: Position,
    /// The last one.
    pub until: Position,
    /// The newest message at the start. Later publishes do not count, whatever the clock says.
    pub newest: Seq,
}

impl Task {
    fn is_cancel(&self) -> bool {
        *self == Task::Cancel
    }

    /// Its name in API responses.
    pub fn name(&self) -> &'static str {
        match self {
            Task::Cancel => "cancel",
            Task::DlqRetry { .. } => "dlqRetry",
            Task::DlqDelete { .. } => "dlqDelete",
        }
    }
}

impl DlqRange {
    /// Whether a dead letter is a candidate.
    pub fn has(&self, dlq_id: Position) -> bool {
        self.after < dlq_id && dlq_id <= self.until && dlq_id.n <= self.newest.0
    }

    /// Whether no candidates are left.
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
