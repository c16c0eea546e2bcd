//! Ids in paths.

use super::error::ApiError;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use std::str::FromStr;

/// The id that a path names. A text that is no id names nothing, which each resource says in its own words.
#[derive(Clone, Debug)]
pub(super) struct PathId<T> {
    text: String,
    id: Option<T>,
}

impl<T: Copy> PathId<T> {
    /// The id, or the error that there is no such thing.
    pub(super) fn or_absent(&self, absent: impl FnOnce(&str) -> ApiError) -> Result<T, ApiError> {
        self.id.ok_or_else(|| absent(&self.text))
    }
}

impl<T> PathId<T> {
    /// As the caller wrote it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

impl<S: Send + Sync, T: FromStr> FromRequestParts<S> for PathId<T> {
    type Rejection = PathRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathId<T>, PathRejection> {
        let Path(text): Path<String> = Path::from_request_parts(parts, state).await?;
        Ok(PathId { id: text.parse().ok(), text })
    }
}
