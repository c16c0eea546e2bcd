//! Which publishes count as one, for how long, and under what load.

use crate::support::server::{START_MS, TOKEN_B, message_id};
use crate::support::{Backend, Lines, Receiver, Setup, TestServer};
use serde_json::json;
use std::collections::HashSet;

const WINDOW_MS: u64 = 600_000;

#[tokio::test]
async fn a_second_publish_with_the_same_id_is_answered_with_the_first_message() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let with_id = |id: &str| server.publish(&receiver.url("/")).header("Upstash-Deduplication-Id", id);
        let first = message_id(&with_id("order-1").body("first").expect(200).await);
        let again = with_id("order-1").body("another body").expect(202).await;
        assert_eq!(again.json(), json!({ "messageId": first, "deduplicated": true }));
        // The id alone decides, whatever the destination.
        let elsewhere = server.publish(&receiver.url("/else")).header("Upstash-Deduplication-Id", "order-1");
        assert_eq!(elsewhere.expect(202).await.json(), json!({ "messageId": first, "deduplicated": true }));
        // Ids differ by every character, and a colon is one.
        for other in ["order-2", "Order-1", "order:1", "x'; DROP TABLE messages;--"] {
            with_id(other).expect(200).await;
        }
        receiver.take(5).await;
        server.finish().await;
        assert_eq!(receiver.count(), 5);
    }
}

#[tokio::test]
async fn the_window_ends_ten_minutes_after_the_first_publish() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let publish = || server.publish(&receiver.url("/")).header("Upstash-Deduplication-Id", "x");
        let first = message_id(&publish().expect(200).await);
        server.advance(WINDOW_MS - 1).await;
        assert_eq!(message_id(&publish().expect(202).await), first);
        server.advance(1).await;
        let second = message_id(&publish().expect(200).await);
        assert_ne!(second, first);
        // The new message has a window of its own, and the duplicate did not prolong the first one.
        server.advance(WINDOW_MS - 1).await;
        assert_eq!(message_id(&publish().expect(202).await), second);
        receiver.take(2).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn fifty_publishes_at_once_make_one_message() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let mut publishes = tokio::task::JoinSet::new();
        for n in 0..50 {
            let publish = server.publish(&receiver.url("/")).header("Upstash-Deduplication-Id", "race");
            publishes.spawn(publish.body(format!("body {n}")).send());
        }
        let answers = publishes.join_all().await;
        let ids: HashSet<String> = answers.iter().map(message_id).collect();
        assert_eq!(ids.len(), 1);
        let fresh: Vec<u16> = answers.iter().map(|answer| answer.status).filter(|status| *status == 200).collect();
        assert_eq!(fresh.len(), 1, "one is new");
        assert!(answers.iter().all(|answer| [200, 202].contains(&answer.status)));
        receiver.next().await;
        server.finish().await;
        assert_eq!(receiver.count(), 1);
    }
}

#[tokio::test]
async fn content_is_the_same_when_destination_headers_and_body_are() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let base: [(&str, &str); 3] =
        [("Upstash-Content-Based-Deduplication", "True"), ("Content-Type", "a/b"), ("Upstash-Forward-X", "1")];
    let publish = |path: &str, headers: Lines<'_>, body: &str| {
        server.publish(&receiver.url(path)).headers(headers).body(body).send()
    };
    let first = publish("/", &base, "body").await;
    assert_eq!(first.status, 200);

    let same: [Lines<'_>; 4] = [
        &base,
        &[base[2], base[1], base[0]],
        &[base[0], base[1], base[2], ("Upstash-Retries", "9"), ("Upstash-Label", "other")],
        &[base[0], base[1], base[2], ("X-Plain", "not forwarded")],
    ];
    for headers in same {
        let answer = publish("/", headers, "body").await;
        assert_eq!((answer.status, message_id(&answer)), (202, message_id(&first)), "{headers:?}");
    }
    let changed_value = [base[0], base[1], ("Upstash-Forward-X", "2")];
    let changed_type = [base[0], ("Content-Type", "a/c"), base[2]];
    let different: [(&str, Lines<'_>, &str); 6] = [
        ("/other", &base, "body"),
        ("/?q", &base, "body"),
        ("/", &base, "Body"),
        ("/", &base[..2], "body"),
        ("/", &changed_value, "body"),
        ("/", &changed_type, "body"),
    ];
    for (path, headers, body) in different {
        assert_eq!(publish(path, headers, body).await.status, 200, "{path} {headers:?} {body}");
    }
    // Without the flag, or with it off, nothing is compared.
    assert_eq!(publish("/", &base[1..], "body").await.status, 200);
    let off = [("Upstash-Content-Based-Deduplication", "False"), base[1], base[2]];
    assert_eq!(publish("/", &off, "body").await.status, 200);
    receiver.take(9).await;
    server.finish().await;
}

#[tokio::test]
async fn an_ended_message_still_counts_and_so_does_a_cancelled_one() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let publish = || server.publish(&receiver.url("/")).header("Upstash-Deduplication-Id", "x");
    let first = message_id(&publish().header("Upstash-Delay", "1m").expect(200).await);
    server.delete(&format!("/v2/messages/{first}")).expect(202).await;
    assert_eq!(message_id(&publish().expect(202).await), first);
    server.finish().await;
    assert_eq!(receiver.count(), 0);
}

#[tokio::test]
async fn the_same_id_of_another_tenant_is_another_id() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let publish = || server.publish(&receiver.url("/")).header("Upstash-Deduplication-Id", "shared");
    publish().expect(200).await;
    publish().token(TOKEN_B).expect(200).await;
    publish().token(TOKEN_B).expect(202).await;
    receiver.take(2).await;
    server.finish().await;
}

#[tokio::test]
async fn triggers_that_start_no_run_are_counted_as_duplicates_of_its_first_message() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let trigger = async || {
        let path = format!("/v2/trigger/{}", receiver.url("/wf"));
        let request = server.post(&path).header("Upstash-Deduplication-Id", "once").header("Upstash-Delay", "1h");
        request.body("{}").expect(200).await.json()
    };
    let first = trigger().await;
    assert!(first.get("deduplicated").is_none(), "{first}");
    for _ in 0..2 {
        let again = trigger().await;
        assert_eq!((&again["workflowRunId"], &again["deduplicated"]), (&first["workflowRunId"], &json!(true)));
    }
    let run = server.run_in(first["workflowRunId"].as_str().expect("an id"), "RUN_STARTED").await;
    let message = run["steps"][0]["steps"][0]["messageId"].as_str().unwrap_or_else(|| panic!("{run}"));
    let why = server.get(&format!("/v2/messages/{message}/why")).expect(200).await.json();
    assert_eq!(why["duplicates"]["count"], 2, "{why}");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_message_tells_how_many_publishes_were_answered_with_it() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let publish = || server.publish(&receiver.url("/")).header("Upstash-Deduplication-Id", "once");
    let id = message_id(&publish().expect(200).await);
    receiver.next().await;
    let told =
        || async { server.get(&format!("/v2/messages/{id}/why")).expect(200).await.json()["duplicates"].clone() };
    assert_eq!(told().await, json!(null), "there was none");
    server.advance(5_000).await;
    publish().expect(202).await;
    assert_eq!(told().await, json!({ "count": 1, "firstAt": START_MS + 5_000, "lastAt": START_MS + 5_000 }));
    server.advance(5_000).await;
    let item = json!({ "destination": receiver.url("/"), "headers": { "Upstash-Deduplication-Id": "once" } });
    let new = json!({ "destination": receiver.url("/new"), "headers": { "Upstash-Deduplication-Id": "new" } });
    let answer = server.post("/v2/batch").json(&json!([item, new, item])).expect(200).await.json();
    assert_eq!(told().await, json!({ "count": 3, "firstAt": START_MS + 5_000, "lastAt": START_MS + 10_000 }));
    let new = answer[1]["messageId"].as_str().expect("an id");
    let of_new = server.get(&format!("/v2/messages/{new}/why")).expect(200).await.json();
    assert!(of_new.get("duplicates").is_none(), "{of_new}");
    server.get(&format!("/v2/messages/{id}/why")).token(TOKEN_B).expect(404).await;
    server.finish().await;
}
