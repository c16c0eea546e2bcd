//! `POST /v2/publish/{destination}`: what is accepted, what is stored, what is answered.

use crate::support::server::{START_MS, TOKEN, message_id};
use crate::support::{Backend, Lines, Receiver, Reply, Setup, TestServer};
use serde_json::json;

#[tokio::test]
async fn a_publish_is_answered_stored_and_delivered() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, gate) = Reply::status(200).held();
        receiver.script("/hook", [held]);
        let url = receiver.url("/hook?a=1");

        let answer = server.publish(&url).header("Content-Type", "text/plain").body("hello").expect(200).await;
        assert_eq!(answer.redacted(), json!({ "messageId": "<message>" }));
        let id = message_id(&answer);

        assert_eq!(
            server.get(&format!("/v2/messages/{id}")).expect(200).await.redacted(),
            json!({
                "messageId": "<message>",
                "url": url,
                "method": "POST",
                "header": { "Content-Type": ["text/plain"] },
                "body": "hello",
                "maxRetries": 3,
                "notBefore": START_MS,
                "createdAt": START_MS,
                "callerIP": "127.0.0.1",
            })
        );
        let delivery = receiver.next().await;
        assert_eq!((delivery.target.as_str(), delivery.text().as_str()), ("/hook?a=1", "hello"));
        gate.open();
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn the_destination_is_the_raw_rest_of_the_path_and_query() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let cases = [
        // P1: verbatim, with doubled slashes and escapes.
        ("/a", "/a"),
        ("/a//b///c", "/a//b///c"),
        ("//a", "//a"),
        ("/a%20b%2Fc%2f%3F%23", "/a%20b%2Fc%2f%3F%23"),
        ("/a/../b/./c", "/a/../b/./c"),
        ("/pause", "/pause"),
        ("/~!$&'()*+,;=:@", "/~!$&'()*+,;=:@"),
        ("/%00%0d%0aX-Evil:1", "/%00%0d%0aX-Evil:1"),
        ("/%E2%80%AEgpj.exe", "/%E2%80%AEgpj.exe"),
        // P2: the query in its order and encoding, without what is ours.
        ("/123/?asdasd=ooo", "/123/?asdasd=ooo"),
        ("/q?b=2&a=1&b=1&=&c", "/q?b=2&a=1&b=1&=&c"),
        ("/q?x=a%26b+c%20d&y=%E2%82%AC", "/q?x=a%26b+c%20d&y=%E2%82%AC"),
        ("/q?to=https://example.com/?x=y", "/q?to=https://example.com/?x=y"),
        ("/q?count=5&cursor=x&messageId=y", "/q?count=5&cursor=x&messageId=y"),
        ("/q?qstash_token=secret&a=1", "/q?a=1"),
        ("/q?a=1&qstash_token=secret", "/q?a=1"),
        ("/q?qstash_token=secret", "/q"),
        ("/q?a=1&upstash-retries=0&b=2", "/q?a=1&b=2"),
        ("/q?UPSTASH-Retries=0&b=2", "/q?b=2"),
        ("/q?upstash-unheard-of=1", "/q"),
        ("/q?upstash=1&my-upstash-retries=2", "/q?upstash=1&my-upstash-retries=2"),
    ];
    for (given, expected) in cases {
        let id = server.publish_with(&receiver.url(given), &[], "").await;
        assert_eq!(server.message(&id).await["url"], receiver.url(expected), "{given}");
        // A URL whose query is empty may keep its question mark or not; what is stored is what is sent.
        assert_eq!(receiver.next().await.target, expected, "{given}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_destination_is_put_right_where_that_is_safe() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let address = receiver.address();
    let encoded = format!("http%3A%2F%2F{}%2Fe%20e%252F%3Fa%3Db", address.to_string().replace(':', "%3A"));
    let cases = [
        // P6: a proxy folded the slashes.
        (format!("http:/{address}/folded"), format!("http://{address}/folded")),
        // P5: encoded as a whole, decoded once.
        (format!("http%3A%2F%2F{address}%2Fe"), format!("http://{address}/e")),
        (format!("http%3a//{address}/a%252Fb"), format!("http://{address}/a%2Fb")),
    ];
    for (given, expected) in cases {
        let id = server.publish_with(&given, &[], "").await;
        assert_eq!(server.message(&id).await["url"], expected, "{given}");
        receiver.next().await;
    }
    // Once decoded it has a space, which must not be sent on.
    assert!(server.publish(&encoded).expect(400).await.error().starts_with("invalid destination url: "));
    server.finish().await;
}

#[tokio::test]
async fn what_is_no_destination_is_refused_with_the_text_of_the_hosted_service() {
    let server = TestServer::start().await;
    let scheme = "invalid destination url: endpoint has invalid scheme, add http:// or https://";
    let cases = [
        ("", 400, "a non-empty destination must be provided"),
        ("orders", 404, "topic orders not found"),
        ("My_group.1-2", 404, "topic My_group.1-2 not found"),
        ("example.com", 404, "topic example.com not found"),
        ("orders?a=b", 404, "topic orders not found"),
    ];
    for (destination, status, text) in cases {
        assert_eq!(server.publish(destination).expect(status).await.error(), text, "{destination}");
    }
    for (destination, more) in [
        ("example.com/hook", ""),
        ("localhost:3000", ""),
        ("ftp://example.com/", "; ftp is not supported"),
        ("HTTPX://example.com", "; HTTPX is not supported"),
    ] {
        let expected = format!("{scheme}{more}; received \"{destination}\"");
        assert_eq!(server.publish(destination).expect(400).await.error(), expected);
    }
    for path in ["/v2/publish", "/v1/publish", "/v1/publish/"] {
        assert_eq!(server.post(path).expect(400).await.error(), "a non-empty destination must be provided");
    }
    for destination in ["http://", "https://?x", "http:///path", "http://u:p@example.com/", "http://exa%20mple.com/"] {
        let error = server.publish(destination).expect(400).await.error();
        assert!(error.starts_with("invalid destination url: "), "{destination}: {error}");
    }
    assert_eq!(server.counts().live, 0);
    server.finish().await;
}

#[tokio::test]
async fn settings_may_come_in_the_query_and_a_header_wins() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/q?upstash-retries=7&x=1&upstash-delay=100s&upstash-label=a%2Cb&Upstash-Method=put");
    let id = server.publish_with(&url, &[("Upstash-Delay", "50s")], "").await;
    let message = server.message(&id).await;
    assert_eq!(message["url"], receiver.url("/q?x=1"));
    assert_eq!(message["maxRetries"], 7);
    assert_eq!(message["notBefore"], START_MS + 50_000);
    assert_eq!(message["labels"], json!(["a", "b"]));
    assert_eq!(message["method"], "PUT");
    let forwarded = receiver.url("/q?upstash-forward-x-one=1%202&upstash-forward-x-two=2");
    let id = server.publish_with(&forwarded, &[("Upstash-Forward-X-Two", "header")], "").await;
    assert_eq!(server.message(&id).await["header"], json!({ "X-One": ["1 2"], "X-Two": ["header"] }));
    let error = server.publish(&receiver.url("/q?upstash-retries=many")).expect(400).await.error();
    assert!(error.contains("Upstash-Retries"), "{error}");
    server.advance(50_000).await;
    server.finish().await;
}

#[tokio::test]
async fn the_token_may_come_in_the_query_where_it_is_switched_on() {
    let on = TestServer::start().await;
    let receiver = Receiver::start().await;
    let target = format!("/v2/publish/{}?a=1&qstash_token={TOKEN}", receiver.url("/"));
    let answer = on.post(&target).without("Authorization").expect(200).await;
    let message = on.message(&message_id(&answer)).await;
    assert_eq!(message["url"], receiver.url("/?a=1"));
    // The header wins, also when it is wrong.
    on.post(&target).token("wrong").expect(401).await;
    on.finish().await;

    let off = TestServer::with(Setup::serve()).await;
    let answer = off.post(&target).without("Authorization").expect(401).await;
    assert_eq!(
        answer.error(),
        "unable to authenticate: invalid token: the request has no Authorization header; send Authorization: Bearer followed by \
         your QSTASH_TOKEN"
    );
    off.finish().await;
}

#[tokio::test]
async fn every_setting_is_shown_where_the_sdks_look_for_it() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let headers = [
        ("Upstash-Method", "patch"),
        ("Upstash-Delay", "1h30m3s"),
        ("Upstash-Timeout", "30"),
        ("Upstash-Retries", "5"),
        ("Upstash-Retry-Delay", "7000 * retried"),
        ("Upstash-Label", " first , ,second"),
        ("Upstash-Forward-Test-Header", "v1"),
        ("upstash-forward-test-header", "v2, still v2"),
        ("UPSTASH-FORWARD-X-EMPTY", ""),
        ("Upstash-Forward-Upstash-Workflow-Url", "kept"),
        ("Upstash-Telemetry-Sdk", "never stored"),
        ("Upstash-Telemetry-Platform", ""),
        ("Upstash-NotBefore", "0"),
        ("User-Agent", "not forwarded"),
        ("X-Plain", "not forwarded"),
        ("Content-Type", "application/json; charset=utf-7"),
    ];
    let url = receiver.url("/");
    let id = server.publish_with(&url, &headers, "{}").await;
    assert_eq!(
        server.get(&format!("/v2/messages/{id}")).expect(200).await.redacted(),
        json!({
            "messageId": "<message>",
            "url": url,
            "method": "PATCH",
            "header": {
                "Content-Type": ["application/json; charset=utf-7"],
                "Test-Header": ["v1", "v2, still v2"],
                "Upstash-Workflow-Url": ["kept"],
                "X-Empty": [""],
            },
            "body": "{}",
            "maxRetries": 5,
            "notBefore": START_MS + 5_403_000,
            "createdAt": START_MS,
            "callerIP": "127.0.0.1",
            "label": "first",
            "labels": ["first", "second"],
            "retryDelayExpression": "7000 * retried",
            "timeout": 30,
        })
    );
    server.advance(5_403_000).await;
    let delivery = receiver.next().await;
    assert_eq!(delivery.all("test-header"), ["v1", "v2, still v2"]);
    assert_eq!(delivery.header("x-empty"), Some(""));
    assert_eq!(delivery.header("upstash-workflow-url"), Some("kept"));
    assert_eq!((delivery.method.as_str(), delivery.header("x-plain")), ("PATCH", None));
    for name in ["upstash-telemetry-sdk", "upstash-retries", "upstash-delay", "upstash-label", "authorization"] {
        assert_eq!(delivery.header(name), None, "{name}");
    }
    server.finish().await;
}

#[tokio::test]
async fn not_before_wins_over_delay_and_a_past_time_means_now() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let at = (START_MS / 1_000 + 60).to_string();
    let cases: [(Lines<'_>, u64); 5] = [
        (&[("Upstash-Delay", "10s")], START_MS + 10_000),
        (&[("Upstash-Delay", "2")], START_MS + 2_000),
        (&[("Upstash-Not-Before", &at)], START_MS + 60_000),
        (&[("Upstash-Not-Before", &at), ("Upstash-Delay", "10s")], START_MS + 60_000),
        (&[("Upstash-Not-Before", "1"), ("Upstash-Delay", "10s")], START_MS),
    ];
    for (headers, due) in cases {
        let id = server.publish_with(&receiver.url("/"), headers, "").await;
        assert_eq!(server.message(&id).await["notBefore"], due, "{headers:?}");
    }
    server.advance(60_000).await;
    receiver.take(5).await;
    server.finish().await;
}

#[tokio::test]
async fn a_bad_setting_is_refused_by_name_and_nothing_is_stored() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let cases = [
        ("Upstash-Retries", "-1", 400),
        ("Upstash-Retries", "1001", 412),
        ("Upstash-Delay", "soon", 400),
        ("Upstash-Delay", "-5s", 400),
        ("Upstash-Delay", "366d", 412),
        ("Upstash-Not-Before", "tomorrow", 400),
        ("Upstash-Timeout", "0s", 400),
        ("Upstash-Timeout", "3h", 412),
        ("Upstash-Method", "TRACE", 400),
        ("Upstash-Retry-Delay", "7000 *", 400),
        ("Upstash-Retry-Delay", "sqrt(0-1)", 400),
        ("Upstash-Deduplication-Id", "", 400),
        ("Upstash-Content-Based-Deduplication", "yes", 400),
        ("Upstash-Redact-Fields", "passwords", 400),
        ("Upstash-Header-Forward", "perhaps", 400),
        ("Upstash-Forward-Connection", "close", 400),
        ("Upstash-Forward-Host", "elsewhere", 400),
        ("Upstash-Forward-Upstash-Signature", "forged", 400),
        ("Upstash-Callback", "example.com", 400),
        ("Upstash-Failure-Callback", "http://10.0.0.1/", 400),
        ("Upstash-Flow-Control-Key", "", 400),
        ("Upstash-Flow-Control-Value", "rate=1", 400),
        ("Upstash-Queue-Name", "a b", 400),
        ("Upstash-Cron", "every day", 400),
    ];
    for (name, value, status) in cases {
        let error = server.publish(&receiver.url("/")).header(name, value).expect(status).await.error();
        assert!(error.contains(name), "{name}: {value}: {error}");
        assert_eq!(error.starts_with("quota "), status == 412, "{name}: {value}: {error}");
    }
    let twice = server.publish(&receiver.url("/")).headers(&[("Upstash-Retries", "1"), ("upstash-retries", "1")]);
    assert!(twice.expect(400).await.error().contains("Upstash-Retries"));
    assert_eq!((server.counts().live, receiver.count()), (0, 0));
    server.finish().await;
}

#[tokio::test]
async fn header_forward_sends_on_what_is_neither_ours_nor_the_connections() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let headers = [
        ("Upstash-Header-Forward", "True"),
        ("X-Plain", "1"),
        ("x-plain", "2"),
        ("Cookie", "a=b"),
        ("User-Agent", "mine"),
        ("Accept-Encoding", "gzip"),
        ("Te", "trailers"),
        ("Upstash-Retries", "0"),
        ("Upstash-Forward-X-Both", "explicit"),
        ("X-Both", "plain"),
        ("Content-Type", "text/plain"),
    ];
    let id = server.publish_with(&receiver.url("/"), &headers, "").await;
    let expected = json!({
        "Content-Type": ["text/plain"],
        "Cookie": ["a=b"],
        "User-Agent": ["mine"],
        "X-Both": ["explicit"],
        "X-Plain": ["1", "2"],
    });
    assert_eq!(server.message(&id).await["header"], expected);
    let delivery = receiver.next().await;
    assert_eq!(delivery.header("user-agent"), Some("mine"));
    assert_eq!(delivery.all("x-plain"), ["1", "2"]);
    assert_eq!((delivery.header("te"), delivery.header("authorization")), (None, None));
    server.finish().await;
}

#[tokio::test]
async fn a_forwarded_content_type_wins_and_none_is_invented() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let both = [("Content-Type", "text/plain"), ("Upstash-Forward-Content-Type", "text/csv")];
    let cases: [(Lines<'_>, Option<&str>); 3] =
        [(&[], None), (&both[..1], Some("text/plain")), (&both, Some("text/csv"))];
    for (headers, expected) in cases {
        server.publish_with(&receiver.url("/"), headers, "x").await;
        assert_eq!(receiver.next().await.header("content-type"), expected, "{headers:?}");
    }
    server.finish().await;
}

#[tokio::test]
async fn bodies_travel_byte_for_byte_with_every_method() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let every_byte: Vec<u8> = (0..=255).collect();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        let publish = server.publish(&receiver.url("/")).header("Upstash-Method", method);
        let id = message_id(&publish.body(every_byte.clone()).expect(200).await);
        let delivery = receiver.next().await;
        assert_eq!((delivery.method.as_str(), delivery.body), (method, every_byte.clone()));
        let message = server.message(&id).await;
        assert_eq!(message.get("body"), None);
        assert_eq!(message["bodyBase64"], base64_of(&every_byte));
        let event = &server.events_of(&id).await[0];
        assert_eq!(event["body"], base64_of(&every_byte));
    }
    let id = server.publish_with(&receiver.url("/"), &[("Upstash-Method", "GET")], "").await;
    let delivery = receiver.next().await;
    assert_eq!((delivery.header("content-length"), delivery.body.len()), (None, 0));
    let message = server.message(&id).await;
    assert_eq!((message.get("body"), message.get("bodyBase64")), (None, None));
    server.finish().await;
}

fn base64_of(bytes: &[u8]) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)
}

#[tokio::test]
async fn a_body_may_be_as_large_as_configured_and_no_larger() {
    let mut setup = Setup::dev();
    setup.settings.message_bytes_max = Some(4_096);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    server.publish(&receiver.url("/")).body(vec![b'a'; 4_096]).expect(200).await;
    assert_eq!(receiver.next().await.body.len(), 4_096);
    let error = server.publish(&receiver.url("/")).body(vec![b'a'; 4_097]).expect(412).await.error();
    assert_eq!(error, "quota maxMessageSize exceeded, current limit: 4096 (4 KiB)");
    server.finish().await;
}

#[tokio::test]
async fn a_client_that_sends_too_much_can_read_why_when_it_is_done() {
    let mut setup = Setup::dev();
    setup.settings.message_bytes_max = Some(64 * 1024);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    // As clients do that read nothing before they have written everything.
    let body = vec![b'a'; 8 * 1024 * 1024];
    let framed = server.publish(&receiver.url("/")).body(body.clone());
    let chunks = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    let chunked = server.publish(&receiver.url("/")).header("Transfer-Encoding", "chunked").unframed_body(chunks);
    for request in [framed, chunked] {
        let answer = request.write_then_read().await;
        assert_eq!(answer.status, 412);
        assert_eq!(answer.error(), "quota maxMessageSize exceeded, current limit: 65536 (64 KiB)");
    }
    server.finish().await;
}

#[tokio::test]
async fn the_public_url_is_the_server_itself() {
    let mut setup = Setup::serve();
    setup.settings.public_url = Some("https://posthaste.example".to_owned());
    let server = TestServer::with(setup).await;
    for url in
        ["https://posthaste.example/v2/publish/x", "https://POSTHASTE.example:443/", "https://posthaste.example./"]
    {
        let error = server.publish(url).expect(400).await.error();
        assert_eq!(error, "invalid destination url: endpoint is this server itself", "{url}");
    }
    server.publish("https://other.example/").header("Upstash-Retries", "0").expect(200).await;
    server.finish().await;
}

#[tokio::test]
async fn redacted_fields_are_hidden_everywhere_but_from_the_receiver() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500), Reply::status(200)]);
        let headers = [
            ("Upstash-Redact-Fields", "body, header[authorization]"),
            ("Upstash-Forward-Authorization", "Bearer receiver-secret"),
            ("Upstash-Forward-X-Open", "shown"),
            ("Upstash-Retries", "0"),
        ];
        let id = server.publish_with(&receiver.url("/"), &headers, "body-secret").await;
        let delivery = receiver.next().await;
        assert_eq!(delivery.text(), "body-secret");
        assert_eq!(delivery.header("authorization"), Some("Bearer receiver-secret"));

        let letter = server.dead_letter_of(&id).await;
        let hidden = json!({ "Authorization": [server.mark("Bearer receiver-secret")], "X-Open": ["shown"] });
        for shown in [&letter, &server.message(&id).await] {
            assert_eq!(shown["body"], server.mark("body-secret"));
            assert_eq!(shown["header"], hidden);
        }
        for event in server.events_of(&id).await {
            assert_eq!(event["body"], base64_of(server.mark("body-secret").as_bytes()));
            assert_eq!(event["header"], hidden);
        }

        // The replay uses the originals, and stays redacted.
        let dlq_id = letter["dlqId"].as_str().expect("a dead letter has an id");
        let answer = server.post(&format!("/v2/dlq/retry/{dlq_id}")).expect(201).await;
        let delivery = receiver.next().await;
        assert_eq!(delivery.text(), "body-secret");
        assert_eq!(delivery.header("authorization"), Some("Bearer receiver-secret"));
        let replayed = server.message(&message_id(&answer)).await;
        assert_eq!((&replayed["body"], &replayed["header"]), (&letter["body"], &hidden));
        server.finish().await;
    }
}

#[tokio::test]
async fn all_headers_can_be_redacted_by_either_spelling() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for fields in ["header", "headers", "headers[x-one],header[Content-Type]"] {
        let headers = [("Upstash-Redact-Fields", fields), ("Upstash-Forward-X-One", "1"), ("Content-Type", "a/b")];
        let id = server.publish_with(&receiver.url("/"), &headers, "open").await;
        let message = server.message(&id).await;
        let hidden = json!({ "Content-Type": [server.mark("a/b")], "X-One": [server.mark("1")] });
        assert_eq!((&message["header"], &message["body"]), (&hidden, &json!("open")), "{fields}");
    }
    receiver.take(3).await;
    server.finish().await;
}

#[tokio::test]
async fn the_caller_is_whoever_is_at_the_other_end_of_the_connection() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let claims = [("X-Forwarded-For", "203.0.113.7"), ("Forwarded", "for=203.0.113.7"), ("X-Real-Ip", "203.0.113.7")];
    let id = server.publish_with(&receiver.url("/"), &claims, "").await;
    assert_eq!(server.message(&id).await["callerIP"], "127.0.0.1");
    assert_eq!(receiver.next().await.header("upstash-caller-ip"), Some("127.0.0.1"));
    server.finish().await;
}

#[tokio::test]
async fn text_beyond_ascii_arrives_as_it_was_sent() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let headers =
        [("Upstash-Forward-X", "café ☕"), ("Upstash-Label", "größe,尺寸"), ("Upstash-Redact-Fields", "body")];
    let id = server.publish_with(&receiver.url("/"), &headers, "ünï").await;
    let message = server.message(&id).await;
    assert_eq!((&message["header"], &message["labels"]), (&json!({ "X": ["café ☕"] }), &json!(["größe", "尺寸"])));
    let delivery = receiver.next().await;
    assert_eq!((delivery.header("x"), delivery.text().as_str()), (Some("café ☕"), "ünï"));
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    assert_eq!(server.events("label=gr%C3%B6%C3%9Fe").await.len(), 3);
    assert_eq!(server.events("label=%E5%B0%BA%E5%AF%B8&state=DELIVERED").await.len(), 1);
    server.finish().await;
}

#[tokio::test]
async fn headers_that_are_not_utf8_arrive_byte_for_byte() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    // As `fetch` of a browser or of Node sends them.
    let request = server.publish(&receiver.url("/")).header("Upstash-Retries", "0");
    let request = request.header("Upstash-Forward-X", b"caf\xe9").header("Upstash-Label", b"gr\xfcn");
    let request = request.header("Upstash-Callback", receiver.url("/done"));
    let id = message_id(&request.expect(200).await);
    assert_eq!(receiver.next().await.header("x"), Some("caf\u{f7e9}"), "the byte 0xe9 alone");
    let told: serde_json::Value = serde_json::from_str(&receiver.next().await.text()).expect("a callback is JSON");
    assert_eq!(told["sourceHeader"]["X"], json!(["café"]));
    let letter = server.dead_letter_of(&id).await;
    assert_eq!((&letter["header"], &letter["label"]), (&json!({ "X": ["café"] }), &json!("grün")));
    let dlq_id = letter["dlqId"].as_str().expect("a dead letter has an id");
    let hidden = server.post(&format!("/v2/dlq/retry/{dlq_id}")).header("Upstash-Redact-Fields", "header");
    let again = message_id(&hidden.expect(201).await);
    assert_eq!(receiver.next().await.header("x"), Some("caf\u{f7e9}"));
    let mark = server.mark(b"caf\xe9");
    assert_eq!(server.message(&again).await["header"], json!({ "X": [mark] }));
    receiver.next().await;
    server.finish().await;
}

#[tokio::test]
async fn a_trusted_proxy_tells_who_calls() {
    let mut setup = Setup::dev();
    setup.settings.trusted_proxies = Some(vec!["127.0.0.1".to_owned(), "10.0.0.0/8".to_owned()]);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    let claims = [("X-Forwarded-For", "198.51.100.1, 203.0.113.7"), ("X-Forwarded-For", "10.1.2.3")];
    let id = server.publish_with(&receiver.url("/"), &claims, "").await;
    assert_eq!(server.message(&id).await["callerIP"], "203.0.113.7");
    assert_eq!(receiver.next().await.header("upstash-caller-ip"), Some("203.0.113.7"));
    let batch = server.post("/v2/batch").headers(&claims).json(&json!([{ "destination": receiver.url("/") }]));
    batch.expect(200).await;
    assert_eq!(receiver.next().await.header("upstash-caller-ip"), Some("203.0.113.7"));
    let id = server.publish_with(&receiver.url("/"), &[("X-Forwarded-For", "nobody")], "").await;
    assert_eq!(server.message(&id).await["callerIP"], "127.0.0.1");
    receiver.next().await;
    server.finish().await;
}

#[tokio::test]
async fn the_old_path_publishes_too() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    server.post(&format!("/v1/publish/{}", receiver.url("/old?x=1"))).body("x").expect(200).await;
    assert_eq!(receiver.next().await.target, "/old?x=1");
    server.finish().await;
}
