//! Secrets stay where they belong: none of them is in a log line, a metric or an error.
//!
//! The log is captured for the whole process, at the finest level, in the form that production uses.

use crate::support::server::{CURRENT_KEY, NEXT_KEY, READ_ONLY, TOKEN, TOKEN_B};
use crate::support::{Receiver, Reply, Setup, TestServer};
use serde_json::json;
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

const BODY: &str = "canary-body-51c2";
const FORWARDED: &str = "canary-forwarded-authorization-9b1e";
const IN_QUERY: &str = "canary-in-destination-query-77aa";
const WRONG_TOKEN: &str = "canary-mistyped-token-0d3f";
const DEDUP_ID: &str = "canary-dedup-id-a1b2";
const ANSWERED: &str = "canary-answer-body-c3d4";

#[tokio::test]
async fn no_secret_is_in_logs_metrics_or_errors() {
    let log = Captured::default();
    let lines = tracing_subscriber::fmt().json().with_max_level(LevelFilter::TRACE).with_writer(log.clone());
    tracing::subscriber::set_global_default(lines.finish()).expect("no other test installs a subscriber");

    let mut setup = Setup::serve();
    setup.settings.query_token = Some(true);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500).with_body(ANSWERED)]);
    receiver.script("/closes", [Reply::Close]);
    let headers = [
        ("Upstash-Forward-Authorization", FORWARDED),
        ("Upstash-Retries", "0"),
        ("Upstash-Deduplication-Id", DEDUP_ID),
    ];
    let mut errors = Vec::new();

    // Every way to publish, and to fail.
    let query = format!("?secret={IN_QUERY}&qstash_token={TOKEN}");
    let by_query = server.publish(&receiver.url(&format!("/{query}"))).without("Authorization");
    by_query.headers(&headers).body(BODY).expect(200).await;
    let mut ids = Vec::new();
    for path in ["/fails", "/closes"] {
        let url = receiver.url(&format!("{path}?secret={IN_QUERY}"));
        ids.push(server.publish_with(&url, &headers[..2], BODY).await);
    }
    ids.push(server.publish_with(&format!("http://nowhere.example/{IN_QUERY}"), &headers[..2], BODY).await);
    let item = json!({ "destination": receiver.url("/"), "body": BODY, "headers": { "Upstash-Forward-Authorization": FORWARDED } });
    server.post("/v2/batch").json(&json!([item])).expect(200).await;

    // Requests that are refused, with secrets in them.
    errors.push(server.publish(&receiver.url("/")).token(WRONG_TOKEN).body(BODY).expect(401).await.error());
    let wrong_query = format!("/v2/events?qstash_token={WRONG_TOKEN}");
    errors.push(server.get(&wrong_query).without("Authorization").expect(401).await.error());
    errors.push(server.publish(&receiver.url("/")).token(READ_ONLY).body(BODY).expect(403).await.error());
    errors.push(server.post("/v2/batch").body(format!("[{{\"body\": \"{BODY}\"")).expect(400).await.error());
    errors.push(server.post("/v2/batch").body(format!("[{{\"body\": \"{BODY}\"}}]")).expect(400).await.error());
    errors.push(server.publish("ftp://x/").headers(&headers).body(BODY).expect(400).await.error());
    errors.push(server.publish("http://10.0.0.1/").headers(&headers).body(BODY).expect(400).await.error());
    let bad_retries = server.publish(&receiver.url("/")).headers(&headers).header("Upstash-Delay", "x").body(BODY);
    errors.push(bad_retries.expect(400).await.error());
    errors.push(server.get(&format!("/{WRONG_TOKEN}?qstash_token={TOKEN}")).expect(404).await.error());

    // What comes after: dead letters, replays, keys, cancels.
    for id in &ids {
        server.dead_letter_of(id).await;
    }
    server.post("/v2/dlq/retry").expect(201).await;
    let keys = server.post("/v2/keys/rotate").expect(200).await.json();
    server.publish_with(&receiver.url("/after-rotation"), &headers[..1], BODY).await;
    server.delete("/v2/messages").expect(202).await;
    let metrics = server.metrics();
    let deliveries = receiver.take(7).await;
    server.finish().await;

    let mut secrets: Vec<String> =
        [TOKEN, READ_ONLY, TOKEN_B, CURRENT_KEY, NEXT_KEY, BODY, FORWARDED, IN_QUERY, WRONG_TOKEN, DEDUP_ID, ANSWERED]
            .map(str::to_owned)
            .to_vec();
    secrets.push(keys["next"].as_str().expect("a key is text").to_owned());
    let signatures = deliveries.iter().filter_map(|delivery| delivery.header("upstash-signature"));
    secrets.extend(signatures.map(str::to_owned));
    assert_eq!(secrets.len(), 12 + 7, "every delivery was signed");

    let log = log.text();
    assert!(log.contains("signing keys") && log.contains(&ids[0]), "the log was captured:\n{log}");
    let errors = errors.join("\n");
    for secret in secrets {
        for (place, text) in [("the log", &log), ("the metrics", &metrics), ("an error", &errors)] {
            let line = text.lines().find(|line| line.contains(&secret));
            assert_eq!(line, None, "{secret} is in {place}");
        }
    }
}
