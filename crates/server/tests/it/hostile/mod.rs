//! Hostile inputs, from `vectors/api-inputs.json`: what each case expects is said there, not here.
//!
//! `table` sends the well-formed requests, `raw` the hand-written bytes. Every case of the file is run
//! by one of them or stands in [`SKIPPED`] with a reason.

mod raw;
mod table;

use crate::support::{Setup, TestServer};
use serde_json::Value;
use std::collections::HashSet;

const VECTORS: &str = include_str!("../../../../../vectors/api-inputs.json");

/// Cases that cannot be run here, by id or by the beginning of it.
const SKIPPED: [(&str, &str); 19] = [
    // Other endpoints.
    ("dst-group-10000", "a group has at most 100 endpoints"),
    ("dst-group-empty", "a group without endpoints does not exist"),
    ("queue-too-many", "a tenant may have 100,000 queues: see `api::queues`"),
    ("topic-many", "a body of this size is refused before it is read: see `api::url_groups`"),
    ("wf-notify-none", "workflows are not in this version"),
    ("wf-waiters-sql", "workflows are not in this version"),
    ("wf-resume-missing", "workflows are answered with 501 in this version"),
    ("con-", "there is no console in this version"),
    // Decided otherwise.
    ("v1-path", "the contract (2.4) wants /v1/publish as an alias; api/publish.rs tests that it works"),
    // Not a matter of one request.
    ("lim-", "load tests; bench/ and e2e/ have them"),
    ("batch-100mb", "sends 100 MiB; the limit is the same code as for bodies, see b-endless"),
    ("raw-slow-headers", "takes 10 s of real time"),
    ("raw-idle", "takes a minute and 10,000 connections"),
    ("raw-h2-continuation", "needs an HTTP/2 client that breaks the rules"),
    ("raw-h2-settings-flood", "needs an HTTP/2 client that breaks the rules"),
    ("raw-h2-zero-window", "needs an HTTP/2 client that breaks the rules, and 30 s"),
    ("raw-h2-pseudo-dup", "needs an HTTP/2 client that breaks the rules"),
    ("raw-tls-sni-mismatch", "this server does not speak TLS itself"),
    ("dlq-bulk-10000", "10,000 dead letters take too long here; api/dlq.rs has 120 in two pages"),
];

/// One case of the file.
struct Case {
    id: String,
    value: Value,
}

impl Case {
    fn text(&self, name: &str) -> &str {
        self.value[name].as_str().unwrap_or_default()
    }

    fn is_raw(&self) -> bool {
        raw::IDS.contains(&self.id.as_str())
    }

    /// Which statuses are right; none means that the connection is closed.
    fn expected(&self) -> Vec<u16> {
        let statuses = self.value["expect_status"].as_array().expect("expect_status is a list");
        statuses.iter().filter_map(Value::as_u64).map(|status| status as u16).collect()
    }
}

/// The cases that are not skipped.
fn cases() -> Vec<Case> {
    let file: Value = serde_json::from_str(VECTORS).expect("the vectors are JSON");
    let all = file["cases"].as_array().expect("cases are a list");
    let case =
        |value: &Value| Case { id: value["id"].as_str().expect("a case has an id").to_owned(), value: value.clone() };
    all.iter().map(case).filter(|case| !is_skipped(&case.id)).collect()
}

fn is_skipped(id: &str) -> bool {
    SKIPPED.iter().any(|(skipped, _)| if skipped.ends_with('-') { id.starts_with(skipped) } else { id == *skipped })
}

#[test]
fn every_skip_names_a_case_and_has_a_reason() {
    let file: Value = serde_json::from_str(VECTORS).expect("the vectors are JSON");
    let ids: HashSet<&str> =
        file["cases"].as_array().expect("a list").iter().filter_map(|case| case["id"].as_str()).collect();
    for (skipped, reason) in SKIPPED {
        let exists = ids.iter().any(|id| if skipped.ends_with('-') { id.starts_with(skipped) } else { *id == skipped });
        assert!(exists && !reason.is_empty(), "{skipped}");
    }
    for id in raw::IDS {
        assert!(ids.contains(id) && !is_skipped(id), "{id}");
    }
}

/// As in production, with the token in the query switched on and small bodies so that limits are met soon.
async fn hardened(query_token: bool) -> TestServer {
    let mut setup = Setup::serve();
    setup.settings.egress_allow_cidrs = None;
    setup.settings.query_token = Some(query_token);
    setup.settings.message_bytes_max = Some(BODY_LIMIT);
    TestServer::with(setup).await
}

/// Largest message body of a [`hardened`] server.
const BODY_LIMIT: usize = 1024 * 1024;

/// How many messages the server has ever accepted.
fn accepted(server: &TestServer) -> f64 {
    server.metric("posthaste_published_total{result=\"accepted\"}")
}
