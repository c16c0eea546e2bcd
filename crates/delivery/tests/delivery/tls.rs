//! TLS and HTTP/2: which certificates are trusted, and misbehaviour of trusted receivers.

use crate::cases::Expect;
use crate::receivers::{PATIENCE, assert_counts, expect_of};
use crate::script::{OK, Receiver, Step, answer, send};
use crate::secure_cases::{
    Authority, SecureCase, WEAK_AUTHORITY, certificate_cases, early_hints, frame, handshake_cases, http2_cases,
};
use crate::support::{ScriptedDns, attempt, attempt_within, config, message};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use posthaste_delivery::{ConfigError, Deliverer, DeliveryConfig};
use posthaste_engine::event::Phases;
use posthaste_engine::outcome::{ErrorClass, Outcome};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::timeout;

/// A client that trusts this authority and the weak one, and resolves `hook.example` to loopback.
pub(crate) fn trusting(authority: &Authority) -> Deliverer {
    let pem = authority.pem() + WEAK_AUTHORITY;
    deliverer(DeliveryConfig { extra_ca_pem: Some(pem.into_bytes()), ..config() })
}

fn deliverer(config: DeliveryConfig) -> Deliverer {
    Deliverer::new(config, ScriptedDns::of("hook.example", [&["127.0.0.1"]])).expect("deliverer")
}

fn url(receiver: &Receiver) -> String {
    format!("https://hook.example:{}/hook", receiver.address.port())
}

#[tokio::test]
async fn only_a_trusted_certificate_for_the_name_is_accepted() {
    let ours = Authority::new();
    for (name, expected) in [("hook.example", Expect::Answer(200)), ("other.example", Expect::Fails(ErrorClass::Tls))] {
        let receiver = Receiver::start_tls(vec![answer(OK)], ours.acceptor(&[name], &[])).await;
        let outcome = attempt(&trusting(&ours), &message(&url(&receiver))).await;
        assert_eq!(expect_of(&outcome), expected, "{name}: {outcome:?}");
    }
    // The same receiver, without the extra authority.
    let receiver = Receiver::start_tls(vec![answer(OK)], ours.acceptor(&["hook.example"], &[])).await;
    let outcome = attempt(&deliverer(config()), &message(&url(&receiver))).await;
    assert_eq!(expect_of(&outcome), Expect::Fails(ErrorClass::Tls));
}

#[tokio::test]
async fn every_phase_that_was_reached_is_timed() {
    let ours = Authority::new();
    let receiver = Receiver::start_tls(vec![answer(OK)], ours.acceptor(&["hook.example"], &[])).await;
    let outcome = attempt(&trusting(&ours), &message(&url(&receiver))).await;
    let phases = outcome.phases.expect("a new connection has phases");
    let reached = |phases: &Phases| {
        [phases.dns_us, phases.connect_us, phases.tls_us, phases.first_byte_us].map(|micros| micros.is_some())
    };
    assert_eq!((reached(&phases), phases.address), ([true; 4], Some(receiver.address)));
    let sum =
        [phases.dns_us, phases.connect_us, phases.tls_us, phases.first_byte_us].into_iter().flatten().sum::<u64>();
    assert!(sum / 1_000 <= outcome.duration_ms, "{sum} µs of {} ms", outcome.duration_ms);

    // A failed handshake, and a timeout while waiting for the response.
    let receiver = Receiver::start_tls(vec![answer(OK)], ours.acceptor(&["other.example"], &[])).await;
    let phases = attempt(&trusting(&ours), &message(&url(&receiver))).await.phases.expect("a failure has phases");
    assert_eq!(reached(&phases), [true, true, true, false]);
    let silent = vec![Step::Hang];
    let receiver = Receiver::start_tls(vec![silent], ours.acceptor(&["hook.example"], &[])).await;
    let outcome = attempt_within(&trusting(&ours), &message(&url(&receiver)), 3_000, false).await;
    assert_eq!(expect_of(&outcome), Expect::Fails(ErrorClass::Timeout));
    assert_eq!(reached(&outcome.phases.expect("a failure has phases")), [true, true, true, false]);
}

#[tokio::test]
async fn address_literals_need_a_certificate_for_the_address() {
    let ours = Authority::new();
    for (name, expected) in [("127.0.0.1", Expect::Answer(200)), ("hook.example", Expect::Fails(ErrorClass::Tls))] {
        let receiver = Receiver::start_tls(vec![answer(OK)], ours.acceptor(&[name], &[])).await;
        let outcome = attempt(&trusting(&ours), &message(&format!("https://{}/", receiver.address))).await;
        assert_eq!(expect_of(&outcome), expected, "{outcome:?}");
        if name == "hook.example" {
            assert_counts("tls-ip-no-san", &outcome);
        }
    }
}

#[tokio::test]
async fn broken_handshakes_and_certificates_count_as_the_catalogue_says() {
    let ours = Authority::new();
    for case in handshake_cases().into_iter().chain(certificate_cases(&ours)) {
        let id = case.id;
        let (receiver, outcome) = attempt_secure(&ours, case).await;
        assert_counts(id, &outcome);
        if ["tls-hang", "tls-drip"].contains(&id) {
            assert_eq!(outcome.result.unwrap_err().message, "TLS handshake timed out after 3s", "{id}");
        }
        let is_trusted = ["tls-alert-after-request", "tls-close-no-notify"].contains(&id);
        assert_eq!(receiver.received().len(), usize::from(is_trusted), "{id}: what an untrusted receiver gets");
    }
}

#[tokio::test]
async fn a_port_without_tls_is_named_as_one_that_answers_plain_http() {
    let trusting = trusting(&Authority::new());
    let http = "TLS handshake failed: the port answers plain HTTP; use http://";
    let other = "TLS handshake failed: received corrupt message of type InvalidContentType";
    for (answer, expected) in [
        ("HTTP/1.1 400 Bad Request\r\n\r\n", http),
        ("HTTP/1.0 200 OK\r\n\r\nhello", http),
        ("SSH-2.0-OpenSSH_9.2\r\n", other),
        ("HTTQ/1.1 400 Bad Request\r\n\r\n", other),
        ("H", other),
    ] {
        let receiver = Receiver::start(vec![vec![Step::ReadBytes(5), send(answer)]]).await;
        let error = attempt(&trusting, &message(&url(&receiver))).await.result.expect_err("there is no TLS");
        assert_eq!((error.class, error.message.as_str()), (ErrorClass::Tls, expected), "{answer:?}");
    }
}

#[tokio::test]
async fn a_web_server_without_tls_is_named_as_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let answer = service_fn(async |_| Ok::<_, Infallible>(hyper::Response::new(String::new())));
        // It answers the handshake with 400 and closes the connection.
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
    });
    let outcome = attempt(&trusting(&Authority::new()), &message(&format!("https://hook.example:{port}/"))).await;
    let error = outcome.result.expect_err("there is no TLS");
    let expected = "TLS handshake failed: the port answers plain HTTP; use http://";
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Tls, expected));
    serving.await.expect("the web server ends");
}

/// Makes one attempt with a receiver and checks that the outcome is exactly the expected one.
async fn attempt_secure(ours: &Authority, case: SecureCase) -> (Receiver, Outcome) {
    let SecureCase { id, acceptor, script, expect, by_address } = case;
    let receiver = match acceptor {
        Some(acceptor) => Receiver::start_tls(vec![script], acceptor).await,
        None => Receiver::start(vec![script]).await,
    };
    let url = if by_address { format!("https://{}/", receiver.address) } else { url(&receiver) };
    let timeout_ms = if expect == Expect::Fails(ErrorClass::Timeout) { 300 } else { 10_000 };
    let (deliverer, message) = (trusting(ours), message(&url));
    let attempt = attempt_within(&deliverer, &message, timeout_ms, false);
    let outcome = timeout(PATIENCE, attempt).await.unwrap_or_else(|_| panic!("{id}: the attempt has no end"));
    assert_eq!(expect_of(&outcome), expect, "{id}: {outcome:?}");
    (receiver, outcome)
}

#[tokio::test]
async fn a_response_counts_without_a_clean_close() {
    let ours = Authority::new();
    let answers = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Expect::Answer(200)),
        ("HTTP/1.1 200 OK\r\n\r\nuntil close", Expect::Truncated(200)),
    ];
    for (text, expected) in answers {
        let script = [answer(text), vec![Step::Vanish]].concat();
        let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &[])).await;
        let outcome = attempt(&trusting(&ours), &message(&url(&receiver))).await;
        assert_eq!(expect_of(&outcome), expected, "{outcome:?}");
        assert_counts("tls-close-no-notify", &outcome);
    }
}

#[tokio::test]
async fn http2_is_spoken_when_offered_and_its_connection_is_shared() {
    let ours = Authority::new();
    let acceptor = ours.acceptor(&["hook.example"], &["h2"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let accepted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accept");
            accepted.fetch_add(1, Ordering::SeqCst);
            let stream = acceptor.accept(stream).await.expect("handshake");
            let echo = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                let said = format!("{:?} {} {}", request.version(), request.uri(), request.headers().len());
                let signed = request.headers().contains_key("upstash-signature");
                let response = http::Response::builder().header("x-said", said).header("x-signed", signed.to_string());
                Ok::<_, Infallible>(response.body(request.into_body()).expect("response"))
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), echo));
        }
    });
    let deliverer = trusting(&ours);
    for _ in 0..3 {
        let message = message(&format!("https://hook.example:{port}/a//b?c"));
        let outcome = attempt_within(&deliverer, &message, 10_000, true).await;
        assert_counts("h2-ok", &outcome);
        let response = outcome.result.unwrap();
        let header = |name: &str| response.headers.iter().find(|(known, _)| known == name).unwrap().1.clone();
        assert!(header("X-Said").starts_with(&format!("HTTP/2.0 https://hook.example:{port}/a//b?c")), "{response:?}");
        assert_eq!(header("X-Signed"), "true");
        assert_eq!(response.body, b"hello");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn http2_receivers_count_as_the_catalogue_says_in_bounded_time() {
    let ours = Authority::new();
    for case in http2_cases(&ours) {
        let id = case.id;
        let (_, outcome) = attempt_secure(&ours, case).await;
        assert_counts(id, &outcome);
    }
}

/// Starts a response on stream 1, repeats these bytes without end, and notifies when the client closes the connection.
fn floods_after(start: Vec<u8>, again: &[u8]) -> (Vec<Step>, Arc<Notify>) {
    let left = Arc::new(Notify::new());
    let script = vec![
        Step::ReadUntil(b"hello"),
        Step::Send([frame(4, 0, 0, &[]), start].concat()),
        Step::Flood(again.repeat(100)),
        Step::Tell(left.clone()),
    ];
    (script, left)
}

#[tokio::test]
async fn connections_with_endless_http2_frames_are_closed_at_once() {
    let ours = Authority::new();
    // A response that has started but has no body.
    let begun = frame(1, 4, 1, &[0x88]);
    let floods = [
        ("PING", Vec::new(), frame(6, 0, 0, &[7; 8])),
        ("SETTINGS", Vec::new(), frame(4, 0, 0, &[0, 3, 0, 0, 0, 100])),
        ("WINDOW_UPDATE", Vec::new(), frame(8, 0, 0, &[0, 0, 0, 1])),
        ("WINDOW_UPDATE of the stream", begun.clone(), frame(8, 0, 1, &[0, 0, 0, 1])),
        ("PRIORITY", Vec::new(), frame(2, 0, 1, &[0, 0, 0, 0, 7])),
        ("frames of no known kind", begun.clone(), frame(200, 0, 1, &[0; 100])),
        ("interim answers", Vec::new(), early_hints(1)),
        ("DATA without a byte", begun.clone(), frame(0, 0, 1, &[])),
        ("DATA of nothing but padding", begun, frame(0, 8, 1, &[3, 0, 0, 0])),
    ];
    let mut wrong = Vec::new();
    for (name, start, again) in floods {
        let (script, left) = floods_after(start, &again);
        let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &["h2"])).await;
        let (deliverer, message) = (trusting(&ours), message(&url(&receiver)));
        let outcome = attempt_within(&deliverer, &message, 10_000, true).await;
        if expect_of(&outcome) != Expect::Fails(ErrorClass::Protocol) {
            wrong.push(format!("{name}: {outcome:?}"));
        } else if timeout(PATIENCE, left.notified()).await.is_err() {
            wrong.push(format!("{name}: the connection is still open"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_response_before_a_flood_counts_and_the_next_request_uses_a_new_connection() {
    let ours = Authority::new();
    let (script, left) = floods_after(frame(1, 5, 1, &[0x88]), &frame(6, 0, 0, &[7; 8]));
    let scripts = vec![script, after_one_answer(vec![Step::Hang])];
    let receiver = Receiver::start_tls(scripts, ours.acceptor(&["hook.example"], &["h2"])).await;
    let (deliverer, message) = (trusting(&ours), message(&url(&receiver)));
    assert_eq!(expect_of(&attempt(&deliverer, &message).await), Expect::Answer(200));
    timeout(PATIENCE, left.notified()).await.expect("nobody waits for anything on that connection");
    assert_eq!(expect_of(&attempt(&deliverer, &message).await), Expect::Answer(200));
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn a_chatty_http2_receiver_can_finish_its_response() {
    let ours = Authority::new();
    let ping = frame(6, 0, 0, &[7; 8]);
    let (hints, head) = (early_hints(1).repeat(16), frame(1, 4, 1, &[0x88]));
    let body = [frame(0, 0, 1, b"x").repeat(10), ping].concat().repeat(500);
    let answer = [frame(4, 0, 0, &[]), hints, head, body, frame(0, 1, 1, &[])].concat();
    let script = vec![Step::ReadUntil(b"hello"), Step::Send(answer), Step::Hang];
    let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &["h2"])).await;
    let outcome = attempt_within(&trusting(&ours), &message(&url(&receiver)), 10_000, true).await;
    let response = outcome.result.unwrap();
    assert_eq!((response.status, response.body, response.truncated), (200, vec![b'x'; 5_000], false));
}

#[tokio::test]
async fn a_request_that_http2_reports_as_unprocessed_is_resent_once() {
    let ours = Authority::new();
    let opens = |stream: u8| [frame(4, 0, 0, &[]), frame(1, 5, stream, &[0x88])].concat();
    let goaway = frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    let refused_stream = frame(3, 0, 3, &[0, 0, 0, 7]);
    for says_no in [goaway, refused_stream] {
        let first = vec![
            Step::ReadUntil(b"hello"),
            Step::Send(opens(1)),
            Step::ReadUntil(b"hello"),
            Step::Send(says_no),
            Step::Hang,
        ];
        let second = vec![Step::ReadUntil(b"hello"), Step::Send(opens(1)), Step::Hang];
        let acceptor = ours.acceptor(&["hook.example"], &["h2"]);
        let receiver = Receiver::start_tls(vec![first, second], acceptor).await;
        let deliverer = trusting(&ours);
        for connections in [1, 2] {
            let outcome = attempt(&deliverer, &message(&url(&receiver))).await;
            assert_eq!(expect_of(&outcome), Expect::Answer(200), "{outcome:?}");
            assert_eq!(receiver.connections(), connections);
        }
    }
}

/// Answers one request on stream 1, then continues with these steps.
fn after_one_answer(steps: Vec<Step>) -> Vec<Step> {
    let first = [frame(4, 0, 0, &[]), frame(1, 5, 1, &[0x88])].concat();
    [vec![Step::ReadUntil(b"hello"), Step::Send(first)], steps].concat()
}

#[tokio::test]
async fn a_request_with_a_partial_http2_response_is_not_resent_because_of_another() {
    let ours = Authority::new();
    let answered_in_part = Arc::new(Notify::new());
    let ping = frame(6, 0, 0, b"pingpong");
    let script = after_one_answer(vec![
        Step::ReadUntil(b"hello"),
        Step::Send([early_hints(3), ping].concat()),
        // The client's reply to the PING: it has read everything above.
        Step::ReadUntil(b"pingpong"),
        Step::Tell(answered_in_part.clone()),
        Step::ReadUntil(b"hello"),
    ]);
    let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &["h2"])).await;
    let deliverer = trusting(&ours);
    let message = message(&url(&receiver));
    assert_eq!(expect_of(&attempt(&deliverer, &message).await), Expect::Answer(200));
    let (first, second) = tokio::join!(attempt(&deliverer, &message), async {
        answered_in_part.notified().await;
        attempt(&deliverer, &message).await
    });
    for outcome in [first, second] {
        assert_eq!(expect_of(&outcome), Expect::Fails(ErrorClass::Closed), "{outcome:?}");
    }
    assert_eq!(receiver.connections(), 1, "nobody said that nothing was done");
}

#[tokio::test]
async fn a_goaway_that_covers_the_request_does_not_resend_it() {
    let ours = Authority::new();
    // Up to stream 3, which carries the request.
    let goaway = frame(7, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]);
    let script = after_one_answer(vec![Step::ReadUntil(b"hello"), Step::Send(goaway)]);
    let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &["h2"])).await;
    let deliverer = trusting(&ours);
    for expected in [Expect::Answer(200), Expect::Fails(ErrorClass::Closed)] {
        let outcome = attempt(&deliverer, &message(&url(&receiver))).await;
        assert_eq!(expect_of(&outcome), expected, "{outcome:?}");
    }
    assert_eq!(receiver.connections(), 1);
}

#[test]
fn a_bad_ca_file_is_named() {
    let error = |pem: &[u8]| {
        let config = DeliveryConfig { extra_ca_pem: Some(pem.to_vec()), ..config() };
        Deliverer::new(config, Arc::new(ScriptedDns::default())).err().unwrap()
    };
    assert!(matches!(error(b""), ConfigError::CaFileEmpty));
    assert!(matches!(error(b"not a certificate"), ConfigError::CaFileEmpty));
    let cut = b"-----BEGIN CERTIFICATE-----\nMIIB";
    assert!(matches!(error(cut), ConfigError::CaFile(_)));
    let wrong = b"-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    assert!(matches!(error(wrong), ConfigError::CaCertificate(_)));
    let region = DeliveryConfig { region: "a\nb".into(), ..config() };
    assert!(Deliverer::new(region, Arc::new(ScriptedDns::default())).is_err());
}
