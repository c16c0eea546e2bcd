//! A second reading of requests that shares no code with the guard: it parses heads with `httparse`, as hyper does,
//! framing by the rules of RFC 9112, and chunked bodies line by line. It determines the expected states of the guard.

use super::heads::Followed;
use httparse::{EMPTY_HEADER, Request, Status};
use posthaste::http_fuzzing::{HEAD_BYTES_MAX, HEAD_FREE_BYTES, HEADERS_MAX, LENGTH_LINE_BYTES_MAX, Refusal};

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The result of the second reading.
pub(super) struct Reread {
    pub requests: Vec<AgainRequest>,
    /// Whether the bytes after them are rejected.
    pub is_refused: bool,
}

#[derive(Debug)]
pub(super) struct AgainRequest {
    pub method: String,
    pub target: String,
    /// `None` if it is incomplete.
    pub body: Option<Vec<u8>>,
    pub is_chunked: bool,
    /// Whether the connection ends with it, or may end.
    pub may_be_the_last: bool,
}

enum Framing {
    Length(u64),
    Chunked,
}

/// Reads all requests that hyper would accept, and compares the states of the guard.
pub(super) fn reread(bytes: &[u8], followed: &Followed, room: usize) -> Reread {
    let (mut requests, mut from) = (Vec::new(), 0);
    loop {
        let refused = |requests, is_refused| Reread { requests, is_refused };
        let Some(end) = followed.end_of_head(requests.len()) else {
            check_open_head(&bytes[from..], from, followed, room);
            return refused(requests, followed.refused.is_some());
        };
        check_head(&bytes[from..end]);
        let mut headers = vec![EMPTY_HEADER; HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        match request.parse(&bytes[from..]) {
            Ok(Status::Complete(read)) => assert_eq!(from + read, end, "the head ends elsewhere"),
            Ok(Status::Partial) => panic!("the head has no end"),
            // hyper knows this one, and closes without a response.
            Err(_) => return refused(requests, !bytes[from..].starts_with(HTTP2_PREFACE)),
        }
        let Some(framing) = framing(&request) else { return refused(requests, true) };
        let is_chunked = matches!(framing, Framing::Chunked);
        let (method, target) = (text(request.method), text(request.path));
        let closes = |name: &str| name.eq_ignore_ascii_case("connection") || name.eq_ignore_ascii_case("upgrade");
        let may_be_the_last = request.version == Some(0)
            || method == "CONNECT"
            || request.headers.iter().any(|header| closes(header.name));
        let read = match framing {
            Framing::Length(length) => body(bytes, end, length, followed),
            Framing::Chunked => chunked_body(bytes, end, followed),
        };
        let (body, next) = read.map_or((None, None), |(body, next)| (Some(body), Some(next)));
        requests.push(AgainRequest { method, target, body, is_chunked, may_be_the_last });
        match next {
            Some(next) => from = next,
            None => return refused(requests, false),
        }
    }
}

fn text(text: Option<&str>) -> String {
    text.unwrap_or_default().to_owned()
}

/// The complete header lines of a head.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = head.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let lines = head[..whole].split_inclusive(|byte| *byte == b'\n');
    lines.skip_while(|line| *line == b"\r\n").skip(1)
}

fn value<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let value = line.get(name.len()..)?.strip_prefix(b":")?;
    line[..name.len()].eq_ignore_ascii_case(name.as_bytes()).then_some(value)
}

fn has(head: &[u8], name: &str) -> bool {
    lines(head).any(|line| value(line, name).is_some())
}

fn has_bare_lf(bytes: &[u8]) -> bool {
    let is_bare = |at: usize| bytes[at] == b'\n' && (at == 0 || bytes[at - 1] != b'\r');
    (0..bytes.len()).any(is_bare)
}

/// Properties of every head that the guard accepts, whether or not hyper would.
fn check_head(head: &[u8]) {
    assert!(head.len() <= HEAD_BYTES_MAX, "a head of {} bytes", head.len());
    assert!(!has_bare_lf(head), "a bare LF");
    assert!(!has(head, "transfer-encoding") || !has(head, "content-length"), "two framings");
}

/// A head without an end: hyper has not read it either, or it was rejected, and rightly so.
fn check_open_head(bytes: &[u8], from: usize, followed: &Followed, room: usize) {
    let parses = |bytes: &[u8]| Request::new(&mut vec![EMPTY_HEADER; HEADERS_MAX]).parse(bytes);
    assert!(!followed.last().is_in_body, "a body follows no head");
    let Some((bad, why)) = followed.refused else {
        assert!(!matches!(parses(bytes), Ok(Status::Complete(_))), "hyper reads a head that the guard does not see");
        return;
    };
    let bad = bad - from;
    let (good, head) = (&bytes[..bad], &bytes[..=bad]);
    match why {
        Refusal::BareLf => assert!(has_bare_lf(head) && !has_bare_lf(good)),
        Refusal::TwoFramings => assert!(has(head, "transfer-encoding") && has(head, "content-length")),
        Refusal::InvalidLength => {
            let line = lines(head).last().expect("there is a line");
            let is_too_long = line.len() > LENGTH_LINE_BYTES_MAX + 1;
            let lengths = lines(head).filter_map(|line| value(line, "content-length")).map(number);
            let lengths: Vec<Option<u64>> = lengths.collect();
            let last = *lengths.last().expect("there is a length");
            assert!(is_too_long || last.is_none() || lengths.iter().any(|length| *length != last), "a good length");
        }
        Refusal::TooLarge => assert_eq!(bad, HEAD_BYTES_MAX),
        Refusal::NoRoom => assert_eq!(bad, HEAD_FREE_BYTES + room),
        Refusal::InvalidChunk => panic!("a head has no chunks"),
    }
    let poisoned = parses(&[good, b"\0\r\n\r\n"].concat());
    assert!(poisoned.is_err(), "hyper makes {poisoned:?} of a refused head");
}

/// A decimal number that is a length.
fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value.strip_suffix(b"\r\n").unwrap_or(value)).ok()?.trim_matches([' ', '\t']);
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

/// The framing of the body after a head that the guard accepts; `None` if hyper rejects it.
fn framing(request: &Request<'_, '_>) -> Option<Framing> {
    let named = |name: &str| -> Vec<&[u8]> {
        let headers = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        headers.map(|header| header.value).collect()
    };
    let (encodings, lengths) = (named("transfer-encoding"), named("content-length"));
    if let Some(last) = encodings.last() {
        let last = last.rsplit(|byte| *byte == b',').next().unwrap_or_default();
        let is_chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
        return (is_chunked && request.version == Some(1)).then_some(Framing::Chunked);
    }
    let length = |value: &&[u8]| number(value).unwrap_or_else(|| panic!("{:?} is no length", value.escape_ascii()));
    let first = lengths.first().map_or(0, length);
    assert!(lengths.iter().all(|value| length(value) == first), "two lengths");
    // hyper accepts no larger ones.
    (first <= u64::MAX - 2).then_some(Framing::Length(first))
}

/// A body of a known length, and its end; `None` if it is incomplete.
fn body(bytes: &[u8], from: usize, length: u64, followed: &Followed) -> Option<(Vec<u8>, usize)> {
    let place = followed.places[from];
    assert_eq!((place.is_in_body, place.body_left), (length > 0, length), "another length");
    let (rest, length) = (&bytes[from..], usize::try_from(length).unwrap_or(usize::MAX));
    let Some(body) = rest.get(..length) else {
        assert_eq!((followed.last().body_left, followed.refused), ((length - rest.len()) as u64, None));
        return None;
    };
    let end = from + length;
    assert!(!followed.places[end].is_in_body, "the body has ended");
    assert!(length == 0 || followed.places[end - 1].body_left == 1, "the body has ended early");
    Some((body.to_vec(), end))
}

/// A chunked body, and its end; `None` if it is incomplete.
fn chunked_body(bytes: &[u8], from: usize, followed: &Followed) -> Option<(Vec<u8>, usize)> {
    assert!(followed.places[from].is_in_body, "a body follows");
    let (mut at, mut body) = (from, Vec::new());
    let is_whole = chunks(bytes, &mut at, &mut body);
    match is_whole {
        Ok(()) => {
            assert!(followed.places.len() > at && !followed.places[at].is_in_body, "the body has ended");
            assert!(followed.places[at - 1].is_in_body, "the body has ended early");
            Some((body, at))
        }
        Err(why) => {
            assert!(followed.last().is_in_body, "the body has not ended");
            match followed.refused {
                Some((bad, Refusal::InvalidChunk)) => assert!(bad >= at, "{at} is right"),
                Some((_, other)) => panic!("{other:?} in a body"),
                None => assert_eq!(why, Chunks::Unfinished),
            }
            None
        }
    }
}

/// Why a chunked body is incomplete.
#[derive(Debug, PartialEq, Eq)]
enum Chunks {
    Unfinished,
    Wrong,
}

/// Reads chunks and trailers. Advances `at` over the valid bytes.
fn chunks(bytes: &[u8], at: &mut usize, body: &mut Vec<u8>) -> Result<(), Chunks> {
    loop {
        let (size, next) = line(bytes, *at)?;
        let size = size.split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(size).map_err(|_| Chunks::Wrong)?.trim_end_matches([' ', '\t']);
        let is_number = !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = u64::from_str_radix(size, 16).ok().filter(|_| is_number).ok_or(Chunks::Wrong)?;
        *at = next;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).map_err(|_| Chunks::Unfinished)?;
        let data = bytes[*at..].get(..size).ok_or(Chunks::Unfinished)?;
        body.extend_from_slice(data);
        *at += size;
        let (nothing, next) = line(bytes, *at)?;
        if !nothing.is_empty() {
            return Err(Chunks::Wrong);
        }
        *at = next;
    }
    loop {
        let (trailer, next) = line(bytes, *at)?;
        *at = next;
        if trailer.is_empty() {
            return Ok(());
        }
    }
}

/// A line without its CR LF, and the start of the next one.
fn line(bytes: &[u8], from: usize) -> Result<(&[u8], usize), Chunks> {
    let rest = &bytes[from..];
    let end = rest.iter().position(|byte| [b'\r', b'\n'].contains(byte)).ok_or(Chunks::Unfinished)?;
    match rest[end..] {
        [b'\r', b'\n', ..] => Ok((&rest[..end], from + end + 2)),
        [b'\r'] => Err(Chunks::Unfinished),
        _ => Err(Chunks::Wrong),
    }
}
