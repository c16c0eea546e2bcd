//! The handler as a route of a real server, tested byte by byte.

use crate::support::{Harness, message};
use axum::Router;
use posthaste_kit::body::BodyLimits;
use posthaste_kit::testing::TestDelivery;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

struct Server {
    address: SocketAddr,
    running: JoinHandle<()>,
}

impl Server {
    async fn start(app: Router) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let running = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Server { address, running }
    }

    /// Sends the whole request before it reads the response, as a queue may.
    async fn exchange(&self, head: &str, body: &[u8]) -> String {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.write_all(body).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// The head of a signed request, without the length of the body.
fn head(harness: &Harness, method: &str, delivery: &TestDelivery) -> String {
    let request = harness.signed(delivery);
    let mut head = format!("{method} {} HTTP/1.1\r\nHost: attacker.example\r\nConnection: close\r\n", request.uri());
    for (name, value) in request.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    head
}

fn with_length(head: &str, length: usize) -> String {
    format!("{head}Content-Length: {length}\r\n\r\n")
}

#[tokio::test]
async fn a_route_takes_every_method_also_inside_of_a_nested_router() {
    let harness = Harness::good();
    let inner = Router::new().route("/mail", harness.jobs.clone().route());
    let server = Server::start(Router::new().nest("/jobs", inner)).await;
    for (number, method) in ["POST", "PUT", "GET", "DELETE"].into_iter().enumerate() {
        let delivery = message().message_id(&format!("msg_{number}"));
        let head = with_length(&head(&harness, method, &delivery), delivery.bytes().len());
        let answer = server.exchange(&head, delivery.bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 204 No Content\r\n"), "{method}: {answer}");
        assert!(answer.contains(&format!("upstash-message-id: msg_{number}\r\n")), "{answer}");
    }
    assert_eq!(harness.witness.ended(), 4);
    // The same delivery for another route of the service.
    let elsewhere = TestDelivery::to("https://app.example.com/jobs/other").body("{}");
    let head = head(&harness, "POST", &elsewhere).replace("/jobs/other", "/jobs/mail");
    let answer = server.exchange(&with_length(&head, 2), b"{}").await;
    assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{answer}");
}

#[tokio::test]
async fn a_chunked_body_is_a_body() {
    let harness = Harness::good();
    let server = Server::start(Router::new().route("/jobs/mail", harness.jobs.clone().route())).await;
    let body = message().bytes().clone();
    let chunks = format!(
        "5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        std::str::from_utf8(&body[..5]).unwrap(),
        body.len() - 5,
        std::str::from_utf8(&body[5..]).unwrap(),
    );
    let head = format!("{}Transfer-Encoding: chunked\r\n\r\n", head(&harness, "POST", &message()));
    let answer = server.exchange(&head, chunks.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 204 No Content\r\n"), "{answer}");
}

#[tokio::test]
async fn the_sender_of_a_body_over_the_limit_receives_the_error() {
    let limits = BodyLimits { bytes: 1_000, ..BodyLimits::default() };
    let harness = Harness::good().configure(|jobs| jobs.body_limits(limits));
    let server = Server::start(Router::new().route("/jobs/mail", harness.jobs.clone().route())).await;
    // More bytes than fit into the buffers of a connection.
    let long = message().body(vec![b' '; 8 * 1024 * 1024]);
    let head = with_length(&head(&harness, "POST", &long), long.bytes().len());
    let answer = server.exchange(&head, long.bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 489"), "{answer}");
    assert!(answer.contains("upstash-nonretryable-error: true\r\n"), "{answer}");
    assert!(harness.store.calls().is_empty());
}
