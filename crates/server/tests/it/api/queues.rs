//! `/v2/queues` and `/v2/enqueue`: what they answer, and in which order a queue delivers.

use crate::support::server::{START_MS, TOKEN_B, message_id};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};

/// Makes a queue or changes it.
async fn put(server: &TestServer, name: &str, parallelism: u32, paused: bool) {
    let wanted = json!({ "queueName": name, "parallelism": parallelism, "paused": paused });
    server.post("/v2/queues").json(&wanted).expect(200).await;
}

/// The paths of the next so many requests.
async fn targets(receiver: &Receiver, count: usize) -> Vec<String> {
    receiver.take(count).await.into_iter().map(|delivery| delivery.target).collect()
}

#[tokio::test]
async fn a_queue_is_made_changed_and_deleted() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        assert_eq!(server.get("/v2/queues").expect(200).await.json(), json!([]));
        server.get("/v2/queues/orders").expect(404).await.error();
        put(&server, "orders", 3, false).await;
        server.post("/v2/queues").json(&json!({ "queueName": "-other_.", "paused": null })).expect(200).await;
        server.advance(5_000).await;
        // What is not named has its default, also in a change.
        server
            .post("/v2/queues/")
            .json(&json!({ "queueName": "orders", "parallelism": null, "paused": true }))
            .expect(200)
            .await;
        let orders = json!({
            "name": "orders",
            "parallelism": 1,
            "paused": true,
            "lag": 0,
            "createdAt": START_MS,
            "updatedAt": START_MS + 5_000,
        });
        let server = server.restart().await;
        assert_eq!(server.queue("orders").await, orders);
        let other = server.queue("-other_.").await;
        for path in ["/v2/queues", "/v2/queues/"] {
            assert_eq!(server.get(path).expect(200).await.json(), json!([other, orders]), "{path}");
        }

        for name in ["orders", "orders", "-other_."] {
            assert_eq!(
                server.delete(&format!("/v2/queues/{name}")).expect(200).await.json(),
                json!({ "cancelled": 0 })
            );
            server.get(&format!("/v2/queues/{name}")).expect(404).await.error();
        }
        assert_eq!(server.get("/v2/queues").expect(200).await.json(), json!([]));
        let server = server.restart().await;
        assert_eq!(server.get("/v2/queues").expect(200).await.json(), json!([]));
        server.finish().await;
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let server = TestServer::start().await;
    let long = "q".repeat(257);
    let bodies = [
        (json!({ "queueName": "q", "parallelism": 1_001 }), 412),
        (json!({ "queueName": "q", "parallelism": u64::MAX }), 412),
        (json!({ "queueName": "q", "parallelism": 0 }), 400),
        (json!({ "queueName": "q", "parallelism": true }), 400),
        (json!({ "queueName": "q", "paused": "false" }), 400),
        (json!({ "queueName": "q", "paused": 0 }), 400),
        (json!({ "queueName": "", "parallelism": 1 }), 400),
        (json!({ "queueName": "a b" }), 400),
        (json!({ "queueName": long }), 400),
        (json!([]), 400),
        (json!(["q", 2, true]), 400),
        (json!("q"), 400),
    ];
    for (body, status) in bodies {
        let error = server.post("/v2/queues").json(&body).expect(status).await.error();
        let quota = "quota maxParallelism exceeded, current limit: 1000";
        assert_eq!(error == quota, status == 412, "{body}: {error}");
    }
    server.post("/v2/queues").expect(400).await.error();
    let paths = [
        ("POST", "/v2/queues/none/pause", 404),
        ("POST", "/v2/queues/none/resume", 404),
        ("POST", "/v2/queues/a%20b/pause", 400),
        ("DELETE", "/v2/queues/a%2Fb", 400),
        ("DELETE", "/v2/queues/", 400),
        ("PUT", "/v2/queues", 405),
        ("POST", "/v2/queues/q", 405),
        ("POST", "/v2/enqueue", 400),
        ("POST", "/v2/enqueue/", 400),
        ("POST", "/v2/enqueue/q", 400),
        ("POST", "/v2/enqueue/q/", 400),
        ("POST", "/v2/enqueue//https://example.com/", 400),
        ("POST", "/v2/enqueue/a%20b/https://example.com/", 400),
        ("POST", "/v2/enqueue/https://example.com/", 400),
        ("POST", "/v2/enqueue/..%2F/https://example.com/", 400),
        ("POST", "/v2/enqueue/%FF/https://example.com/", 400),
        ("POST", "/v2/enqueue/q/nowhere", 404),
        ("POST", "/v2/enqueue/q/http://10.0.0.1/", 400),
    ];
    for (method, path, status) in paths {
        server.request(method, path).expect(status).await.error();
    }
    server.publish("https://example.com/").header("Upstash-Queue-Name", "a b").expect(400).await.error();
    let batch = json!([{ "destination": "https://example.com/", "queue": "a/b" }]);
    assert!(server.post("/v2/batch").json(&batch).expect(400).await.error().starts_with("item 0: "));
    let late = [("Upstash-Callback", "https://example.com/"), ("Upstash-Callback-Delay", "1s")];
    let error = server.enqueue("q", "https://example.com/").headers(&late).expect(400).await.error();
    assert!(error.starts_with("Upstash-Callback-Delay: "), "{error}");
    assert_eq!(server.get("/v2/queues").expect(200).await.json(), json!([]));
    server.finish().await;
}

#[tokio::test]
async fn a_tenant_has_as_many_queues_as_the_operator_allows() {
    let mut setup = Setup::dev();
    setup.settings.max_queues = Some(2);
    setup.settings.max_queue_parallelism = Some(5);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    put(&server, "a", 5, true).await;
    server.enqueue_with("b", &receiver.url("/"), &[]).await;
    let quota = "quota maxQueues exceeded, current limit: 2";
    let third = json!({ "queueName": "c" });
    assert_eq!(server.post("/v2/queues").json(&third).expect(412).await.error(), quota);
    assert_eq!(server.enqueue("c", &receiver.url("/")).expect(412).await.error(), quota);
    let batch = json!([{ "destination": receiver.url("/") }, { "destination": receiver.url("/"), "queue": "c" }]);
    assert_eq!(server.post("/v2/batch").json(&batch).expect(412).await.error(), quota);
    let parallel = json!({ "queueName": "a", "parallelism": 6 });
    let error = server.post("/v2/queues").json(&parallel).expect(412).await.error();
    assert_eq!(error, "quota maxParallelism exceeded, current limit: 5");
    // What there is can be changed, another tenant has its own, and a deleted queue makes room.
    put(&server, "a", 4, false).await;
    server.post("/v2/queues").token(TOKEN_B).json(&third).expect(200).await;
    receiver.next().await;
    server.delete("/v2/queues/b").expect(200).await;
    put(&server, "c", 1, false).await;
    server.finish().await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn every_way_into_a_queue_keeps_the_order() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, gate) = Reply::status(200).held();
        receiver.script("/first", [held]);
        let group = json!({ "endpoints": [{ "url": receiver.url("/g1") }, { "url": receiver.url("/g2") }] });
        server.post("/v2/topics/group/endpoints").json(&group).expect(200).await;

        let first = server.enqueue_with("q", &receiver.url("/first?a=%FF"), &[]).await;
        // The path wins over the header.
        server.enqueue_with("q", &receiver.url("/second"), &[("Upstash-Queue-Name", "other")]).await;
        server.publish_with(&receiver.url("/third"), &[("Upstash-Queue-Name", "q")], "").await;
        let answer = server.enqueue("%71", "group").expect(200).await.redacted();
        let element = |path: &str| json!({ "messageId": "<message>", "url": receiver.url(path) });
        assert_eq!(answer, json!([element("/g1"), element("/g2")]));
        let items = json!([
            { "destination": receiver.url("/b1"), "queue": "q" },
            { "destination": receiver.url("/elsewhere"), "queue": null },
            { "destination": "group", "queue": "q", "headers": { "upstash-queue-name": "other" } },
            { "destination": receiver.url("/b2"), "headers": { "Upstash-Queue-Name": "q" } },
        ]);
        let answer = server.post("/v2/batch").json(&items).expect(200).await.redacted();
        let single = json!({ "messageId": "<message>" });
        assert_eq!(answer, json!([single, single, [element("/g1"), element("/g2")], single]));

        let mut started = targets(&receiver, 2).await;
        started.sort();
        assert_eq!(started, ["/elsewhere", "/first?a=%FF"]);
        server.settle().await;
        assert_eq!(receiver.count(), 2, "the others wait for the first");
        assert_eq!(server.queue("q").await["lag"], 9);
        assert_eq!(server.message(&first).await["queueName"], "q");
        gate.open();
        let expected = ["/second", "/third", "/g1", "/g2", "/b1", "/g1", "/g2", "/b2"];
        assert_eq!(targets(&receiver, 8).await, expected);
        server.finish().await;
    }
}

#[tokio::test]
async fn a_message_that_waits_for_its_retry_holds_up_those_behind_it() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/head", [Reply::status(500), Reply::status(200)]);
        receiver.script("/fails", [Reply::status(500)]);
        let head = server.enqueue_with("q", &receiver.url("/head"), &[("Upstash-Retry-Delay", "60000")]).await;
        let fails = server.enqueue_with("q", &receiver.url("/fails"), &[("Upstash-Retries", "0")]).await;
        server.enqueue_with("q", &receiver.url("/last"), &[]).await;
        server.reaches(&head, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        let server = server.restart().await;
        server.advance(59_999).await;
        assert_eq!(receiver.count(), 1);
        assert_eq!(server.queue("q").await["lag"], 3);
        server.advance(1).await;
        // A message that has failed for good holds up nobody.
        assert_eq!(targets(&receiver, 4).await, ["/head", "/head", "/fails", "/last"]);
        assert_eq!(server.dead_letter_of(&fails).await["queueName"], "q");
        server.finish().await;
    }
}

#[tokio::test]
async fn as_many_are_under_way_as_the_queue_allows() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut gates = Vec::new();
    put(&server, "q", 2, false).await;
    for n in 0..6 {
        let (held, gate) = Reply::status(200).held();
        receiver.script(&format!("/{n}"), [held]);
        gates.push(gate);
        server.enqueue_with("q", &receiver.url(&format!("/{n}")), &[]).await;
    }
    let mut started = targets(&receiver, 2).await;
    started.sort();
    assert_eq!(started, ["/0", "/1"]);
    server.settle().await;
    assert_eq!(receiver.count(), 2);
    // Any of them makes room for the next.
    gates[1].open();
    assert_eq!(targets(&receiver, 1).await, ["/2"]);
    put(&server, "q", 4, false).await;
    let mut started = targets(&receiver, 2).await;
    started.sort();
    assert_eq!(started, ["/3", "/4"]);
    // Fewer from now on: what is under way goes on.
    put(&server, "q", 1, false).await;
    for gate in &gates[..4] {
        gate.open();
    }
    let lag = || async { (server.queue("q").await["lag"] == 2).then_some(()) };
    eventually("four have ended", lag).await;
    server.settle().await;
    assert_eq!(receiver.count(), 5);
    gates[4].open();
    assert_eq!(targets(&receiver, 1).await, ["/5"]);
    gates[5].open();
    server.finish().await;
}

#[tokio::test]
async fn a_paused_queue_takes_messages_and_starts_none_over_restarts_too() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, gate) = Reply::status(200).held();
        receiver.script("/under-way", [held]);
        let under_way = server.enqueue_with("q", &receiver.url("/under-way"), &[]).await;
        receiver.next().await;
        for _ in 0..2 {
            server.post("/v2/queues/q/pause").expect(200).await;
        }
        gate.open();
        server.reaches(&under_way, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        server.enqueue_with("q", &receiver.url("/1"), &[]).await;
        server.enqueue_with("q", &receiver.url("/2"), &[]).await;
        let server = server.restart().await;
        server.enqueue_with("q", &receiver.url("/3"), &[]).await;
        server.advance(3_600_000).await;
        assert_eq!(receiver.count(), 1);
        let queue = server.queue("q").await;
        assert_eq!((&queue["paused"], &queue["lag"]), (&json!(true), &json!(3)));
        for _ in 0..2 {
            server.post("/v2/queues/q/resume/").expect(200).await;
        }
        assert_eq!(targets(&receiver, 3).await, ["/1", "/2", "/3"]);
        assert_eq!(server.queue("q").await["paused"], false);
        server.finish().await;
    }
}

#[tokio::test]
async fn a_long_queue_keeps_its_order_over_a_restart() {
    const COUNT: usize = 1_500;
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        put(&server, "q", 1, true).await;
        let items = |from: usize| -> Value {
            let item = |n: usize| json!({ "destination": receiver.url(&format!("/{n}")), "queue": "q" });
            (from..from + COUNT / 2).map(item).collect()
        };
        server.post("/v2/batch").json(&items(0)).expect(200).await;
        server.advance(1_000).await;
        server.post("/v2/batch").json(&items(COUNT / 2)).expect(200).await;
        let server = server.restart().await;
        assert_eq!(server.queue("q").await["lag"], COUNT);
        server.post("/v2/queues/q/resume").expect(200).await;
        let expected: Vec<String> = (0..COUNT).map(|n| format!("/{n}")).collect();
        assert_eq!(targets(&receiver, COUNT).await, expected);
        server.finish().await;
    }
}

#[tokio::test]
async fn a_paused_queue_does_not_retry_either() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500), Reply::status(200)]);
    let id = server.enqueue_with("q", &receiver.url("/"), &[("Upstash-Retry-Delay", "60000")]).await;
    server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
    server.post("/v2/queues/q/pause").expect(200).await;
    server.advance(3_600_000).await;
    let server = server.restart().await;
    server.settle().await;
    assert_eq!(receiver.count(), 1);
    server.post("/v2/queues/q/resume").expect(200).await;
    receiver.take(2).await;
    server.finish().await;
}

#[tokio::test]
async fn a_duplicate_takes_no_place() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    put(&server, "q", 1, true).await;
    let dedup = [("Upstash-Deduplication-Id", "once")];
    let first = server.enqueue_with("q", &receiver.url("/first"), &dedup).await;
    server.enqueue_with("q", &receiver.url("/second"), &[]).await;
    let again = server.enqueue("q", &receiver.url("/first")).headers(&dedup).expect(202).await;
    assert_eq!(again.json(), json!({ "messageId": first, "deduplicated": true }));
    assert_eq!(server.queue("q").await["lag"], 2);
    server.post("/v2/queues/q/resume").expect(200).await;
    assert_eq!(targets(&receiver, 2).await, ["/first", "/second"]);
    server.finish().await;
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn a_delayed_message_joins_the_queue_when_its_delay_is_over() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    receiver.script("/now", [held]);
    server.enqueue_with("q", &receiver.url("/minute"), &[("Upstash-Delay", "60s")]).await;
    server.enqueue_with("q", &receiver.url("/half"), &[("Upstash-Delay", "30s")]).await;
    server.enqueue_with("q", &receiver.url("/now"), &[]).await;
    assert_eq!(targets(&receiver, 1).await, ["/now"]);
    server.advance(45_000).await;
    server.enqueue_with("q", &receiver.url("/later"), &[]).await;
    server.advance(15_000).await;
    assert_eq!(receiver.count(), 1);
    gate.open();
    assert_eq!(targets(&receiver, 3).await, ["/half", "/later", "/minute"]);
    server.finish().await;
}

#[tokio::test]
async fn a_cancelled_message_makes_room() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/head", [Reply::status(500)]);
        let head = server.enqueue_with("q", &receiver.url("/head"), &[("Upstash-Retry-Delay", "60000")]).await;
        let second = server.enqueue_with("q", &receiver.url("/second"), &[]).await;
        server.enqueue_with("q", &receiver.url("/third"), &[]).await;
        server.reaches(&head, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        server.delete(&format!("/v2/messages/{second}")).expect(202).await;
        assert_eq!(receiver.count(), 1);
        server.delete(&format!("/v2/messages/{head}")).expect(202).await;
        assert_eq!(targets(&receiver, 2).await, ["/head", "/third"]);
        server.finish().await;
        assert_eq!(receiver.count(), 2);
    }
}

#[tokio::test]
async fn a_cancelled_attempt_keeps_its_place_until_it_ends() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(500).held();
    receiver.script("/head", [held]);
    let head = server.enqueue_with("q", &receiver.url("/head"), &[]).await;
    let second = server.enqueue_with("q", &receiver.url("/second"), &[]).await;
    server.enqueue_with("q", &receiver.url("/third"), &[]).await;
    receiver.next().await;
    for (path, cancelled) in [(format!("messageIds={head},{second}"), 2), ("label=none".to_owned(), 0)] {
        let answer = server.delete(&format!("/v2/messages?{path}")).expect(202).await.json();
        assert_eq!(answer, json!({ "cancelled": cancelled }));
    }
    server.settle().await;
    assert_eq!(receiver.count(), 1);
    gate.open();
    assert_eq!(receiver.next().await.target, "/third");
    server.reaches(&head, &["CREATED", "ACTIVE", "CANCEL_REQUESTED", "ERROR", "CANCELED"]).await;
    server.finish().await;
}

#[tokio::test]
async fn deleting_a_queue_cancels_what_it_holds() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, gate) = Reply::status(500).held();
        receiver.script("/under-way", [held]);
        put(&server, "q", 2, false).await;
        let under_way = server.enqueue_with("q", &receiver.url("/under-way"), &[]).await;
        receiver.next().await;
        put(&server, "q", 1, true).await;
        let waiting = server.enqueue_with("q", &receiver.url("/waiting"), &[]).await;
        let delayed = server.enqueue_with("q", &receiver.url("/delayed"), &[("Upstash-Delay", "1h")]).await;
        let other = server.enqueue_with("other", &receiver.url("/other"), &[("Upstash-Delay", "1h")]).await;
        assert_eq!(server.delete("/v2/queues/q").expect(200).await.json(), json!({ "cancelled": 3 }));
        for id in [&waiting, &delayed] {
            server.reaches(id, &["CREATED", "CANCEL_REQUESTED", "CANCELED"]).await;
        }
        let names = |queues: &Value| -> Vec<String> {
            let queues = queues.as_array().expect("a list").iter();
            queues.map(|queue| queue["name"].as_str().expect("a name").to_owned()).collect()
        };
        assert_eq!(names(&server.get("/v2/queues").expect(200).await.json()), ["other"]);
        gate.open();
        server.reaches(&under_way, &["CREATED", "ACTIVE", "CANCEL_REQUESTED", "ERROR", "CANCELED"]).await;

        // The next message makes the queue anew, neither paused nor parallel.
        server.enqueue_with("q", &receiver.url("/fresh"), &[]).await;
        assert_eq!(receiver.next().await.target, "/fresh");
        let fresh = server.queue("q").await;
        assert_eq!((&fresh["paused"], &fresh["parallelism"]), (&json!(false), &json!(1)));
        assert_eq!(server.states_of(&other).await, ["CREATED"]);
        assert_eq!(server.delete("/v2/queues/other").expect(200).await.json(), json!({ "cancelled": 1 }));
        server.finish().await;
    }
}

#[tokio::test]
async fn a_deleted_queue_is_not_shown_while_its_last_callback_waits() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/told", [Reply::status(500), Reply::status(200)]);
        let told = receiver.url("/told");
        let headers = [("Upstash-Callback", told.as_str()), ("Upstash-Callback-Retry-Delay", "60000")];
        put(&server, "q", 1, false).await;
        server.enqueue_with("q", &receiver.url("/first"), &headers).await;
        let waiting = server.enqueue_with("q", &receiver.url("/waiting"), &[]).await;
        let callback = receiver.take(2).await.remove(1).header("upstash-message-id").expect("an id").to_owned();
        server.reaches(&callback, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        assert_eq!(server.delete("/v2/queues/q").expect(200).await.json(), json!({ "cancelled": 1 }));
        server.reaches(&waiting, &["CREATED", "CANCEL_REQUESTED", "CANCELED"]).await;
        let server = server.restart().await;
        assert_eq!(server.get("/v2/queues").expect(200).await.json(), json!([]));
        server.get("/v2/queues/q").expect(404).await.error();
        server.post("/v2/queues/q/pause").expect(404).await.error();
        server.advance(60_000).await;
        assert_eq!(receiver.next().await.target, "/told");
        server.finish().await;
        assert_eq!(receiver.count(), 3);
    }
}

#[tokio::test]
async fn messages_are_found_by_their_queue() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500)]);
        for queue in ["a", "b"] {
            let failed = server.enqueue_with(queue, &receiver.url("/fails"), &[("Upstash-Retries", "0")]).await;
            server.dead_letter_of(&failed).await;
            for _ in 0..2 {
                server.enqueue_with(queue, &receiver.url("/"), &[("Upstash-Delay", "1h")]).await;
            }
        }
        server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "").await;
        for (query, count) in [("queueName=a", 1), ("queueName=a,b", 2), ("queueName=c", 0)] {
            assert_eq!(server.dead_letters(query).await.len(), count, "{query}");
            assert_eq!(server.events(&format!("{query}&state=CREATED")).await.len(), count * 3, "{query}");
        }
        let letter = &server.dead_letters("queueName=a").await[0];
        let event = &server.events("queueName=b").await[0];
        assert_eq!((&letter["queueName"], &event["queueName"]), (&json!("a"), &json!("b")));
        for (query, count) in [("queueName=c", 0), ("queueName=b&label=x", 0), ("queueName=b", 2), ("", 3)] {
            let answer = server.delete(&format!("/v2/messages?{query}")).expect(202).await.json();
            assert_eq!(answer, json!({ "cancelled": count }), "{query}");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn a_dead_letter_goes_back_into_its_queue_or_into_another() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500), Reply::status(500), Reply::status(200)]);
    for (headers, queue) in [(&[] as &[(&str, &str)], "q"), (&[("Upstash-Queue-Name", "other")], "other")] {
        let failed = server.enqueue_with("q", &receiver.url("/"), &[("Upstash-Retries", "0")]).await;
        let letter = server.dead_letter_of(&failed).await;
        let retry = format!("/v2/dlq/retry/{}", letter["dlqId"].as_str().expect("an id"));
        let again = message_id(&server.post(&retry).headers(headers).header("Upstash-Delay", "1h").expect(201).await);
        assert_eq!(server.message(&again).await["queueName"], queue);
        assert_eq!(server.queue(queue).await["lag"], 1, "{queue}");
    }
    server.advance(3_600_000).await;
    receiver.take(4).await;
    server.finish().await;
}

#[tokio::test]
async fn queues_belong_to_their_tenant() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    put(&server, "q", 3, true).await;
    server.enqueue_with("q", &receiver.url("/a"), &[]).await;
    let other = |method: &str, path: &str| server.request(method, path).token(TOKEN_B);
    other("GET", "/v2/queues/q").expect(404).await.error();
    other("POST", "/v2/queues/q/resume").expect(404).await.error();
    other("POST", &format!("/v2/enqueue/q/{}", receiver.url("/b"))).expect(200).await;
    assert_eq!(receiver.next().await.target, "/b");
    assert_eq!(other("GET", "/v2/queues").expect(200).await.json()[0]["parallelism"], 1);
    other("DELETE", "/v2/queues/q").expect(200).await;
    let queue = server.queue("q").await;
    assert_eq!((&queue["parallelism"], &queue["paused"], &queue["lag"]), (&json!(3), &json!(true), &json!(1)));
    server.delete("/v2/queues/q").expect(200).await;
    server.finish().await;
}
