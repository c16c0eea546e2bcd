//! The answers of the listener itself, before a request reaches the API: JSON as the API's errors are.

use super::heads::Refusal;
use super::{HEAD_BYTES_MAX, HEADERS_MAX};
use hyper::StatusCode;
use std::fmt::Write;
use std::io::IoSlice;

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Refusal::BareLf | Refusal::TwoFramings | Refusal::InvalidLength | Refusal::InvalidChunk => {
                StatusCode::BAD_REQUEST
            }
            Refusal::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Refusal::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn text(self) -> String {
        match self {
            Refusal::BareLf => "a line of the request ends with LF alone; end each line with CR LF".to_owned(),
            Refusal::TwoFramings => {
                "the request has both Transfer-Encoding and Content-Length; send only one of them".to_owned()
            }
            Refusal::InvalidLength => {
                "Content-Length: not a decimal number, too long, or two different ones; send it once".to_owned()
            }
            Refusal::InvalidChunk => "the chunked body is malformed; nothing was stored".to_owned(),
            Refusal::TooLarge => too_large(),
            Refusal::NoRoom => {
                "too many large request heads at once, from this address or in total; try again, or send fewer headers"
                    .to_owned()
            }
        }
    }
}

fn too_large() -> String {
    format!(
        "the request line and headers are too large: at most {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} headers are accepted"
    )
}

/// What hyper says by itself, without a body, to a request that it cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bare<'a> {
    status: u16,
    date: &'a str,
}

impl<'a> Bare<'a> {
    /// Recognizes it by its whole form: the status line, `connection: close`, `content-length: 0`, the date, and no more.
    pub(super) fn of(slices: &'a [IoSlice<'a>]) -> Option<Bare<'a>> {
        let (first, rest) = slices.split_first()?;
        if !first.starts_with(b"HTTP/1.") || first.get(9) != Some(&b'4') || rest.iter().any(|slice| !slice.is_empty()) {
            return None;
        }
        let text = std::str::from_utf8(first).ok()?.strip_suffix("\r\n\r\n")?;
        let (status_line, headers) = text.split_once("\r\n")?;
        let status = status_line.split(' ').nth(1)?.parse().ok()?;
        let (mut date, mut is_empty, mut is_last) = ("", false, false);
        for line in headers.split("\r\n") {
            match line.split_once(": ")? {
                ("content-length", "0") => is_empty = true,
                ("connection", "close") => is_last = true,
                ("date", value) => date = value,
                _ => return None,
            }
        }
        (matches!(status, 400 | 414 | 431) && is_empty && is_last).then_some(Bare { status, date })
    }

    /// The same with a body, or what we refused the request for.
    pub(super) fn with_text(self, refusal: Option<Refusal>) -> Vec<u8> {
        let (status, text) = match (refusal, self.status) {
            (Some(refusal), _) => (refusal.status(), refusal.text()),
            (None, 414) => (StatusCode::URI_TOO_LONG, "the path and query are too long".to_owned()),
            (None, 431) => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, too_large()),
            (None, _) => {
                let text = "this is not a valid HTTP/1.1 request: its request line or one of its headers is malformed";
                (StatusCode::BAD_REQUEST, text.to_owned())
            }
        };
        answer(status, &text, self.date)
    }
}

/// The answer to a connection that its address has one too many of.
pub(super) fn too_many_connections(max: usize) -> Vec<u8> {
    let text = format!(
        "too many connections from your address: at most {max} at once; reuse connections, or ask the operator to raise connections_per_address"
    );
    answer(StatusCode::TOO_MANY_REQUESTS, &text, "")
}

fn answer(status: StatusCode, text: &str, date: &str) -> Vec<u8> {
    let body = serde_json::json!({ "error": text }).to_string();
    let mut head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
    if !date.is_empty() {
        head.push_str("date: ");
        head.push_str(date);
        head.push_str("\r\n");
    }
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        head.push_str("retry-after: 1\r\n");
    }
    // Writing to a string cannot fail.
    let _ = write!(head, "content-length: {}\r\n\r\n{body}", body.len());
    head.into_bytes()
}

/// What makes hyper refuse a request wherever in its head it stands.
pub(super) const POISON: &[u8] = b"\0\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: Mon, 01 Jun 2026 12:00:00 GMT\r\n\r\n";

    fn seen(slices: &[&str]) -> Option<(u16, String)> {
        let slices: Vec<IoSlice<'_>> = slices.iter().map(|text| IoSlice::new(text.as_bytes())).collect();
        Bare::of(&slices).map(|bare| (bare.status, bare.date.to_owned()))
    }

    #[test]
    fn only_what_hyper_says_by_itself_is_given_a_body() {
        assert_eq!(seen(&[BARE, ""]), Some((431, "Mon, 01 Jun 2026 12:00:00 GMT".to_owned())));
        assert_eq!(seen(&[BARE, "more"]), None);
        assert_eq!(seen(&[&BARE.replace("431", "200")]), None);
        assert_eq!(seen(&[&BARE.replace("length: 0", "length: 5")]), None);
        assert_eq!(seen(&[&BARE.replace("connection: close\r\n", "")]), None);
        assert_eq!(seen(&[&BARE.replace("date", "x-other")]), None);
        assert_eq!(seen(&[]), None);
    }

    #[test]
    fn the_answer_has_the_text_as_json_and_its_length() {
        let slices = [IoSlice::new(BARE.as_bytes())];
        let bare = Bare::of(&slices).unwrap();
        for (refusal, status) in [(None, "431 "), (Some(Refusal::BareLf), "400 "), (Some(Refusal::NoRoom), "503 ")] {
            let answer = String::from_utf8(bare.with_text(refusal)).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
            assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
            assert!(head.contains("date: Mon, 01 Jun"), "{head}");
            assert_eq!(head.contains("retry-after"), status == "503 ", "{head}");
            assert!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"].is_string());
        }
    }
}
