//! Runs of workflows with secrets in every part, in the words of their clients: each once as it is, and once hidden.

use super::messages::FIELDS;
use super::server::Stage;
use crate::support::runs::done;
use crate::support::{Reply, Request, eventually};
use serde_json::{Value, json};

/// What runs wait for: nobody brings the first, so that it can be looked at.
pub(super) const AWAITED: &str = "awaited-by-all";
const BROUGHT: &str = "brought";

/// Runs that were started, by how they end.
#[derive(Default)]
pub(super) struct StartedRuns {
    pub(super) all: Vec<String>,
    pub(super) failing: Vec<String>,
}

/// One run, and whether it hides what it gets.
#[derive(Clone)]
struct Role {
    id: String,
    is_hidden: bool,
}

impl Stage {
    pub(super) async fn run_workflows(&mut self) {
        self.receiver.script("/wf", [done()]);
        let answered = self.mint.own("answer-to-a-run");
        self.receiver.script("/wf-fails", [Reply::status(500).with_body(answered)]);
        for is_hidden in [false, true] {
            let dress = if is_hidden { "hidden" } else { "shown" };
            let going_on = Role { id: format!("wfr_{dress}"), is_hidden };
            self.start(&going_on, "/wf").await;
            self.step(&going_on).await;
            self.call(&going_on).await;
            self.be_notified(&going_on).await;
            self.be_called_back(&going_on).await;
            let failing = Role { id: format!("wfr_{dress}_failing"), is_hidden };
            self.start(&failing, "/wf-fails").await;
            let triggered = self.trigger(is_hidden).await;
            self.runs.all.extend([going_on.id, failing.id.clone(), triggered]);
            self.runs.failing.push(failing.id);
        }
        for id in &self.runs.failing {
            let failed = || async {
                let path = format!("/v2/workflows/dlq?workflowRunId={id}");
                let letters = self.server.get(&path).token(&self.canaries.token).expect(200).await.json();
                let is_told = letters["messages"][0]["failureFunctionState"] == "CALLBACK_SUCCESS";
                is_told.then_some(())
            };
            eventually("the run has failed", failed).await;
        }
    }

    /// Both runs that wait return, with a secret.
    pub(super) async fn end_workflows(&mut self) {
        for is_hidden in [false, true] {
            let id = if is_hidden { "wfr_hidden" } else { "wfr_shown" };
            let result = self.mint.part("result-of-a-run", is_hidden);
            let end = self.server.delete(&format!("/v2/workflows/runs/{id}?cancel=false"));
            end.token(&self.canaries.token).body(format!("\"{result}\"")).expect(200).await;
        }
    }

    fn post(&self, path: &str) -> Request {
        self.server.post(path).token(&self.canaries.token)
    }

    async fn append(&self, item: Value) {
        self.post("/v2/batch").json(&json!([item])).expect(200).await;
    }

    async fn start(&mut self, role: &Role, path: &str) {
        let mut part = |part: &str| self.mint.part(&format!("run-{part}"), role.is_hidden);
        let mut headers = json!({
            "Upstash-Workflow-Init": "true", "Upstash-Workflow-RunId": role.id, "Upstash-Retries": "0",
            "Upstash-Workflow-Url": self.receiver.url(path), "Upstash-Failure-Callback": self.receiver.url("/told"),
            "Upstash-Feature-Set": "LazyFetch,InitialBody,WF_DetectTrigger,WF_TriggerOnConfig",
            "Upstash-Forward-Authorization": format!("Bearer {}", part("authorization")),
            "Upstash-Forward-X-Secret": part("header"),
            "Upstash-Failure-Callback-Forward-X-Secret": part("header-of-failure"),
        });
        // Who hears of a failure may get what is hidden, though the run hides nothing.
        let of_callback = self.mint.part("header-that-only-the-failure-callback-hides", true);
        headers["Upstash-Failure-Callback-Forward-X-Own"] = of_callback.into();
        headers["Upstash-Failure-Callback-Redact-Fields"] = "header[X-Own]".into();
        if role.is_hidden {
            headers["Upstash-Redact-Fields"] = FIELDS.into();
        }
        let body = json!({ "payload": self.mint.part("run-payload", role.is_hidden) }).to_string();
        self.append(json!({ "destination": self.receiver.url(path), "body": body, "headers": headers })).await;
    }

    /// Without a client.
    async fn trigger(&mut self, is_hidden: bool) -> String {
        let request = self.post(&format!("/v2/trigger/{}", self.receiver.url("/wf")));
        let request =
            request.header("Upstash-Forward-Authorization", self.mint.part("trigger-authorization", is_hidden));
        let request = request.body(self.mint.part("trigger-payload", is_hidden));
        let request = if is_hidden { request.header("Upstash-Redact-Fields", FIELDS) } else { request };
        request.expect(200).await.json()["workflowRunId"].as_str().expect("an id is text").to_owned()
    }

    /// A step has brought something.
    async fn result(&self, role: &Role, step: Value) {
        let headers = json!({ "Upstash-Workflow-Init": "false", "Upstash-Workflow-RunId": role.id });
        let body = step.to_string();
        self.append(json!({ "destination": self.receiver.url("/wf"), "body": body, "headers": headers })).await;
    }

    async fn step(&mut self, role: &Role) {
        let out = self.mint.part("result-of-a-step", role.is_hidden);
        self.result(role, json!({ "stepId": 1, "stepName": "s", "stepType": "Run", "out": out, "concurrent": 1 }))
            .await;
    }

    /// A request that the server makes for the run, and its answer.
    async fn call(&mut self, role: &Role) {
        let mut part = |part: &str| self.mint.part(&format!("call-{part}"), role.is_hidden);
        let path = format!("/called-{}", role.id);
        self.receiver.script(&path, [Reply::status(200).with_body(part("answer"))]);
        let headers = json!({
            "Upstash-Workflow-Init": "false", "Upstash-Workflow-RunId": role.id,
            "Upstash-Workflow-CallType": "toCallback", "Upstash-Feature-Set": "WF_NoDelete,InitialBody",
            "Upstash-Callback": self.receiver.url("/wf"), "Upstash-Callback-Workflow-CallType": "fromCallback",
            "Upstash-Callback-Workflow-RunId": role.id, "Upstash-Callback-Workflow-Init": "false",
            "Upstash-Callback-Forward-Upstash-Workflow-Callback": "true",
            "Upstash-Callback-Forward-Upstash-Workflow-StepId": "2",
            "Upstash-Callback-Forward-Upstash-Workflow-StepName": "c",
            "Upstash-Callback-Forward-Upstash-Workflow-StepType": "Call",
            "Upstash-Callback-Forward-Upstash-Workflow-Concurrent": "1",
            "Upstash-Forward-Authorization": format!("Bearer {}", part("authorization")),
            "Upstash-Method": "POST", "Upstash-Retries": "0",
        });
        let body = part("body");
        self.append(json!({ "destination": self.receiver.url(&path), "body": body, "headers": headers })).await;
        self.is_answered(role).await;
        let out = self.mint.part("result-of-a-call", role.is_hidden);
        self.result(role, json!({ "stepId": 2, "stepName": "c", "stepType": "Call", "out": out, "concurrent": 1 }))
            .await;
    }

    /// Waits for two events, of which one comes. Old clients say with a wait what is to be forwarded at its end.
    async fn be_notified(&mut self, role: &Role) {
        for (number, event) in [(3, BROUGHT), (4, AWAITED)] {
            let headers = json!({
                "Upstash-Workflow-RunId": [role.id],
                "Upstash-Forward-Authorization": [self.mint.part("authorization-of-a-wait", role.is_hidden)],
                "Upstash-Failure-Callback-Forward-X-Secret": [self.mint.part("header-of-a-wait", role.is_hidden)],
            });
            let step = json!({ "stepId": number, "stepName": event, "stepType": "Wait", "concurrent": 1 });
            let body = json!({ "timeout": "1d", "timeoutHeaders": headers, "step": step });
            let wait = self.post(&format!("/v2/wait/{event}")).header("Upstash-Workflow-RunId", &role.id);
            wait.json(&body).expect(200).await;
        }
        let data = self.mint.part("data-of-an-event", role.is_hidden);
        let notified = self.post(&format!("/v2/notify/{BROUGHT}")).body(data).expect(200).await;
        assert_eq!(notified.json().as_array().map(Vec::len), Some(1), "{}", notified.text());
        self.said.push(notified.text());
        let early = self.mint.part("data-of-an-early-event", role.is_hidden);
        self.post(&format!("/v2/notify/{}/early", role.id)).body(early).expect(200).await;
    }

    /// A webhook: whoever knows the URL needs no token, so that the URL is a secret of its own.
    async fn be_called_back(&mut self, role: &Role) {
        // Names of events are no part of a message, and so not hidden.
        let event = self.mint.own("event-of-a-webhook");
        let made = json!({ "webhookUrl": format!("http://x/{event}"), "eventId": event }).to_string();
        let step = json!({ "stepId": 5, "stepName": "h", "stepType": "CreateWebhook", "out": made, "concurrent": 1 });
        self.result(role, step).await;
        let hook = self.server.post(&format!("/v2/workflows/hooks/first/{}/{event}", role.id)).without("Authorization");
        let hook = hook.header("Authorization", self.mint.part("authorization-of-a-webhook", role.is_hidden));
        hook.body(self.mint.part("body-of-a-webhook", role.is_hidden)).expect(200).await;
        let step = json!({ "stepId": 6, "stepName": "w", "stepType": "WaitForWebhook", "concurrent": 1 });
        let body = json!({ "timeout": "1d", "timeoutHeaders": { "Upstash-Workflow-RunId": [role.id] }, "step": step });
        let wait = self.post(&format!("/v2/wait/{event}")).header("Upstash-Workflow-RunId", &role.id);
        wait.json(&body).expect(200).await;
    }

    /// Waits until the answer to the call is in the log.
    async fn is_answered(&self, role: &Role) {
        let path = format!("/v2/workflows/logs?workflowRunId={}", role.id);
        let is_there = || async {
            let log = self.server.get(&path).token(&self.canaries.token).expect(200).await.text();
            log.contains("callResponseStatus").then_some(())
        };
        eventually(&format!("the call of {} is answered", role.id), is_there).await;
    }
}
