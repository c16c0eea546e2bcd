//! Messages: the list with all filters, and one message with its story.

mod act;
mod curl;
mod data;
mod filters;
pub(super) mod fuzzing;
mod list;
mod one;
mod request;
mod timeline;

use super::Desk;
use super::background::{self, Of};
use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// Where the list is.
const PATH: &str = "/console/messages";
/// Most bytes of a body that are shown; longer ones are offered as a file.
const SHOWN_BYTES_MAX: usize = 64 * 1024;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/messages", get(list::show))
        .route("/messages/question/ticked", get(act::ask_ticked))
        .route("/messages/question/matching", get(act::ask_matching))
        .route("/messages/cancel", post(act::cancel_selected))
        .route("/messages/cancel-matching", post(act::cancel_matching))
        .route("/messages/background", get(async |visitor, next| background::show(visitor, Of::Messages, next).await))
        .route("/messages/stop", post(background::stop))
        .route("/messages/{id}", get(one::show))
        .route("/messages/{id}/body", get(request::download))
        .route("/messages/{id}/cancel", post(act::cancel))
        .route("/messages/{id}/retry", post(act::retry))
}

/// The list of the messages that have a value in a filter.
pub(super) fn listed_by(filter: &str, value: &str) -> String {
    format!("{PATH}?{}", super::visitor::query(&[(filter, value)]))
}

/// The page of a message. What an id may hold needs no escape.
fn path_of(id: &str) -> String {
    let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let segment = if is_plain { id.to_owned() } else { super::visitor::segment(id) };
    format!("{PATH}/{segment}")
}
