//! Causes of dead letters, normalized so that dead letters with the same problem have the same cause.
//!
//! A cause consists of the destination without the ids of single orders or customers, the status or the kind of error,
//! and the text of the response without numbers, ids and quotations; statuses in it stay. [`Cause::of`] never fails,
//! whatever the response is, and reads a bounded part of it. As long as these rules do not change, its [`CauseId`]
//! selects the same dead letters.

use crate::attempt_error::TIMED_OUT;
use crate::event::{DeadLetter, Response};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Most characters of a cause's text; the rest is cut.
pub const CAUSE_TEXT_CHARS_MAX: usize = 200;
/// Most characters of a cause's destination; the rest is cut.
pub const CAUSE_URL_CHARS_MAX: usize = 300;
/// Bytes of a response that are read.
const READ_BYTES_MAX: usize = 2 * 1024;
/// Longest JSON response that is searched for an error message. A longer one is read as text.
const JSON_BYTES_MAX: usize = 16 * 1024;
/// Longest quotation. Quotation marks further apart are not a pair.
const QUOTED_BYTES_MAX: usize = 300;
/// Fewest characters of an id that is not only a number.
const ID_CHARS_MIN: usize = 8;
/// Fewest digits that make a path segment an id rather than a version or a name.
const PATH_DIGITS_MIN: usize = 3;
/// Words that precede a status.
const STATUS_WORDS: [&str; 3] = ["status", "code", "http"];
/// Replaces an id or a quotation, and marks a cut.
const LEFT_OUT: char = '…';
/// Replaces a number.
const NUMBER: char = '#';

/// The problem that several dead letters share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cause {
    /// Origin and path of the destination, without ids.
    pub destination: String,
    /// The kind of response.
    pub kind: CauseKind,
    /// The text of the response, without the parts that differ between messages.
    pub text: String,
}

/// The response of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CauseKind {
    /// A response with this status.
    Status(u16),
    /// No response, because of this kind of error: see [`error_kind`].
    Error(&'static str),
}

/// Identifies a [`Cause`]: `cause_` and 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CauseId([u8; 16]);

/// The text is not a [`CauseId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCauseId;

const ID_PREFIX: &str = "cause_";

impl Cause {
    /// The cause of a dead letter of a message to this URL.
    pub fn of(url: &str, letter: &DeadLetter) -> Cause {
        let (kind, text) = match &letter.response {
            Some(response) => (CauseKind::Status(response.status), normalised(&words_of(response))),
            None => {
                let error = letter.error.as_deref().unwrap_or_default();
                (CauseKind::Error(error_kind(error)), normalised(error))
            }
        };
        Cause { destination: place_of(url), kind, text }
    }

    /// The same for equal causes, in every process.
    pub fn id(&self) -> CauseId {
        let kind = match self.kind {
            CauseKind::Status(status) => format!("status {status}"),
            CauseKind::Error(kind) => format!("error {kind}"),
        };
        let mut hash = Sha256::new();
        for part in [&self.destination, &kind, &self.text] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hash.finalize()[..16]);
        CauseId(id)
    }
}

impl fmt::Display for CauseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ID_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for CauseId {
    type Err = InvalidCauseId;

    fn from_str(text: &str) -> Result<CauseId, InvalidCauseId> {
        let digits = text.strip_prefix(ID_PREFIX).ok_or(InvalidCauseId)?.as_bytes();
        let value = |digit: u8| (digit as char).to_digit(16).filter(|_| !digit.is_ascii_uppercase());
        let mut id = [0; 16];
        if digits.len() != 2 * id.len() {
            return Err(InvalidCauseId);
        }
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            let (Some(high), Some(low)) = (value(pair[0]), value(pair[1])) else { return Err(InvalidCauseId) };
            *byte = (high * 16 + low) as u8;
        }
        Ok(CauseId(id))
    }
}

/// The kind of an error, from our own text about a missing response.
pub fn error_kind(text: &str) -> &'static str {
    const STARTS: [(&str, &str); 14] = [
        (TIMED_OUT, "timeout"),
        ("unable to resolve host", "dns"),
        ("destination refused", "blocked"),
        ("could not connect", "connect"),
        ("TLS ", "tls"),
        ("the connection ", "closed"),
        ("the receiver closed", "closed"),
        ("the server is stopping", "closed"),
        ("the response", "protocol"),
        ("too many interim responses", "protocol"),
        // Dead letters of earlier versions have these texts.
        ("the answer", "protocol"),
        ("too many interim answers", "protocol"),
        ("cannot be sent", "protocol"),
        ("loop:", "loop"),
    ];
    if text.contains(" timed out after ") {
        return "timeout";
    }
    if text.ends_with("cannot have a certificate") {
        return "tls";
    }
    STARTS.into_iter().find(|(start, _)| text.starts_with(start)).map_or("other", |(_, kind)| kind)
}

/// The error text of a response: the message in a JSON object, the title of a page, or all of it.
fn words_of(response: &Response) -> Cow<'_, str> {
    let body = response.body.trim_ascii_start();
    if body.starts_with(b"{")
        && body.len() <= JSON_BYTES_MAX
        && let Ok(value) = serde_json::from_slice::<Value>(body)
        && let Some(words) = words_of_json(&value, 2)
    {
        return Cow::Owned(words.to_owned());
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(READ_BYTES_MAX)]);
    match title_of(&text) {
        Some(title) => Cow::Owned(title.to_owned()),
        None => text,
    }
}

/// The error message in a JSON object, under one of its usual names.
fn words_of_json(value: &Value, depth: u32) -> Option<&str> {
    const NAMES: [&str; 8] = ["message", "error", "detail", "title", "error_description", "reason", "msg", "errors"];
    NAMES.iter().find_map(|name| match value.get(name)? {
        Value::String(text) if !text.trim().is_empty() => Some(text.as_str()),
        object @ Value::Object(_) if depth > 0 => words_of_json(object, depth - 1),
        Value::Array(list) if depth > 0 => match list.first()? {
            Value::String(text) => Some(text.as_str()),
            first => words_of_json(first, depth - 1),
        },
        _ => None,
    })
}

/// The title of an HTML page.
fn title_of(text: &str) -> Option<&str> {
    if !text.starts_with('<') {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let start = lower.find("<title>")? + "<title>".len();
    let end = start + lower[start..].find('<')?;
    Some(text[start..end].trim()).filter(|title| !title.is_empty())
}

/// Origin and path of a URL: without credentials, query, and parts of the path that are ids.
fn place_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = &tail[..tail.find(['?', '#']).unwrap_or(tail.len())];
    let mut place = Bounded::new(CAUSE_URL_CHARS_MAX);
    if !scheme.is_empty() {
        place.push_str(scheme);
        place.push_str("://");
    }
    place.push_str(host);
    for part in path.split('/').skip(1) {
        place.push('/');
        match is_id(part) {
            true => place.push(LEFT_OUT),
            false if is_number(part) || digits(part) >= PATH_DIGITS_MIN => place.push_numbers(part),
            false => place.push_str(part),
        }
    }
    if path.is_empty() {
        place.push('/');
    }
    place.finish()
}

/// A text without numbers, ids and quotations, and with single spaces.
pub fn normalised(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(READ_BYTES_MAX)];
    let mut out = Bounded::new(CAUSE_TEXT_CHARS_MAX);
    let (mut rest, mut before, mut tells_status) = (text.trim(), ' ', false);
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        if c.is_whitespace() || c.is_control() {
            if before != ' ' {
                out.push(' ');
            }
            before = ' ';
        } else if let Some((inside, close)) = closing(c).filter(|_| !before.is_alphanumeric()).and_then(|close| {
            let after = &rest[taken..rest.floor_char_boundary(QUOTED_BYTES_MAX)];
            after.find(close).map(|inside| (inside, close))
        }) {
            if inside == 0 {
                out.push_str(&format!("{c}{close}"));
            } else {
                out.push_str(&format!("{c}{LEFT_OUT}{close}"));
            }
            taken += inside + close.len_utf8();
            before = close;
            tells_status = false;
        } else if is_of_word(c) {
            taken = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            let word = &rest[..taken];
            if tells_status && is_status(word) && out.left >= word.len() {
                out.push_str(word);
            } else {
                push_word(&mut out, word);
            }
            // A version may stand between the word and the number: `HTTP/1.1 503`.
            let is_version = word.len() == 1 && is_number(word);
            tells_status =
                STATUS_WORDS.iter().any(|name| word.eq_ignore_ascii_case(name)) || tells_status && is_version;
            before = 'x';
        } else {
            out.push(c);
            before = c;
        }
        if out.is_full {
            break;
        }
        rest = &rest[taken..];
    }
    out.finish()
}

/// The quotation mark that closes a quotation opened by this one.
fn closing(open: char) -> Option<char> {
    match open {
        '"' | '\'' | '`' => Some(open),
        '“' => Some('”'),
        '‘' => Some('’'),
        '«' => Some('»'),
        _ => None,
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

fn push_word(out: &mut Bounded, word: &str) {
    if !is_id(word) {
        return out.push_numbers(word);
    }
    // `cus_8sJ3kd92` is an id of a customer; its prefix is meaningful.
    let is_name = |start: &str| !start.is_empty() && start.chars().all(|c| c.is_ascii_lowercase());
    if let Some((start, _)) = word.split_once('_').filter(|(start, _)| is_name(start)) {
        out.push_str(start);
        out.push('_');
    }
    out.push(LEFT_OUT);
}

/// Whether a word is a number that can be an HTTP status.
fn is_status(word: &str) -> bool {
    word.len() == 3 && is_number(word) && word.parse().is_ok_and(|status: u16| (100..600).contains(&status))
}

fn digits(text: &str) -> usize {
    text.chars().filter(|c| c.is_numeric()).count()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(char::is_numeric)
}

/// Whether a word is generated: long, a mixture of digits and letters, or hexadecimal.
fn is_id(word: &str) -> bool {
    let characters: Vec<char> = word.chars().filter(|c| c.is_alphanumeric()).collect();
    let is_word = word.chars().all(is_of_word);
    let has_letters = characters.iter().any(|c| !c.is_numeric());
    if !is_word || !has_letters || digits(word) == 0 || characters.len() < ID_CHARS_MIN {
        return false;
    }
    let is_hex = characters.iter().all(char::is_ascii_hexdigit);
    let changes = characters.windows(2).filter(|pair| pair[0].is_numeric() != pair[1].is_numeric()).count();
    is_hex || changes >= 2
}

/// Whether a short word is generated: digits mixed with hexadecimal letters, but not a code like `E11000`.
fn is_short_id(word: &str) -> bool {
    let is_hex = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit()) && digits(text) > 0;
    let is_code = word.starts_with(|c: char| c.is_ascii_uppercase()) && is_number(&word[1..]);
    is_hex(word.strip_prefix("0x").unwrap_or(word)) && !is_code
}

/// A text with a maximum number of characters.
struct Bounded {
    text: String,
    left: usize,
    is_full: bool,
}

impl Bounded {
    fn new(chars_max: usize) -> Bounded {
        // One character is reserved for the mark of a cut.
        Bounded { text: String::new(), left: chars_max - 1, is_full: false }
    }

    fn push(&mut self, c: char) {
        match self.left {
            0 => self.is_full = true,
            _ => {
                self.left -= 1;
                self.text.push(c);
            }
        }
    }

    fn push_str(&mut self, text: &str) {
        text.chars().for_each(|c| self.push(c));
    }

    /// A sequence of digits becomes one mark, and so does a hexadecimal number.
    fn push_numbers(&mut self, text: &str) {
        for part in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
            let word = part.trim_end_matches(|c: char| !c.is_alphanumeric());
            if is_short_id(word) {
                self.push(NUMBER);
                self.push_str(&part[word.len()..]);
                continue;
            }
            let mut was_digit = false;
            for c in part.chars() {
                match c.is_numeric() {
                    true if was_digit => {}
                    true => self.push(NUMBER),
                    false => self.push(c),
                }
                was_digit = c.is_numeric();
            }
        }
    }

    fn finish(mut self) -> String {
        if self.is_full {
            self.text.push(LEFT_OUT);
        }
        self.text.truncate(self.text.trim_end().len());
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_wire::id::{MessageId, Position, Seq, TenantId};
    use posthaste_wire::time::Timestamp;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn letter(error: Option<&str>, response: Option<Response>) -> DeadLetter {
        DeadLetter {
            dlq_id: Position { at: Timestamp(1), n: 1 },
            tenant: TenantId(1),
            id: MessageId { seq: Seq(1), tag: 1 },
            retried: 0,
            error: error.map(str::to_owned),
            response: response.map(Arc::new),
        }
    }

    fn answered(status: u16, body: &[u8]) -> DeadLetter {
        letter(None, Some(Response { status, body: body.to_vec(), ..Response::default() }))
    }

    #[test]
    fn texts_lose_what_differs_from_message_to_message() {
        for (text, expected) in [
            ("", ""),
            ("  out of\n\torder \r\n", "out of order"),
            ("order 4711 is 2 days late", "order # is # days late"),
            ("user 550e8400-e29b-41d4-a716-446655440000 is gone", "user … is gone"),
            ("no such customer: cus_NffrFeUfNV2Hib", "no such customer: cus_…"),
            ("commit deadbeef12 and DEADBEEF99", "commit … and …"),
            ("key \"a-b\" and 'c d' and `e`", "key \"…\" and '…' and `…`"),
            ("an empty \"\" one", "an empty \"\" one"),
            ("it doesn't matter, don't worry", "it doesn't matter, don't worry"),
            ("a \" alone", "a \" alone"),
            ("at 2026-11-16T12:00:01.5Z", "at …:#:#.#Z"),
            ("127.0.0.1:8080 refused", "#.#.#.#:# refused"),
            ("utf8 and us-east-1 stay words", "utf# and us-east-# stay words"),
            ("duplicate key E11000", "duplicate key E#"),
            ("ключ «имя» №12 занят", "ключ «…» №# занят"),
            ("{\"a\":1}", "{\"…\":#}"),
        ] {
            assert_eq!(normalised(text), expected, "{text}");
        }
    }

    #[test]
    fn hexadecimal_numbers_are_left_out_as_a_whole() {
        for (text, expected) in [
            ("session 7f3a expired", "session # expired"),
            ("session 1234 expired", "session # expired"),
            ("session AB12 expired", "session # expired"),
            ("req-7f3a and job_0a, trace 9f:0b:77", "req-# and job_#, trace #:#:#"),
            ("at 0x1f of 0x7ffe12ab", "at # of …"),
            ("7f3g is none", "#f#g is none"),
            ("a bad face fed a dead beef cafe", "a bad face fed a dead beef cafe"),
            ("code E11000, line A7", "code E#, line A#"),
            ("sha256 and utf8", "sha# and utf#"),
            ("०१ab", "#ab"),
        ] {
            assert_eq!(normalised(text), expected, "{text}");
        }
        assert_eq!(place_of("https://example.org/o/7f3a12"), "https://example.org/o/#");
    }

    #[test]
    fn statuses_stay() {
        for (text, expected) in [
            ("upstream answered with status 503", "upstream answered with status 503"),
            ("Status Code: 429", "Status Code: 429"),
            ("got HTTP/1.1 502 from 10.0.0.1", "got HTTP/#.# 502 from #.#.#.#"),
            ("{code=404}", "{code=404}"),
            ("order 503 has status new", "order # has status new"),
            ("status of order 503", "status of order #"),
            ("status 4040, code 999, code 99", "status #, code #, code #"),
            ("status 503 of 503", "status 503 of #"),
            ("status \"new\" 503", "status \"…\" #"),
        ] {
            assert_eq!(normalised(text), expected, "{text}");
        }
    }

    /// However long a text is, only as much is read as fits into a cause, so the time is bounded.
    #[test]
    fn of_long_texts_a_bounded_part_is_read() {
        for piece in ["\"", "'a", "“", "7f3a-", "status 503 ", "<title>", " ", "{\"error\":", "ключ "] {
            let long = format!("x{}! and its end", piece.repeat(1_000_000));
            let read = &long[..long.floor_char_boundary(READ_BYTES_MAX)];
            assert_eq!(normalised(&long), normalised(read), "{piece}");
            let of = |text: &str| Cause::of("http://a.example/", &answered(500, text.as_bytes())).text;
            assert_eq!(of(&long), normalised(read), "{piece}");
        }
    }

    #[test]
    fn destinations_lose_ids_query_and_credentials() {
        for (url, expected) in [
            ("https://example.org", "https://example.org/"),
            ("https://example.org/hooks?order=7#x", "https://example.org/hooks"),
            ("http://user:secret@example.org:8080/v2/s3/", "http://example.org:8080/v2/s3/"),
            ("https://example.org/orders/4711/pay", "https://example.org/orders/#/pay"),
            ("https://example.org/orders/order-4711", "https://example.org/orders/order-#"),
            ("https://example.org/u/550e8400-e29b-41d4-a716-446655440000", "https://example.org/u/…"),
            ("https://example.org/c/cus_NffrFeUfNV2Hib/pay", "https://example.org/c/…/pay"),
            ("", "/"),
        ] {
            assert_eq!(place_of(url), expected, "{url}");
        }
    }

    #[test]
    fn answers_speak_in_their_own_words() {
        let cases: [(&[u8], &str); 10] = [
            (b"out of order", "out of order"),
            (br#"{"error":"card 17 declined","requestId":"req_1"}"#, "card # declined"),
            (br#"{"message":"no stock","error":"Conflict"}"#, "no stock"),
            (br#" {"error":{"code":"x","message":"nested"}}"#, "nested"),
            (br#"{"errors":[{"detail":"first"},{"detail":"second"}]}"#, "first"),
            (br#"{"errors":["plain"]}"#, "plain"),
            (br#"{"ok":false,"n":12}"#, "{\"…\":false,\"…\":#}"),
            (b"<html>\n<head><TITLE>502 Bad Gateway</TITLE></head>", "# Bad Gateway"),
            (b"<b>no title</b>", "<b>no title</b>"),
            (&[0xff, 0xfe, b'x'], "\u{fffd}\u{fffd}x"),
        ];
        for (body, expected) in cases {
            let cause = Cause::of("http://a.example/", &answered(500, body));
            assert_eq!((cause.kind, cause.text.as_str()), (CauseKind::Status(500), expected), "{body:?}");
        }
    }

    #[test]
    fn kinds_of_errors_are_known_by_our_own_words() {
        for (text, expected) in [
            ("context deadline exceeded", "timeout"),
            ("connecting timed out after 10s", "timeout"),
            ("unable to resolve host: a.example: x", "dns"),
            ("could not connect: connection refused", "connect"),
            ("loop: more than 16 deliveries led to this message", "loop"),
            ("", "other"),
        ] {
            let cause = Cause::of("http://a.example/", &letter(Some(text), None));
            assert_eq!(cause.kind, CauseKind::Error(expected), "{text}");
        }
    }

    #[test]
    fn ids_tell_causes_apart_and_nothing_else() {
        let of = |url: &str, status: u16, body: &str| Cause::of(url, &answered(status, body.as_bytes())).id();
        let one = of("http://a.example/o/1234", 500, "order 1 failed");
        assert_eq!(one, of("http://a.example/o/99999?x=y", 500, "order 22 failed"));
        let none = Cause::of("http://a.example/o/1234", &letter(Some("context deadline exceeded"), None)).id();
        let others = [
            of("http://b.example/o/1234", 500, "order 1 failed"),
            of("http://a.example/p/1234", 500, "order 1 failed"),
            of("http://a.example/o/1234", 502, "order 1 failed"),
            of("http://a.example/o/1234", 500, "order 1 lost"),
            none,
        ];
        assert!(others.iter().all(|other| *other != one));
        assert_eq!(one.to_string().parse(), Ok(one));
        // Bulk actions store it across restarts and upgrades, so it must not change by accident.
        assert_eq!(one.to_string(), "cause_e2bd7b9e4ac66c9c6d6ab29613e73142");
        for wrong in ["", "cause_", "cause_0", &"0".repeat(38), &format!("cause_{}", "g".repeat(32))] {
            assert_eq!(wrong.parse::<CauseId>(), Err(InvalidCauseId), "{wrong}");
        }
        assert_eq!(one.to_string().to_uppercase().parse::<CauseId>(), Err(InvalidCauseId));
    }

    proptest! {
        #[test]
        fn whatever_comes_has_a_cause_of_bounded_length(
            body in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..6_000),
                "\\PC{0,3000}".prop_map(String::into_bytes),
                "[\"'`{}<>a-f0-9 \\\\:titlemsg]{0,3000}".prop_map(String::into_bytes),
            ],
            url in "\\PC{0,600}",
            error in proptest::option::of("\\PC{0,600}"),
        ) {
            let letters = [answered(500, &body), letter(error.as_deref(), None)];
            for letter in letters {
                let cause = Cause::of(&url, &letter);
                prop_assert!(cause.text.chars().count() <= CAUSE_TEXT_CHARS_MAX);
                prop_assert!(cause.destination.chars().count() <= CAUSE_URL_CHARS_MAX);
                prop_assert!(!cause.text.chars().any(char::is_control));
                let mut numbers = cause.text.split(|c: char| !c.is_numeric()).filter(|number| !number.is_empty());
                prop_assert!(numbers.all(is_status), "{}", cause.text);
                prop_assert_eq!(Cause::of(&url, &letter).id(), cause.id());
            }
        }
    }
}
