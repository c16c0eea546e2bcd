//! Bodies of runs: they are in the store alone and read when they are sent, so that a restart changes no byte.

use crate::support::runs::{config, done, with_failure_function};
use crate::support::{Backend, Delivery, Receiver, Reply, Setup, TestServer, eventually};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_engine::workflow::run::{FailureCall, RunConfig};
use posthaste_wire::workflow::Features;
use serde_json::{Value, json};

/// Two of them make a list longer than what the core remembers.
const LARGE: usize = 600_000;

/// A client that never fetches the list by itself.
fn plain() -> RunConfig {
    RunConfig { features: Features { initial_body: true, ..Features::default() }, ..config() }
}

fn step(number: u32, bytes: usize) -> Value {
    json!({ "stepId": number, "stepName": "s", "stepType": "Run", "out": "x".repeat(bytes), "concurrent": 1 })
}

/// What a client that fetches the list gets.
async fn fetched(server: &TestServer, run: &str) -> Vec<u8> {
    server.get(&format!("/v2/workflows/runs/{run}")).expect(200).await.body
}

async fn appended(server: &TestServer, receiver: &Receiver, run: &str, step: Value) -> Delivery {
    server.append_step(run, &step).await;
    receiver.next().await
}

#[tokio::test]
async fn a_list_is_sent_whole_whether_it_is_remembered_or_not() {
    for backend in Backend::ALL {
        let mut server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [done()]);
        for run in ["wfr_long", "wfr_short"] {
            server.start_run(run, &receiver.url("/wf"), plain()).await;
            receiver.next().await;
        }
        for number in 1..=4 {
            for (run, bytes) in [("wfr_long", LARGE), ("wfr_short", 10)] {
                let delivery = appended(&server, &receiver, run, step(number, bytes)).await;
                let whole = fetched(&server, run).await;
                assert!(delivery.body == whole, "{backend:?}: {run} gets another list with step {number}");
                let list: Vec<Value> = serde_json::from_slice(&whole).expect("a list");
                assert_eq!(list.len(), number as usize + 1);
                let last = STANDARD.decode(list[number as usize]["body"].as_str().expect("a body")).expect("base64");
                assert_eq!(last, step(number, bytes).to_string().into_bytes());
            }
            if number % 2 == 0 {
                server = server.restart().await;
            }
        }
        // What was said before a restart is known to have been said.
        server.append_step("wfr_long", &step(2, LARGE)).await;
        let entries: Vec<Value> = serde_json::from_slice(&fetched(&server, "wfr_long").await).expect("a list");
        assert_eq!(entries.len(), 5);
        for run in ["wfr_long", "wfr_short"] {
            server.finish_run(run).await;
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn a_failure_is_told_alike_each_time() {
    for features in [Features { initial_body: true, ..Features::default() }, Features::default()] {
        let server = TestServer::start().await;
        let receiver = Receiver::start().await;
        let call = FailureCall { retries: Some(1), retry_delay: Some("1000".into()), ..FailureCall::default() };
        let base = with_failure_function(receiver.url("/failed"));
        let failure = base.failure.clone().map(|told| FailureCall { url: told.url, ..call });
        receiver.script("/wf", [done(), Reply::status(500).with_body("boom")]);
        receiver.script("/failed", [Reply::status(500), done()]);
        server.start_run("wfr_1", &receiver.url("/wf"), RunConfig { features, failure, ..base }).await;
        receiver.next().await;
        let failed = appended(&server, &receiver, "wfr_1", step(1, LARGE)).await;
        let first = receiver.next().await;
        let told: Value = serde_json::from_slice(&first.body).expect("JSON");
        let source = STANDARD.decode(told["sourceBody"].as_str().expect("a body")).expect("base64");
        match features.initial_body {
            true => assert_eq!(source, b"{\"order\":7}"),
            false => assert!(source == failed.body, "the list that was sent"),
        }
        assert_eq!((&told["status"], &told["body"]), (&json!(500), &json!(STANDARD.encode("boom"))));
        eventually("its failure is stored", || async {
            let run = server.runs("workflowRunId=wfr_1").await.remove(0);
            run["failureFunction"]["errors"].is_array().then_some(())
        })
        .await;
        let server = server.restart_after(2_000).await;
        let second = receiver.next().await;
        assert!(second.target == "/failed" && second.body == first.body, "every byte is the same");
        server.finish().await;
    }
}

#[tokio::test]
async fn an_event_that_was_kept_survives_a_restart() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [done()]);
        server.start_run("wfr_1", &receiver.url("/wf"), plain()).await;
        receiver.next().await;
        for data in ["one", "two"] {
            server.post("/v2/notify/wfr_1/early").body(data).expect(200).await;
        }
        let wait = |number: u32| json!({ "stepId": number, "stepName": "w", "stepType": "Wait", "concurrent": 1 });
        let out = |delivery: &Delivery| {
            let list: Vec<Value> = serde_json::from_slice(&delivery.body).expect("a list");
            let step = STANDARD.decode(list[list.len() - 1]["body"].as_str().expect("a body")).expect("base64");
            let step: Value = serde_json::from_slice(&step).expect("a step");
            STANDARD.decode(step["out"].as_str().expect("an event")).expect("base64")
        };
        server.wait_in("wfr_1", "early", wait(1)).await;
        assert_eq!(out(&receiver.next().await), b"one");
        let server = server.restart().await;
        server.wait_in("wfr_1", "early", wait(2)).await;
        assert_eq!(out(&receiver.next().await), b"two", "{backend:?}");
        server.finish_run("wfr_1").await;
        server.finish().await;
    }
}
