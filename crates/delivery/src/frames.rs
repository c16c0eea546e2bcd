//! Counts the incoming frames of an HTTP/2 connection, and closes the connection if the receiver floods it with frames
//! that carry no content.
//!
//! HTTP/2 allows any number of frames without content (PING, SETTINGS, WINDOW_UPDATE and the like, and interim
//! responses), and each of them costs work. h2 processes all of them, and hyper does not report interim responses on
//! HTTP/2. Without this file only the timeout of an attempt would end a flood. Start at [`Framed`]. This file reads
//! only the heads of frames. h2 validates the frames and limits header blocks.

use posthaste_engine::limits;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Streams whose header blocks are counted at once. Beyond that the oldest is forgotten, and its next header blocks
/// count only as control frames.
const HEADS_COUNTED_MAX: usize = 1_024;

const HEAD_BYTES: usize = 9;
const PING_BYTES: usize = HEAD_BYTES + 8;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

// The longest frame that h2 sends in reply to a control frame is the reply to a PING. It must not pay for the next one.
const _: () = assert!(PING_BYTES < limits::CONTROL_FRAME_BYTES);

/// The kind of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Flood {
    #[error("too many empty HTTP/2 frames")]
    ControlFrames,
    #[error("too many interim responses")]
    Interim,
}

/// Why a connection was closed; empty if it was not. Code that only sees the broken connection reads it.
pub(super) type Flooded = Arc<OnceLock<Flood>>;

/// A transport that fails when its receiver floods it.
pub(super) struct Framed<S> {
    stream: S,
    frames: Frames,
    flooded: Flooded,
}

impl<S> Framed<S> {
    pub(super) fn new(stream: S) -> Framed<S> {
        Framed { stream, frames: Frames::new(Instant::now()), flooded: Flooded::default() }
    }

    /// The place that records a flood, also after the connection has ended.
    pub(super) fn flooded(&self) -> Flooded {
        self.flooded.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Framed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(flood) = this.flooded.get() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, *flood)));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        // The bytes are still passed on, and only the next read fails, because a response may precede the flood.
        if let came @ [_, ..] = &buffer.filled()[before..]
            && let Err(flood) = this.frames.read(came, Instant::now())
        {
            this.flooded.get_or_init(|| flood);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Framed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.frames.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.frames.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The state of the incoming frames.
#[derive(Debug)]
struct Frames {
    head: Head,
    /// Remaining bytes of the current frame.
    rest: usize,
    /// Header blocks that did not end their stream, for each stream without body bytes so far.
    heads: BTreeMap<u32, u32>,
    allowance: Allowance,
}

impl Frames {
    fn new(now: Instant) -> Frames {
        Frames { head: Head::default(), rest: 0, heads: BTreeMap::new(), allowance: Allowance::full(now) }
    }

    /// Reads the next bytes of the receiver, which may be cut anywhere.
    fn read(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Flood> {
        loop {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            let Some((next, behind)) = bytes[skipped..].split_first() else { return Ok(()) };
            bytes = behind;
            if let Some(frame) = self.head.push(*next) {
                self.rest = frame.rest;
                self.count(&frame, now)?;
            }
        }
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.allowance.add(*bytes);
        }
    }

    fn count(&mut self, frame: &Frame, now: Instant) -> Result<(), Flood> {
        match frame.kind {
            HEADERS if !frame.ends_stream => self.count_head(frame.stream)?,
            // The response has begun or ended. h2 treats later interim responses as an error.
            DATA | HEADERS | RST_STREAM => drop(self.heads.remove(&frame.stream)),
            _ => {}
        }
        self.allowance.add(frame.body_bytes);
        if frame.body_bytes == 0 { self.allowance.spend(now) } else { Ok(()) }
    }

    /// A header block is an interim response or the head of the final one, and only decompression could tell which.
    /// Therefore one more header block than interim responses is allowed.
    fn count_head(&mut self, stream: u32) -> Result<(), Flood> {
        let count = self.heads.entry(stream).or_default();
        *count += 1;
        if *count > limits::RESPONSE_INTERIM_MAX + 1 {
            return Err(Flood::Interim);
        }
        if self.heads.len() > HEADS_COUNTED_MAX {
            self.heads.pop_first();
        }
        Ok(())
    }
}

/// How many more control frames are allowed.
#[derive(Debug)]
struct Allowance {
    left: u32,
    /// Transferred bytes that do not yet pay for one more.
    bytes: usize,
    filled_at: Instant,
}

impl Allowance {
    fn full(now: Instant) -> Allowance {
        Allowance { left: limits::CONTROL_FRAMES_MAX, bytes: 0, filled_at: now }
    }

    /// Records transferred bytes: a busy connection may have more control frames than an idle one.
    fn add(&mut self, bytes: usize) {
        let bytes = self.bytes.saturating_add(bytes);
        self.bytes = bytes % limits::CONTROL_FRAME_BYTES;
        let more = u32::try_from(bytes / limits::CONTROL_FRAME_BYTES).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(more).min(limits::CONTROL_FRAMES_SAVED_MAX);
    }

    fn spend(&mut self, now: Instant) -> Result<(), Flood> {
        let refilled_every = Duration::from_millis(limits::CONTROL_FRAMES_REFILL_MS);
        if self.left == 0 && now.duration_since(self.filled_at) >= refilled_every {
            *self = Allowance::full(now);
        }
        self.left = self.left.checked_sub(1).ok_or(Flood::ControlFrames)?;
        Ok(())
    }
}

/// The received part of a frame's head, followed by the length of its padding if it is a DATA frame.
#[derive(Debug, Default)]
struct Head {
    bytes: [u8; HEAD_BYTES + 1],
    come: usize,
}

/// The fields of a frame's head.
struct Frame {
    kind: u8,
    ends_stream: bool,
    stream: u32,
    /// Bytes of body in the frame.
    body_bytes: usize,
    /// Remaining bytes of the frame.
    rest: usize,
}

impl Head {
    /// Adds a byte. Returns the frame if its head is complete.
    fn push(&mut self, byte: u8) -> Option<Frame> {
        self.bytes[self.come] = byte;
        self.come += 1;
        if self.come < HEAD_BYTES {
            return None;
        }
        let [high, middle, low, kind, flags, stream @ .., padding] = self.bytes;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let is_padded = kind == DATA && flags & PADDED != 0 && length > 0;
        if is_padded && self.come == HEAD_BYTES {
            return None;
        }
        self.come = 0;
        let rest = length - usize::from(is_padded);
        let padding = if is_padded { usize::from(padding) } else { 0 };
        let body_bytes = if kind == DATA { rest.saturating_sub(padding) } else { 0 };
        let ends_stream = (kind == DATA || kind == HEADERS) && flags & END_STREAM != 0;
        // The highest bit is reserved.
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        Some(Frame { kind, ends_stream, stream, body_bytes, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    fn ping() -> Vec<u8> {
        frame(PING, 0, 0, &[7; 8])
    }

    /// How often `bytes` can be repeated before the flood is detected.
    fn passed(frames: &mut Frames, bytes: &[u8], most: usize, now: Instant) -> usize {
        (0..most).take_while(|_| frames.read(bytes, now).is_ok()).count()
    }

    #[test]
    fn frames_without_content_are_limited_whatever_their_kind() {
        let max = limits::CONTROL_FRAMES_MAX as usize;
        let now = Instant::now();
        let kinds = [
            ("PING", ping()),
            ("SETTINGS", frame(4, 0, 0, &[0, 3, 0, 0, 0, 100])),
            ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
            ("PRIORITY", frame(2, 0, 1, &[0; 5])),
            ("RST_STREAM", frame(RST_STREAM, 0, 1, &[0; 4])),
            ("GOAWAY", frame(7, 0, 0, &[0; 8])),
            ("CONTINUATION", frame(9, 0, 1, &[0x88; 100])),
            ("nobody knows", frame(200, 0xff, 1, &[0; 1_000])),
            ("DATA without a byte", frame(DATA, 0, 1, &[])),
            ("DATA of padding", frame(DATA, PADDED, 1, &[[255].as_slice(), &[0; 255]].concat())),
            ("DATA of more padding than there is", frame(DATA, PADDED, 1, &[255, 0, 0])),
            ("an end again and again", frame(HEADERS, END_STREAM, 1, &[0x88])),
        ];
        for (name, bytes) in kinds {
            assert_eq!(passed(&mut Frames::new(now), &bytes, 2 * max, now), max, "{name}");
        }
    }

    #[test]
    fn frames_are_found_wherever_reads_are_cut() {
        let flood = ping().repeat(limits::CONTROL_FRAMES_MAX as usize);
        let padded = frame(DATA, PADDED, 1, &[[3].as_slice(), b"body", &[0; 3]].concat());
        let all = [padded, frame(DATA, END_STREAM, 1, b""), flood].concat();
        let now = Instant::now();
        for piece in [1, 2, 7, 9, 10, 4_096, all.len()] {
            let floods = |bytes: &[u8]| {
                let mut frames = Frames::new(now);
                bytes.chunks(piece).filter(|bytes| frames.read(bytes, now).is_err()).count()
            };
            // The end of the stream is one frame too many, because four bytes of body do not pay for it.
            assert_eq!((floods(&all), floods(&all[..all.len() - PING_BYTES])), (1, 0), "{piece}");
        }
    }

    #[test]
    fn a_body_in_small_pieces_is_not_a_flood() {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        frames.read(&frame(HEADERS, 4, 1, &[0x88]), now).unwrap();
        assert_eq!(passed(&mut frames, &frame(DATA, 0, 1, b"x"), 1_000_000, now), 1_000_000);
    }

    #[test]
    fn days_of_keep_alives_are_not_a_flood() {
        let mut now = Instant::now();
        let mut frames = Frames::new(now);
        for _ in 0..3 * 86_400 {
            now += Duration::from_secs(1);
            frames.read(&ping(), now).unwrap();
        }
    }

    #[test]
    fn a_busy_connection_may_have_many_control_frames() {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        let update = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 64, 0]);
        // 10 MiB, with two window updates per KiB, all of them at the end.
        for _ in 0..640 {
            frames.wrote(&Poll::Ready(Ok(16_384)));
        }
        assert_eq!(passed(&mut frames, &update, 20_480, now), 20_480);
        // Many small requests, each with a PING, two window updates, a head and an end.
        for stream in (1..200_001).step_by(2) {
            frames.wrote(&Poll::Ready(Ok(300)));
            let head = frame(HEADERS, 4, stream, &[0x88]);
            let end = frame(DATA, END_STREAM, stream, b"");
            frames.read(&[ping(), update.clone(), update.clone(), head, end].concat(), now).unwrap();
        }
        assert!(frames.heads.is_empty());
    }

    #[test]
    fn the_saved_allowance_is_limited() {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        for _ in 0..10_000 {
            frames.wrote(&Poll::Ready(Ok(1 << 20)));
        }
        let saved = limits::CONTROL_FRAMES_SAVED_MAX as usize;
        assert_eq!(passed(&mut frames, &ping(), 2 * saved, now), saved);
    }

    #[test]
    fn our_replies_to_a_flood_do_not_add_to_the_allowance() {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        let answered = (0..).take_while(|_| {
            frames.wrote(&Poll::Ready(Ok(PING_BYTES)));
            frames.read(&ping(), now).is_ok()
        });
        assert!(answered.count() < 3 * limits::CONTROL_FRAMES_MAX as usize);
    }

    #[test]
    fn interim_responses_are_counted_per_stream_until_the_body_begins() {
        let now = Instant::now();
        let max = limits::RESPONSE_INTERIM_MAX as usize;
        let head = |stream| frame(HEADERS, 4, stream, &[0x88]);
        let mut frames = Frames::new(now);
        for stream in [1, 3, 5] {
            assert_eq!(passed(&mut frames, &head(stream), max + 1, now), max + 1, "{stream}");
        }
        // A body, trailers or a reset: the response of stream 1, 3 or 5 has begun.
        frames.read(&frame(DATA, 0, 1, b"x"), now).unwrap();
        frames.read(&frame(HEADERS, 4 | END_STREAM, 3, &[0x88]), now).unwrap();
        frames.read(&frame(RST_STREAM, 0, 5, &[0; 4]), now).unwrap();
        assert!(frames.heads.is_empty());
        assert_eq!(passed(&mut frames, &head(7), max + 1, now), max + 1);
        assert_eq!(frames.read(&head(7), now), Err(Flood::Interim));
    }

    #[test]
    fn streams_whose_heads_are_counted_are_limited() {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        for stream in (1..10_001).step_by(2) {
            frames.wrote(&Poll::Ready(Ok(300)));
            frames.read(&frame(HEADERS, 4, stream, &[0x88]), now).unwrap();
        }
        assert_eq!((frames.heads.len(), frames.heads.contains_key(&9_999)), (HEADS_COUNTED_MAX, true));
    }
}
