//! A new server on what the old one left: nothing that was acknowledged is lost.

use crate::support::jwt;
use crate::support::server::{CURRENT_KEY_B, NEXT_KEY, START_MS, TOKEN_B, message_id};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test]
async fn what_was_pending_is_delivered_by_the_next_server() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/retried", [Reply::status(500), Reply::status(200)]);
        let delayed = server.publish_with(&receiver.url("/delayed"), &[("Upstash-Delay", "1m")], "later").await;
        let far = server.publish_with(&receiver.url("/far"), &[("Upstash-Delay", "2h")], "much later").await;
        let retried =
            server.publish_with(&receiver.url("/retried"), &[("Upstash-Retry-Delay", "60000")], "again").await;
        receiver.next().await;
        server.reaches(&retried, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;

        let server = server.restart().await;
        assert_eq!(server.message(&delayed).await["notBefore"], START_MS + 60_000);
        server.advance(59_999).await;
        assert_eq!(receiver.count(), 1);
        server.advance(1).await;
        for delivery in receiver.take(2).await {
            let (id, retries, body) = match delivery.target.as_str() {
                "/delayed" => (&delayed, "0", "later"),
                _ => (&retried, "1", "again"),
            };
            assert_eq!(delivery.header("upstash-message-id"), Some(id.as_str()));
            assert_eq!((delivery.header("upstash-retried"), delivery.text().as_str()), (Some(retries), body));
        }
        server.reaches(&delayed, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        server.reaches(&retried, &["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"]).await;

        let server = server.restart().await;
        server.advance(7_200_000).await;
        server.reaches(&far, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        server.finish().await;
        assert_eq!(receiver.count(), 4);
    }
}

#[tokio::test]
async fn what_became_due_while_nobody_ran_is_delivered_at_once() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for n in 0..5 {
        server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1m")], &n.to_string()).await;
    }
    let server = server.restart_after(3_600_000).await;
    receiver.take(5).await;
    server.finish().await;
}

#[tokio::test]
async fn keys_dead_letters_logs_and_dedup_ids_survive() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500).with_body("why"), Reply::status(200)]);
    let dedup = [("Upstash-Deduplication-Id", "once"), ("Upstash-Retries", "0")];
    let failed = server.publish_with(&receiver.url("/fails"), &dedup, "body").await;
    let letter = server.dead_letter_of(&failed).await;
    let keys = server.post("/v2/keys/rotate").expect(200).await.json();
    let events = server.events("").await;

    let server = server.restart().await;
    assert_eq!(server.get("/v2/keys").expect(200).await.json(), keys);
    assert_eq!(server.events("").await, events);
    assert_eq!(server.dead_letters("").await, std::slice::from_ref(&letter));
    let again = server.publish(&receiver.url("/fails")).headers(&dedup).expect(202).await;
    assert_eq!(again.json(), json!({ "messageId": failed, "deduplicated": true }));
    let retry = format!("/v2/dlq/retry/{}", letter["dlqId"].as_str().expect("an id"));
    let replayed = message_id(&server.post(&retry).expect(201).await);
    let delivery = receiver.take(2).await.remove(1);
    assert_eq!((delivery.text().as_str(), delivery.header("upstash-message-id")), ("body", Some(replayed.as_str())));
    let token = delivery.header("upstash-signature").expect("it is signed");
    assert!(jwt::verify(token, NEXT_KEY).is_some(), "the rotated key signs");
    // The window is counted from the first publish, not from the restart.
    server.advance(600_000).await;
    assert_eq!(server.publish(&receiver.url("/")).headers(&dedup).expect(200).await.status, 200);
    server.finish().await;
}

#[tokio::test]
async fn an_attempt_that_never_ends_is_handed_back_within_the_grace_and_made_again() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, _gate) = Reply::status(200).held();
        receiver.script("/", [held, Reply::status(200)]);
        let id = server.publish_with(&receiver.url("/"), &[], "x").await;
        receiver.next().await;
        let stopping = Instant::now();
        let server = server.restart().await;
        let took = stopping.elapsed();
        assert!(took < Duration::from_secs(9), "{took:?}, and the default is ten seconds, with a grace of one second");
        let delivery = receiver.next().await;
        assert_eq!(delivery.header("upstash-message-id"), Some(id.as_str()));
        assert_eq!(delivery.header("upstash-retried"), Some("0"), "what was not finished does not count");
        server.reaches(&id, &["CREATED", "ACTIVE", "ACTIVE", "DELIVERED"]).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn an_attempt_that_ends_within_the_grace_is_not_made_again() {
    let mut setup = Setup::dev();
    setup.settings.shutdown_grace = Some("60s".to_owned());
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    receiver.script("/", [held]);
    let id = server.publish_with(&receiver.url("/"), &[], "x").await;
    receiver.next().await;
    let restarting = server.restart();
    let opening = async { gate.open() };
    let (server, ()) = tokio::join!(restarting, opening);
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    server.finish().await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn a_promised_cancel_holds_over_a_restart() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, _gate) = Reply::status(500).held();
        receiver.script("/", [held, Reply::status(200)]);
        let id = server.publish_with(&receiver.url("/"), &[], "x").await;
        receiver.next().await;
        server.delete(&format!("/v2/messages/{id}")).expect(202).await;
        let server = server.restart().await;
        server.reaches(&id, &["CREATED", "ACTIVE", "CANCEL_REQUESTED", "CANCELED"]).await;
        server.finish().await;
        assert_eq!(receiver.count(), 1);
    }
}

#[tokio::test]
async fn messages_of_a_tenant_that_is_no_longer_configured_are_still_delivered() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    server.publish(&receiver.url("/")).token(TOKEN_B).header("Upstash-Delay", "1m").body("b").expect(200).await;
    let server = server.restart_with(|settings| settings.tenants.truncate(1)).await;
    server.get("/v2/keys").token(TOKEN_B).expect(401).await;
    server.advance(60_000).await;
    let delivery = receiver.next().await;
    let token = delivery.header("upstash-signature").expect("it is signed");
    assert!(jwt::verify(token, CURRENT_KEY_B).is_some());
    server.finish().await;
}

#[tokio::test]
async fn a_stricter_policy_holds_for_messages_that_were_accepted_before() {
    let server = TestServer::with(Setup::serve()).await;
    let receiver = Receiver::start().await;
    let headers = [("Upstash-Delay", "1m"), ("Upstash-Retries", "0")];
    let id = server.publish_with(&receiver.url("/"), &headers, "").await;
    let server = server.restart_with(|settings| settings.egress_allow_cidrs = None).await;
    server.advance(60_000).await;
    let letter = server.dead_letter_of(&id).await;
    let error = letter["error"].as_str().expect("a failure has a text");
    assert!(error.starts_with("destination refused: the egress policy"), "{error}");
    let retry = format!("/v2/dlq/retry/{}", letter["dlqId"].as_str().expect("an id"));
    server.post(&retry).expect(400).await.error();
    assert_eq!(server.dead_letters("").await, [letter]);
    server.finish().await;
    assert_eq!(receiver.count(), 0);
}

#[tokio::test]
async fn an_older_server_that_lost_its_data_to_a_newer_one_accepts_nothing() {
    for backend in Backend::ALL {
        let older = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let id = older.publish_with(&receiver.url("/"), &[], "").await;
        older.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        receiver.next().await;
        let newer = older.start_another_on_the_same_data().await;
        assert_eq!(older.publish(&receiver.url("/")).expect(503).await.header("retry-after"), Some("1"));
        let unready = || async { (older.get("/ready").send().await.status == 503).then_some(()) };
        eventually("the older one is not ready any more", unready).await;
        older.get("/health").expect(200).await;
        newer.get("/ready").expect(200).await;
        newer.publish_with(&receiver.url("/"), &[], "").await;
        receiver.next().await;
        newer.finish().await;
        older.finish_failed().await;
        assert_eq!(receiver.count(), 2);
    }
}

#[tokio::test]
async fn ids_never_repeat_over_restarts() {
    let mut server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut ids = std::collections::HashSet::new();
    for _ in 0..5 {
        for _ in 0..3 {
            assert!(ids.insert(server.publish_with(&receiver.url("/"), &[], "").await));
        }
        receiver.take(3).await;
        server = server.restart().await;
    }
    server.finish().await;
}

#[tokio::test]
async fn a_server_in_production_delivers_to_allowed_networks_too() {
    let server = TestServer::with(Setup::serve()).await;
    let receiver = Receiver::start().await;
    let id = server.publish_with(&receiver.url("/"), &[], "x").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let own = format!("http://{}/v2/publish/x", server.address);
    let error = server.publish(&own).expect(400).await.error();
    assert!(error.ends_with("does not allow this destination"), "{error}");
    server.finish().await;
}
