//! What is sent: headers and body, which is shown as text or offered as a file.

use super::data::{Events, Message};
use super::one::Story;
use super::{SHOWN_BYTES_MAX, path_of, timeline};
use crate::console::form::is_hidden;
use crate::console::visitor::{Problem, query, segment};
use crate::console::{Visitor, view};
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use posthaste_wire::encoding::from_base64;
use posthaste_wire::signature::body_hash;

/// The body of a message, as far as it is shown.
pub(super) struct Body {
    bytes: Vec<u8>,
}

impl Body {
    /// A longer one has at least one byte more than is shown.
    pub(super) fn new(bytes: Vec<u8>) -> Body {
        Body { bytes }
    }

    /// All of it, if it is short enough.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        (self.bytes.len() <= SHOWN_BYTES_MAX).then_some(&self.bytes)
    }

    /// The same, if it is text.
    pub(super) fn text(&self) -> Option<&str> {
        self.whole().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// What the `body` claim of signatures says; of a hidden body that is not known here.
    pub(super) fn hash(&self) -> Option<String> {
        self.whole().filter(|_| !self.is_hidden()).map(body_hash)
    }

    /// Something else stands in its place.
    pub(super) fn is_hidden(&self) -> bool {
        self.text().is_some_and(is_hidden)
    }
}

pub(super) fn show(story: &Story) -> Markup {
    let download = format!("{}/body", path_of(&story.id));
    html! {
        @if !story.about.header.is_empty() { (timeline::headers("Headers", &story.about.header)) }
        @match (story.body.whole(), story.body.text()) {
            (Some([]), _) => p.quiet { "No body" },
            (Some(_), Some(text)) => { (view::text("Body", text)) p { a href=(download) download { "Download body" } } },
            (Some(bytes), None) => p { "Binary body, " (view::number(bytes.len() as u64)) " bytes. " a href=(download) download { "Download body" } },
            (None, _) => p { "The body exceeds " (view::number(SHOWN_BYTES_MAX as u64)) " bytes. " a href=(download) download { "Download body" } },
        }
    }
}

/// The body as a file: no browser makes anything else of it.
pub(super) async fn download(visitor: Visitor, Path(id): Path<String>) -> Result<Response, Problem> {
    let body = match visitor.get::<Message>(&format!("/v2/messages/{}", segment(&id))).await {
        Ok(message) => message.body(),
        Err(_) => body_of_ended(&visitor, &id).await?,
    };
    let headers = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox")),
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"body.bin\"")),
    ];
    Ok((headers, body).into_response())
}

/// What has ended is in the logs alone.
async fn body_of_ended(visitor: &Visitor, id: &str) -> Result<Vec<u8>, Problem> {
    let page: Events = visitor.get(&format!("/v2/events?{}", query(&[("messageId", id), ("count", "1")]))).await?;
    let absent = || Problem { status: StatusCode::NOT_FOUND, text: format!("message {id} not found") };
    let line = page.events.into_iter().next().ok_or_else(absent)?;
    Ok(line.body.as_deref().and_then(from_base64).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_hidden_body_is_not_known() {
        let open = Body::new(b"hello".to_vec());
        assert_eq!(open.hash().as_deref(), Some("LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="));
        let hidden = Body::new(format!("REDACTED:{}", "0".repeat(64)).into_bytes());
        assert!(hidden.is_hidden() && hidden.hash().is_none());
        assert_eq!(Body::new(vec![b'a'; SHOWN_BYTES_MAX + 1]).hash(), None);
        assert!(Body::new(vec![b'a'; SHOWN_BYTES_MAX]).hash().is_some());
    }
}
