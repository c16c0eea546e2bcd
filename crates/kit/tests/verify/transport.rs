//! The transport rules over a real connection: how a server and the route interpret bytes.

use crate::support::{CURRENT, NEXT, NOW, Store, URL, at, token_of};
use posthaste_kit::Receiver;
use posthaste_kit::body::BodyLimits;
use posthaste_kit::webhook::{Event, RateLimit, Webhook};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const BODY: &str = "{\"a\":1}";

/// A server with one route for deliveries of a queue.
struct Server {
    address: SocketAddr,
    store: Arc<Store>,
    runs: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start() -> Server {
        let (store, runs) = (Arc::new(Store::new()), Arc::new(AtomicUsize::new(0)));
        let counted = runs.clone();
        let handler = move |_: Event<serde_json::Value>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        };
        let receiver = Receiver::new(CURRENT, NEXT).unwrap().at_base("https://app.example.com");
        let limits = BodyLimits { bytes: 64, time: Duration::from_millis(300) };
        let webhook = Webhook::new(receiver, store.clone(), handler).clock(at(NOW)).body_limits(limits);
        // A nested router does not see the whole path.
        let nested = axum::Router::new().route("/queue", webhook.clone().route());
        let app = axum::Router::new().nest("/nested", nested).route("/hooks/queue", webhook.clone().route());
        let app = app.route("/hooks/other", webhook.route());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Server { address, store, runs, task }
    }

    /// The status of the response to these bytes.
    async fn ask(&self, request: &[u8]) -> u16 {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        status(&mut stream).await
    }

    fn effects(&self) -> (usize, usize) {
        (self.store.asked(), self.runs.load(Ordering::SeqCst))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn status(stream: &mut TcpStream) -> u16 {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.unwrap());
    }
    let line = String::from_utf8(line).unwrap();
    line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

/// A delivery as bytes: the lines of every request, and those of the case.
fn request(first: &str, lines: &[&str], body: &str) -> Vec<u8> {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    format!("{first} HTTP/1.1\r\nHost: attacker.example\r\nUpstash-Message-Id: msg_1\r\n{lines}\r\n{body}").into_bytes()
}

fn signature(body: &str) -> String {
    format!("Upstash-Signature: {}", token_of(CURRENT, URL, body.as_bytes(), Some("msg_1")))
}

fn length(body: &str) -> String {
    format!("Content-Length: {}", body.len())
}

#[tokio::test]
async fn good_requests_come_in_many_forms() {
    let good = signature(BODY);
    let cases: [(&str, Vec<u8>); 4] = [
        (
            "tr-case",
            request(
                "POST /hooks/queue",
                &[&good.replace("Upstash-Signature", "uPSTASH-sIGNATURE"), &length(BODY)],
                BODY,
            ),
        ),
        (
            "tr-chunked",
            request(
                "POST /hooks/queue",
                &[&good, "Transfer-Encoding: chunked"],
                "3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n",
            ),
        ),
        (
            "tr-forwarded-host",
            request("POST /hooks/queue", &[&good, "X-Forwarded-Host: app.example.com", &length(BODY)], BODY),
        ),
        ("replay-same", request("POST /hooks/queue", &[&good, &length(BODY)], BODY)),
    ];
    for (id, request) in cases {
        let server = Server::start().await;
        assert_eq!(server.ask(&request).await, 204, "{id}");
        assert_eq!(server.runs.load(Ordering::SeqCst), 1, "{id}");
        assert_eq!(server.ask(&request).await, 204, "{id}");
        assert_eq!(server.runs.load(Ordering::SeqCst), 1, "{id}: a repetition has no effect");
    }
}

#[tokio::test]
async fn a_nested_route_is_verified_by_its_whole_path() {
    let server = Server::start().await;
    let post = |url: &str| {
        let signature = format!("Upstash-Signature: {}", token_of(CURRENT, url, BODY.as_bytes(), Some("msg_1")));
        request("POST /nested/queue", &[&signature, &length(BODY)], BODY)
    };
    assert_eq!(server.ask(&post("https://app.example.com/queue")).await, 401);
    assert_eq!(server.ask(&post("https://app.example.com/nested/queue")).await, 204);
}

/// `tr-get`: the empty body is not JSON, which only verified callers learn.
#[tokio::test]
async fn a_get_is_verified_like_any_other() {
    let server = Server::start().await;
    assert_eq!(server.ask(&request("GET /hooks/queue", &[&signature("")], "")).await, 489);
    let other = [&*signature(""), &length(BODY)];
    assert_eq!(server.ask(&request("GET /hooks/queue", &other, BODY)).await, 401, "tr-get-with-body");
    assert_eq!(server.effects(), (0, 0));
}

#[tokio::test]
async fn bad_requests_have_no_effect() {
    let (good, length) = (signature(BODY), length(BODY));
    let long = "x".repeat(65);
    let post = "POST /hooks/queue";
    let chunks = format!("41\r\n{long}\r\n0\r\n\r\n");
    let hostile = "{\"a\":".repeat(12);
    let mut obs_text = request(post, &[&good, &length], BODY);
    let after_signature = find(&obs_text, b"\r\nContent-Length");
    obs_text.insert(after_signature, 0xfc);
    let cases: [(&str, u16, Vec<u8>); 11] = [
        ("tr-missing", 401, request(post, &[&length], BODY)),
        ("tr-empty", 401, request(post, &["Upstash-Signature:", &length], BODY)),
        ("tr-two-headers", 401, request(post, &[&good, "Upstash-Signature: x", &length], BODY)),
        ("tr-two-same", 401, request(post, &[&good, &good, &length], BODY)),
        ("tr-obs-text", 401, obs_text),
        ("tr-length-lie", 401, request(post, &[&good, "Content-Length: 3"], BODY)),
        ("too long", 489, request(post, &[&good, "Content-Length: 65"], &long)),
        ("too long in chunks", 489, request(post, &[&good, "Transfer-Encoding: chunked"], &chunks)),
        ("replay-other-endpoint", 401, request("POST /hooks/other", &[&good, &length], BODY)),
        ("other query", 401, request("POST /hooks/queue?a=1", &[&good, &length], BODY)),
        ("order-of-work", 401, request(post, &[&good, &format!("Content-Length: {}", hostile.len())], &hostile)),
    ];
    let server = Server::start().await;
    for (id, status, request) in cases {
        assert_eq!(server.ask(&request).await, status, "{id}");
        assert_eq!(server.effects(), (0, 0), "no-side-effect: {id}");
    }
    assert_eq!(server.ask(&request(post, &[&good, &length], BODY)).await, 204, "the server still works");
}

fn find(bytes: &[u8], pattern: &[u8]) -> usize {
    bytes.windows(pattern.len()).position(|window| window == pattern).unwrap()
}

/// `tr-slow-body`: the rest never arrives, and the wait for it ends.
#[tokio::test]
async fn a_slow_body_is_aborted() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let bytes = request("POST /hooks/queue", &[&signature(BODY), &length(BODY)], &BODY[..3]);
    stream.write_all(&bytes).await.unwrap();
    assert_eq!(status(&mut stream).await, 408);
    assert_eq!(server.effects(), (0, 0));
}

#[tokio::test]
async fn a_caller_that_fails_too_often_is_known_by_the_address_of_its_connection() {
    let receiver = Receiver::new(CURRENT, NEXT).unwrap().at_base("https://app.example.com");
    let webhook = Webhook::raw(receiver, Arc::new(Store::new()), |_| async { Ok(()) }).clock(at(NOW));
    let webhook = webhook.unverified_limit(RateLimit::per_second(1).burst(2).by_peer());
    let app = axum::Router::new().route("/hooks/queue", webhook.route());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let mut statuses = Vec::new();
    for line in ["X-None: 1", "X-None: 1", &signature(BODY)] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&request("POST /hooks/queue", &[line, &length(BODY)], BODY)).await.unwrap();
        statuses.push(status(&mut stream).await);
    }
    assert_eq!(statuses, [401, 401, 429]);
    task.abort();
}

/// `replay-concurrent`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_at_once_one_runs() {
    let server = Arc::new(Server::start().await);
    let bytes = Arc::new(request("POST /hooks/queue", &[&signature(BODY), &length(BODY)], BODY));
    let mut answers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (server, bytes) = (server.clone(), bytes.clone());
        answers.spawn(async move { server.ask(&bytes).await });
    }
    let answers = answers.join_all().await;
    assert!(answers.iter().all(|status| [204, 409].contains(status)) && answers.contains(&204), "{answers:?}");
    assert_eq!(server.runs.load(Ordering::SeqCst), 1);
}
