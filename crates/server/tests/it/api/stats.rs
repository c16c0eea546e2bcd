//! `/v2/stats`: how a tenant stands, and what happened in each of the last seconds.

use crate::support::runs::{config, done};
use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};

async fn stats(server: &TestServer) -> Value {
    server.get("/v2/stats").expect(200).await.json()
}

/// The figures of the last seconds, the newest first.
fn last(stats: &Value, name: &str, count: usize) -> Vec<u64> {
    let list = stats["seconds"][name].as_array().unwrap_or_else(|| panic!("no {name} in {stats}"));
    assert_eq!(list.len(), 300);
    list.iter().rev().take(count).map(|figure| figure.as_u64().expect("a whole number")).collect()
}

#[tokio::test]
async fn a_new_server_has_nothing_to_tell() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let stats = server.get("/v2/stats").token(READ_ONLY).expect(200).await.json();
        assert_eq!(stats["time"], START_MS);
        assert_eq!(stats["version"], env!("CARGO_PKG_VERSION"));
        let messages = json!({
            "live": 0, "liveHasMore": false, "inFlight": 0, "waiting": 0, "waitingHasMore": false, "pausedQueues": 0,
            "pausedFlowControlKeys": 0, "partial": false
        });
        assert_eq!(stats["messages"], messages);
        assert_eq!(stats["dlq"], json!({ "size": 0, "hasMore": false }));
        assert_eq!(stats["runs"], json!({ "live": 0, "hasMore": false, "dlq": { "size": 0, "hasMore": false } }));
        assert_eq!(stats["schedules"], json!({ "count": 0, "next": [] }));
        assert_eq!(stats.get("latency"), None);
        assert_eq!((&stats["storage"]["diskLow"], &stats["storage"]["takesWrites"]), (&json!(false), &json!(true)));
        let has_files = backend != Backend::Memory;
        assert_eq!(stats["storage"]["bytes"].as_u64().expect("bytes") > 0, has_files, "{stats}");
        assert!(stats["storage"]["freeBytes"].as_u64().expect("free bytes") > 0);
        assert!(last(&stats, "published", 300).iter().all(|count| *count == 0));
        server.get("/v2/stats").token("wrong").expect(401).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn every_second_tells_what_happened_in_it() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    receiver.script("/retried", [Reply::status(503), Reply::status(200)]);
    for _ in 0..2 {
        let id = server.publish_with(&receiver.url("/"), &[], "").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    }
    server.advance(1_000).await;
    let failed = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "").await;
    server.reaches(&failed, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
    server.advance(1_000).await;
    let retried = server.publish_with(&receiver.url("/retried"), &[("Upstash-Retry-Delay", "7000")], "").await;
    server.reaches(&retried, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
    let waits = stats(&server).await;
    assert_eq!((&waits["messages"]["live"], &waits["messages"]["waiting"]), (&json!(1), &json!(0)), "it is not late");
    server.advance(7_000).await;
    server.reaches(&retried, &["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"]).await;
    server.advance(1_000).await;

    let stats = stats(&server).await;
    assert_eq!(stats["seconds"]["last"], START_MS / 1_000 + 10);
    assert_eq!(last(&stats, "published", 12), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0]);
    assert_eq!(last(&stats, "delivered", 12), [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(last(&stats, "failed", 12), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0]);
    assert_eq!(last(&stats, "deadLettered", 12), [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    let slow = last(&stats, "p99", 2)[1];
    assert!((7_000..8_000).contains(&slow), "from due to delivered, with its retry: {slow}");
    assert_eq!((stats["latency"]["p50"].clone(), stats["latency"]["p99"].clone()), (json!(0), json!(slow)));
    assert_eq!(stats["messages"]["live"], 0);
    assert_eq!(stats["dlq"], json!({ "size": 1, "hasMore": false, "oldest": START_MS + 1_000 }));
    let other = server.get("/v2/stats").token(TOKEN_B).expect(200).await.json();
    assert_eq!(
        (last(&other, "published", 300).iter().sum::<u64>(), &other["dlq"]["size"]),
        (0, &json!(0)),
        "not theirs"
    );
    server.advance(300_000).await;
    let later = server.get("/v2/stats").expect(200).await.json();
    assert_eq!(last(&later, "delivered", 300).iter().sum::<u64>(), 0);
    server.finish().await;
}

#[tokio::test]
async fn what_is_due_and_not_under_way_is_told_with_its_age() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, gate) = Reply::status(200).held();
        receiver.script("/slow", [held]);
        for _ in 0..3 {
            server.enqueue_with("line", &receiver.url("/slow"), &[]).await;
            server.advance(1_000).await;
        }
        server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "").await;
        server.advance(60_000).await;
        let messages = stats(&server).await["messages"].clone();
        let expected = json!({
            "live": 4, "liveHasMore": false, "inFlight": 1, "waiting": 2, "waitingHasMore": false,
            "oldestDue": START_MS + 1_000, "pausedQueues": 0, "pausedFlowControlKeys": 0, "partial": false
        });
        assert_eq!(messages, expected, "{backend:?}");
        server.post("/v2/queues/line/pause").expect(200).await;
        let messages = stats(&server).await["messages"].clone();
        assert_eq!((&messages["waiting"], &messages["pausedQueues"]), (&json!(0), &json!(1)), "by somebody's wish");
        server.post("/v2/queues/line/resume").expect(200).await;
        gate.open();
        receiver.take(3).await;
        let is_idle = || async { (stats(&server).await["messages"]["live"] == 1).then_some(()) };
        eventually("all but the delayed one have ended", is_idle).await;

        let server = server.restart().await;
        assert_eq!(stats(&server).await["messages"]["live"], 1, "{backend:?}: after a restart");
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn runs_and_schedules_are_told() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    receiver.script("/wf", [done()]);
    for (id, cron) in [("hourly", "0 * * * *"), ("at-5", "5 * * * *"), ("paused", "1 * * * *")] {
        server.schedule_with(&receiver.url("/"), &[("Upstash-Cron", cron), ("Upstash-Schedule-Id", id)], "").await;
    }
    server.post("/v2/schedules/paused/pause").expect(200).await;
    server.start_run("wfr_a", &receiver.url("/wf"), config()).await;
    server.start_run("wfr_b", &receiver.url("/fails"), config()).await;
    server.run_in("wfr_b", "RUN_FAILED").await;
    receiver.take(2).await;
    eventually("the attempt of the other has ended", || async {
        (stats(&server).await["messages"]["inFlight"] == 0).then_some(())
    })
    .await;

    let stats = stats(&server).await;
    let time = |minutes: u64| START_MS + minutes * 60_000;
    let next = json!([{ "scheduleId": "at-5", "time": time(5) }, { "scheduleId": "hourly", "time": time(60) }]);
    assert_eq!(stats["schedules"], json!({ "count": 3, "next": next }));
    let failed = json!({ "size": 1, "hasMore": false, "oldest": START_MS });
    assert_eq!(stats["runs"], json!({ "live": 1, "hasMore": false, "dlq": failed }));
    assert_eq!((&stats["dlq"]["size"], &stats["messages"]["live"]), (&json!(0), &json!(0)), "steps are no messages");
    let sums = ["published", "delivered", "failed"].map(|name| last(&stats, name, 300).iter().sum::<u64>());
    assert_eq!(sums, [2, 1, 1], "but they are stored, sent and answered like them");
    server.finish_run("wfr_a").await;
    server.finish().await;
}
