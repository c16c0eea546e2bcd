//! Reads the receiver's answer, as much of it as is kept.
//!
//! The status decides; the body is only waited for when someone needs it.

use super::answer_room::AnswerRoom;
use super::failure::{self, failure};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use posthaste_engine::event::Response;
use posthaste_engine::limits;
use posthaste_engine::outcome::{AttemptError, ErrorClass};
use posthaste_wire::header::canonical;
use tokio::time::{Instant, timeout_at};

/// How reading a body ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// At its end: the connection can be used again.
    Complete,
    /// At our limit.
    TooLong,
    /// Before its end.
    Failed(AttemptError),
}

/// Reads an answer. What is there of its body at `until` is enough, unless all of it is needed.
pub(super) async fn read(
    answer: http::Response<Incoming>,
    needs_body: bool,
    bytes_max: usize,
    until: Instant,
    room: &AnswerRoom,
) -> Result<(Response, Ending), AttemptError> {
    let (head, mut incoming) = answer.into_parts();
    check_head(&head)?;
    let mut response = Response { status: head.status.as_u16(), headers: kept_headers(&head), ..Response::default() };
    if incoming.is_end_stream() {
        return Ok((response, Ending::Complete));
    }
    let success = head.status.is_success();
    // Of a success that nobody reads, only the logs show the beginning.
    let limit = if success && !needs_body { limits::LOG_RESPONSE_BYTES_MAX } else { bytes_max };
    let mut kept = Kept { body: Vec::new(), limit, dropped: false };
    let ending = match timeout_at(until, drain(&mut incoming, bytes_max, &mut kept, room)).await {
        Ok(ending) => ending,
        Err(_) => Ending::Failed(failure::timed_out()),
    };
    response.truncated = kept.dropped || ending != Ending::Complete;
    response.body = kept.body;
    match &ending {
        Ending::Failed(error) if needs_body && success => Err(error.clone()),
        Ending::TooLong if needs_body && success => {
            Err(failure(ErrorClass::Protocol, format!("the answer is longer than {bytes_max} bytes")))
        }
        _ => Ok((response, ending)),
    }
}

/// What hyper lets pass and we do not.
fn check_head(head: &http::response::Parts) -> Result<(), AttemptError> {
    if head.headers.contains_key(TRANSFER_ENCODING) && head.headers.contains_key(CONTENT_LENGTH) {
        return Err(failure(ErrorClass::Protocol, "the answer has two lengths"));
    }
    if head.headers.len() > limits::RESPONSE_HEADERS_MAX {
        return Err(failure(ErrorClass::Protocol, "the answer has too many headers"));
    }
    Ok(())
}

/// The first bytes of a body.
struct Kept {
    body: Vec<u8>,
    limit: usize,
    dropped: bool,
}

impl Kept {
    fn add(&mut self, bytes: &[u8]) {
        let fitting = bytes.len().min(self.limit - self.body.len());
        self.body.extend_from_slice(&bytes[..fitting]);
        self.dropped |= fitting < bytes.len();
    }
}

async fn drain(incoming: &mut Incoming, bytes_max: usize, kept: &mut Kept, room: &AnswerRoom) -> Ending {
    let announced = incoming.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    let kept_max = announced.unwrap_or(usize::MAX).min(kept.limit);
    let mut seen = 0;
    while let Some(frame) = incoming.frame().await {
        let bytes = match frame.map(http_body::Frame::into_data) {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(_trailers)) => continue,
            Err(error) => return Ending::Failed(failure::exchange(&error)),
        };
        seen += bytes.len();
        room.reserve(seen.min(kept.limit), kept_max).await;
        kept.add(&bytes);
        if seen > bytes_max {
            return Ending::TooLong;
        }
    }
    Ending::Complete
}

fn kept_headers(head: &http::response::Parts) -> Vec<(String, String)> {
    head.headers
        .iter()
        .map(|(name, value)| (canonical(name.as_str()), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}
