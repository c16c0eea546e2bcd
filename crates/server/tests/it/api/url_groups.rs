//! `/v2/topics`: URL groups, and publishing to them.

use crate::support::{Backend, Receiver, Reply, Setup, TestServer};
use serde_json::{Value, json};

/// A group with three endpoints of a receiver, the last one without a name.
async fn group_of_three(server: &TestServer, receiver: &Receiver) {
    let endpoints = json!({ "endpoints": [
        { "name": "First endpoint", "url": receiver.url("/1") },
        { "name": "two", "url": receiver.url("/2") },
        { "url": receiver.url("/3") },
    ] });
    server.post("/v2/topics/orders/endpoints").json(&endpoints).expect(200).await;
}

fn without_times(mut group: Value) -> Value {
    for time in ["createdAt", "updatedAt"] {
        assert!(group[time].is_u64(), "{group}");
        group.as_object_mut().expect("a group").remove(time);
    }
    group
}

#[tokio::test]
async fn a_group_is_made_changed_and_removed() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        assert_eq!(server.get("/v2/topics").expect(200).await.json(), json!([]));
        server.get("/v2/topics/orders").expect(404).await;
        server.delete("/v2/topics/orders").expect(200).await;
        group_of_three(&server, &receiver).await;
        let change = json!({ "endpoints": [{ "name": "two", "url": receiver.url("/new") }] });
        server.post("/v2/topics/orders/endpoints").json(&change).expect(200).await;
        let headers = json!({ "headers": { "Upstash-Retries": "1", "Upstash-Forward-X": ["a", "b"] } });
        server.request("PATCH", "/v2/topics/orders").json(&headers).expect(200).await;
        let expected = json!({
            "name": "orders",
            "endpoints": [
                { "name": "First endpoint", "url": receiver.url("/1") },
                { "name": "two", "url": receiver.url("/new") },
                { "url": receiver.url("/3") },
            ],
            "headers": { "Upstash-Retries": ["1"], "Upstash-Forward-X": ["a", "b"] },
        });
        let server = server.restart().await;
        assert_eq!(without_times(server.get("/v2/topics/orders").expect(200).await.json()), expected);
        let listed = server.get("/v2/topics/").expect(200).await.json();
        assert_eq!(without_times(listed[0].clone()), expected);

        let gone = json!({ "endpoints": [{ "name": "two" }, { "url": receiver.url("/3") }] });
        server.delete("/v2/topics/orders/endpoints").json(&gone).expect(200).await;
        let left = server.get("/v2/topics/orders").expect(200).await.json();
        assert_eq!(left["endpoints"], json!([{ "name": "First endpoint", "url": receiver.url("/1") }]));
        let last = json!({ "endpoints": [{ "name": "First endpoint" }] });
        server.delete("/v2/topics/orders/endpoints").json(&last).expect(200).await;
        server.get("/v2/topics/orders").expect(404).await;
        server.delete("/v2/topics/orders/endpoints").json(&last).expect(404).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn a_publish_to_a_group_is_a_message_for_each_endpoint() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/2", [Reply::status(500)]);
    group_of_three(&server, &receiver).await;
    let headers = [("Upstash-Retries", "0"), ("Upstash-Label", "red"), ("Content-Type", "text/plain")];
    let answer = server.publish("orders").headers(&headers).body("hello").expect(200).await;
    let urls = ["/1", "/2", "/3"].map(|path| receiver.url(path));
    let expected: Vec<Value> = urls.iter().map(|url| json!({ "messageId": "<message>", "url": url })).collect();
    assert_eq!(answer.redacted(), json!(expected));
    let ids: Vec<String> = answer
        .json()
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["messageId"].as_str().expect("an id").to_owned())
        .collect();

    let mut deliveries = receiver.take(3).await;
    deliveries.sort_by(|a, b| a.target.cmp(&b.target));
    for (delivery, id) in deliveries.iter().zip(&ids) {
        assert_eq!(delivery.header("upstash-topic-name"), Some("orders"));
        assert_eq!(delivery.header("upstash-message-id"), Some(id.as_str()));
        assert_eq!(delivery.text(), "hello");
    }
    let message = server.message(&ids[0]).await;
    assert_eq!((&message["topicName"], &message["endpointName"]), (&json!("orders"), &json!("First endpoint")));
    assert_eq!(server.message(&ids[2]).await["endpointName"], Value::Null);

    // Each lives on its own: one failed, and only it is in the DLQ.
    let letter = server.dead_letter_of(&ids[1]).await;
    assert_eq!((&letter["topicName"], &letter["endpointName"]), (&json!("orders"), &json!("two")));
    assert_eq!(server.dead_letters("topicName=orders").await.len(), 1);
    assert_eq!(server.dead_letters("urlGroup=orders&topicName=orders").await.len(), 1);
    assert_eq!(server.dead_letters("topicName=others").await.len(), 0);
    for id in [&ids[0], &ids[2]] {
        server.reaches(id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    }
    assert_eq!(server.events("topicName=orders&state=DELIVERED").await.len(), 2);
    receiver.script("/2", [Reply::status(200)]);
    let retried = server.post(&format!("/v2/dlq/retry/{}", letter["dlqId"].as_str().expect("an id"))).expect(201).await;
    assert_eq!(receiver.next().await.header("upstash-topic-name"), Some("orders"));
    assert_eq!(retried.redacted(), json!({ "messageId": "<message>" }));
    server.finish().await;
}

#[tokio::test]
async fn every_endpoint_has_its_own_duplicates() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for dedup in [("Upstash-Deduplication-Id", "x"), ("Upstash-Content-Based-Deduplication", "true")] {
        let one = json!({ "endpoints": [{ "url": receiver.url("/1") }] });
        server.post("/v2/topics/orders/endpoints").json(&one).expect(200).await;
        let first = server.publish("orders").headers(&[dedup]).expect(200).await.json();
        let two = json!({ "endpoints": [{ "url": receiver.url("/2") }] });
        server.post("/v2/topics/orders/endpoints").json(&two).expect(200).await;
        let second = server.publish("orders").headers(&[dedup]).expect(200).await.json();
        assert_eq!((&second[0]["messageId"], &second[0]["deduplicated"]), (&first[0]["messageId"], &json!(true)));
        assert_eq!(second[1]["deduplicated"], Value::Null);
        server.publish("orders").headers(&[dedup]).expect(202).await;
        server.delete("/v2/topics/orders").expect(200).await;
    }
    receiver.take(4).await;
    server.finish().await;
}

#[tokio::test]
async fn default_headers_fill_in_what_a_publish_leaves_open() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let one = json!({ "endpoints": [{ "url": receiver.url("/") }] });
    server.post("/v2/topics/hooks/endpoints").json(&one).expect(200).await;
    let defaults =
        json!({ "headers": { "Upstash-Header-Forward": "true", "Upstash-Retries": "7", "upstash-label": "default" } });
    server.request("PATCH", "/v2/topics/hooks").json(&defaults).expect(200).await;
    let answer =
        server.publish("hooks").headers(&[("X-Github-Event", "push"), ("Upstash-Label", "own")]).expect(200).await;
    let message = server.message(answer.json()[0]["messageId"].as_str().expect("an id")).await;
    assert_eq!((&message["maxRetries"], &message["labels"]), (&json!(7), &json!(["own"])));
    assert_eq!(receiver.next().await.header("x-github-event"), Some("push"));
    server.finish().await;
}

#[tokio::test]
async fn a_batch_may_mix_urls_and_groups() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    group_of_three(&server, &receiver).await;
    let items = json!([{ "destination": receiver.url("/x") }, { "destination": "orders", "body": "b" }]);
    let answer = server.post("/v2/batch").json(&items).expect(200).await.redacted();
    let in_group = |path: &str| json!({ "messageId": "<message>", "url": receiver.url(path) });
    assert_eq!(answer, json!([{ "messageId": "<message>" }, [in_group("/1"), in_group("/2"), in_group("/3")]]));
    receiver.take(4).await;
    let unknown = json!([{ "destination": receiver.url("/x") }, { "destination": "nobody" }]);
    let error = server.post("/v2/batch").json(&unknown).expect(404).await.error();
    assert_eq!(error, "item 1: topic nobody not found");
    server.finish().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let server = TestServer::start().await;
    let many: Vec<Value> = (0..101).map(|n| json!({ "url": format!("https://example.com/{n}") })).collect();
    let cases = [
        ("POST", "/v2/topics/g/endpoints", json!({}), 400),
        ("POST", "/v2/topics/g/endpoints", json!({ "endpoints": [] }), 400),
        ("POST", "/v2/topics/g/endpoints", json!({ "endpoints": [{ "name": "a" }] }), 400),
        ("POST", "/v2/topics/g/endpoints", json!({ "endpoints": [{ "url": "ftp://example.com" }] }), 400),
        ("POST", "/v2/topics/g/endpoints", json!({ "endpoints": [{ "url": "http://10.0.0.1/" }] }), 400),
        ("POST", "/v2/topics/g/endpoints", json!({ "endpoints": many }), 412),
        ("POST", "/v2/topics/a%20b/endpoints", json!({ "endpoints": [{ "url": "https://example.com" }] }), 400),
        (
            "POST",
            "/v2/topics/https:%2F%2Fexample.com/endpoints",
            json!({ "endpoints": [{ "url": "https://e.com" }] }),
            400,
        ),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "Upstash-Retries": "1" } }), 404),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "Upstash-Retries": "many" } }), 400),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "Upstash-Retries": 1 } }), 400),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "Upstash-Cron": "0 0 * * *" } }), 400),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "Upstash-Schedule-Id": "s" } }), 400),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "Upstash-Queue-Name": "q" } }), 400),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "upstash-deduplication-id": "d" } }), 400),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "Upstash-Content-Based-Deduplication": "false" } }), 400),
        ("PATCH", "/v2/topics/g", json!({ "headers": { "Upstash-Not-Before": ["1780315300"] } }), 400),
        ("POST", "/v2/topics/g/endpoints", json!({ "endpoints": [["https://example.com"]] }), 400),
        ("DELETE", "/v2/topics/g/endpoints", json!({ "endpoints": [{}] }), 400),
    ];
    for (method, path, body, status) in cases {
        server.request(method, path).json(&body).expect(status).await.error();
    }
    assert_eq!(server.get("/v2/topics").expect(200).await.json(), json!([]));
    assert_eq!(server.publish("g").expect(404).await.error(), "topic g not found");
    server.finish().await;
}

#[tokio::test]
async fn endpoints_have_no_fragment() {
    let server = TestServer::start().await;
    let with_fragment = json!({ "endpoints": [{ "url": "https://example.com/a?b#c" }, { "url": "https://e.com/" }] });
    server.post("/v2/topics/g/endpoints").json(&with_fragment).expect(200).await;
    let shown = server.get("/v2/topics/g").expect(200).await.json();
    assert_eq!(shown["endpoints"][0], json!({ "url": "https://example.com/a?b" }));
    server
        .delete("/v2/topics/g/endpoints")
        .json(&json!({ "endpoints": [with_fragment["endpoints"][0]] }))
        .expect(200)
        .await;
    let shown = server.get("/v2/topics/g").expect(200).await.json();
    assert_eq!(shown["endpoints"], json!([{ "url": "https://e.com/" }]));
    server.finish().await;
}

#[tokio::test]
async fn groups_belong_to_their_tenant() {
    let server = TestServer::start().await;
    let other = posthaste::tenants::DEV_USERS[1].token;
    let one = json!({ "endpoints": [{ "url": "https://example.com/" }] });
    server.post("/v2/topics/g/endpoints").json(&one).expect(200).await;
    server.get("/v2/topics/g").token(other).expect(404).await;
    server.publish("g").token(other).expect(404).await;
    server.delete("/v2/topics/g").token(other).expect(200).await;
    server.get("/v2/topics/g").expect(200).await;
    server.finish().await;
}
