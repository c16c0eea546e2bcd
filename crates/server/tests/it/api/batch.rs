//! `POST /v2/batch`: many messages in one request.

use crate::support::{Backend, Receiver, Setup, TestServer};
use serde_json::{Value, json};

#[tokio::test]
async fn answers_come_in_the_order_of_the_items() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let items: Vec<Value> = (0..20)
            .map(|n| json!({ "destination": receiver.url(&format!("/{n}?n={n}")), "body": format!("body {n}") }))
            .collect();
        let answers = server.post("/v2/batch").json(&json!(items)).expect(200).await.json();
        let answers = answers.as_array().expect("a batch is answered with a list").clone();
        assert_eq!(answers.len(), items.len());
        for (n, answer) in answers.iter().enumerate() {
            let message = server.message(answer["messageId"].as_str().expect("an id")).await;
            assert_eq!(message["url"], items[n]["destination"]);
            assert_eq!(message["body"], items[n]["body"]);
        }
        receiver.take(20).await;
        server.finish().await;
    }
}

/// A long answer takes room of its own, and looks the same.
#[tokio::test]
async fn a_long_answer_names_each_message_and_its_url() {
    let server = TestServer::start().await;
    let urls: Vec<String> = (0..20).map(|n| format!("http://127.0.0.1:9/{n}/{}", "x".repeat(1_000))).collect();
    let endpoints: Vec<Value> = urls.iter().map(|url| json!({ "url": url })).collect();
    server.post("/v2/topics/many/endpoints").json(&json!({ "endpoints": endpoints })).expect(200).await;
    let item = json!({ "destination": "many", "headers": { "Upstash-Delay": "1h" }, "body": "x" });
    let refused = json!({ "destination": "http://169.254.169.254/", "headers": { "Upstash-Delay": "1h" } });
    let answer = server.post("/v2/batch").json(&json!([item, refused, item, item, item])).expect(200).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.text().len() > 64 * 1024, "it is long");
    let answers = answer.json();
    assert!(answers[1]["error"].is_string(), "{}", answers[1]);
    let mut ids = std::collections::HashSet::new();
    for group in [0, 2, 3, 4] {
        let group = answers[group].as_array().expect("one for each endpoint");
        let told: Vec<&str> = group.iter().map(|message| message["url"].as_str().expect("a URL is text")).collect();
        assert_eq!(told, urls);
        ids.extend(group.iter().map(|message| message["messageId"].as_str().expect("an id is text").to_owned()));
    }
    assert_eq!(ids.len(), 80);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn items_may_look_as_every_sdk_writes_them() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/");
    let items = json!([
        { "destination": url, "headers": { "upstash-method": "PUT", "content-type": "a/b" }, "body": "js" },
        { "destination": url, "headers": null, "body": null, "queue": null },
        { "destination": url, "headers": { "Upstash-Forward-X": ["1", "2"] }, "body": "", "queue": "" },
        { "destination": url },
    ]);
    let outer = [("Upstash-Forward-X-Outer", "no"), ("Upstash-Retries", "9"), ("Upstash-Delay", "1h")];
    let answer = server.post("/v2/batch").headers(&outer).json(&items).expect(200).await;
    assert_eq!(answer.redacted(), json!(vec![json!({ "messageId": "<message>" }); 4]));
    let answers = answer.json();
    let expected = [
        ("PUT", json!({ "Content-Type": ["a/b"] }), json!("js")),
        ("POST", Value::Null, Value::Null),
        ("POST", json!({ "X": ["1", "2"] }), Value::Null),
        ("POST", Value::Null, Value::Null),
    ];
    for (n, (method, headers, body)) in expected.into_iter().enumerate() {
        let message = server.message(answers[n]["messageId"].as_str().expect("an id")).await;
        assert_eq!((&message["method"], &message["header"], &message["body"]), (&json!(method), &headers, &body));
        assert_eq!(message["maxRetries"], 3);
    }
    receiver.take(4).await;
    server.finish().await;
}

#[tokio::test]
async fn destinations_are_whole_urls_without_their_fragment() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for (given, sent) in [("/a?b=c#d", "/a?b=c"), ("/a#d?e", "/a"), ("/a//b?x=%23&y=/?z", "/a//b?x=%23&y=/?z")] {
        let items = json!([{ "destination": receiver.url(given) }]);
        let answer = server.post("/v2/batch").json(&items).expect(200).await.json();
        let message = server.message(answer[0]["messageId"].as_str().expect("an id")).await;
        assert_eq!(message["url"], receiver.url(sent), "{given}");
        assert_eq!(receiver.next().await.target, sent, "{given}");
    }
    server.finish().await;
}

#[tokio::test]
async fn every_item_keeps_to_the_size_of_a_message() {
    let mut setup = Setup::dev();
    setup.settings.message_bytes_max = Some(1_000);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    let item = |bytes: usize| json!({ "destination": receiver.url("/"), "body": "é".repeat(bytes / 2) });
    let error = server.post("/v2/batch").json(&json!([item(1_000), item(1_002)])).expect(412).await.error();
    assert_eq!(error, "item 1: quota maxMessageSize exceeded, current limit: 1000");
    server.post("/v2/batch").json(&json!([item(1_000), item(1_000)])).expect(200).await;
    receiver.take(2).await;
    server.finish().await;
}

#[tokio::test]
async fn a_place_where_messages_may_not_go_refuses_only_its_item() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let items = json!([
        { "destination": receiver.url("/1") },
        { "destination": "http://169.254.169.254/latest" },
        { "destination": receiver.url("/3") },
        { "destination": "http://10.0.0.1/" },
    ]);
    let answers = server.post("/v2/batch").json(&items).expect(200).await.redacted();
    assert_eq!(
        answers,
        json!([
            { "messageId": "<message>" },
            { "error": "invalid destination url: endpoint resolves to a link-local address: 169.254.169.254" },
            { "messageId": "<message>" },
            {
                "error": "invalid destination url: endpoint resolves to a private address: 10.0.0.1; \
                          the operator can allow it with egress_allow_cidrs"
            },
        ])
    );
    let mut targets: Vec<String> = receiver.take(2).await.into_iter().map(|delivery| delivery.target).collect();
    targets.sort();
    assert_eq!(targets, ["/1", "/3"]);
    server.finish().await;
}

#[tokio::test]
async fn a_mistake_in_one_item_refuses_the_whole_batch() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let good = json!({ "destination": receiver.url("/") });
    let with = |name: &str, value: &str| json!({ "destination": receiver.url("/"), "headers": { name: value } });
    let cases = [
        (json!({}), 400),
        (json!({ "destination": "" }), 400),
        (json!({ "destination": "no scheme/" }), 400),
        (json!({ "destination": "unknown-group" }), 404),
        (with("Upstash-Retries", "-1"), 400),
        (with("Upstash-Retries", "1001"), 412),
        (with("Upstash-Delay", "400d"), 412),
        (with("Upstash-Forward-X", "a\r\nY: 1"), 400),
        (with("Upstash-Forward-X\r\nY", "1"), 400),
        (with("Upstash-Forward-X", &"x".repeat(33 * 1024)), 400),
        (
            json!({ "destination": receiver.url("/"), "headers": { "X": "1", "Upstash-Delay": "1", "upstash-delay": "1" } }),
            400,
        ),
        (json!({ "destination": receiver.url("/"), "headers": { "Upstash-Delay": ["1", "2"] } }), 400),
        (json!({ "destination": receiver.url("/"), "headers": { "Content-Type": ["a/b", "c/d"] } }), 400),
        (with("Upstash-Callback", "http://10.0.0.1/"), 400),
        (with("Upstash-Cron", "* * * * *"), 400),
        (json!({ "destination": receiver.url("/"), "queue": "a b" }), 400),
    ];
    for (bad, status) in cases {
        let items = json!([good, good, bad, good]);
        let error = server.post("/v2/batch").json(&items).expect(status).await.error();
        assert!(error.starts_with("item 2: "), "{bad}: {error}");
    }
    for body in [
        "",
        "null",
        "{}",
        "[1]",
        "[{]",
        r#"[{"destination":5}]"#,
        r#"[ ["http://a/"]]"#,
        r#"[{"destination":"http://a/","body":5}]"#,
    ] {
        server.post("/v2/batch").body(body).expect(400).await.error();
    }
    assert_eq!((server.counts().live, receiver.count()), (0, 0));
    assert_eq!(server.post("/v2/batch").body("[]").expect(200).await.json(), json!([]));
    server.finish().await;
}

#[tokio::test]
async fn duplicates_within_a_batch_share_one_message() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let item = json!({ "destination": receiver.url("/"), "headers": { "Upstash-Deduplication-Id": "one" } });
        let answer = server.post("/v2/batch").json(&json!([item, item])).expect(200).await;
        let answers = answer.json();
        assert_eq!(answers[0]["messageId"], answers[1]["messageId"]);
        assert_eq!((answers[0].get("deduplicated"), &answers[1]["deduplicated"]), (None, &json!(true)));
        // Nothing new at all is a 202.
        let again = server.post("/v2/batch").json(&json!([item])).expect(202).await.json();
        assert_eq!(again, json!([{ "messageId": answers[0]["messageId"], "deduplicated": true }]));
        receiver.next().await;
        server.finish().await;
        assert_eq!(receiver.count(), 1);
    }
}

#[tokio::test]
async fn the_retry_expressions_of_a_batch_are_checked_within_a_bound() {
    let server = TestServer::start().await;
    // 63 numbers and operators; a thousand retries of it are 63,000 steps.
    let item = |constant: usize| {
        let expression = format!("{constant}{}", "+1".repeat(31));
        json!({
            "destination": "https://a.example/",
            "headers": { "Upstash-Retry-Delay": expression, "Upstash-Retries": "1000", "Upstash-Delay": "1d" },
        })
    };
    let equal: Vec<Value> = (0..400).map(|_| item(7)).collect();
    let accepted = server.post("/v2/batch").json(&json!(equal)).expect(200).await.json();
    assert_eq!(accepted.as_array().map(Vec::len), Some(400), "equal ones are checked once");
    let different: Vec<Value> = (1_000..1_400).map(item).collect();
    let error = server.post("/v2/batch").json(&json!(different)).expect(400).await.error();
    assert!(error.starts_with("item 158: Upstash-Retry-Delay: ") && error.contains("10000000 steps"), "{error}");
    let runs: Vec<Value> = (1_000..1_400)
        .map(|constant| json!({ "destination": "https://a.example/", "headers": item(constant)["headers"] }))
        .collect();
    let error = server.post("/v2/batch/trigger").json(&json!(runs)).expect(400).await.error();
    assert!(error.starts_with("item 158: ") && error.contains("10000000 steps"), "{error}");
    server.finish_with_pending().await;
}
