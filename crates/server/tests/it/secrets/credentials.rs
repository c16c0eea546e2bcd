//! Credentials that are stored to be sent later, by every way in: with an encryption key none of them is in the data directory,
//! and still each arrives as it was sent, its owner is shown it, and a reader sees its mark.
//!
//! The same story without a key is the control: there they are found in the files.

use super::{Place, Secret, canary, leaks};
use crate::support::runs::done;
use crate::support::server::{READ_ONLY, TOKEN, message_id};
use crate::support::{Backend, PATIENCE, Receiver, Reply, Request, Setup, TestServer, eventually};
use posthaste_wire::encoding::header_text;
use posthaste_wire::redact::CREDENTIAL_HEADERS;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

const KEY: &str = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";
/// What a callback says instead of a credential.
const WITHHELD: &str = "REDACTED";

/// A credential, and where it must arrive.
struct Sent {
    value: String,
    name: &'static str,
    path: String,
    /// Whether the API shows it at the end.
    is_shown: bool,
}

struct Story {
    server: TestServer,
    receiver: Receiver,
    sent: Vec<Sent>,
    /// Messages whose ids were told.
    messages: Vec<String>,
}

/// The names of credentials that can be forwarded.
fn names() -> impl Iterator<Item = &'static str> {
    CREDENTIAL_HEADERS.into_iter().filter(|name| *name != "proxy-authorization")
}

impl Story {
    /// A fresh credential that must arrive at a path.
    fn credential(&mut self, kind: &str, path: &str, name: &'static str) -> String {
        let value = format!("Bearer {}", canary(&format!("{kind}-{name}")));
        self.sent.push(Sent { value: value.clone(), name, path: path.to_owned(), is_shown: true });
        value
    }

    /// One that arrives and is not shown in the end.
    fn unshown(&mut self, kind: &str, path: &str, name: &'static str) -> String {
        let value = self.credential(kind, path, name);
        self.sent.last_mut().expect("it was added").is_shown = false;
        value
    }

    /// Lines with all credentials for a request to this path, and for its callback.
    fn lines(&mut self, path: &str, fails: bool) -> Vec<(String, String)> {
        let mut lines = vec![
            ("Upstash-Retries".to_owned(), "0".to_owned()),
            ("Upstash-Callback".to_owned(), self.receiver.url(&format!("{path}-callback"))),
            ("Upstash-Failure-Callback".to_owned(), self.receiver.url(&format!("{path}-failed"))),
        ];
        for name in names() {
            let mut add = |prefix: &str, at: String| {
                let value = self.credential(&format!("{prefix}{path}").replace('/', "-"), &at, name);
                lines.push((format!("Upstash-{prefix}Forward-{name}"), value));
            };
            add("", path.to_owned());
            add("Callback-", format!("{path}-callback"));
            if fails {
                add("Failure-Callback-", format!("{path}-failed"));
            }
        }
        lines
    }

    fn dressed(&mut self, request: Request, path: &str, fails: bool) -> Request {
        self.lines(path, fails).iter().fold(request, |request, (name, value)| request.header(name, value))
    }

    fn object(&mut self, path: &str, fails: bool) -> Value {
        let lines = self.lines(path, fails).into_iter();
        lines.map(|(name, value)| (name, Value::from(value))).collect::<Map<String, Value>>().into()
    }

    async fn publish(&mut self, path: &str, fails: bool) {
        let request = self.server.publish(&self.receiver.url(path));
        let id = message_id(&self.dressed(request, path, fails).body("x").expect(200).await);
        self.messages.push(id);
    }

    async fn publish_in_every_way(&mut self) {
        self.publish("/publish", false).await;
        self.publish("/fails", true).await;
        let items = json!([
            { "destination": self.receiver.url("/batch"), "headers": self.object("/batch", false), "body": "x" },
            { "destination": self.receiver.url("/batched"), "queue": "batched", "headers": self.object("/batched", false) },
        ]);
        self.server.post("/v2/batch").json(&items).expect(200).await;
        let bytes = [canary("latin").as_bytes(), b" caf\xe9"].concat();
        let value = header_text(&bytes).into_owned();
        self.sent.push(Sent { value, name: "authorization", path: "/latin".to_owned(), is_shown: false });
        let latin = self.server.publish(&self.receiver.url("/latin"));
        latin.header("Upstash-Forward-Authorization", bytes).expect(200).await;
        let mut all = self.server.publish(&self.receiver.url("/plain")).header("Upstash-Header-Forward", "true");
        for name in ["cookie", "x-api-key"] {
            all = all.header(name, self.credential("plain", "/plain", name));
        }
        all.expect(200).await;
        let model = self.server.publish("api/llm").header("Upstash-Callback", self.receiver.url("/llm-callback"));
        let model = model.header("Upstash-Forward-Cookie", self.credential("llm", "/v1/chat/completions", "cookie"));
        let of_callback = self.credential("llm-callback", "/llm-callback", "authorization");
        let model = model.header("Upstash-Callback-Forward-Authorization", of_callback);
        model.json(&json!({ "messages": [] })).expect(200).await;
    }

    /// To a group, whose default headers are credentials; each endpoint gets them.
    async fn publish_to_group(&mut self) {
        let endpoints = json!({ "endpoints": [{ "url": self.receiver.url("/group") }] });
        self.server.post("/v2/topics/group/endpoints").json(&endpoints).expect(200).await;
        let mut headers = json!({ "Upstash-Header-Forward": "true", "Upstash-Retries": "0" });
        for name in names() {
            headers[format!("Upstash-Forward-{name}")] = self.credential("group", "/group", name).into();
        }
        let body = json!({ "headers": headers });
        self.server.request("PATCH", "/v2/topics/group").json(&body).expect(200).await;
        self.server.publish("group").body("x").expect(200).await;
        let items = json!([{ "destination": "group", "body": "from a batch" }]);
        self.server.post("/v2/batch").json(&items).expect(200).await;
        self.server.schedule_with("group", &[("Upstash-Cron", "* * * * *")], "scheduled").await;
    }

    /// What waits over the restart.
    async fn publish_for_later(&mut self) {
        let queue = json!({ "queueName": "queue", "parallelism": 1, "paused": true });
        self.server.post("/v2/queues").json(&queue).expect(200).await;
        let queued = self.server.enqueue("queue", &self.receiver.url("/queued"));
        self.dressed(queued, "/queued", false).expect(200).await;
        let delayed = self.server.publish(&self.receiver.url("/delayed")).header("Upstash-Delay", "30s");
        self.dressed(delayed, "/delayed", false).expect(200).await;
        let schedule = self.server.post(&format!("/v2/schedules/{}", self.receiver.url("/scheduled")));
        let schedule = self.dressed(schedule, "/scheduled", false).header("Upstash-Cron", "* * * * *");
        schedule.body("x").expect(201).await;
    }

    async fn append(&self, path: &str, headers: Value, body: String) {
        let item = json!([{ "destination": self.receiver.url(path), "headers": headers, "body": body }]);
        self.server.post("/v2/batch").json(&item).expect(200).await;
    }

    async fn start_run(&mut self, id: &str, path: &str, names: &[&'static str], fails: bool) {
        let mut headers = json!({
            "Upstash-Workflow-Init": "true", "Upstash-Workflow-RunId": id, "Upstash-Retries": "0",
            "Upstash-Workflow-Url": self.receiver.url(path), "Upstash-Failure-Callback": self.receiver.url("/wf-failed"),
            "Upstash-Feature-Set": "LazyFetch,InitialBody,WF_DetectTrigger,WF_TriggerOnConfig",
        });
        for name in names {
            headers[format!("Upstash-Forward-{name}")] = self.credential(&format!("run-{id}"), path, name).into();
            if fails {
                let value = self.credential(&format!("failure-{id}"), "/wf-failed", name);
                headers[format!("Upstash-Failure-Callback-Forward-{name}")] = value.into();
            }
        }
        self.append(path, headers, "{}".to_owned()).await;
    }

    async fn run_workflows(&mut self) {
        for path in ["/wf", "/wf-waits", "/wf-old", "/wf-child", "/wf-triggered"] {
            self.receiver.script(path, [done()]);
        }
        self.start_run("wfr_a", "/wf", &["authorization", "cookie"], false).await;
        self.start_run("wfr_waits", "/wf-waits", &[], false).await;
        self.start_run("wfr_fails", "/wf-fails", &["authorization", "x-api-key"], true).await;
        let triggered = self.server.post(&format!("/v2/trigger/{}", self.receiver.url("/wf-triggered")));
        let value = self.credential("trigger", "/wf-triggered", "authorization");
        triggered.header("Upstash-Forward-Authorization", value).body("{}").expect(200).await;
        self.call().await;
        self.step_of_an_old_client().await;
        self.wait().await;
        self.invoke().await;
    }

    /// A request that the server makes for a run, and the delivery of its result.
    async fn call(&mut self) {
        let headers = json!({
            "Upstash-Workflow-Init": "false", "Upstash-Workflow-RunId": "wfr_a",
            "Upstash-Workflow-CallType": "toCallback", "Upstash-Feature-Set": "WF_NoDelete,InitialBody",
            "Upstash-Callback": self.receiver.url("/wf"), "Upstash-Callback-Workflow-CallType": "fromCallback",
            "Upstash-Callback-Workflow-RunId": "wfr_a", "Upstash-Callback-Workflow-Init": "false",
            "Upstash-Callback-Forward-Upstash-Workflow-Callback": "true",
            "Upstash-Callback-Forward-Upstash-Workflow-StepId": "2",
            "Upstash-Callback-Forward-Upstash-Workflow-StepName": "c",
            "Upstash-Callback-Forward-Upstash-Workflow-StepType": "Call",
            "Upstash-Callback-Forward-Upstash-Workflow-Concurrent": "1",
            "Upstash-Callback-Forward-X-Api-Key": self.unshown("result-of-a-call", "/wf", "x-api-key"),
            "Upstash-Forward-Authorization": self.credential("call", "/called", "authorization"),
            "Upstash-Method": "POST", "Upstash-Retries": "0",
        });
        self.append("/called", headers, "x".to_owned()).await;
    }

    /// Old clients say with every step what it is delivered with, and who hears of a failure.
    async fn step_of_an_old_client(&mut self) {
        let start = json!({
            "Upstash-Workflow-Init": "true", "Upstash-Workflow-RunId": "wfr_old", "Upstash-Retries": "0",
            "Upstash-Workflow-Url": self.receiver.url("/wf-old"),
        });
        self.append("/wf-old", start, "{}".to_owned()).await;
        let mut headers = json!({
            "Upstash-Workflow-Init": "false", "Upstash-Workflow-RunId": "wfr_old",
            "Upstash-Failure-Callback": self.receiver.url("/old-failed"),
        });
        for name in names() {
            headers[format!("Upstash-Forward-{name}")] = self.unshown("step", "/wf-old", name).into();
        }
        let never_sent = format!("Bearer {}", canary("failure-of-a-step"));
        headers["Upstash-Failure-Callback-Forward-Authorization"] = never_sent.as_str().into();
        self.sent.push(Sent { value: never_sent, name: "", path: String::new(), is_shown: false });
        let step = json!({ "stepId": 1, "stepName": "s", "stepType": "Run", "out": "1", "concurrent": 1 });
        self.append("/wf-old", headers, step.to_string()).await;
    }

    /// Two waits: one is over after the restart. It is the later step, so that its result is delivered.
    async fn wait(&mut self) {
        for (number, event) in [(1, "never"), (2, "comes")] {
            let value = match event {
                "comes" => self.unshown("wait", "/wf-waits", "x-auth-token"),
                _ => self.credential("open-wait", "", "x-auth-token"),
            };
            let headers = json!({ "Upstash-Workflow-RunId": ["wfr_waits"], "Upstash-Forward-X-Auth-Token": [value] });
            let step = json!({ "stepId": number, "stepName": event, "stepType": "Wait", "concurrent": 1 });
            let body = json!({ "timeout": "1d", "timeoutHeaders": headers, "step": step });
            let wait = self.server.post(&format!("/v2/wait/{event}")).header("Upstash-Workflow-RunId", "wfr_waits");
            wait.json(&body).expect(200).await;
        }
    }

    async fn invoke(&mut self) {
        let step = json!({ "stepId": 5, "stepName": "i", "stepType": "Invoke", "concurrent": 1 });
        let value = self.unshown("result-of-an-invoke", "/wf", "set-cookie");
        let envelope = json!({
            "body": "{}", "workflowRunId": "wfr_a", "workflowUrl": self.receiver.url("/wf"), "step": step,
            "headers": { "Upstash-Forward-Set-Cookie": value },
        });
        let about = [
            ("Upstash-Workflow-Init", "true"),
            ("Upstash-Workflow-Invoke", "true"),
            ("Upstash-Workflow-RunId", "wfr_child"),
        ];
        let value = self.credential("child", "/wf-child", "authorization");
        let invoke = self.server.publish(&self.receiver.url("/wf-child")).headers(&about);
        invoke.header("Upstash-Forward-Authorization", value).json(&envelope).expect(200).await;
    }

    /// Lets everything go that waits.
    async fn let_go(&mut self) {
        self.server.post("/v2/queues/queue/resume").expect(200).await;
        self.server.advance(60_000).await;
        let notified = self.server.post("/v2/notify/comes").body("x").expect(200).await.text();
        let of_wait = self.sent.iter().find(|sent| sent.value.contains("canary-wait-")).expect("it waited");
        assert!(notified.contains(&of_wait.value), "who notifies is shown the wait: {notified}");
        self.server.delete("/v2/workflows/runs/wfr_child?cancel=false").body("\"ok\"").expect(200).await;
    }

    /// Dead letters and failed runs again, with other credentials.
    async fn send_again(&mut self) {
        let letter = self.server.dead_letter_of(&self.messages[1]).await;
        let dlq_id = letter["dlqId"].as_str().expect("an id").to_owned();
        let value = self.unshown("dlq-retry", "/fails", "authorization");
        let again = self.server.post(&format!("/v2/dlq/retry/{dlq_id}")).header("Upstash-Forward-Authorization", value);
        let again = message_id(&again.header("Upstash-Retries", "0").expect(201).await);
        self.server.dead_letter_of(&again).await;
        let value = self.unshown("bulk-retry", "/fails", "x-api-key");
        let of_callback = self.credential("bulk-retry-callback", "/bulk-callback", "cookie");
        let bulk = self.server.post("/v2/dlq/retry?async=true").header("Upstash-Forward-X-Api-Key", value);
        let bulk = bulk.header("Upstash-Callback", self.receiver.url("/bulk-callback"));
        let bulk = bulk.header("Upstash-Callback-Forward-Cookie", of_callback);
        bulk.expect(202).await;

        let failed = eventually("a failed run", || async {
            self.server.failed_runs("workflowRunId=wfr_fails").await.into_iter().next()
        });
        let dlq_id = failed.await["dlqId"].as_str().expect("an id").to_owned();
        let value = self.credential("restart", "/restart-failed", "authorization");
        let restart = self.server.post(&format!("/v2/workflows/dlq/restart/{dlq_id}"));
        let restart = restart.header("Upstash-Failure-Callback", self.receiver.url("/restart-failed"));
        restart.header("Upstash-Failure-Callback-Forward-Authorization", value).expect(200).await;
    }

    /// Waits until every credential has arrived where it must, exactly.
    async fn all_arrive(&self) {
        self.receiver.rewind();
        let mut missing: Vec<&Sent> = self.sent.iter().filter(|sent| !sent.path.is_empty()).collect();
        while !missing.is_empty() {
            let Ok(delivery) = timeout(PATIENCE / 2, self.receiver.next()).await else {
                let missing: Vec<_> = missing.iter().map(|sent| (&sent.path, sent.name, &sent.value)).collect();
                panic!("these did not arrive: {missing:#?}");
            };
            missing.retain(|sent| delivery.target != sent.path || delivery.all(sent.name) != [sent.value.as_str()]);
        }
        self.receiver.rewind();
        for delivery in self.receiver.take(self.receiver.count()).await {
            let values = delivery.headers.iter().map(|(_, value)| value.as_str());
            assert!(!values.chain([delivery.text().as_str()]).any(|text| text.contains("sealed:")), "{delivery:?}");
        }
    }

    /// All that a token can see.
    async fn look(&self, token: &str) -> String {
        let mut paths = [
            "/v2/events?count=1000",
            "/v2/dlq",
            "/v2/schedules",
            "/v2/topics/group",
            "/v2/waiters/never",
            "/v2/workflows/logs",
            "/v2/workflows/dlq",
            "/v2/bulkActions",
        ]
        .map(str::to_owned)
        .to_vec();
        paths.extend(self.messages.iter().map(|id| format!("/v2/messages/{id}")));
        let mut all = String::new();
        for path in paths {
            let answer = self.server.get(&path).token(token).send().await;
            // A dead letter that was sent again is gone.
            assert!([200, 404].contains(&answer.status), "{path}: {}", answer.text());
            all += &answer.text();
        }
        all
    }
}

async fn tell(backend: Backend, key: Option<&str>) {
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    receiver.script("/wf-fails", [Reply::status(500)]);
    let mut setup = Setup::serve().on(backend);
    setup.settings.encryption_key = key.map(str::to_owned);
    setup.settings.llm_url = Some(format!("http://{}/v1/", receiver.address()));
    let server = TestServer::with(setup).await;
    let mut story = Story { server, receiver, sent: Vec::new(), messages: Vec::new() };
    story.publish_in_every_way().await;
    story.publish_to_group().await;
    story.publish_for_later().await;
    story.run_workflows().await;
    story.server = story.server.restart().await;
    story.let_go().await;
    story.all_arrive().await;
    let (mut shown, mut marked) = (story.look(TOKEN).await, story.look(READ_ONLY).await);
    story.send_again().await;
    story.all_arrive().await;
    shown += &story.look(TOKEN).await;
    marked += &story.look(READ_ONLY).await;
    for sent in story.sent.iter().filter(|sent| sent.is_shown) {
        assert!(shown.contains(&sent.value), "{key:?}: {} is not shown", sent.value);
        let mark = story.server.mark(&sent.value);
        assert!(marked.contains(&mark), "{key:?}: no mark of {}", sent.value);
        assert!(!marked.contains(&sent.value), "{key:?}: a reader sees {}", sent.value);
    }
    assert!(!shown.contains("sealed:") && !marked.contains("sealed:"), "{key:?}: what is stored is never shown");
    story.receiver.rewind();
    let callbacks = story.receiver.take(story.receiver.count()).await;
    let callback = callbacks.iter().find(|delivery| delivery.target == "/publish-callback").expect("it was called");
    let source: Value = serde_json::from_slice(&callback.body).expect("a callback is JSON");
    let source = source["sourceHeader"]["Authorization"][0].as_str().expect("it names the header");
    assert_eq!(source == WITHHELD, key.is_some(), "a callback tells of a credential: {source}");

    let canaries: Vec<Secret> = story.sent.iter().map(|sent| secret(&sent.value)).collect();
    let Story { server, receiver, .. } = story;
    let files = server.stop_and_read_files().await;
    let leaks = leaks(&canaries, &[(Place::Files, files)]);
    match key {
        Some(_) => assert!(leaks.is_empty(), "{backend:?}: {} leaks:\n{}", leaks.len(), leaks.join("\n")),
        None => {
            assert!(leaks.len() * 10 > canaries.len() * 9, "{} of {} are in the files", leaks.len(), canaries.len())
        }
    }
    drop(receiver);
}

/// The part of a value that nobody else has.
fn secret(value: &str) -> Secret {
    let text = value.trim_start_matches("Bearer ").split(' ').next().unwrap_or_default();
    Secret { text: text.to_owned(), allowed: &[] }
}

#[tokio::test]
async fn stored_credentials_leave_no_trace_on_the_disk_and_arrive_as_they_were_sent() {
    for backend in [Backend::Journal, Backend::Sqlite] {
        tell(backend, Some(KEY)).await;
    }
}

#[tokio::test]
async fn without_a_key_the_same_credentials_are_found_on_the_disk() {
    tell(Backend::Journal, None).await;
}
