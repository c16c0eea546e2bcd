//! The cases that only hand-written bytes can make: framing, line ends, hosts, pipelines.
//!
//! Every refusal has the error body of the API, also where the HTTP library or the listener refuses.

use super::{Case, accepted, cases, hardened};
use crate::support::http::read_answer;
use crate::support::server::TOKEN;
use crate::support::{TestServer, within};
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// The cases of this module. The last two have tests of their own.
pub(super) const IDS: [&str; 33] = [
    "auth-nul",
    "b-cut",
    "h-fwd-8bit",
    "h-fwd-nul",
    "raw-te-cl",
    "raw-te-te",
    "raw-te-tab",
    "raw-te-xchunked",
    "raw-dup-cl",
    "raw-cl-plus",
    "raw-cl-hex",
    "raw-cl-neg",
    "raw-chunk-bad",
    "raw-chunk-overflow",
    "raw-chunk-lf",
    "raw-lf-only",
    "raw-cr-only",
    "raw-no-host",
    "raw-two-hosts",
    "raw-host-junk",
    "raw-connect",
    "raw-http09",
    "raw-http2-preface-on-h1",
    "raw-long-line",
    "raw-many-headers",
    "raw-big-header",
    "raw-h2-continuation",
    "raw-h2-settings-flood",
    "raw-h2-zero-window",
    "raw-h2-pseudo-dup",
    "raw-tls-sni-mismatch",
    "raw-pipeline",
    "raw-half-close",
];

/// The cases that are one exchange of bytes.
fn exchanges() -> impl Iterator<Item = Case> {
    let exchanges = &IDS[..IDS.len() - 2];
    cases().into_iter().filter(|case| exchanges.contains(&case.id.as_str()))
}

/// Where the HTTP library decides otherwise than the vectors: what is seen instead, and why we live with it.
const DIFFERS: [(&str, Seen, &str); 3] = [
    ("b-cut", Seen::Status(400), "the client closed only its half, so it can be told that nothing was stored"),
    ("raw-h2-pseudo-dup", Seen::Closed, "the listener speaks HTTP/1.1 only: the preface ends the connection"),
    ("raw-tls-sni-mismatch", Seen::Status(400), "the listener speaks no TLS: a ClientHello is no request"),
];

/// What came back for hand-written bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Status(u16),
    Closed,
}

#[tokio::test]
async fn broken_requests_are_refused_and_store_nothing() {
    let server = hardened(true).await;
    let mut wrong = Vec::new();
    for case in exchanges() {
        let before = accepted(&server);
        let seen = exchange(&server, &bytes_of(&server, &case.id)).await;
        let expected = match DIFFERS.iter().find(|(id, ..)| *id == case.id) {
            Some((_, expected, _)) => vec![*expected],
            None if case.expected().is_empty() => vec![Seen::Closed],
            None => case.expected().into_iter().map(Seen::Status).collect(),
        };
        if !expected.contains(&seen) {
            wrong.push(format!("{}: {seen:?} instead of {expected:?} ({})", case.id, case.text("why")));
        }
        let is_success = matches!(seen, Seen::Status(200..300));
        if !is_success && accepted(&server) != before {
            wrong.push(format!("{}: {seen:?}, but something was stored", case.id));
        }
        server.get("/v2/keys").expect(200).await;
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    server.finish_with_pending().await;
}

const UNKNOWN_TOKEN: &str =
    "unable to authenticate: invalid token: this server does not know the token; check QSTASH_TOKEN and QSTASH_URL";

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_each_on_its_own_authority() {
    let server = hardened(true).await;
    let mut stream = TcpStream::connect(server.address).await.expect("it listens");
    let mut bytes = Vec::new();
    for n in 0..100 {
        let token = if n % 10 == 3 { "wrong" } else { TOKEN };
        let head = format!("GET /v2/messages/m{n} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
        bytes.extend_from_slice(head.as_bytes());
    }
    stream.write_all(&bytes).await.expect("it reads");
    let mut buffer = Vec::new();
    for n in 0..100 {
        let answer = within("an answer", read_answer(&mut stream, &mut buffer)).await.expect("an answer");
        let (status, text) = match n % 10 {
            3 => (401, UNKNOWN_TOKEN.to_owned()),
            _ => (404, format!("message m{n} not found")),
        };
        assert_eq!((answer.status, answer.error()), (status, text));
    }
    server.finish().await;
}

#[tokio::test]
async fn a_client_may_half_close_behind_its_request() {
    let server = hardened(true).await;
    let mut stream = TcpStream::connect(server.address).await.expect("it listens");
    let body = "half";
    let request = publish(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(&request).await.expect("it reads");
    stream.shutdown().await.expect("half of it is closed");
    let answer = within("an answer", read_answer(&mut stream, &mut Vec::new())).await.expect("an answer");
    assert_eq!(answer.status, 200);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_stores_nothing() {
    let server = hardened(true).await;
    for framing in ["Content-Length: 100\r\n\r\n0123456789", "Transfer-Encoding: chunked\r\n\r\n10\r\n01234"] {
        let mut stream = TcpStream::connect(server.address).await.expect("it listens");
        stream.write_all(&publish(framing)).await.expect("it reads");
        drop(stream);
    }
    // Nobody is told, so the proof is that a later publish is the only one.
    server.publish("https://example.com/").expect(200).await;
    assert_eq!(accepted(&server), 1.0);
    server.finish_with_pending().await;
}

/// A publish with the token, then whatever follows.
fn publish(rest: &str) -> Vec<u8> {
    publish_with(rest.as_bytes())
}

fn publish_with(rest: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v2/publish/https://example.com/hook HTTP/1.1\r\nHost: posthaste.example\r\nAuthorization: Bearer {TOKEN}\r\n"
    );
    [head.as_bytes(), rest].concat()
}

/// The same without a Host.
fn hostless(rest: &str) -> Vec<u8> {
    let head = "POST /v2/publish/https://example.com/hook HTTP/1.1\r\n";
    format!("{head}Authorization: Bearer {TOKEN}\r\n{rest}").into_bytes()
}

fn bytes_of(server: &TestServer, id: &str) -> Vec<u8> {
    match id {
        "auth-nul" => {
            b"POST /v2/publish/https://example.com/hook HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \0\r\n\r\n"
                .to_vec()
        }
        "b-cut" => publish("Content-Length: 100\r\n\r\n0123456789"),
        "h-fwd-8bit" => publish_with(b"Upstash-Forward-X: caf\xe9\r\n\r\n"),
        "h-fwd-nul" => publish_with(b"Upstash-Forward-X: a\0b\r\n\r\n"),
        "raw-te-cl" => publish("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
        "raw-te-te" => publish("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunkedd\r\n\r\n0\r\n\r\n"),
        "raw-te-tab" => publish("Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
        "raw-te-xchunked" => publish("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        "raw-dup-cl" => publish("Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
        "raw-cl-plus" => publish("Content-Length: +5\r\n\r\nhello"),
        "raw-cl-hex" => publish("Content-Length: 0x5\r\n\r\nhello"),
        "raw-cl-neg" => publish("Content-Length: -5\r\n\r\nhello"),
        "raw-chunk-bad" => publish("Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"),
        "raw-chunk-overflow" => publish("Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\nhello\r\n0\r\n\r\n"),
        "raw-chunk-lf" => publish("Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n"),
        "raw-lf-only" => String::from_utf8_lossy(&publish("\r\n")).replace("\r\n", "\n").into_bytes(),
        "raw-cr-only" => String::from_utf8_lossy(&publish("\r\n")).replace("\r\n", "\r").into_bytes(),
        "raw-no-host" => hostless("\r\n"),
        "raw-two-hosts" => hostless("Host: a.example\r\nHost: b.example\r\n\r\n"),
        "raw-host-junk" => hostless("Host: a b\r\n\r\n"),
        "raw-connect" => b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n".to_vec(),
        "raw-http09" => b"GET /\r\n\r\n".to_vec(),
        "raw-http2-preface-on-h1" => b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec(),
        "raw-h2-continuation" => {
            let first = frame(1, 0, 1, &[0x82; 16]);
            http2(&[first, frame(9, 0, 1, &[0x82; 1_024]).repeat(1_000)])
        }
        "raw-h2-settings-flood" => http2(&[frame(4, 0, 0, &[]).repeat(100_000)]),
        "raw-h2-zero-window" => {
            let window = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
            // GET, http, /, and an authority in plain text.
            http2(&[window, frame(1, 5, 1, &[0x82, 0x86, 0x84, 0x41, 1, b'x'])])
        }
        "raw-h2-pseudo-dup" => http2(&[frame(1, 5, 1, &[0x82, 0x86, 0x84, 0x84, 0x41, 1, b'x'])]),
        "raw-tls-sni-mismatch" => client_hello("other.example"),
        "raw-long-line" => server.get(&format!("/{}", "a".repeat(64 * 1024))).bytes(),
        "raw-many-headers" => {
            (0..1_000).fold(server.get("/v2/keys"), |get, n| get.header(format!("X-{n}"), "1")).bytes()
        }
        "raw-big-header" => server.get("/v2/keys").header("X-Big", "a".repeat(1024 * 1024)).bytes(),
        _ => panic!("no bytes for {id}"),
    }
}

/// An HTTP/2 connection that begins without being asked for: the preface, empty settings, and frames.
fn http2(frames: &[Vec<u8>]) -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[]), frames.concat()].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("frames are short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a TLS client says first, as rustls says it.
fn client_hello(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the versions are known")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("memory takes it");
    hello
}

/// Sends bytes, then nothing more, and says what came back.
async fn exchange(server: &TestServer, bytes: &[u8]) -> Seen {
    within("an end", async {
        let (mut reader, mut writer) = TcpStream::connect(server.address).await.expect("it listens").into_split();
        let sending = async {
            // The server may have heard enough before the end.
            drop(writer.write_all(bytes).await);
            drop(writer.shutdown().await);
            std::future::pending::<()>().await;
        };
        let mut buffer = Vec::new();
        tokio::select! {
            () = sending => unreachable!("sending never ends"),
            answer = read_answer(&mut reader, &mut buffer) => match answer {
                Ok(answer) => {
                    if answer.status >= 400 {
                        answer.error();
                    }
                    Seen::Status(answer.status)
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Seen::Closed,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Seen::Closed,
                Err(error) => panic!("{error}"),
            },
        }
    })
    .await
}
