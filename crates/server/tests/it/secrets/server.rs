//! A server in this process, used in every way that has to do with secrets.

use super::{Place, Secret, canary, leaks};
use crate::console::Browser;
use crate::support::{Answer, Receiver, Reply, Setup, TestServer, within};
use posthaste::config::{Config, Mode};
use posthaste::tenants::TenantSettings;
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Captured {
    type Writer = Captured;

    fn make_writer(&'a self) -> Captured {
        self.clone()
    }
}

/// Every secret of the run.
struct Canaries {
    token: String,
    read_only: String,
    other_tenant: String,
    wrong_token: String,
    metrics_token: String,
    current_key: String,
    next_key: String,
    model_token: String,
    password: String,
    forwarded: String,
    redacted: String,
    body: String,
    redacted_body: String,
    in_query: String,
    dedup_id: String,
    answered: String,
}

impl Canaries {
    fn new() -> Canaries {
        Canaries {
            token: canary("token"),
            read_only: canary("read-only-token"),
            other_tenant: canary("token-of-another"),
            wrong_token: canary("mistyped-token"),
            metrics_token: canary("metrics-token"),
            current_key: canary("current-key"),
            next_key: canary("next-key"),
            model_token: canary("token-of-the-model"),
            password: canary("password-in-a-url"),
            forwarded: canary("forwarded-authorization"),
            redacted: canary("redacted-header"),
            body: canary("body"),
            redacted_body: canary("redacted-body"),
            in_query: canary("in-the-query"),
            dedup_id: canary("deduplication-id"),
            answered: canary("answer-of-a-receiver"),
        }
    }

    /// What a tenant may see of its own messages, the store keeps for deliveries, or only receivers may know.
    fn secrets(&self, signatures: Vec<String>, new_key: String) -> Vec<Secret> {
        let own: &[Place] = &[Place::Answer, Place::Console, Place::Files];
        let kept: &[Place] = &[Place::Files];
        let mut secrets = Vec::new();
        let mut add = |texts: &[&String], allowed: &'static [Place]| {
            secrets.extend(texts.iter().map(|text| Secret { text: (*text).clone(), allowed }));
        };
        let Canaries { token, read_only, other_tenant, wrong_token, metrics_token, model_token, password, .. } = self;
        add(&[token, read_only, other_tenant, wrong_token, metrics_token, model_token, password], &[]);
        add(&[&self.dedup_id], &[]);
        add(&signatures.iter().collect::<Vec<_>>(), &[]);
        add(&[&self.forwarded, &self.body, &self.in_query, &self.answered], own);
        add(&[&self.redacted, &self.redacted_body, &self.current_key, &self.next_key, &new_key], kept);
        secrets
    }

    fn setup(&self, model: &Receiver) -> Setup {
        let tenant = |name: &str, token: &String| TenantSettings {
            name: name.to_owned(),
            token: Some(token.clone()),
            current_signing_key: Some(self.current_key.clone()),
            next_signing_key: Some(self.next_key.clone()),
            ..TenantSettings::default()
        };
        let mut setup = Setup::serve();
        let first = TenantSettings { read_only_token: Some(self.read_only.clone()), ..tenant("first", &self.token) };
        setup.settings.tenants = vec![first, tenant("second", &self.other_tenant)];
        setup.settings.console_receiver = Some(true);
        setup.settings.query_token = Some(true);
        setup.settings.metrics_token = Some(self.metrics_token.clone());
        setup.settings.llm_url = Some(format!("http://{}/v1/", model.address()));
        setup.settings.llm_token = Some(self.model_token.clone());
        setup
    }
}

#[tokio::test]
async fn no_secret_is_where_it_does_not_belong() {
    let log = Captured::default();
    let lines = tracing_subscriber::fmt().json().with_max_level(LevelFilter::TRACE).with_writer(log.clone());
    tracing::subscriber::set_global_default(lines.finish()).expect("no other test installs a subscriber");
    let canaries = Canaries::new();
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500).with_body(canaries.answered.clone())]);
    receiver.script("/closes", [Reply::Close]);
    let setup = canaries.setup(&receiver);
    let config = Config::resolve(Mode::Serve, setup.settings.clone()).expect("the settings are valid");
    let mut found = vec![(Place::Debug, format!("{config:#?}\n{}", config.describe()))];
    let server = TestServer::with(setup).await;

    let ids = publish_in_every_way(&server, &receiver, &canaries).await;
    let errors = be_refused(&server, &receiver, &canaries).await;
    found.push((Place::Error, errors.iter().map(Answer::error).collect::<Vec<_>>().join("\n")));
    for id in &ids {
        let query = format!("/v2/dlq?messageId={id}");
        let ask = || async {
            let letters = server.get(&query).token(&canaries.token).expect(200).await.json();
            (!letters["messages"].as_array().expect("a list").is_empty()).then_some(())
        };
        crate::support::eventually("a dead letter", ask).await;
    }
    try_the_test_receiver(&server, &canaries).await;
    found.push((Place::Answer, read_everything(&server, &canaries, &ids).await));
    found.push((Place::Console, look_at_every_page(&server, &canaries, &ids).await));
    server.post("/v2/dlq/retry").token(&canaries.token).expect(201).await;
    let keys = server.post("/v2/keys/rotate").token(&canaries.token).expect(200).await.json();
    server.publish(&receiver.url("/after-rotation")).token(&canaries.token).expect(200).await;
    let deliveries = receiver.take(DELIVERIES).await;
    server.delete("/v2/messages").token(&canaries.token).expect(202).await;
    let openapi = server.get("/openapi.json").without("Authorization").expect(200).await;
    found.push((Place::OpenApi, openapi.text()));
    let metrics = server.get("/metrics").token(&canaries.metrics_token).expect(200).await;
    found.push((Place::Metrics, metrics.text()));
    found.push((Place::Files, server.finish_and_read_files().await));

    let signatures: Vec<String> =
        deliveries.iter().filter_map(|delivery| delivery.header("upstash-signature")).map(str::to_owned).collect();
    assert_eq!(signatures.len(), DELIVERIES, "every delivery was signed");
    let new_key = keys["next"].as_str().expect("a key is text").to_owned();
    let secrets = canaries.secrets(signatures, new_key);
    let log = log.text();
    assert!(log.contains("signing keys") && log.contains(&ids[0]), "the log was captured:\n{log}");
    found.push((Place::Log, log));
    let leaks = leaks(&secrets, &found);
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
    let files = &found.iter().find(|(place, _)| *place == Place::Files).expect("they were read").1;
    assert!(files.contains(&canaries.forwarded), "the files were read: headers of messages are in them");
}

/// How many deliveries arrive: six publishes, a callback, three that failed and are sent again, one after the rotation.
const DELIVERIES: usize = 11;

/// Publishes with secrets in every place. Gives the ids of what ends in the DLQ.
async fn publish_in_every_way(server: &TestServer, receiver: &Receiver, canaries: &Canaries) -> Vec<String> {
    let token = &canaries.token;
    let authorization = format!("Bearer {}", canaries.forwarded);
    let headers = [("Upstash-Forward-Authorization", authorization.as_str()), ("Upstash-Retries", "0")];
    let query = format!("?secret={}&qstash_token={token}", canaries.in_query);
    let by_query = server.publish(&receiver.url(&format!("/{query}"))).without("Authorization").headers(&headers);
    by_query.header("Upstash-Deduplication-Id", &canaries.dedup_id).body(canaries.body.as_str()).expect(200).await;
    let item = json!({
        "destination": receiver.url("/"), "body": canaries.body,
        "headers": { "Upstash-Forward-Authorization": canaries.forwarded },
    });
    server.post("/v2/batch").token(token).json(&json!([item])).expect(200).await;
    let model = server.publish("api/llm").token(token).header("Upstash-Callback", receiver.url("/"));
    model.json(&json!({ "messages": [canaries.body] })).expect(200).await;

    let mut failing = Vec::new();
    for (path, redacted) in [("/fails", false), ("/closes", false), ("/fails", true)] {
        let url = receiver.url(&format!("{path}?secret={}", canaries.in_query));
        let request = server.publish(&url).token(token).headers(&headers[1..]);
        let request = if redacted {
            let hidden = request.header("Upstash-Redact-Fields", "body, header[X-Secret]");
            hidden.header("Upstash-Forward-X-Secret", &canaries.redacted).body(canaries.redacted_body.as_str())
        } else {
            request.headers(&headers[..1]).body(canaries.body.as_str())
        };
        failing.push(request.expect(200).await);
    }
    failing.iter().map(crate::support::server::message_id).collect()
}

/// Requests that are refused, with secrets in them.
async fn be_refused(server: &TestServer, receiver: &Receiver, canaries: &Canaries) -> Vec<Answer> {
    let Canaries { token, wrong_token, password, body, .. } = canaries;
    let url = receiver.url("/");
    let callback = format!("https://user:{password}@callback.example/");
    let endpoint = json!({ "endpoints": [{ "url": callback }] });
    let unclosed = format!("[{{\"body\": \"{body}\"");
    let refused = [
        (401, server.publish(&url).token(wrong_token).body(body.as_str())),
        (401, server.get(&format!("/v2/events?qstash_token={wrong_token}")).without("Authorization")),
        (401, server.get("/metrics").token(token)),
        (403, server.publish(&url).token(&canaries.read_only).body(body.as_str())),
        (400, server.post("/v2/batch").token(token).body(unclosed)),
        (400, server.post("/v2/batch").token(token).body(format!("[{{\"body\": \"{body}\"}}]"))),
        (400, server.publish("ftp://x/").token(token).body(body.as_str())),
        (400, server.publish("http://10.0.0.1/").token(token).body(body.as_str())),
        (400, server.publish(&format!("https://user:{password}@receiver.example/")).token(token)),
        (400, server.publish(&url).token(token).header("Upstash-Callback", &callback)),
        (400, server.post("/v2/topics/group/endpoints").token(token).json(&endpoint)),
        (400, server.publish(&url).token(token).header("Upstash-Delay", "x").body(body.as_str())),
        (400, server.delete(&format!("/v2/messages?unknown={wrong_token}&qstash_token={token}")).token(token)),
        (404, server.get(&format!("/{wrong_token}?qstash_token={token}")).token(token)),
    ];
    let mut answers = Vec::new();
    for (status, request) in refused {
        answers.push(request.expect(status).await);
    }
    answers
}

/// Whatever a tenant can read, but for its signing keys.
async fn read_everything(server: &TestServer, canaries: &Canaries, ids: &[String]) -> String {
    let mut paths: Vec<String> = [
        "/v2/logs",
        "/v2/events?groupBy=messageId",
        "/v2/dlq",
        "/v2/dlq/causes",
        "/v2/queues",
        "/v2/schedules",
        "/v2/topics",
        "/v2/flowControl",
        "/v2/bulkActions",
        "/v2/receiver",
        "/v2/settings",
        "/health",
        "/ready",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.extend(ids.iter().map(|id| format!("/v2/logs?messageId={id}")));
    let letters = server.get("/v2/dlq").token(&canaries.token).expect(200).await.json();
    let letters = letters["messages"].as_array().expect("a list").iter();
    paths.extend(letters.filter_map(|letter: &Value| Some(format!("/v2/dlq/{}", letter["dlqId"].as_str()?))));
    let mut text = String::new();
    for path in paths {
        let answer = within(&path, server.get(&path).token(&canaries.token).expect(200)).await;
        text.push_str(&format!("{:?}\n{}\n", answer.headers, answer.text()));
    }
    assert!(text.contains("REDACTED:") && text.contains(&canaries.answered), "the messages were read");
    text
}

/// Secrets that the test receiver gets, and may not all show.
async fn try_the_test_receiver(server: &TestServer, canaries: &Canaries) {
    let url = server.get("/v2/receiver").token(&canaries.token).expect(200).await.json()["url"].clone();
    let plain = server.publish(url.as_str().expect("a URL is text")).token(&canaries.token);
    let hidden = plain.clone().header("Upstash-Redact-Fields", "body, header[X-Secret]");
    let hidden = hidden.header("Upstash-Forward-X-Secret", &canaries.redacted).body(canaries.redacted_body.as_str());
    let authorization = format!("Bearer {}", canaries.forwarded);
    let plain = plain.header("Upstash-Forward-Authorization", authorization).body(canaries.body.as_str());
    for request in [plain, hidden] {
        request.expect(200).await;
    }
    let both = || async {
        let received = server.get("/v2/receiver").token(&canaries.token).expect(200).await.json();
        (received["deliveries"].as_array().expect("a list").len() == 2).then_some(())
    };
    crate::support::eventually("both deliveries", both).await;
}

/// What a signature begins with, whatever it says.
const SIGNATURE_START: &str = "eyJhbGciOi";

/// Pages for the owner, for a reader and for whoever cannot log in.
async fn look_at_every_page(server: &TestServer, canaries: &Canaries, ids: &[String]) -> String {
    let mut paths: Vec<String> = [
        "",
        "/messages",
        "/tail",
        "/dlq",
        "/queues",
        "/flow-control",
        "/schedules",
        "/url-groups",
        "/workflows",
        "/send",
        "/settings",
        "/login",
        "/nowhere",
    ]
    .map(|rest| format!("/console{rest}"))
    .to_vec();
    paths.extend(ids.iter().map(|id| format!("/console/messages/{id}")));
    let mut text = String::new();
    let mut add = |path: &str, answer: Answer| {
        assert!(answer.status < 500, "{path}: {}", answer.text());
        let headers = answer.headers.iter().filter(|(name, _)| name != "set-cookie");
        text.push_str(&format!("{:?}\n{}\n", headers.collect::<Vec<_>>(), answer.text()));
    };
    let owner = Browser::log_in(server, &canaries.token).await;
    let reader = Browser::log_in(server, &canaries.read_only).await;
    for path in paths {
        add(&path, owner.look(&path).await);
        add(&path, reader.look(&path).await);
    }
    add("keys", reader.look("/console/settings?keys=show").await);
    let fields = [("do", "send"), ("destination", "ftp://x"), ("headers", "X-Secret: x")];
    add("send", owner.send("/console/send", &fields).await);
    add("login", owner.send("/console/login", &[("token", &canaries.wrong_token)]).await);
    assert!(text.contains("REDACTED:") && text.contains(&canaries.body), "what was received is on a page");
    assert!(!text.contains(SIGNATURE_START), "a signature is on a page");
    text
}
