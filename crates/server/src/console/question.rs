//! The questions before a bulk action. The script gets them when a button with `data-ask` is pressed, so that they count
//! what is there at that moment.
//!
//! A question is plain text. When there is nothing to do, the status is not 200, and the script shows the text without a
//! button that acts.

use super::view;
use super::visitor::Problem;
use crate::api::Counted;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// A question, or the reason why there is none.
pub(super) struct Question(Result<String, Problem>);

impl Question {
    /// Of something that may be refused.
    pub(super) fn of(asked: Result<String, Problem>) -> Question {
        Question(asked)
    }
}

impl IntoResponse for Question {
    fn into_response(self) -> Response {
        match self.0 {
            Ok(text) => text.into_response(),
            Err(Problem { status, text }) => (status, text).into_response(),
        }
    }
}

/// `1 message`, `111 messages`, `more than 100 000 messages`; a problem if there is none.
pub(super) fn how_many(counted: Counted, what: &str) -> Result<String, Problem> {
    let more = if counted.has_more { "more than " } else { "" };
    match counted.count {
        0 => Err(Problem { status: StatusCode::NOT_FOUND, text: format!("No {what}s match. Nothing was changed.") }),
        count => Ok(format!("{more}{}", view::counted(count, what))),
    }
}

/// The same for those that are selected on a page.
pub(super) fn ticked(count: usize, what: &str) -> Result<String, Problem> {
    match count {
        0 => Err(Problem { status: StatusCode::NOT_FOUND, text: none_ticked(what) }),
        count => Ok(view::counted(count, &format!("selected {what}"))),
    }
}

/// The answer to an action on the selected entries when none is selected.
pub(super) fn none_ticked(what: &str) -> String {
    format!("No {what}s are selected. Nothing was changed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_exact_or_says_that_there_are_more() {
        let many = |count, has_more| how_many(Counted { count, has_more }, "run").map_err(|problem| problem.text);
        assert_eq!(many(1, false).as_deref(), Ok("1 run"));
        assert_eq!(many(111, false).as_deref(), Ok("111 runs"));
        assert_eq!(many(2, true).as_deref(), Ok("more than 2 runs"));
        assert_eq!(many(0, false), Err("No runs match. Nothing was changed.".to_owned()));
        assert_eq!(ticked(1, "run").ok().as_deref(), Some("1 selected run"));
        assert_eq!(ticked(3, "run").ok().as_deref(), Some("3 selected runs"));
        let none = ticked(0, "run").err().map(|problem| (problem.status, problem.text));
        assert_eq!(none, Some((StatusCode::NOT_FOUND, "No runs are selected. Nothing was changed.".to_owned())));
    }
}
