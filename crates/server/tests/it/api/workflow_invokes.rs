//! Runs of workflows that start others, and wait for their end.

use super::workflow_runs::{APP, ENDED, Runs, start};
use crate::support::server::START_MS;
use crate::support::{Backend, Request, Setup, TestServer};
use posthaste_engine::limits::WORKFLOW_INVOKERS_MAX;
use serde_json::{Value, json};

#[tokio::test]
async fn an_invoke_starts_a_run_for_a_step_of_another() {
    let server = TestServer::start().await;
    server.started(&["wfr_p"]).await;
    let step = json!({ "stepId": 1, "stepName": "i", "stepType": "Invoke", "concurrent": 1 });
    let envelope =
        |parent: &str| json!({ "body": "{\"doc\":42}", "workflowRunId": parent, "workflowUrl": APP, "step": step });
    let invoke = |parent: &str, count: &str| {
        let about = [
            ("Upstash-Workflow-Init", "true"),
            ("Upstash-Workflow-Invoke", "true"),
            ("Upstash-Workflow-RunId", "wfr_c"),
            ("Upstash-Forward-Upstash-Workflow-Invoke-Count", count),
            ("Upstash-Delay", "1h"),
        ];
        server.publish(APP).headers(&about).json(&envelope(parent))
    };
    assert_eq!(invoke("wfr_unknown", "1").expect(400).await.error(), ENDED);
    let error = invoke("wfr_p", "100").expect(412).await.error();
    assert_eq!(error, "quota maxWorkflowInvokeDepth exceeded, current limit: 100");
    let invoked = invoke("wfr_p", "99").expect(200).await.json();
    assert_eq!(invoked["workflowRunId"], "wfr_c");
    assert_eq!(server.entries("wfr_c").await, [json!({ "doc": 42 })]);
    let again = invoke("wfr_p", "99").expect(202).await.json();
    assert_eq!((&again["workflowRunId"], &again["deduplicated"]), (&json!("wfr_c"), &json!(true)));
    server.delete("/v2/workflows/runs/wfr_c").expect(200).await;
    let mut told = step.clone();
    told["out"] = r#"{"isCanceled":true,"isFailed":false}"#.into();
    assert_eq!(server.entries("wfr_p").await[1], told);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_client_that_tells_another_time_than_the_server_means_the_run_of_this_name() {
    let server = TestServer::start().await;
    server.started(&["wfr_p"]).await;
    let step = json!({ "stepId": 1, "stepName": "i", "stepType": "Invoke", "concurrent": 1 });
    let envelope = json!({
        "body": "1", "workflowRunId": "wfr_p", "workflowRunCreatedAt": START_MS + 7, "workflowUrl": APP, "step": step,
    });
    let about = [
        ("Upstash-Workflow-Init", "true"),
        ("Upstash-Workflow-Invoke", "true"),
        ("Upstash-Workflow-RunId", "wfr_c"),
        ("Upstash-Delay", "1h"),
    ];
    server.publish(APP).headers(&about).json(&envelope).expect(200).await;
    server.delete("/v2/workflows/runs/wfr_c").expect(200).await;
    assert_eq!(server.entries("wfr_p").await.len(), 2, "it has heard of the end");
    server.finish_with_pending().await;
}

/// An invoke of one run by a step of another, which says this of itself.
fn invoke(server: &TestServer, (parent, child): (&str, &str), more: &[(&str, &str)], headers: Value) -> Request {
    let step = json!({ "stepId": 1, "stepName": "i", "stepType": "Invoke", "concurrent": 1 });
    let envelope = json!({
        "body": "{\"doc\":42}", "workflowRunId": parent, "workflowUrl": APP, "step": step, "headers": headers,
    });
    let about = [
        ("Upstash-Workflow-Init", "true"),
        ("Upstash-Workflow-Invoke", "true"),
        ("Upstash-Workflow-RunId", child),
        ("Upstash-Delay", "1h"),
    ];
    server.publish(APP).headers(&about).headers(more).json(&envelope)
}

#[tokio::test]
async fn how_deep_runs_invoke_one_another_is_counted_by_the_server() {
    let mut setup = Setup::dev();
    setup.settings.workflow_max_depth = Some(3);
    let server = TestServer::with(setup).await;
    server.started(&["wfr_0"]).await;
    let forged = [("Upstash-Forward-Upstash-Workflow-Invoke-Count", "0")];
    for runs in [("wfr_0", "wfr_1"), ("wfr_1", "wfr_2")] {
        invoke(&server, runs, &forged, json!({})).expect(200).await;
    }
    let server = server.restart().await;
    for more in [&forged[..], &[]] {
        let error = invoke(&server, ("wfr_2", "wfr_3"), more, json!({})).expect(412).await.error();
        assert_eq!(error, "quota maxWorkflowInvokeDepth exceeded, current limit: 3");
    }
    server.get("/v2/workflows/runs/wfr_3").expect(404).await.error();
    assert_eq!(server.entries("wfr_2").await.len(), 1, "the run that would invoke it goes on");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn no_more_runs_than_the_bound_wait_for_the_end_of_one() {
    let server = TestServer::start().await;
    let parents: Vec<String> = (0..=WORKFLOW_INVOKERS_MAX).map(|number| format!("wfr_{number}")).collect();
    let (last, others) = parents.split_last().expect("there are some");
    server.batch(parents.iter().map(|id| start(id)).chain([start("wfr_c")]).collect()).expect(200).await;
    let invoke = |parent: &str| invoke(&server, (parent, "wfr_c"), &[], json!({}));
    for parent in others {
        invoke(parent).expect(202).await;
    }
    let error = invoke(last).expect(412).await.error();
    assert_eq!(error, format!("quota maxWorkflowInvokers exceeded, current limit: {WORKFLOW_INVOKERS_MAX}"));
    invoke(&others[0]).expect(202).await;
    server.delete("/v2/workflows/runs/wfr_c?cancel=false").body("\"ok\"").expect(200).await;
    for parent in others {
        assert_eq!(server.entries(parent).await.len(), 2, "{parent} hears of it");
    }
    // The last one goes on, and knows nothing of what was refused: it invokes another instance.
    assert_eq!(server.entries(last).await.len(), 1);
    invoke(last).expect(200).await;
    server.delete("/v2/workflows/runs/wfr_c?cancel=false").expect(200).await;
    assert_eq!(server.entries(last).await.len(), 2);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn what_an_old_client_says_with_a_wait_or_an_invoke_holds_for_its_result() {
    let server = TestServer::start().await;
    server.started(&["wfr_a", "wfr_b"]).await;
    let said = json!({
        "Upstash-Workflow-RunId": ["wfr_a"], "Upstash-Retries": ["7"], "Upstash-Retry-Delay": ["1234"],
        "Upstash-Flow-Control-Key": ["of-results"], "Upstash-Flow-Control-Value": ["rate=1,period=1h"],
    });
    let step = json!({ "stepId": 1, "stepName": "w", "stepType": "Wait", "concurrent": 1 });
    let wait = json!({ "url": APP, "timeout": "1mo", "timeoutUrl": APP, "timeoutHeaders": said, "step": step });
    server.post("/v2/flowControl/of-results/pin?parallelism=1").expect(200).await;
    server.post("/v2/flowControl/of-results/pause").expect(200).await;
    server.post("/v2/wait/e").header("Upstash-Workflow-RunId", "wfr_a").json(&wait).expect(200).await;
    server.post("/v2/notify/e").expect(200).await;
    invoke(&server, ("wfr_b", "wfr_c"), &[], said).expect(200).await;
    let pending = &server.runs("workflowRunId=wfr_b").await[0]["steps"][1]["steps"][0];
    let id = pending["messageId"].as_str().unwrap_or_else(|| panic!("no id in {pending}"));
    assert_eq!(server.runs(&format!("messageId={id}")).await.len(), 1, "a run is found by what its log names");
    server.delete("/v2/workflows/runs/wfr_c").expect(200).await;
    for run in ["wfr_a", "wfr_b"] {
        let log = server.runs(&format!("workflowRunId={run}")).await.remove(0);
        let shown = &log["steps"][1]["steps"][0];
        assert_eq!((&shown["retries"], &shown["retryDelay"]), (&json!(7), &json!("1234")), "{run}");
        assert_eq!(shown["state"], "STEP_SUCCESS");
    }
    assert_eq!(server.flow("of-results").await["waitListSize"], 2, "both results wait for the key");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn what_a_run_hides_is_hidden_in_the_log_of_its_invoker() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        server.started(&["wfr_p"]).await;
        let hiding = [("Upstash-Redact-Fields", "body,header[X-Key]"), ("Upstash-Forward-X-Key", "canary-header")];
        invoke(&server, ("wfr_p", "wfr_c"), &hiding, json!({})).expect(200).await;
        let log = async |what: &str| server.get(&format!("/v2/workflows/{what}")).expect(200).await.text();
        let check = async || {
            for text in [log("logs").await, log("events").await] {
                assert!(text.contains("REDACTED:") && !text.contains("canary"), "{text}");
                // The name in the body, quoted or escaped: a random id may contain the three letters.
                assert!(!text.contains(r#"doc\""#) && !text.contains(r#"doc":"#), "{text}");
            }
        };
        check().await;
        // Another one that invokes the same run says nothing about it.
        server.started(&["wfr_q"]).await;
        invoke(&server, ("wfr_q", "wfr_c"), &[], json!({})).expect(202).await;
        server.delete("/v2/workflows/runs/wfr_c?cancel=false").body("canary-result").expect(200).await;
        check().await;
        server.finish_with_pending().await;
    }
}
