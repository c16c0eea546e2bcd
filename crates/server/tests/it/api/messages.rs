//! `/v2/messages`: one message, and cancelling one or many.

use crate::support::server::START_MS;
use crate::support::{Backend, Receiver, Reply, Setup, TestServer};
use serde_json::{Value, json};

const WAITING: [(&str, &str); 1] = [("Upstash-Delay", "1h")];

#[tokio::test]
async fn a_message_that_is_not_there_is_a_404() {
    let server = TestServer::start().await;
    for id in ["msg_unknown", "msg_", "x", "%00", "%25s", "msg_7YoJxFpwkEy5zBp378JgvD6YBDPBEqkBPje2JGTCEUiASMJQ1FwY9"] {
        server.get(&format!("/v2/messages/{id}")).expect(404).await.error();
        server.delete(&format!("/v2/messages/{id}")).expect(404).await.error();
    }
    server.finish().await;
}

#[tokio::test]
async fn a_waiting_message_is_cancelled_once() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let id = server.publish_with(&receiver.url("/"), &WAITING, "").await;
        let target = format!("/v2/messages/{id}");
        assert_eq!(server.delete(&target).expect(202).await.json(), json!({ "cancelled": 1 }));
        server.delete(&target).expect(404).await.error();
        server.advance(3_600_000).await;
        assert_eq!(server.states_of(&id).await, ["CREATED", "CANCEL_REQUESTED", "CANCELED"]);
        server.finish().await;
        assert_eq!(receiver.count(), 0);
    }
}

#[tokio::test]
async fn a_message_that_waits_for_its_retry_is_cancelled() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let id = server.publish_with(&receiver.url("/"), &[], "").await;
    let before = ["CREATED", "ACTIVE", "ERROR", "RETRY"];
    server.reaches(&id, &before).await;
    server.delete(&format!("/v2/messages/{id}")).expect(202).await;
    server.advance(3_600_000).await;
    assert_eq!(server.states_of(&id).await, [&before[..], &["CANCEL_REQUESTED", "CANCELED"]].concat());
    server.finish().await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn what_has_ended_cannot_be_cancelled() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    let delivered = server.publish_with(&receiver.url("/"), &[], "").await;
    server.reaches(&delivered, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let failed = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "").await;
    server.reaches(&failed, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
    for id in [&delivered, &failed] {
        server.delete(&format!("/v2/messages/{id}")).expect(404).await.error();
    }
    let both = format!("/v2/messages?messageIds={delivered},{failed}");
    assert_eq!(server.delete(&both).expect(202).await.json(), json!({ "cancelled": 0 }));
    assert_eq!(server.states_of(&delivered).await.len(), 3);
    server.finish().await;
}

#[tokio::test]
async fn an_attempt_under_way_is_let_finish_but_not_repeated() {
    for backend in Backend::ALL {
        for (status, error) in [(200, None), (500, Some("ERROR"))] {
            let server = TestServer::with(Setup::dev().on(backend)).await;
            let receiver = Receiver::start().await;
            let (held, gate) = Reply::status(status).held();
            receiver.script("/", [held]);
            let id = server.publish_with(&receiver.url("/"), &[], "").await;
            receiver.next().await;
            let target = format!("/v2/messages/{id}");
            assert_eq!(server.delete(&target).expect(202).await.json(), json!({ "cancelled": 1 }));
            // Counted once, whoever asks again.
            server.delete(&target).expect(404).await;
            assert_eq!(server.delete("/v2/messages").expect(202).await.json(), json!({ "cancelled": 0 }));
            assert_eq!(server.states_of(&id).await, ["CREATED", "ACTIVE", "CANCEL_REQUESTED"]);
            gate.open();
            let ending = error.into_iter().chain(["CANCELED"]);
            let states: Vec<&str> = ["CREATED", "ACTIVE", "CANCEL_REQUESTED"].into_iter().chain(ending).collect();
            server.reaches(&id, &states).await;
            server.advance(86_400_000).await;
            assert_eq!(server.states_of(&id).await, states);
            assert!(server.dead_letters("").await.is_empty());
            server.finish().await;
            assert_eq!(receiver.count(), 1);
        }
    }
}

/// Four waiting messages that differ in everything a filter can ask for, one hour apart.
async fn four_waiting(server: &TestServer, hosts: [&str; 2]) -> Vec<String> {
    let mut ids = Vec::new();
    for (n, labels) in ["red,first", "red", "blue", "green"].into_iter().enumerate() {
        let url = format!("{}/path/{n}?n={n}", hosts[n / 2]);
        let headers = [("Upstash-Label", labels), ("Upstash-Delay", "30d")];
        ids.push(server.publish_with(&url, &headers, "").await);
        server.advance(3_600_000).await;
    }
    ids
}

/// Which of the messages were cancelled.
async fn cancelled_of(server: &TestServer, ids: &[String]) -> Vec<usize> {
    let mut cancelled = Vec::new();
    for (n, id) in ids.iter().enumerate() {
        match server.states_of(id).await.last().map(String::as_str) {
            Some("CREATED") => {}
            Some("CANCELED") => cancelled.push(n),
            other => panic!("{other:?}"),
        }
    }
    cancelled
}

#[tokio::test]
async fn a_bulk_cancel_ends_what_its_filter_names_and_nothing_else() {
    const HOUR: u64 = 3_600_000;
    let from = START_MS + HOUR;
    let cases: Vec<(String, &[usize])> = vec![
        ("messageIds={0}".into(), &[0]),
        ("messageIds={0},{2}".into(), &[0, 2]),
        ("messageIds={0}&messageIds={2},msg_unknown".into(), &[0, 2]),
        ("messageIds=msg_unknown".into(), &[]),
        ("url=http://one.example/path/1%3Fn%3D1".into(), &[1]),
        ("url=http://one.example/path/1".into(), &[]),
        ("host=one.example".into(), &[0, 1]),
        ("host=two.example:8080".into(), &[2, 3]),
        ("host=two.example".into(), &[2, 3]),
        ("path=/path/3".into(), &[3]),
        ("path=/path".into(), &[]),
        ("label=red".into(), &[0, 1]),
        ("label=first,green".into(), &[0, 3]),
        ("label=blue&label=green".into(), &[2, 3]),
        ("label=red&host=two.example".into(), &[]),
        ("label=red&path=/path/1".into(), &[1]),
        ("callerIp=127.0.0.1".into(), &[0, 1, 2, 3]),
        ("callerIP=10.0.0.1".into(), &[]),
        (format!("fromDate={from}"), &[1, 2, 3]),
        (format!("toDate={from}"), &[0, 1]),
        (format!("fromDate={from}&toDate={from}"), &[1]),
        (format!("fromDate={}&toDate={}", from + 1, from + HOUR - 1), &[]),
        ("fromDate=2000&toDate=1000".into(), &[]),
        ("count=3".into(), &[0, 1, 2]),
        ("label=red&count=1".into(), &[0]),
        ("queueName=q".into(), &[]),
        ("topicName=t&label=red".into(), &[]),
        ("scheduleId=s".into(), &[]),
        ("flowControlKey=k".into(), &[]),
        (String::new(), &[0, 1, 2, 3]),
    ];
    let hosts = ["http://one.example", "http://two.example:8080"];
    for (backend, form) in [(Backend::Sqlite, "query"), (Backend::Memory, "query"), (Backend::Sqlite, "body")] {
        let mut setup = Setup::dev().on(backend);
        setup.manual_clock = true;
        for (query, expected) in &cases {
            let server = TestServer::with(setup.clone()).await;
            let ids = four_waiting(&server, hosts).await;
            let query = (0..4).fold(query.clone(), |query, n| query.replace(&format!("{{{n}}}"), &ids[n]));
            let request = match form {
                "query" => server.delete(&format!("/v2/messages?{query}")),
                _ => server.delete("/v2/messages").json(&as_body(&query)),
            };
            let answer = request.expect(202).await.json();
            assert_eq!(answer, json!({ "cancelled": expected.len() }), "{form} {query}");
            assert_eq!(cancelled_of(&server, &ids).await, *expected, "{form} {query}");
            server.finish_with_pending().await;
        }
    }
}

/// The same filter as older SDKs send it: a JSON object, numbers as numbers, several values as a list.
fn as_body(query: &str) -> Value {
    let mut body = serde_json::Map::new();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let value = match value.parse::<u64>() {
            Ok(number) if name.ends_with("Date") || name == "count" => json!(number),
            _ => json!(value),
        };
        match body.get_mut(name.as_ref()) {
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = json!([first, value]),
            None => drop(body.insert(name.into_owned(), value)),
        }
    }
    body.into()
}

#[tokio::test]
async fn a_bulk_cancel_that_is_unclear_cancels_nothing() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let id = server.publish_with(&receiver.url("/"), &WAITING, "").await;
    let queries = [
        "messageIDs=a",
        "labell=a",
        "messageIds=",
        "messageIds=,",
        "label=",
        "count=0",
        "count=501",
        "count=-1",
        "count=many",
        "count=1&count=2",
        "fromDate=yesterday",
        "toDate=99999999999999999999",
        "async=maybe",
    ];
    for query in queries {
        server.delete(&format!("/v2/messages?{query}")).expect(400).await.error();
    }
    let bodies = [
        r#"{"messageIds":[]}"#,
        r#"{"messageIds":[""]}"#,
        r#"{"messageIds":{}}"#,
        r#"{"messageIds":null}"#,
        r#"{"labell":"a"}"#,
        r#"["msg_1"]"#,
        r#""msg_1""#,
        "{",
    ];
    for body in bodies {
        server.delete("/v2/messages").body(body).expect(400).await.error();
    }
    // A forgotten id must not cancel everything.
    server.delete("/v2/messages/").expect(400).await.error();
    server.delete("/v2/messages/?count=1").expect(400).await.error();
    for path in ["/v2/messages//", "/v2/messages/%20", "/v2/messages/.", "/v2/messages/..", "/v2/messages/%2F"] {
        let answer = server.delete(path).send().await;
        assert!([400, 404].contains(&answer.status), "{path}: {}", answer.status);
    }
    assert_eq!(server.states_of(&id).await, ["CREATED"]);
    server.delete(&format!("/v2/messages/{id}")).expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn the_query_wins_over_the_body() {
    let server = TestServer::start().await;
    let ids = four_waiting(&server, ["http://one.example", "http://two.example"]).await;
    let answer = server.delete("/v2/messages?label=blue").json(&json!({ "label": "red" })).expect(202).await.json();
    assert_eq!(answer, json!({ "cancelled": 1 }));
    assert_eq!(cancelled_of(&server, &ids).await, [2]);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn count_is_ignored_where_the_operator_says_so() {
    let mut setup = Setup::dev();
    setup.settings.bulk_cancel_ignore_count = Some(true);
    let server = TestServer::with(setup).await;
    four_waiting(&server, ["http://one.example", "http://two.example"]).await;
    let answer = server.delete("/v2/messages?count=1").expect(202).await.json();
    assert_eq!(answer, json!({ "cancelled": 4 }));
    server.finish().await;
}
