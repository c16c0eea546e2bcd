//! JSON that is written piece by piece: a large body is in RAM once, as it is stored, and is escaped or encoded while it is
//! sent.

use super::shape::{Form, Large, Shaped};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use posthaste_wire::encoding::base64;
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Bytes of a large body that are escaped or encoded at once; divisible by 3, so that pieces of base64 need no padding.
const STEP_BYTES: usize = 48 * 1024;
const _: () = assert!(STEP_BYTES.is_multiple_of(3));

/// A part of a JSON text.
#[derive(Clone, Debug)]
enum Piece {
    /// JSON already.
    Ready(Bytes),
    /// The inside of a JSON string: this text, to be escaped. Its length then.
    Text(Bytes, u64),
    /// The inside of a JSON string: these bytes, to be encoded.
    Base64(Bytes),
}

impl Piece {
    /// How long it will be.
    fn len(&self) -> u64 {
        match self {
            Piece::Ready(bytes) => bytes.len() as u64,
            Piece::Text(_, len) => *len,
            Piece::Base64(bytes) => bytes.len().div_ceil(3) as u64 * 4,
        }
    }

    fn source(&mut self) -> &mut Bytes {
        match self {
            Piece::Ready(bytes) | Piece::Text(bytes, _) | Piece::Base64(bytes) => bytes,
        }
    }

    /// The next bytes of it; `None` when there are no more.
    fn next(&mut self) -> Option<Bytes> {
        let source = self.source();
        if source.is_empty() {
            return None;
        }
        let step = source.split_to(source.len().min(STEP_BYTES));
        Some(match self {
            Piece::Ready(_) => step,
            Piece::Text(..) => escaped(&step).into(),
            Piece::Base64(_) => base64(&step).into(),
        })
    }
}

/// A JSON text under construction.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    pieces: Vec<Piece>,
    /// What was written since the last piece.
    open: Vec<u8>,
    /// Bytes that it keeps in RAM.
    held: usize,
}

impl Pieces {
    /// A value, all of it in RAM.
    pub(super) fn of(value: &impl Serialize) -> Pieces {
        let mut pieces = Pieces::default();
        pieces.value(value);
        pieces
    }

    /// Writes a part of the text as it stands.
    pub(super) fn raw(&mut self, text: &str) {
        self.open.extend_from_slice(text.as_bytes());
    }

    /// Writes a value.
    pub(super) fn value(&mut self, value: &impl Serialize) {
        serde_json::to_writer(&mut self.open, value).expect("JSON can be written into RAM");
    }

    /// Writes an object whose large members follow the others.
    pub(super) fn object<T: Serialize>(&mut self, shaped: Shaped<T>) {
        let Shaped { object, large } = shaped;
        self.value(&object);
        self.open.pop();
        let is_empty = self.open.ends_with(b"{");
        for (place, Large { name, bytes, form }) in large.into_iter().enumerate() {
            self.raw(if is_empty && place == 0 { "\"" } else { ",\"" });
            self.raw(name);
            self.raw("\":\"");
            match form {
                Form::Text => {
                    let len = bytes.iter().map(|byte| escape(*byte).len() as u64).sum();
                    self.push(Piece::Text(bytes, len));
                }
                Form::Base64 => self.push(Piece::Base64(bytes)),
            }
            self.raw("\"");
        }
        self.raw("}");
    }

    /// Writes bytes as base64 within a JSON string that was begun.
    pub(super) fn base64(&mut self, bytes: Bytes) {
        self.push(Piece::Base64(bytes));
    }

    /// Writes the elements of a list.
    pub(super) fn list(&mut self, elements: impl IntoIterator<Item = Shaped<impl Serialize>>) {
        self.raw("[");
        for (place, element) in elements.into_iter().enumerate() {
            if place > 0 {
                self.raw(",");
            }
            self.object(element);
        }
        self.raw("]");
    }

    /// Writes a list of values, each made when it is its turn.
    pub(super) fn values(&mut self, values: impl IntoIterator<Item = impl Serialize>) {
        self.raw("[");
        for (place, value) in values.into_iter().enumerate() {
            if place > 0 {
                self.raw(",");
            }
            self.value(&value);
        }
        self.raw("]");
    }

    /// Writes what was written elsewhere, perhaps once more; it is in RAM once.
    pub(super) fn again(&mut self, other: &Finished) {
        self.close();
        self.pieces.extend(other.pieces.iter().cloned());
    }

    /// The bytes that it keeps in RAM are those of what it is made of as well.
    pub(super) fn holds(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> Finished {
        self.close();
        Finished { pieces: self.pieces, held: self.held }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let ready = Bytes::from(std::mem::take(&mut self.open));
            self.held += ready.len();
            self.pieces.push(Piece::Ready(ready));
        }
    }

    fn push(&mut self, mut piece: Piece) {
        self.close();
        self.held += piece.source().len();
        self.pieces.push(piece);
    }
}

/// A JSON text, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pieces: Vec<Piece>,
    held: usize,
}

impl Finished {
    /// Bytes that it keeps in RAM.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// All of it at once, for what is short or sent alone.
    pub(super) fn into_text(self) -> String {
        let mut text = Vec::new();
        for mut piece in self.pieces {
            while let Some(bytes) = piece.next() {
                text.extend_from_slice(&bytes);
            }
        }
        String::from_utf8(text).expect("JSON is UTF-8")
    }

    /// The body of a response, which keeps `guard` until it is sent or given up.
    pub(super) fn into_body<G: Send + Unpin + 'static>(self, guard: G) -> axum::body::Body {
        let left = self.pieces.iter().map(Piece::len).sum();
        axum::body::Body::new(Sending { pieces: self.pieces.into(), left, _guard: guard })
    }
}

/// The body of a response.
struct Sending<G> {
    pieces: VecDeque<Piece>,
    left: u64,
    _guard: G,
}

impl<G: Unpin> http_body::Body for Sending<G> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while let Some(piece) = self.pieces.front_mut() {
            match piece.next() {
                Some(bytes) => {
                    self.left -= bytes.len() as u64;
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                None => drop(self.pieces.pop_front()),
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

fn escaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 8);
    let mut rest = text;
    // Most bytes stay as they are, and are copied many at once.
    while let Some(place) = rest.iter().position(|byte| !matches!(escape(*byte), Escape::Plain)) {
        out.extend_from_slice(&rest[..place]);
        out.extend_from_slice(escape(rest[place]).as_bytes(&rest[place..=place]));
        rest = &rest[place + 1..];
    }
    out.extend_from_slice(rest);
    out
}

/// How a byte of UTF-8 stands in a JSON string.
enum Escape {
    /// As it is.
    Plain,
    /// As this.
    As(&'static str),
    /// A control character by its number.
    Control([u8; 6]),
}

impl Escape {
    fn len(&self) -> usize {
        match self {
            Escape::Plain => 1,
            Escape::As(text) => text.len(),
            Escape::Control(text) => text.len(),
        }
    }

    fn as_bytes<'a>(&'a self, plain: &'a [u8]) -> &'a [u8] {
        match self {
            Escape::Plain => plain,
            Escape::As(text) => text.as_bytes(),
            Escape::Control(text) => text,
        }
    }
}

fn escape(byte: u8) -> Escape {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' => Escape::As("\\\""),
        b'\\' => Escape::As("\\\\"),
        b'\n' => Escape::As("\\n"),
        b'\r' => Escape::As("\\r"),
        b'\t' => Escape::As("\\t"),
        0x08 => Escape::As("\\b"),
        0x0c => Escape::As("\\f"),
        0..=0x1f => {
            let (high, low) = (DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]);
            Escape::Control([b'\\', b'u', b'0', b'0', high, low])
        }
        _ => Escape::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Object;
    use super::*;
    use http_body::Body as _;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    async fn text_of(finished: Finished) -> Vec<u8> {
        let body = finished.into_body(());
        let length = body.size_hint().exact();
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(length, Some(bytes.len() as u64), "the announced length");
        bytes.to_vec()
    }

    fn large(name: &'static str, bytes: impl Into<Bytes>, form: Form) -> Large {
        Large { name, bytes: bytes.into(), form }
    }

    #[tokio::test]
    async fn a_large_body_is_escaped_as_a_small_one_is() {
        let mut odd: String = (0..=0x2ff).filter_map(char::from_u32).collect();
        odd.push_str("\u{2028}😀\"\\");
        for repeats in [0, 1, 70] {
            let text = odd.repeat(repeats);
            let object = json!({ "id": 1 }).as_object().unwrap().clone();
            let bytes: Vec<u8> = (0..=255).cycle().take(repeats * 1_001).collect();
            let mut pieces = Pieces::default();
            pieces.list([
                Shaped { object, large: vec![large("body", text.clone(), Form::Text)] },
                Shaped {
                    object: Object::new(),
                    large: vec![large("a", bytes.clone(), Form::Base64), large("b", text.clone(), Form::Text)],
                },
                Shaped::from(Object::new()),
            ]);
            let read: Value = serde_json::from_slice(&text_of(pieces.finish()).await).unwrap();
            assert_eq!(read, json!([{ "id": 1, "body": text }, { "a": base64(&bytes), "b": text }, {}]));
        }
    }

    #[tokio::test]
    async fn what_is_written_twice_is_held_once() {
        let mut line = Pieces::default();
        line.object(Shaped { object: Object::new(), large: vec![large("body", vec![b'x'; 100_000], Form::Text)] });
        let line = line.finish();
        let mut pieces = Pieces::default();
        pieces.raw("[");
        pieces.again(&line);
        pieces.raw(",");
        pieces.again(&line);
        pieces.raw("]");
        pieces.holds(line.held());
        let finished = pieces.finish();
        assert!(finished.held() < 101_000, "{}", finished.held());
        let read: Vec<Value> = serde_json::from_slice(&text_of(finished).await).unwrap();
        assert_eq!(read[0]["body"].as_str().map(str::len), Some(100_000));
        assert_eq!(read[0], read[1]);
    }
}
