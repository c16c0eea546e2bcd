//! The request that the form of Send stands for, for the targets of `fuzz/`. Nothing else calls it.

use super::form::Fields;
use axum::extract::Query;
use axum::http::Uri;

/// What would be sent to the API.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The path.
    pub path: String,
    /// The headers; or why nothing is sent.
    pub headers: Result<Vec<(String, String)>, String>,
}

/// Reads the form out of a query; `None` if it is none.
pub fn sent(query: &str) -> Option<Sent> {
    let uri: Uri = format!("/?{query}").parse().ok()?;
    let Query(fields) = Query::<Fields>::try_from_uri(&uri).ok()?;
    Some(Sent { path: fields.path(), headers: fields.headers().map_err(|problem| problem.text) })
}
