//! Messages at the real server arrive as they were published.

use crate::receiver::Reply;
use crate::server::{SIGNING_KEYS, TOKEN};
use crate::{World, eventually};
use posthaste_kit::Receiver as Verifier;
use posthaste_kit::call::Class;
use posthaste_kit::propagation::Propagator;
use posthaste_kit::publish::{
    DeadLetterFilter, Dedup, DedupId, Endpoint, Message, PublishPolicy, QueueClient, QueueService, Route,
};
use posthaste_kit::receiver::Reason;
use posthaste_kit::retry::RetryPolicy;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_message_arrives_as_it_was_published_with_the_policy() {
    let World { server, client, receiver } = World::start().await;
    let client = client.propagator(Propagator::new(|headers| {
        headers.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap());
    }));
    // A path and a query with everything that a careless client would change.
    let url = receiver.url("/job/a%20b//c%2Fd/?x=1&y=%2F&x=2");
    let message = Message::json(&url, "billing:u_7:invoice_9:charge:v1", &json!({ "cents": 5 })).unwrap();
    let message = message.header("x-tenant", "t_1").request_id("req_1").label("billing");
    let published = client.publish(&message).await.unwrap();
    assert_eq!((published.route, published.is_duplicate()), (Route::Queue, false));
    let seen = receiver.after(1).await.remove(0);
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/job/a%20b//c%2Fd/?x=1&y=%2F&x=2"));
    assert_eq!(seen.body, br#"{"cents":5}"#);
    assert_eq!(seen.header("upstash-message-id"), published.message_id());
    assert_eq!((seen.header("x-tenant"), seen.header("x-request-id")), (Some("t_1"), Some("req_1")));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!((seen.header("x-max-retries"), seen.header("x-deduplication-id")), (Some("5"), message.dedup_id()));
    assert!(seen.header("traceparent").unwrap().starts_with("00-0af7651916cd43dd8448eb211c80319c-"));
    let verifier = Verifier::for_development(SIGNING_KEYS[0], SIGNING_KEYS[1]).unwrap().at_url(&url);
    let verified = verifier.verify(&seen.headers, &url.parse().unwrap(), &seen.body).unwrap();
    let id = published.message_id().unwrap();
    assert_eq!(verified.message_id.as_deref(), Some(id));
    let mut renamed = seen.headers.clone();
    renamed.insert("upstash-message-id", "msg_of_another".parse().unwrap());
    let refused = verifier.verify(&renamed, &url.parse().unwrap(), &seen.body).unwrap_err();
    assert_eq!(refused.reason(), Reason::MessageId);

    let stored = client.message(id).await.unwrap().unwrap();
    assert_eq!((stored.max_retries, stored.retry_delay_expression.as_deref()), (5, Some("10000 * pow(2, retried)")));
    assert_eq!((stored.url.as_str(), stored.labels.as_slice()), (url.as_str(), &["billing".to_owned()][..]));
    // The same message again does not create a second one.
    let again = client.publish(&message).await.unwrap();
    assert!(again.is_duplicate() && again.message_id() == Some(id));
    drop(server);
}

#[tokio::test]
async fn the_policy_and_duplicates_can_be_chosen() {
    let World { server: _server, client, receiver } = World::start().await;
    let client =
        client.policy(PublishPolicy { retries: 1, retry_delay: "5".into(), timeout: Some(Duration::from_secs(9)) });
    receiver.script("/twice", [Reply::status(500), Reply::status(200)]);
    let message = Message::bytes(receiver.url("/twice"), "k", vec![0, 159, 146, 150]).dedup(Dedup::Off);
    client.publish(&message).await.unwrap();
    let seen = receiver.after(2).await;
    assert_eq!(seen[1].header("upstash-retried"), Some("1"));
    assert!(seen.iter().all(|request| request.body == [0, 159, 146, 150]));
    assert!(!client.publish(&message).await.unwrap().is_duplicate());
    receiver.after(3).await;
    let by_content = message.dedup(Dedup::Content);
    assert!(!client.publish(&by_content).await.unwrap().is_duplicate());
    assert!(client.publish(&by_content).await.unwrap().is_duplicate());
    let event = Message::bytes(receiver.url("/"), "k", "").dedup(Dedup::Id(DedupId::verbatim("evt_1")));
    assert!(!client.publish(&event).await.unwrap().is_duplicate());
    assert!(client.publish(&event).await.unwrap().is_duplicate());
}

#[tokio::test]
async fn a_queue_delivers_in_order() {
    let World { server: _server, client, receiver } = World::start().await;
    for number in 0..20 {
        let message = Message::bytes(receiver.url("/job"), number, number.to_string()).in_queue("orders");
        client.publish(&message).await.unwrap();
    }
    let bodies: Vec<_> =
        receiver.after(20).await.into_iter().map(|seen| String::from_utf8(seen.body).unwrap()).collect();
    assert_eq!(bodies, (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(client.queues().get("orders").await.unwrap().unwrap().parallelism, 1);
}

#[tokio::test]
async fn a_batch_is_many_messages_with_the_policy_each() {
    let World { server: _server, client, receiver } = World::start().await;
    client
        .url_groups()
        .add("both", &[Endpoint::new(receiver.url("/a")), Endpoint::new(receiver.url("/b"))])
        .await
        .unwrap();
    let batch = [
        Message::json(receiver.url("/one"), "1", &json!({ "n": 1 })).unwrap().header("x-n", "1").header("x-n", "2"),
        Message::bytes("both", "2", "two"),
        Message::bytes(receiver.url("/queued"), "3", "three").in_queue("q"),
        Message::bytes(receiver.url("/later"), "4", "four").delay(Duration::from_secs(3_600)),
    ];
    let results = client.publish_all(&batch).await.unwrap();
    let ids: Vec<usize> = results.iter().map(|result| result.as_ref().unwrap().receipts.len()).collect();
    assert_eq!(ids, [1, 2, 1, 1]);
    let arrived = receiver.after(4).await;
    let both = arrived.iter().flat_map(|seen| seen.headers.get_all("x-n")).collect::<Vec<_>>();
    assert_eq!(both, ["1", "2"]);
    let mut targets: Vec<_> = arrived.into_iter().map(|seen| seen.target).collect();
    targets.sort();
    assert_eq!(targets, ["/a", "/b", "/one", "/queued"]);
    let later = results[3].as_ref().unwrap().message_id().unwrap();
    let stored = client.message(later).await.unwrap().unwrap();
    assert_eq!((stored.max_retries, stored.body.as_deref()), (5, Some("four")));
    // Repeating the whole batch creates nothing new.
    let again = client.publish_all(&batch).await.unwrap();
    assert!(again.iter().all(|result| result.as_ref().unwrap().is_duplicate()));
    assert!(client.cancel(later).await.unwrap());
    assert!(!client.cancel(later).await.unwrap());
    assert!(client.publish_all(&[]).await.unwrap().is_empty());
    let binary = [Message::bytes(receiver.url("/"), "5", vec![0xff])];
    assert_eq!(client.publish_all(&binary).await.unwrap_err().class(), Class::Invalid);
}

#[tokio::test]
async fn rejections_give_the_reason_and_are_not_retried() {
    let World { server, client, receiver } = World::start().await;
    let error = client.publish(&Message::bytes("nobody", "k", "")).await.unwrap_err();
    assert_eq!((error.status(), error.attempts(), error.is_outage()), (Some(404), 1, false));
    assert!(error.to_string().contains("nobody"), "{error}");
    let stranger = QueueClient::new(server.url(), "wrong-token-123").unwrap();
    let error = stranger.publish(&Message::bytes(receiver.url("/"), "k", "")).await.unwrap_err();
    assert_eq!((error.status(), error.class()), (Some(401), Class::Refused));
    assert!(!format!("{error:?} {}", error.chain()).contains("wrong-token-123"));
    for bad in ["https://example.com/a/../b", "https://example.com/?upstash-delay=1s", "../queues"] {
        assert_eq!(client.publish(&Message::bytes(bad, "k", "")).await.unwrap_err().class(), Class::Invalid, "{bad}");
    }
    assert!(receiver.seen().is_empty());
}

/// A scripted queue, to test the client if the real one misbehaves.
#[tokio::test]
async fn a_publish_with_an_unknown_outcome_is_repeated_only_with_a_dedup_id() {
    let queue = crate::receiver::Receiver::start().await;
    let quick =
        RetryPolicy { base: Duration::from_millis(1), timeout: Duration::from_secs(10), ..RetryPolicy::default() };
    let client = QueueClient::new(queue.url(""), TOKEN).unwrap().retry(quick);
    let path = "/v2/publish/https://example.com/";
    let message = Message::bytes("https://example.com/", "key", "");
    queue.script(path, [Reply::Close, Reply::status(502), Reply::json(r#"{"messageId":"msg_1"}"#)]);
    assert_eq!(client.publish(&message).await.unwrap().message_id(), Some("msg_1"));
    let seen = queue.seen();
    assert_eq!(seen.len(), 3);
    let id = message.dedup_id();
    assert!(id.is_some() && seen.iter().all(|request| request.header("upstash-deduplication-id") == id));

    queue.script(path, [Reply::Close, Reply::json(r#"{"messageId":"msg_1"}"#)]);
    let error = client.publish(&message.clone().dedup(Dedup::Off)).await.unwrap_err();
    assert_eq!((error.attempts(), error.is_outage()), (1, true));
    for malformed in ["", "null", "7", "{}", "[]", "[{}]", "<html>", r#"{"messageId":7}"#] {
        queue.script(path, [Reply::json(malformed)]);
        let error = client.publish(&message).await.unwrap_err();
        assert_eq!(
            (error.class(), error.is_outage(), error.is_untouched()),
            (Class::Invalid, true, false),
            "{malformed}"
        );
    }
    queue.script("/v2/batch", [Reply::json(r#"[{"messageId":"msg_1"},[]]"#)]);
    let results = client.publish_all(&[message.clone(), message.clone()]).await.unwrap();
    assert!(results[0].is_ok(), "{results:?}");
    assert!(results[1].as_ref().is_err_and(|error| error.is_outage() && !error.is_untouched()), "{results:?}");
    // A 404 of a proxy for the queue is not a 404 of the queue for a message.
    let refusal = |body: &str| Reply::Answer { status: 404, headers: Vec::new(), body: body.into() };
    for (body, is_outage) in [("<html>no such host", true), (r#"{"error":"topic x not found"}"#, false)] {
        queue.script(path, [refusal(body)]);
        let error = client.publish(&message).await.unwrap_err();
        assert_eq!((error.status(), error.is_outage()), (Some(404), is_outage), "{error}");
        queue.script("/v2/messages/msg_1", [refusal(body)]);
        assert_eq!(client.message("msg_1").await.is_err(), is_outage, "{body}");
        assert_eq!(client.cancel("msg_1").await.is_err(), is_outage, "{body}");
    }
}

#[tokio::test]
async fn requests_that_must_not_be_repeated_are_sent_once() {
    let queue = crate::receiver::Receiver::start().await;
    let quick =
        RetryPolicy { base: Duration::from_millis(1), timeout: Duration::from_millis(200), ..RetryPolicy::default() };
    let client = QueueClient::new(queue.url(""), TOKEN).unwrap().retry(quick);
    let message = Message::bytes("https://example.com/", "key", "").dedup(Dedup::Off);
    let (dead, all) = (client.dead_letters(), DeadLetterFilter::default());
    for unknown in [Reply::Hang, Reply::Close, Reply::status(503)] {
        for path in ["/v2/publish/https://example.com/", "/v2/batch", "/v2/dlq/retry/1-0", "/v2/dlq/retry", "/v2/dlq"] {
            queue.script(path, [unknown.clone()]);
        }
        let errors = [
            client.publish(&message).await.unwrap_err(),
            client.publish_all(std::slice::from_ref(&message)).await.unwrap_err(),
            dead.retry("1-0").await.unwrap_err(),
            dead.retry_page(&all).await.unwrap_err(),
            dead.delete_page(&all).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.is_outage() && error.attempts() == 1), "{errors:?}");
        // With a deduplication id, or without an effect, it is retried as often as allowed.
        let again = client.publish(&message.clone().dedup(Dedup::Content)).await.unwrap_err();
        let list = dead.list(&all).await.unwrap_err();
        assert_eq!((again.attempts(), list.attempts()), (3, 3));
    }
}

#[tokio::test]
async fn dead_letters_can_be_read_and_retried() {
    let World { server: _server, client, receiver } = World::start().await;
    let refused = Reply::status(489).with_header("upstash-nonretryable-error", "true");
    receiver.script("/job", [refused, Reply::status(200)]);
    let message = Message::bytes(receiver.url("/job"), "k", "body").label("billing");
    let published = client.publish(&message).await.unwrap();
    let dead = client.dead_letters();
    let filter = DeadLetterFilter { label: Some("billing".into()), ..Default::default() };
    let letter = eventually("the dead letter", || async { dead.list(&filter).await.unwrap().letters.pop() }).await;
    assert_eq!(Some(letter.message.message_id.as_str()), published.message_id());
    assert_eq!((letter.response_status, letter.message.body.as_deref()), (489, Some("body")));
    assert_eq!(dead.get(&letter.dlq_id).await.unwrap().as_ref(), Some(&letter));
    let again = dead.retry(&letter.dlq_id).await.unwrap().unwrap();
    assert_ne!(again.message_id(), published.message_id());
    assert_eq!(receiver.after(2).await[1].body, b"body");
    assert!(dead.retry(&letter.dlq_id).await.unwrap().is_none());
    assert!(dead.get(&letter.dlq_id).await.unwrap().is_none());
    assert!(!dead.delete(&letter.dlq_id).await.unwrap());
    let other = DeadLetterFilter { label: Some("a & b=c".into()), count: Some(1), ..Default::default() };
    assert!(dead.list(&other).await.unwrap().letters.is_empty());
}

#[tokio::test]
async fn dead_letters_are_handled_by_the_page() {
    let World { server: _server, client, receiver } = World::start().await;
    let refused = Reply::status(489).with_header("upstash-nonretryable-error", "true");
    receiver.script("/job", [refused]);
    for number in 0..5 {
        let label = if number == 0 { "keep" } else { "again" };
        client.publish(&Message::bytes(receiver.url("/job"), number, "").label(label)).await.unwrap();
    }
    let dead = client.dead_letters();
    let all = DeadLetterFilter::default();
    let are_five = || async { (dead.list(&all).await.unwrap().letters.len() == 5).then_some(()) };
    eventually("five dead letters", are_five).await;
    let two = DeadLetterFilter { count: Some(2), ..DeadLetterFilter::default() };
    let first = dead.list(&two).await.unwrap();
    let second = dead.list(&DeadLetterFilter { cursor: first.cursor, ..two.clone() }).await.unwrap();
    let third = dead.list(&DeadLetterFilter { cursor: second.cursor, ..two.clone() }).await.unwrap();
    assert_eq!((first.letters.len(), second.letters.len(), third.letters.len(), third.cursor), (2, 2, 1, None));
    receiver.script("/job", [Reply::status(200)]);
    let again = DeadLetterFilter { label: Some("again".into()), ..two };
    assert_eq!(dead.retry_page(&again).await.unwrap().len(), 2);
    receiver.after(7).await;
    assert_eq!(dead.delete_page(&again).await.unwrap(), 2);
    assert_eq!((dead.retry_page(&again).await.unwrap().len(), dead.delete_page(&again).await.unwrap()), (0, 0));
    assert_eq!(dead.list(&all).await.unwrap().letters[0].message.labels, ["keep"]);
}
