//! What clients ask about runs, letter by letter, and what they read of the answers: the requests of their own tests that are no
//! publishes. Those that are, and what queries mean in detail, are beside the code that reads them.

use super::workflow_runs::{Runs, start_at, step};
use crate::support::runs::{config, done, with_failure_function};
use crate::support::server::START_MS;
use crate::support::{Receiver, Reply, TestServer, eventually};
use posthaste_engine::workflow::run::RunConfig;
use serde_json::{Value, json};

#[tokio::test]
async fn g12_logs() {
    let server = TestServer::start().await;
    let url = "http://127.0.0.1:9/wf";
    server
        .batch(json!([start_at(url, "wfr_a", json!({ "upstash-label": "x" })), start_at(url, "wfr_b", json!({}))]))
        .expect(200)
        .await;
    let encoded = "http%3A%2F%2F127.0.0.1%3A9%2Fwf";
    let ids = |answer: &Value| -> Vec<String> {
        let runs = answer["runs"].as_array().expect("runs are a list").iter();
        runs.map(|run| run["workflowRunId"].as_str().expect("an id").to_owned()).collect()
    };
    for (query, expected) in [
        (String::new(), &["wfr_b", "wfr_a"][..]),
        ("&workflowRunId=wfr_a".to_owned(), &["wfr_a"]),
        ("&state=RUN_STARTED".to_owned(), &["wfr_b", "wfr_a"]),
        ("&state=RUN_FAILED".to_owned(), &[]),
        (format!("&workflowUrl={encoded}"), &["wfr_b", "wfr_a"]),
        (format!("&workflowCreatedAt={START_MS}"), &["wfr_b", "wfr_a"]),
        ("&label=x".to_owned(), &["wfr_a"]),
        (
            format!(
                "&workflowRunId=wfr_a&count=5&state=RUN_STARTED&workflowUrl={encoded}&workflowCreatedAt={START_MS}&label=x"
            ),
            &["wfr_a"],
        ),
    ] {
        let answer = server.get(&format!("/v2/workflows/events?groupBy=workflowRunId{query}")).expect(200).await.json();
        assert_eq!(ids(&answer), expected, "{query}");
        assert_eq!(answer.get("cursor"), None, "{query}: there is no more");
    }
    let page = server.get("/v2/workflows/events?groupBy=workflowRunId&count=1").expect(200).await.json();
    let cursor = page["cursor"].as_str().expect("there is more");
    let next = server.get(&format!("/v2/workflows/events?groupBy=workflowRunId&cursor={cursor}&count=1"));
    assert_eq!((ids(&page), ids(&next.expect(200).await.json())), (vec!["wfr_b".into()], vec!["wfr_a".into()]));
    server.finish_with_pending().await;
}

/// Failed runs of these names, each with its name as a label, and their ids in the DLQ.
async fn failed(server: &TestServer, receiver: &Receiver, names: &[&str]) -> Vec<String> {
    let mut ids = Vec::new();
    for name in names {
        let config = RunConfig { labels: vec![(*name).to_owned()], ..config() };
        let run = server.failed_run(receiver, name, "/wf", config).await;
        ids.push(run["dlqId"].as_str().expect("a failed run has an id").to_owned());
        server.advance(1_000).await;
    }
    ids
}

#[tokio::test]
async fn g13_dlq_list() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    failed(&server, &receiver, &["a", "b"]).await;
    let list = async |query: &str| server.get(&format!("/v2/dlq?{query}source=workflow")).expect(200).await.json();
    let names = |answer: &Value| -> Vec<Value> {
        let runs = answer["messages"].as_array().expect("messages are a list").iter();
        runs.map(|run| run["workflowRunId"].clone()).collect()
    };
    let encoded = receiver.url("/wf").replace(':', "%3A").replace('/', "%2F");
    for (query, expected) in [
        (String::new(), &["b", "a"][..]),
        ("count=10&".to_owned(), &["b", "a"]),
        ("label=a&".to_owned(), &["a"]),
        (format!("workflowUrl={encoded}&workflowRunId=b&responseStatus=500&"), &["b"]),
        (format!("fromDate={START_MS}&toDate={START_MS}&"), &["a"]),
    ] {
        let answer = list(&query).await;
        assert_eq!(names(&answer), expected, "{query}");
        assert_eq!(answer.get("cursor"), None, "{query}: there is no more");
    }
    let page = list("count=1&").await;
    let next = list(&format!("cursor={}&count=1&", page["cursor"].as_str().expect("there is more"))).await;
    assert_eq!((names(&page), names(&next)), (vec![json!("b")], vec![json!("a")]));
    server.finish().await;
}

#[tokio::test]
async fn g14_to_g17_dlq_resume_restart_and_delete() {
    for action in ["resume", "restart"] {
        let server = TestServer::start().await;
        let receiver = Receiver::start().await;
        let ids = failed(&server, &receiver, &["a", "b", "c", "d", "e"]).await;
        receiver.take(5).await;
        let begin = async |query: &str| {
            // Nothing is delivered here: what begins again is looked at elsewhere.
            let request = server.post(&format!("/v2/workflows/dlq/{action}?{query}")).header("Upstash-Delay", "1h");
            let request = request.header("Upstash-Retries", "3").header("Upstash-Flow-Control-Key", "k");
            let answer = request.header("Upstash-Flow-Control-Value", "parallelism=2").expect(200).await.json();
            let runs = answer["workflowRuns"].as_array().expect("runs are a list").clone();
            let is_named = |run: &Value| run["workflowRunId"].is_string() && run["workflowCreatedAt"].is_u64();
            assert!(runs.iter().all(is_named), "{answer}");
            (runs.len(), answer["cursor"].as_str().map(str::to_owned))
        };
        assert_eq!(begin(&format!("dlqIds={}", ids[0])).await, (1, None), "one id");
        assert_eq!(begin(&format!("dlqIds={}&dlqIds={}", ids[1], ids[2])).await, (2, None), "ids");
        assert_eq!(begin("label=d&count=100").await, (1, None), "a filter");
        assert_eq!(begin("count=100").await, (1, None), "all");
        assert_eq!(server.failed_runs("").await, Vec::<Value>::new());
        let begun = server.runs("state=RUN_STARTED&flowControlKey=k").await;
        assert!(begun.len() == 5 && begun[0]["steps"][0]["steps"][0]["retries"].is_u64(), "{begun:?}");
        server.finish_with_pending().await;
    }
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let ids = failed(&server, &receiver, &["a", "b", "c", "d", "e"]).await;
    let delete = async |query: &str| server.delete(&format!("/v2/workflows/dlq?{query}")).expect(200).await.json();
    assert_eq!(delete(&format!("dlqIds={}", ids[0])).await, json!({ "deleted": 1 }));
    assert_eq!(delete(&format!("dlqIds={}&dlqIds={}", ids[1], ids[2])).await, json!({ "deleted": 2 }));
    assert_eq!(delete("label=d&count=100").await, json!({ "deleted": 1 }));
    assert_eq!(delete("count=100").await, json!({ "deleted": 1 }));
    server.finish().await;
}

#[tokio::test]
async fn g18_dlq_retry_failure_function() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/failed", [Reply::status(500), done()]);
    let run = server.failed_run(&receiver, "wfr_1", "/wf", with_failure_function(receiver.url("/failed"))).await;
    eventually("telling has failed", || async {
        server.failed_runs("failureFunctionState=CALLBACK_FAIL").await.into_iter().next()
    })
    .await;
    let told = server.post(&format!("/v2/workflows/dlq/callback/{}", run["dlqId"].as_str().expect("an id")));
    assert_eq!(told.expect(200).await.json(), json!({ "workflowRunId": "wfr_1", "workflowCreatedAt": START_MS }));
    receiver.take(3).await;
    server.finish().await;
}

#[tokio::test]
async fn g33_lazy_fetch() {
    let server = TestServer::start().await;
    server.started(&["wfr_w"]).await;
    let appended = server.batch(json!([step("wfr_w", r#"{"stepId":1}"#)])).expect(200).await.json();
    let entries = server.get("/v2/workflows/runs/wfr_w").expect(200).await.json();
    let entry =
        |body: &str, id: &Value| json!({ "messageId": id, "body": body, "callType": "step", "createdAt": START_MS });
    let expected =
        [entry("eyJvcmRlciI6N30=", &entries[0]["messageId"]), entry("eyJzdGVwSWQiOjF9", &appended[0]["messageId"])];
    assert_eq!(entries, json!(expected));
    assert!(entries[0]["messageId"].as_str().is_some_and(|id| id.starts_with("msg_")), "{entries}");
    server.delete("/v2/workflows/runs/wfr_w?cancel=false").expect(200).await;
    server.get("/v2/workflows/runs/wfr_w").expect(404).await.error();
    server.finish_with_pending().await;
}
