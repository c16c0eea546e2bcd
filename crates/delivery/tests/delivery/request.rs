//! The request that the receiver gets: URL, method, headers, body and signature.

use crate::script::{OK, Receiver, answer};
use crate::support::{NOW, attempt, deliverer, message};
use bytes::Bytes;
use posthaste_engine::outcome::ErrorClass;
use posthaste_wire::signature::{self, Claims, SigningKey};
use serde_json::Value;
use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

#[tokio::test]
async fn a_delivery_looks_like_one_of_the_hosted_service() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let message = message(&receiver.url("/hook"));
    attempt(&deliverer(), &message).await.result.unwrap();
    let request = &receiver.received()[0];
    assert_eq!(request.line(), "POST /hook HTTP/1.1");
    assert_eq!(request.body, b"hello");
    let expected = [
        ("Host", receiver.address.to_string()),
        ("User-Agent", "Upstash-QStash".into()),
        ("Content-Type", "text/plain".into()),
        ("Content-Length", "5".into()),
        ("Accept-Encoding", "identity".into()),
        ("Upstash-Message-Id", message.id.to_string()),
        ("Upstash-Retried", "0".into()),
        ("Upstash-Caller-Ip", "203.0.114.9".into()),
        ("Upstash-Region", "EU-CENTRAL-1".into()),
        ("Posthaste-Hops", "1".into()),
    ];
    for (name, value) in &expected {
        assert_eq!(request.value(name), value);
    }
    // These and the signature, and no other headers, in particular neither Expect nor Connection.
    let lines = request.head.lines().skip(1).filter(|line| !line.is_empty()).count();
    assert_eq!(lines, expected.len() + 1, "{}", request.head);
}

#[tokio::test]
async fn path_and_query_arrive_as_written() {
    let paths = [
        "/",
        "//double//slash/",
        "/a/../b/./c",
        "/%2F%2e%2E/%zz",
        "/?a=b&c",
        "/p?x=%20+&y=%C3%BC;z='",
        "/{id}|x?next=http://127.0.0.1/?a=1",
        "?only=query",
        "",
    ];
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let deliverer = deliverer();
    for path in paths {
        attempt(&deliverer, &message(&receiver.url(path))).await.result.unwrap();
    }
    let expected = paths.map(|path| if path.starts_with('/') { path.to_owned() } else { format!("/{path}") });
    let lines: Vec<String> = receiver.received().iter().map(|request| request.line().to_owned()).collect();
    assert_eq!(lines, expected.map(|path| format!("POST {path} HTTP/1.1")));
}

#[tokio::test]
async fn bytes_invalid_in_a_request_line_are_percent_encoded_and_signed_as_published() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let url = receiver.url("/grün?q=<ü>#fragment");
    attempt(&deliverer(), &message(&url)).await.result.unwrap();
    let request = &receiver.received()[0];
    assert_eq!(request.line(), "POST /gr%C3%BCn?q=%3C%C3%BC%3E HTTP/1.1");
    assert_eq!(claims(request.value("Upstash-Signature"))["sub"], url);
}

#[tokio::test]
async fn bodies_are_sent_byte_for_byte_with_any_method() {
    let binary: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let deliverer = deliverer();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        let mut message = message(&receiver.url("/"));
        message.spec.method = method.into();
        message.body = Bytes::from(binary.clone());
        attempt(&deliverer, &message).await.result.unwrap();
        let request = receiver.received().pop().unwrap();
        assert_eq!(request.line(), format!("{method} / HTTP/1.1"));
        assert!(request.body == binary, "{method}");
    }
}

#[tokio::test]
async fn an_empty_body_is_no_body() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let deliverer = deliverer();
    for (method, length) in [("GET", vec![]), ("DELETE", vec![]), ("POST", vec!["0"]), ("PUT", vec!["0"])] {
        let mut message = message(&receiver.url("/"));
        message.spec.method = method.into();
        message.body = Bytes::new();
        attempt(&deliverer, &message).await.result.unwrap();
        let request = receiver.received().pop().unwrap();
        assert_eq!(request.values("Content-Length"), length, "{method}");
        assert!(request.values("Transfer-Encoding").is_empty(), "{method}");
    }
}

#[tokio::test]
async fn forwarded_headers_are_sent_but_cannot_forge_ours() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let mut message = message(&receiver.url("/"));
    let forwarded = [
        ("User-Agent", "mine/1.0"),
        ("X-Twice", "one"),
        ("X-Twice", "two"),
        ("X-Text", "grün"),
        ("Authorization", "Bearer secret"),
        ("Upstash-Workflow-Runid", "wfr_1"),
        ("Upstash-Signature", "forged"),
        ("Upstash-Retried", "99"),
        ("Accept-Encoding", "gzip"),
        ("Connection", "X-Text"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "1"),
        ("Expect", "100-continue"),
        ("Upgrade", "websocket"),
    ];
    message.spec.headers = forwarded.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    attempt(&deliverer(), &message).await.result.unwrap();
    let request = &receiver.received()[0];
    assert_eq!(request.value("User-Agent"), "mine/1.0");
    assert_eq!(request.values("X-Twice"), ["one", "two"]);
    assert_eq!(request.value("X-Text"), "grün");
    assert_eq!(request.value("Authorization"), "Bearer secret");
    assert_eq!(request.value("Upstash-Workflow-Runid"), "wfr_1");
    assert_ne!(request.value("Upstash-Signature"), "forged");
    assert_eq!(request.value("Upstash-Retried"), "0");
    assert_eq!(request.value("Accept-Encoding"), "identity");
    assert_eq!(request.value("Content-Length"), "5");
    for name in ["Connection", "Transfer-Encoding", "Expect", "Upgrade"] {
        assert!(request.values(name).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn messages_that_http_cannot_carry_fail_without_a_connection() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let deliverer = deliverer();
    let mut with_newline = message(&receiver.url("/"));
    with_newline.spec.headers = vec![("X-Bad".into(), "a\r\nInjected: 1".into())];
    let mut with_bad_name = message(&receiver.url("/"));
    with_bad_name.spec.headers = vec![("X Bad".into(), "a".into())];
    let mut with_bad_method = message(&receiver.url("/"));
    with_bad_method.spec.method = "CONNECT".into();
    for message in [with_newline, with_bad_name, with_bad_method] {
        let error = attempt(&deliverer, &message).await.result.unwrap_err();
        assert_eq!(error.class, ErrorClass::Protocol, "{error:?}");
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn the_hops_of_a_delivery_include_itself() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let mut message = message(&receiver.url("/"));
    message.spec.hops = 4;
    message.spec.headers = vec![("Posthaste-Hops".into(), "0".into())];
    attempt(&deliverer(), &message).await.result.unwrap();
    let request = &receiver.received()[0];
    assert_eq!(request.values("Posthaste-Hops"), ["5"]);
    assert_eq!(claims(request.value("Upstash-Signature"))["hops"], 4);
}

fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).expect("payload");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).expect("base64")).expect("JSON")
}

#[tokio::test]
async fn every_attempt_has_a_new_signature_over_the_sent_bytes() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let deliverer = deliverer();
    let url = receiver.url("/hook?a=b&c");
    for size in [0, 5, 300_000] {
        let mut message = message(&url);
        message.body = Bytes::from(vec![b'x'; size]);
        attempt(&deliverer, &message).await.result.unwrap();
    }
    let mut ids = HashSet::new();
    for request in receiver.received() {
        let token = request.value("Upstash-Signature");
        let claims = claims(token);
        let id = claims["jti"].as_str().unwrap();
        assert!(id.starts_with("jwt_") && ids.insert(id.to_owned()), "{id}");
        assert_eq!(claims["iss"], "Upstash");
        assert_eq!(claims["sub"], url);
        assert_eq!(claims["nbf"], 0);
        assert_eq!(claims["iat"], NOW.as_seconds());
        assert_eq!(claims["exp"], NOW.as_seconds() + 300);
        let body_hash = signature::body_hash(&request.body);
        assert_eq!(claims["body"], body_hash);
        let expires_at = NOW.plus_millis(300_000);
        let message_id = Some(request.value("Upstash-Message-Id"));
        assert_eq!(claims["messageId"].as_str(), message_id);
        let expected =
            Claims { url: &url, issued_at: NOW, expires_at, jwt_id: id, body_hash: &body_hash, message_id, hops: 0 };
        assert_eq!(token, signature::sign(&SigningKey::new("sig_current"), &expected));
    }
    assert_eq!(ids.len(), 3);
}
