//! Reads the receiver's response and keeps a limited part of it.
//!
//! The status decides. The body is only awaited if the caller needs it.

use super::answer_room::{AnswerPatience, AnswerRoom, SHORT_BYTES};
use super::failure::{self, failure};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::uri::Authority;
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
    /// Complete: the connection can be reused.
    Complete,
    /// Cut at our limit.
    TooLong,
    /// Failed before the end.
    Failed(AttemptError),
}

/// The required part of a response.
pub(super) struct Wanted<'a> {
    /// Whether the whole body is needed.
    pub(super) needs_body: bool,
    /// Most bytes that are read.
    pub(super) bytes_max: usize,
    /// When the part of the body received so far is enough, unless the whole body is needed.
    pub(super) until: Instant,
    /// The receiver.
    pub(super) receiver: &'a Authority,
    /// The room of a long response.
    pub(super) room: &'a AnswerRoom,
    /// The time limits of a long response.
    pub(super) patience: AnswerPatience,
}

/// Reads a response.
pub(super) async fn read(
    answer: http::Response<Incoming>,
    wanted: &Wanted<'_>,
) -> Result<(Response, Ending), AttemptError> {
    let (head, incoming) = answer.into_parts();
    check_head(&head)?;
    let (success, bytes_max) = (head.status.is_success(), wanted.bytes_max);
    // If the caller does not need a successful response, its headers are dropped and only the beginning of its body is
    // read.
    let is_read = wanted.needs_body || !success;
    let headers = if is_read { kept_headers(&head) } else { Vec::new() };
    let mut response = Response { status: head.status.as_u16(), headers, ..Response::default() };
    if incoming.is_end_stream() {
        return Ok((response, Ending::Complete));
    }
    let limit = if is_read { bytes_max } else { limits::LOG_RESPONSE_BYTES_MAX };
    let mut reading = Reading { incoming, bytes_max, seen: 0, kept: Kept { body: Vec::new(), limit, dropped: false } };
    let ending = reading.finish(wanted).await;
    response.truncated = reading.kept.dropped || ending != Ending::Complete;
    response.body = reading.kept.body;
    match &ending {
        Ending::Failed(error) if wanted.needs_body && success => Err(error.clone()),
        Ending::TooLong if wanted.needs_body && success => {
            Err(failure(ErrorClass::Protocol, format!("the response is longer than {bytes_max} bytes")))
        }
        _ => Ok((response, ending)),
    }
}

/// Rejects heads that hyper accepts and we do not.
fn check_head(head: &http::response::Parts) -> Result<(), AttemptError> {
    if head.headers.contains_key(TRANSFER_ENCODING) && head.headers.contains_key(CONTENT_LENGTH) {
        return Err(failure(ErrorClass::Protocol, "the response has two different lengths"));
    }
    if head.headers.len() > limits::RESPONSE_HEADERS_MAX {
        return Err(failure(ErrorClass::Protocol, "the response has too many headers"));
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

/// The state of reading a body.
struct Reading {
    incoming: Incoming,
    bytes_max: usize,
    seen: usize,
    kept: Kept,
}

impl Reading {
    /// Reads the whole body. A long one waits for room in the middle. The wait does not count as the receiver's time,
    /// but the rest must then arrive quickly.
    async fn finish(&mut self, wanted: &Wanted<'_>) -> Ending {
        let AnswerPatience { room, rest } = wanted.patience;
        let announced = self.incoming.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
        let kept_max = announced.unwrap_or(usize::MAX).min(self.kept.limit);
        let (mut free, mut until, mut too_late) = (SHORT_BYTES, wanted.until, failure::timed_out());
        loop {
            match timeout_at(until, self.read_on(free)).await {
                Ok(Some(ending)) => return ending,
                Ok(None) => {}
                Err(_) => return Ending::Failed(too_late),
            }
            if !wanted.room.reserve(wanted.receiver, kept_max, room).await {
                return Ending::Failed(failure::no_room(room));
            }
            until += wanted.room.waited();
            let rest_until = Instant::now() + rest;
            if rest_until < until {
                until = rest_until;
                too_late = failure::phase_timed_out(ErrorClass::Timeout, "reading the rest of a large response", rest);
            }
            free = usize::MAX;
        }
    }

    /// Reads to the end. Returns `None` once more than `free` bytes are kept.
    async fn read_on(&mut self, free: usize) -> Option<Ending> {
        while let Some(frame) = self.incoming.frame().await {
            let bytes = match frame.map(http_body::Frame::into_data) {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(_trailers)) => continue,
                Err(error) => return Some(Ending::Failed(failure::exchange(&error))),
            };
            self.seen += bytes.len();
            self.kept.add(&bytes);
            if self.seen > self.bytes_max {
                return Some(Ending::TooLong);
            }
            if self.kept.body.len() > free {
                return None;
            }
        }
        Some(Ending::Complete)
    }
}

fn kept_headers(head: &http::response::Parts) -> Vec<(String, String)> {
    head.headers
        .iter()
        .map(|(name, value)| (canonical(name.as_str()), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}
