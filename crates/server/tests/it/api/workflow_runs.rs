//! What starts runs of workflows, moves them on and ends them, as clients ask for it. Nothing is delivered here.

use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Answer, Backend, Receiver, Request, Setup, TestServer, eventually, runs};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Where nobody answers; nothing is due there while a test runs.
pub(super) const APP: &str = "http://127.0.0.1:9/wf";
/// What clients compare, letter by letter.
pub(super) const ENDED: &str = "failed to publish to url: can not append to a a cancelled workflow";

/// An item that starts a run, whose first delivery is due later.
pub(super) fn start(id: &str) -> Value {
    start_at(APP, id, json!({}))
}

pub(super) fn start_at(url: &str, id: &str, more: Value) -> Value {
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
pub(crate) fn step(id: &str, body: &str) -> Value {
    let headers = json!({ "upstash-workflow-init": "false", "upstash-workflow-runid": id, "upstash-delay": "1h" });
    json!({ "destination": APP, "body": body, "headers": headers })
}

/// An item that calls another service for a run, whose response is the result of its first step.
pub(crate) fn call(id: &str, url: &str) -> Value {
    let headers = json!({
        "Upstash-Workflow-Init": "false", "Upstash-Workflow-RunId": id, "Upstash-Method": "POST",
        "Upstash-Workflow-CallType": "toCallback", "Upstash-Feature-Set": "WF_NoDelete,InitialBody",
        "Upstash-Callback": APP, "Upstash-Callback-Workflow-CallType": "fromCallback",
        "Upstash-Callback-Workflow-RunId": id, "Upstash-Callback-Workflow-Init": "false",
        "Upstash-Callback-Forward-Upstash-Workflow-Callback": "true",
        "Upstash-Callback-Forward-Upstash-Workflow-StepId": "1",
        "Upstash-Callback-Forward-Upstash-Workflow-StepName": "c",
        "Upstash-Callback-Forward-Upstash-Workflow-StepType": "Call",
        "Upstash-Callback-Forward-Upstash-Workflow-Concurrent": "1",
    });
    json!({ "destination": url, "body": "x", "headers": headers })
}

pub(crate) trait Runs {
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
    let cases = [
        (json!([start("wfr_c"), plain]), "cannot mix plain messages and workflow requests"),
        (json!([plain, step("wfr_a", "{}")]), "cannot mix plain messages and workflow requests"),
        (json!([step("wfr_a", "{}"), step("wfr_b", "{}")]), "one workflow run only"),
        (json!([start("wfr_c"), step("wfr_a", "{}")]), "either starts workflow runs or appends to one"),
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
async fn steps_of_a_run_that_hides_something_are_not_for_readers() {
    let server = TestServer::start().await;
    let hiding = start_at(APP, "wfr_b", json!({ "upstash-redact-fields": "body" }));
    server.batch(json!([start("wfr_a"), hiding])).expect(200).await;
    let fetch = |id: &str| server.get(&format!("/v2/workflows/runs/{id}"));
    fetch("wfr_a").token(READ_ONLY).expect(200).await;
    fetch("wfr_b").token(READ_ONLY).expect(403).await;
    fetch("wfr_b").expect(200).await;
    fetch("wfr_b").token(TOKEN_B).expect(404).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_trigger_may_name_a_queue_and_what_makes_it_a_duplicate() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let mut queued = start("wfr_q");
        queued["queue"] = "q".into();
        server.batch(json!([queued])).expect(200).await;
        let in_header = start_at(APP, "wfr_h", json!({ "upstash-queue-name": "q" }));
        server.batch(json!([in_header])).expect(200).await;
        server
            .post("/v2/batch/trigger")
            .json(&json!([{ "destination": APP, "queue": "q",
            "headers": { "Upstash-Delay": "1h" } }]))
            .expect(201)
            .await;
        let unique = |id: &str| start_at(APP, id, json!({ "upstash-deduplication-id": "d" }));
        let new = first(&server.batch(json!([unique("wfr_a")])).expect(200).await);
        // It is a duplicate even when the first has ended, and whatever it is called.
        server.delete("/v2/workflows/runs/wfr_a").expect(200).await;
        for id in ["wfr_a", "wfr_b"] {
            let again = first(&server.batch(json!([unique(id)])).expect(202).await);
            let named = |run: &Value| (run["messageId"].clone(), run["workflowRunId"].clone());
            assert_eq!((named(&again), &again["deduplicated"]), (named(&new), &json!(true)));
        }
        let both = json!([
            start_at(APP, "wfr_c", json!({ "upstash-deduplication-id": "e" })),
            start_at(APP, "wfr_d", json!({ "upstash-deduplication-id": "e" })),
        ]);
        let both = server.batch(both).expect(200).await.json();
        assert_eq!((&both[0]["workflowRunId"], &both[1]["workflowRunId"]), (&json!("wfr_c"), &json!("wfr_c")));
        server.get("/v2/workflows/runs/wfr_d").expect(404).await;
        server.advance(10 * 60_000 + 1).await;
        server.batch(json!([unique("wfr_b")])).expect(200).await;
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn a_run_that_nothing_moves_on_ends_when_its_time_is_over() {
    for backend in Backend::ALL {
        let mut setup = Setup::dev().on(backend);
        setup.settings.workflow_max_duration = Some("1h".into());
        let server = TestServer::with(setup).await;
        let receiver = Receiver::start().await;
        // It answers, and publishes nothing.
        receiver.script("/wf", [runs::done()]);
        for id in ["wfr_a", "wfr_b"] {
            server.start_run(id, &receiver.url("/wf"), runs::config()).await;
        }
        receiver.take(2).await;
        // Both wait for the end of their time, and that of a run that has ended is not waited for.
        let is_answered = |run: &Value| run["steps"].as_array().is_some_and(|groups| groups.len() == 1);
        eventually("both are answered", || async { server.runs("").await.iter().all(is_answered).then_some(()) }).await;
        assert_eq!(server.counts().live, 2);
        server.finish_run("wfr_b").await;
        assert_eq!(server.counts().live, 1);
        let server = server.restart_after(3_600_000).await;
        server.run_in("wfr_a", "RUN_STARTED").await;
        server.advance(1).await;
        let failed = server.run_in("wfr_a", "RUN_FAILED").await;
        let error = &server.failed_runs("workflowRunId=wfr_a").await[0]["responseBody"];
        assert_eq!(error, "quota maxWorkflowDuration exceeded, current limit: 3600000 (1h)", "{failed}");
        server.run_in("wfr_b", "RUN_SUCCESS").await;
        server.finish().await;
    }
}

#[tokio::test]
async fn a_large_batch_starts_its_runs_in_pieces_in_order_and_each_name_once() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let mut items: Vec<Value> = (0..300).map(|number| start(&format!("wfr_{number}"))).collect();
        items.push(start("wfr_7"));
        let answers = server.batch(Value::Array(items)).expect(200).await.json();
        let answers = answers.as_array().expect("a list");
        let names: Vec<&str> = answers.iter().filter_map(|answer| answer["workflowRunId"].as_str()).collect();
        let expected: Vec<String> = (0..300).chain([7]).map(|number| format!("wfr_{number}")).collect();
        assert_eq!(names, expected);
        let repeated = (&answers[300]["messageId"], &answers[300]["deduplicated"]);
        assert_eq!(repeated, (&answers[7]["messageId"], &json!(true)));
        assert_eq!(server.counts().live, 300);
        let cancelled =
            server.request("DELETE", "/v2/workflows/runs").json(&json!({ "count": 1000 })).expect(200).await;
        assert_eq!(cancelled.json(), json!({ "cancelled": 300 }), "in pieces, too");
        server.finish().await;
    }
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
    assert_eq!(error, "item 0: body must be a string; write JSON as a string");
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
        ("Upstash-Retries", "many", "Upstash-Retries: \"many\" is not a number"),
        ("Upstash-Delay", "2000000000s", "quota maxDelay exceeded"),
        ("Upstash-Workflow-CallType", "toCallback", "invalid destination url"),
        ("Upstash-Workflow-CallType", "fromCallback", "Upstash-Workflow-Calltype: only the server creates"),
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
        ("/v2/trigger/group", "a workflow run needs a URL"),
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
