//! Reads along where requests begin and end, and refuses what hyper would accept although proxies may read it differently.
//!
//! hyper accepts a bare LF as a line end, and `Transfer-Encoding` together with `Content-Length`. A proxy that reads such a
//! request differently can be made to smuggle one request inside another, so both are refused before hyper sees them
//! (`docs/decisions/0012`). The rules here are never looser than hyper's: whatever passes has the same end for both.

use super::{HEAD_BYTES_MAX, HEAD_FREE_BYTES};
use memchr::memchr;

/// How much of a line is kept when it arrives in several pieces: enough for the headers that frame a body. A `Content-Length`
/// in a longer line is refused, however it arrives.
pub(super) const LINE_KEPT: usize = 128;

/// Why a request is refused before the API sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A line of the head ends with LF alone.
    BareLf,
    /// Both `Transfer-Encoding` and `Content-Length`.
    TwoFramings,
    /// A `Content-Length` that is no number, is another one than before, or stands in too long a line.
    InvalidLength,
    /// A chunked body that is malformed.
    InvalidChunk,
    /// More bytes than a head may have.
    TooLarge,
    /// No room for a large head.
    NoRoom,
}

/// Room for the bytes of large heads, shared by all connections.
pub(super) trait Room {
    /// Holds this many bytes for the head that is being read; `false` if there is no room.
    fn hold(&self, bytes: usize) -> bool;
}

/// The requests of one connection, read along byte by byte.
#[derive(Debug, Default)]
pub(super) struct Heads {
    at: At,
    /// Heads that were complete.
    complete: u64,
    /// Bytes of the head that is being read.
    bytes: usize,
    /// The request line was seen.
    is_begun: bool,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    /// Its last byte.
    last: u8,
    /// The line is longer than what is kept of it.
    is_cut: bool,
    length: Option<u64>,
    is_chunked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    /// In a body, with this many bytes left.
    Body(u64),
    Chunked(Chunk),
}

/// Where in a chunked body, as hyper's decoder has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Start,
    Size(u64),
    Space(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// After the last chunk, at the beginning of a line.
    End,
    EndLf,
    Trailer,
    TrailerLf,
}

impl Heads {
    /// How many heads were complete so far.
    pub(super) fn complete(&self) -> u64 {
        self.complete
    }

    /// Whether a head is being read that is longer than most are.
    pub(super) fn is_long(&self) -> bool {
        self.at == At::Head && self.bytes > HEAD_FREE_BYTES
    }

    /// Bytes of a body that are known to follow.
    pub(super) fn body_left(&self) -> u64 {
        match self.at {
            At::Body(left) | At::Chunked(Chunk::Data(left)) => left,
            At::Head | At::Chunked(_) => 0,
        }
    }

    pub(super) fn is_in_body(&self) -> bool {
        self.at != At::Head
    }

    /// Reads on. An error says how many of these bytes were good, and why the next ones are refused.
    pub(super) fn read(&mut self, bytes: &[u8], room: &impl Room) -> Result<(), (usize, Refusal)> {
        let mut from = 0;
        while from < bytes.len() {
            let rest = &bytes[from..];
            let read = match self.at {
                At::Head => self.head_line(rest, room),
                At::Body(left) => Ok(self.body(rest, left)),
                At::Chunked(chunk) => self.chunk(rest, chunk).ok_or((0, Refusal::InvalidChunk)),
            };
            from += read.map_err(|(good, why)| (from + good, why))?;
        }
        Ok(())
    }

    /// Reads a line of a head, or as much of one as there is.
    fn head_line(&mut self, bytes: &[u8], room: &impl Room) -> Result<usize, (usize, Refusal)> {
        let end = memchr(b'\n', bytes);
        let read = end.map_or(bytes.len(), |end| end + 1);
        self.bytes += read;
        if self.bytes > HEAD_BYTES_MAX {
            return Err((0, Refusal::TooLarge));
        }
        if self.bytes > HEAD_FREE_BYTES && !room.hold(self.bytes - HEAD_FREE_BYTES) {
            return Err((0, Refusal::NoRoom));
        }
        let Some(end) = end else {
            self.keep(bytes);
            return Ok(read);
        };
        let before_lf = if end > 0 { bytes[end - 1] } else { self.last };
        if before_lf != b'\r' {
            return Err((end, Refusal::BareLf));
        }
        if self.line.is_empty() {
            self.line_ended(&bytes[..end - 1], end > LINE_KEPT).map_err(|why| (end, why))?;
        } else {
            self.keep(&bytes[..end]);
            let mut line = std::mem::take(&mut self.line);
            if !self.is_cut {
                line.pop();
            }
            self.line_ended(&line, self.is_cut).map_err(|why| (end, why))?;
        }
        self.last = 0;
        self.is_cut = false;
        Ok(read)
    }

    fn keep(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(LINE_KEPT - self.line.len());
        self.line.extend_from_slice(&bytes[..kept]);
        self.is_cut |= kept < bytes.len();
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// A line of a head, without its end.
    fn line_ended(&mut self, line: &[u8], is_cut: bool) -> Result<(), Refusal> {
        match (line, self.is_begun) {
            // Some clients send an empty line after a body; RFC 9112 asks servers to ignore it.
            ([], false) => Ok(()),
            ([], true) => {
                self.head_ended();
                Ok(())
            }
            (_, false) => {
                self.is_begun = true;
                Ok(())
            }
            ([b'c' | b'C' | b't' | b'T', ..], true) => self.header(line, is_cut),
            (_, true) => Ok(()),
        }
    }

    fn header(&mut self, line: &[u8], is_cut: bool) -> Result<(), Refusal> {
        let Some(colon) = memchr(b':', line) else { return Ok(()) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = if is_cut { None } else { decimal(value) };
            let length = length.ok_or(Refusal::InvalidLength)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(Refusal::InvalidLength);
            }
        }
        if self.is_chunked && self.length.is_some() { Err(Refusal::TwoFramings) } else { Ok(()) }
    }

    fn head_ended(&mut self) {
        self.at = match (self.is_chunked, self.length) {
            (true, _) => At::Chunked(Chunk::Start),
            (false, None | Some(0)) => At::Head,
            (false, Some(length)) => At::Body(length),
        };
        self.complete += 1;
        self.bytes = 0;
        self.is_begun = false;
        self.length = None;
        self.is_chunked = false;
    }

    fn body(&mut self, bytes: &[u8], left: u64) -> usize {
        let read = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left - read as u64;
        self.at = if left == 0 { At::Head } else { At::Body(left) };
        read
    }

    fn chunk(&mut self, bytes: &[u8], chunk: Chunk) -> Option<usize> {
        if let Chunk::Data(left) = chunk {
            let read = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let left = left - read as u64;
            self.at = At::Chunked(if left == 0 { Chunk::DataCr } else { Chunk::Data(left) });
            return Some(read);
        }
        self.at = match chunk.next(bytes[0])? {
            Some(next) => At::Chunked(next),
            None => At::Head,
        };
        Some(1)
    }
}

impl Chunk {
    /// What follows this byte: `None` if it may not stand here, `Some(None)` at the end of the body.
    fn next(self, byte: u8) -> Option<Option<Chunk>> {
        Some(Some(match (self, byte) {
            (Chunk::Start, _) => Chunk::Size(hexadecimal(0, byte)?),
            (Chunk::Size(size) | Chunk::Space(size), b' ' | b'\t') => Chunk::Space(size),
            (Chunk::Size(size) | Chunk::Space(size), b';') => Chunk::Extension(size),
            (Chunk::Size(size) | Chunk::Space(size) | Chunk::Extension(size), b'\r') => Chunk::SizeLf(size),
            (Chunk::Size(size), _) => Chunk::Size(hexadecimal(size, byte)?),
            (Chunk::Extension(_), b'\n') => return None,
            (Chunk::Extension(size), _) => Chunk::Extension(size),
            (Chunk::SizeLf(0), b'\n') => Chunk::End,
            (Chunk::SizeLf(size), b'\n') => Chunk::Data(size),
            (Chunk::DataCr, b'\r') => Chunk::DataLf,
            (Chunk::DataLf, b'\n') => Chunk::Start,
            (Chunk::End, b'\r') => Chunk::EndLf,
            (Chunk::Trailer, b'\r') => Chunk::TrailerLf,
            (Chunk::TrailerLf, b'\n') => Chunk::End,
            (Chunk::EndLf, b'\n') => return Some(None),
            (Chunk::End | Chunk::Trailer, b'\n') => return None,
            (Chunk::End | Chunk::Trailer, _) => Chunk::Trailer,
            (Chunk::Space(_) | Chunk::SizeLf(_) | Chunk::Data(_), _) => return None,
            (Chunk::DataCr | Chunk::DataLf | Chunk::EndLf | Chunk::TrailerLf, _) => return None,
        }))
    }
}

/// Digits and nothing else, as hyper reads a length.
fn decimal(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

fn hexadecimal(size: u64, digit: u8) -> Option<u64> {
    let digit = char::from(digit).to_digit(16)?;
    size.checked_mul(16)?.checked_add(u64::from(digit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Room that remembers the most that was asked for.
    struct Asked(Cell<usize>, bool);

    impl Room for Asked {
        fn hold(&self, bytes: usize) -> bool {
            self.0.set(self.0.get().max(bytes));
            self.1
        }
    }

    /// How many heads were complete, whether the end is between two requests, or the first refusal.
    fn read(pieces: &[&[u8]]) -> Result<(u64, bool), (usize, Refusal)> {
        let (mut heads, mut before) = (Heads::default(), 0);
        for piece in pieces {
            heads.read(piece, &Asked(Cell::new(0), true)).map_err(|(good, why)| (before + good, why))?;
            before += piece.len();
        }
        Ok((heads.complete(), heads.at == At::Head && heads.bytes == 0))
    }

    const ACCEPTED: [(&str, u64); 8] = [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\n\r\n", 2),
        ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n\n\n\n\n\nGET / HTTP/1.1\r\n\r\n", 2),
        ("POST / HTTP/1.1\r\ncontent-length:\t5 \r\ncontent-length: 5\r\n\r\n12345GET / HTTP/1.1\r\n\r\n", 2),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\nabc\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n", 2),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nA \t;x=y\r\n0123456789\r\n00;\r\nT: a\r\nU: b\r\n\r\n",
            1,
        ),
        ("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n", 2),
        ("GET / HTTP/1.1\r\nContent-Lengths: x\r\nTransfer: y\r\nCookie\r\n\r\n", 1),
    ];

    const REFUSED: [(&str, &str, Refusal); 16] = [
        ("", "\nGET / HTTP/1.1\r\n\r\n", Refusal::BareLf),
        ("GET / HTTP/1.1", "\nHost: a\n\n", Refusal::BareLf),
        ("GET / HTTP/1.1\r\nHost: a", "\n\r\n", Refusal::BareLf),
        ("GET / HTTP/1.1\r\nHost: a\r\n", "\n", Refusal::BareLf),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r", "\n\r\n", Refusal::TwoFramings),
        ("GET / HTTP/1.1\r\nCONTENT-LENGTH: 5\r\nA: b\r\nTRANSFER-ENCODING: x\r", "\n\r\n", Refusal::TwoFramings),
        ("GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r", "\n\r\n", Refusal::InvalidLength),
        ("GET / HTTP/1.1\r\nContent-Length: +5\r", "\n\r\n", Refusal::InvalidLength),
        ("GET / HTTP/1.1\r\nContent-Length: 5, 5\r", "\n\r\n", Refusal::InvalidLength),
        ("GET / HTTP/1.1\r\nContent-Length:\r", "\n\r\n", Refusal::InvalidLength),
        ("GET / HTTP/1.1\r\nContent-Length: 18446744073709551616\r", "\n\r\n", Refusal::InvalidLength),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "\r\n", Refusal::InvalidChunk),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5", "\nhello", Refusal::InvalidChunk),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello", "\n0\r\n\r\n", Refusal::InvalidChunk),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1000000000000000", "0\r\n", Refusal::InvalidChunk),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer: a", "\n\r\n", Refusal::InvalidChunk),
    ];

    #[test]
    fn requests_end_where_their_framing_says() {
        for (text, heads) in ACCEPTED {
            assert_eq!(read(&[text.as_bytes()]), Ok((heads, true)), "{text:?}");
        }
    }

    #[test]
    fn ambiguous_framing_and_bare_line_feeds_are_refused_where_they_stand() {
        for (good, bad, why) in REFUSED {
            assert_eq!(read(&[format!("{good}{bad}").as_bytes()]), Err((good.len(), why)), "{good:?} {bad:?}");
        }
    }

    #[test]
    fn a_length_beyond_what_is_kept_of_a_line_is_refused_however_it_arrives() {
        let room = LINE_KEPT - "Content-Length: 5\r".len();
        for (spaces, is_kept) in [(room, true), (room + 1, false)] {
            let text = format!("POST / HTTP/1.1\r\nContent-Length: {}5\r\n\r\n12345", " ".repeat(spaces));
            let (one, other) = text.as_bytes().split_at(40);
            for pieces in [&[text.as_bytes()][..], &[one, other]] {
                match read(pieces) {
                    Ok(read) => assert!(is_kept && read == (1, true), "{read:?}"),
                    Err((_, why)) => assert!(!is_kept && why == Refusal::InvalidLength, "{why:?}"),
                }
            }
        }
    }

    #[test]
    fn large_heads_need_room_and_larger_ones_are_refused() {
        let head = |bytes: usize| format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(bytes - 19)).into_bytes();
        for (bytes, asked) in
            [(HEAD_FREE_BYTES, 0), (HEAD_FREE_BYTES + 7, 7), (HEAD_BYTES_MAX, HEAD_BYTES_MAX - HEAD_FREE_BYTES)]
        {
            let room = Asked(Cell::new(0), true);
            assert_eq!(Heads::default().read(&head(bytes), &room), Ok(()));
            assert_eq!(room.0.get(), asked);
        }
        let room = Asked(Cell::new(0), true);
        assert!(matches!(Heads::default().read(&head(HEAD_BYTES_MAX + 1), &room), Err((_, Refusal::TooLarge))));
        let full = Asked(Cell::new(0), false);
        assert_eq!(Heads::default().read(&head(HEAD_FREE_BYTES), &full), Ok(()), "small heads need none");
        assert!(matches!(Heads::default().read(&head(HEAD_FREE_BYTES + 1), &full), Err((_, Refusal::NoRoom))));
    }

    fn streams() -> impl Strategy<Value = String> {
        let texts: Vec<String> = ACCEPTED
            .iter()
            .map(|(text, _)| (*text).to_owned())
            .chain(REFUSED.iter().map(|(good, bad, _)| format!("{good}{bad}")))
            .collect();
        prop::collection::vec(prop::sample::select(texts), 1..4).prop_map(|texts| texts.concat())
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_how_the_bytes_arrive(text in streams(), cuts in prop::collection::vec(0..400_usize, 0..12)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(read(&pieces), read(&[bytes]));
        }
    }
}
