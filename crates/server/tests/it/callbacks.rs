//! Callbacks: who hears of attempts and failures, what they are told, and that they are messages themselves.

use crate::support::http::redact;
use crate::support::jwt;
use crate::support::server::{CURRENT_KEY, START_MS, message_id};
use crate::support::{Backend, Delivery, Lines, Receiver, Reply, Setup, TestServer};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// What a callback tells.
fn payload(delivery: &Delivery) -> Value {
    assert_eq!(delivery.header("content-type"), Some("application/json"));
    serde_json::from_slice(&delivery.body).expect("a callback is JSON")
}

/// The requests to one path among the next so many, in the order of their arrival.
async fn at(receiver: &Receiver, count: usize, path: &str) -> Vec<Delivery> {
    receiver.take(count).await.into_iter().filter(|delivery| delivery.target == path).collect()
}

/// Waits until the message of a delivery has been through exactly these states.
async fn reaches(server: &TestServer, delivery: &Delivery, states: &[&str]) {
    server.reaches(delivery.header("upstash-message-id").expect("an id"), states).await;
}

#[tokio::test]
async fn a_callback_tells_of_a_delivery_in_these_words() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let answer = Reply::status(201).with_header("X-Two", "1").with_header("X-Two", "2, 3").with_body([0xff, b'a']);
        receiver.script("/source", [answer]);
        let (source, callback) = (receiver.url("/source?a=%20"), receiver.url("/callback?b=c"));
        let headers = [
            ("Upstash-Callback", callback.as_str()),
            ("Upstash-Method", "PUT"),
            ("Upstash-Retries", "5"),
            ("Upstash-Delay", "10s"),
            ("Upstash-Forward-X-Mine", "1"),
            ("Upstash-Forward-X-Mine", "2"),
            ("Content-Type", "text/plain"),
        ];
        let id = server.publish_with(&source, &headers, "hello").await;
        server.advance(10_000).await;
        let told = at(&receiver, 2, "/callback?b=c").await.remove(0);
        assert_eq!(
            payload(&told),
            json!({
                "status": 201,
                "header": { "Content-Length": ["2"], "X-Two": ["1", "2, 3"] },
                "body": "/2E=",
                "retried": 0,
                "maxRetries": 5,
                "sourceMessageId": id,
                "url": source,
                "method": "PUT",
                "sourceHeader": { "Content-Type": ["text/plain"], "X-Mine": ["1", "2"] },
                "sourceBody": "aGVsbG8=",
                "notBefore": START_MS + 10_000,
                "createdAt": START_MS,
                "callerIP": "127.0.0.1",
            })
        );

        // It is a message like any other.
        assert_eq!((told.method.as_str(), told.header("upstash-retried")), ("POST", Some("0")));
        let own_id = told.header("upstash-message-id").expect("an id").to_owned();
        assert_ne!(own_id, id);
        let token = told.header("upstash-signature").expect("it is signed");
        let claims = jwt::verify(token, CURRENT_KEY).expect("the current key signs");
        assert_eq!((&claims["sub"], &claims["body"]), (&json!(callback), &json!(jwt::body_claim(&told.body))));
        assert_eq!(claims["messageId"], own_id.as_str());
        server.reaches(&own_id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        let own = server.get(&format!("/v2/messages/{own_id}")).expect(200).await.redacted();
        let body = String::from_utf8(told.body.clone()).expect("JSON is text");
        assert_eq!(
            own,
            json!({
                "messageId": "<message>",
                "sourceMessageId": id,
                "sourceKind": "callback",
                "url": callback,
                "method": "POST",
                "header": { "Content-Type": ["application/json"] },
                "body": body,
                "maxRetries": 5,
                "notBefore": START_MS + 10_000,
                "createdAt": START_MS + 10_000,
                "callerIP": "127.0.0.1",
            })
        );
        assert_eq!(server.message(&id).await["callback"], callback);
        server.finish().await;
    }
}

#[tokio::test]
async fn every_attempt_is_told_and_the_failure_once() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/source", [Reply::status(500).with_body("one"), Reply::status(404).with_body("two")]);
        let url = receiver.url("/source");
        let headers = [
            ("Upstash-Callback", receiver.url("/each")),
            ("Upstash-Failure-Callback", receiver.url("/failed")),
            ("Upstash-Retries", "1".to_owned()),
            ("Upstash-Retry-Delay", "60000".to_owned()),
        ];
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let id = server.publish_with(&url, &headers, "").await;
        let told = |status: u16, body: &str, retried: u32| {
            json!({
                "status": status,
                "header": { "Content-Length": ["3"] },
                "body": STANDARD.encode(body),
                "retried": retried,
                "maxRetries": 1,
                "sourceMessageId": id,
                "url": url,
                "method": "POST",
                "sourceHeader": {},
                "sourceBody": "",
                "notBefore": START_MS,
                "createdAt": START_MS,
                "callerIP": "127.0.0.1",
            })
        };
        let first = at(&receiver, 2, "/each").await.remove(0);
        assert_eq!(payload(&first), told(500, "one", 0));
        server.settle().await;
        assert_eq!(receiver.count(), 2);
        server.advance(60_000).await;
        let rest = receiver.take(3).await;
        let letter = server.dead_letter_of(&id).await;
        for delivery in rest {
            match delivery.target.as_str() {
                "/source" => continue,
                "/each" => assert_eq!(payload(&delivery), told(404, "two", 1)),
                _ => {
                    let mut expected = told(404, "two", 1);
                    expected["dlqId"] = letter["dlqId"].clone();
                    assert_eq!(payload(&delivery), expected);
                }
            }
            reaches(&server, &delivery, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        }
        server.finish().await;
        assert_eq!(receiver.count(), 5);
    }
}

#[tokio::test]
async fn an_attempt_without_an_answer_has_the_status_zero() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/closes", [Reply::Close]);
    let failed = receiver.url("/failed");
    let headers = [("Upstash-Failure-Callback", failed.as_str()), ("Upstash-Retries", "0")];
    server.publish_with(&receiver.url("/closes"), &headers, "").await;
    let told = payload(&at(&receiver, 2, "/failed").await.remove(0));
    assert_eq!((&told["status"], &told["header"]), (&json!(0), &json!({})));
    server.finish().await;
}

#[tokio::test]
async fn a_message_of_a_group_tells_of_its_group() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let group = json!({ "endpoints": [{ "url": receiver.url("/1"), "name": "one" }, { "url": receiver.url("/2") }] });
    server.post("/v2/topics/group/endpoints").json(&group).expect(200).await;
    server.publish("group").header("Upstash-Callback", receiver.url("/told")).expect(200).await;
    let mut told: Vec<Value> = at(&receiver, 4, "/told").await.iter().map(payload).collect();
    told.sort_by_key(|told| told["url"].as_str().map(str::to_owned));
    for (told, endpoint) in told.iter().zip([json!("one"), Value::Null]) {
        assert_eq!((&told["topicName"], &told["endpointName"]), (&json!("group"), &endpoint));
    }
    assert_eq!(told.len(), 2);
    server.finish().await;
}

#[tokio::test]
async fn a_callback_has_settings_of_its_own() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/told", [Reply::status(500)]);
    let told = receiver.url("/told");
    let headers = [
        ("Upstash-Callback", told.as_str()),
        ("Upstash-Callback-Method", "PATCH"),
        ("Upstash-Callback-Retries", "1"),
        ("Upstash-Callback-Retry-Delay", "5000"),
        ("Upstash-Callback-Timeout", "30s"),
        ("Upstash-Callback-Delay", "1m"),
        ("Upstash-Callback-Label", "of-callback"),
        ("Upstash-Callback-Flow-Control-Key", "callbacks"),
        ("Upstash-Callback-Flow-Control-Value", "rate=10"),
        ("Upstash-Callback-Forward-X-Mine", "yes"),
        ("Upstash-Callback-Anything", "is ignored"),
        ("Upstash-Retries", "7"),
        ("Upstash-Label", "of-source"),
        ("Upstash-Forward-X-Source", "no"),
    ];
    let id = server.publish_with(&receiver.url("/"), &headers, "").await;
    assert_eq!(server.message(&id).await["callbackHeader"], json!({ "X-Mine": ["yes"] }));
    let event = &server.events_of(&id).await[0];
    let shown = (&event["callback"], &event["callbackHeaders"]);
    assert_eq!(shown, (&json!(told), &json!({ "X-Mine": ["yes"] })));
    receiver.next().await;
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    server.advance(59_999).await;
    assert_eq!(receiver.count(), 1);
    server.advance(1).await;
    let delivery = receiver.next().await;
    assert_eq!((delivery.method.as_str(), delivery.header("x-mine")), ("PATCH", Some("yes")));
    assert_eq!(delivery.header("x-source"), None);
    reaches(&server, &delivery, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
    server.advance(5_000).await;
    let again = receiver.next().await;
    assert_eq!((again.header("upstash-retried"), &again.body), (Some("1"), &delivery.body));
    reaches(&server, &again, &["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "FAILED"]).await;

    // A callback that fails is a dead letter like others, and makes no callback.
    let own_id = again.header("upstash-message-id").expect("an id");
    let letter = redact(server.dead_letter_of(own_id).await);
    let expected = json!({
        "messageId": "<message>",
        "sourceMessageId": id,
        "sourceKind": "callback",
        "dlqId": "<dlq>",
        "url": told,
        "method": "PATCH",
        "header": { "Content-Type": ["application/json"], "X-Mine": ["yes"] },
        "body": String::from_utf8(again.body.clone()).expect("JSON is text"),
        "maxRetries": 1,
        "retryDelayExpression": "5000",
        "timeout": 30,
        "notBefore": START_MS + 60_000,
        "createdAt": START_MS,
        "callerIP": "127.0.0.1",
        "label": "of-callback",
        "labels": ["of-callback"],
        "flowControlKey": "callbacks",
        "rate": 10,
        "period": 1,
        "responseStatus": 500,
        "responseHeader": { "Content-Length": ["0"] },
    });
    assert_eq!(letter, expected);
    server.finish().await;
    assert_eq!(receiver.count(), 3);
}

#[tokio::test]
async fn a_callback_is_not_lost_with_the_server() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/told", [Reply::status(500), Reply::status(200)]);
        let told = receiver.url("/told");
        let headers = [("Upstash-Callback", told.as_str()), ("Upstash-Callback-Retry-Delay", "60000")];
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        let first = at(&receiver, 2, "/told").await.remove(0);
        reaches(&server, &first, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        let server = server.restart().await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        server.advance(60_000).await;
        assert_eq!(receiver.next().await.body, first.body);
        server.finish().await;
        assert_eq!(receiver.count(), 3, "the message itself is not sent again");
    }
}

#[tokio::test]
async fn a_queue_waits_for_the_callbacks_of_a_message() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, gate) = Reply::status(200).held();
        receiver.script("/told", [Reply::status(500), held]);
        let told = receiver.url("/told");
        let headers = [("Upstash-Callback", told.as_str()), ("Upstash-Callback-Retry-Delay", "60000")];
        let first = server.enqueue_with("q", &receiver.url("/first"), &headers).await;
        server.enqueue_with("q", &receiver.url("/second"), &[]).await;
        let callback = at(&receiver, 2, "/told").await.remove(0);
        reaches(&server, &callback, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        server.reaches(&first, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        let server = server.restart().await;
        server.settle().await;
        assert_eq!(receiver.count(), 2, "the callback waits for its retry");
        assert_eq!(server.queue("q").await["lag"], 1, "a callback is not a message of the queue");
        server.advance(60_000).await;
        assert_eq!(receiver.next().await.target, "/told");
        server.settle().await;
        assert_eq!(receiver.count(), 3, "the callback is under way");
        gate.open();
        assert_eq!(receiver.next().await.target, "/second");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_queue_waits_for_the_failure_callback_too() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/first", [Reply::status(500)]);
    let (held, gate) = Reply::status(200).held();
    receiver.script("/failed", [held]);
    let failed = receiver.url("/failed");
    let headers = [("Upstash-Failure-Callback", failed.as_str()), ("Upstash-Retries", "0")];
    server.enqueue_with("q", &receiver.url("/first"), &headers).await;
    server.enqueue_with("q", &receiver.url("/second"), &[]).await;
    assert_eq!(at(&receiver, 2, "/failed").await.len(), 1);
    server.settle().await;
    assert_eq!(receiver.count(), 2);
    gate.open();
    assert_eq!(receiver.next().await.target, "/second");
    server.finish().await;
}

#[tokio::test]
async fn a_callback_that_fails_or_is_cancelled_frees_the_queue() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/told", [Reply::status(500)]);
        let told = receiver.url("/told");
        let fails = [("Upstash-Callback", told.as_str()), ("Upstash-Callback-Retries", "0")];
        let waits = [("Upstash-Callback", told.as_str()), ("Upstash-Callback-Retry-Delay", "60000")];
        server.enqueue_with("q", &receiver.url("/first"), &fails).await;
        server.enqueue_with("q", &receiver.url("/second"), &waits).await;
        server.enqueue_with("q", &receiver.url("/third"), &[]).await;
        let deliveries = receiver.take(4).await;
        let targets: Vec<&str> = deliveries.iter().map(|delivery| delivery.target.as_str()).collect();
        assert_eq!(targets, ["/first", "/told", "/second", "/told"]);
        reaches(&server, &deliveries[3], &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        server.settle().await;
        assert_eq!(receiver.count(), 4);
        let callback = deliveries[3].header("upstash-message-id").expect("an id");
        server.delete(&format!("/v2/messages/{callback}")).expect(202).await;
        assert_eq!(receiver.next().await.target, "/third");
        server.finish().await;
    }
}

#[tokio::test]
async fn callbacks_keep_to_a_key_of_their_own() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    receiver.script("/told", [held]);
    let told = receiver.url("/told");
    let headers = [
        ("Upstash-Callback", told.as_str()),
        ("Upstash-Callback-Flow-Control-Key", "k"),
        ("Upstash-Callback-Flow-Control-Value", "parallelism=1"),
    ];
    for _ in 0..3 {
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    }
    assert_eq!(at(&receiver, 4, "/told").await.len(), 1);
    server.settle().await;
    assert_eq!(receiver.count(), 4);
    let flow = server.flow("k").await;
    assert_eq!((&flow["parallelismCount"], &flow["waitListSize"]), (&json!(1), &json!(2)));
    gate.open();
    assert_eq!(at(&receiver, 2, "/told").await.len(), 2);
    server.finish().await;
}

#[tokio::test]
async fn what_is_to_be_hidden_is_hidden_in_callbacks_and_told_to_them() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let told = receiver.url("/told");
    let headers = [
        ("Upstash-Callback", told.as_str()),
        ("Upstash-Failure-Callback", told.as_str()),
        ("Upstash-Callback-Forward-X-Secret", "s3cret"),
        ("Upstash-Callback-Forward-X-Plain", "plain"),
        ("Upstash-Failure-Callback-Forward-X-Own", "0wn"),
        ("Upstash-Failure-Callback-Redact-Fields", "header"),
        ("Upstash-Forward-X-Secret", "s3cret"),
        ("Upstash-Redact-Fields", "body, header[X-Secret]"),
    ];
    let id = server.publish_with(&receiver.url("/"), &headers, "hidden body").await;
    let message = server.message(&id).await;
    let mark = server.mark("s3cret");
    assert_eq!(message["callbackHeader"], json!({ "X-Secret": [mark], "X-Plain": ["plain"] }));
    assert_eq!(message["failureCallbackHeader"], json!({ "X-Own": [server.mark("0wn")] }));
    let delivery = at(&receiver, 2, "/told").await.remove(0);
    assert_eq!(delivery.header("x-secret"), Some("s3cret"));
    let payload = payload(&delivery);
    assert_eq!(payload["sourceBody"], STANDARD.encode("hidden body"));
    assert_eq!(payload["sourceHeader"]["X-Secret"], json!(["s3cret"]));
    // The body of the callback holds what its source hides.
    let own_id = delivery.header("upstash-message-id").expect("an id");
    server.reaches(own_id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    assert_eq!(server.message(own_id).await["body"], server.mark(&delivery.body));
    let shown = format!("{:?} {:?}", server.events("").await, server.message(own_id).await);
    assert!(!shown.contains("s3cret") && !shown.contains(&STANDARD.encode("hidden body")), "{shown}");
    server.finish().await;
}

#[tokio::test]
async fn callbacks_may_go_only_where_messages_may() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    let failed = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "").await;
    let letter = server.dead_letter_of(&failed).await;
    let retry = format!("/v2/dlq/retry/{}", letter["dlqId"].as_str().expect("an id"));
    let own = format!("http://{}/v2/publish/https://example.com/", server.address);
    for name in ["Upstash-Callback", "Upstash-Failure-Callback"] {
        for url in ["http://10.0.0.1/", "http://169.254.169.254/", own.as_str(), "ftp://example.com/", "group"] {
            let destination = receiver.url("/");
            let item = json!({ "destination": destination, "headers": { name: url } });
            let good = json!({ "destination": destination });
            let requests = [
                server.publish(&destination).header(name, url),
                server.enqueue("q", &destination).header(name, url),
                server.post(&retry).header(name, url),
                server.post("/v2/batch").json(&json!([good, item])),
            ];
            for request in requests {
                let error = request.expect(400).await.error();
                assert!(error.contains(&format!("{name}: ")), "{url}: {error}");
            }
        }
    }
    assert_eq!(server.dead_letters("").await.len(), 1);
    server.finish().await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn a_retry_from_the_dlq_keeps_or_changes_callbacks() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    let (kept, changed) = (receiver.url("/kept"), receiver.url("/changed"));
    let headers = [
        ("Upstash-Callback", kept.as_str()),
        ("Upstash-Callback-Forward-X", "1"),
        ("Upstash-Failure-Callback", kept.as_str()),
        ("Upstash-Retries", "0"),
    ];
    let overrides = [("Upstash-Callback", changed.as_str()), ("Upstash-Callback-Method", "PUT")];
    let cases: [(Lines<'_>, Value); 2] =
        [(&[], json!([kept, { "X": ["1"] }, kept])), (&overrides, json!([changed, null, kept]))];
    for (overrides, expected) in cases {
        let failed = server.publish_with(&receiver.url("/fails"), &headers, "").await;
        let letter = server.dead_letter_of(&failed).await;
        assert_eq!(letter["failureCallback"], kept);
        let retry = format!("/v2/dlq/retry/{}", letter["dlqId"].as_str().expect("an id"));
        let again = server.post(&retry).headers(overrides).header("Upstash-Delay", "1h").expect(201).await;
        let message = server.message(&message_id(&again)).await;
        let shown = ["callback", "callbackHeader", "failureCallback"].map(|name| message[name].clone());
        assert_eq!(json!(shown), expected);
        // The failure and both callbacks.
        receiver.take(3).await;
    }
    server.delete("/v2/messages").expect(202).await;
    server.finish().await;
}
