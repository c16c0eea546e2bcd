//! What requests may store, at once and in all.

use crate::api::workflow_runs::{Runs, call, step};
use crate::support::server::{START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually, runs};
use posthaste::core::{Room, StartRun};
use posthaste_engine::workflow::NewEntry;
use posthaste_wire::time::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const NOWHERE: &str = "http://nowhere.example/";
const MIB: usize = 1024 * 1024;

async fn group_of(server: &TestServer, endpoints: usize) {
    let endpoints: Vec<Value> = (0..endpoints).map(|n| json!({ "url": format!("{NOWHERE}{n}") })).collect();
    server.post("/v2/topics/all/endpoints").json(&json!({ "endpoints": endpoints })).expect(200).await;
}

#[tokio::test]
async fn a_body_for_many_endpoints_counts_once_and_arrives_whole() {
    let mut setup = Setup::dev();
    setup.settings.max_stored_bytes = Some(3 * MIB as u64);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    let endpoints: Vec<Value> = (0..20).map(|n| json!({ "url": receiver.url(&format!("/{n}")) })).collect();
    server.post("/v2/topics/all/endpoints").json(&json!({ "endpoints": endpoints })).expect(200).await;
    let body = vec![b'x'; MIB];
    let published = server.publish("all").body(body.clone()).expect(200).await.json();
    assert_eq!(published.as_array().expect("a list").len(), 20);
    for request in receiver.take(20).await {
        assert_eq!(request.body, body);
    }
    server.finish().await;
}

#[tokio::test]
async fn a_request_may_store_only_so_many_bytes() {
    let server = TestServer::start().await;
    group_of(&server, 100).await;
    // A megabyte of headers, for 100 endpoints each.
    let value = "x".repeat(10_000);
    let item = json!({ "destination": "all", "headers": { "Upstash-Forward-X": value, "Upstash-Delay": "1h" } });
    let error = server.post("/v2/batch").json(&json!(vec![item.clone(); 99])).expect(413).await.error();
    assert!(error.contains("at most 67108864 are accepted") && error.contains("split it"), "{error}");
    assert_eq!(server.counts().live, 0, "nothing was stored");
    server.post("/v2/batch").json(&json!(vec![item; 2])).expect(200).await;
    assert_eq!(server.counts().live, 200);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_tenant_that_has_used_up_its_bytes_is_refused_alone() {
    for backend in [Backend::Journal, Backend::Sqlite] {
        let mut setup = Setup::dev().on(backend);
        setup.settings.max_stored_bytes = Some(2 * MIB as u64);
        let server = TestServer::with(setup).await;
        let waiting = || server.publish(NOWHERE).header("Upstash-Delay", "1h").body(vec![b'x'; MIB]);
        waiting().expect(200).await;
        let error = waiting().expect(412).await.error();
        assert!(error.starts_with("quota maxStoredBytes exceeded, current limit: 2097152 (2 MiB); 104"), "{error}");
        assert!(error.contains("the request adds 104"), "both figures are named: {error}");
        let schedule = server.post(&format!("/v2/schedules/{NOWHERE}")).header("Upstash-Cron", "0 0 1 1 *");
        schedule.body(vec![b'x'; MIB]).expect(412).await;
        waiting().token(TOKEN_B).expect(200).await;
        server.publish(NOWHERE).header("Upstash-Delay", "1h").expect(200).await;
        let server = server.restart().await;
        server.publish(NOWHERE).header("Upstash-Delay", "1h").body(vec![b'x'; MIB]).expect(412).await;
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn requests_at_the_same_time_do_not_exceed_the_quota_together() {
    let mut setup = Setup::dev();
    setup.settings.max_stored_bytes = Some(4 * MIB as u64);
    let server = TestServer::with(setup).await;
    let mut publishes = JoinSet::new();
    for _ in 0..24 {
        publishes.spawn(server.publish(NOWHERE).header("Upstash-Delay", "1h").body(vec![b'x'; MIB]).send());
    }
    let statuses: Vec<u16> = publishes.join_all().await.iter().map(|answer| answer.status).collect();
    let accepted = statuses.iter().filter(|status| **status == 200).count();
    assert!(statuses.iter().all(|status| [200, 412].contains(status)), "{statuses:?}");
    assert!(accepted <= 3 && server.counts().live == accepted as u64, "three of these fit, not {accepted}");
    // One that is stored and not answered yet counts twice for a moment, so that fewer may be accepted.
    for _ in accepted..3 {
        server.publish(NOWHERE).header("Upstash-Delay", "1h").body(vec![b'x'; MIB]).expect(200).await;
    }
    server.publish(NOWHERE).header("Upstash-Delay", "1h").body(vec![b'x'; MIB]).expect(412).await;
    server.publish(NOWHERE).header("Upstash-Delay", "1h").body(vec![b'x'; MIB / 2]).expect(200).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_large_batch_is_stored_in_pieces_and_in_its_order() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        server.post("/v2/queues").json(&json!({ "queueName": "q", "parallelism": 1 })).expect(200).await;
        server.post("/v2/queues/q/pause").expect(200).await;
        let item = |n: usize| {
            let headers = json!({ "Upstash-Deduplication-Id": if n == 1_999 { 0 } else { n }.to_string() });
            json!({ "destination": format!("{NOWHERE}{n}"), "queue": "q", "headers": headers })
        };
        let items: Vec<Value> = (0..2_000).map(item).collect();
        let answers = server.post("/v2/batch").json(&json!(items)).expect(200).await.json();
        let answers = answers.as_array().expect("a list");
        assert_eq!(answers.len(), 2_000);
        assert_eq!(answers[1_999]["messageId"], answers[0]["messageId"], "the last is a duplicate of the first");
        assert_eq!(answers[1_999]["deduplicated"], true);
        assert_eq!(server.counts().live, 1_999);
        for n in [0, 63, 64, 1_000, 1_998] {
            let message = server.message(answers[n]["messageId"].as_str().expect("an id")).await;
            assert_eq!(message["url"], format!("{NOWHERE}{n}"));
        }
        server.finish_with_pending().await;
    }
}

/// Two failed runs of a MiB each, in a tenant that may store this much.
async fn two_failed_runs(max_stored_bytes: usize) -> TestServer {
    let mut setup = Setup::dev();
    setup.settings.max_stored_bytes = Some(max_stored_bytes as u64);
    let server = TestServer::with(setup).await;
    for id in ["wfr_1", "wfr_2"] {
        let start = StartRun {
            id: id.to_owned(),
            url: "http://127.0.0.1:9/wf".to_owned(),
            config: runs::config(),
            first: NewEntry::step(vec![b'x'; MIB].into(), Vec::new(), Timestamp(0)),
            dedup: None,
            is_by_client: false,
            invoked_by: None,
        };
        let started = server.core().start_runs(server.tenant(), vec![start], Room::default()).await;
        started.expect("the core answers").expect("it is accepted");
        server.run_in(id, "RUN_FAILED").await;
    }
    server
}

#[tokio::test]
async fn a_resume_that_has_room_for_some_runs_says_that_the_others_stay() {
    let server = two_failed_runs(7 * MIB / 2).await;
    let failed = server.failed_runs("").await;
    let [first, second] = [0, 1].map(|n| failed[n]["dlqId"].as_str().expect("an id"));
    let path = format!("/v2/workflows/dlq/resume?dlqIds={first}&dlqIds={second}");
    let answer = server.post(&path).expect(200).await.json();
    assert_eq!(answer["workflowRuns"].as_array().map(Vec::len), Some(1), "{answer}");
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(
        error.starts_with("quota maxStoredBytes exceeded, current limit: 3670016 (3.5 MiB); 1 of 2 runs"),
        "{error}"
    );
    let status = |id: &str| server.get(&format!("/v2/workflows/dlq/{id}")).send();
    assert_eq!([status(first).await.status, status(second).await.status], [404, 200]);
    // Room is not looked for where there is no run.
    server.post(&format!("/v2/workflows/dlq/resume/{first}")).expect(404).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn failed_runs_for_which_there_is_no_room_stay_in_the_dlq() {
    let server = two_failed_runs(5 * MIB / 2).await;
    let failed = server.failed_runs("").await;
    for how in ["resume", "restart"] {
        let dlq_id = failed[0]["dlqId"].as_str().expect("an id");
        for path in [format!("{how}/{dlq_id}"), format!("{how}?dlqIds={dlq_id}")] {
            let error = server.post(&format!("/v2/workflows/dlq/{path}")).expect(412).await.error();
            assert!(
                error.starts_with("quota maxStoredBytes exceeded, current limit: 2621440 (2.5 MiB)"),
                "{path}: {error}"
            );
        }
    }
    assert_eq!(server.failed_runs("").await, failed, "they are where they were");
    server.finish().await;
}

#[tokio::test]
async fn an_event_for_which_there_is_no_room_reaches_no_run() {
    let mut setup = Setup::dev();
    setup.settings.max_stored_bytes = Some(3 * MIB as u64);
    let server = TestServer::with(setup).await;
    let waiting = ["wfr_1", "wfr_2"];
    server.started(&waiting).await;
    for id in waiting {
        server.wait(id, "event", 1).expect(200).await;
    }
    let notify = |bytes: usize| server.post("/v2/notify/event").body(vec![b'x'; bytes]);
    let error = notify(2 * MIB).expect(412).await.error();
    assert!(error.starts_with("quota maxStoredBytes exceeded, current limit: 3145728 (3 MiB)"), "{error}");
    let waiters = server.get("/v2/waiters/event").expect(200).await.json();
    assert_eq!(waiters.as_array().map(Vec::len), Some(waiting.len()), "both still wait");
    let notified = notify(MIB).expect(200).await.json();
    assert_eq!(notified.as_array().map(Vec::len), Some(waiting.len()));
    server.finish_with_pending().await;
}

#[tokio::test]
async fn over_the_quota_outcomes_have_no_bodies_and_retries_wait() {
    const HOUR: u64 = 3_600_000;
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let down = || Reply::status(500).with_header("X-Why", "long").with_body("a long answer");
    receiver.script("/down", [down(), down()]);
    let callback = receiver.url("/callback");
    let headers = [
        ("Upstash-Delay", "1h"),
        ("Upstash-Retries", "1"),
        ("Upstash-Retry-Delay", "1"),
        ("Upstash-Callback", callback.as_str()),
    ];
    let id = server.publish_with(&receiver.url("/down"), &headers, "hello").await;
    let server = server.restart_with(|settings| settings.max_stored_bytes = Some(1)).await;
    server.advance(HOUR).await;
    let deliveries = receiver.take(2).await;
    let callback = deliveries.iter().find(|delivery| delivery.target == "/callback").expect("a callback");
    let payload: Value = serde_json::from_slice(&callback.body).expect("a callback is JSON");
    assert_eq!((&payload["status"], &payload["header"], &payload["body"]), (&json!(500), &json!({}), &json!("")));
    assert_eq!((&payload["sourceBody"], &payload["sourceBodyOmittedBytes"]), (&json!(""), &json!(5)));
    let retry = server.events_of(&id).await.into_iter().find(|event| event["state"] == "RETRY").expect("a retry");
    assert_eq!(retry["nextDeliveryTime"], START_MS + HOUR + 60_000);
    server.advance(60_000).await;
    let letter = server.dead_letter_of(&id).await;
    assert_eq!((&letter["responseStatus"], letter.get("responseBody")), (&json!(500), None), "{letter}");
    receiver.take(2).await;
    server.finish().await;
}

#[tokio::test]
async fn over_the_quota_runs_get_no_new_steps_and_results_of_calls_are_not_stored() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/called", [Reply::status(200).with_body("a long answer")]);
    server.started(&["wfr_a"]).await;
    let mut delayed = call("wfr_a", &receiver.url("/called"));
    delayed["headers"]["Upstash-Delay"] = json!("30m");
    delayed["headers"]["Upstash-Retries"] = json!("0");
    server.batch(json!([delayed])).expect(200).await;
    let server = server.restart_with(|settings| settings.max_stored_bytes = Some(1)).await;
    let refused = server.batch(json!([step("wfr_a", r#"{"stepId":2,"out":"1"}"#)])).expect(412).await.error();
    assert!(refused.starts_with("quota maxStoredBytes exceeded"), "{refused}");
    server.advance(30 * 60_000).await;
    receiver.next().await;
    let log = eventually("the call has ended", || async {
        let log = server.get("/v2/workflows/logs").expect(200).await.text();
        log.contains("the response is not stored: quota maxStoredBytes").then_some(log)
    })
    .await;
    assert!(!log.contains("a long answer"), "{log}");
    server.finish_with_pending().await;
}

/// A tenant that has stored all that it may, with a URL group and two runs.
async fn full_server() -> TestServer {
    let mut setup = Setup::dev();
    setup.settings.max_stored_bytes = Some(2 * MIB as u64);
    let server = TestServer::with(setup).await;
    group_of(&server, 2).await;
    server.started(&["wfr_1", "wfr_2"]).await;
    for bytes in [MIB, MIB / 2, MIB / 4, MIB / 8, MIB / 16, MIB / 32, MIB / 64, MIB / 128, MIB / 256, 1_024, 256, 1] {
        server.publish(NOWHERE).header("Upstash-Delay", "1h").body(vec![b'x'; bytes]).send().await;
    }
    // The rest is less than any message has.
    for bytes in (0..2_000).rev().step_by(20) {
        let headers = json!({ "headers": { "Upstash-Forward-A": "x".repeat(bytes) } });
        if server.request("PATCH", "/v2/topics/all").json(&headers).send().await.status == 200 {
            break;
        }
    }
    server
}

fn is_over_quota(error: &str) -> bool {
    error.starts_with("quota maxStoredBytes exceeded, current limit: 2097152 (2 MiB); ")
}

#[tokio::test]
async fn a_tenant_without_room_makes_no_url_group_longer_and_removes_what_it_has() {
    let server = full_server().await;
    let long = json!({ "endpoints": [{ "url": format!("{NOWHERE}{}", "x".repeat(4_000)) }] });
    for name in ["all", "new"] {
        let error = server.post(&format!("/v2/topics/{name}/endpoints")).json(&long).expect(412).await.error();
        assert!(is_over_quota(&error) && error.contains("the request adds 4"), "{error}");
    }
    server.post("/v2/topics/other/endpoints").token(TOKEN_B).json(&long).expect(200).await;
    let headers = |value: &str| json!({ "headers": { "Upstash-Forward-A": value } });
    let error = server.request("PATCH", "/v2/topics/all").json(&headers(&"x".repeat(4_000))).expect(412).await.error();
    assert!(is_over_quota(&error), "{error}");
    server.request("PATCH", "/v2/topics/all").json(&json!({ "headers": {} })).expect(200).await;
    let first = json!({ "endpoints": [{ "url": format!("{NOWHERE}0") }] });
    server.delete("/v2/topics/all/endpoints").json(&first).expect(200).await;
    server.delete("/v2/topics/all").expect(200).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn url_groups_of_a_tenant_count_until_they_are_deleted() {
    let mut setup = Setup::dev();
    setup.settings.max_stored_bytes = Some(20_000);
    let server = TestServer::with(setup).await;
    let group = |name: &str| {
        let endpoints = json!({ "endpoints": [{ "url": format!("{NOWHERE}{}", "x".repeat(8_000)) }] });
        server.post(&format!("/v2/topics/{name}/endpoints")).json(&endpoints)
    };
    group("a").expect(200).await;
    group("b").expect(200).await;
    group("c").expect(412).await;
    server.publish(NOWHERE).body(vec![b'x'; 8_000]).expect(412).await;
    server.delete("/v2/topics/a").expect(200).await;
    group("c").expect(200).await;
    server.finish().await;
}

#[tokio::test]
async fn a_tenant_without_room_begins_only_a_few_short_bulk_actions_that_make_some() {
    let server = full_server().await;
    let long = "x".repeat(10_000);
    for request in [
        server.post("/v2/dlq/retry?async=true"),
        server.delete(&format!("/v2/dlq?async=true&label={long}")),
        server.delete(&format!("/v2/messages?async=true&label={long}")),
    ] {
        let error = request.expect(412).await.error();
        assert!(is_over_quota(&error), "{error}");
    }
    server.delete("/v2/dlq?async=true&label=none").token(TOKEN_B).expect(202).await;
    let mut begun = 0;
    // So many may be under way at once; they end by themselves.
    while begun < 100 {
        let answer = server.delete("/v2/dlq?async=true&label=none").send().await;
        match answer.status {
            202 => begun += 1,
            _ => assert!(answer.error().starts_with("quota maxBulkActions exceeded")),
        }
    }
    let refused = eventually("it is refused for its bytes", || async {
        let error = server.delete("/v2/dlq?async=true&label=none").expect(412).await.error();
        (!error.starts_with("quota maxBulkActions exceeded")).then_some(error)
    });
    assert!(is_over_quota(&refused.await));
    server.delete("/v2/dlq?label=none").expect(200).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_tenant_without_room_finishes_its_runs_unless_a_result_is_large() {
    let server = full_server().await;
    let end = |id: &str| server.delete(&format!("/v2/workflows/runs/{id}?cancel=false"));
    let error = end("wfr_1").body(vec![b'x'; MIB]).expect(412).await.error();
    assert!(is_over_quota(&error), "{error}");
    assert_eq!(server.runs("state=RUN_STARTED").await.len(), 2, "it goes on");
    end("wfr_1").body("short").expect(200).await;
    server.delete("/v2/workflows/runs/wfr_2").expect(200).await;
    assert_eq!(server.runs("state=RUN_STARTED").await.len(), 0);
    server.finish_with_pending().await;
}
