//! `POST /v2/messages/{id}/retry`: messages and steps that need not wait for their time any longer.

use crate::support::runs::{config, done, result, with_failure_function};
use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Request, Setup, TestServer, eventually};
use posthaste_engine::workflow::run::RunConfig;
use serde_json::{Value, json};

const DELAYED: [(&str, &str); 1] = [("Upstash-Delay", "1h")];

fn retry(server: &TestServer, id: &str) -> Request {
    server.post(&format!("/v2/messages/{id}/retry"))
}

/// The only step of the last group of a run, as soon as it is in this state.
async fn last_step(server: &TestServer, run: &str, state: &str) -> Value {
    eventually("the step is in its state", || async {
        let runs = server.runs(&format!("workflowRunId={run}")).await;
        let group = runs[0]["steps"].as_array().and_then(|groups| groups.last().cloned()).expect("a group");
        let step = group["steps"][0].clone();
        (step["state"] == state).then_some(step)
    })
    .await
}

fn id_of(step: &Value) -> String {
    step["messageId"].as_str().unwrap_or_else(|| panic!("no id in {step}")).to_owned()
}

#[tokio::test]
async fn a_delayed_message_is_sent_now_and_its_retries_too() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500)]);
        let headers = [("Upstash-Delay", "1h"), ("Upstash-Retries", "1"), ("Upstash-Retry-Delay", "3600000")];
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        retry(&server, &id).token(READ_ONLY).expect(403).await.error();
        retry(&server, &id).token(TOKEN_B).expect(404).await.error();
        assert_eq!(receiver.count(), 0);
        let answer = retry(&server, &id).expect(200).await.json();
        assert_eq!(answer, json!({ "messageId": id }));
        assert_eq!(receiver.next().await.header("Upstash-Retried"), Some("0"));
        server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        retry(&server, &id).expect(200).await;
        assert_eq!(receiver.next().await.header("Upstash-Retried"), Some("1"));
        let ended = ["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "FAILED"];
        server.reaches(&id, &ended).await;
        let error = retry(&server, &id).expect(404).await.error();
        assert!(error.contains("DLQ"), "{error}");
        server.finish().await;
        assert_eq!(receiver.count(), 2, "{backend:?}: that is no attempt more than it had");
    }
}

#[tokio::test]
async fn what_cannot_be_sent_now_stays_as_it_is() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let queued = server.enqueue_with("q", &receiver.url("/"), &DELAYED).await;
    let error = retry(&server, &queued).expect(400).await.error();
    assert!(error.contains("queue"), "{error}");
    for unknown in ["msg_unknown", "x", "msg_7YoJxFpwkEy5zBp378JgvD6YBDPBEqkBPje2JGTCEUiASMJQ1FwY9"] {
        retry(&server, unknown).expect(404).await.error();
    }
    let cancelled = server.publish_with(&receiver.url("/"), &DELAYED, "").await;
    server.delete(&format!("/v2/messages/{cancelled}")).expect(202).await;
    retry(&server, &cancelled).expect(404).await.error();
    server.settle().await;
    assert_eq!(receiver.count(), 0);

    let (held, gate) = Reply::status(200).held();
    receiver.script("/slow", [held]);
    let under_way = server.publish_with(&receiver.url("/slow"), &[], "").await;
    receiver.next().await;
    retry(&server, &under_way).expect(200).await;
    server.delete(&format!("/v2/messages/{under_way}")).expect(202).await;
    retry(&server, &under_way).expect(404).await.error();
    gate.open();
    server.reaches(&under_way, &["CREATED", "ACTIVE", "CANCEL_REQUESTED", "CANCELED"]).await;
    assert_eq!(receiver.count(), 1, "one attempt");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn what_is_due_now_is_due_after_a_restart_too() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let keyed = [("Upstash-Flow-Control-Key", "k"), ("Upstash-Flow-Control-Value", "parallelism=1")];
        let id = server.publish_with(&receiver.url("/"), &[&keyed[..], &DELAYED].concat(), "").await;
        server.post("/v2/flowControl/k/pause").expect(200).await;
        retry(&server, &id).expect(200).await;
        let server = server.restart().await;
        server.settle().await;
        assert_eq!(receiver.count(), 0, "its key is paused");
        server.post("/v2/flowControl/k/resume").expect(200).await;
        receiver.next().await;
        server.finish().await;
    }
}

#[tokio::test]
async fn a_step_that_sleeps_or_is_retried_is_executed_now() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [Reply::status(500), done()]);
        let config = RunConfig { retries: 1, retry_delay: Some("3600000".into()), ..config() };
        server.start_run("wfr_1", &receiver.url("/wf"), config).await;
        receiver.next().await;
        let failed = last_step(&server, "wfr_1", "STEP_RETRY").await;
        assert_eq!(failed["nextDeliveryTime"], START_MS + 3_600_000);
        assert_eq!((&failed["execution"]["attempts"], failed["errors"].as_array().map(Vec::len)), (&json!(1), Some(1)));
        server.advance(1_000).await;
        retry(&server, &id_of(&failed)).expect(200).await;
        assert_eq!(receiver.next().await.header("Upstash-Retried"), Some("1"));

        let nap = json!({ "stepId": 1, "stepName": "nap", "stepType": "SleepFor", "sleepFor": "2h", "concurrent": 1 });
        let headers = json!({
            "upstash-workflow-init": "false", "upstash-workflow-runid": "wfr_1", "upstash-delay": "2h",
        });
        let item = json!({ "destination": receiver.url("/wf"), "body": nap, "headers": headers });
        server.post("/v2/batch").json(&json!([item])).expect(200).await;
        let asleep = last_step(&server, "wfr_1", "STEP_PROGRESS").await;
        assert_eq!(asleep["nextDeliveryTime"], START_MS + 1_000 + 7_200_000);
        assert_eq!(asleep["errors"].as_array().map(Vec::len), Some(1), "what was in the way of it");
        retry(&server, &id_of(&asleep)).expect(200).await;
        assert_eq!(receiver.next().await.header("Upstash-Message-Id"), Some(&*id_of(&asleep)));
        assert_eq!(last_step(&server, "wfr_1", "STEP_SUCCESS").await["stepName"], "nap");
        server.finish_run("wfr_1").await;
        retry(&server, &id_of(&asleep)).expect(404).await.error();
        server.finish().await;
        assert_eq!(receiver.count(), 3);
    }
}

#[tokio::test]
async fn a_wait_is_ended_by_its_event_and_not_by_a_retry() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/wf", [done()]);
    server.start_run("wfr_1", &receiver.url("/wf"), config()).await;
    receiver.next().await;
    let step = json!({ "stepId": 1, "stepName": "approval", "stepType": "Wait", "concurrent": 1 });
    server.wait_in("wfr_1", "approved", step).await;
    let waiting = last_step(&server, "wfr_1", "STEP_PROGRESS").await;
    let error = retry(&server, &id_of(&waiting)).expect(400).await.error();
    assert!(error.contains("event"), "{error}");
    let found = server.runs(&format!("messageId={}", id_of(&waiting))).await;
    assert_eq!(found.len(), 1, "a log is found by the messages that it names");
    server.post("/v2/notify/approved").expect(200).await;
    receiver.next().await;
    server.finish_run("wfr_1").await;
    server.finish().await;
}

#[tokio::test]
async fn telling_of_a_failure_need_not_wait_either() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/wf", [Reply::status(500)]);
    receiver.script("/failed", [Reply::status(500), Reply::status(200)]);
    let mut config = with_failure_function(receiver.url("/failed"));
    if let Some(call) = &mut config.failure {
        (call.retries, call.retry_delay) = (Some(1), Some("3600000".into()));
    }
    server.start_run("wfr_1", &receiver.url("/wf"), config).await;
    receiver.take(2).await;
    let call = eventually("it is told again", || async {
        let call = server.runs("workflowRunId=wfr_1").await[0]["failureFunction"].clone();
        call["errors"].is_array().then_some(call)
    })
    .await;
    assert_eq!(call["nextDeliveryTime"], START_MS + 3_600_000);
    retry(&server, &id_of(&call)).expect(200).await;
    assert_eq!(receiver.next().await.header("Upstash-Retried"), Some("1"));
    server.finish().await;
    assert_eq!(receiver.count(), 3);
}

#[tokio::test]
async fn a_step_that_has_failed_is_retried_from_the_dlq() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/wf", [done(), Reply::status(500)]);
    server.start_run("wfr_1", &receiver.url("/wf"), config()).await;
    receiver.next().await;
    server.append_step("wfr_1", &result(1, "charge")).await;
    receiver.next().await;
    let run = server.run_in("wfr_1", "RUN_FAILED").await;
    let failed = last_step(&server, "wfr_1", "STEP_FAILED").await;
    assert_eq!(failed["execution"]["attempts"], 1);
    let error = retry(&server, &id_of(&failed)).expect(404).await.error();
    assert!(error.contains("DLQ"), "{error}");
    receiver.script("/wf", [done()]);
    let dlq_id = run["dlqId"].as_str().expect("an id");
    let again = server.post(&format!("/v2/workflows/dlq/resume/{dlq_id}")).expect(200).await.json();
    receiver.next().await;
    server.finish_run(again["workflowRunId"].as_str().expect("an id")).await;
    server.finish().await;
}
