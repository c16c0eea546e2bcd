//! Reads the receiver's answer, as much of it as is kept.
//!
//! The status decides; the body is only waited for when someone needs it.

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
    /// At its end: the connection can be used again.
    Complete,
    /// At our limit.
    TooLong,
    /// Before its end.
    Failed(AttemptError),
}

/// What is wanted of an answer.
pub(super) struct Wanted<'a> {
    /// All of its body.
    pub(super) needs_body: bool,
    /// Of which this is the most that is read.
    pub(super) bytes_max: usize,
    /// What is there of it by then is enough, unless all is needed.
    pub(super) until: Instant,
    /// Who answers.
    pub(super) receiver: &'a Authority,
    /// What a long one takes of RAM.
    pub(super) room: &'a AnswerRoom,
    /// How long it may take then.
    pub(super) patience: AnswerPatience,
}

/// Reads an answer.
pub(super) async fn read(
    answer: http::Response<Incoming>,
    wanted: &Wanted<'_>,
) -> Result<(Response, Ending), AttemptError> {
    let (head, incoming) = answer.into_parts();
    check_head(&head)?;
    let (success, bytes_max) = (head.status.is_success(), wanted.bytes_max);
    // Of a success that nobody reads, nobody is told the headers, and not much of the body.
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

/// What hyper lets pass and we do not.
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

/// A body that is being read.
struct Reading {
    incoming: Incoming,
    bytes_max: usize,
    seen: usize,
    kept: Kept,
}

impl Reading {
    /// Reads all of it. A long one waits for room in the middle; that is not the receiver's time, but then its time is short.
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

    /// Reads to the end, or until more is kept than this; `None` then.
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
