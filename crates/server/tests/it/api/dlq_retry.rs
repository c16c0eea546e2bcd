//! `/v2/dlq/retry`: dead letters are published again.

use super::dlq::{dlq_id, failed, ids, many_failed};
use crate::support::server::{START_MS, message_id};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer};
use serde_json::json;
use std::collections::HashSet;

#[tokio::test]
async fn a_retry_is_a_new_message_with_what_was_stored() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500), Reply::status(200)]);
        let headers = [
            ("Upstash-Method", "PUT"),
            ("Upstash-Forward-X", "1"),
            ("Content-Type", "a/b"),
            ("Upstash-Label", "l"),
            ("Upstash-Timeout", "1m"),
            ("Upstash-Retry-Delay", "1000"),
        ];
        let letter = failed(&server, &receiver.url("/?q"), &headers, "body").await;
        receiver.next().await;
        let old = server.message(letter["messageId"].as_str().expect("an id")).await;
        server.advance(5_000).await;

        let target = format!("/v2/dlq/retry/{}", dlq_id(&letter));
        let answer = server.post(&target).header("Content-Type", "application/json").expect(201).await;
        assert_eq!(answer.redacted(), json!({ "messageId": "<message>" }));
        let new_id = message_id(&answer);
        let mut expected = old.clone();
        expected["messageId"] = json!(new_id);
        expected["createdAt"] = json!(START_MS + 5_000);
        expected["notBefore"] = json!(START_MS + 5_000);
        expected["sourceMessageId"] = old["messageId"].clone();
        expected["sourceKind"] = json!("dlqRetry");
        assert_eq!(server.message(&new_id).await, expected);
        assert_ne!(old["messageId"], json!(new_id));

        let delivery = receiver.next().await;
        assert_eq!(delivery.header("upstash-message-id"), Some(new_id.as_str()));
        assert_eq!(delivery.header("upstash-retried"), Some("0"));
        assert_eq!((delivery.method.as_str(), delivery.text().as_str()), ("PUT", "body"));
        server.reaches(&new_id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        // The entry is gone at once, so a second retry finds nothing.
        assert!(server.dead_letters("").await.is_empty());
        server.post(&target).expect(404).await.error();
        server.finish().await;
        assert_eq!(receiver.count(), 2);
    }
}

#[tokio::test]
async fn a_retry_may_change_settings() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let headers = [
        ("Upstash-Forward-X", "old"),
        ("Upstash-Forward-Y", "kept"),
        ("Content-Type", "a/b"),
        ("Upstash-Label", "old"),
    ];
    let letter = failed(&server, &receiver.url("/"), &headers, "body").await;
    let overrides = [
        ("Upstash-Method", "PATCH"),
        ("Upstash-Retries", "7"),
        ("Upstash-Retry-Delay", "9000"),
        ("Upstash-Timeout", "5s"),
        ("Upstash-Delay", "1m"),
        ("Upstash-Label", "new,newer"),
        ("Upstash-Forward-X", "new"),
        ("Upstash-Forward-Z", "added"),
    ];
    let retry = server.post(&format!("/v2/dlq/retry/{}", dlq_id(&letter))).headers(&overrides);
    let id = message_id(&retry.expect(201).await);
    assert_eq!(
        server.get(&format!("/v2/messages/{id}")).expect(200).await.redacted(),
        json!({
            "messageId": "<message>",
            "sourceMessageId": letter["messageId"],
            "sourceKind": "dlqRetry",
            "url": receiver.url("/"),
            "method": "PATCH",
            "header": { "Content-Type": ["a/b"], "X": ["new"], "Y": ["kept"], "Z": ["added"] },
            "body": "body",
            "maxRetries": 7,
            "notBefore": START_MS + 60_000,
            "createdAt": START_MS,
            "callerIP": "127.0.0.1",
            "label": "new",
            "labels": ["new", "newer"],
            "retryDelayExpression": "9000",
            "timeout": 5,
        })
    );
    server.delete(&format!("/v2/messages/{id}")).expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn many_are_retried_by_ids_or_by_filter_with_the_same_overrides() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let made = many_failed(&server, &receiver, 6).await;
        receiver.script("/fails", [Reply::status(200)]);
        // One that is not there refuses the whole request.
        server.post(&format!("/v2/dlq/retry?dlqIds={},1-1", made[0])).expect(404).await.error();
        assert_eq!(server.dead_letters("").await.len(), 6);

        let two = format!("/v2/dlq/retry?dlqIds={},{}", made[0], made[1]);
        let answer = server.post(&two).header("Upstash-Method", "PUT").expect(201).await;
        let one = json!({ "messageId": "<message>" });
        assert_eq!(answer.redacted(), json!({ "responses": [one, one], "cursor": "" }));
        let body = json!({ "dlqIds": [made[2]] });
        let retry = server.post("/v2/dlq/retry").json(&body).header("Upstash-Method", "PUT");
        assert_eq!(retry.expect(201).await.redacted(), json!({ "responses": [one], "cursor": "" }));
        let filtered = server.post("/v2/dlq/retry?label=n3,n4,n0").header("Upstash-Method", "PUT");
        assert_eq!(filtered.expect(201).await.redacted(), json!({ "responses": [one, one], "cursor": "" }));

        let methods: Vec<String> = receiver.take(11).await.into_iter().map(|delivery| delivery.method).collect();
        assert_eq!(methods, [vec!["POST"; 6], vec!["PUT"; 5]].concat());
        assert_eq!(ids(&server.dead_letters("").await), [&made[5]]);
        server.finish().await;
    }
}

#[tokio::test]
async fn of_a_delete_and_retries_at_once_exactly_one_wins() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let made = many_failed(&server, &receiver, 20).await;
        receiver.script("/fails", [Reply::status(200)]);
        let mut deleted = 0;
        for (n, id) in made.iter().enumerate() {
            let mut requests = vec![
                server.delete(&format!("/v2/dlq/{id}")).send(),
                server.post(&format!("/v2/dlq/retry/{id}")).send(),
                server.post(&format!("/v2/dlq/retry/{id}")).send(),
            ];
            requests.rotate_left(n % 3);
            let mut running = tokio::task::JoinSet::new();
            for request in requests {
                running.spawn(request);
            }
            let mut statuses: Vec<u16> = running.join_all().await.iter().map(|answer| answer.status).collect();
            statuses.sort_unstable();
            deleted += statuses.iter().filter(|status| **status == 200).count();
            assert!(
                [[200, 404, 404], [201, 404, 404]].contains(&[statuses[0], statuses[1], statuses[2]]),
                "{statuses:?}"
            );
        }
        assert!(server.dead_letters("").await.is_empty());
        server.finish().await;
        assert_eq!(receiver.count(), 20 + 20 - deleted);
    }
}

#[tokio::test]
async fn a_failed_retry_is_a_new_dead_letter() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500).with_body("first"), Reply::status(502).with_body("second")]);
    let first = failed(&server, &receiver.url("/"), &[], "body").await;
    server.advance(1).await;
    let id = message_id(&server.post(&format!("/v2/dlq/retry/{}", dlq_id(&first))).expect(201).await);
    let second = server.dead_letter_of(&id).await;
    assert_eq!((&second["responseStatus"], &second["responseBody"]), (&json!(502), &json!("second")));
    let all = server.dead_letters("").await;
    assert_eq!(ids(&all), [dlq_id(&second)]);
    assert_eq!(ids(&[first, second]).into_iter().collect::<HashSet<_>>().len(), 2);
    server.finish().await;
}

#[tokio::test]
async fn a_retry_that_is_a_duplicate_leaves_the_dead_letter() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500)]);
        let other = server.publish_with(&receiver.url("/"), &[("Upstash-Deduplication-Id", "x")], "").await;
        let letter = failed(&server, &receiver.url("/fails"), &[], "").await;
        let target = format!("/v2/dlq/retry/{}", dlq_id(&letter));
        let answer = server.post(&target).header("Upstash-Deduplication-Id", "x").expect(201).await;
        assert_eq!(answer.json(), json!({ "messageId": other, "deduplicated": true }));
        // Nothing new was made of it, so it must not be lost.
        assert_eq!(server.dead_letters("").await, [letter]);
        server.finish().await;
    }
}
