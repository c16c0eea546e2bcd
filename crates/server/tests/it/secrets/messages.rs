//! Messages with secrets in every part, by every way in: each once as it is, and once hidden.

use super::server::Stage;
use crate::support::Request;
use crate::support::server::message_id;
use serde_json::{Value, json};

/// What is hidden of those that hide something.
pub(super) const FIELDS: &str = "body, header[Authorization], header[X-Secret]";

/// What was made, by how it can be asked for.
#[derive(Default)]
pub(super) struct Made {
    /// All messages whose ids were told.
    pub(super) messages: Vec<String>,
    /// Those of them that end in the DLQ.
    pub(super) failing: Vec<String>,
    pub(super) schedules: Vec<String>,
}

/// Names of what is made besides.
pub(super) const QUEUE: &str = "queue";
pub(super) const GROUP: &str = "group";
pub(super) const KEY: &str = "key";

impl Stage {
    /// A request of the first tenant, with secrets in all that can be hidden: the body, what is forwarded, and what goes
    /// along with callbacks.
    fn dressed(&mut self, request: Request, kind: &str, is_hidden: bool) -> Request {
        let mut part = |part: &str| self.mint.part(&format!("{kind}-{part}"), is_hidden);
        let request = request
            .header("Upstash-Forward-Authorization", format!("Bearer {}", part("authorization")))
            .header("Upstash-Forward-X-Secret", part("header"))
            .header("Upstash-Callback-Forward-X-Secret", part("header-of-callback"))
            .header("Upstash-Failure-Callback-Forward-Authorization", part("authorization-of-failure-callback"))
            .body(part("body"));
        let request = request.token(&self.canaries.token).header("Upstash-Retries", "0");
        let request = request.header("Upstash-Callback", self.receiver.url("/callback"));
        let request = request.header("Upstash-Failure-Callback", self.receiver.url("/failure-callback"));
        match is_hidden {
            true => request.header("Upstash-Redact-Fields", FIELDS),
            false => request,
        }
    }

    /// Sends it, and remembers the ids of the messages it has made.
    async fn publish(&mut self, request: Request) -> Vec<String> {
        let answer = request.expect(200).await;
        let ids: Vec<String> = match answer.json() {
            Value::Array(all) => all.iter().filter_map(|one| Some(one["messageId"].as_str()?.to_owned())).collect(),
            _ => vec![message_id(&answer)],
        };
        assert!(!ids.is_empty(), "{}", answer.text());
        self.made.messages.extend(ids.iter().cloned());
        ids
    }

    /// What goes out at once.
    pub(super) async fn publish_in_every_way(&mut self) {
        for is_hidden in [false, true] {
            let in_query = self.mint.own("query");
            for (kind, path) in [("publish", "/"), ("failing", "/fails"), ("closing", "/closes")] {
                let url = self.receiver.url(&format!("{path}?secret={in_query}"));
                let request = self.dressed(self.server.publish(&url), kind, is_hidden);
                let ids = self.publish(request).await;
                if path != "/" {
                    self.made.failing.extend(ids);
                }
            }
            let flow = [("Upstash-Flow-Control-Key", KEY), ("Upstash-Flow-Control-Value", "rate=100")];
            let request = self.dressed(self.server.publish(&self.receiver.url("/")), "keyed", is_hidden);
            self.publish(request.headers(&flow)).await;
            self.publish_batch(is_hidden).await;
            self.publish_to_group(is_hidden).await;
            self.try_the_test_receiver(is_hidden).await;
        }
        self.publish_with_secrets_of_our_own().await;
    }

    async fn publish_batch(&mut self, is_hidden: bool) {
        let mut part = |part: &str| self.mint.part(&format!("batch-{part}"), is_hidden);
        let mut headers = json!({ "Upstash-Forward-Authorization": part("authorization"), "Upstash-Retries": "0" });
        if is_hidden {
            headers["Upstash-Redact-Fields"] = FIELDS.into();
        }
        let item = json!({ "destination": self.receiver.url("/fails"), "body": part("body"), "headers": headers });
        let request = self.server.post("/v2/batch").token(&self.canaries.token).json(&json!([item]));
        let ids = self.publish(request).await;
        self.made.failing.extend(ids);
    }

    /// To a group whose own headers hold a secret, which its owner may see there.
    async fn publish_to_group(&mut self, is_hidden: bool) {
        let token = self.canaries.token.clone();
        let endpoints = json!({ "endpoints": [{ "name": "a", "url": self.receiver.url("/") }] });
        self.server.post(&format!("/v2/topics/{GROUP}/endpoints")).token(&token).json(&endpoints).expect(200).await;
        let own = json!({ "headers": { "Upstash-Forward-X-Group": self.mint.own("header-of-a-group") } });
        self.server.request("PATCH", &format!("/v2/topics/{GROUP}")).token(&token).json(&own).expect(200).await;
        let request = self.dressed(self.server.publish(GROUP), "group", is_hidden);
        self.publish(request).await;
    }

    async fn try_the_test_receiver(&mut self, is_hidden: bool) {
        let url = self.server.get("/v2/receiver").token(&self.canaries.token).expect(200).await.json()["url"].clone();
        let destination = self.server.publish(url.as_str().expect("a URL is text"));
        let request = self.dressed(destination, "test-receiver", is_hidden);
        let ids = self.publish(request).await;
        let came = || async {
            let received = self.server.get("/v2/receiver").token(&self.canaries.token).expect(200).await.text();
            received.contains(&ids[0]).then_some(())
        };
        crate::support::eventually("the test receiver got it", came).await;
    }

    /// The token in the query or with all headers forwarded, a deduplication id, the operator's language model.
    async fn publish_with_secrets_of_our_own(&mut self) {
        let token = self.canaries.token.clone();
        let dedup_id = self.mint.never("deduplication-id");
        let query = format!("?secret={}&qstash_token={token}", self.mint.own("query"));
        let by_query = self.server.publish(&self.receiver.url(&format!("/{query}"))).without("Authorization");
        let by_query = by_query.header("Upstash-Deduplication-Id", dedup_id).body(self.mint.own("body"));
        self.publish(by_query).await;
        let all = self.server.publish(&self.receiver.url("/")).token(&token).header("Upstash-Header-Forward", "true");
        let all = all.header("X-Secret", self.mint.own("plain-header"));
        self.publish(all).await;
        let model = self.server.publish("api/llm").token(&token).header("Upstash-Callback", self.receiver.url("/"));
        let model = model.json(&json!({ "messages": [self.mint.own("prompt")] }));
        self.publish(model).await;
    }

    /// What waits: in a queue that is paused, for its time, in a schedule.
    pub(super) async fn publish_for_later(&mut self) {
        let token = self.canaries.token.clone();
        let queue = json!({ "queueName": QUEUE, "parallelism": 1, "paused": true });
        self.server.post("/v2/queues").token(&token).json(&queue).expect(200).await;
        for is_hidden in [false, true] {
            let url = self.receiver.url("/");
            let queued = self.dressed(self.server.enqueue(QUEUE, &url), "queued", is_hidden);
            self.publish(queued).await;
            let delayed = self.dressed(self.server.publish(&url), "delayed", is_hidden);
            self.publish(delayed.header("Upstash-Delay", "30s")).await;
            for destination in [url.as_str(), GROUP] {
                let schedule = self.server.post(&format!("/v2/schedules/{destination}"));
                let schedule = self.dressed(schedule, "schedule", is_hidden).header("Upstash-Cron", "* * * * *");
                let made = schedule.expect(201).await.json();
                self.made.schedules.push(made["scheduleId"].as_str().expect("an id is text").to_owned());
            }
        }
    }

    /// Lets everything go that waits; the clock stands still afterwards.
    pub(super) async fn let_go(&self) {
        let token = &self.canaries.token;
        self.server.post(&format!("/v2/queues/{QUEUE}/resume")).token(token).expect(200).await;
        self.server.advance(60_000).await;
        for id in &self.made.schedules {
            let fired = || async {
                let lines = self.server.get(&format!("/v2/events?scheduleId={id}&state=DELIVERED")).token(token);
                let lines = lines.expect(200).await.json();
                lines["events"].as_array().is_some_and(|lines| !lines.is_empty()).then_some(())
            };
            crate::support::eventually("the schedule has fired", fired).await;
        }
    }
}
