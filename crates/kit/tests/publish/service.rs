//! The service client against scripted services.

use crate::receiver::{Receiver, Reply};
use posthaste_kit::call::{CallError, Class};
use posthaste_kit::propagation::Propagator;
use posthaste_kit::retry::{CancellationToken, RetryPolicy};
use posthaste_kit::service::ServiceClient;
use serde::Deserialize;
use serde_json::json;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Short waits, so that the tests are fast.
const QUICK: RetryPolicy = RetryPolicy {
    attempts: 3,
    base: Duration::from_millis(1),
    max: Duration::from_millis(2),
    timeout: Duration::from_secs(10),
    retry_after_max: Duration::from_secs(30),
};

async fn service() -> (Receiver, ServiceClient) {
    let receiver = Receiver::start().await;
    let client = ServiceClient::new(receiver.url("/v1/")).unwrap().bearer("tok-123").unwrap().policy(QUICK);
    (receiver, client)
}

#[derive(Debug, PartialEq, Deserialize)]
struct Invoice {
    id: String,
}

#[tokio::test]
async fn a_request_carries_its_context_and_the_response_is_parsed() {
    let (receiver, client) = service().await;
    receiver.script("/v1/invoices", [Reply::json(r#"{"id":"inv_1"}"#)]);
    let client = client.propagator(Propagator::new(|headers| {
        headers.insert("traceparent", "00-a".parse().unwrap());
        headers.insert("x-request-id", "req_ambient".parse().unwrap());
    }));
    let request = client.post("/invoices?draft=1").json(&json!({ "cents": 5 }));
    let response = request.request_id("req_1").idempotency_key("k_1").user("u_7").send().await.unwrap();
    assert!(!response.existed());
    assert_eq!(response.json::<Invoice>().unwrap(), Invoice { id: "inv_1".into() });
    let seen = &receiver.seen()[0];
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/v1/invoices?draft=1"));
    assert_eq!(seen.body, br#"{"cents":5}"#);
    for (name, value) in [
        ("authorization", "Bearer tok-123"),
        ("x-request-id", "req_1"),
        ("idempotency-key", "k_1"),
        ("x-user-id", "u_7"),
        ("content-type", "application/json"),
        ("traceparent", "00-a"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn repeatable_requests_are_retried() {
    let (receiver, client) = service().await;
    for (number, bad) in [Reply::status(503), Reply::status(500), Reply::Close].into_iter().enumerate() {
        let path = format!("/v1/{number}");
        receiver.script(&path, [bad.clone(), bad, Reply::json("7")]);
        let before = receiver.seen().len();
        let answer = client.post(&format!("/{number}")).idempotency_key("k").send().await.unwrap();
        assert_eq!(answer.json::<u32>().unwrap(), 7);
        let seen = receiver.seen().split_off(before);
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|request| request.header("idempotency-key") == Some("k")));
    }
    receiver.script("/v1/away", [Reply::status(504)]);
    let error = client.get("/away").send().await.unwrap_err();
    assert_eq!((error.attempts(), error.status(), error.class()), (3, Some(504), Class::Unavailable));
}

#[tokio::test]
async fn unrepeatable_requests_are_retried_only_if_the_service_was_untouched() {
    let (receiver, client) = service().await;
    for (name, bad, requests) in [
        ("closed", Reply::Close, 1),
        ("failed", Reply::status(500), 1),
        ("away", Reply::status(503), 1),
        ("busy", Reply::status(429), 3),
        ("early", Reply::status(425), 3),
        ("refused", Reply::status(422), 1),
    ] {
        receiver.script(&format!("/v1/{name}"), [bad]);
        let before = receiver.seen().len();
        client.post(name).json(&1).send().await.unwrap_err();
        assert_eq!(receiver.seen().len() - before, requests, "{name}");
        // The caller may allow it explicitly.
        let before = receiver.seen().len();
        client.post(name).repeatable().send().await.unwrap_err();
        assert_eq!(receiver.seen().len() - before, if name == "refused" { 1 } else { 3 }, "{name}");
    }
    // Nothing listens on this address, so nothing was sent.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = ServiceClient::new(format!("http://{free}")).unwrap().policy(QUICK);
    let error = nobody.post("/").json(&1).send().await.unwrap_err();
    assert_eq!((error.class(), error.attempts(), error.is_untouched()), (Class::Network, 3, true));
}

#[tokio::test]
async fn unrepeatable_requests_are_not_retried_after_a_timeout() {
    let (receiver, client) = service().await;
    receiver.script("/v1/slow", [Reply::Hang]);
    let client = client.policy(RetryPolicy { timeout: Duration::from_millis(200), ..QUICK });
    for (request, attempts) in [
        (client.post("/slow"), 1),
        (client.patch("/slow"), 1),
        (client.put("/slow"), 3),
        (client.post("/slow").idempotency_key("k"), 3),
    ] {
        let error = request.json(&1).send().await.unwrap_err();
        assert!(error.is_timeout() && error.is_outage(), "{error}");
        assert_eq!(error.attempts(), attempts);
    }
}

#[tokio::test]
async fn a_conflict_is_a_success_with_create_if_absent() {
    let (receiver, client) = service().await;
    receiver.script("/v1/users", [Reply::status(409)]);
    assert!(client.put("/users").create_if_absent().send().await.unwrap().existed());
    assert!(client.put("/users").send().await.unwrap_err().is_conflict());
    assert_eq!(receiver.seen().len(), 2);
}

#[tokio::test]
async fn responses_are_limited_in_size_and_time() {
    let (receiver, client) = service().await;
    let exact = Reply::json(&format!("\"{}\"", "x".repeat(98)));
    receiver.script("/v1/long", [exact]);
    let client = client.answer_bytes_max(100);
    assert_eq!(client.get("/long").send().await.unwrap().bytes().len(), 100);
    let error = client.answer_bytes_max(99).get("/long").send().await.unwrap_err();
    assert_eq!((error.class(), error.attempts()), (Class::Invalid, 1));

    receiver.script("/v1/hang", [Reply::Hang]);
    let (_, client) = (&receiver, ServiceClient::new(receiver.url("/v1")).unwrap());
    let client = client.policy(RetryPolicy { timeout: Duration::from_millis(50), ..QUICK });
    let error = client.get("/hang").send().await.unwrap_err();
    assert!(error.is_timeout() && error.attempts() == 3, "{error}");

    let cancelled = CancellationToken::new();
    let client = client.policy(QUICK);
    let request = client.get("/hang").until(cancelled.clone()).send();
    let before = receiver.seen().len();
    let (result, ()) = tokio::join!(request, async {
        receiver.after(before + 1).await;
        cancelled.cancel();
    });
    assert!(result.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn retry_after_is_respected() {
    let (receiver, client) = service().await;
    receiver.script("/v1/busy", [Reply::status(429).with_header("retry-after", "1"), Reply::json("1")]);
    let begun = Instant::now();
    client.get("/busy").send().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    // Too long to wait: the error reports it immediately.
    receiver.script("/v1/closed", [Reply::status(503).with_header("retry-after", "3600")]);
    let error = client.get("/closed").send().await.unwrap_err();
    assert_eq!((error.attempts(), error.retry_after()), (1, Some(Duration::from_secs(3_600))));
}

#[tokio::test]
async fn requests_never_leave_the_base_url() {
    let (receiver, client) = service().await;
    let other = Receiver::start().await;
    receiver.script("/v1/moved", [Reply::status(307).with_header("location", &other.url("/"))]);
    let error = client.get("/moved").send().await.unwrap_err();
    assert_eq!((error.class(), error.status()), (Class::Refused, Some(307)));
    for path in ["../admin", "/a/../../admin", "%2e%2e/admin", "a/%2E%2e/%2e./admin", "..\\admin"] {
        assert_eq!(client.get(path).send().await.unwrap_err().class(), Class::Invalid, "{path}");
    }
    // A URL silently drops some characters. That must not create dots where there were none.
    for path in ["/.\t./admin", "/.\n.\r/admin", "a/.\t./b", "\t../admin", "/.. ", "a/..\u{0}", "/x/%2\te%2e/admin"] {
        assert_eq!(client.get(path).send().await.unwrap_err().class(), Class::Invalid, "{path:?}");
    }
    assert_eq!(receiver.seen().len(), 1);
    // A host in the path stays a part of the path.
    client.get("//evil.example.com/x").send().await.unwrap();
    assert_eq!(receiver.seen().last().unwrap().target, "/v1/evil.example.com/x");
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn invalid_responses_and_requests_are_distinguished_from_failures() {
    let (receiver, client) = service().await;
    receiver.script("/v1/html", [Reply::json("<html>")]);
    let error = client.get("/html").send().await.unwrap().json::<Invoice>().unwrap_err();
    assert_eq!((error.class(), error.body()), (Class::Invalid, Some("<html>")));
    receiver.script("/v1/empty", [Reply::status(204)]);
    client.get("/empty").send().await.unwrap().json::<()>().unwrap();
    let before = receiver.seen().len();
    let error = client.get("/").request_id("a\nb").send().await.unwrap_err();
    assert_eq!(error.class(), Class::Invalid);
    assert_eq!(receiver.seen().len(), before);
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn attempts_are_logged_and_secrets_are_not() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
    // For all tests of this program: none of their logs may contain a secret.
    subscriber.with_writer(move || writer.clone()).init();
    let (receiver, client) = service().await;
    receiver.script("/v1/pay", [Reply::status(503), Reply::status(400)]);
    let error: CallError = client
        .post("/pay?key=url-123")
        .idempotency_key("k")
        .json(&"bod-123")
        .operation("pay")
        .send()
        .await
        .unwrap_err();
    receiver.script("/v1/gone", [Reply::Close]);
    let broken = client.get("/gone?key=url-123").send().await.unwrap_err();
    let shown = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for line in [
        r#"operation="pay" attempt=1"#,
        r#"http_status=503 class="unavailable" retryable=true"#,
        r#"http_status=400 class="refused" retryable=false"#,
        "latency_ms=",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    let errors = format!("{error} {error:?} {} {broken:?} {} {client:?}", error.chain(), broken.chain());
    for secret in ["tok-123", "url-123", "bod-123"] {
        assert!(!shown.contains(secret) && !errors.contains(secret), "{secret} is in\n{shown}\n{errors}");
    }
}
