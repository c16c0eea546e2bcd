//! All that can be looked at: answers of the API, its streams, pages of the console. Once for the owner, once for another
//! tenant, who must find nothing.

use super::messages::{GROUP, KEY, QUEUE};
use super::runs::AWAITED;
use super::server::Stage;
use crate::console::Browser;
use crate::support::{Answer, EventStream, within};
use serde_json::Value;

/// Lists, and what stands for all of a tenant.
const LISTS: [&str; 22] = [
    "/v2/logs",
    "/v2/events?groupBy=messageId",
    "/v1/events?order=earliestFirst",
    "/v2/stats",
    "/v2/dlq",
    "/v2/dlq/messages",
    "/v2/dlq/causes",
    "/v2/queues",
    "/v2/schedules",
    "/v1/schedules",
    "/v2/topics",
    "/v2/flowControl",
    "/v2/globalParallelism",
    "/v2/bulkActions",
    "/v2/receiver",
    "/v2/settings",
    "/v2/workflows/logs?usage=true",
    "/v2/workflows/events",
    "/v2/workflows/events?groupBy=workflowRunId",
    "/v2/workflows/dlq",
    "/health",
    "/ready",
];

/// Pages that are always there.
const PAGES: [&str; 19] = [
    "",
    "/messages",
    "/tail",
    "/dlq",
    "/dlq/entries",
    "/dlq/background",
    "/dlq/retry?what=all",
    "/queues",
    "/flow-control",
    "/schedules",
    "/schedules/make/new",
    "/url-groups",
    "/workflows",
    "/workflows/failed",
    "/workflows/failed/all",
    "/send",
    "/send/received",
    "/settings",
    "/login",
];

impl Stage {
    /// Whatever a tenant can ask for, but for its signing keys, and for the entries of runs that a client fetches to execute
    /// them: these are the originals.
    async fn paths(&self) -> Vec<String> {
        let mut paths = LISTS.map(str::to_owned).to_vec();
        paths.extend([format!("/v2/queues/{QUEUE}"), format!("/v2/topics/{GROUP}"), format!("/v2/flowControl/{KEY}")]);
        paths.push(format!("/v2/waiters/{AWAITED}"));
        for id in &self.made.messages {
            paths.extend(["", "/why"].map(|rest| format!("/v2/messages/{id}{rest}")));
            paths.push(format!("/v2/logs?messageId={id}"));
        }
        paths.extend(self.made.schedules.iter().map(|id| format!("/v2/schedules/{id}")));
        for list in ["/v2/dlq", "/v2/workflows/dlq"] {
            paths.extend(self.letters(list).await.iter().map(|id| format!("{list}/{id}")));
        }
        // Deliveries of runs are messages, too.
        let events = self.server.get("/v2/workflows/events").token(&self.canaries.token).expect(200).await.json();
        let lines = events["events"].as_array().expect("a list").iter();
        let ids: std::collections::BTreeSet<&str> = lines.filter_map(|line| line["messageId"].as_str()).collect();
        paths.extend(ids.into_iter().flat_map(|id| ["", "/why"].map(|rest| format!("/v2/messages/{id}{rest}"))));
        paths
    }

    /// The ids of dead letters.
    async fn letters(&self, list: &str) -> Vec<String> {
        let letters = self.server.get(list).token(&self.canaries.token).expect(200).await.json();
        let letters = letters["messages"].as_array().expect("a list").iter();
        letters.filter_map(|letter: &Value| Some(letter["dlqId"].as_str()?.to_owned())).collect()
    }

    /// Answers for the owner, and for others. What has ended long ago may not be there any more.
    pub(super) async fn read_everything(&self) -> (String, String) {
        let (mut own, mut others) = (String::new(), String::new());
        for path in self.paths().await {
            for token in [&self.canaries.token, &self.canaries.read_only] {
                let answer = self.read(&path, token).await;
                assert!([200, 404].contains(&answer.status), "{path}: {}", answer.text());
                own += &told(&path, &answer);
            }
            others += &told(&path, &self.read(&path, &self.canaries.other_tenant).await);
        }
        for run in &self.runs.all {
            let entries = format!("/v2/workflows/runs/{run}");
            own += &told(&entries, &self.read(&entries, &self.canaries.read_only).await);
            others += &told(&entries, &self.read(&entries, &self.canaries.other_tenant).await);
        }
        (own, others)
    }

    async fn read(&self, path: &str, token: &str) -> Answer {
        within(path, self.server.get(path).token(token).send()).await
    }

    /// Pages for the owner and a reader; and for another tenant.
    pub(super) async fn look_at_every_page(&self) -> (String, String) {
        let mut paths = PAGES.map(|rest| format!("/console{rest}")).to_vec();
        let mut add = |rest: String| paths.push(format!("/console{rest}"));
        add(format!("/url-groups/{GROUP}"));
        add(format!("/flow-control/key?key={KEY}"));
        add(format!("/workflows/events?event={AWAITED}"));
        for id in &self.made.messages {
            add(format!("/messages/{id}"));
            add(format!("/messages/{id}/body"));
        }
        for id in &self.made.schedules {
            add(format!("/schedules/{id}"));
            add(format!("/schedules/make/new?from={id}"));
        }
        for id in self.letters("/v2/dlq").await {
            add(format!("/dlq/{id}"));
            add(format!("/dlq/retry?what=one&id={id}"));
        }
        for id in &self.runs.all {
            add(format!("/workflows/runs/{id}"));
        }
        let owner = Browser::log_in(&self.server, &self.canaries.token).await;
        let reader = Browser::log_in(&self.server, &self.canaries.read_only).await;
        let other = Browser::log_in(&self.server, &self.canaries.other_tenant).await;
        let (mut own, mut others) = (String::new(), String::new());
        for path in paths {
            for browser in [&owner, &reader] {
                let answer = browser.look(&path).await;
                assert!([200, 303, 403, 404].contains(&answer.status), "{path}: {}", answer.text());
                own += &told(&path, &answer);
            }
            others += &told(&path, &other.look(&path).await);
        }
        own += &told("keys", &reader.look("/console/settings?keys=show").await);
        let fields = [("do", "send"), ("destination", "ftp://x"), ("headers", "X-Secret: x")];
        own += &told("send", &owner.send("/console/send", &fields).await);
        own += &told("login", &owner.send("/console/login", &[("token", &self.canaries.wrong_token)]).await);
        assert!(!own.contains(SIGNATURE_START), "a signature is on a page");
        (own, others)
    }
}

/// What a signature begins with, whatever it says.
const SIGNATURE_START: &str = "eyJhbGciOi";

fn told(path: &str, answer: &Answer) -> String {
    format!("{path}: {} {:?}\n{}\n", answer.status, answer.headers, answer.text())
}

/// Streams of log lines: of the API, and of the console's page.
pub(super) struct Streams {
    lines: EventStream,
    rows: EventStream,
    others: EventStream,
}

impl Streams {
    pub(super) async fn open(stage: &Stage) -> Streams {
        let bearer = |token: &str| format!("Bearer {token}");
        let open = async |path: &str, name: &str, value: &str| {
            EventStream::open(stage.server.address, path, &[(name, value)]).await
        };
        let owner = Browser::log_in(&stage.server, &stage.canaries.token).await;
        Streams {
            lines: open("/v2/events/stream", "Authorization", &bearer(&stage.canaries.token)).await,
            rows: open("/console/tail/stream", "Cookie", owner.cookie()).await,
            others: open("/v2/events/stream", "Authorization", &bearer(&stage.canaries.other_tenant)).await,
        }
    }

    /// Everything until the server has stopped: for the owner, and for others.
    pub(super) async fn rest(mut self) -> (String, String) {
        let (mut own, mut others) = (String::new(), String::new());
        for stream in [&mut self.lines, &mut self.rows] {
            let before = own.len();
            while let Some((name, data)) = stream.next().await {
                own += &format!("{name}: {data}\n");
            }
            assert!(own.len() > before, "a stream was empty");
        }
        while let Some((name, data)) = self.others.next().await {
            others += &format!("{name}: {data}\n");
        }
        (own, others)
    }
}
