//! The encryption key of stored credentials changes, is lost and comes back; and nobody can publish what looks encrypted.

use super::{Place, Secret, canary, leaks};
use crate::support::runs::{config, done};
use crate::support::server::{READ_ONLY, message_id};
use crate::support::{Backend, Receiver, Reply, Request, Setup, TestServer, eventually};
use posthaste_engine::dedup;
use posthaste_engine::message::DedupKey;
use posthaste_engine::workflow::run::RunConfig;
use serde_json::{Value, json};

const OLD: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const NEW: &str = "0202020202020202020202020202020202020202020202020202020202020202";

fn with_keys(keys: Option<&str>) -> Setup {
    let mut setup = Setup::serve();
    setup.settings.encryption_key = keys.map(str::to_owned);
    setup
}

async fn restarted(server: TestServer, keys: &str) -> TestServer {
    server.restart_with(|settings| settings.encryption_key = Some(keys.to_owned())).await
}

const CREDENTIAL: &str = "Upstash-Forward-Authorization";

/// The fingerprint in an error that names a key.
fn fingerprint_in(text: &str) -> String {
    let (_, rest) = text.split_once("encrypted with key ").unwrap_or_else(|| panic!("no key in: {text}"));
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}

#[tokio::test]
async fn a_message_whose_key_is_missing_fails_with_its_fingerprint_and_is_sent_when_the_key_is_back() {
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    let server = TestServer::with(with_keys(Some(OLD))).await;
    let secret = format!("Bearer {}", canary("kept"));
    let lines = [(CREDENTIAL, secret.as_str()), ("Upstash-Delay", "10s"), ("Upstash-Retries", "3")];
    let id = server.publish_with(&receiver.url("/late"), &lines, "x").await;
    let failed = [(CREDENTIAL, secret.as_str()), ("Upstash-Retries", "0")];
    let failed = server.publish_with(&receiver.url("/fails"), &failed, "x").await;
    let letter = server.dead_letter_of(&failed).await["dlqId"].as_str().expect("an id").to_owned();
    assert_eq!(receiver.next().await.header("authorization"), Some(secret.as_str()));

    // The signing keys are encrypted with the new key now, and so the old one is not needed to start.
    let server = restarted(restarted(server, &format!("{NEW},{OLD}")).await, NEW).await;
    server.advance(10_000).await;
    let attempt = eventually("a failed attempt", || async {
        server.events_of(&id).await.into_iter().find(|event| event["state"] == "ERROR")
    })
    .await;
    let error = attempt["error"].as_str().unwrap_or_else(|| panic!("no error in {attempt}"));
    let fingerprint = fingerprint_in(error);
    assert_eq!(fingerprint.len(), 16, "{error}");
    assert!(error.contains("header Authorization") && error.contains("add that key"), "{error}");
    assert!(!error.contains("canary") && !error.contains("sealed:"), "{error}");
    assert_eq!(receiver.count(), 1, "never without its header");

    let shown = server.message(&id).await["header"]["Authorization"][0].clone();
    assert_eq!(fingerprint_in(shown.as_str().expect("text")), fingerprint);
    let marked = server.get(&format!("/v2/messages/{id}")).token(READ_ONLY).expect(200).await.json();
    assert_eq!(marked["header"]["Authorization"][0], shown, "there is no mark without the value");
    let retry = || server.post(&format!("/v2/dlq/retry/{letter}"));
    assert_eq!(fingerprint_in(&retry().expect(500).await.error()), fingerprint);
    let again = retry().header(CREDENTIAL, "Bearer other").header("Upstash-Retries", "0").expect(201).await;
    assert_eq!(receiver.next().await.header("authorization"), Some("Bearer other"), "what is replaced is not needed");
    server.dead_letter_of(&message_id(&again)).await;

    let server = restarted(server, &format!("{NEW},{OLD}")).await;
    server.advance(3_600_000).await;
    let delivery = receiver.next().await;
    assert_eq!((delivery.target.as_str(), delivery.header("authorization")), ("/late", Some(secret.as_str())));
    assert_eq!(server.message(&id).await["header"]["Authorization"][0], secret);
    server.finish().await;
}

#[tokio::test]
async fn schedules_and_url_groups_are_encrypted_anew_at_the_start_and_need_no_old_key() {
    for backend in [Backend::Journal, Backend::Sqlite] {
        let receiver = Receiver::start().await;
        let server = TestServer::with(with_keys(None).on(backend)).await;
        let [of_schedule, of_callback, of_group] =
            ["schedule", "callback", "group"].map(|kind| format!("Bearer {}", canary(kind)));
        let callback = receiver.url("/callback");
        let lines = [
            ("Upstash-Cron", "* * * * *"),
            (CREDENTIAL, of_schedule.as_str()),
            ("Upstash-Callback", callback.as_str()),
            ("Upstash-Callback-Forward-Cookie", of_callback.as_str()),
        ];
        let id = server.schedule_with(&receiver.url("/scheduled"), &lines, "the body").await;
        let endpoints = json!({ "endpoints": [{ "url": receiver.url("/group") }] });
        server.post("/v2/topics/group/endpoints").json(&endpoints).expect(200).await;
        let headers = json!({ "headers": { CREDENTIAL: of_group } });
        server.request("PATCH", "/v2/topics/group").json(&headers).expect(200).await;
        let look = async |server: &TestServer| -> (Value, Value) {
            (server.schedule(&id).await, server.get("/v2/topics/group").expect(200).await.json())
        };
        let before = look(&server).await;

        let mut server = server;
        for keys in [OLD, &format!("{NEW},{OLD}"), NEW] {
            server = restarted(server, keys).await;
            assert_eq!(look(&server).await, before, "{backend:?}: as its owner sees it nothing has changed");
        }
        server.publish("group").expect(200).await;
        assert_eq!(receiver.next().await.header("authorization"), Some(of_group.as_str()));
        server.advance(60_000).await;
        for _ in 0..2 {
            let delivery = receiver.next().await;
            let (name, value) = match delivery.target.as_str() {
                "/scheduled" => ("authorization", &of_schedule),
                _ => ("cookie", &of_callback),
            };
            assert_eq!(delivery.header(name), Some(value.as_str()), "{}", delivery.target);
        }
        let secrets = [&of_schedule, &of_callback, &of_group]
            .map(|text| Secret { text: text.trim_start_matches("Bearer ").to_owned(), allowed: &[] });
        let leaks = leaks(&secrets, &[(Place::Files, server.stop_and_read_files().await)]);
        assert!(leaks.is_empty(), "{backend:?}: {}", leaks.join("\n"));
    }
}

/// Enough to fill several pages of the database, which are split and shared out again while they grow.
const MANY: usize = 50;
/// A page that SQLite has split keeps copies of moved rows in its unused part until it is written over, and only `VACUUM` removes
/// them, as the manual says. Hardly one in a hundred; without overwriting more than twenty are left.
const LEFT_BY_SPLITS_MAX: usize = 5;

#[tokio::test]
async fn the_plain_text_of_many_schedules_and_url_groups_is_overwritten_when_a_key_is_set() {
    for backend in [Backend::Journal, Backend::Sqlite] {
        let receiver = Receiver::start().await;
        let server = TestServer::with(with_keys(None).on(backend)).await;
        let mut secrets = Vec::new();
        for n in 0..MANY {
            let [of_schedule, of_group] = ["schedule", "group"].map(|kind| canary(&format!("{kind}-{n}")));
            // Some are longer than a page.
            let padded = |secret: &str, step: usize| format!("{secret} {}", "p".repeat(n * n % 37 * step));
            let callback = receiver.url("/callback");
            let schedule = padded(&of_schedule, 150);
            let lines = [
                ("Upstash-Cron", "0 0 1 1 *"),
                (CREDENTIAL, schedule.as_str()),
                ("Upstash-Callback", callback.as_str()),
                ("Upstash-Callback-Forward-Cookie", of_schedule.as_str()),
            ];
            server.schedule_with(&receiver.url("/scheduled"), &lines, &"b".repeat(n * 17)).await;
            let name = format!("group-{}", n * 31 % MANY);
            let endpoints = json!({ "endpoints": [{ "url": receiver.url("/group") }] });
            server.post(&format!("/v2/topics/{name}/endpoints")).json(&endpoints).expect(200).await;
            let headers = json!({ "headers": { CREDENTIAL: padded(&of_group, 90) } });
            server.request("PATCH", &format!("/v2/topics/{name}")).json(&headers).expect(200).await;
            secrets.extend([of_schedule, of_group]);
        }
        let secrets: Vec<Secret> = secrets.into_iter().map(|text| Secret { text, allowed: &[] }).collect();
        // The second stop closes the files in which the old pages still were while the first one ran.
        let server = restarted(restarted(server, OLD).await, OLD).await;
        let leaks = leaks(&secrets, &[(Place::Files, server.stop_and_read_files().await)]);
        let first = leaks.first().cloned().unwrap_or_default();
        assert!(leaks.len() <= LEFT_BY_SPLITS_MAX, "{backend:?}: {} of {}: {first}", leaks.len(), secrets.len());
    }
}

#[tokio::test]
async fn duplicates_are_found_over_a_restart_and_no_hash_of_a_credential_is_stored_that_can_be_guessed() {
    for (backend, key) in [Backend::Journal, Backend::Sqlite].into_iter().flat_map(|it| [(it, None), (it, Some(OLD))]) {
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500)]);
        let server = TestServer::with(with_keys(key).on(backend)).await;
        let failed = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "").await;
        let letter = server.dead_letter_of(&failed).await["dlqId"].as_str().expect("an id").to_owned();
        receiver.next().await;
        let url = receiver.url("/later");
        let (by_id, by_content) = ("Upstash-Deduplication-Id", "Upstash-Content-Based-Deduplication");
        let send = async |server: &TestServer, path: String, name: &str, value: &str, password: &str| -> Value {
            let request = server.post(&path).header("Upstash-Delay", "1h").header("Content-Type", "text/plain");
            let request = request.header(CREDENTIAL, password).header(name, value).header("Upstash-Retries", "0");
            let answer = request.body("the body").send().await;
            assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
            answer.json()
        };
        let (publish, trigger) = (format!("/v2/publish/{url}"), format!("/v2/trigger/{url}"));
        let all = async |server: &TestServer| -> Vec<Value> {
            vec![
                send(server, publish.clone(), by_id, "of-message", "hunter2").await,
                send(server, publish.clone(), by_content, "true", "hunter2").await,
                send(server, trigger.clone(), by_id, "of-run", "hunter2").await,
                send(server, trigger.clone(), by_content, "true", "hunter2").await,
            ]
        };
        let first = all(&server).await;
        assert!(first.iter().all(|answer| answer["deduplicated"] != true), "{first:?}");
        send(&server, format!("/v2/dlq/retry/{letter}"), by_id, "of-retry", "hunter2").await;

        let server = server.restart().await;
        let again = all(&server).await;
        for (first, again) in first.iter().zip(&again) {
            assert_eq!(again["deduplicated"], true, "{backend:?}, {key:?}: {again}");
            let id = if first["messageId"].is_null() { "workflowRunId" } else { "messageId" };
            assert!(first[id].is_string() && first[id] == again[id], "{first} and {again}");
        }
        let of_retry = send(&server, publish.clone(), by_id, "of-retry", "hunter2").await;
        assert_eq!(of_retry["deduplicated"], true, "{backend:?}, {key:?}: a retry and a publish have one key");
        let other = send(&server, publish.clone(), by_content, "true", "hunter3").await;
        assert_ne!(other["deduplicated"], true, "another credential is another content");

        let headers = [("Content-Type", "text/plain"), ("Authorization", "hunter2")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let files = server.stop_and_read_bytes().await;
        for (what, DedupKey(hash)) in [
            ("message", dedup::key_of_id("of-message")),
            ("run", dedup::key_of_id("of-run")),
            ("retry", dedup::key_of_id("of-retry")),
            ("content", dedup::key_of_content(&url, &headers, b"the body")),
        ] {
            let is_stored = files.windows(hash.len()).any(|bytes| bytes == hash);
            assert_eq!(is_stored, key.is_none(), "{backend:?}, {key:?}: the plain hash of {what}");
        }
    }
}

#[tokio::test]
async fn a_run_that_begins_again_has_its_credentials_under_the_newest_key() {
    let receiver = Receiver::start().await;
    let server = TestServer::with(with_keys(Some(OLD))).await;
    let secret = format!("Bearer {}", canary("run"));
    let mut failed = Vec::new();
    for (id, how) in [("wfr_resumed", "resume"), ("wfr_restarted", "restart")] {
        let config = RunConfig { headers: vec![("Authorization".to_owned(), secret.clone())], ..config() };
        let letter = server.failed_run(&receiver, id, "/wf", config).await;
        assert_eq!(receiver.next().await.header("authorization"), Some(secret.as_str()));
        failed.push((how, letter["dlqId"].as_str().expect("an id").to_owned()));
    }
    let server = restarted(server, &format!("{NEW},{OLD}")).await;
    for (how, letter) in failed {
        let again = server.post(&format!("/v2/workflows/dlq/{how}/{letter}"));
        again.header("Upstash-Delay", "1h").expect(200).await;
    }
    let server = restarted(server, NEW).await;
    receiver.script("/wf", [done(), done()]);
    server.advance(3_600_000).await;
    for _ in 0..2 {
        assert_eq!(receiver.next().await.header("authorization"), Some(secret.as_str()), "the old key is not needed");
    }
    server.finish_with_pending().await;
}

/// A value as the server writes encrypted ones.
const FORGED: &str = "\u{1}sealed:1:0011223344556677:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// By every way in that reads headers as lines, or as members of an object.
async fn refused_in_lines_and_objects(server: &TestServer, receiver: &Receiver, letter: &str) {
    let url = receiver.url("/forged");
    let encoded = "%01sealed:1:0011223344556677:AAAA";
    let callback = receiver.url("/callback");
    let in_lines = |request: Request, name: &str| request.header(name, FORGED).header("Upstash-Callback", &callback);
    for name in [CREDENTIAL, "Upstash-Callback-Forward-Cookie", "Upstash-Failure-Callback-Forward-X-Api-Key", "Cookie"]
    {
        for path in [
            format!("/v2/publish/{url}"),
            format!("/v2/enqueue/queue/{url}"),
            format!("/v2/schedules/{url}"),
            format!("/v2/trigger/{url}"),
            format!("/v2/dlq/retry/{letter}"),
            "/v2/dlq/retry".to_owned(),
            "/v2/dlq/retry?async=true".to_owned(),
            "/v2/workflows/dlq/restart".to_owned(),
        ] {
            let answer = in_lines(server.post(&path), name).header("Upstash-Header-Forward", "true").send().await;
            assert_eq!(answer.status, 400, "{path} with {name}: {}", answer.text());
        }
        let json = json!({
            name: FORGED, "Upstash-Callback": callback, "Upstash-Failure-Callback": callback,
            "Upstash-Header-Forward": "true",
        });
        assert!(
            batch(server, receiver, json.clone()).expect(400).await.error().contains("control character"),
            "{name}"
        );
        let triggers = json!([{ "destination": url, "headers": json }]);
        let triggered = server.post("/v2/batch/trigger").json(&triggers).expect(400).await;
        assert!(triggered.error().contains("control character"), "{name}");
        let group = server.request("PATCH", "/v2/topics/group").json(&json!({ "headers": json }));
        assert!(group.expect(400).await.error().contains("control character"), "{name}");
        let group = server.request("PATCH", "/v2/topics/group").json(&json!({ "headers": { name: [FORGED] } }));
        assert!(group.expect(400).await.error().contains("control character"), "{name}");
        if name != "Cookie" {
            let query = format!(
                "/v2/publish/{url}?{name}={encoded}&Upstash-Callback={callback}&Upstash-Failure-Callback={callback}"
            );
            assert!(server.post(&query).expect(400).await.error().contains("control character"), "{name}");
        }
    }
}

fn batch(server: &TestServer, receiver: &Receiver, headers: Value) -> Request {
    let items = json!([{ "destination": receiver.url("/forged"), "body": "{}", "headers": headers }]);
    server.post("/v2/batch").json(&items)
}

#[tokio::test]
async fn a_header_cannot_be_published_that_looks_encrypted() {
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    let server = TestServer::with(with_keys(Some(OLD))).await;
    let failed = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "").await;
    let letter = server.dead_letter_of(&failed).await["dlqId"].as_str().expect("an id").to_owned();
    let endpoints = json!({ "endpoints": [{ "url": receiver.url("/group") }] });
    server.post("/v2/topics/group/endpoints").json(&endpoints).expect(200).await;
    let start = json!({
        "Upstash-Workflow-Init": "true", "Upstash-Workflow-RunId": "wfr_a", "Upstash-Delay": "1h",
        "Upstash-Workflow-Url": receiver.url("/wf"),
    });
    batch(&server, &receiver, start).expect(200).await;
    refused_in_lines_and_objects(&server, &receiver, &letter).await;
    // Headers within bodies: what cannot be sent is left out.
    let headers = json!({ CREDENTIAL: [FORGED], "Authorization": [FORGED], "X-Open": ["1"] });
    let step = json!({ "stepId": 1, "stepName": "w", "stepType": "Wait", "concurrent": 1 });
    let wait = json!({ "timeout": "1d", "timeoutHeaders": headers, "step": step });
    server.post("/v2/wait/event").header("Upstash-Workflow-RunId", "wfr_a").json(&wait).expect(200).await;
    let waiter = server.get("/v2/waiters/event").expect(200).await.json()[0]["timeoutHeaders"].clone();
    assert_eq!(waiter, json!({ "X-Open": ["1"], "Upstash-Workflow-Runid": ["wfr_a"] }));
    let step = json!({ "stepId": 2, "stepName": "i", "stepType": "Invoke", "concurrent": 1 });
    let envelope = json!({
        "body": "{}", "workflowRunId": "wfr_a", "workflowUrl": receiver.url("/wf"), "step": step,
        "headers": { CREDENTIAL: FORGED },
    });
    let about = [
        ("Upstash-Workflow-Init", "true"),
        ("Upstash-Workflow-Invoke", "true"),
        ("Upstash-Workflow-RunId", "wfr_b"),
        ("Upstash-Delay", "1h"),
    ];
    server.publish(&receiver.url("/wf-child")).headers(&about).json(&envelope).expect(200).await;
    server.delete("/v2/workflows/runs/wfr_b").expect(200).await;
    // Nothing else was stored for this path: what follows is the end of the invoked run.
    let delivery = loop {
        let delivery = receiver.next().await;
        if delivery.target == "/forged" {
            break delivery;
        }
    };
    assert!(delivery.text().contains("wfr_a") || delivery.header("upstash-workflow-runid") == Some("wfr_a"));
    assert_eq!(delivery.header("authorization"), None, "{:?}", delivery.headers);
    let files = server.stop_and_read_files().await;
    assert!(!files.contains("0011223344556677") && files.contains("wfr_b"), "nothing of it was stored");
}
