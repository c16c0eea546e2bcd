//! `async=true` on `DELETE /v2/dlq` and `POST /v2/dlq/retry`: bulk actions on dead letters.

use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Makes dead letters with this label; the body of each is its number.
async fn bury(server: &TestServer, receiver: &Receiver, label: &str, count: usize) {
    receiver.script("/fails", [Reply::status(500).with_body("no")]);
    let before = server.counts().dead_letters as usize;
    let item = |n: usize| {
        let headers = json!({ "Upstash-Retries": "0", "Upstash-Label": label });
        json!({ "destination": receiver.url("/fails"), "headers": headers, "body": n.to_string() })
    };
    let items: Vec<Value> = (0..count).map(item).collect();
    server.post("/v2/batch").json(&items.into()).expect(200).await;
    let all = before + count;
    eventually("all have failed", || async { (server.counts().dead_letters as usize == all).then_some(()) }).await;
}

async fn begin_retry(server: &TestServer, query: &str, headers: &[(&str, &str)]) -> (String, u64) {
    let answer = server.post(&format!("/v2/dlq/retry?async=true{query}")).headers(headers).expect(202).await.json();
    (answer["actionId"].as_str().expect("an id").to_owned(), answer["total"].as_u64().expect("a count"))
}

async fn begin_delete(server: &TestServer, query: &str) -> (String, u64) {
    let answer = server.delete(&format!("/v2/dlq?async=true{query}")).expect(202).await.json();
    (answer["actionId"].as_str().expect("an id").to_owned(), answer["total"].as_u64().expect("a count"))
}

async fn look(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/v2/bulkActions/{id}")).expect(200).await.json()
}

async fn finished(server: &TestServer, id: &str) -> Value {
    eventually("the bulk action is finished", || async {
        let action = look(server, id).await;
        (action["state"] == "FINISHED").then_some(action)
    })
    .await
}

/// The same, while time passes.
async fn finished_in_time(server: &TestServer, id: &str) -> Value {
    eventually("the bulk action is finished", || async {
        server.advance(100).await;
        let action = look(server, id).await;
        (action["state"] == "FINISHED").then_some(action)
    })
    .await
}

#[tokio::test]
async fn a_retry_in_the_background_publishes_what_matched_with_its_changes() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        bury(&server, &receiver, "red", 3).await;
        bury(&server, &receiver, "blue", 2).await;
        receiver.take(5).await;
        receiver.script("/fails", [Reply::status(200)]);
        let headers = [
            ("Upstash-Method", "PUT"),
            ("Upstash-Forward-X-Key", "s3cret"),
            ("X-Plain", "along"),
            ("Upstash-Header-Forward", "true"),
        ];
        let (id, total) = begin_retry(&server, "&label=red", &headers).await;
        assert_eq!(total, 3);
        let action = finished(&server, &id).await;
        let changes: BTreeSet<&str> =
            action["changes"].as_array().expect("names").iter().filter_map(Value::as_str).collect();
        assert!(changes.contains("Upstash-Method") && changes.contains("Upstash-Forward-X-Key"), "{changes:?}");
        assert!(!action.to_string().contains("s3cret"), "{action}");
        let mut action = action;
        action.as_object_mut().expect("an object").remove("changes");
        let expected = json!({
            "actionId": id,
            "kind": "dlqRetry",
            "state": "FINISHED",
            "total": 3,
            "processed": 3,
            "createdAt": START_MS,
            "completedAt": START_MS,
            "filter": { "label": ["red"] },
        });
        assert_eq!(action, expected, "{backend:?}");
        let mut bodies = Vec::new();
        for delivery in receiver.take(3).await {
            assert_eq!((delivery.method.as_str(), delivery.header("x-key")), ("PUT", Some("s3cret")));
            assert_eq!((delivery.header("x-plain"), delivery.header("authorization")), (Some("along"), None));
            bodies.push(delivery.text());
        }
        bodies.sort();
        assert_eq!(bodies, ["0", "1", "2"]);
        assert_eq!(server.dead_letters("").await.len(), 2, "{backend:?}");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_delete_in_the_background_deletes_what_matched_and_nothing_that_fails_later() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        bury(&server, &receiver, "red", 30).await;
        bury(&server, &receiver, "blue", 2).await;
        let (id, total) = begin_delete(&server, "&label=red&rate=50").await;
        server.advance(1).await;
        let headers = [("Upstash-Retries", "0"), ("Upstash-Label", "red")];
        let later = server.publish_with(&receiver.url("/fails"), &headers, "").await;
        server.dead_letter_of(&later).await;
        let action = finished_in_time(&server, &id).await;
        assert_eq!((total, &action["kind"], &action["total"]), (30, &json!("dlqDelete"), &json!(30)));
        assert_eq!((&action["processed"], &action["rate"]), (&json!(30), &json!(50)), "{backend:?}");
        assert_eq!(server.dead_letters("").await.len(), 3, "{backend:?}");
        server.finish().await;
    }
}

#[tokio::test]
async fn ids_causes_and_a_count_select_too() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    bury(&server, &receiver, "red", 6).await;
    let letters = server.dead_letters("order=earliestFirst").await;
    let ids: Vec<&str> = letters.iter().filter_map(|letter| letter["dlqId"].as_str()).collect();
    let (id, total) = begin_delete(&server, &format!("&dlqIds={},{},1-1,x", ids[1], ids[4])).await;
    assert_eq!((total, &finished(&server, &id).await["processed"]), (2, &json!(2)));
    let (id, total) = begin_delete(&server, "&dlqIds=x").await;
    assert_eq!((total, &finished(&server, &id).await["processed"]), (0, &json!(0)));
    let causes = server.get("/v2/dlq/causes").expect(200).await.json();
    let cause = causes["causes"][0]["cause"].as_str().expect("an id");
    let (id, total) = begin_delete(&server, &format!("&cause={cause}&count=3")).await;
    assert_eq!((total, &finished(&server, &id).await["processed"]), (3, &json!(3)));
    let left = server.dead_letters("").await;
    assert_eq!(left.iter().map(|letter| letter["dlqId"].as_str()).collect::<Vec<_>>(), [Some(ids[5])], "oldest first");
    server.finish().await;
}

#[tokio::test]
async fn a_restart_goes_on_where_it_was_and_nothing_is_sent_twice() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let count = 300;
        bury(&server, &receiver, "red", count).await;
        receiver.script("/fails", [Reply::status(200)]);
        let (id, total) = begin_retry(&server, "&rate=1000", &[("Upstash-Forward-Again", "1")]).await;
        assert_eq!(total, count as u64);
        let part = eventually("a part is done", || async {
            look(&server, &id).await["processed"].as_u64().filter(|n| *n > 0)
        });
        assert!(part.await < count as u64, "the restart comes in the middle");
        // Time stands still, so no other part begins. What is under way at a restart may be sent twice.
        eventually("this part is delivered", || async { (server.counts().live == 0).then_some(()) }).await;
        let server = server.restart().await;
        let action = finished_in_time(&server, &id).await;
        assert_eq!((&action["processed"], server.counts().dead_letters), (&json!(count), 0), "{backend:?}");
        let again: Vec<String> = receiver
            .take(2 * count)
            .await
            .iter()
            .filter(|delivery| delivery.header("again").is_some())
            .map(|delivery| delivery.text())
            .collect();
        let unique: BTreeSet<&String> = again.iter().collect();
        assert_eq!((again.len(), unique.len()), (count, count), "{backend:?}");
        server.finish().await;
        assert_eq!(receiver.count(), 2 * count, "{backend:?}");
    }
}

#[tokio::test]
async fn a_pace_is_kept() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    bury(&server, &receiver, "red", 12).await;
    let (paced, _) = begin_delete(&server, "&rate=20").await;
    // Pieces of two: one at once, and one each tenth of a second.
    for done in [2, 4, 6] {
        eventually("a piece", || async { (look(&server, &paced).await["processed"] == done).then_some(()) }).await;
        server.advance(99).await;
        // The worker looks at all of them once more for the sake of this one.
        let (other, _) = begin_delete(&server, "&label=blue").await;
        finished(&server, &other).await;
        assert_eq!(look(&server, &paced).await["processed"], done);
        server.advance(1).await;
    }
    assert_eq!(finished_in_time(&server, &paced).await["processed"], 12);
    server.finish().await;
}

#[tokio::test]
async fn what_is_stopped_does_nothing_more() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        bury(&server, &receiver, "red", 30).await;
        let (slow, _) = begin_delete(&server, "&rate=1").await;
        let (other, _) = begin_delete(&server, "&rate=1&label=blue").await;
        let path = format!("/v2/bulkActions/{slow}");
        server.delete(&path).token(READ_ONLY).expect(403).await.error();
        server.delete(&path).token(TOKEN_B).expect(404).await.error();
        assert_eq!(look(&server, &slow).await["state"], "IN_PROGRESS");
        let stopped = server.delete(&path).expect(200).await.json();
        assert_eq!((&stopped["state"], &stopped["stopped"]), (&json!("FINISHED"), &json!(true)));
        let left = server.dead_letters("").await.len();
        assert_eq!(30 - left as u64, stopped["processed"].as_u64().expect("a count"));
        assert!(left >= 29, "it was slow");
        // Whatever it does now it would do before this one, which is behind it in every round.
        let (behind, _) = begin_delete(&server, "&count=1").await;
        finished(&server, &behind).await;
        assert_eq!(server.dead_letters("").await.len(), left - 1, "{backend:?}");
        let server = server.restart().await;
        assert_eq!(look(&server, &slow).await, stopped);
        assert_eq!(server.delete(&path).expect(200).await.json(), stopped, "again is no problem");
        assert_eq!(finished_in_time(&server, &other).await["processed"], 0);
        assert_eq!(server.delete(&format!("/v2/bulkActions/{other}")).expect(200).await.json().get("stopped"), None);
        for id in ["bulk_1", "x", "bulk_11111111"] {
            server.delete(&format!("/v2/bulkActions/{id}")).expect(404).await.error();
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn what_cannot_be_sent_again_stays_and_is_told() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    bury(&server, &receiver, "red", 3).await;
    // The same id for all: the first one goes, the others are its duplicates.
    let (id, total) = begin_retry(&server, "", &[("Upstash-Deduplication-Id", "one"), ("Upstash-Delay", "1h")]).await;
    let action = finished(&server, &id).await;
    assert_eq!((total, &action["processed"], &action["refused"]), (3, &json!(1), &json!(2)));
    assert!(action["problem"].as_str().is_some_and(|text| text.contains("duplicate")), "{action}");
    assert_eq!(server.counts().dead_letters, 2);
    let (_, original) = action["problem"].as_str().and_then(|text| text.split_once("duplicate of ")).expect("an id");
    let (original, _) = original.split_once(';').expect("an id");
    let why = server.get(&format!("/v2/messages/{original}/why")).expect(200).await.json();
    assert_eq!(why["duplicates"]["count"], 2, "{why}");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn what_is_unclear_is_refused_and_begins_nothing() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    bury(&server, &receiver, "red", 1).await;
    let queries = [
        "rate=5",
        "async=false&rate=5",
        "async=true&rate=0",
        "async=true&rate=1001",
        "async=true&rate=x",
        "async=true&cursor=1-1",
        "async=true&order=earliestFirst",
        "async=true&count=0",
        "async=true&label=",
        "async=true&cause=x",
        "async=maybe",
    ];
    for query in queries {
        server.delete(&format!("/v2/dlq?{query}")).expect(400).await.error();
        server.post(&format!("/v2/dlq/retry?{query}")).expect(400).await.error();
    }
    server.post("/v2/dlq/retry?async=true").header("Upstash-Retries", "x").expect(400).await.error();
    server.delete("/v2/dlq?async=true").token(READ_ONLY).expect(403).await.error();
    assert_eq!(server.get("/v2/bulkActions").expect(200).await.json(), json!({ "bulkActions": [] }));
    assert_eq!(server.counts().dead_letters, 1);
    server.finish().await;
}
