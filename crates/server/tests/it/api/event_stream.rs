//! `/v2/events/stream`: log lines as they are committed.

use crate::support::server::{READ_ONLY, TOKEN, TOKEN_B};
use crate::support::{Backend, EventStream, Receiver, Reply, Setup, TestServer, eventually, within};
use posthaste_wire::encoding::base64;
use serde_json::Value;
use std::time::{Duration, Instant};

async fn follow(server: &TestServer, query: &str, token: &str) -> EventStream {
    try_follow(server, query, token).await.unwrap_or_else(|head| panic!("no stream: {head}"))
}

async fn try_follow(server: &TestServer, query: &str, token: &str) -> Result<EventStream, String> {
    let authorization = format!("Bearer {token}");
    let target = format!("/v2/events/stream?{query}");
    EventStream::try_open(server.address, &target, &[("Authorization", authorization.as_str())]).await
}

async fn line(stream: &mut EventStream) -> Value {
    let (name, data) = stream.next().await.expect("the stream goes on");
    assert_eq!(name, "line", "{data}");
    serde_json::from_str(&data).expect("a line is JSON")
}

#[tokio::test]
async fn lines_come_as_the_log_has_them() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500).with_body("no")]);
        let mut stream = follow(&server, "", READ_ONLY).await;
        let mut of_another = follow(&server, "", TOKEN_B).await;
        let headers = [("Upstash-Retries", "0"), ("Upstash-Label", "red")];
        let id = server.publish_with(&receiver.url("/fails"), &headers, "body").await;
        let mut lines = Vec::new();
        for _ in 0..4 {
            lines.push(line(&mut stream).await);
        }
        server.dead_letter_of(&id).await;
        assert_eq!(lines, server.events_of(&id).await, "{backend:?}: word for word");
        server.publish("http://127.0.0.1:9/theirs").token(TOKEN_B).header("Upstash-Delay", "1h").expect(200).await;
        assert_eq!(line(&mut of_another).await["url"], "http://127.0.0.1:9/theirs", "and nothing of others before it");
        server.finish_with_pending().await;
        assert_eq!((stream.next().await, of_another.next().await), (None, None), "it ends with the server");
    }
}

#[tokio::test]
async fn filters_select_lines() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut by_state = follow(&server, "state=DELIVERED&trimBody=0", TOKEN).await;
    let mut by_label = follow(&server, "label=red&state=CREATED", TOKEN).await;
    let mut by_path = follow(&server, "path=/b", TOKEN).await;
    for (path, label) in [("/a", "blue"), ("/b", "green"), ("/c", "red")] {
        let id = server.publish_with(&receiver.url(path), &[("Upstash-Label", label)], "body").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    }
    for label in ["blue", "green", "red"] {
        let line = line(&mut by_state).await;
        assert_eq!((&line["label"], &line["state"], line.get("body")), (&label.into(), &"DELIVERED".into(), None));
    }
    let red = line(&mut by_label).await;
    assert_eq!((&red["label"], &red["state"]), (&"red".into(), &"CREATED".into()));
    for state in ["CREATED", "ACTIVE", "DELIVERED"] {
        let line = line(&mut by_path).await;
        assert_eq!((&line["label"], &line["state"]), (&"green".into(), &state.into()));
    }
    for query in ["cursor=1", "count=1", "order=latestFirst", "groupBy=messageId", "state=NO", "maxPerSecond=0"] {
        server.get(&format!("/v2/events/stream?{query}")).expect(400).await.error();
    }
    server.get("/v2/events/stream").token("wrong").expect(401).await;
    server.finish().await;
}

#[tokio::test]
async fn bodies_are_short_unless_more_is_asked_for() {
    let server = TestServer::start().await;
    let mut streams = Vec::new();
    for query in ["", "trimBody=1000000", "trimBody=3"] {
        streams.push((follow(&server, &format!("state=CREATED&{query}"), TOKEN).await, query));
    }
    let item = |n: usize| {
        let body = n.to_string().repeat(300_000);
        serde_json::json!({ "destination": "http://127.0.0.1:9/", "headers": { "Upstash-Delay": "1h" }, "body": body })
    };
    // More than goes out at once.
    let items: Vec<Value> = (1..=3).map(item).collect();
    server.post("/v2/batch").body(Value::from(items).to_string()).expect(200).await;
    for (mut stream, query) in streams {
        let shown = match query {
            "" => 4_096,
            "trimBody=3" => 3,
            _ => 300_000,
        };
        for n in 1..=3 {
            let line = line(&mut stream).await;
            let body = base64(n.to_string().repeat(shown).as_bytes());
            assert!(line["body"] == body, "{query}: line {n}, {shown} bytes");
        }
    }
    server.finish_with_pending().await;
}

#[tokio::test]
async fn what_is_left_out_is_counted() {
    let server = TestServer::start().await;
    let mut stream = follow(&server, "maxPerSecond=3&state=CREATED", TOKEN).await;
    let items: Vec<Value> = (0..10)
        .map(|n| serde_json::json!({ "destination": format!("http://127.0.0.1:9/{n}"), "headers": { "Upstash-Delay": "1h" } }))
        .collect();
    server.post("/v2/batch").body(Value::from(items).to_string()).expect(200).await;
    for n in 0..3 {
        assert_eq!(line(&mut stream).await["url"], format!("http://127.0.0.1:9/{n}"));
    }
    let (name, data) = stream.next().await.expect("the stream goes on");
    assert_eq!((name.as_str(), data.as_str()), ("missed", "{\"count\":7}"));
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_tenant_has_only_so_many_and_who_leaves_makes_room() {
    let server = TestServer::start().await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(follow(&server, "", TOKEN).await);
    }
    let refused = server.get("/v2/events/stream").expect(429).await;
    assert!(refused.error().contains("8 streams"), "{}", refused.text());
    drop(follow(&server, "", TOKEN_B).await);
    streams.pop();
    // The server notices when the connection ends.
    eventually("there is room again", || async { try_follow(&server, "", TOKEN).await.ok() }).await;
    drop(streams);
    server.finish().await;
}

#[tokio::test]
async fn stopping_does_not_wait_for_a_stream() {
    let mut setup = Setup::dev();
    setup.settings.shutdown_grace = Some("60s".to_owned());
    let server = TestServer::with(setup).await;
    let mut stream = follow(&server, "", TOKEN).await;
    let begun = Instant::now();
    within("the server stops", server.finish()).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(stream.next().await, None);
}
