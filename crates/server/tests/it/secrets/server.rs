//! A server in this process, used in every way that has to do with secrets.

use super::messages::Made;
use super::reading::Streams;
use super::runs::StartedRuns;
use super::{HIDDEN, HIDDEN_SEALED, Mint, OWN, OWN_SEALED, Place, Secret, leaks, places_in};
use crate::support::{Answer, Receiver, Reply, Setup, TestServer, eventually};
use posthaste::config::{Config, Mode};
use posthaste::tenants::TenantSettings;
use serde_json::json;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

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

/// Secrets of the configuration, and what people mistake for them.
pub(super) struct Canaries {
    pub(super) token: String,
    pub(super) read_only: String,
    pub(super) other_tenant: String,
    pub(super) wrong_token: String,
    metrics_token: String,
    current_key: String,
    next_key: String,
    model_token: String,
    password: String,
}

impl Canaries {
    fn new(mint: &mut Mint) -> Canaries {
        Canaries {
            token: mint.never("token"),
            read_only: mint.never("read-only-token"),
            other_tenant: mint.never("token-of-another"),
            wrong_token: mint.never("mistyped-token"),
            metrics_token: mint.never("metrics-token"),
            current_key: mint.kept(super::canary("current-key")),
            next_key: mint.kept(super::canary("next-key")),
            model_token: mint.never("token-of-the-model"),
            password: mint.never("password-in-a-url"),
        }
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
        setup.settings.llm_url = Some(format!("http://{}{MODEL}/", model.address()));
        setup.settings.llm_token = Some(self.model_token.clone());
        setup
    }
}

/// Where the language model is, which alone gets the operator's token for it.
const MODEL: &str = "/v1";

/// What takes part in the test, and what it has done so far.
pub(super) struct Stage {
    pub(super) server: TestServer,
    pub(super) receiver: Receiver,
    pub(super) mint: Mint,
    pub(super) canaries: Canaries,
    pub(super) made: Made,
    pub(super) runs: StartedRuns,
    /// Answers to what was asked for, that are worth looking at.
    pub(super) said: Vec<String>,
}

#[tokio::test]
async fn no_secret_is_where_it_does_not_belong() {
    let log = Captured::default();
    let lines = tracing_subscriber::fmt().json().with_max_level(LevelFilter::TRACE).with_writer(log.clone());
    lines.finish().try_init().expect("no other test installs a subscriber");
    for encryption_key in [None, Some("5a".repeat(32))] {
        tell(&log, encryption_key).await;
    }
}

async fn tell(log: &Captured, encryption_key: Option<String>) {
    let mut mint = Mint { is_encrypted: encryption_key.is_some(), ..Mint::default() };
    let canaries = Canaries::new(&mut mint);
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500).with_body(mint.own("answer-of-a-receiver"))]);
    receiver.script("/closes", [Reply::Close]);
    let mut setup = canaries.setup(&receiver);
    setup.settings.encryption_key = encryption_key.map(|key| mint.add(key, &[]));
    let config = Config::resolve(Mode::Serve, setup.settings.clone()).expect("the settings are valid");
    let mut found = vec![(Place::Debug, format!("{config:#?}\n{}", config.describe()))];
    let server = TestServer::with(setup).await;
    let (made, runs) = (Made::default(), StartedRuns::default());
    let mut stage = Stage { server, receiver, mint, canaries, made, runs, said: Vec::new() };
    let streams = Streams::open(&stage).await;

    stage.publish_in_every_way().await;
    stage.publish_for_later().await;
    stage.run_workflows().await;
    stage.fail().await;
    stage.look(&mut found).await;
    stage.let_go().await;
    stage.end_workflows().await;
    stage.quiet().await;
    stage.look(&mut found).await;
    let errors = stage.be_refused().await;
    found.push((Place::Error, errors.iter().map(Answer::error).collect::<Vec<_>>().join("\n")));
    stage.send_again_and_rotate().await;
    found.push((Place::Answer, stage.said.join("\n")));

    let Stage { server, receiver, mut mint, canaries, made, .. } = stage;
    let openapi = server.get("/openapi.json").without("Authorization").expect(200).await;
    found.push((Place::OpenApi, openapi.text()));
    let metrics = server.get("/metrics").token(&canaries.metrics_token).expect(200).await;
    found.push((Place::Metrics, metrics.text()));
    let (files, (own, others)) = tokio::join!(server.finish_and_read_files(), streams.rest());
    found.extend([(Place::Files, files), (Place::Answer, own), (Place::Others, others)]);
    receiver.rewind();
    for delivery in receiver.take(receiver.count()).await {
        let signature = delivery.header("upstash-signature");
        mint.add(signature.unwrap_or_else(|| panic!("{} is not signed", delivery.target)).to_owned(), &[]);
        let headers = delivery.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("upstash-signature"));
        let is_own = |(name, _): &&(String, String)| {
            delivery.target.starts_with(MODEL) && name.eq_ignore_ascii_case("authorization")
        };
        let headers: Vec<_> = headers.filter(|header| !is_own(header)).collect();
        found.push((Place::Delivery, format!("{} {headers:?}\n{}", delivery.target, delivery.text())));
    }
    let log = log.text();
    assert!(log.contains("signing keys") && log.contains(&made.messages[0]), "the log was captured:\n{log}");
    assert!(log.contains("workflow run failed and moved to the DLQ"), "a failed run leaves a warning:\n{log}");
    found.push((Place::Log, log));

    let leaks = leaks(&mint.secrets, &found);
    assert!(leaks.is_empty(), "{} leaks:\n{}", leaks.len(), leaks.join("\n"));
    check_that_they_were_looked_for(&mint, &found);
}

/// What is shown to nobody although it is not hidden: what goes with a failure that does not come, an event that nobody waits
/// for; and a body in base64 in a payload in base64.
const UNSEEN: [&str; 3] = ["run-header-of-failure", "data-of-an-early-event", "body-of-a-webhook"];

/// Whoever finds nothing may have looked in the wrong place: what may be seen was seen, and what is hidden was there to be
/// hidden.
fn check_that_they_were_looked_for(mint: &Mint, found: &[(Place, String)]) {
    let all = |place: Place| found.iter().filter(|(other, _)| *other == place).map(|(_, text)| text.as_str()).collect();
    let [answers, pages, files]: [String; 3] = [Place::Answer, Place::Console, Place::Files].map(all);
    let own = [mint.allowed_in(OWN), mint.allowed_in(OWN_SEALED)].concat();
    for (secret, place) in own.iter().zip(places_in(&answers, &own)) {
        let is_unseen = UNSEEN.iter().any(|kind| secret.text.contains(kind));
        assert!(place.is_some() || is_unseen, "{} is in no answer", secret.text);
    }
    let count = |text: &str, secrets: &[&Secret]| places_in(text, secrets).into_iter().flatten().count();
    assert!(count(&pages, &own) > 50, "{} are on pages", count(&pages, &own));
    // A page of the database may end in the middle of one.
    let hidden = mint.allowed_in(HIDDEN);
    let kept = count(&files, &hidden);
    assert!(hidden.len() > 30 && kept * 10 > hidden.len() * 9, "{kept} of {} are in the files", hidden.len());
    assert!(hidden.len() + mint.allowed_in(HIDDEN_SEALED).len() > 50, "as many are hidden with a key as without");
    assert!(answers.contains("REDACTED:") && pages.contains("REDACTED:"), "what is hidden is told to be there");
}

impl Stage {
    /// Waits until all is in the DLQ that goes there.
    async fn fail(&self) {
        for id in &self.made.failing {
            let query = format!("/v2/dlq?messageId={id}");
            let ask = || async {
                let letters = self.server.get(&query).token(&self.canaries.token).expect(200).await.json();
                (!letters["messages"].as_array().expect("a list").is_empty()).then_some(())
            };
            eventually("a dead letter", ask).await;
        }
    }

    /// Waits until nothing is left but runs that nothing moves on: each has a message that ends it one day.
    async fn quiet(&self) {
        let is_quiet = || self.server.counts().live as f64 == self.server.metric("posthaste_runs_live");
        eventually("no live message is left", || async { is_quiet().then_some(()) }).await;
    }

    /// All that can be looked at.
    async fn look(&self, found: &mut Vec<(Place, String)>) {
        let (answers, of_others) = self.read_everything().await;
        let (pages, pages_of_others) = self.look_at_every_page().await;
        found.extend([(Place::Answer, answers), (Place::Console, pages)]);
        found.extend([of_others, pages_of_others].map(|text| (Place::Others, text)));
    }

    /// Dead letters and failed runs once more, and other keys.
    async fn send_again_and_rotate(&mut self) {
        let post = |path: &str| self.server.post(path).token(&self.canaries.token);
        let retried = post("/v2/dlq/retry").expect(201).await.text();
        let restarted = post("/v2/workflows/dlq/restart").expect(200).await.text();
        self.quiet().await;
        let keys = post("/v2/keys/rotate").expect(200).await.json();
        post(&format!("/v2/publish/{}", self.receiver.url("/after-rotation"))).expect(200).await;
        let cancelled = self.server.delete("/v2/messages").token(&self.canaries.token).expect(202).await.text();
        self.said.extend([retried, restarted, cancelled]);
        self.mint.kept(keys["next"].as_str().expect("a key is text").to_owned());
        self.quiet().await;
        let of_all = json!({ "workflowUrl": self.receiver.url("/wf") });
        self.server.delete("/v2/workflows/runs").token(&self.canaries.token).json(&of_all).expect(200).await;
    }

    /// Requests that are refused, with secrets in them.
    async fn be_refused(&mut self) -> Vec<Answer> {
        let [body, forwarded] = ["refused-body", "refused-authorization"].map(|kind| self.mint.never(kind));
        let Stage { server, receiver, canaries, .. } = self;
        let Canaries { token, wrong_token, password, .. } = canaries;
        let url = receiver.url("/");
        let callback = format!("https://user:{password}@callback.example/");
        let endpoint = json!({ "endpoints": [{ "url": callback }] });
        let unclosed = format!("[{{\"body\": \"{body}\"");
        let post = |path: &str| server.post(path).token(token);
        let publish = |url: &str| server.publish(url).token(token).body(body.as_str());
        let step = json!({ "stepId": 1 });
        let refused = [
            (401, server.publish(&url).token(wrong_token).body(body.as_str())),
            (401, server.get(&format!("/v2/events?qstash_token={wrong_token}")).without("Authorization")),
            (401, server.get("/metrics").token(token)),
            (401, post("/v2/notify/e").token(wrong_token).body(body.as_str())),
            (401, post(&format!("/v2/trigger/{url}")).token(wrong_token).body(body.as_str())),
            (403, server.publish(&url).token(&canaries.read_only).body(body.as_str())),
            (403, server.get("/v2/keys").token(&canaries.read_only)),
            (400, post("/v2/batch").body(unclosed)),
            (400, post("/v2/batch").body(format!("[{{\"body\": \"{body}\"}}]"))),
            (400, post("/v2/batch").json(&json!([{ "destination": url, "headers": forwarded }]))),
            (400, post("/v2/batch").json(&json!(body))),
            (400, publish("ftp://x/")),
            (400, publish("http://10.0.0.1/")),
            (400, server.publish(&format!("https://user:{password}@receiver.example/")).token(token)),
            (400, publish(&url).header("Upstash-Callback", &callback)),
            (400, publish(&url).header("Upstash-Retries", "x").header("Upstash-Forward-Authorization", &forwarded)),
            (400, publish(&url).header("Upstash-Redact-Fields", "passwords").header("Upstash-Forward-X", &forwarded)),
            (400, publish(&url).header("Upstash-Delay", "x")),
            (400, post("/v2/topics/group/endpoints").json(&endpoint)),
            (
                400,
                post("/v2/topics/group/endpoints")
                    .json(&json!({ "endpoints": [{ "url": "https://x/", "name": [body] }] })),
            ),
            (400, post("/v2/topics/group/endpoints").json(&json!(body))),
            (400, post("/v2/queues").json(&json!({ "queueName": "q", "parallelism": body }))),
            (400, post(&format!("/v2/schedules/{url}")).header("Upstash-Cron", "x").body(body.as_str())),
            (400, post(&format!("/v2/trigger/{url}")).header("Upstash-Retries", "x").body(body.as_str())),
            (412, post("/v2/wait/e").json(&json!({ "step": body }))),
            (412, post("/v2/wait/e").json(&json!({ "step": step, "timeoutHeaders": forwarded }))),
            (404, post("/v2/notify/wfr_unknown/e").body(body.as_str())),
            (404, post(&format!("/v2/workflows/hooks/first/wfr_hidden/{body}")).without("Authorization")),
            (400, server.delete(&format!("/v2/messages?unknown={wrong_token}&qstash_token={token}")).token(token)),
            (404, server.get(&format!("/{wrong_token}?qstash_token={token}")).token(token)),
        ];
        let mut answers = Vec::new();
        for (status, request) in refused {
            answers.push(request.expect(status).await);
        }
        answers
    }
}
