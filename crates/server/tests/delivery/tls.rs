//! TLS and HTTP/2: who is trusted, and what receivers do to us once they are.

use crate::receivers::{Expect, assert_counts};
use crate::support::{OK, Receiver, ScriptedDns, Step, answer, attempt, attempt_within, config, message, send};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use posthaste::delivery::{ConfigError, Deliverer, DeliveryConfig};
use posthaste_engine::outcome::ErrorClass;
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

/// A private authority.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("authority") }
    }

    /// A server for these names that speaks the first of these protocols the client knows.
    fn acceptor(&self, names: &[&str], protocols: &[&str]) -> TlsAcceptor {
        let key = KeyPair::generate().expect("key");
        let certificate = params(names).signed_by(&key, &self.issuer).expect("certificate");
        acceptor(&certificate, &key, WebPkiClientVerifier::no_client_auth(), protocols)
    }

    /// A client that trusts this authority and finds `hook.example` on loopback.
    fn trusted(&self) -> Deliverer {
        let config = DeliveryConfig { extra_ca_pem: Some(self.issuer.pem().into_bytes()), ..config() };
        deliverer(config)
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).expect("names")
}

fn acceptor(
    certificate: &Certificate,
    key: &KeyPair,
    clients: Arc<dyn ClientCertVerifier>,
    protocols: &[&str],
) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("key");
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("server");
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

fn deliverer(config: DeliveryConfig) -> Deliverer {
    Deliverer::new(config, ScriptedDns::of("hook.example", [&["127.0.0.1"]])).expect("deliverer")
}

fn url(receiver: &Receiver) -> String {
    format!("https://hook.example:{}/hook", receiver.address.port())
}

#[tokio::test]
async fn only_a_trusted_certificate_for_the_name_is_accepted() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let key = KeyPair::generate().unwrap();
    let self_signed = params(&["hook.example"]).self_signed(&key).unwrap();
    let self_signed = acceptor(&self_signed, &key, WebPkiClientVerifier::no_client_auth(), &[]);
    let unknown = theirs.acceptor(&["hook.example"], &[]);
    for (id, acceptor) in [("tls-self-signed", self_signed), ("tls-unknown-ca", unknown)] {
        let receiver = Receiver::start_tls(vec![answer(OK)], acceptor).await;
        let outcome = attempt(&ours.trusted(), &message(&url(&receiver))).await;
        assert_eq!(Expect::of(&outcome), Expect::Fails(ErrorClass::Tls), "{id}: {outcome:?}");
        assert_counts(id, &outcome);
        assert!(receiver.received().is_empty(), "{id}: nothing is sent to an untrusted receiver");
    }
    for (name, expected) in [("hook.example", Expect::Answer(200)), ("other.example", Expect::Fails(ErrorClass::Tls))] {
        let receiver = Receiver::start_tls(vec![answer(OK)], ours.acceptor(&[name], &[])).await;
        let outcome = attempt(&ours.trusted(), &message(&url(&receiver))).await;
        assert_eq!(Expect::of(&outcome), expected, "{name}: {outcome:?}");
    }
    // The same receiver, without the extra authority.
    let receiver = Receiver::start_tls(vec![answer(OK)], ours.acceptor(&["hook.example"], &[])).await;
    let outcome = attempt(&deliverer(config()), &message(&url(&receiver))).await;
    assert_eq!(Expect::of(&outcome), Expect::Fails(ErrorClass::Tls));
}

#[tokio::test]
async fn address_literals_need_a_certificate_for_the_address() {
    let ours = Authority::new();
    for (name, expected) in [("127.0.0.1", Expect::Answer(200)), ("hook.example", Expect::Fails(ErrorClass::Tls))] {
        let receiver = Receiver::start_tls(vec![answer(OK)], ours.acceptor(&[name], &[])).await;
        let outcome = attempt(&ours.trusted(), &message(&format!("https://{}/", receiver.address))).await;
        assert_eq!(Expect::of(&outcome), expected, "{outcome:?}");
        if name == "hook.example" {
            assert_counts("tls-ip-no-san", &outcome);
        }
    }
}

#[tokio::test]
async fn a_receiver_that_wants_a_client_certificate_fails() {
    let ours = Authority::new();
    let mut roots = RootCertStore::empty();
    roots.add(ours.issuer.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let known_only = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params(&["hook.example"]).signed_by(&key, &ours.issuer).unwrap();
    let receiver = Receiver::start_tls(vec![answer(OK)], acceptor(&certificate, &key, known_only, &[])).await;
    let outcome = attempt(&ours.trusted(), &message(&url(&receiver))).await;
    assert_counts("tls-client-cert", &outcome);
    assert_eq!(Expect::of(&outcome), Expect::Fails(ErrorClass::Tls), "{outcome:?}");
}

#[tokio::test]
async fn broken_handshakes_fail_in_bounded_time() {
    let alert = |description: u8| vec![Step::ReadBytes(5), Step::Send(vec![0x15, 3, 3, 0, 2, 2, description])];
    // A handshake message that claims 10 MiB.
    let huge = [&[0x16, 3, 3, 0x40, 0, 11, 0xa0, 0, 0][..], &[0; 0x4000 - 4]].concat();
    let cases = [
        ("tls-hang", vec![Step::Hang]),
        ("tls-drip", vec![Step::ReadBytes(5), Step::Send(vec![0x16]), Step::Hang]),
        ("tls-tls10", alert(70)),
        ("tls-no-common-cipher", alert(40)),
        ("tls-huge-chain", vec![Step::ReadBytes(5), Step::Flood(huge)]),
    ];
    for (id, script) in cases {
        let receiver = Receiver::start(vec![script]).await;
        let outcome = attempt(&Authority::new().trusted(), &message(&url(&receiver))).await;
        assert_eq!(Expect::of(&outcome), Expect::Fails(ErrorClass::Tls), "{id}: {outcome:?}");
        assert_counts(id, &outcome);
    }
    let plain = vec![Step::ReadBytes(5), send("HTTP/1.1 400 Bad Request\r\n\r\n")];
    let receiver = Receiver::start(vec![plain]).await;
    let outcome = attempt(&Authority::new().trusted(), &message(&url(&receiver))).await;
    assert_eq!(Expect::of(&outcome), Expect::Fails(ErrorClass::Tls), "plain HTTP on a TLS port");
}

#[tokio::test]
async fn an_answer_counts_also_without_a_polite_goodbye() {
    let ours = Authority::new();
    let answers = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Expect::Answer(200)),
        ("HTTP/1.1 200 OK\r\n\r\nuntil close", Expect::Truncated(200)),
    ];
    for (text, expected) in answers {
        let script = [answer(text), vec![Step::Vanish]].concat();
        let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &[])).await;
        let outcome = attempt(&ours.trusted(), &message(&url(&receiver))).await;
        assert_eq!(Expect::of(&outcome), expected, "{outcome:?}");
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
    let deliverer = ours.trusted();
    for _ in 0..3 {
        let message = message(&format!("https://hook.example:{port}/a//b?c"));
        let outcome = attempt(&deliverer, &message).await;
        assert_counts("h2-ok", &outcome);
        let response = outcome.result.unwrap();
        let header = |name: &str| response.headers.iter().find(|(known, _)| known == name).unwrap().1.clone();
        assert!(header("X-Said").starts_with(&format!("HTTP/2.0 https://hook.example:{port}/a//b?c")), "{response:?}");
        assert_eq!(header("X-Signed"), "true");
        assert_eq!(response.body, b"hello");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// One HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(payload.len()).expect("small frame").to_be_bytes();
    [&[0, high, low, kind, flags, 0, 0, 0, stream][..], payload].concat()
}

const PREFACE_AND_SETTINGS: usize = 24 + 9;

#[tokio::test]
async fn hostile_http2_receivers_fail_in_bounded_time() {
    let ours = Authority::new();
    let settings = frame(4, 0, 0, &[]);
    let no_window = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let after_settings = |bytes: Vec<u8>| {
        vec![Step::ReadBytes(PREFACE_AND_SETTINGS), Step::Send([settings.clone(), bytes].concat()), Step::Hang]
    };
    let floods = |start: Vec<u8>, again: Vec<u8>| {
        vec![
            Step::ReadBytes(PREFACE_AND_SETTINGS),
            Step::Send([settings.clone(), start].concat()),
            Step::Flood(again.repeat(100)),
        ]
    };
    // ":status: 200", a header of 4,000 bytes that goes into the table, and 200 times one byte for it.
    let bomb = [&[0x88, 0x40, 1, b'a', 0x7f, 0xa1, 0x1e][..], &[b'x'; 4_000], &[0xbe; 200]].concat();
    let answers =
        |bytes: Vec<u8>| vec![Step::ReadUntil(b"hello"), Step::Send([settings.clone(), bytes].concat()), Step::Hang];
    let cases = [
        ("h2-goaway-before", after_settings(frame(7, 0, 0, &[0; 8]))),
        ("h2-ping-flood", floods(Vec::new(), frame(6, 0, 0, &[7; 8]))),
        ("h2-continuation-flood", floods(frame(1, 0, 1, &[0x88]), frame(9, 0, 1, b"\x00\x01a\x01b"))),
        ("h2-hpack-bomb", answers(frame(1, 5, 1, &bomb))),
        ("h2-window-zero", vec![Step::ReadBytes(PREFACE_AND_SETTINGS), Step::Send(no_window), Step::Hang]),
        ("h2-bad-preface", vec![Step::ReadBytes(PREFACE_AND_SETTINGS), send(OK), Step::Hang]),
        ("h2-informational-flood", floods(Vec::new(), early_hints(1))),
    ];
    for (id, script) in cases {
        let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &["h2"])).await;
        let outcome = attempt_within(&ours.trusted(), &message(&url(&receiver)), 1_000, false).await;
        assert!(outcome.result.is_err(), "{id}: {outcome:?}");
        assert_counts(id, &outcome);
    }
}

#[tokio::test]
async fn a_request_that_http2_says_was_not_processed_is_sent_once_more() {
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
        let deliverer = ours.trusted();
        for connections in [1, 2] {
            let outcome = attempt(&deliverer, &message(&url(&receiver))).await;
            assert_eq!(Expect::of(&outcome), Expect::Answer(200), "{outcome:?}");
            assert_eq!(receiver.connections(), connections);
        }
    }
}

/// ":status: 103" as a literal.
fn early_hints(stream: u8) -> Vec<u8> {
    frame(1, 4, stream, &[0x08, 3, b'1', b'0', b'3'])
}

/// Answers one request on stream 1, then goes on with these steps.
fn after_one_answer(steps: Vec<Step>) -> Vec<Step> {
    let first = [frame(4, 0, 0, &[]), frame(1, 5, 1, &[0x88])].concat();
    [vec![Step::ReadUntil(b"hello"), Step::Send(first)], steps].concat()
}

#[tokio::test]
async fn a_request_that_http2_answered_in_part_is_not_sent_again_because_of_another() {
    let ours = Authority::new();
    let answered_in_part = Arc::new(Notify::new());
    let ping = frame(6, 0, 0, b"pingpong");
    let script = after_one_answer(vec![
        Step::ReadUntil(b"hello"),
        Step::Send([early_hints(3), ping].concat()),
        // The client's echo: it has read all of the above.
        Step::ReadUntil(b"pingpong"),
        Step::Tell(answered_in_part.clone()),
        Step::ReadUntil(b"hello"),
    ]);
    let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &["h2"])).await;
    let deliverer = ours.trusted();
    let message = message(&url(&receiver));
    assert_eq!(Expect::of(&attempt(&deliverer, &message).await), Expect::Answer(200));
    let (first, second) = tokio::join!(attempt(&deliverer, &message), async {
        answered_in_part.notified().await;
        attempt(&deliverer, &message).await
    });
    for outcome in [first, second] {
        assert_eq!(Expect::of(&outcome), Expect::Fails(ErrorClass::Closed), "{outcome:?}");
    }
    assert_eq!(receiver.connections(), 1, "nobody said that nothing was done");
}

#[tokio::test]
async fn a_goodbye_of_http2_that_includes_the_request_does_not_send_it_again() {
    let ours = Authority::new();
    // Up to stream 3, which is the request's.
    let goaway = frame(7, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]);
    let script = after_one_answer(vec![Step::ReadUntil(b"hello"), Step::Send(goaway)]);
    let receiver = Receiver::start_tls(vec![script], ours.acceptor(&["hook.example"], &["h2"])).await;
    let deliverer = ours.trusted();
    for expected in [Expect::Answer(200), Expect::Fails(ErrorClass::Closed)] {
        let outcome = attempt(&deliverer, &message(&url(&receiver))).await;
        assert_eq!(Expect::of(&outcome), expected, "{outcome:?}");
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
