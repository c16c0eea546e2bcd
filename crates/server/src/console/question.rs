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
        0 => Err(Problem { status: StatusCode::NOT_FOUND, text: format!("No {what} matches. Nothing was changed.") }),
        count => Ok(format!("{more}{}", view::counted(count, what))),
    }
}

/// The same for those that are ticked on a page.
pub(super) fn ticked(count: usize, what: &str) -> Result<String, Problem> {
    match count {
        0 => Err(Problem { status: StatusCode::NOT_FOUND, text: none_ticked(what) }),
        count => {
            Ok(format!("the {} that {} ticked", view::counted(count, what), if count == 1 { "is" } else { "are" }))
        }
    }
}

/// What is said to whoever acts on what is ticked, when nothing is.
pub(super) fn none_ticked(what: &str) -> String {
    format!("No {what} is ticked. Nothing was changed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_or_say_that_there_are_more() {
        let many = |count, has_more| how_many(Counted { count, has_more }, "run").map_err(|problem| problem.text);
        assert_eq!(many(1, false).as_deref(), Ok("1 run"));
        assert_eq!(many(111, false).as_deref(), Ok("111 runs"));
        assert_eq!(many(2, true).as_deref(), Ok("more than 2 runs"));
        assert_eq!(many(0, false), Err("No run matches. Nothing was changed.".to_owned()));
        assert_eq!(ticked(1, "run").ok().as_deref(), Some("the 1 run that is ticked"));
        assert_eq!(ticked(3, "run").ok().as_deref(), Some("the 3 runs that are ticked"));
        assert_eq!(ticked(0, "run").err().map(|problem| problem.status), Some(StatusCode::NOT_FOUND));
    }
}
