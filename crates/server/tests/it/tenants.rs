//! Who may do what: tokens, read-only tokens, and the walls between tenants.

use crate::support::jwt;
use crate::support::server::{CURRENT_KEY_B, READ_ONLY, TOKEN, TOKEN_B, message_id};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer};
use serde_json::json;

/// Every endpoint of this version that wants a token, and whether it only reads.
const ENDPOINTS: [(&str, &str, bool); 51] = [
    ("POST", "/v2/publish/http://127.0.0.1:9/", false),
    ("POST", "/v1/publish/http://127.0.0.1:9/", false),
    ("POST", "/v2/enqueue/q/http://127.0.0.1:9/", false),
    ("POST", "/v2/batch", false),
    ("GET", "/v2/queues", true),
    ("POST", "/v2/queues", false),
    ("GET", "/v2/queues/q", true),
    ("DELETE", "/v2/queues/q", false),
    ("POST", "/v2/queues/q/pause", false),
    ("POST", "/v2/queues/q/resume", false),
    ("GET", "/v2/flowControl", true),
    ("GET", "/v2/flowControl/k", true),
    ("POST", "/v2/flowControl/k/pause", false),
    ("POST", "/v2/flowControl/k/pin?rate=1", false),
    ("GET", "/v2/globalParallelism", true),
    ("POST", "/v2/schedules/http://127.0.0.1:9/", false),
    ("GET", "/v2/schedules", true),
    ("GET", "/v2/schedules/s", true),
    ("DELETE", "/v2/schedules/s", false),
    ("PATCH", "/v2/schedules/s/pause", false),
    ("POST", "/v2/schedules/s/resume", false),
    ("GET", "/v2/topics", true),
    ("GET", "/v2/topics/g", true),
    ("POST", "/v2/topics/g/endpoints", false),
    ("PATCH", "/v2/topics/g", false),
    ("DELETE", "/v2/topics/g", false),
    ("GET", "/v2/bulkActions", true),
    ("GET", "/v2/bulkActions/1", true),
    ("DELETE", "/v2/bulkActions/1", false),
    ("DELETE", "/v2/messages", false),
    ("GET", "/v2/messages/msg_x", true),
    ("DELETE", "/v2/messages/msg_x", false),
    ("GET", "/v2/dlq", true),
    ("GET", "/v2/dlq/causes", true),
    ("DELETE", "/v2/dlq", false),
    ("GET", "/v2/dlq/1-1", true),
    ("DELETE", "/v2/dlq/1-1", false),
    ("POST", "/v2/dlq/retry", false),
    ("POST", "/v2/dlq/retry/1-1", false),
    ("GET", "/v2/events", true),
    ("GET", "/v2/logs", true),
    ("GET", "/v2/keys", false),
    ("POST", "/v2/keys/rotate", false),
    ("POST", "/v2/rotate", false),
    ("POST", "/v2/trigger/http://127.0.0.1:9/", false),
    ("POST", "/v2/batch/trigger", false),
    ("POST", "/v2/wait/e", false),
    ("POST", "/v2/notify/e", false),
    ("GET", "/v2/workflows/runs/r", true),
    ("DELETE", "/v2/workflows/runs/r", false),
    ("DELETE", "/v2/workflows/runs", false),
];

/// The whole texts of a 401, by the mistake: no header, one of another form, and an unknown token.
const MISSING: &str = "unable to authenticate: invalid token: the request has no Authorization header; send Authorization: Bearer \
                       followed by your QSTASH_TOKEN";
const MALFORMED: &str = "unable to authenticate: invalid token: the Authorization header must be the word Bearer, a space and \
                         your QSTASH_TOKEN, and be sent once";
const UNKNOWN: &str = "unable to authenticate: invalid token: this server does not know the token; check QSTASH_TOKEN and \
                       QSTASH_URL";

#[tokio::test]
async fn without_a_valid_token_nothing_is_done() {
    let server = TestServer::with(Setup::serve()).await;
    let swapped: String =
        TOKEN.chars().map(|c| if c.is_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() }).collect();
    let (token, half) = (format!("Bearer {TOKEN}"), &TOKEN[..TOKEN.len() / 2]);
    let mistakes = [
        (vec![], MISSING),
        (vec![String::new()], MALFORMED),
        (vec!["Bearer".to_owned()], MALFORMED),
        (vec!["Bearer ".to_owned()], MALFORMED),
        (vec![TOKEN.to_owned()], MALFORMED),
        (vec![format!("Basic {TOKEN}")], MALFORMED),
        (vec![token.clone(), "Bearer x".to_owned()], MALFORMED),
        (vec![token.clone(), token.clone()], MALFORMED),
        (vec![format!("Bearer  {TOKEN}")], UNKNOWN),
        (vec![format!("Bearer {TOKEN}x")], UNKNOWN),
        (vec![format!("Bearer {half}")], UNKNOWN),
        (vec![format!("Bearer {swapped}")], UNKNOWN),
        (vec![format!("Bearer {TOKEN},{TOKEN}")], UNKNOWN),
    ];
    for (method, path, _) in ENDPOINTS {
        for (headers, expected) in &mistakes {
            let bare = server.request(method, path).without("Authorization").body("[]");
            let request = headers.iter().fold(bare, |request, value| request.header("Authorization", value));
            let body = request.expect(401).await.text();
            assert_eq!(body, json!({ "error": expected }).to_string(), "{method} {path}: {headers:?}");
        }
    }
    let lower = server.get("/v2/keys").without("Authorization").header("authorization", format!("bearer {TOKEN}"));
    lower.expect(200).await;
    assert_eq!(server.metric("posthaste_published_total{result=\"accepted\"}"), 0.0);
    server.finish().await;
}

#[tokio::test]
async fn published_credentials_do_not_work_in_production() {
    let server = TestServer::with(Setup::serve()).await;
    for user in &posthaste::tenants::DEV_USERS {
        server.get("/v2/keys").token(user.token).expect(401).await;
    }
    server.finish().await;
}

#[tokio::test]
async fn a_read_only_token_looks_but_changes_nothing_and_sees_no_keys() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    let pending = server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "").await;
    let failed = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "").await;
    let letter = server.dead_letter_of(&failed).await;
    for (method, path, reads) in ENDPOINTS {
        let answer = server.request(method, path).token(READ_ONLY).body("[]").send().await;
        if reads {
            assert!([200, 404].contains(&answer.status), "{method} {path}: {}", answer.status);
        } else {
            assert_eq!(answer.status, 403, "{method} {path}");
            assert!(answer.error().contains("read-only"));
        }
    }
    let reads = ["/v2/events", "/v2/dlq", &format!("/v2/messages/{pending}")];
    for path in reads {
        let shown = server.get(path).token(READ_ONLY).expect(200).await.json();
        assert_eq!(shown, server.get(path).expect(200).await.json(), "{path}");
    }
    assert_eq!(server.dead_letters("").await, [letter]);
    assert_eq!(server.states_of(&pending).await, ["CREATED"]);
    server.delete("/v2/messages").expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn tenants_do_not_see_or_touch_what_is_not_theirs() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500)]);
        let pending = server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "a").await;
        let failed = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "a").await;
        let letter = server.dead_letter_of(&failed).await;
        let dlq_id = letter["dlqId"].as_str().expect("an id");
        let lines = server.events("").await.len();

        for path in [format!("/v2/messages/{pending}"), format!("/v2/messages/{failed}"), format!("/v2/dlq/{dlq_id}")] {
            server.get(&path).token(TOKEN_B).expect(404).await.error();
            server.delete(&path).token(TOKEN_B).expect(404).await.error();
        }
        server.post(&format!("/v2/dlq/retry/{dlq_id}")).token(TOKEN_B).expect(404).await.error();
        server.post(&format!("/v2/dlq/retry?dlqIds={dlq_id}")).token(TOKEN_B).expect(404).await.error();
        let nothing = [
            ("GET", "/v2/events".to_owned(), 200, json!({ "events": [], "logs": [] })),
            ("GET", format!("/v2/events?messageId={pending}"), 200, json!({ "events": [], "logs": [] })),
            ("GET", "/v2/dlq".to_owned(), 200, json!({ "messages": [] })),
            ("GET", format!("/v2/dlq?dlqIds={dlq_id}"), 200, json!({ "messages": [] })),
            ("DELETE", "/v2/dlq".to_owned(), 200, json!({ "deleted": 0 })),
            ("DELETE", format!("/v2/dlq?dlqIds={dlq_id}"), 200, json!({ "deleted": 0 })),
            ("DELETE", "/v2/messages".to_owned(), 202, json!({ "cancelled": 0 })),
            ("DELETE", format!("/v2/messages?messageIds={pending}"), 202, json!({ "cancelled": 0 })),
            ("POST", "/v2/dlq/retry".to_owned(), 201, json!({ "responses": [], "cursor": "" })),
        ];
        for (method, path, status, expected) in nothing {
            let answer = server.request(method, &path).token(TOKEN_B).expect(status).await;
            assert_eq!(answer.json(), expected, "{method} {path}");
        }
        assert_eq!(server.states_of(&pending).await, ["CREATED"]);
        assert_eq!((server.dead_letters("").await, server.events("").await.len()), (vec![letter], lines));
        server.delete("/v2/messages").expect(202).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn each_tenant_signs_with_its_own_key() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let answer = server.publish(&receiver.url("/")).token(TOKEN_B).body("b").expect(200).await;
    let delivery = receiver.next().await;
    assert_eq!(delivery.header("upstash-message-id"), Some(message_id(&answer).as_str()));
    let token = delivery.header("upstash-signature").expect("it is signed");
    assert!(jwt::verify(token, CURRENT_KEY_B).is_some());
    server.finish().await;
}
