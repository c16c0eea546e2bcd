//! From a publish to the receiver: what it gets, how its answer counts, and when it is asked again.

use crate::support::jwt;
use crate::support::server::{CURRENT_KEY, START_MS};
use crate::support::{Backend, Delivery, Lines, Receiver, Reply, Setup, TestServer};
use serde_json::{Value, json};

/// The claims of a delivery's signature, which must be tenant A's and fit the rest of the request.
fn claims_of(delivery: &Delivery, url: &str) -> Value {
    let token = delivery.header("upstash-signature").expect("a delivery is signed");
    let claims = jwt::verify(token, CURRENT_KEY).expect("the current key signs");
    assert_eq!(claims["sub"], url);
    assert_eq!(claims["body"], jwt::body_claim(&delivery.body));
    claims
}

#[tokio::test]
async fn the_receiver_gets_exactly_these_headers() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/hook?a=%20&b");
    let headers = [("Content-Type", "text/plain"), ("Upstash-Forward-X-Mine", "1")];
    let id = server.publish_with(&url, &headers, "hello").await;

    let delivery = receiver.next().await;
    assert_eq!((delivery.method.as_str(), delivery.target.as_str()), ("POST", "/hook?a=%20&b"));
    let mut names: Vec<String> = delivery.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "accept-encoding",
            "content-length",
            "content-type",
            "host",
            "posthaste-hops",
            "upstash-caller-ip",
            "upstash-message-id",
            "upstash-region",
            "upstash-retried",
            "upstash-signature",
            "user-agent",
            "x-mine",
        ]
    );
    let expected = [
        ("accept-encoding", "identity"),
        ("content-length", "5"),
        ("content-type", "text/plain"),
        ("host", &receiver.address().to_string()),
        ("posthaste-hops", "1"),
        ("upstash-caller-ip", "127.0.0.1"),
        ("upstash-message-id", &id),
        ("upstash-region", "EU-CENTRAL-1"),
        ("upstash-retried", "0"),
        ("user-agent", "Upstash-QStash"),
        ("x-mine", "1"),
    ];
    for (name, value) in expected {
        assert_eq!(delivery.header(name), Some(value), "{name}");
    }
    let now = START_MS / 1_000;
    let claims = claims_of(&delivery, &url);
    let jwt_id = claims["jti"].as_str().expect("the id of a signature is text");
    assert!(jwt_id.starts_with("jwt_") && jwt_id.len() > 20, "{jwt_id}");
    let body = jwt::body_claim(b"hello");
    assert_eq!(
        claims,
        json!({
            "iss": "Upstash", "sub": url, "exp": now + 300, "nbf": 0, "iat": now, "jti": jwt_id, "body": body,
            "messageId": id,
        })
    );
    server.finish().await;
}

#[tokio::test]
async fn an_empty_body_is_signed_too() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    server.publish_with(&receiver.url("/"), &[], "").await;
    let claims = claims_of(&receiver.next().await, &receiver.url("/"));
    assert_eq!(claims["body"], "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=");
    server.finish().await;
}

#[tokio::test]
async fn every_attempt_has_a_fresh_signature_and_counts_the_retries() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500), Reply::status(503), Reply::status(404), Reply::status(200)]);
        let url = receiver.url("/");
        let id = server.publish_with(&url, &[("Upstash-Retry-Delay", "1000")], "x").await;
        let mut jwt_ids = Vec::new();
        for retried in 0..4u64 {
            let delivery = receiver.next().await;
            assert_eq!(delivery.header("upstash-retried"), Some(retried.to_string().as_str()));
            assert_eq!(delivery.header("upstash-message-id"), Some(id.as_str()));
            let claims = claims_of(&delivery, &url);
            assert_eq!(claims["iat"], START_MS / 1_000 + retried);
            assert!(!jwt_ids.contains(&claims["jti"]));
            assert_eq!(claims["messageId"], id.as_str());
            jwt_ids.push(claims["jti"].clone());
            if retried < 3 {
                let mut states = vec!["CREATED"];
                states.extend(["ACTIVE", "ERROR", "RETRY"].repeat(retried as usize + 1));
                server.reaches(&id, &states).await;
                server.advance(1_000).await;
            }
        }
        let retry = ["ACTIVE", "ERROR", "RETRY"];
        let states = [&["CREATED"], &retry[..], &retry, &retry, &["ACTIVE", "DELIVERED"]].concat();
        server.reaches(&id, &states).await;
        server.finish().await;
        assert_eq!(receiver.count(), 4);
    }
}

#[tokio::test]
async fn only_2xx_is_a_success_and_redirects_are_not_followed() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let cases = [(200, true), (201, true), (204, true), (299, true), (301, false), (304, false), (307, false)];
    let cases = cases.into_iter().chain([400, 404, 410, 429, 489, 500, 503, 599].map(|status| (status, false)));
    for (status, success) in cases {
        let reply = Reply::status(status).with_header("Location", &receiver.url("/elsewhere"));
        receiver.script("/", [reply]);
        let id = server.publish_with(&receiver.url("/"), &[("Upstash-Retries", "0")], "").await;
        let delivery = receiver.next().await;
        assert_eq!(delivery.target, "/");
        if success {
            server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        } else {
            server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
            assert_eq!(server.dead_letter_of(&id).await["responseStatus"], status);
        }
    }
    server.finish().await;
    assert_eq!(receiver.count(), 15);
}

#[tokio::test]
async fn a_receiver_forbids_retries_by_status_and_header_together() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let header = "Upstash-NonRetryable-Error";
    let failed = ["CREATED", "ACTIVE", "ERROR", "FAILED"];
    let retried = ["CREATED", "ACTIVE", "ERROR", "RETRY"];
    let delivered = ["CREATED", "ACTIVE", "DELIVERED"];
    let cases: [(Reply, &[&str]); 5] = [
        (Reply::status(489).with_header(header, "true"), &failed),
        (Reply::status(489), &retried),
        (Reply::status(489).with_header(header, "false"), &retried),
        (Reply::status(500).with_header(header, "true"), &retried),
        (Reply::status(200).with_header(header, "true"), &delivered),
    ];
    for (reply, states) in cases {
        receiver.script("/", [reply]);
        let id = server.publish_with(&receiver.url("/"), &[], "").await;
        server.reaches(&id, states).await;
    }
    server.delete("/v2/messages").expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn a_retry_comes_when_the_receiver_the_publisher_or_the_default_says() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let expression = ("Upstash-Retry-Delay", "7000 * (retried + 1)");
    let failed = || Reply::status(503);
    // The default stretches e^2.5 s by a little jitter.
    let default = (12_182, 12_792);
    let cases: [(Reply, Lines<'_>, (u64, u64)); 13] = [
        (failed(), &[], default),
        (failed(), &[expression], (7_000, 7_000)),
        (failed(), &[("Upstash-Retry-Delay", "pow(2, retried) * 1000")], (1_000, 1_000)),
        (failed(), &[("Upstash-Retry-Delay", "0 - 5")], (0, 0)),
        (failed(), &[("Upstash-Retry-Delay", "999999999999")], (86_400_000, 86_400_000)),
        (failed().with_header("Retry-After", "5"), &[], (5_000, 5_000)),
        (failed().with_header("Retry-After", "5"), &[expression], (5_000, 5_000)),
        (failed().with_header("Retry-After", "6m5s"), &[], (365_000, 365_000)),
        (failed().with_header("Retry-After", "Mon, 01 Jun 2026 12:00:30 GMT"), &[], (30_000, 30_000)),
        (failed().with_header("Retry-After", "90000"), &[expression], (7_000, 7_000)),
        (failed().with_header("Retry-After", "soon"), &[], default),
        (failed().with_header("X-RateLimit-Reset", "9"), &[], (9_000, 9_000)),
        (
            failed().with_header("X-RateLimit-Reset-Tokens", "3").with_header("X-RateLimit-Reset-Requests", "4"),
            &[],
            (4_000, 4_000),
        ),
    ];
    for (reply, headers, (earliest, latest)) in cases {
        let what = format!("{reply:?} {headers:?}");
        receiver.script("/", [reply, failed()]);
        let headers = [headers, &[("Upstash-Retries", "1")]].concat();
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        let events = loop {
            let events = server.events_of(&id).await;
            if events.len() >= 4 {
                break events;
            }
        };
        let due = events[3]["nextDeliveryTime"].as_u64().expect("a retry has a time");
        let wait = due - START_MS;
        assert!((earliest..=latest).contains(&wait), "{wait}: {what}");
        receiver.next().await;
        if wait == 0 {
            receiver.next().await;
        }
        // The clock stands still for the next case; this message ends here.
        server.delete("/v2/messages").send().await;
        server.delete("/v2/dlq").expect(200).await;
    }
    server.finish().await;
}

#[tokio::test]
async fn a_retry_does_not_come_before_its_time() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500), Reply::status(500), Reply::status(200)]);
        let headers = [("Upstash-Retry-Delay", "5000 * (1 + retried)")];
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        let once = ["CREATED", "ACTIVE", "ERROR", "RETRY"];
        server.reaches(&id, &once).await;
        server.advance(4_999).await;
        assert_eq!(server.states_of(&id).await, once);
        server.advance(1).await;
        let twice = [&once[..], &once[1..]].concat();
        server.reaches(&id, &twice).await;
        server.advance(9_999).await;
        assert_eq!(server.states_of(&id).await, twice);
        server.advance(1).await;
        server.reaches(&id, &[&twice[..], &["ACTIVE", "DELIVERED"]].concat()).await;
        server.finish().await;
        assert_eq!(receiver.count(), 3);
    }
}

#[tokio::test]
async fn a_delayed_message_waits_longer_than_the_logs_are_kept() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let id = server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "10d")], "kept").await;
        let created = &server.events_of(&id).await[0];
        assert_eq!(created["nextDeliveryTime"], START_MS + 864_000_000);
        server.advance(864_000_000 - 1).await;
        server.retain();
        assert_eq!(server.message(&id).await["notBefore"], START_MS + 864_000_000);
        assert_eq!(receiver.count(), 0);
        server.advance(1).await;
        assert_eq!(receiver.next().await.text(), "kept");
        // The line of its creation is older than seven days and gone; the message is not.
        server.reaches(&id, &["ACTIVE", "DELIVERED"]).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn the_timers_run_by_themselves() {
    let server = TestServer::with(Setup { manual_clock: false, ..Setup::dev() }).await;
    let receiver = Receiver::start().await;
    let headers = [("Upstash-Delay", "1s"), ("Upstash-Retry-Delay", "100")];
    // A busy machine may make one late, and not each. The core looks at the clock every five seconds anyway.
    let mut late = Vec::new();
    for _ in 0..5 {
        receiver.script("/", [Reply::status(500), Reply::status(200)]);
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"]).await;
        let events = server.events_of(&id).await;
        let at = |n: usize| events[n]["time"].as_u64().expect("a time");
        let millis = [(at(0) + 1_000, at(1)), (at(3) + 100, at(4))]
            .map(|(due, started)| started.checked_sub(due).unwrap_or_else(|| panic!("due {due}, started {started}")));
        if millis.iter().all(|millis| *millis < 1_000) {
            return server.finish().await;
        }
        late.push(millis);
    }
    panic!("late by {late:?} ms");
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_fails() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, _gate) = Reply::status(200).held();
    receiver.script("/", [held]);
    let headers = [("Upstash-Timeout", "1s"), ("Upstash-Retries", "0")];
    let id = server.publish_with(&receiver.url("/"), &headers, "").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
    let error = &server.events_of(&id).await[2];
    assert_eq!(error["error"], "context deadline exceeded");
    assert_eq!(error.get("responseStatus"), None);
    assert!(error["duration"].as_u64().is_some_and(|millis| (1_000..30_000).contains(&millis)), "{error}");
    let letter = server.dead_letter_of(&id).await;
    assert_eq!((&letter["responseStatus"], &letter["error"]), (&json!(0), &json!("context deadline exceeded")));
    server.finish().await;
}

#[tokio::test]
async fn no_answer_is_a_failure_that_says_why() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/closes", [Reply::Close]);
    let unused = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let unused = format!("http://{}/", unused.expect("loopback has a free port"));
    let cases = [
        (receiver.url("/closes"), "the connection was closed before the response"),
        (unused, "could not connect: connection refused"),
        ("https://example.com/".to_owned(), "unable to resolve host: example.com"),
    ];
    for (url, text) in cases {
        let id = server.publish_with(&url, &[("Upstash-Retries", "0")], "").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
        let letter = server.dead_letter_of(&id).await;
        assert_eq!(letter["responseStatus"], 0);
        let error = letter["error"].as_str().expect("a failure has a text");
        assert!(error.contains(text), "{url}: {error}");
    }
    server.finish().await;
}

#[tokio::test]
async fn every_log_line_tells_what_its_state_needs() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let failed = Reply::status(503).with_header("X-Why", "maintenance").with_body("later");
    receiver.script("/", [failed, Reply::status(201).with_body("done")]);
    let headers = [
        ("Upstash-Retries", "1"),
        ("Upstash-Retry-Delay", "2000"),
        ("Upstash-Timeout", "60s"),
        ("Upstash-Label", "a,b"),
        ("Content-Type", "text/plain"),
    ];
    let url = receiver.url("/");
    let id = server.publish_with(&url, &headers, "hello").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
    server.advance(2_000).await;
    server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"]).await;

    let line = |state: &str, time: u64, more: Value| {
        let mut line = json!({
            "messageId": "<message>",
            "state": state,
            "time": time,
            "url": url,
            "method": "POST",
            "header": { "Content-Type": ["text/plain"] },
            "body": "aGVsbG8=",
            "callerIP": "127.0.0.1",
            "label": "a",
            "labels": ["a", "b"],
            "maxRetries": 1,
            "timeout": 60_000,
            "retryDelayExpr": "2000",
            "retryDelayExpression": "2000",
        });
        let members = line.as_object_mut().expect("an object");
        members.extend(more.as_object().expect("an object").clone());
        line
    };
    let headers = json!({ "Content-Length": ["5"], "X-Why": ["maintenance"] });
    let answer = json!({
        "responseStatus": 503,
        "responseHeader": headers,
        "responseHeaders": headers,
        "responseBody": "later",
        "duration": "<ms>",
        "connection": "<connection>",
        "attempt": 1,
    });
    let delivered = json!({ "responseStatus": 201, "duration": "<ms>", "connection": "<connection>", "attempt": 2 });
    let query = format!("/v2/events?messageId={id}&order=earliestFirst");
    assert_eq!(
        server.get(&query).expect(200).await.redacted()["events"],
        json!([
            line("CREATED", START_MS, json!({})),
            line("ACTIVE", START_MS, json!({ "attempt": 1 })),
            line("ERROR", START_MS, answer),
            line("RETRY", START_MS, json!({ "nextDeliveryTime": START_MS + 2_000, "attempt": 1 })),
            line("ACTIVE", START_MS + 2_000, json!({ "attempt": 2 })),
            line("DELIVERED", START_MS + 2_000, delivered),
        ])
    );
    server.finish().await;
}

#[tokio::test]
async fn a_slow_receiver_holds_up_nobody_else() {
    let mut setup = Setup::dev();
    setup.settings.destination_parallelism = Some(2);
    let server = TestServer::with(setup).await;
    let (slow, quick) = (Receiver::start().await, Receiver::start().await);
    let (held, gate) = Reply::status(200).held();
    slow.script("/", [held]);
    for _ in 0..5 {
        server.publish_with(&slow.url("/"), &[], "").await;
    }
    slow.take(2).await;
    let id = server.publish_with(&quick.url("/"), &[], "").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    assert_eq!(slow.count(), 2, "no more than two at once");
    gate.open();
    slow.take(3).await;
    server.finish().await;
}

#[tokio::test]
async fn a_message_is_readable_for_ten_seconds_after_its_end() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500)]);
        let delivered = server.publish_with(&receiver.url("/"), &[], "").await;
        let failed = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "").await;
        let cancelled = server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "").await;
        server.delete(&format!("/v2/messages/{cancelled}")).expect(202).await;
        server.reaches(&delivered, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        server.reaches(&failed, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
        server.advance(10_000).await;
        for id in [&delivered, &failed, &cancelled] {
            assert_eq!(server.message(id).await["messageId"], **id);
        }
        server.advance(1).await;
        for id in [&delivered, &failed, &cancelled] {
            let error = server.get(&format!("/v2/messages/{id}")).expect(404).await.error();
            assert_eq!(error, format!("message {id} not found"));
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn deliveries_that_lead_to_one_another_end_in_the_dlq() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/");
    server.publish_with(&url, &[("Posthaste-Hops", "16")], "").await;
    assert_eq!(receiver.next().await.header("posthaste-hops"), Some("17"));

    let looping = server.publish_with(&url, &[("Posthaste-Hops", "17")], "").await;
    let letter = server.dead_letter_of(&looping).await;
    let error = letter["error"].as_str().expect("it says why");
    assert!(error.starts_with("loop: "), "{error}");
    let batch = server.post("/v2/batch").header("Posthaste-Hops", "17").json(&json!([{ "destination": url }]));
    let answer = batch.expect(200).await.json();
    server.dead_letter_of(answer[0]["messageId"].as_str().expect("an id")).await;
    // Sending it again does not begin anew.
    let retry = format!("/v2/dlq/retry/{}", letter["dlqId"].as_str().expect("an id"));
    let again = server.post(&retry).expect(201).await.json();
    server.dead_letter_of(again["messageId"].as_str().expect("an id")).await;
    server.finish().await;
    assert_eq!(receiver.count(), 1);
}
