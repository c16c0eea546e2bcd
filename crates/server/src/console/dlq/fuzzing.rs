//! What a form about dead letters asks for, for the targets of `fuzz/`. Nothing else calls it.

use super::act::{Order, What};
use super::change;

/// What a form asks for.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// The dead letters that it names; none if it means all that match.
    pub named: Vec<String>,
    /// The query that the API is asked with.
    pub query: String,
    /// The headers of that request; or why it is not made.
    pub changes: Result<Vec<(String, String)>, String>,
    /// The page that comes then.
    pub back: String,
}

/// Reads a form; `None` if it means no dead letters.
pub fn dead_letters(form: &[u8]) -> Option<DeadLetters> {
    let order = Order::read(form).ok()?;
    let named = match &order.what {
        What::One(id) => vec![id.clone()],
        What::Ticked(ids) => ids.clone(),
        What::All(_) => Vec::new(),
    };
    let changes = change::read(&order).map_err(|problem| problem.text);
    Some(DeadLetters { named, query: order.in_background(), changes, back: order.back().to_owned() })
}
