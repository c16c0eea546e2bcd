//! The frames that come in on one HTTP/2 connection, counted: a receiver that sends ever more of them and says nothing by
//! them is left.
//!
//! HTTP/2 lets a receiver send frames that bring nothing (PING, SETTINGS, WINDOW_UPDATE and the like, and interim answers),
//! each of which costs us work. h2 obeys them for as long as they come, and hyper does not tell of interim answers there, so
//! that without this file only the timeout of an attempt would end a flood. Start at [`Framed`]. Only the heads of frames
//! are read here; whether a frame makes sense is for h2 to say, which also bounds header blocks.

use posthaste_engine::limits;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Streams whose header blocks are counted at once. Of more, the oldest is forgotten: its next ones count as control
/// frames only.
const HEADS_COUNTED_MAX: usize = 1_024;

const HEAD_BYTES: usize = 9;
const PING_BYTES: usize = HEAD_BYTES + 8;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

// The longest that h2 writes because of a control frame, its answer to a PING, must not pay for the next one.
const _: () = assert!(PING_BYTES < limits::CONTROL_FRAME_BYTES);

/// What a receiver has too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Flood {
    #[error("too many empty HTTP/2 frames")]
    ControlFrames,
    #[error("too many interim responses")]
    Interim,
}

/// Why a connection was left; empty while it was not. For those who only see that it broke.
pub(super) type Flooded = Arc<OnceLock<Flood>>;

/// A connection that ends when its receiver floods it.
pub(super) struct Framed<S> {
    stream: S,
    frames: Frames,
    flooded: Flooded,
}

impl<S> Framed<S> {
    pub(super) fn new(stream: S) -> Framed<S> {
        Framed { stream, frames: Frames::new(Instant::now()), flooded: Flooded::default() }
    }

    /// Tells, also later, whether it was flooded.
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
        // The bytes are handed on all the same, and only the next read fails: there may be an answer before the flood.
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

/// What has come in so far.
#[derive(Debug)]
struct Frames {
    head: Head,
    /// Bytes of the current frame that are still to come.
    rest: usize,
    /// Header blocks that did not end their stream, by streams of which no body has come.
    heads: BTreeMap<u32, u32>,
    allowance: Allowance,
}

impl Frames {
    fn new(now: Instant) -> Frames {
        Frames { head: Head::default(), rest: 0, heads: BTreeMap::new(), allowance: Allowance::full(now) }
    }

    /// The next bytes of the receiver, cut anywhere.
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
            // The answer has begun, or ended. Interim ones behind that are an error to h2.
            DATA | HEADERS | RST_STREAM => drop(self.heads.remove(&frame.stream)),
            _ => {}
        }
        self.allowance.add(frame.body_bytes);
        if frame.body_bytes == 0 { self.allowance.spend(now) } else { Ok(()) }
    }

    /// A header block is an interim answer or the head of the real one, which only decompression could tell. So one more
    /// than there may be interim ones is let pass.
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

/// How many control frames may still come.
#[derive(Debug)]
struct Allowance {
    left: u32,
    /// Bytes exchanged that are not yet enough for one more.
    bytes: usize,
    filled_at: Instant,
}

impl Allowance {
    fn full(now: Instant) -> Allowance {
        Allowance { left: limits::CONTROL_FRAMES_MAX, bytes: 0, filled_at: now }
    }

    /// Something was exchanged: a busy connection has more control frames than an idle one.
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

/// The head of a frame, as far as it has come, and the length of its padding behind it, if it is of a body.
#[derive(Debug, Default)]
struct Head {
    bytes: [u8; HEAD_BYTES + 1],
    come: usize,
}

/// What the head of a frame says.
struct Frame {
    kind: u8,
    ends_stream: bool,
    stream: u32,
    /// Bytes of a body in it.
    body_bytes: usize,
    /// Bytes of it that are still to come.
    rest: usize,
}

impl Head {
    /// One more byte; the frame, if that was the last of its head.
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
        // The highest bit means nothing.
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

    /// How many of `bytes`, one behind the other, are let pass.
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
            // With the end of the stream there is one too many, for which four bytes of a body do not pay.
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
        // 10 MiB that the receiver tells twice of for each KiB, all of it at the end.
        for _ in 0..640 {
            frames.wrote(&Poll::Ready(Ok(16_384)));
        }
        assert_eq!(passed(&mut frames, &update, 20_480, now), 20_480);
        // Many small requests with a PING, two updates, a head and an end for each.
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
        // A body, trailers or a reset: the answer of stream 1, 3 or 5 is there.
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
