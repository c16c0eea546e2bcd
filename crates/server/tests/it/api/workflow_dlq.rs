//! `/v2/workflows/dlq`: looking at failed runs, dropping them, beginning them again, telling of them again.

use crate::support::runs::{config, done, result, with_failure_function};
use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_engine::workflow::run::RunConfig;
use serde_json::{Value, json};

fn dlq_id(run: &Value) -> &str {
    run["dlqId"].as_str().expect("a failed run has an id")
}

fn ids(runs: &[Value]) -> Vec<&str> {
    runs.iter().map(|run| run["workflowRunId"].as_str().expect("a run has an id")).collect()
}

/// The step array of a delivery: how many entries it shows.
fn entries(body: &[u8]) -> usize {
    serde_json::from_slice::<Vec<Value>>(body).expect("an array").len()
}

#[tokio::test]
async fn a_failed_run_shows_its_trigger_and_its_last_answer() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/failed", [Reply::status(200).with_body("cleaned")]);
        let told = with_failure_function(receiver.url("/failed"));
        let config = RunConfig { labels: vec!["a".into()], ..told };
        server.failed_run(&receiver, "wfr_1", "/wf", config).await;
        receiver.take(2).await;
        let url = receiver.url("/wf");
        let called = eventually("the failure function is done", || async {
            let failed = server.failed_runs("failureFunctionState=CALLBACK_SUCCESS").await;
            failed.into_iter().next()
        });
        let shown = called.await;
        let headers = json!({ "Content-Length": ["7"] });
        let expected = json!({
            "dlqId": shown["dlqId"],
            "messageId": shown["messageId"],
            "url": url,
            "method": "POST",
            "header": { "Content-Type": ["application/json"], "Upstash-Workflow-Sdk-Version": ["1"] },
            "body": "{\"order\":7}",
            "maxRetries": 0,
            "notBefore": START_MS,
            "createdAt": START_MS,
            "callerIP": "127.0.0.1",
            "workflowRunId": "wfr_1",
            "workflowCreatedAt": START_MS,
            "workflowUrl": url,
            "responseStatus": 500,
            "responseHeader": { "Content-Length": ["4"] },
            "responseBody": "boom",
            "failureCallback": receiver.url("/failed"),
            "failureCallbackHeader": {},
            "failureFunctionState": "CALLBACK_SUCCESS",
            "failureCallbackInfo": {
                "state": "CALLBACK_SUCCESS",
                "responseStatus": 200,
                "responseHeaders": headers,
                "responseBody": "cleaned",
            },
            "label": "a",
            "labels": ["a"],
        });
        assert_eq!(shown, expected);
        let path = format!("/v2/workflows/dlq/{}", dlq_id(&shown));
        assert_eq!(server.get(&path).token(READ_ONLY).expect(200).await.json(), shown);
        let ids = format!("dlqIds=1-2,{}", dlq_id(&shown));
        assert_eq!(server.failed_runs(&ids).await, std::slice::from_ref(&shown), "those that there are");
        let named = server.get("/v2/dlq?source=workflow&count=5").expect(200).await.json();
        assert_eq!(named, json!({ "messages": [shown] }), "as clients ask");
        assert_eq!(server.dead_letters("").await, Vec::<Value>::new(), "the DLQ of messages has messages only");
        assert_eq!(server.get("/v2/workflows/dlq").token(TOKEN_B).expect(200).await.json(), json!({ "messages": [] }));
        server.get(&path).token(TOKEN_B).expect(404).await.error();
        for unknown in ["1-2", "x"] {
            server.get(&format!("/v2/workflows/dlq/{unknown}")).expect(404).await.error();
        }
        let log = server.run_in("wfr_1", "RUN_FAILED").await;
        assert_eq!((&log["dlqId"], &log["failureFunction"]["dlqId"]), (&shown["dlqId"], &shown["dlqId"]));
        server.finish().await;
    }
}

#[tokio::test]
async fn a_failure_that_nobody_has_answered_is_told_as_json() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/gone", [Reply::Close]);
    receiver.script("/failed", [done()]);
    server.start_run("wfr_1", &receiver.url("/gone"), with_failure_function(receiver.url("/failed"))).await;
    let told: Value = serde_json::from_slice(&receiver.take(2).await[1].body).expect("a failure is told as JSON");
    let body = STANDARD.decode(told["body"].as_str().expect("base64")).expect("base64");
    let body: Value = serde_json::from_slice(&body).expect("clients in Python take nothing else");
    // Everybody else is shown the plain words.
    let shown = &server.failed_runs("").await[0];
    assert_eq!((&told["status"], &shown["responseStatus"]), (&json!(503), &json!(503)));
    assert!(shown["responseBody"].as_str().is_some_and(|text| !text.is_empty() && !text.starts_with('{')), "{shown}");
    assert_eq!(body, json!({ "error": "ServiceUnavailable", "message": shown["responseBody"] }));
    server.finish().await;
}

#[tokio::test]
async fn filters_select_failed_runs() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/gone", [Reply::Close]);
        for (id, label) in [("wfr_a", "red"), ("wfr_b", "blue")] {
            let config = RunConfig { labels: vec![label.to_owned()], ..config() };
            server.failed_run(&receiver, id, &format!("/{label}"), config).await;
            server.advance(1_000).await;
        }
        server.start_run("wfr_c", &receiver.url("/gone"), config()).await;
        server.run_in("wfr_c", "RUN_FAILED").await;
        let blue = receiver.url("/blue");
        let cases: Vec<(String, &[&str])> = vec![
            (String::new(), &["wfr_c", "wfr_b", "wfr_a"]),
            ("label=red".into(), &["wfr_a"]),
            (format!("url={blue}"), &["wfr_b"]),
            (format!("workflowUrl={blue}"), &["wfr_b"]),
            (format!("url={blue}&url={}", receiver.url("/red")), &["wfr_b", "wfr_a"]),
            (format!("workflowUrl={blue},{}", receiver.url("/red")), &["wfr_b", "wfr_a"]),
            (format!("workflowUrl={blue}&url={}", receiver.url("/red")), &[]),
            ("workflowRunId=wfr_a".into(), &["wfr_a"]),
            (format!("workflowCreatedAt={}", START_MS + 1_000), &["wfr_b"]),
            ("responseStatus=500".into(), &["wfr_b", "wfr_a"]),
            ("responseStatus=503".into(), &["wfr_c"]),
            ("callerIp=10.0.0.1".into(), &[]),
            ("callerIP=127.0.0.1&label=blue".into(), &["wfr_b"]),
            ("failureCallbackState=CALLBACK_FAIL".into(), &[]),
            (format!("fromDate={}", START_MS + 1_000), &["wfr_c", "wfr_b"]),
            (format!("toDate={}", START_MS + 1_000), &["wfr_b", "wfr_a"]),
        ];
        for (query, expected) in cases {
            assert_eq!(ids(&server.failed_runs(&query).await), expected, "{query}");
        }
        let first = server.get("/v2/workflows/dlq?count=2").expect(200).await.json();
        assert_eq!(ids(first["messages"].as_array().expect("a list")), ["wfr_c", "wfr_b"]);
        let cursor = first["cursor"].as_str().expect("there is more");
        assert_eq!(ids(&server.failed_runs(&format!("count=2&cursor={cursor}")).await), ["wfr_a"]);
        server.finish().await;
    }
}

#[tokio::test]
async fn a_run_is_resumed_where_it_failed_and_restarted_from_its_start() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        for (id, action, shown) in [("wfr_a", "resume", 2), ("wfr_b", "restart", 1)] {
            let path = format!("/{action}");
            receiver.script(&path, [done(), Reply::status(500)]);
            server.start_run(id, &receiver.url(&path), config()).await;
            receiver.next().await;
            server.append_step(id, &result(1, "charge")).await;
            receiver.next().await;
            server.run_in(id, "RUN_FAILED").await;
            let failed = server.failed_runs("").await.remove(0);
            receiver.script(&path, [done()]);
            server.advance(1_000).await;
            let target = format!("/v2/workflows/dlq/{action}/{}", dlq_id(&failed));
            server.post(&target).token(READ_ONLY).expect(403).await.error();
            let overrides = [("Upstash-Retries", "7"), ("Upstash-Label", "again")];
            let begun = server.post(&target).headers(&overrides).expect(200).await.json();
            let new = begun["workflowRunId"].as_str().expect("an id").to_owned();
            assert!(new.starts_with("wfr_") && new != id, "{new}");
            let delivery = receiver.next().await;
            assert_eq!((delivery.header("Upstash-Workflow-Runid"), entries(&delivery.body)), (Some(&*new), shown));
            let log = server.run_in(&new, "RUN_STARTED").await;
            assert_eq!((&log["workflowRunCreatedAt"], &log["label"]), (&begun["workflowCreatedAt"], &json!("again")));
            assert_eq!(log["steps"][shown - 1]["steps"][0]["retries"], 7);
            assert_eq!(server.failed_runs("").await, Vec::<Value>::new(), "it has left the DLQ");
            assert_eq!(server.run_in(id, "RUN_FAILED").await["dlqId"], failed["dlqId"], "its log stays");
            server.post(&target).expect(404).await.error();
            server.finish_run(&new).await;
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn a_message_that_has_failed_is_no_run_to_begin_again() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500)]);
        let id = server.publish_with(&receiver.url("/"), &[("Upstash-Retries", "0")], "").await;
        let letter = server.dead_letter_of(&id).await;
        let dlq_id = dlq_id(&letter);
        for path in [format!("resume/{dlq_id}"), format!("restart/{dlq_id}"), format!("resume?dlqIds={dlq_id}")] {
            let error = server.post(&format!("/v2/workflows/dlq/{path}")).expect(400).await.error();
            assert!(error.contains("/v2/dlq/retry"), "{path}: {error}");
        }
        assert_eq!(server.dead_letters("").await.len(), 1, "it is where it was");
        server.finish().await;
    }
}

#[tokio::test]
async fn many_runs_begin_again_at_once() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut failed = Vec::new();
    for n in 0..4 {
        let config = RunConfig { labels: vec![format!("n{n}")], ..config() };
        failed.push(server.failed_run(&receiver, &format!("wfr_{n}"), "/wf", config).await);
        server.advance(1_000).await;
    }
    receiver.take(4).await;
    receiver.script("/wf", [done()]);
    let id = |n: usize| dlq_id(&failed[n]);
    let begin = |query: String| server.post(&format!("/v2/workflows/dlq/resume?{query}"));

    let answer = begin(format!("dlqIds={}&dlqIds=1-2", id(0))).expect(404).await;
    assert!(answer.error().contains("1-2"));
    begin(format!("dlqIds={}&dlqIds=x", id(0))).expect(404).await.error();
    begin("lable=n0&count=100".into()).expect(400).await.error();
    let too_many: Vec<String> = (0..51).map(|n| format!("dlqIds=1-{n}")).collect();
    begin(too_many.join("&")).expect(400).await.error();
    assert_eq!(server.failed_runs("").await.len(), 4, "nothing has begun");

    let begun = begin(format!("dlqIds={}&dlqIds={}&dlqIds={}", id(0), id(1), id(0))).expect(200).await.json();
    assert_eq!(begun["workflowRuns"].as_array().map(Vec::len), Some(2));
    assert_eq!(begun.get("cursor"), None);
    let begun = begin("label=n2&callerIP=127.0.0.1&count=100&later=1".into()).expect(200).await.json();
    assert_eq!(begun["workflowRuns"].as_array().map(Vec::len), Some(1));
    let restarted = server.post("/v2/workflows/dlq/restart?count=100").expect(200).await.json();
    assert_eq!(restarted["workflowRuns"].as_array().map(Vec::len), Some(1));
    let first = &restarted["workflowRuns"][0];
    assert!(first["workflowRunId"].is_string() && first["workflowCreatedAt"].is_u64(), "{first}");
    assert_eq!(server.failed_runs("").await, Vec::<Value>::new());
    receiver.take(4).await;
    for run in server.runs("state=RUN_STARTED").await {
        server.finish_run(run["workflowRunId"].as_str().expect("an id")).await;
    }
    server.finish().await;
}

#[tokio::test]
async fn what_is_chosen_anew_must_make_sense() {
    let server = TestServer::with(Setup::serve()).await;
    let receiver = Receiver::start().await;
    let failed = server.failed_run(&receiver, "wfr_1", "/wf", config()).await;
    let target = format!("/v2/workflows/dlq/restart/{}", dlq_id(&failed));
    for (name, value, status) in [
        ("Upstash-Retries", "many", 400),
        ("Upstash-Retries", "1000000", 412),
        ("Upstash-Retry-Delay", "1 +", 400),
        ("Upstash-Label", "not a label", 400),
        ("Upstash-Flow-Control-Key", "not a key", 400),
        ("Upstash-Failure-Callback", "http://10.0.0.1/", 400),
    ] {
        let answer = server.post(&target).header(name, value).expect(status).await;
        assert!(answer.error().contains(name) || status == 412, "{}", answer.error());
    }
    assert_eq!(server.failed_runs("").await.len(), 1);
    server.finish().await;
}

#[tokio::test]
async fn failed_runs_are_dropped_one_by_one_and_together() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let mut failed = Vec::new();
        for n in 0..5 {
            let config = RunConfig { labels: vec![format!("n{n}")], ..config() };
            failed.push(server.failed_run(&receiver, &format!("wfr_{n}"), "/wf", config).await);
        }
        let one = format!("/v2/workflows/dlq/{}", dlq_id(&failed[0]));
        server.delete(&one).token(READ_ONLY).expect(403).await.error();
        assert_eq!(server.delete(&one).expect(200).await.json(), json!({ "deleted": 1 }));
        server.delete(&one).expect(404).await.error();
        let ids = format!("dlqIds={},{}&label=other", dlq_id(&failed[0]), dlq_id(&failed[1]));
        let deleted = server.delete(&format!("/v2/workflows/dlq?{ids}")).expect(200).await.json();
        assert_eq!(deleted, json!({ "deleted": 1 }), "ids win over filters");
        server.delete("/v2/workflows/dlq?lable=n2").expect(400).await.error();
        server.delete("/v2/workflows/dlq/").expect(400).await.error();
        let deleted = server.delete("/v2/workflows/dlq?label=n2&count=100&later=1").expect(200).await.json();
        assert_eq!(deleted, json!({ "deleted": 1 }));
        let deleted = server.delete("/v2/workflows/dlq?count=1").expect(200).await.json();
        assert_eq!(deleted["deleted"], 1);
        assert!(deleted["cursor"].is_string(), "{deleted}");
        assert_eq!(server.delete("/v2/workflows/dlq").expect(200).await.json(), json!({ "deleted": 1 }));
        assert_eq!(server.failed_runs("").await, Vec::<Value>::new());
        assert_eq!(server.runs("state=RUN_FAILED").await.len(), 5, "their logs stay");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_failure_is_told_again_only_if_telling_failed_and_stopped_only_while_it_goes_on() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/failed", [Reply::status(500)]);
    let config = with_failure_function(receiver.url("/failed"));
    let failed = server.failed_run(&receiver, "wfr_1", "/wf", RunConfig { retries: 0, ..config }).await;
    let target = format!("/v2/workflows/dlq/callback/{}", dlq_id(&failed));
    let in_state = async |state: &str| {
        let query = format!("failureFunctionState={state}");
        eventually(state, || async { server.failed_runs(&query).await.into_iter().next() }).await
    };
    in_state("CALLBACK_FAIL").await;
    receiver.take(2).await;
    server.delete(&target).expect(400).await.error();
    let (held, gate) = done().held();
    receiver.script("/failed", [held]);
    let told = server.post(&target).expect(200).await.json();
    assert_eq!(told, json!({ "workflowRunId": "wfr_1", "workflowCreatedAt": START_MS }));
    let delivery = receiver.next().await;
    assert_eq!(delivery.target, "/failed");
    server.post(&target).expect(400).await.error();
    gate.open();
    in_state("CALLBACK_SUCCESS").await;
    server.post(&target).expect(400).await.error();
    for method in ["POST", "DELETE"] {
        server.request(method, "/v2/workflows/dlq/callback/1-2").expect(404).await.error();
    }

    // The second one is stopped before it is tried again.
    receiver.script("/failed", [Reply::status(500)]);
    let config = RunConfig { retries: 1, ..with_failure_function(receiver.url("/failed")) };
    receiver.script("/wf2", [Reply::status(489).with_header("Upstash-NonRetryable-Error", "true")]);
    server.start_run("wfr_2", &receiver.url("/wf2"), config).await;
    server.run_in("wfr_2", "RUN_FAILED").await;
    receiver.take(2).await;
    let failed = eventually("it is tried once", || async {
        let run = server.runs("workflowRunId=wfr_2").await.remove(0);
        run["failureFunction"]["errors"].is_array().then_some(run)
    });
    let target = format!("/v2/workflows/dlq/callback/{}", dlq_id(&failed.await));
    server.delete(&target).expect(302).await;
    in_state("CALLBACK_CANCELED").await;
    server.delete(&target).expect(400).await.error();
    server.finish().await;
}

#[tokio::test]
async fn a_failed_run_that_is_looked_at_does_not_hide_the_one_that_goes_on_under_its_name() {
    for backend in [Backend::Sqlite, Backend::Journal] {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        server.failed_run(&receiver, "wfr_1", "/wf", config()).await;
        receiver.take(1).await;
        let failed = eventually("it has failed", || async { server.failed_runs("").await.into_iter().next() }).await;
        let start = json!([{ "destination": receiver.url("/wf"), "headers": {
            "Upstash-Workflow-Init": "true", "Upstash-Workflow-RunId": "wfr_1", "Upstash-Delay": "1d",
        } }]);
        server.post("/v2/batch").json(&start).expect(200).await;
        let server = server.restart().await;
        server.delete(&format!("/v2/workflows/dlq/{}", dlq_id(&failed))).expect(200).await;
        server.delete("/v2/workflows/runs/wfr_1").expect(200).await;
        server.finish_with_pending().await;
    }
}
