//! The catalogue of misbehaving receivers, `receivers.json`, for those that need neither TLS nor time: how each one
//! behaves, and the exact outcome of an attempt. The file states how the outcome counts.
//!
//! TLS and HTTP/2 are in `secure_cases`. The tests in `receivers` use this file too.

use crate::script::{OK, Step, answer, send};
use posthaste_engine::outcome::ErrorClass;
use serde_json::Value;

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// A complete response with this status.
    Answer(u16),
    /// A response with this status and a truncated body.
    Truncated(u16),
    /// No response.
    Fails(ErrorClass),
}
pub(crate) use Expect::{Answer, Fails, Truncated};

/// All entries of the file.
pub(crate) fn catalogue() -> Vec<Value> {
    let file: Value = serde_json::from_str(include_str!("../../../../vectors/receivers.json")).expect("JSON");
    file["receivers"].as_array().expect("receivers").clone()
}

/// The entry of this name.
pub(crate) fn entry(id: &str) -> Value {
    catalogue().into_iter().find(|entry| entry["id"] == id).unwrap_or_else(|| panic!("no receiver {id}"))
}

pub(crate) fn head(lines: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{lines}\r\n")
}

pub(crate) fn then_hangs(text: &str) -> Vec<Step> {
    vec![Step::Read, send(text), Step::Hang]
}

/// Sends a text, then single bytes without end.
fn then_drips(text: &str) -> Vec<Step> {
    vec![Step::Read, send(text), Step::Drip(b"x".to_vec())]
}

pub(crate) fn bytes(bytes: &[u8]) -> Vec<Step> {
    vec![Step::Read, Step::Send(bytes.to_vec())]
}

pub(crate) fn floods(start: &str, again: Vec<u8>) -> Vec<Step> {
    vec![Step::Read, send(start), Step::Flood(again)]
}

/// Bytes without a pattern, the same every time.
fn noise(count: usize) -> Vec<u8> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Some((*state >> 33) as u8)
    };
    std::iter::successors(Some(7_u64), |state| Some(state.wrapping_mul(31).wrapping_add(11)))
        .scan(1_u64, |state, _| next(state))
        .take(count)
        .collect()
}

/// 512 KiB that expand to [`GZIP_BOMB_BYTES`] zeros: a repetition of the two bits that mean "258 of them again".
pub(crate) fn gzip_bomb() -> Vec<u8> {
    let start = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\xed\xc0\x81\0\0\0\0\x80\xa0\xfd\xa9\x17\xa9\0";
    // The end of the block, the checksum and the length.
    let end = b"\x06\xbc\x74\xe1\x4e\x09\x04\x40\x20";
    [&start[..], &[0; 512 * 1024], end].concat()
}

/// More than all bad receivers together may make the server use; see `isolation` in the tests of `receivers`.
pub(crate) const GZIP_BOMB_BYTES: u32 = 541_066_249;

pub(crate) fn sends_a_gzip_bomb() -> Vec<Step> {
    let bomb = gzip_bomb();
    let head = head(&format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", bomb.len()));
    bytes(&[head.as_bytes(), &bomb].concat())
}

pub(crate) fn connection_and_header_cases() -> Vec<(&'static str, Vec<Step>, Expect)> {
    vec![
        ("conn-rst-after-accept", vec![Step::Peek, Step::Reset], Fails(ErrorClass::Closed)),
        ("conn-fin-after-accept", vec![], Fails(ErrorClass::Closed)),
        ("drip-headers", then_drips("HTTP/1.1 200 OK\r\nX-Sl"), Fails(ErrorClass::Timeout)),
        ("late-ok", vec![Step::Read, Step::Hang], Fails(ErrorClass::Timeout)),
        ("header-no-colon", answer(&head("X-Nothing\r\nContent-Length: 0\r\n")), Fails(ErrorClass::Protocol)),
        ("header-obs-fold", answer(&head("X-A: 1\r\n 2\r\nContent-Length: 0\r\n")), Fails(ErrorClass::Protocol)),
        ("header-8bit", bytes(b"HTTP/1.1 200 OK\r\nX-A: caf\xe9\r\nContent-Length: 0\r\n\r\n"), Answer(200)),
        (
            "dup-content-length",
            answer(&head("Content-Length: 1\r\nContent-Length: 2\r\n")),
            Fails(ErrorClass::Protocol),
        ),
        (
            "cl-and-te",
            answer(&head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")),
            Fails(ErrorClass::Protocol),
        ),
        ("cl-huge", then_hangs(&head("Content-Length: 9223372036854775807\r\n")), Truncated(200)),
        ("http09", answer("hello, this is not HTTP\r\n\r\n"), Fails(ErrorClass::Protocol)),
        ("http10", answer("HTTP/1.0 200 OK\r\n\r\nuntil the end"), Answer(200)),
        ("http-version-9", answer("HTTP/9.9 200 OK\r\n\r\n"), Fails(ErrorClass::Protocol)),
        ("status-letters", answer("HTTP/1.1 2OO OK\r\n\r\n"), Fails(ErrorClass::Protocol)),
        ("status-600", answer("HTTP/1.1 600 Odd\r\nContent-Length: 0\r\n\r\n"), Answer(600)),
        ("garbage-first", bytes(&noise(1024 * 1024)), Fails(ErrorClass::Protocol)),
        ("one-100", answer(&format!("HTTP/1.1 100 Continue\r\n\r\n{OK}")), Answer(200)),
        (
            "upgrade-101",
            answer("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
            Answer(101),
        ),
        ("102-then-hang", then_hangs(&"HTTP/1.1 102 Processing\r\n\r\n".repeat(5)), Fails(ErrorClass::Timeout)),
        ("expect-ignored", answer(OK), Answer(200)),
    ]
}

pub(crate) fn body_cases() -> Vec<(&'static str, Vec<Step>, Expect)> {
    let chunked = head("Transfer-Encoding: chunked\r\n");
    vec![
        ("drip-body", then_drips(&head("Content-Length: 1000000\r\n")), Truncated(200)),
        ("huge-body", floods(&head("Content-Length: 10737418240\r\n"), vec![b'x'; 65_536]), Truncated(200)),
        ("endless-chunked", floods(&chunked, b"4\r\nendl\r\n".repeat(1_000)), Truncated(200)),
        (
            "reset-mid-body",
            vec![Step::Read, send(&(head("Content-Length: 10\r\n") + "half")), Step::Reset],
            Truncated(200),
        ),
        ("short-body", answer(&(head("Content-Length: 100\r\n") + "ten bytes.")), Truncated(200)),
        ("bad-chunk-size", answer(&format!("{chunked}zz\r\nhello\r\n0\r\n\r\n")), Truncated(200)),
        ("chunk-overflow", answer(&format!("{chunked}FFFFFFFFFFFFFFFFF\r\nhello\r\n")), Truncated(200)),
        ("trailer-flood", floods(&format!("{chunked}0\r\n"), b"X-Trailer: 1\r\n".repeat(1_000)), Truncated(200)),
        ("no-last-chunk", answer(&format!("{chunked}5\r\nhello\r\n")), Truncated(200)),
        // Longer than the part that the log keeps.
        ("gzip-bomb", sends_a_gzip_bomb(), Truncated(200)),
        ("invalid-utf8", bytes(&[head("Content-Length: 3\r\n").as_bytes(), b"\xff\xfe\xfd"].concat()), Answer(200)),
        ("nul-body", bytes(&[head("Content-Length: 3\r\n").as_bytes(), b"\0\0\0"].concat()), Answer(200)),
        ("html-js-body", answer("HTTP/1.1 500 Oops\r\nContent-Length: 17\r\n\r\n<script></script>"), Answer(500)),
        ("fail-after-side-effect", answer("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), Answer(500)),
    ]
}

pub(crate) fn marker_cases() -> Vec<(&'static str, Vec<Step>, Expect)> {
    let marked = |status: u16, lines: &str| answer(&format!("HTTP/1.1 {status} X\r\n{lines}Content-Length: 0\r\n\r\n"));
    let twice = "Upstash-NonRetryable-Error: true\r\nUpstash-NonRetryable-Error: false\r\n";
    vec![
        ("489-header", marked(489, "Upstash-NonRetryable-Error: true\r\n"), Answer(489)),
        ("489-no-header", marked(489, ""), Answer(489)),
        ("489-header-false", marked(489, "Upstash-NonRetryable-Error: false\r\n"), Answer(489)),
        ("489-header-case", marked(489, "upstash-nonretryable-error: TRUE\r\n"), Answer(489)),
        ("489-header-twice", marked(489, twice), Answer(489)),
        ("200-header", marked(200, "Upstash-NonRetryable-Error: true\r\n"), Answer(200)),
        ("429-retry-after", marked(429, "Retry-After: 7\r\n"), Answer(429)),
        ("503-retry-after-date", marked(503, "Retry-After: Wed, 21 Oct 2099 07:28:00 GMT\r\n"), Answer(503)),
        ("429-retry-after-huge", marked(429, "Retry-After: 999999999\r\n"), Answer(429)),
        ("429-retry-after-negative", marked(429, "Retry-After: -1\r\n"), Answer(429)),
    ]
}

/// All receivers that only respond with a status, by their names in the file.
pub(crate) fn status_cases() -> Vec<(String, Vec<Step>, Expect)> {
    let case = |id: String| {
        let status: u16 = id.strip_prefix("st-")?.parse().expect("a status");
        let text = format!("HTTP/1.1 {status} X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
        Some((id, answer(&text), Answer(status)))
    };
    catalogue().iter().map(|entry| entry["id"].as_str().expect("an id").to_owned()).filter_map(case).collect()
}
