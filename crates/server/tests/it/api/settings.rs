//! `/v2/settings`: what is in effect, and who uses the tenant's tokens.

use crate::support::server::{CURRENT_KEY, NEXT_KEY, READ_ONLY, START_MS, TOKEN, TOKEN_B};
use crate::support::{Setup, TestServer};
use posthaste::tenants::{Scope, TokenSettings};
use serde_json::{Value, json};

fn setting<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let settings = answer["settings"].as_array().expect("settings are a list");
    settings.iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("no {name} in {answer}"))
}

#[tokio::test]
async fn every_setting_has_a_value_and_a_source_and_no_secret_is_there() {
    let mut setup = Setup::serve();
    setup.settings.tenants.truncate(1);
    setup.settings.metrics_token = Some("a-token-for-the-scraper".to_owned());
    setup.settings.public_url = Some("https://user:hidden-password@queue.example.com/".to_owned());
    setup.settings.max_retries = Some(7);
    let server = TestServer::with(setup).await;
    let answer = server.get("/v2/settings").expect(200).await;
    let text = answer.text();
    for secret in [TOKEN, READ_ONLY, CURRENT_KEY, NEXT_KEY, "a-token-for-the-scraper", "hidden-password"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    let answer = answer.json();
    assert_eq!((&answer["mode"], &answer["tenant"]), (&json!("serve"), &json!("tenant-a")));
    assert_eq!(answer["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(setting(&answer, "max_retries"), &json!({ "name": "max_retries", "value": 7, "source": "given" }));
    assert_eq!(setting(&answer, "journal"), &json!({ "name": "journal", "value": true, "source": "default" }));
    let hidden = json!({ "name": "metrics_token", "note": "set, hidden here", "source": "given" });
    assert_eq!(setting(&answer, "metrics_token"), &hidden);
    assert_eq!(setting(&answer, "public_url")["value"], "https://queue.example.com/");
    server.get("/v2/settings").without("Authorization").expect(401).await;
    server.finish().await;
}

/// What concerns tenants.
const FOR_TENANTS: [&str; 23] = [
    "region",
    "tenant_parallelism",
    "destination_parallelism",
    "message_bytes_max",
    "log_retention",
    "dlq_retention",
    "bulk_cancel_ignore_count",
    "max_delay",
    "max_retries",
    "max_timeout",
    "max_schedules",
    "max_queues",
    "max_queue_parallelism",
    "max_url_groups",
    "max_group_endpoints",
    "workflow_max_steps",
    "workflow_max_bytes",
    "workflow_max_duration",
    "workflow_max_depth",
    "workflow_lazy_bytes",
    "messages_per_day",
    "api_requests_per_second",
    "max_stored_bytes",
];

#[tokio::test]
async fn tenants_of_a_shared_server_and_readers_see_nothing_of_the_operators_machines() {
    let names = |answer: &Value| -> Vec<String> {
        let settings = answer["settings"].as_array().expect("settings are a list").iter();
        settings.map(|setting| setting["name"].as_str().expect("a name is text").to_owned()).collect()
    };
    let mut shared = Setup::serve();
    shared.settings.egress_allow_hosts = Some(vec!["inside.example".to_owned()]);
    let mut alone = shared.clone();
    alone.settings.tenants.truncate(1);
    for (setup, token, sees_all) in [
        (&shared, TOKEN, false),
        (&shared, READ_ONLY, false),
        (&shared, TOKEN_B, false),
        (&alone, TOKEN, true),
        (&alone, READ_ONLY, false),
        (&Setup::dev(), READ_ONLY, true),
    ] {
        let server = TestServer::with(setup.clone()).await;
        let answer = server.get("/v2/settings").token(token).expect(200).await;
        let (text, answer) = (answer.text(), answer.json());
        assert!(answer["version"].is_string() && answer["mode"].is_string(), "{text}");
        if sees_all {
            assert!(setting(&answer, "data_dir")["value"].is_string());
            assert!(FOR_TENANTS.iter().all(|name| names(&answer).contains(&(*name).to_owned())), "{text}");
        } else {
            assert_eq!(names(&answer), FOR_TENANTS);
            assert!(!text.contains("inside.example") && !text.contains("127.0.0."), "{text}");
        }
        assert!(!text.contains("tenant-b") || token == TOKEN_B, "{text}");
        server.finish().await;
    }
}

#[tokio::test]
async fn the_last_use_of_a_token_is_told_to_its_owner() {
    let server = TestServer::start().await;
    server.advance(5_000).await;
    server.publish("http://127.0.0.1:1/").token(READ_ONLY).expect(403).await;
    server.advance(5_000).await;
    let answer = server.get("/v2/settings").expect(200).await.json();
    assert_eq!(answer["startedAt"], START_MS);
    let expected = json!([
        { "name": "token", "scope": "full", "lastUsed": START_MS + 10_000 },
        { "name": "read_only_token", "scope": "readOnly", "lastUsed": START_MS + 5_000 },
    ]);
    assert_eq!(answer["tokens"], expected);
    let answer = server.restart().await;
    let tokens = answer.get("/v2/settings").token(TOKEN_B).expect(200).await.json()["tokens"].clone();
    assert_eq!(tokens.as_array().expect("a list").len(), 1, "{tokens}");
    let tokens = answer.get("/v2/settings").expect(200).await.json()["tokens"].clone();
    let expected = json!({ "name": "read_only_token", "scope": "readOnly", "lastUsed": START_MS + 5_000 });
    assert_eq!(tokens[1], expected, "a restart does not forget it");
    answer.finish().await;
}

#[tokio::test]
async fn tokens_with_names_are_as_good_as_others_and_told_apart() {
    let mut setup = Setup::serve();
    let token = |name: &str, scope| TokenSettings {
        name: name.to_owned(),
        scope,
        token: Some(format!("pht_of_tenant_a_for_{name}")),
        token_sha256: None,
    };
    setup.settings.tenants[0].tokens = vec![token("monitor", Scope::ReadOnly), token("ci", Scope::Full)];
    let server = TestServer::with(setup).await;
    let (monitor, ci) = ("pht_of_tenant_a_for_monitor", "pht_of_tenant_a_for_ci");
    server.get("/v2/keys").token(monitor).expect(403).await;
    server.advance(5_000).await;
    server.get("/v2/keys").token(ci).expect(200).await;
    server.advance(5_000).await;
    let answer = server.get("/v2/settings").expect(200).await;
    assert!(!answer.text().contains("pht_"), "{}", answer.text());
    let expected = json!([
        { "name": "token", "scope": "full", "lastUsed": START_MS + 10_000 },
        { "name": "read_only_token", "scope": "readOnly" },
        { "name": "monitor", "scope": "readOnly", "lastUsed": START_MS },
        { "name": "ci", "scope": "full", "lastUsed": START_MS + 5_000 },
    ]);
    assert_eq!(answer.json()["tokens"], expected);
    let tokens = server.get("/v2/settings").token(TOKEN_B).expect(200).await.json()["tokens"].clone();
    assert_eq!(tokens.as_array().map(Vec::len), Some(1), "others have their own: {tokens}");
    server.finish().await;
}
