//! What starts runs of workflows, moves them on and ends them, as clients ask for it. Nothing is delivered here.

use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Answer, Backend, Request, Setup, TestServer};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_engine::limits::WORKFLOW_INVOKERS_MAX;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Where nobody answers; nothing is due there while a test runs.
const APP: &str = "http://127.0.0.1:9/wf";
/// What clients compare, letter by letter.
const ENDED: &str = "failed to publish to url: can not append to a a cancelled workflow";

/// An item that starts a run, whose first delivery is due later.
fn start(id: &str) -> Value {
    start_at(APP, id, json!({}))
}

fn start_at(url: &str, id: &str, more: Value) -> Value {
    let mut headers = json!({
        "upstash-workflow-init": "true", "upstash-workflow-runid": id, "upstash-workflow-url": url,
        "upstash-delay": "1h",
        "upstash-feature-set": "LazyFetch,InitialBody,WF_DetectTrigger,WF_TriggerOnConfig",
    });
    for (name, value) in more.as_object().expect("headers are an object") {
        headers[name] = value.clone();
    }
    json!({ "destination": url, "body": "{\"order\":7}", "headers": headers })
}

/// An item that appends a step to a run.
fn step(id: &str, body: &str) -> Value {
    let headers = json!({ "upstash-workflow-init": "false", "upstash-workflow-runid": id, "upstash-delay": "1h" });
    json!({ "destination": APP, "body": body, "headers": headers })
}

trait Runs {
    fn batch(&self, items: Value) -> Request;
    fn wait(&self, run: &str, event: &str, step: u32) -> Request;
    async fn started(&self, ids: &[&str]);
    async fn entries(&self, id: &str) -> Vec<Value>;
}

impl Runs for TestServer {
    fn batch(&self, items: Value) -> Request {
        self.post("/v2/batch").json(&items)
    }

    fn wait(&self, run: &str, event: &str, step: u32) -> Request {
        let headers = json!({ "Upstash-Workflow-RunId": [run], "Upstash-Forward-Upstash-Workflow-Sdk-Version": ["1"] });
        let step = json!({ "stepId": step, "stepName": "w", "stepType": "Wait", "concurrent": 1 });
        let body = json!({ "url": APP, "timeout": "10s", "timeoutUrl": APP, "timeoutHeaders": headers, "step": step });
        self.post(&format!("/v2/wait/{event}")).header("Upstash-Workflow-RunId", run).json(&body)
    }

    async fn started(&self, ids: &[&str]) {
        self.batch(ids.iter().map(|id| start(id)).collect()).expect(200).await;
    }

    /// The bodies of the run's entries, where they are JSON.
    async fn entries(&self, id: &str) -> Vec<Value> {
        let entries = self.get(&format!("/v2/workflows/runs/{id}")).expect(200).await.json();
        let text = |entry: &Value| STANDARD.decode(entry["body"].as_str().expect("a body")).expect("base64");
        let entries = entries.as_array().expect("entries are a list");
        entries.iter().map(|entry| serde_json::from_slice(&text(entry)).unwrap_or_default()).collect()
    }
}

fn first(answer: &Answer) -> Value {
    answer.json()[0].clone()
}

#[tokio::test]
async fn a_run_is_unique_while_it_goes_on() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let new = server.batch(json!([start("wfr_a"), start("wfr_b")])).expect(200).await.json();
        assert_eq!(new[0]["workflowRunId"], "wfr_a");
        assert_eq!((&new[1]["workflowRunId"], &new[1]["workflowCreatedAt"]), (&json!("wfr_b"), &json!(START_MS)));
        assert!(new[0].get("deduplicated").is_none() && new[0]["messageId"] != new[1]["messageId"]);
        let again = first(&server.batch(json!([start("wfr_a")])).expect(202).await);
        assert_eq!((&again["messageId"], &again["deduplicated"]), (&new[0]["messageId"], &json!(true)));
        // Once it has ended its id is free, and instances can be told apart although no time has passed.
        server.delete("/v2/workflows/runs/wfr_a").expect(200).await;
        let later = first(&server.batch(json!([start("wfr_a")])).expect(200).await);
        assert!(later["workflowCreatedAt"].as_u64() > new[0]["workflowCreatedAt"].as_u64(), "{later}");
        // Others have their own.
        server.batch(json!([start("wfr_b")])).token(TOKEN_B).expect(200).await;
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn a_publish_starts_a_run_and_names_it_if_nobody_has() {
    let server = TestServer::start().await;
    let publish =
        || server.publish(APP).header("Upstash-Delay", "1h").header("Upstash-Workflow-Init", "true").body("x");
    let named = publish().header("Upstash-Workflow-RunId", "mine").expect(200).await.json();
    assert_eq!(named["workflowRunId"], "mine", "Go's client uses no prefix");
    let fresh = publish().expect(200).await.json();
    assert!(fresh["workflowRunId"].as_str().is_some_and(|id| id.starts_with("wfr_") && id.len() > 20), "{fresh}");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_batch_is_about_messages_or_about_runs() {
    let server = TestServer::start().await;
    server.started(&["wfr_a", "wfr_b"]).await;
    let plain = json!({ "destination": APP, "headers": { "upstash-delay": "1h" } });
    let queued = json!({ "destination": APP, "queue": "q", "headers": { "upstash-workflow-init": "true" } });
    let cases = [
        (json!([start("wfr_c"), plain]), "plain messages or what is about workflow runs"),
        (json!([plain, step("wfr_a", "{}")]), "plain messages or what is about workflow runs"),
        (json!([step("wfr_a", "{}"), step("wfr_b", "{}")]), "one workflow run only"),
        (json!([start("wfr_c"), step("wfr_a", "{}")]), "either starts workflow runs or appends to one"),
        (json!([queued]), "item 0: queue: a run cannot wait in a queue"),
    ];
    for (items, text) in cases {
        let error = server.batch(items).expect(400).await.error();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(server.entries("wfr_a").await.len(), 1, "nothing of it was done");
    server.get("/v2/workflows/runs/wfr_c").expect(404).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_body_in_a_run_may_be_any_json() {
    let server = TestServer::start().await;
    let mut item = start("wfr_a");
    item["body"] = json!({ "doc": [1, null] });
    server.batch(json!([item])).expect(200).await;
    assert_eq!(
        server.entries("wfr_a").await,
        [json!({ "doc": [1, null] })],
        "the client passes on what its user gave it"
    );
    let plain = json!([{ "destination": APP, "body": { "doc": 1 } }]);
    let error = server.batch(plain).expect(400).await.error();
    assert_eq!(error, "item 0: the body is not text: write JSON as a string");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn steps_are_appended_in_order_and_once() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        server.started(&["wfr_a"]).await;
        let plans =
            json!([step("wfr_a", "{\"stepId\":0,\"targetStep\":1}"), step("wfr_a", "{\"stepId\":0,\"targetStep\":2}")]);
        let new = server.batch(plans.clone()).expect(200).await.json();
        let again = server.batch(plans).expect(202).await.json();
        assert_eq!((&again[0]["messageId"], &again[1]["deduplicated"]), (&new[0]["messageId"], &json!(true)));
        let bodies = server.entries("wfr_a").await;
        assert_eq!(
            bodies,
            [json!({ "order": 7 }), json!({ "stepId": 0, "targetStep": 1 }), json!({ "stepId": 0, "targetStep": 2 })]
        );
        let entries = server.get("/v2/workflows/runs/wfr_a").token(READ_ONLY).expect(200).await.json();
        assert_eq!((&entries[2]["messageId"], &entries[2]["callType"]), (&new[1]["messageId"], &json!("step")));
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn who_goes_on_with_a_run_that_has_ended_is_told_so_in_the_words_that_clients_know() {
    let server = TestServer::start().await;
    server.started(&["wfr_a"]).await;
    server.delete("/v2/workflows/runs/wfr_a?cancel=false").expect(200).await;
    for id in ["wfr_a", "wfr_unknown"] {
        assert_eq!(server.batch(json!([step(id, "{}")])).expect(400).await.error(), ENDED);
        let publish = server.publish(APP).header("Upstash-Workflow-RunId", id).header("Upstash-Workflow-Init", "false");
        assert_eq!(publish.body("{}").expect(400).await.error(), ENDED);
        assert_eq!(server.wait(id, "event", 1).expect(400).await.error(), ENDED);
    }
    // So is who means another instance than the one that goes on.
    server.started(&["wfr_a"]).await;
    let other = server.publish(APP).header("Upstash-Workflow-RunId", "wfr_a").header("Upstash-Workflow-CreatedAt", "5");
    assert_eq!(other.expect(400).await.error(), ENDED);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn what_is_wrong_within_a_run_is_not_taken_for_its_end() {
    let server = TestServer::start().await;
    server.started(&["wfr_a"]).await;
    let publish = |name: &str, value: &str| {
        let about = [("Upstash-Workflow-RunId", "wfr_a"), ("Upstash-Workflow-Init", "false"), (name, value)];
        server.publish("http://169.254.169.254/").headers(&about)
    };
    let cases = [
        ("Upstash-Retries", "1000000", "quota maxRetries exceeded, current limit: 1000"),
        ("Upstash-Retries", "many", "Upstash-Retries: not a number"),
        ("Upstash-Delay", "2000000000s", "quota maxDelay exceeded"),
        ("Upstash-Workflow-CallType", "toCallback", "invalid destination url"),
        ("Upstash-Workflow-CallType", "fromCallback", "Upstash-Workflow-Calltype: the server makes"),
        ("Upstash-Failure-Callback", "http://169.254.169.254/", "Upstash-Failure-Callback: invalid destination url"),
    ];
    for (name, value, text) in cases {
        let error = publish(name, value).expect(412).await.error();
        assert!(error.starts_with(text), "{error}");
    }
    // Whoever starts a run reads the answer.
    let refused = json!([start_at(APP, "wfr_b", json!({ "upstash-label": "a b" }))]);
    assert!(server.batch(refused).expect(400).await.error().starts_with("item 0: Upstash-Label"));
    server.batch(json!([start_at("http://169.254.169.254/", "wfr_b", json!({}))])).expect(400).await.error();
    server.batch(json!([start_at("group", "wfr_b", json!({}))])).expect(400).await.error();
    server.finish_with_pending().await;
}

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
                assert!(!text.contains("doc"), "{text}");
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

#[tokio::test]
async fn runs_can_be_triggered_without_a_client() {
    let server = TestServer::start().await;
    let trigger = |path: &str| server.post(path).header("Upstash-Delay", "1h").body("{\"n\":1}");
    let fresh = trigger(&format!("/v2/trigger/{APP}?q=1")).expect(200).await.json();
    assert_eq!(fresh["workflowCreatedAt"], START_MS);
    let id = fresh["workflowRunId"].as_str().expect("an id");
    assert!(id.starts_with("wfr_"), "{fresh}");
    assert_eq!(server.entries(id).await, [json!({ "n": 1 })]);
    let named =
        trigger(&format!("/v2/Trigger/{APP}")).header("Upstash-Workflow-RunId", "mine").expect(200).await.json();
    assert_eq!(named, json!({ "workflowRunId": "mine", "workflowCreatedAt": START_MS }));
    for (path, text) in [
        ("/v2/trigger", "a non-empty destination must be provided"),
        ("/v2/trigger/group", "a workflow run is executed at a URL"),
        ("/v2/trigger/ftp://a", "invalid destination url"),
    ] {
        let error = trigger(path).expect(400).await.error();
        assert!(error.contains(text), "{path}: {error}");
    }
    let item = |headers: Value| json!({ "destination": APP, "body": "b", "headers": headers });
    let items = json!([
        item(json!({ "Upstash-Workflow-RunId": "mine", "Upstash-Delay": "1h" })),
        item(json!({ "Upstash-Workflow-RunId": "other", "Upstash-Delay": "1h" })),
    ]);
    let many = server.post("/v2/batch/trigger").json(&items).expect(201).await.json();
    let expected = json!([
        { "workflowRunId": "mine", "workflowCreatedAt": START_MS, "deduplicated": true },
        { "workflowRunId": "other", "workflowCreatedAt": START_MS },
    ]);
    assert_eq!(many, expected);
    let error = server.post("/v2/batch/trigger").json(&json!([{ "body": "b" }])).expect(400).await.error();
    assert_eq!(error, "item 0: destination is missing");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn ending_a_run_twice_is_ending_it_once() {
    let server = TestServer::start().await;
    server.started(&["wfr_a", "wfr_b"]).await;
    for _ in 0..2 {
        server.delete("/v2/workflows/runs/wfr_a?cancel=false").body("\"ok\"").expect(200).await.json();
    }
    server.delete("/v2/workflows/runs/wfr_unknown?cancel=false").expect(200).await;
    for path in ["/v2/workflows/runs/wfr_a", "/v2/workflows/runs/wfr_unknown?cancel=true"] {
        assert_eq!(server.delete(path).expect(404).await.error(), "workflow run not found");
    }
    server.delete("/v2/workflows/runs/wfr_b?cancel=perhaps").expect(400).await.error();
    server.delete("/v2/workflows/runs/").expect(400).await.error();
    // Another instance of the run is meant, and another tenant's.
    let other = server.delete("/v2/workflows/runs/wfr_b?cancel=false").header("Upstash-Workflow-CreatedAt", "5");
    other.expect(200).await;
    server.delete("/v2/workflows/runs/wfr_b").token(TOKEN_B).expect(404).await.error();
    server.get("/v2/workflows/runs/wfr_b").token(TOKEN_B).expect(404).await.error();
    server.get("/v2/workflows/runs/wfr_b").expect(200).await;
    server.delete("/v2/workflows/runs/wfr_b?cancel=true").expect(200).await;
    server.get("/v2/workflows/runs/wfr_b").expect(404).await.error();
    server.finish().await;
}

#[tokio::test]
async fn many_runs_are_cancelled_by_what_they_have() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let label = |label: &str| json!({ "upstash-label": label });
        let runs = json!([
            start_at("http://127.0.0.1:9/a", "wfr_1", label("x")),
            start_at("http://127.0.0.1:9/a//", "wfr_2", label("x,y")),
            start_at("http://127.0.0.1:9/ab", "wfr_3", label("z")),
            start_at("http://127.0.0.1:9/b", "wfr_4", label("x")),
            start_at("http://127.0.0.1:9/c", "wfr_5", label("x")),
            start_at("http://127.0.0.1:9/c", "wfr_6", label("x")),
            start_at("http://127.0.0.1:9/c", "wfr_7", label("x")),
        ]);
        server.batch(runs).expect(200).await;
        let cases = [
            ("workflowUrl=http%3A%2F%2F127.0.0.1%3A9%2Fa%2F%2F", "", 1),
            ("workflowUrl=http%3A%2F%2F127.0.0.1%3A9%2Fa&workflowUrlExactMatch=true", "", 1),
            ("label=z&host=127.0.0.1", "", 1),
            ("workflowRunId=wfr_unknown", "", 0),
            ("workflowRunId=wfr_4&label=z", "", 0),
            ("workflowRunIds=wfr_3&workflowRunIds=wfr_4,wfr_unknown&label=nothing", "", 1),
            (&format!("toDate={}", START_MS - 1), "", 0),
            ("", "{\"workflowRunIds\":[\"wfr_5\"]}", 1),
            ("count=1", "", 1),
            ("", "{}", 1),
            ("", "", 0),
        ];
        for (query, body, cancelled) in cases {
            let answer = server.delete(&format!("/v2/workflows/runs?{query}")).body(body).expect(200).await.json();
            assert_eq!(answer, json!({ "cancelled": cancelled }), "{query} {body}");
        }
        server.finish().await;
    }
}

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
async fn a_wait_needs_a_step_and_a_time_that_the_server_allows() {
    let server = TestServer::start().await;
    server.started(&["wfr_a"]).await;
    let wait = |body: Value| server.post("/v2/wait/e").header("Upstash-Workflow-RunId", "wfr_a").json(&body);
    for (body, text) in [
        (json!({ "timeout": "10s" }), "the body does not say which step waits"),
        (json!({ "step": { "stepId": 1 }, "timeout": "soon" }), "timeout: not a duration"),
        (json!({ "step": { "stepId": 1, "stepName": "n".repeat(16 * 1024) } }), "step: it must not be longer"),
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
    for _ in 0..50 {
        right.spawn(hook("tenant-a/wfr_a/evt_1").send());
        right.spawn(hook(wrong[0]).send());
    }
    let mut statuses: Vec<u16> = right.join_all().await.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [[200; 50], [429; 50]].concat());
    server.get("/v2/queues").expect(200).await;
    server.advance(1_000).await;
    hook(wrong[0]).expect(404).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn runs_and_steps_count_as_messages_of_the_day() {
    let mut setup = Setup::dev();
    setup.settings.messages_per_day = Some(3);
    let server = TestServer::with(setup).await;
    server.started(&["wfr_a"]).await;
    server.batch(json!([start("wfr_a")])).expect(202).await;
    server.batch(json!([step("wfr_a", "1"), step("wfr_a", "2")])).expect(200).await;
    server.batch(json!([step("wfr_unknown", "1")])).expect(429).await.error();
    server.batch(json!([step("wfr_a", "1")])).expect(429).await.error();
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_run_may_not_have_more_than_the_operator_allows() {
    let mut setup = Setup::dev();
    setup.settings.workflow_max_steps = Some(2);
    let server = TestServer::with(setup).await;
    server.started(&["wfr_a"]).await;
    server.batch(json!([step("wfr_a", "1")])).expect(200).await;
    let error = server.batch(json!([step("wfr_a", "2")])).expect(412).await.error();
    assert_eq!(error, "quota maxWorkflowSteps exceeded, current limit: 2");
    assert_eq!(server.batch(json!([step("wfr_a", "3")])).expect(400).await.error(), ENDED, "it has failed thereby");
    server.finish().await;
}
