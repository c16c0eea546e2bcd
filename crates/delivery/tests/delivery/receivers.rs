//! The outcome of one attempt with each receiver of the catalogue (`cases`), and edge cases.
//!
//! The test `receivers` of the server checks the effect on the message.

use crate::cases::{
    Answer, Expect, Fails, GZIP_BOMB_BYTES, Truncated, body_cases, bytes, connection_and_header_cases, entry, floods,
    gzip_bomb, head, marker_cases, sends_a_gzip_bomb, status_cases, then_hangs,
};
use crate::script::{OK, Receiver, Step, answer, send};
use crate::support::{ScriptedDns, attempt, attempt_within, config, deliverer, message};
use posthaste_delivery::Deliverer;
use posthaste_engine::limits;
use posthaste_engine::outcome::{ErrorClass, Outcome, Verdict};
use std::net::TcpListener as StdListener;
use std::time::Duration;

/// Longest duration of an attempt, longer than any timeout in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The outcome of an attempt in the form of the catalogue.
pub(crate) fn expect_of(outcome: &Outcome) -> Expect {
    match &outcome.result {
        Ok(response) if response.truncated => Truncated(response.status),
        Ok(response) => Answer(response.status),
        Err(error) => Fails(error.class),
    }
}

/// The outcome counts as the catalogue says.
pub(crate) fn assert_counts(id: &str, outcome: &Outcome) {
    let expected = match entry(id)["expect"].as_str() {
        Some("success") => Verdict::Success,
        Some("retry") => Verdict::Failure,
        Some("dlq-now") => Verdict::Refused,
        other => panic!("{id}: unknown expectation {other:?}"),
    };
    assert_eq!(outcome.verdict(), expected, "{id}: {outcome:?}");
}

/// Long enough for all receivers except those that hang, which get time to send their head if they have one.
fn timeout_for(script: &[Step], expected: Expect) -> u64 {
    match (script.iter().any(Step::hangs), expected) {
        (false, _) => 10_000,
        (true, Fails(ErrorClass::Timeout)) => 300,
        (true, _) => 3_000,
    }
}

/// An attempt that ends whatever the receiver does. If it ignored its own timeout, this one would end it.
async fn attempt_in_time(id: &str, receiver: &Receiver, timeout_ms: u64, needs_body: bool) -> Outcome {
    let (deliverer, message) = (deliverer(), message(&receiver.url("/")));
    let attempt = attempt_within(&deliverer, &message, timeout_ms, needs_body);
    tokio::time::timeout(PATIENCE, attempt).await.unwrap_or_else(|_| panic!("{id}: the attempt has no end"))
}

async fn assert_all(cases: Vec<(&'static str, Vec<Step>, Expect)>) {
    for (id, script, expected) in cases {
        let timeout_ms = timeout_for(&script, expected);
        let receiver = Receiver::start(vec![script.clone()]).await;
        let outcome = attempt_in_time(id, &receiver, timeout_ms, false).await;
        assert_eq!(expect_of(&outcome), expected, "{id}: {outcome:?}");
        assert_counts(id, &outcome);
        assert_eq!(receiver.connections(), 1, "{id}: a fresh connection is never retried");

        if entry(id)["needs_body"].as_str().is_some_and(|text| text.starts_with("retry")) {
            let receiver = Receiver::start(vec![script]).await;
            let outcome = attempt_in_time(id, &receiver, timeout_ms, true).await;
            assert_eq!(outcome.verdict(), Verdict::Failure, "{id}, body needed: {outcome:?}");
            assert!(outcome.result.is_err(), "{id}, body needed: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn broken_connections_and_heads_count_as_the_catalogue_says() {
    assert_all(connection_and_header_cases()).await;
}

#[tokio::test]
async fn broken_and_endless_bodies_count_as_the_catalogue_says() {
    assert_all(body_cases()).await;
}

#[tokio::test]
async fn statuses_with_special_headers_count_as_the_catalogue_says() {
    assert_all(marker_cases()).await;
}

#[tokio::test]
async fn every_status_of_the_catalogue_counts_as_it_says() {
    let cases = status_cases();
    assert!(cases.len() >= 40);
    for (id, script, expected) in cases {
        let receiver = Receiver::start(vec![script]).await;
        let outcome = attempt(&deliverer(), &message(&receiver.url("/"))).await;
        assert_eq!(expect_of(&outcome), expected, "{id}");
        assert_counts(&id, &outcome);
    }
}

#[tokio::test]
async fn closed_ports_and_unresolvable_names_fail() {
    let free = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let outcome = attempt(&deliverer(), &message(&format!("http://{free}/"))).await;
    assert_counts("conn-refused", &outcome);
    let error = outcome.result.unwrap_err();
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Connect, "could not connect: connection refused"));

    let outcome = attempt(&deliverer(), &message("http://nxdomain.example/")).await;
    assert_counts("conn-dns-nx", &outcome);
    assert_counts("conn-dns-servfail", &outcome);
    let error = outcome.result.unwrap_err();
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Dns, "unable to resolve host: nxdomain.example"));

    let empty = Deliverer::new(config(), ScriptedDns::of("empty.example", [&[]])).unwrap();
    assert_eq!(expect_of(&attempt(&empty, &message("http://empty.example/")).await), Fails(ErrorClass::Dns));

    let slow = Deliverer::new(config(), ScriptedDns::hanging()).unwrap();
    let outcome = attempt(&slow, &message("http://slow.example/")).await;
    assert_counts("conn-dns-slow", &outcome);
    let error = outcome.result.unwrap_err();
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Dns, "looking up the host timed out after 100ms"));
}

#[tokio::test]
async fn many_and_changing_addresses_are_handled() {
    let port = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let many: Vec<String> = (0..4_000).map(|n| format!("127.1.{}.{}", n / 250, n % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let deliverer = Deliverer::new(config(), ScriptedDns::of("many.example", [&many])).unwrap();
    let outcome = attempt(&deliverer, &message(&format!("http://many.example:{port}/"))).await;
    assert_counts("conn-dns-many", &outcome);
    assert_eq!(expect_of(&outcome), Fails(ErrorClass::Connect));

    // A dead address costs only a moment; here ::1 and 127.0.0.2 have no listener.
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let dns = ScriptedDns::of("flap.example", [&["127.0.0.1"], &["::1", "127.0.0.2", "127.0.0.1"]]);
    let deliverer = Deliverer::new(config(), dns).unwrap();
    for _ in 0..2 {
        let url = format!("http://flap.example:{}/", receiver.address.port());
        let outcome = attempt(&deliverer, &message(&url)).await;
        assert_counts("conn-dns-flap", &outcome);
    }
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn a_timeout_has_the_words_of_the_hosted_service() {
    let receiver = Receiver::start(vec![vec![Step::Read, Step::Hang]]).await;
    let outcome = attempt_within(&deliverer(), &message(&receiver.url("/")), 100, false).await;
    assert!(outcome.duration_ms >= 100, "{outcome:?}");
    let error = outcome.result.unwrap_err();
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Timeout, "context deadline exceeded"));
}

#[tokio::test]
async fn interim_responses_are_limited() {
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n";
    for (count, expected) in [(16, Answer(200)), (17, Fails(ErrorClass::Protocol))] {
        let last = if count == 16 { send(OK) } else { Step::Hang };
        let receiver = Receiver::start(vec![vec![Step::Read, send(&interim.repeat(count)), last]]).await;
        let outcome = attempt(&deliverer(), &message(&receiver.url("/"))).await;
        assert_eq!(expect_of(&outcome), expected, "{count}");
    }
    let receiver = Receiver::start(vec![floods(interim, interim.repeat(100).into())]).await;
    let outcome = attempt(&deliverer(), &message(&receiver.url("/"))).await;
    assert_eq!(expect_of(&outcome), Fails(ErrorClass::Protocol));
    let error = outcome.result.unwrap_err();
    assert_eq!(error.message, "the response is not valid HTTP: too many interim responses");
}

#[tokio::test]
async fn heads_are_limited_in_lines_and_bytes() {
    let lines = |count: usize, width: usize| format!("X-A: {}\r\n", "x".repeat(width)).repeat(count);
    let cases = [
        (lines(limits::RESPONSE_HEADERS_MAX - 1, 10), Answer(200)),
        (lines(limits::RESPONSE_HEADERS_MAX, 10), Fails(ErrorClass::Protocol)),
        (lines(1, limits::RESPONSE_HEADER_BYTES_MAX / 2), Answer(200)),
        (lines(1, limits::RESPONSE_HEADER_BYTES_MAX), Fails(ErrorClass::Protocol)),
        (lines(90, 1_000), Fails(ErrorClass::Protocol)),
    ];
    for (lines, expected) in cases {
        let receiver = Receiver::start(vec![answer(&head(&(lines.clone() + "Content-Length: 0\r\n")))]).await;
        let outcome = attempt(&deliverer(), &message(&receiver.url("/"))).await;
        assert_eq!(expect_of(&outcome), expected, "{} bytes", lines.len());
    }
    let receiver = Receiver::start(vec![floods("HTTP/1.1 200 OK\r\nX-A: ", vec![b'x'; 65_536])]).await;
    let outcome = attempt(&deliverer(), &message(&receiver.url("/"))).await;
    assert_eq!(expect_of(&outcome), Fails(ErrorClass::Protocol));
}

#[tokio::test]
async fn responses_are_kept_up_to_the_limit() {
    let kept = |status: u16, size: usize, needs_body: bool| async move {
        let text = format!("HTTP/1.1 {status} X\r\nContent-Length: {size}\r\n\r\n{}", "x".repeat(size));
        let receiver = Receiver::start(vec![answer(&text)]).await;
        let outcome = attempt_within(&deliverer(), &message(&receiver.url("/")), 10_000, needs_body).await;
        outcome.result.map(|response| (response.body.len(), response.truncated)).map_err(|error| error.class)
    };
    let (log, max) = (limits::LOG_RESPONSE_BYTES_MAX, limits::RESPONSE_BYTES_MAX);
    assert_eq!(kept(200, log, false).await, Ok((log, false)));
    assert_eq!(kept(200, log + 1, false).await, Ok((log, true)));
    assert_eq!(kept(200, max + 1, false).await, Ok((log, true)));
    assert_eq!(kept(500, max, false).await, Ok((max, false)));
    assert_eq!(kept(500, max + 1, false).await, Ok((max, true)));
    assert_eq!(kept(500, max + 1, true).await, Ok((max, true)));
    assert_eq!(kept(200, max, true).await, Ok((max, false)));
    assert_eq!(kept(200, max + 1, true).await, Err(ErrorClass::Protocol));
}

/// `gzip-bomb` of the catalogue, if the whole body is needed. The test `isolation` of `receivers` measures that the
/// server's memory stays small.
#[tokio::test]
async fn a_compressed_response_is_kept_unchanged() {
    let bomb = gzip_bomb();
    assert_eq!(bomb.last_chunk(), Some(&GZIP_BOMB_BYTES.to_le_bytes()), "what it says to expand to");
    let receiver = Receiver::start(vec![sends_a_gzip_bomb()]).await;
    let outcome = attempt_within(&deliverer(), &message(&receiver.url("/")), 10_000, true).await;
    let response = outcome.result.unwrap();
    assert!(response.headers.contains(&("Content-Encoding".to_owned(), "gzip".to_owned())), "{:?}", response.headers);
    assert!(response.body == bomb && !response.truncated, "{} bytes instead of {}", response.body.len(), bomb.len());
}

#[tokio::test]
async fn an_endless_error_response_does_not_delay_the_attempt() {
    let receiver = Receiver::start(vec![then_hangs("HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\npart")]).await;
    let outcome = attempt(&deliverer(), &message(&receiver.url("/"))).await;
    assert!(Duration::from_millis(outcome.duration_ms) < Duration::from_secs(5), "{outcome:?}");
    let response = outcome.result.unwrap();
    assert_eq!((response.status, response.body.as_slice(), response.truncated), (500, &b"part"[..], true));
}

#[tokio::test]
async fn headers_are_kept_with_canonical_names_and_readable_values() {
    let text = b"HTTP/1.1 200 OK\r\nx-a: caf\xe9\r\nX-TEXT: gr\xc3\xbcn\r\nset-cookie: a\r\nset-cookie: b\r\ncontent-length: 0\r\n\r\n";
    let kept = |needs_body| async move {
        let receiver = Receiver::start(vec![bytes(text)]).await;
        let outcome = attempt_within(&deliverer(), &message(&receiver.url("/")), 10_000, needs_body).await;
        outcome.result.unwrap().headers
    };
    let expected =
        [("X-A", "caf\u{fffd}"), ("X-Text", "grün"), ("Set-Cookie", "a"), ("Set-Cookie", "b"), ("Content-Length", "0")];
    assert_eq!(kept(true).await, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(kept(false).await, [], "nobody is told those of a success");
}

/// `header-ansi` of the catalogue, which wants such a response to count. hyper rejects control characters in a value
/// (as HTTP does), so the attempt fails and nothing of the response is kept. Codes in their 8-bit form are kept as a
/// character that no terminal interprets.
#[tokio::test]
async fn terminal_codes_in_a_header_never_reach_a_log() {
    let of_value = |value: &[u8]| {
        let text = [b"HTTP/1.1 200 OK\r\nX-A: ", value, b"\r\nContent-Length: 0\r\n\r\n"].concat();
        async move {
            let receiver = Receiver::start(vec![bytes(&text)]).await;
            attempt_within(&deliverer(), &message(&receiver.url("/")), 10_000, true).await
        }
    };
    let outcome = of_value(b"\x1b[31mred\x1b[0m").await;
    assert_eq!(entry("header-ansi")["expect"], "success", "changed in the catalogue");
    assert_eq!(expect_of(&outcome), Fails(ErrorClass::Protocol));
    assert!(!outcome.result.unwrap_err().message.contains('\x1b'));

    let outcome = of_value(b"\x9b31mred").await;
    assert_eq!(outcome.result.unwrap().headers[0], ("X-A".to_owned(), "\u{fffd}31mred".to_owned()));
}
