//! Which messages a query means, for the targets of `fuzz/`. Nothing else calls it.

use super::filters::{MESSAGES, for_cancel};
use crate::console::filters::Filters;

/// What a query means.
#[derive(Clone, Debug)]
pub struct MessageList {
    /// The query that the API is asked with for them; or why it is not asked.
    pub list: Result<String, String>,
    /// The query that cancels them.
    pub cancel: Result<String, String>,
    /// The form that shows what was asked for, and the fields that bring it to a form that acts.
    pub markup: String,
}

/// Reads the query of the list of messages.
pub fn messages(query: &str) -> MessageList {
    let filters = Filters::read(&MESSAGES, query);
    MessageList {
        list: filters.for_api(&[]).map_err(|problem| problem.text),
        cancel: for_cancel(&filters).map_err(|problem| problem.text),
        markup: filters.form().into_string() + &filters.hidden().into_string(),
    }
}
