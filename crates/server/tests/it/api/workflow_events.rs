//! What runs of workflows wait for: events, and webhooks that bring them.

use super::workflow_runs::{Runs, step};
use crate::support::server::{START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, runs};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

#[tokio::test]
async fn events_reach_who_waits_and_who_will() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        server.started(&["wfr_a", "wfr_b"]).await;
        let notify = |path: &str| server.post(&format!("/v2/notify/{path}")).body("{\"by\":\"ann\"}");
        assert_eq!(notify("ev/1").expect(200).await.json(), json!([]), "it is lost");
        for run in ["wfr_a", "wfr_b", "wfr_a"] {
            server.wait(run, "ev/1", 1).expect(200).await.json();
        }
        let reached = notify("ev/1").expect(200).await.json();
        let runs: Vec<&Value> = reached.as_array().expect("a list").iter().map(|it| &it["workflowRunId"]).collect();
        assert_eq!(runs, ["wfr_a", "wfr_b"], "in the order of asking, and asking twice is asking once");
        assert_eq!(reached[0]["waiter"]["headers"]["Upstash-Workflow-Runid"], json!(["wfr_a"]));
        assert_eq!(reached[0]["waiter"]["deadline"], START_MS / 1_000 + 10);
        let out = STANDARD.encode("{\"by\":\"ann\"}");
        let mut result = json!({ "stepId": 1, "stepName": "w", "stepType": "Wait", "concurrent": 1 });
        (result["waitEventId"], result["out"]) = ("ev/1".into(), out.into());
        assert_eq!(server.entries("wfr_a").await[1], result);
        // For one run it is kept.
        assert_eq!(notify("wfr_a/later").expect(200).await.json(), json!([]));
        server.wait("wfr_b", "later", 2).expect(200).await;
        server.wait("wfr_a", "later", 2).expect(200).await;
        assert_eq!((server.entries("wfr_a").await.len(), server.entries("wfr_b").await.len()), (3, 2));
        assert_eq!(notify("wfr_unknown/later").expect(404).await.error(), "workflow run not found");
        // Another tenant's event is another one.
        assert_eq!(notify("later").token(TOKEN_B).expect(200).await.json(), json!([]));
        let reached = notify("later").expect(200).await.json();
        assert_eq!((reached.as_array().map(Vec::len), &reached[0]["workflowRunId"]), (Some(1), &json!("wfr_b")));
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn an_event_whose_copies_for_all_who_wait_are_too_large_is_refused_whole() {
    let server = TestServer::start().await;
    let names: Vec<String> = (0..7).map(|n| format!("wfr_{n}")).collect();
    server.started(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for run in &names {
        server.wait(run, "large", 1).expect(200).await;
    }
    let notify = |bytes: usize| server.post("/v2/notify/large").body(vec![b'x'; bytes]);
    let error = notify(10 * 1024 * 1024).expect(412).await.error();
    assert_eq!(error, "quota maxNotifiedBytes exceeded, current limit: 67108864 (64 MiB)");
    assert_eq!(server.entries("wfr_0").await.len(), 1, "no run got it");
    assert_eq!(notify(1024 * 1024).expect(200).await.json().as_array().map(Vec::len), Some(7));
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_wait_needs_a_step_and_a_time_that_the_server_allows() {
    let server = TestServer::start().await;
    server.started(&["wfr_a"]).await;
    let wait = |body: Value| server.post("/v2/wait/e").header("Upstash-Workflow-RunId", "wfr_a").json(&body);
    for (body, text) in [
        (json!({ "timeout": "10s" }), "the body does not name the waiting step"),
        (json!({ "step": { "stepId": 1 }, "timeout": "soon" }), "timeout: \"soon\" is not a duration"),
        (json!({ "step": { "stepId": 1, "stepName": "n".repeat(16 * 1024) } }), "step must not be longer"),
        (json!({ "step": { "stepId": 1 }, "timeout": "366d" }), "quota maxDelay exceeded, current limit: 31536000"),
    ] {
        let error = wait(body).expect(412).await.error();
        assert!(error.starts_with(text), "{error}");
    }
    wait(json!({ "step": { "stepId": 1 } })).expect(200).await;
    server.advance(7 * 86_400_000 - 1).await;
    assert_eq!(server.entries("wfr_a").await.len(), 1);
    server.advance(1).await;
    assert_eq!(server.entries("wfr_a").await[1], json!({ "stepId": 1, "waitEventId": "e", "waitTimeout": true }));
    server.finish_with_pending().await;
}

/// A step that has made a webhook.
fn making_webhook(event: &str) -> String {
    let made = json!({ "webhookUrl": format!("http://x/{event}"), "eventId": event }).to_string();
    json!({ "stepId": 1, "stepName": "hook", "stepType": "CreateWebhook", "out": made, "concurrent": 1 }).to_string()
}

#[tokio::test]
async fn a_webhook_brings_a_request_to_a_run_without_a_token() {
    let server = TestServer::start().await;
    server.started(&["wfr_a"]).await;
    let hook = |method: &str, path: &str| {
        server.request(method, &format!("/v2/workflows/hooks/{path}")).without("Authorization")
    };
    let error = hook("PUT", "tenant-a/wfr_a/evt_1").expect(404).await.error();
    assert_eq!(error, "workflow run not found", "nobody has made this webhook yet");
    server.batch(json!([step("wfr_a", &making_webhook("evt_1"))])).expect(200).await;
    hook("PUT", "tenant-a/wfr_a/other").expect(404).await;
    let called = hook("PUT", "tenant-a/wfr_a/evt_1?q=1").header("X-Req", "7").body("hi");
    called.expect(200).await.json();
    hook("GET", "tenant-a/wfr_a/evt_1").expect(200).await;
    for number in [2, 3] {
        server.wait("wfr_a", "evt_1", number).expect(200).await;
    }
    let entries = server.entries("wfr_a").await;
    let payload = |entry: &Value| -> Value {
        let out = STANDARD.decode(entry["out"].as_str().expect("out is text")).expect("base64");
        serde_json::from_slice(&out).expect("the payload is JSON")
    };
    let (first, second) = (payload(&entries[2]), payload(&entries[3]));
    assert_eq!(
        (&first["method"], &first["body"], &first["header"]["X-Req"]),
        (&json!("PUT"), &json!("aGk="), &json!(["7"]))
    );
    let url = format!(
        "{}://{}{}",
        first["proto"].as_str().unwrap(),
        first["host"].as_str().unwrap(),
        first["url"].as_str().unwrap()
    );
    assert_eq!(url, format!("http://{}/v2/workflows/hooks/tenant-a/wfr_a/evt_1?q=1", server.address));
    assert_eq!((&second["method"], second.get("body")), (&json!("GET"), None));
    for path in ["tenant-b/wfr_a/evt_1", "nobody/wfr_a/evt_1", "tenant-a/wfr_unknown/evt_1"] {
        assert_eq!(hook("POST", path).expect(404).await.error(), "workflow run not found", "{path}");
    }
    hook("TRACE", "tenant-a/wfr_a/evt_1").expect(405).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_webhook_of_a_run_that_has_failed_leads_to_the_one_that_goes_on() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [runs::done(), Reply::status(500)]);
        server.start_run("wfr_old", &receiver.url("/wf"), runs::config()).await;
        receiver.take(1).await;
        let made = serde_json::from_str(&making_webhook("evt_1")).expect("a step is JSON");
        server.append_step("wfr_old", &made).await;
        server.run_in("wfr_old", "RUN_FAILED").await;
        let hook = || server.post("/v2/workflows/hooks/tenant-a/wfr_old/evt_1").without("Authorization").body("hi");
        assert_eq!(hook().expect(404).await.error(), "workflow run not found");
        let mut newest = String::new();
        for number in [2, 3] {
            let failed = server.failed_runs("").await.remove(0);
            let resume = format!("/v2/workflows/dlq/resume/{}", failed["dlqId"].as_str().expect("an id"));
            let resumed = server.post(&resume).header("Upstash-Delay", "1h").expect(200).await.json();
            newest = resumed["workflowRunId"].as_str().expect("an id").to_owned();
            hook().expect(200).await;
            // What it has brought is delivered at once, which fails: so the next one has to lead further.
            server.wait(&newest, "evt_1", number).expect(200).await;
            let failed = server.run_in(&newest, "RUN_FAILED").await;
            assert_eq!(
                failed["steps"][number as usize]["steps"][0]["stepType"], "Wait",
                "the webhook has brought it: {failed}"
            );
        }
        assert_eq!(hook().expect(404).await.error(), "workflow run not found", "{newest} does not go on");
        server.finish().await;
    }
}

#[tokio::test]
async fn who_guesses_webhooks_is_held_up_and_who_knows_them_is_not() {
    const MISSES: usize = 100;
    let server = TestServer::start().await;
    server.started(&["wfr_a"]).await;
    server.batch(json!([step("wfr_a", &making_webhook("evt_1"))])).expect(200).await;
    let hook = |path: &str| server.post(&format!("/v2/workflows/hooks/{path}")).without("Authorization");
    let wrong = ["tenant-a/wfr_a/evt_2", "tenant-a/wfr_b/evt_1", "nobody/wfr_a/evt_1"];
    for path in wrong.iter().cycle().take(MISSES - 1) {
        hook(path).expect(404).await;
    }
    // Right ones use up nothing, in whatever way they are called.
    let by = |method: &str| server.request(method, "/v2/workflows/hooks/tenant-a/wfr_a/evt_1").without("Authorization");
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        by(method).expect(200).await;
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&by("HEAD").bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    hook(wrong[0]).expect(404).await;
    for path in wrong {
        assert_eq!(hook(path).expect(429).await.header("retry-after"), Some("1"), "{path}");
    }
    // Right ones have their turn, however many there are and whoever else is behind that address.
    let mut right = JoinSet::new();
    for _ in 0..20 {
        right.spawn(hook("tenant-a/wfr_a/evt_1").send());
        right.spawn(hook(wrong[0]).send());
    }
    let mut statuses: Vec<u16> = right.join_all().await.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [[200; 20], [429; 20]].concat());
    server.get("/v2/queues").expect(200).await;
    server.advance(1_000).await;
    hook(wrong[0]).expect(404).await;
    server.finish_with_pending().await;
}
