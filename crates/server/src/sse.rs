//! Server-sent events: how they are written and read, and an answer that is made of them as they come.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

/// What a stream of events is.
pub(crate) const CONTENT_TYPE: &str = "text/event-stream";
/// A line that means nothing, so that everybody on the way knows that the stream goes on.
pub(crate) const HEARTBEAT: &str = ": still here\n\n";
/// Bytes of events that a reader is given at once, so that a slow one can be told from one that has stopped.
pub(crate) const FRAME_BYTES_MAX: usize = 64 * 1024;
/// How long a reader may take for what it was given before; then the stream ends.
pub(crate) const READER_PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of an event that is read; a longer one is passed over.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One event; its data may have several lines.
pub(crate) fn event(name: &str, data: &str) -> String {
    let mut text = format!("event: {name}\n");
    for line in data.split('\n') {
        text.push_str("data: ");
        text.push_str(line.trim_end_matches('\r'));
        text.push('\n');
    }
    text.push('\n');
    text
}

/// An answer with events as they come. It ends when the other end of the channel is gone.
pub(crate) fn response(events: mpsc::Receiver<Bytes>) -> Response {
    let mut response = Response::new(Body::new(Events(events)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that gather an answer before they pass it on would make a live stream a late one.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Nobody reads any more, or nobody may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// Hands a text to the reader as fast as it reads, if that is not slower than `patience` allows.
pub(crate) async fn hand_over(out: &mpsc::Sender<Bytes>, text: String, patience: Duration) -> Result<(), Gone> {
    let mut rest = Bytes::from(text);
    while !rest.is_empty() {
        let frame = rest.split_to(rest.len().min(FRAME_BYTES_MAX));
        out.send_timeout(frame, patience).await.map_err(|_| Gone)?;
    }
    Ok(())
}

struct Events(mpsc::Receiver<Bytes>);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// An event that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: String,
}

/// Reads events from bytes, however they are cut. Only what [`event`] writes: lines end with a line feed.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    rest: Vec<u8>,
    /// The event that has begun is too long.
    passes_over: bool,
}

impl Reader {
    /// The events that end in these bytes; comments are none.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.rest.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = memchr::memmem::find(&self.rest, b"\n\n") {
            let block: Vec<u8> = self.rest.drain(..end + 2).collect();
            if !std::mem::take(&mut self.passes_over) {
                events.extend(parse(&String::from_utf8_lossy(&block[..end])));
            }
        }
        if self.rest.len() > EVENT_BYTES_MAX {
            self.passes_over = true;
            // What may be the first half of the end stays.
            self.rest.drain(..self.rest.len() - 1);
        }
        events
    }
}

fn parse(block: &str) -> Option<Event> {
    let value = |line: &str, name: &str| {
        let rest = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(rest.strip_prefix(' ').unwrap_or(rest).to_owned())
    };
    let name = block.lines().find_map(|line| value(line, "event"))?;
    let data: Vec<String> = block.lines().filter_map(|line| value(line, "data")).collect();
    Some(Event { name, data: data.join("\n") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_however_it_is_cut() {
        let written = [("line", "{\"a\":1}"), ("row", "two\nlines"), ("missed", ""), ("line", "event: no\n\ndata: x")];
        let text: String = written.iter().map(|(name, data)| event(name, data) + HEARTBEAT).collect();
        for size in [1, 2, 3, 7, text.len()] {
            let mut reader = Reader::default();
            let read: Vec<Event> = text.as_bytes().chunks(size).flat_map(|bytes| reader.read(bytes)).collect();
            let expected: Vec<Event> =
                written.iter().map(|(name, data)| Event { name: (*name).into(), data: (*data).into() }).collect();
            assert_eq!(read, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn no_data_ends_an_event() {
        assert_eq!(event("a", "x\r\n\r\ny\n"), "event: a\ndata: x\ndata: \ndata: y\ndata: \n\n");
    }

    #[test]
    fn an_event_that_is_too_long_is_passed_over() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(event("long", &"x".repeat(EVENT_BYTES_MAX)).trim_end().as_bytes()), []);
        assert!(reader.rest.len() < 10);
        let read = reader.read(format!("\n\n{}", event("next", "")).as_bytes());
        assert_eq!(read.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(), ["next"]);
    }
}
