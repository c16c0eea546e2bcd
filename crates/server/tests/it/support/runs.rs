//! Runs of workflows, told to the core directly: these stories are about what can be seen of them.

use super::server::TestServer;
use super::{Receiver, Reply, eventually};
use bytes::Bytes;
use posthaste::core::{Room, RunKey, StartRun, Started};
use posthaste_engine::workflow::entry::OwnTerms;
use posthaste_engine::workflow::run::{FailureCall, RunConfig};
use posthaste_engine::workflow::{NewEntry, WaitFor};
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::Features;
use serde_json::{Value, json};

/// What is chosen for a run unless the test says otherwise.
pub(crate) fn config() -> RunConfig {
    RunConfig { features: Features::OF_TRIGGER, retries: 0, caller_ip: "127.0.0.1".into(), ..RunConfig::default() }
}

/// The same, with somebody who hears of its failure.
pub(crate) fn with_failure_function(url: String) -> RunConfig {
    RunConfig { failure: Some(FailureCall { url, ..FailureCall::default() }), ..config() }
}

/// What a workflow answers when all is well.
pub(crate) fn done() -> Reply {
    Reply::status(200).with_header("Upstash-Workflow-Sdk-Version", "1")
}

/// A step that has brought something.
pub(crate) fn result(number: u32, name: &str) -> Value {
    json!({ "stepId": number, "stepName": name, "stepType": "Run", "out": "1", "concurrent": 1 })
}

fn key(id: &str) -> RunKey {
    RunKey { id: id.to_owned(), created_at: None }
}

impl TestServer {
    pub(crate) async fn start_run(&self, id: &str, url: &str, config: RunConfig) -> Started {
        let protocol = vec![("Upstash-Workflow-Sdk-Version".to_owned(), "1".to_owned())];
        let run = StartRun {
            id: id.to_owned(),
            url: url.to_owned(),
            config,
            first: NewEntry::step(Bytes::from_static(b"{\"order\":7}"), protocol, Timestamp(0)),
            dedup: None,
            is_by_client: false,
            invoked_by: None,
        };
        let started = self.core().start_runs(self.tenant(), vec![run], Room::default()).await;
        started.expect("the core answers").expect("it is accepted").remove(0)
    }

    pub(crate) async fn append_step(&self, run: &str, step: &Value) {
        let entry = NewEntry::step(Bytes::from(step.to_string()), Vec::new(), Timestamp(0));
        let appended = self.core().append(self.tenant(), key(run), vec![entry], Room::default()).await;
        appended.expect("the core answers").expect("it is accepted");
    }

    pub(crate) async fn wait_in(&self, run: &str, event: &str, step: Value) {
        let wait = WaitFor {
            event: event.to_owned(),
            step: step.as_object().expect("a step is an object").clone(),
            timeout: "1h".to_owned(),
            timeout_ms: 3_600_000,
            headers: vec![("Upstash-Workflow-RunId".to_owned(), vec![run.to_owned()])],
            terms: OwnTerms::default(),
        };
        let waited = self.core().wait_for_event(self.tenant(), key(run), wait, Room::default()).await;
        waited.expect("the core answers").expect("it is accepted");
    }

    pub(crate) async fn finish_run(&self, run: &str) {
        self.core().finish_run(self.tenant(), key(run), Some("\"ok\"".to_owned())).await.expect("the core answers");
    }

    /// The runs that a query selects, in the order of the answer.
    pub(crate) async fn runs(&self, query: &str) -> Vec<Value> {
        let answer = self.get(&format!("/v2/workflows/logs?{query}")).expect(200).await.json();
        answer["runs"].as_array().expect("runs are a list").clone()
    }

    /// The newest run of a name, as soon as it is in this state.
    pub(crate) async fn run_in(&self, id: &str, state: &str) -> Value {
        let query = format!("workflowRunId={id}");
        let is_so = |run: &Value| run["workflowState"] == state;
        eventually(&format!("{id} is {state}"), || async { self.runs(&query).await.into_iter().next().filter(is_so) })
            .await
    }

    /// The failed runs that a query selects, in the order of the answer.
    pub(crate) async fn failed_runs(&self, query: &str) -> Vec<Value> {
        let answer = self.get(&format!("/v2/workflows/dlq?{query}")).expect(200).await.json();
        answer["messages"].as_array().expect("failed runs are a list").clone()
    }

    /// Starts a run whose first delivery fails, and gives it as the DLQ shows it.
    pub(crate) async fn failed_run(&self, receiver: &Receiver, id: &str, path: &str, config: RunConfig) -> Value {
        receiver.script(path, [Reply::status(500).with_body("boom")]);
        self.start_run(id, &receiver.url(path), config).await;
        self.run_in(id, "RUN_FAILED").await;
        self.failed_runs(&format!("workflowRunId={id}")).await.remove(0)
    }
}
