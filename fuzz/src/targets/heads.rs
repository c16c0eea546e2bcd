//! Requests as the guard in front of hyper reads them: the result does not depend on how the bytes arrive, heads and
//! bodies end where a second reading finds their ends, and hyper serves exactly those requests.
//!
//! The first byte sets the pieces in which the bytes arrive, the second the room for large heads. The rest is the
//! client's bytes in a short form: see [`sent`].

use super::choice;
use super::heads_reread::{Reread, reread};
use crate::mutate::Random;
use http::Uri;
use posthaste::http_fuzzing::{HEAD_BYTES_MAX, HEAD_FREE_BYTES, HEADERS_MAX, Place, Refusal, Scanner, Served, served};
use tokio::runtime::Runtime;

/// Repeats the byte before it for this many KiB.
const REPEAT: u8 = 0xfe;
/// Stands for this many times eight header lines.
const LINES: u8 = 0xfd;
/// Most sent bytes of most inputs: slightly more than a head may have without room.
const SENT_BYTES_MAX: usize = HEAD_FREE_BYTES + 4 * 1024;
/// Most sent bytes of the other inputs, which are slow: slightly more than any head may have.
const SENT_BYTES_MAX_OF_LARGE: usize = HEAD_BYTES_MAX + 6 * 1024;
/// Set in the second byte of those inputs.
const LARGE: u8 = 0x80;
/// Most pieces for hyper.
const PIECES_MAX: usize = 16;

thread_local! {
    static RUNTIME: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime can be made");
}

pub(crate) fn run(data: &[u8]) {
    let (split, data) = choice(data);
    let (room, data) = choice(data);
    let bytes = sent(data, if room & LARGE == 0 { SENT_BYTES_MAX } else { SENT_BYTES_MAX_OF_LARGE });
    let room = if room & !LARGE == 0 { HEAD_BYTES_MAX } else { usize::from(room & !LARGE) * 1024 };
    let followed = Followed::of(&bytes, room);
    check_pieces(&followed, &[&bytes], room);
    check_pieces(&followed, &pieces(&bytes, split, 1), room);
    let again = reread(&bytes, &followed, room);
    let pieces = pieces(&bytes, split, bytes.len() / PIECES_MAX + 1);
    let (served, written) = RUNTIME.with(|runtime| runtime.block_on(served(&pieces, room)));
    check_served(&again, &served, &written);
}

/// The client's bytes. Two byte values are abbreviations.
fn sent(data: &[u8], bytes_max: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(data.len());
    let mut data = data.iter();
    while let Some(byte) = data.next() {
        match *byte {
            REPEAT | LINES => {
                let times = usize::from(data.next().copied().unwrap_or(0));
                let repeated = bytes.last().copied().unwrap_or(0);
                match *byte {
                    REPEAT => bytes.extend(std::iter::repeat_n(repeated, times * 1024)),
                    _ => bytes.extend(b"a:b\r\n".repeat(times * 8)),
                }
            }
            byte => bytes.push(byte),
        }
        bytes.truncate(bytes_max);
    }
    bytes
}

/// Pieces of one size, or of various sizes.
fn pieces(bytes: &[u8], split: u8, size_min: usize) -> Vec<&[u8]> {
    let mut random = Random::new(u64::from(split));
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let size = if split < 128 { usize::from(split) } else { random.below(64) };
        let (piece, others) = rest.split_at(size.max(size_min).min(rest.len()));
        pieces.push(piece);
        rest = others;
    }
    pieces
}

/// The state of the guard after every byte, read one by one.
pub(super) struct Followed {
    /// After none, after the first, and so on, up to the first rejected byte.
    pub places: Vec<Place>,
    /// The rejected byte.
    pub refused: Option<(usize, Refusal)>,
}

impl Followed {
    fn of(bytes: &[u8], room: usize) -> Followed {
        let mut scanner = Scanner::new(room);
        let mut places = vec![scanner.place()];
        for (at, byte) in bytes.iter().enumerate() {
            if let Err((good, why)) = scanner.read(&[*byte]) {
                assert_eq!(good, 0, "no part of a byte is good");
                return Followed { places, refused: Some((at, why)) };
            }
            places.push(scanner.place());
        }
        Followed { places, refused: None }
    }

    /// The end of the head of a request, if it has one.
    pub(super) fn end_of_head(&self, request: usize) -> Option<usize> {
        let end = self.places.partition_point(|place| place.complete <= request as u64);
        (end < self.places.len()).then_some(end)
    }

    /// The last place.
    pub(super) fn last(&self) -> Place {
        *self.places.last().expect("the first place is there")
    }
}

fn is_about_size(why: Refusal) -> bool {
    matches!(why, Refusal::TooLarge | Refusal::NoRoom)
}

/// The guard reaches the same states and the same end in whatever pieces the bytes arrive.
fn check_pieces(followed: &Followed, pieces: &[&[u8]], room: usize) {
    let (mut scanner, mut at) = (Scanner::new(room), 0);
    for piece in pieces {
        match scanner.read(piece) {
            Ok(()) => {
                at += piece.len();
                assert_eq!(Some(&scanner.place()), followed.places.get(at), "after {at} bytes");
            }
            Err((good, why)) => {
                let (bad, because) = followed.refused.expect("byte by byte it is accepted");
                match is_about_size(why) {
                    // An oversized line is detected at the end of the piece.
                    true => {
                        assert!(is_about_size(because) && at + good <= bad && bad < at + piece.len(), "{because:?}")
                    }
                    false => assert_eq!((at + good, why), (bad, because)),
                }
                let (place, last) = (scanner.place(), followed.last());
                assert_eq!((place.complete, place.is_in_body), (last.complete, last.is_in_body));
                return;
            }
        }
    }
    assert_eq!(followed.refused, None, "{at} bytes were accepted");
}

/// hyper serves the requests of the second reading, in that order, and nothing else. If it does not serve all of them,
/// the client gets an error.
fn check_served(again: &Reread, served: &[Served], written: &[u8]) {
    let is_refused = || written.windows(10).any(|start| start == b"HTTP/1.1 4" || start == b"HTTP/1.1 5");
    assert!(served.len() <= again.requests.len(), "{served:?} instead of {:?}", again.requests);
    for (request, served) in again.requests.iter().zip(served) {
        let target = request.target.parse::<Uri>().map(|uri| uri.to_string()).unwrap_or_default();
        assert_eq!((&served.method, &served.target), (&request.method, &target));
        assert!(served.headers <= HEADERS_MAX, "{} headers", served.headers);
        match (&request.body, &served.body) {
            (Some(body), Some(served)) => assert_eq!(body, served, "another body"),
            (None, Some(served)) => panic!("{served:?} is no whole body"),
            // hyper limits extensions and trailers.
            (Some(_), None) => assert!(request.is_chunked && is_refused(), "a whole body broke off"),
            (None, None) => {}
        }
    }
    let is_over = again.requests[..served.len()].iter().any(|request| request.may_be_the_last);
    let is_less = served.len() < again.requests.len() || again.is_refused;
    assert!(is_over || !is_less || is_refused(), "{served:?} instead of {:?}", again.requests);
}

#[test]
fn seeds_are_sent_in_full() {
    assert_eq!(sent(b"ab\xfe\x02c", SENT_BYTES_MAX).len(), 2 + 2 * 1024 + 1);
    assert_eq!(sent(b"\xfd\x01", SENT_BYTES_MAX), b"a:b\r\n".repeat(8));
    assert_eq!(sent(&[REPEAT, 255, REPEAT, 255], SENT_BYTES_MAX).len(), SENT_BYTES_MAX);
}
